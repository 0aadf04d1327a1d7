"""A folder, or nothing -> a log: a new one, one that another process left, or one that a checkpoint holds."""

from __future__ import annotations

import contextlib
import copy
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint import held, parts
from .codecs import DamagedError
from .errors import StoreInUseError
from .settings import LIMITS, Settings
from .tiers import snapshot
from .tiers.disk import FOLDER, REGION_BYTES, Disk
from .tiers.files import Files
from .tiers.folder import MANIFEST, read_manifest
from .tiers.log import StepLog
from .tiers.records import Damage, Identity, Record
from .tiers.recovery import Recovery, adopt_all, highest_slot, set_aside
from .tiers.regions import Regions
from .tiers.state import STATE, read_state

NO_STATE = (KeyError, TypeError, ValueError, IndexError, OverflowError, DamagedError)
"""What reading a state raises that is none."""

States = dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Left:
    """What lies in ``folder``: a store on disk, or a checkpoint, whose number is ``checkpoint`` (else 0).

    Attributes:
        target: the folder where the store will lie; ``None``: in memory.
    """

    folder: Path
    manifest: dict[str, Any]
    checkpoint: int
    target: Path | None

    @classmethod
    def read(cls, folder: Path, disk: Path | None) -> Left:
        """Raises: FileNotFoundError, DamagedError; ValueError: ``disk`` is not for what lies there."""
        manifest = read_manifest(folder)
        number = manifest.get("checkpoint", 0)
        if not isinstance(number, int) or number < 0:
            raise DamagedError(f"{folder / MANIFEST}: checkpoint {number!r}, expected a number")
        if not number and disk is not None:
            raise ValueError(f"open: disk={str(disk)!r}, but {folder} is no checkpoint; a store on disk stays there")
        if number and not (folder / str(number)).is_dir():
            raise FileNotFoundError(f"{folder / str(number)}: named by {folder / MANIFEST}, and not there")
        if disk is None and (not number or manifest.get("on_disk")):
            disk = folder
        return cls(folder, manifest, number, disk)

    @property
    def in_place(self) -> bool:
        """Whether the store will lie where it is."""
        return self.target is not None and self.target.resolve() == self.folder.resolve()

    @property
    def identity(self) -> Identity:
        """Of the region files."""
        return Identity(bytes.fromhex(self.manifest["store"]), self.manifest["schema"])

    @property
    def regions(self) -> Path:
        """Where they lie."""
        return (self.folder / str(self.checkpoint) if self.checkpoint else self.folder) / FOLDER

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While inside nobody replaces the checkpoint.  Raises: StoreInUseError."""
        with contextlib.ExitStack() as stack:
            if not self.in_place:
                try:
                    stack.enter_context(held(self.folder))
                except StoreInUseError:
                    raise
                except OSError:  # a place that cannot be written to: nobody can
                    pass
            yield

    def link(self, folder: Path, files: Files) -> None:
        """Give its region files a second name in ``folder``, or a copy.  Raises: OSError."""
        shutil.rmtree(folder, ignore_errors=True)  # from an opening that did not come to its end
        folder.mkdir()
        for path in sorted(self.regions.glob("*.region")):
            if not files.link(path, folder / path.name):
                shutil.copyfile(path, folder / path.name)
                files.sync(folder / path.name)
        files.fsync_folder(folder)


def begin(
    settings: Settings, folder: Path | None, left: Left | None, files: Files
) -> tuple[StepLog, Recovery | None, States]:
    """A log, what opening found, and the states of views by their number.

    Args:
        folder: of the store on disk; ``None``: in memory.
        left: what is to be opened; ``None``: a new store.

    Raises:
        FileExistsError, StoreInUseError, OSError, MemoryError.
    """
    if folder is None and left is None:
        return _log(settings, None, 0), None, {}
    with contextlib.ExitStack() as undo:
        disk = None
        if folder is not None:
            fresh = Identity(secrets.token_bytes(16), settings.spec.schema_hash)
            disk = Disk(folder, left.identity if left else fresh, settings.disk_limit, settings.most_bytes, files)
            undo.callback(disk.close)
            if (left is None or not left.in_place) and (folder / MANIFEST).exists():
                raise FileExistsError(
                    f"disk: {folder} holds a store already; open it with sharpwave.Store.open({str(folder)!r}), "
                    "or give an empty folder"
                )
        if left is None:
            assert disk is not None
            disk.describe(settings.manifest() | {"store": fresh.store.hex()})
            found: tuple[StepLog, Recovery | None, States] = _log(settings, disk, 0), None, {}
        else:
            found = _opened(settings, disk, left, files)
        undo.pop_all()
        return found


def _opened(settings: Settings, disk: Disk | None, left: Left, files: Files) -> tuple[StepLog, Recovery, States]:
    with left.held():
        if disk is not None and left.checkpoint:
            left.link(disk.folder / FOLDER, files)
        regions = disk.regions if disk is not None else Regions(left.regions, left.identity, REGION_BYTES, files)
        try:
            records, damages = regions.recover()
            log, report, states = _filled(settings, disk, left, regions, records, damages)
        finally:
            if disk is None:
                regions.close()
    report.damages = [*map(str, damages), *report.damages]
    report.differences = _differences(settings, left)
    if disk is not None:
        disk.note(always=True)  # before the region goes where it is written
        set_aside(disk, damages)
        if left.checkpoint:
            disk.describe(settings.manifest() | {"store": left.manifest["store"]})
            if left.in_place:
                for path in parts(left.folder):
                    shutil.rmtree(path, ignore_errors=True)
    return log, report, states


def _filled(
    settings: Settings,
    disk: Disk | None,
    left: Left,
    regions: Regions,
    records: list[tuple[int, Record]],
    damages: list[Damage],
) -> tuple[StepLog, Recovery, States]:
    slots = highest_slot(records, settings.segment_steps)
    wrong = ""
    if left.checkpoint:
        try:
            state = read_state(left.folder / str(left.checkpoint) / STATE)
            log = _log(settings, disk, max(slots, snapshot.slots_needed(state["log"])))
            report = snapshot.restore(log, regions, records, damages, disk, state["log"])
            return log, report, {int(number): view for number, view in state["views"].items()}
        except (*NO_STATE, OSError) as error:
            wrong = f"{left.folder / str(left.checkpoint) / STATE}: {error}; open segments and priorities are lost"
            if disk is not None:
                disk.let_go()
    log = _log(settings, disk, slots)
    report = adopt_all(log, regions, records, damages, disk)
    report.damages += [wrong] if wrong else []
    return log, report, {}


def _log(settings: Settings, disk: Disk | None, slots: int) -> StepLog:
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
