"""Forecast the time of a training step from costs, this machine's speed and a link."""
