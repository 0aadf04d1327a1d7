"""Settings of environments, one class for each kind; each makes vectors of its environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sharpwave.configuration import check, setting

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from sharpwave.envs import AtariSettings

GROUP = "Environment"
MAX_ENVIRONMENTS, MAX_STACK = 1 << 16, 64
"""Limits of settings that a run's ``config.json`` may hold: environments are made before anything else is checked."""
MIN_FRAME_SIDE = 8
"""Pixels of the shorter side of an Atari frame, at least."""


@dataclass(frozen=True)
class Atari:
    """Settings of an Atari game, stepped as a vector in C++."""

    kind: ClassVar[str] = "atari"
    max_seed: ClassVar[int] = 2**31 - 2**16
    """ale-py's seeds are int32; environment i has the run's seed + i."""

    name: str = setting("pong", "Atari game: pong, breakout, ...", GROUP, flag="--env")
    num_envs: int = setting(8, "environments stepped together", GROUP, at_least=1, at_most=MAX_ENVIRONMENTS)
    frame: str = setting("84x84", "height x width of a frame, after cropping", GROUP)
    crop: str = setting("0:210", "first:last of the screen's 210 lines that are kept", GROUP)
    stack: int = setting(4, "newest frames that an observation carries", GROUP, at_least=1, at_most=MAX_STACK)
    rgb: bool = setting(False, "frames in colour, [H, W, 3]", GROUP)
    max_pool: bool = setting(True, "a frame is the brighter, pixel by pixel, of the emulator's last two", GROUP)
    actions: str = setting("", "the agent's actions, as NOOP,RIGHT,LEFT; empty: all of the game's", GROUP)
    full_actions: bool = setting(False, "all 18 actions of the console instead of the game's", GROUP)
    clip_rewards: bool = setting(True, "learn from the reward's sign only", GROUP)
    frame_skip: int = setting(4, "emulator frames an agent step", GROUP, at_least=1)
    sticky: float = setting(0.0, "probability that the last action is repeated", GROUP, at_least=0, below=1)
    noop_max: int = setting(30, "a game begins with a random number of no-ops, fewer than this", GROUP, at_least=0)
    fire_reset: bool = setting(True, "a game begins with FIRE where the game has it", GROUP)
    life_loss_ends: bool = setting(
        False, "a lost life ends the episode that is learned from; the game goes on, and scores are of games", GROUP
    )
    max_episode_frames: int = setting(108_000, "emulator frames of a game at most", GROUP, at_least=1)

    def __post_init__(self) -> None:
        check(self)
        if min(parse_size(self.frame, "--frame")) < MIN_FRAME_SIDE:
            raise ValueError(
                f"--frame: got {self.frame!r}, expected height x width of at least {MIN_FRAME_SIDE}x{MIN_FRAME_SIDE} "
                "pixels"
            )
        parse_lines(self.crop, "--crop")

    def make(self, num_envs: int | None = None, *, render: bool = False) -> VectorEnv[Any, Any, Any]:
        """Make ``num_envs`` environments; None: as many as the settings say.  Raises: ValueError: an unknown game."""
        from sharpwave.envs import games, make_env
        from sharpwave.envs.gym import known

        if self.name not in games() and known(self.name):
            raise ValueError(
                f"--env: {self.name!r} is a Gymnasium id, expected an Atari game, as pong; use sharpwave train "
                f"gymnasium --env {self.name}, which has no options of Atari games"
            )
        return make_env(self.name, self.num_envs if num_envs is None else num_envs, self.parsed(), render=render)

    def parsed(self) -> AtariSettings:
        """Return the settings of each environment."""
        from sharpwave.envs import AtariSettings

        height, width = parse_size(self.frame, "--frame")
        return AtariSettings(
            height=height,
            width=width,
            crop=parse_lines(self.crop, "--crop"),
            stack=self.stack,
            rgb=self.rgb,
            max_pool=self.max_pool,
            actions=tuple(name.strip().upper() for name in self.actions.split(",") if name.strip()),
            full_actions=self.full_actions,
            clip_rewards=self.clip_rewards,
            frame_skip=self.frame_skip,
            sticky=self.sticky,
            noop_max=self.noop_max,
            fire_reset=self.fire_reset,
            life_loss_ends=self.life_loss_ends,
            max_episode_frames=self.max_episode_frames,
        )


@dataclass(frozen=True)
class Gymnasium:
    """Settings of any environment that Gymnasium knows by an id."""

    kind: ClassVar[str] = "gymnasium"
    max_seed: ClassVar[int] = 2**63 - 1
    """Torch takes no larger ones."""

    name: str = setting(
        "CartPole-v1", "Gymnasium id: CartPole-v1, ALE/Pong-v5, module:Name-v0, ...", GROUP, flag="--env"
    )
    num_envs: int = setting(4, "environments stepped together", GROUP, at_least=1, at_most=MAX_ENVIRONMENTS)
    stack: int = setting(1, "newest observations that the agent sees together", GROUP, at_least=1, at_most=MAX_STACK)
    action_masks: bool = setting(
        True, "make and learn from legal actions only, where the environment says which are (Discrete ones)", GROUP
    )

    def __post_init__(self) -> None:
        check(self)

    def make(self, num_envs: int | None = None, *, render: bool = False) -> VectorEnv[Any, Any, Any]:
        """Make ``num_envs`` environments; None: as many as the settings say.  Raises: ValueError: an unknown id."""
        from sharpwave.envs import games, make_env

        if self.name in games():
            raise ValueError(
                f"--env: {self.name!r} is an Atari game; use sharpwave train atari --env {self.name}, or give its "
                "Gymnasium id, as ALE/Pong-v5"
            )
        lanes = self.num_envs if num_envs is None else num_envs
        return make_env(self.name, lanes, render=render, stack=self.stack, action_masks=self.action_masks)


KINDS = {settings.kind: settings for settings in (Atari, Gymnasium)}


def environment_settings(kind: str) -> type[Atari | Gymnasium]:
    """Return the settings class of a kind of environments.  Raises: ValueError: an unknown kind."""
    if kind not in KINDS:
        raise ValueError(f"env: got kind {kind!r}, expected one of {', '.join(KINDS)}")
    return KINDS[kind]


def parse_size(text: str, what: str) -> tuple[int, ...]:
    """Parse a size: "84x84" -> (84, 84); "17" -> (17,).

    Raises:
        ValueError: the text is not positive integers joined by x, or for frames not two of them.
    """
    parts = text.lower().split("x")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"{what}: got {text!r}, expected positive integers joined by x, as 84x84")
    size = tuple(int(part) for part in parts)
    if what == "--frame" and len(size) != 2:
        raise ValueError(f"{what}: got {text!r}, expected height x width, as 84x84")
    return size


def parse_lines(text: str, what: str) -> tuple[int, int]:
    """Parse a range of screen lines: "34:194" -> (34, 194).

    Raises:
        ValueError: the text is not two integers joined by a colon, or not in 0 <= first < last <= 210.
    """
    first, _, last = text.partition(":")
    if not (first.isdigit() and last.isdigit()) or not 0 <= int(first) < int(last) <= 210:
        raise ValueError(f"{what}: got {text!r}, expected first:last lines of the screen within 0:210, as 34:194")
    return int(first), int(last)
