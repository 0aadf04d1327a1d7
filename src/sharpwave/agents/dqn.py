"""Deep Q-network: double, dueling, n-step and prioritized learning as options. The model for every algorithm here:
settings, network, act, loss.

``QAgent`` chooses numbered actions by their values and learns by one network, as PQN; ``TargetQAgent`` adds a target
network and an average of the online one, as R2D2. ``NStepErrors`` are the first priorities of steps, computed where
the steps are made.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Dict

from sharpwave.agents.actions import NumberedActions, legal_in, legal_rows, with_legal
from sharpwave.agents.architectures import MIN_SIDES, networks
from sharpwave.agents.distilling import DistillingAgent, NoveltySettings
from sharpwave.agents.exploration import ExplorationSettings, Strategy
from sharpwave.agents.learner import PRECISIONS, LearningRateSettings, NetworkAgent, move_towards
from sharpwave.agents.losses import huber, signed_parabolic, squared
from sharpwave.agents.protocol import Acted, Bools, Floats, Learned, Obs, Rows, Valued
from sharpwave.agents.replay import LEARNING, NETWORK, TransitionsSettings, UpdateSettings
from sharpwave.configuration import expect, setting
from sharpwave.extras import Tensor, nn, torch
from sharpwave.native import core


@dataclass(frozen=True)
class QSettings(ExplorationSettings, LearningRateSettings, UpdateSettings):
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


@dataclass(frozen=True, eq=False, kw_only=True)
class QState:
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
        measured: metrics of the latest ``loss`` beside it, by name.
    """

    online: Any
    measured: Mapping[str, Tensor] = {}

    def build(self) -> None:
        self.exploration: Strategy = self.settings.strategy
        self.actions = NumberedActions(self.spaces, self.Settings.kind)
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
        return QState(lanes=slice(first_lane, first_lane + lanes), of=of_lanes or first_lane + lanes)

    def act(self, obs: Obs, state: Any, step: int, explore: bool = True) -> Acted:
        lanes, of = state.lanes, state.of
        if explore and not self._keeps_values and self.exploration.ignores_values(step, lanes, of):
            values = np.zeros((lanes.stop - lanes.start, self.num_actions), np.float32)
            values = legal_rows(values, legal_in(self.spaces, obs))
        else:
            values = self.values(obs)
        chosen = self.exploration.choose(values, step, lanes, of, self._rng) if explore else values.argmax(axis=1)
        state = replace(state, chosen=chosen, values=values if self._keeps_values else None)
        return Acted(self.actions.actions(chosen), state)

    def values(self, obs: Obs) -> npt.NDArray[np.float32]:
        """Return Q, float32 [N, A], for observations [N, ...]; -infinity for illegal actions."""
        return legal_rows(self.infer(obs)[0], legal_in(self.spaces, obs))

    def best(self, predicted: Tensor, obs: Any) -> Tensor:
        made: Tensor = self.actions.actions(with_legal(predicted, legal_in(self.spaces, obs)).argmax(dim=-1))
        return made

    def values_along(self, obs: Obs, action: Rows, reward: Rows, state: Any) -> Valued:
        return Valued(self.values(obs), self.actions.numbers(action), state)

    def differentiable_q(self, inputs: Any, state: Any) -> Tensor:
        """Return Q [B, A] of the output of ``inputs`` and the state before it, for gradients."""
        q: Tensor = self.acting(True)(inputs)
        return q

    def scored_lanes(self, lanes: int) -> Bools:
        return self.exploration.scored(lanes)

    # learn

    @abstractmethod
    def loss(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        """Compute the weighted mean of the items' losses, and their TD errors, unweighted; None: no priorities."""

    def learn(self, batch: Any, step: int) -> Learned:
        self.optimizer.param_groups[0]["lr"] = self.learning_rate(step)
        loss, td_error = self.loss(batch)
        self.minimize(loss, *(network.parameters() for network in self.trained().values()))
        return Learned(td_error, {"loss": loss.detach(), **self.measured})

    def schedules(self, step: int) -> dict[str, float]:
        return self.exploration.schedules(step) | super().schedules(step)


class TargetQAgent(QAgent):
    """Agent of action values with a target network.

    The online network explores and learns. The *policy*, which is evaluated and saved, is its exponential mean if
    ``average_decay`` is set: the mean forgets less than single networks along the way.
    """

    COUNTS: tuple[str, ...] = ("targets_copied",)
    settings: Any

    def build(self) -> None:
        super().build()
        self.targets_copied = 0  # periods of ``target_every`` steps whose copy to the target was made
        self.target = self.follower("target", self.network(), self.online)
        averages = self.settings.average_decay > 0
        self.average = self.follower("average", copy.deepcopy(self.target), self.online) if averages else None

    def acting(self, explore: bool) -> nn.Module:
        return super().acting(explore) if explore or self.average is None else self.average

    def learn(self, batch: Any, step: int) -> Learned:
        settings, copies = self.settings, step // self.settings.target_every
        if settings.target_tau == 0 and copies > self.targets_copied:
            self.targets_copied = copies
            move_towards(self.target, self.online, 1.0)
        learned = super().learn(batch, step)
        if settings.target_tau > 0:
            move_towards(self.target, self.online, settings.target_tau)
        if self.average is not None:
            move_towards(self.average, self.online, 1.0 - settings.average_decay)
        return learned


@dataclass(frozen=True)
class DQNSettings(NoveltySettings, QSettings):
    """Settings of a deep Q-network; the defaults are those of Mnih et al. (2015) where they are given there."""

    kind: ClassVar[str] = "dqn"

    replay: TransitionsSettings = field(default_factory=TransitionsSettings)

    standardize: bool = setting(
        False, "images: subtract the mean image of the warm-up and divide by the deviation from it", NETWORK
    )
    random_shift: int = setting(
        0,
        "images: largest shift, in pixels down and right, by which each image of a batch is moved at random; 0: none",
        LEARNING,
        at_least=0,
    )
    random_intensity: float = setting(
        0.0,
        "images: deviation of the random factor, of mean 1, by which each image of a batch is multiplied; 0: none; "
        "DrQ: .05",
        LEARNING,
        at_least=0,
        below=0.5,
    )
    precision: str = setting(
        "auto",
        "precision of networks; auto: bfloat16 over images of at least 30 pixels a side if the CPU supports it",
        LEARNING,
        choices=PRECISIONS,
    )

    loss: str = setting("huber", "loss of the temporal-difference error", LEARNING, choices=("huber", "mse"))
    huber_delta: float = setting(1.0, "error above which the Huber loss is linear", LEARNING, above=0)
    lr: float = setting(2.5e-4, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("standardize", "random_shift", "random_intensity"):
            expect(self, name, not (getattr(self, name) and self.network == "mlp"), "a network for images with it")

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from super().unused()
        yield from self.unused_novelty()
        if self.loss != "huber":
            yield "huber_delta", "--loss huber"


class DQN(DistillingAgent, TargetQAgent):
    """Deep Q-network agent: online and target network, and the optimizer."""

    Settings: type[DQNSettings] = DQNSettings
    FIRST_LOOK = 2048
    """Transitions of the warm-up by which images are standardized."""

    # network

    @property
    def rounding_pays(self) -> bool:
        from sharpwave.agents.inputs import image_shape

        # An update of the Nature network takes two thirds of the time, one of "tiny" nearly all, one of vectors more.
        seen = self.spaces.seen
        shapes = map(image_shape, seen.spaces.values() if isinstance(seen, Dict) else (seen,))
        large = any(shape is not None and min(shape[1:]) >= MIN_SIDES["small"] for shape in shapes)
        return large and self.settings.network not in ("mlp", "tiny")

    def make_inputs(self, standardize: bool = False) -> nn.Module:
        from sharpwave.agents.inputs import FrameInputs, has

        inputs = super().make_inputs(standardize)
        for name, off in (("standardize", "--no-standardize"), ("random_shift", "0"), ("random_intensity", "0")):
            needless = getattr(self.settings, name) and not has(inputs, FrameInputs)
            expect(self.settings, name, not needless, f"{off}: no observation is an image")
        return inputs

    def network(self) -> nn.Module:
        from sharpwave.agents.networks import QHead, QNetwork

        settings, units = self.settings, self.settings.hidden_units
        torso = self.make_torso(units)
        head = QHead(torso.features, units, self.num_actions, settings.dueling, baseline=settings.dueling_baseline)
        return QNetwork(torso, head)

    # act

    def predicted(self, obs: Any) -> Tensor:
        with self.autocast():
            predicted = super().predicted(obs)
        return self.q_of(predicted).float()

    def q_of(self, predicted: Tensor) -> Tensor:
        """Return Q [B, A] of the network's predictions."""
        return predicted

    def differentiable_q(self, inputs: Any, state: Any) -> Tensor:
        return self.q_of(super().differentiable_q(inputs, state))

    def initial_errors(self, lanes: int, kept: int) -> NStepErrors | None:
        replay = self.settings.replay
        if not replay.prioritized:
            return None
        self._keeps_values = True
        return NStepErrors(lanes, replay.n_step, replay.gamma, kept, lambda obs, acted, reward: self.values(obs))

    # learn

    @property
    def first_look(self) -> int:
        return self.FIRST_LOOK if self.settings.standardize else 0

    def prepare(self, batch: Any) -> None:
        from sharpwave.agents.inputs import FrameInputs, standardize

        standardize(self.inputs, batch.obs, FrameInputs)

    def learn(self, batch: Any, step: int) -> Learned:
        if self.distillation is None:
            return super().learn(batch, step)
        # The batch has one later observation an item: of n-step returns the last one is what is rewarded.
        self.distillation.observe(batch.next_obs)
        bonus = self.settings.novelty_weight * self.distillation.rewards(batch.next_obs)
        learned = super().learn(replace(batch, reward=batch.reward + bonus), step)
        novelty = {"novelty": bonus.mean(), "novelty_loss": self.learn_novelty(batch.next_obs)}
        return Learned(learned.td_error, {**learned.metrics, **novelty})

    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        with self.autocast():
            # First: autocast caches rounded weights, and those of a pass without gradient would carry none.
            q = self.online(self.training_inputs(batch.obs)).float()
            with torch.no_grad():
                # A separate pass for s': joined with s it would take part in the backward pass.
                next_inputs = self.training_inputs(batch.next_obs)
                chooses = self.online(next_inputs).float() if self.settings.double else None
                next_q = self.target(next_inputs).float()
        chooses = with_legal(next_q if chooses is None else chooses, legal_in(self.spaces, batch.next_obs))
        targets = double_q_targets(next_q, chooses, batch.reward, batch.discount)
        action = self.actions.numbers(batch.action)
        td_error = targets - q.gather(1, action.view(-1, 1)).squeeze(1)
        q = with_legal(q, legal_in(self.spaces, batch.obs), action)
        return (batch.weights * self.losses(q, action, td_error)).mean(), td_error.detach()

    def losses(self, q: Tensor, action: Tensor, td_error: Tensor) -> Tensor:
        """Compute the loss of each item, float [B], of values [B, A], -infinity for illegal actions, the numbers of the
        actions and TD errors [B]."""
        settings = self.settings
        return huber(td_error, settings.huber_delta) if settings.loss == "huber" else squared(td_error)

    def training_inputs(self, obs: Any) -> Any:
        """Preprocess a batch's observations for an update, and augment its images."""
        from sharpwave.agents.augmentation import random_intensity, random_shift

        inputs, settings = self.inputs(obs), self.settings
        if settings.random_shift:
            inputs = random_shift(inputs, settings.random_shift, self._rng)
        return random_intensity(inputs, settings.random_intensity, self._rng) if settings.random_intensity else inputs


def double_q_targets(next_q: Tensor, next_q_online: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Compute the targets of double Q-learning: the target network's value of the online network's next action.

    Args:
        next_q: float [B, A], Q(s_{t+n}, .) of the target network.
        next_q_online: float [B, A], the same of the online network; -infinity for illegal actions, not for all. With
            values of the target network in its place these are the targets of Q-learning (Mnih et al. 2015, eq. 1).
        reward: float [B], the n-step return from t.
        discount: float [B], gamma^n * (1 - terminated).
    Returns:
        float [B].
    Source: van Hasselt, Guez and Silver (2016), Deep reinforcement learning with double Q-learning, eq. 4.
    """
    assert next_q.ndim == 2 and next_q_online.shape == next_q.shape, (next_q.shape, next_q_online.shape)
    assert reward.shape == discount.shape == next_q.shape[:1], (reward.shape, discount.shape, next_q.shape)
    chosen = next_q_online.argmax(dim=1, keepdim=True)
    return reward + discount * next_q.gather(1, chosen).squeeze(1)


class NStepErrors:
    """Temporal-difference errors of n-step transitions, computed while lanes make steps; one instance for all lanes.

    The error of a step is ``sum_i gamma^i r_i + gamma^n max_a Q(s_n, a) - Q(s, a)`` with the n that was used, and with
    the Q that the actor had in each state, ``acted.state.values`` [lanes, A]. Of rescaled values it is
    ``h(sum + gamma^n h^-1(max Q)) - Q``.

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
        values: Callable[[Any, Acted, Floats], Floats],
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
        """Number of steps of every lane with known errors."""
        return max(0, self._steps - self._n_step)

    def add(self, acted: Acted, reward: Floats, terminated: Bools, truncated: Bools, final_obs: Obs | None) -> None:
        """Add one step of every lane, [lanes].

        Args:
            acted: the action, and the acting state after it.
            final_obs: [lanes, ...], read where a lane was truncated; None: no episode ended.
        """
        values, rows = acted.state.values, np.arange(len(acted.action))
        best = self._best(values)
        taken = values[rows, acted.state.chosen].astype(np.float64)
        final = self._best(self._values(final_obs, acted, reward)) if truncated.any() else best
        ends = np.ascontiguousarray(terminated, np.bool_), np.ascontiguousarray(truncated, np.bool_)
        self._returns.add(self._steps, best, taken, reward.astype(np.float64), *ends, final)
        self._steps += 1

    def _best(self, values: Floats) -> npt.NDArray[np.float64]:
        """Return the largest Q of each lane, as a return."""
        best: npt.NDArray[np.float64] = values.max(axis=1).astype(np.float64)
        return signed_parabolic(torch.from_numpy(best), self._rescale).numpy() if self._rescale else best

    def of(self, lane: int, first: int, steps: int) -> npt.NDArray[np.float32]:
        """Return the errors of a lane's steps from number ``first`` on, float32 [steps]."""
        assert self._steps - len(self._errors) <= first and first + steps <= self.known
        errors: npt.NDArray[np.float32] = self._errors[np.arange(first, first + steps) % len(self._errors), lane]
        return errors
