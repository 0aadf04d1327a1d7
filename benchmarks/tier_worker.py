"""Process of one contender of ``tiers.py``, and the limit of the disk itself; it answers requests, a line of JSON each.

``{"do": "plan"}`` -> the steps that take a multiple of ``ram``; then ``build`` and ``fill`` the contender, and
``measure`` transitions per second or ``latencies``, the seconds of each call: each a method of ``Bench``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import mmap
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import runner
from frames import CACHE, STACK, folder_of, read
from numba import njit

import sharpwave as sw
from sharpwave.bench import contenders
from sharpwave.bench.measured import private_bytes
from sharpwave.bench.played import LANES

BATCH, LOOKAHEAD, LEARNER_S = 256, 4, 0.01
PROBED = 65_536
WATCH_S = 0.02
SAMPLED = 8
"""Calls of add for each call of sample when single calls are timed."""

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

FORGET_S = 0.05
CALLS = 16
"""Reads between two looks at the clock."""
BLOCK = 4096

_pread = ctypes.CDLL(None).pread
_pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
_pread.restype = ctypes.c_ssize_t
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
MADV_DONTNEED = 4


@njit(nogil=True)  # a pointer to the system's function cannot be cached
def _read(descriptors: Ints, offsets: Ints, nbytes: Ints, chosen: Ints, address: int) -> int:
    done = 0
    for i in chosen:
        done += _pread(descriptors[i], address, nbytes[i], offsets[i])
    return done


def reads(
    descriptors: Ints, offsets: Ints, nbytes: Ints, threads: int, seconds: float, *, direct: bool = False
) -> tuple[float, float]:
    """Measure reads and bytes per second of the given pieces, which each thread picks at random.

    Args:
        direct: the files were opened with O_DIRECT: whole blocks around the pieces are read.
    Raises:
        OSError: a read returned fewer bytes than requested.
    """
    least = nbytes
    if direct:
        ends = offsets + nbytes
        offsets = offsets // BLOCK * BLOCK
        least, nbytes = ends - offsets, -(-ends // BLOCK) * BLOCK - offsets
    counts = [0] * threads
    got = [0] * threads
    begin = threading.Barrier(threads + 1)

    def read(thread: int) -> None:
        rng, out = np.random.default_rng(thread), np.frombuffer(mmap.mmap(-1, int(nbytes.max())), np.uint8)
        out[:] = 1
        _read(descriptors, offsets, nbytes, np.zeros(0, np.int64), out.ctypes.data)
        begin.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            chosen = rng.integers(0, len(nbytes), CALLS)
            done = _read(descriptors, offsets, nbytes, chosen, out.ctypes.data)
            if done < least[chosen].sum():  # a file may end within a block
                raise OSError(f"read {done:,} bytes, expected at least {least[chosen].sum():,}")
            counts[thread] += CALLS
            got[thread] += done

    readers = [threading.Thread(target=read, args=(thread,)) for thread in range(threads)]
    for reader in readers:
        reader.start()
    begin.wait()
    start = time.perf_counter()
    for reader in readers:
        reader.join()
    took = time.perf_counter() - start
    return sum(counts) / took, sum(got) / took


def forget(descriptors: Iterable[int], mappings: Iterable[tuple[int, int]] = ()) -> None:
    """Drop some files from the page cache. Pages that are not on disk yet cannot be dropped.

    Args:
        mappings: (address, bytes) of this process's mappings of them: mapped pages would be kept.
    """
    for address, nbytes in mappings:
        _madvise(address, nbytes, MADV_DONTNEED)
    for descriptor in descriptors:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def forgetful(descriptors: Sequence[int]) -> Iterator[None]:
    """Drop some files from the page cache, now and every 50 ms until the end of the block.

    Otherwise a store of some hundred megabytes is cached before its measurement ends. Caches below the system, such as
    those of a virtual machine's host, cannot be dropped; they also speed up the disk's own limit.
    """
    ended = threading.Event()

    def again() -> None:
        while not ended.wait(FORGET_S):
            forget(descriptors)

    for descriptor in descriptors:
        os.fdatasync(descriptor)
    forget(descriptors)
    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Contender(contenders.Contender):
    """Replay memory that is filled, and then sampled now or ahead."""

    def ahead(self) -> Any:
        """Return a prefetched batch."""

    def rest(self) -> None:
        """Stop prefetching."""

    def bytes(self) -> dict[str, int]:
        """Return the memory's bytes by use; ``disk``: bytes of its files."""
        return {}

    def files(self) -> AbstractContextManager[None]:
        """Keep its files out of the page cache while inside."""
        return contextlib.nullcontext()

    def forget(self) -> None:
        """Drop its files from the page cache between two calls, untimed, if ``files`` does not do it meanwhile."""


class Sharpwave(contenders.Sharpwave, Contender):
    """Contender ``sharpwave.Store``, in memory or on disk."""

    def __init__(self, ram: str, disk: Path | None, segment_steps: int | None) -> None:
        super().__init__("auto")
        self.tier: dict[str, Any] = {"ram": ram, "disk": disk} if disk else {}
        self.segment_steps = segment_steps

    def empty(self, prioritized: bool) -> Any:
        spec = sw.Spec(obs=sw.Field((84, 84), "uint8", stack=STACK), action=sw.Field((), "int64"))
        self.store = sw.Store(spec, capacity=self.steps, segment_steps=self.segment_steps, **self.tier)
        view = self.store.transitions()
        self.stream = view.stream(BATCH, lookahead=LOOKAHEAD)
        return view

    def ahead(self) -> Any:
        return next(self.stream)

    def rest(self) -> None:
        self.stream.close()

    def close(self) -> None:
        self.store.close()

    def bytes(self) -> dict[str, int]:
        stats, log = self.store.stats(), self.store._log
        found = {"encoded": log.inventory.sealed_bytes, "counted": stats["total_bytes"], "disk": 0}
        found |= {part: stats["bytes"][part] for part in ("index", "samplers", "open_segments", "batches")}
        return found | ({"disk": stats["disk"]["bytes"]} if self.tier else {})

    def files(self) -> AbstractContextManager[None]:
        disk = self.store._log.disk
        return forgetful([region.descriptor for region in disk.regions.regions.values()] if disk else [])

    def limit(self, threads: int, seconds: float, direct: bool) -> tuple[float, float]:
        """Measure segments and bytes per second of random reads straight from the files.

        ``direct``: bypass the page cache; NaN where that is not supported.
        """
        log = self.store._log
        assert log.disk is not None
        index = log.index
        slots = np.flatnonzero(index.sealed[: index.highest] & (index.rows[: index.highest] > 0))
        regions = log.disk.regions.regions
        opened = [(region.direct if direct else region.descriptor) for region in regions.values()]
        if min(opened) < 0:
            return math.nan, math.nan
        numbers = np.array(list(regions))
        descriptors = np.array(opened)[np.searchsorted(numbers, index.region[slots])]
        places, sizes = index.region_offset[slots].astype(np.int64), index.nbytes[slots].astype(np.int64)
        return reads(descriptors, places, sizes, threads, seconds, direct=direct)


class TorchRL(contenders.TorchRL, Contender):
    """Contender TorchRL: ``TensorDictReplayBuffer`` over ``LazyMemmapStorage``; stacks before and after the step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def empty(self, prioritized: bool) -> Any:
        from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

        storage = LazyMemmapStorage(self.steps, scratch_dir=str(self.folder))
        self.prefetching = TensorDictReplayBuffer(storage=storage, batch_size=BATCH, prefetch=LOOKAHEAD)
        return TensorDictReplayBuffer(storage=storage, batch_size=BATCH)

    def ahead(self) -> Any:
        return self.prefetching.sample()

    def _paths(self) -> list[Path]:
        return list(self.folder.rglob("*.memmap"))

    def bytes(self) -> dict[str, int]:
        return {"disk": sum(path.stat().st_blocks * 512 for path in self._paths())}

    @contextlib.contextmanager
    def files(self) -> Iterator[None]:
        # On a page fault the system reads ahead; pages dropped during a batch would be read again and again. So this
        # contender's cache is dropped between batches.
        mappings = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            if str(self.folder) in line:
                begin, end = (int(number, 16) for number in line.split()[0].split("-"))
                mappings.append((begin, end - begin))
        descriptors = [os.open(path, os.O_RDONLY) for path in self._paths()]
        for descriptor in descriptors:
            os.fdatasync(descriptor)
        self.cached = (descriptors, mappings)
        try:
            yield
        finally:
            del self.cached
            for descriptor in descriptors:
                os.close(descriptor)

    def forget(self) -> None:
        forget(*self.cached)


def memory() -> tuple[int, int]:
    """Return the bytes of this process: private memory, and resident pages of mapped files."""
    return runner.memory(), runner.memory(part="RssFile") + runner.memory(part="RssShmem")


class Watch(threading.Thread):
    """Thread that samples this process's memory 50 times a second and records the maximum."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = (private_bytes(), memory()[1])
        self.private = self.mapped = 0

    def run(self) -> None:
        while True:
            private, mapped = memory()
            self.private = max(self.private, private - self.before[0])
            self.mapped = max(self.mapped, mapped - self.before[1])
            time.sleep(WATCH_S)


class Bench:
    """Benchmark of a contender and its data."""

    def __init__(self, name: str, data: str, recorded: int, folder: Path, segment_steps: int | None) -> None:
        self.name, self.folder, self.segment_steps = name, folder, segment_steps
        self.recording = read(folder_of(data, recorded, cache=CACHE, say=runner.say), recorded)
        self.probed = 2048 if data == "noise" else PROBED
        self.held = 0

    def make(self, ram: str, folder: Path) -> Contender:
        """Make the contender, with its files in a folder."""
        if self.name == "torchrl":
            return TorchRL(folder / "torchrl")
        return Sharpwave(ram, folder / "store" if self.name == "disk" else None, self.segment_steps)

    def endless(self, contender: Contender) -> Iterator[Any]:
        """Yield the recording's steps again and again."""
        while True:
            yield from contender.items(self.recording, 0, self.recording.times)

    def plan(self, times: float, ram: str) -> dict[str, Any]:
        """Return the number of steps that take ``times`` the bytes of ``ram``, encoded."""
        contender = Sharpwave(ram, None, self.segment_steps)
        contender.build(self.recording, self.probed)
        for item in islice(self.endless(contender), self.probed // LANES):
            contender.add(item)
        a_step = contender.store.stats()["encoded_bytes_per_step"]
        limit = sw.Store(contender.store.spec, ram=ram).ram or 0
        return {"steps": int(1.03 * times * limit / a_step) // LANES * LANES, "a_step": a_step, "ram": limit}

    def build(self, steps: int, ram: str) -> dict[str, Any]:
        """Make an empty contender, after a small one has loaded and compiled all code."""
        with tempfile.TemporaryDirectory(dir=self.folder) as small:
            warm = self.make(ram, Path(small))
            warm.build(self.recording, 4096)
            for item in islice(self.endless(warm), 4096 // LANES):
                warm.add(item)
            for _ in range(2):
                warm.sample(BATCH)
                warm.ahead()
            warm.rest()
            warm.close()
            del warm, item
        gc.collect()
        self.contender = self.make(ram, self.folder)
        self.source = self.endless(self.contender)
        self.watch = Watch()
        self.watch.start()
        self.contender.build(self.recording, steps)
        return {}

    def fill(self, steps: int) -> dict[str, Any]:
        """Append until ``steps`` are held."""
        begin = time.perf_counter()
        added = (steps - self.held) // LANES
        for _ in range(added):
            self.contender.add(next(self.source))
        self.held += added * LANES
        took = time.perf_counter() - begin
        return {"steps": self.held, "adds": added * LANES / took}

    def state(self) -> dict[str, Any]:
        """Return the bytes of files and the maximum of memory so far."""
        return {"private": self.watch.private, "mapped": self.watch.mapped, **self.contender.bytes()}

    def measure(self, what: str, seconds: float) -> dict[str, Any]:
        """Return transitions per second; NaN and the error where the contender fails."""
        contender = self.contender
        if what.startswith("limit"):
            assert isinstance(contender, Sharpwave)
            with contender.files():
                _, threads, *direct = what.split()
                rate, nbytes = contender.limit(int(threads), seconds, bool(direct))
            return {"rate": rate, "bytes": nbytes}
        kind, _, cached = what.partition(" ")
        call = partial(contender.sample, BATCH) if kind == "sample" else contender.ahead
        pause = LEARNER_S if kind == "learner" else 0.0
        try:
            if cached:
                return {"rate": self._rate(call, pause, seconds, lambda: None)}
            with contender.files():
                return {"rate": self._rate(call, pause, seconds, contender.forget)}
        except MemoryError as error:
            return {"rate": math.nan, "error": str(error)}
        finally:
            contender.rest()

    def _rate(self, call: Callable[[], Any], pause: float, seconds: float, before: Callable[[], None]) -> float:
        for _ in range(LOOKAHEAD + 1):  # discard batches prefetched during the previous measurement
            call()
        count, taken = 0, 0.0
        while taken < seconds or count < 3:
            before()
            begin = time.perf_counter()
            call()
            if pause:
                time.sleep(pause)
            taken += time.perf_counter() - begin
            count += 1
        return count * BATCH / taken

    def latencies(self, calls: int, cold: bool) -> dict[str, list[float]]:
        """Return the seconds of single calls: of adding a step to each lane, and of sampling a batch."""
        contender = self.contender
        rows = list(islice(self.source, min(calls, 512)))

        def each(call: Callable[[int], Any], count: int) -> list[float]:
            times = []
            for i in range(count):
                begin = time.perf_counter()
                call(i)
                times.append(time.perf_counter() - begin)
            return times

        adds = each(lambda i: contender.add(rows[i % len(rows)]), calls)
        self.held += calls * LANES
        with contender.files() if cold else contextlib.nullcontext():
            each(lambda _: contender.sample(BATCH), 3)
            samples = each(lambda _: contender.sample(BATCH), max(50, calls // SAMPLED))
        return {"add": adds, "sample": samples}


if __name__ == "__main__":
    name, folder, data, recorded, segment_steps = sys.argv[1:]
    runner.answer(lambda: Bench(name, data, int(recorded), Path(folder), int(segment_steps) or None))
    shutil.rmtree(folder, ignore_errors=True)
