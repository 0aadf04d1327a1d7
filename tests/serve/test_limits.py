"""Limiters of a cluster: one ledger over all shards, credit to each; queues that give each item once."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock, PropertyMock, patch

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve.link import ShardLostError
from sharpwave.serve.shard_parts import ShardPart
from tests.serve.serving import SPEC, Kind, Served, fill, play, sealed, served
from tests.support.examples import by_day


def test_writers_and_learner_wait_for_each_other_over_all_shards(tmp_path: Path) -> None:
    """Two writers of different speeds on two shards; the ratio holds whoever is ahead."""
    limiter = sw.SamplesPerInsert(ratio=4.0, min_size=100, error_buffer=800)
    with served(2, tmp_path) as there:
        replay = there.cluster.transitions(limiter=limiter)
        stop = threading.Event()
        failures: list[BaseException] = []

        def write(shard: int, pause: float) -> None:
            try:
                writer = there.cluster.writer(2, shard=shard, segment_steps=8, timeout=60)
                seed = 0
                while not stop.is_set():
                    play(writer, 2, 8, seed)
                    seed += 1
                    time.sleep(pause)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=one, daemon=True) for one in ((0, 0.0), (1, 0.01))]
        for one in threads:
            one.start()
        worst = 0.0
        for _ in range(60):
            replay.sample(50, timeout=30)
            inserts = sum(store.total_steps for store in there.stores)
            samples = sum(state.samples for state in replay._of.states)
            ahead = limiter.ratio * (inserts - limiter.min_size) - samples
            worst = max(worst, abs(ahead))
        stop.set()
        assert not failures
        # A segment is admitted whole, and so each of four lanes may exceed the buffer by one.
        assert worst <= limiter.error_buffer + limiter.ratio * 4 * 8 + 50
        before = between = [store.total_steps for store in there.stores]
        limit = time.monotonic() + 30
        while True:  # nobody samples: writers come to stand still
            time.sleep(0.3)
            after = [store.total_steps for store in there.stores]
            if after == between:
                break
            between = after
            assert time.monotonic() < limit
        assert sum(between) - sum(before) < 800
        for server in there.servers:
            server.close()
        for one in threads:
            one.join(20)


def test_a_learner_that_is_ahead_waits_and_says_for_what(tmp_path: Path) -> None:
    with served(2, tmp_path) as there:
        replay = there.cluster.transitions(limiter=sw.SamplesPerInsert(ratio=1.0, min_size=50, error_buffer=64))
        with pytest.raises(sw.LimiterTimeoutError, match="until 50 steps can be sampled"):
            replay.sample(8, timeout=0.1)
        fill(there.stores[0], 1, 80, 0)
        for _ in range(10):
            try:
                replay.sample(32, timeout=1.0)  # for a busy machine's answers
            except sw.LimiterTimeoutError as error:
                assert "the writer has to append" in str(error)
                break
        else:
            pytest.fail("the learner was never held up")


def test_a_queue_gives_every_item_of_every_shard_once(tmp_path: Path) -> None:
    with served(3, tmp_path) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1, 50 + 70 * number, number)
        replay = there.cluster.sequences(4, sampler=sw.Fifo(), max_times_sampled=1)
        left = len(replay)
        seen: list[tuple[int, int]] = []
        while left:
            batch = replay.sample(min(16, left))
            seen += zip(batch.shards.tolist(), np.asarray(batch.ids).tolist(), strict=True)
            left = len(replay)
        assert len(seen) == len(set(seen)) == sum(len(store.sequences(4, name="all")) for store in there.stores)
        for shard in there.shards:  # each shard's own order is kept
            ids = [id_ for number, id_ in seen if number == shard.incarnation]
            assert ids == sorted(ids, key=lambda one: (one >> 32, one))
        with pytest.raises(sw.EmptyError):
            replay.sample(1)


def queue_of(there: Served, limiter: sw.Queue | None = None) -> tuple[Any, list[Any]]:
    """Return a queue over filled shards, which knows what they hold, and its views in them."""
    for number, store in enumerate(there.stores):
        fill(store, 1, 100, number, end=0.0)
    replay = there.cluster.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=limiter)
    views = [next(iter(one.views.replays.values())) for one in there.shards]
    assert len(replay) == sum(map(len, views))
    return replay, views


def test_items_that_came_are_kept_where_another_learner_was_faster_in_one_shard(tmp_path: Path) -> None:
    """They had been given, and were let go, so nobody ever learned from them."""
    with served(2, tmp_path) as there:
        replay, views = queue_of(there)
        for view, stay in zip(views, (7, 1), strict=True):
            view.sample(len(view) - stay)  # the other learner
        batches = replay._batches
        batch = batches.collected(batches.submitted(8), None).batch  # by what was known before
        assert len(named(batch)) == 8 and not any(map(len, views)) and replay._of.ahead == 0
        with pytest.raises(sw.EmptyError, match="no shard has an item"):
            batches.submitted(1)


def named(batch: sw.Batch) -> set[tuple[int, int]]:
    assert batch.shards is not None
    return set(zip(np.asarray(batch.shards).tolist(), np.asarray(batch.ids).tolist(), strict=True))


@pytest.mark.parametrize("limiter", [None, sw.Queue(1000)])
def test_a_stream_asks_ahead_for_no_more_than_there_is(tmp_path: Path, limiter: sw.Queue | None) -> None:
    """It counted items as left that it had asked for: it raised EmptyError where it had to wait, and lost them."""
    with served(2, tmp_path) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1, 80 + 40 * number, number, end=0.0)
        replay = there.cluster.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=limiter)
        count, came = len(replay), set[tuple[int, int]]()
        expected = sw.EmptyError if limiter is None else sw.LimiterTimeoutError
        with pytest.raises(expected, match=f"{count % 16} "):
            for batch in replay.stream(16, lookahead=4, timeout=1.0):  # for a busy machine's answers
                came |= named(batch)
        assert len(came) == count // 16 * 16 and len(replay) == count % 16


@pytest.mark.parametrize("lookahead", [0, 3])
def test_what_came_of_a_batch_that_another_learner_left_too_little_for_is_in_the_next(
    tmp_path: Path, lookahead: int
) -> None:
    with served(2, tmp_path) as there:
        replay, views = queue_of(there)
        views[0].sample(len(views[0]) - 6)  # the other learner
        views[1].sample(len(views[1]))

        def sample() -> sw.Batch:
            return next(replay.stream(8, lookahead=lookahead)) if lookahead else replay.sample(8)

        with pytest.raises(sw.EmptyError):
            sample()
        assert len(views[0]) == 2, "the other four have been given"
        for one in sealed(1, 300, 1, end=0.0)[12:]:  # 12 segments of it are there
            there.stores[1].add_segment(one.packed, one.dictionaries)
        batch = sample()
        assert len(named(batch)) == 8 and np.count_nonzero(batch.shards == there.shards[0].incarnation) >= 4


def test_a_batch_that_lacked_items_is_filled_without_waiting_where_they_are_there(tmp_path: Path) -> None:
    """Without time to wait, nobody looked whether they were."""
    with served(2, tmp_path) as there:
        replay, views = queue_of(there, sw.Queue(1000))
        views[0].sample(len(views[0]) - 6)  # the other learner
        views[1].sample(len(views[1]))
        with pytest.raises(sw.LimiterTimeoutError):
            replay.sample(8, timeout=0.0)
        for one in sealed(1, 300, 1, end=0.0)[12:]:  # 12 segments of it are there
            there.stores[1].add_segment(one.packed, one.dictionaries)
        assert len(named(replay.sample(8, timeout=0.0))) == 8


@pytest.mark.parametrize("limiter", [None, sw.Queue(1000)])
@pytest.mark.parametrize("lookahead", [1, 3])
def test_a_batch_that_has_come_does_not_wait_behind_one_that_cannot_be_filled(
    tmp_path: Path, lookahead: int, limiter: sw.Queue | None
) -> None:
    """The first was asked for of a shard that another learner had emptied, those behind it were given whole."""
    with served(2, tmp_path) as there:
        replay, views = queue_of(there, limiter)
        views[0].sample(len(views[0]))  # the other learner
        left = len(views[1])
        for masses in ([1.0, 0.0], *[[0.0, 1.0]] * lookahead):
            with patch.object(ShardPart, "mass", PropertyMock(side_effect=masses)):
                replay._plans.append(replay._batches.submitted(left // lookahead))
        batches = [replay.sample(left // lookahead, lookahead=lookahead, timeout=30) for _ in range(lookahead)]
        assert len(set[tuple[int, int]]().union(*map(named, batches))) == left // lookahead * lookahead
        with pytest.raises(sw.EmptyError if limiter is None else sw.LimiterTimeoutError):
            replay.sample(left // lookahead, timeout=0.2)
        assert replay.asked == 1, "the first is still to be filled"


@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
def test_what_came_of_a_batch_is_kept_where_a_shard_was_lost_meanwhile(tmp_path: Path, kind: Kind) -> None:
    """The other shards had given it, and nobody learned from it."""
    with served(2, tmp_path, kind) as there:
        replay, views = queue_of(there)
        total = len(views[0])
        columns = "obs", "next_obs", "action", "reward"
        whole = there.stores[0].transitions(name="all", sampler=sw.Fifo(), max_times_sampled=1).sample(total)
        expected = {int(id_): [whole[name][at].tobytes() for name in columns] for at, id_ in enumerate(whole.ids)}
        came: list[int] = []
        while len(views[0]) > total // 2:
            plan = replay._batches.submitted(16)
            assert {share.shard for share in plan.shares} == {0, 1}
            there.cluster.links[1].close()
            batch = replay._batches.collected(plan, None).batch
            assert len(named(batch)) == 16
            for at in np.flatnonzero(batch.shards == there.shards[0].incarnation):
                came.append(int(batch.ids[at]))
                assert [batch[name][at].tobytes() for name in columns] == expected[came[-1]]
            assert len(came) == len(set(came)) == total - len(views[0])


@pytest.mark.parametrize("kind", by_day("tcp", "unix"))
def test_what_came_of_a_batch_is_kept_while_no_shard_answers(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(2, tmp_path, kind) as there:
        replay, views = queue_of(there)
        total, links = len(views[0]), there.cluster.links
        replay._plans.append(replay._batches.submitted(16))
        links[1].close()
        with monkeypatch.context() as patched:
            patched.setattr(replay._of, "lost", Mock(side_effect=lambda _: links[0].close()))
            patched.setattr("sharpwave.serve.link.connect", Mock(side_effect=ConnectionError("nobody")))
            with pytest.raises(ShardLostError, match="got no whole batch"):
                replay.sample(16)
        batch = replay.sample(16)
        assert np.count_nonzero(batch.shards == there.shards[0].incarnation) == total - len(views[0]) > 0


def test_samplers_that_need_all_items_are_refused_by_name(tmp_path: Path) -> None:
    with served(1, tmp_path) as there, pytest.raises(ValueError, match="RankPrioritized"):
        there.cluster.transitions(sampler=sw.RankPrioritized())


def test_a_view_is_shared_by_name_and_another_of_that_name_refused(tmp_path: Path) -> None:
    with served(2, tmp_path) as there:
        fill(there.stores[0], 1, 40, 0)
        first = there.cluster.transitions(n_step=2, sampler=sw.Prioritized(alpha=1.0))
        batch = first.sample(8)
        first.update_priorities(batch, np.full(8, 3.0))
        second = there.cluster.transitions(n_step=2, sampler=sw.Prioritized(alpha=1.0))
        assert second._of.known[0].state.mass == first._of.known[0].state.mass > len(second)
        with pytest.raises(ValueError, match="n_step"):
            there.cluster.transitions(n_step=3, sampler=sw.Prioritized(alpha=1.0))


def test_stats_leave_out_a_shard_that_is_away(tmp_path: Path) -> None:
    """A learner reports in the middle of a shard's restart, and goes on."""
    with served(2, tmp_path) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1, 60, number)
        assert there.cluster.stats()["steps"] == len(there.stores[0]) + len(there.stores[1])
        there.servers[0].close()
        assert there.cluster.stats()["steps"] == len(there.stores[1])
        there.servers[1].close()
        with pytest.raises(ShardLostError):
            there.cluster.stats()


def test_a_writer_whom_a_limiter_holds_up_gives_up_after_its_timeout(tmp_path: Path) -> None:
    """It waited for the shard's answer, a minute, whatever its timeout."""
    with served(1, tmp_path) as there:
        limiter = sw.SamplesPerInsert(8, min_size=100, error_buffer=800)
        replay = there.cluster.transitions(name="learner", limiter=limiter)
        writer = there.cluster.writer(2, segment_steps=8, timeout=1.5)
        play(writer, 2, 100, 0)
        for _ in range(4):
            replay.sample(32)
        with pytest.raises(sw.LimiterTimeoutError, match=r"not taken in 1\.5 s: .*limiter waits for its learner"):
            play(writer, 2, 3000, 1)
        waiting = writer.delivery.waiting
        for _ in range(100):
            replay.sample(64, timeout=10.0)
            writer.delivery.hear()
            if writer.delivery.waiting < waiting:
                return
        pytest.fail("the writer's segments are not taken after the learner has sampled")


@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
def test_a_blend_that_times_out_uses_up_no_items_of_a_cluster(kind: Kind, tmp_path: Path) -> None:
    with served(2, tmp_path, kind) as there, sw.Store(SPEC, capacity=1000) as local:
        for number, store in enumerate(there.stores):
            fill(store, 1, 60, number)
        ours = local.transitions(name="ours", limiter=sw.MinSize(8))
        theirs = there.cluster.transitions(max_times_sampled=1)
        count, drawn = len(theirs), list[tuple[int, int]]()
        parts: list[Any] = [(0.5, ours), (0.5, theirs)]
        blend: Any = sw.Blend(parts)
        for _ in range(4):
            with pytest.raises(sw.LimiterTimeoutError):
                blend.sample(16, timeout=0.02)
        used = count - len(theirs)
        assert 0 < used < 16
        play(local, 1, 30, 9)

        def note(batch: Any) -> None:
            remote = batch.shards >= 0
            drawn.extend(zip(batch.shards[remote].tolist(), np.asarray(batch.ids)[remote].tolist(), strict=True))

        batch = blend.sample(16, beta=0.7)
        note(batch)
        assert len(drawn) == used == count - len(theirs), "the kept part"
        weights = (count * batch.probabilities[batch.shards >= 0] * 2) ** -0.7
        assert np.allclose(batch.weights[batch.shards >= 0], weights / weights.max())
        while len(theirs) >= 16:
            note(blend.sample(16))
        assert len(set(drawn)) == len(drawn) == count - len(theirs)
