"""Rows of any length through appends, evictions, checkpoints, crashes and reopening, against plain Python lists."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

import sharpwave as sw
from tests.store.lives import Lives
from tests.support.examples import examples

NUMBERS = ("int8", "uint16", "int32", "int64", "float16", "float32", "float64", "bool")
FIELDS = {
    "tokens": sw.Field((None,), "int32"),
    "states": sw.Field((None, 3), "float16"),
    "text": sw.Field(str),
    "blob": sw.Field(bytes, max_length=5000),
}
LENGTHS = st.one_of(st.just(0), st.integers(0, 40), st.integers(500, 3000))


def rows_of(fields: dict[str, sw.Field], lengths: list[int], seed: int) -> dict[str, Any]:
    """Make one step's rows, by field, of these lengths."""
    rng = np.random.default_rng(seed)
    rows: dict[str, Any] = {}
    for length, (name, field) in zip(lengths, fields.items(), strict=True):
        if field.dtype == "str":
            letters = rng.choice([*"abcé\u0000\u20ac\U0001f600 "], length)
            rows[name] = "".join(letters) if seed % 3 else "the same text " * (length // 14)
        elif field.dtype == "bytes":
            rows[name] = rng.integers(0, 256 if seed % 2 else 2, length).astype(np.uint8).tobytes()
        else:
            shape, dtype = (length, *field.shape[1:]), np.dtype(field.dtype)
            if dtype.kind == "f":
                rows[name] = rng.standard_normal(shape).astype(dtype)
            else:
                wide = dtype.kind != "b" and seed % 2
                most = np.iinfo(dtype).max if wide else 1 if dtype.kind == "b" else 100
                rows[name] = rng.integers(0, most, shape, endpoint=True).astype(dtype)
    return rows


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, (str, bytes)):
        return type(found) is type(expected) and found == expected
    return found.dtype == expected.dtype and found.shape == expected.shape and bool((found == expected).all())


class RaggedStore(Lives):
    """A store beside lists: each lane's steps by number, with their rows."""

    retention: type[Any] = sw.Fifo

    @initialize(
        on_disk=st.booleans(),
        lanes=st.integers(1, 3),
        dtype=st.sampled_from(NUMBERS),
        stride=st.sampled_from([None, 5, 16]),
        ram=st.sampled_from([None, "32MiB"]),
        seed=st.integers(0, 99),
    )
    def begin(self, on_disk: bool, lanes: int, dtype: str, stride: int | None, ram: str | None, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.on_disk, self.lanes, self.seed, self.made = on_disk, lanes, seed, 0
        self.fields, more = self.declare(dtype)
        spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), **self.fields, **more)
        retention = self.retention()
        where: dict[str, Any] = {"disk": self.folder / "store"} if on_disk else {}
        self.store = sw.Store(
            spec, capacity=120, ram=ram, segment_steps=stride, retention=retention, seed=seed, **where
        )
        self.steps: dict[tuple[int, int], dict[str, Any]] = {}
        self.begin_views()

    def declare(self, dtype: str) -> tuple[dict[str, sw.Field], dict[str, sw.Field]]:
        """Return the fields with rows of any length, and others."""
        return FIELDS | {"tokens": sw.Field((None,), dtype)}, {}

    def begin_views(self) -> None:
        self.view = self.store.transitions(sampler=sw.Uniform())
        self.windows = self.store.sequences(4, burn_in=2, stride=2)

    def next_rows(self, lengths: list[int]) -> dict[str, Any]:
        self.seed += 1
        return rows_of(self.fields, lengths, self.seed)

    def note(self, lane: int, number: int, rows: dict[str, Any]) -> None:
        self.steps[lane, number] = rows

    def obs(self, count: int) -> npt.NDArray[np.float32]:
        self.made += count
        return np.arange(self.made - count, self.made, dtype=np.float32)[:, None] * np.ones(2, np.float32)

    @rule(lane=st.integers(0, 2), lengths=st.lists(LENGTHS, min_size=4, max_size=4), ends=st.booleans())
    def append(self, lane: int, lengths: list[int], ends: bool) -> None:
        lane %= self.lanes
        rows = self.next_rows(lengths)
        number = int(self.store.lane_steps[lane]) if lane < self.store.lanes else 0
        obs = self.obs(2)
        self.store.append(
            lane=lane, obs=obs[0], action=1, reward=0.5, terminated=ends, truncated=False, next_obs=obs[1], **rows
        )
        self.note(lane, number, rows)

    @rule(count=st.integers(1, 12), lengths=st.lists(LENGTHS, min_size=4, max_size=4), block=st.booleans())
    def extend(self, count: int, lengths: list[int], block: bool) -> None:
        times, lanes = count, self.lanes
        before = [int(self.store.lane_steps[lane]) if lane < self.store.lanes else 0 for lane in range(lanes)]
        rows = [[self.next_rows([(n + t) % 3001 for n in lengths]) for _ in range(lanes)] for t in range(times)]
        obs = self.obs(times * lanes).reshape(times, lanes, 2)
        no = np.zeros((times, lanes), np.bool_)
        if block:
            given: dict[str, Any] = {name: [[one[name] for one in of] for of in rows] for name in rows[0][0]}
            self.store.extend(obs=obs, action=no + 0, reward=no + 0.0, terminated=no, truncated=no, **given)
        else:
            for t in range(times):
                given = {name: [one[name] for one in rows[t]] for name in rows[t][0]}
                self.store.extend(
                    obs=obs[t], action=no[t] + 0, reward=no[t] + 0.0, terminated=no[t], truncated=no[t], **given
                )
        for t in range(times):
            for lane in range(lanes):
                self.note(lane, before[lane] + t, rows[t][lane])

    @rule(lane=st.integers(0, 2), count=st.integers(1, 40), length=LENGTHS, whole=st.booleans())
    def add_episode(self, lane: int, count: int, length: int, whole: bool) -> None:
        lane %= self.lanes
        self.store.break_episode(lane)
        self.forget_dropped(lane)
        rows = [self.next_rows([(length + k * t) % 2000 for k in range(4)]) for t in range(count)]
        number = int(self.store.lane_steps[lane]) if lane < self.store.lanes else 0
        given: dict[str, Any] = {name: [one[name] for one in rows] for name in rows[0]}
        self.store.add_episode(
            lane=lane, obs=self.obs(count + 1), action=np.zeros(count, np.int64), reward=np.zeros(count),
            terminated=True, whole=whole, **given,
        )  # fmt: skip
        for t, one in enumerate(rows):
            self.note(lane, number + t, one)

    @rule(lane=st.integers(0, 2))
    def break_episode(self, lane: int) -> None:
        lane %= self.lanes
        self.store.break_episode(lane)
        self.forget_dropped(lane)

    def forget_dropped(self, lane: int) -> None:
        """Forget a last step that was dropped: its number is used again."""
        if lane < self.store.lanes:
            self.steps.pop((lane, int(self.store.lane_steps[lane])), None)

    @rule()
    def clear(self) -> None:
        self.store.clear()

    def reopened(self) -> None:
        for lane in range(self.store.lanes):
            self.forget_dropped(lane)

    @invariant()
    def batches_have_the_rows(self) -> None:
        if len(self.view):
            batch = self.view.sample(16)
            for i, place in enumerate(zip(batch.lane.tolist(), batch.step.tolist(), strict=True)):
                for name, expected in self.steps[place].items():
                    assert same(batch[name][i], expected), name
            again = self.view.fetch(batch.ids)
            for name in self.fields:
                assert (again[name].offsets == batch[name].offsets).all()
                assert (again[name].values == batch[name].values).all()

    @invariant()
    def windows_have_the_rows(self) -> None:
        if len(self.windows):
            batch = self.windows.sample(5)
            assert batch["text"].shape == batch.mask.shape
            for b, (lane, step) in enumerate(zip(batch.lane.tolist(), batch.step.tolist(), strict=True)):
                for t in range(batch.mask.shape[1]):
                    for name in self.fields:
                        found = batch[name][b, t]
                        if batch.mask[b, t]:
                            assert same(found, self.steps[lane, step + t - batch.burn_in][name])
                        else:
                            assert len(found) == 0

    @rule()
    def episodes_have_the_rows(self) -> None:
        for episode in self.store.episodes():
            for name in self.fields:
                rows = episode[name]
                assert len(rows) == episode.length
                for t in range(episode.length):
                    assert same(rows[t], self.steps[episode.lane, episode.first_step + t][name]), name

    @rule(size=st.integers(1, 8))
    def streams_have_the_rows(self, size: int) -> None:
        if len(self.view):
            batch = next(self.view.stream(size, lookahead=2))
            place = batch.lane.tolist()[0], batch.step.tolist()[0]
            assert same(batch["blob"][0], self.steps[place]["blob"])

    @invariant()
    def memory_is_counted(self) -> None:
        values = self.store._log.opened.columns.values
        assert values.nbytes == sum(map(len, values._buffers.values()))
        opened = set(self.store._log.opened.slots.tolist())
        behind = self.store._log.sealing.behind
        opened |= {one.slot for one in behind.pending} if behind is not None else set()
        assert {slot for _, slot in values._buffers} <= opened


class ReservoirStore(RaggedStore):
    retention = sw.Reservoir


class LowestStore(RaggedStore):
    retention = sw.LowestPriority

    def begin_views(self) -> None:
        self.view = self.store.transitions(sampler=sw.Prioritized())
        self.windows = self.store.sequences(4, burn_in=2, stride=2)


SETTINGS = settings(max_examples=examples(15), stateful_step_count=25, deadline=None)
TestFifo, TestReservoir, TestLowest = RaggedStore.TestCase, ReservoirStore.TestCase, LowestStore.TestCase
TestFifo.settings = TestReservoir.settings = TestLowest.settings = SETTINGS


@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_dtype_round_trips(dtype: str) -> None:
    field = sw.Field((None, 2), dtype)
    spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"), rows=field)
    store, given = sw.Store(spec, capacity=1000), []
    for k in range(300):
        given.append(rows_of({"rows": field}, [k % 60], k)["rows"])
        store.append(obs=k, action=0, reward=0, terminated=k % 100 == 99, truncated=False, rows=given[-1])
    found = [row for episode in store.episodes() for row in episode["rows"]]
    assert len(found) == 300 and all(same(a, b) for a, b in zip(found, given, strict=True))
