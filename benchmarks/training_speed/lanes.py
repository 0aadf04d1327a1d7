"""Environments of Pong as the textbook's loop steps them: lists in, lists out, observations as LazyFrames."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from sharpwave.envs import AtariFrames, AtariSettings
from training_speed.textbook import LazyFrames

Frame = npt.NDArray[np.uint8]


class Outcome(NamedTuple):
    """Outcome of a step: the successor ``next_state``, and ``state`` to act on, another one after an episode's end."""

    next_state: LazyFrames
    reward: float
    done: bool
    state: LazyFrames


class Lanes(Protocol):
    """Several environments that are stepped together."""

    num_actions: int
    stack: int

    def reset(self, seed: int) -> list[LazyFrames]:
        """Begin new episodes in all environments."""

    def step(self, actions: Sequence[int]) -> list[Outcome]:
        """Step each environment."""


def make_lanes(kind: str, envs: int) -> Lanes:
    """Make environments of a kind: "gymnasium" (AtariPreprocessing and a stack of 4), "cheap" (``CheapPong`` and a
    stack of 2) or "vector" (ale-py's AtariVectorEnv and a stack of 4)."""
    if kind == "vector":
        return VectorLanes(envs)
    if kind == "cheap":
        return PythonLanes([CheapPong() for _ in range(envs)], stack=2)
    return PythonLanes([preprocessed() for _ in range(envs)], stack=4)


def pong(**options: Any) -> gymnasium.Env[Any, Any]:
    """Make Pong without sticky actions; importing ale-py registers it."""
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("PongNoFrameskip-v4", **options)


def preprocessed() -> gymnasium.Env[Any, Any]:
    """Make Pong with Gymnasium's wrapper: no-ops at the start, 4 frames a step, the maximum of two, 84x84."""
    from gymnasium.wrappers import AtariPreprocessing

    return AtariPreprocessing(pong())


class CheapPong(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pong whose emulator skips frames and returns the last one in grey: Pong needs no maximum of two and no no-ops."""

    def __init__(self) -> None:
        super().__init__(pong(frameskip=4, obs_type="grayscale"))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Begin an episode; its first frame is [84, 84]."""
        screen, info = self.env.reset(seed=seed, options=options)
        return _shrunk(screen), info

    def step(self, action: Any) -> tuple[Frame, Any, bool, bool, dict[str, Any]]:
        """Step the game; the frame is [84, 84]."""
        screen, reward, terminated, truncated, info = self.env.step(action)
        return _shrunk(screen), reward, terminated, truncated, info


def _shrunk(screen: Frame) -> Frame:
    import cv2

    return np.asarray(cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA), np.uint8)


class PythonLanes:
    """Lanes of single environments, stepped one after the other.

    Gymnasium's FrameStackObservation copies whole stacks; here neighbouring observations share their frames.
    """

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], stack: int) -> None:
        self._envs = envs
        self.stack = stack
        self.num_actions = int(getattr(envs[0].action_space, "n"))  # noqa: B009
        self._frames: list[deque[Frame]] = [deque(maxlen=stack) for _ in envs]

    def reset(self, seed: int) -> list[LazyFrames]:
        """Begin new episodes; environment i is seeded with ``seed + i``."""
        return [self._begin(lane, seed + lane) for lane in range(len(self._envs))]

    def step(self, actions: Sequence[int]) -> list[Outcome]:
        """Step each environment; one whose episode ends is reset in the same step."""
        outcomes = []
        for lane, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
            frame, reward, terminated, truncated, _ = env.step(action)
            self._frames[lane].append(frame)
            next_state = LazyFrames(self._frames[lane])
            done = bool(terminated or truncated)
            outcomes.append(Outcome(next_state, float(reward), done, self._begin(lane) if done else next_state))
        return outcomes

    def _begin(self, lane: int, seed: int | None = None) -> LazyFrames:
        frame, _ = self._envs[lane].reset(seed=seed)
        self._frames[lane].extend([frame] * self.stack)
        return LazyFrames(self._frames[lane])


class VectorLanes:
    """Lanes of ale-py's AtariVectorEnv, whose C++ threads step, shrink and stack. The newest frames are copied out."""

    stack = 4

    def __init__(self, envs: int) -> None:
        self._env = AtariFrames("pong", envs, AtariSettings(stack=self.stack))
        self.num_actions = len(self._env.action_names)
        self._frames: list[deque[Frame]] = [deque(maxlen=self.stack) for _ in range(envs)]

    def reset(self, seed: int) -> list[LazyFrames]:
        """Begin new episodes; environment i is seeded with ``seed + i``."""
        obs, _ = self._env.reset(seed=seed)
        return [self._begin(lane, stack) for lane, stack in enumerate(obs)]

    def step(self, actions: Sequence[int]) -> list[Outcome]:
        """Step each environment; one whose episode ends is reset in the same step."""
        obs, reward, terminated, truncated, infos = self._env.step(np.array(actions))
        outcomes = []
        for lane, ended in enumerate(terminated | truncated):
            newest = infos["final_obs"][lane, -1] if ended else obs[lane, -1]
            self._frames[lane].append(newest.copy())
            next_state = LazyFrames(self._frames[lane])
            state = self._begin(lane, obs[lane]) if ended else next_state
            outcomes.append(Outcome(next_state, float(reward[lane]), bool(ended), state))
        return outcomes

    def _begin(self, lane: int, stack: Frame) -> LazyFrames:
        self._frames[lane].extend(frame.copy() for frame in stack)
        return LazyFrames(self._frames[lane])
