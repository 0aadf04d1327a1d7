"""Sources: the run, store or checkpoint at a path, and the folders to read."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sharpwave.offline.scan import is_store, part_of
from sharpwave.persistence.checkpoint_file import folder_of
from sharpwave.serve.cluster_folder import STORE
from sharpwave.training.folder import (
    CHECKPOINT_NAME,
    CHECKPOINTS,
    CONFIG,
    METRICS,
    REPLAY,
    is_store_in,
    memory_of,
    saved_memory,
)

MAX_SOURCES = 64

Kind = Literal["run", "store", "checkpoint", "version"]


@dataclass(frozen=True)
class ViewerSource:
    """Run, store, checkpoint or version to show. ``run``: the folder with its log; ``None``: a store without a run."""

    name: str
    path: Path
    kind: Kind
    run: Path | None

    def store_folder(self) -> Path | None:
        """Return the folder of the steps: the store on disk, else the newest checkpoint's; ``None``: none yet."""
        if self.kind == "run":
            return memory_of(self.path)
        return self.path if self.kind in ("store", "version") else self.state_folder()

    def state_folder(self) -> Path | None:
        """Return the folder of the newest store's checkpoint, whose state has priorities; ``None``: none yet."""
        if self.kind in ("store", "version"):
            return self.path if part_of(self.path) != self.path else None
        if self.kind == "checkpoint":
            return self.path / REPLAY if is_store_in(self.path, self.path / REPLAY) else None
        return saved_memory(self.path)


def checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints in a run's folder, oldest first."""
    return sorted(path for path in _folders(run / CHECKPOINTS) if CHECKPOINT_NAME.fullmatch(path.name))


@contextlib.contextmanager
def opened_sources(paths: Sequence[Path]) -> Iterator[list[ViewerSource]]:
    """Provide ``find_sources(paths)``, with checkpoints in single files unpacked meanwhile.

    Raises:
        ValueError, OSError: as ``find_sources``; also for a file that is no checkpoint.
    """
    with contextlib.ExitStack() as stack:
        files = {stack.enter_context(folder_of(path)): path for path in paths if path.is_file()}
        folders = {path: folder for folder, path in files.items()}
        found = find_sources([folders.get(path, path) for path in paths])
        yield [replace(one, name=files[one.path].name) if one.path in files else one for one in found]


def find_sources(paths: Sequence[Path]) -> list[ViewerSource]:
    """Return the sources at paths: a path's own, or, in a folder of runs and stores or a cluster's, each of those.

    Raises:
        ValueError: no source, or more than ``MAX_SOURCES``.
    """
    found: list[ViewerSource] = []
    for path in paths:
        path = path.absolute()
        one = _source(path)
        inside = [one] if one else [one for inner in sorted(_folders(path)) if (one := _source(inner))]
        if not inside:
            raise ValueError(
                f"view: {str(path)!r} is no run, store or checkpoint, and no folder of those; give the folder that "
                "sharpwave train printed, or the one given as disk= to sharpwave.Store or sharpwave.Cluster, or to "
                "store.checkpoint(...)"
            )
        found += inside
    if len(found) > MAX_SOURCES:
        raise ValueError(f"view: {len(found):,} runs and stores, expected at most {MAX_SOURCES}; name some of them")
    return _named(found)


def _source(path: Path) -> ViewerSource | None:
    if (path / CONFIG).is_file() and ((path / METRICS).is_file() or (path / CHECKPOINTS).is_dir()):
        return ViewerSource(path.name, path, "run", path)
    if CHECKPOINT_NAME.fullmatch(path.name) and is_store_in(path, path / REPLAY):
        run = path.parent.parent
        return ViewerSource(f"{run.name}/{path.name}", path, "checkpoint", run if (run / CONFIG).is_file() else None)
    if re.fullmatch("shard-[0-9]+", path.name) and is_store_in(path, path / STORE):
        return ViewerSource(f"{path.parent.name}/{path.name}", path / STORE, "store", None)
    return ViewerSource(path.name, path, "store", None) if is_store(path) else None


def _named(found: list[ViewerSource]) -> list[ViewerSource]:
    """Replace equal names of sources by their paths from the folder that has them all."""
    names = [one.name for one in found]

    def name(one: ViewerSource) -> str:
        equal = [other.path.parts for other in found if other.name == one.name]
        shared = os.path.commonprefix(equal)  # noqa: RUF071 -- of parts
        return "/".join(one.path.parts[len(shared) :]) or one.name

    return [replace(one, name=name(one)) if names.count(one.name) > 1 else one for one in found]


def _folders(path: Path) -> list[Path]:
    """Return the folders in a folder, without links; none if it is no readable folder."""
    try:
        with os.scandir(path) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
