"""Recipe ``minatar`` with Rainbow in place of DQN: quantiles (QR) as head, and Munchausen rewards of single steps.

Its other parts are off, by short trials of one or two seeds; `sharpwave bench ablation` turns each part off or on.
Scores: docs/training/minatar.md.
"""

from dataclasses import replace

from sharpwave.agents.rainbow import Rainbow
from sharpwave.training.recipes.minatar import RECIPE as MINATAR

DQN = MINATAR.agent

RECIPE = replace(
    MINATAR,
    agent=Rainbow.Settings(
        network=DQN.network,
        hidden_units=DQN.hidden_units,
        lr=DQN.lr,
        target_every=DQN.target_every,
        average_decay=DQN.average_decay,
        head="qr",
        quantiles=16,
        munchausen=0.5,  # in place of double Q-learning; with .9 Breakout was no better than DQN's
        munchausen_temperature=0.003,  # the bonus is then nearly Q(s, a) - max Q(s, .)
        noisy=False,
        dueling=False,
        replay=DQN.replay,
        exploration=DQN.exploration,
    ),
)
