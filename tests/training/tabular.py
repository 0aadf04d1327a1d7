"""A whole algorithm in a file: Q-learning in a table, for observations and actions that are categories."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from gymnasium.spaces import Discrete

from sharpwave.agents.actions import epsilon_greedy
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.protocol import Acted, Agent, Learned
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.configuration import Checked, setting


@dataclass(frozen=True)
class TabularSettings(Checked):
    """Settings of Q-learning in a table."""

    kind: ClassVar[str] = "tabular"

    rate: float = setting(0.2, "share of its TD error that a value moves by", "Learning", above=0, at_most=1)
    replay: TransitionsSettings = field(default_factory=lambda: TransitionsSettings(batch_size=16))
    exploration: EpsilonGreedy = field(default_factory=lambda: EpsilonGreedy(end=0.05, steps=2_000))


class Tabular(Agent):
    """Watkins (1989): Q(s, a) += rate * (r + discount * max Q(s', .) - Q(s, a))."""

    Settings = TabularSettings

    def __init__(self, spaces, settings=None, device="cpu", seed=0):
        for what, space in (("observations", spaces.observation), ("actions", spaces.action)):
            if not isinstance(space, Discrete):
                raise ValueError(f"tabular needs Discrete {what}; {spaces.env} has {space}")
        self.settings, self.device = settings or TabularSettings(), torch.device("cpu")
        self.table = torch.zeros(int(spaces.observation.n), int(spaces.action.n))
        self.rng = np.random.default_rng(seed)

    def replay(self):
        return self.settings.replay

    def act(self, obs, state, step, explore=True):
        greedy = self.table[torch.from_numpy(np.asarray(obs))].argmax(dim=1).numpy()
        if explore:
            epsilon = self.settings.exploration.level(step)
            greedy = epsilon_greedy(greedy, self.table.shape[1], epsilon, self.rng)
        return Acted(greedy, state)

    def learn(self, batch, step):
        target = batch.reward + batch.discount * self.table[batch.next_obs].max(dim=1).values
        error = target - self.table[batch.obs, batch.action]
        places = (batch.obs, batch.action)
        counts = torch.zeros_like(self.table).index_put_(places, torch.ones_like(error), accumulate=True)
        moved = torch.zeros_like(self.table).index_put_(places, self.settings.rate * error, accumulate=True)
        self.table += moved / counts.clamp(min=1)
        return Learned(error, {"loss": error.square().mean()})

    def policy_tensors(self, explore=False):
        return {"table": self.table.clone()}

    def load_policy(self, tensors):
        self.table.copy_(tensors["table"])

    def state(self):
        return {"weights": {"table": self.table}, "exploration": self.rng.bit_generator.state}

    def load(self, state):
        self.table.copy_(state["weights"]["table"])
        self.rng.bit_generator.state = state["exploration"]
