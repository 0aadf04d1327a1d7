"""Opening of a folder's region files: which records are intact, and whether the newest file is appended to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sharpwave.disk.region_files import RegionFiles
from sharpwave.format.region import ALIGNMENT, FIRST, Damage, Record, Region, read_region
from sharpwave.native.directory import IrregularError


def open_regions(regions: RegionFiles, go_on: bool = False) -> tuple[list[tuple[int, Record]], list[Damage]]:
    """Open the folder's files, oldest first; return intact records, as (region, record), and damage.

    Nothing is changed on disk.

    Args:
        regions: without files so far.
        go_on: append to the newest file, if a store left it intact and no checkpoint shares it; otherwise begin a new
            file. The newest file is not assumed to be on disk before a sync.

    Raises:
        OSError: a file cannot be opened. A file that the disk cannot read counts as damaged.
    """
    found: list[tuple[int, Record]] = []
    damages: list[Damage] = []
    for name in regions.directory.names():
        if not name.endswith(".region"):
            continue
        path = regions.directory.path / name
        region, records, wrong = _read_or_name(regions, path)
        damages += wrong
        if region is None:
            continue
        if path.stem != f"{region.number:012d}":
            region.close()
            what = f"region {region.number} under a wrong name, expected {region.number:012d}.region"
            damages.append(Damage(path, 0, region.size, what))
            continue
        regions.regions[region.number] = region
        regions.next_number = max(regions.next_number, region.number + 1)
        for record in records:
            regions.sequence = max(regions.sequence, record.sequence + 1)
            found.append((region.number, record))
    newest = regions.newest
    if go_on and newest is not None and not any(one.path == newest.path for one in damages):
        _continue(regions, newest)
    for region in regions.regions.values():
        if not (region is newest and regions.goes_on):
            region.used = region.synced = region.size
            region.finished = True
    if go_on and newest is not None:  # older files were synced before this one was created
        newest.synced = FIRST
    return found, damages


def open_all_files(regions: RegionFiles) -> None:
    """Open every file that ``open_regions`` could not keep open.  Raises: OSError: there are still too many."""
    regions.scarce = False
    for region in regions.regions.values():
        try:
            regions.keep_open(region)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise OSError(
                errno.EMFILE,
                f"{regions.directory.path}: {len(regions.regions)} files, more than this process may have open; "
                "raise its limit (ulimit -n), or open the store with a smaller disk_limit=",
            ) from error


def _read_or_name(regions: RegionFiles, path: Path) -> tuple[Region | None, list[Record], list[Damage]]:
    """Read a file; report one that is not regular, or that the disk cannot read, as damage."""
    try:
        return _read(regions, path)
    except IrregularError as error:
        return None, [], [Damage(path, 0, 0, error.what)]
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        status = regions.directory.status(path.name)
        return None, [], [Damage(path, 0, status.st_size if status else 0, f"cannot be read ({error})")]


def _read(regions: RegionFiles, path: Path) -> tuple[Region | None, list[Record], list[Damage]]:
    """Read a file; where too many would be open, close it and all others."""
    try:
        found = read_region(path, regions.identity, regions.directory)
    except OSError as error:
        if error.errno != errno.EMFILE or regions.scarce:
            raise
        regions.scarce = True
        for region in regions.regions.values():
            region.park()
        found = read_region(path, regions.identity, regions.directory)
    if regions.scarce and found[0] is not None:
        found[0].park()
    return found


def _continue(regions: RegionFiles, region: Region) -> None:
    """Append to another process's file, of which only the header is known to be on disk."""
    name = region.path.name
    shared = os.fstat(regions.descriptor_of(region)).st_nlink > 1
    if region.finished or shared or region.used >= region.size:
        return
    try:
        descriptor = regions.files.open_again(regions.directory, name, region.descriptor)
    except PermissionError:
        return
    os.close(region.descriptor)
    regions.keep_open(region, descriptor)
    region.used = -(-region.used // ALIGNMENT) * ALIGNMENT
    region.allocated = max(region.allocated, region.used)
    regions.goes_on = True
