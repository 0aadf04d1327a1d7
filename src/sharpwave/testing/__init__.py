"""Conformance suites for extensions of Sharpwave, as classes to subclass. They need pytest and hypothesis."""
