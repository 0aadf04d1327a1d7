"""Pong as Ape-X does it (Horgan et al. 2018): actors with a ladder of epsilons, prioritized replay."""

from sharpwave.training.recipes.pong_dqn import RECIPE as PONG

RECIPE = PONG.override(
    actors=2,
    checkpoint_every=50_000,  # with actors, checkpoints do not break episodes off
    capacity=100_000,
    prioritized=True,
    beta_end=0.4,
    n_step=3,
    epsilon_start=0.4,
    epsilon_end=0.4,
    epsilon_ladder=7.0,
)
