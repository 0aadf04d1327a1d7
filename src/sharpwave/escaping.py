"""Escaping of names that strangers chose, before they are printed."""

from __future__ import annotations


def escaped(text: object) -> str:
    """Return a text with every character escaped that moves a cursor, changes colors or reverses the reading order."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in str(text)
    )
