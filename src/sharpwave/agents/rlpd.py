"""RLPD: soft actor-critic that learns from demonstrations and from its own experience, half and half.

Many updates a step are made of few steps. An ensemble of critics, of which a random few give the target, and layer norm
keep their values near what the data show.

Source: Ball et al. (2023), Efficient online reinforcement learning with offline data, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt

from sharpwave.agents.demonstrations import BlendedSettings, DemonstrationSettings
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.agents.sac import SAC, SACSettings
from sharpwave.configuration import again
from sharpwave.offline.recorded import Recorded

SPARE = 1e-4
"""Share of an action's range by which demonstrated actions may lie outside it, as rounding does."""


@dataclass(frozen=True)
class RLPDSettings(DemonstrationSettings, SACSettings):
    """Settings of RLPD; the defaults are those of Ball et al. (2023), table 1."""

    kind: ClassVar[str] = "rlpd"

    utd: float | None = again(SACSettings, utd=20.0)
    critics: int = again(SACSettings, critics=10)
    target_critics: int | None = again(SACSettings, target_critics=2)
    layer_norm: bool = again(SACSettings, layer_norm=True)
    policy_delay: int = again(SACSettings, policy_delay=20)
    demonstration_share: float = again(DemonstrationSettings, demonstration_share=0.5)


@dataclass(frozen=True, kw_only=True)
class BlendedTransitions(BlendedSettings, TransitionsSettings):
    """Settings of a blend of transitions."""


class RLPD(SAC):
    """Soft actor-critic agent with two memories."""

    Settings = RLPDSettings
    settings: RLPDSettings

    def replay(self) -> Any:
        return self.settings.blended(BlendedTransitions, self.settings.replay, self._demonstrated)

    def schedules(self, step: int) -> dict[str, float]:
        return super().schedules(step) | {"demonstration_share": self.settings.share(step)}

    def _demonstrated(self, episode: Recorded) -> Mapping[str, npt.NDArray[Any]]:
        """Return the fields of an episode's steps beside observation, action and reward: none."""
        made, space = episode.fields["action"], self.spaces.action
        spare = SPARE * (space.high - space.low)  # type: ignore[attr-defined]
        inside = (made >= space.low - spare) & (made <= space.high + spare)  # type: ignore[attr-defined]
        self.settings.check_actions(made, inside.reshape(len(made), -1).all(axis=1), self.spaces)
        return {}
