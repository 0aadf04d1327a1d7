"""Contenders of ``store.py``: Sharpwave's codecs, and other libraries' buffers in their configurations."""

from __future__ import annotations

from collections.abc import Callable

from frames import STACK

from sharpwave.bench.contenders import Contender, Sharpwave
from sharpwave.bench.peers import SB3
from sharpwave.bench.setups import SETUPS

CONTENDERS: dict[str, Callable[[], Contender]] = {
    "sharpwave auto": lambda: Sharpwave("auto"),
    "sharpwave delta": lambda: Sharpwave("delta"),
    "sharpwave zstd": lambda: Sharpwave("zstd"),
    "sharpwave raw": lambda: Sharpwave("raw"),
    "SB3": lambda: SB3(optimized=False),
    "SB3 optimized": lambda: SB3(optimized=True),
    "SB3 numpy": lambda: SB3(optimized=False, to_torch=False),
    "cpprb compressed": lambda: SETUPS["cpprb"].make(STACK),
    "cpprb stacks": lambda: SETUPS["cpprb stacks"].make(STACK),
    "Tianshou last frame": lambda: SETUPS["Tianshou"].make(STACK),
    "Tianshou stacks": lambda: SETUPS["Tianshou stacks"].make(STACK),
}
ENCODED = ("sharpwave auto", "sharpwave delta", "sharpwave zstd")
