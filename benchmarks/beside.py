"""One tree of Sharpwave beside another: whether a change made the store faster or slower.

    git worktree add /tmp/before COMMIT
    python benchmarks/beside.py /tmp/before . [--quick] [--lives 4] [--rounds 15] [--steps 100000] [--out FILE]

Each tree (a folder with ``src/``) fills its stores in a process of its own; both are asked in turn, each round
beginning with the other one. Where a process's memory happens to lie makes some per cent, so after some rounds both are
started again. A ratio is the median over all rounds of the second tree's time to the first's.

A tree's process imports this file with that tree's package: it uses nothing but what both have, the public calls.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sharpwave.bench.machine import AnsweringChild

TREES = ("first", "second")
CALLS = {0: 512, 32: 300, 256: 60}
"""Calls of a slice by batch size; 0: ``extend``, four times as many as seal a lane's segment."""
DATA = ("frames", "vectors")
WORKER = "--worker"
ROWS = [("extend", data, 0) for data in DATA]
ROWS += [(what, data, batch) for data in DATA for what in ("uniform", "prioritized") for batch in (32, 256)]
TIMEOUT_S = 600
LANES = 8
TIMES = 4000
"""Recorded steps of each lane, in memory, played again and again."""

Step = dict[str, Any]

Results = dict[str, Any]


def use_tree(tree: Path) -> Any:
    """Import the package of a tree, whichever this interpreter has installed, and return it."""
    sys.meta_path[:] = [one for one in sys.meta_path if not type(one).__module__.startswith("_editable_")]
    sys.path.insert(0, str(tree / "src"))
    import sharpwave

    if not Path(sharpwave.__file__).is_relative_to(tree.resolve()):
        raise SystemExit(f"{sharpwave.__file__} was imported, expected the package in {tree / 'src'}")
    return sharpwave


def started(program: str, name: str, tree: Path, *arguments: object) -> AnsweringChild:
    """Start a program of this folder as the process of a tree."""
    from sharpwave.bench.machine import AnsweringChild

    if not (tree / "src" / "sharpwave").is_dir():
        raise SystemExit(f"{str(tree)!r} has no src/sharpwave; expected a checkout of Sharpwave")
    return AnsweringChild(name, [sys.executable, program, WORKER, str(tree.resolve()), *map(str, arguments)])


def frame_steps(sw: Any, folder: Path) -> tuple[Any, list[Step]]:
    """Return the spec and steps of a recording of ``frames.py``."""
    obs, reward, terminated, truncated = (
        np.array(np.load(folder / f"{name}.npy", mmap_mode="r")[: TIMES + 1])
        for name in ("obs", "reward", "terminated", "truncated")
    )
    steps = []
    for t in range(len(obs) - 1):
        step = {"obs": obs[t], "action": np.arange(LANES), "reward": reward[t], "truncated": truncated[t]}
        final = obs[t + 1] if (terminated[t] | truncated[t]).any() else None
        steps.append({**step, "terminated": terminated[t], "final_obs": final})
    return sw.Spec(obs=sw.Field(obs.shape[2:], "uint8", stack=4), action=sw.Field((), "int64")), steps


def vector_steps(sw: Any) -> tuple[Any, list[Step]]:
    """Return the spec and steps of 17 and 6 random numbers, an episode of 500."""
    rng = np.random.default_rng(0)
    obs, action = (rng.normal(size=(TIMES + 1, LANES, size)).astype(np.float32) for size in (17, 6))
    no, reward = np.zeros(LANES, np.bool_), np.ones(LANES, np.float32)
    steps = []
    for t in range(TIMES):
        ended = t % 500 == 499
        step = {"obs": obs[t], "action": action[t], "reward": reward, "truncated": no}
        steps.append({**step, "terminated": ~no if ended else no, "final_obs": obs[t + 1] if ended else None})
    return sw.Spec(obs=sw.Field((17,), "float32"), action=sw.Field((6,), "float32")), steps


class Filled:
    """Full store with its views and an endless source of steps."""

    def __init__(self, sw: Any, spec: Any, steps: list[Step], capacity: int) -> None:
        self.store = sw.Store(spec, capacity=capacity, seed=0)
        self.views = {
            "uniform": self.store.transitions(seed=1),
            "prioritized": self.store.transitions(sampler=sw.Prioritized(), seed=2),
        }
        self._steps = self._endless(steps)
        for _ in range(capacity // LANES):
            self.extend()

    def extend(self) -> None:
        """Append a step of every lane."""
        self.store.extend(**next(self._steps))

    def sampling(self, sampler: str, batch: int) -> Callable[[], Any]:
        """Return a function that samples a batch, and updates its priorities if it is prioritized."""
        view: Any = self.views[sampler]
        errors = np.random.default_rng(0).exponential(size=batch)
        if sampler == "uniform":
            return lambda: view.sample(batch)

        def sample() -> None:
            view.update_priorities(view.sample(batch).ids, errors)

        return sample

    def bytes_a_step(self) -> float:
        """Return the bytes per step that the store reports."""
        return float(self.store.stats()["bytes_per_step"])

    @staticmethod
    def _endless(steps: list[Step]) -> Iterator[Step]:
        while True:
            yield from steps


def timed(call: Callable[[], Any], calls: int) -> dict[str, float]:
    """Return microseconds of wall time and of processor time per call."""
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    return {
        "wall_us": (time.perf_counter() - begin) / calls * 1e6,
        "cpu_us": (time.process_time() - cpu) / calls * 1e6,
    }


def serve() -> None:
    """Fill the stores, then answer requests, one line of JSON each."""
    sw, folder, capacity = use_tree(Path(sys.argv[2])), Path(sys.argv[3]), int(sys.argv[4])
    filled = {"frames": Filled(sw, *frame_steps(sw, folder), capacity)}
    filled["vectors"] = Filled(sw, *vector_steps(sw), capacity)
    print(json.dumps({data: one.bytes_a_step() for data, one in filled.items()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        one = filled[asked["data"]]
        call = one.sampling(asked["what"], asked["batch"]) if asked["batch"] else one.extend
        timed(call, 2)
        print(json.dumps(timed(call, asked["calls"])), flush=True)


def measure(arguments: argparse.Namespace) -> Results:
    """Return every round of both trees, by row."""
    import frames
    from runner import say

    from sharpwave.bench.machine import environment

    folder = frames.folder_of("pong", 50_000, cache=arguments.frames_cache, say=say)
    trees: dict[str, Path] = {tree: getattr(arguments, tree) for tree in TREES}
    rows: Results = {" ".join(map(str, row)): {tree: [] for tree in trees} for row in ROWS}
    found: Results = {
        "environment": environment(("numpy", "zstandard")),
        "trees": {tree: str(path.resolve()) for tree, path in trees.items()},
        "settings": {name: getattr(arguments, name) for name in ("lives", "rounds", "steps")},
        "bytes_per_step": {},
        "rows": rows,
    }
    for life in range(arguments.lives):
        children = {}
        try:
            for tree, path in trees.items():
                children[tree] = started(__file__, tree, path, folder, arguments.steps)
                say(f"life {life + 1} of {arguments.lives}: filling {path}")
                found["bytes_per_step"][tree] = children[tree].receive(TIMEOUT_S)
            for turn in range(arguments.rounds):
                say(f"life {life + 1} of {arguments.lives}: round {turn + 1} of {arguments.rounds}")
                for what, data, batch in ROWS:
                    for tree in list(trees)[:: -1 if turn % 2 else 1]:
                        answer = children[tree].ask(TIMEOUT_S, what=what, data=data, batch=batch, calls=CALLS[batch])
                        rows[f"{what} {data} {batch}"][tree].append(answer)
        finally:
            for child in children.values():
                child.close()
    return found


def summary(found: Results) -> Results:
    """Return, by row and clock, both trees' medians in microseconds, and quartiles of the rounds' ratios."""
    import runner

    told: Results = {}
    for name, rounds in found["rows"].items():
        told[name] = {}
        for clock in ("wall_us", "cpu_us"):
            first, second = ([one[clock] for one in rounds[tree]] for tree in TREES)
            ratios = [b / a for a, b in zip(first, second, strict=True)]
            low, middle, high = runner.quartiles(ratios)
            told[name][clock] = {
                "first": statistics.median(first), "second": statistics.median(second), "ratio": middle,
                "quartiles": [low, high],
            }  # fmt: skip
    return told


def table(found: Results) -> None:
    """Print the summary."""
    import runner

    title = "Time a call, second tree to first: below 1 is faster"
    shown = runner.table(title, "", "first, us", "second, us", "ratio", "quartiles", "ratio, CPU time")
    for name, clocks in found["summary"].items():
        wall, cpu = clocks["wall_us"], clocks["cpu_us"]
        low, high = wall["quartiles"]
        cells = [f"{wall['first']:,.1f}", f"{wall['second']:,.1f}", f"{wall['ratio']:.3f}", f"{low:.3f} - {high:.3f}"]
        shown.add_row(name.removesuffix(" 0"), *cells, f"{cpu['ratio']:.3f}")
    console = runner.console(100)
    console.print(shown)
    for data in DATA:
        first, second = (found["bytes_per_step"][tree][data] for tree in TREES)
        console.print(f"bytes a step, {data}: {first:.1f}, {second:.1f}", highlight=False)


def main() -> None:
    """Run the command line."""
    from frames import CACHE

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, help="reference tree, a folder with src/")
    parser.add_argument("second", type=Path)
    parser.add_argument("--quick", action="store_true", help="half a minute: one life, fewer steps and rounds")
    parser.add_argument("--lives", type=int, default=4, help="times that both processes are started")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each life")
    parser.add_argument("--steps", type=int, default=100_000, help="steps that each store holds")
    parser.add_argument("--out", type=Path, help="write all rounds to this .json file")
    parser.add_argument("--frames-cache", type=Path, default=CACHE, help="folder for played frames")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.lives, arguments.rounds, arguments.steps = 1, 5, min(arguments.steps, 32_000)
    found = measure(arguments)
    found["summary"] = summary(found)
    table(found)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    serve() if sys.argv[1:2] == [WORKER] else main()
