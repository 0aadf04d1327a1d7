"""Atari games as vectors of frame stacks. ale-py steps, shrinks and stacks in C++; this module crops."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

SCREEN_HEIGHT, SCREEN_WIDTH = 210, 160


@cache
def games() -> tuple[str, ...]:
    """List the names of the games that come with ale-py."""
    return tuple(roms.get_all_rom_ids())


@dataclass(frozen=True)
class AtariSettings:
    """Settings of a game: its observations, actions and rewards.

    Attributes:
        height, width: size of a frame in pixels, after cropping.
        crop: first line of the screen's 210 that is kept, and the line after the last.
        stack: frames in an observation, the newest last; after a reset the older ones are zeros.
        actions: names of the agent's actions ("NOOP", "RIGHT"...); empty: all of the game's.
        clip_rewards: keep only a reward's sign; ``infos["unclipped_reward"]`` is the game's own.
        frame_skip: emulator frames per agent step.
        sticky: probability that the emulator repeats the last action instead.
        max_episode_frames: emulator frames until an episode is truncated.
    """

    height: int = 84
    width: int = 84
    crop: tuple[int, int] = (0, SCREEN_HEIGHT)
    stack: int = 4
    actions: tuple[str, ...] = ()
    clip_rewards: bool = True
    frame_skip: int = 4
    sticky: float = 0.0
    max_episode_frames: int = 108_000

    def __post_init__(self) -> None:
        top, bottom = self.crop
        if not 0 <= top < bottom <= SCREEN_HEIGHT:
            raise ValueError(
                f"crop: got {top}:{bottom}, expected lines within 0:{SCREEN_HEIGHT}, the first before the last"
            )
        for name, value, minimum in (
            ("height", self.height, 8),
            ("width", self.width, 8),
            ("stack", self.stack, 1),
            ("frame_skip", self.frame_skip, 1),
            ("max_episode_frames", self.max_episode_frames, 1),
        ):
            if value < minimum:
                raise ValueError(f"{name}: got {value}, expected at least {minimum}")
        if not 0.0 <= self.sticky < 1.0:
            raise ValueError(f"sticky: got {self.sticky}, expected a probability below 1")


class AtariFrames(VectorEnv[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[Any]]):
    """Vector of ``num_envs`` copies of a game; observations uint8 [N, stack, H, W], valid until the next step.

    An episode's end and the next's start come in one step: ``infos["final_obs"]`` uint8 [N, stack, H, W] has
    the last observations where ``terminated`` or ``truncated``. ``infos["unclipped_reward"]`` is always there.

    Args:
        game: one of ``games``.
        render: also step a copy in colour with the same seed and actions, whose screens ``render`` returns.
    Raises:
        ValueError: an unknown game, or an action that it does not have.
    """

    def __init__(self, game: str, num_envs: int, settings: AtariSettings, *, render: bool = False) -> None:
        if game not in games():
            raise ValueError(f"env: got {game!r}, expected an Atari game of ale-py; sharpwave.envs.games() lists them")
        top, bottom = settings.crop
        # The whole screen is shrunk so that the kept lines have the wanted height; cropping is then a slice.
        scale = settings.height / (bottom - top)
        shrunk = max(round(SCREEN_HEIGHT * scale), settings.height)
        first = min(round(top * scale), shrunk - settings.height)
        self._rows = slice(first, first + settings.height)
        common: dict[str, Any] = {
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "frameskip": settings.frame_skip,
            "repeat_action_probability": settings.sticky,
            "max_num_frames_per_episode": settings.max_episode_frames,
            "reward_clipping": False,
        }
        self._env = AtariVectorEnv(
            game, num_envs, img_height=shrunk, img_width=settings.width, stack_num=settings.stack, **common
        )
        self._twin: AtariVectorEnv | None = None
        self._screens: npt.NDArray[np.uint8] | None = None
        if render:
            self._twin = AtariVectorEnv(
                game, num_envs, img_height=SCREEN_HEIGHT, img_width=SCREEN_WIDTH, stack_num=1, grayscale=False, **common
            )
        known = [action.name for action in self._env.ale.get_action_set()]
        for name in settings.actions:
            if name not in known:
                raise ValueError(f"actions: {game} has no {name!r}, expected some of {','.join(known)}")
        self.action_names = settings.actions or tuple(known)
        self._actions = np.array([known.index(name) for name in self.action_names], np.int64)
        self._clip = settings.clip_rewards
        self.stack_size, self.padding_type = settings.stack, "zero"  # named as in gymnasium's FrameStackObservation
        self.num_envs = num_envs
        # ale-py writes into a dict that all of its instances share, hence a copy.
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_fps": 60 // settings.frame_skip}
        self.render_mode = "rgb_array" if render else None
        self.single_observation_space = Box(0, 255, (settings.stack, settings.height, settings.width), np.uint8)
        self.single_action_space = Discrete(len(self._actions))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """Start every environment anew; environment i is seeded with ``seed + i``."""
        obs, infos = self._env.reset(seed=seed, options=options)
        if self._twin is not None:
            self._screens = self._twin.reset(seed=seed, options=options)[0][:, 0]
        return self._cropped(obs), infos

    def step(
        self, actions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """Step every environment; ``actions`` int [N] index ``action_names``."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: npt.NDArray[np.int64]) -> None:
        """Begin ``step`` in ale-py's threads, without waiting."""
        chosen = self._actions[actions]
        self._env.send(chosen)
        if self._twin is not None:
            self._twin.send(chosen)

    def step_wait(
        self,
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """Wait for the step that ``step_async`` began, and return as ``step`` does."""
        obs, reward, terminated, truncated, infos = self._env.recv()
        if self._twin is not None:
            self._screens = self._twin.recv()[0][:, 0]
        reward = reward.astype(np.float32)
        infos["unclipped_reward"] = reward
        if "final_obs" in infos:
            infos["final_obs"] = self._cropped(infos["final_obs"])
        if self._clip:
            reward = np.sign(reward)
        return self._cropped(obs), reward, terminated, truncated, infos

    def render(self) -> tuple[npt.NDArray[np.uint8], ...]:
        """Return the screens in colour, uint8 [210, 160, 3] each."""
        if self._screens is None:
            raise RuntimeError("render: make the environment with render=True and reset it first")
        return tuple(self._screens)

    def close_extras(self, **kwargs: Any) -> None:
        """Do nothing: ale-py holds only memory."""

    def _cropped(self, frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Crop frames: [N, stack, shrunk, W] -> [N, stack, H, W]."""
        return frames[:, :, self._rows]
