"""Files of trained policies: reading them, and making the agent that their description is of.

Beside its weights a file holds, as JSON, all that making the agent again takes: algorithm, settings and spaces. No code
of the file's is run, and an agent's size is checked before memory is taken for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

import sharpwave as sw
from sharpwave.agents import registry
from sharpwave.agents.learner import NetworkAgent, tensors_of
from sharpwave.agents.protocol import Agent, Spaces
from sharpwave.agents.space_tables import space_of, space_table
from sharpwave.configuration import KIND, from_table, to_table
from sharpwave.errors import NewerVersionError
from sharpwave.json_values import sealed
from sharpwave.training import folder as files
from sharpwave.training import setup
from sharpwave.training.atomic_files import read_regular
from sharpwave.training.checkpoints import NO_STATE, load_policy
from sharpwave.training.recipes.recipe import Recipe

POLICY = "policy"
"""Key of a policy's description among the figures in its file."""
WEIGHTS, CARD, DESCRIPTION = "policy.safetensors", "README.md", "policy.json"
"""Files of a saved folder, as they are written: weights, model card, and the description, by which it is a policy's."""
LEFT = re.compile(r"\.(policy\.safetensors|README\.md|policy\.json)\.[0-9a-f]{8}\.partial")
"""Names of files that a process left when it was killed while it wrote them."""
MAX_DESCRIPTION_BYTES = 16 << 20
MAX_PARAMETERS, MAX_TENSORS = 1 << 30, 1 << 16
"""Size limits of an agent that a file describes, in numbers and in tensors of them."""
MAX_NUMBER_BYTES = 8
"""Size of the largest numbers that tensors are of."""


def describe(recipe: Recipe, env: setup.Env) -> dict[str, Any]:
    """Return the description of the policies of a run in ``env``, as their files hold it beside their figures."""
    observation, action = env.single_observation_space, env.single_action_space
    return {POLICY: description(recipe.agent, observation, action, setup.stacks(env), recipe.env)}


def description(
    settings: Any, observation: Space[Any], action: Space[Any], stacks: Sequence[int], env: Any
) -> dict[str, Any]:
    """Return the description of a policy of an agent with ``settings``.

    Args:
        observation, action: spaces of one environment.  stacks: frames that the environment stacks.
        env: settings of the environment that it was trained in; None: not known.
    """
    return {
        "sharpwave": sw.__version__,
        "agent": to_table(settings),
        "observation": space_table(observation),
        "action": space_table(action),
        "stacks": [*stacks],
        "env": None if env is None else to_table(env),
    }


def read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load a file that ``save`` wrote.  Raises: ValueError, NewerVersionError."""
    try:
        weights, figures = load_policy(path, _check_header)
    except FileNotFoundError as error:
        raise ValueError(
            f"policy {str(path)!r} does not exist; give a run's folder, which 'sharpwave train' printed, or a "
            "folder or file of Policy.save"
        ) from error
    except OSError as error:
        raise ValueError(f"policy {str(path)!r} cannot be read: {error}") from error
    if not isinstance(figures.get(POLICY), dict):
        raise ValueError(f"policy {str(path)!r} names no agent: an earlier version wrote it; load its run's folder")
    return weights, figures


def read_folder(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load a folder that ``save`` wrote.  Raises: ValueError, NewerVersionError."""
    weights, figures = read_file(path / WEIGHTS)
    try:
        content = read_regular(path / DESCRIPTION, MAX_DESCRIPTION_BYTES)
        values = json.loads(content)
        files.check_version(path / DESCRIPTION, values)
        if content != sealed(values, indent=2):
            raise ValueError("its checksum does not match: it was damaged or edited")
        if json.dumps(values[POLICY], sort_keys=True) != json.dumps(figures[POLICY], sort_keys=True):
            raise ValueError(f"it is of another policy than {WEIGHTS}")
    except (OSError, *NO_STATE) as error:
        raise ValueError(f"policy {str(path / DESCRIPTION)!r} cannot be loaded: {error}") from error
    return weights, figures


def begun(path: Path) -> bool:
    """Return whether a folder holds nothing but what ``save`` leaves where it is interrupted."""
    names = {name for name in os.listdir(path) if not LEFT.fullmatch(name)}
    if names and names != {WEIGHTS} and names != {WEIGHTS, CARD}:
        return False
    try:
        return not names or bool(read_file(path / WEIGHTS))
    except (ValueError, NewerVersionError):
        return False


def describe_run(run: Path, recipe: Recipe, about: Any, trust: bool) -> dict[str, Any]:
    """Return the description of a run's policies: its spaces by ``about`` or another of its policy files, or, where
    none has them, by its environment; the rest by its settings."""
    for name in (files.LAST, files.BEST):
        if not isinstance(about, dict):
            with contextlib.suppress(OSError, ValueError):
                about = load_policy(run / name)[1].get(POLICY)
    if not isinstance(about, dict):
        if not trust:
            files.check_imports(run / files.CONFIG, recipe)
        with contextlib.closing(recipe.env.make(1)) as env:
            about = describe(recipe, env)[POLICY]
    return {**about, "agent": to_table(recipe.agent), "env": to_table(recipe.env)}


# The agent


def agent_of(about: Mapping[str, Any], device: str, seed: int, weights: Mapping[str, Tensor] | None = None) -> Agent:
    """Make the agent of a description, with ``weights``, without advancing torch's generators.

    Raises:
        NotRegisteredError, KeyError, TypeError, ValueError: the description is none, or the weights are not its own.
    """
    kind, spaces, settings = _described(about)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        own = _sized(kind, spaces, settings)
        if own is not None and weights is not None:
            _check_shapes(own, {name: tuple(one.shape) for name, one in weights.items()})
            for name, one in own.items():
                given = weights[name]
                if given.dtype != one.dtype and not (given.is_floating_point() and one.is_floating_point()):
                    raise ValueError(f"weights {name}: got {given.dtype}, expected {one.dtype}")
        agent = kind(spaces, settings, device, seed)
    if weights is not None:
        agent.load_policy(weights)
    return agent


def _described(about: Mapping[str, Any]) -> tuple[type[Agent], Spaces, Any]:
    """Return the class, spaces and settings of the agent of a description.  Raises: as ``agent_of``."""
    table, env = about["agent"], about["env"]
    kind = registry.agent_class(table[KIND])
    settings = from_table(kind.Settings(), table)
    space = setup.seen_space(space_of(about["observation"]), about["stacks"])
    name = "the environment" if env is None else str(env["name"])
    return kind, Spaces(space, space_of(about["action"]), name), settings


def _check_header(header: Mapping[str, Any]) -> None:
    """Check tensors in the header of a file against its description, before they are read.  Raises: as ``agent_of``."""
    text, _ = json.loads(header["__metadata__"]["about"])
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        own = _sized(*_described(json.loads(text)[POLICY]))
    if own is None:
        return
    given = {name: one for name, one in header.items() if name != "__metadata__"}
    _check_shapes(own, {name: tuple(one["shape"]) for name, one in given.items()})
    for name, one in given.items():
        begin, end = one["data_offsets"]
        if end - begin > (most := own[name].numel() * MAX_NUMBER_BYTES):
            raise ValueError(f"weights {name}: got {end - begin:,} bytes, expected at most {most:,}")


def _check_shapes(own: Mapping[str, Tensor], given: Mapping[str, tuple[int, ...]]) -> None:
    """Check that ``given`` has the names and shapes of an agent's ``own`` tensors.  Raises: ValueError."""
    for name in sorted({*own, *given}):
        expected = tuple(own[name].shape) if name in own else None
        if given.get(name) != expected:
            said = ("none" if shape is None else f"shape {shape}" for shape in (given.get(name), expected))
            raise ValueError(f"weights {name}: got {next(said)}, expected {next(said)}, by its settings")


def _sized(kind: type[Agent], spaces: Spaces, settings: Any) -> dict[str, Tensor] | None:
    """Return the tensors of an agent's policy, without memory for them; None: they get known when it is made.

    Raises: ValueError: it is too large.
    """
    if not issubclass(kind, NetworkAgent):
        return None
    try:
        with torch.device("meta"), _counted():
            return tensors_of(kind(spaces, settings, "meta", 0).acting_modules(True))
    except NotImplementedError:  # of a program's own network, for images
        return None


@contextlib.contextmanager
def _counted() -> Iterator[None]:
    """Refuse networks that are too large, while inside.  Raises: ValueError."""
    numbers = tensors = 0

    def count(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal numbers, tensors
        if tensor is not None:
            numbers, tensors = numbers + tensor.numel(), tensors + 1
        if numbers > MAX_PARAMETERS or tensors > MAX_TENSORS:
            raise ValueError(
                f"its settings make an agent of more than {MAX_PARAMETERS:,} numbers or {MAX_TENSORS:,} tensors"
            )

    modules = torch.nn.modules.module
    hooks = [
        modules.register_module_parameter_registration_hook(count),
        modules.register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
