"""The disk tier: a store's folder, the lock on it, and its segments in region files."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DamagedError, StoreInUseError
from .files import Files
from .regions import ALIGNMENT, FIRST, RECORD, SEGMENT, TAIL, Identity, Regions

try:
    import fcntl
except ImportError:  # Windows: two processes on one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
MANIFEST, LOCK, FOLDER = "store.json", "lock", "regions"
REGION_BYTES = 64 << 20
SMALLEST_REGION = 1 << 20
READERS = 16
"""Reads in flight: a disk answers many at a time, and one only as fast as it turns around."""
READS_A_TASK = 8


@dataclass(frozen=True)
class Read:
    """A segment to bring into memory: from ``offset`` of region ``region`` to ``out``."""

    region: int
    offset: int
    out: memoryview


class Disk:
    """One process's hold on a store's folder.

    Args:
        folder: made if absent. ``identity``: of its region files.
        limit: most bytes of region files; ``None``: none. ``most_bytes``: of steps, as they come.

    Attributes:
        reads, bytes_read: of sampling. ``bytes_written``, ``failures``: of appending.

    Raises:
        StoreInUseError: another process holds the folder.
    """

    def __init__(
        self, folder: Path, identity: Identity, limit: int | None, most_bytes: int | None, files: Files
    ) -> None:
        self.folder, self.limit, self.files = folder, limit, files
        files.make_folder(folder)
        self._lock = locked(folder / LOCK)
        try:
            self.regions = Regions(folder / FOLDER, identity, region_bytes(limit, most_bytes), files)
        except BaseException:
            os.close(self._lock)
            raise
        self._live: dict[int, int] = {}  # segments held in each region
        self._tails: dict[int, tuple[int, int]] = {}  # of open segments: id -> region and checksum of the last rows
        self._pool: ThreadPoolExecutor | None = None
        self.reads = self.bytes_read = self.bytes_written = self.failures = 0

    @property
    def nbytes(self) -> int:
        """Bytes that the region files take."""
        return self.regions.nbytes

    def set_limit(self, limit: int | None, most_bytes: int | None) -> None:
        """Other limits from now on; regions that are there stay as large as they are."""
        if self.limit is not None and (limit is None or limit < self.limit):
            self.regions.finish()  # and so gives back what it had taken in advance
        self.limit, self.regions.region_bytes = limit, region_bytes(limit, most_bytes)

    def share(self, folder: Path) -> list[tuple[int, Path]]:
        """Give every region that holds a segment a second name in ``folder``; it will not be written to any more.

        Returns descriptors of those that could get none, and the paths to copy them to.  Raises: OSError.
        """
        self.regions.finish()
        left = []
        for number, region in self.regions.regions.items():
            path = folder / region.path.name
            if self.holds(number) and not self.files.link(region.path, path):
                left.append((os.dup(region.descriptor), path))
        return left

    def room_for(self, nbytes: int) -> bool:
        """Whether the limit allows for another ``nbytes``."""
        if self.limit is None or self.regions.room_for(nbytes):
            return True
        size = max(self.regions.region_bytes, FIRST + RECORD.size + nbytes + ALIGNMENT)
        return self.nbytes + size <= self.limit

    def append(
        self, id_: int, packed: bytes, generation: int, dictionaries: dict[tuple[int, int], bytes]
    ) -> tuple[int, int]:
        """Write a segment; returns its region and offset.  Raises: OSError; then nothing is held of it."""
        try:
            region, offset = self.regions.append(SEGMENT, id_, packed, generation, dictionaries)
        except OSError:
            self.failures += 1
            raise
        self.hold(region)
        if self._tails.pop(id_, None) is not None:
            self._delete_unused()
        self.bytes_written += len(packed)
        return region, offset

    def append_tail(self, id_: int, packed: bytes, generation: int) -> None:
        """Write an open segment as far as it goes, unless just that was written already.  Raises: OSError."""
        checksum = int.from_bytes(packed[-4:], "little")  # its own: the CRC-32 of bytes with their CRC-32 is a constant
        if self._tails.get(id_, (0, -1))[1] == checksum:
            return
        try:
            region, _ = self.regions.append(TAIL, id_, packed, generation, {})
        except OSError:
            self.failures += 1
            raise
        self._tails[id_] = (region, checksum)
        self.bytes_written += len(packed)

    def hold(self, region: int) -> None:
        """Count a segment of ``region`` as held."""
        self._live[region] = self._live.get(region, 0) + 1

    def holds(self, region: int) -> bool:
        """Whether a segment of ``region`` is held."""
        return self._live.get(region, 0) > 0

    def let_go(self) -> None:
        """Count no segment as held."""
        self._live.clear()

    def release(self, region: int) -> None:
        """One of its segments has left the store; a region without any is deleted, unless it is being written to.

        Raises nothing: one that cannot be deleted now is tried again when the next segment leaves.
        """
        self._live[region] -= 1
        self._delete_unused()

    def _delete_unused(self) -> None:
        """Delete regions that hold neither segments nor the newest rows of an open one, but for the one written to."""
        needed = {region for region, _ in self._tails.values()}
        unused = [n for n in list(self.regions.regions)[:-1] if not self.holds(n) and n not in needed]
        if not unused:
            return
        try:
            self.regions.sync()  # what replaces rows that were flushed is on disk before they go
            for number in unused:
                self.regions.delete(number)
                self._live.pop(number, None)
        except OSError:
            self.failures += 1

    def start(self, wanted: Sequence[Read]) -> list[tuple[Future[list[str | None]], int]]:
        """Begin to fill every ``out``, many at a time; for each where it will say what is wrong, or ``None``."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="sharpwave-read")
        order = sorted(range(len(wanted)), key=lambda i: (wanted[i].region, wanted[i].offset))

        def read(task: list[int]) -> list[str | None]:
            return [self._read(wanted[i]) for i in task]

        found: dict[int, tuple[Future[list[str | None]], int]] = {}
        for at in range(0, len(order), READS_A_TASK):
            task = order[at : at + READS_A_TASK]
            future = self._pool.submit(read, task)
            found.update((i, (future, k)) for k, i in enumerate(task))
        self.reads += len(wanted)
        self.bytes_read += sum(len(one.out) for one in wanted)
        return [found[i] for i in range(len(wanted))]

    def _read(self, wanted: Read) -> str | None:
        region = self.regions.regions.get(wanted.region)
        try:
            self.regions.read(wanted.region, wanted.offset, wanted.out)
        except (OSError, KeyError) as error:
            return f"region {wanted.region}: {error}"
        stored, found = int.from_bytes(wanted.out[-4:], "little"), zlib.crc32(wanted.out[:-4])
        if stored != found:
            path = region.path if region else wanted.region
            return f"{path}: byte {wanted.offset:,}: checksum {found:08x}, expected {stored:08x}"
        return None

    def describe(self, manifest: dict[str, Any]) -> None:
        """Write ``store.json``.  Raises: OSError."""
        write_manifest(self.folder, manifest, self.files)

    def close(self) -> None:
        """Let the folder go."""
        if self._pool is not None:
            self._pool.shutdown()
        try:
            self.regions.close()
        finally:
            os.close(self._lock)


def region_bytes(limit: int | None, most_bytes: int | None) -> int:
    """Size of a region, so that a store is some eight of them or more."""
    sizes = [REGION_BYTES, *(most // 8 for most in (limit, most_bytes) if most is not None)]
    return max(min(sizes), SMALLEST_REGION)


def write_manifest(folder: Path, manifest: dict[str, Any], files: Files) -> None:
    """Write ``store.json``, whole or not at all.  Raises: OSError."""
    files.replace(folder / MANIFEST, packed_manifest({"format": FORMAT, **manifest}))


def locked(path: Path) -> int:
    """Take the folder's lock, which ends with the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreInUseError(
                f"disk: {path.parent} is in use by process {holder}; end it, or give another folder"
            ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def packed_manifest(manifest: dict[str, Any]) -> bytes:
    """The bytes of ``store.json``: whatever ``manifest`` says, and a checksum of it."""
    said = {name: value for name, value in manifest.items() if name != "checksum"}
    checksum = zlib.crc32(json.dumps(said, separators=(",", ":")).encode())
    return json.dumps({**said, "checksum": f"{checksum:08x}"}, indent=1).encode() + b"\n"


def read_manifest(folder: Path) -> dict[str, Any]:
    """A store folder's ``store.json``.

    Raises:
        FileNotFoundError: no store there.  DamagedError: not what a store writes.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: no store there: {MANIFEST} is missing")
    content = path.read_bytes()
    try:
        manifest: dict[str, Any] = json.loads(content)
        version, store, schema = manifest["format"], bytes.fromhex(manifest["store"]), int(manifest["schema"])
        expected = packed_manifest(manifest)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"{path}: not what a store writes ({error!r}); put back a copy of it") from error
    if version != FORMAT or len(store) != 16 or not 0 <= schema < 2**64:
        raise DamagedError(f"{path}: format {version!r}, this release reads {FORMAT}")
    if content != expected:  # byte by byte: there is one way to write it
        at = next((i for i, (a, b) in enumerate(zip(content, expected, strict=False)) if a != b), len(expected))
        raise DamagedError(
            f"{path}: not what a store writes: its checksum does not hold, or it was edited (byte {at:,}); put back a "
            "copy of it. Limits are changed with the arguments of Store.open"
        )
    return manifest
