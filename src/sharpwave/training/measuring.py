"""Measuring a policy: fixed weights, whole episodes, seeds that training did not use."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.agents.exploration import epsilon_greedy
from sharpwave.teams import ACTION_MASK, random_actions
from sharpwave.training.scores import EpisodeSums, game_result

if TYPE_CHECKING:  # the command line reads the numbers below; torch takes a second to import
    from sharpwave.agents.protocol import Agent
    from sharpwave.training.setup import Env

EPISODES = 30
"""Episodes of a measurement."""
EPSILON = 0.001
"""Probability of a random action."""
LANES = 10
"""Environments that play a measurement in parallel, at most."""
MAX_EPISODE_STEPS = 108_000
"""Limit of an episode in an environment that sets none; a longer one is cut there and scored."""
EVAL_SEED = 1_000
"""Default seed of ``sharpwave eval``."""

ShowFrame = Callable[[npt.NDArray[np.uint8]], None]


def lanes_for(episodes: int) -> int:
    """Return how many environments play ``episodes`` episodes."""
    return min(episodes, LANES)


class Purpose(IntEnum):
    """Purpose of a measurement's episodes; no two purposes share a seed.

    ``CHOOSING`` episodes decide which policy is the best, ``CONFIRMING`` ones whether one that passed has solved the
    recipe, ``REPORTING`` ones nothing: they measure the best policy of a run that has solved nothing.
    """

    CHOOSING = 0
    CONFIRMING = 1
    REPORTING = 2


def held_out_seed(seed: int, steps: int, purpose: Purpose = Purpose.CHOOSING) -> int:
    """Return the seed of a run's measurement after ``steps`` steps.

    Seeds of ``CHOOSING`` measurements are in [5 * 2^28, 6 * 2^28), the others' in [6 * 2^28, 7 * 2^28) and training's
    own below 2^30, except the first, which the user gives.
    """
    drawn = np.random.SeedSequence([seed, steps, 1 + purpose]).generate_state(1)[0]
    return (5 + min(purpose, 1) << 28) + int(drawn >> 4)


def play(
    agent: Agent,
    env: Env,
    episodes: int,
    epsilon: float,
    seed: int,
    show: ShowFrame | None = None,
    hopeless: Callable[[list[float]], bool] = lambda scores: False,
) -> list[float]:
    """Play ``episodes`` whole episodes and return their unclipped scores.

    Every environment plays a fixed share of them, so short episodes are not over-represented.

    Args:
        epsilon: probability of a random action.
        show: called with the picture of environment 0 at every step; needs environments made with ``render``.
        hopeless: called each time that every environment has ended one more episode, with the scores of as many
            episodes of each; if it returns True, these scores are returned.
    """
    lanes = env.num_envs
    share = np.full(lanes, episodes // lanes) + (np.arange(lanes) < episodes % lanes)
    rng = np.random.default_rng(seed)
    scores: list[list[float]] = [[] for _ in range(lanes)]
    running = EpisodeSums(lanes)
    rounds = 0
    obs, _ = env.reset(seed=seed)
    state = agent.begin(lanes)
    while any(len(scores[lane]) < share[lane] for lane in range(lanes)):
        if show is not None:
            pictures: Any = env.render()
            show(pictures[0])
        acted = agent.act(obs, state, 0, explore=False)
        action = sometimes_random(acted.action, obs, env.single_action_space, epsilon, rng)
        step: Any = env.step(action)
        obs, reward, terminated, truncated, infos = step
        ended = terminated | truncated
        state = agent.observe(agent.replaced(acted.state, action), reward, ended)
        endless = running.steps >= MAX_EPISODE_STEPS - 1
        own_reward, over = game_result(reward, ended, infos)
        finished = running.add(own_reward, over | endless)
        for episode in finished:
            scores[episode.lane].append(episode.reward)
        if finished and min(map(len, scores)) > rounds:
            rounds += 1
            so_far = [score for lane in scores for score in lane[:rounds]]
            if hopeless(so_far):
                return so_far
    return [score for lane in range(lanes) for score in scores[lane][: share[lane]]]


def sometimes_random(actions: npt.NDArray[Any], obs: Any, space: Any, epsilon: float, rng: np.random.Generator) -> Any:
    """Replace discrete actions, with probability ``epsilon``, by random ones; other actions are returned unchanged.

    Where an action has several parts, all of them become random at once. Where the observation tells which are legal,
    they remain so.

    Args:
        obs: observations that the actions are made for.
    """
    from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete

    if isinstance(space, Discrete):
        start, shape = int(space.start), (len(actions), int(space.n))
        mask: Any = obs.get(ACTION_MASK) if isinstance(obs, dict) else None
        legal = mask if np.shape(mask) == shape else None
        chosen = epsilon_greedy(actions.astype(np.int64) - start, shape[1], epsilon, rng, legal) + start
        return chosen.astype(actions.dtype, copy=False)
    if not isinstance(space, (MultiDiscrete, MultiBinary)):
        return actions
    explores = (rng.random(len(actions)) < epsilon).reshape(-1, *[1] * (actions.ndim - 1))
    if isinstance(obs, dict) and ACTION_MASK in obs:
        return np.where(explores, random_actions(obs[ACTION_MASK], rng), actions).astype(actions.dtype)
    first, count = (space.start, space.nvec) if isinstance(space, MultiDiscrete) else (0, 2)
    return np.where(explores, first + rng.integers(0, count, actions.shape), actions).astype(actions.dtype)
