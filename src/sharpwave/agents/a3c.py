"""A3C: A2C with actor processes that do not wait for each other, nor for the learner.

Asynchronous here are the actors: each is a process with a copy of the policy and environments of its own, acts by
weights that may be ``--weights-every`` steps old and sends its steps when it has ``--segment-steps`` of them. The
learner makes an update from each window that arrives, in the order of arrival, uncorrected as in the paper: what keeps
actors near the learner is how often weights and steps are sent.

In the paper each process computes gradients by its own stale copy and adds them, without locks (Hogwild), to parameters
that all share, so that a gradient is of old weights and applied to new ones. Here actors send steps instead of
gradients, and the one learner computes the gradient by the newest weights: old is only the policy that chose the
actions. Steps are smaller than gradients, may be stored, and come from other machines by the same way.

Source: Mnih et al. (2016), Asynchronous methods for deep reinforcement learning, algorithm S3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sharpwave.agents.a2c import A2C, A2CSettings
from sharpwave.agents.replay import RolloutSettings


@dataclass(frozen=True)
class A3CSettings(A2CSettings):
    """Settings of A3C: each update is made from one window of one actor."""

    kind: ClassVar[str] = "a3c"

    replay: RolloutSettings = field(default_factory=lambda: RolloutSettings(batch_size=1, length=32, epochs=1))


class A3C(A2C):
    """A3C agent: learns as A2C, from one window at a time; use it with ``--actors``."""

    Settings = A3CSettings
    settings: A3CSettings
