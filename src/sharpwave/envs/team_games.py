"""Teams of agents as one environment: PettingZoo's parallel ones, Gymnasium's whose spaces are tuples; small games.

Environments of the packages mpe2, lbforaging and rware are found by their names.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.spaces.utils import flatten, flatten_space

from sharpwave.extras import install
from sharpwave.teams import ACTION_MASK, AGENTS, REWARDS, STATE

MPE = re.compile(r"mpe2/(\w+_v\d+)")
"""Names of the particle environments of the package mpe2, as "mpe2/simple_spread_v3"."""
PACKAGES = {"Foraging-": "lbforaging", "rware-": "rware"}
"""Packages that register their environments when they are imported, by the beginning of their names."""
Each = dict[str, Any]
"""A value for each agent, by name."""


class TeamEnv(gymnasium.Env[dict[str, npt.NDArray[Any]], npt.NDArray[np.int64]]):
    """Team whose agents all act in one step of a Gymnasium environment.

    Agents are numbered as in ``possible_agents``. The observation has the parts

    - ``agents`` [N, ...]: each agent's observation; zeros for an absent agent. If observations differ in shape or
      dtype, they are flattened, as float32, and padded with zeros.
    - ``action_mask`` int8 [N, A]: legal actions, with A the largest number of actions; all zero for an absent agent,
      one that has left or not yet joined. The environment gives legal actions as ``action_mask`` in an agent's info or
      beside ``observation`` in its observation; without it, all are legal.
    - ``state``: the environment's state, with ``state=True``.

    The action is a number from 0 for each agent; the number of an absent one is ignored. The reward is the sum of the
    agents' rewards; ``info["rewards"]`` has them one by one, float32 [N], and ``step_spec`` declares them as a field.
    The episode ends when no agent is left. It is truncated if one of the last agents was truncated; the final
    observation then has that agent's observation and legal actions. An agent that leaves earlier, terminated or
    truncated, is absent from then on.

    Args:
        parallel: a ``pettingzoo.ParallelEnv`` whose agents have ``Discrete`` actions; or a Gymnasium environment that
            observes and takes a tuple with a part for each agent, and pays a list (``TupleTeam``).
        state: observe the global state, ``parallel.state()``, too. Without it learners see only agents' observations.

    Raises:
        ValueError: actions of another kind, or a state that is not a ``Box``.
    """

    def __init__(self, parallel: Any, *, state: bool = False) -> None:
        parallel = TupleTeam(parallel) if isinstance(parallel, gymnasium.Env) else parallel
        self.parallel, self.render_mode = parallel, getattr(parallel, "render_mode", None)
        self.names: list[str] = list(parallel.possible_agents)
        actions = [parallel.action_space(name) for name in self.names]
        for name, space in zip(self.names, actions, strict=True):
            if not isinstance(space, Discrete):
                raise ValueError(f"TeamEnv: agent {name!r} has the actions {space}, expected Discrete")
        self._counts, self._starts = [int(one.n) for one in actions], [int(one.start) for one in actions]
        self._spaces = [_seen(parallel.observation_space(name)) for name in self.names]
        first = self._spaces[0]
        self._alike = isinstance(first, Box) and all(
            isinstance(one, Box) and (one.shape, one.dtype) == (first.shape, first.dtype) for one in self._spaces
        )
        masks = MultiBinary([len(self.names), max(self._counts)])
        parts: dict[str, Space[Any]] = {AGENTS: self._agent_space(), ACTION_MASK: masks}
        if state:
            space = getattr(parallel, "state_space", None)
            if not isinstance(space, Box):
                raise ValueError(f"TeamEnv: state=True, but the environment's state_space is {space}, expected a Box")
            parts[STATE] = space
        self.observation_space: Any = Dict(parts)
        self.action_space = MultiDiscrete([masks.shape[1]] * len(self.names))
        said = getattr(parallel, "metadata", {})
        self.metadata = {name: said[name] for name in ("render_modes", "render_fps") if name in said}
        self.metadata["info_fields"] = {REWARDS: Box(-np.inf, np.inf, (len(self.names),), np.float32)}
        self._mask = np.zeros(masks.shape, np.int8)

    def _agent_space(self) -> Box[Any]:
        low, high = [], []
        for one in self._spaces:
            space: Any = one if self._alike else flatten_space(one)
            low.append(np.minimum(space.low, 0))  # the space includes the zeros of absent agents
            high.append(np.maximum(space.high, 0))
        if self._alike:
            return Box(np.stack(low), np.stack(high), dtype=low[0].dtype.type)
        size = max(map(len, low))
        low, high = ([np.pad(one, (0, size - len(one))).astype(np.float32) for one in ends] for ends in (low, high))
        return Box(np.stack(low), np.stack(high), dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        super().reset(seed=seed)
        seen, infos = self.parallel.reset(seed=seed, options=options)
        return self._observed(seen, infos, self.parallel.agents), {}

    def step(
        self, action: npt.NDArray[np.int64]
    ) -> tuple[dict[str, npt.NDArray[Any]], float, bool, bool, dict[str, Any]]:
        chosen = np.asarray(action)
        if chosen.shape != (len(self.names),):
            raise ValueError(
                f"TeamEnv.step: action has shape {chosen.shape}, expected a number for each of {self.names}"
            )
        acting = [number for number, name in enumerate(self.names) if name in self.parallel.agents]
        for number in acting:
            if not 0 <= chosen[number] < self._mask.shape[1] or not self._mask[number, chosen[number]]:
                legal = np.flatnonzero(self._mask[number]).tolist()
                if not legal:
                    raise ValueError(
                        f"TeamEnv.step: agent {self.names[number]!r} is present, but its mask allows no action, "
                        "expected at least one; leave an idle agent out of parallel.agents, or give it an action that "
                        "does nothing"
                    )
                raise ValueError(
                    f"TeamEnv.step: action {chosen[number]} of agent {self.names[number]!r} is not legal, expected one "
                    f"of {legal}, as the observation's {ACTION_MASK!r} says"
                )
        made = {self.names[number]: int(chosen[number]) + self._starts[number] for number in acting}
        seen, rewards, terminated, truncated, infos = self.parallel.step(made)
        left = [name for name in self.parallel.agents if not (terminated.get(name) or truncated.get(name))]
        cut = [] if left else [name for name in made if truncated.get(name) and not terminated.get(name)]
        own = np.array([rewards.get(name, 0.0) for name in self.names], np.float32)
        observed = self._observed(seen, infos, left or cut)
        return observed, float(own.sum(dtype=np.float64)), not left and not cut, bool(cut), {REWARDS: own}

    def _observed(
        self, seen: Mapping[str, Any], infos: Mapping[str, Any], present: list[str]
    ) -> dict[str, npt.NDArray[Any]]:
        space = self.observation_space
        agents = np.zeros(space[AGENTS].shape, space[AGENTS].dtype)
        self._mask = np.zeros_like(self._mask)
        for number, name in enumerate(self.names):
            if name not in present:
                continue
            given, mask = seen[name], infos.get(name, {}).get(ACTION_MASK)
            if isinstance(given, Mapping) and "observation" in given:
                mask = given.get(ACTION_MASK, mask)
                given = given["observation"]
            if self._alike:
                agents[number] = given
            else:
                flat = flatten(self._spaces[number], given)
                agents[number, : len(flat)] = flat
            self._mask[number, : self._counts[number]] = 1 if mask is None else np.asarray(mask)
        observed = {AGENTS: agents, ACTION_MASK: self._mask}
        return observed | {STATE: np.asarray(self.parallel.state())} if STATE in space.spaces else observed

    def render(self) -> Any:
        return self.parallel.render()

    def close(self) -> None:
        self.parallel.close()


def _seen(space: Any) -> Space[Any]:
    """Return the space of an agent's observation, without the mask beside it."""
    found: Space[Any] = space["observation"] if isinstance(space, Dict) and "observation" in space.spaces else space
    return found


class TupleTeam:
    """Gymnasium environment of several agents as a PettingZoo ``ParallelEnv``, as those of lbforaging and rware.

    Its action and its observation are tuples with a part for each agent, its reward a list, or one number that the
    agents share equally. ``info["action_mask"]`` may have a mask for each agent. All agents begin together,
    and the episode ends with the step in which each is terminated or truncated.

    Raises:
        ValueError: other spaces.
    """

    def __init__(self, env: Any) -> None:
        if not has_tuples(env):
            raise ValueError(
                f"TeamEnv: env has the actions {env.action_space} and observes {env.observation_space}, expected a "
                "tuple of Discrete actions and a tuple of observations, one for each agent"
            )
        self.env, self.metadata, self.render_mode = env, env.metadata, env.render_mode
        self._actions, self._observations = env.action_space, env.observation_space
        self.possible_agents = [f"agent_{number}" for number in range(len(self._actions))]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space[Any]:
        found: Space[Any] = self._observations[self.possible_agents.index(agent)]
        return found

    def action_space(self, agent: str) -> Space[Any]:
        found: Space[Any] = self._actions[self.possible_agents.index(agent)]
        return found

    def reset(self, seed: int | None = None, options: Each | None = None) -> tuple[Each, Each]:
        seen, info = self.env.reset(seed=seed, options=options)
        self.agents = [*self.possible_agents]
        return self._each(seen), self._infos(info)

    def step(self, actions: Each) -> tuple[Each, Each, Each, Each, Each]:
        made = tuple(actions[name] for name in self.possible_agents)
        seen, reward, terminated, truncated, info = self.env.step(made)
        paid = reward if np.ndim(reward) else [reward / len(made)] * len(made)
        # Of agents that end differently some could have gone on: what they would have earned is still to be estimated.
        over, ended = bool(np.all(np.logical_or(terminated, truncated))), bool(np.all(terminated))
        self.agents = [] if over else self.agents
        names = self.possible_agents
        return (
            self._each(seen),
            self._each(paid),
            dict.fromkeys(names, ended),
            dict.fromkeys(names, over and not ended),
            self._infos(info),
        )

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _each(self, values: Any) -> Each:
        return dict(zip(self.possible_agents, values, strict=True))

    def _infos(self, info: Each) -> Each:
        return self._each({ACTION_MASK: mask} for mask in info[ACTION_MASK]) if ACTION_MASK in info else {}


def has_tuples(env: Any) -> bool:
    """Return whether an environment is a team's: its actions and observations are tuples of as many parts."""
    actions, observations = env.action_space, env.observation_space
    return (
        isinstance(actions, Tuple)
        and isinstance(observations, Tuple)
        and len(actions) == len(observations)
        and all(isinstance(one, Discrete) for one in actions)
    )


def with_team(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Wrap an environment whose spaces are a team's tuples into ``TeamEnv``; return others as they are."""
    if not has_tuples(env):
        return env
    inner: Any = env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, gymnasium.wrappers.PassiveEnvChecker):
            inner.checked_step = True  # it would warn of a reward that is a list
        inner = inner.env
    return TeamEnv(env)


def make_mpe(module: str, render_mode: str | None = None, **settings: Any) -> TeamEnv:
    """Make a particle environment of the package mpe2, by its module's name, as "simple_spread_v3"."""
    return TeamEnv(importlib.import_module(f"mpe2.{module}").parallel_env(render_mode=render_mode, **settings))


def register_mpe(name: str) -> None:
    """Register a name as "mpe2/simple_spread_v3" with Gymnasium; do nothing for others.

    Raises:
        ValueError: mpe2 is not installed, or has no such environment.
    """
    found = MPE.fullmatch(name)
    if found is None or name in gymnasium.registry:
        return
    try:
        installed = importlib.util.find_spec(f"mpe2.{found[1]}") is not None
    except ModuleNotFoundError as error:
        raise ValueError(f"env {name!r} needs mpe2: {install('mpe')}") from error
    if not installed:
        raise ValueError(f"env {name!r}: mpe2 has no such environment, expected one such as mpe2/simple_spread_v3")
    gymnasium.register(name, f"{__name__}:make_mpe", kwargs={"module": found[1]})


def register_packages(name: str) -> None:
    """Register the environments of lbforaging or rware, if one of them is named; do nothing for other names.

    Raises:
        ValueError: the package is not installed.
    """
    name = name.rpartition(":")[2]
    package = next((package for begin, package in PACKAGES.items() if name.startswith(begin)), None)
    if package is None or name in gymnasium.registry:
        return
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise ValueError(f"env {name!r} needs {package}: {install('teams')}") from error


class TwoStepGame:
    """Cooperative matrix game of two steps and two agents with two actions each, a PettingZoo ``ParallelEnv``.

    The first agent's first action chooses the matrix that determines the second step's reward: 0 the one that always
    pays 7, 1 the one that pays 0, 1, 1 and 8. The best team gets 8. A sum of one value for each agent cannot express
    the second matrix; learned under uniform exploration, it takes the 7. Both agents observe the game's state one-hot.

    Source: Rashid et al. (2018), QMIX, table 1.
    """

    metadata: dict[str, Any] = {"name": "two_step"}  # noqa: RUF012
    possible_agents = ("first", "second")
    PAYOFFS = (((7.0, 7.0), (7.0, 7.0)), ((0.0, 1.0), (1.0, 8.0)))

    def __init__(self) -> None:
        self.agents: list[str] = []
        self._place = 0

    def observation_space(self, agent: str) -> Box:
        return Box(0.0, 1.0, (3,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Each | None = None) -> tuple[Each, Each]:
        self.agents, self._place = [*self.possible_agents], 0
        return self._observed(), {}

    def step(self, actions: Each) -> tuple[Each, Each, Each, Each, Each]:
        """Choose the matrix, or pay half of its reward to each agent."""
        first, second = actions["first"], actions["second"]
        over = self._place > 0
        pay = self.PAYOFFS[self._place - 1][first][second] / 2 if over else 0.0
        if not over:
            self._place = 1 + first
        seen = self._observed()
        self.agents = [] if over else self.agents
        return seen, dict.fromkeys(seen, pay), dict.fromkeys(seen, over), dict.fromkeys(seen, False), {}

    def render(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Release nothing."""

    def _observed(self) -> dict[str, npt.NDArray[np.float32]]:
        return {agent: np.eye(3, dtype=np.float32)[self._place] for agent in self.agents}


def two_step(render_mode: str | None = None) -> TeamEnv:
    """Make the two-step game as a Gymnasium environment; it has no pictures."""
    return TeamEnv(TwoStepGame())


class Meeting(gymnasium.Env[Any, Any]):
    """Two agents on a grid of 5 x 5 fields who have to stand on the same given field at once, an environment of tuples.

    Both see where they, the other and the goal are. They stay, or go to one of four sides. The meeting pays 1 to the
    team and ends the episode; each step costs it .01; after 25 steps the episode is cut. The best team gets .96.
    """

    SIDE, STEPS, COST = 5, 25, 0.01
    MOVES = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)])
    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    observation_space = Tuple([Box(0.0, SIDE - 1.0, (6,), np.float32)] * 2)
    action_space = Tuple([Discrete(len(MOVES))] * 2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Each | None = None) -> tuple[Any, Each]:
        super().reset(seed=seed)
        fields = self.np_random.choice(self.SIDE**2, 3, replace=False)
        self.steps, self.places = 0, np.stack(np.divmod(fields, self.SIDE), axis=1)  # of both agents, and the goal
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.places[:2] = np.clip(self.places[:2] + self.MOVES[list(action)], 0, self.SIDE - 1)
        self.steps += 1
        met = bool((self.places[:2] == self.places[2]).all())
        return self._seen(), met - self.COST, met, self.steps >= self.STEPS and not met, {}

    def _seen(self) -> Any:
        return tuple(self.places[order].astype(np.float32).ravel() for order in ([0, 1, 2], [1, 0, 2]))
