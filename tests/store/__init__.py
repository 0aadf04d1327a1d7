"""Tests of the store: its contract, told by a plain oracle."""
