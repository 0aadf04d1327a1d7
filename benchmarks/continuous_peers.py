"""Scores of Stable-Baselines3's SAC and TD3 on MuJoCo's robots, with the settings of recipes ``sac`` and ``td3``.

python benchmarks/continuous_peers.py [--tasks hopper ...] [--agents sac td3] [--seeds 0 1 2] [--at-a-time 2]
                                      [--out FILE]

Steps, random first steps, held-out seeds and the number of episodes are those of ``learning.py``, whose results the
table shows beside them; the last policies play, without noise. Each run that has ended is a line of FILE
(results/continuous.jsonl), with the agent "stable-baselines3 sac"; started again, only missing runs are made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import runner
from learning import MUJOCO, OURS, commit, episodes_of, print_table
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise

from sharpwave.bench.learning_runs import HELD_OUT, Key, Line, all_runs, lines_of
from sharpwave.training.recipes import load_recipe

HERE = Path(__file__).parent
PEER = "stable-baselines3 "


def trained(task: str, agent: str, seed: int) -> Line:
    """Train one agent in this process, and measure its last policy."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    recipe = load_recipe(agent).override(**MUJOCO[task][agent].changes)
    settings: Any = recipe.agent
    env = gymnasium.make(recipe.env.name)
    given: dict[str, Any] = {
        "learning_rate": settings.lr, "batch_size": settings.replay.batch_size, "gamma": settings.replay.gamma,
        "tau": settings.target_tau, "learning_starts": settings.random_steps, "train_freq": 1, "gradient_steps": 1,
        "policy_kwargs": {"net_arch": [settings.hidden_units] * 2}, "device": "cpu", "seed": seed,
    }  # fmt: skip
    if agent == "td3":
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
    scores, _ = evaluate_policy(model, held_out, episodes_of(task), return_episode_rewards=True)
    names = {"task": task, "agent": PEER + agent, "seed": seed, "commit": commit()}
    figures = {"score": statistics.fmean(scores), "scores": [*map(float, scores)]}
    return {**names, **figures, "steps": recipe.training.steps, "minutes": minutes, "reason": "its steps"}


def main() -> None:
    """Make the runs that are missing, and print them beside ours."""
    parser = runner.parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=MUJOCO, default=["hopper"])
    parser.add_argument("--agents", nargs="+", choices=("sac", "td3"), default=["sac"])
    parser.add_argument("--seeds", type=int, nargs="+", default=OURS[:3])
    parser.add_argument("--at-a-time", type=int, default=2, help="runs at once, each on one core")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "continuous.jsonl")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        task, agent, seed = arguments.one
        print(json.dumps(trained(task, agent.removeprefix(PEER), int(seed))))
        return
    keys: list[Key] = [(t, PEER + a, s) for t in arguments.tasks for a in arguments.agents for s in arguments.seeds]

    def command(key: Key, folder: Path) -> list[str]:
        return [sys.executable, __file__, "--one", *map(str, key)]

    lines = all_runs(keys, command, Path("runs") / "continuous_peers", arguments.out, arguments.at_a_time)
    ours = [(task, agent.removeprefix(PEER), seed) for task, agent, seed in keys]
    print_table([*lines, *(one for key, one in lines_of(arguments.out).items() if key in ours)])


if __name__ == "__main__":
    main()
