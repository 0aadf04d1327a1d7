"""Hindsight experience replay on a task whose reward is hardly ever found: flip n bits until all are ones.

    pip install '.[sb3]'
    python examples/her.py [--bits 10] [--steps 1500] [--seed 0] [--goals 4] [--sb3]

Stable-Baselines3's DQN with ``HerReplayBuffer``, or with SB3's own buffer (--sb3). Prints the share of the last 50
episodes that reached the goal. With --goals 0 nothing is relabelled: DQN alone does not learn it.
"""

import argparse

import numpy as np
from stable_baselines3 import DQN
from stable_baselines3 import HerReplayBuffer as Theirs
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sharpwave.integrations.sb3 import HerReplayBuffer


def main() -> None:
    """Train, and print how often the goal was reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goals", type=int, default=4, help="relabelled transitions for each one as it was stored")
    parser.add_argument("--sb3", action="store_true", help="SB3's own buffer")
    arguments = parser.parse_args()
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=arguments.bits), n_envs=2)
    model = DQN(
        "MultiInputPolicy",
        env,
        learning_rate=2e-3,
        learning_starts=max(20, 4 * arguments.bits),
        buffer_size=100_000,
        train_freq=1,
        gradient_steps=2,
        exploration_final_eps=0.02,
        target_update_interval=100,
        stats_window_size=50,
        seed=arguments.seed,
        replay_buffer_class=Theirs if arguments.sb3 else HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": arguments.goals, "goal_selection_strategy": "future"},
    )
    model.learn(arguments.steps)
    print(f"{np.mean(model.ep_success_buffer or [0]):.0%} of the last episodes reached the goal")


if __name__ == "__main__":
    main()
