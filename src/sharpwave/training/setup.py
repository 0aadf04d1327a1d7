"""Construction of a recipe's parts: environments, agent, replay memory, and classes that a program registered."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Space
from gymnasium.vector import VectorEnv

import sharpwave as sw
from sharpwave import envs
from sharpwave.agents import architectures, registry
from sharpwave.agents.demonstrations import DEMONSTRATIONS, BlendedSettings
from sharpwave.agents.protocol import Agent, Spaces
from sharpwave.configuration import leaves
from sharpwave.extras import imported
from sharpwave.observations import stacking
from sharpwave.serve.wire import MAX_BODY_BYTES
from sharpwave.training.offline_data import about, check_recorded, read_data
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.views.gather import THREADS

Env = VectorEnv[Any, Any, Any]
Memory: TypeAlias = "sw.Store | sw.Cluster"
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""
ONE_THREAD = Recipe().override(threads=1)
"""Recipe of small batches, for which further threads would only wait."""


@contextmanager
def arithmetic(recipe: Recipe) -> Iterator[None]:
    """Set torch's number of threads for ``recipe`` and flush denormal numbers to zero; restore both on exit."""
    threads, flushed = torch.get_num_threads(), _denormals_flushed()
    if recipe.training.threads:  # with more threads than processors they would wait for each other
        torch.set_num_threads(min(recipe.training.threads, max(THREADS - recipe.actors.count, 1)))
    # Adam's moments of idle units decay into denormal numbers, on which CPUs are slow.
    torch.set_flush_denormal(True)
    _keep_freed_memory()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


def _keep_freed_memory() -> None:
    """Let the C library reuse freed arrays of up to 32 MiB, and return to the system only what exceeds 64 MiB.

    By default it returns the arrays of an update after each and maps them anew, with a page fault for every 4 KiB.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, 32 << 20)
        mallopt(TRIM_THRESHOLD, 64 << 20)


def _denormals_flushed() -> bool:
    smallest = np.finfo(np.float32).tiny
    return not smallest / np.float32(2)


def agent(recipe: Recipe, env: Env, seed: Any = None) -> Agent:
    """Make a fresh agent for ``env``; the same seed gives the same weights.

    Args:
        seed: seed of the agent's exploration; None: the recipe's.
    Raises:
        ValueError: the agent cannot learn in these spaces, or a setting is invalid.
    """
    torch.manual_seed(recipe.training.seed)
    space = seen_space(env.single_observation_space, stacks(env))
    spaces = Spaces(space, env.single_action_space, recipe.env.name)
    made = registry.agent_class(recipe.agent.kind)
    return made(spaces, recipe.agent, recipe.training.device, recipe.training.seed if seed is None else seed)


def stacks(env: Env) -> list[int]:
    """Return the sizes of the stacks of observations that ``env`` makes; 0: of none."""
    return sorted({size for size, _ in stacking(env)})


def seen_space(space: Space[Any], sizes: Sequence[int]) -> Space[Any]:
    """Return the space of one lane's observations as agents see it: a stack of vectors as one vector, since [stack, n]
    is no picture.

    Args:
        space: that of the environment.  sizes: of ``stacks``.
    """

    def flat(part: Space[Any]) -> Space[Any]:
        if not isinstance(part, Box) or len(part.shape) != 2 or part.shape[0] not in sizes:
            return part
        return Box(part.low.reshape(-1), part.high.reshape(-1), dtype=part.dtype.type)

    return Dict({name: flat(part) for name, part in space.items()}) if isinstance(space, Dict) else flat(space)


def player(recipe: Recipe, env: Env, policy: Mapping[str, torch.Tensor]) -> Agent:
    """Make an agent that acts by the tensors of a policy, without advancing torch's generators."""
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        player = agent(recipe, env)
    player.load_policy(policy)
    return player


def step_spec(env: Env, agent: Agent) -> sw.Spec:
    """Return the spec of a stored step: the environment's fields and the agent's own."""
    spec = envs.step_spec(env)
    spec.check_fixed("train: the environment", "wrap it so that it gives arrays of one shape")
    own = agent.step_fields()
    if not own:
        return spec
    infos = {name: spec.fields[name] for name in spec.extra_names}
    return sw.Spec(obs=spec.join_obs(spec.fields), action=spec.join_action(spec.fields), **infos, **own)


def check_segments(recipe: Recipe, spec: sw.Spec) -> None:
    """Check that every segment that an actor can seal fits into a frame of the transport.  Raises: ValueError."""
    beside = spec.context * spec.step_bytes + (1 << 20)  # frames before the first step; header and dictionaries
    max_steps = (MAX_BODY_BYTES - beside) // spec.step_bytes
    if recipe.actors.segment_steps > max_steps:
        raise ValueError(
            f"--segment-steps: got {recipe.actors.segment_steps:,}; with steps of {spec.step_bytes:,} bytes expected "
            f"at most {max_steps:,}: an actor sends a segment in one frame of at most {MAX_BODY_BYTES:,} bytes"
        )


def memory(
    recipe: Recipe, env: Env, agent: Agent, disk: Path | None = None, saved: Path | None = None
) -> tuple[Memory, Any]:
    """Make the store for the steps of ``agent`` in ``env``, and the view that the agent learns from.

    With an address to connect to, it is the cluster there, with its steps; with Ray's, a new one.

    Args:
        disk: a new or empty folder; used only by recipes with ``disk_limit``.
        saved: a checkpoint of the store to restore, with the one of demonstrations, if any, beside it; None: the store
            begins empty, or with the data of an offline recipe.
    Raises:
        ValueError: a setting is invalid.
        ConnectionError, ShardFailedError: the cluster cannot be reached, or started.
    """
    spec, replay, seed = step_spec(env, agent), recipe.replay, recipe.training.seed
    settings: Any = agent.replay()
    if recipe.actors.count:
        check_segments(recipe, spec)
    limits: dict[str, Any] = {
        "ram": replay.ram or None,
        "disk": disk if replay.disk_limit else None,
        "disk_limit": replay.disk_limit or None if disk else None,
        "codec": replay.codec,
        "segment_steps": recipe.actors.segment_steps if recipe.actors.count else None,
        "seed": seed,
    }
    blended = isinstance(settings, BlendedSettings)
    with contextlib.ExitStack() as failed:

        def opened(store: Memory) -> Memory:
            failed.callback(store.close)
            if saved is None:
                store.annotate(None, about(recipe.env))  # for runs that learn from this store later
            return store

        def fresh(capacity: int) -> Any:
            # A run goes on while its disk is full: its checkpoints hold the files of older steps.
            full = "drop_newest" if limits["disk"] else "raise"
            return opened(sw.Store(spec, capacity=capacity, on_full=full, **limits))

        store: Any
        if replay.served:
            if recipe.offline or blended:
                raise ValueError(
                    f"{'--ray' if replay.ray else '--connect'} {replay.ray or replay.connect}: this recipe also learns "
                    "from stored data, which must be in this process; leave that option out"
                )
            if replay.ray:
                limits |= {"shards": replay.shards, "capacity": replay.capacity, "address": replay.ray}
                store = opened(sw.Cluster(spec, **limits))
            else:
                store = opened(sw.Cluster(spec, address=replay.connect, seed=seed))
        elif saved is not None:
            store = opened(sw.Store.open(saved, disk=limits["disk"]))
        elif recipe.offline:
            spaces = Spaces(env.single_observation_space, env.single_action_space, recipe.env.name)
            store = read_data(recipe, spaces, spec, fresh)
        else:
            store = fresh(replay.capacity)
        if blended and saved is None:
            check_recorded(Path(settings.demonstrations), recipe.env)
        if blended and saved is not None and (beside := saved.with_name(DEMONSTRATIONS)).is_dir():
            view = settings.reopen(store, "learner", seed, beside)
        else:
            view = settings.open(store, "learner", seed)
        failed.pop_all()
        return store, view


# Classes that a program has registered: its algorithm and its image models. Processes of a run register them too


class OwnParts(NamedTuple):
    """Import paths, "module:Class", by the names that the classes were registered under."""

    agents: Mapping[str, str] = {}
    image_models: Mapping[str, str] = {}

    def register(self) -> None:
        """Import and register the classes in this process."""
        for kind, path in self.agents.items():
            registry.AGENTS[kind] = path
        for name, path in self.image_models.items():
            architectures.register_image_model(name, imported(path))


def own_parts(recipe: Recipe) -> OwnParts:
    """Return the registered classes that ``recipe`` uses.  Raises: ValueError: another process cannot import one."""
    kind = recipe.agent.kind
    agent = registry.AGENTS.get(kind)
    chosen = [one.value for one in leaves(recipe) if one.field.metadata["choices"] is architectures.networks]
    registered = architectures.registered_image_models()
    return OwnParts(
        {} if agent is None or isinstance(agent, str) else {kind: _path(agent, f"agent {kind!r}")},
        {name: _path(registered[name], f"--network {name}") for name in chosen if name in registered},
    )


def check_own_parts(recipe: Recipe) -> None:
    """Check before a run begins that its further processes can import what ``recipe`` uses.  Raises: ValueError."""
    if recipe.actors.count or (recipe.evaluation.evaluate_beside and recipe.evaluation.evaluate_every):
        own_parts(recipe)


def import_path(part: Any) -> str:
    """Return the import path of a class or a function; "": processes of other programs cannot import it."""
    try:
        path = _path(part, "")
    except ValueError:
        return ""
    return "" if path.startswith("__main__:") else path


def _path(part: Any, what: str) -> str:
    """Return a class's import path.  Raises: ValueError: another process would not find it there."""
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
    reason = "it has no name in a module"
    if module == "__main__" and not os.path.isfile(getattr(sys.modules[module], "__file__", None) or ""):
        reason = "it was defined in a notebook or an interactive session"
    elif module and name:
        reason = f"{name} is not found at the top level of module {module}"
        with contextlib.suppress(ImportError, AttributeError):
            if imported(f"{module}:{name}") is part:
                reason = _lost(module)
        if not reason:
            return f"{module}:{name}"
    raise ValueError(
        f"{what}: {part!r} cannot be imported by the processes of --actors and --evaluate-beside: {reason}; expected "
        "a class at the top level of a module (an importable .py file)"
    )


def _lost(name: str) -> str:
    """Return why a fresh process would not import the module of that name that this one has; "": it would."""
    if name == "__main__":
        return ""  # its file is run again there, under another name
    parts = name.split(".")
    found, path = None, None
    for depth in range(1, len(parts) + 1):
        whole = ".".join(parts[:depth])
        # Not importlib.util.find_spec, which believes sys.modules. Spawned processes get a copy of sys.path.
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        found = next((spec for find in finders if find and (spec := find(whole, path))), None)
        if found is None:
            return f"module {name} was made in this process; no file of that name is in the folders of sys.path"
        path = found.submodule_search_locations
    here, there = getattr(sys.modules[name], "__file__", None), found.origin if found else None
    if here and there and os.path.realpath(here) != os.path.realpath(there):
        return f"module {name} was loaded from {here}, and by that name they would import {there}"
    return ""
