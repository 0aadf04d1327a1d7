"""The flow of training on one screen: act, step and record, learn at the ratio, tell what happened."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil
import torch

import sharpwave as sw
from sharpwave.agents.dqn import DQN
from sharpwave.agents.exploration import epsilon_ladder, linear_schedule
from sharpwave.agents.networks import FrameInputs
from sharpwave.training.callbacks import Callback, Metrics
from sharpwave.training.episodes import Episodes, running_mean
from sharpwave.training.recipes import Recipe
from sharpwave.training.setup import Env

STANDARD_FRAMES = 2048
"""Observations of the warm-up over which their mean and spread are measured."""


def train(
    recipe: Recipe,
    env: Env,
    agent: DQN,
    store: sw.Store,
    replay: Any,
    callbacks: Sequence[Callback] = (),
    interrupted: Callable[[], str | None] = lambda: None,
) -> Metrics:
    """Train ``agent`` until the recipe's reward or steps are reached, or ``interrupted`` gives a reason.

    Returns:
        the last report, with ``reason``: why it ended.
    """
    recorded = sw.Recorder(env, store)
    rng = np.random.default_rng(recipe.seed)
    episodes, progress = Episodes(recipe.num_envs), Progress(recipe)
    reason: str | None = None
    obs, _ = recorded.reset(seed=recipe.seed)
    while reason is None:
        epsilon = linear_schedule(progress.steps, recipe.epsilon_start, recipe.epsilon_end, recipe.epsilon_steps)
        action = agent.act(obs, epsilon_ladder(epsilon, recipe.num_envs, recipe.epsilon_ladder), rng)
        obs, reward, terminated, truncated, infos = recorded.step(action)
        progress.steps += recipe.num_envs

        while progress.updates < progress.updates_due and len(replay):
            beta = linear_schedule(progress.steps, recipe.beta_start, recipe.beta_end, recipe.beta_steps)
            if progress.updates == 0 and recipe.standardize and isinstance(agent.inputs, FrameInputs):
                agent.inputs.standardize(replay.sample(STANDARD_FRAMES).torch(agent.device).obs)
            batch = replay.sample(recipe.batch_size, beta=beta if recipe.prioritized else None)
            learned = agent.learn(batch.torch(agent.device))
            if recipe.prioritized:
                replay.update_priorities(batch.ids, learned.td_errors.cpu().numpy())
            progress.updates += 1
            progress.losses.append(learned.loss)
        if recipe.target_tau == 0 and progress.passed(recipe.target_every):
            agent.update_target()

        for episode in episodes.add(infos.get("unclipped_reward", reward), terminated | truncated):
            for callback in callbacks:
                callback.on_episode(progress.of_episode(episode.reward, episode.steps, episodes))
        if episodes.reached(recipe.stop_reward):
            reason = f"the mean of 100 episodes reached {recipe.stop_reward:g}"
        elif progress.steps >= recipe.steps:
            reason = f"the limit of {recipe.steps:,} steps"
        else:
            reason = interrupted()
        if progress.passed(recipe.report_every) or reason is not None:
            metrics = progress.report(epsilon, episodes, store)
            for callback in callbacks:
                callback.on_report(metrics)
    return {**metrics, "reason": reason}


class Progress:
    """How far a run is, and how fast.

    Attributes:
        steps: environment steps.  updates: gradient steps.  losses: of the updates since the last report.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.steps = self.updates = 0
        self.losses: list[torch.Tensor] = []
        self._avg_loss: float | None = None
        self._started = time.perf_counter()
        # Time and steps of the last reports: the speed shown is that of the last ten periods.
        self._marks: deque[tuple[float, int]] = deque([(self._started, 0)], maxlen=11)
        self._process = psutil.Process()

    @property
    def updates_due(self) -> int:
        """Updates that the steps so far call for."""
        return max(0, self.steps - self.recipe.warmup_steps) // self.recipe.update_every

    def passed(self, period: int) -> bool:
        """Whether the last step of the environments reached or passed a multiple of ``period`` steps."""
        return self.steps // period > (self.steps - self.recipe.num_envs) // period

    def of_episode(self, reward: float, steps: int, episodes: Episodes) -> Metrics:
        """What is told about an episode that has ended. ``episode_steps`` is its own length, ``steps`` the run's."""
        return {
            "steps": self.steps,
            "minutes": (time.perf_counter() - self._started) / 60,
            "reward": reward,
            "episode_steps": steps,
            "avg_reward": episodes.avg_reward,
            "mean_reward": episodes.mean_reward,
            "episodes": episodes.count,
        }

    def report(self, epsilon: float, episodes: Episodes, store: sw.Store) -> Metrics:
        """What is told about the run; empties ``losses``."""
        now = time.perf_counter()
        losses = torch.stack(self.losses).tolist() if self.losses else []  # one transfer from the device for all
        self.losses.clear()
        for loss in losses:
            self._avg_loss = running_mean(self._avg_loss, loss)
        then, steps_then = self._marks[0]
        self._marks.append((now, self.steps))
        avg_fps = (self.steps - steps_then) / max(now - then, 1e-9)
        stats = store.stats()
        return {
            "steps": self.steps,
            "minutes": (now - self._started) / 60,
            "episodes": episodes.count,
            "updates": self.updates,
            "mean_reward": episodes.mean_reward,
            "avg_reward": episodes.avg_reward,
            "loss": losses[-1] if losses else None,
            "avg_loss": self._avg_loss,
            "epsilon": epsilon,
            "avg_fps": avg_fps,
            "seconds_left": (self.recipe.steps - self.steps) / max(avg_fps, 1e-9),
            "replay_steps": len(store),
            "replay_bytes": stats["total_bytes"],
            "bytes_per_step": stats["bytes_per_step"],
            "process_bytes": self._process.memory_info().rss,
        }
