"""config.json of a run: the settings that it was made with, a checksum, and whether its environment may be imported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from sharpwave.errors import NewerVersionError
from sharpwave.training import old_runs
from sharpwave.training.files import read_regular, sealed_json, write_text
from sharpwave.training.recipes.recipe import Recipe, resumable
from sharpwave.training.text import quoted

CONFIG = "config.json"
VERSION = 2
"""Of config.json, of a checkpoint's state.json and of policies."""
NAMES, OLDEST_NAMES = {"version", "run", "replay", "recipe", "settings", "checksum"}, {"recipe", "settings"}
MAX_BYTES = 1 << 20
"""No config.json is larger."""


class Config(NamedTuple):
    """What config.json says.

    Attributes:
        name: of the recipe that the settings began as.
        run: the run's id, which its checkpoints carry too; "" in one of a release that gave none.
        replay: the id of its replay memory on disk; "" if it has none there.
    """

    name: str
    recipe: Recipe
    run: str = ""
    replay: str = ""


def write_config(folder: Path, config: Config) -> None:
    """Write it, whole or not at all.  Raises: OSError."""
    ids = {"run": config.run, "replay": config.replay}
    values = {"version": VERSION, **ids, "recipe": config.name, "settings": config.recipe.to_table()}
    write_text(folder / CONFIG, sealed_json(values))


def read_config(folder: Path, *, trust: bool = False) -> Config:
    """Read it, and check that what it asks for may be done.

    Args:
        trust: the module that the environment's name asks to import may be imported.
    Raises:
        ValueError: the folder has none, it is damaged or was edited, or asks for a module without ``trust``.
        NewerVersionError: a later release wrote it.
    """
    path = folder / CONFIG
    try:
        content = read_regular(path, MAX_BYTES)
        values = json.loads(content)
        check_version(path, values)
        named = "version" in values  # those of the first release say no more than recipe and settings
        if set(values) != (NAMES if named else OLDEST_NAMES):
            raise ValueError(f"it holds {', '.join(sorted(values))}")
        if named and content != sealed_json(values).encode():  # byte by byte: there is one way to write it
            raise ValueError("its checksum does not hold")
        recipe = recipe_of(values)
        ids = (_checked_id("run", values), _checked_id("replay", values)) if named else ()
        config = Config(str(values["recipe"]), recipe, *ids)
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
    """Return the recipe in what a config.json holds, of this release or an earlier one.

    Raises:
        KeyError, TypeError, AttributeError, ValueError: it holds none.
    """
    settings = values["settings"]
    return old_runs.recipe(settings) if values.get("version", 1) == 1 else Recipe.from_table(settings)


def check_imports(path: Path, recipe: Recipe) -> None:
    """See that a recipe read from a file asks for no module to be imported.

    Raises:
        ValueError: it does.
    """
    module, colon, _ = recipe.env.name.partition(":")  # what gymnasium takes for a module, and imports
    if colon:
        raise ValueError(
            f"{str(path)!r}: its environment {recipe.env.name!r} imports the module {module!r}, and with it whatever "
            "code lies there; nothing was imported. If you know that module: the same command with --trust"
        )


def check_version(path: Path, values: dict[str, Any]) -> None:
    """See that this release knows what wrote a file of a run; without a version it was the first.

    Raises:
        NewerVersionError, ValueError.
    """
    version = values.get("version", 1)
    if type(version) is not int or version < 1:
        raise ValueError(f"version {version!r}, expected a number of at least 1")
    if version > VERSION:
        raise NewerVersionError(f"{path}: version {version}, this release reads up to {VERSION}")


def _checked_id(name: str, values: dict[str, Any]) -> str:
    value = values[name]
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{32}|", value):
        raise ValueError(f"{name} {value!r}, expected an id of 32 hexadecimal digits")
    return value
