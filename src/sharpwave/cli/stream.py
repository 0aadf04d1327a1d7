"""Standard output of a command whose reader may end first: a closed terminal, or ``| head``."""

from __future__ import annotations

import os
import sys
from typing import Any


class Unbroken:
    """Stream whose writes never fail: after a first failure all output is discarded, also that flushed at exit."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``, or discard it after a failure."""
        try:
            self._stream.write(text)
        except OSError:
            self._let_go()
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless a write has failed."""
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
