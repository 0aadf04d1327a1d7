"""Cost of a step of Atari by the recipes for 100,000 steps, and of each option that they are made of: milliseconds of
one processor for an update and for an action, and what 100,000 steps come to.

    python benchmarks/updates.py [--recipes der drq spr sr-spr] [--rounds 5] [--game pong] [--out FOLDER]
    python benchmarks/updates.py --continuous [sac td3 tqc crossq simba] [--sbx PYTHON] [--rounds 5] [--out FOLDER]

Each recipe plays 600 random steps into its replay memory; then variants take turns, and a figure is the median over
rounds of the mean of ten updates, sampling and new priorities included. Processor time is measured, with one thread, so
that other programs disturb it little.

``--continuous``: updates of agents of continuous actions beside SBX's and Stable-Baselines3's, which
``continuous_updates.py`` describes; a ratio is the median over rounds of the updates a second, to those of the library.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import continuous_updates
import numpy as np
import runner
import torch

import sharpwave as sw
from sharpwave.bench.machine import environment
from sharpwave.training import setup
from sharpwave.training.recipes import load_recipe

RECIPES = ("data-efficient-rainbow", "der", "drq", "spr", "sr-spr")
OPTIONS: dict[str, dict[str, Any]] = {
    "der": {},
    "der, random_shift=4": {"random_shift": 4},
    "der, random_shift=4, random_intensity=.05": {"random_shift": 4, "random_intensity": 0.05},
    "the same, augmentations=2": {"random_shift": 4, "random_intensity": 0.05, "augmentations": 2},
    "the same, target_augmentations=2": {"random_shift": 4, "random_intensity": 0.05, "target_augmentations": 2},
    "der, self_prediction=5": {"self_prediction": 5},
    "der, reset_every=1": {"reset_every": 1},
}
STEPS, UPDATES = 600, 10


class Variant:
    """An agent with steps to learn from."""

    def __init__(self, name: str, recipe: str, game: str, **changes: Any) -> None:
        self.name, self.recipe = name, load_recipe(recipe).override(env=game, threads=1)
        self.recipe = replace(self.recipe, agent=replace(self.recipe.agent, **changes))
        env = self.recipe.env.make(1)
        self.agent: Any = setup.agent(self.recipe, env)
        settings = self.agent.replay()
        self.store = sw.Store(setup.step_spec(env, self.agent), capacity=STEPS)
        self.view, self.size = settings.open(self.store, "learner", 0), settings.batch_size
        recorder, rng = sw.Recorder(env, self.store), np.random.default_rng(0)
        self.obs, _ = recorder.reset(seed=0)
        for _ in range(STEPS):
            self.obs, *_ = recorder.step(rng.integers(0, env.single_action_space.n, 1))  # type: ignore[attr-defined]
        env.close()
        self.state, self.measured = self.agent.begin(1), dict[str, list[float]](update=[], act=[])

    def update(self) -> None:
        batch = self.view.sample(self.size)
        learned = self.agent.learn(batch.torch(), STEPS)
        if self.agent.replay().prioritized:
            self.view.update_priorities(batch, learned.td_error.cpu().numpy())

    def act(self) -> None:
        self.agent.act(self.obs, self.state, 10**6)

    def measure(self) -> None:
        """Add a round's milliseconds of each."""
        for name, do in (("update", self.update), ("act", self.act)):
            self.measured[name].append(milliseconds(do))

    @property
    def row(self) -> dict[str, Any]:
        """Return the figures, in milliseconds and hours."""
        update, act = (statistics.median(self.measured[name]) for name in ("update", "act"))
        ratio = float(self.recipe.update_ratio)
        step = act + ratio * update
        return {
            "name": self.name, "update_ms": update, "act_ms": act, "updates_per_step": ratio, "step_ms": step,
            "hours": step * 100_000 / 3.6e6,
        }  # fmt: skip


def milliseconds(do: Callable[[], None]) -> float:
    """Return the mean milliseconds of processor time of ``UPDATES`` calls."""
    begun = time.process_time()
    for _ in range(UPDATES):
        do()
    return (time.process_time() - begun) / UPDATES * 1e3


def main() -> None:
    parser = runner.parser(__doc__)
    parser.add_argument("--recipes", nargs="*", default=RECIPES, choices=RECIPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--game", default="pong")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--continuous", nargs="*", choices=continuous_updates.CONTENDERS, help="all without a name")
    parser.add_argument("--sbx", default=sys.executable, metavar="PYTHON", help="interpreter that has SBX")
    parser.add_argument("--updates", type=int, default=20, help="of a round of --continuous")
    given = parser.parse_args()
    if given.continuous is not None:
        algorithms = given.continuous or [*continuous_updates.CONTENDERS]
        continuous_updates.compare(algorithms, given.sbx, given.rounds, given.updates, given.out)
        return
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    variants = [Variant(f"recipe {name}", name, given.game) for name in given.recipes]
    variants += [Variant(name, "der", given.game, **changes) for name, changes in OPTIONS.items()]
    for one in variants:
        one.update()
        one.act()
    for turn in range(given.rounds):
        runner.say(f"round {turn + 1} of {given.rounds}")
        for one in variants:
            one.measure()
    rows = [one.row for one in variants]
    print(f"| {'variant':46} | update ms | act ms | updates a step | step ms | hours of 100,000 |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        figures = (row["update_ms"], row["act_ms"], row["updates_per_step"], row["step_ms"], row["hours"])
        print(f"| {row['name']:46} | {' | '.join(f'{figure:.1f}' for figure in figures)} |")
    if given.out:
        found = {"environment": environment(), "precision": variants[0].agent.precision, "rows": rows}
        (given.out / "atari_100k_updates.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
