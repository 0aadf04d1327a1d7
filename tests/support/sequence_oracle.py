"""A batch of sequences built the obvious way, a column at a time, from the plain history that an `Oracle` keeps.

A window is known by the serial number of its first trained step, in the column ``burn_in``. Which steps are still held
is told by the tests, which learn it from the store; all else follows from the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.oracle import Array, Obs, Oracle, Step, assert_same_obs, same_bits


@dataclass(frozen=True)
class Settings:
    """What a view of sequences is asked for."""

    length: int
    burn_in: int = 0
    stride: int | None = None
    n_step: int = 1
    gamma: float = 0.5

    @property
    def columns(self) -> int:
        return self.burn_in + self.length

    @property
    def every(self) -> int:
        """Steps from one window's first trained step to the next one's."""
        return self.length if self.stride is None else self.stride

    def asked(self) -> dict[str, Any]:
        """Arguments of ``Store.sequences``."""
        return dict(length=self.length, burn_in=self.burn_in, stride=self.stride, n_step=self.n_step, gamma=self.gamma)


@dataclass(frozen=True)
class Episode:
    """Consecutive steps of one episode.

    Attributes:
        begin: index of the first of them in the lane's history; ``number``: the same in its episode.
        over: no other step follows the last one.
    """

    lane: int
    begin: int
    steps: list[Step]
    over: bool
    number: int = 0


@dataclass(frozen=True)
class Window:
    """What a view must answer for one window.

    Attributes:
        serial: of its first trained step, the one in column ``burn_in``.
        arrays: rows of the batch's arrays and fields, by name.
        real: bool [length], the trained columns that are steps.
    """

    serial: int
    obs: Obs
    arrays: dict[str, Array]
    real: Array


class SequenceOracle:
    """What a view with ``settings`` has of ``oracle``'s steps."""

    def __init__(self, oracle: Oracle, settings: Settings) -> None:
        self.oracle, self.settings = oracle, settings

    def episodes(self) -> Iterator[Episode]:
        for lane, history in self.oracle.lanes.items():
            begin = 0
            for index, step in enumerate(history):
                if step.ended or index == len(history) - 1:
                    yield Episode(lane, begin, history[begin : index + 1], step.ended)
                    begin = index + 1

    def sampleable(self, held: set[int] | None = None) -> dict[int, Episode]:
        """The windows' serials, and the episodes they lie in; ``held``: serials of steps that were not evicted."""
        return {
            episode.steps[at].serial: episode
            for episode in self.episodes()
            for at in range(len(episode.steps))
            if (needed := self.needed(episode, at)) is not None
            and (held is None or all(step.serial in held for step in needed))
        }

    def needed(self, episode: Episode, at: int) -> list[Step] | None:
        """Steps without which the window that trains from ``episode.steps[at]`` on is not whole.

        The observation that a return bootstraps from comes with the last step that the return sums. None: there is no
        window, or some of its steps are to come.
        """
        settings, number = self.settings, episode.number + at
        begin = at - min(settings.burn_in, number)
        after = at + settings.length - 1 + settings.n_step  # the newest observation that can be asked for
        if number % settings.every or begin < 0 or (after >= len(episode.steps) and not episode.over):
            return None
        return episode.steps[begin:after]

    def window(self, serial: int, episode: Episode) -> Window:
        settings, steps = self.settings, episode.steps
        trained = next(at for at, step in enumerate(steps) if step.serial == serial)
        begin = trained - settings.burn_in
        columns = range(begin, begin + settings.columns)
        numbers = ("step_reward", "reward", "discount", "bootstrap", "mask", "first", "terminated", "truncated", "n")
        arrays: dict[str, list[Any]] = {name: [] for name in numbers}
        for column, at in enumerate(columns):
            real = at in range(len(steps))
            summed = steps[at : at + settings.n_step] if real else []
            bootstraps = real and not summed[-1].terminated
            arrays["step_reward"].append(np.float32(steps[at].reward if real else 0))
            arrays["reward"].append(np.float32(sum(settings.gamma**k * step.reward for k, step in enumerate(summed))))
            arrays["discount"].append(np.float32(settings.gamma ** len(summed) if bootstraps else 0))
            arrays["bootstrap"].append(np.int64(column + len(summed)))
            arrays["mask"].append(np.bool_(real))
            arrays["first"].append(np.bool_(real and episode.number + at == 0))
            arrays["terminated"].append(np.bool_(real and steps[at].terminated))
            arrays["truncated"].append(np.bool_(real and steps[at].truncated))
            arrays["n"].append(np.int64(len(summed)))
        found = {name: np.array(values) for name, values in arrays.items()}
        found |= {"lane": np.array(episode.lane), "step": np.array(episode.begin + trained)}
        for name in ("action", *steps[trained].extra):
            if name in self.oracle.every:
                found[name] = self.oracle._kept(episode.lane, episode.begin + max(0, begin), name)
            else:
                values = [step.action if name == "action" else step.extra[name] for step in steps]
                nothing = np.zeros_like(values[0])
                found[name] = np.stack([values[at] if at in range(len(steps)) else nothing for at in columns])
        observed = range(begin, begin + settings.columns + settings.n_step)
        return Window(
            serial,
            joined([self.observation(episode, at) for at in observed]),
            found,
            found["mask"][settings.burn_in :],
        )

    def observation(self, episode: Episode, at: int) -> Obs:
        """What is observed at ``episode.steps[at]``, stacked: the final one after the last, zeros before and beyond."""
        index = episode.begin + at
        if at in range(len(episode.steps)):
            return self.oracle._stacked(self.oracle._observations_until(episode.lane, index))
        if at == len(episode.steps) and episode.over:
            return self.oracle._stacked(self.oracle._observations_after(episode.lane, index - 1))
        like = self.observation(episode, 0)
        return {n: np.zeros_like(v) for n, v in like.items()} if isinstance(like, Mapping) else np.zeros_like(like)


def joined(observations: list[Obs]) -> Obs:
    if isinstance(observations[0], Mapping):
        return {name: np.stack([one[name] for one in observations]) for name in observations[0]}
    return np.stack(observations)


# comparing a batch of the store with the oracle


def serials_of(batch: Any, burn_in: int) -> list[int]:
    """The windows of a batch, by the extra int64 field ``serial``."""
    found: list[int] = batch["serial"][:, burn_in].tolist()
    return found


def assert_same_window(batch: Any, row: int, expected: Window) -> None:
    """Row ``row`` of ``batch`` is the oracle's window, bit for bit."""
    what = f"window of step {expected.serial}"
    assert_same_obs(batch.obs, expected.obs, row, f"{what} obs")
    for name, values in expected.arrays.items():
        got = batch[name][row]
        assert same_bits(got, values), (
            f"{what} {name}: got {got.dtype} {got.shape}\n{got!r}\ninstead of {values.dtype} {values.shape}\n{values!r}"
        )
        if hasattr(batch, name):
            assert np.array_equal(getattr(batch, name)[row], got, equal_nan=True)


def assert_same_windows(batch: Any, oracle: SequenceOracle, held: set[int] | None = None) -> list[int]:
    """Every row is one of the oracle's windows that can be sampled; returns their serials."""
    settings, allowed = oracle.settings, oracle.sampleable(held)
    assert batch.burn_in == settings.burn_in
    assert batch.ids.dtype == np.int64 and batch.ids.shape == (len(batch),)
    assert batch.weights.dtype == np.float32 and batch.weights.shape == batch.ids.shape
    assert batch.probabilities.dtype == np.float64 and batch.probabilities.shape == batch.ids.shape
    serials = serials_of(batch, settings.burn_in)
    for row, serial in enumerate(serials):
        assert batch.mask[row, settings.burn_in], f"row {row} trains nothing"
        assert serial in allowed, f"no window begins to train at step {serial}, there are {sorted(allowed)}"
        assert_same_window(batch, row, oracle.window(serial, allowed[serial]))
    return serials


def assert_same_sequences(replay: Any, oracle: SequenceOracle, held: set[int] | None = None) -> dict[int, int]:
    """The view has exactly the oracle's windows, each as the oracle says; returns their ids by serial."""
    ids = replay.sampleable_ids()
    assert ids.dtype == np.int64 and len(replay) == len(ids) == len(set(ids.tolist()))
    expected = oracle.sampleable(held)
    if not len(ids):
        assert not expected, f"nothing to sample, the oracle has {sorted(expected)}"
        return {}
    batch = replay.fetch(ids)
    serials = assert_same_windows(batch, oracle, held)
    assert np.array_equal(batch.ids, ids)
    assert sorted(serials) == sorted(expected), f"windows {sorted(serials)}, the oracle has {sorted(expected)}"
    return dict(zip(serials, ids.tolist(), strict=True))


def window_priority(td_error: Array, real: Array, eta: float) -> float:
    """eta max + (1 - eta) mean of what trained steps, the real ones of [length], were wrong by."""
    errors = [abs(float(error)) for error, is_real in zip(td_error, real, strict=True) if is_real]
    return eta * max(errors) + (1 - eta) * sum(errors) / len(errors)
