"""Benchmarks of training that a user can run: the ladder of speed-ups, and the size of the memory."""
