"""Benchmarks of training that a user can run: the ladder of what makes it faster, and the size of the memory."""
