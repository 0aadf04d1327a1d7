"""Protocol of views: a view is a kind of items that are computed from the log when they are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Floats, Int32s, Ints
from sharpwave.log.step_log import StepLog
from sharpwave.native import core
from sharpwave.views.layout import Arrays, BatchTarget, Column

Batch_co = TypeVar("Batch_co", covariant=True)

MAX_RUNS = 1024
"""Limit of the runs of new items that one call of ``View.find`` returns."""
STEPS = "steps"
"""``View.id_space`` of views whose items are steps: item k of a segment is its row k."""


def fills_at_once(view: Any) -> bool:
    """Return whether a view's own class defines ``filler``: a derived class may fill in another way."""
    return "filler" in vars(type(view))


def items_of(runs: Ints, stride: int) -> Ints:
    """Return all items of ``runs`` [3, n], as ``View.find`` returns them."""
    parts = [np.arange(slot * stride + begin, slot * stride + end) for slot, begin, end in runs.T.tolist()]
    return np.concatenate([np.empty(0, np.int64), *parts])


class View(Protocol[Batch_co]):
    """Kind of items in a store's log: its items, the segments that each needs, and the filling of a batch.

    ``sharpwave.views.view_replay.Replay`` does the rest: drawing, waiting, priorities, streams, limits, checkpoints.
    An instance is constructed with its settings and serves one replay. The store's lock is held during every call.

    An item belongs to the segment in which it begins; item k of the segment in slot s has the number
    ``s * stride + k``. A segment's items are found in order, from 0 on, and are at most as many as its steps.
    ``spans`` int32 [slots, 2] gives its items: ``spans[s, 0] <= k < spans[s, 1]``.

    Attributes:
        kind: name of the view's class, and default name of its replays.
        waits_for: requirement for a step to be part of an item, for error messages.
        scratch_rows: rows of int64 [rows, batch size] that ``fill`` works in.
        error_shape: shape of an item's values in ``update_priorities``.
        reach_back: steps before an item's first one that it may need.
        id_space: meaning of ids, in words. Views of one store that share it may use each other's ids.
        draws_uniforms: whether the content of an item depends on chance: ``draw.uniforms`` float64 [n] then has a
            number of each, uniform over 0 to 1, when it is filled; 1, which is never drawn, marks an item that was not
            sampled.
        only_ended: whether it finds items of ended episodes only, as views with a condition do; set before ``bind``.
            ``None``: it cannot, so it takes no condition.
        places_arrays: in the class that defines ``batch``, whether it only places its arrays.
    """

    kind: str
    scratch_rows: int = 0
    error_shape: tuple[int, ...] = ()
    reach_back: int = 0
    id_space: str = STEPS
    draws_uniforms: bool = False
    only_ended: bool | None = None
    places_arrays: bool = False

    @property
    def read_columns(self) -> int:
        """Columns of segments that batches need, a bit each, where they do not need all; else 0."""
        return 0

    @property
    def waits_for(self) -> str:
        return "a step can be sampled once all that its item needs was appended"

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it keeps from call to call; ``stats()`` and ``ram`` count them."""
        return 0

    def settings(self) -> dict[str, Any]:
        """Return its settings as JSON values: a checkpoint's state is only restored into a view of the same
        settings."""
        raise NotImplementedError

    def bind(self, log: StepLog) -> None:
        """Begin to serve a log.  Raises: ValueError: the settings do not fit it."""
        raise NotImplementedError

    def take_columns(self) -> None:
        """Begin to read the columns that the log has now: one was added later, or dropped."""
        return None

    def only(self, names: frozenset[str]) -> View[Batch_co]:
        """Return a view of the same items whose batches have these fields only, by flat name.

        Raises: ValueError: its batches need more.
        """
        raise ValueError(f"fields=: batches of {self.kind!r} have all fields; leave it out")

    def follow(self, whole: View[Any]) -> None:
        """Take over the state that growing and finding replace in the ``whole`` view; this one has some of its fields
        (``only``)."""
        return None

    def grow(self, slots: int) -> None:
        """Enlarge for ``slots`` slots, more than before."""
        return None

    def find(self, spans: Int32s) -> Ints:
        """Find the items that became known since the last call, and raise the ends of their spans.

        Returns int64 [3, runs]: slots, begins and ends of runs of items, the slots distinct. At most ``MAX_RUNS``;
        after as many it is called again. Items below the begin of their span, raised now, no longer exist.
        """
        raise NotImplementedError

    def lose(self, slot: int, spans: Int32s) -> Ints:
        """Narrow the spans of other segments, as the segment in ``slot`` is about to be evicted.

        Returns the other segments' items that need it, ascending; items of its own span are dropped anyway.
        """
        raise NotImplementedError

    def lost_by(self) -> tuple[core.Finder, dict[int, Any]] | None:
        """Return the finder that ``lose`` uses, and the dict from which it drops a slot; ``None`` if it does more.

        They stay the same until ``grow`` is called.
        """
        return None

    def segments(self, items: Ints) -> Ints:
        """Return int64 [n, k]: slots of the segments whose fields each of ``items`` [n] needs; some may be repeated.

        Flags and rewards are always in memory.
        """
        raise NotImplementedError

    def drawn_segments(self, items: Ints, uniforms: Floats) -> Ints:
        """Return ``segments`` of items that were drawn with the numbers ``uniforms`` [n]."""
        return self.segments(items)

    def first_steps(self, items: Ints) -> Ints:
        """Return the number of each item's first step, its segment's slot times the stride plus its row: int64 [n].

        The segments are held; items that cannot be sampled yet, or no more, are allowed.
        """
        return items

    def columns(self) -> Mapping[str, Column]:
        """Return the arrays of a batch other than ``weights``, ``probabilities`` and ``ids``."""
        raise NotImplementedError

    def fill(self, target: BatchTarget) -> None:
        """Fill ``target.columns`` for ``target.draw.items``, whose segments are in memory."""
        raise NotImplementedError

    def finish(self, target: BatchTarget) -> None:
        """Call the user's functions, once all of a batch is filled: they may change the log."""
        return None

    def batch(self, arrays: Arrays) -> Batch_co:
        """Return the batch of these arrays; its ``ids`` are ``arrays["ids"]``."""
        raise NotImplementedError

    def expect(self, slot: int, td_error: npt.NDArray[np.float32]) -> None:
        """Note TD errors [rows] of the steps in ``slot``, for ``first_errors``."""
        return None

    def first_errors(self, runs: Ints) -> tuple[Ints, Floats] | None:
        """Return items of new ``runs`` and their TD errors; ``None``: unknown, they get the largest priority."""
        return None

    def item_errors(self, items: Ints, td_error: Floats) -> Floats:
        """Return one TD error [n] an item, from ``td_error`` [n, *error_shape]."""
        return td_error
