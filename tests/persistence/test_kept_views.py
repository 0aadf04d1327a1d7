"""Priorities and uses of a store on disk that is opened without a checkpoint: after a clean exit, a crash, damage."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.disk.state_files import file_name, read_named, state_files
from sharpwave.disk.store_folder import VIEWS
from sharpwave.offline.folder_check import check
from sharpwave.views import keeping
from sharpwave.views.saved_view import SavedView, recovered
from tests.support.audit import audit
from tests.support.examples import examples

SPEC = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"))
ALPHA, EPS = 0.5, 0.01


def store_in(folder: Path, **more: Any) -> sw.Store:
    options: dict[str, Any] = {"capacity": 4000, "disk": folder, "segment_steps": 8} | more
    return sw.Store(SPEC, **options)


def fill(store: sw.Store, steps: int, lane: int = 0) -> None:
    for _ in range(steps):
        k = int(store.lane_steps[lane]) if lane < store.lanes else 0
        store.append(
            lane=lane, obs=np.full(3, k, np.float32), action=k, reward=0.0, terminated=k % 5 == 4, truncated=False
        )


def learner(store: sw.Store, name: str = "learner", **more: Any) -> Any:
    return store.transitions(name=name, sampler=sw.Prioritized(alpha=ALPHA, eps=EPS), **more)


def priorities(view: Any) -> dict[tuple[int, int], float]:
    """|td_error| of every item that can be sampled, by (lane, step)."""
    ids = np.asarray(view.sampleable_ids())
    values = view.sampler.probabilities(ids & 0xFFFFFFFF) * view.sampler.mass
    batch = view.fetch(ids)
    found = values ** (1 / ALPHA) - EPS
    return dict(zip(zip(batch.lane.tolist(), batch.step.tolist(), strict=True), found.tolist(), strict=True))


def levels(view: Any) -> set[float]:
    return {round(value, 6) for value in priorities(view).values()}


def crashed(folder: Path, to: Path) -> Path:
    """The folder as a process killed now leaves it."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("lock"))
    return to


def assert_same(got: dict[Any, float], expected: dict[Any, float]) -> None:
    assert got.keys() == expected.keys()
    np.testing.assert_allclose(list(got.values()), [expected[key] for key in got], rtol=1e-9, atol=1e-9)


def test_a_store_that_was_closed_has_its_priorities_again(tmp_path: Path) -> None:
    with store_in(tmp_path / "d") as store:
        fill(store, 100)
        view = learner(store)
        ids = view.sampleable_ids()
        view.update_priorities(ids, np.arange(len(ids)))
        before, largest = priorities(view), view.sampler.max_priority
    with sw.Store.open(tmp_path / "d") as store:
        assert store.recovery is not None and store.recovery.views == ["learner"] and not store.recovery.damages
        view = learner(store)
        assert store.recovery.views == []
        assert_same(priorities(view), before)
        assert view.sampler.max_priority == largest
        fill(store, 5)
        new = priorities(view)
        assert max(new.values()) == pytest.approx(largest - EPS) and len(new) == len(before) + 5
        audit(store, [view])
    assert not check(tmp_path / "d").damages and not check(tmp_path / "d").notes


def test_what_was_flushed_outlives_a_crash_exactly(tmp_path: Path) -> None:
    with store_in(tmp_path / "d") as store:
        fill(store, 50)
        fill(store, 21, lane=1)
        view = learner(store)
        view.update_priorities(ids := view.sampleable_ids(), np.arange(len(ids)) % 7)
        before = priorities(view)
        store.flush()
        view.update_priorities(ids, np.full(len(ids), 100.0))
        fill(store, 30)
        there = crashed(tmp_path / "d", tmp_path / "c")
    with sw.Store.open(there) as store:
        view = learner(store)
        got = priorities(view)
        assert_same({key: got[key] for key in before if key in got}, {key: before[key] for key in before if key in got})
        assert len(before.keys() - got.keys()) <= 2  # of the steps that were open, each lane's last one
        audit(store, [view])


@pytest.mark.parametrize("sampler", [sw.RankPrioritized, sw.Prioritized])
def test_another_sampler_or_other_settings_begin_anew_without_a_word(tmp_path: Path, sampler: Any) -> None:
    with store_in(tmp_path / "d") as store:
        fill(store, 50)
        view: Any = store.transitions(sampler=sw.RankPrioritized())
        view.update_priorities(ids := view.sampleable_ids(), np.arange(len(ids)) + 5.0)
    with warnings.catch_warnings(), sw.Store.open(tmp_path / "d") as store:
        warnings.simplefilter("error")
        view = store.transitions(sampler=sampler(), n_step=2 if sampler is sw.RankPrioritized else 1)
        assert view.sampler.max_priority == 1.0 and len(view.sample(8)) == 8
    with sw.Store.open(tmp_path / "d") as store:
        view = store.transitions(sampler=sw.RankPrioritized())
        assert view.sampler.max_priority == 1.0  # the other took its place


def test_a_view_that_is_not_asked_for_is_kept(tmp_path: Path) -> None:
    with store_in(tmp_path / "d") as store:
        fill(store, 50)
        view = learner(store)
        view.update_priorities(ids := view.sampleable_ids(), np.arange(len(ids)))
        before = priorities(view)
    for _ in range(3):
        with sw.Store.open(tmp_path / "d") as store:
            fill(store, 10)
            store.flush()
    with sw.Store.open(tmp_path / "d") as store:
        got = priorities(learner(store))
        assert_same({key: got[key] for key in before}, before)
        assert len(got) == 80


def test_a_view_that_was_dropped_is_written_with_its_last_state(tmp_path: Path) -> None:
    with store_in(tmp_path / "d", capacity=64) as store:
        fill(store, 60)
        view = learner(store)
        view.update_priorities(ids := view.sampleable_ids(), np.arange(len(ids)))
        before = priorities(view)
        del view
        fill(store, 30)  # evicts, and reuses slots
    with sw.Store.open(tmp_path / "d") as store:
        got = priorities(learner(store))
        old = before.keys() & got.keys()
        assert len(old) > 10 and len(got.keys() - old) == 30
        assert_same({key: got[key] for key in old}, {key: before[key] for key in old})
        assert all(got[key] == pytest.approx(max(before.values())) for key in got.keys() - old)


def test_a_queue_does_not_give_out_again_what_it_gave(tmp_path: Path) -> None:
    with store_in(tmp_path / "d") as store:
        fill(store, 100)
        queue = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, name="queue")
        stream = queue.stream(4, lookahead=2)
        given = [*queue.sample(30).action.tolist(), *next(stream).action.tolist()]
    with sw.Store.open(tmp_path / "d") as store:
        queue = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, name="queue")
        stream = queue.stream(4, lookahead=0)
        given += [action for _ in range(2) for action in next(stream).action.tolist()]
        given += queue.sample(len(queue)).action.tolist()
        assert given == list(range(100))
        with pytest.raises(sw.EmptyError):
            queue.sample(1)


def test_steps_that_came_after_a_view_was_written_are_inserts(tmp_path: Path) -> None:
    """They could be sampled, and no limiter counted them: with each crash a learner fell further behind."""
    limiter = sw.SamplesPerInsert(1.0, 8, 64.0)
    folder = tmp_path / "0"
    for life in range(4):
        with sw.Store.open(folder) if life else store_in(folder) as store:
            view = learner(store, max_times_sampled=1, limiter=limiter)
            fill(store, 24)
            with pytest.raises(sw.LimiterTimeoutError):
                while True:
                    view.sample(8, timeout=0.0)
            assert len(view) < 16 and view.source.pace.steps_before == 0
            store.flush()
            fill(store, 24)
            folder = crashed(folder, tmp_path / f"{life + 1}")


def test_evicted_steps_that_come_back_are_no_inserts(tmp_path: Path) -> None:
    """Their bytes are in files still; they were counted when they were appended."""
    counted, limiter = 0, sw.SamplesPerInsert(1.0, 8, 1e9)
    for life in range(6):
        with sw.Store.open(tmp_path / "d") if life else store_in(tmp_path / "d", capacity=1000) as store:
            view = learner(store, limiter=limiter)
            assert store.total_steps - view.source.pace.steps_before == counted
            for lane in range(3):
                fill(store, 150 + 13 * life + lane, lane)
            view.update_priorities(view.sample(8).ids, np.ones(8))
            counted = store.total_steps - view.source.pace.steps_before
            assert store.stats()["evicted_steps"] or life < 2


def test_a_checkpoint_counts_more_than_what_its_folder_had(tmp_path: Path) -> None:
    with store_in(tmp_path / "d") as store:
        fill(store, 50)
        view = learner(store)
        view.update_priorities(ids := view.sampleable_ids(), np.full(len(ids), 3.0))
        store.checkpoint(tmp_path / "c")
        view.update_priorities(ids, np.full(len(ids), 9.0))
    with sw.Store.open(tmp_path / "c", disk=tmp_path / "e") as store:
        there = crashed(tmp_path / "e", tmp_path / "f")
        assert levels(learner(store)) == {3.0}
    with sw.Store.open(there) as store:
        assert levels(learner(store)) == {3.0}
    with sw.Store.open(tmp_path / "d") as store:
        assert levels(learner(store)) == {9.0}


@pytest.mark.parametrize("early", [False, True])
def test_priorities_that_come_with_segments_outlive_a_close_after_a_flush(early: bool, tmp_path: Path) -> None:
    with store_in(tmp_path / "d", segment_steps=4) as store:
        view = learner(store)
        if early:
            store.flush()
        writer = sw.SegmentWriter(
            SPEC,
            1,
            lambda one: store.add_segment(one.packed, one.dictionaries, td_error=[1, 2, 3, 4]),
            segment_steps=4,
        )
        for k in range(9):
            writer.extend(obs=[[k] * 3], action=[k], reward=[1.0], terminated=[k % 4 == 3], truncated=[False])
        before = priorities(view)
        assert len(set(before.values())) == 4
    with sw.Store.open(tmp_path / "d") as store:
        assert_same(priorities(learner(store)), before)


@pytest.mark.parametrize("sampler", [sw.Fifo, sw.Lifo])
def test_a_queue_keeps_its_order_over_lanes_after_a_flush(sampler: Any, tmp_path: Path) -> None:
    def order(store: sw.Store) -> list[tuple[int, int]]:
        batch = store.transitions(sampler=sampler(), max_times_sampled=1, name="queue").sample(24)
        return list(zip(batch.lane.tolist(), batch.step.tolist(), strict=True))

    with store_in(tmp_path / "d", segment_steps=4) as store:
        queue = store.transitions(sampler=sampler(), max_times_sampled=1, name="queue")
        assert not len(queue)
        for end in [False] * 12 + [True]:
            obs, ends = np.zeros((2, 3), np.float32), np.array([end, end])
            store.extend(obs=obs, action=[0, 1], reward=[1, 1], terminated=ends, truncated=~ends & ends)
            len(queue)
            if int(store.lane_steps[0]) == 6:
                store.flush()
        store.checkpoint(tmp_path / "c")
    with sw.Store.open(tmp_path / "d") as here, sw.Store.open(tmp_path / "c", disk=tmp_path / "e") as there:
        assert order(here) == order(there)


def test_the_largest_priority_outlives_all_the_steps_that_had_one(tmp_path: Path) -> None:
    with store_in(tmp_path / "d") as store:
        fill(store, 5)
        view = learner(store)
        view.update_priorities(view.sampleable_ids(), np.full(5, 7.0))
        store.clear()
    with sw.Store.open(tmp_path / "d") as store:
        fill(store, 5)
        assert levels(learner(store)) == {7.0}


def test_views_of_whose_steps_none_is_left_do_not_pile_up(tmp_path: Path) -> None:
    with store_in(tmp_path / "d", capacity=64) as store:
        fill(store, 60)
        for number in range(10):
            view = learner(store, f"old {number}")
            view.update_priorities(ids := view.sampleable_ids(), np.full(len(ids), 3.0))
            fill(store, 1)
            store.flush()
            del view
    with sw.Store.open(tmp_path / "d") as store:
        assert store.recovery is not None and len(store.recovery.views) == 10
        fill(store, 100)
    for _ in range(2):
        with sw.Store.open(tmp_path / "d") as store:
            assert store.recovery is not None and not store.recovery.damages
            assert sorted(store.recovery.views) == [f"old {number}" for number in (6, 7, 8, 9)]
            assert len(state_files(tmp_path / "d")) == 4


def test_a_flush_of_steps_only_leaves_views_for_later(tmp_path: Path) -> None:
    with store_in(tmp_path / "d") as store:
        fill(store, 50)
        view = learner(store)
        view.update_priorities(ids := view.sampleable_ids(), np.full(len(ids), 3.0))
        store.flush(views=False)
        assert not state_files(tmp_path / "d")
    assert state_files(tmp_path / "d")


def test_a_store_without_priorities_has_no_such_files(tmp_path: Path) -> None:
    with store_in(tmp_path / "d") as store:
        fill(store, 20)
        store.transitions().sample(8)
    assert not (tmp_path / "d" / VIEWS).exists()


# what is wrong with the file


def damaged(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "bit":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif how == "newer":
        import zlib

        at = data.rindex(b"sharpwave tree 2")
        data[at : at + 16] = b"sharpwave tree 9"
        data[-8:] = b"%08x" % zlib.crc32(data[:-8])
        path.write_bytes(data)
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "link":
        other = path.parent.parent / "other"
        path.rename(other)
        path.symlink_to(other)
    elif how == "another's name":
        path.rename(path.parent / path.name.replace(path.name.split(".")[1], "0" * 32))
    elif how == "another view's":
        path.rename(path.parent / file_name("queue", path.name.split(".")[1]))
    elif how == "views":
        shutil.rmtree(path.parent)
        path.parent.write_bytes(b"mine")


HOWS = ("cut", "empty", "bit", "newer", "folder", "link", "another's name", "another view's", "views")


@pytest.mark.parametrize("how", HOWS)
def test_a_file_that_is_of_no_use_is_named_and_keeps_no_store_closed(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "d"
    with store_in(folder) as store:
        fill(store, 50)
        view = learner(store)
        view.update_priorities(ids := view.sampleable_ids(), np.full(len(ids), 3.0))
    ((path, _),) = state_files(folder)
    damaged(path, how)
    foreign = how in ("folder", "link", "views")
    found = check(folder)
    assert found.damages or found.notes, how
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with sw.Store.open(folder) as store:
            assert store.recovery is not None and len(store.recovery.damages) == 1, store.recovery
            assert str(path.parent) in store.recovery.damages[0] and store.recovery.views == []
            view = learner(store)
            assert view.sampler.max_priority == 1.0 and len(view) == 50
            view.update_priorities(ids := view.sampleable_ids(), np.full(len(ids), 4.0))
            store.flush()
    assert bool(said) == foreign, [str(one.message) for one in said]
    if foreign:
        assert all("could not be written" in str(one.message) for one in said)
        assert path.is_dir() or path.is_symlink() or path.parent.read_bytes() == b"mine"
    with sw.Store.open(folder) as store:
        assert foreign or levels(learner(store)) == {4.0}
        assert len(store) == 50


def test_a_state_with_anything_in_it_begins_anew(tmp_path: Path) -> None:
    """Numbers out of range, wrong shapes and types: what a stranger can write with right checksums."""
    from sharpwave.format import checkpoint_state

    folder = tmp_path / "d"
    with store_in(folder) as store:
        fill(store, 50)
        view = learner(store, max_times_sampled=3)
        view.update_priorities(ids := view.sampleable_ids(), np.full(len(ids), 3.0))
    ((path, _),) = state_files(folder)
    with open(path, "rb") as file:
        whole = checkpoint_state.read_tree(file.fileno())
    bad: list[dict[str, Any]] = [
        {"generation": np.zeros(3, np.int64)},
        {"generation": None},
        {"generation": np.zeros((2, 2), np.int64)},
        {"lanes": "x"},
        {"first_steps": np.zeros(0, np.int64)},
        {"uses": np.full(50, -4, np.int32)},
        {"uses": None},
        {"remembered": {"values": np.full(50, np.nan), "max_priority": 1.0}},
        {"remembered": {"values": np.zeros(50), "max_priority": np.inf}},
        {"remembered": 7},
        {"settings": None},
        {"rng": {}},
        {"ahead": 4},
        {"samples": -1},
        {"inserts": 1 << 70},
    ]
    for change in bad:
        state = whole | change
        path.unlink()
        with open(path, "w+b") as file:
            checkpoint_state.write_tree(file.fileno(), state)
        copy = crashed(folder, tmp_path / "copy")
        with sw.Store.open(copy) as store:
            view = learner(store, max_times_sampled=3)
            assert len(view) == 50 and view.sampler.max_priority in (1.0, pytest.approx(3.0 + EPS)), change
            assert len(view.sample(16)) == 16
            assert store.recovery is not None and store.recovery.damages, change
            audit(store, [view])
        shutil.rmtree(copy)


# killed


CHILD = """
import sys, numpy as np, sharpwave as sw
from sharpwave.views import keeping
keeping.PERIOD_S, keeping.MAX_SHARE = 0.05, 1.0
from pathlib import Path
from tests.persistence.test_kept_views import fill, learner, store_in
folder, begun = Path(sys.argv[1]), int(sys.argv[2])
store = sw.Store.open(folder) if begun else store_in(folder)
view = learner(store)
fill(store, 40)
store.flush()
k = begun
while True:
    k += 1
    ids = view.sampleable_ids()
    view.update_priorities(ids, np.full(len(ids), float(k)))
    print(k, flush=True)
"""


@pytest.mark.slow
def test_a_process_killed_at_any_time_loses_the_last_moment_only(tmp_path: Path) -> None:
    """Every life sets all priorities to the number of the round: what is left is of one round, a recent one."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    begun, rng = 0, np.random.default_rng(3)
    for life in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "d"), str(begun)], stdout=subprocess.PIPE, env=env, text=True
        )
        assert child.stdout is not None
        began, at = 0.0, {}
        delay = float(rng.random()) * 0.6 + 0.5
        for line in child.stdout:
            now = time.monotonic()
            began = began or now
            at[int(line)] = now
            if now - began > delay:
                kept = [read_named(path)["remembered"]["max_priority"] for path, _ in state_files(tmp_path / "d")]
                if any(most > begun + 1 for most in kept):
                    break
                delay += float(rng.random()) * 0.2  # a busy machine has not come to write a round of this life's
        killed_at = time.monotonic()
        os.kill(child.pid, signal.SIGKILL)
        child.stdout.close()
        child.wait()
        with sw.Store.open(tmp_path / "d") as store:
            assert store.recovery is not None and not store.recovery.damages
            found = {round(value, 6) for value in priorities(learner(store)).values()}
        ours = {value for value in found if value > begun}
        assert len(ours) == 1, (life, found)  # of one moment
        (last,) = ours
        assert last == int(last)
        # Written 0.05 s apart, and each within a moment, which on a busy machine is long.
        assert last not in at or killed_at - at[int(last)] < 0.05 + 2.0
        begun = max(at)


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_lives_of_a_store_against_a_dictionary(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Appended to, updated, sampled, flushed, closed and killed in any order: what was flushed is there."""
    root = tmp_path_factory.mktemp("lives")
    folder = root / "0"
    capacity = data.draw(st.sampled_from([48, 4000]), "capacity")
    store = store_in(folder, capacity=capacity)
    kept: dict[tuple[int, int], float] = {}
    uses: dict[tuple[int, int], int] = {}
    for life in range(1, data.draw(st.integers(2, 4), "lives") + 1):
        view = learner(store)
        queue = store.transitions(sampler=sw.Fifo(), max_times_sampled=2, name="queue")
        got = priorities(view)
        for key, value in got.items():
            if key in kept:
                assert value == pytest.approx(kept[key], rel=1e-9, abs=1e-9), key
        ids = np.asarray(queue.sampleable_ids())
        batch = queue.fetch(ids) if len(ids) else None
        left = dict.fromkeys(zip(batch.lane.tolist(), batch.step.tolist(), strict=True), 0) if batch is not None else {}
        assert not {key for key, count in uses.items() if count == 2} & left.keys()
        for _ in range(data.draw(st.integers(0, 5), "calls")):
            what = data.draw(st.sampled_from(["fill", "update", "queue", "flush", "resize"]), "what")
            if what == "fill":
                fill(store, data.draw(st.integers(1, 30), "steps"), data.draw(st.integers(0, 2), "lane"))
            elif what == "update" and len(view):
                ids = np.asarray(view.sampleable_ids())
                chosen = ids[:: data.draw(st.integers(1, 3), "each")]
                view.update_priorities(chosen, np.arange(len(chosen)) + 10.0 * life)
            elif what == "queue" and len(queue) > 2:
                queue.sample(2)
            elif what == "flush":
                store.flush()
            elif what == "resize":
                store.resize(capacity=(store.capacity or 0) + 16)
        if data.draw(st.booleans(), "with a flush"):
            store.flush()
            kept = priorities(view)
            uses = _used(queue)
        else:
            kept, uses = {}, {}
        audit(store, [view, queue])
        after = root / str(life)
        if data.draw(st.booleans(), "killed"):
            crashed(store._log.disk.folder, after)  # type: ignore[union-attr]
            store.close()
        else:
            kept, uses = priorities(view), _used(queue)
            store.close()
            after = folder
        folder = after
        store = sw.Store.open(folder)
        assert store.recovery is not None and not store.recovery.damages
    store.close()


def _used(queue: Any) -> dict[tuple[int, int], int]:
    """How often items were sampled, of those held, by (lane, step)."""
    log, given = queue._log, queue.source.items.uses._given
    queue.source.items.follow()
    found = {}
    for slot, (begin, end) in enumerate(queue.source.items.spans.tolist()):
        for row in range(begin, end):
            step = int(log.index.first_step[slot]) + row
            found[int(log.index.lane[slot]), step] = int(given[slot * log.stride + row])
    return found


def test_a_store_found_again_counts_what_it_evicted(tmp_path: Path) -> None:
    with store_in(tmp_path / "d", capacity=48) as store:
        fill(store, 101)  # of which the last is cut: what it led to is not known
        assert store.stats()["evicted_steps"] == 101 - len(store) > 0
    with sw.Store.open(tmp_path / "d") as store:
        stats = store.stats()
        assert stats["total_steps"] == 100
        assert stats["evicted_steps"] == 100 - len(store) > 0


# in the background


def test_states_are_written_while_views_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "PERIOD_S", 0.02)
    monkeypatch.setattr(keeping, "MAX_SHARE", 1.0)
    with store_in(tmp_path / "d") as store:
        fill(store, 50)
        store.flush()
        view = learner(store)
        deadline, k = time.monotonic() + 20, 0
        while not state_files(tmp_path / "d"):
            assert time.monotonic() < deadline
            k += 1
            view.update_priorities(ids := view.sampleable_ids(), np.full(len(ids), float(k)))
        keeper = store._views.keeping
        assert keeper is not None
        keeper.end()
        assert store.stats()["bytes"]["checkpoint"] == 0
        there = crashed(tmp_path / "d", tmp_path / "c")
    with sw.Store.open(there) as store:
        (found,) = {round(value, 6) for value in priorities(learner(store)).values()}
        assert found in (0.99, *range(1, k + 1))  # a new step's, where the state is of before the first update


def test_a_view_in_a_forked_process_writes_nothing(tmp_path: Path) -> None:
    with store_in(tmp_path / "d") as store:
        fill(store, 50)
        view = learner(store)
        view.update_priorities(ids := view.sampleable_ids(), np.full(len(ids), 3.0))
        store.flush()
        before = [(path, path.read_bytes()) for path, _ in state_files(tmp_path / "d")]
        child = os.fork()
        if not child:
            status = 1
            try:
                keeper = store._views.keeping
                assert keeper is not None
                keeper.begin()
                keeper.end()
                keeper.write()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [(path, path.read_bytes()) for path, _ in state_files(tmp_path / "d")] == before


def test_ids_that_were_given_twice_keep_no_priorities(tmp_path: Path) -> None:
    """What a crash took may have had ids that later steps get; a file that says so is not believed."""
    with store_in(tmp_path / "d") as store:
        fill(store, 50)
        view = learner(store)
        view.update_priorities(ids := view.sampleable_ids(), np.full(len(ids), 3.0))
        state = SavedView.of(view.source, store._log).state_in_folder(store._log)
        state["first_steps"] = state["first_steps"] + 8
        found = recovered(state, store._log)
        assert (found["generation"] == -1).all()
        state["first_steps"] = state["first_steps"] - 8
        same = recovered(state, store._log)["generation"]
        assert (same >= 0).sum() == store.stats()["segments"] - 1
