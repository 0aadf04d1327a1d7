"""Q-values of an episode's steps by a run's saved policy, computed on request, beside a running training."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Floats
from sharpwave.extras import install
from sharpwave.offline.surveys import EpisodeSpan
from sharpwave.spec import Field
from sharpwave.training.folder import LAST, steps_of
from sharpwave.viewer.priorities import numbers
from sharpwave.viewer.snapshots import Snapshot
from sharpwave.viewer.sources import ViewerSource, checkpoints
from sharpwave.viewer.step_curves import MAX_POINTS, thinned

if TYPE_CHECKING:
    from sharpwave.training.policies import Policy

MAX_STEPS = 100_000
"""Limit of an episode's steps."""
MAX_ACTIONS = 18
"""Limit of the actions whose values are kept one by one, Atari's number; of more, only the largest is kept."""
LIMIT_S = 60.0
"""Limit of the time for one episode."""
ROWS = 128
"""Number of observations in one pass of the network."""
KEPT = 16
"""Number of episodes whose values are kept."""
NICENESS = 15
"""Niceness of the computing thread."""

_turn = threading.Lock()
"""Lock of the computation: torch's number of threads is the process's, and a live run needs the processors."""


class NoValuesError(ValueError):
    """Reason why an episode has no Q-values."""


@dataclass(frozen=True)
class ActionValues:
    """Q-values of an episode of T steps.

    Attributes:
        largest, taken: float64 [T], largest Q, and Q of the taken action; NaN where unknown.
        td_error: float64 [T], ``r + gamma max Q(s') - Q(s, a)``, without the second term where the episode terminated.
        each: float32 [T, A], Q of all actions; ``None``: more than ``MAX_ACTIONS``.
        steps: environment steps at which the policy was saved.
    """

    largest: Floats
    taken: Floats
    td_error: Floats
    each: npt.NDArray[np.float32] | None
    steps: int


class EpisodePart(NamedTuple):
    """Consecutive observations of an episode from step ``step`` on, as agents see them, with actions and rewards. The
    final observation, if it comes last, has zeros for both."""

    step: int
    obs: Any
    action: Any
    reward: npt.NDArray[np.float32]


class ValuesOf:
    """Q-values of a source's episodes. Any thread may ask; one thread computes, and results are kept."""

    def __init__(self, source: ViewerSource) -> None:
        self._source = source
        self._found: OrderedDict[tuple[Any, ...], ActionValues | NoValuesError] = OrderedDict()
        self._policy: tuple[tuple[Any, ...], Policy] | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def ask(self, snapshot: Snapshot, episode: EpisodeSpan) -> ActionValues | None:
        """Return an episode's values; ``None``: the computation is running; ask again.

        Raises:
            NoValuesError: the episode has none; the message says why.
        """
        version = self._version()
        identity = snapshot.survey.described.identity.store
        key = (identity, episode.lane, episode.first_step, episode.steps, episode.end, version)
        with self._lock:
            if (found := self._found.get(key)) is not None:
                self._found.move_to_end(key)
                if isinstance(found, NoValuesError):
                    raise found
                return found
            if self._thread is None or not self._thread.is_alive():
                work = (key, version, snapshot, episode)
                self._thread = threading.Thread(target=self._run, args=work, daemon=True, name="sharpwave-values")
                self._thread.start()
        return None

    def wait(self, timeout_s: float) -> None:
        """Wait for a running computation."""
        if (thread := self._thread) is not None:
            thread.join(timeout_s)

    def compute(self, snapshot: Snapshot, episode: EpisodeSpan) -> ActionValues:
        """Compute an episode's values.  Raises: NoValuesError."""
        return self._compute(self._version(), snapshot, episode)

    def _run(self, key: tuple[Any, ...], version: tuple[Any, ...], snapshot: Snapshot, episode: EpisodeSpan) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # on Linux for this thread only
        found: ActionValues | NoValuesError
        try:
            found = self._compute(version, snapshot, episode)
        except NoValuesError as error:
            found = error
        with self._lock:
            self._found[key] = found
            while len(self._found) > KEPT:
                self._found.popitem(last=False)

    def _compute(self, version: tuple[Any, ...], snapshot: Snapshot, episode: EpisodeSpan) -> ActionValues:
        if self._source.run is None:
            raise NoValuesError("a store has no policy; give the run that wrote it")
        if episode.steps > MAX_STEPS:
            raise NoValuesError(f"{episode.steps:,} steps, expected at most {MAX_STEPS:,}")
        try:
            with _turn:
                if self._policy is None or self._policy[0] != version:
                    self._policy = version, loaded(self._source.run, self._checkpoint())
                return values_of(self._policy[1], snapshot, episode, LIMIT_S)
        except NoValuesError:
            raise
        except ModuleNotFoundError as error:
            raise NoValuesError(f"they need {error.name}: {install('train')}") from error
        except Exception as error:  # code of the environment may raise anything
            raise NoValuesError(f"{error}" or type(error).__name__) from error

    def _checkpoint(self) -> str:
        if self._source.kind != "checkpoint":
            return "last"
        return steps_of(self._source.path)

    def _version(self) -> tuple[Any, ...]:
        """Return a value that changes with the policy."""
        run = self._source.run
        if run is None or self._source.kind == "checkpoint":
            return ()
        with contextlib.suppress(OSError):
            found = (run / LAST).stat()
            return found.st_ino, found.st_mtime_ns
        return tuple(path.name for path in checkpoints(run)[-1:])


def loaded(run: Path, checkpoint: str) -> Policy:
    """Load a run's policy onto the CPU.

    Raises:
        ModuleNotFoundError: a package for training is missing.  ValueError: the policy is missing, or damaged.
    """
    from sharpwave.training.policies import Policy

    return Policy.load(run, checkpoint, device="cpu")


def values_of(policy: Policy, snapshot: Snapshot, episode: EpisodeSpan, limit_s: float = np.inf) -> ActionValues:
    """Compute an episode's values.

    Raises:
        NoValuesError: the agent has no Q-values, or the computation would exceed ``limit_s``.
        DamagedError, TooLargeError: as ``Snapshot.read``.
    """
    from sharpwave.training import setup

    agent = policy.agent
    if not episode.begun and agent.step_fields():
        raise NoValuesError("the episode's beginning was evicted, and with it the agent's memory")
    best = np.full(episode.steps + 1, np.nan)
    taken, reward = np.full(episode.steps, np.nan), np.full(episode.steps, np.nan)
    each: npt.NDArray[np.float32] | None = None
    deadline, state = time.monotonic() + limit_s, agent.begin(1)
    with setup.arithmetic(setup.ONE_THREAD):
        for part in walked(snapshot, episode):
            if time.monotonic() > deadline:
                raise NoValuesError(f"{episode.steps:,} steps take longer than {limit_s:g} s")
            valued = agent.values_along(part.obs, part.action, part.reward, state)
            if valued is None:
                raise NoValuesError(f"the agent {agent.settings.kind} has no Q-values")
            values, state, end = valued.values, valued.state, part.step + len(part.reward)
            best[part.step : end] = values.max(axis=1)
            count = min(end, episode.steps) - part.step
            rows = slice(part.step, part.step + count)
            taken[rows] = values[np.arange(count), valued.taken[:count]]
            reward[rows] = part.reward[:count]
            if values.shape[1] <= MAX_ACTIONS:
                each = np.full((episode.steps, values.shape[1]), np.nan, np.float32) if each is None else each
                each[rows] = values[:count]
    behind = best[1:].copy()
    if episode.end == "terminated":
        behind[-1] = 0.0
    unknown = 0 if episode.begun else snapshot.survey.described.spec.context  # the first stacks lack frames
    for one in (best, taken, *([] if each is None else [each])):
        one[:unknown] = np.nan
    gamma = getattr(agent.replay(), "gamma", np.nan)
    return ActionValues(best[:-1], taken, reward + gamma * behind - taken, each, policy.steps)


def curves_of(found: ActionValues, begin: int, end: int) -> dict[str, Any]:
    """Return the values of the steps ``begin <= step < end`` as ``step_curves.curves`` does; if every step
    has a point, also the values of ``each`` action."""
    named = {("Q-values", "Q of the best action"): found.largest, ("Q-values", "Q of the action taken"): found.taken}
    named["TD error, 1 step", "TD error, 1 step"] = found.td_error
    x, thin = thinned(begin, [values[begin:end] for values in named.values()])
    exact = end - begin <= MAX_POINTS
    return {
        "saved_after": found.steps,
        "step": x,
        "curves": [
            {"name": name, "label": label, "values": numbers(values)}
            for (name, label), values in zip(named, thin, strict=True)
            if np.isfinite(values).any()
        ],
        "each": [numbers(row) for row in found.each[begin:end].astype(np.float64)]
        if exact and found.each is not None
        else None,
    }


def walked(snapshot: Snapshot, episode: EpisodeSpan) -> Iterator[EpisodePart]:
    """Yield an episode with its final observation, at most ``ROWS`` observations at a time.

    Stacks are built as in views. If an episode's beginning was evicted, its first stacks are padded.

    Raises:
        DamagedError, TooLargeError: as ``Snapshot.read``.
    """
    spec = snapshot.survey.described.spec
    names = [*spec.obs_names, *spec.action_names]
    before: dict[str, npt.NDArray[Any]] = {}
    for part in snapshot.read(episode, names, 0, episode.steps):
        first, low, high, last, arrays = part.first, part.rows.start, part.rows.stop, part.ends, part.arrays
        rows = part.frames[low:high]
        rows = np.append(rows, rows[-1] + 1) if last else rows
        frames = {}
        for name in spec.obs_names:
            mine = arrays[name][rows]
            frames[name] = np.concatenate([before[name], mine]) if name in before else mine
        action = {name: _ended(arrays[name][low:high], last) for name in spec.action_names}
        reward = _ended(arrays["reward"][low:high], last).astype(np.float32)
        for begin in range(0, len(rows), ROWS):
            at = np.arange(begin, min(begin + ROWS, len(rows)))
            obs = {name: stacked(frames[name], spec.fields[name], len(rows), at) for name in spec.obs_names}
            yield EpisodePart(
                first + low + begin, spec.join_obs(obs), spec.join_action({n: a[at] for n, a in action.items()}),
                reward[at],
            )  # fmt: skip
        before = {name: all_[max(0, len(all_) - (spec.fields[name].stack or 1) + 1) :] for name, all_ in frames.items()}


def stacked(frames: npt.NDArray[Any], field: Field, count: int, at: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return observations [N, (stack), ...] of rows ``at`` among the last ``count`` of ``frames``. The rows before them
    are earlier rows of the episode: all of them, or enough for a stack."""
    newest = len(frames) - count + at
    if field.stack is None:
        return frames[newest]
    number = newest[:, None] + np.arange(1 - field.stack, 1)
    found: npt.NDArray[Any] = frames[np.maximum(number, 0)]
    if field.pad == "zeros":
        found[number < 0] = 0
    return found


def _ended(values: npt.NDArray[Any], last: bool) -> npt.NDArray[Any]:
    return np.concatenate([values, np.zeros_like(values[:1])]) if last else values
