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
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import runner
from frames import CACHE, STACK, folder_of, read
from numba import njit

import sharpwave as sw
from sharpwave.bench.measured import private_bytes
from sharpwave.bench.played import LANES

BATCH, LOOKAHEAD, LEARNER_S = 256, 4, 0.01
PLAYED = 250_000
"""Distinct steps of a game; larger stores hold them several times."""
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


def observations(data: str) -> Iterator[Array]:
    """Yield frames of all lanes, [lanes, 84, 84], without end: of a game, or noise."""
    if data == "noise":
        rng = np.random.default_rng(0)
        while True:
            yield np.frombuffer(rng.bytes(LANES * 84 * 84), np.uint8).reshape(LANES, 84, 84)
    else:
        steps = 500_000 if data == "pong" else PLAYED
        played = read(folder_of(data, steps, cache=CACHE, say=lambda text: print(text, file=sys.stderr)), steps)
        while True:
            yield from played.obs


class Contender(Protocol):
    """Replay memory that is filled and then measured."""

    def build(self, steps: int, ram: str, folder: Path) -> None:
        """Make an empty memory for ``steps`` steps."""

    def add(self, obs: Array) -> None:
        """Add a step of each lane: [lanes, 84, 84]."""

    def sample(self) -> Any:
        """Return a batch without prefetching."""

    def ahead(self) -> Any:
        """Return a prefetched batch."""

    def rest(self) -> None:
        """Stop prefetching."""

    def bytes(self) -> dict[str, int]:
        """Return the memory's bytes by use; ``disk``: bytes of its files."""

    def files(self) -> AbstractContextManager[None]:
        """Keep its files out of the page cache while inside."""

    def forget(self) -> None:
        """Drop its files from the page cache between two calls, untimed, if ``files`` does not do it meanwhile."""


class Sharpwave:
    """Contender ``sharpwave.Store``, in memory or on disk."""

    def __init__(self, on_disk: bool, segment_steps: int | None) -> None:
        self.on_disk, self.segment_steps = on_disk, segment_steps

    def build(self, steps: int, ram: str, folder: Path) -> None:
        spec = sw.Spec(obs=sw.Field((84, 84), "uint8", stack=STACK), action=sw.Field((), "int64"))
        tier: dict[str, Any] = {"ram": ram, "disk": folder / "store"} if self.on_disk else {}
        self.store = sw.Store(spec, capacity=steps, segment_steps=self.segment_steps, **tier)
        self.view = self.store.transitions()
        self.stream = self.view.stream(BATCH, lookahead=LOOKAHEAD)
        zeros = np.zeros(LANES)
        no = np.zeros(LANES, bool)
        self.others: dict[str, Any] = {"action": zeros.astype(int), "reward": zeros, "terminated": no, "truncated": no}

    def add(self, obs: Array) -> None:
        self.store.extend(obs=obs, **self.others)

    def sample(self) -> Any:
        return self.view.sample(BATCH)

    def ahead(self) -> Any:
        return next(self.stream)

    def rest(self) -> None:
        self.stream.close()

    def bytes(self) -> dict[str, int]:
        stats, log = self.store.stats(), self.store._log
        found = {"encoded": log.inventory.sealed_bytes, "counted": stats["total_bytes"], "disk": 0}
        found |= {part: stats["bytes"][part] for part in ("index", "samplers", "open_segments", "batches")}
        return found | ({"disk": stats["disk"]["bytes"]} if self.on_disk else {})

    def files(self) -> AbstractContextManager[None]:
        disk = self.store._log.disk
        return forgetful([region.descriptor for region in disk.regions.regions.values()] if disk else [])

    def forget(self) -> None:
        pass

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


class TorchRL:
    """Contender TorchRL: ``TensorDictReplayBuffer`` over ``LazyMemmapStorage``; stacks before and after the step."""

    def build(self, steps: int, ram: str, folder: Path) -> None:
        from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

        self.folder = folder / "torchrl"
        storage = LazyMemmapStorage(steps, scratch_dir=str(self.folder))
        self.buffer = TensorDictReplayBuffer(storage=storage, batch_size=BATCH)
        self.prefetching = TensorDictReplayBuffer(storage=storage, batch_size=BATCH, prefetch=LOOKAHEAD)
        self.recent: list[Array] = []

    def add(self, obs: Array) -> None:
        self.recent = [*self.recent[-STACK:], np.array(obs)]
        if len(self.recent) == STACK + 1:
            window = np.stack(self.recent, axis=1)
            self.buffer.extend(self.transitions(window[:, :-1], window[:, 1:]))

    def transitions(self, obs: Array, successor: Array) -> Any:
        """Make rows of [n, 4, 84, 84] in TorchRL's layout."""
        import torch
        from tensordict import TensorDict

        n = len(obs)
        no = torch.zeros(n, dtype=torch.bool)
        after = {"obs": torch.from_numpy(successor), "reward": torch.zeros(n), "done": no, "terminated": no}
        action = torch.zeros(n, dtype=torch.int64)
        row = {"obs": torch.from_numpy(obs), "action": action, "next": TensorDict(after, batch_size=[n])}
        return TensorDict(row, batch_size=[n])

    def sample(self) -> Any:
        return self.buffer.sample()

    def ahead(self) -> Any:
        return self.prefetching.sample()

    def rest(self) -> None:
        pass

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

    def __init__(self, name: str, data: str, folder: Path, segment_steps: int | None) -> None:
        self.data, self.folder = data, folder
        makes: dict[str, Callable[[], Contender]] = {
            "memory": lambda: Sharpwave(False, segment_steps),
            "disk": lambda: Sharpwave(True, segment_steps),
            "torchrl": TorchRL,
        }
        self.make = makes[name]
        self.held = 0

    def plan(self, times: float, ram: str) -> dict[str, Any]:
        """Return the number of steps that take ``times`` the bytes of ``ram``, encoded."""
        contender = self.make()
        assert isinstance(contender, Sharpwave)
        contender.on_disk = False
        contender.build(PROBED, ram, self.folder)
        source = observations(self.data)
        probed = PROBED if self.data != "noise" else 2048
        for _ in range(probed // LANES):
            contender.add(next(source))
        a_step = contender.store.stats()["encoded_bytes_per_step"]
        limit = sw.Store(contender.store.spec, ram=ram).ram or 0
        return {"steps": int(1.03 * times * limit / a_step) // LANES * LANES, "a_step": a_step, "ram": limit}

    def build(self, steps: int, ram: str) -> dict[str, Any]:
        """Make an empty contender, after a small one has loaded and compiled all code."""
        with tempfile.TemporaryDirectory(dir=self.folder) as small:
            warm = self.make()
            warm.build(4096, ram, Path(small))
            source = observations(self.data)
            for _ in range(4096 // LANES):
                warm.add(next(source))
            for call in (warm.sample, warm.ahead):
                call()
                call()
            warm.rest()
            if isinstance(warm, Sharpwave):
                warm.store.close()
            del warm, source
        gc.collect()
        self.contender = self.make()
        self.source = observations(self.data)
        next(self.source)
        self.watch = Watch()
        self.watch.start()
        self.contender.build(steps, ram, self.folder)
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
        call = contender.sample if kind == "sample" else contender.ahead
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
        rows = [np.array(next(self.source)) for _ in range(min(calls, 512))]

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
            each(lambda _: contender.sample(), 3)
            samples = each(lambda _: contender.sample(), max(50, calls // SAMPLED))
        return {"add": adds, "sample": samples}


if __name__ == "__main__":
    name, folder, data, segment_steps = sys.argv[1:]
    runner.answer(lambda: Bench(name, data, Path(folder), int(segment_steps) or None))
    shutil.rmtree(folder, ignore_errors=True)
