"""Multi-agent soft actor-critic: each agent has a policy of its own, and critics that see the whole team.

An agent acts by its own observation. Its critics are trained with the state and the others' actions, and give a value
for each of its own actions; so its policy is improved over all of them, given the others' actions. Policies and critics
are networks that the agents share and that are told their number. With ``recurrent`` both also see last actions and
remember what they saw; a critic's memory begins anew in each window. The entropy is weighed by a temperature,
which is learned so that the policies keep a share of the entropy of uniformly random legal actions.

Sources: Iqbal and Sha (2019), Actor-attention-critic for multi-agent reinforcement learning, section 3 (without its
attention and baseline); Christodoulou (2019), Soft actor-critic for discrete action settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sharpwave.agents.learner import move_towards
from sharpwave.agents.losses import window_ends
from sharpwave.agents.protocol import Acted, Learned, Obs
from sharpwave.agents.r2d2 import n_step_targets
from sharpwave.agents.replay import LEARNING
from sharpwave.agents.vdn import TeamAgent, TeamSettings, TeamState, best_legal, padded, taken
from sharpwave.configuration import expect, setting
from sharpwave.extras import Tensor, nn, torch
from sharpwave.teams import ACTION_MASK, REWARDS, legal_actions

if TYPE_CHECKING:
    from sharpwave.agents.team_networks import TeamSeen


@dataclass(frozen=True)
class MASACSettings(TeamSettings):
    kind: ClassVar[str] = "masac"

    own_rewards: bool = setting(
        False, "critics learn from each agent's own rewards instead of the team's, their sum", LEARNING
    )
    temperature: float | None = setting(
        None, "weight of the entropy beside the reward; empty: it is learned", LEARNING, at_least=0
    )
    target_entropy: float = setting(
        0.1,
        "entropy that the temperature keeps up, as a share of that of uniformly random legal actions",
        LEARNING,
        at_least=0,
        at_most=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        alone = not self.own_rewards or self.recurrent or self.replay.n_step == 1
        why = "transitions have those of one step only, and --recurrent windows those of all"
        expect(self.replay, "n_step", alone, f"1 with --own-rewards: {why}")

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        if self.temperature is not None:
            yield "target_entropy", "--set agent.temperature=null"


class MASAC(TeamAgent):
    """Agent for a team: policy, two critics and their targets, the temperature, and the optimizer."""

    Settings = MASACSettings
    policy: Any

    def build(self) -> None:
        super().build()
        self.policy = self.agent_network().to(self.device)
        self.critics = self.critic_networks()
        self.target = self.follower("target", self.critic_networks(), self.critics)
        self.log_temperature = nn.ParameterList([torch.zeros(1, device=self.device)])

    # networks

    def trained(self) -> dict[str, nn.Module]:
        return {"critics": self.critics, "policy": self.policy, "log_temperature": self.log_temperature}

    def acting(self, explore: bool) -> nn.Module:
        network: nn.Module = self.policy
        return network

    def critic_networks(self) -> nn.ModuleList:
        """Make two fresh critics: what ``values`` gives them -> Q [B, N, A]."""
        from sharpwave.agents.team_networks import RecurrentCritic, layers

        others, units, actions = self.team.agents * self.team.actions, self.settings.hidden_units, self.team.actions
        size = self.inputs.state_size + self.inputs.features + others
        made: list[nn.Module] = [
            RecurrentCritic(size, others, units, actions) if self.settings.recurrent else layers(size, units, actions)
            for _ in range(2)
        ]
        return nn.ModuleList(made).to(self.device)

    def values(self, critics: nn.ModuleList, known: list[Tensor], action: Tensor) -> Tensor:
        """Return both critics' values of each agent's actions, given those of the others, float32 [2, B, N, A].

        Args:
            known: what each critic knows, float32 [B, N, ...]: the state beside the agent's observation, or its memory.
            action: int64 [B, N], of which each agent's critics see those of the others.
        """
        others = others_actions(action, self.team.actions)
        return torch.stack(
            [critic(torch.cat([one, others], dim=2)) for critic, one in zip(critics, known, strict=True)]
        )

    # act

    def act(self, obs: Obs, state: TeamState, step: int, explore: bool = True) -> Acted:
        logits, after = self.look(obs, state)
        if explore:  # the largest of logits with Gumbel noise is a draw of the policy
            logits = logits + self._rng.gumbel(size=logits.shape)
        legal = legal_actions(np.asarray(obs[ACTION_MASK]))
        return self.made(np.where(legal, logits, -np.inf).argmax(axis=2), state, after)

    # learn

    def temperature(self) -> Tensor:
        """Return the weight of the entropy, a constant, float32 [1]."""
        given = self.settings.temperature
        return self.log_temperature[0].detach().exp() if given is None else torch.tensor([given], device=self.device)

    def next_value(self, seen: TeamSeen, logits: Tensor, known: list[Tensor]) -> Tensor:
        """Return the soft value of each agent in observations, of the target critics, float32 [B, N]."""
        with torch.no_grad():
            policy, log_policy = legal_policy(logits, seen.legal)
            q = self.values(self.target, known, drawn(log_policy, seen.legal)).amin(dim=0)
            return (policy * (q - self.temperature() * log_policy)).sum(dim=2)

    def rewards(self, batch: Any) -> Tensor:
        """Return the rewards that critics learn from, float32 [B, N] or [B, 1], of windows [B, L, N] or [B, L, 1].

        Raises:
            ValueError: the agents' own are asked for, and not stored.
        """
        if not self.settings.own_rewards:
            reward: Tensor = batch.step_reward if self.settings.recurrent else batch.reward
            return reward.unsqueeze(-1)
        if REWARDS not in batch.fields:
            raise ValueError(
                f"--own-rewards: the steps of {self.spaces.env} have no field {REWARDS!r}; an environment declares it "
                "in metadata['info_fields'], as sharpwave.envs.TeamEnv does"
            )
        own: Tensor = batch.fields[REWARDS]
        return own

    def policy_loss(self, seen: TeamSeen, logits: Tensor, known: list[Tensor], real: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of policy and temperature, and the mean entropy of agents that have a choice.

        Args:
            logits: float32 [B, N, A], for ``seen``.  known: as of ``values``.  real: bool [B], steps that count.
        """
        policy, log_policy = legal_policy(logits, seen.legal)
        with torch.no_grad():
            q = self.values(self.critics, known, drawn(log_policy, seen.legal)).amin(dim=0)
        loss = (policy * (self.temperature() * log_policy - q)).sum(dim=2)[real].mean()
        entropy = -(policy * log_policy).sum(dim=2).detach()
        choices = seen.legal.sum(dim=2)
        chooses = (choices > 1) & real[:, None]
        share = chooses.float() / chooses.sum().clamp(min=1)
        above = ((entropy - self.settings.target_entropy * choices.log()) * share).sum()
        if self.settings.temperature is None:
            loss = loss + (self.log_temperature[0] * above).sum()
        return loss, (entropy * share).sum()

    def learn(self, batch: Any, step: int) -> Learned:
        """Make one update of critics, policy and temperature, each along its gradient at the same weights."""
        whole = batch.mask if self.settings.recurrent else None
        batch = batch if whole is None else self.shortened(batch)
        seen, logits, known, targets, real = (self.transitions if whole is None else self.windows)(batch)
        action, weights = batch.action.reshape(-1, self.team.agents), batch.weights
        weights = weights.repeat_interleave(len(action) // len(weights))
        error = targets - taken(self.values(self.critics, known, action), action.expand(2, -1, -1))
        loss = (weights * 0.5 * error.square().sum(dim=0).mean(dim=1))[real].mean()
        policy_loss, entropy = self.policy_loss(seen, logits, known, real)
        metrics = {"loss": loss.detach(), "entropy": entropy, "temperature": self.temperature()}
        self.minimize(loss + policy_loss, self.critics.parameters(), self.policy.parameters())
        move_towards(self.target, self.critics, self.settings.target_tau)
        td_error = error.detach().mean(dim=(0, 2)) * real
        return Learned(td_error if whole is None else padded(td_error.reshape(batch.mask.shape), whole), metrics)

    def transitions(self, batch: Any) -> tuple[TeamSeen, Tensor, list[Tensor], Tensor, Tensor]:
        """Return the inputs of a batch's observations, the policy's logits for them, what critics know there, their
        targets, float32 [B, N], and which rows count, bool [B]."""
        with torch.no_grad():
            behind = self.inputs(batch.next_obs)
            value = self.next_value(behind, self.policy(behind.agents), [behind.each_state] * 2)
            targets = self.learned_from(self.rewards(batch)) + batch.discount[:, None] * value
        seen = self.inputs(batch.obs)
        real = torch.ones_like(batch.weights, dtype=torch.bool)
        return seen, self.policy(seen.agents), [seen.each_state] * 2, targets, real

    def windows(self, batch: Any) -> tuple[TeamSeen, Tensor, list[Tensor], Tensor, Tensor]:
        """Do as ``transitions`` for the steps of windows, B * L rows, of which those of padding do not count."""
        mask, agents = batch.mask, self.team.agents
        both = self.along(batch)
        logits = self.unrolled(self.policy, both, batch)
        made = self.last_actions(batch).flatten(2)[:, :, None].expand(-1, -1, agents, -1)
        each = torch.cat([both.each_state.unflatten(0, made.shape[:2]), made], dim=3)

        def part(critics: Any, columns: slice) -> tuple[TeamSeen, Tensor, list[Tensor]]:
            parts = (one.unflatten(0, made.shape[:2])[:, columns].flatten(0, 1) for one in both)
            known = [critic.remember(each)[:, columns].flatten(0, 1) for critic in critics]
            return type(both)(*parts), logits[:, columns].flatten(0, 1), known

        with torch.no_grad():
            value = self.next_value(*part(self.target, slice(1, None))).unflatten(0, mask.shape)
            reward = self.rewards(batch)
            reward = self.learned_from(reward, mask[:, :, None].expand_as(reward)).expand_as(value)
            discount, ends = (one[:, :, None].expand_as(value) for one in (batch.discount, window_ends(mask)))
            targets = n_step_targets(reward, discount, value, ends, self.settings.replay.n_step)
        return *part(self.critics, slice(-1)), targets.reshape(-1, agents), mask.flatten()


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
