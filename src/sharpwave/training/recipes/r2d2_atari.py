"""Any Atari game by R2D2 with the settings of its paper, and as many updates as one learner makes.

Source: Kapturowski et al. (2019), Recurrent experience replay in distributed reinforcement learning, table 2. What
differs from it: docs/training/recurrent.md.
"""

from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.r2d2 import R2D2
from sharpwave.training.recipes.environments import Atari
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, TrainingSettings

RECIPE = Recipe(
    env=Atari("pong", clip_rewards=False),  # values are rescaled instead
    agent=R2D2.Settings(
        network="nature",
        target_every=256_000,  # 400 updates
        exploration=EpsilonGreedy(start=0.4, end=0.4, ladder=7.0),
    ),
    training=TrainingSettings(
        steps=50_000_000,
        checkpoint_every=500_000,
        warmup_steps=20_000,
        update_every=640,  # 64 windows of 80 steps: each step is trained eight times, as by DQN
    ),
    evaluation=EvaluationSettings(evaluate_every=500_000),
)
