"""Replay buffers for other frameworks over Sharpwave's store, one module each."""
