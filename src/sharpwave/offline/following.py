"""A store's folder, followed as another process writes to it: what was read once is not read again."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from sharpwave.errors import DamagedError
from sharpwave.format.region import ALIGNMENT, FIRST, Damage, Record
from sharpwave.native.directory import IrregularError
from sharpwave.offline.episodes import Contents, Survey, assemble, read_contents
from sharpwave.offline.scan import (
    Described,
    Progress,
    Reader,
    Segment,
    describe,
    misnamed,
    part_of,
    region_files,
    size_of,
)


@dataclass
class _File:
    """Region file as far as it was read: its records, the offset of the next one, and whether none will follow."""

    inode: int
    final: bool = False
    records: list[Record] = field(default_factory=list)
    next: int = FIRST
    contents: Contents = field(default_factory=Contents)


class Following:
    """Survey of a folder that is kept up to date. Nothing is locked or changed, and the store may be in use.

    Region files are only ever appended to, so of each file only the bytes behind its last known record are read. An
    update costs that, and O(segments + episodes).

    Attributes:
        survey: as of the last ``update``.

    Raises:
        FileNotFoundError: no store there.  DamagedError: ``store.json`` is not as a store writes it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._part = folder
        self._files: dict[Path, _File] = {}
        self.survey = Survey(folder, describe(folder))

    def update(self, progress: Callable[[int], Progress] = lambda total: lambda nbytes: None) -> bool:
        """Read what was written since the last call; return whether anything changed.

        Raises:
            FileNotFoundError, DamagedError: as the constructor; ``survey`` stays as it was.
        """
        described, part = describe(self.folder), part_of(self.folder)
        before = self.survey.described
        if (described.identity, part) != (before.identity, self._part):
            self._files, self._part = {}, part  # another checkpoint, or another store
        paths = region_files(self.folder)
        new = [path for path in paths if not self._is_read(path)]
        advance = progress(sum(size_of(path) - self._next(path) for path in new))
        changed = bool(self._files.keys() - set(paths)) or (
            described.annotations.manifest() != before.annotations.manifest()
        )
        files = {path: self._files[path] for path in paths if path in self._files}
        for path in new:
            known = files.get(path)
            files[path] = self._read(path, known, described, path == paths[-1], advance)
            changed |= files[path] is not known
        self._files = {path: files[path] for path in paths}
        if changed or not self.survey.regions:
            self.survey = assemble(self.folder, described, [one.contents for one in self._files.values()])
        return changed

    def unpack(self, one: Segment, only: Collection[str]) -> dict[str, npt.NDArray[Any]]:
        """Decode some columns of a segment of the survey. Cost: reading that segment.

        Raises:
            DamagedError: it was deleted meanwhile, or cannot be decoded.
        """
        known = self._files.get(one.path)
        try:
            if known is None:
                raise DamagedError("the file was deleted meanwhile")
            identity = self.survey.described.identity
            with Reader(one.path, identity, begin=size_of(one.path), known=known.records) as reader:
                if reader.region is None:
                    raise DamagedError("no region's header")
                return reader.unpack(one.record, self.survey.described, only)[1]
        except (OSError, DamagedError) as error:
            raise DamagedError(f"{one.path}: byte {one.record.offset:,}: {error}") from error

    def _is_read(self, path: Path) -> bool:
        known = self._files.get(path)
        return known is not None and known.final and known.inode == _inode(path)

    def _next(self, path: Path) -> int:
        known = self._files.get(path)
        return 0 if known is None else known.next

    def _read(self, path: Path, known: _File | None, described: Described, newest: bool, advance: Progress) -> _File:
        """Read a file's new records; return ``known`` itself if there are none."""
        inode = _inode(path)
        known = known if known is not None and known.inode == inode else None
        begin, records = (FIRST, []) if known is None else (known.next, known.records)
        try:
            with Reader(path, described.identity, newest, begin, records) as reader:
                same = known is not None and [*reader.damages, *misnamed(reader)] == known.contents.damages
                if known is not None and same and not reader.records:
                    known.final = not newest
                    return known
                records = [*records, *reader.records]
                new = read_contents(reader, records, described, advance)
        except FileNotFoundError:
            return _File(inode)
        except IrregularError as error:
            return _File(inode, contents=Contents(damages=[Damage(path, 0, 0, error.what)]))
        except OSError as error:
            what = f"cannot be read: {error.strerror or error}"
            return _File(inode, contents=Contents(damages=[Damage(path, 0, size_of(path), what)]))
        if known is not None:
            new.segments = [*known.contents.segments, *new.segments]
            new.notes = [*known.contents.notes, *new.notes]
            new.dictionary_bytes += known.contents.dictionary_bytes
        # What looks damaged may be half written: it is looked at again.
        ends = [record.offset + record.nbytes for record in records]
        end = -(-max(ends, default=begin) // ALIGNMENT) * ALIGNMENT
        return _File(inode, not newest, records, end, new)


def _inode(path: Path) -> int:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return -1
