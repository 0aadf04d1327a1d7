"""A cluster's view in other processes: in forks batches that are held are each one's own, and so are later draws."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.serve.serving import SPEC, in_fork, play

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")


@pytest.fixture(scope="module")
def cluster() -> Iterator[sw.Cluster]:
    with sw.Cluster(SPEC, shards=2, capacity=100_000) as cluster:
        for number in range(2):
            writer = cluster.writer(2, shard=number)
            play(writer, 2, 500, number)
            writer.close()
        yield cluster


def arrays(batch: Any) -> list[np.ndarray[Any, Any]]:
    return [batch.obs, batch.next_obs, batch.action, batch.reward, batch.discount, batch.weights, np.asarray(batch.ids)]


def copied(batch: Any) -> list[np.ndarray[Any, Any]]:
    return [one.copy() for one in arrays(batch)]


def alike(batch: Any, before: list[np.ndarray[Any, Any]]) -> bool:
    return all(map(np.array_equal, arrays(batch), before))


def test_a_batch_that_is_held_at_a_fork_stays_as_it_is_in_both_processes(cluster: sw.Cluster) -> None:
    view = cluster.transitions(seed=1)
    first, second = view.sample(200), view.sample(200)
    before, later = copied(first), copied(second)
    read, write = os.pipe()
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(tell)
        os.read(told, 1)  # the parent has let go of its batches and drawn others
        same = alike(first, before) and alike(second, later)
        first.obs[:] = 1
        for _ in range(20):
            view.sample(200)
        os.write(write, b"1" if same and (first.obs == 1).all() and alike(second, later) else b"0")
        os._exit(0)
    os.close(told)
    second.obs[:] = 2
    kept = second.obs.copy()
    held = first.obs
    del first, second
    for _ in range(20):
        view.sample(200)
    os.close(tell)
    assert os.read(read, 1) == b"1"
    os.waitpid(child, 0)
    np.testing.assert_array_equal(held, before[0])  # the child wrote to its own
    assert (kept == 2).all()


def test_batches_on_their_way_at_a_fork_come_whole(cluster: sw.Cluster) -> None:
    view, twin = cluster.transitions(seed=2), cluster.transitions(seed=2)
    stream, other = view.stream(64, lookahead=3), twin.stream(64, lookahead=3)
    for _ in range(6):
        assert alike(next(stream), copied(next(other)))
        assert in_fork(lambda: None) == 0
        held = next(stream)
        before = copied(held)
        assert alike(next(other), before)
        assert in_fork(partial(held.obs.fill, 0)) == 0
        assert alike(held, before)


def draws(view: Any) -> bytes:
    return b"".join(np.asarray(view.sample(32).ids).tobytes() for _ in range(3))


def _tell(write: int, view: Any, forks: int = 0) -> None:
    os.write(write, b"".join(in_children(view, forks)) if forks else draws(view))


def in_children(view: Any, count: int) -> list[bytes]:
    """Return what each of several forks draws."""
    drawn = []
    for _ in range(count):
        read, write = os.pipe()
        assert in_fork(partial(_tell, write, view)) == 0
        drawn.append(os.read(read, 1 << 16))
        os.close(read)
        os.close(write)
    return drawn


def test_every_fork_draws_other_batches_and_the_parent_those_of_its_seed(cluster: sw.Cluster) -> None:
    view, twin = cluster.transitions(seed=5), cluster.transitions(seed=5)
    drawn = in_children(view, 3)
    own = draws(view)
    assert len({*drawn, own}) == 4 and own == draws(twin)
    read, write = os.pipe()
    assert in_fork(partial(_tell, write, view, 2)) == 0  # forks of a fork
    of_fork = os.read(read, 1 << 16)
    assert len(of_fork) == 2 * len(own)
    assert len({*drawn, own, of_fork[: len(own)], of_fork[len(own) :]}) == 6


def test_a_view_that_is_pickled_says_how_to_make_it_elsewhere(cluster: sw.Cluster) -> None:
    with pytest.raises(TypeError, match=r"RemoteReplay: cannot be pickled.*sharpwave\.connect.*Cluster\.of"):
        pickle.dumps(cluster.transitions(name="pickled"))
