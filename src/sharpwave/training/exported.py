"""Policies as programs of torch.export and ONNX: raw observations of the environment in, its actions out."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Dict
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

from sharpwave.agents.learner import NetworkAgent, to_tensors
from sharpwave.extras import install
from sharpwave.training.atomic_files import replacing, write_bytes

OBSERVATION, ACTION, NEXT = "obs", "action", "next_"
"""Names of the input of a policy that observes one array, of its first output, and what begins those of its memory."""
LANES = 2
"""Observations in the example that a program is traced by; it takes any number."""
REWARD = "reward"
"""Memory that is known after the action only: an input, and no output."""


class Acting(nn.Module):
    """Acting of an agent without exploring, as a module whose arguments and results are tensors.

    Attributes:
        inputs, outputs: names of the arguments and results.
    """

    def __init__(self, agent: NetworkAgent, parts: list[str]) -> None:
        super().__init__()
        self.modules_of_agent = nn.ModuleList(agent.acting_modules(True).values())
        self._agent = agent  # no module: its other networks are left out
        self._parts, self._memory = parts, list(agent.memory())
        self.outputs = [ACTION, *(f"{NEXT}{name}" for name in self._memory if name != REWARD)]
        observed = parts or [OBSERVATION]
        while {*observed} & {*self._memory, *self.outputs}:  # a model's names differ, inputs and outputs alike
            observed = [f"{OBSERVATION}_{name}" for name in observed]
        self.inputs = [*observed, *self._memory]

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        count = len(given) - len(self._memory)
        obs = dict(zip(self._parts, given[:count], strict=True)) if self._parts else given[0]
        action, after = self._agent.decide(obs, dict(zip(self._memory, given[count:], strict=True)))
        return (action, *(after[name] for name in self._memory if name != REWARD))


@contextlib.contextmanager
def traced(policy: Any) -> Iterator[tuple[torch.export.ExportedProgram, Acting]]:
    """Yield a policy as a program for any number of observations, and the module that it was traced from.

    The program shares its weights with the policy, which need no gradient while inside.

    Raises:
        ValueError: its agent has no such form.
    """
    agent, space = policy.agent, policy.observation_space
    if not isinstance(agent, NetworkAgent):
        raise ValueError(f"export: {agent.settings.kind} has no form for other programs: it is no NetworkAgent")
    parts = [*space.spaces] if isinstance(space, Dict) else []
    acting = Acting(agent, parts).eval()
    batched = batch_space(space, LANES)
    batched.seed(0)
    obs: Any = to_tensors(batched.sample(), agent.device)
    memory = [torch.zeros(LANES, *shape, device=agent.device) for shape in agent.memory().values()]
    example = (*(obs[name] for name in parts), *memory) if parts else (obs, *memory)
    any_number = torch.export.Dim("lanes")
    with torch.no_grad(), _fixed(agent, acting), warnings.catch_warnings(), _quiet("torch"):
        warnings.simplefilter("ignore")  # torch's, about layers of its own
        try:
            program = torch.export.export(
                acting, example, dynamic_shapes=(tuple({0: any_number} for _ in example),), strict=False
            )
        except NotImplementedError as error:
            raise ValueError(f"export: {error}") from error
        yield program, acting


def export_torch(policy: Any, path: Path) -> None:
    """Write a policy for ``torch.export.load``.  Raises: ValueError, OSError."""
    content = io.BytesIO()  # torch's writer of files ends the process where the disk is full
    with traced(policy) as (program, _):
        torch.export.save(program, content)
    write_bytes(path, content.getvalue())


def export_onnx(policy: Any, path: Path) -> None:
    """Write a policy as an ONNX model, whose inputs and outputs are named as ``Acting`` says.

    Raises:
        ModuleNotFoundError: a package of the extra ``export`` is missing.  ValueError, OSError.
    """
    for package in ("onnx", "onnxscript"):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"export: {path.name} needs {package}: {install('export')}", name=package)
    with traced(policy) as (program, acting):
        made = torch.onnx.export(
            program, (), input_names=acting.inputs, output_names=acting.outputs, dynamo=True, verbose=False
        )
        assert made is not None
        for number, node in enumerate(made.model.graph):
            for value in node.outputs:
                if value.name in acting.inputs:  # as ``linear`` of an operation, and of an observation
                    value.name = f"{value.name}.{number}"
        with replacing(path) as partial:
            made.save(str(partial))


@contextlib.contextmanager
def _fixed(agent: Any, acting: nn.Module) -> Iterator[None]:
    """Let networks compute in float32, as on a processor without bfloat16, and without gradients, while inside."""
    before, agent._precision = agent._precision, "float32"
    learned = [one for one in acting.parameters() if one.requires_grad]
    acting.requires_grad_(False)
    try:
        yield
    finally:
        agent._precision = before
        for one in learned:
            one.requires_grad_(True)


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Let a package's loggers tell of errors only, while inside."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
