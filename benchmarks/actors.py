"""Speed of training with actors in processes of their own, and with a served replay memory, at equal updates.

    python benchmarks/actors.py --rounds 3

Trains recipe `apex` (Pong) for some thousand steps in this process alone, with 1 and 2 actors, and with these and a
replay memory that ``sharpwave serve`` serves, in turn. Every way makes the same updates for each step. Prints, after
the warm-up, steps and updates a second (median, lowest and highest of the rounds), their ratio to no actors, and the
age of the weights that actors play with, in steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.service import Service

WARM_UP = 2_000
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
                subprocess.run([*command, "--connect", str(service.address)], check=True, stdout=subprocess.DEVNULL)
        else:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    reports = [one for one in lines if "updates" in one and one["steps"] >= 2 * WARM_UP]
    first, last = reports[0], reports[-1]
    seconds = 60 * (last["minutes"] - first["minutes"])
    return {
        "steps": (last["steps"] - first["steps"]) / seconds,
        "updates": (last["updates"] - first["updates"]) / seconds,
        "stale": last.get("stale_steps"),
    }


def main() -> None:
    """Run the ways in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12_000)
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, *_ in WAYS}
    for seed in range(arguments.rounds):
        for name, actors, served in WAYS:
            found[name].append(trained(actors, served, arguments.steps, seed))
            print(name, found[name][-1], flush=True)
    none = statistics.median(one["steps"] for one in found[WAYS[0][0]])
    print(f"{'':18} {'steps/s':>22} {'updates/s':>10} {'ratio':>6} {'age of weights':>15}")
    for name, rounds in found.items():
        speeds = sorted(one["steps"] for one in rounds)
        updates = statistics.median(one["updates"] for one in rounds)
        stale = [one["stale"] for one in rounds if one["stale"] is not None]
        age = f"{statistics.median(stale):.0f} steps" if stale else "-"
        middle = statistics.median(speeds)
        spread = f"{middle:.0f} ({speeds[0]:.0f} to {speeds[-1]:.0f})"
        print(f"{name:18} {spread:>22} {updates:>10.0f} {middle / none:>6.2f} {age:>15}")


if __name__ == "__main__":
    main()
