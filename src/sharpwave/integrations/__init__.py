"""Sharpwave's store behind the replay buffers of other frameworks, a module for each."""
