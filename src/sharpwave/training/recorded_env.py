"""The environment of a recording: written with it, and compared with that of a run that learns from it."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path
from typing import Any

import sharpwave as sw
from sharpwave.configuration import leaves, to_table
from sharpwave.offline.scan import describe
from sharpwave.training.recipes.environments import Atari, Gymnasium, environment_settings

KEY = "environment"
"""Annotation of a recording's store: the settings of its environment."""
COMPARED = {"atari": ("name", "crop", "actions", "full_actions", "frame_skip", "clip_rewards", "life_loss_ends")}
"""Settings on which the meaning of actions, rewards and pictures depends; the sizes of frames are the store's own."""


def about(env: Atari | Gymnasium) -> dict[str, Any]:
    """Return the annotations of a recording made in ``env``."""
    return {KEY: to_table(env)}


def options(env: Atari | Gymnasium) -> dict[str, str]:
    """Return the settings of ``env`` as on the command line, by name: "--env pong", "--no-clip-rewards"."""
    said = {}
    for leaf in leaves(env):
        if isinstance(leaf.value, bool):
            said[leaf.key] = leaf.flag if leaf.value else f"--no-{leaf.flag[2:]}"
        else:
            said[leaf.key] = f"{leaf.flag} {shlex.quote(str(leaf.value))}"
    return said


def check_recorded(folder: Path, env: Atari | Gymnasium) -> None:
    """Check that demonstrations were recorded in an environment whose steps mean the same as those of ``env``.

    Stores that do not say where they were recorded pass.

    Raises:
        ValueError: another game, other actions or rewards.
    """
    try:
        said = describe(folder).annotations.store.get(KEY)
        if not isinstance(said, dict) or said.get("kind") != env.kind:
            return
        known = {leaf.key: said[leaf.key] for leaf in leaves(env) if leaf.key in said}
        recorded = environment_settings(env.kind)(**known)
    except (OSError, ValueError, TypeError, sw.DamagedError):
        return  # no recording of this release; opening the store says what is wrong with it
    before, now = _meaning(recorded), _meaning(env)
    other = [name for name in COMPARED.get(env.kind, ()) if before[name] != now[name]]
    actions = {"actions", "full_actions"}
    if not actions.isdisjoint(other) and "name" not in other and _action_names(recorded) == _action_names(env):
        other = [name for name in other if name not in actions]
    if other:
        theirs, ours = (" ".join(options(one)[name] for name in other) for one in (recorded, env))
        raise ValueError(
            f"demonstrations: {str(folder)!r} was recorded with {theirs}, but the run has {ours}; train with {theirs}, "
            f"or record anew with {ours}"
        )


def _action_names(env: Atari | Gymnasium) -> tuple[str, ...] | None:
    """Return the names of an Atari agent's actions in order; None: its game lacks one of them."""
    try:
        with closing(env.make(1)) as made:
            names: tuple[str, ...] = made.action_names  # type: ignore[attr-defined]
            return names
    except ValueError:
        return None


def _meaning(env: Atari | Gymnasium) -> dict[str, Any]:
    """Return the settings of ``env`` without differences in spelling: "noop, fire" is "NOOP,FIRE"."""
    return vars(env) | (vars(env.parsed()) if isinstance(env, Atari) else {})
