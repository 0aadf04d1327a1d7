"""NGU, never give up: R2D2 that is also rewarded for novelty, and learns a family of policies by one network.

Policy j is rewarded by r + beta_j * novelty, and discounts by gamma_j. Policy 0 has beta 0: it is the one that is
evaluated. A window teaches the policy that played it; the network that it shares with the others learns for all.

Novelty within the episode is stored with each step; novelty over all of training is computed when a window is learned
from. In the paper both are of the time when the step was made: an observation that was new then goes on drawing the
agent for as long as the memory holds it.

Source: Badia et al. (2020), Never give up: learning directed exploration strategies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from agent57.novelty import EpisodicMemory, Novelty
from sharpwave.agents.actions import with_legal
from sharpwave.agents.learner import load_optimizer, optimizer_tensors, to_tensors
from sharpwave.agents.losses import signed_hyperbolic, signed_parabolic, window_ends
from sharpwave.agents.protocol import Acted, Learned, Obs, Rows
from sharpwave.agents.r2d2 import CORE, R2D2, R2D2Settings, R2D2State
from sharpwave.agents.replay import LEARNING
from sharpwave.configuration import expect, setting
from sharpwave.nesting import map_leaves
from sharpwave.spec import Field

NOVELTY = "Novelty"
EPISODIC = "episodic_novelty"
"""Field of how novel within its episode the observation is that a step was made in."""


@dataclass(frozen=True)
class NGUSettings(R2D2Settings):
    """Settings of NGU; the defaults are those of Badia et al. (2020), table 3, where they are given there."""

    kind: ClassVar[str] = "ngu"

    policies: int = setting(32, "policies of the family, from exploiting to exploring", NOVELTY, at_least=2)
    max_beta: float = setting(0.3, "weight of novelty for the policy that explores most", NOVELTY, above=0)
    min_gamma: float = setting(
        0.99, "discount factor of that policy; gamma is that of the first one", NOVELTY, at_least=0, below=1
    )
    trace: float = setting(0.95, "lambda of Retrace", LEARNING, at_least=0, at_most=1)
    embedding_size: int = setting(32, "length of the embedding of an observation", NOVELTY, at_least=1)
    episodic_memory: int = setting(30_000, "embeddings of an episode that are remembered", NOVELTY, at_least=1)
    neighbours: int = setting(10, "nearest embeddings that novelty in the episode is reckoned by", NOVELTY, at_least=1)
    max_modulator: float = setting(
        5.0,
        "largest factor for what is novel over all of training; 1: novelty in the episode only",
        NOVELTY,
        at_least=1,
    )
    intrinsic_scale: float = setting(1.0, "factor of intrinsic rewards", NOVELTY, above=0)
    novelty_lr: float = setting(
        5e-4, "learning rate of the networks that tell novelty", NOVELTY, flag="--novelty-learning-rate", above=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        fits, gamma = self.neighbours <= self.episodic_memory, self.replay.gamma
        expect(self, "neighbours", fits, f"at most --episodic-memory {self.episodic_memory:,}")
        expect(self, "min_gamma", self.min_gamma <= gamma < 1, f"at most --gamma {gamma}, and that below 1")


def betas(policies: int, largest: float) -> npt.NDArray[np.float32]:
    """Return the weight of novelty for each policy: 0, then a sigmoid that rises to ``largest``. float32 [policies].

    Source: Badia et al. (2020), appendix A.
    """
    middle = policies - 2
    rising = [largest / (1 + math.exp(-10 * (2 * j - middle) / middle)) for j in range(1, policies - 1)]
    return np.array([0.0, *rising, largest], np.float32)


def gammas(policies: int, first: float, last: float) -> npt.NDArray[np.float32]:
    """Return the discount factor of each policy: 1 - gamma is spaced evenly in its logarithm. float32 [policies].

    Source: Badia et al. (2020), appendix A.
    """
    return (1 - np.geomspace(1 - first, 1 - last, policies)).astype(np.float32)


@dataclass(frozen=True, eq=False, kw_only=True)
class NGUState(R2D2State):
    """Acting state of NGU.

    Attributes:
        policy: int64 [lanes], which policy plays.
        episodic: float32 [lanes], novelty of the last observation within its episode.
        memory: of the episode's embeddings.
    """

    policy: npt.NDArray[np.int64]
    episodic: npt.NDArray[np.float32]
    memory: EpisodicMemory


class NGU(R2D2):
    """Never-give-up agent: R2D2, and the networks that tell novelty. Lane i plays policy i modulo their number.

    Its core sees, beside the last action and reward, how novel the last observation was within the episode, and which
    policy plays.
    """

    Settings: type[NGUSettings] = NGUSettings
    settings: NGUSettings

    def build(self) -> None:
        super().build()
        own = self.settings
        torso = partial(self.make_torso, own.hidden_units)
        self.novelty = Novelty(torso, own.embedding_size, self.num_actions).to(self.device)
        self.betas = betas(own.policies, own.max_beta)
        self.gammas = gammas(own.policies, own.replay.gamma, own.min_gamma)

    @property
    def beside(self) -> int:
        return super().beside + 1 + self.settings.policies

    @property
    def _policy_at(self) -> int:
        """Place in a core of which policy plays; the last novelty within the episode is before it."""
        return self._reward_at + 2

    @cached_property
    def novelty_optimizer(self) -> torch.optim.Optimizer:
        """Adam for the networks that tell novelty."""
        learned = [parameter for parameter in self.novelty.parameters() if parameter.requires_grad]
        return torch.optim.Adam(learned, lr=self.settings.novelty_lr, fused=True)

    # act

    def step_fields(self) -> dict[str, Field]:
        return {**super().step_fields(), EPISODIC: Field((), "float32")}

    def begin(self, lanes: int, first_lane: int = 0, of_lanes: int | None = None) -> NGUState:
        state, settings = super().begin(lanes, first_lane, of_lanes), self.settings
        memory = EpisodicMemory.empty(lanes, settings.episodic_memory, settings.embedding_size)
        policy = np.arange(first_lane, first_lane + lanes) % settings.policies
        return NGUState(**vars(state), policy=policy, episodic=np.zeros(lanes, np.float32), memory=memory)

    def scored_lanes(self, lanes: int) -> npt.NDArray[np.bool_]:
        exploits: npt.NDArray[np.bool_] = np.arange(lanes) % self.settings.policies == 0
        return exploits

    def enter(self, obs: Obs, state: Any, explore: bool) -> NGUState:
        settings = self.settings
        with torch.inference_mode():
            inputs = self.inputs(to_tensors(obs, self.device))
            embedding = self.novelty.embedding(inputs).cpu().numpy()
        episodic, memory = state.memory.add(embedding, settings.neighbours)
        core, policy = state.core.copy(), state.policy if explore else np.zeros_like(state.policy)
        core[:, self._policy_at :] = np.eye(settings.policies, dtype=np.float32)[policy]
        episodic *= settings.intrinsic_scale
        entered: NGUState = replace(state, core=core, episodic=episodic, memory=memory)
        return entered

    def act(self, obs: Obs, state: R2D2State, step: int, explore: bool = True) -> Acted:
        acted = super().act(obs, state, step, explore)
        return acted._replace(fields={**acted.fields, EPISODIC: acted.state.episodic})

    def _behind(self, state: Any, recurrent: Any) -> npt.NDArray[np.float32]:
        core = super()._behind(state, recurrent)
        core[:, self._policy_at - 1] = state.episodic
        core[:, self._policy_at :] = state.core[:, self._policy_at :]
        return core

    @property
    def inference_space(self) -> None:
        return None  # the networks that tell novelty are computed by each actor

    def infer(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        predicted, recurrent = super().infer(obs, *memory)
        beta = memory[0][:, self._policy_at :] @ self.betas[:, None]
        return self.combined(torch.from_numpy(predicted), torch.from_numpy(beta)).numpy(), recurrent

    def decide(self, obs: Any, memory: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        raise NotImplementedError(
            f"{self.settings.kind} has no form for other programs: it acts by how novel an observation is among all "
            "of its episode, which it searches beside its network"
        )

    def observe(self, state: Any, reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_]) -> Any:
        observed: Any = super().observe(state, reward, ended)
        return replace(observed, memory=state.memory.without(ended))

    def initial_errors(self, lanes: int, kept: int) -> None:
        return None

    # learn

    def made(self, batch: Any) -> Tensor:
        plays = batch[CORE][:, self._policy_at :]
        further = [batch[EPISODIC].unsqueeze(2), plays.unsqueeze(1).expand(-1, batch.mask.shape[1], -1)]
        return torch.cat([super().made(batch), *further], dim=2)

    def combined(self, q: Tensor, beta: Tensor) -> Tensor:
        """Return the values that a policy acts by, float [..., A], of the network's predictions."""
        return q

    def streams(
        self, q: Tensor, target_q: Tensor, reward: Tensor, intrinsic: Tensor, beta: Tensor
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return the values that are learned, each with its rewards: here one, of both rewards together.

        Args:
            q, target_q: predictions, float [B, L + 1, ...].  reward, intrinsic: float [B, L].
            beta: float [B, 1], of the policy that played.
        Returns:
            for each, Q of the online and of the target network, float [B, L + 1, A], and rewards, float [B, L].
        """
        return [(q, target_q, reward + beta * intrinsic)]

    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        q = self._unroll(self.online, batch)
        with torch.no_grad():
            target_q = self._unroll(self.target, batch)
        policy = batch[CORE][:, self._policy_at :].argmax(dim=1).cpu()
        beta, gamma = (torch.from_numpy(one)[policy, None].to(q.device) for one in (self.betas, self.gammas))
        trained = slice(batch.burn_in, None)
        mask, action = batch.mask[:, trained], self.actions.numbers(batch.action[:, trained])
        discount = batch.discount[:, trained] * (gamma / self.settings.replay.gamma)
        greedy = with_legal(self.combined(q.detach(), beta[:, None]), self.legal_along(batch)).argmax(dim=2)
        intrinsic = batch[EPISODIC][:, trained] * self._modulators(batch)
        streams = self.streams(q, target_q, batch.step_reward[:, trained], intrinsic, beta)
        errors = [self.errors(*stream, action, greedy, discount, mask) for stream in streams]
        losses = sum(0.5 * error.square().sum(dim=1) for error in errors) / mask.sum(dim=1)
        # That of the value which is acted by, but for its rescaling.
        td_error = errors[0] if len(errors) == 1 else errors[0] + beta * errors[1]
        return (batch.weights * losses).mean(), td_error.detach()

    def errors(
        self,
        q: Tensor,
        target_q: Tensor,
        reward: Tensor,
        action: Tensor,
        greedy: Tensor,
        discount: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Compute Retrace's TD errors under the greedy policy, float [B, L]; 0 for padding.

        Args:
            q, target_q: float [B, L + 1, A], of the online and the target network.  reward: float [B, L].
            action: int64 [B, L], actions that were made.  greedy: int64 [B, L + 1], those of the policy.
            discount: float [B, L].  mask: bool [B, L], real steps.
        """
        taken = q[:, :-1].gather(2, action.unsqueeze(2)).squeeze(2)
        with torch.no_grad():
            values = signed_parabolic(target_q) if self.settings.rescale else target_q
            behind = values[:, 1:].gather(2, greedy[:, 1:, None]).squeeze(2)
            made = values[:, :-1].gather(2, action.unsqueeze(2)).squeeze(2)
            # A greedy policy's ratio is 0, or at least 1 and cut to that: behaviour probabilities need not be known.
            trace = self.settings.trace * (greedy[:, :-1] == action)
            ends = window_ends(mask)
            targets = retrace_targets(reward, discount, behind, made, trace, ends)
            targets = signed_hyperbolic(targets) if self.settings.rescale else targets
        return (targets - taken) * mask

    def learn(self, batch: Any, step: int) -> Learned:
        learned = super().learn(batch, step)
        loss = self._novelty_loss(batch)
        self.novelty_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.novelty_optimizer.step()
        return Learned(learned.td_error, {**learned.metrics, "novelty_loss": loss.detach()})

    def _novelty_loss(self, batch: Any) -> Tensor:
        """Return the loss of the networks that tell novelty over the trained steps of a batch."""
        real = batch.mask[:, batch.burn_in :]
        action = self.actions.numbers(batch.action[:, batch.burn_in :])[real]
        weights = batch.weights[:, None].expand_as(real)[real]
        return self.novelty.loss(self._observed(batch, real), self._observed(batch, real, behind=1), action, weights)

    def _modulators(self, batch: Any) -> Tensor:
        """Return how novel the observations of the trained steps are by now over all of training, float [B, L]."""
        every = torch.ones_like(batch.mask[:, batch.burn_in :])
        with torch.no_grad():
            modulators = self.novelty.modulators(self._observed(batch, every), self.settings.max_modulator)
        return modulators.reshape(every.shape)

    def _observed(self, batch: Any, which: Tensor, behind: int = 0) -> Any:
        """Return inputs of the observations in which trained steps were made, or of those one step ``behind``.

        Args:
            which: bool [B, L], of the trained steps.
        """
        columns = slice(batch.burn_in + behind, batch.burn_in + behind + which.shape[1])
        return self.inputs(map_leaves(lambda one: one[:, columns][which], batch.obs))

    # save

    def state(self) -> dict[str, Any]:
        return {**super().state(), "novelty_optimizer": optimizer_tensors(self.novelty_optimizer)}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        load_optimizer(self.novelty_optimizer, state["novelty_optimizer"])

    def acting_modules(self, explore: bool) -> dict[str, nn.Module]:
        return {**super().acting_modules(explore), "embedding": self.novelty.embedding}

    def modules(self) -> dict[str, nn.Module]:
        return {**super().modules(), "novelty": self.novelty}


def retrace_targets(
    reward: Tensor, discount: Tensor, value: Tensor, taken: Tensor, trace: Tensor, ends: Tensor
) -> Tensor:
    """Compute Retrace targets: G_t = r_{t+1} + gamma_{t+1} (v(s_{t+1}) + c_{t+1} (G_{t+1} - Q(s_{t+1}, a_{t+1}))).

    Args:
        reward, discount: float [B, T], r_{t+1} and gamma_{t+1} = gamma * (1 - terminated) for step t.
        value: float [B, T], v(s_{t+1}): of the observation after step t, under the target policy.
        taken: float [B, T], Q(s_t, a_t) of the actions that were made.
        trace: float [B, T], c_t = lambda * min(1, pi(a_t | s_t) / mu(a_t | s_t)).
        ends: bool [B, T], a step after which no further error is added: an episode's last one, or the window's.
    Returns:
        float [B, T].
    Source: Munos et al. (2016), Safe and efficient off-policy reinforcement learning, eq. 3 and 4.
    """
    assert reward.shape == discount.shape == value.shape == taken.shape == trace.shape == ends.shape
    returns, behind = torch.empty_like(value), torch.zeros_like(value[:, 0])
    for t in reversed(range(reward.shape[1])):
        behind = reward[:, t] + discount[:, t] * (value[:, t] + torch.where(ends[:, t], 0.0, behind))
        returns[:, t] = behind
        behind = trace[:, t] * (behind - taken[:, t])
    return returns
