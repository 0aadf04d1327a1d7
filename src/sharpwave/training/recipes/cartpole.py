"""CartPole-v1: solved in about a minute."""

from sharpwave.agents.dqn import DQN
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.environments import Gymnasium
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Gymnasium("CartPole-v1", num_envs=4),
    agent=DQN.Settings(
        network="mlp",
        hidden_units=128,
        lr=2e-3,
        adam_eps=1e-8,
        target_tau=0.01,
        average_decay=0.99,
        replay=TransitionsSettings(batch_size=128, n_step=5),
        exploration=EpsilonGreedy(end=0.02, steps=8_000),
    ),
    replay=ReplaySettings(capacity=50_000, codec="raw"),
    training=TrainingSettings(steps=100_000, threads=1, checkpoint_every=20_000, warmup_steps=1_000, update_every=4),
    evaluation=EvaluationSettings(stop_reward=490.0, evaluate_every=2_000, evaluate_from=150.0),
)
