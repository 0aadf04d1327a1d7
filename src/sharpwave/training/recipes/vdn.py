"""mpe2's simple_spread by VDN: three agents have to cover three landmarks without colliding."""

from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.agents.vdn import VDN
from sharpwave.training.recipes.environments import Gymnasium
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Gymnasium("mpe2/simple_spread_v3", num_envs=8),
    agent=VDN.Settings(
        hidden_units=128,
        lr=1e-3,
        replay=TransitionsSettings(batch_size=128, gamma=0.95),
        exploration=EpsilonGreedy(end=0.05, steps=50_000),
    ),
    replay=ReplaySettings(capacity=200_000),
    training=TrainingSettings(steps=100_000, threads=1, checkpoint_every=50_000, warmup_steps=2_000, update_every=8),
    evaluation=EvaluationSettings(evaluate_every=50_000),
)
