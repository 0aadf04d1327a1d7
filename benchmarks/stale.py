"""IMPALA that acts with weights 1 to 10 versions old, repeatably and in one process."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from sharpwave.agents.impala import IMPALA, IMPALASettings
from sharpwave.agents.protocol import Learned
from sharpwave.agents.registry import register
from sharpwave.training.recipes import load_recipe

OLDEST = 10


@dataclass(frozen=True)
class StaleSettings(IMPALASettings):
    """Settings of IMPALA."""

    kind: ClassVar[str] = "stale-impala"


class StaleIMPALA(IMPALA):
    """IMPALA whose policy is copied every tenth update and acts from the next one on, until the following copy.

    So an update learns from steps of weights that were 1, 2, ... 10 updates old when they acted, as an actor's that
    get new ones every tenth update. Evaluations play the newest.
    """

    Settings = StaleSettings
    settings: StaleSettings

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._acting, _ = self.networks()
        self._acting.load_state_dict(self.policy.state_dict())
        self._age = OLDEST

    def act(self, obs: Any, state: None, step: int, explore: bool = True) -> Any:
        """Act with the copy where it explores."""
        newest = self.policy
        if explore:
            self.policy = self._acting
        try:
            return super().act(obs, state, step, explore)
        finally:
            self.policy = newest

    def learn(self, batch: Any, step: int) -> Learned:
        """Make an update; before every tenth, copy the policy."""
        if self._age == OLDEST:
            self._acting.load_state_dict(self.policy.state_dict())
            self._age = 0
        self._age += 1
        return super().learn(batch, step)


register(StaleIMPALA)
_BASE = load_recipe("cartpole-impala")
RECIPE = replace(
    _BASE, agent=StaleSettings(**{one.name: getattr(_BASE.agent, one.name) for one in fields(_BASE.agent)})
)
