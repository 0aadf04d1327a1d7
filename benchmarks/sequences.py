"""Sharpwave's sequences beside other libraries' windows of steps, on real frames of Pong.

    python benchmarks/sequences.py [--quick] [--reverb PYTHON] [--steps 100000] [--r2d2-steps 4000000] [--out FOLDER]

Windows of 120 steps, 40 of them burn-in, and the five observations behind them; a recurrent state of 2 x 512 float32.
Every contender fills a buffer in a process of its own and keeps it; then all are asked in turn, round after round, so
that whatever else the machine does hits all of them. Figures are medians over rounds; a ratio is the median of the
rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import frames
import numpy as np
import runner
from runner import Results, bytes_a_step, middle, rate, say
from sequence_contenders import (
    BURN_IN,
    LENGTH,
    N_STEP,
    STATES,
    STEPS,
    STRIDE,
    WINDOW,
    Flashbax,
    Reverb,
    Ring,
    Sharpwave,
    TorchRL,
    Windows,
    recurrent_states,
)  # fmt: skip

from sharpwave.bench import measured
from sharpwave.bench import played as recordings
from sharpwave.bench.contenders import installed
from sharpwave.bench.machine import AnsweringChild, cores, environment
from sharpwave.bench.measured import Limit
from sharpwave.bench.report import ratios
from sharpwave.bench.session import measure_round

MODULES = {"TorchRL": "torchrl", "Flashbax": "flashbax"}
"""Libraries without which the contenders whose names begin so are left out."""
PACKAGES = ("sharpwave", "numpy", "torch", "torchrl", "tensordict", "jax", "flashbax")
END_S = 60
"""Seconds in which a contender ends by itself: on a busy machine a store of 500,000 steps took more than ten."""
FRAMES = 500_000
"""Steps to play; a store of more repeats them."""


CONTENDERS: dict[str, Callable[[], Windows]] = {
    "sharpwave auto": partial(Sharpwave, "auto"),
    "sharpwave raw": partial(Sharpwave, "raw"),
    "numpy ring": Ring,
    "TorchRL": TorchRL,
    "Flashbax": Flashbax,
    "Reverb": Reverb,
}
BATCHES = (64, 16)
DRAINED = 4
"""Batches taken before the clock starts, some of which were prepared earlier."""
IDLE_S = 0.002
OURS, PEERS = "sharpwave", ("TorchRL", "Flashbax", "Reverb")
WORKER = "--worker"


def run(arguments: argparse.Namespace) -> Results:
    """Fill all contenders, measure them in turn, and return the results."""
    folder = frames.folder_of("pong", FRAMES if arguments.r2d2_steps else arguments.steps, cache=arguments.frames_cache)
    results: Results = {
        "environment": environment(PACKAGES) | {"load": [], "cores": cores()},
        "settings": {name: getattr(arguments, name) for name in ("steps", "rounds", "seconds", "r2d2_steps")}
        | {"burn_in": BURN_IN, "length": LENGTH, "stride": STRIDE, "n_step": N_STEP},
        "contenders": {},
        "limit": {str(batch): [] for batch in BATCHES},
    }
    if arguments.r2d2_steps:
        say(f"a store of {arguments.r2d2_steps:,} steps")
        results["r2d2"] = memory_of(arguments, folder)
    workers: dict[str, AnsweringChild] = {}
    try:
        for name in chosen(arguments):
            workers[name] = worker(name, folder, arguments)
            filled = workers[name].ask(do="fill", steps=arguments.steps)
            results["contenders"][name] = {"fill": filled, "rounds": {}}
            say(f"{name}: {filled['bytes'] / filled['steps']:,.0f} bytes a step, filled in {filled['fill_s']:.0f} s")

        def ask(name: str, what: str, batch: int) -> Results:
            return workers[name].ask(do="measure", what=what, batch=batch, seconds=arguments.seconds)

        workers["limit"] = worker("limit", folder, arguments)
        workers["limit"].ask(do="fill", steps=0)
        for turn in range(arguments.rounds):
            say(f"round {turn + 1} of {arguments.rounds}")
            results["environment"]["load"].append(os.getloadavg()[0])
            measure_round(results["contenders"], turn, BATCHES, ask)
            for batch in BATCHES:
                results["limit"][str(batch)].append(ask("limit", "windows", batch)["windows"])
    finally:
        for one in workers.values():
            end(one)
    return results


def memory_of(arguments: argparse.Namespace, folder: Path) -> Results:
    """Return the memory of one store of ``r2d2_steps``."""
    one = worker("sharpwave auto", folder, arguments, FRAMES)
    try:
        return one.ask(do="fill", steps=arguments.r2d2_steps)
    finally:
        end(one)


def worker(name: str, folder: Path, arguments: argparse.Namespace, recorded: int = 0) -> AnsweringChild:
    """Start the process of a contender, over the first ``recorded`` steps played; 0: as many as it stores."""
    python = arguments.reverb if name == "Reverb" else sys.executable
    steps = recorded or arguments.steps
    return runner.worker("sequences.py", WORKER, name, folder, steps, name=name, python=python)


def end(one: AnsweringChild) -> None:
    """Let a contender end by itself, which removes its files."""
    assert one.process.stdin is not None
    try:
        one.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # what it measured is here already
            one.process.wait(END_S)
    finally:
        one.close()


def chosen(arguments: argparse.Namespace) -> list[str]:
    """Return the contenders asked for whose libraries are installed."""
    names = []
    for name in CONTENDERS:
        module = next((module for begin, module in MODULES.items() if name.startswith(begin)), None)
        if arguments.only and not any(part in name for part in arguments.only):
            continue
        if (module and not installed(module)) or (name == "Reverb" and not arguments.reverb):
            say(f"{name}: left out, {'give --reverb' if name == 'Reverb' else f'{module} is not installed'}")
            continue
        names.append(name)
    return names


class Bench(measured.Bench):
    """Benchmark of a contender whose memory counts without any batch."""

    large = BATCHES[0]

    def fill(self, steps: int) -> dict[str, Any]:
        """Fill the contender; ``bytes`` is the growth of the process."""
        answer = super().fill(steps)
        answer["bytes"] = answer["filled_bytes"]
        return answer

    def measure(self, what: str, batch: int, seconds: float) -> dict[str, float]:
        """Return calls per second and processor time per call; ``rows`` is the number of steps or windows of one."""
        for _ in range(DRAINED if batch else 0):
            self.contender.sample(batch)
        answer = super().measure(what, batch, seconds)
        _wait_until_idle()
        return answer

    def errors(self, batch: int) -> Any:
        """Return TD errors of the steps of a batch's windows."""
        return np.random.default_rng(0).exponential(size=(batch, LENGTH))

    def _wrong(self) -> dict[str, float]:
        """Return the shares of sampled windows that are not consecutive steps of one episode, of observations that are
        not those recorded, and of states that are not those of the first step."""
        recording, lanes = self.recording, self.recording.lanes
        seen = self.contender.seen(self.contender.sample(BATCHES[0]))
        assert seen.number.shape[1] == STEPS
        crossed = frames = states = 0
        for i, mask in enumerate(seen.mask):
            number = seen.number[i][mask]
            t, lane = number // lanes, number[0] % lanes
            whole = np.array_equal(number, number[0] + lanes * np.arange(len(number)))
            crossed += not whole or recording.start[t[-1], lane] > t[0]
            frames += int((seen.obs[i][mask] != recording.obs[t, number % lanes]).any(axis=(1, 2)).sum())
            states += not np.array_equal(seen.state[i], recurrent_states()[number[0] % STATES])
        count = len(seen.number)
        return {"windows": crossed / count, "frames": frames / int(seen.mask.sum()), "states": states / count}


def _wait_until_idle() -> None:
    """Wait for threads that prepare the next batches: the processor is the next contender's."""
    before = -1.0
    while time.process_time() - before > IDLE_S:
        before = time.process_time()
        time.sleep(10 * IDLE_S)


def make(name: str, folder: Path, steps: int) -> Any:
    """Make the benchmark ``name`` over the first ``steps`` of the recording in ``folder``."""
    if name == "limit":
        return Limit(84 * 84, WINDOW)
    recording = recordings.read(folder, None, steps // recordings.LANES)
    return Bench(CONTENDERS[name], recording)


def fastest_peer(results: Results, what: str) -> str | None:
    """Return the library that hands out the most windows a second with everything in them."""
    names = [name for name in results["contenders"] if name.startswith(PEERS)]
    return max(names, key=lambda name: rate(results, name, what), default=None)


def ratio(results: Results, name: str, other: str, what: str, others: str) -> float:
    """Return how many times as fast as ``other`` doing ``others`` ``name`` does ``what``, the median of rounds."""
    both = {name: results["contenders"][name]["rounds"][what], other: results["contenders"][other]["rounds"][others]}
    shown = {"contenders": {one: {"rounds": {what: rounds}} for one, rounds in both.items()}}
    return 1.0 if name == other and what == others else statistics.median(ratios(shown, name, other, what))


def rows(results: Results) -> list[tuple[str, str, str]]:
    """Return (title, contender, how it samples) of the table's rows."""
    found = []
    for name, entry in results["contenders"].items():
        found.append((name, name, "uniform"))
        if f"prioritized {BATCHES[0]}" in entry["rounds"]:
            found.append((f"{name}, prioritized", name, "prioritized"))
    return found


def show(results: Results) -> None:
    """Print all contenders."""
    settings, where = results["settings"], results["environment"]
    steps = settings["burn_in"] + settings["length"]
    columns = [name for batch in BATCHES for name in (f"windows/s, {batch}", "x fastest peer", "CPU ms")]
    title = f"Windows of {steps} steps of Pong, 84 x 84 uint8, {settings['steps']:,} steps"
    shown, console = runner.table(title, "", *columns, "bytes a step", "adds/s"), runner.console()
    for title, name, how in rows(results):
        cells = []
        for batch in BATCHES:
            what, others = f"{how} {batch}", f"uniform {batch}"
            peer = fastest_peer(results, others)
            rounds = results["contenders"][name]["rounds"][what]
            cells.append(f"{rate(results, name, what):,.0f}")
            cells.append(f"{ratio(results, name, peer, what, others):.2f}" if peer else "-")
            cells.append(f"{middle(rounds, 'cpu_us') / 1000:.1f}")
        if how == "uniform":
            cells += [f"{bytes_a_step(results, name):,.0f}", f"{rate(results, name, 'add'):,.0f}"]
        else:
            cells += ["", ""]
        shown.add_row(title, *cells, style="bold cyan" if name.startswith(OURS) else "")
    copied = [f"{statistics.median(results['limit'][str(batch)]):,.0f}" for batch in BATCHES]
    shown.add_row("frames copied, all cores", copied[0], "", "", copied[1], "", "", "", "")
    console.print(shown)
    load, versions = where["load"] or [0.0], where["versions"]
    console.print(
        f"x: of the fastest library's uniform windows with recurrent states, median of {settings['rounds']} ratios; "
        f"CPU: of all threads, a batch.\n{where['machine']}, load {min(load):.1f} to {max(load):.1f}, "
        + ", ".join(f"{name} {number}" for name, number in versions.items()),
        style="dim",
    )
    for name, entry in results["contenders"].items():
        wrong = {part: share for part, share in entry["fill"]["wrong"].items() if share}
        if wrong:
            told = ", ".join(f"{share:.1%} of {part}" for part, share in wrong.items())
            console.print(f"{name}: sampled what was not played so: {told}", style="yellow")
    if large := results.get("r2d2"):
        each = large["bytes"] / large["steps"]
        shares = ", ".join(
            f"1/{bytes_a_step(results, name) / each:.0f} of {name}"
            for name, entry in results["contenders"].items()
            if name.startswith(PEERS) and entry["fill"]["bytes"] > 0
        )
        console.print(f"{large['steps'] / 1e6:g}M steps: {large['bytes'] / 1e6:,.0f} MB, {each:,.0f} a step: {shares}")


def figure(results: Results, path: Path) -> None:
    """Draw bars by contender: windows sampled a second at both batch sizes, and bytes a step."""
    shown, where = rows(results), results["environment"]
    panels = {
        f"windows a second, batch {batch}": [rate(results, name, f"{how} {batch}") for _, name, how in shown]
        for batch in BATCHES
    }
    panels["bytes a step"] = [bytes_a_step(results, name) for _, name, _ in shown]
    title = f"Windows of 120 steps of Pong, 84x84 uint8 ({where['machine']}, {where['date']})"
    with runner.picture(path, title, 1, len(panels), figsize=(12, 3.6), sharey=True) as axes:
        for axis, (title, values) in zip(axes, panels.items(), strict=True):
            runner.bars(axis, title, [title for title, _, _ in shown], values)


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes: fewer steps and rounds, shorter slices")
    parser.add_argument("--steps", type=int, default=100_000, help="steps in each buffer (default 100000)")
    parser.add_argument(
        "--r2d2-steps", type=int, default=4_000_000,
        help="steps of the store whose memory is measured: 40 for each of R2D2's 100,000 sequences; 0: none",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="contenders whose name contains one of these")
    parser.add_argument(
        "--reverb", metavar="PYTHON", help="interpreter with dm-reverb[tensorflow] and Sharpwave's dependencies"
    )
    parser.add_argument("--out", type=Path, default=runner.RESULTS, help="folder for sequences.json, sequences.png")
    parser.add_argument("--frames-cache", type=Path, default=frames.CACHE, help="folder for played frames")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.r2d2_steps = min(arguments.steps, 16_000), min(arguments.r2d2_steps, 250_000)
        arguments.rounds, arguments.seconds = 3, 0.3
    runner.check_idle()
    results = run(arguments)
    runner.write(arguments.out / "sequences.json", results)
    show(results)
    figure(results, arguments.out / "sequences.png")
    say(f"written: {arguments.out / 'sequences.json'}, {arguments.out / 'sequences.png'}")


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        bench = make(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
        runner.answer(lambda: bench)
        if isinstance(bench, Bench):
            bench.contender.close()
    else:
        main()
