"""Opening of a log: a new one, an existing one on disk, or one from a checkpoint."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpwave.disk.disk_budget import REGION_BYTES
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.ownership import (
    OPENING,
    check_apart,
    check_empty,
    check_regions,
    mark,
    remove_partial_manifests,
    remove_parts,
)
from sharpwave.disk.region_files import FULL, RegionFiles
from sharpwave.disk.region_scan import Scan
from sharpwave.disk.state_files import StateFiles
from sharpwave.disk.store_folder import COLUMNS, FOLDER, MANIFEST, WAIT_S, Hold, read_manifest
from sharpwave.errors import NO_STATE, DamagedError, NewerVersionError, StoreInUseError, level_of_caller
from sharpwave.escaping import escaped
from sharpwave.format.annotations import Annotations
from sharpwave.format.checkpoint_state import STATE, read_state
from sharpwave.format.region import Identity
from sharpwave.format.segment_header import DELETED_STEPS, requiring
from sharpwave.log.step_log import StepLog
from sharpwave.native.directory import Directory, IrregularError
from sharpwave.native.file_operations import Files
from sharpwave.persistence import snapshot
from sharpwave.persistence.column_files import ColumnFiles, DeletedFile, read_deleted
from sharpwave.persistence.recovery import Adoption, Recovery, adopt_all, set_aside
from sharpwave.persistence.settings import LIMITS, Settings
from sharpwave.validation import max_lanes

States = dict[int, dict[str, Any]]


@dataclass
class Left:
    """Store found in a folder: one on disk, or a checkpoint, whose number is ``checkpoint`` (otherwise 0).

    Attributes:
        directory: the folder, held open.
        target: folder of the store to open; ``None``: in memory.
        in_place: whether it is opened where it is.
        writers_go_on: whether remote writers feed the lanes and go on: opening ends no episode.
    """

    directory: Directory
    manifest: dict[str, Any]
    checkpoint: int
    target: Path | None
    in_place: bool
    writers_go_on: bool = False

    @classmethod
    @contextlib.contextmanager
    def read(cls, folder: Path, disk: Path | None) -> Iterator[Left]:
        """Read the store in a folder. Its checkpoint is not replaced meanwhile.

        Raises:
            FileNotFoundError, DamagedError, StoreInUseError, OSError.
            ValueError: ``disk`` was given for a store on disk.
        """
        with contextlib.ExitStack() as stack:
            try:
                directory = stack.enter_context(Directory.open(folder))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise FileNotFoundError(f"{folder}: no store there: the folder does not exist") from error
            left = cls._read(directory, disk)
            if not left.in_place:
                stack.enter_context(Hold(directory, shared=True, wait_s=WAIT_S))
                left = cls._read(directory, disk)  # another checkpoint may have replaced it meanwhile
            if left.checkpoint and not directory.status(str(left.checkpoint)):
                missing = directory.path / str(left.checkpoint)
                raise FileNotFoundError(f"{missing}: named by {directory.path / MANIFEST}, and not there")
            yield left

    @classmethod
    def _read(cls, directory: Directory, disk: Path | None) -> Left:
        manifest = read_manifest(directory)
        number = manifest.get("checkpoint", 0)
        if not number and disk is not None:
            raise ValueError(
                f"open: disk={str(disk)!r}, but {directory.path} is no checkpoint; a store on disk is opened in place: "
                "leave out disk="
            )
        in_place = disk is None and bool(not number or manifest.get("on_disk"))
        in_place = in_place or (disk is not None and disk.exists() and directory.is_at(disk))
        return cls(directory, manifest, number, directory.path if in_place else disk, in_place)

    @property
    def folder(self) -> Path:
        """Path of the folder, for messages."""
        return self.directory.path

    @property
    def identity(self) -> Identity:
        """Identity of the region files."""
        return Identity(bytes.fromhex(self.manifest["store"]), self.manifest["schema"])

    @property
    def parent(self) -> dict[str, Any] | None:
        """The version that it is, or else the one that it was made from or that was made last."""
        version, parent = self.manifest.get("version"), self.manifest.get("parent")
        if isinstance(version, dict) and isinstance(version.get("name"), str):
            return {"store": self.manifest["store"], "version": version["name"]}
        return parent if isinstance(parent, dict) else None

    def part(self) -> Directory:
        """Open the checkpoint's numbered folder."""
        return self.directory.directory(str(self.checkpoint))

    def link(self, disk: DiskTier, files: Files) -> None:
        """Link its region files into the store's folder, or copy them.  Raises: OSError."""
        target = disk.regions.directory
        for name in target.names():  # from an interrupted opening, as was checked
            files.unlink(target, name)
        if not disk.directory.is_file(OPENING):
            mark(disk.directory, OPENING, {"store": self.manifest["store"]}, files)
        with self.part() as part, part.directory(FOLDER) as regions:
            for name in regions.names():
                if not name.endswith(".region") or not regions.is_file(name) or files.link(regions, name, target):
                    continue
                source = regions.open_file(name)
                try:
                    files.copy(source, target, name)
                finally:
                    os.close(source)
        files.fsync_folder(target)

    def unlink(self, disk: DiskTier, files: Files) -> None:
        """Delete these links again.  Raises: OSError."""
        for region in disk.regions.regions.values():
            region.close()
        disk.regions.regions.clear()
        for name in disk.regions.directory.names():
            files.unlink(disk.regions.directory, name)
        files.unlink(disk.directory, OPENING)


def begin(
    settings: Settings, folder: Path | None, left: Left | None, files: Files
) -> tuple[StepLog, Recovery | None, States]:
    """Return a log, the outcome of opening it, and the states of views by their number.

    Args:
        folder: of the store on disk; ``None``: in memory.
        left: the existing store to open; ``None``: a new store.

    Raises:
        FileExistsError, StoreInUseError, OSError, MemoryError, NewerVersionError.
    """
    if folder is None and left is None:
        return _log(settings, None, 0), None, {}
    try:
        with contextlib.ExitStack() as undo:
            disk = None
            if folder is not None:
                disk = _disk(settings, folder, left, files)
                undo.callback(disk.close)
            if left is not None:
                found: tuple[StepLog, Recovery | None, States] = _opened(settings, disk, left, files)
            else:
                assert disk is not None
                disk.describe(settings.manifest() | {"store": disk.regions.identity.store.hex()})
                found = _log(settings, disk, 0), None, {}
                found[0].late.writer = ColumnFiles(found[0], StateFiles(disk, COLUMNS))
            undo.pop_all()
            return found
    except OverflowError as error:
        raise DamagedError(f"{error}; its other numbers leave nothing to continue from") from error
    except OSError as error:
        if error.errno not in FULL:
            raise
        what = "it cannot be begun" if left is None else "nothing of it is lost; opening writes the last steps anew"
        raise OSError(
            error.errno, f"disk: {folder}: {error.strerror}: {what}. Make room, some MiB, and repeat the call"
        ) from error


def _disk(settings: Settings, folder: Path, left: Left | None, files: Files) -> DiskTier:
    """Lock the store's folder, once nothing in it forbids that; foreign files stay as they are."""

    def inspect(found: Directory) -> None:
        _check_target(found, left)

    in_place = left is not None and left.in_place
    if not in_place:
        check_apart(folder)
        if folder.is_dir():  # before a lock file is created in it
            with Directory.open(folder) as found:
                if found.status(MANIFEST) is None:
                    inspect(found)
    identity = left.identity if left else Identity(os.urandom(16), settings.spec.schema_hash)
    disk = DiskTier(folder, identity, settings.disk_limit, settings.max_step_bytes, files, inspect)
    if not in_place:
        try:
            remove_partial_manifests(disk.directory, files)
        except BaseException:
            disk.close()
            raise
    return disk


def _check_target(folder: Directory, left: Left | None) -> None:
    """Check that a folder is fit for the store: new or empty, or the one being opened.

    Raises:
        FileExistsError: it holds a store, or foreign files.  StoreInUseError: it has changed meanwhile.
    """
    if left is not None and left.in_place:
        if read_manifest(folder) != left.manifest:
            raise StoreInUseError(f"open: {folder.path} was changed by another process just now; open it again")
        if left.checkpoint:
            check_regions(folder, left.identity.store)
        return
    if folder.status(MANIFEST) is not None:
        raise FileExistsError(
            f"disk: {folder.path} holds a store already; open it with sharpwave.Store.open({str(folder.path)!r}), give "
            "exist_ok=True, or give an empty folder"
        )
    check_empty(folder, left.identity.store if left else None)


def _opened(settings: Settings, disk: DiskTier | None, left: Left, files: Files) -> tuple[StepLog, Recovery, States]:
    deleted = DeletedFile()
    with contextlib.ExitStack() as stack:
        if disk is not None:
            if not left.checkpoint:
                required = DELETED_STEPS in left.manifest.get("requires", [])
                deleted = read_deleted(StateFiles(disk, COLUMNS), settings.segment_steps, required)
            disk.described = {name: said for name, said in left.manifest.items() if name not in ("format", "checksum")}
            if left.checkpoint:
                left.link(disk, files)
            regions = disk.regions
        else:
            directory = stack.enter_context(stack.enter_context(left.part()).directory(FOLDER))
            regions = RegionFiles(directory, left.identity, REGION_BYTES, files)
            stack.callback(regions.close)
        try:
            scan = regions.find(go_on=disk is not None)
            log, report, states = _filled(settings, disk, left, regions, scan)
        except NewerVersionError:  # raised before anything is written but the links
            if disk is not None and left.checkpoint:
                left.unlink(disk, files)
            raise
    log.annotations = Annotations(left.manifest.get("annotations"))
    log.parent = left.parent
    report.damages = [escaped(one) for one in (*scan.damages, *report.damages)]
    report.differences = _differences(settings, left)
    if left.in_place:  # no other store has these steps
        needed = 0 if disk is None else sum(map(disk.budget.needed_bytes, disk.regions.regions))
        _warn_of_evictions(settings, left, log.inventory.held_steps, needed)
    if disk is not None:
        disk.begin_life()
        set_aside(disk, scan.damages)
        damaged = {damage.path for damage in scan.damages}
        assert log.compaction is not None
        log.compaction.tidy(frozenset(number for number, one in regions.regions.items() if one.path in damaged))
        if regions.scarce:
            regions.open_all()
        columns = ColumnFiles(log, StateFiles(disk, COLUMNS))
        if left.checkpoint:
            columns.begin()  # before the folder is a store's: a checkpoint in its place may be all there is of them
        else:
            columns.open(deleted, report.damages)
            report.steps = log.steps
        log.late.writer = columns
        if left.checkpoint:
            snapshot.flush(log, evict=False)  # the state's open segments are in none of its regions
            about = {"store": left.manifest["store"]} | ({} if log.parent is None else {"parent": log.parent})
            described = settings.manifest() | about | log.annotations.manifest()
            disk.describe(described if log.late.deleted is None else requiring(described, DELETED_STEPS))
        if disk.directory.is_file(OPENING):
            files.unlink(disk.directory, OPENING)
        if left.in_place:  # remains of the checkpoint, also of one that could not be deleted last time
            with contextlib.suppress(OSError):
                remove_parts(disk.directory, left.manifest["store"], files, named=left.checkpoint)
    return log, report, states


def _filled(
    settings: Settings,
    disk: DiskTier | None,
    left: Left,
    regions: RegionFiles,
    scan: Scan,
) -> tuple[StepLog, Recovery, States]:
    slots = scan.highest_slot(settings.segment_steps)
    wrong = ""
    if left.checkpoint:
        try:
            with left.part() as part:
                state = read_state(part.path / STATE, part)
            before, views = snapshot.checked(state.get("log"), settings.segment_steps), _numbered(state.get("views"))
            log = _log(settings, disk, max(slots, len(before["generation"])))
            adoption = Adoption(log, regions, scan, disk, writers_go_on=left.writers_go_on)
            return log, snapshot.restore(adoption, before), views
        except (*NO_STATE, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, IrregularError)):
                raise  # it may be intact
            wrong = f"{left.folder / str(left.checkpoint) / STATE}: {error}; open segments and priorities are lost"
            if disk is not None:
                disk.held.clear()
    log = _log(settings, disk, slots)
    lanes = max_lanes(left.manifest["capacity"])
    adoption = Adoption(log, regions, scan, disk, max_lanes=lanes, writers_go_on=left.writers_go_on)
    report = adopt_all(adoption)
    report.damages += [wrong] if wrong else []
    return log, report, {}


def _numbered(views: Any) -> States:
    """Return a file's states of views, by their number.  Raises: ValueError."""
    if not isinstance(views, dict) or not all(
        re.fullmatch("[0-9]{1,9}", number) and isinstance(view, dict) for number, view in views.items()
    ):
        raise ValueError("views: expected a dict for each, by its number")
    return {int(number): view for number, view in views.items()}


def _log(settings: Settings, disk: DiskTier | None, slots: int) -> StepLog:
    return StepLog(
        settings.spec,
        settings.codecs,
        settings.capacity,
        settings.ram,
        settings.segment_steps,
        copy.deepcopy(settings.retention),
        disk,
        slots + 1024,
        settings.on_full,
    )


def _differences(settings: Settings, left: Left) -> list[str]:
    found = []
    for name in LIMITS:
        was, now = left.manifest.get(name), getattr(settings, name)
        if was != now:
            found.append(
                f"{name} was {was if was is None else format(was, ',')}, is {now if now is None else format(now, ',')}"
            )
    return found


def _warn_of_evictions(settings: Settings, left: Left, steps: int, nbytes: int) -> None:
    """Warn, before anything is evicted, if changed limits have no room for the store's steps.

    Args:
        steps, nbytes: number of held steps, and their size in its files.
    """
    for name, held, unit in (("capacity", steps, "steps"), ("disk_limit", nbytes, "bytes of files")):
        now, was = getattr(settings, name), left.manifest.get(name)
        if now is not None and now != was and held > now:
            warnings.warn(
                f"{left.folder}: holds {held:,} {unit}, {name}={now:,} has no room for {held - now:,} of them: whole "
                f"segments, at least so many, are evicted now, and gone (before, {name} was "
                f"{'None' if was is None else format(was, ',')}); to keep all, open with the limit as it was",
                RuntimeWarning,
                stacklevel=level_of_caller(),
            )
