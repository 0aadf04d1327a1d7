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
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.disk.region_notes import MAX_NOTE_BYTES, Evicted, Evictions, unpack_evicted
from sharpwave.disk.store_folder import FOLDER, MANIFEST, read_manifest
from sharpwave.errors import DamagedError
from sharpwave.format import segment
from sharpwave.format.annotations import Annotations
from sharpwave.format.checkpoint_state import STATE, read_state
from sharpwave.format.region import (
    ALIGNMENT,
    DICTIONARY,
    FIRST,
    NOTE,
    SEGMENT,
    TAIL,
    Damage,
    Identity,
    Record,
    read_region,
)
from sharpwave.format.segment_header import Header
from sharpwave.json_values import encode
from sharpwave.memory.segment_layout import SegmentLayout, layout_of
from sharpwave.native import descriptors
from sharpwave.native.directory import kind_of
from sharpwave.persistence.segment_reader import SegmentReader, max_slots, ranked, segment_damage
from sharpwave.persistence.settings import Settings
from sharpwave.sampling.protocol import checked_array
from sharpwave.spec import Spec
from sharpwave.validation import max_lanes

Progress = Callable[[int], None]
"""Receives the number of bytes read since the last call."""

LOOK_AGAIN_S = 0.2
"""Seconds that a writing process has to finish a record."""
LOOKS = 5
"""Number of retries for a checkpoint that was replaced while it was read, so that half of each was read."""

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
    """

    part: Path
    spec: Spec
    identity: Identity
    segment_steps: int
    limits: dict[str, int | None]
    codecs: dict[str, str]
    annotations: Annotations

    def fields(self) -> dict[str, dict[str, Any]]:
        """Return the fields by name as JSON."""
        return {
            name: {
                "shape": list(field.shape),
                "dtype": field.dtype,
                "stack": field.stack,
                "every": field.every,
                "pad": field.pad,
                "codec": self.codecs[name],
                "metadata": encode(field.metadata, "metadata"),
            }
            for name, field in self.spec.fields.items()
        }

    @cached_property
    def layout(self) -> SegmentLayout:
        """Layout of the store's segments."""
        return layout_of(self.spec, self.segment_steps, on_disk=True)


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
    """

    segments: list[Segment]
    gaps: list[tuple[int, int]]
    overlaps: list[Segment]

    @property
    def steps(self) -> int:
        """Steps in the segments."""
        return sum(one.header.steps for one in self.segments)

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
    return Described(_part(folder, manifest), said.spec, identity, said.segment_steps, limits, said.codecs, annotations)


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


class Reader:
    """Region file, open for reading.

    Args:
        described: of the store; ``None``: unknown, and no segment can be decoded.
        growing: another process may be writing to it, and is given time to finish a record.
        begin: offset of the first record to look for. ``known``: dictionaries before it, found earlier.

    Attributes:
        records: records found from ``begin`` on.
        damages: damage found in both of two reads.

    Raises:
        OSError: FileNotFoundError if the file was deleted.
    """

    def __init__(
        self,
        path: Path,
        described: Described | None,
        growing: bool = False,
        begin: int = FIRST,
        known: Collection[Record] = (),
    ) -> None:
        self.path, self._described = path, described
        identity = None if described is None else described.identity
        self.region, self.records, self.damages = read_region(path, identity, None, begin)
        if self.damages:
            if growing:
                time.sleep(LOOK_AGAIN_S)
            self.close()
            before = self.damages
            self.region, self.records, self.damages = read_region(path, identity, None, begin)
            # A half-written record now is another one than before.
            self.damages = [damage for damage in self.damages if damage in before]
        dictionaries = [record for record in (*known, *self.records) if record.kind == DICTIONARY]
        self._held = {(record.column, record.id) for record in dictionaries}
        if described is not None:
            lanes, by_key = max_lanes(described.limits["capacity"]), {one.id: one for one in dictionaries}
            self._segments = SegmentReader(described.layout, lanes, self.content, by_key)

    @property
    def described(self) -> Described:
        """Description of the store, which must be known."""
        assert self._described is not None
        return self._described

    def close(self) -> None:
        """Close the file."""
        if self.region is not None:
            self.region.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def content(self, record: Record) -> bytes:
        """Return a record's content.  Raises: OSError."""
        assert self.region is not None
        return descriptors.pread(self.region.descriptor, record.nbytes, record.offset)

    def _payload(self, record: Record) -> bytes:
        """Return a segment's bytes, if its header's sizes fit into memory.  Raises: DamagedError."""
        payload = self._segments.payload(record)
        header = segment.parse(payload, self.described.spec)
        self._segments.check_header(header, sealed=record.kind == SEGMENT)
        for column, placed in enumerate(header.placed):
            if placed.dictionary and (column, placed.dictionary) not in self._held:
                raise DamagedError(
                    f"column {column} refers to dictionary {placed.dictionary:016x}, which this region does not hold"
                )
        return payload

    def verify(self, record: Record) -> tuple[Header, npt.NDArray[np.uint8]]:
        """Decode every row of a segment; return its header and flags.  Raises: DamagedError."""
        return segment.verify(self._payload(record), self.described.spec, self._segments.dictionary)

    def unpack(self, record: Record, only: Collection[str] | None = None) -> tuple[Header, dict[str, npt.NDArray[Any]]]:
        """Decode a segment, or some of its columns.

        Raises: DamagedError: also if its header's sizes could never fit into memory.
        """
        limit = self.described.layout.chunk_bytes
        return segment.unpack(self._payload(record), self.described.spec, self._segments.dictionary, only, limit)


Look = Callable[[Reader, Record], tuple[Header, Any]]
"""Decodes a segment; returns its header and an outline.  Raises: DamagedError, OSError."""


@dataclass
class FileScan:
    """Region file as far as it was read.

    Attributes:
        final: whether no record will follow. ``next``: offset of the next one.
        counts: intact records by kind. ``sound``: decodable ones among them.
        used: bytes up to its last record's end; ``None``: its header cannot be trusted.
        segments: segments with steps, each with its outline.
        notes: of evictions, each with its record's sequence number.
        torn: bytes outside records, as of the last read; bytes behind the last record may be a half-written one.
            ``undecodable``: segments.
    """

    path: Path
    inode: int
    final: bool = False
    next: int = FIRST
    dictionaries: list[Record] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    sound: Counter[int] = field(default_factory=Counter)
    nbytes: int = 0
    used: int | None = None
    segments: list[tuple[Segment, Any]] = field(default_factory=list)
    notes: list[tuple[Evicted, int]] = field(default_factory=list)
    torn: list[Damage] = field(default_factory=list)
    undecodable: list[Damage] = field(default_factory=list)

    def described(self) -> dict[str, int | None]:
        """Return the numbers of its bytes and records as JSON."""
        kinds = {"segments": SEGMENT, "tails": TAIL, "dictionaries": DICTIONARY}
        return {"bytes": self.nbytes, "used": self.used} | {name: self.counts[kind] for name, kind in kinds.items()}

    @property
    def damages(self) -> list[Damage]:
        """All damage in the file."""
        return [*self.torn, *self.undecodable]

    def torn_with(self, damages: list[Damage]) -> list[Damage]:
        """Return the torn bytes by another read, from ``next`` on: earlier bytes are not read again."""
        return [*(one for one in self.torn if one.offset >= FIRST and one.offset + one.nbytes <= self.next), *damages]

    def read(self, reader: Reader, look: Look | None, advance: Progress) -> None:
        """Add a reader's records, and look at each segment; ``None``: count them."""
        nbytes, told = size_of(reader.path), self.next
        self.nbytes = nbytes
        self.torn = self.torn_with(reader.damages)
        for record in reader.records:
            self.counts[record.kind] += 1
            end = record.offset + record.nbytes
            self.next = -(-end // ALIGNMENT) * ALIGNMENT  # bytes behind it may be half written: they are read again
            advance(record.offset - told)
            told = record.offset
            if record.kind == DICTIONARY:
                self.dictionaries.append(record)
            elif record.kind == NOTE:
                note = unpack_evicted(reader.content(record)) if record.nbytes <= MAX_NOTE_BYTES else None
                self.notes += [] if note is None else [(note, record.sequence)]
                continue
            elif look is not None:
                try:
                    header, outline = look(reader, record)
                except (DamagedError, OSError) as error:
                    self.undecodable.append(segment_damage(reader.path, record, error))
                    continue
                if header.steps:  # otherwise only frames of an episode under way
                    self.segments.append((Segment(reader.path, record, header), outline))
            self.sound[record.kind] += 1
        advance(max(0, nbytes - told))
        if reader.region is not None:
            self.used = self.used if self.used is not None and not reader.records else reader.region.used


class FolderScan:
    """Region files of a folder, as far as they were read.

    Region files are only ever appended to, so an update reads of each file only the bytes behind its last known record.

    Args:
        look: called with each intact segment; ``None``: they are only counted.

    Attributes:
        files: by path, oldest first.
    """

    def __init__(self, folder: Path, look: Look | None) -> None:
        self.folder, self._look = folder, look
        self.files: dict[Path, FileScan] = {}

    def update(self, described: Described | None, progress: Callable[[int], Progress] = no_progress) -> bool:
        """Read data written since the last call; return whether anything changed.  Cost: the new bytes."""
        paths = region_files(self.folder, part_of(self.folder) if described is None else described.part)
        old = {path: file for path, file in self.files.items() if file.inode == _inode(path) and path in paths}
        changed = old.keys() != self.files.keys()  # deleted, or replaced
        new = [path for path in paths if path not in old or not old[path].final]
        advance = progress(sum(size_of(path) - (old[path].next if path in old else 0) for path in new))
        files = {}
        for path in paths:
            # Records are appended to the newest file only: one with successors no longer changes.
            known, newest = old.get(path), path == paths[-1]
            files[path] = self._read(path, known, described, newest, advance) if path in new else old[path]
            changed |= files[path] is not known
        self.files = files
        return changed

    def _read(
        self, path: Path, known: FileScan | None, described: Described | None, newest: bool, advance: Progress
    ) -> FileScan:
        """Read a file's new records; return ``known`` itself if there are none."""
        inode = _inode(path)
        scan = known or FileScan(path, inode)
        try:
            with Reader(path, described, newest, scan.next, scan.dictionaries) as reader:
                same = known is not None and not reader.records and known.nbytes == size_of(path)
                if known is not None and same and known.torn_with(reader.damages) == known.torn:
                    known.final = not newest
                    return known
                # A survey made of the scan so far stays as it is.
                scan = replace(scan, segments=[*scan.segments], notes=[*scan.notes], undecodable=[*scan.undecodable])
                scan.dictionaries, scan.counts, scan.sound = [*scan.dictionaries], scan.counts.copy(), scan.sound.copy()
                scan.final = not newest
                scan.read(reader, self._look, advance)
                return scan
        except FileNotFoundError:
            return FileScan(path, inode)
        except OSError as error:
            what = f"cannot be read: {error.strerror or error}"
            return FileScan(path, inode, torn=[Damage(path, 0, size_of(path), what)])


def _inode(path: Path) -> int:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return -1


# chains of segments


def chains(
    folder: Path, described: Described, files: Mapping[Path, FileScan], damages: list[Damage]
) -> tuple[dict[int, Chain], int]:
    """Return the valid segments, by lane: held ones, one record of each. Also return the number of superseded records.

    Args:
        damages: damage of a checkpoint is appended: of its state, or segments that its files lack.
    """
    found = {one.record: one for file in files.values() for one, _ in file.segments}
    part, stride = described.part, described.segment_steps
    ids = None if part == folder else _checkpoint_ids(part / STATE, damages)
    if ids is not None:
        for id_ in sorted(ids - {record.id for record in found if record.kind != TAIL}):
            what = f"segment {id_}: held by the checkpoint, but missing from its files"
            damages.append(Damage(part / FOLDER, 0, 0, what, id_))
        found = {record: one for record, one in found.items() if record.kind == TAIL or record.id in ids}
    evictions = Evictions(stride, max_slots(len(found)))
    for file in files.values():
        for note, sequence in file.notes:
            evictions.take(note, sequence, region=0)
    lanes: dict[int, list[Segment]] = {}
    for versions in ranked(found, stride, evictions):
        one = found[versions[0]]
        lanes.setdefault(one.header.lane, []).append(one)
    result = {lane: _chain(lanes[lane]) for lane in sorted(lanes)}
    return result, len(found) - sum(len(chain.segments) + len(chain.overlaps) for chain in result.values())


def _checkpoint_ids(path: Path, damages: list[Damage]) -> set[int] | None:
    """Return ids of the segments that a checkpoint holds; others in its files are evicted. ``None``: unreadable."""
    try:
        return set(checked_array(read_state(path).get("log"), "ids", np.int64).tolist())
    except (OSError, ValueError) as error:
        whole = isinstance(error, (OSError, DamagedError))
        what = str(error) if whole else f"not a checkpoint's state ({error})"
        damages.append(Damage(path, 0, size_of(path), what.removeprefix(f"{path}: ")))
        return None


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
