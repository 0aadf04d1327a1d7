"""Recipe ``minatar`` by PPO: each window is learned from four times (``--epochs``)."""

from dataclasses import replace

from sharpwave.agents.ppo import PPO
from sharpwave.agents.replay import RolloutSettings
from sharpwave.training.recipes.minatar import RECIPE as MINATAR

RECIPE = replace(
    MINATAR,
    agent=PPO.Settings(network="tiny", lr=1e-3, replay=RolloutSettings(batch_size=8, length=32, epochs=4)),
    replay=replace(MINATAR.replay, capacity=20_000),
    training=replace(MINATAR.training, warmup_steps=0, update_every=1),  # whenever a batch of windows is there
)
