"""Learning curves of the algorithms' pages: held-out means of fixed weights while each recipe trains, three seeds.

python benchmarks/curves.py [NAMES ...] [--seeds 0 1 2] [--runs runs/curves] [--draw]

Each run is made by ``sharpwave train`` in a folder of its own, ended runs are kept, and a run that was interrupted is
resumed. The pictures are docs/algorithms/NAME.png: a thin line for each seed, a thick one for their median. ``--draw``
draws from the runs that are there and trains none. A run stops at its number of steps only, not when it has solved its
recipe. ``agent57`` takes an hour of one core, the others some five minutes a seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from training_runs import train

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "algorithms"
POINTS = 20  # evaluations a run

PENDULUM = "--env InvertedPendulum-v5 --random-steps 1000 --warmup-steps 1000"
# Name of a page: the arguments of `sharpwave train`, the number of steps, the environment's name.
CURVES: dict[str, tuple[str, int, str]] = {
    "dqn": ("cartpole", 40_000, "CartPole-v1"),
    "rainbow": ("minatar-rainbow", 100_000, "MinAtar/Breakout-v1"),
    "iqn": ("minatar-iqn", 100_000, "MinAtar/Breakout-v1"),
    "pqn": ("minatar-pqn", 200_000, "MinAtar/Breakout-v1"),
    "ppo": ("cartpole-ppo", 100_000, "CartPole-v1"),
    "a2c": ("cartpole-a2c", 200_000, "CartPole-v1"),
    "impala": ("cartpole-impala", 200_000, "CartPole-v1"),
    "r2d2": ("tmaze", 40_000, "sharpwave/TMaze-v0"),
    "r2d3": ("lock --demonstrations {demonstrations}", 20_000, "sharpwave/Lock-v0"),
    "sac": (f"sac {PENDULUM}", 15_000, "InvertedPendulum-v5"),
    "td3": (f"td3 {PENDULUM}", 50_000, "InvertedPendulum-v5"),
    "crossq": (f"crossq {PENDULUM}", 15_000, "InvertedPendulum-v5"),
    "cql": ("offline --algorithm cql --data {data}", 10_000, "CartPole-v1"),
    "iql": ("offline --algorithm iql --data {data}", 5_000, "CartPole-v1"),
    "bc": ("offline --algorithm bc --data {data}", 5_000, "CartPole-v1"),
    "vdn": ("vdn", 50_000, "mpe2/simple_spread_v3"),
    "qmix": ("qmix", 50_000, "mpe2/simple_spread_v3"),
    "masac": ("masac", 50_000, "mpe2/simple_spread_v3"),
    "agent57": ("deep-sea", 100_000, "deep sea of 20 rows"),
}

EXPERT = """
def expert(rng):
    digits = None

    def policy(obs):
        nonlocal digits
        if obs[:8].any():  # two digits, one-hot, are shown at the first step only
            digits = obs[:8].reshape(2, 4).argmax(axis=1)
        door = int(obs[8:].argmax())
        return int(digits[door % 2] + door) % 4

    return policy
"""


def prepared(runs: Path, seed: int, arguments: str) -> str:
    """Return ``arguments`` with their folders; make the recording or the data that they name."""
    demonstrations, data = runs / f"recording-{seed}", runs / f"data-{seed}"
    if "{demonstrations}" in arguments and not demonstrations.exists():
        script = f"{runs / 'expert.py'}:expert"
        (runs / "expert.py").write_text(EXPERT)
        words = ["record", "lock", "--script", script, "--episodes", "8", "--out", str(demonstrations)]
        subprocess.run([sys.executable, "-m", "sharpwave.cli", *words], check=True)
    if "{data}" in arguments:
        train(data, ["cartpole", "--steps", "10000", "--seed", str(100 + seed)])
    return arguments.format(demonstrations=demonstrations, data=data)


def made(runs: Path, name: str, seed: int) -> None:
    """Make, or end, the run of ``seed``."""
    arguments, steps, _ = CURVES[name]
    options = ["--steps", str(steps), "--seed", str(seed), "--evaluate-every", str(steps // POINTS), "--threads", "1"]
    options += ["--set", "evaluation.stop_reward=null", "--set", "evaluation.evaluate_from=null"]
    train(runs / f"{name}-{seed}", [*prepared(runs, seed, arguments).split(), *options])


def evaluations(folder: Path) -> Iterator[tuple[int, float]]:
    """Yield (steps, held-out mean) of a run."""
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "evaluation":
            yield event["steps"], event["mean"]


def draw(runs: Path, name: str, seeds: list[int]) -> None:
    """Draw the runs of ``name`` and the median of their evaluations."""
    arguments, steps, env = CURVES[name]
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    at: dict[int, list[float]] = {}
    for seed in seeds:
        points = list(evaluations(runs / f"{name}-{seed}"))
        axes.plot(*zip(*points, strict=True), color="tab:blue", linewidth=0.8, alpha=0.5)
        for k, (_, mean) in enumerate(points):
            at.setdefault(k, []).append(mean)
    medians = [statistics.median(means) for means in at.values()]
    axes.plot([(k + 1) * steps / POINTS for k in at], medians, color="tab:blue", linewidth=2)
    axes.set_xlabel("updates" if arguments.startswith("offline") else "environment steps")
    axes.set_ylabel("held-out mean")
    axes.set_title(f"{env}, seeds {', '.join(map(str, seeds))} and their median", fontsize=10)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / f"{name}.png", dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CURVES)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/curves"))
    parser.add_argument("--draw", action="store_true", help="draw the runs that are there")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    for name in args.names or CURVES:
        for seed in () if args.draw else args.seeds:
            print(name, seed, flush=True)
            made(args.runs, name, seed)
        draw(args.runs, name, args.seeds)


if __name__ == "__main__":
    main()
