"""LunarLander-v3 to a held-out mean of 240 without a crash: the second thing that everybody tries."""

from sharpwave.agents.dqn import DQN
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.environments import Gymnasium
from sharpwave.training.recipes.recipe import EvaluationSettings, Recipe, ReplaySettings, TrainingSettings

RECIPE = Recipe(
    env=Gymnasium("LunarLander-v3", num_envs=8),
    agent=DQN.Settings(
        network="mlp",
        hidden_units=256,
        dueling=True,
        lr=5e-4,
        adam_eps=1e-5,
        target_tau=0.005,
        average_decay=0.999,
        replay=TransitionsSettings(batch_size=128, n_step=5, gamma=0.995),  # an episode has up to 1,000 steps
        exploration=EpsilonGreedy(end=0.02, steps=40_000),
    ),
    replay=ReplaySettings(capacity=200_000),
    training=TrainingSettings(steps=600_000, threads=1, checkpoint_every=100_000, warmup_steps=5_000, update_every=8),
    evaluation=EvaluationSettings(
        stop_reward=240.0,
        stop_worst=100.0,  # by the mean alone, the best of ten evaluations had 194 in fresh episodes
        evaluate_every=10_000,
        evaluate_from=150.0,
    ),
)
