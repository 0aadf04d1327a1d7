"""Hindsight experience replay for Stable-Baselines3: transitions stored once, relabelled when they are sampled."""

from __future__ import annotations

import copy
import warnings
import weakref
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her import her_replay_buffer
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY, GoalSelectionStrategy

from sharpwave.arrays import Array
from sharpwave.integrations.sb3.sb3_buffer import ReplayBuffer
from sharpwave.views.hindsight import Episode, Final, Future, Goals, Hindsight

GOALS = frozenset({"achieved_goal", "desired_goal"})
STRATEGIES: dict[GoalSelectionStrategy, type[Goals]] = {
    GoalSelectionStrategy.FUTURE: Future,
    GoalSelectionStrategy.FINAL: Final,
    GoalSelectionStrategy.EPISODE: Episode,
}
SPARE_INFOS = 256
"""Infos kept for each environment beyond ``buffer_size``: evictions take whole segments, one lane at a time."""


class HerReplayBuffer(ReplayBuffer, her_replay_buffer.HerReplayBuffer):  # type: ignore[misc]
    """Replay buffer for goal environments: most of a batch's transitions get a goal that their episode achieved.

    As with SB3's, transitions of an episode can be sampled once it has ended, and ``compute_reward`` of the first
    environment gives their rewards. ``n_steps`` must be 1.

    Args:
        env: the environment, whose observations are dicts with "observation", "achieved_goal" and "desired_goal".
        n_sampled_goal: relabelled transitions for each unchanged one: a transition is relabelled with
            probability ``n / (n + 1)``.
        goal_selection_strategy: "future", "final" or "episode", or SB3's ``GoalSelectionStrategy``.
        copy_info_dict: keep each step's info, in memory, and pass ``compute_reward`` a copy; else it gets empty infos.
        frame_stack, seed, store: as for ``ReplayBuffer``, like all other arguments; goals are stored whole.

    Raises:
        ValueError, TypeError: an invalid argument.
    """

    env: VecEnv | None
    _whole = GOALS

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: VecEnv,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        **more: Any,
    ) -> None:
        if not isinstance(observation_space, spaces.Dict) or not observation_space.keys() >= GOALS:
            raise ValueError(
                f"HerReplayBuffer: observation space {observation_space}, expected a Dict with 'achieved_goal' and "
                "'desired_goal'"
            )
        strategy = goal_selection_strategy
        if isinstance(strategy, str):
            strategy = KEY_TO_GOAL_STRATEGY.get(strategy.lower(), strategy)
        if not isinstance(strategy, GoalSelectionStrategy):
            raise ValueError(
                f"HerReplayBuffer: goal_selection_strategy={goal_selection_strategy!r}, expected one of "
                f"{list(KEY_TO_GOAL_STRATEGY)}"
            )
        if copy_info_dict and more.get("disk") is not None:
            raise ValueError(
                "HerReplayBuffer: copy_info_dict=True with disk=, expected one of them: an info may hold any Python "
                "object, and a store on disk holds none. Put the values that the reward needs into the observation"
            )
        self.env, self.goal_selection_strategy = env, strategy
        self.n_sampled_goal, self.copy_info_dict = n_sampled_goal, copy_info_dict
        super().__init__(
            buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage,
            handle_timeout_termination, **more,
        )  # fmt: skip
        self.her_ratio = 1 - 1 / (n_sampled_goal + 1)

    def _begin(self) -> None:
        super()._begin()
        rows = self.buffer_size + SPARE_INFOS if self.copy_info_dict else 0
        self._infos = np.empty((self.n_envs, rows), object)  # by the step's number
        self._steps = np.zeros(self.n_envs, np.int64)  # number of stored steps, by environment

    def _new_view(self, n_steps: int) -> Hindsight:
        return _Relabelled(self, n_steps)

    def add(
        self, obs: Any, next_obs: Any, action: Array, reward: Array, done: Array, infos: list[dict[str, Any]]
    ) -> None:
        """Add a transition of each environment, as SB3 does after every step."""
        super().add(obs, next_obs, action, reward, done, infos)
        if self.copy_info_dict:
            for lane in np.flatnonzero(self.transitions.stored_last).tolist():
                self._infos[lane, self._steps[lane] % self._infos.shape[1]] = infos[lane]
                self._steps[lane] += 1

    def compute_rewards(self, achieved: Array, desired: Array, infos: list[dict[str, Any]]) -> Array:
        """Return ``compute_reward`` of the first environment: float [n].  Raises: RuntimeError: no environment."""
        if self.env is None:
            raise RuntimeError("HerReplayBuffer: no environment to compute rewards with; call set_env(env) first")
        found = self.env.env_method("compute_reward", achieved, desired, infos, indices=[0])[0]
        return np.asarray(found, np.float32).reshape(len(achieved))

    def infos_of(self, lanes: Array, steps: Array) -> list[dict[str, Any]]:
        """Return copies of steps' infos by their number in each lane [n]; empty infos if none are kept."""
        if not self.copy_info_dict:
            return [{} for _ in lanes]
        before = self._steps - self.transitions.store.lane_steps  # if observations were moved to another store
        rows = (steps + before[lanes]) % self._infos.shape[1]
        return [copy.deepcopy(info) for info in self._infos[lanes, rows]]

    @property
    def ep_start(self) -> Array:
        """Places at which the ended episodes of SB3's places begin: int64 [buffer_size, n_envs]."""
        return self._ended()[0]

    @property
    def ep_length(self) -> Array:
        """Lengths of the episodes of SB3's places, 0 for unfinished ones: int64 [buffer_size, n_envs]."""
        return self._ended()[1]

    @property
    def _current_ep_start(self) -> Array:
        """Places at which the unfinished episodes begin: int64 [n_envs]."""
        return self._ended()[2]

    def _ended(self) -> tuple[Array, Array, Array]:
        count = min(self.transitions.added, self.buffer_size)
        order = (self.pos - count + np.arange(count)) % self.buffer_size
        start, length = np.zeros((2, self.buffer_size, self.n_envs), np.int64)
        now = np.empty(self.n_envs, np.int64)
        dones = self.dones[order] > 0
        for lane in range(self.n_envs):
            bounds = np.concatenate([[0], np.flatnonzero(dones[:, lane]) + 1])
            now[lane] = (self.pos - count + bounds[-1]) % self.buffer_size
            done, each = order[: bounds[-1]], np.diff(bounds)
            start[done, lane] = np.repeat(order[bounds[:-1] % max(count, 1)], each)
            length[done, lane] = np.repeat(each, each)
        return start, length, now

    def truncate_last_trajectory(self) -> None:
        """End the unfinished episodes, as by a time limit; call it after loading if other episodes follow."""
        if self.transitions.end_episodes():
            warnings.warn(
                "The last trajectory in the replay buffer will be truncated.\n"
                "If you are in the same episode as when the replay buffer was saved,\n"
                "you should use `truncate_last_trajectory=False` to avoid that issue.",
                stacklevel=2,
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the environment, which ``set_env`` gives again."""
        state = super().__getstate__()
        del state["env"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        infos, steps = state.pop("_infos"), state.pop("_steps")
        super().__setstate__(state)
        self._infos, self._steps, self.env = infos, steps, None


class _Relabelled(Hindsight):
    """View of a buffer that does not keep it alive."""

    def __init__(self, buffer: HerReplayBuffer, n_steps: int) -> None:
        self._buffer = of = weakref.ref(buffer)
        strategy = STRATEGIES[buffer.goal_selection_strategy]
        super().__init__(
            strategy(k=buffer.n_sampled_goal, reward_fn=lambda *args: _held(of).compute_rewards(*args)),
            n_steps,
            buffer.gamma,
        )

    def info(self, lane: Array, step: Array, fields: dict[str, Array]) -> list[dict[str, Any]]:
        return _held(self._buffer).infos_of(lane, step)


def _held(reference: weakref.ref[HerReplayBuffer]) -> HerReplayBuffer:
    buffer = reference()
    assert buffer is not None  # the sampling code holds it
    return buffer
