"""Torch, imported when it is first used: help and the checks of settings neither wait a second for it nor need it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn
else:

    class _Lazy:
        """Stand-in for a module: each name is looked up once, then an attribute of its own."""

        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            found = getattr(import_module(self._module), name)
            setattr(self, name, found)
            return found

    torch, nn = _Lazy("torch"), _Lazy("torch.nn")

__all__ = ["nn", "torch"]
