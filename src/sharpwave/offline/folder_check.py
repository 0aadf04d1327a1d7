"""Verification of a store's folder: every byte is read, and every segment decoded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sharpwave.disk.ownership import MARK
from sharpwave.disk.region_scan import SegmentReader
from sharpwave.disk.state_files import STATES, partial_of, read_named, state_files
from sharpwave.disk.store_folder import FOLDER, LOCK, MANIFEST, QUARANTINE, VERSIONS, read_manifest
from sharpwave.errors import DamagedError, NewerVersionError
from sharpwave.escaping import escaped
from sharpwave.format.checkpoint_state import STATE
from sharpwave.format.region import DICTIONARY, SEGMENT, SHARED, TAIL, Damage, Record
from sharpwave.format.segment_header import Header
from sharpwave.native import descriptors
from sharpwave.native.directory import open_file
from sharpwave.offline.scan import (
    LOOKS,
    Described,
    FolderScan,
    Progress,
    Segment,
    chains,
    describe,
    irregular_folders,
    is_store,
    no_progress,
    part_of,
    size_of,
)


@dataclass
class Check:
    """Report of a verification.

    Attributes:
        files, segments, tails, dictionaries, shared_values: verified as sound; tails are rows of open segments.
        steps: in the segments and tails that count, each step once.
        superseded: segments and tails that a later record replaces.
        bytes: of all region files.
        damages: bytes that are not as written, with file and offset.
        notes: observations that are no damage: missing steps of a lane (evicted, or never written), files that are no
            part of the store.
    """

    files: int = 0
    segments: int = 0
    tails: int = 0
    dictionaries: int = 0
    shared_values: int = 0
    lanes: int = 0
    steps: int = 0
    superseded: int = 0
    bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(folder: Path, progress: Callable[[int], Progress] = no_progress) -> Check:
    """Verify everything in a store's folder.

    Args:
        progress: called with the number of bytes to read; returns a function that receives the numbers read.

    Raises:
        FileNotFoundError: no store there. All other problems are in ``damages``.

    Takes the memory of the largest segment, encoded and decoded, of one file's dictionaries, and some 500 bytes for
    each segment.
    """
    for _ in range(LOOKS):
        part = part_of(folder)
        result = _checked(folder, part, progress)
        if part_of(folder) == part:
            break
    return result


def _checked(folder: Path, part: Path, progress: Callable[[int], Progress]) -> Check:
    if not is_store(folder):
        raise FileNotFoundError(f"{folder}: no store there: neither {MANIFEST} nor {FOLDER}/*.region")
    result = Check()
    described: Described | None = None
    try:
        described = describe(folder)
    except (OSError, DamagedError) as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else str(error).removeprefix(f"{folder / MANIFEST}")
        damage = Damage(folder / MANIFEST, 0, size_of(folder / MANIFEST), what.removeprefix(": "))
        result.damages.append(damage)
    result.damages += irregular_folders(folder, part)
    scan = FolderScan(folder, _decoded)
    scan.update(described, progress)
    if described is not None:
        _look_elsewhere(described, scan)
    for file in scan.files.values():
        result.damages += file.damages
        result.segments += file.count(SEGMENT, sound=True)
        result.tails += file.count(TAIL, sound=True)
        result.dictionaries += file.count(DICTIONARY, sound=True)
        result.shared_values += file.count(SHARED, sound=True)
        result.bytes += file.nbytes
        result.files += file.used is not None
    if described is not None:
        _check_lanes(folder, described, scan, result)
    _check_states(folder, result)
    for path in _strangers(folder, part):
        set_aside = path.parent.name == QUARANTINE
        why = "set aside when the store was opened" if set_aside else "no part of the store"
        result.notes.append(escaped(f"{path}: {why}; {size_of(path):,} bytes"))
    return result


def _look_elsewhere(described: Described, scan: FolderScan) -> None:
    """Verify again the segments whose shared values may be in other files, as a store finds them."""
    values = [one for file in scan.files.values() for one in file.scan.dictionaries if one.kind == SHARED]
    paths = {one.region: file.path for file in scan.files.values() for one in file.scan.records}

    def content(record: Record) -> bytes:
        descriptor = open_file(paths[record.region])
        try:
            return descriptors.pread(descriptor, record.nbytes, record.offset)
        finally:
            os.close(descriptor)

    for file in scan.files.values():
        if not values or not file.undecodable:
            continue
        reader = described.reader(content, [*values, *file.scan.dictionaries])
        for record in list(file.undecodable):
            with contextlib.suppress(DamagedError, OSError):
                header = reader.verify(record)
                del file.undecodable[record]
                if header.steps:
                    file.segments.append((Segment(file.path, record, header), None))


def _decoded(reader: SegmentReader, record: Record) -> tuple[Header, None]:
    return reader.verify(record), None


def _check_lanes(folder: Path, described: Described, scan: FolderScan, result: Check) -> None:
    lanes, result.superseded = chains(folder, described, scan, result.damages)
    result.lanes = len(lanes)
    for lane, chain in lanes.items():
        result.steps += chain.steps
        for one in chain.overlaps:
            first, last = one.header.first_step, one.end - 1
            what = f"segment {one.record.id}: steps {first:,} to {last:,} of lane {lane} are in another segment as well"
            result.damages.append(Damage(one.path, one.record.offset, one.record.nbytes, what, one.record.id))
        for begin, end in chain.gaps:
            result.notes.append(f"lane {lane}: steps {begin:,} to {end - 1:,} are missing: evicted, lost or damaged")


def _check_states(folder: Path, result: Check) -> None:
    """Read the files of views' states, without which priorities and uses start over, and of late columns."""
    known = {damage.path for damage in result.damages}  # of deleted steps, which the lanes were counted without
    for path in _of_store(folder):
        if path in known:
            continue
        try:
            read_named(path)
        except NewerVersionError as error:
            result.notes.append(escaped(f"{error.what}, which a later release wrote"))
        except FileNotFoundError:
            continue  # a checkpoint, or another process, has replaced it
        except (DamagedError, OSError) as error:
            what = str(error).removeprefix(f"{path}: ")
            result.damages.append(Damage(path, 0, size_of(path), what))


def _of_store(folder: Path) -> list[Path]:
    """Return the files of the store's states in its folder; none where ``store.json`` does not name the store."""
    try:
        store = read_manifest(folder)["store"]
    except (OSError, DamagedError, NewerVersionError):
        return []
    return [path for path, named in state_files(folder) if named == store]


def _strangers(folder: Path, part: Path) -> list[Path]:
    """Return the files in a store's folder that do not belong to it, including files that recovery set aside."""
    known = {MANIFEST, LOCK, QUARANTINE, VERSIONS, *STATES, FOLDER if part == folder else part.name}
    found = [path for path in folder.glob("*") if path.name not in known]
    ours = set(_of_store(folder))
    for place in (folder / kind for kind in STATES):
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            found.append(place)
        else:
            found += [path for path in place.glob("*") if path not in ours and partial_of(path.name) is None]
    if not irregular_folders(folder, part):
        if part != folder:
            found += [path for path in part.glob("*") if path.name not in (STATE, FOLDER, MARK)]
        found += [path for path in (part / FOLDER).glob("*") if path.suffix != ".region"]
    return sorted([*found, *(folder / QUARANTINE).glob("*")])
