"""Recipe ``minatar`` with Rainbow in place of DQN: dueling, priorities, noise and Munchausen rewards, the mean as head.

Returns are of single steps: with three, Breakout is learned faster and Asterix hardly at all (3 after 250,000 steps,
where DQN with single steps has 13). Noise alone stays with some seeds in a policy that scores nothing, hence epsilon
beside it. C51 and QR were behind the mean in 250,000 steps.
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
        noisy_epsilon=True,  # noise alone never finds the way out of some of Asterix's and Seaquest's corners
        exploration=DQN.exploration,
    ),
)
