"""Levers tried to speed up recipe `pong-dqn`, and sizes of its memory: a run for each lever and seed, a table of
rewards by steps and of speeds, a figure; or the time of an update.

    python benchmarks/levers.py [--only NAME ...] [--seeds 0] [--steps 300000] [--runs FOLDER] [--out FOLDER]
    python benchmarks/levers.py --updates [--rounds 7] [--compile] [--out FOLDER]

A lever's run is `sharpwave train pong-dqn` with its options; each takes some 10 minutes on two cores. A run whose
folder is there is not trained again, whether it ended or not: what it has written is read.

``--updates``: time of an update of the recipe with one change, as a ratio to the recipe's. Variants take turns in one
process, each round begins with another one; a ratio is the median over rounds of a variant's milliseconds to the
recipe's in the same round. Nothing else runs meanwhile: environments, which share the processors with the update in
training, do not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import runner
import torch
from torch import nn
from training_runs import PACKAGES, crossings, episodes, train

from sharpwave.agents.dqn import DQN, double_q_targets
from sharpwave.agents.losses import huber
from sharpwave.bench.machine import environment
from sharpwave.training import setup
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import Atari
from sharpwave.training.recipes.recipe import Recipe as Settings

WINDOW = 40_000
"""Steps before a mark whose episodes are averaged there; 8 environments play some 10 to 60 in them."""
MARKS = range(100_000, 300_001, 50_000)
COLUMNS = 5
"""Panels beside each other in the figure."""
SEED_COLOURS = ("#1c7ed6", "#e8590c", "#2f9e44", "#862e9c")


@dataclass(frozen=True)
class Lever:
    """One change of settings. Settings in which levers differ are always given; the others are the recipe's."""

    says: str
    num_envs: int = 8
    update_every: int = 4
    batch_size: int = 64
    learning_rate: float = 2.5e-4
    epsilon_steps: int = 100_000
    capacity: int = 100_000
    more: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        """Return the lever's command-line options."""
        names = ("num_envs", "update_every", "batch_size", "learning_rate", "epsilon_steps", "capacity")
        told = [part for name in names for part in ("--" + name.replace("_", "-"), str(getattr(self, name)))]
        return [*told, *self.more]


LARGE = (8, 16, 256, 1e-3, 50_000, 100_000)
SMALL = (8, 8, 128, 4e-4, 50_000, 100_000)
RECIPE = (*SMALL[:-1], 20_000)
WHOLE_WEIGHTS = ("--prioritized", "--target-every", "1000", "--beta-start", "1")
LEVERS = {
    "start": Lever("an update of 64 for 4 steps"),
    "half-updates": Lever("64 for 8 steps, rate doubled", update_every=8, learning_rate=5e-4),
    "batch-128": Lever("128 for 8 steps", update_every=8, batch_size=128, learning_rate=4e-4),
    "batch-256": Lever("256 for 16 steps, 16 environments", 16, 16, 256, 6e-4),
    "rate-1e-3": Lever("batch-256 with rate .001", 16, 16, 256, 1e-3),
    "explore-50k": Lever("batch-256, epsilon ends after 50,000", 16, 16, 256, 6e-4, 50_000),
    "both": Lever("rate-1e-3 and explore-50k", 16, 16, 256, 1e-3, 50_000),
    "large": Lever("both, with 8 environments", *LARGE),
    "large-no-double": Lever("large without double", *LARGE, ("--no-double",)),
    "large-prioritized": Lever("large, prioritized, rate .0007", 8, 16, 256, 7e-4, 50_000, 100_000, ("--prioritized",)),
    "small": Lever("batch-128 and explore-50k, 8 environments", *SMALL),
    "no-standardize": Lever("small with frames divided by 255", *SMALL, ("--no-standardize",)),
    "n-step-1": Lever("small with one step", *SMALL, ("--n-step", "1")),
    "n-step-3": Lever("small with three steps", *SMALL, ("--n-step", "3")),
    "2-frames": Lever("small with 2 frames", *SMALL, ("--stack", "2")),
    "whole-screen": Lever("small with the whole screen", *SMALL, ("--crop", "0:210")),
    "84x84": Lever("small with 84x84, efficient net", *SMALL, ("--frame", "84x84", "--network", "efficient")),
    "target-500": Lever("small with a target 500 updates old", *SMALL, ("--target-every", "4000")),
    "memory-10k": Lever("small with a memory of 10,000", *SMALL[:-1], 10_000),
    "memory-30k": Lever("small with a memory of 30,000", *SMALL[:-1], 30_000),
    "memory-300k": Lever("small with a memory of 300,000", *SMALL[:-1], 300_000),
    "recipe": Lever("small with a memory of 20,000", *RECIPE),
    "no-double": Lever("the recipe without double", *RECIPE, ("--no-double",)),
    "no-dueling": Lever("the recipe without dueling", *RECIPE, ("--no-dueling",)),
    "prioritized": Lever("the recipe, prioritized", *RECIPE, ("--prioritized",)),
    "prioritized-flatter": Lever("prioritized, exponent .4", *RECIPE, ("--prioritized", "--priority-alpha", "0.4")),
    "prioritized-100k": Lever("prioritized, a memory of 100,000", *SMALL, ("--prioritized",)),
    "prioritized-target-125": Lever("prioritized, target-125, weights whole", *RECIPE, WHOLE_WEIGHTS),
    "target-125": Lever("the recipe with a target 125 updates old", *RECIPE, ("--target-every", "1000")),
    "epsilon-02": Lever("the recipe, exploring to the end with .02", *RECIPE, ("--epsilon-end", "0.02")),
    "gamma-98": Lever("the recipe with gamma .98", *RECIPE, ("--gamma", "0.98")),
    "n-step-10": Lever("the recipe with ten steps", *RECIPE, ("--n-step", "10")),
}


def measured(folder: Path) -> dict[str, Any]:
    """Return a run's rewards at the marks that it reached, and when its mean of 100 crossed the goal."""
    played, summary = episodes(folder), folder / "summary.json"
    rewards: dict[int, float] = {}
    for mark in MARKS:
        ended = [one["reward"] for one in played if mark - WINDOW <= one["steps"] < mark]
        if ended and played[-1]["steps"] >= mark - WINDOW // 4:
            rewards[mark] = sum(ended) / len(ended)
    return {
        "rewards": rewards,
        "solved": crossings(played)["mean100"],
        "mean_reward": played[-1]["mean_reward"] if played else None,
        "steps_per_second": played[-1]["steps"] / played[-1]["minutes"] / 60 if played else None,
        "replay_bytes": json.loads(summary.read_text())["replay_bytes"] if summary.exists() else None,
        "curve": smooth(played),
    }


def smooth(played: list[dict[str, Any]]) -> list[list[float]]:
    """Return [steps, mean reward of the episodes in the WINDOW before], every 5,000 steps."""
    steps = np.array([one["steps"] for one in played])
    rewards = np.array([one["reward"] for one in played])
    found = []
    for mark in range(WINDOW // 2, int(steps.max(initial=0)) + 1, 5_000):
        inside = (steps >= mark - WINDOW) & (steps < mark)
        if inside.any():
            found.append([mark, round(float(rewards[inside].mean()), 2)])
    return found


def table(results: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Print one row for each lever, with its seeds beside each other."""
    runs = [run for one in results.values() for run in one.values()]
    marks = sorted({mark for run in runs for mark in run["rewards"]})
    columns = ("", "change", "seeds", *(f"{mark // 1000}K" for mark in marks), "solved", "of 100", "steps/s", "bytes")
    shown = runner.table("Recipe pong-dqn, what was tried", *columns, left=columns[:3])
    for name, one in results.items():
        cells = []
        for mark in marks:
            rewards = [run["rewards"].get(mark) for run in one.values()]
            cells.append(", ".join("-" if reward is None else f"{reward:.1f}" for reward in rewards))
        solved = [run["solved"] and f"{run['solved']['frames'] / 1000:.0f}K" for run in one.values()]
        cells.append(", ".join(frames or "-" for frames in solved))
        for key, digits in (("mean_reward", 1), ("steps_per_second", 0), ("replay_bytes", 0)):
            values = [run.get(key) for run in one.values()]
            cells.append(", ".join("-" if value is None else f"{value:,.{digits}f}" for value in values))
        shown.add_row(name, LEVERS[name].says, ", ".join(one), *cells)
    console = runner.console(200)
    console.print(shown)
    console.print(
        f"Mean reward of the episodes that ended in the {WINDOW:,} steps before, a figure a seed; -: the run was ended "
        "before. solved: steps until the mean of 100 episodes was 17; of 100: that mean at the end."
    )


def figure(results: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """Draw a panel for each lever, with a line for each seed; grey in each: the recipe."""
    lines = -(-len(results) // COLUMNS)
    title = "Settings tried for recipe pong-dqn: blue, orange, green are seeds 0, 1, 2; grey: the recipe's own"
    how = {"figsize": (13, 1.9 * lines + 0.8), "sharex": True, "sharey": True, "squeeze": False}
    with runner.picture(path, title, lines, COLUMNS, **how) as axes:
        for axis in axes.flat[len(results) :]:
            axis.set_axis_off()
        for axis, (name, one) in zip(axes.flat, results.items(), strict=False):
            for run in results.get("recipe", {}).values():
                axis.plot(*_thousands(run["curve"]), color="#ced4da", linewidth=1)
            for seed, run in one.items():
                axis.plot(*_thousands(run["curve"]), color=SEED_COLOURS[int(seed) % len(SEED_COLOURS)], linewidth=1.4)
            axis.axhline(17, linestyle="--", linewidth=0.8, color="gray")
            axis.set_title(f"{name}\n{LEVERS[name].says}", loc="left", fontsize=7.5)
            axis.tick_params(labelsize=7)
        shown = axes.flat[0].figure
        shown.supxlabel("environment steps, thousands", fontsize=9)
        shown.supylabel(f"mean reward of the last {WINDOW // 1000}K steps' episodes", fontsize=9)


def _thousands(curve: list[list[float]]) -> tuple[list[float], list[float]]:
    return [steps / 1000 for steps, _ in curve], [reward for _, reward in curve]


# the time of an update

PONG = load_recipe("pong-dqn")
BATCH = PONG.agent.replay.batch_size
REPEATS = 12
"""Updates of a variant in a round; the first two are not timed."""

Variant = tuple[Settings, Callable[[DQN], Callable[[Any], Any]]]


def batch(recipe: Settings, size: int) -> Any:
    """Make a batch of random transitions of the recipe's shape."""
    draw = torch.Generator().manual_seed(0)
    assert isinstance(recipe.env, Atari)
    height, width = (int(part) for part in recipe.env.frame.split("x"))
    frames = [
        torch.randint(0, 255, (size, recipe.env.stack, height, width), dtype=torch.uint8, generator=draw) for _ in "ab"
    ]
    return SimpleNamespace(
        obs=frames[0],
        next_obs=frames[1],
        action=torch.randint(0, 3, (size,), generator=draw),
        reward=torch.randn(size, generator=draw),
        discount=torch.full((size,), 0.95),
        weights=torch.ones(size),
    )


def as_it_is(agent: DQN) -> Callable[[Any], Any]:
    """Make the agent's own update."""
    return lambda batch: agent.learn(batch, 0)


def rows_first(agent: DQN) -> Callable[[Any], Any]:
    """Use torch's default layout, channels before rows."""
    for network in (agent.online, agent.target):
        network.to(memory_format=torch.contiguous_format)
    inputs = agent.inputs
    agent.inputs = nn.Sequential(inputs, _Contiguous())
    return as_it_is(agent)


class _Contiguous(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Make [B, C, H, W] contiguous, rows last in memory."""
        return x.contiguous()


def plain_adam(agent: DQN) -> Callable[[Any], Any]:
    """Use Adam by torch's foreach functions instead of one fused kernel."""
    settings = PONG.agent
    agent.__dict__["optimizer"] = torch.optim.Adam(agent.online.parameters(), settings.lr, eps=settings.adam_eps)
    return as_it_is(agent)


def compiled(agent: DQN) -> Callable[[Any], Any]:
    """Compile both networks by torch.compile."""
    agent.online, agent.target = torch.compile(agent.online), torch.compile(agent.target)
    return as_it_is(agent)


def one_forward(agent: DQN) -> Callable[[Any], Any]:
    """Join the online network's passes over s and s', both in the graph."""

    def learn(batch: Any) -> None:
        with agent.autocast():
            inputs = agent.inputs(torch.cat([batch.obs, batch.next_obs]))
            q, next_q_online = agent.online(inputs).float().chunk(2)
            with torch.no_grad():
                next_q = agent.target(inputs.chunk(2)[1]).float()
        targets = double_q_targets(next_q, next_q_online.detach(), batch.reward, batch.discount)
        td_errors = targets - q.gather(1, batch.action.view(-1, 1)).squeeze(1)
        loss = (batch.weights * huber(td_errors, PONG.agent.huber_delta)).mean()
        agent.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(agent.online.parameters(), PONG.agent.max_grad_norm)
        agent.optimizer.step()

    return learn


def two_halves(agent: DQN) -> Callable[[Any], Any]:
    """Split the batch between two threads, each with one torch thread, and add the gradients."""
    parameters = list(agent.online.parameters())
    pool = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))

    def gradients(half: Any, size: int) -> tuple[torch.Tensor, ...]:
        with agent.autocast():
            q = agent.online(agent.inputs(half.obs)).float()
            with torch.no_grad():
                inputs = agent.inputs(half.next_obs)
                next_q_online, next_q = agent.online(inputs).float(), agent.target(inputs).float()
        targets = double_q_targets(next_q, next_q_online, half.reward, half.discount)
        td_errors = targets - q.gather(1, half.action.view(-1, 1)).squeeze(1)
        return torch.autograd.grad((half.weights * huber(td_errors, PONG.agent.huber_delta)).sum() / size, parameters)

    def learn(batch: Any) -> None:
        size = len(batch.action)
        first, second = (
            SimpleNamespace(**{name: value[part] for name, value in vars(batch).items()})
            for part in (slice(0, size // 2), slice(size // 2, size))
        )
        other = pool.submit(gradients, second, size)
        mine = gradients(first, size)
        torch._foreach_add_(mine, other.result())
        for parameter, gradient in zip(parameters, mine, strict=True):
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(parameters, PONG.agent.max_grad_norm)
        agent.optimizer.step()

    return learn


def change(**settings: Any) -> Variant:
    """Change settings of the recipe."""
    return PONG.override(**settings), as_it_is


VARIANTS: dict[str, Variant] = {
    "recipe pong-dqn": (PONG, as_it_is),
    "one thread": change(threads=1),
    "float32": change(precision="float32"),
    "rows first, not channels last": (PONG, rows_first),
    "Adam not fused": (PONG, plain_adam),
    "one forward over s and s'": (PONG, one_forward),
    "two halves in two threads": (PONG.override(threads=1), two_halves),
    "no double": change(double=False),
    "no dueling": change(dueling=False),
    "2 frames": change(stack=2),
    "batch 32 (per transition)": change(batch_size=32),
    "batch 64 (per transition)": change(batch_size=64),
    "batch 256 (per transition)": change(batch_size=256),
    "84x84, efficient net": change(frame="84x84", network="efficient"),
    "84x84, Nature net": change(frame="84x84", network="nature", hidden_units=512),
}


def show_updates(arguments: argparse.Namespace) -> None:
    """Measure the variants of an update in turn, print and write their ratios."""
    variants = {**VARIANTS, **({"torch.compile": (PONG, compiled)} if arguments.compile else {})}

    ready: dict[str, tuple[Settings, Callable[[Any], Any], Any]] = {}
    first: dict[str, float] = {}
    for name, (recipe, make) in variants.items():
        env = recipe.env.make()
        agent: Any = setup.agent(recipe, env)
        data, learn = batch(recipe, recipe.agent.replay.batch_size), make(agent)
        with setup.arithmetic(recipe):
            begun = time.perf_counter()
            learn(data)
            first[name] = time.perf_counter() - begun
        ready[name] = recipe, learn, data

    times: dict[str, list[float]] = {name: [] for name in ready}
    names = list(ready)
    for turn in range(arguments.rounds):
        for name in runner.in_turn(names, turn):
            recipe, learn, data = ready[name]
            taken = []
            with setup.arithmetic(recipe):
                for _ in range(REPEATS):
                    begun = time.perf_counter()
                    learn(data)
                    taken.append(time.perf_counter() - begun)
            times[name].append(1000 * statistics.median(taken[2:]) * BATCH / recipe.agent.replay.batch_size)

    shown = runner.table(f"An update of {BATCH} transitions", "", "ms", "ratio", "first call, s")
    results = {}
    for name in names:
        ratios = [mine / recipe for mine, recipe in zip(times[name], times["recipe pong-dqn"], strict=True)]
        results[name] = {
            "milliseconds": statistics.median(times[name]),
            "ratio": statistics.median(ratios),
            "first_call_seconds": first[name],
        }
        one = results[name]
        shown.add_row(name, f"{one['milliseconds']:.1f}", f"{one['ratio']:.2f}", f"{first[name]:.1f}")
    runner.console(100).print(shown)
    runner.write(arguments.out / "updates.json", {"environment": environment(PACKAGES), "updates": results})


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=LEVERS, default=list(LEVERS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--runs", type=Path, default=Path("runs/levers"), help="folder of the runs")
    parser.add_argument("--updates", action="store_true", help="measure updates instead")
    parser.add_argument("--rounds", type=int, default=7, help="of updates")
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which needs a C++ compiler")
    parser.add_argument(
        "--out", type=Path, default=runner.RESULTS, help="folder for levers.json, levers.png, updates.json"
    )
    arguments = parser.parse_args()
    if arguments.updates:
        return show_updates(arguments)
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name in arguments.only:
        for seed in arguments.seeds:
            folder = arguments.runs / f"{name}-seed{seed}"
            if not folder.exists():
                told = ["--seed", str(seed), "--steps", str(arguments.steps)]
                train(folder, ["pong-dqn", *told, *LEVERS[name].options])
            results.setdefault(name, {})[str(seed)] = measured(folder)
    runner.write(arguments.out / "levers.json", {"environment": environment(PACKAGES), "levers": results})
    table(results)
    figure(results, arguments.out / "levers.png")


if __name__ == "__main__":
    main()
