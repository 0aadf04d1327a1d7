"""Verification of a store's folder: every byte is read, and every segment decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sharpwave.disk.store_folder import FOLDER, MANIFEST, QUARANTINE
from sharpwave.disk.view_files import read_view
from sharpwave.errors import DamagedError, NewerVersionError
from sharpwave.escaping import escaped
from sharpwave.format.region import DICTIONARY, NOTE, TAIL, Damage
from sharpwave.format.row_counts import check_rows
from sharpwave.offline.scan import (
    Described,
    Noted,
    Progress,
    Reader,
    Segment,
    chains,
    damage_of,
    describe,
    irregular_folders,
    is_store,
    misnamed,
    of_views,
    readers,
    region_files,
    size_of,
    strangers,
    that_count,
)


@dataclass
class Check:
    """Report of a verification.

    Attributes:
        files, segments, tails, dictionaries: verified as sound; tails are rows of open segments.
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
    lanes: int = 0
    steps: int = 0
    superseded: int = 0
    bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(folder: Path, progress: Callable[[int], Progress] = lambda total: lambda nbytes: None) -> Check:
    """Verify everything in a store's folder.

    Args:
        progress: called with the number of bytes to read; returns a function that receives the numbers read.

    Raises:
        FileNotFoundError: no store there. Anything else that is wrong is in ``damages``.

    Takes the memory of the largest segment, encoded and decoded, and some 500 bytes for each segment.
    """
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
    result.damages += irregular_folders(folder)
    advance = progress(sum(map(size_of, region_files(folder))))
    found: list[tuple[int, Segment]] = []
    notes: list[Noted] = []
    for number, reader in enumerate(readers(folder, described.identity if described else None)):
        if isinstance(reader, Damage):
            result.damages.append(reader)
            advance(reader.nbytes)
            continue
        found += [(number, one) for one in _check_file(reader, described, result, advance, notes)]
    if described is not None:
        _check_lanes(that_count(folder, found, result.damages), described.segment_steps, notes, result)
    _check_views(folder, result)
    for path in strangers(folder):
        set_aside = path.parent.name == QUARANTINE
        why = "set aside when the store was opened" if set_aside else "no part of the store"
        result.notes.append(escaped(f"{path}: {why}; {size_of(path):,} bytes"))
    return result


def _check_views(folder: Path, result: Check) -> None:
    """Read the files of views' states: without them priorities and uses begin anew."""
    for path in of_views(folder):
        try:
            read_view(path)
        except NewerVersionError as error:
            result.notes.append(escaped(f"{error.what}, which a later release wrote"))
        except FileNotFoundError:
            continue  # a checkpoint, or another process, has replaced it
        except (DamagedError, OSError) as error:
            what = str(error).removeprefix(f"{path}: ")
            result.damages.append(Damage(path, 0, size_of(path), what))


def _check_file(
    reader: Reader, described: Described | None, result: Check, advance: Progress, notes: list[Noted]
) -> list[Segment]:
    """Verify a region file; return its segments. Its notes of evictions are appended to ``notes``."""
    nbytes = size_of(reader.path)
    result.damages += reader.damages + misnamed(reader)
    result.bytes += nbytes
    result.files += reader.region is not None
    found: list[Segment] = []
    told = 0
    for record in reader.records:
        advance(record.offset - told)
        told = record.offset
        if record.kind == DICTIONARY:
            result.dictionaries += 1
            continue
        if record.kind == NOTE:
            notes += reader.note(record)
            continue
        if described is not None:
            try:
                header, flags = reader.verify(record, described)
                check_rows(header, described.spec, flags, sealed=record.kind != TAIL)
            except (DamagedError, OSError) as error:
                result.damages.append(damage_of(reader, record, error))
                continue
            if header.steps:  # else only frames of an episode under way
                found.append(Segment(reader.path, record, header))
        if record.kind == TAIL:
            result.tails += 1
        else:
            result.segments += 1
    advance(max(0, nbytes - told))
    return found


def _check_lanes(found: list[tuple[int, Segment]], stride: int, notes: list[Noted], result: Check) -> None:
    lanes = chains(found, stride, notes)
    result.lanes = len(lanes)
    for lane, chain in lanes.items():
        result.steps += sum(one.header.steps for one in chain.segments)
        for one in chain.overlaps:
            first, last = one.header.first_step, one.end - 1
            what = f"segment {one.record.id}: steps {first:,} to {last:,} of lane {lane} are in another segment as well"
            result.damages.append(Damage(one.path, one.record.offset, one.record.nbytes, what, one.record.id))
        for begin, end in chain.gaps:
            result.notes.append(f"lane {lane}: steps {begin:,} to {end - 1:,} are missing: evicted, lost or damaged")
    counted = sum(len(chain.segments) + len(chain.overlaps) for chain in lanes.values())
    result.superseded = len(found) - counted
