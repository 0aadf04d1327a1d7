"""Initial priorities: temporal-difference errors of n-step transitions, computed where they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.agents.protocol import Acted
from sharpwave.native.jit import njit

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@njit(nogil=True, cache=True)
def _rescaled(x: float, eps: float) -> float:
    if eps == 0.0:
        return x
    return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + eps * x  # type: ignore[no-any-return]


@njit(nogil=True, cache=True)
def _add(
    t: int,
    gamma: float,
    best: Floats,
    taken: Floats,
    reward: Floats,
    terminated: Bools,
    truncated: Bools,
    final_best: Floats,
    value: Floats,
    total: Floats,
    factor: Floats,
    open_: Bools,
    rescale: float,
    errors: npt.NDArray[np.float32],
) -> None:
    n_step, lanes = value.shape
    kept = len(errors)
    at = t % n_step  # where step t - n_step was
    for lane in range(lanes):
        if open_[at, lane]:
            target = total[at, lane] + factor[at, lane] * best[lane]
            errors[(t - n_step) % kept, lane] = _rescaled(target, rescale) - value[at, lane]
        value[at, lane], total[at, lane], factor[at, lane], open_[at, lane] = taken[lane], 0.0, 1.0, True
        for k in range(n_step):
            if open_[k, lane]:
                total[k, lane] += factor[k, lane] * reward[lane]
                factor[k, lane] *= gamma
                if terminated[lane] or truncated[lane]:
                    after = 0.0 if terminated[lane] else factor[k, lane] * final_best[lane]
                    step = t - (t - k) % n_step
                    errors[step % kept, lane] = _rescaled(total[k, lane] + after, rescale) - value[k, lane]
                    open_[k, lane] = False


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
        self._gamma, self._values, self._rescale = gamma, values, rescale
        self._steps = 0
        self._value, self._total, self._factor = (np.zeros((n_step, lanes)) for _ in range(3))
        self._open = np.zeros((n_step, lanes), np.bool_)
        self._errors = np.zeros((kept + n_step, lanes), np.float32)

    @property
    def known(self) -> int:
        return max(0, self._steps - len(self._value))

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
        _add(
            self._steps, self._gamma, best, taken, reward.astype(np.float64), terminated, truncated, final,
            self._value, self._total, self._factor, self._open, self._rescale, self._errors,
        )  # fmt: skip
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
