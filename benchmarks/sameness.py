"""Sameness: random programs on a store of one tree and on one of another must give the same, bit for bit.

    git worktree add /tmp/before COMMIT     # and build its core
    python benchmarks/sameness.py /tmp/before . [--programs 10000] [--seed 0] [--seconds S]

Each tree runs in a process of its own. A program draws a spec, settings and some forty calls: appends in all shapes,
ends, annotations, views of transitions, sequences and hindsight with every sampler, batches, priorities, evictions,
lives of a folder. After each call the results are compared, errors by type and text, and at the end all episodes.
The first difference is printed with its program's seed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from beside import TREES, started, use_tree

CALLS = 40
SHOWN = 600
"""Characters of a result that are printed where it differs."""
DTYPES = ("uint8", "int16", "int32", "int64", "float32", "float64", "bool", "float16")
CODECS = ("auto", "auto", "raw", "delta", "patches", "predict", "zstd")


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
    kind = (
        "view"
        if first
        else rng.choice(
            [
                "extend",
                "append",
                "block",
                "episode",
                "end",
                "view",
                "sample",
                "update",
                "fetch",
                "stats",
                "life",
                "note",
            ],
            p=[0.25, 0.12, 0.1, 0.06, 0.04, 0.06, 0.2, 0.07, 0.04, 0.03, 0.01, 0.02],
        )
    )
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
            for number in range(CALLS):
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


def serve(tree: str) -> None:
    """Run the program of each seed that is asked for, and answer with what its calls gave."""
    package = use_tree(Path(tree))
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


def main() -> int:
    """Run the programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, help="reference tree, a folder with src/")
    parser.add_argument("second", type=Path)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the others follow")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no program begins")
    chosen = parser.parse_args()
    begun, done = time.monotonic(), 0
    children = {tree: started(__file__, tree, getattr(chosen, tree)) for tree in TREES}
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
    print(f"{done:,} programs of {CALLS} calls: the same")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        serve(sys.argv[2])
    else:
        raise SystemExit(main())
