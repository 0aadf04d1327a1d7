"""Speed of training with actors in processes of their own, and with a served replay memory, at equal updates.

    python benchmarks/actors.py --rounds 3

Trains recipe `apex` (Pong) for some thousand steps in this process alone, with 1 and 2 actors, and with these and a
replay memory that ``sharpwave serve`` serves, in turn. Every way makes the same updates for each step. Prints, after
the warm-up, steps and updates a second (median, lowest and highest of the rounds), their ratio to no actors, the age
of the weights that actors play with, in steps, and the milliseconds of processors that a step took of the learner, of
all actors and of the shard.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import runner
from runner import of_kinds, processor_s

from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.service import Service

WARM_UP = 2_000
KINDS = ("learner", "actor", "shard")
WAYS = (("no actors", 0, False), ("1 actor", 1, False), ("2 actors", 2, False), ("2 actors, served", 2, True))


def trained(actors: int, served: bool, steps: int, seed: int) -> dict[str, Any]:
    """Train, and return figures of the part after the warm-up."""
    with tempfile.TemporaryDirectory() as made:
        out = Path(made) / "run"
        options = {
            "--steps": steps,
            "--warmup-steps": WARM_UP,
            "--report-every": 1_000,
            "--evaluate-every": 10 * steps,
            "--checkpoint-every": 10 * steps,
            "--actors": actors,
            "--seed": seed,
            "--out": out,
        }
        command = [sys.executable, "-m", "sharpwave.cli", "train", "apex"]
        command += [str(word) for pair in options.items() for word in pair]
        if served:
            listen = Address.parse("127.0.0.1:0")
            with Service(listen, 1, None, Security(), capacity=100_000) as service:
                spent = watched([*command, "--connect", str(service.address)], out)
        else:
            spent = watched(command, out)
        reports = reports_of(out)
    first, last = reports[0], reports[-1]
    seconds = 60 * (last["minutes"] - first["minutes"])
    return {
        "steps": (last["steps"] - first["steps"]) / seconds,
        "updates": (last["updates"] - first["updates"]) / seconds,
        "stale": last.get("stale_steps"),
        "processor_ms": spent,
    }


def reports_of(run: Path) -> list[dict[str, Any]]:
    """Return a run's reports after the warm-up."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [one for one in lines if "updates" in one and one["steps"] >= 2 * WARM_UP]


def watched(command: list[str], run: Path) -> dict[str, float]:
    """Run a training; return the milliseconds of processors that a step after the warm-up took, by kind of process."""
    marks: list[tuple[int, dict[str, float]]] = []  # steps, and seconds by kind until then
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        reports = reports_of(run)
        if reports and (not marks or reports[-1]["steps"] > marks[-1][0]):
            seconds = dict.fromkeys(KINDS, 0.0)
            for one, kind in of_kinds():
                seconds[kind] += processor_s(one)
            marks.append((reports[-1]["steps"], seconds))
        time.sleep(0.1)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: ended with {process.returncode}")
    (begin, before), (end, after) = marks[0], marks[-2]  # at the last report processes may have ended
    return {kind: 1000 * (after[kind] - before[kind]) / (end - begin) for kind in KINDS}


def main() -> None:
    """Run the ways in turn, and print the table."""
    parser = runner.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12_000)
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, *_ in WAYS}
    for seed in range(arguments.rounds):
        for name, actors, served in WAYS:
            found[name].append(trained(actors, served, arguments.steps, seed))
            print(name, found[name][-1], flush=True)
    none = statistics.median(one["steps"] for one in found[WAYS[0][0]])
    print(
        f"{'':18} {'steps/s':>22} {'updates/s':>10} {'ratio':>6} {'age of weights':>15} {'ms of processor a step':>27}"
    )
    for name, rounds in found.items():
        speeds = sorted(one["steps"] for one in rounds)
        updates = statistics.median(one["updates"] for one in rounds)
        stale = [one["stale"] for one in rounds if one["stale"] is not None]
        age = f"{statistics.median(stale):.0f} steps" if stale else "-"
        middle = statistics.median(speeds)
        spread = f"{middle:.0f} ({speeds[0]:.0f} to {speeds[-1]:.0f})"
        spent = [statistics.median(one["processor_ms"][kind] for one in rounds) for kind in KINDS]
        cost = " + ".join(f"{one:.2f}" for one in spent) + f" = {sum(spent):.2f}"
        print(f"{name:18} {spread:>22} {updates:>10.0f} {middle / none:>6.2f} {age:>15} {cost:>27}")


if __name__ == "__main__":
    main()
