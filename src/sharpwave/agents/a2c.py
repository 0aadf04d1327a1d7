"""A2C: advantage actor-critic. Many environments step together; each window is learned from once, then dropped.

Nothing corrects for a policy that has moved since it acted, so it must not have moved far: a window is learned from as
soon as it is whole, and reuse is refused. Windows begin with their episodes rather than all at once, so that an update
may fall into the middle of one: its steps are of the present policy or of the one or two before it.

Source: Mnih et al. (2016), Asynchronous methods for deep reinforcement learning, algorithm S3, made synchronous. Adam
is in place of RMSProp, and the networks of policy and value are apart.

``A3C`` is A2C with actor processes that do not wait for each other, nor for the learner. Each has a copy of the policy
and environments of its own, acts by weights that may be ``--weights-every`` steps old and sends its steps when it has
``--segment-steps`` of them. The learner makes an update from each window that arrives, in the order of arrival,
uncorrected as in the paper: how often weights and steps are sent keeps actors near the learner. In the paper each
process computes gradients by its own stale copy and adds them, without locks (Hogwild), to parameters that all share.
Here actors send steps, and the one learner computes the gradient by the newest weights: only the policy that chose the
actions is old. Steps are smaller than gradients, may be stored, and come from other machines by the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sharpwave.agents.actor_critic import ActorCritic, ActorCriticSettings, Objectives, Seen
from sharpwave.agents.losses import lambda_returns
from sharpwave.agents.policy_losses import policy_gradient
from sharpwave.agents.replay import LEARNING, RolloutSettings
from sharpwave.configuration import expect, setting


@dataclass(frozen=True)
class A2CSettings(ActorCriticSettings):
    """Settings of A2C."""

    kind: ClassVar[str] = "a2c"

    replay: RolloutSettings = field(default_factory=lambda: RolloutSettings(batch_size=8, length=16, epochs=1))

    trace: float = setting(
        1.0, "lambda of the returns: 0: of one step, 1: of the whole window", LEARNING, at_least=0, at_most=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        once = f"1: {self.kind} does not correct for a policy that has moved on; impala and ppo do"
        expect(self.replay, "epochs", self.replay.epochs == 1, once)


class A2C(ActorCritic):
    """A2C agent: the policy gradient with advantages of n-step returns, or of lambda-returns."""

    Settings = A2CSettings

    def objectives(self, batch: Any, seen: Seen) -> Objectives:
        returns = lambda_returns(batch.step_reward, batch.discount, seen.next_value, seen.ends, self.settings.trace)
        return Objectives(policy_gradient(seen.log_probability, returns - seen.value), returns)


@dataclass(frozen=True)
class A3CSettings(A2CSettings):
    """Settings of A3C: each update is made from one window of one actor."""

    kind: ClassVar[str] = "a3c"

    replay: RolloutSettings = field(default_factory=lambda: RolloutSettings(batch_size=1, length=32, epochs=1))


class A3C(A2C):
    """A3C agent: learns as A2C, from one window at a time; use it with ``--actors``."""

    Settings = A3CSettings
