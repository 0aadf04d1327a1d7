"""Steps of which each says where and when it was, and views that have learned from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import sharpwave as sw

SPEC = sw.Spec(obs=sw.Field((8, 8), "uint8", stack=2), action=sw.Field((), "int64"))
LANES = 3


class Play:
    """Appends steps of which each says where and when it was: every fifth episode is truncated, others terminate."""

    def __init__(self, store: sw.Store, steps: int = 0) -> None:
        self.store, self.steps = store, steps

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            ends, fifth = self.steps % 17 == 16, self.steps % 85 == 84
            self.store.extend(
                obs=frames(self.steps),
                action=np.full(LANES, self.steps),
                reward=np.arange(LANES) + self.steps % 4,
                terminated=np.full(LANES, ends and not fifth),
                truncated=np.full(LANES, ends and fifth),
                final_obs=frames(self.steps + 1),
            )
            self.steps += 1


def frames(step: int) -> np.ndarray[Any, Any]:
    found = np.zeros((LANES, 8, 8), np.uint8)
    found[:, 0, 0], found[:, 0, 1], found[:, 1, 0] = step % 256, step // 256, np.arange(LANES)
    return found


def assert_right(batch: Any) -> None:
    """The observation is that of the step that ``action`` names, its successor that of one up to three later."""
    seen, after = (obs[:, -1, 0, 0] + 256 * obs[:, -1, 0, 1].astype(int) for obs in (batch.obs, batch.next_obs))
    np.testing.assert_array_equal(seen, batch.action)
    assert ((after - seen >= 1) & (after - seen <= 3)).all()
    np.testing.assert_array_equal(batch.obs[:, -1, 1, 0], batch.next_obs[:, -1, 1, 0], err_msg="lane")


SAMPLERS: dict[str, Callable[[], Any]] = {
    "uniform": sw.Uniform,
    "proportional": lambda: sw.Prioritized(alpha=0.7, beta=0.5),
    "rank": sw.RankPrioritized,
    "fifo": sw.Fifo,
    "lifo": sw.Lifo,
    "mixture": lambda: sw.Mixture([(0.6, sw.Prioritized()), (0.3, sw.RankPrioritized()), (0.1, sw.Lifo())]),
}


def learned(play: Play, view: Any, rng: np.random.Generator, rounds: int) -> list[list[np.ndarray[Any, Any]]]:
    """What a learner sees that goes on for some rounds."""
    seen = []
    for _ in range(rounds):
        play.go_on(3)
        batch = view.sample(16)
        assert_right(batch)
        seen.append([getattr(batch, name).copy() for name in ("ids", "obs", "reward", "weights", "probabilities")])
        view.update_priorities(batch.ids, rng.normal(size=16))
    return seen
