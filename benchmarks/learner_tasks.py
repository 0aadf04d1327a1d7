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


MADE: dict[str, Any] = {"TMaze4-v0": tmaze, "Lock4-v0": lock, "MemoryChain-v0": Chain}
for name, entry_point in MADE.items():
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point)
for number in range(1_000):  # the deep sea, with which action means right drawn from that number
    gymnasium.register(f"DeepSea{number}-v0", "sharpwave.envs.small_tasks:DeepSea", kwargs={"mapping": number})
    gymnasium.register(
        f"DeepSea10x{number}-v0", "sharpwave.envs.small_tasks:DeepSea", kwargs={"mapping": number, "size": 10}
    )
