"""Views that no object uses any longer: shards are told, so that they hold nobody up and make room."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import pytest

import sharpwave as sw
from sharpwave.serve import shard_views
from tests.serve.serving import SPEC, Kind, fill, play, served
from tests.serve.test_bounds import eventually
from tests.support.examples import by_day


def test_the_limiter_of_a_view_that_was_forgotten_holds_nobody_up(tmp_path: Path) -> None:
    with served(2, tmp_path) as there:
        learner = sw.Cluster.of(SPEC, [str(one.address) for one in there.servers])
        replay = learner.transitions(limiter=sw.SamplesPerInsert(1.0, 20, 64))
        writer = there.cluster.writer(1, segment_steps=8, timeout=30)
        play(writer, 1, 40, 0)
        writer.flush()
        replay.sample(8)
        done = threading.Event()

        def write() -> None:
            play(writer, 1, 600, 1)
            done.set()

        threading.Thread(target=write, daemon=True).start()
        assert not done.wait(0.5), "its limiter holds the writer up"
        stream = replay.stream(8)
        del replay
        assert not done.wait(0.5), "the stream may go on"
        del stream
        assert done.wait(60)
        learner.close()


def test_a_view_is_forgotten_with_the_last_object_that_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_views, "MAX_VIEWS", 2)
    with served(1, tmp_path) as there:
        fill(there.stores[0], 1, 40, 0)
        views, uses = there.shards[0].views, there.cluster._members.views
        kept = there.cluster.transitions(name="kept")
        for k in range(6):  # a notebook whose cell is run again
            view = there.cluster.transitions(name=f"made {k}")
            assert len(view.sample(8)) == 8
            del view
            eventually(lambda: not uses._objects.keys() - {"kept"})
        again = there.cluster.transitions(name="kept")
        del kept
        time.sleep(0.1)
        there.cluster.transitions(name="another")
        assert {one.name for one in views.replays.values()} == {"kept", "another"}
        other = sw.Cluster.of(SPEC, [str(there.servers[0].address)])
        same = other.transitions(name="kept")
        del again
        eventually(lambda: not uses._objects)
        with uses._lock:  # it is being said
            there.cluster.stats()  # an answer behind that: the other client has a connection of its own
        other.transitions(name="more")
        assert {one.name for one in views.replays.values()} == {"kept", "more"}, "another client uses it"
        assert len(same.sample(8)) == 8
        other.close()


def test_a_view_that_is_made_anew_at_once_stays(tmp_path: Path) -> None:
    with served(1, tmp_path) as there:
        fill(there.stores[0], 1, 40, 0)
        views = there.shards[0].views
        view = there.cluster.transitions(name="one")
        for _ in range(200):
            del view
            view = there.cluster.transitions(name="one")
        assert len(view.sample(8)) == 8
        eventually(lambda: there.cluster._members.views._objects == {"one": 1})
        there.cluster.stats()  # an answer behind those to all that was said
        assert [len(one.users) for one in views._views.values()] == [1]


def test_a_cluster_that_is_forgotten_leaves_no_thread(tmp_path: Path) -> None:
    with served(1, tmp_path) as there:
        before = threading.active_count()
        for _ in range(3):
            cluster = sw.Cluster.of(SPEC, [str(there.servers[0].address)])
            cluster.transitions()
            del cluster
        gc.collect()
        eventually(lambda: threading.active_count() <= before)


@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
def test_nothing_is_left_of_views_that_were_freed(tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharpwave.serve.server.MAX_MAPPED", 40)
    with served(1, tmp_path, kind) as there:
        fill(there.stores[0], 1, 40, 0)
        members, link = there.cluster._members, there.cluster.links[0]

        def use(name: str) -> int:
            view = there.cluster.transitions(name=name)
            for _ in range(3):
                assert len(view.sample(8, lookahead=2)) == 8, "two more are asked for, whose replies nobody takes"
            del view
            eventually(lambda: not members.views._objects)
            with members.views._lock:  # it is being said
                there.cluster.stats()  # an answer behind those to all that was said
            return there.shards[0].budget._kept

        held = [use(f"made {k}") for k in range(20)]
        assert len(set(held[1:])) == 1, "the shard keeps no more after twenty views than after two"
        assert not link._replies and not link._dropped and link.connections == 1
        assert len(link.shared) + len(link.forgotten) < 40


def test_streams_that_the_collector_ends_hold_nobody_up(tmp_path: Path) -> None:
    """It may run in any thread, whatever locks that thread holds."""
    with served(1, tmp_path) as there:
        fill(there.stores[0], 1, 100, 0)
        views = [there.cluster.transitions(name=name) for name in "aab"]
        counts, over = [0, 0, 0], time.monotonic() + 2.0

        def goes_on() -> bool:  # all have done something, however seldom each of them ran
            return time.monotonic() < over or min(counts) <= 5

        def streamed(number: int) -> None:
            while goes_on():
                stream = views[number].stream(8, lookahead=3)
                next(stream)
                circle: list[object] = [stream]
                circle.append(circle)
                counts[number] += 1
                del stream, circle

        def sampled(number: int) -> None:
            while goes_on():
                assert len(views[number].sample(8)) == 8
                counts[number] += 1

        before = gc.get_threshold()
        gc.set_threshold(5)
        try:
            threads = [
                threading.Thread(target=what, args=(number,), daemon=True)
                for number, what in enumerate((streamed, sampled, sampled))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        finally:
            gc.set_threshold(*before)
        assert not any(thread.is_alive() for thread in threads)
        gc.collect()
        assert len(views[0].sample(8)) == 8 and views[0]._of.ahead == 0 and not views[0]._left
