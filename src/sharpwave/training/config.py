"""A run's config.json: its settings and a checksum, and the check that its environment imports no unknown module."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from sharpwave.errors import NewerVersionError, NotRegisteredError
from sharpwave.training.files import read_regular, sealed_json, write_text
from sharpwave.training.recipes.recipe import Recipe, resumable
from sharpwave.training.text import quoted

CONFIG = "config.json"
VERSION = 2
"""Format version of config.json, of a checkpoint's state.json and of policies."""
NAMES = {"version", "run", "replay", "recipe", "settings", "checksum"}
MAX_BYTES = 1 << 20
"""Size limit of config.json."""


class Config(NamedTuple):
    """Content of config.json.

    Attributes:
        name: name of the recipe that the settings are based on.
        run: the run's id, which its checkpoints carry too.
        replay: the id of its replay memory on disk; "": it has none on disk.
    """

    name: str
    recipe: Recipe
    run: str = ""
    replay: str = ""


def write_config(folder: Path, config: Config) -> None:
    """Write config.json atomically.  Raises: OSError."""
    ids = {"run": config.run, "replay": config.replay}
    values = {"version": VERSION, **ids, "recipe": config.name, "settings": config.recipe.to_table()}
    write_text(folder / CONFIG, sealed_json(values))


def read_config(folder: Path, *, trust: bool = False) -> Config:
    """Read and check config.json.

    Args:
        trust: allow importing the module that the environment's name refers to.
    Raises:
        ValueError: the file is missing, damaged or edited, or its environment imports a module without ``trust``.
        NotRegisteredError: a program registered its agent, or its image model, and this process has not.
        NewerVersionError: a later release wrote it.
    """
    path = folder / CONFIG
    try:
        content = read_regular(path, MAX_BYTES)
        values = json.loads(content)
        check_version(path, values)
        if set(values) != NAMES:
            raise ValueError(f"it holds {', '.join(sorted(values))}")
        if content != sealed_json(values).encode():  # bytes are compared: the encoding is canonical
            raise ValueError("its checksum does not match")
        recipe = recipe_of(values)
        config = Config(str(values["recipe"]), recipe, _checked_id("run", values), _checked_id("replay", values))
    except NotRegisteredError as error:
        raise NotRegisteredError(
            f"{str(path)!r}: {error}. What a program of your own has registered is not known to this process: import "
            "the module that registers it, then call sharpwave.cli.main() with the same arguments, or let its package "
            "name it in an entry point. Nothing is damaged"
        ) from error
    except (OSError, KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{str(path)!r} is not the config of a run, or it was damaged or edited: {error}. Put back a copy of it. "
            f"Settings that a run may change are options of sharpwave train --resume {quoted(folder)}: "
            f"{', '.join(leaf.flag for leaf in resumable().values())}; others need a new run"
        ) from error
    if not trust:
        check_imports(path, recipe)
    return config


def recipe_of(values: dict[str, Any]) -> Recipe:
    """Return the recipe in the values of a config.json.

    Raises:
        KeyError, TypeError, AttributeError, ValueError: they are not those of a recipe.
    """
    return Recipe.from_table(values["settings"])


def check_imports(path: Path | str, recipe: Recipe) -> None:
    """Check that the environment of a recipe that was read from a file imports no module.

    Raises:
        ValueError: its name refers to one.
    """
    module, colon, _ = recipe.env.name.partition(":")  # gymnasium imports what comes before a colon
    if colon:
        raise ValueError(
            f"{str(path)!r}: its environment {recipe.env.name!r} would import the module {module!r} and run its code; "
            "nothing was imported. If you trust that module, repeat the command with --trust"
        )


def check_version(path: Path, values: dict[str, Any]) -> None:
    """Check that this release reads the format version of a run's file.

    Raises:
        KeyError: there is none.  ValueError: it is none that a release wrote.
        NewerVersionError: a later release wrote the file.
    """
    version = values["version"]
    if type(version) is not int or version < VERSION:
        raise ValueError(f"version {version!r}, expected {VERSION}")
    if version > VERSION:
        raise NewerVersionError(f"{path}: version {version}, this release reads up to {VERSION}")


def _checked_id(name: str, values: dict[str, Any]) -> str:
    value = values[name]
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{32}|", value):
        raise ValueError(f"{name} {value!r}, expected an id of 32 hexadecimal digits")
    return value
