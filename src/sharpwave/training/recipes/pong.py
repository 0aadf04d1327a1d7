"""Atari Pong on two CPU cores: cropped to the field, small frames, three actions."""

from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.rainbow import Rainbow
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.environments import Atari
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Atari("pong", frame="42x42", crop="34:194", actions="NOOP,RIGHT,LEFT"),
    agent=Rainbow.Settings(
        network="small",
        hidden_units=256,
        standardize=True,
        precision="auto",
        lr=4e-4,
        target_every=2_000,
        average_decay=0.999,  # over some 8,000 steps
        head="qr",
        quantiles=16,
        munchausen=0.9,  # in place of double Q-learning
        munchausen_temperature=0.003,
        noisy=False,
        dueling=False,
        replay=TransitionsSettings(batch_size=128, n_step=5),  # with 10 it plays well sooner, and then loses that again
        exploration=EpsilonGreedy(steps=50_000),
    ),
    replay=ReplaySettings(capacity=20_000),  # with 100,000 a DQN needed more steps to win: docs/pong.md
    training=TrainingSettings(
        steps=1_500_000,
        threads=1,  # with two, steps were no faster: updates are small, and environments have threads of their own
        checkpoint_every=250_000,  # halfway to playing well an episode takes 6,000 steps of each environment
        update_every=8,
    ),
    evaluation=EvaluationSettings(
        stop_reward=18.0,
        stop_worst=1.0,  # no game lost
        evaluate_every=10_000,  # an evaluation that is abandoned at once takes as long as 5,000 steps
        evaluate_from=10.0,
    ),
)
