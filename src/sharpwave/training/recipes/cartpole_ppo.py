"""CartPole-v1 by PPO: each window is learned from four times (``--epochs``)."""

from dataclasses import replace

from sharpwave.agents.ppo import PPO
from sharpwave.agents.replay import RolloutSettings
from sharpwave.training.recipes.cartpole import RECIPE as CARTPOLE

RECIPE = replace(
    CARTPOLE,
    env=replace(CARTPOLE.env, num_envs=8),
    agent=PPO.Settings(
        network="mlp", hidden_units=64, lr=1e-3, entropy_cost=0.0, replay=RolloutSettings(length=32, epochs=4)
    ),
    replay=replace(CARTPOLE.replay, capacity=10_000),
    training=replace(CARTPOLE.training, warmup_steps=0, update_every=1),  # whenever a batch of windows is there
)
