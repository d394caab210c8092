"""Training reference tasks with a method, on virtual workers or real processes."""
