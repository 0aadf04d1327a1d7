"""State of a view in a checkpoint: plain data, until a view of its name is requested."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Floats, Ints
from sharpwave.format.segment import MAX_NUMBER
from sharpwave.log.step_log import StepLog
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.sampler_protocol import MAX_TD_ERROR, checked_array, described
from sharpwave.views.batch_source import BatchSource
from sharpwave.views.conditions import REFUSED
from sharpwave.views.draws_ahead import checked


class SavedView:
    """View as of a checkpoint.

    Args:
        state: as a checkpoint has it.
            settings, sampler: settings of the view and of its sampler, with their classes as ``kind``.
            remembered: the sampler's state. ``rng``: the generator's.
            uses: int32 [items], how often each was sampled; ``None`` without ``max_times_sampled``.
            judged: uint8 [items], as of ``conditions.Judge``; ``None`` without a condition.
            samples, inserts: items sampled so far, and steps that the limiter counts.
            ahead: each stream's unused draws.
            generation: int64 [slots], of each slot's segment; -1 for an empty slot. Items of others are new.
        steps_before: steps of the store that do not count as inserts.
    """

    def __init__(self, state: dict[str, Any], steps_before: int) -> None:
        self._state, self._steps_before = state, steps_before
        self.settings, self.sampler, self.remembered = state["settings"], state["sampler"], state["remembered"]
        self.uses, self.judged, self.generation = state["uses"], state["judged"], state["generation"]
        self.max_times_sampled = state["max_times_sampled"]
        self._by_slot: tuple[npt.NDArray[Any], ...] | None = None

    @classmethod
    def of(cls, source: BatchSource, log: StepLog) -> SavedView:
        """Return a view's state, as copies, by its source; items that it has not found yet are new."""
        source.unused.forget_dropped()  # first, as this changes the state
        items, index = source.items, log.index
        used, leaves, judge = slice(0, index.highest), index.highest * log.stride, items.judge
        state = {
            "settings": source.settings,
            "sampler": described(items.sampler),
            "max_times_sampled": source.pace.max_times_sampled,
            "remembered": items.sampler.state(),
            "uses": None if items.uses is None else items.uses.given(leaves),
            "judged": judge.judged[:leaves].copy() if judge is not None and judge.condition is not None else None,
            "rng": dict(source.items.rng.bit_generator.state),
            "samples": items.samples,
            "inserts": 0,
            "ahead": source.unused.state(),
            "generation": np.where(index.rows[used] > 0, index.generation[used], -1),
        }
        return cls(state, source.pace.steps_before)

    @classmethod
    def from_state(cls, state: dict[str, Any], log: StepLog) -> SavedView:
        """Return the view of a state from ``state``; ``log`` is as just restored.

        Raises:
            KeyError, TypeError, ValueError: invalid state.
        """
        judged = None if state.get("judged") is None else checked_array(state, "judged", np.uint8)
        if judged is not None and judged.max(initial=0) > REFUSED:
            raise ValueError(f"judged: {judged.max()}, expected numbers from 0 to {REFUSED}")
        for name, what in {"settings": "settings", "sampler": "sampler", "remembered": "sampler's state"}.items():
            if not isinstance(state[name], dict):
                raise ValueError(f"{what}: {type(state[name]).__name__}, expected a dict")
        rng = np.random.default_rng(0)
        rng.bit_generator.state = state["rng"]
        given = {name: state[name] for name in ("settings", "sampler", "max_times_sampled", "remembered")}
        checked_state = given | {
            "uses": None if state["max_times_sampled"] is None else checked_array(state, "uses", np.int32),
            "judged": judged,
            "rng": dict(rng.bit_generator.state),
            "samples": _count(state, "samples"),
            "inserts": 0,
            "ahead": [[checked(batch) for batch in batches] for batches in state["ahead"]],
            "generation": checked_array(state, "generation", np.int64),
        }
        return cls(checked_state, log.inventory.total_steps - _count(state, "inserts"))

    def state(self, log: StepLog) -> dict[str, Any]:
        """Return the state as a tree of arrays and numbers."""
        return self._state | {"inserts": log.inventory.total_steps - self._steps_before}

    def state_in_folder(self, log: StepLog) -> dict[str, Any]:
        """Return the state, where each slot's segment is in its lane, and the log's steps, for ``recovered``."""
        index, used = log.index, slice(0, len(self.generation))
        where = {"lanes": index.lane[used].copy(), "first_steps": index.first_step[used].copy()}
        return self.state(log) | where | {"total_steps": log.inventory.total_steps}

    @property
    def nbytes(self) -> int:
        """Bytes of memory of its arrays."""
        return bytes_of([self._state, self._by_slot])

    def priorities(self, slots: Ints, log: StepLog) -> Floats | None:
        """Return the mean priorities of the steps in ``slots`` [n], as the view would; ``None``: it has none.

        Steps appended since the checkpoint have the largest so far.
        """
        if self.sampler.get("kind") != Prioritized.__name__:
            return None
        values, largest = self.remembered.get("values"), self.remembered.get("max_priority")
        alpha = self.sampler.get("alpha")
        if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype != np.float64:
            return None  # a damaged state: the view will start over
        if not (isinstance(largest, float) and 0 < largest <= MAX_TD_ERROR and isinstance(alpha, float) and alpha <= 1):
            return None
        if self._by_slot is None:
            known = values > 0
            if self.uses is not None:
                known[: len(self.uses)] |= self.uses[: len(known)] == self.max_times_sampled  # used up: they count 0
            if self.judged is not None:
                known[: len(self.judged)] |= self.judged[: len(known)] == REFUSED
            whole = len(values) // log.stride * log.stride
            self._by_slot = tuple(one[:whole].reshape(-1, log.stride).sum(axis=1) for one in (values, known))
        masses, counts = self._by_slot
        index, new = log.index, largest**alpha
        there = slots[slots < min(len(masses), len(self.generation))]
        kept = np.isin(slots, there[self.generation[there] == index.generation[there]])
        mass, count = np.zeros(len(slots)), np.zeros(len(slots), np.int64)
        mass[kept], count[kept] = masses[slots[kept]], counts[slots[kept]]
        rows = np.maximum(index.rows[slots], 1)
        means: Floats = (mass + np.maximum(rows - count, 0) * new) / rows
        return means

    def differences(
        self, settings: dict[str, Any], sampler: dict[str, Any], max_times_sampled: int | None
    ) -> list[str]:
        """Return the settings in which a requested view differs, in words."""
        found = _differences("", self.settings, settings)
        if self.max_times_sampled != max_times_sampled:
            found.append(f"max_times_sampled was {self.max_times_sampled}, is {max_times_sampled}")
        return found + _differences("sampler", self.sampler, sampler)

    def restore(self, source: BatchSource) -> None:
        """Restore a new view of the same settings, over the steps that are there.

        Raises:
            KeyError, TypeError, ValueError, IndexError, OverflowError: not such a state of the sampler or the uses;
                then it is a new view.
        """
        source.items.restore(self.generation, self.uses, self.remembered, self.judged)
        source.items.samples, source.pace.steps_before = self._state["samples"], self._steps_before
        source.items.rng.bit_generator.state = self._state["rng"]
        source.unused.resumed = self._state["ahead"]


def recovered(state: dict[str, Any], log: StepLog) -> dict[str, Any]:
    """Return a state from a file for the log as it was just opened, limited to unchanged segments.

    Steps appended after the file was written count as inserts. Ids alone do not identify segments: ids of steps that a
    crash lost may have been given to others.

    Raises: KeyError, TypeError, ValueError: invalid state.
    """
    index, before = log.index, state["generation"]
    used = slice(0, min(len(before), index.slots))
    same = (index.rows[used] > 0) & (index.sealed[used] > 0)
    for name, there in {"generation": index.generation, "lanes": index.lane, "first_steps": index.first_step}.items():
        if not isinstance(state[name], np.ndarray) or len(state[name]) != len(before):
            raise ValueError(f"{name}: expected a number for each of {len(before):,} slots")
        same &= state[name][used] == there[used]
    uses = state["uses"]
    with contextlib.suppress(TypeError):
        uses = uses[: index.leaves]
    inserts = state["inserts"] + max(0, log.inventory.total_steps - state["total_steps"])
    return state | {"generation": np.where(same, before[used], -1), "uses": uses, "inserts": inserts}


def bytes_of(tree: Any) -> int:
    """Return the bytes of the arrays in a tree."""
    if isinstance(tree, np.ndarray):
        return tree.nbytes
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return sum(map(bytes_of, parts))


def _count(state: dict[str, Any], name: str) -> int:
    """Return a number of steps or samples, a float if a ratio.  Raises: ValueError."""
    if type(count := state.get(name)) is not int or not 0 <= count < MAX_NUMBER:
        raise ValueError(f"{name} {state.get(name)!r:.40}, expected an integer from 0 below {MAX_NUMBER}")
    return count


def _differences(path: str, was: Any, now: dict[str, Any]) -> list[str]:
    """Return in words how the settings ``now`` differ; further entries of ``was`` may change at any time."""
    kind = was.get("kind") if isinstance(was, dict) else None
    if kind != now["kind"]:
        return [f"{path or 'view'} was {kind}, is {now['kind']}"]
    found = []
    for name in now:
        before = was.get(name)
        if _are_parts(now[name]) and isinstance(before, list) and len(before) == len(now[name]):
            for k, (one, (new_share, new_part)) in enumerate(zip(before, now[name], strict=True)):
                share, part = one if isinstance(one, list) and len(one) == 2 else (None, None)
                if share != new_share:
                    found.append(f"{path}: share {k} was {share}, is {new_share}")
                found += _differences(f"{path} part {k}", part, new_part)
        elif before != now[name]:
            found.append(f"{path}: {name} was {before}, is {now[name]}".removeprefix(": "))
    return found


def _are_parts(value: Any) -> bool:
    """Return whether a setting is a mixture's parts: shares, each with the settings of a sampler."""
    pairs = isinstance(value, list) and all(isinstance(one, (list, tuple)) and len(one) == 2 for one in value)
    return pairs and all(isinstance(part, dict) and "kind" in part for _, part in value)
