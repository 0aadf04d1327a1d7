"""A store -> a folder from which it goes on exactly.

The folder holds ``store.json`` and one numbered folder beside it, which ``store.json`` names: region files with every
sealed segment - of a store on disk, second names of its own files - and the state of all else. A new checkpoint is
written beside the old one and takes its place when ``store.json`` is replaced, in one step.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .tiers import snapshot
from .tiers.disk import FOLDER, REGION_BYTES, SMALLEST_REGION
from .tiers.files import Files
from .tiers.folder import LOCK, locked, read_manifest, write_manifest
from .tiers.log import StepLog
from .tiers.records import SEGMENT, TAIL, Identity
from .tiers.regions import Regions
from .tiers.state import STATE, write_state

AT_A_TIME = 16 << 20
"""Bytes of segments that are copied while nothing else may happen to the store."""


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
    folder.mkdir(parents=True, exist_ok=True)
    if log.disk is not None and folder.resolve() == log.disk.folder.resolve():
        raise FileExistsError(f"checkpoint: {folder} is the store's own folder; give another one")
    with held(folder):
        before = _number(folder)
        number = before + 1
        part = folder / str(number)
        for left in parts(folder):  # by one that did not come to its end
            if left != folder / str(before):
                shutil.rmtree(left)
        try:
            (part / FOLDER).mkdir(parents=True)
            identity = settings.get("store") or secrets.token_hex(16)
            pending = _Pending(log)
            with lock:
                log.check_open()
                state = {"log": snapshot.capture(log), "views": views()}
                tails = snapshot.tails(log)
                sources = []
                if log.disk is not None:
                    sources = log.disk.share(part / FOLDER)
                    pending.number, pending.sequence = log.disk.regions.next_number, log.disk.regions.sequence
                else:
                    log.watchers.append(pending.rescue)
                    pending.begin(state["log"]["retention"]["slots"])
            try:
                _write(
                    part / FOLDER, pending, tails, lock, Identity(bytes.fromhex(identity), log.spec.schema_hash), files
                )
            finally:
                if log.disk is None:
                    with lock:
                        log.watchers.remove(pending.rescue)
            _copy(sources)
            for path in sorted((part / FOLDER).iterdir()):
                files.sync(path)
            write_state(part / STATE, state, files)
            files.fsync_folder(part / FOLDER)
            files.fsync_folder(folder)
            write_manifest(
                folder, settings | {"store": identity, "checkpoint": number, "on_disk": log.disk is not None}, files
            )
        except BaseException:
            if _number(folder) != number:  # else it was named already, and only the sync after that failed
                shutil.rmtree(part, ignore_errors=True)
            raise
        if before:
            shutil.rmtree(folder / str(before), ignore_errors=True)
    _trim()


def _trim() -> None:
    """Give back what the C library keeps of the copies made here, which ``ram=`` would miss."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """While inside, no other process has the folder.  Raises: StoreInUseError."""
    descriptor = locked(folder / LOCK)
    try:
        yield
    finally:
        os.close(descriptor)


def _number(folder: Path) -> int:
    """Of the checkpoint in a folder; 0 if there is none."""
    try:
        number = read_manifest(folder).get("checkpoint", 0)
    except FileNotFoundError:
        return 0
    if not number:
        raise FileExistsError(f"checkpoint: {folder} holds a store that is no checkpoint; give a folder of its own")
    return int(number)


def parts(folder: Path) -> list[Path]:
    """The numbered folders."""
    return [path for path in folder.iterdir() if path.name.isdigit() and path.is_dir()]


def _copy(sources: list[tuple[int, Path]]) -> None:
    """Copies of files, by descriptor, that could not get a second name."""
    for descriptor, path in sources:
        with os.fdopen(descriptor, "rb") as source, path.open("xb") as target:
            source.seek(0)
            shutil.copyfileobj(source, target, 1 << 20)


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
    folder: Path, pending: _Pending, tails: list[tuple[int, bytes]], lock: Any, identity: Identity, files: Files
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
