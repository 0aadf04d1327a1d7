"""Standard output of a command that may outlive its reader: a closed terminal, or ``| head``."""

from __future__ import annotations

import os
import sys
from typing import Any


class Unbroken:
    """A stream to which writing never fails: once it did, everything goes nowhere, as does what is flushed at exit."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``."""
        try:
            self._stream.write(text)
        except OSError:
            self._let_go()
        return len(text)

    def flush(self) -> None:
        """Write what waits."""
        try:
            self._stream.flush()
        except OSError:
            self._let_go()

    def _let_go(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console() -> Any:
    """Return a rich console on standard output that survives a closed terminal or ``| head``."""
    from rich.console import Console

    return Console(file=Unbroken(sys.stdout))  # type: ignore[arg-type]
