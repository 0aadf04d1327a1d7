"""Connections that break at any byte, in either direction: nothing is lost, doubled, or joined to what it is not."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.remote_writer import Delivery, RemoteWriter
from tests.serve.serving import SPEC, play, served


class Cutting:
    """A proxy before a shard, whose connections end after random numbers of bytes, requests or replies lost.

    Attributes:
        cuts: connections that it ended. ``calm``: it ends none.
    """

    def __init__(self, path: Path | None, behind: Address, seed: int, mean: float) -> None:
        self._behind, self._random, self._mean = behind, random.Random(seed), mean
        self.cuts, self.calm = 0, False
        if path is None:
            self._socket = socket.create_server(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        else:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(str(path))
            self._socket.listen(16)
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._socket.accept()
                if self._behind.path:
                    theirs = socket.socket(socket.AF_UNIX)
                    theirs.connect(self._behind.path)
                else:
                    theirs = socket.create_connection((self._behind.host, self._behind.port))
                self._open += [ours, theirs]
                for source, target in ((ours, theirs), (theirs, ours)):
                    budget = 400 + int(self._random.expovariate(1 / self._mean))
                    threading.Thread(target=self._pass, args=(source, target, budget), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, budget: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 12):
                if not self.calm and len(data) > budget:
                    target.sendall(data[:budget])
                    self.cuts += 1
                    break
                budget -= len(data)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # or the thread would go on, and take what a later socket is to get
        self._thread.join(30)
        self._socket.close()
        for one in self._open:
            one.close()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))])
def test_every_segment_arrives_once_over_a_link_that_breaks(seed: int, tmp_path: Path) -> None:
    with served(1, tmp_path) as there, sw.Store(SPEC, capacity=100_000, segment_steps=8) as reference:
        proxy = Cutting(tmp_path / "cut", there.servers[0].address, seed, mean=6000)
        link = Link(Address("unix", str(tmp_path / "cut")), Security())
        proxy.calm = True
        writer = RemoteWriter(SPEC, Delivery(link, "w", 2, timeout=30), segment_steps=8)
        proxy.calm = False
        local = sw.SegmentWriter(
            SPEC, 2, lambda one: reference.add_segment(one.packed, one.dictionaries), segment_steps=8
        )
        for part in range(6):
            play(writer, 2, 60, 10 * seed + part)
            play(local, 2, 60, 10 * seed + part)
        proxy.calm = True
        writer.flush()
        assert proxy.cuts > 2 and writer.delivery.resent > 0
        store = there.stores[0]
        assert store.lane_steps.tolist() == reference.lane_steps.tolist() and len(store) == len(reference)
        mine, theirs = store.transitions(n_step=3), reference.transitions(n_step=3)
        batches = [view.fetch(np.sort(view.sampleable_ids())) for view in (mine, theirs)]
        assert len(batches[0]) == len(batches[1]) > 600
        orders = [np.lexsort((one.step, one.lane)) for one in batches]
        for name in ("lane", "step", "obs", "action", "reward", "next_obs", "discount", "truncated", "n"):
            left, right = (getattr(one, name)[order] for one, order in zip(batches, orders, strict=True))
            np.testing.assert_array_equal(left, right, err_msg=name)
        writer.delivery.close()
        proxy.close()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 3))])
def test_a_learner_goes_on_over_links_that_break(seed: int, tmp_path: Path) -> None:
    """What it samples is what the shards hold; what was asked for and lost is asked for again."""
    with served(2, tmp_path, "tcp", capacity=1000) as there:
        play_into(there.stores[0], seed)
        play_into(there.stores[1], seed + 1)
        proxies = [Cutting(None, one.address, seed + k, mean=200_000) for k, one in enumerate(there.servers)]
        for one in proxies:
            one.calm = True
        cluster = sw.Cluster.of(SPEC, [one.address for one in proxies])
        replay = cluster.transitions(sampler=sw.Prioritized(alpha=1.0))
        wholes = {
            shard.incarnation: store.transitions(name="whole")
            for shard, store in zip(there.shards, there.stores, strict=True)
        }
        for one in proxies:
            one.calm = False
        stream = replay.stream(40, lookahead=3)
        done = 0
        while done < 150:
            try:
                batch = next(stream)
            except (sw.EmptyError, ShardLostError):  # both were lost at once: a moment later they are tried again
                stream = replay.stream(40, lookahead=3)
                continue
            done += 1
            for incarnation, whole in wholes.items():
                there_ = np.flatnonzero(batch.shards == incarnation)
                if there_.size:
                    expected = whole.fetch(np.asarray(batch.ids)[there_])
                    np.testing.assert_array_equal(batch.obs[there_], expected.obs)
                    np.testing.assert_array_equal(batch.reward[there_], expected.reward)
            replay.update_priorities(batch, np.random.default_rng(done).random(40))
        assert sum(one.cuts for one in proxies) > 3
        cluster.close()
        for one in proxies:
            one.close()


def play_into(store: sw.Store, seed: int) -> None:
    writer = sw.SegmentWriter(SPEC, 1, lambda one: store.add_segment(one.packed, one.dictionaries), segment_steps=8)
    play(writer, 1, 120, seed)


def test_a_checkpoint_that_a_lost_shard_ends_lets_the_others_take_steps_again(tmp_path: Path) -> None:
    with served(2, tmp_path) as cluster:
        writer = cluster.cluster.writer(lanes=1, shard=1, timeout=10.0)
        cluster.cluster.checkpoint(tmp_path / "whole")
        cluster.servers[0].close()
        with pytest.raises(ConnectionError):
            cluster.cluster.checkpoint(tmp_path / "broken")
        play(writer, 1, 40, seed=0)
        writer.flush()
        assert writer.delivery.acknowledged >= 32
