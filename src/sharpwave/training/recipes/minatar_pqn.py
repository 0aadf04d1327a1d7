"""Recipe ``minatar`` without replay: PQN."""

from dataclasses import replace

from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.pqn import PQN
from sharpwave.training.recipes.minatar import RECIPE as MINATAR

STEPS = MINATAR.training.steps

RECIPE = replace(
    MINATAR,
    agent=PQN.Settings(network="tiny", lr_steps=STEPS, exploration=EpsilonGreedy(end=0.05, steps=STEPS // 10)),
    replay=replace(MINATAR.replay, capacity=20_000),
    training=replace(MINATAR.training, warmup_steps=0, update_every=1),  # whenever a batch of windows is there
)
