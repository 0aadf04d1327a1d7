"""Saving and loading tensors of modules and optimizers by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def tensors_of(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return parameters and buffers by "<module's name>.<tensor's name>"; not copied."""
    return {
        f"{part}.{name}": tensor for part, module in modules.items() for name, tensor in module.state_dict().items()
    }


def load_tensors(modules: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]) -> None:
    """Load tensors of ``tensors_of``; names of other modules are ignored.

    Raises:
        ValueError: the names or shapes are those of another network.
    """
    for part, module in modules.items():
        own = {name.removeprefix(f"{part}."): one for name, one in tensors.items() if name.startswith(f"{part}.")}
        try:
            module.load_state_dict(own)
        except RuntimeError as error:
            raise ValueError(f"weights do not fit the agent's {part} module: {error}") from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimizer's moments and step counts by "<parameter's index>.<name>"."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load tensors of ``optimizer_tensors``.

    Raises:
        ValueError: they belong to other parameters.
    """
    import torch

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        if not index.isdecimal() or int(index) >= len(parameters):
            raise ValueError(f"the optimizer's state has {key!r}, expected numbers of {len(parameters)} parameters")
        parameter = parameters[int(index)]
        # In the parameter's memory layout (channels last): Adam's fused kernel pairs elements by position in memory.
        copy = torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor.clone()
        state.setdefault(int(index), {})[name] = copy
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def to_tensors(obs: object, device: torch.device) -> object:
    """Copy an array, or a dict of arrays, to tensors on ``device``."""
    import torch

    if isinstance(obs, dict):
        return {name: to_tensors(one, device) for name, one in obs.items()}
    array: npt.NDArray[np.generic] = np.ascontiguousarray(obs)
    return torch.from_numpy(array).to(device)
