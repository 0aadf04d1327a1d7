"""Base of agents for teams: settings, one network that acts for all agents, and choices among legal actions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sharpwave.agents.lazy_torch import nn, torch
from sharpwave.agents.learner import NetworkAgent, to_tensors
from sharpwave.agents.protocol import Obs, Rows, Spaces
from sharpwave.agents.replay import LEARNING, NETWORK, TransitionsSettings
from sharpwave.configuration import check, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TeamSettings:
    """Settings that agents for teams share."""

    replay: TransitionsSettings = field(default_factory=lambda: TransitionsSettings(batch_size=128))

    hidden_units: int = setting(64, "units of each hidden layer", NETWORK, at_least=1)
    lr: float = setting(5e-4, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    adam_eps: float = setting(1e-5, "epsilon of Adam", LEARNING, above=0)
    max_grad_norm: float = setting(10.0, "gradients are clipped to this norm; 0: never", LEARNING, at_least=0)
    target_tau: float = setting(
        0.01, "share by which each update moves the target networks", LEARNING, above=0, at_most=1
    )

    def __post_init__(self) -> None:
        check(self)


class TeamAgent(NetworkAgent):
    """Agent for a team. Its agents share one network that acts, on the observation of each.

    Attributes:
        team: sizes of the team.
    """

    def __init__(self, spaces: Spaces, settings: Any = None, device: torch.device | str = "cpu", seed: Any = 0) -> None:
        from sharpwave.agents.team_networks import TeamInputs, team_of

        super().__init__(spaces, settings, device, seed)
        self.team = team_of(spaces, self.Settings.kind)
        self.inputs = TeamInputs(spaces, self.team).to(self.device)

    def infer(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        """Return Q or logits of each agent's actions, float32 [lanes, N, A], illegal ones included."""
        with torch.inference_mode():
            return (self.acting(True)(self.inputs(to_tensors(obs, self.device)).agents).cpu().numpy(),)


def best_legal(values: Tensor, legal: Tensor) -> Tensor:
    """Return the legal action of the highest value, int64 [..., N]; the first of equal ones."""
    return values.masked_fill(~legal, -math.inf).argmax(dim=-1)


def taken(values: Tensor, action: Tensor) -> Tensor:
    """Return the values of actions, [..., N] of [..., N, A]."""
    return values.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def legal_policy(logits: Tensor, legal: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax of the legal actions' logits and its logarithm, float [..., N, A]; both 0 of illegal ones."""
    log_policy = logits.masked_fill(~legal, -math.inf).log_softmax(dim=-1)
    return log_policy.exp(), log_policy.masked_fill(~legal, 0.0)


def drawn(log_policy: Tensor, legal: Tensor) -> Tensor:
    """Draw legal actions with the probabilities of ``legal_policy``, int64 [..., N]. One draw of torch's generator."""
    exponential = -torch.rand_like(log_policy).clamp(min=torch.finfo(log_policy.dtype).tiny).log()
    # The largest of logarithms with Gumbel noise, which is -log(-log u), is such a draw.
    return best_legal(log_policy - exponential.log(), legal)


def others_actions(action: Tensor, count: int) -> Tensor:
    """Return for each agent the others' actions, one-hot, and zeros for its own, float32 [B, N, N * A] of [B, N]."""
    one_hot = nn.functional.one_hot(action.long(), count).float()
    agents = action.shape[1]
    others = 1.0 - torch.eye(agents, device=action.device)
    return (one_hot[:, None] * others[:, :, None]).flatten(2)
