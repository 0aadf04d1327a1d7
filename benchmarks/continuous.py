"""Updates a second of SAC, TD3 and CrossQ beside Stable-Baselines3's SAC and TD3, on one core, in turns.

python benchmarks/continuous.py [--updates 200] [--out FILE]

Every learner has a batch of 256 for HalfCheetah's shapes (17 observations, 6 actions), two hidden layers of 256 units
and a memory of 20,000 random steps, from which each update draws its own batch. A turn is ten updates of each, one
after the other; shown are medians over turns of processor time, and their 10th and 90th percentiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import runner
import torch
from gymnasium.spaces import Box
from stable_baselines3 import SAC as TheirSAC
from stable_baselines3 import TD3 as TheirTD3
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

import sharpwave as sw
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.registry import agent_class

HERE = Path(__file__).parent
OBS, ACTIONS, STEPS, PER_TURN = 17, 6, 20_000, 10
SPACES = Spaces(Box(-np.inf, np.inf, (OBS,), np.float64), Box(-1.0, 1.0, (ACTIONS,), np.float32))
OURS: dict[str, dict[str, Any]] = {
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


def main() -> None:
    """Command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--updates", type=int, default=200, help="of each learner")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "continuous.json", help="file of the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    learners = {name: ours(name, changes) for name, changes in OURS.items()}
    learners |= {name: theirs(kind) for name, kind in THEIRS.items()}
    found = measured(learners, max(1, arguments.updates // PER_TURN))
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
    runner.write(arguments.out, {"updates": arguments.updates, "learners": lines})


if __name__ == "__main__":
    main()
