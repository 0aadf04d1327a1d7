"""Tasks learned by several agents from several seeds: held-out scores of fixed weights, their IQM and its interval.

    python benchmarks/learners.py [--tasks tmaze lock minatar lunarlander meeting two-step spread foraging rware
                                   smax repeat-first memory-chain
                                   breakout seaquest qbert pong-fair cartpole cartpole-stale minatar-ppo
                                   halfcheetah inverted-pendulum hopper deep-sea deep-sea-10 robots classic defaults
                                   offline]
                                  [--peers] [--sbx PYTHON] [--d3rlpy PYTHON] [--agents NAME ...] [--seeds 401 402 ...]
                                  [--minutes M] [--at-a-time 2] [--runs FOLDER] [--out FILE]
    python benchmarks/learners.py --random breakout qbert seaquest pong

Each run that has ended is a line of FILE (results/learning.jsonl); started again, only missing runs are made. A run
ends as its recipe says; then the policy that it kept (the best by its own evaluations, else the last) plays 100
episodes (MinAtar, Atari: 30) on seeds that neither training nor its evaluations used, at epsilon .001. IQM and 95 %
interval: see sharpwave.bench.learning_runs. ``minatar`` means its five games; their last policies are measured, and the
scores of all games together, each divided by the best mean that an agent has in it, are drawn as results/minatar.png.
``repeat-first`` (popgym) and ``memory-chain`` (bsuite) are made where they are asked for: docs/training/recurrent.md
says how to install them. ``breakout`` lasts an hour of one core; ``seaquest``, ``qbert`` and
``pong-fair``, with sticky actions as in Dopamine's curves, 500,000 steps, which are two million frames.
``cartpole``, ``cartpole-stale`` and ``minatar-ppo`` are of agents that use data up (docs/training/on-policy.md); their
runs have a fixed length, and their last policies are measured.
``halfcheetah``, ``inverted-pendulum`` and ``hopper`` are MuJoCo's robots by SAC, TD3 and CrossQ: 50,000 steps,
a quarter of an hour of one core, or 15,000 of the pendulum, but of TD3; the last policies play 30 episodes, without
noise. ``--agents "stable-baselines3 sac"``, or td3, has that library's learn with the same settings.
``robots``: five of them at 100,000 steps, with ``--peers`` beside SBX and Stable-Baselines3 with their own settings;
``classic``: small tasks by PPO and A2C, beside Stable-Baselines3 with its zoo's settings; ``defaults``: short runs by
each one's own defaults, whose last policies play 30 episodes; ``offline``: sets of Hopper, HalfCheetah and Walker2d
(learner_data.py), learned from by our offline agents, beside d3rlpy's. Ours are compared with the best peer of the
task as ratios, by score and by score a minute. All arms begin with their first seeds, so that ``--minutes``, after
which no run begins, leaves a table to add to. Interrupted runs of ours go on, peers' begin again.
``--random`` trains nothing: scores of true random play, whole games, every action of the game with equal probability.
``foraging`` and ``rware`` (extra ``teams``): 2 and 4 million steps by EPyMARL's settings, then 100 greedy episodes by
the best evaluation's policy; hours of one core, going on where they were interrupted. ``smax`` needs jaxmarl.
``deep-sea``: exploration; but for the measurement's few random actions all 100 episodes of a policy are the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import learner_data
import numpy as np
import runner
from learner_arms import (
    ASKED_FOR,
    ATARI,
    D3RLPY,
    DEFAULTS,
    GROUPS,
    MINATAR_AGENTS,
    MUJOCO,
    OFFLINE,
    ROBOTS,
    SBX,
    TASKS,
)
from matplotlib.figure import Figure

from sharpwave.bench.learning_runs import (
    HELD_OUT,
    Key,
    Line,
    all_runs,
    by_agent,
    learned,
    normalized,
)
from sharpwave.envs import AtariFrames, AtariSettings
from sharpwave.training.interquartile import interquartile_mean, interval
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EpisodeSums, game_result

HERE = Path(__file__).parent
EPISODES, GAME_EPISODES = 100, 30
DEMONSTRATIONS = 8


def recipe_of(task: str, agent: str, seed: int, folder: Path) -> Recipe:
    """Return the recipe of a run, with the arm's changes; demonstrations are recorded into ``folder``."""
    import learner_tasks as tasks

    from sharpwave.training.front import chosen_recipe
    from sharpwave.training.recipes import default_recipe, load_recipe

    arm = TASKS[task][agent]
    if arm.data and arm.recipe != "data":
        return default_recipe(arm.recipe).override(
            **arm.changes, data=str(learner_data.data_set(arm.data, folder.parent / "data")), seed=seed, device="cpu"
        )
    here = {"demonstrated-dqn": tasks.DEMONSTRATED, "stale-impala": tasks.STALE}
    if task == "deep-sea":
        here["agent57"] = tasks.agent57()
    changes = {name: one.format(seed=seed) if isinstance(one, str) else one for name, one in arm.changes.items()}
    if arm.fitted:
        return chosen_recipe(changes.pop("env"), arm.recipe, None, changes | {"seed": seed, "device": "cpu"})[1]
    recipe = here[arm.recipe] if arm.recipe in here else load_recipe(arm.recipe)
    if arm.demonstrated:
        changes["demonstrations"] = str(tasks.demonstrations(recipe.override(**changes), folder, DEMONSTRATIONS))
    return recipe.override(seed=seed, device="cpu", **changes)


def trained(task: str, agent: str, seed: int, folder: Path) -> Line:
    """Train one run of ours in this process, or go on with it, and measure it."""
    arm = TASKS[task][agent]
    if arm.recipe == "data":
        scores = learner_data.returns(learner_data.data_set(arm.data, folder.parent / "data"))
        return {"score": statistics.fmean(scores), "scores": scores, "steps": 0, "minutes": 0.0, "reason": "recorded"}
    return learned(arm.recipe, recipe_of(task, agent, seed, folder), folder, episodes_of(task), arm.epsilon)


def asked_of_peer(task: str, agent: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the arguments of ``learner_peers.trained``: the recipe's environment, steps and seed, and held-out
    episodes that ours play."""
    recipe, arm = recipe_of(task, agent, seed, folder), TASKS[task][agent]
    asked = {
        "env": recipe.env.name, "steps": recipe.training.steps, "seed": seed, "episodes": episodes_of(task),
        "held_out": HELD_OUT + seed, **(arm.peer or with_the_settings_of(recipe)),
    }  # fmt: skip
    if arm.data:
        asked["data"] = str(learner_data.as_arrays(Path(recipe.agent.data), folder.parent / f"{arm.data}.npz"))
    return asked


def with_the_settings_of(recipe: Recipe) -> dict[str, Any]:
    """Return arguments of ``learner_peers.trained``: Stable-Baselines3's SAC or TD3 with a recipe's settings."""
    settings = recipe.agent
    return {
        "library": "sb3", "algorithm": settings.kind.upper(), "action_noise": getattr(settings, "action_noise", 0.0),
        "settings": {
            "learning_rate": settings.lr, "batch_size": settings.replay.batch_size, "gamma": settings.replay.gamma,
            "tau": settings.target_tau, "learning_starts": settings.random_steps, "train_freq": 1, "gradient_steps": 1,
            "policy_kwargs": {"net_arch": [settings.hidden_units] * 2},
        },
    }  # fmt: skip


def random_play(game: str) -> None:
    """Print the mean of whole random games, the same number in every environment, so that short ones do not weigh
    more."""
    lanes, share = 10, 10
    env = AtariFrames(game, lanes, AtariSettings(height=8, width=8, stack=1))  # nobody looks
    rng, sums = np.random.default_rng(0), EpisodeSums(lanes)
    found: list[list[float]] = [[] for _ in range(lanes)]
    env.reset(seed=0)
    while min(map(len, found)) < share:
        actions = rng.integers(0, len(env.action_names), lanes, np.int64)
        _, reward, terminated, truncated, infos = env.step(actions)
        for episode in sums.add(*game_result(reward, terminated | truncated, infos)):
            found[episode.lane].append(episode.reward)
    scores = np.array([score for lane in found for score in lane[:share]])
    error = scores.std(ddof=1) / len(scores) ** 0.5
    print(f"{game}: mean {scores.mean():.2f}, standard error {error:.2f}, of {len(scores)} games", flush=True)


def commit() -> str:
    """Return the commit of the working tree, with "+" if files other than results differ from it."""
    git = ["git", "-C", str(HERE)]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    others = [*git, "diff", "--quiet", "HEAD", "--", ":/", ":(exclude,top)benchmarks/results"]
    return found.stdout.strip() + "+" * subprocess.run(others).returncode


def episodes_of(task: str) -> int:
    """Return how many held-out episodes a task's runs are measured on; one of Freeway has 2,500 steps."""
    return (
        GAME_EPISODES
        if task.startswith("minatar") or task in ATARI | MUJOCO | ROBOTS | DEFAULTS | OFFLINE
        else EPISODES
    )


def print_table(lines: list[Line]) -> None:
    """Print a row for each agent on each task; ours beside the best of the peers there, as ratios of scores above 0."""
    columns: dict[str, Callable[[list[Line]], str]] = {
        "seeds": lambda runs: str(len(runs)),
        "IQM": lambda runs: f"{iqm_of(runs):.3f}",
        "95 %": lambda runs: "{:.3f} to {:.3f}".format(*interval([[run["score"] for run in runs]])),
        "median": lambda runs: f"{statistics.median(run['score'] for run in runs):.3f}",
        "lowest": lambda runs: f"{min(run['score'] for run in runs):.3f}",
        "steps, median": lambda runs: f"{statistics.median(run['steps'] for run in runs):,.0f}",
        "minutes": lambda runs: f"{minutes_of(runs):.1f}",
    }
    of_rows: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        of_rows.setdefault((line["task"], line["agent"]), []).append(line)
    peers = {key: runs for key, runs in of_rows.items() if TASKS[key[0]][key[1]].peer is not None}
    beside = ("score / best peer", "score a minute / best peer's") if peers else ()
    title = "Mean of the held-out episodes, fixed weights"
    table = runner.table(title, "task", "agent", *columns, *beside, left=("task", "agent"))
    for (task, agent), runs in of_rows.items():
        theirs = [rivals for (other, _), rivals in peers.items() if other == task]
        ratios = [
            ratio(measure(runs), max(map(measure, theirs))) if theirs and (task, agent) not in peers else ""
            for measure in (iqm_of, lambda some: iqm_of(some) / minutes_of(some))
        ]
        table.add_row(task, agent, *(text(runs) for text in columns.values()), *ratios[: len(beside)])
    runner.console(180 if beside else 130).print(table)


def iqm_of(runs: list[Line]) -> float:
    """Return the interquartile mean of the runs' scores."""
    return interquartile_mean([run["score"] for run in runs])


def minutes_of(runs: list[Line]) -> float:
    """Return the median of the runs' minutes: of the processor where known, which other programs disturb little."""
    known: list[float] = [run["processor_minutes"] for run in runs if "processor_minutes" in run]
    middle: float = statistics.median(known or [run["minutes"] for run in runs])
    return middle


def ratio(ours: float, theirs: float) -> str:
    """Format a ratio of two scores; one that is not above 0 has none."""
    return f"{ours / theirs:.2f}" if ours > 0 and theirs > 0 else "-"


def print_together(title: str, lines: list[Line]) -> dict[str, dict[str, list[float]]]:
    """Print IQM and interval over the tasks of a group by agent, normalized, and return the normalized scores.

    Over all tasks only agents are compared that have learned each of them.
    """
    of_tasks = by_agent(lines)
    known = {line["task"] for line in lines}
    together = normalized({agent: tasks for agent, tasks in of_tasks.items() if tasks.keys() == known})
    columns = ("agent", "runs", "IQM", "95 %")
    table = runner.table(f"{title}: scores / best mean of an agent in the task", *columns, left=columns)
    for agent, tasks in together.items():
        low, high = interval([*tasks.values()])
        iqm = interquartile_mean([*tasks.values()])
        table.add_row(agent, str(sum(map(len, tasks.values()))), f"{iqm:.3f}", f"{low:.3f} to {high:.3f}")
    runner.console(130).print(table)
    return together


def draw_games(lines: list[Line], together: dict[str, dict[str, list[float]]], picture: Path) -> None:
    """Draw MinAtar's games beside the scores of all ``together``."""
    of_games = by_agent(lines)
    panels = {"all games, normalized": together}
    for game in dict.fromkeys(line["task"] for line in lines):
        panels[game.removeprefix("minatar-")] = {
            agent: {game: games[game]} for agent, games in of_games.items() if game in games
        }
    figure = Figure(figsize=(2.5 * len(panels), 3.2), layout="constrained")
    for axes, (title, agents) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for place, scores in enumerate(agents.values()):
            low, high = interval([*scores.values()])
            color = f"C{[*MINATAR_AGENTS].index([*agents][place])}"
            axes.plot([place, place], [low, high], color=color, lw=7, alpha=0.35, solid_capstyle="butt")
            axes.plot([place - 0.3, place + 0.3], [interquartile_mean([*scores.values()])] * 2, color=color, lw=2)
            runs = [score for seeds in scores.values() for score in seeds]
            axes.plot([place] * len(runs), runs, ".", color=color, ms=4)
        axes.set_xticks(range(len(agents)), list(agents), rotation=60)
        axes.set_title(title, fontsize=10)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("MinAtar, 500,000 steps: runs, IQM and its 95 % interval", fontsize=11)
    figure.savefig(picture, dpi=120)


def main() -> None:
    """Command line."""
    parser = runner.parser(__doc__)
    usual = [task for task in TASKS if task not in ASKED_FOR]
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS, *GROUPS], default=usual)
    parser.add_argument("--random", nargs="+", metavar="GAME", help="print scores of random play instead")
    parser.add_argument("--agents", nargs="+", help="only these, peers included")
    parser.add_argument("--peers", action="store_true", help="agents of other libraries too")
    parser.add_argument("--sbx", default=sys.executable, metavar="PYTHON", help="interpreter that has SBX and MuJoCo")
    parser.add_argument("--d3rlpy", default=sys.executable, metavar="PYTHON", help="interpreter that has d3rlpy")
    parser.add_argument("--seeds", type=int, nargs="+", help="others than each agent's own")
    parser.add_argument("--at-a-time", type=int, default=2, help="runs that train side by side")
    parser.add_argument(
        "--minutes",
        type=float,
        help="begin no further run after so many minutes; the table shows the runs that have ended",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs") / "learning", help="folder of the runs")
    parser.add_argument("--out", type=Path, default=runner.RESULTS / "learning.jsonl", help="file of the lines")
    parser.add_argument("--one", nargs=4, metavar=("TASK", "AGENT", "SEED", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        task, agent, seed, folder = arguments.one
        names = {"task": task, "agent": agent, "seed": int(seed), "commit": commit()}
        print(json.dumps({**names, **trained(task, agent, int(seed), Path(folder))}))
        return
    if arguments.random:
        for game in arguments.random:
            random_play(game)
        return
    tasks = [one for task in arguments.tasks for one in GROUPS.get(task, [task])]
    agents = [(task, agent) for task in tasks for agent in TASKS[task]]
    wanted = [
        (task, agent, seed)
        for task, agent in agents
        for seed in arguments.seeds or TASKS[task][agent].seeds
        if (agent in arguments.agents if arguments.agents else arguments.peers or TASKS[task][agent].peer is None)
    ]
    wanted.sort(key=lambda key: wanted_seeds(key, arguments.seeds))

    def command(key: Key, folder: Path) -> list[str]:
        task, agent, seed = key
        if TASKS[task][agent].peer is None:
            return [sys.executable, __file__, "--one", task, agent, str(seed), str(folder)]
        names = {"task": task, "agent": agent, "seed": seed, "commit": commit()}
        asked = {"names": names, **asked_of_peer(task, agent, seed, folder)}
        pythons = {SBX: arguments.sbx, D3RLPY: arguments.d3rlpy}
        python = next((one for prefix, one in pythons.items() if agent.startswith(prefix)), sys.executable)
        return [python, str(HERE / "learner_peers.py"), json.dumps(asked)]

    lines = all_runs(wanted, command, arguments.runs, arguments.out, arguments.at_a_time, minutes=arguments.minutes)
    print_table(lines)
    for name, group in GROUPS.items():
        of_group = [line for line in lines if line["task"] in group]
        if of_group and all(line["score"] > 0 for line in of_group):
            together = print_together(name, of_group)
            if name == "minatar":
                draw_games(of_group, together, arguments.out.with_name("minatar.png"))


def wanted_seeds(key: Key, given: list[int] | None) -> int:
    """Return the place of a run's seed among its arm's: a slice of the work then compares all arms on a few seeds."""
    task, agent, seed = key
    return list(given or TASKS[task][agent].seeds).index(seed)


if __name__ == "__main__":
    main()
