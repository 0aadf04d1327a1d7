"""Sameness: random programs on a store of this tree and on one of an earlier commit must give the same, bit for bit.

    python benchmarks/sameness.py COMMIT [--programs 10000] [--seed 0] [--seconds S]

The commit's package is taken out of git, renamed ``sharpwave_before``, and imported beside this one (its requirements
must be installed). Each program draws a spec, settings and some forty calls: appends in all shapes, ends, annotations,
views of transitions, sequences and hindsight with every sampler, batches, priorities, evictions, checkpoints, lives of
a folder. After each call the results are compared, errors by type and text, at the end all sealed segments by what
they hold (which codecs encode it may differ). The first difference is printed with its program's seed, and the exit
status is 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
CALLS = 40
DTYPES = ("uint8", "int16", "int32", "int64", "float32", "float64", "bool", "float16")
CODECS = ("auto", "auto", "raw", "delta", "patches", "predict", "zstd")


def before(commit: str, folder: Path) -> Any:
    """Import a commit's package as ``sharpwave_before``."""
    package = folder / "src" / "sharpwave_before"
    if package.exists():  # of an earlier run, with its compiled kernels
        sys.path.insert(0, str(folder / "src"))
        return importlib.import_module("sharpwave_before")
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    (folder / "src" / "sharpwave").rename(package)
    for path in package.rglob("*.py"):
        text = re.sub(r"\bsharpwave(?=[.\s])(?!:)", "sharpwave_before", path.read_text())
        path.write_text(re.sub(r'(["\'])sharpwave(?=[.])', r"\1sharpwave_before", text))
    if (folder / "src" / "core").exists():
        raise SystemExit("sameness: a commit with a native core, expected one before it, or a wheel of it")
    sys.path.insert(0, str(folder / "src"))
    return importlib.import_module("sharpwave_before")


class Program:
    """Draws of one program, the same for both packages."""

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
        """Return the spec in a package's classes."""
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
    """Store of one package, and its views."""

    def __init__(self, package: Any, program: Program, folder: Path) -> None:
        self.package, self.program = package, program
        self.folder = folder / package.__name__
        retention = [None, package.Reservoir(3), package.LowestPriority()][program.retention]
        disk = {"disk": self.folder / "store"} if program.disk else {}
        self.folder.mkdir()
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
        return tuple((one.name, plain(getattr(value, one.name))) for one in dataclasses.fields(value))
    return value


def result_of(call: Call, session: Session) -> Any:
    """Return a call's result, or its error's type and text, with what it warned."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = plain(call(session))
        except Exception as error:
            text = str(error).replace("sharpwave_before", "sharpwave")
            found = type(error).__name__, re.sub(r"[\d,]+ by index", "some by index", text)  # less of it is no fault
    said = tuple(str(one.message).replace("sharpwave_before", "sharpwave") for one in caught)
    return found, said


def segments(session: Session) -> Any:
    """Return what all sealed segments hold, and how many steps each lane has."""
    log, spec = session.store._log, session.store.spec
    name = session.package.__name__
    segment, dictionaries = (
        importlib.import_module(f"{name}.{one}") for one in ("format.segment", "codecs.dictionaries")
    )
    if hasattr(log, "sealing"):
        log.sealing.settle()
        content_of = log.sealed.content
    else:  # before sealing was one module
        if hasattr(log, "settle"):
            log.settle()
        content_of = functools.partial(importlib.import_module(f"{name}.log.sealed_after")._content, log)
    index, found = log.index, []
    for slot in range(index.highest):
        if index.sealed[slot] and index.rows[slot]:
            packed, key_of = content_of(slot), dictionaries.key_of
            places = zip(log.tables, index.dictionary[:, slot].tolist(), strict=True)
            by_key = {key_of(data): data for data in (table.data(place) for table, place in places if place)}
            header, rows = segment.unpack(packed, spec, by_key.__getitem__)
            about = header.lane, header.first_step, header.episode_step, header.context, bytes(header.metadata)
            found.append((index.segment_id(slot), about, {name: plain(values) for name, values in rows.items()}))
    return found, session.store.lane_steps.tolist()


def differs(packages: tuple[Any, Any], seed: int) -> str | None:
    """Run one program on both; return what differs."""
    program = Program(seed)
    with tempfile.TemporaryDirectory(prefix="sharpwave-sameness-", dir="/dev/shm") as made:
        sessions = [Session(package, program, Path(made)) for package in packages]
        try:
            for number in range(CALLS):
                kind, call = draw_call(program, number == 0)
                found = [result_of(call, session) for session in sessions]
                said = [str(one).replace("/sharpwave_before/", "/sharpwave/") for one in found]
                if said[0] != said[1]:
                    return f"call {number}, {kind}:\n  before: {said[0][:600]}\n  now:    {said[1][:600]}"
            last = [segments(session) for session in sessions]
            if last[0] != last[1]:
                return "what sealed segments hold"
        finally:
            for session in sessions:
                session.store.close()
    return None


def main() -> int:
    """Run the programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="a commit without a native core")
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the others follow")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no program begins")
    chosen = parser.parse_args()
    begun = time.monotonic()
    folder = Path(tempfile.gettempdir()) / f"sharpwave-before-{chosen.commit}"
    packages = before(chosen.commit, folder), importlib.import_module("sharpwave")
    done = 0
    for seed in range(chosen.seed, chosen.seed + chosen.programs):
        if time.monotonic() - begun > chosen.seconds:
            break
        found = differs(packages, seed)
        if found is not None:
            print(f"program {seed} differs at {found}")
            return 1
        done += 1
        if done % 100 == 0:
            print(f"{done:,} programs, {time.monotonic() - begun:.0f} s", flush=True)
    print(f"{done:,} programs of {CALLS} calls: the same")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
