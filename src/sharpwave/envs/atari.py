"""Atari games as vectors of frame stacks. ale-py steps, shrinks and stacks in C++; this module crops, and ends
episodes at lost lives if wanted."""

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
    return tuple(roms.get_all_rom_ids())


@dataclass(frozen=True)
class AtariSettings:
    """Settings of a game: its observations, actions and rewards.

    Attributes:
        height, width: size of a frame in pixels, after cropping.
        crop: first of the screen's 210 lines to keep, and the line after the last.
        stack: frames in an observation, the newest last; after a reset the older ones are zeros.
        rgb: keep the colors: frames are [H, W, 3] instead of gray [H, W].
        max_pool: a frame is the pixel-wise maximum of the emulator's last two, since sprites may flicker.
        actions: names of the agent's actions ("NOOP", "RIGHT"...); empty: all of the game's, or of the console's.
        full_actions: the console's 18 actions instead of the actions with an effect in the game.
        clip_rewards: keep only a reward's sign; ``infos["unclipped_reward"]`` is the game's own.
        frame_skip: emulator frames per agent step.
        sticky: probability that the emulator repeats the last action instead.
        noop_max: a game begins with a random number of no-ops, fewer than this.
        fire_reset: a game begins with FIRE if it has that action.
        life_loss_ends: a lost life terminates the episode, while the game continues: the next episode's first frame is
            the last one of the lost life. ``infos["game_ended"]`` marks games that have ended.
        max_episode_frames: emulator frames until a game is truncated.
    """

    height: int = 84
    width: int = 84
    crop: tuple[int, int] = (0, SCREEN_HEIGHT)
    stack: int = 4
    rgb: bool = False
    max_pool: bool = True
    actions: tuple[str, ...] = ()
    full_actions: bool = False
    clip_rewards: bool = True
    frame_skip: int = 4
    sticky: float = 0.0
    noop_max: int = 30
    fire_reset: bool = True
    life_loss_ends: bool = False
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
            ("noop_max", self.noop_max, 0),
            ("max_episode_frames", self.max_episode_frames, 1),
        ):
            if value < minimum:
                raise ValueError(f"{name}: got {value}, expected at least {minimum}")
        if not 0.0 <= self.sticky < 1.0:
            raise ValueError(f"sticky: got {self.sticky}, expected a probability below 1")


class AtariFrames(VectorEnv[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[Any]]):
    """Vector of ``num_envs`` copies of a game; observations uint8 [N, stack, H, W], or [N, stack, H, W, 3] with
    colors, valid until the next step.

    An episode's end and the next's start come in one step: ``infos["final_obs"]``, shaped as the observations, has
    the last ones where ``terminated`` or ``truncated``. ``infos["unclipped_reward"]`` is always set.

    Args:
        game: one of ``games``.
        render: also step a copy in color with the same seed and actions, whose screens ``render`` returns.
    Raises:
        ValueError: an unknown game, or an action that it does not have.
    """

    def __init__(self, game: str, num_envs: int, settings: AtariSettings, *, render: bool = False) -> None:
        if game not in games():
            raise ValueError(f"env: got {game!r}, expected an Atari game of ale-py; sharpwave.envs.games() lists them")
        top, bottom = settings.crop
        # Shrink the whole screen so that the kept lines have the wanted height; cropping is then a slice.
        scale = settings.height / (bottom - top)
        shrunk = max(round(SCREEN_HEIGHT * scale), settings.height)
        first = min(round(top * scale), shrunk - settings.height)
        self._rows = slice(first, first + settings.height)
        common: dict[str, Any] = {
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "frameskip": settings.frame_skip,
            "repeat_action_probability": settings.sticky,
            "max_num_frames_per_episode": settings.max_episode_frames,
            "maxpool": settings.max_pool,
            "full_action_space": settings.full_actions,
            "noop_max": settings.noop_max,
            "use_fire_reset": settings.fire_reset,
            "reward_clipping": False,
        }
        self._env = AtariVectorEnv(
            game,
            num_envs,
            img_height=shrunk,
            img_width=settings.width,
            stack_num=settings.stack,
            grayscale=not settings.rgb,
            **common,
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
                raise ValueError(f"--actions: {game} has no {name!r}, expected some of {','.join(known)}")
        self.action_names = settings.actions or tuple(known)
        self._actions = np.array([known.index(name) for name in self.action_names], np.int64)
        self._clip = settings.clip_rewards
        self._lives = _Lives(num_envs, settings.stack) if settings.life_loss_ends else None
        self.stack_size, self.padding_type = settings.stack, "zero"  # named as in gymnasium's FrameStackObservation
        self.num_envs = num_envs
        # ale-py writes into a dict that all of its instances share, hence a copy.
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_fps": 60 // settings.frame_skip}
        self.render_mode = "rgb_array" if render else None
        frame = (settings.height, settings.width, 3) if settings.rgb else (settings.height, settings.width)
        self.single_observation_space = Box(0, 255, (settings.stack, *frame), np.uint8)
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
        frames = self._cropped(obs)
        if self._lives is not None:
            self._lives.reset(frames, infos["lives"], (options or {}).get("reset_mask"))
        return frames, infos

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
        """Wait for the step that ``step_async`` began; return the results of ``step``."""
        obs, reward, terminated, truncated, infos = self._env.recv()
        if self._twin is not None:
            self._screens = self._twin.recv()[0][:, 0]
        reward = reward.astype(np.float32)
        infos["unclipped_reward"] = reward
        if "final_obs" in infos:
            infos["final_obs"] = self._cropped(infos["final_obs"])
        if self._clip:
            reward = np.sign(reward)
        if self._lives is not None:
            return self._lives.step(self._cropped(obs), reward, terminated, truncated, infos)
        return self._cropped(obs), reward, terminated, truncated, infos

    def render(self) -> tuple[npt.NDArray[np.uint8], ...]:
        """Return the screens in color, uint8 [210, 160, 3] each."""
        if self._screens is None:
            raise RuntimeError("render: make the environment with render=True and reset it first")
        return tuple(self._screens)

    def close_extras(self, **kwargs: Any) -> None:
        """Do nothing: ale-py holds only memory."""

    def _cropped(self, frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Crop frames: [N, stack, shrunk, W, ...] -> [N, stack, H, W, ...]."""
        return frames[:, :, self._rows]


class _Lives:
    """Ends of episodes at lost lives, in a vector whose games continue.

    A life that was lost with the game has ended anyway. Some games show 0 lives for a few frames before they end; as
    in ale-py, that is no additional end. The stack of a new life holds zeros in place of the lost one's frames.
    """

    def __init__(self, num_envs: int, stack: int) -> None:
        self._left = np.zeros(num_envs, np.int64)
        self._stack = stack
        self._older = np.zeros(num_envs, np.int64)  # frames of each stack that belong to the lost life

    def reset(
        self, obs: npt.NDArray[np.uint8], lives: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Begin a game in every environment, or in those of ``mask``; change ``obs`` of the others."""
        begun = slice(None) if mask is None else mask
        self._left[begun] = lives[begun]
        self._older[begun] = 0
        self._hide(obs)

    def step(
        self,
        obs: npt.NDArray[np.uint8],
        reward: npt.NDArray[Any],
        terminated: npt.NDArray[Any],
        truncated: npt.NDArray[Any],
        infos: dict[str, Any],
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """Return a step's outcome with lost lives as ends; change ``obs`` and ``infos["final_obs"]``."""
        infos["game_ended"] = over = terminated | truncated
        lives = np.asarray(infos["lives"], np.int64)
        lost = (lives < self._left) & (lives > 0) & ~over
        self._left[:] = lives
        self._older = np.maximum(self._older - 1, 0)
        final = infos.get("final_obs")
        self._hide(obs)
        if final is not None:
            self._hide(final)
        self._older[over] = 0
        if not lost.any():
            return obs, reward, terminated, truncated, infos
        if final is None:
            infos["final_obs"] = obs.copy()
        else:
            final[lost] = obs[lost]
        obs[lost, :-1] = 0
        self._older[lost] = self._stack - 1
        return obs, reward, terminated | lost, truncated, infos

    def _hide(self, stacks: npt.NDArray[np.uint8]) -> None:
        for lane in np.flatnonzero(self._older).tolist():
            stacks[lane, : self._older[lane]] = 0
