"""Processes that play while this one learns."""
