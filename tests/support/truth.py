"""What environments really did, written down by the environments themselves, and what a store made of it.

An environment writes a line into a file of its own for every reset and every step, in whatever process it lives. From
these lines alone an :class:`Oracle` works out which transitions there are; :func:`compare` holds a store against them.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import sharpwave as sw
from tests.support.oracle import Obs, Oracle, Stacking

Array = np.ndarray[Any, Any]
MODES = {mode.value: mode for mode in gym.vector.AutoresetMode}


def plain(obs: Any) -> Any:
    """An observation as JSON has it; numbers come back as they were."""
    if isinstance(obs, Mapping):
        return {name: plain(value) for name, value in obs.items()}
    return [plain(one) for one in obs] if isinstance(obs, tuple) else np.asarray(obs).tolist()


class Logged(gym.Wrapper[Any, Any, Any, Any]):
    """The innermost wrapper: what ``reset`` and ``step`` gave goes into a file before anybody else sees it."""

    def __init__(self, env: Any, path: Path) -> None:
        super().__init__(env)
        self.path = path

    def _write(self, **event: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(event) + "\n")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        answer = self.env.reset(seed=seed, options=options)
        self._write(reset=plain(answer[0]))
        return answer

    def step(self, action: Any) -> Any:
        answer = self.env.step(action)
        obs, reward, terminated, truncated, _ = answer
        self._write(
            action=plain(action), reward=float(reward), ended=[bool(terminated), bool(truncated)], obs=plain(obs)
        )
        return answer


class Counting(gym.Env[Any, Any]):
    """No two observations are equal. Episodes have the given lengths in turn, and end by either flag, or both.

    Args:
        same_buffer: hand out the same array each time, overwritten.
        kind: "array", "dict" or "tuple" observations.
        nan_every, raise_every: steps after which a reward is not a number, or ``step`` raises instead of answering.
    """

    def __init__(
        self,
        index: int = 0,
        lengths: Sequence[int] = (5, 1, 9, 2, 14),
        same_buffer: bool = False,
        kind: str = "array",
        nan_every: int = 0,
        raise_every: int = 0,
    ) -> None:
        box = gym.spaces.Box(-1, 1_000_000, (3,), np.int32)
        half = gym.spaces.Box(-1, 1e6, (), np.float32)
        spaces: dict[str, Any] = {
            "array": box,
            "dict": gym.spaces.Dict({"count": box, "half": half}),
            "tuple": gym.spaces.Tuple([gym.spaces.Discrete(1_000_000)] * 3),
        }
        self.observation_space, self.action_space = spaces[kind], gym.spaces.Discrete(1_000_000)
        self.index, self.lengths, self.same_buffer, self.kind = index, lengths, same_buffer, kind
        self.nan_every, self.raise_every = nan_every, raise_every
        self.buffer = np.zeros(3, np.int32)
        self.episode = self.time = self.count = self.steps = 0

    def _observe(self) -> Any:
        self.count += 1
        values = [self.index, self.time, self.count]
        if self.kind == "tuple":
            return tuple(np.int64(value) for value in values)
        if self.kind == "dict":
            return {"count": np.array(values, np.int32), "half": np.array(self.count / 2, np.float32)}
        if not self.same_buffer:
            return np.array(values, np.int32)
        self.buffer[:] = values
        return self.buffer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.time, self.steps = self.time + 1, self.steps + 1
        if self.raise_every and self.steps % self.raise_every == 0:
            raise RuntimeError("the environment crashed")
        over = self.time >= self.lengths[self.episode % len(self.lengths)]
        terminated, truncated = over and self.episode % 3 != 1, over and self.episode % 3 != 2
        nan = self.nan_every and self.steps % self.nan_every == 0
        return self._observe(), float("nan") if nan else float(self.steps % 16), terminated, truncated, {}


class CrashesAfter(gym.Wrapper[Any, Any, Any, Any]):
    """Raises now and then when the environment inside has stepped already: nobody hears of that step."""

    def __init__(self, env: Any, every: int) -> None:
        super().__init__(env)
        self.every, self.steps = every, 0

    def step(self, action: Any) -> Any:
        answer = self.env.step(action)
        self.steps += 1
        if self.steps % self.every == 0:
            raise RuntimeError("the wrapper crashed")
        return answer


@dataclass
class Truth:
    """What the environments of every lane wrote, in order.

    Attributes:
        field: of the observation, or a dict of those.
        reward: what wrappers make of the environment's reward.
        events: by lane, of environments that cannot write.
        limits: by lane, how many steps the store got, where the last ones may have been lost.
    """

    folder: Path
    field: sw.Field | Mapping[str, sw.Field]
    reward: Callable[[float], float] = lambda reward: reward
    events: dict[int, list[dict[str, Any]]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    limits: dict[int, int] = dataclasses.field(default_factory=dict)
    files: dict[int, list[Path]] = dataclasses.field(default_factory=lambda: defaultdict(list))

    def path(self, lane: int) -> Path:
        """A new file for the lane."""
        path = self.folder / f"{lane}-{len(self.files[lane])}.jsonl"
        path.touch()
        self.files[lane].append(path)
        return path

    def refuse(self, lane: int) -> None:
        """The lane's last step was not stored, as its caller was told."""
        path = self.files[lane][-1]
        lines = path.read_text().splitlines()
        if any('"action"' in line for line in lines):
            last = max(i for i, line in enumerate(lines) if '"action"' in line)
            lines[last] = json.dumps(json.loads(lines[last]) | {"refused": True})
            path.write_text("".join(line + "\n" for line in lines))

    def oracle(self) -> Oracle:
        """All transitions there are: chains of steps from a reset, or from behind a step that was not stored."""
        some = self.field
        oracle = Oracle(
            {name: Stacking(one.stack, one.pad) for name, one in some.items()}
            if isinstance(some, Mapping)
            else Stacking(some.stack, some.pad)
        )
        for lane, events in self.events.items():
            self._add(oracle, lane, events)
        for lane, files in self.files.items():
            for path in files:
                self._add(oracle, lane, [json.loads(line) for line in path.read_text().splitlines()])
        return oracle

    def _rows(self, obs: Any) -> Obs:
        if isinstance(self.field, Mapping):
            return {name: np.asarray(obs[name], one.dtype) for name, one in self.field.items()}
        return np.asarray(obs, self.field.dtype)

    def _add(self, oracle: Oracle, lane: int, events: list[dict[str, Any]]) -> None:
        now: Any = None
        for event in events:
            if len(oracle.lanes.get(lane, ())) >= self.limits.get(lane, 1 << 62):
                break
            if "reset" in event:
                if oracle.can_end_episode(lane):
                    oracle.end_episode(lane, self._rows(now))
                now = event["reset"]
            elif "action" in event:
                reward, (terminated, truncated) = self.reward(event["reward"]), event["ended"]
                if event.get("refused") or not np.isfinite(reward):
                    if oracle.can_end_episode(lane):
                        oracle.end_episode(lane, self._rows(now))
                else:
                    final = self._rows(event["obs"]) if terminated or truncated else None
                    oracle.append(lane, self._rows(now), event["action"], reward, terminated, truncated, final)
                now = event["obs"]
        if oracle.can_end_episode(lane):
            oracle.end_episode(lane, self._rows(now))  # the environment is gone, or is reset now


@dataclass
class Compared:
    """Attributes: how many transitions were compared; those that never happened, and those that are not there."""

    compared: int = 0
    wrong: int = 0
    missing: int = 0


def key(obs: Obs, row: int | None = None) -> bytes:
    """An observation's bytes, of all its fields."""
    if isinstance(obs, Mapping):
        return b"".join(key(obs[name], row) for name in sorted(obs))
    array = np.asarray(obs) if row is None else obs[row]
    return np.ascontiguousarray(array).tobytes()


def compare(store: sw.Store, oracle: Oracle, n_step: int, gamma: float = 0.5) -> Compared:
    """Hold everything that can be sampled of ``store`` against the oracle."""
    replay = store.transitions(n_step=n_step, gamma=gamma)
    ids = replay.sampleable_ids()
    found: dict[Any, list[float]] = defaultdict(list)
    for part in np.array_split(ids, max(1, len(ids) // 512)):
        if len(part):
            batch = replay.fetch(part)
            for i in range(len(part)):
                which = key(batch.obs, i), batch.action[i].tobytes(), key(batch.next_obs, i), float(batch.discount[i])
                found[which].append(float(batch.reward[i]))
    action = np.dtype(store.spec.fields["action"].dtype)
    expected: dict[Any, list[float]] = defaultdict(list)
    for serial in oracle.sampleable(n_step):
        one = oracle.transition(serial, n_step, gamma)
        which = key(one.obs), one.action.astype(action).tobytes(), key(one.next_obs), float(np.float32(one.discount))
        expected[which].append(one.reward)
    result = Compared(len(ids))
    for which in found.keys() | expected.keys():
        due = list(expected[which])
        for reward in found[which]:
            near = next((one for one in due if np.isclose(one, reward, rtol=1e-5, atol=1e-5)), None)
            result.wrong += near is None
            if near is not None:
                due.remove(near)
        result.missing += len(due)
    return result
