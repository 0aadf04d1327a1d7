"""Atari Pong by a plain DQN, double and dueling: what recipe `pong` is compared with in docs/pong.md."""

from sharpwave.agents.dqn import DQN
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.environments import Atari
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Atari("pong", frame="42x42", crop="34:194", actions="NOOP,RIGHT,LEFT"),
    agent=DQN.Settings(
        network="small",
        hidden_units=256,
        dueling=True,
        standardize=True,
        precision="auto",
        lr=4e-4,
        target_every=2_000,
        average_decay=0.999,  # over some 8,000 steps
        replay=TransitionsSettings(batch_size=128, n_step=5),
        exploration=EpsilonGreedy(steps=50_000),
    ),
    replay=ReplaySettings(capacity=20_000),  # with 100,000 it needed more steps to win: docs/pong.md
    training=TrainingSettings(
        steps=1_500_000,
        threads=2,
        checkpoint_every=250_000,  # halfway to playing well an episode takes 6,000 steps of each environment
        update_every=8,
    ),
    evaluation=EvaluationSettings(
        stop_reward=18.0,
        stop_worst=1.0,  # no game lost
        evaluate_every=20_000,  # an evaluation that is abandoned at once takes as long as 5,000 steps
        evaluate_from=16.0,
    ),
)
