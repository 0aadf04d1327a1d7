"""Export of a store's episodes as a data set: one episode, or one part of an array, in memory at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sharpwave.data.episode import Episode
from sharpwave.data.formats import TARGETS, split
from sharpwave.data.hdf5 import Hdf5Writer
from sharpwave.data.minari import MinariTarget
from sharpwave.data.npz import NpzWriter
from sharpwave.data.parquet import ParquetTarget
from sharpwave.data.progress import Shown, shown
from sharpwave.spec import Spec
from sharpwave.views.episodes import Order, StoredEpisode


class Target(Protocol):
    """Data set being written, episode by episode; nothing has its name before ``close``."""

    def add(self, episode: Episode) -> None:
        """Write an episode."""

    def close(self) -> None:
        """Complete the data set, and give it its name."""

    def discard(self) -> None:
        """Remove what was written."""


class ColumnWriter(Protocol):
    """Writer of arrays, one after the other."""

    def write(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], parts: Any) -> None: ...

    def close(self) -> None: ...


def export(
    store: Any, target: str, order: Order, lanes: Any, progress: bool | Callable[[int, int], None] | None
) -> int:
    """Write a store's whole episodes as a data set; return how many. ``Store.export`` says the rest."""
    kind, place = split(target, TARGETS, "export")
    episodes = [one for one in store.episodes(order=order, lanes=lanes) if one.whole]
    if not episodes:
        raise ValueError(f"export: the store has no whole episodes ({len(store.episodes(lanes=lanes))} in part)")
    with shown(progress, target, sum(one.length for one in episodes)) as report:
        if kind == "minari":
            _write(MinariTarget(place, store.spec), episodes, store.spec, report)
        elif kind == "parquet":
            with _new_file(place, kind) as partial:
                _write(ParquetTarget(partial, store.spec), episodes, store.spec, report)
        else:
            with _new_file(place, kind) as partial:
                writer: ColumnWriter = NpzWriter(partial) if kind == "npz" else Hdf5Writer(partial)
                try:
                    _write_columns(writer, episodes, store.spec, report)
                finally:
                    writer.close()
    return len(episodes)


@contextlib.contextmanager
def _new_file(place: str, kind: str) -> Iterator[Path]:
    """Yield a name beside a new file's, which it gets at the end, unless the block raises.

    Raises: FileExistsError: there is a file of that name, which is left as it is.
    """
    if not place:
        raise ValueError(f"export: got '{kind}:', expected a file behind it, as {kind}:FILE")
    path = Path(place).expanduser().absolute()
    if os.path.lexists(path):
        raise FileExistsError(f"export: {str(path)!r} exists; delete it, or choose another name")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"export: the folder {str(path.parent)!r} does not exist; make it first")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        descriptor = os.open(partial, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(partial, path)  # unlike a rename, never replaces a file that came meanwhile
        except FileExistsError as error:
            raise FileExistsError(f"export: {str(path)!r} exists by now; delete it, or choose another name") from error
        except OSError:  # a file system without links
            os.rename(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read(episode: StoredEpisode, spec: Spec) -> Episode:
    """Decode an episode, but for the note of its import."""
    info = {key: value for key, value in episode.info.items() if key != "import"}
    return Episode(
        episode.obs,
        episode.action,
        episode.reward,
        bool(episode.terminated[-1]),
        bool(episode.truncated[-1]),
        {name: episode[name] for name in spec.extra_names},
        info,
    )


def _write(target: Target, episodes: list[StoredEpisode], spec: Spec, report: Shown) -> None:
    try:
        for one in episodes:
            target.add(read(one, spec))
            report(one.length)
        target.close()
    except BaseException:
        target.discard()
        raise


def _write_columns(writer: ColumnWriter, episodes: list[StoredEpisode], spec: Spec, report: Shown) -> None:
    """Write the D4RL layout, array by array: every field is decoded once, but the observation twice."""
    steps = sum(one.length for one in episodes)
    reads = 4 + 2 * len(spec.obs_names) + len(spec.step_names)
    done = 0

    def told(parts: Iterator[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
        nonlocal done
        for part in parts:
            yield part
            before, done = done // reads, done + len(part)
            report(done // reads - before)

    def write(name: str, field_shape: tuple[int, ...], dtype: Any, value: Callable[[StoredEpisode], Any]) -> None:
        writer.write(name, (steps, *field_shape), np.dtype(dtype), told(value(one) for one in episodes))

    for name in spec.obs_names:
        field = spec.fields[name]
        write(_path("observations", name), field.shape, field.np_dtype, lambda one, name=name: one[name])
        write(
            _path("next_observations", name), field.shape, field.np_dtype,
            lambda one, name=name: one.observations(name)[1:],
        )  # fmt: skip
    for name in spec.action_names:
        field = spec.fields[name]
        write(_path("actions", name), field.shape, field.np_dtype, lambda one, name=name: one[name])
    write("rewards", (), np.float32, lambda one: one.reward)
    write("terminals", (), np.bool_, lambda one: one.terminated)
    write("timeouts", (), np.bool_, lambda one: one.truncated)
    for name in spec.extra_names:
        field = spec.fields[name]
        write(name.replace(".", "/"), field.shape, field.np_dtype, lambda one, name=name: one[name])


def _path(root: str, name: str) -> str:
    """Return the name in a file of an observation's or an action's field, by its flat name."""
    return "/".join([root, *name.split(".")[1:]])
