"""Settings as frozen dataclasses: field metadata, validation, and their form as tables and command-line options."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from sharpwave.errors import NotRegisteredError

Settings = TypeVar("Settings")

KIND = "kind"
"""Key in a table that names the class of its settings, where there are several."""

KINDS = "kinds"
"""Metadata key of a field whose settings have one of several classes: a function, ``kind`` -> class."""

PLAIN = frozenset({int, float, bool, str, type(None)})
"""Types of values that tables and options have."""

IN_MEMORY = "in memory"
"""Metadata key of a field that is no setting: an object of this process, which no table and no option has."""


def setting(
    default: Any,
    help: str,
    group: str = "",
    *,
    flag: str = "",
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Any:
    """Declare a field of settings with its bounds and its help on the command line.

    Args:
        group: heading of the help text that lists it.
        flag: name of the option, "--env"; default: from the field's name, "--num-envs" for ``num_envs``.
        choices, at_least, above, at_most, below: bounds that ``check`` enforces; a value of ``None`` passes. Choices
            that others may add to are a function.
    """
    bounds = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    metadata = {"help": help, "group": group, "flag": flag, "choices": choices, "bounds": bounds}
    return dataclasses.field(default=default, metadata=metadata)


def again(settings: type, **default: Any) -> Any:
    """Declare a field as the class ``settings`` has it, but for its default: ``lr: float = again(Base, lr=1e-3)``."""
    ((name, value),) = default.items()
    (metadata,) = (field.metadata for field in dataclasses.fields(settings) if field.name == name)
    return dataclasses.field(default=value, metadata=metadata)


def flag(field: dataclasses.Field[Any]) -> str:
    """Return the option of a field: "--num-envs"."""
    return field.metadata.get("flag") or "--" + field.name.replace("_", "-")


def choices(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    """Return the values that a field may have; (): any."""
    declared = field.metadata["choices"]
    return tuple(declared() if callable(declared) else declared)


def check(settings: Any) -> None:
    """Check every value against its field's type, choices and bounds; meant for ``__post_init__``.

    Numbers become those of the type, as ``checked`` has it.

    Raises:
        ValueError: naming the option, the value and the expected values.
        NotRegisteredError: the value is none of the choices, which other packages may extend.
    """
    hints = _hints(settings)
    for field in dataclasses.fields(settings):
        if "help" in field.metadata:
            if PLAIN.issuperset(_kinds(hints[field.name])):
                value = checked(field.name, hints[field.name], getattr(settings, field.name))
                object.__setattr__(settings, field.name, value)  # they are frozen
            expected = _unmet(field, getattr(settings, field.name))
            error = NotRegisteredError if callable(field.metadata["choices"]) else ValueError
            expect(settings, field.name, not expected, expected, error)


class Checked:
    """Base of settings whose values are checked when they are made."""

    def __post_init__(self) -> None:
        check(self)


def expect(settings: Any, name: str, holds: bool, expected: str, error: type[ValueError] = ValueError) -> None:
    """Raise an error about the setting ``name`` unless ``holds``."""
    if not holds:
        option = next(flag(field) for field in dataclasses.fields(settings) if field.name == name)
        raise error(f"{option}: got {getattr(settings, name)!r}, expected {expected}")


def expect_effects(before: Any, after: Any, paths: Iterable[tuple[str, ...]]) -> None:
    """Check that each setting of ``paths`` has an effect in ``after``, unless it is the default or as in ``before``.

    Settings whose class has a method ``unused`` name their fields without effect, or the keys of those below them
    ("training.update_every"), and the requirement of each:
    ``def unused(self) -> Iterator[tuple[str, str]]``.

    Raises:
        ValueError: naming the option, the value and its requirement.
    """
    known, paths = {one.path: one.value for one in leaves(before)}, frozenset(paths)
    for one in leaves(after):
        if one.path not in paths or one.value in (one.field.default, known.get(one.path)):
            continue
        owner = after
        for depth, name in enumerate(one.path):
            needs = dict(owner.unused()) if hasattr(owner, "unused") else {}
            for lacks in (name, ".".join(one.path[depth:])):
                if lacks in needs:
                    raise ValueError(
                        f"{one.flag}: got {one.value!r}, which has no effect here; it needs {needs[lacks]}"
                    )
            owner = getattr(owner, name)


def _unmet(field: dataclasses.Field[Any], value: Any) -> str:
    """Return the expected values of a field for an invalid value; "" for a valid one."""
    bounds, named = field.metadata["bounds"], choices(field)
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if named:
        return "" if value in named else f"one of {', '.join(named)}"
    at_least, above, at_most, below = (bounds[name] for name in ("at_least", "above", "at_most", "below"))
    low = (at_least is None or value >= at_least) and (above is None or value > above)
    high = (at_most is None or value <= at_most) and (below is None or value < below)
    if low and high:
        return ""
    if at_least is not None and at_most is not None:
        return f"from {at_least:g} to {at_most:g}"
    said = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    return " and ".join(f"{word} {bound:g}" for word, bound in said.items() if bound is not None)


def _settings(settings: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(settings) if IN_MEMORY not in field.metadata]


@dataclass(frozen=True)
class Leaf:
    """Single setting within nested settings.

    Attributes:
        path: names of the fields that lead to it, the outermost first.
        hint: its type.
        value: its current value.
    """

    path: tuple[str, ...]
    field: dataclasses.Field[Any]
    hint: Any
    value: Any

    @property
    def key(self) -> str:
        """Path in the form of ``--set`` and tables: "agent.replay.n_step"."""
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """Name of its option: "--n-step"."""
        return flag(self.field)

    @property
    def name(self) -> str:
        """Name of its option as an identifier: "n_step"."""
        return self.flag.removeprefix("--").replace("-", "_")


def leaves(settings: Any, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Yield every single setting, in the order of declaration."""
    hints = _hints(settings)
    for field in _settings(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, (*path, field.name))
        else:
            yield Leaf((*path, field.name), field, hints[field.name], value)


def leaf(settings: Any, key: str) -> Leaf:
    """Find the setting with a key ("agent.lr").

    Raises:
        ValueError: an unknown key.
    """
    found = {one.key: one for one in leaves(settings)}
    if key in found:
        return found[key]
    close = [one.key for one in alike(key, list(found.values()))]
    hint = f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(found)}"
    raise ValueError(f"unknown setting {key!r}; {hint}")


def alike(key: str, known: list[Leaf]) -> list[Leaf]:
    """Return at most three settings that ``key`` may mean, otherwise the most similar ones.

    Matches are by last name, by option, or by the first words of the help ("learning rate of Adam": learning_rate).
    """
    asked = key.rpartition(".")[2].replace("-", "_").lower()
    aliases: dict[str, list[Leaf]] = {}
    for one in known:
        help = "_".join(one.field.metadata.get("help", "").lower().split()[:2])
        for alias in dict.fromkeys((one.path[-1], one.name, help, one.key)):
            aliases.setdefault(alias, []).append(one)
    close = [asked] if asked in aliases else difflib.get_close_matches(asked, aliases, n=3, cutoff=0.6)
    return list({one.key: one for alias in close for one in aliases[alias]}.values())[:3]


def changed(settings: Settings, changes: Mapping[tuple[str, ...], Any]) -> Settings:
    """Replace settings by path. Each dataclass is rebuilt once, so that interdependent changes are checked together."""
    own = {path[0]: value for path, value in changes.items() if len(path) == 1}
    for name in dict.fromkeys(path[0] for path in changes if len(path) > 1):
        below = {path[1:]: value for path, value in changes.items() if path[0] == name}
        own[name] = changed(getattr(settings, name), below)
    replaced: Settings = dataclasses.replace(settings, **own)  # type: ignore[type-var]
    return replaced


def parsed(leaf: Leaf, text: str) -> Any:
    """Parse the text of a setting's value by its type: "none", "true" and "false" included.

    Raises:
        ValueError: the text is not a value of that type.
    """
    kinds = _kinds(leaf.hint)
    if type(None) in kinds and text.lower() in ("none", "null", ""):
        return None
    if bool in kinds:
        for value, words in ((True, ("true", "yes", "on", "1")), (False, ("false", "no", "off", "0"))):
            if text.lower() in words:
                return value
    elif int in kinds or float in kinds:
        plain = text.replace("_", "")
        try:
            number = float(plain)
            if float in kinds:
                return number
            if number.is_integer():  # also 1e6, a usual way to write a number of steps
                return int(number) if "e" in plain.lower() else int(plain)
        except (ValueError, OverflowError):
            pass
    else:
        return text
    raise ValueError(f"setting {leaf.key}: got {text!r}, expected {_kind_text(leaf.hint)}")


def to_table(settings: Any) -> dict[str, Any]:
    """Return settings as nested plain values for JSON."""
    named = {KIND: settings.kind} if hasattr(type(settings), KIND) else {}
    values = {field.name: getattr(settings, field.name) for field in _settings(settings)}
    return named | {
        name: to_table(value) if dataclasses.is_dataclass(value) else value for name, value in values.items()
    }


def from_table(base: Settings, table: Any, path: str = "") -> Settings:
    """Replace the settings of ``base`` that a table names. Inverse of ``to_table``.

    Raises:
        ValueError: an unknown setting, or a value of another type.
    """
    if not isinstance(table, Mapping):
        raise ValueError(f"setting {path}: got {_shown(table)}, expected a table of settings")
    fields = {field.name: field for field in _settings(base)}
    unknown = [f"{path}.{name}".lstrip(".") for name in table if name not in fields and name != KIND]
    if unknown:
        within = tuple(path.split(".")) if path else ()
        close = [one.key for name in unknown for one in alike(str(name), list(leaves(base, within)))]
        meant = f" (did you mean {' or '.join(close)}?)" if close else ""
        known = ", ".join(f"{path}.{name}".lstrip(".") for name in fields)
        raise ValueError(
            f"unknown settings {', '.join(sorted(unknown))}{meant}, expected some of {known} (other versions may have "
            "others)"
        )
    hints, values = _hints(base), {}
    for name, value in table.items():
        if name == KIND:
            continue
        where, before = f"{path}.{name}".lstrip("."), getattr(base, name)
        before_kind = getattr(before, KIND, None)
        if dataclasses.is_dataclass(before):
            kinds = fields[name].metadata.get(KINDS)
            if kinds is not None and isinstance(value, Mapping) and value.get(KIND, before_kind) != before_kind:
                before = kinds(value[KIND])()
            values[name] = from_table(before, value, where)
        else:
            values[name] = checked(where, hints[name], value)
    replaced: Settings = dataclasses.replace(base, **values)  # type: ignore[type-var]
    return replaced


def checked(where: str, hint: Any, value: Any) -> Any:
    """Check the type of a setting's value. An integer becomes a float where one is expected, and a whole float, as
    1e6, an integer; numpy's numbers become Python's, and paths texts.  Raises: ValueError."""
    kinds = _kinds(hint)
    if isinstance(value, os.PathLike) and str in kinds:
        value = os.fspath(value)
    if getattr(value, "shape", None) == ():
        value = value.item()
    if is_whole(value):
        value = int(value)
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        value = float(value)
    if type(value) is int and float in kinds:
        return float(value)
    if type(value) is float and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    if isinstance(value, str):
        value = str(value)
        if value == "none" and type(None) in kinds:  # TOML has no null
            return None
    if type(value) not in kinds:
        raise ValueError(f"setting {where}: got {_shown(value)}, expected {_kind_text(hint)}")
    return value


def is_whole(value: Any) -> bool:
    """Return whether a value is an integer, of numpy's or of Python's."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


_hints_of: Callable[[Any], dict[str, Any]] = functools.cache(get_type_hints)


def _hints(settings: Any) -> dict[str, Any]:
    return _hints_of(type(settings))


def _kinds(hint: Any) -> tuple[Any, ...]:
    return tuple(get_args(hint)) or (hint,)  # of float | None: both


def _kind_text(hint: Any) -> str:
    return str(getattr(_kinds(hint)[0], "__name__", hint))


def _shown(value: Any) -> str:
    """Return a short representation of any value."""
    return repr(value)[:60] if isinstance(value, (str, float, bool, type(None))) else type(value).__name__
