"""Tasks of memory for agents without any: stacks of four observations, and a DQN with demonstrations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np

from sharpwave.agents.demonstrations import BlendedSettings
from sharpwave.agents.dqn import DQN, DQNSettings
from sharpwave.agents.registry import register
from sharpwave.configuration import setting
from sharpwave.envs.memory_tasks import Lock, TMaze
from sharpwave.training import recording, setup
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import Recipe

STACK, MEMORY = 4, "Replay memory"


def tmaze(**options: Any) -> Any:
    """Make a T-maze whose observation is a stack."""
    return gymnasium.wrappers.FrameStackObservation(TMaze(**options), STACK, padding_type="zero")


def lock(**options: Any) -> Any:
    """Make a lock whose observation is a stack."""
    return gymnasium.wrappers.FrameStackObservation(Lock(**options), STACK, padding_type="zero")


for name, entry_point in (("TMaze4-v0", tmaze), ("Lock4-v0", lock)):
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point)


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
        return BlendedSettings(
            settings.replay, settings.demonstrations, settings.demonstration_share, lambda episode: {}
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
        env = setup.environments(recipe, 1)
        player = recording.ScriptPlayer(expert, env.single_action_space, recipe.training.seed, "expert")
        recording.record(env, player, folder, episodes=episodes, seed=recipe.training.seed)
        env.close()
    return folder
