"""Escaping of untrusted names before they are printed."""

from __future__ import annotations


def escaped(text: object) -> str:
    """Escape the characters of a text that move the cursor, change colors or reverse the reading order."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in str(text)
    )
