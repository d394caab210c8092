"""Training with every method, and the page of results."""
