"""What a recipe is made into: its environments, its agent, its replay memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv

import sharpwave as sw
from sharpwave.agents.dqn import DQN, DQNSettings, pick_device
from sharpwave.agents.networks import input_module, network_builder
from sharpwave.envs import AtariSettings, make_env, step_spec
from sharpwave.training.recipes import Recipe, flag, parse_lines, parse_size
from sharpwave.training.transport import LARGEST
from sharpwave.views.gather import THREADS

Env = VectorEnv[Any, Any, Any]


def atari_settings(recipe: Recipe) -> AtariSettings:
    """The recipe's settings that concern Atari screens."""
    height, width = parse_size(recipe.frame, flag("frame"))
    return AtariSettings(
        height=height,
        width=width,
        crop=parse_lines(recipe.crop, flag("crop")),
        stack=recipe.stack,
        actions=tuple(name.strip().upper() for name in recipe.actions.split(",") if name.strip()),
        clip_rewards=recipe.clip_rewards,
        frame_skip=recipe.frame_skip,
        sticky=recipe.sticky,
    )


def environments(recipe: Recipe, num_envs: int | None = None, *, render: bool = False) -> Env:
    """The recipe's environments; ``num_envs`` of them if given."""
    return make_env(
        recipe.env, recipe.num_envs if num_envs is None else num_envs, atari_settings(recipe), render=render
    )


@contextmanager
def arithmetic(recipe: Recipe) -> Iterator[None]:
    """Set how torch computes for ``recipe``, and set it back: its threads, and that denormal numbers count as zero."""
    threads, flushed = torch.get_num_threads(), _denormals_flushed()
    if recipe.threads:  # more of them than processors would wait for each other
        torch.set_num_threads(min(recipe.threads, max(THREADS - recipe.actors, 1)))
    # Adam's moments of idle units decay into denormal numbers, with which a CPU is slow.
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


def _denormals_flushed() -> bool:
    smallest = np.finfo(np.float32).tiny
    return not smallest / np.float32(2)


def agent(recipe: Recipe, env: Env) -> DQN:
    """A fresh agent for ``env``; the same seed gives the same weights."""
    torch.manual_seed(recipe.seed)
    assert isinstance(env.single_action_space, Discrete)
    num_actions = int(env.single_action_space.n)
    obs_shape = env.single_observation_space.shape
    assert obs_shape is not None
    device = pick_device(recipe.device)
    settings = DQNSettings(
        double=recipe.double,
        loss=recipe.loss,
        huber_delta=recipe.huber_delta,
        learning_rate=recipe.learning_rate,
        adam_eps=recipe.adam_eps,
        max_grad_norm=recipe.max_grad_norm,
        target_tau=recipe.target_tau,
        average_decay=recipe.average_decay,
        precision=precision(recipe.precision, device),
    )
    build = network_builder(recipe.network, obs_shape, num_actions, recipe.hidden_units, recipe.dueling)
    return DQN(build, num_actions, settings, device, input_module(recipe.network, obs_shape))


def precision(name: str, device: torch.device) -> str:
    """ "auto" -> bfloat16 on a CPU that has matrix instructions for it (AMX, AVX512-BF16), else float32."""
    if name != "auto":
        return name
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    native = any(getattr(torch.cpu, check, lambda: False)() for check in checks)
    return "bfloat16" if device.type == "cpu" and native else "float32"


def check_segments(recipe: Recipe, spec: sw.Spec) -> None:
    """See to it that whatever segment an actor seals can be sent.

    Raises:
        ValueError: one could be larger than the learner takes.
    """
    beside = spec.context * spec.step_bytes + (1 << 20)  # frames before the first step; header and dictionaries
    most = (LARGEST - beside) // spec.step_bytes
    if recipe.segment_steps > most:
        raise ValueError(
            f"{flag('segment_steps')}: got {recipe.segment_steps:,}; with steps of {spec.step_bytes:,} bytes expected "
            f"at most {most:,}: an actor sends a segment in one piece, of {LARGEST:,} bytes at most"
        )


def memory(recipe: Recipe, env: Env, disk: Path | None = None, saved: Path | None = None) -> tuple[sw.Store, Any]:
    """The store for what ``env`` gives, and the view that is learned from.

    Args:
        disk: a new or empty folder for a recipe with ``disk_limit``; not used without.
        saved: a checkpoint of the store to go on from.
    Raises:
        ValueError: a setting that does not fit.
    """
    spec = step_spec(env)
    if recipe.actors:
        check_segments(recipe, spec)
    disk = disk if recipe.disk_limit else None
    if saved is None:
        store = sw.Store(
            spec,
            capacity=recipe.capacity,
            ram=recipe.ram or None,
            disk=disk,
            disk_limit=recipe.disk_limit or None if disk else None,
            codec=recipe.codec,
            seed=recipe.seed,
            segment_steps=recipe.segment_steps if recipe.actors else None,
        )
    else:
        store = sw.Store.open(saved, disk=disk)
    sampler = (
        sw.Prioritized(alpha=recipe.priority_alpha, beta=recipe.beta_start) if recipe.prioritized else sw.Uniform()
    )
    # A run of before views had names goes on with the only one it had.
    old = store.recovery is not None and store.recovery.views == ["transitions"]
    view = store.transitions(
        name=None if old else "learner", n_step=recipe.n_step, gamma=recipe.gamma, sampler=sampler, seed=recipe.seed
    )
    return store, view
