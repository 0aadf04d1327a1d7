"""Continuous actions by soft actor-critic, an update for every step: MuJoCo's HalfCheetah, or any other."""

from sharpwave.agents.sac import SAC
from sharpwave.training.recipes.environments import Gymnasium
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Gymnasium("HalfCheetah-v5", num_envs=1),
    agent=SAC.Settings(random_steps=5_000),
    replay=ReplaySettings(codec="raw"),
    training=TrainingSettings(steps=1_000_000, threads=1, warmup_steps=5_000, update_every=1),
    evaluation=EvaluationSettings(evaluate_every=50_000),
)
