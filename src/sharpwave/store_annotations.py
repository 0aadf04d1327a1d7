"""What is said of a store, its lanes and its episodes, kept with the steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from sharpwave.arguments import is_integer
from sharpwave.json_values import decode
from sharpwave.log.annotation_lookup import annotations_of
from sharpwave.log.step_log import StepLog
from sharpwave.native.interrupts import Lock
from sharpwave.validation import max_lanes
from sharpwave.views.registry import Views


class StoreAnnotations:
    """The part of a store that annotates."""

    _log: StepLog
    _views: Views
    _lock: Lock
    _fed: set[int]  # lanes whose last steps came with add_segment

    def annotate(self, lane: int | None, values: Mapping[str, Any], *, episode: bool = False) -> None:
        """Annotate a lane, its episode or the store, with an environment's id, a seed, a policy's version.

        Annotations are stored with the steps, in memory, on disk and in checkpoints; ``flush`` makes them durable.
        ``sharpwave inspect`` shows them.

        Args:
            lane: number of the lane; ``None``: annotate the store.
            values: strings, numbers, booleans, bytes, and lists and dicts of those. They are merged into earlier
                annotations: a key replaces its earlier value, and ``None`` removes it.
            episode: annotate the lane's unfinished episode, or else its next one. Segments that are sealed from now on
                carry the annotations.

        Raises:
            TypeError, ValueError: invalid values, or more than 4 KiB for an episode or 512 KiB for the store and its
                lanes, as JSON; nothing was changed.
        """
        with self._lock:
            self._log.check_open()
            self._check_annotated("annotate", lane, episode)
            if not episode:
                self._log.annotations.update(None if lane is None else int(lane), values)
                return
            assert lane is not None
            if lane in self._fed:
                raise ValueError(
                    f"annotate: the episodes of lane {lane} come in segments; annotate them in the SegmentWriter"
                )
            self._log.open_lanes(int(lane) + 1)
            self._log.inventory.changes += 1
            self._log.opened.annotations.update(int(lane), self._log.opened.running_episode(int(lane)), values)

    def annotations(self, lane: int | None = None, *, episode: bool = False) -> dict[str, Any]:
        """Return the annotations of a lane, of its episode or (by default) of the store."""
        with self._lock:
            self._log.check_open()
            self._check_annotated("annotations", lane, episode)
            if not episode:
                found = self._log.annotations.of(lane)
            elif lane is not None and lane < self._log.lanes:
                found = self._log.opened.annotations.of(lane, self._log.opened.running_episode(lane))
            else:
                found = {}
            decoded: dict[str, Any] = decode(found)
            return decoded

    def annotations_of(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """Return the annotations of each item's episode, by ids such as ``batch.ids``; reads segments from disk.

        A segment contains the annotations that were made before it was sealed. Plain numbers, as ``np.asarray(ids)``
        and tensors have them, are taken for ids of steps.

        Raises:
            KeyError: a step was evicted.
            ValueError: ids of another store, or of windows of a view that is gone.
            DamagedError: a segment cannot be read.
        """
        with self._lock:
            self._log.check_open()
            steps = self._views.step_ids("annotations_of", ids)
            return [decode(values) for values in annotations_of(self._log, steps.tolist())]

    def _check_annotated(self, what: str, lane: Any, episode: bool) -> None:
        if lane is None and episode:
            raise ValueError(f"{what}: episode=True, expected the number of the episode's lane")
        lane_limit = max_lanes(self._log.admission.capacity)
        if lane is not None and not (is_integer(lane) and 0 <= lane < lane_limit):
            raise ValueError(f"{what}: lane {lane!r}, expected None or an integer from 0 to {lane_limit - 1}")
