"""Adapters between reducers and training frameworks."""
