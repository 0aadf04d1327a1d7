"""Read-only scan of a store's folder: nothing is changed or locked, and the files may hold any bytes.

Another process may be using the folder. So a deleted file is no damage, and bytes that look damaged are read again
before they are reported: they may have been half written.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sharpwave.arrays import Bools, Ints
from sharpwave.disk.region_scan import Scan, SegmentReader, refused, scan_region
from sharpwave.disk.state_files import file_name, read_named
from sharpwave.disk.store_folder import COLUMNS, FOLDER, MANIFEST, read_manifest
from sharpwave.errors import NO_STATE, DamagedError
from sharpwave.format import marked_rows
from sharpwave.format.annotations import Annotations
from sharpwave.format.checkpoint_state import STATE, read_state
from sharpwave.format.region import (
    ALIGNMENT,
    DICTIONARY,
    FIRST,
    SEGMENT,
    SHARED,
    TAIL,
    Damage,
    Identity,
    Record,
    Region,
)
from sharpwave.format.segment_header import DELETED_STEPS, Header
from sharpwave.json_values import encode
from sharpwave.memory.segment_index import LEAF_BITS
from sharpwave.memory.segment_layout import SegmentLayout
from sharpwave.native import descriptors
from sharpwave.native.directory import kind_of
from sharpwave.persistence.column_files import DELETED
from sharpwave.persistence.settings import Settings
from sharpwave.sampling.sampler_protocol import checked_array
from sharpwave.spec import Spec
from sharpwave.validation import max_lanes

Progress = Callable[[int], None]
"""Receives the number of bytes read since the last call."""

LOOK_AGAIN_S = 0.2
"""Seconds that a writing process has to finish a record."""
LOOKS = 5
"""Number of tries, where files are replaced while they are read, so that half of each was read."""

LIMITS = ("capacity", "ram", "disk_limit", "seed")


def no_progress(total: int) -> Progress:
    """Ignore the number of bytes to read, and the numbers read."""
    return lambda nbytes: None


@dataclass(frozen=True)
class Described:
    """Contents of ``store.json``.

    Attributes:
        part: folder of the regions, and of a checkpoint's state.
        limits: ``capacity``, ``ram``, ``disk_limit`` and ``seed``, as given for the store.
        codecs: by field, as given.
        annotations: of the store and of its lanes.
        column_files: name, and ``mark_of``, of each file of deleted steps and of values of columns added later.
        deletions: whether steps were deleted.
    """

    part: Path
    spec: Spec
    identity: Identity
    segment_steps: int
    limits: dict[str, int | None]
    codecs: dict[str, str]
    annotations: Annotations
    column_files: frozenset[tuple[Any, ...]] = frozenset()
    deletions: bool = False

    def fields(self) -> dict[str, dict[str, Any]]:
        """Return the fields by name as JSON."""
        return {
            name: {
                "shape": list(field.shape),
                "dtype": field.dtype,
                "stack": field.stack,
                "every": field.every,
                "pad": field.pad,
                "ragged": field.ragged,
                "max_length": field.max_length,
                "shared": field.shared,
                "codec": self.codecs[name],
                "metadata": encode(field.metadata, "metadata"),
            }
            for name, field in self.spec.fields.items()
        }

    @cached_property
    def layout(self) -> SegmentLayout:
        """Layout of the store's segments."""
        return SegmentLayout(self.spec, self.segment_steps, on_disk=True)

    def reader(self, read: Callable[[Record], bytes], dictionaries: Sequence[Record]) -> SegmentReader:
        """Return a reader of the store's segments.  Args: as ``SegmentReader``."""
        return SegmentReader(self.layout, max_lanes(self.limits["capacity"]), read, dictionaries)


@dataclass(frozen=True)
class Segment:
    """Segment found intact: its record and its header."""

    path: Path
    record: Record
    header: Header

    @property
    def end(self) -> int:
        """The lane's number of the step after its last one."""
        return self.header.first_step + self.header.steps


@dataclass(frozen=True)
class Chain:
    """A lane's valid segments, in order, and their gaps and overlaps.

    Attributes:
        gaps: (first missing step, first step after it).
        overlaps: segments whose first steps another segment holds, too.
        deleted: by segment with any, which of its steps were deleted: bool [steps].
    """

    segments: list[Segment]
    gaps: list[tuple[int, int]]
    overlaps: list[Segment]
    deleted: dict[Record, Bools] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Steps in the segments that were not deleted."""
        deleted = sum(np.count_nonzero(self.deleted[one.record]) for one in self.segments if one.record in self.deleted)
        return sum(one.header.steps for one in self.segments) - int(deleted)

    def described(self) -> dict[str, int]:
        """Return the numbers of its segments and steps as JSON."""
        first, last = self.segments[0].header.first_step, self.segments[-1].end - 1
        return {"segments": len(self.segments), "steps": self.steps, "first_step": first, "last_step": last}


# the folder


def describe(folder: Path) -> Described:
    """Return the contents of a folder's ``store.json``.

    Raises:
        FileNotFoundError: no store there.  DamagedError: not as a store writes it.
    """
    manifest = read_manifest(folder)
    said = Settings.said(folder, manifest)
    limits = {name: getattr(said, name) for name in LIMITS}
    identity = Identity(bytes.fromhex(manifest["store"]), said.spec.schema_hash)
    annotations = Annotations(manifest.get("annotations"))
    part = _part(folder, manifest)
    files: frozenset[tuple[Any, ...]] = frozenset()
    with contextlib.suppress(OSError):  # none, or one was replaced meanwhile: the next look sees it
        if part == folder and not (folder / COLUMNS).is_symlink():
            files = frozenset((path.name, mark_of(path)) for path in (folder / COLUMNS).iterdir())
    deletions = DELETED_STEPS in manifest.get("requires", [])
    return Described(part, said.spec, identity, said.segment_steps, limits, said.codecs, annotations, files, deletions)


def mark_of(path: Path) -> tuple[int, int, int]:
    """Return what changes with a file that is replaced as a whole: its inode, time and size.  Raises: OSError."""
    found = path.lstat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def is_store(folder: Path) -> bool:
    """Return whether the folder is or was a store's: it has ``store.json``, or region files without it."""
    return os.path.lexists(folder / MANIFEST) or bool(region_files(folder, part_of(folder)))


def part_of(folder: Path) -> Path:
    """Return the folder of the regions, and of a checkpoint's state: the one that ``store.json`` names, or else the
    existing one."""
    try:
        return _part(folder, read_manifest(folder))
    except (OSError, DamagedError):
        parts = [path for path in folder.glob("*") if re.fullmatch("[0-9]{1,10}", path.name)]
        return folder if not parts or (folder / FOLDER).is_dir() else max(parts, key=lambda path: int(path.name))


def _part(folder: Path, manifest: Mapping[str, Any]) -> Path:
    return folder / str(manifest["checkpoint"]) if manifest.get("checkpoint") else folder


def region_files(folder: Path, part: Path) -> list[Path]:
    """Return a store's region files, oldest first, and other files named like one."""
    return [] if irregular_folders(folder, part) else sorted((part / FOLDER).glob("*.region"))


def irregular_folders(folder: Path, part: Path) -> list[Damage]:
    """Return damage for anything but folders in the place of region folders: links are not followed."""
    for path in dict.fromkeys((part, part / FOLDER)):
        if path != folder:
            with contextlib.suppress(OSError):  # deleted meanwhile, or a file in the place of the folder
                mode = path.lstat().st_mode
                if not stat.S_ISDIR(mode):
                    return [Damage(path, 0, 0, f"{kind_of(mode)}, expected a folder")]
    return []


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 for one that was deleted."""
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


# region files


@contextlib.contextmanager
def opened(
    path: Path, described: Described | None, growing: bool = False, begin: int = FIRST, known: Sequence[Record] = ()
) -> Iterator[tuple[Region | None, Scan, SegmentReader | None]]:
    """Provide an open region file, its records, and a reader of its segments; ``None`` unless the store is described.

    Args:
        growing: another process may be writing to it, and is given time to finish a record.
        begin: offset of the first record to look for. ``known``: dictionaries before it, found earlier.

    Damage is in both of two reads.

    Raises:
        OSError: FileNotFoundError if the file was deleted.
    """
    identity = None if described is None else described.identity
    region, scan = scan_region(path, identity, None, begin)
    if before := scan.damages:
        if growing:
            time.sleep(LOOK_AGAIN_S)
        if region is not None:
            region.close()
        region, scan = scan_region(path, identity, None, begin)
        # A half-written record now is another one than before.
        scan.damages = [damage for damage in scan.damages if damage in before]

    def content(record: Record) -> bytes:
        assert region is not None
        return descriptors.pread(region.descriptor, record.nbytes, record.offset)

    try:
        yield region, scan, None if described is None else described.reader(content, [*known, *scan.dictionaries])
    finally:
        if region is not None:
            region.close()


Look = Callable[[SegmentReader, Record], tuple[Header, Any]]
"""Decodes a segment; returns its header and an outline.  Raises: DamagedError, OSError."""


@dataclass
class FileScan:
    """Region file as far as it was read.

    Attributes:
        scan: its records; bytes outside records are as of the last read: those behind the last record may be a
            half-written one.
        final: whether no record will follow. ``next``: offset of the next one.
        used: bytes up to its last record's end; ``None``: its header cannot be trusted.
        segments: segments with steps, each with its outline. ``undecodable``: damage by segment.
    """

    path: Path
    inode: int
    scan: Scan = field(default_factory=Scan)
    final: bool = False
    next: int = FIRST
    nbytes: int = 0
    used: int | None = None
    segments: list[tuple[Segment, Any]] = field(default_factory=list)
    undecodable: dict[Record, Damage] = field(default_factory=dict)

    def count(self, kind: int, *, sound: bool = False) -> int:
        """Return the number of intact records of a kind; ``sound``: of decodable ones among them."""
        return sum(one.kind == kind and not (sound and one in self.undecodable) for one in self.scan.records)

    def described(self) -> dict[str, int | None]:
        """Return the numbers of its bytes and records as JSON."""
        kinds = {"segments": SEGMENT, "tails": TAIL, "dictionaries": DICTIONARY, "shared_values": SHARED}
        return {"bytes": self.nbytes, "used": self.used} | {name: self.count(kind) for name, kind in kinds.items()}

    @property
    def damages(self) -> list[Damage]:
        """All damage in the file."""
        return [*self.scan.damages, *self.undecodable.values()]

    def torn_with(self, damages: list[Damage]) -> list[Damage]:
        """Return the torn bytes by another read, from ``next`` on: earlier bytes are not read again."""
        torn = (one for one in self.scan.damages if one.offset >= FIRST and one.offset + one.nbytes <= self.next)
        return [*torn, *damages]

    def moved(self, path: Path) -> FileScan:
        """Return it as of another link to the file."""
        segments = [(replace(one, path=path), outline) for one, outline in self.segments]
        return replace(self, path=path, segments=segments, final=False)

    def with_more(
        self, region: Region | None, more: Scan, reader: SegmentReader | None, look: Look, advance: Progress
    ) -> FileScan:
        """Return it with later records, after a look at each segment if there is a reader.

        A survey made of this scan stays as it is.
        """
        found = replace(self, scan=Scan(), segments=[*self.segments], undecodable={**self.undecodable})
        found.scan.add(self.scan)
        found.scan.add(more)
        found.scan.damages = self.torn_with(more.damages)
        found.nbytes, told = size_of(self.path), self.next
        for record in more.records:
            advance(record.offset - told)
            told = record.offset
            if reader is not None and record.kind in (SEGMENT, TAIL):
                try:
                    header, outline = look(reader, record)
                except (DamagedError, OSError) as error:
                    found.undecodable[record] = refused(self.path, record, error)
                    continue
                if header.steps:  # otherwise only frames of an episode under way
                    found.segments.append((Segment(self.path, record, header), outline))
        advance(max(0, found.nbytes - told))
        if more.records:  # bytes behind the last one may be half written: they are read again
            last = more.records[-1]
            found.next = -(-(last.offset + last.nbytes) // ALIGNMENT) * ALIGNMENT
        if region is not None and (more.records or self.used is None):
            found.used = region.used
        return found


class Deletions(NamedTuple):
    """Deleted steps of a store: their ids, rising, damage of the file that has them, and what changes with it."""

    ids: Ints = np.zeros(0, np.int64)
    damages: Sequence[Damage] = ()
    mark: tuple[int, ...] | None = None


class FolderScan:
    """Region files of a folder, as far as they were read.

    Region files are only ever appended to, so an update reads of each file only the bytes behind its last known record.

    Args:
        look: called with each intact segment; without a description of the store they are only counted.
        known: files read by another scan with this ``look``: links to them are read from there on.

    Attributes:
        files: by path, oldest first.
        deletions: deleted steps of a store that is no checkpoint.
    """

    def __init__(self, folder: Path, look: Look, known: Mapping[Path, FileScan] | None = None) -> None:
        self.folder, self._look = folder, look
        self._known = {one.inode: one for one in (known or {}).values() if one.used is not None and not one.damages}
        self.files: dict[Path, FileScan] = {}
        self.deletions = Deletions()

    def update(self, described: Described | None, progress: Callable[[int], Progress] = no_progress) -> bool:
        """Read data written since the last call; return whether anything changed.  Cost: the new bytes.

        A store frees segments of deleted steps, and then forgets which these were: so they are read before its region
        files, too, and all of it again where they changed meanwhile. So it is where a region file vanished, whose
        segments were copied to another one.
        """
        changed, last = False, self.deletions.mark
        before = [self._read_deletions(described)]
        for _ in range(LOOKS):
            changed |= self._read_files(described, progress)
            before.append(self._read_deletions(described))
            if before[-1].mark == before[-2].mark and all(_inode(path) >= 0 for path in self.files):
                break
        else:  # the marks keep changing: a step that was marked before this call is deleted in any case
            self.deletions = before[-1]._replace(ids=np.unique(np.concatenate([one.ids for one in before])), mark=None)
        return changed or self.deletions.mark != last

    def _read_deletions(self, described: Described | None) -> Deletions:
        """Read which steps were deleted, unless the file is the same as the last time."""
        if described is not None and described.part == self.folder:
            mark, damages = None, list[Damage]()
            with contextlib.suppress(OSError):
                mark = mark_of(_deletions_of(self.folder, described))
            if mark is None or mark != self.deletions.mark:
                self.deletions = Deletions(_deleted(self.folder, described, damages), damages, mark)
        return self.deletions

    def _read_files(self, described: Described | None, progress: Callable[[int], Progress]) -> bool:
        paths = region_files(self.folder, part_of(self.folder) if described is None else described.part)
        old = {path: file for path, file in self.files.items() if file.inode == _inode(path) and path in paths}
        changed = old.keys() != self.files.keys()  # deleted, or replaced
        for path in paths:
            if path not in old and (other := self._known.get(_inode(path))) is not None:
                old[path] = other.moved(path)
        new = [path for path in paths if path not in old or not old[path].final]
        advance = progress(sum(size_of(path) - (old[path].next if path in old else 0) for path in new))
        files: dict[Path, FileScan] = {}
        for path in paths:
            # Records are appended to the newest file only: one with successors no longer changes.
            known, newest = old.get(path), path == paths[-1]
            files[path] = self._read(path, known, described, newest, advance) if path in new else old[path]
            changed |= files[path] is not self.files.get(path)
        self.files = files
        return changed

    def _read(
        self, path: Path, known: FileScan | None, described: Described | None, newest: bool, advance: Progress
    ) -> FileScan:
        """Read a file's new records; return ``known`` itself if there are none."""
        inode = _inode(path)
        scan = known or FileScan(path, inode)
        try:
            with opened(path, described, newest, scan.next, scan.scan.dictionaries) as (region, more, reader):
                same = known is not None and not more.records and known.nbytes == size_of(path)
                if not same or scan.torn_with(more.damages) != scan.scan.damages:
                    scan = scan.with_more(region, more, reader, self._look, advance)
                scan.final = not newest
                return scan
        except FileNotFoundError:
            return FileScan(path, inode)
        except OSError as error:
            what = f"cannot be read: {error.strerror or error}"
            return FileScan(path, inode, Scan(damages=[Damage(path, 0, size_of(path), what)]))


def _inode(path: Path) -> int:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return -1


# chains of segments


def chains(folder: Path, described: Described, scan: FolderScan, damages: list[Damage]) -> tuple[dict[int, Chain], int]:
    """Return the valid segments, by lane: held ones, one record of each. Also return the number of superseded records.

    Args:
        damages: damage of the deleted steps and of a checkpoint is appended: of its state, or segments that its files
            lack.
    """
    files = scan.files
    found = {one.record: one for file in files.values() for one, _ in file.segments}
    part, stride = described.part, described.segment_steps
    ids, deleted = (None, scan.deletions.ids) if part == folder else _checkpoint(described, damages)
    damages += scan.deletions.damages
    if ids is not None:
        for id_ in sorted(ids - {record.id for record in found if record.kind != TAIL}):
            what = f"segment {id_}: held by the checkpoint, but missing from its files"
            damages.append(Damage(part / FOLDER, 0, 0, what, id_))
        found = {record: one for record, one in found.items() if record.kind == TAIL or record.id in ids}
    lanes: dict[int, list[Segment]] = {}
    valid = Scan([*found])
    for file in files.values():
        valid.notes |= file.scan.notes
    for versions in valid.versions(stride, valid.evictions(stride)):
        one = found[versions[0]]
        lanes.setdefault(one.header.lane, []).append(one)
    result = {lane: _chain(lanes[lane]) for lane in sorted(lanes)}
    for chain in result.values() if len(deleted) else ():
        chain.deleted.update({one.record: rows for one in chain.segments if (rows := _marked(one, deleted)).any()})
    return result, len(found) - sum(len(chain.segments) + len(chain.overlaps) for chain in result.values())


def _checkpoint(described: Described, damages: list[Damage]) -> tuple[set[int] | None, Ints]:
    """Return ids of the segments that a checkpoint holds, as others in its files are evicted, and of its deleted steps,
    rising. ``None``: unreadable."""
    path, ids, deleted = described.part / STATE, None, np.zeros(0, np.int64)
    log: Any = None
    try:
        log = read_state(path).get("log")
        ids = set(checked_array(log, "ids", np.int64).tolist())
    except (OSError, ValueError) as error:
        whole = isinstance(error, (OSError, DamagedError))
        what = str(error) if whole else f"not a checkpoint's state ({error})"
        damages.append(Damage(path, 0, size_of(path), what.removeprefix(f"{path}: ")))
    with contextlib.suppress(*NO_STATE):
        deleted = _deleted_ids(log["deleted"], described)
    return ids, deleted


def _deletions_of(folder: Path, described: Described) -> Path:
    return folder / COLUMNS / file_name(DELETED, described.identity.store.hex())


def _deleted(folder: Path, described: Described, damages: list[Damage]) -> Ints:
    """Return the ids of deleted steps of a store in use, rising; none where the file with them is damaged."""
    path = _deletions_of(folder, described)
    try:
        return _deleted_ids(read_named(path), described)
    except FileNotFoundError:
        if described.deletions:
            damages.append(Damage(path, 0, 0, "is missing: steps that were deleted are there again"))
    except (OSError, *NO_STATE) as error:
        what = f"deleted steps: {error}".replace(f"{path}: ", "")
        damages.append(Damage(path, 0, size_of(path), what))
    return np.zeros(0, np.int64)


def _deleted_ids(state: Any, described: Described) -> Ints:
    """Return the ids of deleted steps in a state, rising.  Raises: NO_STATE."""
    leaves, generations = marked_rows.unpacked(marked_rows.DELETED, state, described.segment_steps)
    return np.sort(generations << LEAF_BITS | leaves)


def _marked(one: Segment, deleted: Ints) -> Bools:
    """Return which of a segment's steps are among the ids ``deleted``."""
    begin, end = np.searchsorted(deleted, [one.record.id, one.record.id + one.header.steps])
    rows = np.zeros(one.header.steps, np.bool_)
    rows[deleted[begin:end] - one.record.id] = True
    return rows


def _chain(segments: list[Segment]) -> Chain:
    segments.sort(key=lambda one: (one.header.first_step, one.record.kind == TAIL, one.record.sequence))
    chain = Chain([], [], [])
    for one in segments:
        last = chain.segments[-1] if chain.segments else None
        # Opening drops the last flushed row of an episode that went on.
        given_up = last is not None and last.record.kind == TAIL and one.header.first_step == last.end - 1
        if last is not None and one.header.first_step < last.end and not given_up:
            if one.record.kind != TAIL:  # rows that were flushed, and dropped when the store was reopened
                chain.overlaps.append(one)
            continue
        if last is not None and one.header.first_step > last.end:
            chain.gaps.append((last.end, one.header.first_step))
        chain.segments.append(one)
    return chain
