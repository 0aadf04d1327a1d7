"""State of a view in a checkpoint: plain data, until a view of its name is requested."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.format.segment import MAX_NUMBER
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.protocol import MAX_TD_ERROR, as_json, checked_array, described
from sharpwave.views.prefetch import Streams, checked

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog
    from sharpwave.views.batch_source import BatchSource
    from sharpwave.views.replay import Replay

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass
class SavedView:
    """View as of a checkpoint.

    Attributes:
        settings, sampler: settings of the view and of its sampler, with their classes as ``kind``.
        remembered: the sampler's state.
        uses: int32 [items], how often each was sampled; ``None`` without ``max_times_sampled``.
        rng: the generator's state.
        samples: items sampled so far.
        steps_before: steps of the store that do not count as inserts.
        ahead: each stream's unused draws.
        generation: int64 [slots], of each slot's segment; -1 for an empty slot. Items of others are new.
    """

    settings: dict[str, Any]
    sampler: dict[str, Any]
    max_times_sampled: int | None
    remembered: dict[str, Any]
    uses: npt.NDArray[np.int32] | None
    rng: dict[str, Any]
    samples: int
    steps_before: int
    ahead: list[list[dict[str, Any]]]
    generation: npt.NDArray[np.int64]
    _by_slot: tuple[npt.NDArray[Any], ...] | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(cls, replay: Replay[Any], log: StepLog) -> SavedView:
        """Return a view's state, as copies; the store's lock is held."""
        replay.source.items.follow()
        return cls.of_parts(replay.source, replay.streams, log)

    @classmethod
    def of_parts(cls, source: BatchSource, streams: Streams, log: StepLog) -> SavedView:
        """Return the state of a view, which may be gone, by its parts; items that it has not found yet are new."""
        streams.forget_dropped()  # which changes what follows
        items = source.items
        return cls(
            {"kind": source.view.kind, **as_json(source.view.settings())},
            described(items.sampler),
            source.max_times_sampled,
            items.sampler.state(),
            None if items.uses is None else items.uses.given(log.index.highest * log.stride),
            dict(source.rng.bit_generator.state),
            items.samples,
            source.steps_before,
            streams.state(),
            _generations(log),
        )

    @classmethod
    def from_state(cls, state: dict[str, Any], log: StepLog) -> SavedView:
        """Return the view of a state from ``state``; ``log`` is as just restored.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        settings, max_times_sampled = state["settings"], state["max_times_sampled"]
        sampler, remembered = state["sampler"], state["remembered"]
        for name, value in {"settings": settings, "sampler": sampler, "sampler's state": remembered}.items():
            if not isinstance(value, dict):
                raise ValueError(f"{name}: {type(value).__name__}, expected a dict")
        rng = np.random.default_rng(0)
        rng.bit_generator.state = state["rng"]
        return cls(
            settings,
            sampler,
            max_times_sampled,
            remembered,
            None if max_times_sampled is None else checked_array(state, "uses", np.int32),
            dict(rng.bit_generator.state),
            _count(state, "samples"),
            log.inventory.total_steps - _count(state, "inserts"),
            [[checked(batch) for batch in batches] for batches in state["ahead"]],
            checked_array(state, "generation", np.int64),
        )

    def state(self, log: StepLog) -> dict[str, Any]:
        """Return the state as a tree of arrays and numbers."""
        return {
            "settings": self.settings,
            "sampler": self.sampler,
            "max_times_sampled": self.max_times_sampled,
            "remembered": self.remembered,
            "uses": self.uses,
            "rng": self.rng,
            "samples": self.samples,
            "inserts": log.inventory.total_steps - self.steps_before,
            "ahead": self.ahead,
            "generation": self.generation,
        }

    @property
    def nbytes(self) -> int:
        """Bytes of memory of its arrays."""
        return _nbytes(vars(self))

    def priorities(self, slots: Ints, log: StepLog) -> Floats | None:
        """Return the mean priorities of the steps in ``slots`` [n], as the view would; ``None``: it has none.

        Steps appended since the checkpoint have the largest so far.
        """
        if self.sampler.get("kind") != Prioritized.__name__:
            return None
        values, largest = self.remembered.get("values"), self.remembered.get("max_priority")
        alpha = self.sampler.get("alpha")
        if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype != np.float64:
            return None  # a damaged state: the view will begin anew
        if not (isinstance(largest, float) and 0 < largest <= MAX_TD_ERROR and isinstance(alpha, float) and alpha <= 1):
            return None
        if self._by_slot is None:
            known = values > 0
            if self.uses is not None:
                known[: len(self.uses)] |= self.uses[: len(known)] == self.max_times_sampled  # used up: they count 0
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

    def restore(self, replay: Replay[Any]) -> None:
        """Restore a new view of the same settings, over the steps that are there.

        Raises:
            KeyError, TypeError, ValueError, IndexError, OverflowError: not such a state of the sampler or the uses;
                then it is a new view.
        """
        source, items = replay.source, replay.source.items
        items.restore(self.generation, self.uses, self.remembered)
        items.samples, source.steps_before = self.samples, self.steps_before
        source.rng.bit_generator.state = self.rng
        replay.streams.resumed = self.ahead


def _generations(log: StepLog) -> npt.NDArray[np.int64]:
    index = log.index
    used = slice(0, index.highest)
    generations: npt.NDArray[np.int64] = np.where(index.rows[used] > 0, index.generation[used], -1)
    return generations


def _nbytes(tree: Any) -> int:
    if isinstance(tree, np.ndarray):
        return tree.nbytes
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return sum(_nbytes(part) for part in parts)


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
