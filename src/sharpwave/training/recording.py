"""Recording of episodes into an ordinary store: by a trained policy, a script, or a person at the keyboard."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Discrete

import sharpwave as sw
from sharpwave import envs
from sharpwave.agents.protocol import Agent
from sharpwave.extras import install
from sharpwave.training.scores import EpisodeScore, EpisodeSums, game_result, sometimes_random
from sharpwave.training.setup import Env

MAX_STEPS = 1 << 24
"""Limit of the steps of a recording."""
MIN_SIDE = 480
"""Pixels of the window's shorter side, at least; small pictures are enlarged."""
POLL_MS = 10
"""Milliseconds between looks at the keyboard while the environment waits for a key."""
NO_DISPLAYS = ("dummy", "offscreen")
"""Drivers that SDL falls back to where there is no display."""


class Player(Protocol):
    """Chooser of the actions of a vector of one environment."""

    def act(self, obs: Any) -> Any:
        """Return the actions [1, ...] for observations [1, ...].  Raises: StopIteration: it plays no more."""

    def observe(self, action: npt.NDArray[Any], reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_]) -> None:
        """Take note of the outcome: actions made [1, ...], maybe others than those of ``act``, rewards and ends [1]."""


class PolicyPlayer:
    """Player that acts by a trained agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._state = agent, agent.begin(1)

    def act(self, obs: Any) -> Any:
        acted = self._agent.act(obs, self._state, 0, explore=False)
        self._state = acted.state
        return acted.action

    def observe(self, action: npt.NDArray[Any], reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_]) -> None:
        self._state = self._agent.observe(self._agent.replaced(self._state, action), reward, ended)


Policy = Callable[[Any], Any]
"""One episode's policy: an observation -> an action."""


class ScriptPlayer:
    """Player that acts by a function of a Python file.

    Args:
        begin: called at each episode's start with a ``numpy.random.Generator``; returns the episode's policy, a
            function of an observation, which may keep what it has seen.
        space: action space of one environment.
        what: the script as the user named it, for errors.
    """

    def __init__(self, begin: Callable[[np.random.Generator], Policy], space: Any, seed: int, what: str) -> None:
        self._begin, self._space, self._what = begin, space, what
        self._rng = np.random.default_rng(seed)
        self._policy: Policy | None = None

    def act(self, obs: Any) -> Any:
        """Return the script's action.  Raises: ValueError: it is not one of the environment."""
        if self._policy is None:
            self._policy = self._begin(self._rng)
            if not callable(self._policy):
                raise ValueError(
                    f"--script: {self._what}(rng) returned {self._policy!r}, expected an episode's policy, a function "
                    "of an observation that returns an action"
                )
        action = self._policy({k: v[0] for k, v in obs.items()} if isinstance(obs, dict) else obs[0])
        try:
            chosen = np.asarray(action, self._space.dtype)
            valid = np.array_equal(chosen, action) and self._space.contains(chosen[()])
        except (TypeError, ValueError, OverflowError):
            valid = False
        if not valid:
            raise ValueError(f"--script: {self._what} chose {action!r}, expected an action of {self._space}")
        return chosen[None]

    def observe(self, action: npt.NDArray[Any], reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_]) -> None:
        if ended[0]:
            self._policy = None


def load_script(text: str) -> Callable[[np.random.Generator], Policy]:
    """Run a Python file and return one of its functions: "player.py:expert".  Raises: ValueError."""
    file, _, name = text.rpartition(":")
    if not file or not name.isidentifier():
        raise ValueError(f"--script: got {text!r}, expected FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file) if Path(file).is_file() else None
    if spec is None or spec.loader is None:
        raise ValueError(f"--script: {file!r} is no Python file; expected FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Any = getattr(module, name, None)
    if not callable(found):
        raise ValueError(f"--script: {file!r} has no function {name!r}")
    begin: Callable[[np.random.Generator], Policy] = found
    return begin


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


def check_new(folder: Path) -> None:
    """Check that a recording can be written to ``folder``: it is not there yet, or empty.  Raises: ValueError."""
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ValueError(
            f"--out: {str(folder)!r} exists and is not empty; a recording needs a folder of its own, so give another "
            "name"
        )
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"--out: the folder {str(folder.absolute().parent)!r} does not exist; make it first")


class Recording(NamedTuple):
    """Outcome of a recording: its whole episodes, their steps, and their bytes on disk."""

    episodes: list[EpisodeScore]
    steps: int
    nbytes: int


def record(
    env: Env,
    player: Player,
    folder: Path,
    *,
    episodes: int,
    seed: int,
    epsilon: float = 0.0,
    about: Mapping[str, Any] = MappingProxyType({}),
    tell: Callable[[EpisodeScore], None] = lambda episode: None,
    interrupted: Callable[[], str | None] = lambda: None,
) -> Recording:
    """Play episodes and write them to ``folder``, a checkpoint of a store with the environment's own fields.

    Steps are written however the recording ends. Readers take its whole episodes; the steps of an interrupted one are
    not learned from.

    Args:
        env: a vector of one environment.
        folder: checked by ``check_new`` before; not written to if no episode ended.
        epsilon: probability of a random action.
        about: annotations of the store.
        tell: called with each episode that ended.
        interrupted: asked after each step whether to end.
    Raises:
        ValueError: the player chose no action of the environment.
    """
    rng, sums, done = np.random.default_rng([seed, 1]), EpisodeSums(1), list[EpisodeScore]()
    with sw.Store(envs.step_spec(env), capacity=MAX_STEPS, seed=seed) as store:
        store.annotate(None, about)
        recorder = sw.Recorder(env, store)
        try:
            obs, _ = recorder.reset(seed=seed)
            while len(done) < episodes and interrupted() is None and len(store) < MAX_STEPS - 1:
                try:
                    action = sometimes_random(player.act(obs), obs, env.single_action_space, epsilon, rng)
                except StopIteration:
                    break
                obs, reward, terminated, truncated, infos = recorder.step(action)
                ended = terminated | truncated
                player.observe(action, reward, ended)
                for episode in sums.add(*game_result(reward, ended, infos)):
                    done.append(episode)
                    tell(episode)
        finally:
            if done:
                store.checkpoint(folder)
    nbytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if done else 0
    return Recording(done, sum(one.steps for one in done), nbytes)
