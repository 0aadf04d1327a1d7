"""A store -> a folder from which it goes on exactly.

The folder holds ``store.json`` and one numbered folder beside it, which ``store.json`` names: region files with every
sealed segment - of a store on disk, second names of its own files - and the state of all else. A new checkpoint is
written beside the old one and takes its place when ``store.json`` is replaced, in one step.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .tiers import snapshot
from .tiers.directory import Directory
from .tiers.disk import REGION_BYTES, SMALLEST_REGION
from .tiers.files import Files
from .tiers.folder import FOLDER, MOST_CHECKPOINT, Hold, read_manifest, write_manifest
from .tiers.log import StepLog
from .tiers.ownership import check_apart, make_part, remove_part, remove_partial_manifests, remove_parts
from .tiers.records import SEGMENT, TAIL, Identity
from .tiers.regions import Regions
from .tiers.state import STATE, write_state

AT_A_TIME = 16 << 20
"""Bytes of segments that are copied while nothing else may happen to the store."""
COPIED = 1 << 20
"""Bytes of a file that are copied at a time."""
WAIT_S = 10.0
"""How long a checkpoint waits for others who read the one before, and they for it."""


def save(
    folder: Path,
    log: StepLog,
    lock: Any,
    settings: dict[str, Any],
    views: Callable[[], dict[str, Any]],
    files: Files,
) -> None:
    """Write a checkpoint of ``log``, or replace the one in ``folder``.

    Args:
        settings: what ``store.json`` says beside.
        views: the state of the views; called with ``lock`` held.

    Raises:
        OSError: a full or failing disk; the checkpoint that was there before stays.
        FileExistsError: a store that is no checkpoint is there.  StoreInUseError: it is in use.
    """
    _check_place(folder, log)
    with files.make_folder(folder) as directory, Hold(directory, wait_s=WAIT_S):
        before = _manifest(directory)
        remove_partial_manifests(directory, files)
        remove_parts(directory, before["store"], files, kept=before["checkpoint"])  # which did not come to their end
        number = before["checkpoint"] % (MOST_CHECKPOINT - 1) + 1
        while directory.status(str(number)):  # what is not a checkpoint's
            number = number % (MOST_CHECKPOINT - 1) + 1
        identity = settings.get("store") or secrets.token_hex(16)
        try:
            with make_part(directory, number, identity, files) as part:
                _write_part(part, log, lock, Identity(bytes.fromhex(identity), log.spec.schema_hash), views, files)
            files.fsync_folder(directory)
            said = {"store": identity, "checkpoint": number, "on_disk": log.disk is not None}
            write_manifest(directory, settings | said, files)
        except BaseException:
            with suppress(OSError):
                if _manifest(directory)["checkpoint"] != number:  # else only the sync after that failed
                    remove_part(directory, str(number), identity, files)
            raise
        if before["checkpoint"]:
            with suppress(OSError):
                remove_part(directory, str(before["checkpoint"]), before["store"], files, named=True)
    _trim()


def _check_place(folder: Path, log: StepLog) -> None:
    """Raises: FileExistsError: the folder is the store's own, or lies in one."""
    if log.disk is not None and folder.exists() and log.disk.directory.is_at(folder):
        raise FileExistsError(f"checkpoint: {folder} is the store's own folder; give another one")
    check_apart(folder)


def _write_part(
    part: Directory, log: StepLog, lock: Any, identity: Identity, views: Callable[[], dict[str, Any]], files: Files
) -> None:
    """Write all that a checkpoint holds beside ``store.json``."""
    pending = _Pending(log)
    with files.make_directory(part, FOLDER) as target:
        sources: list[tuple[int, str]] = []
        try:
            with lock:
                log.check_open()
                state = {"log": snapshot.capture(log), "views": views()}
                tails = snapshot.tails(log)
                if log.disk is not None:
                    sources = log.disk.share(target)
                    pending.number, pending.sequence = log.disk.regions.next_number, log.disk.regions.sequence
                else:
                    log.watchers.append(pending.rescue)
                    pending.begin(state["log"]["retention"]["slots"])
            try:
                _write(target, pending, tails, lock, identity, files)
            finally:
                if log.disk is None:
                    with lock:
                        log.watchers.remove(pending.rescue)
            for source, name in sources:
                copy_file(source, target, name, files)
        finally:
            for source, _ in sources:
                os.close(source)
        for name in target.names():
            files.sync(target, name)
        write_state(part, STATE, state, files)
        files.fsync_folder(target)
    files.fsync_folder(part)


def _trim() -> None:
    """Give back what the C library keeps of the copies made here, which ``ram=`` would miss."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _manifest(directory: Directory) -> dict[str, Any]:
    """What ``store.json`` says of the checkpoint in a folder; its number is 0 if there is none."""
    try:
        manifest = read_manifest(directory)
    except FileNotFoundError:
        return {"checkpoint": 0, "store": bytes(16).hex()}
    if not manifest.get("checkpoint", 0):
        raise FileExistsError(
            f"checkpoint: {directory.path} holds a store that is no checkpoint; give a folder of its own"
        )
    return manifest


def copy_file(source: int, folder: Directory, name: str, files: Files) -> None:
    """A copy of an open file, which could not get a second name.  Raises: OSError."""
    target = files.open(folder, name)
    try:
        content, at = memoryview(bytearray(COPIED)), 0
        while nbytes := files.pread(source, content, at):
            files.pwrite(target, content[:nbytes], at)
            at += nbytes
    finally:
        os.close(target)


class _Pending:
    """Segments in memory that are still to be written, while the store goes on."""

    def __init__(self, log: StepLog) -> None:
        self.log = log
        self.number = self.sequence = 0  # of the first file that is written, and of the first record
        self.slots: dict[int, None] = {}
        self._rescued: list[tuple[int, bytes, dict[tuple[int, int], bytes]]] = []

    def begin(self, slots: Any) -> None:
        self.slots = dict.fromkeys(slots.tolist())

    def rescue(self, slot: int) -> None:
        """The segment in ``slot`` is about to leave the store."""
        if slot in self.slots:
            del self.slots[slot]
            self._rescued.append(self.log.sealed.packed(slot))

    def take(self) -> list[tuple[int, bytes, dict[tuple[int, int], bytes]]]:
        """Some of them; none if all are done. The store's lock is held."""
        some, self._rescued = self._rescued, []
        size = 0
        while self.slots and size < AT_A_TIME:
            slot = next(iter(self.slots))
            del self.slots[slot]
            some.append(self.log.sealed.packed(slot))
            size += len(some[-1][1])
        return some


def _write(
    folder: Directory, pending: _Pending, tails: list[tuple[int, bytes]], lock: Any, identity: Identity, files: Files
) -> None:
    """Segments that have no file yet, and the rows of open ones."""
    regions = Regions(folder, identity, REGION_BYTES if pending.slots else SMALLEST_REGION, files)
    regions.next_number, regions.sequence = pending.number, pending.sequence
    try:
        while True:
            with lock:
                some = pending.take()
            if not some:
                break
            for id_, content, dictionaries in some:
                regions.append(SEGMENT, id_, content, id_ >> 32, dictionaries)
        for id_, content in tails:
            regions.append(TAIL, id_, content, id_ >> 32, {})
        regions.finish()
    finally:
        regions.close()
