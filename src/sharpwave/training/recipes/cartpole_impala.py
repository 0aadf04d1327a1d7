"""CartPole-v1 by IMPALA: A2C's windows with V-trace, for actors whose weights are old (``--actors 2``)."""

from dataclasses import replace

from sharpwave.agents.impala import IMPALA
from sharpwave.agents.replay import RolloutSettings
from sharpwave.training.recipes.cartpole_a2c import RECIPE as A2C

RECIPE = replace(
    A2C,
    agent=IMPALA.Settings(
        network="mlp", hidden_units=64, lr=1e-3, replay=RolloutSettings(batch_size=8, length=16, epochs=1)
    ),
)
