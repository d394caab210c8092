"""Simulated ranks: threads of one process, and a clock that is a number."""
