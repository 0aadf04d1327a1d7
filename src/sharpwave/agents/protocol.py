"""Protocol of algorithms: an agent acts, learns, and declares its step fields and its view, but holds no store."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sharpwave.spec import Field
from sharpwave.teams import ACTION_MASK

if TYPE_CHECKING:  # the command line reads settings of views, where neither torch nor gymnasium need be there
    import torch
    from gymnasium.spaces import Space
    from torch import Tensor

Obs = Any
"""Observations of an environment: an array [lanes, ...], or a dict of arrays."""
State = Any
"""Acting state of an agent's lanes between two actions; opaque to the caller."""
Rows = npt.NDArray[Any]
"""Array with one row a lane, [N, ...]."""
Floats = npt.NDArray[np.floating]
Bools = npt.NDArray[np.bool_]


class Spaces(NamedTuple):
    """Observation and action space of one lane, the stack of frames included."""

    observation: Space[Any]
    action: Space[Any]
    env: str = "the environment"

    @property
    def masked(self) -> bool:
        """Whether the part ``action_mask`` of the observation, [n], says which of the ``Discrete`` actions are legal.

        Raises:
            ValueError: the part has another shape.
        """
        from gymnasium.spaces import Dict, Discrete

        if not isinstance(self.action, Discrete) or not isinstance(self.observation, Dict):
            return False
        mask = self.observation.spaces.get(ACTION_MASK)
        if mask is not None and mask.shape != (self.action.n,):
            raise ValueError(
                f"{self.env}: the observation's {ACTION_MASK!r} is {mask}, expected MultiBinary({self.action.n}): 1 "
                "for each legal action, else 0; give the part another name if it is something else"
            )
        return mask is not None

    @property
    def seen(self) -> Space[Any]:
        """Space of the networks' observations: without the mask of actions, unless that is all there is."""
        from gymnasium.spaces import Dict

        if not self.masked or not isinstance(self.observation, Dict):
            return self.observation
        parts = {name: part for name, part in self.observation.spaces.items() if name != ACTION_MASK}
        return Dict(parts) if parts else self.observation


def space_text(space: Space[Any]) -> str:
    """Format a space for an error message: "Box(1,)", "Discrete(4)"."""
    from gymnasium.spaces import Box

    return f"{type(space).__name__}{space.shape}" if isinstance(space, Box) else str(space)


class Acted(NamedTuple):
    """Outcome of ``Agent.act``.

    Attributes:
        action: [lanes, ...], actions for the environment.
        state: acting state of the lanes, for the next ``Agent.observe``.
        fields: [lanes, ...] by name, values of ``Agent.step_fields`` to store with the step.
    """

    action: npt.NDArray[Any]
    state: State
    fields: Mapping[str, Any] = {}


class Valued(NamedTuple):
    """Outcome of ``Agent.values_along``.

    Attributes:
        values: Q of the observations, float32 [N, A], in units of returns.
        taken: numbers of the actions that were taken, int64 [N].
        state: acting state after the last of them.
    """

    values: npt.NDArray[np.float32]
    taken: npt.NDArray[np.int64]
    state: State


@dataclass(frozen=True)
class Learned:
    """Outcome of one update.

    Attributes:
        td_error: float32 [B], target minus value, signed and unweighted, for priorities; None: no priorities.
        metrics: scalars by name; "loss" is displayed during training.
    """

    td_error: Tensor | None = None
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class ViewSettings(Protocol):
    """Settings of the view that an agent learns from, such as ``sharpwave.agents.replay.TransitionsSettings``.

    Subclasses inherit the defaults of a view whose items are sampled uniformly and not used up.
    """

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Items per update."""

    @property
    def fewest(self) -> int:
        """Items without which no update is made: 1, or a batch where items are used up."""
        return 1

    @property
    def takes_all(self) -> bool:
        """Whether an update takes all items that wait in this process, at least ``fewest``, not a batch of them."""
        return False

    @property
    def horizon(self) -> int:
        """Later steps that must arrive before a step can be sampled."""
        return 1

    @property
    def most_samples(self) -> float:
        """Items that can be sampled for each step that arrives; infinite where they are not used up."""
        return math.inf

    @property
    def prioritized(self) -> bool:
        """Whether items are sampled by priorities, which ``Learned.td_error`` updates."""
        return False

    @abstractmethod
    def open(self, store: Any, name: str | None, seed: int) -> Any:
        """Make the view of ``store``."""

    def beta(self, step: int) -> float | None:
        """Return the exponent of importance weights after ``step`` environment steps; None: the sampler's own."""
        return None


class Agent(Protocol):
    """Learning algorithm. Subclasses inherit the defaults of methods that are not abstract.

    All periods and schedules are in environment steps: ``step`` is the number that the run has made. Torch's generators
    belong to the process; all other random state is the agent's own and part of ``state``.

    Attributes:
        Settings: frozen dataclass of its settings; the class variable ``kind`` is the algorithm's name.
        device: device of the batches that it learns from.
    """

    Settings: Any
    settings: Any
    device: torch.device

    @abstractmethod
    def __init__(self, spaces: Spaces, settings: Any, device: torch.device | str = "cpu", seed: Any = 0) -> None:
        """Make a fresh agent.

        Args:
            seed: seed of its exploration; initial weights are drawn from torch's generator.
        Raises:
            ValueError: the algorithm does not support the spaces, or a setting is invalid.
        """

    @property
    def precision(self) -> str:
        """Precision that its networks compute in, as chosen on this machine: "float32" or "bfloat16"."""
        return "float32"

    def step_fields(self) -> dict[str, Field]:
        """Return the fields that it stores with every step beside observation, action and reward."""
        return {}

    @abstractmethod
    def replay(self) -> ViewSettings:
        """Return the settings of the view that it learns from."""

    def scored_lanes(self, lanes: int) -> Bools:
        """Return bool [lanes]: lanes whose scores show what was learned; those that explore much do not."""
        return np.ones(lanes, np.bool_)

    def begin(self, lanes: int, first_lane: int = 0, of_lanes: int | None = None) -> State:
        """Return the acting state of ``lanes`` lanes, all at an episode's start.

        Args:
            first_lane: number of the first of them among the run's lanes.
            of_lanes: number of the run's lanes; None: ``lanes``.
        """
        return None

    @abstractmethod
    def act(self, obs: Obs, state: State, step: int, explore: bool = True) -> Acted:
        """Choose an action for every lane. Without ``explore`` the agent's generator is not used."""

    @property
    def inference_space(self) -> Space[Any] | None:
        """Space of the observations that ``infer`` takes; None: ``act`` or ``initial_errors`` compute networks in
        other ways too, so that no other process can do it for the lanes of many actors at once."""
        return None

    def infer(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        """Compute the network that acts; a row of the results depends on weights and its own row of the arguments.

        Nothing is drawn here, and no state changes. An actor may put a call to another process in this method's place.

        Args:
            obs: [N, ...], of any lanes.  memory: [N, ...], of the lanes, where networks take it.
        Returns:
            arrays [N, ...] that the caller keeps.
        """
        return ()

    def replaced(self, state: State, action: Rows) -> State:
        """Return the state of ``Acted`` for other actions [lanes, ...] than those it chose, made in their place."""
        return state

    @property
    def remembers(self) -> bool:
        """Whether actions depend on earlier steps of the episode, which the acting state then holds."""
        return self.begin(1) is not None

    def observe(self, state: State, reward: Rows, ended: Bools) -> State:
        """Return the state for the next ``act``, given the outcome; lanes that ``ended`` begin a new episode."""
        return state

    def values_along(self, obs: Obs, action: Rows, reward: Rows, state: State) -> Valued | None:
        """Compute Q of an episode's consecutive observations, as the policy sees them; None: the agent has no Q.

        Args:
            obs, action, reward: [N, ...], observations, the actions that were taken, and their rewards.
            state: ``begin(1)`` at the episode's start; then that of ``Valued``.
        """
        return None

    def initial_errors(self, lanes: int, kept: int) -> Any:
        """Make the computation of initial priorities for this agent's steps from now on, with the methods of
        ``sharpwave.agents.dqn.NStepErrors``; None: it has none.

        Args:
            kept: steps of each lane whose errors are kept.
        """
        return None

    @property
    def first_look(self) -> int:
        """Number of items for ``prepare`` before the first update; 0: none."""
        return 0

    def prepare(self, batch: Any) -> None:
        """Measure a first batch, for instance to standardize observations."""
        return None  # without it, type checkers take it for abstract

    @abstractmethod
    def learn(self, batch: Any, step: int) -> Learned:
        """Make one update from a batch of tensors on the agent's device."""

    def schedules(self, step: int) -> dict[str, float]:
        """Return the values of its schedules after ``step`` steps, for reports."""
        return {}

    @abstractmethod
    def policy_tensors(self, explore: bool = False) -> dict[str, Tensor]:
        """Return a copy on the CPU of the tensors needed to act: of the saved policy, or of the one that explores."""

    @abstractmethod
    def load_policy(self, tensors: Mapping[str, Tensor]) -> None:
        """Load tensors of ``policy_tensors``, for an agent that acts but does not learn.

        Raises:
            ValueError: the names or shapes are those of another policy.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the complete state to resume from: dicts of tensors, and plain values for JSON, by name."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that ``state`` returned.

        Raises:
            ValueError: the state is that of another agent.
        """
