"""What leaves when the store is full."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fifo:
    """The segment that was sealed first leaves first."""
