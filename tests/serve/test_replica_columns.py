"""Columns of shards with replicas, against dicts of what was written: no acknowledged value is lost with a shard."""

from __future__ import annotations

import copy
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.log.late_columns import described
from sharpwave.log.remote_segments import Copy
from sharpwave.serve import replica_content, replicas, supervisor
from sharpwave.serve.addresses import Security
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.remote_writer import Delivery, RemoteWriter
from sharpwave.serve.replica_content import delete_runs, deleted_runs, lacking, take
from sharpwave.serve.replicas import Keeper, Neighbour
from sharpwave.serve.shard import Shard
from sharpwave.serve.wire import Frame, Request, WireError
from tests.serve.serving import SPEC, Served, sealed, served
from tests.serve.test_lives import counting
from tests.support.examples import examples

PLAIN = sw.Spec(obs=sw.Field((1,), "float32"), action=sw.Field((), "int64"))
FIELDS = {"x": sw.Field((), "float32"), "pair": sw.Field((2,), "int32"), "good": sw.Field((), "bool")}
NONE = np.zeros((0, 3), np.int64)
Values = dict[str, dict[tuple[int, int], Any]]
"""Values of steps by lane and number, of columns by name."""


def values_in(store: sw.Store) -> Values:
    """Return all values that a store has."""
    places = [(lane, step) for lane, steps in enumerate(store.lane_steps.tolist()) for step in range(steps)]
    ids = np.asarray(store.ids(*np.array(places, np.int64).reshape(-1, 2).T, missing="mask"))
    those = [one for one, id_ in zip(places, ids.tolist(), strict=True) if id_ >= 0]
    found: Values = {}
    for name in store.columns:
        values, written = store.read_column(name, ids[ids >= 0])
        found[name] = {those[k]: values[k].tolist() for k in np.flatnonzero(written).tolist()}
    return found


class Caller:
    """Client whose connection stays."""

    @staticmethod
    def is_gone() -> bool:
        return False


class Pair:
    """A shard and its neighbor, which either may begin again, and the acknowledged values."""

    def __init__(self, there: Served, folder: Path, stack: ExitStack) -> None:
        self.there, self._folder, self._stack = there, folder, stack
        self.numbers = itertools.count(1)
        self.values: Values = {}
        self.segments: list[Copy] = []
        self.deleted = NONE
        self.neighbour: Neighbour
        self.first, self.second = there.shards
        self.begin_replica(self.store())
        self.begin_shard(there.stores[0])

    def store(self) -> sw.Store:
        return self._stack.enter_context(sw.Store(SPEC, capacity=100_000, segment_steps=8))

    def stale(self, values: Values) -> sw.Store:
        """Return a store as a folder has it: with all steps and columns, and with earlier values."""
        store = self.store()
        take(store, self.segments, self.deleted, None)
        for name in self.values:
            store.add_column(name, FIELDS[name])
            for (lane, step), value in values.get(name, {}).items():
                store.write_column(name, store.ids([lane], [step], missing="mask"), np.array([value]))
        return store

    def begin_replica(self, store: sw.Store) -> None:
        self.replica = store
        self.second.keeper = Keeper(0, store, self._folder / f"{next(self.numbers)}.json")
        if hasattr(self, "neighbour"):
            self.neighbour._link.close()

    def begin_shard(self, store: sw.Store) -> None:
        if hasattr(self, "neighbour"):
            self.neighbour._link.close()
            self.first = Shard(store)
        link = Link(self.there.servers[1].address, Security())
        self._stack.callback(link.close)
        leases, adopt = self.first.intake.leases, self.first.intake.adopt
        self.neighbour = self.first.intake.neighbour = Neighbour(0, store, link, leases, adopt)

    def append(self, one: Copy) -> None:
        """Append a segment to the shard, which its replica does not have yet."""
        self.neighbour.replicate()
        self.first.store.add_segment(one.packed, one.dictionaries)
        self.segments.append(one)

    def write(self, name: str, places: list[tuple[int, int]], *, by_id: bool = False) -> None:
        """Write values of steps, as by a client's request."""
        self.neighbour.replicate()
        lanes, steps = np.array(places, np.int64).T
        ids = np.asarray(self.first.store.ids(lanes, steps, missing="mask"))
        field, number = FIELDS[name], next(self.numbers)
        rows = np.full((len(places), *field.shape), number % 2 if field.dtype == "bool" else number, field.np_dtype)
        others = np.where(ids >= 0, ids, 1000 << 32)  # such as steps had that were evicted
        where = {"ids": others} if by_id else {"lanes": lanes, "steps": steps}
        parts = {**where, "values": rows.reshape(-1).view(np.uint8).reshape(len(rows), field.row_bytes)}
        head, _ = self.answer(Request.WRITE_COLUMN, {"name": name, "field": described(field)}, parts)
        assert head["written"] == np.count_nonzero(ids >= 0)
        known = self.values.setdefault(name, {})
        known |= {places[k]: rows[k].tolist() for k in np.flatnonzero(ids >= 0)}

    def delete(self, lane: int, begin: int, end: int) -> None:
        """Delete steps, as the shard deletes those of episodes."""
        self.neighbour.replicate()
        end = min(end, int(self.first.store.lane_steps[lane]))  # not those to come
        runs = np.array([[lane, begin, max(begin, end)]])

        def here() -> int:
            with self.first.store._log.saving, self.first.store._lock:
                delete_runs(self.first.store, runs)
            return 0

        self.neighbour.delete(runs, here, Caller.is_gone)
        self.deleted = np.concatenate([self.deleted, runs])
        for known in self.values.values():
            for one in [(lane, step) for step in range(begin, end)]:
                known.pop(one, None)

    def answer(self, kind: Request, head: dict[str, Any], parts: dict[str, Any] | None = None) -> Any:
        return self.first.answer(Caller(), Frame(kind, 1, head, parts or {}))  # type: ignore[arg-type]

    def check(self) -> None:
        """Compare the values of both with what was acknowledged."""
        self.neighbour.replicate()
        assert values_in(self.first.store) == self.values
        assert values_in(self.replica) == self.values


@contextmanager
def paired(folder: Path) -> Iterator[Pair]:
    with served(2, folder) as there, ExitStack() as stack:
        yield Pair(there, folder, stack)


@pytest.mark.parametrize("seed", range(examples(9)))
def test_values_are_in_both_whatever_begins_again(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_content, "PIECE_BYTES", 400)  # several messages
    draws, coming = random.Random(seed), [Copy(one.packed, one.dictionaries) for one in sealed(2, 160, seed)]
    with paired(tmp_path) as pair:
        earlier: Values = {}
        for _ in range(8):
            pair.append(coming.pop(0))
        for _ in range(40):
            op = draws.choice(
                ["append", "write", "write", "write", "add", "drop", "delete", "broken", "lost", "killed", "replica",
                 "stale replica", "earlier"]
            )  # fmt: skip
            name = draws.choice([*FIELDS])
            if op == "append" and coming:
                pair.append(coming.pop(0))
            elif op == "write":
                places = [(draws.randrange(2), draws.randrange(160)) for _ in range(draws.choice([1, 7, 90]))]
                pair.write(name, places, by_id=draws.random() < 0.5)
            elif op == "add":
                pair.answer(Request.ADD_COLUMN, {"name": name, "field": described(FIELDS[name])})
                pair.values.setdefault(name, {})
            elif op == "drop":
                pair.answer(Request.DROP_COLUMN, {"name": name})
                pair.values.pop(name, None)
                earlier.pop(name, None)
            elif op == "delete" and draws.random() < 0.4:
                begin = draws.randrange(100)
                pair.delete(draws.randrange(2), begin, begin + draws.randrange(1, 20))
            elif op == "broken":
                pair.neighbour._link.close()
            elif op in ("lost", "killed", "replica", "stale replica"):
                pair.neighbour._link.close()
                pair.check()  # only one of the two begins again at a time
            if op == "lost":
                pair.begin_shard(pair.store())
            elif op == "killed":
                pair.begin_shard(pair.stale(earlier))
            elif op == "replica":
                pair.begin_replica(pair.store())
            elif op == "stale replica":
                pair.begin_replica(pair.stale(earlier))
            elif op == "earlier":
                earlier = copy.deepcopy(pair.values)
            if draws.random() < 0.5:
                pair.check()
        pair.check()


def test_values_of_its_folder_count_where_its_replica_began_again_too(tmp_path: Path) -> None:
    """As after a flush, and wherever a folder was changed while it was not served."""
    with paired(tmp_path) as pair:
        for one in sealed(1, 40, 0)[:4]:
            pair.append(Copy(one.packed, one.dictionaries))
        pair.write("x", [(0, step) for step in range(32)])
        before = copy.deepcopy(pair.values)
        pair.write("x", [(0, step) for step in range(20)])
        pair.write("pair", [(0, 1)])
        pair.begin_replica(pair.stale(before))
        del pair.values["pair"]  # as dropped from a folder
        pair.begin_shard(pair.stale(pair.values))
        pair.check()
        pair.begin_replica(pair.stale(before))
        pair.begin_shard(pair.store())  # whose folder was lost: as the replica's folder has it
        pair.values = before
        pair.check()


def test_a_column_of_another_kind_takes_the_place_of_one_that_was_dropped(tmp_path: Path) -> None:
    with paired(tmp_path) as pair:
        for one in sealed(1, 20, 0)[:2]:
            pair.append(Copy(one.packed, one.dictionaries))
        pair.write("x", [(0, 3)])
        pair.begin_replica(pair.stale(pair.values))
        pair.first.store.drop_column("x")
        pair.first.store.add_column("x", sw.Field((), "int64"))
        pair.neighbour.replicate()
        assert pair.replica.columns["x"].dtype == "int64" and values_in(pair.replica) == {"x": {}}


def test_a_column_without_room_in_the_replica_is_in_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with paired(tmp_path) as pair:
        for one in sealed(1, 20, 0)[:2]:
            pair.append(Copy(one.packed, one.dictionaries))
        pair.write("good", [(0, 3)])  # with the segments
        monkeypatch.setattr(pair.replica._log.late, "room", lambda: 5.0)
        with pytest.raises(MemoryError, match="ram= leaves 5"):
            pair.answer(Request.ADD_COLUMN, {"name": "x", "field": described(FIELDS["x"])})
        with pytest.raises(MemoryError, match="ram= leaves 5"):
            pair.write("x", [(0, 3)])
        pair.check()
        with pytest.raises(ValueError, match="without a dot"):
            pair.answer(Request.ADD_COLUMN, {"name": "a.b", "field": described(FIELDS["x"])})
        monkeypatch.setattr(pair.replica._log.late, "room", lambda: np.inf)
        pair.write("x", [(0, 3)])
        with pytest.raises(ValueError, match=r"'x': it is float32 \[\] here, expected bool"):
            pair.answer(Request.ADD_COLUMN, {"name": "x", "field": described(FIELDS["good"])})
        pair.check()


def test_values_that_the_replica_did_not_get_are_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paired(tmp_path) as pair:
        for one in sealed(1, 20, 0)[:2]:
            pair.append(Copy(one.packed, one.dictionaries))
        pair.write("x", [(0, 3)])
        monkeypatch.setattr(replicas, "CHANGE_S", 0.05)
        pair.there.servers[1].close()
        pair.neighbour._link.close()
        for kind, head in (
            (Request.ADD_COLUMN, {"name": "good", "field": described(FIELDS["good"])}),
            (Request.DROP_COLUMN, {"name": "x"}),
        ):
            with pytest.raises(ShardLostError):
                pair.answer(kind, head)
        rows = np.zeros((1, 4), np.uint8)
        with pytest.raises(ShardLostError):
            pair.answer(
                Request.WRITE_COLUMN,
                {"name": "x", "field": described(FIELDS["x"])},
                {"lanes": np.array([0]), "steps": np.array([3]), "values": rows},
            )
        assert values_in(pair.first.store) == values_in(pair.replica) == pair.values


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        (Request.KEEP_COLUMNS, {"columns": ["x"]}),
        (Request.KEEP_COLUMNS, {"columns": {"x": {"shape": [], "dtype": "object", "metadata": {}}}}),
        (Request.KEEP_COLUMNS, {"name": "x", "field": described(FIELDS["x"])}),
        (Request.GIVE_COLUMNS, {"name": "x", "begin": -1}),
        (Request.GIVE_COLUMNS, {"name": "x", "begin": "0"}),
        (Request.GIVE_COLUMNS, {"name": "y"}),
    ],
)
def test_malformed_requests_are_refused(kind: Request, head: dict[str, Any], tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=1000) as store:
        store.add_column("x", FIELDS["x"])
        keeper = Keeper(0, store, tmp_path / "leases.json")
        method = keeper.keep_columns if kind == Request.KEEP_COLUMNS else keeper.give_columns
        with pytest.raises((WireError, ValueError)):
            method(Frame(kind, 1, {"of": 0, **head}))
        with pytest.raises(ValueError, match="replica of shard 1"):
            method(Frame(kind, 1, {"of": 1, **head}))
        assert [*store.columns] == ["x"]


def test_numbers_of_steps_that_the_replica_alone_knows_are_not_given_again(tmp_path: Path) -> None:
    """A lane's last segments were deleted as a whole: a shard that begins again gets none of them."""
    with paired(tmp_path) as pair:
        links = [Link(pair.there.servers[0].address, Security()) for _ in range(2)]
        writer = RemoteWriter(SPEC, Delivery(links[0], "w", 1), segment_steps=8)
        counting(writer, 0, 48, lanes=1)
        writer.flush()  # the last segment stays with it
        writer.delivery.close()
        pair.delete(0, 16, 40)
        assert pair.first.store.lane_steps.tolist() == [40] and len(pair.replica) == 16
        pair.begin_shard(pair.store())
        pair.there.servers[0].shard = pair.first  # answers from now on
        writer = RemoteWriter(SPEC, Delivery(links[1], "w", 1), segment_steps=8)
        assert pair.first.store.lane_steps.tolist() == [16] and [*writer.delivery.lane_steps] == [40]
        counting(writer, 100, 24, lanes=1)
        writer.flush()
        for store in (pair.first.store, pair.replica):
            assert sorted(int(a) for one in store.episodes() for a in one.action) == [*range(16), *range(100, 116)]
        writer.delivery.close()


def test_deleted_steps_of_some_segments_are_found_among_all() -> None:
    segments = [Copy(one.packed, one.dictionaries) for one in sealed(2, 80, 1)]
    with sw.Store(SPEC, capacity=1000, segment_steps=8) as store:
        take(store, segments, np.array([[0, 3, 5], [0, 30, 44], [1, 8, 16], [1, 70, 71]]), None)

        def steps(segments: list[Copy] | None) -> set[tuple[int, int]]:
            found = deleted_runs(store, segments).tolist()
            return {(lane, step) for lane, first, end in found for step in range(first, end)}

        every = steps(None)
        assert {(0, 3), (0, 4), (0, 30), (0, 43), (1, 70)} <= every
        held, _ = lacking(store, np.zeros(0, np.int64))
        assert steps(held) == every and not steps([])
        parts = [steps([one]) for one in held]
        assert set().union(*parts) == every and sum(map(len, parts)) == len(every)


# processes


def play(cluster: sw.Cluster, shard: int, first: int, steps: int) -> None:
    """Write steps whose action is their number from ``first`` on, in episodes of 10."""
    writer = cluster.writer(1, name=f"w{shard}", shard=shard, segment_steps=10)
    for k in range(steps):
        ends = [k % 10 == 9]
        writer.extend(obs=[[0]], action=[first + k], reward=[1], terminated=ends, truncated=[False], final_obs=[[0]])
    writer.close()


def shown(cluster: sw.Cluster) -> dict[str, dict[int, Any]]:
    """Return the values of all columns by their steps' actions, as clients read them."""
    found: dict[str, dict[int, Any]] = {name: {} for name in cluster.columns}
    for one in cluster.episodes():
        for name, known in found.items():
            written = one[name + ".written"]
            known |= dict(zip(one.action[written].tolist(), np.asarray(one[name])[written].tolist(), strict=True))
    return found


def lose(cluster: sw.Cluster, number: int, folder: Path | None) -> None:
    """Kill a shard, with its folder where one is given."""
    assert cluster._processes is not None
    if folder is not None:
        (folder / f"shard-{number}").rename(folder / f"lost-{time.time_ns()}")
    os.kill(cluster._processes.processes[number], signal.SIGKILL)


def wait_until(cluster: sw.Cluster, expected: dict[str, dict[int, Any]], steps: int) -> None:
    """Wait until all clients' reads are as expected, and all replicas have all steps again."""
    deadline, seen = time.monotonic() + 60, None
    while time.monotonic() < deadline:
        try:
            each = cluster.stats()["shards"]
            if [sum(one["steps"] for one in each), sum(one["replica"]["steps"] for one in each)] == [steps, steps]:
                seen = shown(cluster)
                if seen == expected:
                    return
        except (ConnectionError, KeyError):
            pass
        time.sleep(0.02)
    assert seen == expected


def test_columns_survive_the_loss_of_shards_and_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with sw.Cluster(PLAIN, shards=2, capacity=4000, segment_steps=10, disk=folder, replicas=1) as cluster:
        for shard in range(2):
            play(cluster, shard, 1000 * shard, 100)
        actions = [1000 * shard + k for shard in range(2) for k in range(100)]
        cluster.add_column("x", sw.Field((), "float32"))
        cluster.add_column("gone", sw.Field((2,), "float32"))
        assert cluster.derive("to_go", lambda reward: np.cumsum(reward[::-1])[::-1], ["reward"]) == 200
        expected: dict[str, dict[int, Any]] = {"x": {}, "to_go": {action: 10.0 - action % 10 for action in actions}}
        view = cluster.transitions()

        def write(number: float) -> None:
            batch = view.sample(300)
            assert cluster.write_column("x", batch, batch.action + np.float32(number)) == 300
            expected["x"] |= {action: action + number for action in batch.action.tolist()}

        write(0.5)
        batch = view.sample(8)
        cluster.write_column("gone", batch, np.ones((8, 2)))
        cluster.flush()
        cluster.drop_column("gone")
        write(0.25)  # which is in no folder
        lose(cluster, 0, folder)
        wait_until(cluster, expected, 200)
        write(0.75)
        lose(cluster, 1, None)
        wait_until(cluster, expected, 200)
    with sw.Cluster.open(folder) as cluster:
        wait_until(cluster, expected, 200)


class Writing:
    """Client that writes values of random steps until it is told to stop.

    Attributes:
        values: by action, those that the step may have: the last acknowledged one, and later ones without an answer.
        acknowledged: number of batches, with steps of both shards, all of which were acknowledged.
    """

    def __init__(self, cluster: sw.Cluster) -> None:
        self._cluster, self._view, self._over = cluster, cluster.transitions(), threading.Event()
        self.values: dict[int, set[float]] = {}
        self.acknowledged = 0
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0.0
        while not self._over.is_set():
            try:
                batch = self._view.sample(32)
            except (ConnectionError, sw.EmptyError):
                time.sleep(0.01)
                continue
            number += 1
            try:
                all_held = self._cluster.write_column("x", batch, np.full(32, number)) == 32
            except (ConnectionError, RuntimeError):
                all_held = False
            for action in batch.action.tolist():
                if all_held:
                    self.values[action] = {number}
                else:
                    self.values.setdefault(action, {-1.0}).add(number)
            self.acknowledged += all_held and len(set(batch.shards.tolist())) == 2

    def wait(self, more: int) -> None:
        """Wait until so many more batches were acknowledged: both shards have all that their replicas have."""
        deadline, before = time.monotonic() + 90, self.acknowledged
        while self.acknowledged < before + more:
            assert time.monotonic() < deadline, "values are no longer acknowledged"
            time.sleep(0.005)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("on_disk", [False, True])
def test_no_acknowledged_value_is_lost_while_shards_are_killed(
    on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time, in the middle of writing, with its folder or without."""
    monkeypatch.setattr(supervisor, "PAUSES_S", (0.0,))  # as if each had lived for long
    folder, draws = tmp_path / "d", random.Random(int(on_disk))
    with sw.Cluster(
        PLAIN, shards=2, capacity=4000, segment_steps=10, replicas=1, disk=folder if on_disk else None
    ) as cluster:
        for shard in range(2):
            play(cluster, shard, 1000 * shard, 100)
        cluster.add_column("x", sw.Field((), "float64"))
        writing = Writing(cluster)
        try:
            for _ in range(examples(12, most=20)):
                writing.wait(3)
                assert cluster._processes is not None
                number, before = draws.randrange(2), list(cluster._processes.processes)
                time.sleep(draws.random() / 50)
                lose(cluster, number, folder if on_disk and draws.random() < 0.5 else None)
                while cluster._processes.processes == before:
                    time.sleep(0.005)
        finally:
            writing.wait(3)
            writing.stop()
        seen = shown(cluster)["x"]
        for action, those in writing.values.items():
            assert seen.get(action, -1.0) in those, action
        assert len(cluster) == 200
