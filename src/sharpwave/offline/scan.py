"""Read-only scan of a store's folder: nothing is changed or locked, and the files may hold any bytes.

Another process may be using the folder. So a deleted file is no damage, and bytes that look damaged are read again
before they are reported: they may have been half written.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from sharpwave.codecs.registry import max_dictionary_bytes
from sharpwave.disk.evictions import Evictions
from sharpwave.disk.ownership import MARK
from sharpwave.disk.store_folder import FOLDER, LOCK, MANIFEST, QUARANTINE, read_manifest
from sharpwave.disk.view_files import VIEWS, partial_of, view_files
from sharpwave.errors import DamagedError, NewerVersionError
from sharpwave.format import segment
from sharpwave.format.annotations import Annotations
from sharpwave.format.checkpoint_state import STATE, read_state
from sharpwave.format.metadata import MAX_METADATA_BYTES
from sharpwave.format.region import DICTIONARY, FIRST, HEADER, TAIL, Damage, Identity, Record, Region, read_region
from sharpwave.format.region_notes import MAX_NOTE_BYTES, Evicted, unpack_evicted
from sharpwave.format.segment_header import Header
from sharpwave.memory.segment_layout import column_limits, max_rows, max_segment_bytes
from sharpwave.native import descriptors
from sharpwave.native.directory import IrregularError, kind_of
from sharpwave.persistence.adoption import max_slots
from sharpwave.persistence.recovery import newest
from sharpwave.persistence.settings import Settings
from sharpwave.sampling.protocol import checked_array
from sharpwave.spec import Spec
from sharpwave.validation import max_lanes

Progress = Callable[[int], None]
"""Receives the number of bytes read since the last call."""

LOOK_AGAIN_S = 0.2
"""How long a writing process has to finish a record."""

Noted = tuple[Evicted, int]
"""Note of evictions, and its record's sequence number."""

LIMITS = ("capacity", "ram", "disk_limit", "seed")


@dataclass(frozen=True)
class Described:
    """Contents of ``store.json``.

    Attributes:
        limits: ``capacity``, ``ram``, ``disk_limit`` and ``seed``, as given for the store.
        codecs: by field, as given.
        annotations: of the store and of its lanes.
    """

    spec: Spec
    identity: Identity
    segment_steps: int
    limits: dict[str, int | None]
    codecs: dict[str, str]
    annotations: Annotations

    @property
    def max_frames(self) -> int:
        """Limit of the frames in a segment."""
        return max_rows(self.spec, self.segment_steps)

    @property
    def max_segment_bytes(self) -> int:
        """Limit of the bytes of a segment: no codec makes rows larger."""
        rows = max_segment_bytes(self.spec, self.segment_steps)
        table = (segment.COLUMN.size + segment.ALIGNMENT) * (2 + len(self.spec.fields))
        return rows + segment.HEADER.size + table + MAX_METADATA_BYTES + segment.CHECKSUM.size

    @property
    def dictionary_bytes(self) -> int:
        """Limit of the bytes of a dictionary."""
        return max(max_dictionary_bytes(field.row_bytes) for field in self.spec.fields.values())


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
    """A lane's segments that count, in order, and where two of them do not adjoin.

    Attributes:
        gaps: (first missing step, first step after it).
        overlaps: segments whose first steps another has as well.
    """

    segments: list[Segment]
    gaps: list[tuple[int, int]]
    overlaps: list[Segment]


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
    return Described(said.spec, identity, said.segment_steps, limits, said.codecs, annotations)


def is_store(folder: Path) -> bool:
    """Return whether the folder is or was a store's: it has ``store.json``, or region files without it."""
    return os.path.lexists(folder / MANIFEST) or bool(region_files(folder))


def part_of(folder: Path) -> Path:
    """Return the folder of the regions, and of the state of a checkpoint: the one that ``store.json`` names, or else
    the one that exists."""
    try:
        number = int(read_manifest(folder).get("checkpoint", 0))
        return folder / str(number) if number else folder
    except (OSError, DamagedError):
        parts = sorted(
            (path for path in folder.glob("*") if re.fullmatch("[0-9]{1,10}", path.name)),
            key=lambda path: int(path.name),
        )
        return parts[-1] if parts and not (folder / FOLDER).is_dir() else folder


def region_files(folder: Path) -> list[Path]:
    """Return the folder's region files, oldest first, and other files named like one."""
    if irregular_folders(folder):
        return []
    return sorted((part_of(folder) / FOLDER).glob("*.region"))


def irregular_folders(folder: Path) -> list[Damage]:
    """Return damage for anything but folders in place of those of region files: links are not followed."""
    part = part_of(folder)
    for path in dict.fromkeys((part, part / FOLDER)):
        if path != folder and os.path.lexists(path):
            mode = path.lstat().st_mode
            if not stat.S_ISDIR(mode):
                return [Damage(path, 0, 0, f"{kind_of(mode)}, expected a folder")]
    return []


def checkpoint_ids(folder: Path) -> set[int] | None:
    """Return ids of the segments that a checkpoint holds; others in its files are evicted. ``None``: no checkpoint.

    Raises:
        DamagedError: its state is damaged.
    """
    part = part_of(folder)
    if part == folder:
        return None
    log = read_state(part / STATE).get("log")
    try:
        return set(checked_array(log, "ids", np.int64).tolist())
    except ValueError as error:
        raise DamagedError(f"{part / STATE}: not a checkpoint's state ({error})") from error


def strangers(folder: Path) -> list[Path]:
    """Return the files in a store's folder that are no part of it, including those that recovery set aside."""
    part = part_of(folder)
    known = {MANIFEST, LOCK, QUARANTINE, VIEWS, FOLDER if part == folder else part.name}
    found = [path for path in folder.glob("*") if path.name not in known]
    found += _strange_views(folder)
    if irregular_folders(folder):
        return sorted([*found, *(folder / QUARANTINE).glob("*")])
    if part != folder:
        found += [path for path in part.glob("*") if path.name not in (STATE, FOLDER, MARK)]
    found += [path for path in (part / FOLDER).glob("*") if path.suffix != ".region"]
    return sorted([*found, *(folder / QUARANTINE).glob("*")])


def _strange_views(folder: Path) -> list[Path]:
    """Return what is in the place of views' files and is none of the store's."""
    place = folder / VIEWS
    if os.path.lexists(place) and (place.is_symlink() or not place.is_dir()):
        return [place]
    ours = set(of_views(folder))
    return [path for path in place.glob("*") if path not in ours and partial_of(path.name) is None]


def of_views(folder: Path) -> list[Path]:
    """Return the files of the store's views in its folder; none where ``store.json`` does not name the store."""
    try:
        store = read_manifest(folder)["store"]
    except (OSError, DamagedError, NewerVersionError):
        return []
    return [path for path, named in view_files(folder) if named == store]


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 for one that was deleted."""
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


class Reader:
    """Region file, open for reading.

    Args:
        identity: of the store it should belong to; ``None``: any.
        growing: another process may be writing to it, and is given time to finish a record.
        begin: offset of the first record to look for. ``known``: the records before it, found earlier.

    Attributes:
        records: those found from ``begin`` on.
        region: ``None`` where the header cannot be trusted.
        damages: damage found in both of two reads.

    Raises:
        OSError: FileNotFoundError if the file was deleted.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity | None,
        growing: bool = False,
        begin: int = FIRST,
        known: Collection[Record] = (),
    ) -> None:
        self.path = path
        self.region: Region | None
        self.region, self.records, self.damages = read_region(path, identity, None, begin)
        if self.damages:
            if growing:
                time.sleep(LOOK_AGAIN_S)
            self.close()
            before = self.damages
            self.region, self.records, self.damages = read_region(path, identity, None, begin)
            # A half-written record now is another one than before.
            self.damages = [damage for damage in self.damages if damage in before]
        self._dictionaries = {
            (record.column, record.id): record for record in (*known, *self.records) if record.kind == DICTIONARY
        }
        self._keys = {record.id: record for record in self._dictionaries.values()}

    def close(self) -> None:
        """Close the file."""
        if self.region is not None:
            self.region.close()
            self.region = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def payload(self, record: Record) -> bytes:
        """Return a record's content.  Raises: OSError."""
        assert self.region is not None
        return descriptors.pread(self.region.descriptor, record.nbytes, record.offset)

    def note(self, record: Record) -> list[Noted]:
        """Return the note of evictions that a record is, if it is one.  Raises: OSError."""
        note = unpack_evicted(self.payload(record)) if record.nbytes <= MAX_NOTE_BYTES else None
        return [] if note is None else [(note, record.sequence)]

    def _check_header(self, payload: bytes, described: Described, min_steps: int) -> None:
        """Check that a segment's header fits the store and the region.  Raises: DamagedError."""
        header = segment.parse(payload, described.spec)
        steps, frames = described.segment_steps, described.max_frames
        if not min_steps <= header.steps <= steps or not header.context <= header.frames <= frames:
            raise DamagedError(
                f"{header.steps:,} steps, {header.frames:,} frames, {header.context:,} of them context; "
                f"expected {min_steps} to {steps:,} steps and at most {frames:,} frames"
            )
        limits = column_limits(described.spec, steps)
        if any(column.rows > most for column, most in zip(header.placed, limits, strict=True)):
            raise DamagedError(
                f"columns of {[column.rows for column in header.placed]} rows, expected at most {limits}"
            )
        if header.lane >= max_lanes(described.limits["capacity"]):
            raise DamagedError(
                f"lane {header.lane:,}, expected one below the capacity of {described.limits['capacity']} steps"
            )
        for column, placed in enumerate(header.placed):
            if placed.dictionary and (column, placed.dictionary) not in self._dictionaries:
                raise DamagedError(
                    f"column {column} refers to dictionary {placed.dictionary:016x}, which this region does not hold"
                )

    def verify(self, record: Record, described: Described) -> tuple[Header, npt.NDArray[np.uint8]]:
        """Decode every row of a segment; return its header and flags.  Raises: DamagedError."""
        payload = self._checked(record, described)
        return segment.verify(payload, described.spec, lambda key: self._dictionary(key, described))

    def _checked(self, record: Record, described: Described) -> bytes:
        """Return a segment's bytes, if its header's sizes fit into memory.  Raises: DamagedError."""
        if record.nbytes > described.max_segment_bytes:
            raise DamagedError(f"{record.nbytes:,} bytes, expected at most {described.max_segment_bytes:,}")
        payload = self.payload(record)
        self._check_header(payload, described, min_steps=0 if record.kind == TAIL else 1)
        return payload

    def _dictionary(self, key: int, described: Described) -> bytes:
        """Return a dictionary.  Raises: KeyError: not in this region.  DamagedError."""
        record = self._keys[key]
        if record.nbytes > described.dictionary_bytes:
            raise DamagedError(f"dictionary {key:016x} has {record.nbytes:,} bytes, expected at most "
                               f"{described.dictionary_bytes:,}")  # fmt: skip
        return self.payload(record)

    def unpack(
        self, record: Record, described: Described, only: Collection[str] | None = None
    ) -> tuple[Header, dict[str, npt.NDArray[Any]]]:
        """Decode a segment, or some of its columns.

        Raises: DamagedError: also if its header's sizes could never fit into memory.
        """
        payload = self._checked(record, described)
        try:
            return segment.unpack(
                payload, described.spec, lambda key: self._dictionary(key, described), only, described.max_segment_bytes
            )
        except DamagedError:
            raise
        except (ValueError, OverflowError, MemoryError, zstandard.ZstdError) as error:
            raise DamagedError(f"segment: {error!r}") from error


def damage_of(reader: Reader, record: Record, error: Exception) -> Damage:
    """Return damage of a segment whose checksum matches."""
    text = str(error).removeprefix("segment: ")
    return Damage(reader.path, record.offset, record.nbytes, f"segment {record.id}: {text}", record.id)


def misnamed(reader: Reader) -> list[Damage]:
    """Return damage where a file's name is not its region's: it was copied or renamed."""
    region = reader.region
    if region is None or reader.path.stem == f"{region.number:012d}":
        return []
    return [Damage(reader.path, 0, HEADER.size, f"region {region.number}, expected {region.number:012d}.region")]


def readers(folder: Path, identity: Identity | None) -> Iterator[Reader | Damage]:
    """Yield every region file of a folder, open one at a time; or why it cannot be read. Missing ones are skipped."""
    paths = region_files(folder)
    for path in paths:
        try:
            # Records are appended to the newest file only: one with successors no longer changes.
            with Reader(path, identity, growing=path == paths[-1]) as reader:
                yield reader
        except FileNotFoundError:
            continue
        except IrregularError as error:
            yield Damage(path, 0, 0, error.what)
        except OSError as error:
            yield Damage(path, 0, size_of(path), f"cannot be read: {error.strerror or error}")


def chains(found: Collection[tuple[int, Segment]], stride: int, notes: Collection[Noted]) -> dict[int, Chain]:
    """Return the segments that count, by lane: those held, one record of each (``recovery.newest``).

    Args:
        notes: of evictions, in all files.
    """
    evictions = Evictions(stride, max_slots(found))
    for note, sequence in notes:
        evictions.take(note, sequence, region=0)
    by_place = {(file, one.record): one for file, one in found}
    lanes: dict[int, list[Segment]] = {}
    for file, record in newest([(file, one.record) for file, one in found], stride, evictions):
        one = by_place[file, record]
        lanes.setdefault(one.header.lane, []).append(one)
    return {lane: _chain(lanes[lane]) for lane in sorted(lanes)}


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


def that_count(folder: Path, found: list[tuple[int, Segment]], damages: list[Damage]) -> list[tuple[int, Segment]]:
    """Return the found segments that a checkpoint holds; all, if it is none. Damage is appended to ``damages``."""
    try:
        ids = checkpoint_ids(folder)
    except (OSError, DamagedError) as error:
        path = part_of(folder) / STATE
        what = str(error).removeprefix(f"{path}: ")
        damages.append(Damage(path, 0, size_of(path), what))
        return found
    if ids is None:
        return found
    for id_ in sorted(ids - {one.record.id for _, one in found if one.record.kind != TAIL}):
        path = part_of(folder) / FOLDER
        damages.append(Damage(path, 0, 0, f"segment {id_}: held by the checkpoint, but missing from its files", id_))
    return [(number, one) for number, one in found if one.record.kind == TAIL or one.record.id in ids]
