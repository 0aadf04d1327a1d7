"""Initial priorities: temporal-difference errors of n-step transitions, computed where they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.agents.protocol import Acted
from sharpwave.native import core

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class NStepErrors:
    """Temporal-difference errors of n-step transitions, computed while lanes make steps.

    The error of a step is ``sum_i gamma^i r_i + gamma^n max_a Q(s_n, a) - Q(s, a)`` with the n that was used, and with
    the Q that the actor had in each state. Of rescaled values it is ``h(sum + gamma^n h^-1(max Q)) - Q``.

    Args:
        lanes: number of lanes that step together.
        n_step, gamma: the learner's.
        kept: steps of each lane whose errors are kept.
        values: function, (final observations [lanes, ...], the last action's ``Acted``, its reward) -> Q [lanes, A].
        rescale: epsilon of values rescaled as in ``sharpwave.agents.rescaling``; 0: they are not.

    Attributes:
        known: number of steps of every lane with known errors, of which the last ``kept`` are kept.
    Source: Horgan et al. (2018), Distributed prioritized experience replay, algorithm 1.
    """

    def __init__(
        self,
        lanes: int,
        n_step: int,
        gamma: float,
        kept: int,
        values: Callable[[Any, Acted, npt.NDArray[np.floating]], npt.NDArray[np.floating]],
        rescale: float = 0.0,
    ) -> None:
        self._values, self._rescale = values, rescale
        self._steps = 0
        self._n_step, self._errors = n_step, np.zeros((kept + n_step, lanes), np.float32)
        value, total, factor = (np.zeros((n_step, lanes)) for _ in range(3))
        is_open = np.zeros((n_step, lanes), np.bool_)
        self._returns = core.OpenReturns(value, total, factor, is_open, self._errors, gamma, rescale)

    @property
    def known(self) -> int:
        return max(0, self._steps - self._n_step)

    def add(
        self,
        acted: Acted,
        reward: npt.NDArray[np.floating],
        terminated: Bools,
        truncated: Bools,
        final_obs: Any,
    ) -> None:
        """Add one step of every lane.

        Args:
            acted: the action, and Q [lanes, A] of the state it was taken in as ``state.values``.
            reward, terminated, truncated: [lanes], the outcome of the action.
            final_obs: [lanes, ...], read where a lane was truncated; ``None``: no lane was.
        """
        values, rows = acted.state.values, np.arange(len(acted.action))
        best = self._best(values)
        taken = values[rows, acted.state.chosen].astype(np.float64)
        final = self._best(self._values(final_obs, acted, reward)) if truncated.any() else best
        ends = np.ascontiguousarray(terminated, np.bool_), np.ascontiguousarray(truncated, np.bool_)
        self._returns.add(self._steps, best, taken, reward.astype(np.float64), *ends, final)
        self._steps += 1

    def _best(self, values: npt.NDArray[np.floating]) -> Floats:
        """Return the largest Q of each lane, as a return."""
        best: Floats = values.max(axis=1).astype(np.float64)
        if not self._rescale:
            return best
        import torch

        from sharpwave.agents.rescaling import signed_parabolic

        restored: Floats = signed_parabolic(torch.from_numpy(best), self._rescale).numpy()
        return restored

    def of(self, lane: int, first: int, steps: int) -> npt.NDArray[np.float32]:
        """Return the errors of a lane's steps from number ``first`` on, float32 [steps]; these must be kept."""
        assert self._steps - len(self._errors) <= first and first + steps <= self.known
        errors: npt.NDArray[np.float32] = self._errors[np.arange(first, first + steps) % len(self._errors), lane]
        return errors
