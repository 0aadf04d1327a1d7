"""What an algorithm is: it acts and learns, declares what it stores and what it learns from, and sees no store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Space

from sharpwave.spec import Field

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Obs = Any
"""Observations as an environment gives them: an array [lanes, ...], or a dict of arrays."""
State = Any
"""What an agent keeps for each lane between two actions; opaque to whoever carries it."""


class Spaces(NamedTuple):
    """What an environment shows and takes: of one lane, the stack of frames included."""

    observation: Space[Any]
    action: Space[Any]
    env: str = "the environment"


def space_text(space: Space[Any]) -> str:
    """A space for an error: "Box(1,)", "Discrete(4)"."""
    return f"{type(space).__name__}{space.shape}" if isinstance(space, Box) else str(space)


class Acted(NamedTuple):
    """Outcome of :meth:`Agent.act`.

    Attributes:
        action: [lanes, ...], as the environment takes them.
        state: of the lanes, for the next :meth:`Agent.observe`.
        fields: [lanes, ...] by name, to be stored with the step; those of :meth:`Agent.step_fields`.
    """

    action: npt.NDArray[Any]
    state: State
    fields: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Learned:
    """Outcome of one update.

    Attributes:
        td_error: float32 [B], target minus value, signed and unweighted: what priorities are made of; None: nothing.
        metrics: scalars by name; "loss" is shown while training goes on.
    """

    td_error: Tensor | None = None
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class View(Protocol):
    """What a store's view does for a learner."""

    def __len__(self) -> int: ...
    def sample(self, batch_size: int, *, beta: float | None = None) -> Any: ...
    def update_priorities(self, ids: Any, td_error: Any) -> Any: ...


class ViewSettings(Protocol):
    """Settings of the view that an agent learns from; :class:`sharpwave.agents.replay.TransitionsSettings` are some."""

    @property
    def batch_size(self) -> int:
        """Items of an update."""

    @property
    def horizon(self) -> int:
        """Later steps that a step waits for before it can be sampled."""

    @property
    def prioritized(self) -> bool:
        """Whether items are drawn by priorities, which :attr:`Learned.td_error` updates."""

    def open(self, store: Any, name: str | None, seed: int) -> Any:
        """Make the view of ``store``."""

    def beta(self, step: int) -> float | None:
        """Exponent of the importance weights after ``step`` environment steps; None: the sampler's own."""


class InitialErrors(Protocol):
    """Temporal-difference errors of the steps that lanes make, computed where they act. One object for all lanes."""

    @property
    def known(self) -> int:
        """Steps of every lane whose errors are known by now."""

    def add(
        self,
        acted: Acted,
        reward: npt.NDArray[np.floating],
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
        final_obs: Obs | None,
    ) -> None:
        """Add one step of every lane. ``final_obs`` is read where it was truncated; None: no episode ended."""

    def of(self, lane: int, first: int, steps: int) -> npt.NDArray[np.float32]:
        """float32 [steps], errors of a lane's steps from its number ``first`` on."""


class Agent(Protocol):
    """A learning algorithm. Subclasses inherit what is not abstract.

    All periods and schedules are in environment steps: ``step`` is how many the run has made. Torch's generators are
    the process's; all other randomness is the agent's own, and in :meth:`state`.

    Attributes:
        Settings: frozen dataclass of its settings, with its name as the class variable ``kind``.
        device: where batches are to be.
    """

    Settings: Any
    settings: Any
    device: torch.device

    @abstractmethod
    def __init__(self, spaces: Spaces, settings: Any, device: torch.device | str = "cpu", seed: Any = 0) -> None:
        """Make a fresh agent.

        Args:
            seed: of its exploration; the weights come from torch's generator.
        Raises:
            ValueError: it cannot learn in such spaces, naming what it needs, or a setting that does not fit.
        """

    def step_fields(self) -> dict[str, Field]:
        """Return what it stores with every step beside observation, action and reward."""
        return {}

    @abstractmethod
    def replay(self) -> ViewSettings:
        """Return the settings of the view that it learns from."""

    def scored_lanes(self, lanes: int) -> npt.NDArray[np.bool_]:
        """Return bool [lanes]: whose scores show what was learned. Where some explore much, those do not."""
        return np.ones(lanes, np.bool_)

    def begin(self, lanes: int, first_lane: int = 0, of_lanes: int | None = None) -> State:
        """Return the acting state of ``lanes`` lanes, all at an episode's start.

        Args:
            first_lane, of_lanes: which of how many lanes of the run these are.
        """
        return None

    @abstractmethod
    def act(self, obs: Obs, state: State, step: int, explore: bool = True) -> Acted:
        """Choose an action for every lane. Without ``explore`` nothing is drawn from the agent's generator."""

    def observe(self, state: State, reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_]) -> State:
        """Return the state for the next :meth:`act`, given the outcome: lanes that ``ended`` begin an episode."""
        return state

    def initial_errors(self, lanes: int, kept: int) -> InitialErrors | None:
        """Return what computes the first priorities of steps that this agent makes from now on; None: it does not.

        Args:
            kept: steps of each lane whose errors can be asked for.
        """
        return None

    @property
    def first_look(self) -> int:
        """Items that :meth:`prepare` wants to see before the first update; 0: none."""
        return 0

    def prepare(self, batch: Any) -> None:
        """Measure a first batch, to standardize observations for instance."""

    @abstractmethod
    def learn(self, batch: Any, step: int) -> Learned:
        """Make one update from a batch of tensors on the agent's device."""

    def schedules(self, step: int) -> dict[str, float]:
        """Return the values of its schedules after ``step`` steps, for reports."""
        return {}

    @abstractmethod
    def policy_tensors(self, explore: bool = False) -> dict[str, Tensor]:
        """Return a copy of what acting takes, on the CPU: of the policy that explores, or of the one that is kept."""

    @abstractmethod
    def load_policy(self, tensors: Mapping[str, Tensor]) -> None:
        """Act by tensors of :meth:`policy_tensors` from now on; such an agent is not meant to learn.

        Raises:
            ValueError: names or shapes of another policy.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return all that it would need to go on: dicts of tensors, and plain values for JSON, by name."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned.

        Raises:
            ValueError: of another agent.
        """
