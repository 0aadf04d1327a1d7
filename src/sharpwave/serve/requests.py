"""Kinds of requests to a shard, and what every reply says of a view."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import Any, Self

from sharpwave.serve.wire import WireError


class Request(IntEnum):
    """Kind of a request; the reply has the same kind, or ``FAILED``."""

    DESCRIBE = 16
    VIEW = 17
    STATE = 18
    DRAW = 19
    UPDATE = 20
    LEASE = 22
    PUT = 23
    CREDIT = 24
    STATS = 25
    FLUSH = 26
    PAUSE = 27
    RESUME = 28
    CHECKPOINT = 29
    ANNOTATE = 31
    CLEAR = 32
    DRAIN = 33
    CEDE = 34
    INHERIT = 35
    FORGET = 36
    FIND = 37
    REPLICATE = 40
    RESTORE = 41
    DIRECTORY = 64
    RESIZE = 65
    JOIN = 80
    POLL = 81
    LEAVE = 82


FAILED = 255
"""Kind of the reply to a request that raised; its head has the error's ``kind`` and ``text``."""

TRANSITIONS, SEQUENCES = "transitions", "sequences"


MAX_SAID = 1e60
"""Limit of what a shard says of a view: sums over shards remain finite."""


@dataclass(frozen=True)
class ViewState:
    """What a shard says of a view with every reply.

    Attributes:
        mass: sum of its items' masses. ``count``: items that can be sampled. ``uses``: how often they can be in all;
            -1: without limit.
        inserts: steps held when the view was made, and appended since. ``samples``: items that it drew.
        max_priority: largest priority so far.
    """

    mass: float = 0.0
    count: int = 0
    uses: int = -1
    inserts: int = 0
    samples: int = 0
    max_priority: float = 1.0

    def described(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, described: Any) -> Self:
        """Return the state that ``described`` says.  Raises: WireError."""
        try:
            values: dict[str, Any] = {
                one.name: (float if one.type == "float" else int)(described[one.name]) for one in fields(cls)
            }
            if not all(0 <= value <= MAX_SAID for name, value in values.items() if name != "uses"):
                raise ValueError(f"expected numbers from 0 to {MAX_SAID:g}")
            return cls(**values)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WireError(f"a view's state {described!r} lacks or has wrong values ({error})") from error
