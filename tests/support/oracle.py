"""A replay memory built the obvious way: full transitions, in plain lists, with nothing shared and nothing packed.

The oracle keeps every step that was ever appended, per lane and in order. What a view must answer for a step is
worked out from that history alone. The oracle does not decide what has left (`Fifo` has some freedom there): the
tests learn from the store which steps are still held, and check that this is a suffix of each lane's history.

Cases are written in a tiny language, one lane a string (spaces are for the reader):

    ``a``    a step whose frame is ``a``; the reward of a lane's k-th step (from 1) is k unless told otherwise
    ``.``    the step before it terminated, no final observation was given
    ``.F``   the step before it terminated, the final observation was frame ``F`` (finals are upper case)
    ``|F``   the step before it was truncated, the final observation was ``F``
    ``!F``   the step before it was terminated and truncated at once, the final observation was ``F``
    ``/F``   the caller ended the episode afterwards with ``end_episode(lane, F)``
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Obs = Any  # one array, or a mapping from a name to an array
Pad = Literal["repeat", "zeros"]

FRAME_SHAPE = (2, 3)


@dataclass
class Step:
    """One row as it was handed to the store, copied."""

    serial: int
    obs: Obs
    action: Array
    reward: float
    terminated: bool
    truncated: bool
    final_obs: Obs | None
    extra: dict[str, Array] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


@dataclass(frozen=True)
class Transition:
    """What a view must answer for one step."""

    serial: int
    obs: Obs
    action: Array
    reward: float
    next_obs: Obs
    discount: float
    extra: dict[str, Array]
    terminated: bool
    truncated: bool
    n: int
    lane: int
    index: int


@dataclass(frozen=True)
class Stacking:
    """How one observation field is stacked: ``None`` means no stack axis at all."""

    stack: int | None = None
    pad: Pad = "repeat"


def copied(obs: Obs) -> Obs:
    if isinstance(obs, Mapping):
        return {name: np.array(value) for name, value in obs.items()}
    return np.array(obs)


class Oracle:
    """Every step of every lane, forever."""

    def __init__(
        self, stacking: Stacking | Mapping[str, Stacking] | None = None, every: Mapping[str, int] | None = None
    ) -> None:
        self.every = every or {}  # of which steps of an episode a sparse field's values are kept
        self.stacking: Stacking | Mapping[str, Stacking] = Stacking() if stacking is None else stacking
        self.lanes: dict[int, list[Step]] = {}
        self.where: dict[int, tuple[int, int]] = {}  # serial -> (lane, index in the lane's history)
        self.dropped = 0  # steps that were taken back

    @property
    def total_steps(self) -> int:
        return len(self.where) + self.dropped

    def append(
        self,
        lane: int,
        obs: Obs,
        action: Any,
        reward: float,
        terminated: bool,
        truncated: bool,
        final_obs: Obs | None = None,
        serial: int | None = None,
        **extra: Any,
    ) -> Step:
        history = self.lanes.setdefault(lane, [])
        step = Step(
            serial=self.total_steps if serial is None else serial,
            obs=copied(obs),
            action=np.array(action),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            final_obs=None if final_obs is None or not (terminated or truncated) else copied(final_obs),
            extra={name: np.array(value) for name, value in extra.items()},
        )
        assert step.serial not in self.where, f"serial {step.serial} used twice"
        assert not (step.truncated and not step.terminated and step.final_obs is None)
        self.where[step.serial] = (lane, len(history))
        history.append(step)
        return step

    def end_episode(self, lane: int, final_obs: Obs) -> None:
        last = self.lanes[lane][-1]
        assert not last.ended
        last.truncated = True
        last.final_obs = copied(final_obs)

    def drop_last(self, lane: int) -> None:
        """Break the episode off where nobody knows what its last step led to."""
        dropped = self.lanes[lane].pop()
        assert not dropped.ended
        del self.where[dropped.serial]
        self.dropped += 1
        if self.can_end_episode(lane):
            self.end_episode(lane, dropped.obs)

    def can_end_episode(self, lane: int) -> bool:
        return bool(self.lanes.get(lane)) and not self.lanes[lane][-1].ended

    def step(self, serial: int) -> Step:
        lane, index = self.where[serial]
        return self.lanes[lane][index]

    # what a view must answer

    def n_used(self, lane: int, index: int, n_step: int) -> int | None:
        """Rewards summed for this start, or None where its successor is not known yet."""
        history = self.lanes[lane]
        for used in range(1, n_step + 1):
            if index + used > len(history):
                return None
            if history[index + used - 1].ended:
                return used
        return n_step if index + n_step < len(history) else None

    def sampleable(
        self, n_step: int, held_from: Mapping[int, int] | None = None, held: set[int] | None = None
    ) -> set[int]:
        """Serials that a view with this ``n_step`` may draw.

        Lane l still holds its steps from ``held_from[l]`` on; or the serials held are given: then a return may sum none
        that has left.
        """
        held_from = held_from or {}
        found = set()
        for lane, history in self.lanes.items():
            for index in range(held_from.get(lane, 0), len(history)):
                used = self.n_used(lane, index, n_step)
                if used is not None and (held is None or all(history[index + i].serial in held for i in range(used))):
                    found.add(history[index].serial)
        return found

    def transition(self, serial: int, n_step: int, gamma: float) -> Transition:
        lane, index = self.where[serial]
        history = self.lanes[lane]
        used = self.n_used(lane, index, n_step)
        assert used is not None, f"step {serial} has no successor yet"
        start, last = history[index], history[index + used - 1]
        reward = 0.0
        for i in range(used):
            reward += gamma**i * history[index + i].reward
        return Transition(
            serial=serial,
            obs=self._stacked(self._observations_until(lane, index)),
            action=start.action,
            reward=reward,
            next_obs=self._stacked(self._observations_after(lane, index + used - 1)),
            discount=0.0 if last.terminated else gamma**used,
            extra={name: self._kept(lane, index, name) for name in start.extra},
            terminated=last.terminated,
            truncated=last.truncated,
            n=used,
            lane=lane,
            index=index,
        )

    def _kept(self, lane: int, index: int, name: str) -> Array:
        """A further field's value at a step; of a sparse one the last that was kept, in the step's own episode."""
        history, number = self.lanes[lane], 0
        while number < index and not history[index - number - 1].ended:
            number += 1
        return history[index - number % self.every.get(name, 1)].extra[name]

    def _observations_until(self, lane: int, index: int) -> list[Obs]:
        """Observations of the step's episode, from its first up to the step's own."""
        history = self.lanes[lane]
        observations = [history[index].obs]
        for earlier in reversed(history[:index]):
            if earlier.ended:
                break
            observations.append(earlier.obs)
        return observations[::-1]

    def _observations_after(self, lane: int, index: int) -> list[Obs]:
        """The same up to the observation after the step: the final one where the step ended its episode."""
        history = self.lanes[lane]
        step = history[index]
        if not step.ended:
            return self._observations_until(lane, index + 1)
        final = step.obs if step.final_obs is None else step.final_obs
        return [*self._observations_until(lane, index), final]

    def _stacked(self, observations: Sequence[Obs]) -> Obs:
        if isinstance(self.stacking, Stacking):
            return stacked(observations, self.stacking)
        return {
            name: stacked([obs[name] for obs in observations], stacking) for name, stacking in self.stacking.items()
        }


def stacked(observations: Sequence[Array], stacking: Stacking) -> Array:
    """The newest ``stack`` of an episode's observations, oldest first, padded before the episode's first."""
    if stacking.stack is None:
        return observations[-1]
    frames = list(observations[-stacking.stack :])
    while len(frames) < stacking.stack:
        pad = observations[0] if stacking.pad == "repeat" else np.zeros_like(observations[0])
        frames.insert(0, pad)
    return np.stack(frames)


# comparing a batch of the store with the oracle


def same_bits(got: Array, expected: Array) -> bool:
    """Equal in dtype, shape and every bit: -0.0 is not 0.0, and a NaN equals itself."""
    got, expected = np.asarray(got), np.asarray(expected)
    return (
        got.dtype == expected.dtype
        and got.shape == expected.shape
        and np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(expected).tobytes()
    )


def assert_same_obs(got: Obs, expected: Obs, row: int, what: str) -> None:
    if isinstance(expected, Mapping):
        assert set(got.keys()) == set(expected), f"{what}: fields {sorted(got)} instead of {sorted(expected)}"
        for name, value in expected.items():
            assert_same_obs(got[name], value, row, f"{what}[{name!r}]")
        return
    assert same_bits(got[row], expected), (
        f"{what}: got {got[row].dtype} {got[row].shape}\n{got[row]}\n"
        f"instead of {expected.dtype} {expected.shape}\n{expected}"
    )


def assert_same_transition(batch: Any, row: int, expected: Transition, exact: bool = True) -> None:
    """Row ``row`` of ``batch`` is the oracle's transition, bit for bit; ``exact=False`` lets returns round."""
    what = f"step {expected.serial}"
    assert_same_obs(batch.obs, expected.obs, row, f"{what} obs")
    assert_same_obs(batch.next_obs, expected.next_obs, row, f"{what} next_obs")
    assert np.array_equal(batch.action[row], expected.action), f"{what} action: {batch.action[row]} {expected.action}"
    assert batch.reward.dtype == np.float32 and batch.discount.dtype == np.float32
    if exact:
        assert batch.reward[row] == np.float32(expected.reward), f"{what}: {batch.reward[row]} {expected.reward}"
        assert batch.discount[row] == np.float32(expected.discount), (
            f"{what} discount: {batch.discount[row]} instead of {expected.discount}"
        )
    else:
        np.testing.assert_allclose(batch.reward[row], expected.reward, rtol=2e-6, atol=1e-6, err_msg=what)
        np.testing.assert_allclose(batch.discount[row], expected.discount, rtol=2e-6, err_msg=what)
    told = (batch.terminated[row], batch.truncated[row], batch.n[row], batch.lane[row], batch.step[row])
    assert told == (expected.terminated, expected.truncated, expected.n, expected.lane, expected.index), what
    for name, value in expected.extra.items():
        assert same_bits(batch[name][row], value), f"{what} {name}: {batch[name][row]!r} instead of {value!r}"


def assert_same_view(replay: Any, oracle: Oracle, n_step: int, gamma: float, exact: bool = True) -> None:
    """A store that holds everything: the view answers for exactly the oracle's steps, each as the oracle says.

    Steps are told apart by the extra int64 field ``serial``.
    """
    ids = replay.sampleable_ids()
    assert len(replay) == len(ids) == len(set(ids.tolist()))
    expected = oracle.sampleable(n_step)
    if len(ids) == 0:
        assert not expected, f"nothing to sample, the oracle has {sorted(expected)}"
        return
    batch = replay.fetch(ids)
    assert set(batch["serial"].tolist()) == expected
    for row, serial in enumerate(batch["serial"].tolist()):
        assert_same_transition(batch, row, oracle.transition(serial, n_step, gamma), exact)


# the tiny language


@dataclass(frozen=True)
class Row:
    """One step of a case: its frame's letter, how it ended (one of ``. | ! /``), and the final frame's letter."""

    frame: str
    end: str | None = None
    final: str | None = None


def parse(text: str) -> list[Row]:
    rows: list[Row] = []
    letters = [c for c in text if not c.isspace()]
    i = 0
    while i < len(letters):
        letter = letters[i]
        i += 1
        assert letter.isalpha() and letter.islower(), f"{text!r}: a frame is a lower-case letter, got {letter!r}"
        end = final = None
        if i < len(letters) and letters[i] in ".|!/":
            end = letters[i]
            i += 1
            if i < len(letters) and letters[i].isupper():
                final = letters[i]
                i += 1
            assert final is not None or end == ".", f"{text!r}: {end!r} needs a final frame (an upper-case letter)"
        rows.append(Row(letter, end, final))
    return rows


def frame(letter: str, shape: tuple[int, ...] = FRAME_SHAPE, dtype: str = "uint8") -> Array:
    """The frame of a letter: no two letters share a frame, none is zero, no pixel equals its neighbour."""
    size = int(np.prod(shape, dtype=np.int64))
    return ((np.arange(size) * 3 + ord(letter)) % 256).astype(dtype).reshape(shape)


def frames(letters: str, shape: tuple[int, ...] = FRAME_SHAPE) -> Array:
    """A stack, written as its letters, oldest first; ``0`` is a frame of zeros."""
    return np.stack([np.zeros(shape, np.uint8) if c == "0" else frame(c, shape) for c in letters])


def letters_of(stack: Array) -> str:
    """The inverse of `frames`; ``?`` for a frame that is no letter's."""
    return "".join(_letter_of(one) for one in stack)


def _letter_of(one: Array) -> str:
    if not one.any():
        return "0"
    letter = chr(int(one.reshape(-1)[0]))
    return letter if letter.isalpha() and letter.isascii() and np.array_equal(one, frame(letter, one.shape)) else "?"


def play(
    store: Any,
    text: str,
    *,
    lane: int = 0,
    oracle: Oracle | None = None,
    rewards: Iterable[float] | None = None,
) -> Iterator[Row]:
    """Append a case to ``store`` (and to ``oracle``), one step a turn of the loop; exhaust it to append it all.

    The extra int64 field ``serial`` counts the steps of the store; rewards count from 1 unless given.
    """
    given = None if rewards is None else iter(rewards)
    for k, row in enumerate(parse(text), start=1):
        serial = store.total_steps
        reward = float(k) if given is None else float(next(given))
        terminated, truncated = row.end in (".", "!"), row.end in ("|", "!")
        final = None if row.final is None or row.end == "/" else frame(row.final)
        store.append(
            lane=lane,
            obs=frame(row.frame),
            action=serial,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_obs=final,
            serial=serial,
        )
        if oracle is not None:
            oracle.append(
                lane,
                frame(row.frame),
                np.int64(serial),
                reward,
                terminated,
                truncated,
                final,
                serial=serial,
            )
        if row.end == "/":
            assert row.final is not None
            store.end_episode(lane, frame(row.final))
            if oracle is not None:
                oracle.end_episode(lane, frame(row.final))
        yield row


def play_all(store: Any, text: str, **kwargs: Any) -> None:
    for _ in play(store, text, **kwargs):
        pass
