"""Checkpoints: folders from which a store resumes exactly.

The folder holds ``store.json`` and one numbered folder beside it, which ``store.json`` names: region files with every
sealed segment - of a store on disk, hard links to its own files - and all other state. A new checkpoint is written
beside the old one and replaces it with ``store.json``, in one step.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sharpwave.codecs.shared import IS_SHARED
from sharpwave.disk.disk_budget import MIN_REGION_BYTES, REGION_BYTES
from sharpwave.disk.ownership import check_apart, make_part, remove_part, remove_partial_manifests, remove_parts
from sharpwave.disk.region_files import RegionFiles
from sharpwave.disk.store_folder import FOLDER, MAX_CHECKPOINT, WAIT_S, Hold, read_manifest, write_manifest
from sharpwave.format.checkpoint_state import STATE, write_state
from sharpwave.format.region import SEGMENT, TAIL, Identity
from sharpwave.log.inventory import LogListener
from sharpwave.log.step_log import StepLog
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files
from sharpwave.persistence import snapshot

Packed = tuple[int, bytes, dict[tuple[int, int], bytes]]
"""A segment: its id, its bytes, and its dictionaries and shared values."""
AT_A_TIME = 4 << 20
"""Limit of the bytes of segments copied under the store's lock, and of copies of evicted segments in memory."""


def save(
    folder: Path,
    log: StepLog,
    lock: Any,
    notify: Callable[[], None],
    settings: dict[str, Any],
    views: Callable[[], dict[str, Any]],
    files: Files,
    then: Callable[[Directory], None] = lambda folder: None,
) -> None:
    """Write a checkpoint of ``log``, or replace the one in ``folder``.

    Args:
        lock: the store's. ``notify``: called with it held when appending may continue.
        settings: other contents of ``store.json``.
        views: returns the state of the views; called with ``lock`` held.
        then: called with the folder once the checkpoint is there, before the folder is unlocked.

    Raises:
        OSError: a full or failing disk; the checkpoint that was there before stays.
        FileExistsError: the folder holds, or lies in, a store that is no checkpoint.  StoreInUseError: it is in use.
    """
    with lock:
        log.check_open()
    if log.disk is not None and folder.exists() and log.disk.directory.is_at(folder):
        raise FileExistsError(f"checkpoint: {folder} is the store's own folder; give another one")
    check_apart(folder)
    with files.make_folder(folder) as directory, Hold(directory, wait_s=WAIT_S) as hold:
        before = _manifest(directory)
        remove_partial_manifests(directory, files)
        remove_parts(directory, before["store"], files, kept=before["checkpoint"])  # of interrupted checkpoints
        number = before["checkpoint"] % (MAX_CHECKPOINT - 1) + 1
        while directory.status(str(number)):  # foreign files
            number = number % (MAX_CHECKPOINT - 1) + 1
        identity = settings.get("store") or os.urandom(16).hex()
        try:
            with make_part(directory, number, identity, files) as part:
                me = Identity(bytes.fromhex(identity), log.spec.schema_hash)
                _write_part(part, log, lock, notify, me, views, files)
            files.fsync_folder(directory)
            hold.check()
            said = {"store": identity, "checkpoint": number, "on_disk": log.disk is not None}
            write_manifest(directory, settings | said, files)
        except BaseException:
            with suppress(OSError):
                if _manifest(directory)["checkpoint"] != number:  # otherwise only the sync after it failed
                    remove_part(directory, str(number), identity, files)
            raise
        if before["checkpoint"]:
            with suppress(OSError):
                remove_part(directory, str(before["checkpoint"]), before["store"], files, named=True)
        then(directory)
    _trim()


def _write_part(
    part: Directory,
    log: StepLog,
    lock: Any,
    notify: Callable[[], None],
    identity: Identity,
    views: Callable[[], dict[str, Any]],
    files: Files,
) -> None:
    """Write everything of a checkpoint but ``store.json``."""
    with files.make_directory(part, FOLDER) as target:
        regions = RegionFiles(target, identity, MIN_REGION_BYTES, files)
        sources: list[tuple[int, str]] = []
        try:
            with lock:
                log.check_open()
                state = {"log": snapshot.capture(log), "views": views()}
                copying = SegmentCopier(log, regions, snapshot.tails(log))
                if log.disk is not None:
                    sources = log.disk.share(target)
                    regions.next_number, regions.sequence = log.disk.regions.next_number, log.disk.regions.sequence
                else:
                    regions.region_bytes = REGION_BYTES
                    copying.begin(state["log"]["retention"]["slots"])
            try:
                copying.run(lock, notify)
                regions.finish()
            finally:
                with lock:
                    copying.end()
            for source, name in sources:
                files.copy(source, target, name)
        finally:
            regions.close()
            for source, _ in sources:
                os.close(source)
        for name in target.names():
            files.sync(target, name)
        write_state(part, STATE, state, files)
        files.fsync_folder(target)
    files.fsync_folder(part)


def _trim() -> None:
    """Return the C library's free memory to the system: it counts towards the process, not ``ram=``."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _manifest(directory: Directory) -> dict[str, Any]:
    """Return the ``store.json`` of the checkpoint in a folder; its number is 0 if there is none."""
    try:
        manifest = read_manifest(directory)
    except FileNotFoundError:
        return {"checkpoint": 0, "store": bytes(16).hex()}
    if not manifest.get("checkpoint", 0):
        raise FileExistsError(
            f"checkpoint: {directory.path} holds a store that is no checkpoint; give a folder of its own"
        )
    return manifest


class SegmentCopier(LogListener):
    """Copier of segments in memory to a checkpoint's region files, while the store goes on.

    Attributes:
        nbytes: size of the copies in memory.
    """

    def __init__(self, log: StepLog, regions: RegionFiles, tails: list[Packed]) -> None:
        self.log, self._regions, self._tails = log, regions, tails
        self.nbytes = sum(map(_size, tails))
        self._slots: dict[int, None] = {}
        self._rescued: list[Packed] = []
        self._rescued_bytes = 0
        self._turn = threading.Lock()  # held by the thread that writes
        self._error: OSError | None = None

    def begin(self, slots: Any) -> None:
        """Copy the segments in ``slots``. The store's lock is held, as for ``evicting`` and ``waits``."""
        self._slots = dict.fromkeys(slots.tolist())
        self.log.inventory.tell(self)
        self.log.copying = self

    def end(self) -> None:
        """Stop copying."""
        if self.log.copying is self:
            self.log.inventory.listeners.remove(self)
            self.log.copying = None

    def waits(self) -> str | None:
        """Return why no append, which might evict, is allowed now: too many copies are unwritten."""
        if self._rescued_bytes <= AT_A_TIME:
            return None
        return (
            f"a checkpoint is being written to a slow disk: {self._rescued_bytes:,} bytes of evicted segments wait for "
            f"it, {AT_A_TIME:,} may"
        )

    def evicting(self, slot: int) -> None:
        """Copy the segment in ``slot``, which is about to be evicted; write copies at once beyond the limit."""
        if slot not in self._slots:
            return
        del self._slots[slot]
        packed = self.log.sealed.packed(slot)
        nbytes = _size(packed)
        self.nbytes += nbytes
        if self._rescued_bytes + nbytes <= 2 * AT_A_TIME:
            self._rescued.append(packed)
            self._rescued_bytes += nbytes
            return
        try:
            self._write(packed)
        except OSError as error:  # reported by the checkpoint, not by the append that evicts
            self._error = error
            self._slots.clear()

    def run(self, lock: Any, notify: Callable[[], None]) -> None:
        """Write all copies.  Raises: OSError."""
        while True:
            with lock:
                some = self._take()
                notify()
            if self._error is not None:
                raise self._error
            if not some:
                break
            while some:
                self._write(some.pop())
        for id_, content, values in self._tails:
            self._regions.append(TAIL, id_, content, id_ >> 32, values)

    def _take(self) -> list[Packed]:
        """Return some of the copies; none if all are written."""
        some, self._rescued, self._rescued_bytes = self._rescued, [], 0
        size = 0
        while self._slots and size < AT_A_TIME:
            slot = next(iter(self._slots))
            del self._slots[slot]
            some.append(self.log.sealed.packed(slot))
            size += _size(some[-1])
        self.nbytes += size
        return some

    def _write(self, packed: Packed) -> None:
        id_, content, dictionaries = packed
        nbytes = _size(packed)
        try:
            with self._turn:
                self._regions.append(SEGMENT, id_, content, id_ >> 32, dictionaries)
        finally:
            self.nbytes -= nbytes


def _size(packed: Packed) -> int:
    """Return the bytes of a segment and of its shared values, which nothing else may hold by now."""
    return len(packed[1]) + sum(len(data) for (_, key), data in packed[2].items() if key & IS_SHARED)
