"""Any Gymnasium environment with discrete actions: modest settings that were tuned on no particular one."""

from sharpwave.agents.dqn import DQN
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.environments import Gymnasium
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Gymnasium("CartPole-v1"),
    agent=DQN.Settings(
        network="auto",
        hidden_units=128,
        lr=5e-4,
        target_tau=0.01,
        average_decay=0.99,
        replay=TransitionsSettings(batch_size=64, n_step=3),
        exploration=EpsilonGreedy(end=0.02, steps=20_000),
    ),
    replay=ReplaySettings(capacity=200_000),
    training=TrainingSettings(steps=200_000, threads=1, checkpoint_every=50_000, warmup_steps=1_000, update_every=4),
    evaluation=EvaluationSettings(evaluate_every=20_000),
)
