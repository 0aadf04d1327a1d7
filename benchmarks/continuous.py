"""SAC, TD3 and CrossQ beside Stable-Baselines3's SAC and TD3: updates a second, and scores on MuJoCo's robots.

    python benchmarks/continuous.py [--updates 200] [--out FILE]
    python benchmarks/continuous.py --scores [--tasks hopper ...] [--agents sac td3] [--seeds 0 1 2] [--at-a-time 2]

Updates: every learner has a batch of 256 for HalfCheetah's shapes (17 observations, 6 actions), two hidden layers of
256 units and a memory of 20,000 random steps, from which each update draws its own batch. A turn is ten updates of
each, one after the other, on one core; shown are medians over turns of processor time, and their 10th and 90th
percentiles.

Scores of Stable-Baselines3's, with the settings of recipes ``sac`` and ``td3``: steps, random first steps, held-out
seeds and the number of episodes are those of ``learning.py``, whose results the table shows beside them; the last
policies play, without noise. Each run that has ended is a line of results/continuous.jsonl, with the agent
"stable-baselines3 sac"; started again, only missing runs are made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import runner
import torch
from gymnasium.spaces import Box
from learning import MUJOCO, OURS, commit, episodes_of, print_table
from stable_baselines3 import SAC as TheirSAC
from stable_baselines3 import TD3 as TheirTD3
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

import sharpwave as sw
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.registry import agent_class
from sharpwave.bench.learning_runs import HELD_OUT, Key, Line, all_runs, lines_of
from sharpwave.training.recipes import load_recipe

PEER = "stable-baselines3 "
OBS, ACTIONS, STEPS, PER_TURN = 17, 6, 20_000, 10
SPACES = Spaces(Box(-np.inf, np.inf, (OBS,), np.float64), Box(-1.0, 1.0, (ACTIONS,), np.float32))
LEARNERS: dict[str, dict[str, Any]] = {
    "sac": {}, "sac bfloat16": {"precision": "bfloat16"}, "td3": {}, "crossq": {"critic_units": 256},
}  # fmt: skip
THEIRS = {"stable-baselines3 SAC": TheirSAC, "stable-baselines3 TD3": TheirTD3}

Learner = Callable[[int], None]
"""Function that makes so many updates."""


def steps() -> dict[str, Any]:
    """Return random steps [STEPS, ...]."""
    rng = np.random.default_rng(0)
    ended = np.arange(STEPS) % 1_000 == 999
    return {
        "obs": rng.normal(size=(STEPS, OBS)), "action": rng.uniform(-1, 1, (STEPS, ACTIONS)).astype(np.float32),
        "reward": rng.normal(size=STEPS).astype(np.float32), "ended": ended,
    }  # fmt: skip


def ours(name: str, changes: dict[str, Any]) -> Learner:
    """Make an agent of this package over a store."""
    made = agent_class(name.split()[0])
    agent = made(SPACES, made.Settings(**changes))
    data = steps()
    spec = sw.Spec(obs=sw.Field((OBS,), "float64"), action=sw.Field((ACTIONS,), "float32"))
    store = sw.Store(spec, capacity=STEPS, codec="raw", seed=0)
    for t in range(STEPS):
        store.append(
            obs=data["obs"][t], action=data["action"][t], reward=data["reward"][t], terminated=False,
            truncated=bool(data["ended"][t]), final_obs=data["obs"][t],
        )  # fmt: skip
    view, size = agent.replay().open(store, "learner", 0), agent.replay().batch_size

    def learn(count: int) -> None:
        for update in range(count):
            agent.learn(view.sample(size).torch(agent.device), update)

    return learn


class Nothing(DummyVecEnv):  # type: ignore[misc]  # Stable-Baselines3 is untyped here
    """Vector of one environment of these spaces, never stepped."""

    def __init__(self) -> None:
        self.num_envs, self.render_mode = 1, None
        self.envs: list[Any] = []
        self.observation_space, self.action_space = SPACES.observation, SPACES.action
        self.metadata: dict[str, Any] = {}


def theirs(kind: Any) -> Learner:
    """Make an agent of Stable-Baselines3 over its replay buffer."""
    model = kind("MlpPolicy", Nothing(), buffer_size=STEPS, batch_size=256, device="cpu", seed=0,
                 policy_kwargs={"net_arch": [256, 256]})  # fmt: skip
    model.set_logger(Logger(folder=None, output_formats=[]))
    data = steps()
    for t in range(STEPS):
        after = data["obs"][min(t + 1, STEPS - 1)]
        model.replay_buffer.add(
            data["obs"][t], after, data["action"][t][None], data["reward"][t], np.array([False]), [{}]
        )
    model.policy.set_training_mode(True)
    return lambda count: model.train(gradient_steps=count, batch_size=256)


def measured(learners: dict[str, Learner], turns: int) -> dict[str, list[float]]:
    """Return milliseconds of processor time an update, for each turn, by learner."""
    found: dict[str, list[float]] = {name: [] for name in learners}
    for turn in range(turns + 2):
        for name, learn in learners.items():
            begun = time.process_time()
            learn(PER_TURN)
            if turn >= 2:  # the first ones compile and allocate
                found[name].append((time.process_time() - begun) / PER_TURN * 1_000)
    return found


def updates(count: int, out: Path) -> None:
    """Time updates of all learners in turns, print a table, and write the figures."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    learners = {name: ours(name, changes) for name, changes in LEARNERS.items()}
    learners |= {name: theirs(kind) for name, kind in THEIRS.items()}
    found = measured(learners, max(1, count // PER_TURN))
    title = "Processor time of an update, batch 256, one core"
    columns = ("learner", "median, ms", "10 to 90 %", "updates a second", "times SB3's")
    table = runner.table(title, *columns, left=("learner",))
    lines = {}
    for name, times in found.items():
        peer = found["stable-baselines3 TD3" if "td3" in name.lower() else "stable-baselines3 SAC"]
        low, median, high = np.percentile(times, [10, 50, 90])
        ratio = float(np.median(np.array(peer) / np.array(times)))
        lines[name] = {"median_ms": median, "low_ms": low, "high_ms": high, "ratio": ratio}
        table.add_row(name, f"{median:.2f}", f"{low:.2f} to {high:.2f}", f"{1_000 / median:.0f}", f"{ratio:.2f}")
    runner.console(100).print(table)
    runner.write(out, {"updates": count, "learners": lines})


def trained(task: str, agent: str, seed: int) -> Line:
    """Train one agent in this process, and measure its last policy."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.noise import NormalActionNoise

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
        model = TheirTD3("MlpPolicy", env, action_noise=noise, **given)
    else:
        model = TheirSAC("MlpPolicy", env, **given)
    before = time.monotonic()
    model.learn(recipe.training.steps)
    minutes = (time.monotonic() - before) / 60
    held_out = Monitor(gymnasium.make(recipe.env.name))
    held_out.reset(seed=HELD_OUT + seed)
    scores, _ = evaluate_policy(model, held_out, episodes_of(task), return_episode_rewards=True)
    names = {"task": task, "agent": PEER + agent, "seed": seed, "commit": commit()}
    figures = {"score": statistics.fmean(scores), "scores": [*map(float, scores)]}
    return {**names, **figures, "steps": recipe.training.steps, "minutes": minutes, "reason": "its steps"}


def scores(arguments: argparse.Namespace, out: Path) -> None:
    """Make the runs that are missing, and print them beside ours."""
    keys: list[Key] = [(t, PEER + a, s) for t in arguments.tasks for a in arguments.agents for s in arguments.seeds]

    def command(key: Key, folder: Path) -> list[str]:
        return [sys.executable, __file__, "--one", *map(str, key)]

    lines = all_runs(keys, command, Path("runs") / "continuous_peers", out, arguments.at_a_time)
    beside = [(task, agent.removeprefix(PEER), seed) for task, agent, seed in keys]
    print_table([*lines, *(one for key, one in lines_of(out).items() if key in beside)])


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--updates", type=int, default=200, help="of each learner")
    parser.add_argument("--scores", action="store_true", help="train and measure Stable-Baselines3's agents instead")
    parser.add_argument("--tasks", nargs="+", choices=MUJOCO, default=["hopper"])
    parser.add_argument("--agents", nargs="+", choices=("sac", "td3"), default=["sac"])
    parser.add_argument("--seeds", type=int, nargs="+", default=OURS[:3])
    parser.add_argument("--at-a-time", type=int, default=2, help="runs at once, each on one core")
    parser.add_argument("--out", type=Path, help="file of the figures (default: in results/)")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        task, agent, seed = arguments.one
        print(json.dumps(trained(task, agent.removeprefix(PEER), int(seed))))
    elif arguments.scores:
        scores(arguments, arguments.out or runner.RESULTS / "continuous.jsonl")
    else:
        updates(arguments.updates, arguments.out or runner.RESULTS / "continuous.json")


if __name__ == "__main__":
    main()
