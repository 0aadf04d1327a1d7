"""DQN as in a textbook, for measurement: a list of transitions, a loop over each batch, a plain network.

It is slow where the book's is slow; nothing else in the project uses it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sharpwave.agents.schedules import linear

CAPACITY = 100_000
BATCH = 32
GAMMA = 0.99
LEARNING_RATE = 1e-4
TARGET_EVERY = 1000
"""Updates between copies to the target network."""
EPSILON_START, EPSILON_END, EPSILON_STEPS = 1.0, 0.02, 100_000


class LazyFrames:
    """Observation as references to its frames, which neighbours share; converted to an array on demand.

    Args:
        frames: frames [H, W], oldest first.
    """

    __slots__ = ("frames",)

    def __init__(self, frames: Sequence[npt.NDArray[np.uint8]]) -> None:
        self.frames = tuple(frames)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.stack(self.frames).astype(dtype or np.uint8, copy=False)


class Transition(NamedTuple):
    """Transition: one step and its outcome."""

    state: LazyFrames
    action: int
    reward: float
    done: bool
    next_state: LazyFrames


class Batch(NamedTuple):
    """Batch of transitions as tensors.

    states, next_states: uint8 [B, stack, H, W].  actions: int64 [B].  rewards: float32 [B].  dones: bool [B].
    """

    states: Tensor
    actions: Tensor
    rewards: Tensor
    dones: Tensor
    next_states: Tensor


class ListBuffer:
    """Replay buffer: the newest ``capacity`` transitions in a list."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._items: list[Transition] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._items)

    def append(self, transition: Transition) -> None:
        """Add a transition; a full buffer evicts the oldest."""
        if len(self._items) < self._capacity:
            self._items.append(transition)
        else:
            self._items[self._next] = transition
            self._next = (self._next + 1) % self._capacity

    def sample(self, count: int, rng: np.random.Generator) -> list[Transition]:
        """Sample ``count`` transitions uniformly with replacement."""
        return [self._items[index] for index in rng.integers(0, len(self._items), count)]

    def nbytes(self) -> int:
        """Return the bytes of all objects it refers to, each counted once."""
        seen: dict[int, int] = {}
        for item in self._items:
            objects: list[object] = [item, item.reward]
            for state in (item.state, item.next_state):
                objects += [state, state.frames, *state.frames]
            seen |= {id(found): _size(found) for found in objects}
        return sys.getsizeof(self._items) + sum(seen.values())


def _size(item: object) -> int:
    own = sys.getsizeof(item)  # includes an array's data, unless it is a view of another object's
    return own + item.nbytes if isinstance(item, np.ndarray) and not item.flags.owndata else own


def tensors(batch: Sequence[Transition]) -> Batch:
    """Convert transitions to tensors."""
    states, actions, rewards, dones, next_states = [], [], [], [], []
    for item in batch:
        states.append(np.asarray(item.state))
        actions.append(item.action)
        rewards.append(item.reward)
        dones.append(item.done)
        next_states.append(np.asarray(item.next_state))
    return Batch(
        torch.tensor(np.array(states)),
        torch.tensor(actions),
        torch.tensor(rewards, dtype=torch.float32),
        torch.tensor(dones),
        torch.tensor(np.array(next_states)),
    )


class NatureNetwork(nn.Module):
    """Network of Mnih et al. (2015): uint8 [B, stack, 84, 84] -> float [B, A]."""

    def __init__(self, stack: int, num_actions: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(stack, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(), nn.Flatten(), nn.Linear(7 * 7 * 64, 512), nn.ReLU(), nn.Linear(512, num_actions),
        )  # fmt: skip

    def forward(self, frames: Tensor) -> Tensor:
        """Compute Q from frames, which are divided by 255 first."""
        q: Tensor = self.layers(frames.float() / 255.0)
        return q


def exploration(step: int) -> float:
    """Return epsilon after ``step`` environment steps."""
    return linear(step, EPSILON_START, EPSILON_END, EPSILON_STEPS)


@torch.no_grad()
def act(
    net: nn.Module, states: Sequence[LazyFrames], num_actions: int, epsilon: float, rng: np.random.Generator
) -> list[int]:
    """Choose epsilon-greedy actions, one for each state. The network is evaluated whatever epsilon is."""
    greedy = net(torch.tensor(np.array([np.asarray(state) for state in states]))).argmax(dim=1).tolist()
    return [int(rng.integers(num_actions)) if rng.random() < epsilon else int(action) for action in greedy]


class Learner:
    """Learner: online and target network, and Adam.

    Args:
        no_grad: whether the target network's pass is made without gradients.
    """

    def __init__(self, stack: int, num_actions: int, no_grad: bool = True) -> None:
        self.net = NatureNetwork(stack, num_actions)
        self._target = NatureNetwork(stack, num_actions)
        self._target.load_state_dict(self.net.state_dict())
        self._optimizer = torch.optim.Adam(self.net.parameters(), lr=LEARNING_RATE)
        self._no_grad = no_grad
        self.updates = 0

    def learn(self, batch: Batch) -> float:
        """Make one update by the one-step squared error; every TARGET_EVERY updates copy to the target."""
        self._optimizer.zero_grad()
        values = self.net(batch.states).gather(1, batch.actions.unsqueeze(-1)).squeeze(-1)
        with torch.set_grad_enabled(not self._no_grad):
            next_values = self._target(batch.next_states).max(dim=1)[0].masked_fill(batch.dones, 0.0)
        loss = nn.functional.mse_loss(values, batch.rewards + GAMMA * next_values.detach())
        loss.backward()
        self._optimizer.step()
        self.updates += 1
        if self.updates % TARGET_EVERY == 0:
            self._target.load_state_dict(self.net.state_dict())
        return loss.item()
