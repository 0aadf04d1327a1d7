"""One tree of Sharpwave beside another: whether a change made the store faster or slower, or gives other results.

    git worktree add /tmp/before COMMIT     # and build its core
    python benchmarks/beside.py /tmp/before . [--quick] [--lives 4] [--rounds 15] [--steps 100000] [--out FILE]
    python benchmarks/beside.py /tmp/before . --programs 10000 [--seed 0] [--seconds S]

Each tree (a folder with ``src/``) fills its stores in a process of its own; both are asked in turn, each round
beginning with the other one. Where a process's memory happens to lie makes some per cent, so after some rounds both are
started again. A ratio is the median over all rounds of the second tree's time to the first's.

``--programs``: random programs on a store of each tree must give the same, bit for bit. A program draws a spec,
settings and some forty calls: appends in all shapes, ends, annotations, views of transitions, sequences and hindsight
with every sampler, batches, priorities, evictions, lives of a folder. After each call the results are compared, errors
by type and text, and at the end all episodes. The first difference is printed with its program's seed, and the exit
status is 1.

A tree's process imports this file with that tree's package: it uses nothing but what both have, the public calls.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import statistics
import sys
import tempfile
import time
import warnings
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
WORKER, SAMENESS = "--worker", "--same"
"""First words of the command lines of a tree's process."""
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


def started(role: str, name: str, tree: Path, *arguments: object) -> AnsweringChild:
    """Start the process of a tree."""
    from sharpwave.bench.machine import AnsweringChild

    if not (tree / "src" / "sharpwave").is_dir():
        raise SystemExit(f"{str(tree)!r} has no src/sharpwave; expected a checkout of Sharpwave")
    return AnsweringChild(name, [sys.executable, __file__, role, str(tree.resolve()), *map(str, arguments)])


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
                children[tree] = started(WORKER, tree, path, folder, arguments.steps)
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


# sameness

PROGRAM_CALLS = 40
SHOWN = 600
"""Characters of a result that are printed where it differs."""
DTYPES = ("uint8", "int16", "int32", "int64", "float32", "float64", "bool", "float16")
CODECS = ("auto", "auto", "raw", "delta", "patches", "predict", "zstd")


SHARES = {
    "extend": 0.25, "append": 0.12, "block": 0.1, "episode": 0.06, "end": 0.04, "view": 0.06, "sample": 0.2,
    "update": 0.07, "fetch": 0.04, "stats": 0.03, "life": 0.01, "note": 0.02,
}  # fmt: skip
"""Calls of a program by kind, with their probabilities."""


class Program:
    """Draws of one program, the same for both trees."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.lanes = int(self.rng.integers(1, 6))
        self.obs = self._obs()
        self.action = str(self.rng.choice(DTYPES[:6])), [(), (2,)][self.rng.integers(2)]
        self.extra = self.rng.random() < 0.3
        self.settings: dict[str, Any] = {"seed": int(self.rng.integers(100)), "codec": str(self.rng.choice(CODECS))}
        if self.rng.random() < 0.8:
            self.settings["capacity"] = int(self.rng.integers(60, 600))
        else:
            self.settings["ram"] = "256MiB"  # a tight one evicts at other steps where working memory has another size
        if self.rng.random() < 0.6:
            self.settings["segment_steps"] = int(self.rng.integers(2, 40))
        self.retention = int(self.rng.choice([0, 0, 0, 1, 2]))
        self.disk = bool(self.rng.random() < 0.25)
        if self.disk:
            self.settings.setdefault("capacity", 500)
        self.alike = bool(self.rng.random() < 0.7)  # observations change little from step to step
        self.last: dict[str, Any] = {}

    def _obs(self) -> dict[str, tuple[tuple[int, ...], str, int | None]]:
        def one() -> tuple[tuple[int, ...], str, int | None]:
            shape = [(3,), (11,), (8, 8), (84,), (), (40, 30), (348,)][self.rng.integers(7)]
            dtype = "uint8" if len(shape) == 2 else str(self.rng.choice(DTYPES))
            return shape, dtype, int(self.rng.integers(2, 5)) if self.rng.random() < 0.4 else None

        self.goals = bool(self.rng.random() < 0.15)
        if self.goals:
            return {
                "observation": one(),
                "achieved_goal": ((3,), "float32", None),
                "desired_goal": ((3,), "float32", None),
            }
        return {"": one()} if self.rng.random() < 0.7 else {"near": one(), "far": one()}

    def spec(self, package: Any) -> Any:
        """Return the spec in the tree's classes."""
        fields = {name: package.Field(shape, dtype, stack=stack) for name, (shape, dtype, stack) in self.obs.items()}
        extra = {"cost": package.Field((), "float32")} if self.extra else {}
        obs = fields.get("", fields)
        return package.Spec(obs=obs, action=package.Field(self.action[1], self.action[0]), **extra)

    def values(self, lead: tuple[int, ...], shape: tuple[int, ...], dtype: str, key: str) -> Any:
        """Return values of a field, mostly few changes of those drawn before."""
        whole = (*lead, *shape)
        if dtype == "bool":
            return self.rng.random(whole) < 0.5
        known = self.last.get(key)
        if self.alike and known is not None and known.shape == whole:
            found = known.copy().reshape(-1)
            for _ in range(int(self.rng.integers(4))):
                if found.size:
                    found[self.rng.integers(found.size)] = self.rng.integers(100)
            found = found.reshape(whole)
        elif dtype.startswith("float"):
            found = np.asarray(self.rng.normal(size=whole)).astype(dtype)
        else:
            found = self.rng.integers(0, 100, whole).astype(dtype)
        self.last[key] = found
        return found.astype("float64") if dtype == "float32" and self.rng.random() < 0.2 else found

    def observation(self, lead: tuple[int, ...]) -> Any:
        """Return an observation with leading axes, an array or a dict."""
        found = {name: self.values(lead, shape, dtype, name) for name, (shape, dtype, _) in self.obs.items()}
        return found.get("", found)

    def step(self, lead: tuple[int, ...]) -> dict[str, Any]:
        """Return the arguments of an append with leading axes."""
        ends = self.rng.random(lead) < 0.08, self.rng.random(lead) < 0.05
        step = {
            "obs": self.observation(lead),
            "action": self.values(lead, self.action[1], self.action[0], "action"),
            "reward": self.rng.normal(size=lead).astype("float32") if lead else float(self.rng.normal()),
            "terminated": ends[0] if lead else bool(ends[0]),
            "truncated": ends[1] if lead else bool(ends[1]),
        }
        if self.extra:
            step["cost"] = self.values(lead, (), "float32", "cost")
        if self.rng.random() < 0.3:
            step["next_obs"] = self.observation(lead)
        if np.any(ends) and self.rng.random() < 0.9:
            step["final_obs"] = self.observation(lead)
        return step


def closeness(achieved: Any, desired: Any, info: Any) -> Any:
    """Return hindsight rewards."""
    return -np.abs(achieved - desired).sum(axis=-1)


Call = Callable[[Any], Any]  # of a session; what it returns is compared


class Session:
    """Store of a tree, and its views."""

    def __init__(self, package: Any, program: Program, folder: Path) -> None:
        self.package, self.folder = package, folder
        retention = [None, package.Reservoir(3), package.LowestPriority()][program.retention]
        disk = {"disk": folder / "store"} if program.disk else {}
        self.store = package.Store(program.spec(package), retention=retention, **program.settings, **disk)
        self.views: list[Any] = []
        self.batch: Any = None

    def open_view(self, kind: int, settings: dict[str, Any], sampler: int, uses: int | None) -> None:
        """Open a view and keep it."""
        package = self.package
        samplers = package.Uniform, package.Prioritized, package.RankPrioritized, package.Fifo, package.Lifo
        made = [self.store.transitions, self.store.sequences][kind]
        if "relabel" in settings:
            goals = [package.Future, package.Final, package.Episode][settings["relabel"]]
            settings = {**settings, "n_step": 1, "relabel": goals(reward_fn=closeness)}
        self.views.append(made(sampler=samplers[sampler](), max_times_sampled=uses, **settings))


def draw_call(program: Program, first: bool) -> tuple[str, Call]:
    """Draw one call; the ``first`` opens a view."""
    rng = program.rng
    kind = "view" if first else str(rng.choice(list(SHARES), p=list(SHARES.values())))
    lane = int(rng.integers(program.lanes))
    if kind == "extend":
        step = program.step((program.lanes,))
        return kind, lambda s: s.store.extend(**step)
    if kind == "append":
        step = program.step(())
        return kind, lambda s: s.store.append(lane=lane, **step)
    if kind == "block":
        step = program.step((int(rng.integers(1, 60)), program.lanes))
        return kind, lambda s: s.store.extend(**step)
    if kind == "episode":
        steps = int(rng.integers(1, 50))
        step = program.step((steps,))
        step = {name: value for name, value in step.items() if name not in ("next_obs", "final_obs", "truncated")}
        step |= {"obs": program.observation((steps + 1,)), "terminated": bool(rng.random() < 0.5)}
        ends_first = bool(rng.random() < 0.8)
        return kind, lambda s: (ends_first and s.store.break_episode(lane), s.store.add_episode(lane=lane, **step))
    if kind == "end":
        final = program.observation(()) if rng.random() < 0.5 else None
        if final is None:
            return kind, lambda s: s.store.break_episode(lane)
        return kind, lambda s: s.store.end_episode(lane, final)
    if kind == "view":
        sequences, sampler = int(rng.random() < 0.4), int(rng.integers(5))
        settings: dict[str, Any] = {"n_step": int(rng.integers(1, 5)), "gamma": float(rng.choice([0.9, 1.0]))}
        if sequences:
            settings |= {"length": int(rng.integers(2, 9)), "burn_in": int(rng.integers(3))}
            settings |= {"stride": int(rng.integers(1, 6))} if rng.random() < 0.5 else {}
        elif program.goals and rng.random() < 0.7:
            settings["relabel"] = int(rng.integers(3))
        uses = int(rng.integers(1, 4)) if rng.random() < 0.15 else None
        return kind, lambda s: s.open_view(sequences, settings, sampler, uses)
    if kind in ("sample", "update", "fetch"):
        number, size = int(rng.integers(100)), int(rng.choice([1, 7, 32, 100]))
        errors = rng.random(size) * 10

        def use(s: Any) -> Any:
            if not s.views:
                return None
            view = s.views[number % len(s.views)]
            if kind == "fetch":
                found = np.sort(view.sampleable_ids())
                return found, view.fetch(found[: 2 * size]) if len(found) else None
            if kind == "update":
                if s.batch is None or s.batch[0] is not view:
                    return None
                shape = s.batch[2]
                return view.update_priorities(s.batch[1], np.resize(errors, shape))
            batch = view.sample(size, timeout=0)
            shape = batch.reward.shape if number % 2 else batch.ids.shape
            s.batch = view, batch.ids.copy(), shape
            return batch

        return kind, use
    if kind == "note":
        episode = bool(rng.random() < 0.7)
        return kind, lambda s: s.store.annotate(lane, {"number": int(s.store.total_steps)}, episode=episode)
    if kind == "life" and program.disk:

        def live(s: Any) -> Any:
            s.store.close()
            s.views.clear()
            s.batch = None
            s.store = s.package.Store.open(s.folder / "store")
            return s.store.stats()["steps"]

        return kind, live
    return "stats", lambda s: {k: v for k, v in s.store.stats().items() if "steps" in k or "episodes" in k}


def plain(value: Any) -> Any:
    """Return a result as nested tuples of bytes and numbers."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()
    if isinstance(value, dict):
        return tuple((name, plain(one)) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(plain(one) for one in value)
    if dataclasses.is_dataclass(value):  # a batch, whose text leaves out most of its numbers
        names = [one.name for one in dataclasses.fields(value) if not one.name.startswith("_")]
        return tuple((name, plain(getattr(value, name))) for name in names)
    return value


def result_of(call: Call, session: Session) -> Any:
    """Return a call's result, or its error's type and text, with what it warned."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = plain(call(session))
        except Exception as error:
            found = type(error).__name__, str(error)
    return found, tuple(str(one.message) for one in caught)


def results(package: Any, seed: int) -> Iterator[tuple[str, str]]:
    """Run a program; yield each call, and what it gave, at last all episodes."""
    program = Program(seed)
    with tempfile.TemporaryDirectory(prefix="sharpwave-sameness-", dir="/dev/shm") as folder:
        session = Session(package, program, Path(folder))
        try:
            for number in range(PROGRAM_CALLS):
                kind, call = draw_call(program, number == 0)
                yield kind, str(result_of(call, session)).replace(folder, "")
            yield "episodes", str(result_of(everything, session)).replace(folder, "")
        finally:
            session.store.close()


def everything(session: Session) -> Any:
    """Return all episodes with their steps, and how many steps each lane has had."""
    episodes = [
        (one.lane, one.first_step, one.ended, one.obs, one.action, one.reward) for one in session.store.episodes()
    ]
    return episodes, session.store.lane_steps


def serve_programs() -> None:
    """Run the program of each seed that is asked for, and answer with what its calls gave."""
    package = use_tree(Path(sys.argv[2]))
    for line in sys.stdin:
        found = results(package, json.loads(line)["seed"])
        told = [(kind, hashlib.sha256(text.encode()).hexdigest(), text[:SHOWN]) for kind, text in found]
        print(json.dumps(told), flush=True)


def difference(first: list[list[str]], second: list[list[str]]) -> str | None:
    """Return the first call that gave something else in the second tree."""
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        if one[:2] != other[:2]:
            return f"call {number}, {one[0]}:\n  first:  {one[2]}\n  second: {other[2]}"
    return None


def same(chosen: argparse.Namespace) -> int:
    """Run the programs on both trees until one differs; return the exit status."""
    begun, done = time.monotonic(), 0
    children = {tree: started(SAMENESS, tree, getattr(chosen, tree)) for tree in TREES}
    try:
        for seed in range(chosen.seed, chosen.seed + chosen.programs):
            if time.monotonic() - begun > chosen.seconds:
                break
            for child in children.values():
                child.send(seed=seed)
            found: list[Any] = [child.receive() for child in children.values()]
            differs = difference(*found)
            if differs is not None:
                print(f"program {seed} differs at {differs}")
                return 1
            done += 1
            if done % 100 == 0:
                print(f"{done:,} programs, {time.monotonic() - begun:.0f} s", flush=True)
    finally:
        for child in children.values():
            child.close()
    print(f"{done:,} programs of {PROGRAM_CALLS} calls: the same")
    return 0


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
    parser.add_argument("--programs", type=int, help="run so many random programs, and compare what they give")
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the others follow")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no program begins")
    arguments = parser.parse_args()
    if arguments.programs is not None:
        sys.exit(same(arguments))
    if arguments.quick:
        arguments.lives, arguments.rounds, arguments.steps = 1, 5, min(arguments.steps, 32_000)
    found = measure(arguments)
    found["summary"] = summary(found)
    table(found)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    {WORKER: serve, SAMENESS: serve_programs}.get(sys.argv[1], main)()
