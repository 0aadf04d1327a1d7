"""Value decomposition: a team learns the value of its joint action by a mixture of one value for each agent.

Each agent acts by its own value, which sees only that agent's observation; their mixture is trained by the team's
reward. The agents share one network, which is told their number. With ``recurrent`` it also sees the agent's last
action and remembers what it saw, and learns from windows that hold whole episodes; without, an observation must hold
all that its agent needs to remember.

``VDN`` sums the values. ``QMIX`` mixes them by a network that rises with every agent's value. It learns teams that a
sum cannot describe, where one agent's best action depends on the others, as long as a higher value of one agent never
lowers the team's. The mixing network learns with the state of the environment; acting needs only the agents' values.

``TeamAgent`` is the part that multi-agent SAC shares: one network that acts for all agents of a team.

Sources: Sunehag et al. (2018), Value-decomposition networks for cooperative multi-agent learning; Rashid et al. (2018),
QMIX: monotonic value function factorisation for deep multi-agent reinforcement learning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from sharpwave.agents.actions import epsilon_greedy
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.learner import NetworkAgent, move_towards, to_tensors
from sharpwave.agents.losses import squared, window_ends
from sharpwave.agents.protocol import Acted, Bools, Learned, Obs, Rows, ViewSettings
from sharpwave.agents.r2d2 import CORE, SequencesSettings, n_step_targets
from sharpwave.agents.replay import LEARNING, NETWORK, TransitionsSettings, UpdateSettings
from sharpwave.configuration import Checked, setting
from sharpwave.extras import Tensor, nn, torch
from sharpwave.spec import Field
from sharpwave.teams import ACTION_MASK, REWARDS, legal_actions

if TYPE_CHECKING:
    from sharpwave.agents.team_networks import TeamSeen


@dataclass(frozen=True)
class TeamSettings(Checked, UpdateSettings):
    """Settings that agents for teams share."""

    replay: TransitionsSettings = field(default_factory=lambda: TransitionsSettings(batch_size=128))

    recurrent: bool = setting(
        False,
        "agents remember what they saw and did; a batch then has windows of an episode's steps instead of transitions",
        NETWORK,
    )
    length: int = setting(
        50, "recurrent: most steps of a window, at least an episode's for whole episodes", LEARNING, at_least=1
    )
    hidden_units: int = setting(64, "units of each hidden layer, and of the memory", NETWORK, at_least=1)
    standardize_rewards: bool = setting(
        False, "learn from rewards less their running mean, divided by their running deviation", LEARNING
    )
    lr: float = setting(5e-4, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    adam_eps: float = setting(1e-5, "epsilon of Adam", LEARNING, above=0)
    max_grad_norm: float = setting(10.0, "gradients are clipped to this norm; 0: never", LEARNING, at_least=0)
    target_tau: float = setting(
        0.01, "share by which each update moves the target networks", LEARNING, above=0, at_most=1
    )

    def unused(self) -> Iterator[tuple[str, str]]:
        if not self.recurrent:
            yield "length", "--recurrent"


@dataclass(frozen=True, eq=False, kw_only=True)
class TeamState:
    """Acting state.

    Attributes:
        lanes: which of the run's ``of`` lanes these are.
        core: float32 [lanes, N, n], of recurrent agents: what each remembers, and its last action, one-hot; zeros where
            an episode begins.
    """

    lanes: slice
    of: int
    core: npt.NDArray[np.float32] | None = None


class TeamAgent(NetworkAgent):
    """Agent for a team. Its agents share one network that acts, on the observation of each.

    Attributes:
        team: sizes of the team.
    """

    settings: Any

    def build(self) -> None:
        from sharpwave.agents.team_networks import Moments, TeamInputs, team_of

        self.team = team_of(self.spaces, self.Settings.kind)
        self.inputs = TeamInputs(self.spaces, self.team).to(self.device)
        self.moments = Moments().to(self.device) if self.settings.standardize_rewards else None

    def replay(self) -> ViewSettings:
        replay: TransitionsSettings = self.settings.replay
        if not self.settings.recurrent:
            return replay
        length, rises = self.settings.length, replay.beta_start != replay.beta_end
        return SequencesSettings(
            batch_size=replay.batch_size, length=length, burn_in=0, stride=length, gamma=replay.gamma,
            prioritized=replay.prioritized, priority_alpha=replay.priority_alpha, priority_beta=replay.beta_start,
            beta_end=replay.beta_end if rises else None, beta_steps=replay.beta_steps,
        )  # fmt: skip

    def modules(self) -> dict[str, nn.Module]:
        return super().modules() | ({} if self.moments is None else {"moments": self.moments})

    def agent_network(self) -> nn.Module:
        """Make the network that the agents share: its inputs -> a number for each action.

        Source of the recurrent one: Rashid et al. (2018), QMIX, figure 2c.
        """
        from sharpwave.agents.networks import VectorTorso
        from sharpwave.agents.recurrent import RecurrentQNetwork
        from sharpwave.agents.team_networks import layers

        units, actions = self.settings.hidden_units, self.team.actions
        if not self.settings.recurrent:
            return layers(self.inputs.features, units, actions)
        torso = VectorTorso(self.inputs.features + actions, units)
        return RecurrentQNetwork(torso, "gru", units, 0, nn.Linear(units, actions))

    # act

    def step_fields(self) -> dict[str, Field]:
        if not self.settings.recurrent:
            return {}
        return {CORE: Field((self.team.agents, self._core_size), "float32", every=self.settings.length)}

    @property
    def _core_size(self) -> int:
        size: int = self.settings.hidden_units + self.team.actions
        return size

    def begin(self, lanes: int, first_lane: int = 0, of_lanes: int | None = None) -> TeamState:
        core = np.zeros((lanes, self.team.agents, self._core_size), np.float32) if self.settings.recurrent else None
        return TeamState(lanes=slice(first_lane, first_lane + lanes), of=of_lanes or first_lane + lanes, core=core)

    def predicted(self, obs: Any) -> Tensor:
        """Return Q or logits of each agent's actions, float32 [lanes, N, A], illegal ones included."""
        predicted: Tensor = self.acting(True)(self.inputs(obs).agents)
        return predicted

    def best(self, predicted: Tensor, obs: Any) -> Tensor:
        return best_legal(predicted, self.inputs(obs).legal)

    def memory(self) -> dict[str, tuple[int, ...]]:
        return {CORE: (self.team.agents, self._core_size)} if self.settings.recurrent else {}

    def decide(self, obs: Any, memory: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        if not self.settings.recurrent:
            return super().decide(obs, memory)
        outputs, remembered = self.stepped(obs, memory[CORE])
        action = self.best(outputs, obs)
        made = nn.functional.one_hot(action, self.team.actions).to(remembered.dtype)
        return action, {CORE: torch.cat([remembered, made], dim=2)}

    def stepped(self, obs: Any, core: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q or logits, float32 [lanes, N, A], and what each agent remembers after the step, [lanes, N, units].

        Args:
            core: ``TeamState.core`` before it.
        """
        network: Any = self.acting(True)
        seen = self.inputs(obs).agents
        remembered, last = core.flatten(0, 1).split([self.settings.hidden_units, self.team.actions], dim=1)
        outputs, after = network.step(torch.cat([seen.flatten(0, 1), last], dim=1), last[:, :0], remembered)
        return outputs.unflatten(0, seen.shape[:2]), after.unflatten(0, seen.shape[:2])

    def infer(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        """Return Q or logits of each agent's actions, float32 [lanes, N, A], illegal ones included; of recurrent agents
        also what each remembers after the step, given ``TeamState.core`` before it."""
        if not memory:
            return super().infer(obs)
        with torch.inference_mode():
            core = torch.from_numpy(memory[0]).to(self.device)
            outputs, remembered = self.stepped(to_tensors(obs, self.device), core)
            return outputs.cpu().numpy(), remembered.cpu().numpy()

    def look(self, obs: Obs, state: TeamState) -> tuple[Rows, TeamState]:
        """Return Q or logits, float32 [lanes, N, A], and the state after the observations, before actions."""
        if state.core is None:
            return self.infer(obs)[0], state
        outputs, remembered = self.infer(obs, state.core)
        return outputs, replace(state, core=np.concatenate([remembered, np.zeros_like(outputs)], axis=2))

    def made(self, action: Rows, before: TeamState, after: TeamState) -> Acted:
        """Return the outcome of the actions, int64 [lanes, N]."""
        fields = {} if before.core is None else {CORE: before.core}
        return Acted(action, self.replaced(after, action), fields)

    def replaced(self, state: TeamState, action: Rows) -> TeamState:
        if state.core is None:
            return state
        one_hot = np.eye(self.team.actions, dtype=np.float32)[action]
        return replace(state, core=np.concatenate([state.core[..., : -self.team.actions], one_hot], axis=2))

    def observe(self, state: TeamState, reward: Rows, ended: Bools) -> TeamState:
        if state.core is None or not ended.any():
            return state
        core = state.core.copy()  # the one that was acted with may still be on its way into the store
        core[ended] = 0.0
        return replace(state, core=core)

    # learn

    def learned_from(self, reward: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return rewards as they are learned from: standardized, if the settings say so, by all batches so far.

        Args:
            reward: float32, of any shape.  mask: bool of that shape, real steps; None: all are.
        Source: Papoudakis et al. (2021), Benchmarking multi-agent deep reinforcement learning algorithms in cooperative
            tasks, reward standardisation.
        """
        if self.moments is None:
            return reward
        self.moments.add(reward if mask is None else reward[mask])
        found: Tensor = self.moments(reward)
        return found if mask is None else found * mask

    def shortened(self, batch: Any) -> Any:
        """Return windows without their last columns, where these are padding in all of them.

        An update then costs as much as the batch's longest window, not as ``length`` steps.
        """
        columns = int(batch.mask.any(dim=0).sum())
        if columns == batch.mask.shape[1]:
            return batch
        own = {name: one[:, :columns] for name, one in batch.fields.items() if name == REWARDS}
        along = {name: getattr(batch, name)[:, :columns] for name in ("action", "step_reward", "discount", "mask")}
        return replace(batch, fields=batch.fields | own, **along)

    def along(self, batch: Any) -> TeamSeen:
        """Return the inputs of windows' steps and of the observation after them, of B * (L + 1) rows."""
        columns = batch.mask.shape[1] + 1
        found: TeamSeen = self.inputs({name: part[:, :columns].flatten(0, 1) for name, part in batch.obs.items()})
        return found

    def last_actions(self, batch: Any) -> Tensor:
        """Return each agent's action before each step of windows and before the one after them, one-hot, float32
        [B, L + 1, N, A]."""
        made = nn.functional.one_hot(batch.action.long(), self.team.actions).float()
        return torch.cat([batch[CORE][:, None, :, self.settings.hidden_units :], made], dim=1)

    def unrolled(self, network: Any, seen: TeamSeen, batch: Any) -> Tensor:
        """Return the network's outputs for ``along(batch)``, float32 [B, L + 1, N, A].

        Agents are rows of their own. Padding is behind a window's steps, whose outputs it cannot reach.
        """
        size, remembered = len(batch.mask), batch[CORE][:, :, : self.settings.hidden_units]
        seen_and_made = torch.cat([seen.agents.unflatten(0, (size, -1)), self.last_actions(batch)], dim=3)
        rows = seen_and_made.transpose(1, 2).flatten(0, 1)
        begin = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        out = network.unroll(rows.flatten(0, 1), rows[:, :, :0], remembered.flatten(0, 1), begin, burn_in=0)
        found: Tensor = out.unflatten(0, (size, -1)).transpose(1, 2)
        return found


@dataclass(frozen=True)
class VDNSettings(TeamSettings):
    kind: ClassVar[str] = "vdn"

    exploration: EpsilonGreedy = field(default_factory=lambda: EpsilonGreedy(end=0.05, steps=50_000))

    double: bool = setting(True, "double Q-learning", LEARNING)
    reward_scale: float = setting(1.0, "factor of the rewards that are learned from", LEARNING, above=0)


class VDN(TeamAgent):
    """Agent for a team: online and target network, each of the agents' values and their mixture, and the optimizer."""

    Settings: type[VDNSettings] = VDNSettings
    settings: VDNSettings

    def build(self) -> None:
        super().build()
        self.online = self.networks().to(self.device)
        self.target = self.follower("target", self.networks(), self.online)

    # network

    def networks(self) -> nn.ModuleDict:
        """Make fresh networks: "agent" maps an agent's observation to Q [..., A]; "mixer" those of the actions taken,
        [B, N], and the state to the team's value [B]."""
        return nn.ModuleDict({"agent": self.agent_network(), "mixer": self.mixer()})

    def mixer(self) -> nn.Module:
        """Make the mixture of the agents' values: these [B, N] and the state [B, S] -> the team's value [B]."""
        from sharpwave.agents.team_networks import Sum

        return Sum()

    def trained(self) -> dict[str, nn.Module]:
        return {"online": self.online}

    def acting(self, explore: bool) -> nn.Module:
        return self.online["agent"]

    # act

    def act(self, obs: Obs, state: TeamState, step: int, explore: bool = True) -> Acted:
        (values, after), mask = self.look(obs, state), np.asarray(obs[ACTION_MASK])
        chosen = np.where(legal_actions(mask), values, -np.inf).argmax(axis=2)
        if explore:
            epsilons = self.settings.exploration.epsilons(step, state.of)[state.lanes, None]
            chosen = epsilon_greedy(chosen, self.team.actions, epsilons, self._rng, mask)
        return self.made(chosen, state, after)

    def scored_lanes(self, lanes: int) -> Bools:
        return self.settings.exploration.scored(lanes)

    # learn

    def best_value(self, seen: TeamSeen, values: Tensor, chooses: Tensor) -> Tensor:
        """Return the value of the team's best joint action, float32 [B]: the mixture of each agent's best legal value.

        A mixture that rises with every agent's value is highest at each agent's own best action, so that the best of
        all joint actions needs no search.

        Args:
            values, chooses: float32 [B, N, A], of the target network and of the network that chooses.
        """
        mixed: Tensor = self.target["mixer"](taken(values, best_legal(chooses, seen.legal)), seen.state)
        return mixed

    def targets(self, seen: TeamSeen, reward: Tensor, discount: Tensor) -> Tensor:
        """Compute the team's targets, float32 [B]: the return plus the value of the best joint action after n steps.

        Args:
            seen: observations after n steps.  reward, discount: float32 [B].
        """
        values = self.target["agent"](seen.agents)
        chooses = self.online["agent"](seen.agents) if self.settings.double else values
        return reward + discount * self.best_value(seen, values, chooses)

    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the weighted mean of the items' squared errors, and the errors, unweighted, float32 [B]."""
        with torch.no_grad():
            reward = self.settings.reward_scale * self.learned_from(batch.reward)
            targets = self.targets(self.inputs(batch.next_obs), reward, batch.discount)
        seen = self.inputs(batch.obs)
        value = self.online["mixer"](taken(self.online["agent"](seen.agents), batch.action), seen.state)
        td_error = targets - value
        return (batch.weights * squared(td_error)).mean(), td_error.detach()

    def window_loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the weighted mean of squared errors over the real steps of windows, and the errors, float32 [B, L].

        Source: Rashid et al. (2018), QMIX, eq. 6, over whole episodes.
        """
        size, mask, settings = len(batch.mask), batch.mask, self.settings
        seen = self.along(batch)
        values = self.unrolled(self.online["agent"], seen, batch)
        with torch.no_grad():
            behind = self.unrolled(self.target["agent"], seen, batch)
            chooses = values if settings.double else behind
            best = self.best_value(seen, behind.flatten(0, 1), chooses.flatten(0, 1)).unflatten(0, (size, -1))[:, 1:]
            reward = settings.reward_scale * self.learned_from(batch.step_reward, mask)
            targets = n_step_targets(reward, batch.discount, best, window_ends(mask), settings.replay.n_step)
        state = seen.state.unflatten(0, (size, -1))[:, :-1]
        value = self.online["mixer"](taken(values[:, :-1], batch.action).flatten(0, 1), state.flatten(0, 1))
        td_error = (targets - value.unflatten(0, (size, -1))) * mask
        loss = (batch.weights[:, None] * squared(td_error)).sum() / mask.sum()
        return loss, td_error.detach()

    def learn(self, batch: Any, step: int) -> Learned:
        if self.settings.recurrent:
            loss, td_error = self.window_loss(self.shortened(batch))
            td_error = padded(td_error, batch.mask)
        else:
            loss, td_error = self.loss(batch)
        self.minimize(loss, self.online.parameters())
        move_towards(self.target, self.online, self.settings.target_tau)
        return Learned(td_error, {"loss": loss.detach()})

    def schedules(self, step: int) -> dict[str, float]:
        return self.settings.exploration.schedules(step) | super().schedules(step)


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
        from sharpwave.agents.team_networks import Mixer

        return Mixer(self.team.agents, self.inputs.state_size, self.settings.mixing_units)


def padded(td_error: Tensor, mask: Tensor) -> Tensor:
    """Return errors of shortened windows with zeros for the columns of ``mask`` [B, L] behind them."""
    return nn.functional.pad(td_error, (0, mask.shape[1] - td_error.shape[1]))


def best_legal(values: Tensor, legal: Tensor) -> Tensor:
    """Return the legal action of the highest value, int64 [..., N]; the first of equal ones."""
    return values.masked_fill(~legal, -math.inf).argmax(dim=-1)


def taken(values: Tensor, action: Tensor) -> Tensor:
    """Return the values of actions, [..., N] of [..., N, A]."""
    return values.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)
