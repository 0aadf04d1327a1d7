"""R2D3: R2D2 that learns from demonstrations and from its own experience.

Source: Paine et al. (2019), Making efficient use of demonstrations to solve hard exploration problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sharpwave.agents.demonstrations import BlendedSettings, DemonstrationSettings
from sharpwave.agents.r2d2 import CORE, R2D2, R2D2Settings, SequencesSettings
from sharpwave.offline.recorded import Recorded


@dataclass(frozen=True)
class R2D3Settings(DemonstrationSettings, R2D2Settings):
    kind: ClassVar[str] = "r2d3"


@dataclass(frozen=True, kw_only=True)
class BlendedSequences(BlendedSettings, SequencesSettings):
    """Settings of a blend of windows."""


class R2D3(R2D2):
    """Recurrent Q-network agent with two memories. Windows of demonstrations start from a zero recurrent state."""

    Settings = R2D3Settings
    settings: R2D3Settings

    def replay(self) -> Any:
        return self.settings.blended(BlendedSequences, self.settings.replay, self._demonstrated)

    def schedules(self, step: int) -> dict[str, float]:
        return super().schedules(step) | {"demonstration_share": self.settings.share(step)}

    def _demonstrated(self, episode: Recorded) -> Mapping[str, npt.NDArray[Any]]:
        """Return the fields of an episode's steps: no recurrent state, but the previous action and reward."""
        made = episode.fields["action"]
        self.settings.check_actions(made, self.actions.valid(made), self.spaces)
        actions = self.actions.numbers(made)
        core = np.zeros((len(actions), self._core_size), np.float32)
        core[np.arange(1, len(actions)), self.online.state_size + actions[:-1]] = 1.0
        core[1:, -1] = episode.reward[:-1]
        return {CORE: core}
