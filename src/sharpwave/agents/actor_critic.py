"""Actor-critic agents: a stochastic policy and a value, learned from windows that are used up.

What A2C, A3C, IMPALA and PPO share: two networks, acting, and everything about an update but its objectives. The
behaviour policy's log-probabilities are stored with the steps, so that a learner knows how far the policy that it
improves has moved from the one that acted. A window ends with its episode at the latest; the value of the observation
behind its last real step, the true final one after a truncated episode, stands for what would have come.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sharpwave.agents.architectures import networks
from sharpwave.agents.devices import pick_device
from sharpwave.agents.legal import legal_in, legal_rows, with_legal
from sharpwave.agents.modules import load_optimizer, load_tensors, optimizer_tensors, tensors_of, to_tensors
from sharpwave.agents.protocol import Acted, Agent, Learned, Obs, Rows, Spaces
from sharpwave.agents.replay import RolloutSettings
from sharpwave.agents.schedules import linear
from sharpwave.configuration import check, expect, setting
from sharpwave.nesting import map_leaves
from sharpwave.spec import Field

if TYPE_CHECKING:
    import torch
    from gymnasium.spaces import Space
    from torch import Tensor, nn

LEARNING, NETWORK = "Learning", "Network"
LOG_PROBABILITY = "log_probability"
"""Step field of the log-probability of the action by the policy that acted."""


@dataclass(frozen=True)
class ActorCriticSettings:
    """Settings that all actor-critic agents have."""

    kind: ClassVar[str]

    replay: RolloutSettings = field(default_factory=lambda: RolloutSettings(epochs=1))

    network: str = setting("auto", "torso of both networks; auto: by the observation", NETWORK, choices=networks)
    hidden_units: int = setting(128, "units of the hidden layer", NETWORK, at_least=1)

    lr: float = setting(1e-3, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    lr_end: float | None = setting(
        None, "final learning rate; empty: constant", LEARNING, flag="--learning-rate-end", above=0
    )
    lr_steps: int = setting(
        0, "steps from learning-rate to learning-rate-end", LEARNING, flag="--learning-rate-steps", at_least=0
    )
    value_cost: float = setting(0.5, "weight of the value's squared error in the loss", LEARNING, at_least=0)
    entropy_cost: float = setting(
        0.01, "weight of the policy's entropy, which keeps it exploring", LEARNING, at_least=0
    )
    max_grad_norm: float = setting(
        0.5, "gradients of each network are clipped to this norm; 0: never", LEARNING, at_least=0
    )

    def __post_init__(self) -> None:
        check(self)
        expect(self, "lr_steps", self.lr_end is None or self.lr_steps > 0, "at least 1 with --learning-rate-end")

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yield the settings that have no effect beside the others, each with what it needs."""
        if self.lr_end is None:
            yield "lr_steps", "--learning-rate-end"


class Seen(NamedTuple):
    """Steps of a batch as the networks see them now, [B, T] each.

    Attributes:
        log_probability: of the actions that were taken; ``ratio``: of their probability over the behaviour policy's;
            ``entropy``: of the policy. With gradients.
        value: v(s_t), with gradient. ``next_value``: v(s_{t+1}), without.
        ends: behind which returns are cut and bootstrap: an episode's last step, or the window's. ``mask``: real steps.
    """

    log_probability: Tensor
    ratio: Tensor
    entropy: Tensor
    value: Tensor
    next_value: Tensor
    ends: Tensor
    mask: Tensor


class Objectives(NamedTuple):
    """What an update improves.

    Attributes:
        policy: float [B, T], loss of the policy at each step, with gradient.
        target: float [B, T], what the values should have been, without.
        metrics: scalars by name, for reports.
    """

    policy: Tensor
    target: Tensor
    metrics: Mapping[str, Tensor] = {}


class ActorCritic(Agent):
    """Base of actor-critic agents; a subclass says by ``objectives`` what its policy and its value learn.

    The two networks share nothing, so that actors are sent the policy alone.
    """

    settings: Any

    def __init__(self, spaces: Spaces, settings: Any = None, device: torch.device | str = "cpu", seed: Any = 0) -> None:
        import numpy as np

        from sharpwave.agents.inputs import inputs_for
        from sharpwave.agents.stochastic_policies import policy_for

        self.spaces, self.settings = spaces, settings or self.Settings()
        self.device = pick_device(device)
        self.distribution = policy_for(spaces, self.Settings.kind)
        self._rng = np.random.default_rng(seed)
        self.inputs = inputs_for(spaces.seen, images=self.settings.network != "mlp").to(self.device)
        self.policy, self.value = (network.to(self.device) for network in self.networks())

    # networks

    def networks(self) -> tuple[nn.Module, nn.Module]:
        """Make fresh networks of what ``inputs`` give: predictions of the policy [B, k], and values [B, 1]."""
        from torch import nn

        from sharpwave.agents.torsos import torso_for

        units = self.settings.hidden_units

        def network(last: nn.Module) -> nn.Module:
            torso = torso_for(self.spaces.seen, self.settings.network, units)
            return nn.Sequential(torso, nn.Linear(torso.features, units), nn.ReLU(), last)

        return network(self.distribution.head(units)), network(nn.Linear(units, 1))

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Adam for both networks; made on first use, because torch takes a second to import it."""
        import torch

        return torch.optim.Adam([*self.policy.parameters(), *self.value.parameters()], lr=self.settings.lr, eps=1e-5)

    # act

    def step_fields(self) -> dict[str, Field]:
        return {LOG_PROBABILITY: Field((), "float32"), **self.distribution.step_fields()}

    def act(self, obs: Obs, state: None, step: int, explore: bool = True) -> Acted:
        import torch

        with torch.inference_mode():
            predicted = torch.from_numpy(legal_rows(self.infer(obs)[0], legal_in(self.spaces, obs)))
            chosen = self.distribution.choose(predicted, self._rng if explore else None)
        return Acted(chosen.action, state, {LOG_PROBABILITY: chosen.log_probability, **chosen.fields})

    @property
    def inference_space(self) -> Space[Any] | None:
        return self.spaces.observation

    def infer(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        """Return the policy's predictions, float32 [N, k]."""
        import torch

        with torch.inference_mode():
            return (self.policy(self.inputs(to_tensors(obs, self.device))).cpu().numpy(),)

    # learn

    def replay(self) -> RolloutSettings:
        replay: RolloutSettings = self.settings.replay
        return replay

    def see(self, batch: Any) -> Seen:
        """Look at a batch of windows with the present networks."""
        import torch

        mask: Tensor = batch.mask
        inputs = self.inputs(map_leaves(lambda obs: obs.flatten(0, 1), batch.obs))  # T + 1: the one behind the last too
        value = self.value(inputs).view(len(mask), -1)
        predicted = with_legal(self.policy(inputs).unflatten(0, value.shape), legal_in(self.spaces, batch.obs))[:, :-1]
        log_probability = self.distribution.log_probability(predicted, batch)
        if self.spaces.masked:  # a window's padding follows its final observation, where action 0 may be illegal
            log_probability = log_probability.masked_fill(~mask, 0.0)
        return Seen(
            log_probability,
            (log_probability - batch[LOG_PROBABILITY]).masked_fill(~mask, 0.0).exp(),
            self.distribution.entropy(predicted),
            value[:, :-1],
            value[:, 1:].detach(),
            torch.cat([~mask[:, 1:], mask.new_ones(len(mask), 1)], dim=1),
            mask,
        )

    @abstractmethod
    def objectives(self, batch: Any, seen: Seen) -> Objectives:
        """Compute what the policy and the value learn from a batch."""

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the mean over real steps of all that is minimized, and metrics."""
        settings, seen = self.settings, self.see(batch)
        mask, steps = seen.mask, seen.mask.sum()
        aims = self.objectives(batch, seen)
        value_loss = 0.5 * ((aims.target - seen.value).square() * mask).sum() / steps
        entropy = (seen.entropy * mask).sum() / steps
        policy_loss = (aims.policy * mask).sum() / steps
        loss = policy_loss + settings.value_cost * value_loss - settings.entropy_cost * entropy
        # The mean of ratio - 1 - log ratio estimates the divergence of the policy from the one that acted, and is >= 0.
        moved = ((seen.ratio - 1 - seen.ratio.log()) * mask).sum() / steps
        metrics = {"value_loss": value_loss, "entropy": entropy, "divergence": moved, **aims.metrics}
        return loss, {name: value.detach() for name, value in metrics.items()}

    def learn(self, batch: Any, step: int) -> Learned:
        from torch.nn.utils import clip_grad_norm_

        optimizer, settings = self.optimizer, self.settings
        optimizer.param_groups[0]["lr"] = self._learning_rate(step)
        loss, metrics = self.loss(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if settings.max_grad_norm > 0:  # of each network: errors of values are of another size than the policy's
            for network in (self.policy, self.value):
                clip_grad_norm_(network.parameters(), settings.max_grad_norm)
        optimizer.step()
        return Learned(None, {"loss": loss.detach(), **metrics})

    def schedules(self, step: int) -> dict[str, float]:
        return {"learning_rate": self._learning_rate(step)}

    def _learning_rate(self, step: int) -> float:
        settings = self.settings
        rate: float = settings.lr
        return rate if settings.lr_end is None else linear(step, rate, settings.lr_end, settings.lr_steps)

    # save

    def policy_tensors(self, explore: bool = False) -> dict[str, Tensor]:
        tensors = tensors_of({"inputs": self.inputs, "policy": self.policy})
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    def load_policy(self, tensors: Mapping[str, Tensor]) -> None:
        load_tensors({"inputs": self.inputs, "policy": self.policy}, tensors)

    def state(self) -> dict[str, Any]:
        return {
            "weights": tensors_of(self._modules),
            "optimizer": optimizer_tensors(self.optimizer),
            "exploration": self._rng.bit_generator.state,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        load_tensors(self._modules, state["weights"])
        load_optimizer(self.optimizer, state["optimizer"])
        self._rng.bit_generator.state = state["exploration"]

    @property
    def _modules(self) -> dict[str, nn.Module]:
        return {"inputs": self.inputs, "policy": self.policy, "value": self.value}
