"""Small training runs: a model, a text, and a loop that compares methods."""
