"""Rollouts: windows that a policy has just played, the queue that holds them, and advantages along whole lanes.

A window has at most ``length`` steps. A rollout is the windows of one update; those of a lane follow each other, so
advantages are summed across their borders, as far as the rollout reaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import sharpwave as sw
from sharpwave.agents.protocol import ViewSettings
from sharpwave.agents.replay import LEARNING
from sharpwave.configuration import Checked, setting

Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RolloutSettings(Checked, ViewSettings):
    """Settings of a queue of windows, each learned from a fixed number of times and then no more: no replay."""

    batch_size: int = setting(8, "windows per update", LEARNING, at_least=1)
    length: int = setting(32, "steps of a window", LEARNING, at_least=1)
    gamma: float = setting(0.99, "discount factor per step", LEARNING, at_least=0, at_most=1)
    epochs: int = setting(2, "times that each window is learned from", LEARNING, at_least=1)

    @property
    def times_sampled(self) -> int:
        """Times that each window is sampled from the queue."""
        return self.epochs

    @property
    def fewest(self) -> int:
        return self.batch_size

    @property
    def horizon(self) -> int:
        return self.length

    @property
    def most_samples(self) -> float:
        return self.times_sampled / self.length  # where windows have their full length

    def open(self, store: sw.Store, name: str | None, seed: int) -> Any:
        return store.sequences(
            self.length, gamma=self.gamma, name=name, sampler=sw.Fifo(), max_times_sampled=self.times_sampled, seed=seed
        )


@dataclass(frozen=True)
class MinibatchSettings(RolloutSettings):
    """Settings of a queue whose windows may be learned from in minibatches of single steps."""

    minibatch_size: int = setting(
        0,
        "steps of a minibatch: an update takes all windows that wait, at least batch-size, and learns from their steps "
        "in shuffled minibatches, epochs times; 0: from batch-size whole windows at once",
        LEARNING,
        at_least=0,
    )

    @property
    def times_sampled(self) -> int:
        return 1 if self.minibatch_size else self.epochs

    @property
    def takes_all(self) -> bool:
        return self.minibatch_size > 0


class LaneOrder(NamedTuple):
    """Order of a rollout's windows along their lanes.

    Attributes:
        shard, lane, step: int64 [B], the memory and the lane that a window is of, and its first step's number there.
        order: int64 [B], windows by lane, then by time.
        follower: int64 [B], the window that begins where a window ends, in the same lane; -1: none in the rollout.
        steps: int64 [B], real steps of each window.
    """

    shard: Ints
    lane: Ints
    step: Ints
    order: Ints
    follower: Ints
    steps: Ints

    @classmethod
    def of(cls, lane: Any, step: Any, mask: Bools, shard: Any = None) -> LaneOrder:
        """Find the order of windows.

        Args:
            lane, step: int64 [B], the lane and the first step's number in it.  mask: bool [B, T], real steps.
            shard: int64 [B], which memory a lane is in; None: all are in one.
        """
        lane, step = np.asarray(lane), np.asarray(step)
        shard = np.zeros_like(lane) if shard is None else np.asarray(shard)
        count = mask.sum(axis=1)
        order = np.lexsort((step, lane, shard))
        now, after = order[:-1], order[1:]
        goes_on = (shard[now] == shard[after]) & (lane[now] == lane[after]) & (step[now] + count[now] == step[after])
        follower = np.full(len(order), -1)
        follower[now[goes_on]] = after[goes_on]
        return cls(shard, lane, step, order, follower, count)

    @classmethod
    def of_batch(cls, batch: Any) -> LaneOrder:
        """Find the order of the windows of a batch of tensors."""
        mask = batch.mask.cpu().numpy()
        lane, step = (np.asarray(one) for one in (batch.lane, batch.step))
        return cls.of(lane, step, mask, None if batch.shards is None else np.asarray(batch.shards))


class WindowUses:
    """Number of times that windows were learned from, so that each is told apart when it is so for the last time.

    Args:
        most: times that a window is learned from.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: dict[tuple[int, int, int], int] = {}  # by shard, lane and first step; of those to come again

    def last(self, places: LaneOrder) -> Bools:
        """Count a use of each of a batch's windows, and return which are used for the last time, bool [B]."""
        windows = [*zip(*(one.tolist() for one in (places.shard, places.lane, places.step)), strict=True)]
        found = np.zeros(len(windows), bool)
        for number, window in enumerate(windows):
            uses = self._counts.pop(window, 0) + 1
            found[number] = uses >= self._most
            if uses < self._most:
                self._counts[window] = uses
        return found

    def carried(self) -> list[list[int]]:
        """Return each counted window's shard, lane, first step and uses, as plain values."""
        return [[*window, uses] for window, uses in self._counts.items()]

    def carry(self, values: Any) -> None:
        """Restore what ``carried`` returned."""
        self._counts = {(int(shard), int(lane), int(step)): int(uses) for shard, lane, step, uses in values}


def advantages(
    reward: Doubles, discount: Doubles, value: Doubles, next_value: Doubles, cut: Bools, share: float, places: LaneOrder
) -> Doubles:
    """Compute generalized advantages along lanes: A_t = delta_t + gamma_{t+1} lambda A_{t+1}.

    The sum goes on from a window into the one that follows it in the rollout.

    Args:
        reward, discount: float [B, T], r_{t+1} and gamma_{t+1} = gamma * (1 - terminated) for step t.
        value, next_value: float [B, T], v(s_t) and v(s_{t+1}).
        cut: bool [B, T], steps after which nothing is added: those that end an episode.
        share: lambda.
    Returns:
        float64 [B, T]; 0 for padding.
    Source: Schulman et al. (2016), High-dimensional continuous control using generalized advantage estimation, eq. 16.
    """
    real = np.arange(reward.shape[1]) < places.steps[:, None]
    delta = np.where(real, reward + discount * next_value - value, 0.0)
    factor = np.where(real, np.where(cut, 0.0, discount * share), 1.0)  # padding passes on what comes after it
    found, later = np.empty_like(delta), np.zeros(len(delta))
    for t in reversed(range(delta.shape[1])):
        later = delta[:, t] + factor[:, t] * later
        found[:, t] = later
    reach = np.cumprod(factor[:, ::-1], axis=1)[:, ::-1]  # share of the follower's first advantage at each step
    behind = np.zeros(len(delta))
    for window in places.order[::-1].tolist():
        follower = places.follower[window]
        if follower >= 0:
            behind[window] = found[follower, 0] + reach[follower, 0] * behind[follower]
    return np.where(real, found + reach * behind[:, None], 0.0)


def minibatches(steps: int, size: int, rng: Any) -> list[Ints]:
    """Split the numbers of ``steps`` at random into parts of about ``size``; their lengths differ by 1 at most."""
    return np.array_split(rng.permutation(steps), max(1, round(steps / size)))
