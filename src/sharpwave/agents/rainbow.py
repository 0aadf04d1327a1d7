"""Rainbow: a DQN whose network predicts distributions of returns and explores by noise on its weights. Every part is
a switch: double, dueling, n-step, priorities, noisy layers, the head (C51, QR, IQN or the mean), Munchausen rewards.

Adam, target copies and saving are DQN's; network, acting and loss are its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from sharpwave.agents.actions import legal_in, with_legal
from sharpwave.agents.dqn import DQN, NStepErrors, QState
from sharpwave.agents.exploration import EpsilonGreedy
from sharpwave.agents.learner import move_towards
from sharpwave.agents.losses import greedy_policy, munchausen_bonus, soft_policy
from sharpwave.agents.protocol import Acted, Learned, Obs, Valued
from sharpwave.agents.rainbow_settings import RainbowSettings
from sharpwave.agents.replay import FollowedTransitions, TransitionsSettings
from sharpwave.configuration import expect
from sharpwave.extras import Tensor, nn, torch
from sharpwave.nesting import map_leaves

if TYPE_CHECKING:
    from gymnasium.spaces import Space

    from sharpwave.agents.distributional import Head


class Rainbow(DQN):
    """Rainbow agent: a :class:`~sharpwave.agents.dqn.DQN` with a distributional head and noisy layers.

    With noisy layers no action is random, unless ``noisy_epsilon`` asks for it: fresh noise is drawn for every step of
    the lanes, and for every pass of a network in an update. The policy, which is evaluated and saved, uses the means of
    the weights.

    Attributes:
        prediction: model of the next steps' features (``self_prediction``), or None.
        updates: number of updates, where the agent is reset.
    """

    Settings: type[RainbowSettings] = RainbowSettings

    def build(self) -> None:
        super().build()
        if self.settings.noisy and not self.settings.noisy_epsilon:
            self.exploration = EpsilonGreedy(start=0.0, end=0.0, steps=0)
        self.prediction = self.model().to(self.device) if self.settings.self_prediction else None
        if self.settings.reset_every:
            self.COUNTS = (*self.COUNTS, "updates")
            self.updates = 0

    # network

    @cached_property
    def head(self) -> Head:
        """Head: the meaning of the network's predictions."""
        from sharpwave.agents.distributional import C51, IQN, QR, Expected

        settings = self.settings
        if settings.head == "c51":
            return C51(settings.atoms, settings.lowest_return, settings.highest_return)
        if settings.head == "qr":
            return QR(settings.quantiles, settings.huber_delta)
        if settings.head == "iqn":
            return IQN(settings.quantiles, settings.huber_delta)
        return Expected(settings.huber_delta, mse=settings.loss == "mse")

    def network(self) -> nn.Module:
        from sharpwave.agents.distributional import ImplicitQNetwork, NoisyLinear
        from sharpwave.agents.networks import QHead, QNetwork

        settings = self.settings
        linear: Callable[[int, int], nn.Module] = nn.Linear
        if settings.noisy:
            linear = partial(NoisyLinear, sigma=settings.noisy_sigma)
        torso = self._torso()
        layers = QHead(
            torso.features,
            settings.hidden_units,
            self.num_actions,
            settings.dueling,
            baseline=settings.dueling_baseline,
            outputs=self.head.outputs,
            linear=linear,
        )
        if settings.head != "iqn":
            return QNetwork(torso, layers)
        late = settings.late_fractions
        size = layers.units if late else torso.features
        return ImplicitQNetwork(torso, size, layers, behind_hidden=late)

    def _torso(self) -> Any:
        from sharpwave.agents.networks import ImageTorso
        from sharpwave.agents.self_prediction import Renormalized

        settings = self.settings
        torso = self.make_torso(settings.hidden_units)
        if not settings.self_prediction:
            return torso
        expected = "0, or observations of one image and a network of this package's for it"
        expect(settings, "self_prediction", isinstance(torso, ImageTorso), expected)
        return Renormalized(torso)

    def model(self) -> nn.Module:
        """Make a fresh model for self-prediction."""
        from sharpwave.agents.self_prediction import SelfPrediction

        return SelfPrediction(self.online.torso.maps, self.num_actions, self.online.head.units)

    def trained(self) -> dict[str, nn.Module]:
        return super().trained() | ({} if self.prediction is None else {"prediction": self.prediction})

    def acting(self, explore: bool) -> nn.Module:
        network: nn.Module = self.target if self.settings.act_by_target else super().acting(explore)
        return network

    # act

    def act(self, obs: Obs, state: QState, step: int, explore: bool = True) -> Acted:
        from sharpwave.agents.distributional import resample, silence

        if explore:
            resample(self.acting(True), self._rng)
        else:
            silence(self.acting(True))
        return super().act(obs, state, step, explore)

    def decide(self, obs: Any, memory: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        from sharpwave.agents.distributional import silence

        silence(self.acting(True))
        return super().decide(obs, memory)

    @property
    def inference_space(self) -> Space[Any] | None:
        # Noise is drawn for all lanes of an actor, by its own generator.
        return None if self.settings.noisy else self.spaces.observation

    def values_along(self, obs: Obs, action: npt.NDArray[Any], reward: npt.NDArray[Any], state: QState) -> Valued:
        from sharpwave.agents.distributional import silence

        silence(self.acting(True))
        return super().values_along(obs, action, reward, state)

    def q_of(self, predicted: Tensor) -> Tensor:
        return self.head.values(predicted)

    def initial_errors(self, lanes: int, kept: int) -> NStepErrors | None:
        if self.settings.head == "c51" or self.prediction is not None:
            return None  # priorities are losses, on another scale than errors of the mean; or of windows' first steps
        return super().initial_errors(lanes, kept)

    # learn

    def replay(self) -> TransitionsSettings:
        replay, following = self.settings.replay, self.settings.self_prediction
        return FollowedTransitions(**vars(replay), following=following) if following else replay

    @property
    def first_look(self) -> int:
        items: int = math.ceil(super().first_look / max(self.settings.self_prediction, 1))  # windows are larger
        return items

    def prepare(self, batch: Any) -> None:
        from sharpwave.agents.self_prediction import first_transitions

        super().prepare(batch if self.prediction is None else first_transitions(batch))

    def learn(self, batch: Any, step: int) -> Learned:
        learned, settings = super().learn(batch, step), self.settings
        if settings.reset_every:
            self.updates += 1
            if self.updates % settings.reset_every == 0 and (settings.reset_until or step) >= step:
                self.reset()
        return learned

    def reset(self) -> None:
        """Begin anew with ``reset_keeps`` of the torso and of the model of self-prediction; their other share, the rest
        of the network and the optimizer's moments are fresh, and the target network is a copy.

        Source: Nikishin et al. (2022), The primacy bias in deep reinforcement learning; D'Oro et al. (2023),
        Sample-efficient reinforcement learning by breaking the replay ratio barrier, which shrinks and perturbs the
        convolutions (Ash and Adams 2020).
        """
        fresh = {"online": self.network(), **({} if self.prediction is None else {"prediction": self.model()})}
        for name, module in self.trained().items():
            for part, own in module.named_children():
                share = 1.0 - self.settings.reset_keeps if part in ("torso", "transition") else 1.0
                move_towards(own, getattr(fresh[name].to(self.device), part), share)
        move_towards(self.target, self.online, 1.0)
        if self.average is not None:
            move_towards(self.average, self.online, 1.0)
        self.optimizer.state.clear()

    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the weighted mean of the items' losses, and TD errors, unweighted.

        Both are means over ``augmentations`` copies of the observations, and targets over ``target_augmentations`` of
        the next ones (Yarats, Kostrikov and Fergus 2021, DrQ, algorithm 1), each copy with noise of its own. The next
        steps are predicted from the last copy.
        """
        if self.prediction is None:
            losses, errors = self._losses(batch)
            return (batch.weights * losses).mean(), errors
        from sharpwave.agents.self_prediction import first_transitions, prediction_losses

        mask = batch.mask
        losses, errors, predicted, target = self._losses(first_transitions(batch), batch)
        apart = prediction_losses(predicted, target, mask)
        self.measured = {"self_prediction": apart.detach().sum() / mask.sum()}
        losses = losses + self.settings.self_prediction_weight * apart
        return (batch.weights * losses).mean(), nn.functional.pad(errors.unsqueeze(1), (0, mask.shape[1] - 1))

    def _losses(self, batch: Any, windows: Any = None) -> tuple[Tensor, ...]:
        """Return losses and TD errors, both [B], of transitions; of ``windows`` that they begin also the predicted
        projections of the next steps and their targets, both [B, K, n]."""
        head, settings = self.head, self.settings
        action = self.actions.numbers(batch.action)
        predictions: tuple[Tensor, ...] = ()
        fractions, next_fractions = self._fractions(len(action)), self._fractions(len(action))
        with self.autocast():
            # First: autocast caches rounded weights, and those of a pass without gradient would carry none.
            predicted = []
            for _ in range(settings.augmentations):
                inputs = self.training_inputs(batch.obs)
                features = self.online.torso(inputs)
                predicted.append(self._of_features(self.online, features, fractions))
            if self.prediction is not None:
                actions = self.actions.numbers(windows.action)
                predictions = (self.prediction(features, actions, self.online.head),)
            with torch.no_grad():
                nexts = [
                    self._bootstrap(batch, action, inputs, next_fractions) for _ in range(settings.target_augmentations)
                ]
                if predictions:
                    predictions += (self._next_projections(windows),)
        targets = [head.target(following, policy, reward, batch.discount) for following, policy, reward in nexts]
        target, rows = _mean(targets), torch.arange(len(action), device=action.device)
        compared = [head.loss(one[rows, action], target, fractions) for one in predicted]
        losses, errors = (_mean(parts) for parts in zip(*compared, strict=True))
        return losses, errors, *predictions

    def _next_projections(self, windows: Any) -> Tensor:
        """Return the target network's projections of the observations after each step of windows, [B, K, n]."""
        from sharpwave.agents.self_prediction import projected

        size, steps = windows.mask.shape
        following = map_leaves(lambda one: one[:, 1 : steps + 1].flatten(0, 1), windows.obs)
        features = self.target.torso(self.training_inputs(following))
        found: Tensor = projected(self.target.head, features).unflatten(0, (size, steps))
        return found

    def _bootstrap(
        self, batch: Any, action: Tensor, inputs: Any, next_fractions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return predictions of the target network after the items' steps [B, A, ...], probabilities of next actions
        [B, A], and rewards [B], with Munchausen's terms if those are on.

        Args:
            inputs: of the observations, as they are learned from.
        """
        settings, head = self.settings, self.head
        next_inputs, next_legal = self.training_inputs(batch.next_obs), legal_in(self.spaces, batch.next_obs)
        if settings.munchausen == 0:
            next_predicted = self._predicted(self.target, next_inputs, next_fractions)
            chooses = self._predicted(self.online, next_inputs) if settings.double else next_predicted
            return next_predicted, greedy_policy(with_legal(head.values(chooses), next_legal)), batch.reward
        if settings.augmented:
            inputs = self.inputs(batch.obs)
        if isinstance(inputs, torch.Tensor) and not settings.noisy and next_fractions is None:
            # One pass over both takes less time than two, and gives the same.
            predicted, next_predicted = self._predicted(self.target, torch.cat([inputs, next_inputs])).chunk(2)
        else:
            next_predicted = self._predicted(self.target, next_inputs, next_fractions)
            predicted = self._predicted(self.target, inputs)
        q = with_legal(head.values(predicted), legal_in(self.spaces, batch.obs), action)
        bonus = munchausen_bonus(q, action, settings.munchausen_temperature, settings.munchausen_lowest)
        next_q = with_legal(head.values(next_predicted), next_legal)
        policy, entropy = soft_policy(next_q, settings.munchausen_temperature)
        return next_predicted, policy, batch.reward + settings.munchausen * bonus + batch.discount * entropy

    def _predicted(self, network: Any, inputs: Any, fractions: Tensor | None = None) -> Tensor:
        """Predict with fresh noise."""
        return self._of_features(network, network.torso(inputs), fractions)

    def _of_features(self, network: Any, features: Tensor, fractions: Tensor | None = None) -> Tensor:
        from sharpwave.agents.distributional import resample

        resample(network, self._rng)
        predicted: Tensor = network.predict(features) if fractions is None else network.predict(features, fractions)
        return predicted.float()

    def _fractions(self, items: int) -> Tensor | None:
        fractions = self.head.draw(items, self._rng)
        return None if fractions is None else fractions.to(self.device)


def _mean(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).mean(dim=0)
