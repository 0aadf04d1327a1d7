"""Conformance suites for what others add to Sharpwave: each a class to subclass. They need pytest and hypothesis."""
