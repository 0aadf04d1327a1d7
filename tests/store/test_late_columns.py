"""Columns added later, against a dict of values by lane and step: through evictions, reopening, checkpoints, kills."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import hypothesis.stateful as stateful
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.disk.state_files import file_name, state_files
from sharpwave.disk.store_folder import COLUMNS
from sharpwave.native.file_operations import Files
from sharpwave.offline.folder_check import check
from sharpwave.persistence.column_files import NAMES
from tests.support.examples import examples, stride

SPEC = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
KINDS = {
    "advantage": sw.Field((), "float32"),
    "label": sw.Field((), "bool"),
    "vector": sw.Field((3,), "float64"),
    "count": sw.Field((2, 2), "int16"),
}
RETENTIONS: dict[str, Any] = {
    "fifo": sw.Fifo,
    "reservoir": lambda: sw.Reservoir(seed=3),
    "lowest": sw.LowestPriority,
}
CHANGES = ("create", "replace", "unlink", "rename", "link", "remove_directory", "make_directory", "fsync_folder")
FORK = multiprocessing.get_context("fork")
Step = tuple[int, int]


def value_of(name: str, lane: int, step: int, salt: int) -> np.ndarray[Any, Any]:
    """A value that tells its step, and when it was written."""
    kind = KINDS[name]
    number = lane * 1009 + step * 7 + salt
    cells = np.arange(max(1, int(np.prod(kind.shape)))) + number
    if kind.dtype == "bool":
        cells = cells % 2
    return cells.astype(kind.np_dtype).reshape(kind.shape)


def obs_of(lane: int, step: int) -> np.ndarray[Any, Any]:
    return np.array([lane, step], np.float32)


class Columns(stateful.RuleBasedStateMachine):
    """A store and, beside it, what was written of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.written: dict[str, dict[Step, np.ndarray[Any, Any]]] = {}
        self.ids: dict[Step, int] = {}
        self.steps: dict[int, int] = {}
        self.begun: dict[int, bool] = {}
        self.salt = 0
        self.lives = 0

    @stateful.initialize(disk=st.booleans(), retention=st.sampled_from(sorted(RETENTIONS)), ram=st.booleans())
    def begin(self, disk: bool, retention: str, ram: bool) -> None:
        self.disk = self.folder / "store" if disk else None
        self.limits: dict[str, Any] = {"capacity": 96} | ({"ram": "6MiB"} if ram else {})
        self.store = sw.Store(
            SPEC, disk=self.disk, retention=RETENTIONS[retention](), segment_steps=8, seed=1, **self.limits
        )
        self.views()

    def views(self) -> None:
        self.transitions = self.store.transitions(n_step=2, sampler=sw.Prioritized())
        self.sequences = self.store.sequences(4, burn_in=2, stride=2)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.folder)

    # writing

    @stateful.rule(lane=st.integers(0, 3), count=st.integers(1, 30), ends=st.integers(1, 12))
    def append(self, lane: int, count: int, ends: int) -> None:
        for _ in range(count):
            step = int(self.store.lane_steps[lane]) if lane < self.store.lanes else 0
            ended = (step + lane) % ends == ends - 1
            id_ = self.store.append(
                lane=lane, obs=obs_of(lane, step), action=step, reward=1.0, terminated=ended, truncated=False
            )
            self.ids[lane, step] = int(id_)

    @stateful.rule(lane=st.integers(0, 3))
    def break_off(self, lane: int) -> None:
        if lane < self.store.lanes:
            self.store.break_episode(lane)

    @stateful.rule()
    def clear(self) -> None:
        self.store.clear()

    @stateful.rule(name=st.sampled_from(sorted(KINDS)))
    def add(self, name: str) -> None:
        if name in self.written:
            with pytest.raises(ValueError, match="there is a field"):
                self.store.add_column(name, KINDS[name])
            return
        self.store.add_column(name, KINDS[name])
        self.written[name] = {}

    @stateful.rule(name=st.sampled_from(sorted(KINDS)))
    def drop(self, name: str) -> None:
        if name in self.written:
            self.store.drop_column(name)
            del self.written[name]

    @stateful.rule(name=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 1 << 30), count=st.integers(1, 40))
    def write(self, name: str, seed: int, count: int) -> None:
        if name not in self.written or not self.ids:
            return
        self.salt += 1
        rng = np.random.default_rng(seed)
        known = list(self.ids)
        chosen = [known[k] for k in rng.integers(0, len(known), count)]  # evicted and repeated ones among them
        values = np.stack([value_of(name, lane, step, self.salt + k) for k, (lane, step) in enumerate(chosen)])
        held = self.held()
        found = self.store.write_column(name, [self.ids[one] for one in chosen], values)
        assert found == sum(one in held for one in chosen)
        for one, value in zip(chosen, values, strict=True):
            if one in held:
                self.written[name][one] = value

    @stateful.rule(name=st.sampled_from(sorted(KINDS)))
    def derive(self, name: str) -> None:
        if name not in self.written:
            return
        done = [(e.lane, e.first_step, e.length) for e in self.store.episodes() if e.whole]
        left = [
            (lane, first, length)
            for lane, first, length in done
            if any((lane, step) not in self.written[name] for step in range(first, first + length))
        ]

        def made(obs: Any) -> Any:
            return np.stack([value_of(name, int(lane), int(step), 5) for lane, step in obs[:-1]])

        assert self.store.derive(name, made, ("obs",)) == sum(length for *_, length in left)
        for lane, first, length in left:
            for step in range(first, first + length):
                self.written[name][lane, step] = value_of(name, lane, step, 5)

    # lives

    @stateful.rule(capacity=st.integers(64, 400))
    def resize(self, capacity: int) -> None:
        self.store.resize(capacity=capacity)

    @stateful.rule()
    def reopen(self) -> None:
        if self.disk is not None:
            self.store.close()
            self.opened(sw.Store.open(self.disk))

    @stateful.rule(single=st.booleans(), further=st.integers(0, 20))
    def checkpoint(self, single: bool, further: int) -> None:
        """Later values are not part of the checkpoint."""
        self.lives += 1
        place = self.folder / (f"{self.lives}.sharpwave" if single else f"{self.lives}")
        self.store.checkpoint(place)
        before = {name: dict(values) for name, values in self.written.items()}, dict(self.ids)
        for name in list(self.written):
            self.write(name, 7, further + 1)
        self.store.close()
        self.written, self.ids = before
        where: dict[str, Any] = {} if self.disk is None else {"disk": self.folder / f"store{self.lives}"}
        self.opened(sw.Store.open(place, **where))
        self.disk = where.get("disk")

    def opened(self, store: sw.Store) -> None:
        self.store = store
        assert not store.recovery.damages  # type: ignore[union-attr]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.views()

    # reading

    def held(self) -> set[Step]:
        return {(e.lane, step) for e in self.store.episodes() for step in range(e.first_step, e.first_step + e.length)}

    @stateful.invariant()
    def columns_are_as_written(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.columns == {name: KINDS[name] for name in self.written}
        held = self.held()
        self.ids = {step: id_ for step, id_ in self.ids.items()}
        for name in self.written:
            for step in [step for step in self.written[name] if step not in held]:
                del self.written[name][step]  # gone with its step
            values, there = self.store.read_column(name, list(self.ids.values()))
            for k, step in enumerate(self.ids):
                assert there[k] == (step in self.written[name])
                assert np.array_equal(values[k], self.written[name].get(step, np.zeros(KINDS[name].shape)))
        for episode in self.store.episodes():
            for name in self.written:
                self.same(name, episode.lane, episode.first_step, episode[name], episode[f"{name}.written"])

    def same(self, name: str, lane: int, first: int, values: Any, there: Any) -> None:
        for k in range(len(values)):
            known = self.written[name].get((lane, first + k))
            assert there[k] == (known is not None)
            assert np.array_equal(values[k], np.zeros(KINDS[name].shape) if known is None else known)

    @stateful.rule(count=st.integers(1, 70))
    def sample(self, count: int) -> None:
        try:
            batch = self.transitions.sample(count)
        except sw.EmptyError:
            return
        assert set(batch.fields) == {one for name in self.written for one in (name, f"{name}.written")}
        for name in self.written:
            for k, (lane, step) in enumerate(zip(batch.lane.tolist(), batch.step.tolist(), strict=True)):
                self.same(name, lane, step, batch[name][k : k + 1], batch.mask_of(name)[k : k + 1])
        again = self.transitions.fetch(batch.ids)
        for name in batch.fields:
            assert np.array_equal(again[name], batch[name])

    @stateful.rule(count=st.integers(1, 20))
    def sample_windows(self, count: int) -> None:
        try:
            batch = self.sequences.sample(count)
        except sw.EmptyError:
            return
        for name in self.written:
            for k in range(count):
                steps = np.flatnonzero(batch.mask[k])
                first = int(batch.step[k]) + int(steps[0]) - batch.burn_in
                self.same(name, int(batch.lane[k]), first, batch[name][k][steps], batch.mask_of(name)[k][steps])
                assert not batch.mask_of(name)[k][~batch.mask[k]].any()
                assert not batch[name][k][~batch.mask[k]].any()


Columns.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
test_columns = Columns.TestCase


def filled(steps: int = 40, **more: Any) -> sw.Store:
    store = sw.Store(SPEC, **({"capacity": 200, "segment_steps": 8} | more))
    for step in range(steps):
        store.append(obs=obs_of(0, step), action=step, reward=float(step), terminated=step % 10 == 9, truncated=False)
    return store


def to_go(reward: Any) -> Any:
    return np.cumsum(reward[::-1])[::-1]


def test_returns_to_go_are_those_of_each_episode() -> None:
    """By hand: rewards 0 to 9, so the first step's return to go is 45, the last one's 9."""
    store = filled(15)
    assert store.derive("to_go", to_go, ("reward",)) == 10
    (first, running) = store.episodes()
    assert first["to_go"].tolist() == [45, 45, 44, 42, 39, 35, 30, 24, 17, 9]
    assert first["to_go"].dtype == np.float32
    assert not running["to_go.written"].any()
    assert store.derive("to_go", to_go, ("reward",), unfinished=True) == 5
    assert store.derive("to_go", to_go, ("reward",), unfinished=True) == 0
    assert store.derive("to_go", lambda reward: reward * 0, ("reward",), again=True) == 10


def test_a_function_gets_what_it_needs() -> None:
    store = filled(20)
    seen = []

    def ends(episode: Any) -> Any:
        seen.append(episode.length)
        return np.arange(episode.length)

    store.derive("place", ends)
    assert seen == [10, 10]
    needs = ("place", "obs", "action")
    store.derive("from_place", lambda place, obs, action: place + obs[:, 1] + action, needs, by="step")
    assert [one["from_place"].tolist() for one in store.episodes()] == [
        [3.0 * k for k in range(10)], [10 + 10 + 3.0 * k for k in range(10)]
    ]  # fmt: skip


def test_an_error_names_the_episode_and_leaves_those_before() -> None:
    store = filled(30)
    calls = []

    def fails(reward: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the model is out of memory")
        return reward

    with pytest.raises(RuntimeError) as raised:
        store.derive("x", fails, ("reward",))
    assert "lane 0, the episode from step 10" in raised.value.__notes__[0]
    assert [one["x.written"].all() for one in store.episodes()] == [True, False, False]
    assert store.derive("x", fails, ("reward",)) == 20
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.add_column("reward", KINDS["label"]), "always stored"),
        (lambda s: s.add_column("obs", KINDS["label"]), "there is a field 'obs'"),
        (lambda s: s.add_column("a.b", KINDS["label"]), "without a dot"),
        (lambda s: s.add_column("", KINDS["label"]), "1 to 100 printable"),
        (lambda s: s.add_column("x", sw.Field((2,), "uint8", codec="zstd")), "codec="),
        (lambda s: s.add_column("x", sw.Field((2,), "uint8", every=2)), "every="),
        (lambda s: s.add_column("x", "float32"), "expected a sharpwave.Field"),
        (lambda s: s.write_column("y", [0], [0]), "no column 'y' was added; there are 'x'"),
        (lambda s: s.write_column("action", [0], [0]), "a field of the spec"),
        (lambda s: s.write_column("x", s.transitions().sample(2), [1.0]), r"got shape \(1,\) float64, expected \(2,\)"),
        (lambda s: s.write_column("x", [0.5], [1.0]), "expected int64"),
        (lambda s: s.write_column("x", s.sequences(4).sample(2).ids, [1.0, 2.0]), "windows of stride"),
        (lambda s: s.write_column("x", filled().transitions().sample(1).ids, [1.0]), "another store"),
        (lambda s: s.drop_column("z"), "no column 'z'"),
        (lambda s: s.derive("z", lambda reward: reward[:3], ("reward",)), "expected 10 rows"),
        (lambda s: s.derive("z", lambda reward: reward, "reward"), "expected a list of names"),
        (lambda s: s.derive("z", lambda reward: reward, ("reward",), by="lane"), "expected 'episode' or 'step'"),
        (lambda s: s.derive("z", lambda a: a, ("a",)), "no field 'a'"),
        (lambda s: s.derive("z", 3, ("reward",)), "expected a function"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(call: Any, said: str) -> None:
    store = filled()
    store.add_column("x", sw.Field((), "float32"))
    with pytest.raises((ValueError, TypeError, KeyError), match=said):
        call(store)
    assert list(store.columns) == ["x"]
    assert not store.transitions(name="after").sample(8).mask_of("x").any()


def test_views_in_use_have_a_column_from_then_on() -> None:
    """Also where the core draws at once, in streams, and where steps carry goals."""
    spec = sw.Spec(obs={k: sw.Field((1,), "float32") for k in ("observation", "achieved_goal", "desired_goal")},
                   action=sw.Field((), "int64"))  # fmt: skip
    store = sw.Store(spec, capacity=500)
    for step in range(100):
        obs = {k: np.full(1, step, np.float32) for k in ("observation", "achieved_goal", "desired_goal")}
        store.append(obs=obs, action=step, reward=0.0, terminated=step % 20 == 19, truncated=False)
    plain = store.transitions()
    goals = store.transitions(
        name="g", relabel=sw.Future(k=4, reward_fn=lambda achieved, desired, info: achieved[:, 0])
    )
    stream = plain.stream(16)
    for view in (plain, goals):
        for _ in range(3):
            assert not view.sample(16).fields
    next(stream)
    store.derive("half", lambda action: action / 2, ("action",))
    for view in (plain, goals):
        for _ in range(3):
            batch = view.sample(16)
            assert np.array_equal(batch["half"], (batch.action / 2).astype(np.float32))
    batch = [next(stream) for _ in range(8)][-1]
    assert np.array_equal(batch["half"], (batch.action / 2).astype(np.float32))
    store.drop_column("half")
    assert not plain.sample(16).fields


def test_a_blend_has_the_columns_of_all_its_stores() -> None:
    stores = [filled(100), filled(100)]
    parts = [(0.5, store.transitions()) for store in stores]
    blend = sw.Blend(parts)
    stream = blend.stream(8)
    for _ in range(3):
        assert not blend.sample(16).fields
    next(stream)
    for store in stores:
        store.add_column("x" if store is stores[0] else "y", KINDS["advantage"])
    for view in (view for _, view in parts):  # bound anew outside of the blend
        view.sample(16), view.sample(16)
    for _ in range(2):
        with pytest.raises(ValueError, match="'x', 'y' added to some of its stores"):
            blend.sample(16)
    stores[0].add_column("y", KINDS["advantage"])  # in another order
    stores[1].add_column("x", KINDS["advantage"])
    for number, store in enumerate(stores):
        for name in ("x", "y"):
            store.derive(
                name, lambda action, number=number, name=name: action + 1000 * number + (name == "y"), ("action",)
            )
    for batch in (*(blend.sample(16) for _ in range(4)), *(next(stream) for _ in range(8))):
        for name in ("x", "y"):
            assert batch.mask_of(name).all()
            assert np.array_equal(batch[name], batch.action + 1000 * batch.source + (name == "y"))
    stores[1].drop_column("x")
    with pytest.raises(ValueError, match="'x' added"):
        blend.sample(16)


def test_tables_of_steps_have_nulls_where_nothing_was_written() -> None:
    pytest.importorskip("pyarrow")
    store = filled(25)
    store.derive("x", lambda reward: reward, ("reward",))
    store.add_column("v", KINDS["vector"])
    store.write_column("v", store.episodes()[0].ids[3:5], [[1, 2, 3], [4, 5, 6]])
    table = store.table("steps").read_all().to_pydict()
    assert table["x"] == [float(k) for k in range(20)] + [None] * 5
    assert table["v"] == [None] * 3 + [[1, 2, 3], [4, 5, 6]] + [None] * 20
    assert store.table("steps", fields=["x"]).schema.names[-1] == "x"


KILLED = """
import os, signal, sys, numpy as np, sharpwave as sw
store = sw.Store(sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64")), disk=sys.argv[1], capacity=4000,
                 segment_steps=8)
for step in range(300):
    obs = np.array([0, step], np.float32)
    store.append(obs=obs, action=step, reward=1.0, terminated=step % 10 == 9, truncated=False)
store.add_column("x", sw.Field((), "float32"))
episodes = store.episodes()
for number, episode in enumerate(episodes):
    store.write_column("x", episode.ids, episode.action)
    if number == 20:
        store.flush()
    if number == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("number", [5, 20, 25])
def test_flushed_values_outlive_a_kill(tmp_path: Path, number: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "d"), str(number)], timeout=100)
    assert done.returncode == -signal.SIGKILL
    store = sw.Store.open(tmp_path / "d")
    assert not store.recovery.damages  # type: ignore[union-attr]
    if number < 20:
        assert not store.columns
        return
    for k, episode in enumerate(store.episodes()):
        if k <= 20:
            assert np.array_equal(episode["x"], episode.action)
        assert set(episode["x.written"].tolist()) == {k <= 20}
    store.close()


def test_a_column_written_over_is_the_last_one(tmp_path: Path) -> None:
    store = filled(disk=tmp_path / "d")
    store.derive("x", lambda reward: reward, ("reward",))
    before = {path: path.read_bytes() for path in (tmp_path / "d" / "regions").iterdir()}
    store.derive("x", lambda reward: -reward, ("reward",), again=True)
    assert {path: path.read_bytes() for path in (tmp_path / "d" / "regions").iterdir()} == before
    store.drop_column("x")
    store.derive("x", lambda reward: reward.astype(int), ("reward",))  # of another type
    store.close()
    store = sw.Store.open(tmp_path / "d")
    assert store.columns["x"].dtype == "int64"
    assert [one["x"].sum() for one in store.episodes()] == [45, 145, 245, 345]
    store.drop_column("x")
    store.close()
    assert len([path for path, _ in state_files(tmp_path / "d") if path.parent.name == COLUMNS]) == 1
    assert not sw.Store.open(tmp_path / "d").columns


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
@pytest.mark.parametrize("number", [0, 1])
def test_damaged_files_are_named_and_cost_only_their_values(tmp_path: Path, damage: str, number: int) -> None:
    store = filled(disk=tmp_path / "d")
    store.derive("x", lambda reward: reward, ("reward",))
    store.close()
    assert not check(tmp_path / "d").damages
    paths = [path for path, _ in state_files(tmp_path / "d") if path.parent.name == COLUMNS]
    assert len(paths) == 2
    path = paths[number]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        damaged: dict[str, bytes | bytearray] = {"flip": bytes(content), "cut": content[:100], "empty": b""}
        path.write_bytes(damaged[damage])
        assert [str(path) in str(one.path) for one in check(tmp_path / "d").damages] == [True]
    store = sw.Store.open(tmp_path / "d")
    assert len(store) == 40
    assert store.transitions().sample(8).fields.keys() <= {"x", "x.written"}
    if "x" in store.columns:
        assert not any(episode["x.written"].any() for episode in store.episodes())
    if damage != "gone":
        (said,) = store.recovery.damages  # type: ignore[union-attr]
        assert str(path) in said
        assert "lost" in said
    if "x" in store.columns:
        store.drop_column("x")
    assert store.derive("x", lambda reward: reward, ("reward",)) == 40
    store.close()
    assert all(one["x.written"].all() for one in sw.Store.open(tmp_path / "d").episodes())


@pytest.mark.parametrize("trained", [True, False])
def test_values_of_windows_are_those_of_their_real_steps(trained: bool) -> None:
    """Written through a batch of sequences: each step's action, so that a value tells its step."""
    store = filled(40)
    store.add_column("x", sw.Field((2,), "int32"))
    batch = store.sequences(4, burn_in=2).sample(6)
    at = batch.burn_in if trained else 0
    mask, actions = batch.mask[:, at:], batch.action[:, at:]
    assert store.write_column("x", batch, np.repeat(actions[..., None], 2, 2)) == np.count_nonzero(mask)
    for episode in store.episodes():
        there = episode["x.written"]
        assert (episode["x"][there] == episode.action[there][:, None]).all()
        assert {*episode.action[there].tolist()} == {*actions[mask].tolist()} & {*episode.action.tolist()}
    for wrong, said in (
        (np.zeros((6, 5, 2)), r"expected \(6, 6, 2\) int32, or of trained steps alone \(6, 4, 2\)"),
        (np.zeros(6), "trained steps alone"),
    ):
        with pytest.raises(ValueError, match=said):
            store.write_column("x", batch, wrong)
    with pytest.raises(ValueError, match="another store"):
        store.write_column("x", filled(40).sequences(4, burn_in=2).sample(6), np.zeros((6, 6, 2)))


def test_ram_counts_columns() -> None:
    store = filled(40, capacity=None, ram="8MiB")
    before = store.stats()["total_bytes"]
    store.add_column("x", sw.Field((64,), "float32"))
    ids = store.episodes()[0].ids
    store.write_column("x", ids, np.ones((10, 64)))
    stats = store.stats()
    assert stats["bytes"]["columns"] >= 40 * 257
    assert before < stats["total_bytes"] <= 8 << 20
    for step in range(40, 90_000):
        store.append(obs=obs_of(0, step), action=step, reward=1.0, terminated=step % 10 == 9, truncated=False)
    assert store.stats()["total_bytes"] <= 8 << 20


def test_a_column_that_ram_has_no_room_for_evicts_nothing(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=200_000, ram="16MiB")
    for _ in range(200):
        store.add_episode(obs=np.zeros((101, 2)), action=np.zeros(100, int), reward=np.zeros(100), terminated=True)
    with pytest.raises(MemoryError, match=r"takes .* bytes of memory .* ram="):
        store.add_column("large", sw.Field((110,), "float64"))
    assert len(store) == 20_000
    assert not store.columns
    store.resize(ram="64MiB")
    store.add_column("large", sw.Field((110,), "float64"))
    assert len(store) == 20_000
    store.checkpoint(tmp_path / "c")
    with pytest.raises(MemoryError, match="raise it"):
        sw.Store.open(tmp_path / "c", ram="16MiB")
    assert len(sw.Store.open(tmp_path / "c")) == 20_000


@pytest.mark.parametrize("where", ["in place", "elsewhere"])
def test_a_kill_amid_opening_a_checkpoint_loses_no_column(tmp_path: Path, where: str) -> None:
    """After each number of changes of files, in a process of its own; opened again, by the same call."""
    store = filled(disk=tmp_path / "d")
    store.derive("x", lambda reward: reward, ("reward",))
    store.checkpoint(tmp_path / "c")
    store.close()

    def opened_until(number: int, *given: Any, **more: Any) -> None:
        """Open in a process that is killed at a change of files."""
        left = [number]

        def counted(real: Any) -> Any:
            def call(*given: Any, **more: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*given, **more)

            return call

        for name in CHANGES:
            setattr(Files, name, counted(getattr(Files, name)))
        sw.Store.open(*given, **more)._life.over()
        os._exit(0)

    died = 0
    for number in range(0, 60, stride(4)):
        copy, target = tmp_path / f"c{number}", tmp_path / f"t{number}"
        shutil.copytree(tmp_path / "c", copy)
        elsewhere: dict[str, Any] = {} if where == "in place" else {"disk": target}
        process = FORK.Process(target=opened_until, args=(number, copy), kwargs=elsewhere)
        process.start()
        process.join(100)
        died += process.exitcode == -signal.SIGKILL
        begun = where == "elsewhere" and (target / "store.json").exists()
        more: dict[str, Any] = {} if where == "in place" or begun else {"disk": target}
        with sw.Store.open(target if begun else copy, **more) as again:
            assert [one["x"].tolist() for one in again.episodes()] == [
                [float(k) for k in range(begin, begin + 10)] for begin in range(0, 40, 10)
            ]
    assert died > 2


def test_a_column_has_no_values_of_one_that_had_its_name(tmp_path: Path) -> None:
    store = filled(disk=tmp_path / "d")
    store.derive("x", lambda reward: reward, ("reward",))
    store.close()
    names = tmp_path / "d" / COLUMNS / file_name(NAMES, store._log.identity["store"])
    for damage in (lambda: names.write_bytes(b"x"), names.unlink):
        damage()
        store = sw.Store.open(tmp_path / "d")
        assert "lost" in store.recovery.damages[0]  # type: ignore[union-attr]
        assert not store.columns
        store.add_column("x", sw.Field((), "float32"))
        store.close()
        with sw.Store.open(tmp_path / "d") as again:
            assert not any(one["x.written"].any() for one in again.episodes())
            again.derive("x", lambda reward: reward, ("reward",))


def test_as_many_columns_as_a_spec_has_fields() -> None:
    store = filled(5)
    for number in range(511):
        store._log.late.add(f"c{number}", KINDS["label"])
    with pytest.raises(ValueError, match="1,024"):
        store.add_column("one more", sw.Field((), "bool"))
    assert len(store.columns) == 511


def test_a_table_of_a_dropped_column_is_refused() -> None:
    pytest.importorskip("pyarrow")
    store = filled(20)
    store.derive("x", lambda reward: reward, ("reward",))
    table = store.table("steps")
    store.drop_column("x")
    with pytest.raises(ValueError, match="'x' was dropped"):
        table.read_all()


def test_a_functions_own_error_is_raised() -> None:
    with pytest.raises(KeyError, match="evicted"):
        filled(20).derive("x", lambda reward: {}["evicted"], ("reward",))  # type: ignore[index]
