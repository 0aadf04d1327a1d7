"""Export of a store's episodes as a data set: one episode, or one part of an array, in memory at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.data.columns import ColumnSource
from sharpwave.data.episode import PARTIAL, SourceEpisode
from sharpwave.data.formats import TARGETS, split
from sharpwave.data.hdf5 import Hdf5Writer
from sharpwave.data.minari import MinariTarget
from sharpwave.data.npz import NpzWriter
from sharpwave.data.parquet import ParquetTarget
from sharpwave.data.progress_bar import Shown, shown
from sharpwave.data.varying import objects
from sharpwave.nesting import name_path, path_name
from sharpwave.spec import Field, Spec
from sharpwave.views.episodes import Order, StoredEpisode

MAX_PADDED_BYTES = 1 << 30
"""Limit of an episode's texts in an ``.npz`` file, where all have the size of the longest."""


def export(
    store: Any, target: str, order: Order, lanes: Any, progress: bool | Callable[[int, int], None] | None
) -> int:
    """Write a store's whole episodes as a data set; return their number. See ``Store.export``."""
    kind, place = split(target, TARGETS, "export")
    store.spec.check_fixed(f"export to {kind}", "export to parquet:FILE", _of_any_length(kind, store.spec))
    episodes = [one for one in store.episodes(order=order, lanes=lanes) if one.whole]
    if not episodes:
        raise ValueError(f"export: the store has no whole episodes ({len(store.episodes(lanes=lanes))} in part)")
    with shown(progress, target, sum(one.length for one in episodes)) as report:
        if kind == "minari":
            row_bytes = sum(one.row_bytes for one in store.spec.fields.values())
            nbytes = row_bytes * sum(one.length for one in episodes)
            with _explained(place):
                texts = _texts_of(episodes, store.spec)
                _write(MinariTarget(place, store.spec, nbytes, texts), episodes, store.spec, report)
        elif kind == "parquet":
            with _new_file(place, kind) as partial:
                _write(ParquetTarget(partial, store.spec), episodes, store.spec, report)
        else:
            columns = _columns(store.spec)
            with _new_file(place, kind) as partial:
                writer: NpzWriter | Hdf5Writer = NpzWriter(partial) if kind == "npz" else Hdf5Writer(partial)
                try:
                    _write_columns(kind, writer, episodes, columns, report)
                finally:
                    writer.close()
    return len(episodes)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Add the export's name to an error of the file system; errors that name it already pass unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno is None or "export:" in str(error) or PARTIAL not in str(error.filename or PARTIAL):
            raise
        raise OSError(
            error.errno, f"export: {what!r} could not be written ({error.strerror}); nothing is left"
        ) from error


@contextlib.contextmanager
def _new_file(place: str, kind: str) -> Iterator[Path]:
    """Yield a temporary name beside a new file; rename it at the end, unless the block raises.

    Raises: FileExistsError: a file of that name exists, and stays as it is.
    """
    if not place:
        raise ValueError(f"export: got '{kind}:', expected a file after it, as {kind}:FILE")
    path = Path(place).expanduser().absolute()
    if os.path.lexists(path):
        raise FileExistsError(f"export: {str(path)!r} exists; delete it, or choose another name")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"export: the folder {str(path.parent)!r} does not exist; make it first")
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with _explained(str(path)):
            yield partial
            descriptor = os.open(partial, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            try:
                os.link(partial, path)  # unlike a rename, never replaces a file created meanwhile
            except FileExistsError as error:
                raise FileExistsError(
                    f"export: {str(path)!r} exists by now; delete it, or choose another name"
                ) from error
            except OSError:  # a file system without links
                os.rename(partial, path)
    finally:
        with contextlib.suppress(OSError):  # the file is gone, or the file system is read-only
            partial.unlink()


def read(episode: StoredEpisode, spec: Spec) -> SourceEpisode:
    """Decode an episode, without the note of its import."""
    info = {key: value for key, value in episode.info.items() if key != "import"}
    return SourceEpisode(
        episode.obs,
        episode.action,
        episode.reward,
        bool(episode.terminated[-1]),
        bool(episode.truncated[-1]),
        {name: episode[name] for name in spec.extra_names},
        info,
    )


def _write(target: MinariTarget | ParquetTarget, episodes: list[StoredEpisode], spec: Spec, report: Shown) -> None:
    try:
        for one in episodes:
            target.add(read(one, spec))
            report(one.length)
        target.close()
    except BaseException:
        target.discard()
        raise


class _Exported(NamedTuple):
    """Array to be written: its name, the field with its shape and dtype, and a function from an episode to its rows."""

    name: str
    field: Field
    rows: Callable[[StoredEpisode], Any]


def _columns(spec: Spec) -> list[_Exported]:
    """Return the arrays of the D4RL layout.  Raises: ValueError: the layout has no names for some fields."""

    def value(name: str) -> Callable[[StoredEpisode], Any]:
        return lambda one: one[name]

    def following(name: str) -> Callable[[StoredEpisode], Any]:
        return lambda one: one.observations(name)[1:]

    found: list[_Exported] = []
    for name in spec.obs_names:
        found.append(_Exported(_path("observations", "obs", name, spec), spec.fields[name], value(name)))
        found.append(_Exported(_path("next_observations", "obs", name, spec), spec.fields[name], following(name)))
    found += [
        _Exported(_path("actions", "action", name, spec), spec.fields[name], value(name)) for name in spec.action_names
    ]
    flag = Field((), "bool")
    found.append(_Exported("rewards", Field((), "float32"), lambda one: one.reward))
    found += [
        _Exported("terminals", flag, lambda one: one.terminated),
        _Exported("timeouts", flag, lambda one: one.truncated),
    ]
    found += [_Exported(_slashed(name), spec.fields[name], value(name)) for name in spec.extra_names]
    names = [one.name for one in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"export: two fields would be named {twice[0]!r}; use parquet: or minari:")
    for name in map(_slashed, spec.extra_names):
        if (known := ColumnSource.standard(name)) != name and known in names:
            raise ValueError(f"export: the field {name!r} would be read as {known}, which the file has; use parquet:")
    return found


def _of_any_length(kind: str, spec: Spec) -> set[str]:
    """Return the fields with rows of any length that a format holds, or, as minari, leaves out with all such fields."""
    strings = {name for name in spec.ragged_names if spec.fields[name].text == "str"}
    if kind == "hdf5":
        of_numbers = {name for name in spec.ragged_names if spec.fields[name].shape == (None,)}
        return strings | {name for name in of_numbers if spec.fields[name].text is None}
    return {"npz": strings, "minari": strings | set(spec.extra_names)}.get(kind, set(spec.ragged_names))


class Texts(NamedTuple):
    """Texts of a field: their characters, and the least and greatest number of these in one."""

    characters: frozenset[str]
    least: int
    most: int


def _texts_of(episodes: list[StoredEpisode], spec: Spec) -> dict[str, Texts]:
    """Return the characters and lengths of the texts of observations and actions. Cost: they are decoded."""
    found: dict[str, Texts] = {}
    for name in (*spec.obs_names, *spec.action_names):
        if spec.fields[name].text == "str":
            every = {text for one in episodes for text in _rows(one, name).strings()}
            if any("\0" in text for text in every):
                raise _nul(name, "minari")
            lengths = [len(text) for text in every]
            found[name] = Texts(frozenset("".join(every)), min(lengths), max(lengths))
    return found


def _nul(name: str, kind: str) -> ValueError:
    return ValueError(
        f"export: {name} has a text with the character NUL, which ends texts in {kind} files; export to parquet:FILE"
    )


def _rows(one: StoredEpisode, name: str) -> Any:
    return one.observations(name) if name in one.spec.obs_names else one[name]


def _write_columns(
    kind: str,
    writer: NpzWriter | Hdf5Writer,
    episodes: list[StoredEpisode],
    columns: list[_Exported],
    report: Shown,
) -> None:
    """Write the D4RL layout, array by array: each field is decoded once, observations twice."""
    steps, done = sum(one.length for one in episodes), 0

    def told(column: _Exported, dtype: np.dtype[Any]) -> Iterator[npt.NDArray[Any]]:
        nonlocal done
        for one in episodes:
            rows = column.rows(one)
            if not column.field.ragged:
                yield rows
            elif column.field.text is None:
                yield objects(list(rows))
            else:
                texts = rows.strings()
                if any("\0" in text for text in texts):
                    raise _nul(column.name, kind)
                yield objects(texts).astype(dtype)
            before, done = done // len(columns), done + one.length
            report(done // len(columns) - before)

    for column in columns:
        shape, dtype = (steps, *column.field.shape), column.field.np_dtype
        if column.field.ragged:
            shape = (steps,)
            if kind == "npz":
                longest = max(len(text) for one in episodes for text in column.rows(one).strings())
                dtype = np.dtype(f"U{max(1, longest)}")
                if (most := max(one.length for one in episodes) * dtype.itemsize) > MAX_PADDED_BYTES:
                    raise ValueError(
                        f"export: {column.name} has a text of {longest:,} characters; npz files pad all texts to the "
                        f"longest, which takes {most:,} bytes for an episode, expected at most {MAX_PADDED_BYTES:,}; "
                        "export to parquet:FILE"
                    )
            else:
                dtype = np.dtype(object, metadata={"vlen": str if column.field.text else dtype})
        writer.write(column.name, shape, dtype, told(column, dtype))


def _path(file_root: str, root: str, name: str, spec: Spec) -> str:
    """Return the name in the file of a field of the observation or action, by its flat name.

    Raises: ValueError: a key could be mistaken for several keys, or for a tuple's index.
    """
    parts = [file_root]
    path = name_path(root, name)
    for number, key in enumerate(path):
        in_tuple = (path_name(root, path[:number]) if number else root) in spec.tuples
        if not in_tuple and ("/" in key or key.startswith("_index_") or key in (".", "..")):
            raise ValueError(f"export: the key {key!r} of {root} has no name in this format; use parquet: or minari:")
        parts.append(f"_index_{key}" if in_tuple else key)
    return "/".join(parts)


def _slashed(name: str) -> str:
    parts = name.split(".")
    return "/".join(parts) if all(parts) else name
