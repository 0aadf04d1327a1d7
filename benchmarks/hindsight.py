"""Hindsight experience replay on FetchReach: SAC with our buffer beside SB3's own, success on held-out episodes.

    pip install '.[sb3]' gymnasium-robotics 'mujoco<3.4'
    python benchmarks/hindsight.py [--seeds 0 1 2] [--steps 4000] [--env FetchReach-v4]

A robot's arm moves its gripper to a goal within 50 steps; the reward is -1 until it is there. Hyperparameters are of
RL Baselines3 Zoo, with tau=0.05; observations are normalized. After every 500 steps the policy's mean action
plays 50 episodes of another environment, whose goals are the same for all runs. "nothing relabelled": our buffer with
n_sampled_goal=0. Each run in a process of its own with one thread. The table has the share of episodes that end at the
goal, the mean of the seeds and in brackets the lowest and the highest; seconds are those of training.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import runner
import torch
from stable_baselines3 import SAC
from stable_baselines3 import HerReplayBuffer as Theirs
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sharpwave.integrations.sb3 import HerReplayBuffer

EVERY, EPISODES = 500, 50
BUFFERS: dict[str, tuple[type[Any], int]] = {
    "SB3's HerReplayBuffer": (Theirs, 4),
    "ours": (HerReplayBuffer, 4),
    "nothing relabelled": (HerReplayBuffer, 0),
}
"""Buffers by name, each with the number of relabelled transitions for each one as it was stored."""


def success(model: SAC, norm: VecNormalize, env: gym.Env[Any, Any]) -> float:
    """Return the share of held-out episodes that end at the goal."""
    reached = 0.0
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=10_000 + episode)
        ended = False
        while not ended:
            obs, _, terminated, truncated, info = env.step(
                model.predict(norm.normalize_obs(obs), deterministic=True)[0]
            )
            ended = terminated or truncated
        reached += float(info["is_success"])
    return reached / EPISODES


def train(name: str, seed: int, env: str, steps: int) -> dict[str, Any]:
    """Train once; return success by number of steps, and seconds of training without evaluation."""
    import gymnasium_robotics  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    gym.register_envs(gymnasium_robotics)
    kind, goals = BUFFERS[name]
    envs = VecNormalize(DummyVecEnv([lambda: gym.make(env)]), norm_reward=False)
    model = SAC(
        "MultiInputPolicy",
        envs,
        learning_rate=1e-3,
        buffer_size=100_000,
        learning_starts=1000,
        batch_size=256,
        gamma=0.95,
        tau=0.05,
        policy_kwargs={"net_arch": [64, 64]},
        replay_buffer_class=kind,
        replay_buffer_kwargs={"n_sampled_goal": goals, "goal_selection_strategy": "future"},
        device="cpu",
        seed=seed,
    )
    held_out, seconds, found = gym.make(env), 0.0, {}
    for done in range(EVERY, steps + 1, EVERY):
        began = time.perf_counter()
        model.learn(EVERY, reset_num_timesteps=False)
        seconds += time.perf_counter() - began
        found[done] = success(model, envs, held_out)
    return {"success": found, "seconds": seconds}


def main() -> None:
    """Train with each buffer and seed in turn, print a table, and write all runs."""
    parser = runner.parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--env", default="FetchReach-v4")
    parser.add_argument("--out", type=Path, default=runner.RESULTS / "hindsight.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(train(asked.one, asked.seeds[0], asked.env, asked.steps)))
        return
    runs: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in BUFFERS}
    for seed in asked.seeds:
        for name in BUFFERS:
            command = [sys.executable, __file__, "--one", name, "--seeds", str(seed)]
            command += ["--steps", str(asked.steps), "--env", asked.env]
            found = runner.last_line(command, name)
            if found is None:
                sys.exit(1)
            runs[name][seed] = found
            print(f"seed {seed}, {name}: {runs[name][seed]}", file=sys.stderr)
    runner.write(asked.out, {"env": asked.env, "steps": asked.steps, "runs": runs})
    runner.console(120).print(_table(asked.env, asked.steps, runs))


def _table(env: str, steps: int, runs: dict[str, dict[int, dict[str, Any]]]) -> Any:
    seeds = len(next(iter(runs.values())))
    marks = [str(done) for done in range(EVERY, steps + 1, EVERY)]
    title = f"{env}, success in {EPISODES} held-out episodes, {seeds} seeds"
    table = runner.table(title, "buffer", *(f"{int(mark):,}" for mark in marks), "seconds", left=("buffer",))
    for name, of in runs.items():
        scores = np.array([[run["success"][mark] for mark in marks] for run in of.values()])
        cells = [f"{s.mean():.0%} ({s.min():.0%}-{s.max():.0%})" for s in scores.T]
        table.add_row(name, *cells, f"{np.median([run['seconds'] for run in of.values()]):.0f}")
    return table


if __name__ == "__main__":
    main()
