"""Names that strangers chose, as they may be printed."""

from __future__ import annotations


def escaped(text: object) -> str:
    """A text in which nothing moves a terminal's cursor, changes colors or reads backwards: such characters as code."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in str(text)
    )
