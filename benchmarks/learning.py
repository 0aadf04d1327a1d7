"""Tasks learned by several agents from several seeds: held-out scores of fixed weights, their IQM and its interval.

python benchmarks/learning.py [--tasks tmaze lock minatar lunarlander two-step spread repeat-first memory-chain
                              breakout seaquest qbert pong-fair cartpole cartpole-stale minatar-ppo
                              halfcheetah inverted-pendulum hopper deep-sea]
                              [--seeds 401 402 ...] [--at-a-time 2] [--runs FOLDER] [--out FILE]
       python benchmarks/learning.py --random breakout qbert seaquest pong

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
``--random`` trains nothing: scores of true random play, whole games, every action of the game with equal probability.
``deep-sea``: exploration; but for the measurement's few random actions all 100 episodes of a policy are the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import runner
from matplotlib.figure import Figure

from sharpwave.bench.learning_runs import (
    EPSILON,
    HELD_OUT,
    Key,
    Line,
    all_runs,
    by_agent,
    interquartile_mean,
    interval,
    learned,
    normalized,
)
from sharpwave.envs import AtariFrames, AtariSettings
from sharpwave.training.scores import EpisodeSums, game_result

HERE = Path(__file__).parent
EPISODES, GAME_EPISODES = 100, 30
DEMONSTRATIONS = 8


@dataclass(frozen=True)
class Arm:
    """An agent on a task: a recipe and what is changed in it.

    Attributes:
        changes: settings; "{seed}" in a text stands for the run's seed.
        demonstrated: it learns from recorded episodes of the task's expert.
        epsilon: probability of a random action when it is measured.
        seeds: those that are run unless ``--seeds`` names others: none that a setting was chosen by.
        peer: Stable-Baselines3's agent with the recipe's settings; made only where ``--agents`` names it.
    """

    recipe: str
    changes: dict[str, Any] = field(default_factory=dict)
    demonstrated: bool = False
    epsilon: float = EPSILON
    seeds: tuple[int, ...] = (101, 102, 103, 104, 105)
    peer: bool = False


FOUR_FRAMES = {
    "num_envs": 8, "steps": 40_000, "network": "mlp", "hidden_units": 64, "learning_rate": 1e-3, "target_tau": 0.0,
    "target_every": 800, "average_decay": 0.0, "n_step": 5, "batch_size": 128, "update_every": 8, "gamma": 0.99,
    "epsilon_end": 0.05, "epsilon_steps": 10_000, "evaluate_every": 0, "codec": "raw",
}  # fmt: skip
"""A DQN over stacks of four observations, otherwise with what the recurrent recipes have."""

TASKS: dict[str, dict[str, Arm]] = {
    "tmaze": {
        "r2d2": Arm("tmaze", seeds=(401, 402, 403, 404, 405)),
        "dqn-4-frames": Arm(
            "gymnasium", FOUR_FRAMES | {"env": "learning_tasks:TMaze4-v0"}, seeds=(401, 402, 403, 404, 405)
        ),
    },
    "lock": {
        "r2d3": Arm("lock", demonstrated=True),
        "r2d2": Arm("tmaze", {"env": "sharpwave/Lock-v0", "length": 8, "burn_in": 0, "stride": 8}),
        "dqn-4-frames-demonstrated": Arm(
            "demonstrated-dqn", FOUR_FRAMES | {"env": "learning_tasks:Lock4-v0", "demonstration_share": 0.25}, True
        ),
    },
}

REPEAT_FIRST = {
    "env": "popgym:popgym-RepeatFirstEasy-v0", "length": 52, "stride": 52, "burn_in": 0, "gamma": 0.5, "n_step": 1,
    "adam_eps": 1e-7,
}  # fmt: skip
"""A window is an episode. What an action is worth shows at once, in rewards of 1/51."""
OF_OTHERS = {
    "repeat-first": {"r2d2": Arm("tmaze", REPEAT_FIRST, seeds=(401, 402, 403))},
    "memory-chain": {"r2d2": Arm("tmaze", {"env": "learning_tasks:MemoryChain-v0"}, seeds=(401, 402, 403))},
}
"""Memory tasks of popgym and bsuite, which no extra installs."""

MINATAR_AGENTS = {
    "dqn": Arm("minatar", seeds=(101, 102, 103, 104, 105, 106, 107)),
    "dqn+": Arm("minatar", {"double": True, "n_step": 3}),
    "rainbow": Arm("minatar-rainbow", seeds=(121, 122, 123, 124, 125)),
    "iqn": Arm("minatar-iqn"),
    "pqn": Arm("minatar-pqn"),
}
MINATAR_GAMES = {
    "breakout": "Breakout", "asterix": "Asterix", "freeway": "Freeway", "seaquest": "Seaquest",
    "space_invaders": "SpaceInvaders",
}  # fmt: skip
MINATAR = {
    f"minatar-{game}": {
        agent: replace(arm, changes=arm.changes | {"env": f"MinAtar/{name}-v1", "evaluate_every": 0})
        for agent, arm in MINATAR_AGENTS.items()
    }
    for game, name in MINATAR_GAMES.items()
}
"""All from the same network, samples and updates, but PQN, which keeps no replay memory."""

ATARI = {
    "breakout": {
        "rainbow": Arm("atari", {"env": "breakout", "threads": 1, "max_minutes": 60.0}, seeds=(301, 302, 303)),
    },
    **{
        game: {"rainbow": Arm("atari", {"env": game, "threads": 1, "sticky": 0.25, "steps": 500_000}, seeds=(321,))}
        for game in ("seaquest", "qbert")
    },
}
PONG_FAIR = {
    "sticky": 0.25, "actions": "", "crop": "0:210", "steps": 500_000, "stop_reward": None, "stop_worst": None,
    "evaluate_every": 250_000, "evaluate_from": None,
}  # fmt: skip
ATARI["pong-fair"] = {"rainbow": Arm("pong", PONG_FAIR, seeds=(321,))}
"""Recipe ``pong`` on the game as Machado et al. (2018) ask for it: sticky actions, all six, the whole screen."""
FIXED: dict[str, Any] = {"stop_reward": None, "evaluate_every": 0}
STALE = FIXED | {"steps": 300_000, "learning_rate_end": 1e-5, "learning_rate_steps": 300_000, "entropy_cost": 0.1}
"""Chosen with V-trace on seeds 100 to 104. The recipe's own settings were tried first, on seeds 0 to 4."""
OURS = (0, 1, 2, 3, 4)
FIRST = (*range(10), *range(20, 25))
"""Seeds of the recipe's own settings, which no run with old weights had a part in choosing."""
ON_POLICY = {
    "cartpole": {
        **{f"ppo-k{k}": Arm("cartpole-ppo", FIXED | {"epochs": k}, seeds=OURS) for k in (1, 2, 4)},
        **{agent: Arm(f"cartpole-{agent}", FIXED, seeds=OURS) for agent in ("impala", "a2c", "a3c")},
    },
    "cartpole-stale": {
        "v-trace": Arm("stale-impala", STALE, seeds=(10, 11, 12, 13, 14)),
        "without": Arm("stale-impala", STALE | {"vtrace": False}, seeds=(10, 11, 12, 13, 14)),
        "v-trace-first": Arm("stale-impala", FIXED, seeds=FIRST),
        "without-first": Arm("stale-impala", FIXED | {"vtrace": False}, seeds=FIRST),
    },
    "minatar-ppo": {
        f"k{k}": Arm("minatar-ppo", {"epochs": k, "evaluate_every": 0, "steps": 250_000}, seeds=OURS) for k in (1, 2, 4)
    },
}
"""Agents that use data up; ``cartpole-stale``: acting with weights 1 to 10 versions old (learning_tasks.py)."""
PEER = "stable-baselines3 "
MUJOCO = {
    task: {
        who + agent: Arm(
            agent,
            {"env": env, "steps": 50_000 if agent == "td3" else steps, "evaluate_every": 0} | first,
            epsilon=0.0,
            seeds=OURS[:3],
            peer=who == PEER,
        )
        for who, agent in (("", "sac"), ("", "td3"), ("", "crossq"), (PEER, "sac"), (PEER, "td3"))
    }
    for task, env, steps, first in (
        ("halfcheetah", "HalfCheetah-v5", 50_000, {}),
        ("inverted-pendulum", "InvertedPendulum-v5", 15_000, {"random_steps": 1_000, "warmup_steps": 1_000}),
        ("hopper", "Hopper-v5", 50_000, {}),
    )
}
LUNARLANDER = {"lunarlander": {"dqn": Arm("lunarlander", seeds=(511, 512, 513))}}
TWO_STEP = {"env": "sharpwave/TwoStep-v0", "steps": 10_000, "evaluate_every": 0}
UNTRAINED = {"steps": 2_000, "evaluate_every": 0}
"""The warm-up of recipes ``vdn``, ``qmix`` and ``masac``, after which no update has been made."""
TEAMS = {
    "two-step": {
        "qmix": Arm(  # with VDN's steps
            "qmix",
            TWO_STEP | {"epsilon_end": 1.0, "learning_rate": 1e-3, "target_tau": 0.01, "n_step": 1},
            seeds=OURS,
        ),
        "vdn": Arm("vdn", TWO_STEP | {"epsilon_end": 1.0}, seeds=OURS),
        "masac": Arm("masac", TWO_STEP, seeds=OURS),
    },
    "spread": {
        "random": Arm("qmix", UNTRAINED, epsilon=1.0, seeds=OURS),
        **{
            name + what: Arm(name, changes, seeds=OURS)
            for name in ("qmix", "vdn", "masac")
            for what, changes in ((" untrained", UNTRAINED), ("", {"evaluate_every": 0}))
        },
    },
}
"""The matrix game of the QMIX paper, under uniform exploration as there, and mpe2's simple_spread."""
RECURRENT = {
    "num_envs": 16, "steps": 200_000, "capacity": 200_000, "codec": "raw", "threads": 1, "checkpoint_every": 100_000,
    "warmup_steps": 2_000, "update_every": 4, "stop_reward": 0.9, "evaluate_every": 10_000, "network": "mlp",
    "hidden_units": 64, "learning_rate": 1e-3, "adam_eps": 1e-5, "target_every": 2_000, "dueling": False,
    "batch_size": 32, "gamma": 0.997, "epsilon_start": 0.2, "epsilon_end": 0.2, "epsilon_steps": 0,
    "core": "gru", "core_units": 64, "rescale": False, "length": 20, "burn_in": 0, "stride": 20,
}  # fmt: skip
NOVELTY = {
    "policies": 4, "min_gamma": 0.97, "max_modulator": 100.0, "max_beta": 3.0, "embedding_size": 16,
    "episodic_memory": 32, "intrinsic_scale": 0.003, "novelty_learning_rate": 1e-5,
}  # fmt: skip
"""Settings of recipe ``deep-sea`` for other agents than Agent57."""
OF_CORES = {"core", "core_units", "rescale", "length", "burn_in", "stride", "target_every"}
FEEDFORWARD = {name: one for name, one in RECURRENT.items() if name not in OF_CORES and "epsilon" not in name}
SEA = {"env": "learning_tasks:DeepSea{seed}-v0"}
UNSEEN = (10, 11, 12, 13, 14)
"""Settings were chosen on 0 and 100 to 107, and 1 to 4 were looked at meanwhile."""
DEEP_SEA = {
    "deep-sea": {
        "agent57": Arm("deep-sea", SEA, seeds=UNSEEN),
        "ngu": Arm("ngu", RECURRENT | NOVELTY | SEA, seeds=UNSEEN),
        "r2d2": Arm("r2d2", RECURRENT | SEA, seeds=UNSEEN),
        "dqn": Arm("gymnasium", FEEDFORWARD | SEA | {"epsilon_steps": 100_000, "batch_size": 128}, seeds=UNSEEN),
    }
}
"""Deep sea of 20 rows, of another mapping of the actions for each seed. DQN's epsilon falls from 1 to .02."""
ASKED_FOR = OF_OTHERS | ATARI | LUNARLANDER | ON_POLICY | TEAMS | MUJOCO | DEEP_SEA
"""Tasks that are made where they are asked for."""
TASKS |= MINATAR | ASKED_FOR


def trained(task: str, agent: str, seed: int, folder: Path) -> Line:
    """Train one run in this process, or go on with it, and measure it."""
    import learning_tasks as tasks

    from sharpwave.training.recipes import load_recipe

    arm = TASKS[task][agent]
    here = {"demonstrated-dqn": tasks.DEMONSTRATED, "stale-impala": tasks.STALE}
    recipe = here[arm.recipe] if arm.recipe in here else load_recipe(arm.recipe)
    changes = {name: one.format(seed=seed) if isinstance(one, str) else one for name, one in arm.changes.items()}
    if arm.demonstrated:
        changes["demonstrations"] = str(tasks.demonstrations(recipe.override(**changes), folder, DEMONSTRATIONS))
    recipe = recipe.override(seed=seed, device="cpu", **changes)
    names = {"task": task, "agent": agent, "seed": seed, "commit": commit()}
    if arm.peer:
        return {**names, **learned_by_peer(recipe, episodes_of(task))}
    return {**names, **learned(arm.recipe, recipe, folder, episodes_of(task), arm.epsilon)}


def learned_by_peer(recipe: Any, episodes: int) -> Line:
    """Train an agent of Stable-Baselines3 with a recipe's settings, and measure its last policy."""
    import torch
    from stable_baselines3 import SAC, TD3
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    settings, seed = recipe.agent, recipe.training.seed
    env = gymnasium.make(recipe.env.name)
    given: dict[str, Any] = {
        "learning_rate": settings.lr, "batch_size": settings.replay.batch_size, "gamma": settings.replay.gamma,
        "tau": settings.target_tau, "learning_starts": settings.random_steps, "train_freq": 1, "gradient_steps": 1,
        "policy_kwargs": {"net_arch": [settings.hidden_units] * 2}, "device": "cpu", "seed": seed,
    }  # fmt: skip
    if settings.kind == "td3":
        size: Any = env.action_space.shape
        # In -1 ... 1, as ours.
        noise = NormalActionNoise(np.zeros(size), np.full(size, settings.action_noise))
        model = TD3("MlpPolicy", env, action_noise=noise, **given)
    else:
        model = SAC("MlpPolicy", env, **given)
    before = time.monotonic()
    model.learn(recipe.training.steps)
    minutes = (time.monotonic() - before) / 60
    held_out = Monitor(gymnasium.make(recipe.env.name))
    held_out.reset(seed=HELD_OUT + seed)
    scores, _ = evaluate_policy(model, held_out, episodes, return_episode_rewards=True)
    figures = {"score": statistics.fmean(scores), "scores": [*map(float, scores)]}
    return figures | {"steps": recipe.training.steps, "minutes": minutes, "reason": "its steps"}


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
    return GAME_EPISODES if task.startswith("minatar") or task in ATARI | MUJOCO else EPISODES


def print_table(lines: list[Line]) -> None:
    """Print a row for each agent on each task."""
    columns: dict[str, Callable[[list[Line]], str]] = {
        "seeds": lambda runs: str(len(runs)),
        "IQM": lambda runs: f"{interquartile_mean([run['score'] for run in runs]):.3f}",
        "95 %": lambda runs: "{:.3f} to {:.3f}".format(*interval([[run["score"] for run in runs]])),
        "median": lambda runs: f"{statistics.median(run['score'] for run in runs):.3f}",
        "lowest": lambda runs: f"{min(run['score'] for run in runs):.3f}",
        "steps, median": lambda runs: f"{statistics.median(run['steps'] for run in runs):,.0f}",
        "minutes, median": lambda runs: f"{statistics.median(run['minutes'] for run in runs):.1f}",
    }
    title = "Mean of the held-out episodes, fixed weights"
    table = runner.table(title, "task", "agent", *columns, left=("task", "agent"))
    for task, agent in dict.fromkeys((line["task"], line["agent"]) for line in lines):
        runs = [line for line in lines if (line["task"], line["agent"]) == (task, agent)]
        table.add_row(task, agent, *(text(runs) for text in columns.values()))
    runner.console(130).print(table)


def print_games(lines: list[Line], picture: Path) -> None:
    """Print IQM and interval over MinAtar's games by agent, normalized, and draw them beside the games' own.

    Over all games only agents are compared that have played each of them.
    """
    of_games = by_agent(lines)
    played = {line["task"] for line in lines}
    together = normalized({agent: games for agent, games in of_games.items() if games.keys() == played})
    columns = ("agent", "runs", "IQM", "95 %")
    table = runner.table("MinAtar: scores / best mean of an agent in the game", *columns, left=columns)
    for agent, games in together.items():
        low, high = interval([*games.values()])
        iqm = interquartile_mean([*games.values()])
        table.add_row(agent, str(sum(map(len, games.values()))), f"{iqm:.3f}", f"{low:.3f} to {high:.3f}")
    runner.console(130).print(table)

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
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS, "minatar"], default=usual)
    parser.add_argument("--random", nargs="+", metavar="GAME", help="print scores of random play instead")
    parser.add_argument("--agents", nargs="+", help="only these")
    parser.add_argument("--seeds", type=int, nargs="+", help="others than each agent's own")
    parser.add_argument("--at-a-time", type=int, default=2, help="runs that train side by side")
    parser.add_argument("--runs", type=Path, default=Path("runs") / "learning", help="folder of the runs")
    parser.add_argument("--out", type=Path, default=runner.RESULTS / "learning.jsonl", help="file of the lines")
    parser.add_argument("--one", nargs=4, metavar=("TASK", "AGENT", "SEED", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        task, agent, seed, folder = arguments.one
        print(json.dumps(trained(task, agent, int(seed), Path(folder))))
        return
    if arguments.random:
        for game in arguments.random:
            random_play(game)
        return
    tasks = [one for task in arguments.tasks for one in (MINATAR if task == "minatar" else [task])]
    agents = [(task, agent) for task in tasks for agent in TASKS[task]]
    wanted = [
        (task, agent, seed)
        for task, agent in agents
        for seed in arguments.seeds or TASKS[task][agent].seeds
        if (agent in arguments.agents if arguments.agents else not TASKS[task][agent].peer)
    ]

    def command(key: Key, folder: Path) -> list[str]:
        task, agent, seed = key
        return [sys.executable, __file__, "--one", task, agent, str(seed), str(folder)]

    lines = all_runs(wanted, command, arguments.runs, arguments.out, arguments.at_a_time)
    print_table(lines)
    games = [line for line in lines if line["task"] in MINATAR]
    if games:
        print_games(games, arguments.out.with_name("minatar.png"))


if __name__ == "__main__":
    main()
