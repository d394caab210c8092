"""Training by AdamW with every method, and the page of its results."""
