"""Numbered actions, draws of them, and which are legal, as the observation says.

The value of an illegal action is -infinity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from sharpwave.agents.protocol import Spaces, space_text
from sharpwave.extras import Tensor, torch
from sharpwave.teams import ACTION_MASK, random_actions

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
                "sac --env ID; from demonstrations by rlpd. An environment that has discrete ones by a keyword, as "
                "CarRacing-v3 by continuous=False, is registered with Gymnasium in a module of your own: "
                "--env MODULE:NAME"
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

    def actions(self, numbers: Any) -> Any:
        """Return the actions [N, *shape] with the numbers int64 [N], an array or a tensor."""
        if not isinstance(numbers, np.ndarray):
            return self._tensor(numbers)
        if not self._shape:
            return (numbers + self._starts[0]).astype(self._dtype, copy=False)
        parts = np.stack(np.unravel_index(numbers, self._sizes), axis=1) + np.asarray(self._starts)
        made: npt.NDArray[Any] = parts.astype(self._dtype).reshape(len(numbers), *self._shape)
        return made

    def _tensor(self, numbers: Tensor) -> Tensor:
        dtype = torch.from_numpy(np.empty(0, self._dtype)).dtype
        if not self._shape:
            return (numbers + self._starts[0]).to(dtype)
        parts = []
        for size, start in zip(reversed(self._sizes), reversed(self._starts), strict=True):
            parts.append(numbers % size + start)
            numbers = numbers // size
        return torch.stack(parts[::-1], dim=1).to(dtype).reshape(-1, *self._shape)

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


def legal_in(spaces: Spaces, obs: Any) -> Any:
    """Return which actions are legal, bool [..., A]; ``None``: all, in spaces without a mask.

    Where a mask has none, all are: in final states, after which no action is made, and in padding.

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


def within(actions: Tensor, box: Box) -> Tensor:
    """Return actions [N, *shape] between the bounds of their space, and of its dtype."""
    low, high = (torch.from_numpy(one).to(actions.device) for one in (box.low, box.high))
    return actions.clamp(low, high).to(low.dtype)


def epsilon_greedy(
    greedy: npt.NDArray[np.int64],
    num_actions: int,
    epsilon: float | npt.NDArray[np.float64],
    rng: np.random.Generator,
    legal: npt.NDArray[Any] | None = None,
) -> npt.NDArray[np.int64]:
    """Replace greedy actions, with probability epsilon, by uniformly random ones.

    Args:
        greedy: int64 [...].  epsilon: one for all, or of a shape that broadcasts with it.
        legal: [..., A], true for the actions that may be drawn; ``None``: all may.
    Returns:
        int64 [...]. Always takes two draws of its shape from ``rng``, with ``legal`` one of its shape and one of
        [..., A], so that runs are repeatable.
    """
    explores = rng.random(greedy.shape) < epsilon
    random = rng.integers(0, num_actions, greedy.shape) if legal is None else random_actions(legal, rng)
    return np.where(explores, random, greedy)


def softmax_actions(
    values: npt.NDArray[np.floating], temperature: npt.NDArray[np.float64], rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw actions with probabilities in proportion to exp(value / temperature).

    The largest of values plus Gumbel noise is such a draw: nothing overflows, and temperature 0 is greedy.

    Args:
        values: float [N, A].  temperature: float [N].
    Returns:
        int64 [N]. Always takes one draw of N x A from ``rng``.
    Source: Gumbel (1954), Statistical theory of extreme values; Maddison et al. (2014), A* sampling, section 2.
    """
    noise = rng.gumbel(size=values.shape)
    chosen: npt.NDArray[np.int64] = (values + temperature[:, None] * noise).argmax(axis=1)
    return chosen
