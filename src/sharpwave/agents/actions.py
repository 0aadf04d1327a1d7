"""Forms of actions: numbered from 0 for agents with a value for each action, or scaled to -1 ... 1 where they are
continuous; and which are legal, as the observation says. The value of an illegal action is -infinity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from sharpwave.agents.lazy_torch import torch
from sharpwave.agents.protocol import Spaces, space_text
from sharpwave.teams import ACTION_MASK

if TYPE_CHECKING:
    from torch import Tensor

MAX_ACTIONS = 4_096
"""Limit of numbered actions. Each has an output of the network, and is learned for itself."""


class NumberedActions:
    """Numbers 0 ... count-1 of the actions of a space; of several parts, the last one counts fastest.

    Args:
        spaces: those of the agent: actions that are Discrete, MultiDiscrete or MultiBinary.
        kind: the agent's name, for errors.

    Attributes:
        count: number of actions: of several parts, the product of their sizes.
    Raises:
        ValueError: a space of another kind, or one of more than ``MAX_ACTIONS`` actions.
    """

    def __init__(self, spaces: Spaces, kind: str) -> None:
        space: Any = spaces.action
        if isinstance(space, Discrete):
            sizes, starts = [int(space.n)], [int(space.start)]
        elif isinstance(space, MultiDiscrete):
            sizes, starts = space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist()
        elif isinstance(space, MultiBinary):
            sizes, starts = [2] * math.prod(space.shape), [0] * math.prod(space.shape)
        else:
            raise ValueError(
                f"{kind} needs discrete actions; {spaces.env} has {space_text(space)}; expected Discrete, "
                "MultiDiscrete or MultiBinary. Continuous actions are learned by sac, td3 and crossq: sharpwave train "
                "sac --env ID. An environment that has discrete ones by a keyword, as CarRacing-v3 by "
                "continuous=False, is registered with Gymnasium in a module of your own: --env MODULE:NAME"
            )
        self.count = math.prod(sizes)
        if self.count > MAX_ACTIONS and len(sizes) > 1:
            raise ValueError(
                f"{kind}: {spaces.env} has {space_text(space)}, {self.count:,} actions in all, expected at most "
                f"{MAX_ACTIONS:,}: each has a value of its own; wrap the environment to offer fewer"
            )
        self._sizes, self._starts = sizes, starts
        self._shape: tuple[int, ...] = () if isinstance(space, Discrete) else space.shape
        self._dtype: np.dtype[Any] = space.dtype

    def actions(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the actions [N, *shape] with the numbers int64 [N]."""
        if not self._shape:
            return (numbers + self._starts[0]).astype(self._dtype, copy=False)
        parts = np.stack(np.unravel_index(numbers, self._sizes), axis=1) + np.asarray(self._starts)
        made: npt.NDArray[Any] = parts.astype(self._dtype).reshape(len(numbers), *self._shape)
        return made

    def numbers(self, actions: Any) -> Any:
        """Return the numbers int64 [...] of actions [..., *shape], an array or a tensor. Inverse of :meth:`actions`.

        Zeros, which pad windows, need not be an action; they have a number in 0 ... count-1 all the same.
        """
        wide = actions.astype(np.int64, copy=False) if isinstance(actions, np.ndarray) else actions.long()
        if not self._shape:
            number = wide - self._starts[0] if self._starts[0] else wide
        else:
            parts = wide.reshape(*wide.shape[: wide.ndim - len(self._shape)], len(self._sizes))
            number = parts[..., 0] - self._starts[0]
            for part, (size, start) in enumerate(zip(self._sizes[1:], self._starts[1:], strict=True), 1):
                number = number * size + (parts[..., part] - start)
        return number.clip(0, self.count - 1) if any(self._starts) else number

    def valid(self, actions: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return bool [N]: which of actions [N, *shape] belong to the space."""
        parts = actions.reshape(len(actions), len(self._sizes)).astype(np.int64) - np.asarray(self._starts)
        found: npt.NDArray[np.bool_] = ((parts >= 0) & (parts < np.asarray(self._sizes))).all(axis=1)
        return found


class BoxActions:
    """Scaling of continuous actions between the bounds of their space and -1 ... 1, in which agents compute.

    Args:
        spaces: those of the agent: actions that are a Box of floats with bounds.
        kind: the agent's name, for errors.

    Attributes:
        size: numbers of an action.
    Raises:
        ValueError: a space of another kind, or one without bounds.
    """

    def __init__(self, spaces: Spaces, kind: str) -> None:
        space = spaces.action
        if not isinstance(space, Box) or space.dtype.kind != "f":
            raise ValueError(
                f"{kind} needs continuous actions; {spaces.env} has {space_text(space)}; expected a Box of floats. "
                "Discrete actions are learned by dqn and others: sharpwave train gymnasium --env ID"
            )
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise ValueError(
                f"{kind}: {spaces.env} has actions from {space.low.tolist()} to {space.high.tolist()}, expected finite "
                "bounds, the lower below the upper; wrap the environment with gymnasium.wrappers.RescaleAction"
            )
        self.size = math.prod(space.shape)
        self._space = space
        self._unscaled = bool((low == -1).all() and (high == 1).all())
        self._centre, self._half = (low + high) / 2, (high - low) / 2

    def actions(self, scaled: npt.NDArray[np.floating]) -> npt.NDArray[Any]:
        """Return the environment's actions [N, *shape] for float [N, size] in -1 ... 1."""
        wide = scaled.reshape(len(scaled), *self._space.shape)
        if not self._unscaled:
            wide = self._centre + self._half * wide
        # Rounding may lead past a bound.
        return wide.astype(self._space.dtype).clip(self._space.low, self._space.high)

    def scaled(self, actions: Tensor) -> Tensor:
        """Return float32 [B, size] in -1 ... 1 for actions [B, *shape] of the environment: the inverse."""
        if self._unscaled:
            return actions.flatten(1).float()
        centre, half = (
            torch.from_numpy(self._centre).to(actions.device),
            torch.from_numpy(self._half).to(actions.device),
        )
        return ((actions - centre) / half).flatten(1).float()


def legal_in(spaces: Spaces, obs: Any) -> Any:
    """Return which actions are legal, bool [..., A]; ``None``: all, in spaces without a mask.

    Where a mask has none, all are: in final states, behind which no action is made, and in padding.

    Args:
        obs: observations [..., ...] by part, arrays or tensors.
    """
    if not spaces.masked:
        return None
    mask = obs[ACTION_MASK] != 0
    return mask | ~mask.any(-1)[..., None]


def with_legal(values: Tensor, legal: Tensor | None, taken: Tensor | None = None) -> Tensor:
    """Return values or logits [..., A], those of illegal actions -infinity.

    Args:
        legal: as from ``legal_in``.
        taken: int64 [...], actions that keep their value: those of data may have been illegal.
    """
    if legal is None:
        return values
    illegal = ~legal if taken is None else (~legal).scatter(-1, taken.unsqueeze(-1), False)
    return values.masked_fill(illegal, -math.inf)


def legal_rows(values: npt.NDArray[np.float32], legal: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.float32]:
    """Do as ``with_legal``, for arrays [N, A]."""
    return values if legal is None else np.where(legal, values, np.float32(-np.inf))
