"""Classes that a program has registered: its algorithm and its image models. Processes of a run are told their import
paths, and register them too."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from sharpwave.agents import architectures, registry
from sharpwave.configuration import leaves
from sharpwave.training.recipes.recipe import Recipe


class OwnParts(NamedTuple):
    """Import paths, "module:Class", by the names that the classes were registered under."""

    agents: Mapping[str, str] = {}
    image_models: Mapping[str, str] = {}

    def register(self) -> None:
        """Import and register the classes in this process."""
        for kind, path in self.agents.items():
            registry.AGENTS[kind] = path
        for name, path in self.image_models.items():
            architectures.register_image_model(name, _imported(path))


def own_parts(recipe: Recipe) -> OwnParts:
    """Return the registered classes that ``recipe`` uses.

    Raises:
        ValueError: a class that another process cannot import.
    """
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


def _path(part: Any, what: str) -> str:
    """Return a class's import path.  Raises: ValueError: another process would not find it there."""
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
    reason = "it has no name in a module"
    if module == "__main__" and not os.path.isfile(getattr(sys.modules[module], "__file__", None) or ""):
        reason = "it was defined in a notebook or an interactive session"
    elif module and name:
        reason = f"{name} is not found at the top level of module {module}"
        with contextlib.suppress(ImportError, AttributeError):
            if _imported(f"{module}:{name}") is part:
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


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))
