"""A person at the keyboard, who sees the environment in a window."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Discrete

from sharpwave.extras import install
from sharpwave.training.setup import Env

MIN_SIDE = 480
"""Pixels of the window's shorter side, at least; small pictures are enlarged."""
POLL_MS = 10
"""Milliseconds between looks at the keyboard while the environment waits for a key."""
NO_DISPLAYS = ("dummy", "offscreen")
"""Drivers that SDL falls back to where there is no display."""


class Keyboard:
    """Player at the keyboard, in a window of its own, until the window is closed or Escape is pressed.

    Atari games run in real time, with arrows and space. Other environments wait: a number key is an action.

    Args:
        env: a vector of one environment, made to be rendered.
    Raises:
        ValueError: no pygame, no display, no pictures, or actions that no keys can name.
    """

    def __init__(self, env: Env) -> None:
        self._pygame = pygame = _pygame()
        self._env = env
        space: Any = env.single_action_space
        names: tuple[str, ...] | None = getattr(env, "action_names", None)
        if not isinstance(space, Discrete) or (names is None and space.n > 10):
            raise ValueError(f"--keyboard: actions are {space}, expected at most 10 discrete ones; use --script")
        self._in_real_time = names is not None
        self._start, self._dtype = int(space.start), space.dtype
        self._held: dict[frozenset[str], int] = (
            {} if names is None else {_directions(name): index for index, name in enumerate(names)}
        )
        self._keys = {
            pygame.K_UP: "UP", pygame.K_DOWN: "DOWN", pygame.K_LEFT: "LEFT", pygame.K_RIGHT: "RIGHT",
            pygame.K_SPACE: "FIRE",
        }  # fmt: skip
        self._numbers = {pygame.K_0 + number: number for number in range(int(space.n))}
        self._pressed: set[str] = set()
        self._clock = pygame.time.Clock()
        self._fps = int(env.metadata.get("render_fps", 30))
        self._screen: Any = None

    @property
    def help(self) -> str:
        """Keys, as a sentence."""
        if self._in_real_time:
            return "Arrows move, space fires, Escape ends the recording."
        keys = f"0 to {len(self._numbers) - 1}"
        return f"Keys {keys} are the actions; the environment waits for one. Escape ends the recording."

    def act(self, obs: Any) -> npt.NDArray[Any]:
        """Show the picture and return the action of the keys held, or of the next number key.

        Raises:
            StopIteration: the window was closed.
        """
        self._show()
        if self._in_real_time:
            self._clock.tick(self._fps)
            self._events()
            known = [keys for keys in self._held if keys <= self._pressed]
            chosen = self._held[max(known, key=len)] if known else 0
        else:
            while (number := self._events()) is None:
                self._pygame.time.wait(POLL_MS)
            chosen = number
        return np.array([chosen + self._start], self._dtype)

    def observe(self, action: npt.NDArray[Any], reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_]) -> None:
        """Do nothing: a person sees the picture."""

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()

    def _show(self) -> None:
        pygame = self._pygame
        pictures: Any = self._env.render()
        if pictures is None or pictures[0] is None:
            raise ValueError("--keyboard: the environment has no pictures to show; use --script")
        picture = pygame.surfarray.make_surface(np.swapaxes(pictures[0], 0, 1))
        if self._screen is None:
            zoom = max(1, -(-MIN_SIDE // min(picture.get_size())))
            size = min(zoom * picture.get_width(), 4 * MIN_SIDE), min(zoom * picture.get_height(), 2 * MIN_SIDE)
            self._screen = pygame.display.set_mode(size)
            pygame.display.set_caption("sharpwave record")
        pygame.transform.scale(picture, self._screen.get_size(), self._screen)
        pygame.display.flip()

    def _events(self) -> int | None:
        """Follow the keys; return the last number that was pressed.  Raises: StopIteration: the window was closed."""
        pygame, number = self._pygame, None
        for event in pygame.event.get():
            if event.type == pygame.QUIT or (event.type == pygame.KEYDOWN and event.key == pygame.K_ESCAPE):
                raise StopIteration
            if event.type == pygame.KEYDOWN:
                number = self._numbers.get(event.key, number)
                self._pressed |= {self._keys[event.key]} if event.key in self._keys else set()
            elif event.type == pygame.KEYUP:
                self._pressed.discard(self._keys.get(event.key, ""))
        return number


def _directions(action: str) -> frozenset[str]:
    """Return the keys of an Atari action: "UPRIGHTFIRE" -> UP, RIGHT, FIRE; "NOOP" -> none."""
    return frozenset(key for key in ("UP", "DOWN", "LEFT", "RIGHT", "FIRE") if key in action)


def _pygame() -> ModuleType:
    """Import pygame and open its display.  Raises: ValueError: it is not installed, or there is no display."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import pygame
    except ModuleNotFoundError as error:
        raise ValueError(f"--keyboard: needs pygame ({install('train')}); or use --script or --policy") from error
    asked = os.environ.get("SDL_VIDEODRIVER")
    try:
        pygame.display.init()
        driver = pygame.display.get_driver()
    except pygame.error as error:
        raise ValueError(f"--keyboard: there is no display here ({error}); use --script or --policy") from error
    if asked is None and driver in NO_DISPLAYS:
        pygame.display.quit()
        raise ValueError("--keyboard: there is no display here; use --script or --policy")
    return pygame
