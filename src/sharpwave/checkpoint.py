"""A store -> a folder from which it goes on exactly.

The folder holds ``store.json`` and one numbered folder beside it, which ``store.json`` names: region files with every
sealed segment - of a store on disk, second names of its own files - and the state of all else. A new checkpoint is
written beside the old one and takes its place when ``store.json`` is replaced, in one step.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .tiers import snapshot
from .tiers.disk import FOLDER, LOCK, locked, read_manifest, write_manifest
from .tiers.files import Files
from .tiers.log import StepLog
from .tiers.regions import SEGMENT, Identity, Regions
from .tiers.state import write_state

STATE = "state.npz"
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
                if log.disk is not None:
                    sources = log.disk.share(part / FOLDER)
                else:
                    log.watchers.append(pending.rescue)
                    pending.begin(state["log"]["retention"]["slots"])
            try:
                if log.disk is not None:
                    _copy(sources, files)
                else:
                    _write_segments(
                        part / FOLDER, pending, lock, Identity(bytes.fromhex(identity), log.spec.schema_hash), files
                    )
            finally:
                if log.disk is None:
                    with lock:
                        log.watchers.remove(pending.rescue)
            for path in sorted((part / FOLDER).iterdir()):
                files.sync(path)
            write_state(part / STATE, state, files)
            files.fsync_folder(part / FOLDER)
            files.fsync_folder(folder)
            write_manifest(
                folder, settings | {"store": identity, "checkpoint": number, "on_disk": log.disk is not None}, files
            )
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        if before:
            shutil.rmtree(folder / str(before), ignore_errors=True)


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


def _copy(sources: list[tuple[int, Path]], files: Files) -> None:
    """Copies of files, by descriptor, that could not get a second name."""
    for descriptor, path in sources:
        with os.fdopen(descriptor, "rb") as source, path.open("xb") as target:
            source.seek(0)
            shutil.copyfileobj(source, target, 1 << 20)


class _Pending:
    """Segments in memory that are still to be written, while the store goes on."""

    def __init__(self, log: StepLog) -> None:
        self.log = log
        self._slots: dict[int, None] = {}
        self._rescued: list[tuple[int, bytes, dict[tuple[int, int], bytes]]] = []

    def begin(self, slots: Any) -> None:
        self._slots = dict.fromkeys(slots.tolist())

    def rescue(self, slot: int) -> None:
        """The segment in ``slot`` is about to leave the store."""
        if slot in self._slots:
            del self._slots[slot]
            self._rescued.append(self.log.packed(slot))

    def take(self) -> list[tuple[int, bytes, dict[tuple[int, int], bytes]]]:
        """Some of them; none if all are done. The store's lock is held."""
        some, self._rescued = self._rescued, []
        size = 0
        while self._slots and size < AT_A_TIME:
            slot = next(iter(self._slots))
            del self._slots[slot]
            some.append(self.log.packed(slot))
            size += len(some[-1][1])
        return some


def _write_segments(folder: Path, pending: _Pending, lock: Any, identity: Identity, files: Files) -> None:
    regions = Regions(folder, identity, 64 << 20, files)
    try:
        while True:
            with lock:
                some = pending.take()
            if not some:
                break
            for id_, content, dictionaries in some:
                regions.append(SEGMENT, id_, content, id_ >> 32, dictionaries)
        regions.finish()
    finally:
        regions.close()
