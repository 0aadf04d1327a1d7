"""Bases of agents of action values: numbered actions, exploration by values, and online and target network.

``QAgent`` acts and learns by one network; ``TargetQAgent`` adds a target network and an average of the online one.
``NStepErrors`` are the first priorities of steps, computed where they are made.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.agents.actions import NumberedActions, legal_in, legal_rows
from sharpwave.agents.architectures import networks
from sharpwave.agents.exploration import ExplorationSettings, Strategy
from sharpwave.agents.lazy_torch import nn, torch
from sharpwave.agents.learner import LearningRateSettings, NetworkAgent, move_towards
from sharpwave.agents.losses import signed_parabolic
from sharpwave.agents.protocol import Acted, InitialErrors, Learned, Obs, Spaces, Valued
from sharpwave.agents.replay import LEARNING, NETWORK
from sharpwave.configuration import setting
from sharpwave.native import core

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class QSettings(ExplorationSettings, LearningRateSettings):
    """Settings that agents with a target network share."""

    network: str = setting("auto", "torso of the Q-network; auto: by the observation", NETWORK, choices=networks)
    hidden_units: int = setting(512, "units of the hidden layer", NETWORK, at_least=1)
    dueling: bool = setting(False, "separate streams for value and advantage", NETWORK)
    dueling_baseline: str = setting(
        "mean",
        "dueling: what is subtracted from the advantages, their mean or maximum; naive: nothing",
        NETWORK,
        choices=("mean", "max", "naive"),
    )

    double: bool = setting(True, "double Q-learning", LEARNING)
    adam_eps: float = setting(1.5e-4, "epsilon of Adam", LEARNING, above=0)
    max_grad_norm: float = setting(10.0, "gradients are clipped to this norm; 0: never", LEARNING, at_least=0)
    target_every: int = setting(8_000, "steps between copies to the target network", LEARNING, at_least=1)
    target_tau: float = setting(
        0.0, "share by which each update moves the target instead of copies; 0: copies", LEARNING, at_least=0, at_most=1
    )
    average_decay: float = setting(
        0.0,
        "decay of the exponential mean of the network over updates, which is evaluated and saved as best and last; "
        "0: the network itself",
        LEARNING,
        at_least=0,
        below=1,
    )

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from ExplorationSettings.unused(self)
        yield from LearningRateSettings.unused(self)
        if not self.dueling:
            yield "dueling_baseline", "--dueling"
        if self.target_tau > 0:
            yield "target_every", "--target-tau 0"


class QState(NamedTuple):
    """Acting state.

    Attributes:
        lanes: which of the run's ``of`` lanes these are.
        chosen: int64 [lanes], numbers of the last actions.
        values: Q of the last observations [lanes, A], where initial priorities are computed.
    """

    lanes: slice
    of: int
    chosen: npt.NDArray[np.int64] | None = None
    values: npt.NDArray[np.float32] | None = None


class QAgent(NetworkAgent):
    """Agent that chooses numbered actions by their values.

    Attributes:
        actions: numbers of the actions.
        exploration: strategy by which actions are chosen while exploring.
        online: network that explores and learns.
    """

    online: Any

    def __init__(self, spaces: Spaces, settings: Any = None, device: torch.device | str = "cpu", seed: Any = 0) -> None:
        super().__init__(spaces, settings, device, seed)
        self.exploration: Strategy = self.settings.strategy
        self.actions = NumberedActions(spaces, self.Settings.kind)
        self.num_actions = self.actions.count
        self._keeps_values = False
        self.inputs = self.make_inputs()
        self.online = self.network().to(self.device)

    @abstractmethod
    def network(self) -> nn.Module:
        """Make a fresh network: outputs of ``inputs`` -> Q [B, A]."""

    def trained(self) -> dict[str, nn.Module]:
        return {"online": self.online}

    def acting(self, explore: bool) -> nn.Module:
        network: nn.Module = self.online
        return network

    # act

    def begin(self, lanes: int, first_lane: int = 0, of_lanes: int | None = None) -> Any:
        return QState(slice(first_lane, first_lane + lanes), of_lanes or first_lane + lanes)

    def act(self, obs: Obs, state: Any, step: int, explore: bool = True) -> Acted:
        lanes, of = state.lanes, state.of
        if explore and not self._keeps_values and self.exploration.ignores_values(step, lanes, of):
            values = np.zeros((lanes.stop - lanes.start, self.num_actions), np.float32)
            values = legal_rows(values, legal_in(self.spaces, obs))
        else:
            values = self.values(obs)
        chosen = self.exploration.choose(values, step, lanes, of, self._rng) if explore else values.argmax(axis=1)
        state = state._replace(chosen=chosen, values=values if self._keeps_values else None)
        return Acted(self.actions.actions(chosen), state)

    def values(self, obs: Obs) -> npt.NDArray[np.float32]:
        """Return Q, float32 [N, A], for observations [N, ...]; -infinity for illegal actions."""
        return legal_rows(self.infer(obs)[0], legal_in(self.spaces, obs))

    def values_along(self, obs: Obs, action: npt.NDArray[Any], reward: npt.NDArray[Any], state: Any) -> Valued:
        return Valued(self.values(obs), self.actions.numbers(action), state)

    def differentiable_q(self, inputs: Any, state: Any) -> Tensor:
        """Return Q [B, A] of the output of ``inputs`` and the state before it, for gradients."""
        q: Tensor = self.online(inputs)
        return q

    def scored_lanes(self, lanes: int) -> npt.NDArray[np.bool_]:
        return self.exploration.scored(lanes)

    # learn

    @abstractmethod
    def loss(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        """Compute the weighted mean of the items' losses, and their TD errors, unweighted; None: no priorities."""

    def learn(self, batch: Any, step: int) -> Learned:
        self.optimizer.param_groups[0]["lr"] = self.learning_rate(step)
        loss, td_error = self.loss(batch)
        self.minimize(loss, self.online)
        return Learned(td_error, {"loss": loss.detach()})

    def schedules(self, step: int) -> dict[str, float]:
        return self.exploration.schedules(step) | super().schedules(step)


class TargetQAgent(QAgent):
    """Agent of action values with a target network.

    The online network explores and learns. The *policy*, which is evaluated and saved, is its exponential mean if
    ``average_decay`` is set: the mean forgets less than single networks along the way.
    """

    settings: Any

    def __init__(self, spaces: Spaces, settings: Any = None, device: torch.device | str = "cpu", seed: Any = 0) -> None:
        super().__init__(spaces, settings, device, seed)
        self._targets_copied = 0  # periods of ``target_every`` steps whose copy to the target was made
        self.target: Any = self.network().to(self.device).requires_grad_(False)
        move_towards(self.target, self.online, 1.0)
        self.average = copy.deepcopy(self.target) if self.settings.average_decay > 0 else None

    def acting(self, explore: bool) -> nn.Module:
        return super().acting(explore) if explore or self.average is None else self.average

    def modules(self) -> dict[str, nn.Module]:
        modules = {**super().modules(), "target": self.target}
        return modules if self.average is None else {**modules, "average": self.average}

    def learn(self, batch: Any, step: int) -> Learned:
        settings, copies = self.settings, step // self.settings.target_every
        if settings.target_tau == 0 and copies > self._targets_copied:
            self._targets_copied = copies
            move_towards(self.target, self.online, 1.0)
        learned = super().learn(batch, step)
        if settings.target_tau > 0:
            move_towards(self.target, self.online, settings.target_tau)
        if self.average is not None:
            move_towards(self.average, self.online, 1.0 - settings.average_decay)
        return learned

    def state(self) -> dict[str, Any]:
        return {**super().state(), "targets_copied": self._targets_copied}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._targets_copied = int(state["targets_copied"])


class NStepErrors(InitialErrors):
    """Temporal-difference errors of n-step transitions, computed while lanes make steps.

    The error of a step is ``sum_i gamma^i r_i + gamma^n max_a Q(s_n, a) - Q(s, a)`` with the n that was used, and with
    the Q that the actor had in each state. Of rescaled values it is ``h(sum + gamma^n h^-1(max Q)) - Q``.

    Args:
        lanes: number of lanes that step together.
        n_step, gamma: the learner's.
        kept: steps of each lane whose errors are kept.
        values: function, (final observations [lanes, ...], the last action's ``Acted``, its reward) -> Q [lanes, A].
        rescale: epsilon of values rescaled as in ``sharpwave.agents.losses``; 0: they are not.

    Source: Horgan et al. (2018), Distributed prioritized experience replay, algorithm 1.
    """

    def __init__(
        self,
        lanes: int,
        n_step: int,
        gamma: float,
        kept: int,
        values: Callable[[Any, Acted, npt.NDArray[np.floating]], npt.NDArray[np.floating]],
        rescale: float = 0.0,
    ) -> None:
        self._values, self._rescale = values, rescale
        self._steps = 0
        self._n_step, self._errors = n_step, np.zeros((kept + n_step, lanes), np.float32)
        value, total, factor = (np.zeros((n_step, lanes)) for _ in range(3))
        is_open = np.zeros((n_step, lanes), np.bool_)
        self._returns = core.OpenReturns(value, total, factor, is_open, self._errors, gamma, rescale)

    @property
    def known(self) -> int:
        return max(0, self._steps - self._n_step)

    def add(
        self,
        acted: Acted,
        reward: npt.NDArray[np.floating],
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
        final_obs: Any,
    ) -> None:
        """Add one step of every lane.

        Args:
            acted: the action, and Q [lanes, A] of the state it was taken in as ``state.values``.
            reward, terminated, truncated: [lanes], the outcome of the action.
            final_obs: [lanes, ...], read where a lane was truncated; ``None``: no lane was.
        """
        values, rows = acted.state.values, np.arange(len(acted.action))
        best = self._best(values)
        taken = values[rows, acted.state.chosen].astype(np.float64)
        final = self._best(self._values(final_obs, acted, reward)) if truncated.any() else best
        ends = np.ascontiguousarray(terminated, np.bool_), np.ascontiguousarray(truncated, np.bool_)
        self._returns.add(self._steps, best, taken, reward.astype(np.float64), *ends, final)
        self._steps += 1

    def _best(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """Return the largest Q of each lane, as a return."""
        best: npt.NDArray[np.float64] = values.max(axis=1).astype(np.float64)
        if not self._rescale:
            return best

        restored: npt.NDArray[np.float64] = signed_parabolic(torch.from_numpy(best), self._rescale).numpy()
        return restored

    def of(self, lane: int, first: int, steps: int) -> npt.NDArray[np.float32]:
        assert self._steps - len(self._errors) <= first and first + steps <= self.known
        errors: npt.NDArray[np.float32] = self._errors[np.arange(first, first + steps) % len(self._errors), lane]
        return errors
