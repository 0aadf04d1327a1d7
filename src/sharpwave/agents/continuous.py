"""Agents of continuous actions: an actor, several critics that are computed together, and what their networks are.

``ContinuousAgent`` is the part that SAC, TD3 and CrossQ share: scaled actions, networks, when the policy is updated,
and resets. Its options make further algorithms of these:

- layer norm: Ball et al. (2023), Efficient online reinforcement learning with offline data (RLPD), section 4.2;
- residual blocks and normalized observations: Lee et al. (2024), SimBa, section 4;
- several critics, of which a random few give the target: Chen et al. (2021), Randomized ensembled double Q-learning
  (REDQ), algorithm 1;
- dropout: Hiraoka et al. (2022), Dropout Q-functions for doubly efficient reinforcement learning (DroQ), algorithm 2;
- quantiles: Kuznetsov et al. (2020), Controlling overestimation bias with truncated mixture of continuous
  distributional quantile critics (TQC), algorithm 1;
- resets: Nikishin et al. (2022), The primacy bias in deep reinforcement learning, section 4.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from sharpwave.agents.actions import within
from sharpwave.agents.architectures import networks
from sharpwave.agents.learner import PRECISIONS, NetworkAgent
from sharpwave.agents.protocol import Acted, Learned, Obs, Spaces, space_text
from sharpwave.agents.replay import (
    EXPLORATION,
    LEARNING,
    NETWORK,
    OfflineSettings,
    TransitionsSettings,
    UpdateSettings,
)
from sharpwave.configuration import Checked, expect, setting
from sharpwave.extras import Tensor, nn, torch

if TYPE_CHECKING:
    from sharpwave.agents.hidden_layers import LayerStyle


@dataclass(frozen=True)
class ContinuousSettings(Checked, UpdateSettings):
    """Settings that agents of continuous actions share; the defaults are those of Haarnoja et al. (2018)."""

    replay: TransitionsSettings = field(default_factory=lambda: TransitionsSettings(batch_size=256))

    network: str = setting(
        "auto", "torso of actor and critics; auto: convolutions over images, none over vectors", NETWORK,
        choices=networks,
    )  # fmt: skip
    hidden_units: int = setting(256, "units of each hidden layer", NETWORK, at_least=1)
    hidden_layers: int = setting(2, "hidden layers of actor and critics, plain ones", NETWORK, at_least=1)
    critic_units: int | None = setting(
        None, "units of the critics' hidden layers; empty: hidden-units", NETWORK, at_least=1
    )
    blocks: str = setting(
        "plain", "hidden layers: plain ones, or SimBa's residual blocks, one in the actor and two in critics", NETWORK,
        choices=("plain", "simba"),
    )  # fmt: skip
    layer_norm: bool = setting(False, "normalize the critics' hidden layers, before their ReLU", NETWORK)
    normalize_obs: bool = setting(
        False, "vectors: subtract the running mean of what was learned from, divide by its deviation", NETWORK
    )
    critics: int = setting(2, "critics", NETWORK, at_least=1)
    target_critics: int | None = setting(
        None, "random critics, others for each update, whose smallest value makes the target; empty: all", LEARNING,
        at_least=1,
    )  # fmt: skip
    dropout: float = setting(
        0.0, "probability that an output of the critics' hidden layers is dropped", NETWORK, at_least=0, below=1
    )
    precision: str = setting(
        "float32", "precision of hidden layers; auto: bfloat16 if the CPU supports it", LEARNING, choices=PRECISIONS
    )

    random_steps: int = setting(10_000, "first steps, whose actions are uniformly random", EXPLORATION, at_least=0)

    lr: float = setting(3e-4, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    weight_decay: float = setting(0.0, "decay of the networks' weights, as of AdamW", LEARNING, at_least=0)
    policy_delay: int = setting(
        1, "updates of the critics for each of the policy and its temperature", LEARNING, at_least=1
    )
    reset_every: int = setting(
        0, "updates after which all networks begin anew, while the replay memory stays; 0: never", LEARNING, at_least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.target_critics is None or self.target_critics <= self.critics
        expect(self, "target_critics", fits, f"at most --critics {self.critics}")
        plain = "with --blocks plain: residual blocks have norms of their own"
        expect(self, "layer_norm", not self.layer_norm or self.blocks == "plain", f"False, or True {plain}")
        expect(self, "dropout", not self.dropout or self.blocks == "plain", f"0, or more {plain}")
        arrive = not isinstance(self, OfflineSettings)
        expect(self, "normalize_obs", arrive or not self.normalize_obs, "False: recorded data are measured before")

    def unused(self) -> Iterator[tuple[str, str]]:
        if self.blocks != "plain":
            yield "hidden_layers", "--blocks plain"


class BoxActions:
    """Scaling of continuous actions between the bounds of their space and -1 ... 1, in which agents compute.

    Args:
        spaces: those of the agent: actions that are a Box of floats with bounds.
        kind: the agent's name, for errors.

    Attributes:
        size: numbers of an action.
    Raises:
        ValueError: a space of another kind, or one without bounds.
    """

    def __init__(self, spaces: Spaces, kind: str) -> None:
        space = spaces.action
        if not isinstance(space, Box) or space.dtype.kind != "f":
            raise ValueError(
                f"{kind} needs continuous actions; {spaces.env} has {space_text(space)}; expected a Box of floats. "
                "Discrete actions are learned by dqn and others: sharpwave train gymnasium --env ID; from "
                "demonstrations by r2d3"
            )
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise ValueError(
                f"{kind}: {spaces.env} has actions from {space.low.tolist()} to {space.high.tolist()}, expected finite "
                "bounds, the lower below the upper; wrap the environment with gymnasium.wrappers.RescaleAction"
            )
        self.size = math.prod(space.shape)
        self._space = space
        self._unscaled = bool((low == -1).all() and (high == 1).all())
        self._centre, self._half = np.asarray((low + high) / 2), np.asarray((high - low) / 2)  # also of shape ()

    def actions(self, scaled: Any) -> Any:
        """Return the environment's actions [N, *shape] for float [N, size] in -1 ... 1, an array or a tensor."""
        if not isinstance(scaled, np.ndarray):
            return self._tensor(scaled)
        wide = scaled.reshape(len(scaled), *self._space.shape)
        if not self._unscaled:
            wide = self._centre + self._half * wide
        # Rounding may lead past a bound.
        return wide.astype(self._space.dtype).clip(self._space.low, self._space.high)

    def _tensor(self, scaled: Tensor) -> Tensor:
        wide = scaled.reshape(-1, *self._space.shape)
        if not self._unscaled:
            centre, half = (torch.from_numpy(one).to(scaled.device) for one in (self._centre, self._half))
            wide = centre + half * wide
        return within(wide.to(torch.from_numpy(self._space.low).dtype), self._space)

    def scaled(self, actions: Tensor) -> Tensor:
        """Return float32 [B, size] in -1 ... 1 for actions [B, *shape] of the environment: the inverse."""
        if self._unscaled:
            return actions.reshape(-1, self.size).float()
        centre, half = (torch.from_numpy(one).to(actions.device) for one in (self._centre, self._half))
        return ((actions - centre) / half).reshape(-1, self.size).float()


class ContinuousAgent(NetworkAgent):
    """Agent of an actor and several critics. Actions are scaled to -1 ... 1; the actor's tanh bounds them.

    Attributes:
        OUTPUTS: numbers by which the actor describes each number of an action.
        BETAS: of Adam.
        FIRST_LOOK: transitions of the warm-up by which observations are normalized at first.
    """

    COUNTS: tuple[str, ...] = ("updates",)
    OUTPUTS = 1
    BETAS = (0.9, 0.999)
    FIRST_LOOK = 4096

    def build(self) -> None:
        self.actions = BoxActions(self.spaces, self.Settings.kind)
        self.inputs = self.running_inputs() if self.settings.normalize_obs else self.make_inputs()
        self.updates = 0
        self.begin_networks()

    # networks

    def begin_networks(self) -> None:
        """Make fresh networks, at the agent's begin and after each ``reset_every`` updates."""
        self.actor = self.actor_network().to(self.device)
        self.critics: Any = self.critic_network().to(self.device)

    def actor_style(self) -> LayerStyle:
        """Return what the actor's hidden layers consist of."""
        from sharpwave.agents.hidden_layers import LayerStyle

        return LayerStyle(self.settings.blocks, depth=self.settings.hidden_layers)

    def critic_style(self) -> LayerStyle:
        """Return what the critics' hidden layers consist of."""
        from sharpwave.agents.hidden_layers import LayerStyle

        settings = self.settings
        normalized = "layer" if settings.layer_norm else ""
        return LayerStyle(settings.blocks, normalized, settings.dropout, settings.hidden_layers)

    def actor_network(self) -> nn.Module:
        """Make a fresh actor: outputs of ``inputs`` -> float32 [B, OUTPUTS * size of an action]."""
        from sharpwave.agents.actor_networks import ActorNetwork

        outputs = self.OUTPUTS * self.actions.size
        return ActorNetwork(self.make_torso(units=0), self.settings.hidden_units, outputs, self.actor_style())

    def critic_network(self) -> nn.Module:
        """Make K fresh critics: features of their torso, and scaled actions -> Q [K, B], or quantiles [K, B, N]."""
        from sharpwave.agents.actor_networks import Critics

        settings = self.settings
        units = settings.critic_units or settings.hidden_units
        return Critics(
            self.make_torso(units=0), self.actions.size, units, self.critic_style(), settings.critics, self.quantiles
        )

    @property
    def quantiles(self) -> int:
        """Quantiles of the return that each critic predicts; 0: its mean."""
        return 0

    def trained(self) -> dict[str, nn.Module]:
        return {"critics": self.critics, "actor": self.actor}

    def acting(self, explore: bool) -> nn.Module:
        return self.actor

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        # It leaves alone parameters without a gradient, as the actor's where it is updated less often.
        settings: dict[str, Any] = {"lr": self.settings.lr, "betas": self.BETAS, "fused": True}
        decay = self.settings.weight_decay
        if not decay:
            return torch.optim.Adam(parameters, **settings)
        networks = ("critics", "actor")
        groups = [
            {"params": [*module.parameters()], "weight_decay": decay if name in networks else 0.0}
            for name, module in self.trained().items()
        ]
        return torch.optim.AdamW(groups, **settings)

    # act

    def act(self, obs: Obs, state: None, step: int, explore: bool = True) -> Acted:
        if explore and step < self.settings.random_steps:
            lanes = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
            scaled: npt.NDArray[np.floating] = self._rng.uniform(-1.0, 1.0, (lanes, self.actions.size))
        else:
            scaled = self.choose(self.infer(obs)[0], self._rng if explore else None)
        return Acted(self.actions.actions(scaled), state)

    def best(self, predicted: Tensor, obs: Any) -> Tensor:
        made: Tensor = self.actions.actions(predicted.chunk(self.OUTPUTS, dim=1)[0].tanh())
        return made

    @abstractmethod
    def choose(self, output: npt.NDArray[np.float32], rng: np.random.Generator | None) -> npt.NDArray[np.floating]:
        """Return scaled actions [N, size] by the actor's output [N, OUTPUTS * size]; without ``rng`` the best ones."""

    # learn

    @property
    def first_look(self) -> int:
        return self.FIRST_LOOK if self.settings.normalize_obs else 0

    def prepare(self, batch: Any) -> None:
        self.measure(batch.obs)

    def learn(self, batch: Any, step: int) -> Learned:
        self.updates += 1
        if self.settings.normalize_obs:
            self.measure(batch.obs)
        learned = self.update(batch, self.updates % self.settings.policy_delay == 0)
        if self.settings.reset_every and self.updates % self.settings.reset_every == 0:
            self.begin_networks()
            del self.optimizer
        return learned

    @abstractmethod
    def update(self, batch: Any, moves: bool) -> Learned:
        """Make one update of the critics, and of the policy and what follows it if ``moves``."""

    def values(self, inputs: Any, action: Tensor) -> Tensor:
        """Return the critics' values of scaled actions [B, size], with gradient: float32 [K, B] or [K, B, N]."""
        found: Tensor = self.critics(self.critics.torso(inputs), action)
        return found

    def target_values(self, critics: Any, inputs: Any, action: Tensor) -> Tensor:
        """Return values of next actions by all ``critics`` or, drawn for this update, by ``target_critics`` of them."""
        features = critics.torso(inputs)
        if (chosen := self.chosen_critics()) is None:
            found: Tensor = critics(features, action)
            return found
        return critics.some(features, action, chosen)  # type: ignore[no-any-return]

    def chosen_critics(self) -> Tensor | None:
        """Draw the numbers of the critics that make the target, int64 [M]; None: all make it."""
        count = self.settings.target_critics
        if count is None or count == self.settings.critics:
            return None
        return torch.randperm(self.settings.critics)[:count].to(self.device)

    def valued(self, inputs: Any, action: Tensor, members: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the value of ``action`` [B, size] that the policy ascends, float32 [B], and its gradient by it.

        Args:
            members: only so many critics are asked; None: all.
        """
        with torch.no_grad():
            features = self.critics.torso(inputs)
        at = action.detach().requires_grad_()
        value = self.ascended(self.critics(features, at, members))
        (gradient,) = torch.autograd.grad(value.sum(), at)
        return value.detach(), gradient

    def value_gradient(self, inputs: Any, action: Tensor, members: int | None = None) -> Tensor:
        """Return the gradient of ``valued``."""
        return self.valued(inputs, action, members)[1]

    def ascended(self, values: Tensor) -> Tensor:
        """Return the value that the policy ascends, float [B]: the smallest of the critics' [K, B]."""
        return values.amin(dim=0)

    def critic_loss(self, q: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean over items of all critics' half squared errors, and the mean errors, unweighted, float [B].

        Args:
            q: float [K, B].  targets: float [B].  weights: importance weights, float [B].
        """
        error = targets - q
        loss = (0.5 * weights * error.square()).sum(dim=0).mean()
        return loss, error.detach().mean(dim=0)
