"""Sharpwave's store beside other libraries' replay buffers, on real frames of Pong or another game.

    python benchmarks/store.py [--quick] [--game pong] [--steps 500000] [--out FOLDER] [--frames-cache FOLDER]

Every contender fills a buffer in a process of its own and keeps it; then all are asked in turn, round after round, so
that whatever else the machine does hits all of them. Figures are medians over rounds; a ratio is the median of the
rounds' ratios. docs/benchmarks.md says how each contender is configured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import frames
import numpy as np
import runner
from frames import STACK
from runner import Results, bytes_a_step, rate, say

from sharpwave.bench import machine
from sharpwave.bench.contenders import SB3, SETUPS, Contender, Sharpwave
from sharpwave.bench.machine import AnsweringChild
from sharpwave.bench.measured import Bench, Limit
from sharpwave.bench.report import ratios
from sharpwave.bench.session import measure_round

CONTENDERS: dict[str, Callable[[], Contender]] = {
    "sharpwave auto": lambda: Sharpwave("auto"),
    "sharpwave delta": lambda: Sharpwave("delta"),
    "sharpwave zstd": lambda: Sharpwave("zstd"),
    "sharpwave raw": lambda: Sharpwave("raw"),
    "SB3": lambda: SB3(optimized=False),
    "SB3 optimized": lambda: SB3(optimized=True),
    "SB3 numpy": lambda: SB3(optimized=False, to_torch=False),
    "cpprb compressed": lambda: SETUPS["cpprb"].make(STACK),
    "cpprb stacks": lambda: SETUPS["cpprb stacks"].make(STACK),
    "Tianshou last frame": lambda: SETUPS["Tianshou"].make(STACK),
    "Tianshou stacks": lambda: SETUPS["Tianshou stacks"].make(STACK),
}
ENCODED = ("sharpwave auto", "sharpwave delta", "sharpwave zstd")
BATCHES = (32, 256, 1024)
TREES = ("sharpwave tree", "sharpwave sampler", "cpprb", "Tianshou")
LEAVES, DRAWN = 1 << 20, 256
ALPHA, BETA = 0.6, 0.4
PACKAGES = ("sharpwave", "numpy", "zstandard", "torch", "stable-baselines3", "cpprb", "tianshou", "ale-py")


def run(arguments: argparse.Namespace) -> Results:
    """Fill all contenders, measure them in turn, and return the results."""
    say(f"frames: {arguments.steps:,} steps of {arguments.game}")
    folder = frames.folder_of(arguments.game, arguments.steps, cache=arguments.frames_cache, say=say)
    names = [name for name in CONTENDERS if not arguments.only or any(part in name for part in arguments.only)]
    settings = {
        name: getattr(arguments, name) for name in ("game", "steps", "peer_steps", "rounds", "seconds", "threads")
    }
    results: Results = {
        "environment": machine.environment(PACKAGES) | settings, "contenders": {}, "trees": {}, "limit": []
    }  # fmt: skip
    workers: dict[str, AnsweringChild] = {}
    try:
        for name in [*names, "trees", "limit"]:
            workers[name] = runner.worker("store.py", WORKER, name, folder, name=name, threads=arguments.threads)
            if name in names:
                filled = workers[name].ask(
                    do="fill", steps=arguments.steps if name in ENCODED else arguments.peer_steps
                )
                results["contenders"][name] = {"fill": filled, "rounds": {}}
                say(f"{name}: {filled['steps']:,} steps, {filled['bytes'] / filled['steps']:,.0f} bytes each")
        workers["trees"].ask(do="fill", steps=LEAVES)
        workers["limit"].ask(do="fill", steps=0)

        def ask(name: str, what: str, batch: int) -> Results:
            return workers[name].ask(do="measure", what=what, batch=batch, seconds=arguments.seconds)

        for turn in range(arguments.rounds):
            say(f"round {turn + 1} of {arguments.rounds}")
            measure_round(results["contenders"], turn, BATCHES, ask)
            results["limit"].append(ask("limit", "windows", 256)["windows"])
            for name in TREES:
                answer = workers["trees"].ask(do="measure", what=name, batch=256, seconds=arguments.seconds / 2)
                results["trees"].setdefault(name, []).append(answer["us"])
    finally:
        for worker in workers.values():
            worker.close()
    return results


WORKER = "--worker"


def measured(name: str, folder: Path) -> Any:
    """Make the benchmark ``name`` over the recording in ``folder``: a contender, sum trees alone, or memory alone."""
    if name == "trees":
        return Trees()
    if name == "limit":
        return Limit(84 * 84, STACK + 1)
    return Bench(CONTENDERS[name], frames.read(folder))


class Trees:
    """Sum trees alone, of all libraries, with the same number of leaves; ``measure`` takes the library's name."""

    def fill(self, steps: int) -> dict[str, Any]:
        """Make the trees, with so many leaves and random priorities everywhere."""
        rng = np.random.default_rng(0)
        priorities, errors = rng.exponential(size=steps) + 1e-3, rng.exponential(size=DRAWN)
        made = (_sharpwave_tree, _sharpwave_sampler, _cpprb, _tianshou)
        self.calls = {name: make(priorities, errors, rng) for name, make in zip(TREES, made, strict=True)}
        return {"trees": list(self.calls), "leaves": steps}

    def measure(self, what: str, batch: int, seconds: float) -> dict[str, float]:
        """Return microseconds of a draw and an update: the median of single calls, which is least disturbed."""
        call = self.calls[what]
        call()
        taken, end = [], time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            call()
            taken.append(time.perf_counter() - begin)
        return {"us": float(np.median(taken)) * 1e6}


def _sharpwave_tree(priorities: Any, errors: Any, rng: np.random.Generator) -> Callable[[], Any]:
    from sharpwave.sampling.sum_tree import SumTree

    tree = SumTree(len(priorities))
    tree.sums.set(np.arange(len(priorities)), priorities**ALPHA)
    uniforms, values, rest = (np.empty(DRAWN) for _ in range(3))
    drawn = np.empty(DRAWN, np.int64)

    def call() -> None:
        rng.random(out=uniforms)
        tree.sums.draw(uniforms, drawn, values, rest)
        tree.sums.set(drawn, errors**ALPHA)

    return call


def _sharpwave_sampler(priorities: Any, errors: Any, rng: np.random.Generator) -> Callable[[], Any]:
    from sharpwave import Prioritized
    from sharpwave.native import core
    from sharpwave.sampling.sampler_protocol import Draw

    stride, leaves = 128, len(priorities)
    slots = -(-leaves // stride)
    sampler = Prioritized(alpha=ALPHA, beta=BETA)
    sampler.bind(slots, stride)
    sampler.insert(np.arange(slots), np.zeros(slots, np.int64), np.full(slots, stride))
    sampler.update(np.arange(leaves), priorities)
    draw = Draw.of(DRAWN)

    def call() -> None:
        sampler.draw(draw, rng)
        core.importance_weights(draw.probabilities, BETA, draw.weights)
        sampler.update(draw.items, errors)

    return call


def _cpprb(priorities: Any, errors: Any, rng: np.random.Generator) -> Callable[[], Any]:
    from cpprb import PrioritizedReplayBuffer

    # Its tree is not available alone: this is the smallest buffer around it, one byte a step.
    buffer = PrioritizedReplayBuffer(len(priorities), {"done": {"dtype": np.bool_}}, alpha=ALPHA)
    buffer.add(done=np.zeros(len(priorities), np.bool_), priorities=priorities)
    return lambda: buffer.update_priorities(buffer.sample(DRAWN, beta=BETA)["indexes"], errors)


def _tianshou(priorities: Any, errors: Any, rng: np.random.Generator) -> Callable[[], Any]:
    from tianshou.data import SegmentTree

    tree = SegmentTree(len(priorities))
    tree[np.arange(len(priorities))] = priorities**ALPHA

    def call() -> None:
        tree[tree.get_prefix_sum_idx(rng.random(DRAWN) * tree.reduce())] = errors**ALPHA

    return call


def cpu_us(results: Results, name: str, what: str) -> float:
    """Return the processor time of all threads for one row, in microseconds; 0: not measured."""
    rounds = results["contenders"][name]["rounds"].get(what)
    return statistics.median(one["cpu_us"] / one["rows"] for one in rounds) if rounds else 0.0


def counted(results: Results, name: str) -> float | None:
    """Return by which share ``stats()`` is above the growth of the process's memory; ``None``: no store of ours."""
    fill = results["contenders"][name]["fill"]
    return fill["stats"]["total_bytes"] / fill["bytes"] - 1 if "stats" in fill else None


def against_fastest(results: Results, name: str, what: str) -> tuple[float, float, str] | None:
    """Return the speed of ``name`` relative to the fastest peer, by wall and by processor time, and that peer."""
    peers = [one for one in results["contenders"] if not one.startswith("sharpwave") and rate(results, one, what)]
    if not peers or name not in results["contenders"]:
        return None
    fastest = max(peers, key=lambda peer: rate(results, peer, what))
    rounds = [results["contenders"][n]["rounds"][what] for n in (name, fastest)]
    wall = statistics.median(ratios(results, name, fastest, what))
    cpu = statistics.median(b["cpu_us"] / a["cpu_us"] for a, b in zip(*rounds, strict=True))
    return wall, cpu, fastest


def show(results: Results) -> None:
    """Print all contenders, the trees and the limit of memory."""
    where, console = results["environment"], runner.console()
    columns = ["steps", "bytes a step", "stats()", "adds/s"]
    columns += [f"{what} {batch}" for what in ("uniform", "PER") for batch in BATCHES] + ["CPU us a transition"]
    title = f"Replay memories on {where['game'].capitalize()}: 4 x 84 x 84 uint8 observations, 8 lanes"
    shown = runner.table(title, "", *columns)
    for name, entry in results["contenders"].items():
        off = counted(results, name)
        cells = [f"{entry['fill']['steps']:,}", f"{bytes_a_step(results, name):,.0f}"]
        cells.append("-" if off is None else f"{off:+.1%}")
        whats = ["add", *(f"{what} {batch}" for what in ("uniform", "prioritized") for batch in BATCHES)]
        cells += [f"{rate(results, name, what):,.0f}" if rate(results, name, what) else "-" for what in whats]
        shown.add_row(name, *cells, f"{cpu_us(results, name, 'uniform 256'):.1f}", style=style(name))
    console.print(shown)
    console.print(
        "uniform and PER (prioritized, priorities updated): transitions a second by batch size; medians of "
        f"{where['rounds']} rounds of {where['seconds']} s; CPU: uniform 256, all threads.\n"
        + runner.machine_text(where),
        style="dim",
    )
    trees = runner.table("Sum tree alone: draw 256 and update them, 2^20 leaves", "", "us")
    for name, taken in results["trees"].items():
        trees.add_row(name, f"{statistics.median(taken):.0f}", style=style(name))
    console.print(trees)
    limit = statistics.median(results["limit"])
    console.print(f"What memory allows: {limit:,.0f} transitions a second, copied from random places, on all cores.")
    for name, entry in results["contenders"].items():
        wrong = ", ".join(f"{share:.1%} of {part}" for part, share in entry["fill"]["wrong"].items() if share)
        if wrong:
            console.print(f"{name}: sampled frames that were never recorded: {wrong}", style="yellow")
    shown = runner.table(
        "Times as fast as the fastest peer", "", "what", "x", "by CPU time", "which", left=("", "what")
    )
    for row in comparisons(results):
        shown.add_row(*row)
    console.print(shown)


def style(name: str) -> str:
    """Return how a contender's row is printed."""
    return "bold cyan" if name.startswith("sharpwave") else ""


def comparisons(results: Results) -> Iterator[tuple[str, ...]]:
    """Yield, for our stores, how often they are as fast as the fastest peer, by wall and by processor time."""
    for name in ("sharpwave auto", "sharpwave raw"):
        for what in ("add", *(f"{what} {batch}" for what in ("uniform", "prioritized") for batch in BATCHES)):
            if found := against_fastest(results, name, what):
                yield name, what, f"{found[0]:.1f}", f"{found[1]:.1f}", found[2]
        if name in results["contenders"]:
            share = rate(results, name, "uniform 256") / statistics.median(results["limit"])
            yield name, "uniform 256", f"{share:.2f}", "", "copying raw frames alone"


def figure(results: Results, path: Path) -> None:
    """Draw bars by contender: bytes, adds, and transitions sampled at the batch sizes."""
    names, where = list(results["contenders"]), results["environment"]
    panels = {
        "bytes a step": [bytes_a_step(results, name) for name in names],
        "steps added a second, 8 lanes": [rate(results, name, "add") for name in names],
    }
    for what in ("uniform", "prioritized"):
        for batch in BATCHES[:2]:
            title = f"transitions a second, {what}, batch {batch}"
            panels[title] = [rate(results, name, f"{what} {batch}") for name in names]
    title = f"Replay memories on {where['game'].capitalize()}, 4x84x84 uint8 ({where['machine']}, {where['date']})"
    with runner.picture(path, title, 3, 2, figsize=(11, 10.5), sharey=True) as axes:
        for axis, (title, values) in zip(axes.flat, panels.items(), strict=True):
            runner.bars(axis, title, names, values, logarithmic=title.startswith("bytes"))


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute: fewer steps and rounds, shorter slices")
    parser.add_argument("--game", default="pong", help="game of the frames, as ale-py names it (default pong)")
    parser.add_argument("--steps", type=int, default=500_000, help="steps in encoded stores (default 500000)")
    parser.add_argument("--peer-steps", type=int, default=24_000, help="steps in all other buffers (default 24000)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement")
    parser.add_argument("--threads", type=int, default=0, help="threads of a contender (default: its own)")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="contenders whose name contains one of these")
    parser.add_argument("--out", type=Path, default=runner.RESULTS, help="folder for store.json and store.png")
    parser.add_argument("--frames-cache", type=Path, default=frames.CACHE, help="folder for played frames")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.peer_steps = min(arguments.steps, 48_000), min(arguments.peer_steps, 8_000)
        arguments.rounds, arguments.seconds = 3, 0.2
    runner.check_idle()
    results = run(arguments)
    runner.write(arguments.out / "store.json", results)
    show(results)
    figure(results, arguments.out / "store.png")
    say(f"written: {arguments.out / 'store.json'}, {arguments.out / 'store.png'}")


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        runner.answer(lambda: measured(sys.argv[2], Path(sys.argv[3])))
    else:
        main()
