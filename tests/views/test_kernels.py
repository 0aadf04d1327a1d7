"""Every numba kernel beside a plain twin, on the same random input. Also run with NUMBA_DISABLE_JIT=1."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharpwave.codecs import delta_kernels as delta
from sharpwave.codecs import registry as codecs
from sharpwave.codecs.dictionaries import DictionaryTable
from sharpwave.codecs.registry import DELTA, RAW, ZSTD
from sharpwave.sampling import samplers
from sharpwave.spec import START, TERMINATED, TRUNCATED
from sharpwave.views import gather as gather_module
from sharpwave.views.gather import gather
from sharpwave.views.kernels import locate, sync
from tests.support.pictures import pictures

Array = np.ndarray[Any, Any]
EXAMPLES = settings(max_examples=80)


# delta


def naive_paint(patches: bytes, line: int, out: Array) -> bool:
    """The format's description, read aloud."""
    at, stream = 0, list(bytes(patches))
    while stream:
        skip = stream.pop(0)
        if skip & 128:
            if not stream:
                return False
            skip = (skip & 127) * 256 + stream.pop(0)
            if skip == 32767:
                at += skip
                continue
        if not stream:
            return False
        shape = stream.pop(0)
        width, height, fill = shape % 16 + 1, shape // 16 % 8 + 1, shape >= 128
        at += skip
        if at + (height - 1) * line + width > len(out):
            return False
        literals = 1 if fill else width
        if len(stream) < literals:
            return False
        literal = [stream.pop(0) for _ in range(literals)]
        for r in range(height):
            for k in range(width):
                out[at + r * line + k] = literal[0] if fill else literal[k]
        at += width
    return True


def paint_all(patches: Array, line: int, out: Array) -> bool:
    return delta.paint(patches, 0, patches.size, line, out)


@EXAMPLES
@given(picture=pictures(most=2))
def test_a_frame_painted_over_any_other_is_the_frame(picture: tuple[Array, int]) -> None:
    rows, line = picture
    reference, frame = rows[0], rows[-1]
    canvas, out = reference.copy(), np.zeros(delta.largest_patch_bytes(frame.size), np.uint8)
    written = delta.encode_frame(frame, canvas, line, out)
    assert written <= out.size
    np.testing.assert_array_equal(canvas, frame)
    for paint in (paint_all, naive_paint):
        again = reference.copy()
        assert paint(out[:written], line, again)
        np.testing.assert_array_equal(again, frame)
    if np.array_equal(reference, frame):
        assert written == 0


@EXAMPLES
@given(gap=st.integers(32_700, 70_000), line=st.sampled_from([0, 84]))
def test_long_skips(gap: int, line: int) -> None:
    reference = np.zeros(gap + 3, np.uint8)
    frame = reference.copy()
    frame[[0, gap + 1]] = 9
    out = np.zeros(delta.largest_patch_bytes(frame.size), np.uint8)
    written = delta.encode_frame(frame, reference.copy(), line, out)
    for paint in (paint_all, naive_paint):
        again = reference.copy()
        assert paint(out[:written], line, again)
        np.testing.assert_array_equal(again, frame)


@EXAMPLES
@given(patches=st.binary(max_size=60), size=st.integers(1, 80), line=st.integers(0, 20), behind=st.integers(0, 30))
def test_any_bytes_are_painted_as_the_format_says_or_refused_and_nothing_outside_is_touched(
    patches: bytes, size: int, line: int, behind: int
) -> None:
    around = np.full(size + 200, 77, np.uint8)
    ours, theirs = around[100 : 100 + size], np.full(size, 77, np.uint8)
    # Other bytes may lie behind the patches: then words are read past their end, and must not count.
    data = np.frombuffer(patches + b"\xaa" * behind, np.uint8)
    taken = delta.paint(data, 0, len(patches), line, ours)
    assert taken == naive_paint(patches, line, theirs)
    assert (around[:100] == 77).all() and (around[100 + size :] == 77).all()
    if taken:
        np.testing.assert_array_equal(ours, theirs)


@EXAMPLES
@given(picture=pictures())
def test_majority_is_the_value_that_more_than_half_hold(picture: tuple[Array, int]) -> None:
    rows, _ = picture
    found = delta.majority(rows)
    for p in range(rows.shape[1]):
        values, counts = np.unique(rows[:, p], return_counts=True)
        assert found[p] in values
        if counts.max() * 2 > len(rows):
            assert found[p] == values[counts.argmax()]


# gathering


def naive_window(rows: Array, newest: int, first: int, window: int, zeros: bool) -> Array:
    out = []
    for wanted in range(newest - window + 1, newest + 1):
        out.append(np.zeros_like(rows[0]) if wanted < first and zeros else rows[max(wanted, first)])
    return np.stack(out)


@EXAMPLES
@given(data=st.data(), window=st.integers(1, 5), zeros=st.booleans(), many=st.booleans())
def test_gather_is_a_slice_of_the_rows(data: st.DataObject, window: int, zeros: bool, many: bool) -> None:
    """Every codec side by side in one batch; ``many`` has several threads share it."""
    size, line = 60, data.draw(st.sampled_from([0, 12]), "line")
    slots = data.draw(st.integers(1, 5), "slots")
    memory = np.zeros(1 << 16, np.uint8)
    table = DictionaryTable(size)
    offset, counts = np.zeros(slots, np.int64), np.zeros(slots, np.int32)
    codec, dictionary = np.zeros(slots, np.uint8), np.zeros(slots, np.int32)
    columns, at = [], 0
    for s in range(slots):
        rng = np.random.default_rng(data.draw(st.integers(0, 999), "seed"))
        rows = np.tile(rng.integers(0, 4, size // 20).repeat(20), (int(rng.integers(12, 20)), 1)).astype(np.uint8)
        rows[:, rng.integers(0, size, 2)] = rng.integers(0, 256, (len(rows), 2))
        codec[s] = data.draw(st.sampled_from([RAW, ZSTD, DELTA]), "codec")
        shared = rows[0].tobytes() if codec[s] == DELTA and data.draw(st.booleans(), "reference") else b""
        payload = codecs.encode(int(codec[s]), rows, shared, line)
        assert payload is not None
        if shared:
            place = table.add(shared)
            assert place is not None
            dictionary[s] = place
        memory[at : at + len(payload)] = np.frombuffer(payload, np.uint8)
        offset[s], counts[s] = at, len(rows)
        at += -(-len(payload) // 8) * 8
        columns.append(rows)
    batch = 500 if many else data.draw(st.integers(1, 9), "batch")
    rng = np.random.default_rng(batch)
    slot = rng.integers(0, slots, batch)
    newest = np.array([rng.integers(0, len(columns[s])) for s in slot])
    first = np.array([rng.integers(0, n + 1) for n in newest])
    out = np.full((batch, window, size), 99, np.uint8)
    words, column = memory.view(np.uint32), (offset, codec, dictionary)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather_module, "THREADS", 3 if many else 1)
        patch.setattr(gather_module, "THREAD_BYTES", 1)
        gather(memory, words, column, counts, table, line, zeros, slot, newest, first, out)
    for i in range(batch):
        expected = naive_window(columns[slot[i]], newest[i], first[i], window, zeros)
        np.testing.assert_array_equal(out[i], expected)


# finding steps


class Log:
    """One lane's steps in a chain of segments, with the arrays of the index that the kernels read."""

    def __init__(self, flags: list[int], rewards: list[float], cuts: list[int]) -> None:
        self.flags, self.rewards = np.array(flags, np.uint8), np.array(rewards, np.float32)
        bounds = [0, *cuts, len(flags)]
        self.stride = max(b - a for a, b in pairwise(bounds))
        slots = len(bounds) - 1
        self.memory = np.zeros(slots * self.stride * 16 + 64, np.uint8)
        self.floats = self.memory.view(np.float32)
        self.rows, self.following = np.zeros(slots, np.int32), np.zeros(slots, np.int32)
        self.context, self.sealed = np.zeros(slots, np.int32), np.ones(slots, np.uint8)
        self.flags_at, self.reward_at = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
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
        self.sealed[-1] = 0


@st.composite
def logs(draw: st.DrawFn) -> Log:
    end = st.sampled_from([0, 0, 0, TERMINATED, TRUNCATED, TERMINATED | TRUNCATED])
    ends = draw(st.lists(end, min_size=1, max_size=30))
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


def run_sync(log: Log, cursor: Array, known: Array, n_step: int, room: int) -> list[tuple[int, int, int]]:
    slots, begins, ends = np.zeros((3, room), np.int64)
    gap = np.zeros(len(log.rows), np.uint8)
    runs: list[tuple[int, int, int]] = []
    while True:
        found = sync(
            log.memory,
            log.flags_at,
            log.rows,
            log.following,
            gap,
            log.sealed,
            cursor,
            known,
            n_step,
            slots,
            begins,
            ends,
        )
        runs += zip(slots[:found].tolist(), begins[:found].tolist(), ends[:found].tolist(), strict=True)
        if found < room:
            return runs


@EXAMPLES
@given(log=logs(), n_step=st.integers(1, 6), room=st.integers(1, 3))
def test_sync_finds_each_step_once_when_its_successor_is_known(log: Log, n_step: int, room: int) -> None:
    """The steps come one by one; ``room`` is smaller than the number of runs now and then."""
    whole, following = log.rows.copy(), log.following.copy()
    log.rows[:], log.following[:], log.sealed[:] = 0, -1, 0
    cursor, known = np.zeros(1, np.int32), np.zeros(len(log.rows), np.int32)
    seen: list[int] = []
    s = 0
    for t in range(len(log.flags)):
        if log.rows[s] == whole[s]:
            log.sealed[s], log.following[s] = 1, following[s]
            s += 1
        log.rows[s] += 1
        for slot, begin, end in run_sync(log, cursor, known, n_step, room):
            seen += [slot * log.stride + r for r in range(begin, end)]
        expected = [int(log.leaf_of[k]) for k in range(t + 1) if naive_used(log.flags[: t + 1], k, n_step) is not None]
        assert seen == expected


@EXAMPLES
@given(log=logs(), n_step=st.integers(1, 6), gamma=st.sampled_from([1.0, 0.5, 0.25, 0.0]))
def test_locate_adds_up_rewards_to_the_episodes_end(log: Log, n_step: int, gamma: float) -> None:
    steps = [t for t in range(len(log.flags)) if naive_used(log.flags, t, n_step) is not None]
    if not steps:
        return
    n = len(steps)
    reward, discount = np.zeros(n, np.float32), np.zeros(n, np.float32)
    places, ids = np.zeros((7, n), np.int64), np.zeros(n, np.int64)
    generation = np.arange(len(log.rows)) * 3
    locate(
        log.memory,
        log.floats,
        log.flags_at,
        log.reward_at,
        log.rows,
        log.following,
        log.context,
        generation,
        log.leaf_of[steps],
        log.stride,
        n_step,
        gamma,
        reward,
        discount,
        places,
        ids,
    )
    slot, _row, frame, first, next_slot, next_frame, next_first = places
    np.testing.assert_array_equal(ids >> 32, generation[slot])
    np.testing.assert_array_equal(ids & 0xFFFFFFFF, log.leaf_of[steps])
    ended = (log.flags & (TERMINATED | TRUNCATED)) != 0
    for i, t in enumerate(steps):
        used = naive_used(log.flags, t, n_step)
        assert used is not None
        last = t + used - 1
        assert reward[i] == sum(gamma**k * log.rewards[t + k] for k in range(used))
        assert discount[i] == (0.0 if log.flags[last] & TERMINATED else gamma**used)
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
            assert lowest == expected


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
    samplers.importance_weights(probabilities, beta, weights)
    by_book = ((len(priorities) + 5) * probabilities) ** -beta
    np.testing.assert_allclose(weights, by_book / by_book.max(), rtol=1e-5)
