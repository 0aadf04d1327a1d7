"""Recipe ``minatar`` with Rainbow in place of DQN: dueling, priorities, noise and Munchausen rewards, the mean as head.

Returns are of single steps, and epsilon stays beside the noise: trials with three-step returns, or with noise alone,
hardly learned Asterix with some seeds. DQN with single steps has less in Asterix and more in Freeway
(benchmarks/results/learning.jsonl, two seeds of Rainbow).
"""

from dataclasses import replace

from sharpwave.agents.rainbow import Rainbow
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.training.recipes.minatar import RECIPE as MINATAR

DQN = MINATAR.agent

RECIPE = replace(
    MINATAR,
    agent=Rainbow.Settings(
        network=DQN.network,
        hidden_units=DQN.hidden_units // 2,  # of each of the two streams
        lr=DQN.lr,
        target_every=DQN.target_every,
        average_decay=DQN.average_decay,
        head="expected",
        munchausen=0.9,  # in place of double Q-learning
        replay=TransitionsSettings(
            batch_size=64, prioritized=True, priority_alpha=0.5, beta_steps=MINATAR.training.steps
        ),
        noisy_epsilon=True,
        exploration=DQN.exploration,
    ),
)
