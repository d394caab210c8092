"""Faults on purpose: real processes train, are hurt at random, and are checked."""
