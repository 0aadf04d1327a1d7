"""Functions of the core beside plain twins, on the same random input."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sharpwave.native import core
from sharpwave.spec import START, TERMINATED, TRUNCATED
from tests.support.examples import examples

Array = np.ndarray[Any, Any]
EXAMPLES = settings(max_examples=examples(80))


# finding steps


class Log:
    """One lane's steps in a chain of segments, with the arrays of the index that the kernels read."""

    @property
    def arrays(self) -> core.Log:
        slots = len(self.rows)
        # which the core does not keep alive
        self.others = np.full(slots, -1, np.int32), np.zeros(slots, np.uint8)
        self.episode_step = np.zeros(slots, np.int64)
        return core.Log(
            self.memory, self.offset, self.rows, self.following, *self.others, self.sealed, self.context,
            self.episode_step, self.lane, self.first_step, self.frames, self.stride,
        )  # fmt: skip

    def __init__(self, flags: list[int], rewards: list[float], cuts: list[int]) -> None:
        self.successor_known = np.zeros(1, np.uint8)
        self.flags, self.rewards = np.array(flags, np.uint8), np.array(rewards, np.float32)
        bounds = [0, *cuts, len(flags)]
        self.stride = max(b - a for a, b in pairwise(bounds))
        slots = len(bounds) - 1
        self.memory = np.zeros(slots * self.stride * 16 + 64, np.uint8)
        self.floats = self.memory.view(np.float32)
        self.rows, self.following = np.zeros(slots, np.int32), np.zeros(slots, np.int32)
        self.context, self.sealed = np.zeros(slots, np.int32), np.ones(slots, np.uint8)
        self.offset = np.zeros((2, slots), np.int64)
        self.flags_at, self.reward_at = self.offset
        self.lane, self.first_step = np.full(slots, 3, np.int32), np.zeros(slots, np.int64)
        self.leaf_of = np.zeros(len(flags), np.int64)
        at = 0
        for s, (a, b) in enumerate(pairwise(bounds)):
            self.rows[s], self.following[s] = b - a, s + 1 if s + 1 < slots else -1
            self.reward_at[s] = at
            self.floats[at // 4 : at // 4 + b - a] = self.rewards[a:b]
            at += 4 * self.stride
            self.flags_at[s] = at
            self.memory[at : at + b - a] = self.flags[a:b]
            at = -(-(at + self.stride) // 8) * 8
            self.leaf_of[a:b] = s * self.stride + np.arange(b - a)
            self.first_step[s] = 1000 + a
        self.sealed[-1] = 0
        self.frames = self.rows.copy()  # an observation each, and one after each end and each sealed segment
        for s, (a, b) in enumerate(pairwise(bounds)):
            ends = (self.flags[a:b] & (TERMINATED | TRUNCATED)) != 0
            self.frames[s] += ends.sum() + (self.sealed[s] and not ends[-1])


@st.composite
def logs(draw: st.DrawFn) -> Log:
    kinds = st.sampled_from([0, 0, 0, TERMINATED, TRUNCATED, TERMINATED | TRUNCATED])
    ends = draw(st.lists(kinds, min_size=1, max_size=30))
    flags, starting = [], True
    for end in ends:
        flags.append(end | (START if starting else 0))
        starting = end != 0
    rewards = [draw(st.integers(-8, 8)) / 4 for _ in ends]
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(ends) - 1)), max_size=5))) if len(ends) > 1 else []
    return Log(flags, rewards, cuts)


def naive_used(flags: Array, t: int, n_step: int) -> int | None:
    for used in range(1, n_step + 1):
        if t + used > len(flags):
            return None
        if flags[t + used - 1] & (TERMINATED | TRUNCATED):
            return used
    return n_step if t + n_step < len(flags) else None


def run_sync(log: Log, known: core.KnownSteps, spans: Array, room: int) -> list[tuple[int, int, int]]:
    out = np.zeros((3, room), np.int64)
    runs: list[tuple[int, int, int]] = []
    while True:
        found = known.find(log.arrays, log.successor_known, spans, out)
        runs += zip(*out[:, :found].tolist(), strict=True)
        if found < room:
            return runs


@EXAMPLES
@given(log=logs(), n_step=st.integers(1, 6) | st.integers(7, 25), room=st.integers(1, 3), data=st.data())
def test_known_steps_finds_each_step_once_when_its_successor_is_known(
    log: Log, n_step: int, room: int, data: st.DataObject
) -> None:
    """The steps come one by one, some with what follows; ``room`` is smaller than the number of runs now and then."""
    whole, following = log.rows.copy(), log.following.copy()
    log.rows[:], log.following[:], log.sealed[:] = 0, -1, 0
    found, spans = core.KnownSteps(n_step), np.zeros((len(log.rows), 2), np.int32)
    found.follow(np.zeros(1, np.int32))
    seen: list[int] = []
    s = 0
    for t in range(len(log.flags)):
        if log.rows[s] == whole[s]:
            log.sealed[s], log.following[s] = 1, following[s]
            s += 1
        log.rows[s] += 1
        ended = bool(log.flags[t] & (TERMINATED | TRUNCATED))
        log.successor_known[0] = foreseen = not ended and data.draw(st.booleans(), "next_obs")
        for slot, begin, end in run_sync(log, found, spans, room):
            seen += [slot * log.stride + r for r in range(begin, end)]
        known = [naive_used(log.flags[: t + 1], k, n_step) is not None for k in range(t + 1)]
        if foreseen and t + 1 >= n_step:
            known[t + 1 - n_step] = True
        assert seen == [int(log.leaf_of[k]) for k in range(t + 1) if known[k]]


@EXAMPLES
@given(log=logs(), n_step=st.integers(1, 6), gamma=st.sampled_from([1.0, 0.5, 0.25, 0.0]), stacks=st.booleans())
def test_locate_adds_up_rewards_to_the_episodes_end(log: Log, n_step: int, gamma: float, stacks: bool) -> None:
    steps = [t for t in range(len(log.flags)) if naive_used(log.flags, t, n_step) is not None]
    if not steps:
        return
    n = len(steps)
    reward, discount = np.zeros(n, np.float32), np.zeros(n, np.float32)
    terminated, truncated = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    counts, lane, number = np.zeros((3, n), np.int64)
    places = np.zeros((7, n), np.int64)
    core.locate_transitions(
        log.arrays, log.leaf_of[steps], n_step, gamma, stacks, reward, discount, terminated, truncated, counts, lane,
        number, places,
    )  # fmt: skip
    slot, _row, frame, first, next_slot, next_frame, next_first = places
    ended = (log.flags & (TERMINATED | TRUNCATED)) != 0
    for i, t in enumerate(steps):
        used = naive_used(log.flags, t, n_step)
        assert used is not None
        last = t + used - 1
        assert reward[i] == sum(gamma**k * log.rewards[t + k] for k in range(used))
        assert discount[i] == (0.0 if log.flags[last] & TERMINATED else gamma**used)
        assert terminated[i] == bool(log.flags[last] & TERMINATED) and truncated[i] == bool(log.flags[last] & TRUNCATED)
        assert (counts[i], lane[i], number[i]) == (used, 3, 1000 + t)
        for at, s, place, lowest, after in (
            (t, slot[i], frame[i], first[i], 0),
            (last, next_slot[i], next_frame[i], next_first[i], 1),
        ):
            assert s * log.stride <= log.leaf_of[at] < (s + 1) * log.stride
            begin = at - int(log.leaf_of[at] - s * log.stride)  # the lane's number of the segment's first step
            finals = int(ended[begin:at].sum())  # each took a frame of its own
            assert place == at - begin + finals + after
            starts = [k for k in range(begin, at + 1) if log.flags[k] & START]
            expected = starts[-1] - begin + int(ended[begin : starts[-1]].sum()) if starts else 0
            assert lowest == expected if stacks else lowest <= place - after


# weights


@EXAMPLES
@given(
    priorities=st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20),
    beta=st.floats(0, 1),
    others=st.floats(0, 1e9),
)
def test_importance_weights(priorities: list[float], beta: float, others: float) -> None:
    probabilities = np.array(priorities) / (math.fsum(priorities) + others)
    weights = np.zeros(len(priorities), np.float32)
    core.importance_weights(probabilities, beta, weights)
    by_book = ((len(priorities) + 5) * probabilities) ** -beta
    np.testing.assert_allclose(weights, by_book / by_book.max(), rtol=1e-5)
