"""Published comparisons, replayed."""
