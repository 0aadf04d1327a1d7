"""CartPole-v1 by A2C: no replay, each window is learned from once."""

from dataclasses import replace

from sharpwave.agents.a2c import A2C
from sharpwave.agents.replay import RolloutSettings
from sharpwave.training.recipes.cartpole import RECIPE as CARTPOLE

RECIPE = replace(
    CARTPOLE,
    env=replace(CARTPOLE.env, num_envs=8),
    agent=A2C.Settings(
        network="mlp", hidden_units=64, lr=1e-3, replay=RolloutSettings(batch_size=8, length=16, epochs=1)
    ),
    replay=replace(CARTPOLE.replay, capacity=10_000),
    training=replace(CARTPOLE.training, steps=200_000, warmup_steps=0, update_every=1),
)
