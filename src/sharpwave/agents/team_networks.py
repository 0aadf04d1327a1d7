"""Networks of teams: a team's sizes, inputs of the agents' observations, and mixtures of the agents' values."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from gymnasium.spaces import Box, Dict, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from sharpwave.agents.inputs import inputs_for
from sharpwave.agents.protocol import Spaces
from sharpwave.teams import ACTION_MASK, AGENTS, STATE


class Team(NamedTuple):
    """Sizes of a team: its agents N, the actions A of each, numbers that an agent observes, and those of the state."""

    agents: int
    actions: int
    observed: int
    state: int


def team_of(spaces: Spaces, kind: str) -> Team:
    """Return the sizes of the team that acts in ``spaces``.

    Raises:
        ValueError: they are not a team's.
    """
    parts: Any = spaces.observation.spaces if isinstance(spaces.observation, Dict) else {}
    agents, mask, action = parts.get(AGENTS), parts.get(ACTION_MASK), spaces.action
    if (
        not isinstance(agents, Box)
        or not isinstance(mask, (MultiBinary, Box))
        or not isinstance(action, MultiDiscrete)
        or len(mask.shape) != 2
        or agents.shape[:1] != mask.shape[:1]
        or action.nvec.tolist() != [mask.shape[1]] * mask.shape[0]
        or action.start.any()
    ):
        raise ValueError(
            f"{kind} needs a team: observations with {AGENTS!r} [N, ...] and {ACTION_MASK!r} [N, A], and an action of "
            f"0 to A - 1 for each of N agents; {spaces.env} has {spaces.observation} and {action}. "
            "sharpwave.envs.TeamEnv makes one of a PettingZoo ParallelEnv"
        )
    observed = math.prod(agents.shape[1:])
    state = math.prod(parts[STATE].shape) if STATE in parts else mask.shape[0] * observed
    return Team(mask.shape[0], mask.shape[1], observed, state)


class TeamSeen(NamedTuple):
    """Inputs of a team's networks.

    Attributes:
        agents: float32 [B, N, F]: the observation of each agent, whether it is present, and its number, one-hot.
        legal: bool [B, N, A]: an absent agent has action 0, which does nothing, so none has none.
        state: float32 [B, S]: the global state, or all that the agents observe where there is none; and who is present.
    """

    agents: Tensor
    legal: Tensor
    state: Tensor

    @property
    def each_state(self) -> Tensor:
        """The state beside the observation of each agent, float32 [B, N, S + F]."""
        return torch.cat([self.state[:, None].expand(-1, self.agents.shape[1], -1), self.agents], dim=2)


class TeamInputs(nn.Module):
    """Preprocessing of a team's stored observations into ``TeamSeen``.

    Attributes:
        features, state_size: F and S.
    """

    numbers: Tensor

    def __init__(self, spaces: Spaces, team: Team) -> None:
        super().__init__()
        parts: Any = spaces.observation
        self.agents = inputs_for(parts[AGENTS], images=False)
        self.state = inputs_for(parts[STATE], images=False) if STATE in parts.spaces else None
        self.register_buffer("numbers", torch.eye(team.agents), persistent=False)
        self.features, self.state_size = team.observed + 1 + team.agents, team.state + team.agents

    def forward(self, obs: dict[str, Tensor]) -> TeamSeen:
        """Map a team's observations, [B, ...] by part."""
        mask = obs[ACTION_MASK] != 0
        present = mask.any(dim=2)
        seen = self.agents(obs[AGENTS])
        state = seen if self.state is None else self.state(obs[STATE])
        each = seen.reshape(*present.shape, -1)
        numbers = self.numbers.expand(mask.shape[0], -1, -1)
        legal = torch.cat([mask[:, :, :1] | ~present[:, :, None], mask[:, :, 1:]], dim=2)
        return TeamSeen(
            torch.cat([each, present[:, :, None].float(), numbers], dim=2),
            legal,
            torch.cat([state, present.float()], dim=1),
        )


def layers(inputs: int, units: int, outputs: int) -> nn.Sequential:
    """Make a network of two hidden layers, [..., inputs] -> [..., outputs]."""
    return nn.Sequential(
        nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU(), nn.Linear(units, outputs)
    )


class RecurrentCritic(nn.Module):
    """Critic of agents that remember: a layer and a GRU over what the team sees and did, then two layers.

    Args:
        inputs: length of what it sees in a step.  others: length of what it is told beside its memory.
        units: of each layer, and of the memory.  actions: A.
    Source: Wang, Everett and How (2020), R-MADDPG for partially observable environments and limited communication.
    """

    def __init__(self, inputs: int, others: int, units: int, actions: int) -> None:
        super().__init__()
        self.torso, self.core = (
            nn.Sequential(nn.Linear(inputs, units), nn.ReLU()),
            nn.GRU(units, units, batch_first=True),
        )
        self.head = nn.Sequential(nn.Linear(units + others, units), nn.ReLU(), nn.Linear(units, actions))

    def remember(self, seen: Tensor) -> Tensor:
        """Map what each agent's critic sees along windows, [B, T, N, inputs], to its memory, [B, T, N, units].

        It begins with zeros, as in an episode's first step.
        """
        remembered, _ = self.core(self.torso(seen).transpose(1, 2).flatten(0, 1))
        found: Tensor = remembered.unflatten(0, (len(seen), -1)).transpose(1, 2)
        return found

    def forward(self, known: Tensor) -> Tensor:
        """Map memories, with the others' actions behind them, [..., units + others], to Q [..., A]."""
        q: Tensor = self.head(known)
        return q


class Moments(nn.Module):
    """Running mean and deviation of all numbers so far."""

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("count", "mean", "squares"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def add(self, numbers: Tensor) -> None:
        """Add numbers of any shape.  Source: Chan, Golub and LeVeque (1979), Updating formulae, eq. 2.1."""
        given, count = numbers.double(), self.count + numbers.numel()
        away = given.mean() - self.mean
        self.squares += (given - given.mean()).square().sum() + away.square() * self.count * given.numel() / count
        self.mean += away * given.numel() / count
        self.count.copy_(count)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the numbers less the mean, divided by the deviation. float32, of the same shape."""
        deviation = (self.squares / self.count).sqrt().clamp(min=1e-4)
        return ((numbers.double() - self.mean) / deviation).float()


class Sum(nn.Module):
    """Sum of the agents' values.  Source: Sunehag et al. (2018), Value-decomposition networks, eq. 3."""

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """Map the values [B, N] of the actions taken to [B]."""
        return values.sum(dim=1)


class Mixer(nn.Module):
    """Mixing network of QMIX: two layers whose weights are made from the state by further networks.

    The weights are absolute values, so the result rises with every agent's value, or stays; biases are free.

    States are squashed to -1 ... 1. Where they have no bounds, as positions of agents that walk away, weights that are
    linear in the state make the values of far states grow from target to target without end.

    Args:
        agents: N.  state: S.  units: of the hidden layer.
    Source: Rashid et al. (2018), QMIX, section 4.1 and figure 2.
    """

    def __init__(self, agents: int, state: int, units: int) -> None:
        super().__init__()
        self.first_weights = nn.Linear(state, agents * units)
        self.first_bias = nn.Linear(state, units)
        self.last_weights = nn.Linear(state, units)
        self.last_bias = nn.Sequential(nn.Linear(state, units), nn.ReLU(), nn.Linear(units, 1))

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """Map the values [B, N] of the actions taken and the state [B, S] to [B]."""
        state = nn.functional.softsign(state)
        first = self.first_weights(state).abs()
        last = self.last_weights(state).abs()
        return mixed(values, first, self.first_bias(state), last, self.last_bias(state))


def mixed(values: Tensor, first: Tensor, first_bias: Tensor, last: Tensor, last_bias: Tensor) -> Tensor:
    """Compute ELU(values W1 + b1) w2 + b2, float [B].

    Args:
        values: float [B, N].
        first: W1, float [B, N * E].  first_bias: b1, float [B, E].
        last: w2, float [B, E].  last_bias: b2, float [B, 1].
    """
    assert values.ndim == 2 and first.shape == (len(values), values.shape[1] * first_bias.shape[1]), first.shape
    assert last.shape == first_bias.shape and last_bias.shape == (len(values), 1), (last.shape, last_bias.shape)
    weights = first.reshape(*values.shape, -1)
    hidden = nn.functional.elu(torch.einsum("bn,bne->be", values, weights) + first_bias)
    return (hidden * last).sum(dim=1) + last_bias[:, 0]
