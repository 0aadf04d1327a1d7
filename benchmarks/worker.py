"""One contender of ``store.py`` in a process of its own, as ``sharpwave.bench.worker``: ``worker.py NAME FOLDER``.

With the names ``trees`` and ``limit``: sum trees alone, and memory alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from contenders import CONTENDERS
from frames import STACK, read
from trees import Trees

from sharpwave.bench.limit import Limit
from sharpwave.bench.worker import Bench, Measured, serve


def make(name: str, folder: Path) -> Measured:
    """Make the benchmark ``name`` over the recording in ``folder``."""
    if name == "trees":
        return Trees()
    if name == "limit":
        return Limit(84 * 84, STACK + 1)
    return Bench(CONTENDERS[name], read(folder))


if __name__ == "__main__":
    serve(lambda: make(sys.argv[1], Path(sys.argv[2])))
