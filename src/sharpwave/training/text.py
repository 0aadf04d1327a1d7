"""Formatting of numbers, names and messages for people."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from sharpwave.escaping import escaped
from sharpwave.showing import byte_text


def speaker(console: Any) -> Callable[[str], None]:
    """Return a function that prints a sentence to a rich console, without markup or control characters."""

    def say(text: str) -> None:
        console.print(printable(text), soft_wrap=True, highlight=False, markup=False)

    return say


def printable(text: str) -> str:
    """Escape the control characters in text of unknown origin: ESC -> "\\x1b"."""
    return "\n".join(map(escaped, text.split("\n")))


def quoted(path: object) -> str:
    """Quote a path for a shell, for commands that are printed to be copied."""
    return shlex.quote(printable(str(path)))


def step_bytes_text(figures: Mapping[str, Any]) -> str:
    """Format a replay memory's bytes a step, encoded, and apart from them its buffers of fixed size.

    Args:
        figures: of ``Store.stats``.
    """
    encoded = figures["encoded_bytes_per_step"] or None  # nothing is sealed yet
    return f"{number_text(encoded, 1)} bytes a step + {byte_text(figures['fixed_bytes'])} of buffers"


def duration_text(seconds: float) -> str:
    """Format a duration: 3725 -> "1 h 02 min"; 65 -> "1 min 05 s"; 7.2 -> "7 s"."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole} s"


def number_text(value: float | None, digits: int = 2) -> str:
    """Format a number; None becomes a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"
