"""MinAtar: five small games of 10x10 pixels, on which a method shows in minutes what it is worth.

The agent is plain DQN (Mnih et al. 2015): double Q-learning with three-step returns pays in Breakout, and costs in
Asterix.
"""

from sharpwave.agents.dqn import DQN
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.environments import Gymnasium
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Gymnasium("MinAtar/Breakout-v1", num_envs=32),
    agent=DQN.Settings(
        network="tiny",
        hidden_units=128,
        lr=1e-3,
        target_every=1_000,
        average_decay=0.999,
        double=False,
        replay=TransitionsSettings(batch_size=64),
        exploration=EpsilonGreedy(steps=50_000),
    ),
    replay=ReplaySettings(capacity=100_000),
    training=TrainingSettings(steps=500_000, threads=1, checkpoint_every=250_000, warmup_steps=5_000, update_every=16),
    evaluation=EvaluationSettings(evaluate_every=100_000),
)
