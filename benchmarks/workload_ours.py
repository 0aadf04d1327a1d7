"""Sharpwave in ``workloads.py``: a store and its view, fed by this process or by actors of their own."""

from __future__ import annotations

import multiprocessing
import threading
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import workload_data
from workload_table import LANES, LOADS, Load

import sharpwave as sw

ACTORS = 2
FILL_STEPS = 512
"""Steps of a lane that are added at once while the memory is filled."""

Columns = dict[str, Any]


def spec_of(load: Load, columns: Columns) -> sw.Spec:
    """Return the spec of a load's steps."""
    fields = {
        name: sw.Field(column.shape[2:], column.dtype, stack=load.stack if name == "obs" else None)
        for name, column in columns.items()
        if name not in ("reward", "terminated", "action")
    }
    obs: Any = fields["obs"] if "obs" in fields else {name.partition(".")[2]: one for name, one in fields.items()}
    return sw.Spec(obs=obs, action=sw.Field(columns["action"].shape[2:], columns["action"].dtype))


def rows(columns: Columns, begin: int, end: int | None = None) -> Columns:
    """Return arguments of ``extend``: steps ``begin`` to ``end`` of all lanes, or without ``end`` one of each."""
    at = slice(begin, end) if end is not None else begin
    taken = {name: column[at] for name, column in columns.items()}
    parts = {name.partition(".")[2]: taken.pop(name) for name in list(taken) if name.startswith("obs.")}
    if parts:
        taken["obs"] = parts
    return taken | {"truncated": np.zeros_like(taken["terminated"])}


class Memory:
    """The contender. See ``workload_worker.Contender``."""

    def __init__(self, load: Load, folder: Path) -> None:
        self.load, self.columns, self.folder = load, workload_data.read(folder), folder
        self.times, self._at = len(self.columns["reward"]), 0
        self.store = sw.Store(spec_of(load, self.columns), capacity=load.elements * load.steps)
        sampler: Any = sw.Prioritized() if load.kind == "prioritized" else sw.Uniform()
        how: dict[str, Any] = {"sampler": sampler, "max_times_sampled": load.uses}
        if load.window:
            self.view: Any = self.store.sequences(load.window, burn_in=load.burn_in, stride=load.window, **how)
        else:
            self.view = self.store.transitions(**how)
        self._received = 0

    def fill(self, elements: int) -> None:
        """Add so many elements."""
        left = elements * self.load.steps // LANES
        while left > 0:
            begin = self._at % self.times
            end = min(begin + FILL_STEPS, self.times, begin + left)
            self.store.extend(**rows(self.columns, begin, end))
            self._at, left = self._at + end - begin, left - (end - begin)

    def add(self) -> float:
        """Add a step of each lane; return how many elements these are."""
        self.store.extend(**rows(self.columns, self._at % self.times))
        self._at += 1
        return LANES / self.load.steps

    def sample(self) -> Any:
        """Return a batch."""
        return self.view.sample(self.load.batch)

    def update(self, batch: Any, rng: np.random.Generator) -> None:
        """Set the priorities of a batch."""
        shape = (len(batch.ids), self.load.window) if self.load.window else len(batch.ids)
        self.view.update_priorities(batch.ids, rng.exponential(size=shape).astype(np.float32))

    def handed(self, batch: Any) -> int:
        """Return the bytes of a batch's arrays of observations."""
        arrays = [batch.obs] if self.load.window else [batch.obs, batch.next_obs]
        return sum(one.nbytes for each in arrays for one in (each.values() if isinstance(each, dict) else [each]))

    def counted(self) -> dict[str, float]:
        """Return what the store says of itself."""
        stats = self.store.stats()
        return {"counted_bytes": stats["total_bytes"], "steps": stats["steps"]}

    def actors(self, adds: float) -> Actors:
        """Start actors that add ``adds`` elements a second, of all together."""
        return Actors(self, adds * self.load.steps)

    def close(self) -> None:
        """Close the store."""
        self.store.close()


class Actors:
    """Processes that encode steps and send segments, and the thread that puts them into the store."""

    def __init__(self, memory: Memory, steps_per_s: float) -> None:
        self._memory, self.steps, spawn = memory, 0, multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        name = next(name for name, load in LOADS.items() if load is memory.load)
        for number in range(ACTORS):
            here, there = spawn.Pipe(duplex=False)
            arguments = (name, str(memory.folder), number, steps_per_s / ACTORS, there)
            self._processes.append(spawn.Process(target=_act, args=arguments, daemon=True))
            self._processes[-1].start()
            there.close()
            self._pipes.append(here)
        for pipe in self._pipes:
            pipe.recv_bytes()  # it is ready
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Stop them; return how many elements arrived."""
        for process in self._processes:
            process.terminate()
        self._thread.join(30.0)
        for process in self._processes:
            process.join(30.0)
        return self.steps / self._memory.load.steps

    def _receive(self) -> None:
        store, pipes = self._memory.store, list(self._pipes)
        while pipes:
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
                try:
                    count = int.from_bytes(pipe.recv_bytes(), "little")
                    shared = {int.from_bytes(pipe.recv_bytes(), "little"): pipe.recv_bytes() for _ in range(count)}
                    packed = pipe.recv_bytes()
                except EOFError:
                    pipes.remove(pipe)
                    continue
                before = store.total_steps
                store.add_segment(packed, shared)
                self.steps += store.total_steps - before


def _act(name: str, folder: str, number: int, steps_per_s: float, pipe: Connection) -> None:
    """Add steps of ``LANES`` lanes of this actor's own, at a pace."""
    load, columns = LOADS[name], workload_data.read(Path(folder))

    def send(sealed: sw.SealedSegment) -> None:
        pipe.send_bytes(len(sealed.dictionaries).to_bytes(4, "little"))
        for key, content in sealed.dictionaries.items():
            pipe.send_bytes(key.to_bytes(8, "little"))
            pipe.send_bytes(content)
        pipe.send_bytes(sealed.packed)

    writer = sw.SegmentWriter(spec_of(load, columns), LANES, send, first_lane=(number + 1) * LANES)
    pipe.send_bytes(b"")
    begin, times = time.perf_counter(), len(columns["reward"])
    at = number * times // ACTORS
    for made in range(1, 1 << 60):
        writer.extend(**rows(columns, at % times))
        at += 1
        time.sleep(max(0.0, begin + made * LANES / steps_per_s - time.perf_counter()))
