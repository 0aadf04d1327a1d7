"""Measurements of the store, of other replay memories, and of the trainer on the user's own machine and data."""
