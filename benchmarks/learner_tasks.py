"""Tasks and agents of ``learners.py`` that the package lacks; environments: ``learner_tasks:MemoryChain-v0``.

Memory tasks for agents without memory (stacks of four observations, and a DQN with demonstrations); IMPALA that acts
with weights 1 to 10 versions old, repeatably and in one process; and bsuite's memory chain. bsuite pins nothing that
hinders, but asks for much that the chain never uses: install it without its dependencies, and then dm_env,
immutabledict, scikit-image, imageio, lazy-loader and termcolor.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np

from sharpwave.agents.dqn import DQN, DQNSettings
from sharpwave.agents.impala import IMPALA, IMPALASettings
from sharpwave.agents.protocol import Learned
from sharpwave.agents.registry import register
from sharpwave.agents.rlpd import BlendedTransitions
from sharpwave.configuration import setting
from sharpwave.envs import TeamEnv
from sharpwave.envs.small_tasks import Lock, TMaze
from sharpwave.training import recording
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.recipes.settings_files import read_recipe

STACK, MEMORY = 4, "Replay memory"


def tmaze(**options: Any) -> Any:
    """Make a T-maze whose observation is a stack."""
    return gymnasium.wrappers.FrameStackObservation(TMaze(**options), STACK, padding_type="zero")


def lock(**options: Any) -> Any:
    """Make a lock whose observation is a stack."""
    return gymnasium.wrappers.FrameStackObservation(Lock(**options), STACK, padding_type="zero")


@dataclass(frozen=True)
class DemonstratedSettings(DQNSettings):
    """Settings of a DQN with demonstrations."""

    kind: ClassVar[str] = "demonstrated-dqn"

    demonstrations: str = setting("", "folder of demonstrations", MEMORY)
    demonstration_share: float = setting(0.25, "their share in a batch", MEMORY, at_least=0, at_most=1)


class DemonstratedDQN(DQN):
    """DQN whose batches are blended as R2D3's."""

    Settings = DemonstratedSettings
    settings: DemonstratedSettings

    def replay(self) -> Any:
        """Return the settings of the blend."""
        settings: Any = self.settings
        return BlendedTransitions(
            **vars(settings.replay),
            demonstrations=settings.demonstrations,
            share=settings.demonstration_share,
            fields=lambda episode: {},
        )


register(DemonstratedDQN)
_BASE = load_recipe("gymnasium")
DEMONSTRATED = Recipe(
    env=_BASE.env,
    agent=DemonstratedSettings(replay=_BASE.agent.replay, exploration=_BASE.agent.exploration),
    replay=_BASE.replay,
    training=_BASE.training,
    evaluation=_BASE.evaluation,
)


def expert(rng: np.random.Generator) -> recording.Policy:
    """Return a policy that remembers the combination of a lock."""
    doors, keys, digits = 8, 4, np.zeros(1, np.int64)

    def policy(obs: Any) -> int:
        nonlocal digits
        newest = obs if obs.ndim == 1 else obs[-1]
        if newest[:-doors].any():
            digits = newest[:-doors].reshape(-1, keys).argmax(axis=1)
        door = int(newest[-doors:].argmax())
        return int(digits[door % len(digits)] + door) % keys

    return policy


def demonstrations(recipe: Recipe, run: Path, episodes: int) -> Path:
    """Record the expert beside a run's folder; return where."""
    folder = run.with_name(run.name + "-demonstrations")
    if not folder.exists():
        env = recipe.env.make(1)
        player = recording.ScriptPlayer(expert, env.single_action_space, recipe.training.seed, "expert")
        recording.record(env, player, folder, episodes=episodes, seed=recipe.training.seed)
        env.close()
    return folder


OLDEST = 10


@dataclass(frozen=True)
class StaleSettings(IMPALASettings):
    """Settings of IMPALA."""

    kind: ClassVar[str] = "stale-impala"


class StaleIMPALA(IMPALA):
    """IMPALA whose policy is copied every tenth update and acts from the next one on, until the following copy.

    So an update learns from steps of weights that were 1, 2, ... 10 updates old when they acted, as an actor's that
    get new ones every tenth update. Evaluations play the newest.
    """

    Settings = StaleSettings
    settings: StaleSettings

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._acting, _ = self.networks()
        self._acting.load_state_dict(self.policy.state_dict())
        self._age = OLDEST

    def act(self, obs: Any, state: Any, step: int, explore: bool = True) -> Any:
        """Act with the copy where it explores."""
        newest = self.policy
        if explore:
            self.policy = self._acting
        try:
            return super().act(obs, state, step, explore)
        finally:
            self.policy = newest

    def learn(self, batch: Any, step: int) -> Learned:
        """Make an update; before every tenth, copy the policy."""
        if self._age == OLDEST:
            self._acting.load_state_dict(self.policy.state_dict())
            self._age = 0
        self._age += 1
        return super().learn(batch, step)


register(StaleIMPALA)
_IMPALA = load_recipe("cartpole-impala")
STALE = replace(
    _IMPALA, agent=StaleSettings(**{one.name: getattr(_IMPALA.agent, one.name) for one in fields(_IMPALA.agent)})
)


class Chain(gymnasium.Env[Any, Any]):
    """A bit, shown at the episode's start, is wanted ``length`` steps later: 1 if it is right, -1 if not."""

    def __init__(self, length: int = 20) -> None:
        from bsuite.environments.memory_chain import MemoryChain  # type: ignore[import-not-found]

        self._length, self._make = length, MemoryChain
        self._chain: Any = MemoryChain(length)
        shape = self._chain.observation_spec().shape[1:]
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(self._chain.action_spec().num_values)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; a seed makes the chain anew."""
        super().reset(seed=seed)
        if seed is not None:
            self._chain = self._make(self._length, seed=seed)
        return self._chain.reset().observation[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make a step."""
        step = self._chain.step(int(action))
        return step.observation[0], float(step.reward), step.last(), False, {}


def agent57() -> Recipe:
    """Return the settings of the example of Agent57; it and NGU are registered."""
    examples = Path(__file__).parents[1] / "examples"
    sys.path.append(str(examples))
    importlib.import_module("agent57")
    return read_recipe(examples / "agent57" / "deep-sea.toml")[1]


class Battle:
    """A battle of SMAX, JaxMARL's StarCraft-like game against a scripted enemy, as a PettingZoo ``ParallelEnv``.

    Units see their surroundings, have a mask of legal actions, and are absent once they are dead; each gets an equal
    share of the team's reward, whose sum is 2 for a battle that is won: 1 for the damage and 1 for the victory.

    Source: Rutherford et al. (2024), JaxMARL: multi-agent RL environments and algorithms in JAX.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "smax"}

    def __init__(self, scenario: str) -> None:
        import jax
        import jaxmarl  # type: ignore[import-not-found]
        from jaxmarl.environments.smax import map_name_to_scenario  # type: ignore[import-not-found]

        game = jaxmarl.make("HeuristicEnemySMAX", scenario=map_name_to_scenario(scenario))

        def begin(key: Any) -> Any:
            seen, state = game.reset(key)
            return seen, game.get_avail_actions(state), state

        def step(key: Any, state: Any, actions: Any) -> Any:
            key, own = jax.random.split(key)
            seen, state, rewards, ended, _ = game.step_env(own, state, actions)
            alive = state.state.unit_alive
            won_or_lost = ~(alive[: game.num_agents].any() & alive[game.num_agents :].any())
            return key, seen, game.get_avail_actions(state), state, rewards, ended, won_or_lost

        self._begin, self._step, self._key, self._game = jax.jit(begin), jax.jit(step), jax.random.PRNGKey, game
        self.possible_agents: list[str] = list(game.agents)
        self.agents: list[str] = []
        self._random: Any = self._key(0)
        self._seen, self._masks, self._battle = self._begin(self._random)

    def observation_space(self, agent: str) -> Any:
        """Return the space of an agent's observation."""
        return gymnasium.spaces.Box(-np.inf, np.inf, self._game.observation_space(agent).shape, np.float32)

    def action_space(self, agent: str) -> Any:
        """Return the actions of an agent: movements, and an attack of each enemy."""
        return gymnasium.spaces.Discrete(int(self._game.action_space(agent).n))

    @property
    def state_space(self) -> Any:
        """Space of the global state."""
        return gymnasium.spaces.Box(-np.inf, np.inf, self._seen["world_state"].shape, np.float32)

    def state(self) -> Any:
        """Return the global state."""
        return np.asarray(self._seen["world_state"])

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begin a battle."""
        if seed is not None:
            self._random = self._key(seed)
        self._seen, self._masks, self._battle = self._begin(self._random)
        self.agents = [*self.possible_agents]
        return self._observed(), self._infos()

    def step(self, actions: dict[str, int]) -> Any:
        """Make a step; the dead, whose masks allow one action, do nothing. After 100 steps a battle is cut."""
        idle = {name: int(np.argmax(mask)) for name, mask in self._masks.items()}
        self._random, self._seen, self._masks, self._battle, paid, ended, won_or_lost = self._step(
            self._random, self._battle, idle | actions
        )
        cut = bool(ended["__all__"]) and not won_or_lost
        names = self.agents
        terminated = {name: bool(won_or_lost) or (not cut and bool(ended[name])) for name in names}
        share = {name: float(paid[name]) / len(self.possible_agents) for name in self.possible_agents}
        self.agents = [name for name in names if not (cut or terminated[name])]
        return self._observed(), share, terminated, dict.fromkeys(names, cut), self._infos()

    def _observed(self) -> dict[str, Any]:
        return {name: np.asarray(self._seen[name]) for name in self.possible_agents}

    def _infos(self) -> dict[str, Any]:
        return {name: {"action_mask": np.asarray(mask)} for name, mask in self._masks.items()}

    def render(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Release nothing."""


def battle(scenario: str = "3m", render_mode: str | None = None) -> TeamEnv:
    """Make a battle whose learners see the global state."""
    return TeamEnv(Battle(scenario), state=True)


MADE: dict[str, Any] = {"TMaze4-v0": tmaze, "Lock4-v0": lock, "MemoryChain-v0": Chain, "Smax3m-v0": battle}
for name, entry_point in MADE.items():
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point)
for number in range(1_000):  # the deep sea, with which action means right drawn from that number
    gymnasium.register(f"DeepSea{number}-v0", "sharpwave.envs.small_tasks:DeepSea", kwargs={"mapping": number})
    gymnasium.register(
        f"DeepSea10x{number}-v0", "sharpwave.envs.small_tasks:DeepSea", kwargs={"mapping": number, "size": 10}
    )
