"""First priorities, computed by the actor: the temporal-difference errors of its own n-step transitions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sharpwave.native.jit import njit

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


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
    errors: npt.NDArray[np.float32],
) -> None:
    n_step, lanes = value.shape
    kept = len(errors)
    at = t % n_step  # where step t - n_step was
    for lane in range(lanes):
        if open_[at, lane]:
            errors[(t - n_step) % kept, lane] = total[at, lane] + factor[at, lane] * best[lane] - value[at, lane]
        value[at, lane], total[at, lane], factor[at, lane], open_[at, lane] = taken[lane], 0.0, 1.0, True
        for k in range(n_step):
            if open_[k, lane]:
                total[k, lane] += factor[k, lane] * reward[lane]
                factor[k, lane] *= gamma
                if terminated[lane] or truncated[lane]:
                    after = 0.0 if terminated[lane] else factor[k, lane] * final_best[lane]
                    step = t - (t - k) % n_step
                    errors[step % kept, lane] = total[k, lane] + after - value[k, lane]
                    open_[k, lane] = False


class FirstErrors:
    """Of lanes that step together: ``sum_i gamma^i r_i + gamma^n max_a Q(s_n, a) - Q(s, a)`` of every step, n as really
    used, with Q as the actor had it when it was in each state (Horgan et al. 2018, algorithm 1).

    Args:
        lanes: how many.  n_step, gamma: as the learner's.
        kept: steps of each lane whose errors can be asked for.

    Attributes:
        known: the errors of that many steps of every lane are known, of which the last ``kept`` are kept.
    """

    def __init__(self, lanes: int, n_step: int, gamma: float, kept: int) -> None:
        self._gamma = gamma
        self._steps = 0
        self._value, self._total, self._factor = (np.zeros((n_step, lanes)) for _ in range(3))
        self._open = np.zeros((n_step, lanes), np.bool_)
        self._errors = np.zeros((kept + n_step, lanes), np.float32)

    @property
    def known(self) -> int:
        return max(0, self._steps - len(self._value))

    def add(
        self,
        values: npt.NDArray[np.floating],
        action: npt.NDArray[np.int64],
        reward: npt.NDArray[np.floating],
        terminated: Bools,
        truncated: Bools,
        final_values: npt.NDArray[np.floating] | None,
    ) -> None:
        """One step of every lane.

        Args:
            values: Q of the state it was taken in, [lanes, A].  action: int64 [lanes].
            reward, terminated, truncated: [lanes], the outcome of the action.
            final_values: Q of the state after it, [lanes, A], read where it was truncated; ``None``: none was.
        """
        best = values.max(axis=1).astype(np.float64)
        taken = values[np.arange(len(action)), action].astype(np.float64)
        final = best if final_values is None else final_values.max(axis=1).astype(np.float64)
        _add(
            self._steps, self._gamma, best, taken, reward.astype(np.float64), terminated, truncated, final,
            self._value, self._total, self._factor, self._open, self._errors,
        )  # fmt: skip
        self._steps += 1

    def of(self, lane: int, first: int, steps: int) -> npt.NDArray[np.float32]:
        """float32 [steps] of a lane's steps from its number ``first`` on, which must be known and kept still."""
        assert self._steps - len(self._errors) <= first and first + steps <= self.known
        errors: npt.NDArray[np.float32] = self._errors[np.arange(first, first + steps) % len(self._errors), lane]
        return errors
