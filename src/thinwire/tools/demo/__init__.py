"""The demo: a small character model, trained with several methods."""
