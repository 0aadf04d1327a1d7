"""Stable-Baselines3's DQN on Pong with a compressed replay buffer: pip install '.[sb3]' opencv-python ale-py.

    python examples/sb3_atari.py [--steps 1000000] [--ram 2GiB]

Prints what a transition takes, beside what it takes in SB3's own buffer: two stacks of four frames, the action, the
reward and two flags. An agent that learns Pong needs a million steps or more.
"""

import argparse

import ale_py
import gymnasium as gym
import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from sharpwave.integrations.sb3 import ReplayBuffer


def main() -> None:
    """Train, and print the sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--ram", default="2GiB")
    arguments = parser.parse_args()
    gym.register_envs(ale_py)
    env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=4, seed=1), n_stack=4)
    model = DQN(
        "CnnPolicy",
        env,
        buffer_size=1_000_000,
        learning_starts=min(10_000, arguments.steps // 2),
        learning_rate=1e-4,
        train_freq=1,
        target_update_interval=1_000,
        exploration_fraction=0.1,
        exploration_final_eps=0.01,
        seed=1,
        replay_buffer_class=ReplayBuffer,
        replay_buffer_kwargs={"ram": arguments.ram},
    )
    model.learn(arguments.steps)
    buffer = model.replay_buffer
    assert isinstance(buffer, ReplayBuffer)
    stats = buffer.transitions.store.stats()
    theirs = 2 * int(np.prod(env.observation_space.shape or ())) + 8 + 3 * 4
    print(f"{stats['steps']:,} transitions, {stats['encoded_bytes_per_step']:.0f} bytes each, ", end="")
    print(f"{stats['bytes_per_step']:.0f} with buffers of fixed size; SB3's own buffer: {theirs:,}")


if __name__ == "__main__":
    main()
