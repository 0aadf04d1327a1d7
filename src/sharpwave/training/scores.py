"""Scores of episodes: of those that training plays, and of whole ones played to measure a policy."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.teams import ACTION_MASK, random_actions
from sharpwave.training.folder import as_count, as_mean, as_scores, parsed

if TYPE_CHECKING:
    from sharpwave.agents.protocol import Agent
    from sharpwave.training.setup import Env

SAVED_SCORES = {"count": as_count, "avg_reward": as_mean, "last": as_scores}
"""Form of ``Scores`` in a checkpoint."""


def running_mean(mean: float | None, value: float, alpha: float = 0.98) -> float:
    """Return alpha * mean + (1 - alpha) * value; the first value is its own mean."""
    return value if mean is None else alpha * mean + (1.0 - alpha) * value


def game_result(
    reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_], infos: Mapping[str, Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the game's own rewards and ends of a step, of which scores are made.

    They differ from ``reward`` and ``ended`` where those are for learning: where rewards are clipped
    (``infos["unclipped_reward"]``), or episodes end at lost lives while the game goes on (``infos["game_ended"]``).
    """
    return infos.get("unclipped_reward", reward), infos.get("game_ended", ended)


@dataclass(frozen=True)
class EpisodeScore:
    """Episode that has ended, a whole game.

    Attributes:
        reward: sum of its unclipped rewards.
        steps: its length.
        lane: the lane that played it.
        figures: values that actor callbacks returned about it, by name.
    """

    reward: float
    steps: int
    lane: int
    figures: Mapping[str, float] = field(default_factory=dict)


class EpisodeSums:
    """Rewards and lengths of the current episodes of lanes that step together, ``first_lane`` the first of them.

    Attributes:
        steps: int64 [lanes], lengths so far.
    """

    def __init__(self, lanes: int, first_lane: int = 0) -> None:
        self._first_lane = first_lane
        self._reward = np.zeros(lanes)
        self.steps = np.zeros(lanes, np.int64)

    def add(self, reward: npt.NDArray[np.floating], ended: npt.NDArray[np.bool_]) -> list[EpisodeScore]:
        """Count one step of every lane; return the episodes that ended with it.

        Args:
            reward: float [N], unclipped.  ended: bool [N], terminated or truncated.
        """
        self._reward += reward
        self.steps += 1
        finished = []
        for lane in np.flatnonzero(ended).tolist():
            finished.append(EpisodeScore(float(self._reward[lane]), int(self.steps[lane]), self._first_lane + lane))
            self._reward[lane] = 0.0
            self.steps[lane] = 0
        return finished

    def break_off(self) -> None:
        """Begin new episodes in all lanes; unfinished ones are not counted."""
        self._reward[:] = 0.0
        self.steps[:] = 0


class Scores:
    """Means over the episodes of a run that have ended.

    Args:
        scored: bool [lanes], lanes whose episodes go into the means.

    Attributes:
        count: episodes ended, of all lanes.
        avg_reward: running mean (alpha .98) of their rewards; None before the first.
        last: rewards of the last 100.
    """

    def __init__(self, scored: npt.NDArray[np.bool_], window: int = 100) -> None:
        self.scored = scored
        self.count = 0
        self.avg_reward: float | None = None
        self.last: deque[float] = deque(maxlen=window)

    def add(self, episode: EpisodeScore) -> None:
        self.count += 1
        if self.scored[episode.lane]:
            self.last.append(episode.reward)
            self.avg_reward = running_mean(self.avg_reward, episode.reward)

    @property
    def mean_reward(self) -> float | None:
        """Mean reward of the last 100 episodes, or of all if there were fewer; None before the first."""
        return float(np.mean(self.last)) if self.last else None

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count, "avg_reward": self.avg_reward, "last": list(self.last)}

    def load(self, values: dict[str, Any]) -> None:
        """Restore what ``to_dict`` returned.  Raises: KeyError, TypeError, ValueError, OverflowError."""
        found = parsed(values, SAVED_SCORES)
        self.count, self.avg_reward = found["count"], found["avg_reward"]
        self.last.clear()
        self.last.extend(found["last"])


# Measuring a policy: fixed weights, whole episodes, seeds that training did not use

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

RESAMPLES = 10_000
"""Resampled means by which an interval is computed."""

ShowFrame = Callable[[npt.NDArray[np.uint8]], None]


@dataclass(frozen=True)
class EpisodeScores:
    """Scores of whole episodes that were played with fixed weights.

    Attributes:
        scores: sum of each episode's unclipped rewards.
        seed: of the environments.
    """

    scores: list[float]
    seed: int

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float:
        """Standard deviation of the episodes."""
        return statistics.pstdev(self.scores)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean, by the percentiles of ``RESAMPLES`` means of resampled episodes.

        It is about these weights; how much runs differ, only further seeds of training tell.
        Source: Efron and Tibshirani (1993), An introduction to the bootstrap, section 13.3.
        """
        scores, rng = np.asarray(self.scores), np.random.default_rng(0)
        means = [scores[rng.integers(len(scores), size=len(scores))].mean() for _ in range(RESAMPLES)]
        low, high = np.percentile(means, [2.5, 97.5])
        return float(low), float(high)

    def __str__(self) -> str:
        low, high = self.interval
        count = len(self.scores)
        return (
            f"mean {self.mean:.2f}  95 % {low:.2f} to {high:.2f}  std {self.std:.2f}  min {min(self.scores):g}  "
            f"max {max(self.scores):g}  of {count} {'episode' if count == 1 else 'episodes'}"
        )


def lanes_for(episodes: int) -> int:
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
    explore_at: int | None = None,
) -> list[float]:
    """Play ``episodes`` whole episodes and return their unclipped scores.

    Every environment plays a fixed share of them, so short episodes are not over-represented.

    Args:
        epsilon: probability of a random action.
        show: called with the picture of environment 0 at every step; needs environments made with ``render``.
        hopeless: called each time that every environment has ended one more episode, with the scores of as many
            episodes of each; if it returns True, these scores are returned.
        explore_at: steps of training at which the agent explores as it plays; None: it makes its best actions.
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
        acted = agent.act(obs, state, explore_at or 0, explore=explore_at is not None)
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

    from sharpwave.agents.actions import epsilon_greedy

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
