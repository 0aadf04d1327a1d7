"""Segment writer: encodes steps in the process that makes them, and hands sealed segments over as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import is_integer
from sharpwave.codecs.shared import IS_SHARED
from sharpwave.format.segment import SegmentColumn
from sharpwave.log.boundaries import NOTICED, Counts
from sharpwave.log.open_segments import Rows
from sharpwave.log.sealing import Sealing
from sharpwave.log.step_log import StepLog
from sharpwave.native.interrupts import HANDLERS, InterruptLock
from sharpwave.persistence.settings import Settings
from sharpwave.sampling.ordered import Fifo
from sharpwave.spec import Spec
from sharpwave.validation import MAX_LANES, GivenSteps, check_flag, checked_final, checked_rows


@dataclass(frozen=True)
class SealedSegment:
    """Sealed segment, for ``sharpwave.Store.add_segment``.

    Attributes:
        lane: the store's number of the lane.
        first_step: number of its first step in the lane.
        steps: number of steps.
        packed: the segment's bytes (docs/format.md).
        dictionaries: the dictionaries and shared values that it refers to, by key.
        noticed: the writer's counts since the previous segment, as ``Boundaries.counts``.
    """

    lane: int
    first_step: int
    steps: int
    packed: bytes
    dictionaries: dict[int, bytes]
    noticed: Counts = (0,) * len(NOTICED)

    @property
    def nbytes(self) -> int:
        """Bytes of the segment and of its shared values."""
        return len(self.packed) + sum(len(data) for key, data in self.dictionaries.items() if key & IS_SHARED)


class _HandOver(Sealing):
    """Sealing that hands each segment over instead of keeping it."""

    def __init__(self, log: StepLog, hand_over: Callable[[SealedSegment], None]) -> None:
        super().__init__(log.opened, log.admission, log.encoder)
        self._log, self._hand_over = log, hand_over
        self._told = log.boundaries.counts

    def seal(self, lane: int, slot: int, following: int) -> bool:
        """Encode the lane's open segment and hand it over."""
        log = self._log
        columns: list[SegmentColumn] = []
        places: list[int] = []
        try:
            log.encoder.encode(lane, log.opened.columns.all_so_far(slot), columns, places)
            packed, _ = log.opened.pack(lane, slot, columns)
            beside = log.sealed.dictionaries(places) | log.shared.of(slot)
        finally:
            log.sealed.drop_dictionaries(places)
        first, steps = int(log.index.first_step[slot]), int(log.index.rows[slot])
        counts, dictionaries = log.boundaries.counts, {key: data for (_, key), data in beside.items()}
        noticed = tuple(now - told for now, told in zip(counts, self._told, strict=True))
        made = SealedSegment(log.opened.first_lane + lane, first, steps, packed, dictionaries, noticed)
        deferred = HANDLERS.suspend()  # the callback may block
        try:
            self._hand_over(made)
        finally:
            HANDLERS.defer(deferred)
        self._told = counts
        return False


class _OpenLog(StepLog):
    """Log of open segments only, which hands each over in the place of sealing it."""

    def __init__(self, spec: Spec, settings: Settings, slots: int, hand_over: Callable[[SealedSegment], None]) -> None:
        self._hand_over = hand_over
        super().__init__(spec, settings.codecs, settings.capacity, None, settings.segment_steps, Fifo(), slots=slots)
        self.sealing.turnover = self.admission.release = None

    def _make_sealing(self) -> Sealing:
        return _HandOver(self, self._hand_over)

    def end_episode(self, lane: int, final: Rows | None) -> None:
        super().end_episode(lane, final)
        if not self.index.rows[self.opened.slots[lane]]:
            # The last step was handed over as unfinished; skipping a number tells the store that the episode broke off.
            self.opened.begin_at(lane, int(self.opened.steps[lane]) + 1)


class SegmentWriter:
    """Encoder of steps for a store in another process. Takes steps as a ``Store`` does, hands over sealed segments.

    A ``Recorder`` can write into it. A segment is sealed when it is full and its lane's next step arrives; steps that
    are not sealed yet are lost with the writer.

    Args:
        spec: spec of the store that receives the segments.
        lanes: number of lanes, which have the numbers 0, 1, ... in this writer.
        hand_over: called with each sealed segment, in the order of each lane's steps. If it raises, the step that is
            being appended is not taken.
        first_lane: the store's number of lane 0.
        first_steps: int [lanes], the store's number of each lane's first step; default 0. For lanes with steps of an
            earlier writer, pass ``Store.lane_steps`` + 1: the skipped number tells the store that unsent steps are
            lost, and it truncates their episode.
        codec: as for ``Store``.
        segment_steps: steps in a segment; at most the store's.
        strict: as for ``Store``; lanes are named by their numbers here.

    Raises:
        ValueError, TypeError: naming the argument.

    Cost: 6 to 9 us a step of 84x84 pixels, encoding included, as ``Store.extend``.
    """

    def __init__(
        self,
        spec: Spec,
        lanes: int,
        hand_over: Callable[[SealedSegment], None],
        *,
        first_lane: int = 0,
        first_steps: npt.ArrayLike | None = None,
        codec: str | Mapping[str, str] = "auto",
        segment_steps: int = 32,
        strict: bool = False,
    ) -> None:
        if not is_integer(lanes) or lanes < 1 or not is_integer(first_lane) or not 0 <= first_lane <= MAX_LANES - lanes:
            raise ValueError(f"SegmentWriter: lanes={lanes!r} from {first_lane!r} on, expected 1 to {MAX_LANES}")
        begins = np.zeros(lanes, np.int64) if first_steps is None else np.asarray(first_steps, np.int64)
        if begins.shape != (lanes,) or (begins < 0).any():
            raise ValueError(f"SegmentWriter: first_steps={first_steps!r}, expected {lanes} numbers of at least 0")
        capacity = max(4, 4 * int(segment_steps) * int(lanes))  # always more than the open segments take
        settings = Settings.checked(spec, capacity=capacity, codec=codec, segment_steps=segment_steps)
        check_flag("SegmentWriter", "strict", strict)
        self.spec = spec
        self._lock = InterruptLock()
        self._log = _OpenLog(spec, settings, 2 * int(lanes) + 2, hand_over)
        self._log.boundaries.strict = bool(strict)
        self._log.opened.first_lane = int(first_lane)
        self._log.opened.staggered = False
        self._log.open_lanes(int(lanes), np.arange(int(lanes)))
        for lane, step in enumerate(begins.tolist()):
            self._log.begin_at(lane, step)

    def extend(
        self,
        *,
        obs: Any,
        action: Any,
        reward: npt.ArrayLike,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        final_obs: Any = None,
        next_obs: Any = None,
        lanes: npt.ArrayLike | None = None,
        **extra: npt.ArrayLike,
    ) -> None:
        """Append one step to each of several lanes: as ``Store.extend``.

        Raises:
            ValueError, TypeError, KeyError: an argument does not fit the spec; nothing was appended.
        """
        given = GivenSteps(obs, action, reward, terminated, truncated, final_obs, next_obs, extra)
        numbers, (rows, flags, finals, nexts) = checked_rows(self.spec, lanes, given)
        if len(numbers):
            if numbers.max() >= self._log.lanes:
                raise ValueError(f"SegmentWriter: lane {numbers.max()}, expected lanes below {self._log.lanes}")
            with self._lock:
                self._log.write(numbers, flags, rows, finals, nexts)

    def end_episode(self, lane: int, final_obs: Any) -> None:
        """Truncate the lane's episode after its last step: as ``Store.end_episode``.

        Raises:
            ValueError: the lane has no unfinished episode.
        """
        if not 0 <= lane < self._log.lanes or self._log.opened.ended(lane):
            raise ValueError(f"end_episode: lane {lane} has no unfinished episode; append a step first")
        final = checked_final(self.spec, final_obs)
        with self._lock:
            self._log.end_episode(lane, final)

    def annotate(self, lane: int, values: Mapping[str, Any]) -> None:
        """Annotate the lane's unfinished episode, or else its next one: as ``Store.annotate`` with ``episode=True``.

        The segments carry the annotations to the store.
        """
        if not 0 <= lane < self._log.lanes:
            raise ValueError(f"annotate: lane {lane}, expected one below {self._log.lanes}")
        with self._lock:
            self._log.opened.annotations.update(lane, self._log.opened.running_episode(lane), values)

    def break_episode(self, lane: int) -> bool:
        """Break off the lane's unfinished episode, if there is one: as ``Store.break_episode``."""
        if not 0 <= lane < self._log.lanes or self._log.opened.ended(lane):
            return False
        with self._lock:
            self._log.end_episode(lane, None)
        return True

    def seal(self) -> None:
        """Hand over the open segments of lanes whose episodes have ended, before they are full."""
        log = self._log
        with self._lock:
            for lane in range(log.lanes):
                if log.index.rows[log.opened.slots[lane]] and log.opened.ended(lane):
                    log.sealing.seal_open(lane)
