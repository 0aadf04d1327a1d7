"""Columns added later, and deletions, of stores that are served, against dicts of what was written."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.late_values import LateTaker
from sharpwave.serve.link import ShardLostError
from sharpwave.serve.server import Server
from sharpwave.serve.shard import Shard
from sharpwave.serve.wire import Frame, Request, WireError
from sharpwave.views import filling
from tests.serve.serving import Kind, Served, served
from tests.support.examples import by_day, every_two, examples

SPEC = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"))
COLUMNS = {
    "pair": sw.Field((2,), "float32"),
    "label": sw.Field((), "int8"),
    "good": sw.Field((), "bool"),
    "wide": sw.Field((2, 3), "float64"),
}
Where = tuple[int, int, int]
"""Shard, lane and step."""


def value_of(kind: sw.Field, number: int) -> np.ndarray[Any, Any]:
    """A value that no other number has, but for bools and small integers, and whose parts are all equal."""
    return np.full(kind.shape, number % 2 if kind.dtype == "bool" else number % 100, kind.np_dtype)


class World:
    """Two stores that are served, and what was done with them.

    Attributes:
        held: action of each step that is there. ``ended``: steps that can be sampled. ``columns``: by name.
        history: values that each step's column had, the last one last; ``None``: none was written.
    """

    def __init__(self, there: Served) -> None:
        self.there, self.cluster, self.stores = there, there.cluster, there.stores
        self.view = self.cluster.transitions()
        self.windows = self.cluster.sequences(4, burn_in=2, stride=2)
        self.long = self.cluster.transitions(name="long", where="length > 3")
        self.episodes: dict[tuple[int, int, int], int] = {}  # shard, lane, first step: length
        self.held: dict[Where, int] = {}
        self.columns: dict[str, sw.Field] = {}
        self.history: dict[str, dict[Where, list[Any]]] = {}
        self.number = 0

    def shard_of(self, incarnation: int) -> int:
        return next(k for k, one in enumerate(self.there.shards) if one.incarnation == incarnation)

    def where(self, batch: Any) -> list[Where]:
        shards = [self.shard_of(one) for one in batch.shards.tolist()]
        return list(zip(shards, batch.lane.tolist(), batch.step.tolist(), strict=True))

    def play(self, shard: int, lane: int, length: int) -> None:
        store = self.stores[shard]
        first = int(store.lane_steps[lane]) if lane < store.lanes else 0
        actions = np.arange(self.number, self.number + length)
        obs = np.repeat(np.arange(self.number, self.number + length + 1)[:, None], 3, 1)
        store.add_episode(lane=lane, obs=obs, action=actions, reward=np.ones(length), terminated=True)
        self.number += length
        self.episodes[shard, lane, first] = length
        self.held |= {(shard, lane, first + k): int(action) for k, action in enumerate(actions)}

    def add(self, name: str, by_client: bool) -> None:
        if by_client:
            self.cluster.add_column(name, COLUMNS[name])
            self.cluster.add_column(name, COLUMNS[name])  # as another learner
        else:
            for store in self.stores:
                if name not in store.columns:
                    store.add_column(name, COLUMNS[name])
        if name not in self.columns:
            self.columns[name], self.history[name] = COLUMNS[name], defaultdict(lambda: [None])

    def drop(self, name: str, by_client: bool) -> None:
        if by_client:
            self.cluster.drop_column(name)
        else:
            self.cluster._columns.pop(name, None)
            for store in self.stores:
                store.drop_column(name)
        del self.columns[name], self.history[name]

    def write(self, name: str, items: list[Where], values: np.ndarray[Any, Any]) -> None:
        """Note written values; of repeated steps the last counts."""
        for one, value in zip(items, values, strict=True):
            self.history[name][one].append(value)

    def derive(self, name: str, number: int, by_client: bool) -> None:
        """Compute a column of the episodes that lack values, from their actions."""
        kind = self.columns[name]

        def made(action: Any) -> Any:
            return np.array([value_of(kind, number + int(one)) for one in action]).reshape(-1, *kind.shape)

        lacking = [
            (shard, lane, first + k)
            for (shard, lane, first), length in self.episodes.items()
            if any(self.history[name][shard, lane, first + k][-1] is None for k in range(length))
            for k in range(length)
        ]
        if by_client:
            assert self.cluster.derive(name, made, ["action"], by=("episode", "step")[number % 2]) == len(lacking)
        else:
            assert sum(store.derive(name, made, ["action"]) for store in self.stores) == len(lacking)
        self.write(name, lacking, made([self.held[one] for one in lacking]))

    def check_episodes(self) -> None:
        """Read all episodes from the client."""
        seen = dict[tuple[int, int, int], int]()
        for one in self.cluster.episodes():
            shard = self.shard_of(int(one.shards[0]))
            place = shard, one.lane, one.first_step
            seen[place] = one.length
            assert one.action.tolist() == [self.held[shard, one.lane, one.first_step + k] for k in range(one.length)]
            assert one.obs[:, 0].tolist() == [*one.action.tolist(), one.action[-1] + 1]
            for name in self.columns:
                known = [self.history[name][shard, one.lane, one.first_step + k][-1] for k in range(one.length)]
                assert one[name + ".written"].tolist() == [value is not None for value in known]
                for value, expected in zip(one[name], known, strict=True):
                    assert np.array_equal(value, np.zeros_like(value) if expected is None else expected)
        assert seen == self.episodes

    def delete_some(self, draw: int) -> None:
        """Delete some episodes that the client has found."""
        some = [one for k, one in enumerate(self.cluster.episodes(order="length")) if (k + draw) % 4 == 0]
        count = self.cluster.delete(episodes=some)
        assert count == sum(one.length for one in some)
        assert self.cluster.delete(episodes=some) == 0
        for one in some:
            shard = self.shard_of(int(one.shards[0]))
            del self.episodes[shard, one.lane, one.first_step]
            for k in range(one.length):
                del self.held[shard, one.lane, one.first_step + k]
            with pytest.raises(KeyError, match="since episodes"):
                _ = one.action

    def delete(self, limit: int, by_client: bool) -> int:
        gone = {key: n for key, n in self.episodes.items() if n < limit}
        count = sum(gone.values())
        if by_client:
            assert self.cluster.delete(where=f"length < {limit}") == count
        else:
            assert sum(store.delete(where=f"length < {limit}") for store in self.stores) == count
        for (shard, lane, first), length in gone.items():
            del self.episodes[shard, lane, first]
            for k in range(length):
                del self.held[shard, lane, first + k]
        return count

    def check(self, batch: Any, *, ahead: bool = False) -> None:
        """Compare a batch with what was written; with ``ahead``, with what was written at any time."""
        windows = isinstance(batch, sw.SequenceBatch)
        where = self.where(batch)
        for name, field in self.columns.items():
            if ahead and name not in batch.fields:
                continue
            values, mask = batch[name], batch.mask_of(name)
            assert values.dtype == field.np_dtype
            assert values.shape == (*mask.shape, *field.shape)
            rows = [
                ((i, t), (shard, lane, step + t - batch.burn_in))
                for i, (shard, lane, step) in enumerate(where)
                for t in np.flatnonzero(batch.mask[i]).tolist()
            ] if windows else [((i,), one) for i, one in enumerate(where)]  # fmt: skip
            if windows:
                assert not mask[~batch.mask].any()
                assert not values[~batch.mask].any()
            for at, one in rows:
                known = self.history[name][one] if ahead else self.history[name][one][-1:]
                found = values[at] if mask[at] else None
                assert any(a is found if a is None or found is None else np.array_equal(a, found) for a in known), (
                    name,
                    one,
                    found,
                    known,
                )
        assert {name for name in batch.fields if not name.endswith(".written")} <= {*self.columns} or ahead
        if not ahead and not windows:
            assert [self.held[one] for one in where] == batch.action.tolist()


OPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "play",
                "play",
                "add",
                "add",
                "write",
                "windows",
                "own",
                "drop",
                "delete",
                "look",
                "ahead",
                "derive",
                "some",
            ]
        ),
        st.integers(0, 1 << 16),
        st.booleans(),
    ),
    min_size=4,
    max_size=18,
)


@settings(max_examples=examples(25), deadline=None)
@given(ops=OPS, kind=st.sampled_from(["unix", "tcp"]))
def test_programs_over_served_stores(tmp_path_factory: pytest.TempPathFactory, ops: Any, kind: Kind) -> None:
    folder = tmp_path_factory.mktemp("s")
    with served(2, folder, kind, spec=SPEC) as there:
        world = World(there)
        for shard in range(2):
            world.play(shard, 0, 5)
        for number, (op, draw, by_client) in enumerate(ops):
            names = sorted(world.columns)
            name = names[draw % len(names)] if names else None
            if op == "play":
                world.play(draw % 2, draw // 2 % 2, 1 + draw // 4 % 9)
            elif op == "add":
                world.add(sorted(COLUMNS)[draw % 4], by_client)
            elif op == "drop" and name:
                world.drop(name, by_client)
            elif op == "delete":
                world.delete(1 + draw % 5, by_client)
            elif op == "some":
                world.delete_some(draw)
            elif op == "derive" and name:
                world.derive(name, draw, by_client)
            elif op in ("write", "windows", "own") and name and world.held:
                field = world.columns[name]
                if op == "own":
                    shard = draw % 2
                    items = [one for one in sorted(world.held) if one[0] == shard][:: 1 + draw % 3]
                    values = np.array([value_of(field, number + k) for k in range(len(items))], field.np_dtype)
                    ids = world.stores[shard].ids([one[1] for one in items], [one[2] for one in items])
                    values = values.reshape(len(items), *field.shape)
                    assert world.stores[shard].write_column(name, ids, values) == len(items)
                    world.write(name, items, values)
                elif op == "write":
                    batch = world.view.sample(1 + draw % 9)
                    values = np.array([value_of(field, number + k) for k in range(len(batch))])
                    assert world.cluster.write_column(name, batch, values) == len(batch)
                    world.write(name, world.where(batch), values)
                else:
                    window = world.windows.sample(1 + draw % 4)
                    at = window.burn_in if by_client else 0
                    mask = window.mask[:, at:]
                    values = np.empty((*mask.shape, *field.shape), field.np_dtype)
                    for k, place in enumerate(np.ndindex(mask.shape)):
                        values[place] = value_of(field, number + k)
                    assert world.cluster.write_column(name, window, values) == np.count_nonzero(mask)
                    rows = [
                        ((shard, lane, step + int(t) + at - window.burn_in), values[i, t])
                        for i, (shard, lane, step) in enumerate(world.where(window))
                        for t in np.flatnonzero(mask[i])
                    ]
                    world.write(name, [one for one, _ in rows], [value for _, value in rows])  # type: ignore[arg-type]
            assert len(world.view) == len(world.held)
            assert len(world.long) == sum(n for n in world.episodes.values() if n > 3)
            if world.held:
                world.check(world.view.sample(8))
                if op == "ahead":
                    world.check(world.view.sample(5, lookahead=2), ahead=True)
            if len(world.windows):
                world.check(world.windows.sample(4))
            if len(world.long):
                world.check(world.long.sample(4))
        world.check_episodes()
        if not world.held:
            with pytest.raises(sw.EmptyError):
                world.view.sample(1)


def filled(there: Served, episodes: int = 30) -> None:
    """Play episodes of 1 to 9 steps in two lanes of each store; rewards are 1."""
    number = 0
    for shard, store in enumerate(there.stores):
        for k in range(episodes):
            length = 1 + (k + shard) % 9
            obs = np.zeros((length + 1, 3))
            actions = np.arange(number, number + length)
            store.add_episode(lane=k % 2, obs=obs, action=actions, reward=np.ones(length), terminated=True)
            number += length


@pytest.mark.parametrize(("kind", "ram"), every_two(["unix", "tcp"], [None, "16MiB"]))
def test_a_batch_has_values_of_one_moment(kind: Kind, ram: str | None, tmp_path: Path) -> None:
    """While the owner of a store writes a column as a whole, and drops it and adds one of another dtype and shape."""
    with served(1, tmp_path, kind, spec=SPEC, ram=ram) as there:
        filled(there)
        store, over = there.stores[0], threading.Event()
        ids = np.concatenate([np.asarray(one.ids) for one in store.episodes()])

        def change() -> None:
            for number in range(10**6):
                if over.is_set():
                    return
                field = (sw.Field((40,), "float32"), sw.Field((), "int64"))[number // 20 % 2]
                if number % 20 == 0:
                    if number:
                        store.drop_column("x")
                    store.add_column("x", field)
                store.write_column("x", ids, np.full((len(ids), *field.shape), number + 1))

        thread = threading.Thread(target=change)
        thread.start()
        try:
            seen: set[Any] = set()
            replays = [there.cluster.transitions(), there.cluster.sequences(5, burn_in=1)]
            for k in range(150):
                batch = replays[k % 2].sample(16, lookahead=k % 3)  # type: ignore[attr-defined]
                if "x" not in batch.fields:
                    continue
                mask, values = batch.mask_of("x"), batch["x"]
                real = batch.mask if k % 2 else np.ones(16, bool)
                assert (mask == real).all() or not mask.any()
                assert len(np.unique(values[mask])) <= 1
                assert (values.dtype, values.shape[mask.ndim :]) in ((np.float32, (40,)), (np.int64, ()))
                seen |= {(values.dtype, *np.unique(values[mask]).tolist())}
        finally:
            over.set()
            thread.join()
        assert len(seen) > 5


@pytest.mark.parametrize("kind", by_day("tcp", "unix"))
def test_a_client_that_is_killed_leaves_whole_requests(kind: Kind, tmp_path: Path) -> None:
    """It writes two columns of all steps, each to one number; others read, write and delete meanwhile and after."""
    with served(2, tmp_path, kind, spec=SPEC) as there:
        filled(there)
        there.cluster.add_column("x", COLUMNS["pair"])
        view = there.cluster.transitions()
        batches = [view.sample(64) for _ in range(4)]
        for first in (0, 100_000, 200_000):
            child = os.fork()
            if not child:  # its own connections
                try:
                    for number in range(first, 10**9):
                        for batch in batches:
                            there.cluster.write_column("x", batch, np.full((64, 2), number))
                finally:
                    os._exit(1)
            deadline, newest = time.monotonic() + 30, -1.0
            while newest < first + 3 and time.monotonic() < deadline:  # it is in the middle of its writing
                seen = view.sample(64)
                written = seen["x"][seen.mask_of("x")]
                assert (written[:, 0] == written[:, 1]).all()
                newest = written.max(initial=-1.0)
            os.kill(child, signal.SIGKILL)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL
            assert newest >= first + 3
            assert there.cluster.write_column("x", seen, np.zeros((64, 2))) == 64
        whole = view.sample(64)
        assert there.cluster.write_column("x", whole, np.full((64, 2), -1)) == 64
        assert there.cluster.delete(where="length < 9") == sum(
            1 + (k + shard) % 9 for shard in range(2) for k in range(30) if (k + shard) % 9 < 8
        )
        left = view.sample(64)
        assert len(view) == len(there.cluster)
        assert left.mask_of("x").any()


def test_batches_requested_before_a_deletion_are_requested_anew(tmp_path: Path) -> None:
    with served(2, tmp_path, "tcp", spec=SPEC) as there:
        filled(there)
        view = there.cluster.transitions()
        stream = view.stream(32, lookahead=3)
        view.sample(32, lookahead=3)
        next(stream)
        there.cluster.delete(where="length < 9")
        kept = {int(action) for store in there.stores for one in store.episodes() for action in one.action}
        assert kept
        for batch in (view.sample(32), view.sample(32), next(stream), next(stream)):
            assert {*batch.action.tolist()} <= kept


def test_uses_are_not_lost_by_a_deletion(tmp_path: Path) -> None:
    """No other learner gets the items of a batch that was requested before, so it still comes."""
    with served(1, tmp_path, "unix", spec=SPEC) as there:
        filled(there)
        queue = there.cluster.transitions(sampler=sw.Fifo(), max_times_sampled=1)
        first = queue.sample(8, lookahead=2)
        there.cluster.delete(where="length < 9")
        drawn = {int(a) for batch in (first, queue.sample(8), queue.sample(8)) for a in batch.action}
        assert len(drawn) == 24
        left = queue.sample(len(queue)).action.tolist()
        assert sorted(left) == [int(a) for one in there.stores[0].episodes() for a in one.action if a not in drawn]


def test_writers_go_on_after_their_steps_are_deleted(tmp_path: Path) -> None:
    with served(1, tmp_path, spec=SPEC) as there:
        writer = there.cluster.writer(lanes=2, name="a")

        def write(first: int, steps: int) -> None:
            for k in range(first, first + steps):
                ends = np.full(2, k % 5 == 4)
                writer.extend(
                    obs=np.zeros((2, 3)), action=[k, k], reward=[1, 1], terminated=ends, truncated=[False] * 2,
                    final_obs=np.zeros((2, 3)),
                )  # fmt: skip
            writer.flush()

        write(0, 24)  # the last episode goes on
        assert there.cluster.delete(where="length = 5") == 40
        write(24, 26)
        view = there.cluster.transitions()
        actions = {int(one) for _ in range(20) for one in view.sample(16).action}
        assert actions <= {*range(20, 50)}
        assert {20, 24, 25} <= actions


def test_stores_with_columns_deletions_and_versions_are_served(tmp_path: Path) -> None:
    """As they are: also a version, which nobody changes."""
    with sw.Store(SPEC, capacity=1000, segment_steps=8, disk=tmp_path / "d") as store:
        for k in range(12):
            store.annotate(0, {"task": "push" if k % 2 else "pull"}, episode=True)
            actions = np.arange(5 * k, 5 * k + 5)
            store.add_episode(obs=np.zeros((6, 3)), action=actions, reward=np.ones(5), terminated=True)
        store.derive("to_go", lambda reward: np.cumsum(reward[::-1])[::-1], ("reward",))
        store.delete(where="first_step < 10")
        store.snapshot("v1")
        store.delete(where="task = 'pull'")
    for version, left in (("v1", {*range(10, 60)}), (None, {a for a in range(10, 60) if a // 5 % 2})):
        place = tmp_path / str(version)
        place.mkdir()
        with sw.Store.open(tmp_path / "d", version=version) as store:
            server = Server(Shard(store), Address("unix", str(place / "s")), Security(b""))
            with sw.Cluster.of(SPEC, [str(server.address)]) as cluster:
                batch = cluster.transitions().sample(200)
                assert {*batch.action.tolist()} == left
                assert batch.mask_of("to_go").all()
                assert batch["to_go"].tolist() == [5 - a % 5 for a in batch.action.tolist()]
                pushed = cluster.transitions(name="pushed", where="task = 'push'").sample(100)
                assert all(a // 5 % 2 for a in pushed.action.tolist())
                if version:
                    with pytest.raises(ValueError, match="version"):
                        cluster.delete(where="length > 0")
                    with pytest.raises(ValueError, match="version"):
                        cluster.write_column("to_go", batch, np.zeros(200))
            server.close()


def test_a_blend_has_the_columns_of_all_its_parts(tmp_path: Path) -> None:
    with served(1, tmp_path, spec=SPEC) as there, sw.Store(SPEC, capacity=1000) as own:
        filled(there)
        for k in range(10):
            own.add_episode(obs=np.zeros((4, 3)), action=np.full(3, 1000 + k), reward=np.ones(3), terminated=True)
        far: Any = there.cluster.transitions()
        near: Any = own.transitions()
        also: Any = there.cluster.transitions(name="also")
        for shares in ((0.9, 0.1), (0.1, 0.9)):
            blend: Any = sw.Blend([(shares[0], far), (shares[1], near)], seed=1)
            assert blend.sample(32).fields == {}
            there.cluster.add_column("x", COLUMNS["pair"])
            with pytest.raises(ValueError, match=r"'x', 'x\.written' added to some"):
                blend.sample(64)
            own.add_column("x", COLUMNS["pair"])
            for store in (own, there.stores[0]):
                store.derive("x", lambda action: np.stack([action, action], 1), ("action",))
            for batch in (blend.sample(64), sw.Blend([(0.5, near), (0.5, far)]).sample(64)):
                assert batch.mask_of("x").all()
                assert (batch["x"] == batch.action[:, None]).all()
                assert ((batch.action >= 1000) == (batch.shards == -1)).all()
                assert 0 < np.count_nonzero(batch.shards == -1) < 64
            both = sw.Blend([(0.5, far), (0.5, also)]).sample(64)
            assert (both["x"] == both.action[:, None]).all()
            own.drop_column("x")
            there.cluster._columns.clear()
            there.stores[0].drop_column("x")


def test_shards_keep_columns_and_deletions(tmp_path: Path) -> None:
    """Processes on disk, killed and opened again; and merged into one."""
    with sw.Cluster(SPEC, shards=2, capacity=2000, disk=tmp_path / "d", segment_steps=8) as cluster:
        writers = [cluster.writer(lanes=1, shard=k) for k in range(2)]
        for k in range(60):
            for shard, writer in enumerate(writers):
                writer.extend(
                    obs=np.zeros((1, 3)), action=[1000 * shard + k], reward=[1], terminated=[k % 6 == 5 or k > 55],
                    truncated=[False], final_obs=np.zeros((1, 3)),
                )  # fmt: skip
        for writer in writers:
            writer.close()
        cluster.add_column("x", COLUMNS["wide"])
        view = cluster.transitions()
        batch = view.sample(400)
        values = np.repeat(batch.action, 6).reshape(-1, 2, 3)
        assert cluster.write_column("x", batch, values) == 400
        assert cluster.delete(where="length = 1") == 6
        cluster.flush()
        cluster.checkpoint(tmp_path / "c")
    for shard in range(2):  # a folder's store is changed by its own verbs while it is not served
        with sw.Store.open(tmp_path / "d" / f"shard-{shard}" / "store") as store:
            store.derive("to_go", lambda reward: np.cumsum(reward[::-1])[::-1], ("reward",))
    for again in (
        lambda: sw.Cluster.open(tmp_path / "d"),
        lambda: sw.Cluster.open(tmp_path / "c", shards=1, disk=tmp_path / "one"),
        lambda: sw.Cluster.open(tmp_path / "one"),
    ):
        with again() as cluster:
            batch = cluster.transitions().sample(300)
            assert {*batch.action.tolist()} == {1000 * shard + k for shard in range(2) for k in range(57)}
            assert batch.mask_of("x").mean() > 0.9
            there = batch.mask_of("x")
            assert (batch["x"][there] == batch.action[there][:, None, None]).all()
            assert len(cluster) == 114
            assert cluster.columns["x"].shape == (2, 3)
            if "to_go" in cluster.columns:
                first = batch.action % 1000 % 6 == 0
                assert set(batch["to_go"][first].tolist()) == {6.0, 3.0}


@pytest.mark.parametrize("shards", [1, 2])
def test_a_client_goes_on_with_a_column_that_another_dropped_and_added_with_another_dtype(
    tmp_path: Path, shards: int
) -> None:
    with (
        served(shards, tmp_path, spec=SPEC) as there,
        sw.Cluster.of(SPEC, [str(one.address) for one in there.servers]) as other,
    ):
        filled(there)
        here, view = there.cluster, there.cluster.transitions()
        here.add_column("label", sw.Field((), "float32"))
        stream = view.stream(4)
        assert next(stream)["label"].dtype == view.sample(4, fields=["label"])["label"].dtype == np.float32
        for kind in (sw.Field((), "int64"), sw.Field((2,), "int64"), sw.Field((), "uint8")):
            other.drop_column("label")
            other.add_column("label", kind)
            for batch in (view.sample(32), view.sample(4, fields=["label"]), here.transitions(name="new").sample(4)):
                assert (batch["label"].dtype, batch["label"].shape[1:]) == (kind.np_dtype, kind.shape)
                assert not batch.mask_of("label").any()
            for _ in range(12):
                late = next(stream)
            assert late["label"].dtype == kind.np_dtype
        other.drop_column("label")
        other.add_column("label", sw.Field((), "int64"))
        batch = view.sample(32, fields=["action"])
        assert here.write_column("label", batch, batch.action) == 32, "without a batch since"
        assert here.transitions(name="by", sampler=sw.Prioritized(by="label")).sample(4)["label"].dtype == np.int64
        with pytest.raises(ValueError, match="label"):
            here.write_column("label", batch, np.ones((32, 2)))
        if shards == 2:  # which of them counts, nobody knows
            there.stores[1].drop_column("label")
            there.stores[1].add_column("label", sw.Field((), "uint8"))
            with pytest.raises(ValueError, match=r"column 'label': it is .* in one shard and .* in another"):
                view.sample(64)
            with pytest.raises(ValueError, match="column 'label'"):
                here.write_column("label", view.sample(64, fields=["action"]), np.ones(64, np.int64))


def test_a_shard_that_begins_anew_gets_the_column_with_the_next_values(tmp_path: Path) -> None:
    with served(2, tmp_path, spec=SPEC) as there:
        filled(there)
        there.cluster.add_column("x", COLUMNS["pair"])
        there.stores[1].drop_column("x")  # as one that was started again without a disk
        view = there.cluster.transitions()
        batch = view.sample(64)
        assert not batch.mask_of("x").any()
        assert there.cluster.write_column("x", batch, np.ones((64, 2))) == 64
        assert "x" in there.stores[1].columns
        other = sw.Cluster.of(SPEC, [str(one.address) for one in there.servers])
        assert other.columns.keys() == {"x"}
        assert other.write_column("x", np.asarray(batch.ids), np.zeros((64, 2)), batch.shards) == 64
        assert other.write_column("x", [1, 2, 3], np.zeros((3, 2)), np.full(3, 5)) == 0, "another life's"
        other.close()


@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
def test_batches_that_are_read_from_disk_in_parts_have_their_values(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the memory is too small for all segments of a batch at once."""
    with served(1, tmp_path, kind, spec=SPEC, disk=tmp_path / "d") as there:
        filled(there)
        there.stores[0].derive("x", lambda action: np.stack([action, action], 1), ("action",))
        resident = filling.resident
        monkeypatch.setattr(filling, "resident", lambda log, slots, columns: min(7, resident(log, slots, columns)))
        transitions, windows = there.cluster.transitions(), there.cluster.sequences(10, burn_in=2, stride=5)
        for _ in range(3):
            batch, many = transitions.sample(120), windows.sample(20)
            assert (batch["x"] == batch.action[:, None]).all()
            assert (many["x"] == (many.action * many.mask)[..., None]).all()
            assert (many.mask_of("x") == many.mask).all()


@pytest.mark.parametrize("kind", by_day("tcp", "unix"))
def test_a_blend_of_windows_has_columns_where_they_have_steps(kind: Kind, tmp_path: Path) -> None:
    with served(2, tmp_path, kind, spec=SPEC) as there, sw.Store(SPEC, capacity=1000) as own:
        filled(there)
        for k in range(10):
            own.add_episode(obs=np.zeros((4, 3)), action=np.full(3, 1000 + k), reward=np.ones(3), terminated=True)
        for store in (own, *there.stores):
            store.derive("x", lambda action: np.stack([action, action], 1), ("action",))
        blend: Any = sw.Blend([(0.5, own.sequences(4, burn_in=1)), (0.5, there.cluster.sequences(4, burn_in=1))])
        for _ in range(5):
            batch = blend.sample(32)
            assert (batch.mask_of("x") == batch.mask).all()
            assert (batch["x"] == (batch.action * batch.mask)[..., None]).all()
            assert ((batch.action.max(axis=1) >= 1000) == (batch.shards == -1)).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c, b: c.add_column("a.b", COLUMNS["label"]), "without a dot"),
        (lambda c, b: c.add_column("reward", COLUMNS["label"]), "always stored"),
        (lambda c, b: c.add_column("x", COLUMNS["label"]), r"'x': it is float32 \[2\] here, expected int8 \[\]"),
        (lambda c, b: c.write_column("y", b, np.zeros(8)), "no column 'y' was added; there are 'x'"),
        (lambda c, b: c.write_column("x", b, np.zeros(8)), r"got shape \(8,\) float64, expected \(8, 2\)"),
        (lambda c, b: c.write_column("x", b.ids, np.zeros((8, 2))), "which shard they are of"),
        (lambda c, b: c.write_column("x", b.ids, np.zeros((8, 2)), [1, 2]), r"shards: got shape \(2,\)"),
        (lambda c, b: c.write_column("x", c.sequences(3).sample(2).ids, np.zeros((2, 2))), "windows of stride 3"),
        (lambda c, b: c.write_column("x", c.sequences(3).sample(2), np.zeros((2, 2))), r"expected \(2, 3, 2\)"),
        (lambda c, b: c.write_column("x", b, np.full((8, 2), "a")), "x"),
        (lambda c, b: c.delete(), "expected either where= or episodes="),
        (lambda c, b: c.delete(where=3), "expected a condition in SQL"),
        (lambda c, b: c.delete(episodes=[1]), "expected those that episodes"),
        (lambda c, b: c.delete(episodes=b), "delete: got|expected episodes"),
        (lambda c, b: c.delete(where="nothing = 3"), "nothing"),
        (lambda c, b: c.table("steps"), "call it on Store.open"),
        (lambda c, b: c.episodes(where=3), "takes a condition in SQL"),
        (lambda c, b: c.episodes(order="best"), "order='best'"),
        (lambda c, b: c.episodes(where="nothing = 3"), "nothing"),
        (lambda c, b: c.derive("x", len, "reward"), "expected a list of names"),
        (lambda c, b: c.derive("x", 3, ["reward"]), "expected a function"),
        (lambda c, b: c.derive("x", lambda r: r[:, None], ["reward"]), r"x: got shape|expected"),
        (lambda c, b: c.derive("x", lambda r: r, ["reward"], field=sw.Field((), "int8")), "but the column 'x' is"),
    ],
)
def test_bad_input_is_refused_by_name(call: Any, said: str, refusing: Served) -> None:
    before = refusing.stores[0].stats()["steps"]
    batch = refusing.cluster.transitions().sample(8)
    with pytest.raises((ValueError, TypeError, AttributeError), match=said):
        call(refusing.cluster, batch)
    assert refusing.stores[0].stats()["steps"] == before
    assert [*refusing.stores[0].columns] == ["x"]


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with served(2, tmp_path_factory.mktemp("refusing"), spec=SPEC) as there:
        filled(there)
        for store in there.stores:
            store.add_column("x", COLUMNS["pair"])
        yield there


@pytest.mark.parametrize(
    ("kind", "head", "parts"),
    [
        (Request.WRITE_COLUMN, {"name": "x"}, {}),
        (Request.WRITE_COLUMN, {"name": "x", "field": {"shape": [2], "dtype": "object", "metadata": {}}}, {}),
        (Request.WRITE_COLUMN, {"name": "x", "field": {"shape": [2], "dtype": "float32", "metadata": {}}}, {}),
        (
            Request.WRITE_COLUMN,
            {"name": "x", "field": {"shape": [2], "dtype": "float32", "metadata": {}}},
            {"ids": np.zeros(2, np.int64), "values": np.zeros((1, 8), np.uint8)},
        ),
        (Request.ADD_COLUMN, {"name": ["x"], "field": {"shape": [], "dtype": "int8", "metadata": {}}}, {}),
        (Request.ADD_COLUMN, {"name": "z", "field": {"shape": [1 << 50], "dtype": "int8", "metadata": {}}}, {}),
        (Request.ADD_COLUMN, {"name": "z", "field": 7}, {}),
        (Request.DELETE, {}, {}),
        (Request.DELETE, {"where": "length < 3); drop table episodes; --"}, {}),
    ],
)
def test_strange_requests_change_nothing(kind: Request, head: Any, parts: Any, refusing: Served) -> None:
    steps = len(refusing.cluster)
    link = refusing.cluster.links[0].another()
    with pytest.raises((ConnectionError, ValueError, LookupError, TypeError, OSError, MemoryError, RuntimeError)):
        link.call(kind, head, parts)
    assert len(refusing.cluster) == steps
    assert [*refusing.stores[0].columns] == ["x"]


GOOD = {"shape": [2], "dtype": "float32", "metadata": {}}


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ([], {}),
        ({"x": GOOD}, {}),
        ({"x": GOOD}, {"late:x": np.zeros((4, 8), np.uint8), "written:x": np.zeros(3, bool)}),
        ({"x": GOOD}, {"late:x": np.zeros((4, 9), np.uint8), "written:x": np.zeros(4, bool)}),
        ({"x": GOOD}, {"late:x": np.zeros((4, 2), np.float32), "written:x": np.zeros(4, bool)}),
        ({"obs": GOOD}, {"late:obs": np.zeros((4, 8), np.uint8), "written:obs": np.zeros(4, bool)}),
        ({"a.b": GOOD}, {"late:a.b": np.zeros((4, 8), np.uint8), "written:a.b": np.zeros(4, bool)}),
        ({"x": GOOD | {"dtype": "object"}}, {"late:x": np.zeros((4, 8), np.uint8), "written:x": np.zeros(4, bool)}),
        ({"x": GOOD | {"shape": [-2]}}, {"late:x": np.zeros((4, 8), np.uint8), "written:x": np.zeros(4, bool)}),
        ({"x": 7}, {"late:x": np.zeros((4, 8), np.uint8), "written:x": np.zeros(4, bool)}),
    ],
)
def test_a_strange_reply_is_refused(columns: Any, parts: Any) -> None:
    with sw.Store(SPEC, capacity=100) as store:
        for _ in range(5):
            store.add_episode(obs=np.zeros((3, 3)), action=[0, 0], reward=[0, 0], terminated=True)
        view = store.transitions()
        target = view.source.lend(4)
        with pytest.raises(WireError):
            LateTaker(store._log.late).take(target, Frame(0, 0, {"columns": columns}, parts))
        assert not target.batch.fields


def test_bools_of_a_peer_are_bools() -> None:
    with sw.Store(SPEC, capacity=100) as store:
        store.add_episode(obs=np.zeros((5, 3)), action=[0] * 4, reward=[0] * 4, terminated=True)
        target = store.transitions().source.lend(4)
        marks = np.array([0, 1, 2, 255], np.uint8)
        about = {"x": {"shape": [], "dtype": "bool", "metadata": {}}}
        parts = {"late:x": marks[:, None], "written:x": marks.view(bool)}
        LateTaker(store._log.late).take(target, Frame(0, 0, {"columns": about}, parts))
        assert target.batch["x"].tolist() == [False, True, True, True]
        assert target.batch["x"].view(np.uint8).tolist() == target.batch.mask_of("x").view(np.uint8).tolist()


def test_ids_alone_are_refused_also_of_a_single_shard(tmp_path: Path) -> None:
    """The shard is killed and begins anew, with other steps under the same ids."""
    with sw.Cluster(SPEC, shards=1, capacity=400, segment_steps=4) as cluster:
        written(cluster, 0, 60)
        cluster.add_column("x", sw.Field((), "int64"))
        view: Any = cluster.transitions(sampler=sw.Prioritized())
        batch = view.sample(32)
        for ids in (batch.ids, np.asarray(batch.ids)):
            with pytest.raises(ValueError, match=r"write_column: ids alone .* shards=batch\.shards"):
                cluster.write_column("x", ids, batch.action)
            with pytest.raises(ValueError, match=r"update_priorities: ids alone .* shards=batch\.shards"):
                view.update_priorities(ids, np.ones(32))
        assert cluster.write_column("x", batch.ids, batch.action, batch.shards) == 32
        assert view.update_priorities(batch.ids, np.ones(32), batch.shards) == 0
        killed(cluster, 0)
        written(cluster, 100, 60)
        view.sample(4)
        assert cluster.write_column("x", batch.ids, batch.action, batch.shards) == 0
        assert cluster.write_column("x", batch, batch.action) == 0
        assert view.update_priorities(batch.ids, np.ones(32), batch.shards) == 32
        now = view.sample(8)
        assert cluster.write_column("x", now, now.action) == 8
        after = view.sample(64)
        there = after.mask_of("x")
        assert there.any() and (after["x"][there] == after.action[there]).all()


def test_ids_of_a_blend_are_refused_without_shards(tmp_path: Path) -> None:
    with served(1, tmp_path, spec=SPEC) as there, sw.Store(SPEC, capacity=1000) as own:
        filled(there)
        own.add_episode(obs=np.zeros((41, 3)), action=np.arange(1000, 1040), reward=np.ones(40), terminated=True)
        for store in (own, there.stores[0]):
            store.add_column("x", sw.Field((), "int64"))
        views: list[Any] = [there.cluster.transitions(), own.transitions()]
        batch = sw.Blend([(0.5, view) for view in views]).sample(32)
        for ids in (batch, batch.ids):
            with pytest.raises(ValueError, match=r"is of a blend|ids alone"):
                there.cluster.write_column("x", ids, batch.action)
        far, near = batch.shards != -1, batch.shards == -1
        assert there.cluster.write_column("x", batch.ids, batch.action, batch.shards) == np.count_nonzero(far)
        assert own.write_column("x", batch.ids[batch.source == 1], batch.action[near]) == np.count_nonzero(near)
        for view in views:
            seen = view.sample(100)
            mask = seen.mask_of("x")
            assert mask.any() and (seen["x"][mask] == seen.action[mask]).all()


def test_metadata_of_columns_stops_no_draw(tmp_path: Path) -> None:
    """Clients add a limited amount; a shard's owner may have added any."""
    with served(1, tmp_path, spec=SPEC) as there:
        filled(there)
        large = sw.Field((), "int8", metadata={"names": ["v" * 100] * 1000})
        there.cluster.add_column("m0", large)
        for call in (
            lambda: there.cluster.add_column("m1", large),
            lambda: there.cluster.links[0].call(
                Request.WRITE_COLUMN,
                {"name": "m1", "field": {"shape": [], "dtype": "int8", "metadata": dict(large.metadata)}},
                {"ids": np.zeros(1, np.int64), "values": np.zeros((1, 1), np.uint8)},
            ),
        ):
            with pytest.raises(ValueError, match=r"column 'm1': names and metadata .* at most 131,072 in a shard"):
                call()
        view = there.cluster.transitions()
        batch = view.sample(8)
        assert there.cluster.write_column("m0", batch, np.ones(8, int)) == 8
        assert there.cluster.columns["m0"].metadata == large.metadata
        for k in range(20):  # by the owner, beyond what a message's head holds
            there.stores[0].add_column(f"own{k}", large)
        assert view.sample(8)["own3"].tolist() == [0] * 8
        assert len(there.cluster) == len(there.stores[0])


def test_names_of_columns_stop_no_draw(tmp_path: Path) -> None:
    """Names of which a message's head has each character as six bytes."""
    with served(1, tmp_path, spec=SPEC) as there:
        filled(there)
        with pytest.raises(ValueError, match=r"names and metadata .* at most 131,072"):
            for k in range(1000):
                there.cluster.add_column(f"{k:03}" + "\u00e9" * 97, COLUMNS["label"])
        assert 150 < len(there.cluster.columns) == len(there.cluster.transitions().sample(8).fields) // 2


def test_a_column_outlives_a_kill_of_its_shard(tmp_path: Path) -> None:
    """Without ``flush``; and a client that did not add it writes to shards that lack it."""
    with sw.Cluster(SPEC, shards=2, capacity=400, segment_steps=4, disk=tmp_path / "d") as cluster:
        for shard in range(2):
            written(cluster, 100 * shard, 60, shard)
        cluster.add_column("x", sw.Field((), "int64"))
        with sw.Cluster.of(SPEC, [one[0] for one in cluster.where()["shards"]]) as other:
            killed(cluster, 1)
            assert [[*one["columns"]] for one in other._members.call(Request.DESCRIBE, {"columns": True})] == [
                ["x"]
            ] * 2
            view = other.transitions()
            batch = view.sample(64)
            assert other.write_column("x", batch, batch.action) == 64


def test_a_dropped_column_does_not_come_back_with_a_kill(tmp_path: Path) -> None:
    """Nor do its values with another of its name; and neither verb writes steps to the disk."""
    with sw.Cluster(SPEC, shards=2, capacity=400, segment_steps=4, disk=tmp_path / "d") as cluster:
        for shard in range(2):
            written(cluster, 100 * shard, 60, shard)
        for name in ("x", "kept"):
            cluster.add_column(name, sw.Field((), "int64"))
        view = cluster.transitions()
        batch = view.sample(64)
        for name in ("x", "kept"):
            assert cluster.write_column(name, batch, batch.action) == 64
        cluster.flush()
        cluster.drop_column("x")
        assert {*view.sample(4).fields} == {"kept", "kept.written"}
        killed(cluster, 0)
        assert [*cluster.columns] == ["kept"]
        seen = view.sample(64)
        mask = seen.mask_of("kept")
        assert mask.any() and (seen["kept"][mask] == seen.action[mask]).all()
        cluster.add_column("x", sw.Field((2,), "float32"))
        killed(cluster, 0)
        killed(cluster, 1)
        assert cluster.columns["x"].shape == (2,) and not view.sample(64).mask_of("x").any()
        with pytest.raises(ValueError, match=r"drop_column: no column 'y' was added; there are 'kept', 'x'"):
            cluster.drop_column("y")


def test_a_client_that_did_not_add_a_column_writes_to_shards_that_lack_it(tmp_path: Path) -> None:
    with served(2, tmp_path, spec=SPEC) as there:
        filled(there)
        there.stores[0].add_column("x", sw.Field((), "int64"))
        view = there.cluster.transitions()
        batch = view.sample(64)
        assert there.cluster.write_column("x", batch, batch.action) == 64
        assert [*there.stores[1].columns] == ["x"]
        seen = view.sample(200)
        mask = seen.mask_of("x")
        assert mask.any() and (seen["x"][mask] == seen.action[mask]).all()


def written(cluster: sw.Cluster, first: int, steps: int, shard: int = 0) -> None:
    """Write episodes of 5 steps to a shard; actions count from ``first`` on."""
    writer = cluster.writer(shard=shard)
    for k in range(steps):
        writer.extend(
            obs=np.zeros((1, 3)), action=[first + k], reward=[1], terminated=[k % 5 == 4], truncated=[False],
            final_obs=np.zeros((1, 3)),
        )  # fmt: skip
    writer.close()


def killed(cluster: sw.Cluster, shard: int) -> None:
    """Kill a shard's process, and wait for the next one."""
    assert cluster._processes is not None
    before = cluster._processes.processes[shard]
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(ShardLostError):
            if cluster._members.links[shard].call(Request.DESCRIBE) and cluster._processes.processes[shard] != before:
                return
        time.sleep(0.1)
    pytest.fail("the shard did not begin again")
