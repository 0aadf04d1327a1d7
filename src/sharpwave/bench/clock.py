"""Where a training loop's time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from typing import Any

PARTS = ("environment", "inference", "sampling", "learning", "waiting", "other")
"""``inference``: the network's forward pass to act. ``sampling``: until there are tensors. ``learning``: forward,
backward, optimizer. ``waiting``: for another process. ``other``: all that no part was named for, storing above all."""


class Clock:
    """Splits time into :data:`PARTS` that add up to all of it: of nested parts only the inner one is charged.

    Args:
        seconds: [len(PARTS)], where the times are kept: memory shared with another process, or None.
        now: gives the time in seconds.

    Attributes:
        calls: since the restart, of the functions that :meth:`timed` gave, by part.
    """

    def __init__(
        self, seconds: MutableSequence[float] | None = None, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds = [0.0] * len(PARTS) if seconds is None else seconds
        self.calls = dict.fromkeys(PARTS, 0)
        self._now = now
        self._running = [PARTS.index("other")]
        self._charged = now()

    def restart(self) -> None:
        """Forget what was measured so far."""
        self._charged = self._now()
        self.calls = dict.fromkeys(PARTS, 0)
        for part in range(len(PARTS)):
            self._seconds[part] = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is done inside is charged to ``name``."""
        self._charge()
        self._running.append(PARTS.index(name))
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, every call of which is charged to ``name``."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            with self.part(name):
                return function(*arguments, **options)

        return call

    def split(self) -> dict[str, float]:
        """Seconds since the restart by part."""
        self._charge()
        return dict(zip(PARTS, self._seconds, strict=True))

    def _charge(self) -> None:
        now = self._now()
        self._seconds[self._running[-1]] += now - self._charged
        self._charged = now
