"""What a cluster's clients hold and send when something ends in the middle: an interrupt, a fork, a refused segment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve import wire
from sharpwave.serve.shard import Shard
from tests.serve.serving import SPEC, fill, in_fork, served
from tests.support.examples import by_day


def extend(writer: sw.Store | Any, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        writer.extend(
            obs=np.zeros((1, 6, 5), np.uint8), action=[number], reward=[0.0], terminated=[False], truncated=[False],
            noise=np.zeros((1, 2), np.float32),
        )  # fmt: skip


def actions(store: sw.Store) -> list[int]:
    """Return the actions of all steps that can be sampled, sorted."""
    view = store.transitions(name="all", sampler=sw.Fifo(), max_times_sampled=1)
    return sorted(view.sample(len(view)).action.ravel().tolist())


def once(real: Callable[..., Any], error: BaseException, at: int) -> Callable[..., Any]:
    """Return ``real``, whose call number ``at`` raises instead; interrupts come to the main thread, which is counted
    alone then."""
    calls = iter(range(1, 1 << 30))

    def call(*args: Any, **named: Any) -> Any:
        counts = threading.current_thread() is threading.main_thread() or not isinstance(error, KeyboardInterrupt)
        if counts and next(calls) == at:
            raise error
        return real(*args, **named)

    return call


def test_segments_after_one_that_the_shard_could_not_take_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(1, tmp_path) as there:
        store = there.stores[0]
        monkeypatch.setattr(store, "_add_segment", once(store._add_segment, OSError(28, "No space left on device"), 5))
        writer = there.cluster.writer(timeout=5.0)
        extend(writer, 161)  # 20 segments, on the way when the fifth is refused
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
        writer.flush()
        assert writer.delivery.acknowledged == 160
        assert actions(store) == list(range(159))


def test_the_latest_writer_of_a_name_has_its_lanes_and_an_earlier_one_is_refused(tmp_path: Path) -> None:
    with served(1, tmp_path) as there:
        earlier = there.cluster.writer(name="actor", timeout=2.0)
        extend(earlier, 17)
        earlier.flush()
        later = there.cluster.writer(name="actor")
        extend(later, 17, 100)
        later.flush()
        with pytest.raises(ValueError, match="another writer of that name"):
            extend(earlier, 64, 17)
            earlier.flush()
        earlier.delivery.close()
        with pytest.raises(ValueError, match="another writer of that name"):  # nor when it connects again
            earlier.flush()
        assert earlier.delivery.acknowledged == later.delivery.acknowledged == 16
        assert actions(there.stores[0]) == [*range(16), *range(100, 115)]


def test_a_writer_goes_on_after_its_shard_began_another_life(tmp_path: Path) -> None:
    with served(1, tmp_path) as there:
        writer = there.cluster.writer(name="actor")
        extend(writer, 17)
        writer.flush()
        there.servers[0].shard = Shard(there.stores[0], tmp_path / "0")
        writer.delivery.close()
        extend(writer, 16, 17)
        writer.flush()
        assert writer.delivery.acknowledged == 32


def test_a_learner_without_a_limiter_frees_writers_that_an_earlier_one_held_up(tmp_path: Path) -> None:
    with served(1, tmp_path) as there:
        writer = there.cluster.writer(timeout=5.0)
        extend(writer, 33)
        writer.flush()
        there.cluster.transitions(limiter=sw.SamplesPerInsert(1, 10, 10)).sample(8)
        with sw.Cluster.of(SPEC, [str(one.address) for one in there.servers]) as again:
            again.transitions()
            extend(writer, 400, 33)
            writer.flush()
        assert writer.delivery.acknowledged == 432


@pytest.mark.parametrize("call", ["send", "receive"])
@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
def test_a_draw_that_is_interrupted_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, kind: Any
) -> None:
    with served(2, tmp_path, kind) as there:
        for number, store in enumerate(there.stores):
            fill(store, 2, 100, number)
        replay = there.cluster.transitions(limiter=sw.MinSize(1))
        before = replay.sample(64)
        with monkeypatch.context() as patch:
            patch.setattr(wire, call, once(getattr(wire, call), KeyboardInterrupt(), 1))
            with pytest.raises(KeyboardInterrupt):
                replay._batches.collected(replay._batches.submitted(64), None)
        replay.refresh()
        assert replay._of.ahead == 0
        assert not any(link._replies for link in there.cluster.links if link is not None)
        held = before.obs.copy()
        for _ in range(5):
            assert len(replay.sample(64)) == 64
        np.testing.assert_array_equal(before.obs, held)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_shares_neither_batches_nor_replies_nor_a_writer(tmp_path: Path) -> None:
    with served(1, tmp_path) as there:
        fill(there.stores[0], 2, 200, 0)
        replay = there.cluster.transitions()
        writer = there.cluster.writer()
        stream = replay.stream(32, lookahead=2)
        next(stream)
        link = there.cluster.links[0]
        assert link is not None
        memory, process = replay._batches.memory, os.getpid()
        with pytest.MonkeyPatch.context() as patch:  # as in a child, in whose place shards in threads would not be
            patch.setattr(os, "getpid", lambda: process + 1)
            sockets = link._socket
            link.forked()
            replay.forked()
            next(stream)
            assert link._socket is not sockets and replay._batches.memory is not memory
            with pytest.raises(sw.StoreInUseError, match="forked"):
                extend(writer, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_while_other_threads_hold_all_locks_goes_on_or_says_why_not(tmp_path: Path) -> None:
    with served(2, tmp_path) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1, 100, number)
        replay, writer = there.cluster.transitions(), there.cluster.writer(name="parent")
        replay.sample(16, lookahead=2)
        links, members = there.cluster.links, there.cluster._members
        locks: list[Any] = [*(link.lock for link in links), members._lock, replay._lock, replay._batches._decoding]
        locks += [writer._lock, writer.delivery._lease.link.lock]
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with ExitStack() as stack:
                for one in locks:
                    stack.enter_context(one)
                held.set()
                over.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(10)

        def child() -> None:
            assert len(replay.sample(16)) == 16 and len(there.cluster) > 180
            replay.update_priorities(replay.sample(16), np.ones(16))
            for call in (lambda: extend(writer, 1), writer.flush, writer.close):
                with pytest.raises(sw.StoreInUseError, match="forked"):
                    call()
            own = there.cluster.writer(name="child")
            extend(own, 1)
            own.close()

        status = in_fork(child)
        over.set()
        thread.join()
        assert status == 0
        assert len(replay.sample(16, lookahead=2)) == 16 and replay.asked == 2
        extend(writer, 8)
        writer.close()
