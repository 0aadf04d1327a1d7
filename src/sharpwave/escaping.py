"""Escaping of untrusted names and texts before they are printed."""

from __future__ import annotations

import shlex


def escaped(text: object) -> str:
    """Escape the characters of a text that move the cursor, change colors or reverse the reading order."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in str(text)
    )


def printable(text: str) -> str:
    """Escape the control characters in text of unknown origin: ESC -> "\\x1b"."""
    return "\n".join(map(escaped, text.split("\n")))


def quoted(path: object) -> str:
    """Quote a path for a shell, for commands that are printed to be copied."""
    return shlex.quote(printable(str(path)))
