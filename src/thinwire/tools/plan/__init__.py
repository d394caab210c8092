"""What a step will take: forecast from cost cards, this machine's speed and a link."""
