"""Soak test of a store on disk: appending, sampling, updating, flushing and checkpoints at once for a long time.

    python benchmarks/soak.py [--minutes 30] [--ram 128MiB] [--capacity 1000000] [--rate 4000] [--folder FOLDER]
    python benchmarks/soak.py --hours 24 --minutes 60 --folder FOLDER  # an hour more of a day

Two threads append to four lanes each; one takes batches from a stream, one samples by priority and updates; one
flushes, writes a checkpoint every 20 s and changes the capacity every minute. Every observation says which step of
which lane and episode it is, so every sampled transition is checked: stack, successor, reward, discount, action; some
pixel by pixel. Every 10 s a line of memory, counts and latencies is printed; at the end their slopes, and what the
checks of ``sharpwave verify`` find in the last checkpoint, which is then opened and sampled. Ends with 1 if anything
was wrong. With ``--hours`` the folder stays: the store is closed at the end of each slice, where all episodes end, and
opened by the next, in another process; figures and slopes are of all slices so far.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import runner
from runner import Results, slope

import sharpwave as sw
from sharpwave.bench.machine import environment
from sharpwave.bench.measured import private_bytes
from sharpwave.offline.folder_check import check

if TYPE_CHECKING:
    from rich.console import Console

CHECKPOINT_S = 20.0
WRITERS, LANES, STACK, SIDE = 2, 4, 4, 84
GAMMA, N_STEP = 0.99, 3
SHOWN_BYTES = 24
"""Bytes of a frame's first row that encode lane, step and episode as int64."""
PIXELS = 4
"""Items of a batch whose pixels are all compared."""

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


class World:
    """Deterministic environment: each step is a function of its numbers, so that sampled steps can be compared."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.backgrounds = rng.integers(0, 256, (WRITERS * LANES, SIDE, SIDE), dtype=np.uint8)
        self.sprites = rng.integers(0, 256, (997, 12, 12), dtype=np.uint8)

    @staticmethod
    def length(lane: Ints) -> Ints:
        """Return the number of steps of a lane's episodes."""
        return 60 + 37 * lane

    def frame(self, lane: int, step: int, episode: int) -> Array:
        """Draw a frame, [84, 84]: the lane's background, a moving sprite, and the numbers."""
        picture: Array = self.backgrounds[lane].copy()
        top, left = 1 + step * 7 % (SIDE - 13), step * 3 % (SIDE - 12)
        picture[top : top + 12, left : left + 12] = self.sprites[(step * 31 + lane) % 997]
        picture[0, :SHOWN_BYTES] = np.array([lane, step, episode], np.int64).view(np.uint8)
        return picture

    @staticmethod
    def reward(lane: Ints, step: Ints) -> npt.NDArray[np.float64]:
        """Return rewards: small integers, exact in float32."""
        return ((step * 5 + lane) % 11).astype(np.float64)

    @staticmethod
    def terminated(episode: Ints) -> npt.NDArray[np.bool_]:
        """Return whether an episode terminates; else it is truncated."""
        return np.not_equal(episode % 3, 0)

    def wrong(self, batch: sw.Batch, n_step: int, rng: random.Random) -> str:
        """Describe the first difference of a batch from the appended steps; "": there is none."""
        obs, successor = _numbers(batch.obs), _numbers(batch.next_obs)  # [B, stack, 3]
        lane, step, episode = obs[:, -1].T
        length = self.length(lane)
        first = episode * length
        back = np.arange(1 - STACK, 1)
        used = np.minimum(n_step, first + length - step)
        ended = step + used == first + length
        ks = np.arange(n_step)
        rewards = self.reward(lane[:, None], step[:, None] + ks) * GAMMA**ks * (ks < used[:, None])
        discount = np.where(ended & self.terminated(episode), 0.0, GAMMA**used)
        stacks = {
            "obs": (obs, np.maximum(step[:, None] + back, first[:, None])),
            "next_obs": (successor, np.maximum((step + used)[:, None] + back, first[:, None])),
        }
        for name, (found, expected) in stacks.items():
            shown = np.stack([np.broadcast_to(lane[:, None], expected.shape), expected, expected * 0], axis=2)
            shown[:, :, 2] = episode[:, None]
            if not np.array_equal(found, shown):
                item = int(np.flatnonzero((found != shown).any(axis=(1, 2)))[0])
                return f"{name} of item {item}: {found[item].tolist()}, expected {shown[item].tolist()}"
        if not (step - first >= 0).all() or not (step < first + length).all():
            return f"a step outside its episode: {obs[:, -1].tolist()}"
        for name, values, others in (
            ("reward", batch.reward, rewards.sum(axis=1)),
            ("discount", batch.discount, discount),
            ("action", batch.action, lane * 1_000_000_000 + step),
        ):
            if not np.allclose(values, others, rtol=1e-6):
                item = int(np.argmax(~np.isclose(values, others, rtol=1e-6)))
                return f"{name} of step {step[item]} of lane {lane[item]}: {values[item]}, expected {others[item]}"
        for item in (rng.randrange(len(lane)) for _ in range(PIXELS)):
            for name, (found, _) in stacks.items():
                shown = np.stack([self.frame(*numbers) for numbers in found[item].tolist()])
                if not np.array_equal(batch[name][item], shown):
                    return f"pixels of {name} of step {step[item]} of lane {lane[item]} differ from the appended ones"
        return ""


def _numbers(frames: Array) -> Ints:
    return np.ascontiguousarray(frames[..., 0, :SHOWN_BYTES]).view(np.int64)


class Soak:
    """Soak test: the store, the threads that use it, and their reports."""

    def __init__(self, arguments: argparse.Namespace, base: Path, before: dict[str, Any] | None = None) -> None:
        self.arguments, self.world = arguments, World()
        self.spec = sw.Spec(obs=sw.Field((SIDE, SIDE), "uint8", stack=STACK), action=sw.Field((), "int64"))
        self.checkpoints = base / "checkpoints"
        shutil.rmtree(self.checkpoints, ignore_errors=True)  # one that was opened is a store since
        self.checkpoints.mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=base) as small:
            self._warm_up(Path(small) / "store")
        self.before = private_bytes()
        self.windows: list[dict[str, Any]] = before["windows"] if before else []
        self.peak = before["peak"] if before else 0
        if before:
            self.store = sw.Store.open(base / "store")
        else:
            limits: dict[str, Any] = {"capacity": arguments.capacity, "ram": arguments.ram}
            self.store = sw.Store(self.spec, disk=base / "store", seed=1, **limits)
        self.regions = base / "store" / "regions"
        self.uniform, self.prioritized = self._views(self.store)
        self.steps = np.zeros(WRITERS * LANES, np.int64)  # appended to each lane
        self.steps[: self.store.lanes] = self.store.lane_steps
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.taken: dict[str, list[float]] = defaultdict(list)
        self.counts: dict[str, int] = defaultdict(int, self.windows[-1]["counts"] if before else {})
        self.problems: list[str] = before["problems"] if before else []
        self.last_checkpoint: Path | None = None

    def _warm_up(self, folder: Path) -> None:
        """Compile all code beforehand: it does not count as a store's memory."""
        with sw.Store(self.spec, capacity=4_096, ram="64MiB", disk=folder) as small:
            for step in range(600):
                small.extend(**self._rows(np.arange(LANES), np.full(LANES, step)))
            views = self._views(small)
            for view in views:
                batch = view.sample(self.arguments.batch)
                assert not self.world.wrong(batch, view.n_step, random.Random(0))
            views[1].update_priorities(batch.ids, np.ones(len(batch)))
            small.flush()
            small.checkpoint(folder.with_name("small checkpoint"))

    @staticmethod
    def _views(store: sw.Store) -> tuple[Any, Any]:
        """Make two views: one that is streamed, and one that is sampled by priority."""
        prioritized = sw.Prioritized(alpha=0.6, beta=0.4)
        return (
            store.transitions(n_step=N_STEP, gamma=GAMMA, name="streamed"),
            store.transitions(gamma=GAMMA, sampler=prioritized, name="prioritized"),
        )

    def _rows(self, lanes: Array, steps: Array) -> dict[str, Any]:
        """Return the arguments of ``extend`` for a step of each of some lanes."""
        length = self.world.length(lanes)
        episode = steps // length
        ends = (steps + 1) % length == 0
        terminated = ends & self.world.terminated(episode)

        def frames(steps: Array) -> Array:
            numbers = zip(lanes.tolist(), steps.tolist(), episode.tolist(), strict=True)
            return np.stack([self.world.frame(*each) for each in numbers])

        return {
            "obs": frames(steps),
            "action": lanes * 1_000_000_000 + steps,
            "reward": self.world.reward(lanes, steps),
            "terminated": terminated,
            "truncated": ends & ~terminated,
            "final_obs": frames(steps + 1) if ends.any() else None,
            "lanes": lanes,
        }

    def _step(self, lanes: Array) -> None:
        """Append the next step of some lanes."""
        rows = self._rows(lanes, self.steps[lanes])
        self.timed("append", partial(self.store.extend, **rows))
        self.steps[lanes] += 1

    # work of the threads

    def timed(self, name: str, call: Callable[[], Any]) -> Any:
        """Return the call's result, and record its seconds."""
        begin = time.perf_counter()
        result = call()
        took = time.perf_counter() - begin
        with self.lock:
            self.taken[name].append(took)
        return result

    def append(self, writer: int) -> None:
        """Append a step to each of four lanes, at the requested rate if the machine can keep up."""
        pause = LANES * WRITERS / self.arguments.rate
        due, lanes = time.perf_counter(), np.arange(writer * LANES, (writer + 1) * LANES)
        while not self.ended.is_set():
            self._step(lanes)
            due = max(due + pause, time.perf_counter() - 1.0)
            time.sleep(max(0.0, due - time.perf_counter()))

    def stream(self) -> None:
        """Take batches from a stream and check each."""
        batches, rng = self.uniform.stream(self.arguments.batch, lookahead=4), random.Random(1)
        while not self.ended.is_set():
            batch = self.timed("stream", lambda: next(batches))
            self._look(batch, self.uniform.n_step, rng)
            time.sleep(self.arguments.learner)
        batches.close()

    def sample(self) -> None:
        """Sample batches by priority, check each, and update priorities."""
        rng, generator = random.Random(2), np.random.default_rng(2)
        while not self.ended.is_set():
            batch = self.timed("sample", lambda: self.prioritized.sample(self.arguments.batch))
            ids = batch.ids
            self._look(batch, 1, rng)
            errors = generator.exponential(size=len(batch))
            stale = self.timed("update", partial(self.prioritized.update_priorities, ids, errors))
            with self.lock:
                self.counts["stale"] += stale
            time.sleep(self.arguments.learner)

    def _look(self, batch: sw.Batch, n_step: int, rng: random.Random) -> None:
        problem = self.world.wrong(batch, n_step, rng)
        with self.lock:
            self.counts["transitions"] += len(batch)
            self.counts["wrong"] += bool(problem)
            if problem:
                self.problems.append(problem)

    def keep(self) -> None:
        """Flush, write checkpoints to two folders in turn, and reduce the capacity from time to time."""
        turn = 0
        while not self.ended.wait(CHECKPOINT_S / 4):
            turn += 1
            if turn % 4:
                self.timed("flush", self.store.flush)
                continue
            path = self.checkpoints / str(turn % 8)
            self.timed("checkpoint", partial(self.store.checkpoint, path))
            self.last_checkpoint = path
            if turn % 12 == 0:
                capacity = self.arguments.capacity * (4 if turn % 24 == 0 else 3) // 4
                self.timed("resize", partial(self.store.resize, capacity=capacity))

    def opened(self, path: Path) -> dict[str, Any]:
        """Open and sample a checkpoint; return what is wrong with it."""
        rng = random.Random(3)
        with sw.Store.open(path) as store:
            wrong = []
            for view in self._views(store):
                for _ in range(50):
                    wrong.append(self.world.wrong(view.sample(self.arguments.batch), view.n_step, rng))
            return {"held": len(store), "wrong": [problem for problem in wrong if problem]}

    def guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Wrap ``work`` so that it is restarted after an error, which is counted."""

        def run() -> None:
            while not self.ended.is_set():
                try:
                    work()
                except Exception:
                    with self.lock:
                        self.counts["exceptions"] += 1
                        self.problems.append(traceback.format_exc(limit=-3))
                    time.sleep(1.0)

        return run

    # the run

    def fill(self) -> None:
        """Fill the store to its capacity and a tenth more, so that it evicts steps from the start."""
        lanes = np.arange(WRITERS * LANES)
        while self.store.total_steps < 1.1 * self.arguments.capacity:
            self._step(lanes)
            self._watch()
        self.taken.clear()

    def close(self) -> None:
        """End the episodes, and close the store: the next slice goes on with new ones."""
        for lane in range(WRITERS * LANES):
            while self.steps[lane] % int(self.world.length(np.array(lane))):
                self._step(np.array([lane]))
        self.store.flush()
        self.store.close()

    def _watch(self) -> int:
        grown = runner.memory() - self.before
        self.peak = max(self.peak, grown)
        return grown

    def run(self, console: Console) -> list[dict[str, Any]]:
        """Run all threads; return the figures of each window, those of earlier slices included."""
        works = [*(lambda writer=writer: self.append(writer) for writer in range(WRITERS)), self.stream, self.sample]
        threads = [threading.Thread(target=self.guarded(work)) for work in (*works, self.keep)]
        begin, windows = time.perf_counter(), self.windows
        earlier = windows[-1]["at_s"] if windows else 0.0
        for thread in threads:
            thread.start()
        try:
            for k in range(max(1, round(self.arguments.minutes * 60 / self.arguments.window))):
                since = time.perf_counter()
                while time.perf_counter() < begin + (k + 1) * self.arguments.window:
                    self._watch()
                    time.sleep(0.05)
                windows.append(self._window(earlier + time.perf_counter() - begin, time.perf_counter() - since))
                self._tell(console, windows[-1])
        except KeyboardInterrupt:
            console.print("ended by the user")
        finally:
            self.ended.set()
            for thread in threads:
                thread.join(60.0)
                if thread.is_alive():
                    self.problems.append(f"{thread.name} did not end within 60 s")
                    self.counts["exceptions"] += 1
        return windows

    def _window(self, at: float, seconds: float) -> dict[str, Any]:
        with self.lock:
            taken, self.taken = self.taken, defaultdict(list)
            counts = dict(self.counts)
        stats = self.store.stats()
        operations = {
            name: {
                "calls": len(values),
                "p50_ms": float(np.percentile(values, 50)) * 1e3,
                "p99_ms": float(np.percentile(values, 99)) * 1e3,
                "max_ms": max(values) * 1e3,
            }
            for name, values in sorted(taken.items())
        }
        return {
            "at_s": at,
            "seconds": seconds,
            "grown": self._watch(),
            "steps": len(self.store),
            "total_steps": self.store.total_steps,
            "counted": stats["total_bytes"],
            "disk": stats["disk"]["bytes"],
            "files": len(list(self.regions.iterdir())),
            "counts": {name: counts.get(name, 0) for name in ("transitions", "wrong", "exceptions", "stale")},
            "operations": operations,
        }

    def _tell(self, console: Console, window: dict[str, Any]) -> None:
        parts = [
            f"{name} {o['calls'] / window['seconds']:,.0f}/s {o['p50_ms']:.2f}/{o['p99_ms']:.1f} ms"
            for name, o in window["operations"].items()
        ]
        counts = window["counts"]
        console.print(
            f"{window['at_s']:6.0f} s  {window['grown'] / 2**20:.1f} MiB  {window['steps']:,} of "
            f"{window['total_steps']:,} steps  wrong {counts['wrong']}, exceptions {counts['exceptions']}  "
            + "  ".join(parts),
            highlight=False,
            soft_wrap=True,
        )


MIB = 1 << 20
WARM_UP = 0.1
"""Share of the windows, from the first, that slopes leave out."""
RARE = ("checkpoint", "flush", "resize")
"""Operations with few calls in a window, whose 99th percentile is not followed."""


def slopes(windows: list[dict[str, Any]]) -> Results:
    """Return slopes of memory in MiB per hour and of latencies in % of their mean per hour, with standard errors."""
    kept = windows[int(len(windows) * WARM_UP) :]
    if not kept:
        return {}
    found: Results = {"memory MiB": slope([w["at_s"] / 3600 for w in kept], [w["grown"] / MIB for w in kept])}
    for name in sorted({name for w in kept for name in w["operations"]}):
        there = [w for w in kept if name in w["operations"]]
        for part in ("p50_ms",) if name in RARE else ("p50_ms", "p99_ms"):
            values = [w["operations"][name][part] for w in there]
            steep, error = slope([w["at_s"] / 3600 for w in there], values)
            mean = float(np.mean(values)) / 100
            found[f"{name} {part.removesuffix('_ms')} %"] = (steep / mean, error / mean)
    return found


def table(console: Console, results: Results) -> None:
    """Print each operation's calls and latencies over the whole run, and how these changed."""
    shown = runner.table("Operations", "", "calls", "p50 ms", "p99 ms", "longest ms", "p50 an hour", "p99 an hour")
    windows = results["windows"]
    for name in sorted({name for w in windows for name in w["operations"]}):
        there = [w["operations"][name] for w in windows if name in w["operations"]]
        cells = [f"{sum(o['calls'] for o in there):,}"]
        cells += [f"{np.median([o[part] for o in there]):.2f}" for part in ("p50_ms", "p99_ms")]
        cells.append(f"{max(o['max_ms'] for o in there):,.1f}")
        cells += [change(results["slopes"].get(f"{name} {part} %"), "%") for part in ("p50", "p99")]
        shown.add_row(name, *cells)
    console.print(shown)
    console.print(
        "p50 and p99: medians over windows. An hour: least squares over windows after the first tenth, in % of the "
        "mean, and its standard error.",
        style="dim",
    )


def change(found: tuple[float, float] | None, unit: str) -> str:
    """Format a slope."""
    return "-" if found is None or np.isnan(found[0]) else f"{found[0]:+.1f} ± {found[1]:.1f} {unit}"


def verdict(console: Console, results: Results) -> bool:
    """Print the findings and the memory; return whether there are no findings."""
    counts, ram = results["windows"][-1]["counts"], results["ram"]
    console.print(
        f"{counts['wrong']} of {counts['transitions']:,} transitions wrong, {counts['exceptions']} exceptions"
    )
    grown = change(results["slopes"].get("memory MiB"), "MiB an hour")
    console.print(f"memory: {results['peak'] / ram:.2f} x ram= at most, {grown}")
    good = not results["problems"] and not counts["wrong"]
    for name in ("checkpoint", "store"):
        if found := results.get(name):
            wrong = len(found["damages"]) + len(found.get("wrong", ()))
            good = good and found["segments"] > 0 and not wrong
            steps = f"{found['segments']:,} segments, {found['steps']:,} steps"
            console.print(f"sharpwave verify: {name}: {wrong} damages or wrong batches in {steps}")
    for problem in results["problems"][:5]:
        console.print(problem, style="red", markup=False)
    return bool(good)


def figure(results: Results, path: Path) -> None:
    """Draw memory, held steps and latencies over time."""
    from matplotlib.ticker import NullFormatter

    windows, where = results["windows"], results["environment"]
    minutes = [w["at_s"] / 60 for w in windows]
    styles = {
        "append": ("#0b7285", "-"),
        "stream": ("#e8590c", "-"),
        "sample": ("#5f3dc4", "-"),
        "update": ("#868e96", "-"),
        "checkpoint": ("#2b8a3e", "--"),
        "flush": ("#adb5bd", "--"),
    }
    title = f"A store on disk under five threads for {minutes[-1]:.0f} minutes ({where['machine']}, {where['date']})"
    with runner.picture(path, title, 2, 2, figsize=(11, 7), sharex=True) as axes:
        held, disk = axes[0]
        held.plot(minutes, [w["grown"] / MIB for w in windows], color="#0b7285", label="the process grew by")
        held.plot(minutes, [w["counted"] / MIB for w in windows], ":", color="#0b7285", label="stats() says")
        held.axhline(results["ram"] / MIB, color="#c92a2a", linewidth=1, label="ram=")
        held.set_ylim(0, 1.25 * results["ram"] / MIB)
        held.set_title("memory, MiB", loc="left", fontsize=10)
        held.legend(frameon=False, loc="lower right", fontsize=8)
        disk.plot(minutes, [w["total_steps"] / 1e6 for w in windows], color="#868e96", label="appended")
        disk.plot(minutes, [w["steps"] / 1e6 for w in windows], color="#0b7285", label="held")
        disk.set_ylim(0, None)
        disk.set_title("steps, millions", loc="left", fontsize=10)
        disk.legend(frameon=False, loc="upper left", fontsize=8)
        for axis, part in zip(axes[1], ("p50", "p99"), strict=True):
            for name, (colour, style) in styles.items():
                there = [w for w in windows if name in w["operations"]]
                x = [w["at_s"] / 60 for w in there]
                if there:
                    values = [w["operations"][name][f"{part}_ms"] for w in there]
                    axis.plot(x, values, style, color=colour, label=name)
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.set_title(f"{part}, ms, in windows of {windows[0]['seconds']:.0f} s", loc="left", fontsize=10)
            axis.set_xlabel("minutes")
            axis.grid(True, which="major", color="#e9ecef")
        axes[1][1].sharey(axes[1][0])
        axes[1][1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="length of this run (30)")
    parser.add_argument("--hours", type=float, help="go on in --folder from run to run, until there are so many")
    parser.add_argument("--ram", default="128MiB")
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=4_000, help="steps appended a second, all lanes together")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--learner", type=float, default=0.01, help="seconds that a learner takes for a batch")
    parser.add_argument("--window", type=float, default=10.0, help="seconds between two lines")
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary folder")
    parser.add_argument("--out", type=Path, default=runner.RESULTS, help="folder for soak.json and soak.png")
    arguments = parser.parse_args()
    if arguments.hours and not arguments.folder:
        parser.error("--hours needs --folder, where the store stays between runs")
    console = runner.console()
    base = (
        arguments.folder if arguments.hours else Path(tempfile.mkdtemp(prefix="sharpwave-soak-", dir=arguments.folder))
    )
    base.mkdir(parents=True, exist_ok=True)
    where, state = environment(("sharpwave", "numpy")), base / "soak.json"
    before = json.loads(state.read_text()) if state.exists() else None
    soak = Soak(arguments, base, before)
    console.print(
        f"filling {arguments.capacity:,} steps; the appending threads go on at {arguments.rate:,.0f} a second"
    )
    soak.fill()
    windows = soak.run(console)
    summary: dict[str, Any] = {
        "environment": where,
        "settings": {name: str(value) for name, value in vars(arguments).items()},
        "ram": soak.store.ram,
        "peak": soak.peak,
        "problems": soak.problems[:20],
        "slices": (before["slices"] if before else 0) + 1,
        "checkpoint": None,
        "windows": windows,
        "slopes": slopes(windows),
    }
    soak.close()
    for name, path in (("checkpoint", soak.last_checkpoint), ("store", base / "store")):
        if path is not None:
            found = check(path)
            said = {"steps": found.steps, "segments": found.segments, "damages": [str(d) for d in found.damages]}
            summary[name] = {"path": path.name, **said}
    if soak.last_checkpoint is not None:
        summary["checkpoint"] |= soak.opened(soak.last_checkpoint)
    text = json.dumps({name: value for name, value in summary.items() if name != "windows"}, indent=1)
    lines = ",\n  ".join(map(json.dumps, windows))
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = [arguments.out / "soak.json", *([state] if arguments.hours else [])]
    for path in kept:
        path.write_text(text.removesuffix("\n}") + f',\n "windows": [\n  {lines}\n ]\n}}\n')
    table(console, summary)
    good = verdict(console, summary)
    figure(summary, arguments.out / "soak.png")
    console.print(f"written: {kept[0]}, {arguments.out / 'soak.png'}")
    if arguments.hours:
        done = windows[-1]["at_s"] / 3600
        console.print(f"{done:.1f} of {arguments.hours:g} hours in {summary['slices']} slices")
    else:
        shutil.rmtree(base, ignore_errors=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
