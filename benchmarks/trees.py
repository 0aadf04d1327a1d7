"""Sum trees alone: draw a batch in proportion to the priorities, then update its priorities."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

ALPHA, BETA = 0.6, 0.4


class Trees:
    """Trees of all libraries, with the same number of leaves; ``measure`` takes the library's name."""

    def fill(self, leaves: int) -> dict[str, Any]:
        """Make the trees, with random priorities everywhere."""
        self.rng = np.random.default_rng(0)
        priorities = self.rng.exponential(size=leaves) + 1e-3
        self.rounds: dict[str, Callable[[int], Callable[[], Any]]] = {
            "sharpwave tree": _sharpwave_tree(leaves, priorities, self.rng),
            "sharpwave sampler": _sharpwave_sampler(leaves, priorities, self.rng),
            "cpprb": _cpprb(leaves, priorities, self.rng),
            "Tianshou": _tianshou(leaves, priorities, self.rng),
        }
        return {"trees": list(self.rounds), "leaves": leaves}

    def measure(self, name: str, batch: int, seconds: float) -> dict[str, float]:
        """Return microseconds of a draw and an update: the median of single calls, which is least disturbed."""
        call = self.rounds[name](batch)
        call()
        taken, end = [], time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            call()
            taken.append(time.perf_counter() - begin)
        return {"us": float(np.median(taken)) * 1e6}


def _sharpwave_tree(leaves: int, priorities: Any, rng: np.random.Generator) -> Callable[[int], Callable[[], Any]]:
    from sharpwave.sampling.sum_tree import SumTree

    tree = SumTree(leaves)
    tree.set(np.arange(leaves), priorities**ALPHA)

    def prepare(batch: int) -> Callable[[], Any]:
        uniforms, values, rest = (np.empty(batch) for _ in range(3))
        drawn, errors = np.empty(batch, np.int64), rng.exponential(size=batch)

        def call() -> None:
            rng.random(out=uniforms)
            tree.draw(uniforms, drawn, values, rest)
            tree.set(drawn, errors**ALPHA)

        return call

    return prepare


def _sharpwave_sampler(leaves: int, priorities: Any, rng: np.random.Generator) -> Callable[[int], Callable[[], Any]]:
    from sharpwave import Prioritized
    from sharpwave.native import core
    from sharpwave.sampling.protocol import Draw

    stride = 128
    slots = -(-leaves // stride)
    sampler = Prioritized(alpha=ALPHA, beta=BETA)
    sampler.bind(slots, stride)
    sampler.insert(np.arange(slots), np.zeros(slots, np.int64), np.full(slots, stride))
    sampler.update(np.arange(leaves), priorities)

    def prepare(batch: int) -> Callable[[], Any]:
        draw, errors = Draw.of(batch), rng.exponential(size=batch)

        def call() -> None:
            sampler.draw(draw, rng)
            core.importance_weights(draw.probabilities, BETA, draw.weights)
            sampler.update(draw.items, errors)

        return call

    return prepare


def _cpprb(leaves: int, priorities: Any, rng: np.random.Generator) -> Callable[[int], Callable[[], Any]]:
    from cpprb import PrioritizedReplayBuffer

    # Its tree is not available alone: this is the smallest buffer around it, one byte a step.
    buffer = PrioritizedReplayBuffer(leaves, {"done": {"dtype": np.bool_}}, alpha=ALPHA)
    buffer.add(done=np.zeros(leaves, np.bool_), priorities=priorities)

    def prepare(batch: int) -> Callable[[], Any]:
        errors = rng.exponential(size=batch)

        def call() -> None:
            buffer.update_priorities(buffer.sample(batch, beta=BETA)["indexes"], errors)

        return call

    return prepare


def _tianshou(leaves: int, priorities: Any, rng: np.random.Generator) -> Callable[[int], Callable[[], Any]]:
    from tianshou.data import SegmentTree

    tree = SegmentTree(leaves)
    tree[np.arange(leaves)] = priorities**ALPHA

    def prepare(batch: int) -> Callable[[], Any]:
        errors = rng.exponential(size=batch)

        def call() -> None:
            tree[tree.get_prefix_sum_idx(rng.random(batch) * tree.reduce())] = errors**ALPHA

        return call

    return prepare
