"""Scale of rewards: the running deviation of discounted returns, which is part of an agent's state.

Rewards are stored as they are; the learner scales those of a batch. Observations are normalized by
``sharpwave.agents.inputs.RunningInputs``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sharpwave.agents.rollouts import Bools, Doubles, LaneOrder

SPARE_VARIANCE = 1e-8
"""Added to the variance, so that rewards of 0 are not divided by 0."""


class ReturnScale(nn.Module):
    """Deviation of the discounted returns of lanes so far, each the sum R_t = gamma R_{t-1} + r_t since its beginning.

    Steps are counted once, in order, however often their windows are learned from. It begins as if a ten-thousandth of
    a return of variance 1 had been seen.

    Args:
        gamma: discount factor.
        clip: largest absolute value of a scaled reward.
    Source: Engstrom et al. (2020), Implementation matters in deep policy gradients, section 2 (reward scaling); the
        constants are those of OpenAI Baselines.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, gamma: float, clip: float = 10.0) -> None:
        super().__init__()
        self._gamma, self._clip = gamma, clip
        for name, value in (("count", 1e-4), ("mean", 0.0), ("squares", 1e-4)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))
        self._lanes: dict[tuple[int, int], tuple[int, float]] = {}  # next step and return so far, by shard and lane

    def observe(self, order: LaneOrder, reward: Doubles, ended: Bools) -> None:
        """Count the returns of a batch's windows, but for those that were counted before.

        Args:
            reward: float64 [B, T].  ended: bool [B], whether a return ends with its window's last step.
        """
        places = np.arange(reward.shape[1])
        real = places < order.steps[:, None]
        returns, behind = np.empty_like(reward), np.zeros(len(reward))
        for t in places.tolist():
            behind = self._gamma * behind + reward[:, t]
            returns[:, t] = behind
        new = np.zeros(len(reward), bool)
        for window in order.order[order.steps[order.order] > 0].tolist():
            lane, steps = (int(order.shard[window]), int(order.lane[window])), int(order.steps[window])
            begins, (next_step, carried) = int(order.step[window]), self._lanes.get(lane, (0, 0.0))
            if begins < next_step:
                continue
            new[window] = True
            if begins == next_step:
                returns[window] += carried * self._gamma ** (1 + places)
            last = 0.0 if ended[window] else float(returns[window, steps - 1])
            self._lanes[lane] = begins + steps, last
        counted = returns[real & new[:, None]]
        if not len(counted):
            return
        share = len(counted) / (self.count + len(counted))
        off = float(counted.mean()) - self.mean
        self.squares += len(counted) * (float(counted.var()) + off.square() * (1 - share))
        self.mean += off * share
        self.count += len(counted)

    def forward(self, reward: Tensor) -> Tensor:
        """Return scaled rewards. Any shape."""
        deviation = (self.squares / self.count + SPARE_VARIANCE).sqrt()
        return (reward / deviation.to(reward.dtype)).clamp(-self._clip, self._clip)

    def carried(self) -> list[list[float]]:
        """Return each lane's shard, number, next step and return so far, as plain values."""
        return [[*lane, *sums] for lane, sums in self._lanes.items()]

    def carry(self, values: Any) -> None:
        """Restore what ``carried`` returned."""
        self._lanes = {(int(shard), int(lane)): (int(step), float(sum)) for shard, lane, step, sum in values}
