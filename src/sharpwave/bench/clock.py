"""Clock that splits a training loop's time into parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from typing import Any

PARTS = ("environment", "inference", "sampling", "learning", "waiting", "other")
"""``inference``: the network's forward pass to act. ``sampling``: until there are tensors. ``learning``: forward,
backward, optimizer. ``waiting``: for another process. ``other``: everything else, mostly storing."""


class Clock:
    """Clock that splits time into ``PARTS``, which add up to the whole: of nested parts the inner one is charged.

    Args:
        seconds: [len(PARTS)], array for the times, such as memory shared with another process; None: allocate it.
        now: function that returns the time in seconds.

    Attributes:
        calls: calls of functions of ``timed`` since the restart, by part.
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
        """Reset all times and counts."""
        self._charged = self._now()
        self.calls = dict.fromkeys(PARTS, 0)
        for part in range(len(PARTS)):
            self._seconds[part] = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge the time inside the block to ``name``."""
        self._charge()
        self._running.append(PARTS.index(name))
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function`` so that its calls are charged to ``name``."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            with self.part(name):
                return function(*arguments, **options)

        return call

    def split(self) -> dict[str, float]:
        """Return the seconds since the restart by part."""
        self._charge()
        return dict(zip(PARTS, self._seconds, strict=True))

    def _charge(self) -> None:
        now = self._now()
        self._seconds[self._running[-1]] += now - self._charged
        self._charged = now
