"""Tianshou's DQN learns CartPole from a Sharpwave buffer: the import is what changes. About a minute.

python examples/tianshou_dqn.py [--seed 1] [--steps 50000] [--buffer ours|theirs]
"""

from __future__ import annotations

import argparse
import math
import time
import warnings

import gymnasium as gym
import numpy as np
import tianshou.data
import torch
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

from sharpwave.integrations.tianshou import VectorReplayBuffer

EPOCH = 1_000


def main() -> None:
    """Train until the mean return of ten episodes is 195, and say what the buffer takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=50_000, help="at most")
    parser.add_argument("--buffer", choices=["ours", "theirs"], default="ours")
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    np.random.seed(asked.seed)
    warnings.filterwarnings("ignore", module="tianshou")

    training, test = (DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(10)]) for _ in range(2))
    training.seed(asked.seed)
    test.seed(asked.seed + 100)
    one = gym.make("CartPole-v1")
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=(4,), action_shape=2, hidden_sizes=[128, 128]),
        action_space=one.action_space,
        eps_training=0.1,
        eps_inference=0.0,
    )
    algorithm: DQN[DiscreteQLearningPolicy[Net]] = DQN(
        policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.99, n_step_return_horizon=3, target_update_freq=200
    )
    kind = VectorReplayBuffer if asked.buffer == "ours" else tianshou.data.VectorReplayBuffer
    buffer = kind(20_000, len(training))
    collector = Collector(algorithm, training, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=640, random=True)
    began = time.perf_counter()
    found = algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=Collector(algorithm, test),
            max_epochs=math.ceil(asked.steps / EPOCH),
            epoch_num_steps=EPOCH,
            collection_step_num_env_steps=10,
            update_step_num_gradient_steps_per_sample=0.3,
            batch_size=64,
            test_step_num_episodes=10,
            stop_fn=lambda mean: mean >= 195,
            verbose=False,
            show_progress=False,
        )
    )
    spent = time.perf_counter() - began
    print(f"best mean return {found.best_score:.0f}, after {spent:.0f} s and {len(buffer):,} transitions")
    if asked.buffer == "ours":
        print(f"{buffer.transitions.store.stats()['bytes_per_step']:.0f} bytes of the store each")


if __name__ == "__main__":
    main()
