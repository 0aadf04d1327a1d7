"""Streams of views that give an item a limited number of times: what they have drawn ahead is not lost with them."""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sharpwave as sw

SPEC = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))
SAMPLERS = (sw.Fifo, sw.Lifo, sw.Uniform, sw.Prioritized, sw.RankPrioritized)


def store_of(steps: int, **settings: Any) -> sw.Store:
    store = sw.Store(SPEC, **{"capacity": 1000, "segment_steps": 4, "seed": 3} | settings)
    append(store, 0, steps)
    return store


def append(store: sw.Store, begin: int, end: int) -> None:
    """Append one-step episodes, whose actions count on."""
    for k in range(begin, end):
        store.append(obs=k, action=k, reward=0.0, terminated=True, truncated=False)


def rest(view: Any, size: int = 1) -> list[int]:
    """Return the actions of all that is left."""
    return [int(one) for _ in range(len(view) // size) for one in view.sample(size).action]


def test_a_closed_stream_gives_back_what_it_drew_ahead_in_order() -> None:
    view = store_of(40).transitions(sampler=sw.Fifo(), max_times_sampled=1)
    stream = view.stream(4, lookahead=3)
    assert next(stream).action.tolist() == [0, 1, 2, 3] and len(view) == 40 - 16
    stream.close()
    assert len(view) == 36 == len(view.sampleable_ids()) and rest(view) == [*range(4, 40)]
    stream.close()
    assert not len(view)


@pytest.mark.parametrize("how", ["break", "del", "collected"])
def test_a_stream_that_is_dropped_gives_back_what_it_drew_ahead(how: str) -> None:
    view = store_of(40).transitions(sampler=sw.Fifo(), max_times_sampled=1)
    if how == "break":
        for batch in view.stream(4, lookahead=3):
            assert batch.action.tolist() == [0, 1, 2, 3]
            break
    else:
        stream = view.stream(4, lookahead=3)
        next(stream)
        if how == "collected":
            cycle: list[Any] = [stream]
            cycle.append(cycle)
            del cycle
        del stream
    gc.collect()
    assert len(view) == 36 and view.sample(36).action.tolist() == [*range(4, 40)]


def test_priorities_are_set_for_items_that_a_dropped_stream_had_drawn_ahead() -> None:
    """The first update after that took them for used up."""
    views = [store_of(40).transitions(sampler=sw.Prioritized(), max_times_sampled=1) for _ in range(2)]
    every = np.asarray(views[0].sampleable_ids())
    stream = views[0].stream(4, lookahead=3)
    next(stream)
    del stream
    assert views[0].update_priorities(every, np.ones(40)) == 4, "only those of the batch that was returned"
    blend = sw.Blend([(0.5, views[0]), (0.5, views[1])], seed=1)
    blended = blend.stream(8, lookahead=2)
    batch: Any = next(blended)
    ahead = np.concatenate([one.ids for one in blended._ahead[0].drawn])
    del blended
    later = replace(batch, ids=ahead, source=np.zeros(len(ahead), np.int64))
    assert len(ahead) > 4 and blend.update_priorities(later, np.ones(len(ahead))) == 0


def test_streams_that_are_closed_in_any_order_give_back_in_the_order_of_the_queue() -> None:
    view = store_of(40).transitions(sampler=sw.Fifo(), max_times_sampled=1)
    first, second = view.stream(4, lookahead=1), view.stream(4, lookahead=1)
    assert next(first).action.tolist() == [0, 1, 2, 3] and next(second).action.tolist() == [8, 9, 10, 11]
    first.close()
    assert view.sample(2).action.tolist() == [4, 5]
    second.close()
    assert rest(view) == [6, 7, *range(12, 40)]


def test_what_is_given_back_was_not_evicted_meanwhile() -> None:
    store = store_of(40, capacity=40)
    view = store.transitions(sampler=sw.Fifo(), max_times_sampled=1)
    stream = view.stream(4, lookahead=5)
    next(stream)
    append(store, 40, 48)
    stream.close()
    held = [int(one) for one in store.transitions().fetch(store.transitions().sampleable_ids()).action]
    assert min(held) > 4 and rest(view) == sorted(held)


def test_blended_streams_give_back_what_they_drew_ahead() -> None:
    for drop in (False, True):
        views = [store_of(40).transitions(sampler=sw.Fifo(), max_times_sampled=1) for _ in range(2)]
        stream = sw.Blend([(0.5, views[0]), (0.5, views[1])], seed=1).stream(8, lookahead=2)
        batch: Any = next(stream)
        assert sum(map(len, views)) == 80 - 24
        if drop:
            del stream
        else:
            stream.close()
        for k, view in enumerate(views):
            assert [*batch.action[batch.source == k].tolist(), *rest(view)] == [*range(40)]


def test_ranks_of_items_that_a_stream_gives_back_have_masses() -> None:
    """Items came while others were drawn ahead; with both there, the core read past the masses of the ranks."""
    store = store_of(40)
    view = store.transitions(sampler=sw.RankPrioritized(alpha=1.0), max_times_sampled=1)
    for begin in range(40, 200, 40):
        stream = view.stream(10, lookahead=30)
        next(stream)
        append(store, begin, begin + 40)
        came = len(view)
        stream.close()
        count = len(view)
        assert count > came
        [probability] = view.draw(1).probabilities
        ranks = 1 / probability / np.sum(1 / np.arange(1, count + 1))
        assert 1 <= round(ranks) <= count and ranks == pytest.approx(round(ranks))


@pytest.mark.parametrize("blended", [False, True])
def test_a_stream_in_which_a_thread_waits_for_steps_is_closed_at_once(blended: bool) -> None:
    """Closing waited as long as the thread did, 60 s by default, and then raised."""
    store = store_of(0)
    view: Any = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.MinSize(4))
    source = sw.Blend([(1.0, view)]) if blended else view
    stream = source.stream(4)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(next, stream)
        while not store._gate.waiting:
            time.sleep(0.001)
        stream.close()
        assert not first.done()
        append(store, 0, 8)
        assert first.result().action.tolist() == [0, 1, 2, 3]
    assert next(stream).action.tolist() == [4, 5, 6, 7]


def test_a_checkpoint_after_a_stream_was_dropped_has_what_it_drew_ahead(tmp_path: Path) -> None:
    with store_of(40) as store:
        view = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, name="queue")
        stream = view.stream(4, lookahead=3)
        next(stream)
        del stream
        store.checkpoint(tmp_path / "cut")
    with sw.Store.open(tmp_path / "cut") as store:
        assert rest(store.transitions(sampler=sw.Fifo(), max_times_sampled=1, name="queue")) == [*range(4, 40)]


@pytest.mark.parametrize("sampler", [sw.Fifo, sw.Lifo])
@pytest.mark.parametrize("lives", [1, 2])
def test_a_stream_gives_back_after_a_checkpoint_in_the_order_of_before(
    sampler: Any, lives: int, tmp_path: Path
) -> None:
    """Used-up items of several lanes lay in the checkpoint without their order, and came before all others."""

    def view_of(store: sw.Store) -> Any:
        return store.transitions(sampler=sampler(), max_times_sampled=1)

    store = store_of(0)
    view = view_of(store)
    for k in range(20):
        numbers, ends = np.arange(2) + 2 * k, np.ones(2, bool)
        store.extend(obs=numbers, action=numbers, reward=np.zeros(2), terminated=ends, truncated=~ends)
    expected = [*range(40)] if sampler is sw.Fifo else [*range(40)][::-1]
    assert view.sample(3).action.tolist() == expected[:3]
    stream = view.stream(4, lookahead=2)
    assert next(stream).action.tolist() == expected[3:7]
    for life in range(lives):
        store.checkpoint(tmp_path / str(life))
        store.close()
        store = sw.Store.open(tmp_path / str(life))
        view = view_of(store)
        stream = view.stream(4, lookahead=2)
    append(store, 40, 42)
    stream.close()
    left = expected[7:]
    assert rest(view) == ([*left, 40, 41] if sampler is sw.Fifo else [41, 40, *left])
    store.close()


def test_an_interrupted_batch_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    view = store_of(40).transitions(sampler=sw.Fifo(), max_times_sampled=1)
    stream = view.stream(4, lookahead=1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stream._ahead[0], "wait_for", interrupted)
        next(stream)
    stream.close()
    assert rest(view) == [*range(40)]


@given(st.data(), st.sampled_from(SAMPLERS), st.integers(1, 3))
def test_every_item_is_given_as_often_as_it_may_be_whatever_streams_do(
    data: st.DataObject, sampler: Any, times: int
) -> None:
    """Against counts: each item is given at most so many times, and in the end exactly so many, but for evictions."""
    capacity = data.draw(st.sampled_from([1000, 48]))
    store, steps = store_of(12, capacity=capacity), 12
    view = store.transitions(sampler=sampler(), max_times_sampled=times)
    streams: list[Any] = []
    given_out: Counter[int] = Counter()
    actions = st.sampled_from(["stream", "next", "close", "drop", "sample", "append", "update"])
    for what in data.draw(st.lists(actions, max_size=25)):
        if what == "stream" and len(streams) < 3:
            streams.append(view.stream(data.draw(st.integers(1, 5)), lookahead=data.draw(st.integers(0, 3))))
        elif what == "append":
            append(store, steps, steps := steps + data.draw(st.integers(1, 9)))
        elif what == "sample":
            if view.source.items.enough(2):
                given_out.update(view.sample(2).action.tolist())
        elif what == "update":
            ids = view.sampleable_ids()
            view.update_priorities(ids, np.arange(1.0, len(ids) + 1))
        elif streams:
            number = data.draw(st.integers(0, len(streams) - 1))
            if what == "next":
                with contextlib.suppress(sw.EmptyError):
                    given_out.update(next(streams[number]).action.tolist())
            elif what == "close":
                streams.pop(number).close()
            elif what == "drop":
                del streams[number]
        assert max(given_out.values(), default=0) <= times
        assert len(view) == len(view.sampleable_ids())
    for stream in streams:
        stream.close()
    last: list[int] = []
    while len(view):
        last += view.sample(1).action.tolist()
    given_out.update(last)
    shown = store.transitions()
    held = set(shown.fetch(shown.sampleable_ids()).action.tolist())
    assert max(given_out.values()) <= times and all(given_out[one] == times for one in held)
    if sampler is sw.Fifo and times == 1:
        assert last == sorted(last)
