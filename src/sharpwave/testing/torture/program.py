"""Programs: random lists of operations on a store, the store's settings, and a script that repeats a program."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

Operation = dict[str, Any]
"""``do``: its name; further arguments by name. See ``sharpwave.testing.torture.life.StoreProcess``."""

RETENTIONS = ("Fifo", "Reservoir", "LowestPriority")
ON_FULL = ("raise", "block", "drop_oldest", "drop_newest")
LIMITS = ("capacity", "disk_limit", "both")
ENDS = ".tub"
"""Ends of steps in a program: none, terminated, truncated, both."""

VIEWS: dict[str, dict[str, Any]] = {
    "one": {"kind": "transitions", "n_step": 1},
    "five": {"kind": "transitions", "n_step": 5},
    "priorities": {"kind": "transitions", "n_step": 3, "sampler": "Prioritized"},
    "queue": {"kind": "transitions", "n_step": 2, "sampler": "Fifo", "max_times_sampled": 1},
    "twice": {"kind": "transitions", "n_step": 1, "sampler": "Uniform", "max_times_sampled": 2},
    "windows": {"kind": "sequences", "length": 4, "burn_in": 2, "stride": 2, "n_step": 2},
    "loss": {"kind": "sequences", "length": 3, "burn_in": 0, "stride": 3, "n_step": 1, "sampler": "Prioritized"},
}
"""Views by name, with the arguments of ``Store.transitions`` or ``Store.sequences``. Their ``gamma`` is one half, so
that returns of whole rewards are exact."""
GAMMA = 0.5


@dataclass(frozen=True)
class StoreProgram:
    """Settings of a store, and operations on it, in order.

    Attributes:
        settings: arguments of ``sharpwave.Store``; ``retention`` is a name. ``region_bytes``: size of a region file.
        lanes: number of lanes. ``stack``, ``width``: those of observations.
        views: names of ``VIEWS``. ``words``: whether steps have a field with rows of any length.
        seed: seed given to ``random_program``.
    """

    settings: dict[str, Any]
    operations: list[Operation] = field(default_factory=list)
    lanes: int = 1
    stack: int = 0
    width: int = 6
    views: tuple[str, ...] = ("one",)
    seed: int = 0
    words: bool = False

    def with_operations(self, operations: Iterable[Operation]) -> StoreProgram:
        return replace(self, operations=list(operations))

    def to_json(self) -> str:
        """Return the program as JSON, one operation a line."""
        values = asdict(self)
        lines = ",\n  ".join(json.dumps(one) for one in values.pop("operations"))
        head = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
        return f'{{{head}, "operations": [\n  {lines}\n]}}'

    @classmethod
    def from_json(cls, text: str) -> StoreProgram:
        """Return the program in the text of ``to_json``."""
        values = json.loads(text)
        return cls(**values | {"views": tuple(values["views"])})

    def script(self, failure: str) -> str:
        """Return a small script that repeats the program and names its failure."""
        first = failure.splitlines()[0].replace('"""', "'''")
        return (
            f'"""{first}"""\nfrom sharpwave.testing.torture import reproduce\n\n'
            f"reproduce(r'''{self.to_json()}''')\n"
        )


def random_program(
    seed: int, retentions: Iterable[str] = RETENTIONS, on_full: Iterable[str] = ON_FULL, limits: Iterable[str] = LIMITS
) -> StoreProgram:
    """Return a random program, the same for the same arguments."""
    rng = random.Random(seed)
    segment_steps = rng.choice([2, 4, 8, 16])
    lanes = rng.choice([1, 1, 2, 3, 5])
    limit = rng.choice(list(limits))
    region = rng.choice([4096, 8192, 16384])
    settings: dict[str, Any] = {
        "retention": rng.choice(list(retentions)),
        "on_full": rng.choice(list(on_full)),
        "segment_steps": segment_steps,
        "codec": rng.choice(["raw", "auto", "zstd"]),
        "seed": rng.randrange(1000),
        "region_bytes": region,
    }
    if limit != "disk_limit":
        settings["capacity"] = rng.randint(2 * lanes * segment_steps + 8, 2 * lanes * segment_steps + 250)
    if limit != "capacity":
        settings["disk_limit"] = region * rng.randint(10, 24)
    if rng.random() < 0.3:
        settings["ram"] = 4 << 20
    width = rng.choice([6, 6, 40, 200]) if limit == "capacity" else rng.choice([40, 200, 400])
    views = tuple(name for name in VIEWS if name == "one" or rng.random() < 0.5)
    program = StoreProgram(settings, [], lanes, rng.choice([0, 2, 3]), width, views, seed, rng.random() < 0.5)
    make = _Maker(program, rng)
    for _ in range(rng.randint(15, 70)):
        make.some()
    make.end(rng.choice(["close", "kill", "flush and kill"]))
    return program.with_operations(make.operations)


class _Maker:
    def __init__(self, program: StoreProgram, rng: random.Random) -> None:
        self.program, self.rng, self.operations = program, rng, [dict[str, Any]()]
        self.operations.clear()
        self.serial = 1
        self.scale = rng.choice([3, 12, 40])
        self.faulty = rng.random() < 0.5
        self.ends = rng.choice([0.03, 0.1, 0.3])

    def add(self, do: str, **arguments: Any) -> None:
        self.operations.append({"do": do, **arguments})

    def some(self) -> None:
        rng, program = self.rng, self.program
        chance = rng.random()
        if self.faulty and rng.random() < 0.15:
            kind = rng.choice(["EIO", "EIO", "ENOSPC", "ENOSPC", "short write", "kill", "kill", "kill in a write"])
            self.add(
                "fault",
                kind=kind,
                at=rng.choice([1, 1, 2, 3, 5, 8, rng.randint(1, 60)]),
                times=rng.choice([1, 1, 2, 5]),
            )
            if rng.random() < 0.4:
                self.add(rng.choice(["flush", "flush", "checkpoint", "close"]))
                return
        if self.faulty and rng.random() < 0.03:
            self.add("full", free_bytes=rng.choice([0, 4096, 30_000]))
            for _ in range(rng.randint(1, 4)):
                self.steps()
            if rng.random() < 0.5:
                self.add("flush")
            self.add("full", free_bytes=-1)
            return
        if chance < 0.55:
            self.steps()
        elif chance < 0.60:
            self.add(rng.choice(["end_episode", "break_episode"]), lane=rng.randrange(program.lanes))
        elif chance < 0.64:
            self.add("mark", count=rng.choice([1, 5, 30, 1000]), seed=rng.randrange(1 << 30))
        elif chance < 0.72:
            name = rng.choice(program.views)
            self.add("sample", view=name, count=rng.choice([1, 4, 16]), seed=rng.randrange(1 << 30))
        elif chance < 0.80:
            self.add("flush", views=rng.random() < 0.7)
        elif chance < 0.83:
            self.add("checkpoint")
        elif chance < 0.85:
            self.add("rewind")
        elif chance < 0.87:
            self.add("resize", **self.limits())
        elif chance < 0.88:
            self.add("clear")
        elif chance < 0.90:
            self.add("look")
        else:
            self.end(rng.choice(["close", "close", "kill", "flush and kill", "kill later", "kill after flush"]))

    def limits(self) -> dict[str, Any]:
        settings, rng = self.program.settings, self.rng
        found: dict[str, Any] = {}
        least = 2 * self.program.lanes * settings["segment_steps"] + 8
        if "capacity" in settings:
            found["capacity"] = rng.randint(least, least + 300)
        if "disk_limit" in settings and (not found or rng.random() < 0.5):
            found["disk_limit"] = settings["region_bytes"] * rng.randint(10, 24)
        return found

    def end(self, how: str) -> None:
        if how == "close":
            self.add("close")
        elif how == "kill later":
            self.add("kill later", ms=round(self.rng.uniform(0, 8), 2))
            self.steps()
            self.steps()
            self.add("kill")
        else:
            if how != "kill":
                self.add("flush", views=True)
            if how == "kill after flush":
                self.steps()
            self.add("kill")
        if self.rng.random() < 0.1:
            self.add("limits", **self.limits())

    def steps(self) -> None:
        rng, lanes = self.rng, self.program.lanes
        how = rng.choice(["append", "extend", "block", "block", "episode"])
        some = (
            [rng.randrange(lanes)]
            if how in ("append", "episode")
            else sorted(rng.sample(range(lanes), rng.randint(1, lanes)))
        )
        times = rng.randint(1, self.scale)
        count = times * len(some)
        ends = "".join(rng.choice("tttuub") if rng.random() < self.ends else "." for _ in range(count))
        arguments: dict[str, Any] = {"how": how, "lanes": some, "ends": ends, "serial": self.serial}
        if how == "episode":
            arguments["ends"] = "." * (count - 1) + rng.choice("tu")
            arguments["whole"] = rng.random() < 0.3
        elif rng.random() < 0.3:
            arguments["next_obs"] = True
        if rng.random() < 0.5:
            arguments["joins"] = True
        self.serial += count
        self.add("steps", **arguments)
