"""QMIX: value decomposition whose mixture is a network that rises with every agent's value.

It learns teams that a sum of values cannot describe, where what is best for one agent depends on the others, as long
as a higher value of one agent never lowers the team's. The mixing network learns with the state of the environment;
acting needs only the agents' own values.

Source: Rashid et al. (2018), QMIX: monotonic value function factorisation for deep multi-agent reinforcement learning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpwave.agents.vdn import NETWORK, VDN, VDNSettings
from sharpwave.configuration import setting

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class QMIXSettings(VDNSettings):
    """Settings of QMIX: those of value decomposition, and the size of the mixing network."""

    kind: ClassVar[str] = "qmix"

    mixing_units: int = setting(32, "units of the mixing network's hidden layer", NETWORK, at_least=1)


class QMIX(VDN):
    """Agent for a team: value decomposition with a mixing network."""

    Settings = QMIXSettings
    settings: QMIXSettings

    def mixer(self) -> nn.Module:
        from sharpwave.agents.mixing import Mixer

        return Mixer(self.team.agents, self.inputs.state_size, self.settings.mixing_units)
