"""What slows ranks down or stops them, found before they train, with its remedy."""
