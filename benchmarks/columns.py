"""Columns on disk beside Lance, Parquet, zarr and HDF5: bytes, writing, random rows and windows, one column rewritten.

    python benchmarks/columns.py [--quick] [--logs tokens robot atari] [--rounds 5] [--out FILE] [--show FILE]

Three logs: tokens (an observed and a chosen token, log probability, policy version, mask), a robot (two cameras of
96x96, a state of 14 numbers, an action of 14), and Pong (84x84). Each contender writes the same episodes to files, then
reads random single steps (256 at a time) and random windows of 64 steps (32 at a time), with all their columns. Rounds
of the contenders alternate; medians. Warm: the system has read the files into its cache, and batches were read for a
quarter of the time before. Cold: before each batch the files are opened again, and their pages dropped from the cache.
``transitions`` are single steps with their next observation, in one row: Sharpwave's alone. ``while sampling`` writes
with a thread that samples at the same time, which the others' files do not allow.

Peers that are not installed are left out: ``pip install pylance zarr h5py pyarrow``.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import frames
import numpy as np
import numpy.typing as npt
import runner
from runner import say

import sharpwave as sw

ROWS, WINDOWS, LENGTH = 256, 32, 64
LATER = "value"
Columns = dict[str, npt.NDArray[Any]]
STEPS = {"tokens": 1_000_000, "robot": 50_000, "atari": 50_000}
QUICK = {"tokens": 100_000, "robot": 3_000, "atari": 8_000}
EPISODE = {"tokens": 500, "robot": 100, "atari": 1000}


def tokens(steps: int) -> Columns:
    """Words by Zipf's law, as a language model reads and writes them."""
    rng = np.random.default_rng(0)
    words = np.minimum(rng.zipf(1.3, steps + 1), 32_000).astype(np.int32)
    return {
        "obs": words[:-1],
        "action": words[1:],
        "logprob": -rng.exponential(1.0, steps).astype(np.float32),
        "version": (np.arange(steps) // 20_000).astype(np.int32),
        "mask": np.arange(steps) % 500 > 60,
    }


def robot(steps: int) -> Columns:
    """An arm that moves over a still table, with a sensor's noise in a tenth of the pixels."""
    rng = np.random.default_rng(1)
    phase = np.cumsum(rng.normal(0, 0.05, (steps, 14)), axis=0)
    state = np.sin(phase).astype(np.float32)
    cameras: Columns = {}
    for number in range(2):
        still = rng.integers(40, 200, (12, 12, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        film = np.broadcast_to(still, (steps, 96, 96, 3)).copy()
        places = (40 + 36 * state[:, number : number + 2]).astype(int)
        for t, (y, x) in enumerate(places):
            film[t, y : y + 16, x : x + 16] = (200, 60, 30)
        noisy = rng.integers(0, 96, (steps, 922, 2))
        film[np.arange(steps)[:, None], noisy[..., 0], noisy[..., 1], 0] ^= 1
        cameras[f"camera{number}"] = film
    return cameras | {"state": state, "action": np.cos(phase).astype(np.float32)}


def atari(steps: int) -> Columns:
    """Pong under random play."""
    played = frames.load("pong", steps, say=say)
    obs = np.concatenate([played.obs[: steps // played.obs.shape[1], lane] for lane in range(played.obs.shape[1])])
    return {"obs": np.ascontiguousarray(obs), "action": np.random.default_rng(2).integers(0, 6, len(obs))}


def episodes(columns: Columns, length: int) -> Iterator[Columns]:
    """Yield runs of steps."""
    count = len(next(iter(columns.values())))
    for begin in range(0, count - length + 1, length):
        yield {name: values[begin : begin + length] for name, values in columns.items()}


class Sharpwave:
    """A store on disk; small steps in segments of 1,024."""

    def __init__(self, folder: Path, columns: Columns) -> None:
        self.folder, self._names = folder, [name for name in columns if name.startswith(("obs", "camera", "state"))]
        fields = {name: sw.Field(values.shape[1:], values.dtype.name) for name, values in columns.items()}
        self._single = self._names == ["obs"]
        obs: Any = fields["obs"] if self._single else {name: fields[name] for name in self._names}
        self._extra = [name for name in fields if name not in [*self._names, "action"]]
        spec = sw.Spec(obs=obs, action=fields["action"], **{name: fields[name] for name in self._extra})
        steps = len(next(iter(columns.values())))
        long = 1024 if spec.step_bytes < 64 else None
        self.store = sw.Store(spec, disk=folder, capacity=4 * steps, ram="2GiB", segment_steps=long)

    def write(self, parts: Iterator[Columns]) -> None:
        for part in parts:
            seen = {name: np.concatenate([part[name], part[name][-1:]]) for name in self._names}
            extra: dict[str, Any] = {name: part[name] for name in self._extra}
            self.store.add_episode(
                obs=seen["obs"] if self._single else seen,
                action=part["action"],
                reward=np.zeros(len(part["action"])),
                terminated=True,
                **extra,
            )
        self.store.flush()

    def close(self) -> None:
        self.store.close()

    def open(self) -> None:
        self.store.close()
        self.store = sw.Store.open(self.folder)
        self._transitions, self._windows = self.store.transitions(), self.store.sequences(LENGTH)
        self._ids = np.concatenate([episode.ids for episode in self.store.episodes()])
        assert len(self._transitions) and len(self._windows)  # finds their items

    def rows(self, places: npt.NDArray[np.int64]) -> Any:
        return self.store.fetch(self._ids[places])

    def transitions(self, places: npt.NDArray[np.int64]) -> Any:
        return self._transitions.sample(len(places))

    def windows(self, begins: npt.NDArray[np.int64]) -> Any:
        return self._windows.sample(len(begins))

    def rewrite(self, values: npt.NDArray[np.float32]) -> None:
        if LATER not in self.store.columns:
            self.store.add_column(LATER, sw.Field((), "float32"))
        self.store.write_column(LATER, self._ids, values)
        self.store.flush(views=False)


class Lance:
    """A Lance data set: a row a step."""

    def __init__(self, folder: Path, columns: Columns) -> None:
        import pyarrow as pa

        self.folder, self._shapes = folder, {name: values.shape[1:] for name, values in columns.items()}
        self._pa = pa

    def table(self, part: Columns) -> Any:
        pa, made = self._pa, {}
        for name, values in part.items():
            flat = pa.array(np.ascontiguousarray(values).reshape(-1))
            size = int(np.prod(values.shape[1:], dtype=int))
            made[name] = flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, size)
        return pa.table(made)

    def write(self, parts: Iterator[Columns]) -> None:
        import lance

        some: list[Any] = []
        schema = None

        def batches() -> Iterator[Any]:
            yield from some[0].to_batches()
            for part in parts:
                yield from self.table(part).to_batches()

        some.append(self.table(next(parts)))
        schema = some[0].schema
        lance.write_dataset(self._pa.RecordBatchReader.from_batches(schema, batches()), str(self.folder))

    def close(self) -> None:
        return None

    def open(self) -> None:
        import lance

        self._set = lance.dataset(str(self.folder))

    def _arrays(self, table: Any) -> Columns:
        found = {}
        for name, shape in self._shapes.items():
            column = table[name].combine_chunks()
            values = column.flatten() if shape else column
            found[name] = values.to_numpy(zero_copy_only=False).reshape(-1, *shape)
        return found

    def rows(self, places: npt.NDArray[np.int64]) -> Columns:
        return self._arrays(self._set.take(places, columns=list(self._shapes)))

    def windows(self, begins: npt.NDArray[np.int64]) -> Columns:
        return self.rows((begins[:, None] + np.arange(LENGTH)).reshape(-1))

    def rewrite(self, values: npt.NDArray[np.float32]) -> None:
        if LATER in self._set.schema.names:
            self._set.drop_columns([LATER])
        pa = self._pa
        counts = [fragment.count_rows() for fragment in self._set.get_fragments()]
        ends = np.cumsum(counts)
        parts = [values[end - count : end] for end, count in zip(ends, counts, strict=True)]
        schema = pa.schema([(LATER, pa.float32())])
        batches = [pa.record_batch([pa.array(part)], schema=schema) for part in parts]
        self._set.add_columns(pa.RecordBatchReader.from_batches(schema, batches))


class Parquet(Lance):
    """Parquet with a row group for 64 steps, compressed by zstd; a batch reads each group once."""

    GROUP = LENGTH

    def write(self, parts: Iterator[Columns]) -> None:
        import pyarrow.parquet as pq

        self.folder.mkdir()
        writer = None
        for part in parts:
            table = self.table(part)
            writer = writer or pq.ParquetWriter(self.folder / "steps.parquet", table.schema, compression="zstd")
            writer.write_table(table, row_group_size=self.GROUP)
        assert writer is not None
        writer.close()

    def open(self) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(self.folder / "steps.parquet")
        groups = [self._file.metadata.row_group(k).num_rows for k in range(self._file.num_row_groups)]
        self._begins = np.concatenate([[0], np.cumsum(groups)])

    def rows(self, places: npt.NDArray[np.int64]) -> Columns:
        group = np.searchsorted(self._begins, places, side="right") - 1
        wanted = np.unique(group)
        read = self._arrays(self._file.read_row_groups(wanted.tolist()))
        sizes = self._begins[wanted + 1] - self._begins[wanted]
        at = np.concatenate([[0], np.cumsum(sizes)])[np.searchsorted(wanted, group)] + places - self._begins[group]
        return {name: values[at] for name, values in read.items()}

    def rewrite(self, values: npt.NDArray[np.float32]) -> None:
        import pyarrow.parquet as pq

        before, later = self._file, self.folder / "later.parquet"
        schema = before.schema_arrow
        if LATER in schema.names:
            schema = schema.remove(schema.get_field_index(LATER))
        with pq.ParquetWriter(
            later, schema.append(self._pa.field(LATER, self._pa.float32())), compression="zstd"
        ) as new:
            begin = 0
            for number in range(before.num_row_groups):
                table = before.read_row_group(number, columns=schema.names)
                column = self._pa.array(values[begin : begin + len(table)])
                new.write_table(table.append_column(LATER, column), row_group_size=self.GROUP)
                begin += len(table)
        later.replace(self.folder / "steps.parquet")
        self.open()


class Zarr:
    """Zarr arrays, a chunk for 64 steps, compressed by zstd; a batch reads each chunk once."""

    def __init__(self, folder: Path, columns: Columns) -> None:
        self.folder, self._like = folder, columns

    def _make(self, steps: int) -> dict[str, Any]:
        import zarr

        root = zarr.open_group(str(self.folder), mode="a")
        return {
            name: root.create_array(
                name, shape=(steps, *values.shape[1:]), chunks=(LENGTH, *values.shape[1:]), dtype=values.dtype
            )
            for name, values in self._like.items()
        }

    def write(self, parts: Iterator[Columns]) -> None:
        arrays = self._make(len(next(iter(self._like.values()))))
        begin, kept = 0, list[Columns]()
        for part in parts:  # whole chunks at a time
            kept.append(part)
            count = sum(len(one["action"]) for one in kept)
            whole = count // LENGTH * LENGTH
            if whole >= 16 * LENGTH:
                begin += self._put(arrays, kept, begin, whole)
        if kept:
            self._put(arrays, kept, begin, sum(len(one["action"]) for one in kept))

    def _put(self, arrays: dict[str, Any], kept: list[Columns], begin: int, whole: int) -> int:
        for name, array in arrays.items():
            array[begin : begin + whole] = np.concatenate([one[name] for one in kept])[:whole]
        left = {name: np.concatenate([one[name] for one in kept])[whole:] for name in arrays}
        kept[:] = [left] if len(left["action"]) else []
        return whole

    def close(self) -> None:
        return None

    def open(self) -> None:
        import zarr

        self._root = zarr.open_group(str(self.folder), mode="a")
        self._arrays = {name: self._root[name] for name in self._like}

    def rows(self, places: npt.NDArray[np.int64]) -> Columns:
        return {name: array.oindex[places] for name, array in self._arrays.items()}

    def windows(self, begins: npt.NDArray[np.int64]) -> Columns:
        spans = [slice(begin, begin + LENGTH) for begin in begins.tolist()]
        return {name: np.stack([array[span] for span in spans]) for name, array in self._arrays.items()}

    def rewrite(self, values: npt.NDArray[np.float32]) -> None:
        if LATER not in self._root:
            self._root.create_array(LATER, shape=values.shape, chunks=(1 << 16,), dtype="float32")
        self._root[LATER][:] = values


class HDF5(Zarr):
    """HDF5, a chunk for 64 steps, compressed by gzip at its fastest."""

    def _make(self, steps: int) -> dict[str, Any]:
        import h5py

        self.folder.mkdir()
        self._file = h5py.File(self.folder / "steps.h5", "w")
        return {
            name: self._file.create_dataset(
                name, (steps, *values.shape[1:]), values.dtype, chunks=(LENGTH, *values.shape[1:]), compression=1
            )
            for name, values in self._like.items()
        }

    def close(self) -> None:
        self._file.close()

    def open(self) -> None:
        import h5py

        self._file.close()
        self._root = self._file = h5py.File(self.folder / "steps.h5", "a")
        self._arrays = {name: self._file[name] for name in self._like}

    def rows(self, places: npt.NDArray[np.int64]) -> Columns:
        ordered, back = np.unique(places, return_inverse=True)
        return {name: array[ordered][back] for name, array in self._arrays.items()}

    def rewrite(self, values: npt.NDArray[np.float32]) -> None:
        if LATER not in self._file:
            self._file.create_dataset(LATER, values.shape, "float32", chunks=(min(len(values), 1 << 16),))
        self._file[LATER][:] = values
        self._file.flush()


CONTENDERS: dict[str, tuple[type[Any], str]] = {
    "Sharpwave": (Sharpwave, "sharpwave"),
    "Lance": (Lance, "lance"),
    "Parquet": (Parquet, "pyarrow"),
    "zarr": (Zarr, "zarr"),
    "HDF5": (HDF5, "h5py"),
}
MAKE: dict[str, Callable[[int], Columns]] = {"tokens": tokens, "robot": robot, "atari": atari}


def installed() -> dict[str, type[Any]]:
    """Return the contenders whose libraries are here."""
    found = {}
    for name, (kind, module) in CONTENDERS.items():
        try:
            __import__(module)
            found[name] = kind
        except ImportError:
            say(f"{name}: {module} is not installed; left out")
    return found


def size(folder: Path) -> int:
    """Return the bytes that all files take on disk; a file's holes take none."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def forget(folder: Path) -> None:
    """Ask the system to drop the files' pages from its cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def remember(folder: Path) -> None:
    """Have the system read all of the files into its cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(1 << 22):
                    pass


def timed(call: Callable[[Any], Any], argument: Any) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    call(argument)
    return time.perf_counter() - began


def repeated(call: Callable[[Any], Any], arguments: list[Any], seconds: float) -> tuple[int, float]:
    """Call again and again for so long; return how often, and the seconds that it took."""
    done, spent = 0, 0.0
    while spent < seconds:
        spent += timed(call, arguments[done % len(arguments)])
        done += 1
    return done, spent


def measure(log: str, steps: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Write one log by each contender and read it in turn; return the medians."""
    say(f"{log}: making {steps:,} steps")
    columns = MAKE[log](steps)
    steps = len(next(iter(columns.values()))) // EPISODE[log] * EPISODE[log]
    columns = {name: values[:steps] for name, values in columns.items()}
    raw = sum(values.nbytes for values in columns.values()) / steps
    rng = np.random.default_rng(3)
    with tempfile.TemporaryDirectory(prefix="sharpwave-columns-") as scratch:
        results: dict[str, Any] = {}
        made: dict[str, Any] = {}
        for name, kind in installed().items():
            made[name] = one = kind(Path(scratch) / name, columns)
            took = timed(one.write, episodes(columns, EPISODE[log]))
            one.close()
            results[name] = {"written": steps / took, "bytes": size(Path(scratch) / name) / steps}
            say(f"{log}, {name}: {results[name]['bytes']:.1f} bytes a step, {steps / took:,.0f} steps/s")
            one.open()
        times: dict[str, dict[str, list[float]]] = {name: {} for name in made}
        for turn in range(rounds):
            order = list(made) if turn % 2 else list(reversed(made))
            for name in order:
                remember(Path(scratch) / name)
                for what, batch, count, cold in (
                    ("rows", made[name].rows, ROWS, False),
                    ("transitions", getattr(made[name], "transitions", None), ROWS, False),
                    ("windows", made[name].windows, WINDOWS, False),
                    ("cold rows", made[name].rows, ROWS, True),
                    ("cold windows", made[name].windows, WINDOWS, True),
                ):
                    if batch is None:
                        continue
                    places = [rng.integers(0, steps - LENGTH, count) for _ in range(200)]
                    begins = [np.sort(one // EPISODE[log] * EPISODE[log]) for one in places]
                    chosen = begins if "windows" in what else places
                    if not cold:
                        repeated(batch, chosen, seconds / 4)
                        done, spent = repeated(batch, chosen, seconds)
                    else:
                        done, spent = 0, 0.0
                        while done < 3 and spent < seconds:
                            made[name].open()
                            forget(Path(scratch) / name)
                            spent += timed(batch, chosen[done])
                            done += 1
                    times[name].setdefault(what, []).append(done * count / spent)
                values = rng.standard_normal(steps).astype(np.float32)
                took = timed(made[name].rewrite, values)
                times[name].setdefault("column", []).append(steps / took)
        for name, found in times.items():
            results[name] |= {what: float(np.median(rates)) for what, rates in found.items()}
        results["Sharpwave"]["while sampling"] = beside(made["Sharpwave"], columns, EPISODE[log])
        for one in made.values():
            one.close()
    return {"steps": steps, "raw": raw, "contenders": results}


def beside(ours: Sharpwave, columns: Columns, length: int) -> float:
    """Return the steps written each second while another thread samples single steps."""
    stop = threading.Event()

    def sample() -> None:
        while not stop.is_set():
            ours.transitions(np.zeros(ROWS, np.int64))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        took = timed(ours.write, episodes(columns, length))
    finally:
        stop.set()
        thread.join()
    return len(columns["action"]) // length * length / took


def show(results: dict[str, Any]) -> None:
    """Print a table for each log."""
    console = runner.console()
    for log, found in results.items():
        if log == "machine":
            continue
        peers = found["contenders"]
        whats = ["written", "while sampling", "rows", "transitions", "windows", "cold rows", "cold windows", "column"]
        table = runner.table(
            f"{log}: {found['steps']:,} steps, {found['raw']:,.0f} bytes a step raw", "", "bytes", *whats
        )
        for name, one in peers.items():
            rates = [f"{one[what]:,.0f}" if what in one else "-" for what in whats]
            table.add_row(name, f"{one['bytes']:,.1f}", *rates)
        others = [one for name, one in peers.items() if name != "Sharpwave"]
        if others:
            ours = peers["Sharpwave"]
            best = [max(one.get(what, 0.0) for one in others) for what in whats]
            ratios = [f"{ours[what] / top:.2f} x" if top else "-" for what, top in zip(whats, best, strict=True)]
            table.add_row("to the best", f"{ours['bytes'] / min(one['bytes'] for one in others):.2f} x", *ratios)
        console.print(table)
    console.print("A second: steps written, rows, windows of 64 steps, steps of one float column rewritten.")


def main() -> None:
    """Measure, write the results, and print them."""
    parser = runner.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="logs of some thousand steps")
    parser.add_argument("--logs", nargs="+", choices=list(MAKE), default=list(MAKE))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each reading, in each round")
    parser.add_argument("--out", type=Path, default=runner.RESULTS / "columns.json")
    parser.add_argument("--show", type=Path, help="print these results")
    given = parser.parse_args()
    if given.show:
        show(json.loads(given.show.read_text()))
        return
    runner.check_idle()
    results: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for log in given.logs:
        steps = (QUICK if given.quick else STEPS)[log]
        results[log] = measure(log, steps, given.rounds, given.seconds)
        runner.write(given.out, results)
    show(results)


if __name__ == "__main__":
    main()
