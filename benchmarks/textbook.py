"""Rungs of the ladder, and DQN as in a textbook, for measurement: a list of transitions, a plain network.

It is slow where the book's is slow; nothing else in the project uses it. Acting may be in a separate process, as there:
transitions over a queue, weights in shared memory. The textbook's learner takes the available transitions and
continues; this one waits for PER_UPDATE of them, so that the ratio of steps to updates is that of the other rungs on
every machine.
"""

from __future__ import annotations

import queue
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, multiprocessing, nn

from sharpwave.agents.replay import linear
from sharpwave.bench.trainer import PARTS, Clock
from sharpwave.envs import AtariFrames, AtariSettings

TEXTBOOK = "M. Lapan, Deep Reinforcement Learning Hands-On, chapter 'Ways to speed up RL' (i5-6600K, GTX 1080 Ti)"


@dataclass(frozen=True)
class Published:
    """Published run of the textbook: speed, and minutes until the running mean (alpha .98) of rewards passes 17."""

    steps_per_second: float
    minutes: float

    @property
    def frames(self) -> float:
        """Agent steps until then."""
        return self.steps_per_second * self.minutes * 60


@dataclass(frozen=True)
class Rung:
    """Configuration for training Pong.

    Attributes:
        change: description in a line.
        kind: training loop: "textbook", "parallel", "sharpwave" or "sb3".
        lanes: environments of this package's loops: "gymnasium", "cheap" or "vector" (see ``make_lanes``).
        envs: environments stepped together.
        no_grad: whether the target network's pass is made without gradients.
        times: factor of a slice's steps, for quick rungs.
        published: the textbook's results.
        frames_of: rung whose published frames also hold for this one, as both learn the same from the same.
        needs: modules that it imports beyond those of sharpwave[train].
        settings: changed settings of recipe pong-dqn; only of kind "sharpwave".
    """

    change: str
    kind: str = "textbook"
    lanes: str = "gymnasium"
    envs: int = 1
    no_grad: bool = True
    times: int = 1
    published: Published | None = None
    frames_of: str | None = None
    needs: tuple[str, ...] = ("cv2",)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def missing(self) -> str | None:
        """Return which packages are missing and how to install them; None: none."""
        absent = [name for name in self.needs if find_spec(name) is None]
        return f"{', '.join(absent)} not installed: pip install '.[bench]'" if absent else None


ENVS = (2, 3, 4, 5, 6)

RUNGS: dict[str, Rung] = {
    "baseline": Rung("one environment, an update of 32 a step", published=Published(159, 105)),
    "slow-grads": Rung("baseline with gradients in the target's pass", no_grad=False, published=Published(157, 115)),
    **{
        f"n-envs-{count}": Rung(
            f"{count} environments in turn, an update of {32 * count} for {count} steps",
            envs=count,
            published=Published(228, 44) if count == 3 else None,
        )
        for count in ENVS
    },
    "parallel": Rung("baseline played and trained in two processes", kind="parallel", published=Published(402, 59)),
    "wrappers": Rung(
        "n-envs-3 with cheaper wrappers, 2 frames", lanes="cheap", envs=3, published=Published(330, 40)
    ),
    "parallel-wrappers": Rung(
        "parallel with cheaper wrappers, 2 frames", kind="parallel", lanes="cheap", published=Published(409, 31)
    ),
    "vector-env": Rung(
        "n-envs-3 with ale-py's vector environment", lanes="vector", envs=3, frames_of="n-envs-3", needs=()
    ),
    "full": Rung("sharpwave train pong-dqn", kind="sharpwave", times=8, needs=()),
    "full-float32": Rung(
        "full without bfloat16", kind="sharpwave", times=8, needs=(), settings={"precision": "float32"}
    ),
    "sb3": Rung("stable-baselines3's DQN, settings of its zoo", kind="sb3", needs=("stable_baselines3", "cv2")),
}  # fmt: skip


def chosen(names: str) -> list[str]:
    """Parse names of rungs: "baseline,n-envs"; a name without its number means all of them; empty: every rung.

    Raises:
        ValueError: an unknown name.
    """
    found: list[str] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        some = [rung for rung in RUNGS if rung == name or rung.rpartition("-")[0] == name == "n-envs"]
        if not some:
            raise ValueError(f"--rungs: got {name!r}, expected some of {','.join(RUNGS)}, or n-envs for all of these")
        found += some
    return list(dict.fromkeys(found)) or list(RUNGS)


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


Frame = npt.NDArray[np.uint8]


class Outcome(NamedTuple):
    """Outcome of a step: the successor ``next_state``, and ``state`` to act on, another one after an episode's end."""

    next_state: LazyFrames
    reward: float
    done: bool
    state: LazyFrames


class Lanes(Protocol):
    """Several environments that are stepped together."""

    num_actions: int
    stack: int

    def reset(self, seed: int) -> list[LazyFrames]:
        """Begin new episodes in all environments."""

    def step(self, actions: Sequence[int]) -> list[Outcome]:
        """Step each environment."""


def make_lanes(kind: str, envs: int) -> Lanes:
    """Make environments of a kind: "gymnasium" (AtariPreprocessing and a stack of 4), "cheap" (``CheapPong`` and a
    stack of 2) or "vector" (ale-py's AtariVectorEnv and a stack of 4)."""
    if kind == "vector":
        return VectorLanes(envs)
    if kind == "cheap":
        return PythonLanes([CheapPong() for _ in range(envs)], stack=2)
    return PythonLanes([preprocessed() for _ in range(envs)], stack=4)


def pong(**options: Any) -> gymnasium.Env[Any, Any]:
    """Make Pong without sticky actions; importing ale-py registers it."""
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("PongNoFrameskip-v4", **options)


def preprocessed() -> gymnasium.Env[Any, Any]:
    """Make Pong with Gymnasium's wrapper: no-ops at the start, 4 frames a step, the maximum of two, 84x84."""
    from gymnasium.wrappers import AtariPreprocessing

    return AtariPreprocessing(pong())


class CheapPong(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pong whose emulator skips frames and returns the last one in grey: Pong needs no maximum of two and no no-ops."""

    def __init__(self) -> None:
        super().__init__(pong(frameskip=4, obs_type="grayscale"))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Begin an episode; its first frame is [84, 84]."""
        screen, info = self.env.reset(seed=seed, options=options)
        return _shrunk(screen), info

    def step(self, action: Any) -> tuple[Frame, Any, bool, bool, dict[str, Any]]:
        """Step the game; the frame is [84, 84]."""
        screen, reward, terminated, truncated, info = self.env.step(action)
        return _shrunk(screen), reward, terminated, truncated, info


def _shrunk(screen: Frame) -> Frame:
    import cv2

    return np.asarray(cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA), np.uint8)


class PythonLanes:
    """Lanes of single environments, stepped one after the other.

    Gymnasium's FrameStackObservation copies whole stacks; here neighbouring observations share their frames.
    """

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], stack: int) -> None:
        self._envs = envs
        self.stack = stack
        self.num_actions = int(getattr(envs[0].action_space, "n"))  # noqa: B009
        self._frames: list[deque[Frame]] = [deque(maxlen=stack) for _ in envs]

    def reset(self, seed: int) -> list[LazyFrames]:
        """Begin new episodes; environment i is seeded with ``seed + i``."""
        return [self._begin(lane, seed + lane) for lane in range(len(self._envs))]

    def step(self, actions: Sequence[int]) -> list[Outcome]:
        """Step each environment; one whose episode ends is reset in the same step."""
        outcomes = []
        for lane, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
            frame, reward, terminated, truncated, _ = env.step(action)
            self._frames[lane].append(frame)
            next_state = LazyFrames(self._frames[lane])
            done = bool(terminated or truncated)
            outcomes.append(Outcome(next_state, float(reward), done, self._begin(lane) if done else next_state))
        return outcomes

    def _begin(self, lane: int, seed: int | None = None) -> LazyFrames:
        frame, _ = self._envs[lane].reset(seed=seed)
        self._frames[lane].extend([frame] * self.stack)
        return LazyFrames(self._frames[lane])


class VectorLanes:
    """Lanes of ale-py's AtariVectorEnv, whose C++ threads step, shrink and stack. The newest frames are copied out."""

    stack = 4

    def __init__(self, envs: int) -> None:
        self._env = AtariFrames("pong", envs, AtariSettings(stack=self.stack))
        self.num_actions = len(self._env.action_names)
        self._frames: list[deque[Frame]] = [deque(maxlen=self.stack) for _ in range(envs)]

    def reset(self, seed: int) -> list[LazyFrames]:
        """Begin new episodes; environment i is seeded with ``seed + i``."""
        obs, _ = self._env.reset(seed=seed)
        return [self._begin(lane, stack) for lane, stack in enumerate(obs)]

    def step(self, actions: Sequence[int]) -> list[Outcome]:
        """Step each environment; one whose episode ends is reset in the same step."""
        obs, reward, terminated, truncated, infos = self._env.step(np.array(actions))
        outcomes = []
        for lane, ended in enumerate(terminated | truncated):
            newest = infos["final_obs"][lane, -1] if ended else obs[lane, -1]
            self._frames[lane].append(newest.copy())
            next_state = LazyFrames(self._frames[lane])
            state = self._begin(lane, obs[lane]) if ended else next_state
            outcomes.append(Outcome(next_state, float(reward[lane]), bool(ended), state))
        return outcomes

    def _begin(self, lane: int, stack: Frame) -> LazyFrames:
        self._frames[lane].extend(frame.copy() for frame in stack)
        return LazyFrames(self._frames[lane])


PER_UPDATE = 4
TIMEOUT_S = 120.0
"""Seconds that one process waits for the other at most."""


def shape(rung: Rung) -> tuple[int, int]:
    """Return stack and number of actions of a rung's environments."""
    lanes = make_lanes(rung.lanes, 1)
    return lanes.stack, lanes.num_actions


class Player:
    """Context manager of the process that acts.

    Args:
        net: network that it acts with; moved to shared memory, so that every update is visible at once.
        warmup: initial random steps.
    """

    def __init__(self, rung: Rung, net: nn.Module, seed: int, warmup: int) -> None:
        context = multiprocessing.get_context("spawn")
        net.share_memory()
        self._queue: Any = context.Queue(maxsize=2 * PER_UPDATE)
        self._seconds = context.Array("d", len(PARTS), lock=False)
        self._process: Any = context.Process(
            target=play,
            args=(rung, net, seed, warmup, torch.get_num_threads(), self._queue, self._seconds),
            daemon=True,
        )

    def __enter__(self) -> Player:
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._process.kill()  # it has nothing to save, and may be blocked by a full queue
        self._process.join()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return int(self._process.pid)

    def get(self) -> Transition:
        """Return the next transition.

        Raises:
            RuntimeError: timed out.
        """
        try:
            transition: Transition = self._queue.get(timeout=TIMEOUT_S)
        except queue.Empty:
            state = "is running" if self._process.is_alive() else f"ended with {self._process.exitcode}"
            raise RuntimeError(
                f"timed out after {TIMEOUT_S:g} s without a transition from the acting process, which {state}"
            ) from None
        return transition

    def seconds(self) -> dict[str, float]:
        """Return the process's seconds so far, by part."""
        return dict(zip(PARTS, self._seconds, strict=True))


def play(rung: Rung, net: nn.Module, seed: int, warmup: int, threads: int, transitions: Any, seconds: Any) -> None:
    """Act until the process is killed or the queue is full for too long. The target of the process."""
    transitions.cancel_join_thread()  # so that unread transitions in the queue do not block the exit
    torch.set_num_threads(threads)
    rng = np.random.default_rng(seed)
    lanes = make_lanes(rung.lanes, rung.envs)
    clock = Clock(seconds)
    put: Callable[..., None] = clock.timed("waiting", transitions.put)
    states = lanes.reset(seed)
    step = 0
    while True:
        with clock.part("inference"):
            if step < warmup:
                actions = rng.integers(lanes.num_actions, size=rung.envs).tolist()
            else:
                actions = act(net, states, lanes.num_actions, exploration(step), rng)
        with clock.part("environment"):
            outcomes = lanes.step(actions)
        for state, action, outcome in zip(states, actions, outcomes, strict=True):
            put(Transition(state, action, outcome.reward, outcome.done, outcome.next_state), timeout=TIMEOUT_S)
        states = [outcome.state for outcome in outcomes]
        step += len(states)
