"""Choice of an agent's device and precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PRECISIONS = ("auto", "float32", "bfloat16")


def pick_device(name: torch.device | str) -> torch.device:
    """Resolve "auto" to CUDA where there is a device, else to the CPU; any other name as torch knows it.

    Raises:
        ValueError: an unknown name, or CUDA on a machine without it.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device: got {name!r}, expected 'auto', 'cpu', 'cuda' or 'cuda:0'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: got {name!r}, but torch sees no CUDA device here; use 'auto' or 'cpu'")
    return device


def pick_precision(name: str, device: torch.device) -> str:
    """Resolve "auto" to bfloat16 on a CPU that has matrix instructions for it (AMX, AVX512-BF16), else to float32."""
    import torch

    if name != "auto":
        return name
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    native = any(getattr(torch.cpu, check, lambda: False)() for check in checks)
    return "bfloat16" if device.type == "cpu" and native else "float32"


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Let networks compute in ``precision`` while inside."""
    import torch

    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bfloat16" else nullcontext()
