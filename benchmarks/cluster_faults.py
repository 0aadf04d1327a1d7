"""Rounds of faults on clusters of processes on this machine, against an account of the acknowledged steps.

    python benchmarks/cluster_faults.py [--rounds 200] [--seed 0] [--kinds shards,service,...] [--results FILE]
    python benchmarks/cluster_faults.py --show FILE [FILE ...]

Writers with ``durability="flush"`` and a learner go on while shards, services, disks, writers, learners and
connections die or stop. After every round the learner's batches are checked against the written steps, and its
probabilities against the shards' own masses; after every group of rounds all that the cluster holds. A table says, by
fault: rounds, how long it took until all was as before (median and longest), and what was lost, twice, or never
written; and how memory grew.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import runner
from faults.harm import KINDS, Fault

DEFAULT = [kind for kind in KINDS if kind != "ray"]  # which needs the extra


def slope(groups: list[list[float]]) -> tuple[float, float]:
    """Return growth a round within groups, by least squares, and the half-width of its 95% interval."""
    kept = [one for one in groups if len(one) > 2]
    if sum(map(len, kept)) < 6:
        return float("nan"), float("nan")
    numbers = np.repeat(np.arange(len(kept)), [len(one) for one in kept])
    each, error = runner.slope([k for one in kept for k in range(len(one))], np.concatenate(kept), numbers)
    return each, 1.96 * error


@dataclass
class Record:
    """What rounds have shown: by fault, seconds until recovery and what was wrong; and memory, by group.

    Attributes:
        seeds: of the groups. ``steps``: that were acknowledged. ``audits``: what was wrong with them after groups.
    """

    seeds: list[str] = field(default_factory=list)
    recovery_s: dict[str, list[float | None]] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    audits: list[str] = field(default_factory=list)
    steps: int = 0
    memory: dict[str, list[list[float]]] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        return sum(map(len, self.recovery_s.values()))

    def add(self, fault: str, took: float, found: list[str], memory: dict[str, float]) -> None:
        self.recovery_s.setdefault(fault, []).append(round(took, 3) if np.isfinite(took) else None)
        self.wrong.setdefault(fault, []).extend([*found, *(["it did not come back"] if np.isinf(took) else [])])
        for name, nbytes in memory.items():
            self.memory.setdefault(name, [[]])[-1].append(nbytes)

    def join(self, other: Record) -> None:
        """Add what other rounds have shown."""
        self.seeds += other.seeds
        self.audits += other.audits
        self.steps += other.steps
        pairs: Any = (
            (self.recovery_s, other.recovery_s),
            (self.wrong, other.wrong),
            (self.memory, other.memory),
        )
        for ours, theirs in pairs:
            for name, values in theirs.items():
                ours.setdefault(name, []).extend(values)

    def show(self) -> None:
        known = [name for _, faults in KINDS.values() for name in faults]
        print(f"\n{'fault':48} rounds  median s  longest s  wrong")
        for name in sorted(self.recovery_s, key=lambda name: known.index(name) if name in known else len(known)):
            taken = [one for one in self.recovery_s[name] if one is not None]
            seconds = f"{np.median(taken):8.2f}  {max(taken):9.2f}" if taken else "       -          -"
            print(f"{name:48} {len(self.recovery_s[name]):6}  {seconds}  {self.wrong[name] or 0}")
        print(
            f"{self.rounds} rounds in {len(self.seeds)} groups; {self.steps:,} steps acknowledged, counted after each:"
        )
        print(f"  {self.audits or 'all there, once'}")
        for name, groups in self.memory.items():
            each, margin = slope(groups)
            largest = max(max(one, default=0.0) for one in groups)
            grows = f"{each / 1024:+.0f} KiB a round within groups, 95% interval +-{margin / 1024:.0f}"
            trend = grows if np.isfinite(each) else "too few rounds for a trend"
            print(f"memory, {name}: {trend}; at most {largest / 2**20:.0f} MiB")


def play(kind: str, faults: list[str], seed: int, record: Record) -> None:
    """Play rounds on one cluster, and count all that it holds at the end."""
    make, harms = KINDS[kind]
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        group = make(Path(made), seed)
        for groups in record.memory.values():
            groups.append([])
        for name in faults:
            shard = group.random.randrange(group.shards)
            time.sleep(group.random.uniform(0.0, 0.3))
            took = _harmed(harms[name], group, shard)
            found, memory = group.check()
            record.add(name, took, found, memory)
            said = found or ""
            seconds = f"{took:.2f} s" if np.isfinite(took) else "-"
            print(f"{record.rounds}: {kind} {seed}, {name}, shard {shard}: {seconds} {said}", flush=True)
        steps, counted = group.end()
    record.seeds.append(f"{kind} {seed}")
    record.steps += steps
    record.audits += [f"{kind} {seed}: {text}" for text in counted]
    print(f"   {steps:,} steps acknowledged: {counted or 'all there, once'}", flush=True)


def _harmed(fault: Fault, group: Any, shard: int) -> float:
    try:
        return fault(group, shard)
    except Exception as error:
        group.errors.append(f"{type(error).__name__}: {error}")
        return float("nan")


def main() -> None:
    parser = runner.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(DEFAULT), help=f"of {', '.join(KINDS)}; in turn; ray: needs Ray")
    parser.add_argument("--faults", default="", help="only those whose name has this in it")
    parser.add_argument("--results", type=Path, help="written after every group of rounds; what it holds is added to")
    parser.add_argument("--show", type=Path, nargs="+", help="print the table of results, and nothing else")
    given = parser.parse_args()
    record = Record()
    for path in given.show or ([given.results] if given.results and given.results.exists() else []):
        record.join(Record(**json.loads(path.read_text())))
    kinds, seed, last = given.kinds.split(","), given.seed, record.rounds + given.rounds
    while not given.show and record.rounds < last:
        kind = kinds[(seed - given.seed) % len(kinds)]
        faults = [name for name in KINDS[kind][1] if given.faults in name]
        play(kind, random.Random(seed).sample(faults, len(faults))[: last - record.rounds], seed, record)
        if given.results:
            runner.write(given.results, asdict(record))
        seed += 1
    record.show()


if __name__ == "__main__":
    main()
