"""Any Atari game by DRQN: one frame at a time, and a recurrent core in place of the stack.

Source: Hausknecht and Stone (2015), Deep recurrent Q-learning for partially observable MDPs. What differs from it:
docs/training/recurrent.md.
"""

from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.r2d2 import R2D2
from sharpwave.agents.replay import SequencesSettings
from sharpwave.training.recipes.environments import Atari
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Atari("pong", stack=1),
    agent=R2D2.Settings(
        network="nature",
        dueling=False,
        double=False,
        rescale=False,
        stored_state=False,
        n_step=1,
        max_grad_norm=10.0,
        target_every=40_000,  # 10,000 updates
        replay=SequencesSettings(batch_size=32, length=10, burn_in=0, stride=5, gamma=0.99, prioritized=False),
        exploration=EpsilonGreedy(end=0.1, steps=1_000_000, hold=50_000),
    ),
    replay=ReplaySettings(capacity=400_000),
    training=TrainingSettings(steps=10_000_000, checkpoint_every=500_000, warmup_steps=50_000, update_every=4),
    evaluation=EvaluationSettings(evaluate_every=500_000),
)
