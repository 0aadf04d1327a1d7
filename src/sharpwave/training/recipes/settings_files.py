"""Settings from files and from ``key=value``, for ``sharpwave train --config FILE --set agent.lr=1e-4``."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sharpwave.configuration import KIND, expect_effects, from_table, leaf, parsed
from sharpwave.escaping import quoted
from sharpwave.training.atomic_files import read_regular
from sharpwave.training.folder import CONFIG, check_imports, check_version
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import Recipe

MAX_BYTES = 1 << 20
"""Size limit of a file of settings."""


def read_recipe(path: Path, base: Recipe | None = None, *, trust: bool = False) -> tuple[str, Recipe]:
    """Read a recipe from a TOML, YAML or JSON file of nested settings, or from a run's config.json.

    ``check_effects`` refuses settings of the file without effect, once further options have changed the recipe.

    Args:
        base: recipe of the settings that the file does not name; None: the one that the file names as ``recipe``, or
            the defaults.
        trust: allow importing the module that the environment's name refers to.
    Returns:
        a name for the run, and the recipe.
    Raises:
        ValueError: the file does not exist, or its content is not a recipe.
        NewerVersionError: it is the config.json of a later release.
    """
    try:
        values = _values(path)
        named = "recipe" in values
        name = values.pop("recipe", path.stem)
        if "settings" in values:
            check_version(path, values)
            recipe = Recipe.from_table(values["settings"])
            if not re.fullmatch(r"\w[\w.-]*", name):  # the run's folder is named after it
                raise ValueError(f"recipe {name!r}, expected a name of letters, digits, '.', '_' and '-'")
        else:
            recipe = from_table(base or (load_recipe(name) if named else Recipe()), values)
    except (OSError, KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"--config: {str(path)!r}: {reason}") from error
    if not trust:
        check_imports(path, recipe)
    return str(name), recipe


def check_effects(path: Path, base: Recipe | None, recipe: Recipe) -> None:
    """Check that the settings of a TOML or YAML file have an effect in ``recipe``, made from it and further options.

    Args:
        path, base: as of ``read_recipe``, which has read it.
    Raises:
        ValueError: naming the setting.
    """
    values = _values(path)
    if path.suffix.lower() == ".json" or "settings" in values:  # programs write these, with all settings
        return
    name = values.pop("recipe", None)
    try:
        base = from_table(base or (load_recipe(name) if name else Recipe()), _kinds(values))
        expect_effects(base, recipe, _paths(values))
    except ValueError as error:
        raise ValueError(f"--config: {str(path)!r}: {error}") from error


def _kinds(values: dict[str, Any]) -> dict[str, Any]:
    """Return a file's tables with nothing but the kinds that they name."""
    return {
        name: value if name == KIND else _kinds(value)
        for name, value in values.items()
        if name == KIND or isinstance(value, dict)
    }


def _paths(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the settings that a file's tables name."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _paths(value, (*path, name))
        else:
            yield (*path, name)


def _values(path: Path) -> dict[str, Any]:
    if path.is_dir():
        of_run = f"; of a run: --config {quoted(path / CONFIG)}" if (path / CONFIG).is_file() else ""
        raise ValueError(f"it is a folder, expected a file of settings{of_run}")
    parse = PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ValueError(f"got a name ending in {path.suffix!r}, expected .toml, .yaml or .json")
    try:
        values = parse(read_regular(path, MAX_BYTES).decode())
    except UnicodeDecodeError as error:
        raise ValueError("it holds no text, expected a file of settings") from error
    except ValueError as error:
        raise ValueError(f"it cannot be read as {path.suffix[1:].upper()}: {error}") from error
    if not values:
        raise ValueError('it is empty, expected settings, as recipe = "pong"')
    if not isinstance(values, dict):
        raise ValueError(f"it holds a {type(values).__name__}, expected tables of settings")
    return values


def _yaml(text: str) -> Any:
    """Parse YAML with the floats of YAML 1.2, in which 1e-4 is a number."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        pass

    floats = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", floats, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads, ".yaml": _yaml, ".yml": _yaml, ".json": lambda text: json.loads(text or "{}")
}  # fmt: skip
"""Parsers of files of settings, by the end of the file's name."""


def with_values(recipe: Recipe, assignments: Sequence[str], **options: Any) -> Recipe:
    """Change settings by ``key=value``: "agent.lr=1e-4", "training.steps=1e6".

    Args:
        options: changes by option name, as for ``Recipe.override``. Options and assignments are validated
            together; an option takes precedence.
    Raises:
        ValueError: an assignment of another form, an unknown setting, or an invalid value.
    """
    return recipe.change(values_of(recipe, assignments, **options))


def values_of(recipe: Recipe, assignments: Sequence[str], **options: Any) -> dict[tuple[str, ...], Any]:
    """Return the changes of ``with_values`` by path.  Raises: ValueError: as there."""
    changes = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"--set: got {assignment!r}, expected key=value, as agent.lr=1e-4")
        found = leaf(recipe, key.strip())
        changes[found.path] = parsed(found, text.strip())
    return changes | recipe.paths(options)
