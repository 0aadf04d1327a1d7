"""CartPole-v1 by A3C: two actor processes, an update from each window that one of them sends."""

from dataclasses import replace

from sharpwave.agents.a3c import A3C
from sharpwave.agents.replay import RolloutSettings
from sharpwave.training.recipes.cartpole_a2c import RECIPE as A2C
from sharpwave.training.recipes.recipe import ActorSettings

RECIPE = replace(
    A2C,
    agent=A3C.Settings(
        network="mlp", hidden_units=64, lr=5e-4, replay=RolloutSettings(batch_size=1, length=32, epochs=1)
    ),
    actors=ActorSettings(count=2, weights_every=64, segment_steps=16),
)
