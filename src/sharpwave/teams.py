"""Layout of a team's steps: several agents act at once, and a step of the team is one row of one lane.

An observation is a dict of the agents' views and of the legal actions of each; the action has a number for each agent.
The reward is the team's, the sum of its agents' own rewards, which are in the step's info.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bools, Ints

AGENTS = "agents"
"""Part of the observation: each agent's own view, [N, ...]."""
ACTION_MASK = "action_mask"
"""Part of the observation: bool or 0 and 1, [N, A]: which actions are legal. An agent with none is absent."""
STATE = "state"
"""Part of the observation, where the environment has one: its global state, which learners see and agents do not."""
REWARDS = "rewards"
"""Field beside the reward, and name in the step's info: the agents' own rewards, float32 [N]."""


def legal_actions(mask: npt.NDArray[Any]) -> Bools:
    """Return bool [..., N, A]: the actions of ``mask``, and of an absent agent action 0, which does nothing."""
    legal = mask.astype(np.bool_)
    legal[..., 0] |= ~legal.any(axis=-1)
    return legal


def random_actions(mask: npt.NDArray[Any], rng: np.random.Generator) -> Ints:
    """Draw a legal action for each agent, all equally probable.

    Args:
        mask: [..., N, A].
    Returns:
        int64 [..., N]. Always takes one draw of the mask's shape from ``rng``.
    """
    drawn = np.where(legal_actions(mask), rng.random(mask.shape), -1.0)
    chosen: Ints = drawn.argmax(axis=-1)
    return chosen
