"""A store that its own process serves: clients use it as a cluster of one shard."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve.link import ShardLostError
from tests.serve.serving import in_fork
from tests.support.examples import by_day

SPEC = sw.Spec(obs=sw.Field((40,), "uint8"), action=sw.Field((), "int64"), text=sw.Field(str))
SECRET = "0123456789abcdef"


def rows(lanes: int, number: int, ended: bool = False) -> dict[str, Any]:
    """One step for each lane, whose content its number and lane determine."""
    obs = np.arange(lanes, dtype=np.uint8)[:, None] + np.full((lanes, 40), number % 200, np.uint8)
    ends = np.full(lanes, ended)
    given = {"obs": obs, "action": np.full(lanes, number), "reward": np.arange(lanes) + number}
    return given | {"terminated": ends, "truncated": ends & False, "final_obs": obs, "text": [f"{number}"] * lanes}


def play(to: Any, lanes: int, steps: int, first: int = 0) -> None:
    for number in range(first, first + steps):
        to.extend(**rows(lanes, number, number % 10 == 9))


def address_of(kind: str, folder: Path) -> str:
    return f"unix:{folder / 'socket'}" if kind == "unix" else "127.0.0.1:0"


@pytest.mark.parametrize("kind", by_day("tcp", "unix"))
def test_clients_and_the_store_itself_see_the_same_steps(tmp_path: Path, kind: str) -> None:
    with (
        sw.Store(SPEC, capacity=10_000, segment_steps=16) as store,
        sw.StoreServer(store, address_of(kind, tmp_path)) as server,
        sw.Store(SPEC, capacity=10_000, segment_steps=16) as local,
    ):
        play(store, 2, 60)
        with sw.connect(server.address) as cluster, sw.Cluster(SPEC, address=server.address) as other:
            assert cluster.spec.description() == SPEC.description()
            assert cluster.links[0].is_local == (kind == "unix")
            writer = cluster.writer(lanes=3, name="actor")
            play(writer, 3, 60, 100)
            writer.close()
            play(store, 2, 20, 60)
            play(local, 2, 80)
            assert store.lane_steps.tolist() == [80, 80, 60, 60, 60] and len(cluster) == len(store)
            for view in (other.transitions(n_step=2), store.transitions(n_step=2, name="own")):
                batch = view.sample(300)
                assert {*batch.lane.tolist()} == {0, 1, 2, 3, 4}
                number = batch.step + np.where(batch.lane < 2, 0, 100)
                assert np.array_equal(batch.action, number) and batch["text"].strings() == [str(n) for n in number]
                lane = np.where(batch.lane < 2, batch.lane, batch.lane - 2)
                returns = lane + number + np.where(number % 10 == 9, 0, 0.99 * (lane + number + 1))
                assert np.allclose(batch.reward, returns)
                assert np.array_equal(batch.obs[:, 0], (lane + number % 200).astype(np.uint8))
            places = np.repeat([0, 1], 80), np.tile(np.arange(80), 2)  # not disturbed by the writer's steps
            found = store.transitions(name="more").fetch(store.ids(*places))
            expected = local.transitions().fetch(local.ids(*places))
            assert all(
                np.array_equal(getattr(found, name), getattr(expected, name)) for name in ("obs", "next_obs", "n")
            )
            drawn = other.transitions(name="late").sample(16)
            other.add_column("late", sw.Field((), "float32"))
            other.write_column("late", drawn, np.full(16, 3.0))
            assert set(store.columns) == {"late"}
            values, there = store.read_column("late", np.unique(np.asarray(drawn.ids)))
            assert there.all() and (values == 3).all()
            other.checkpoint(tmp_path / "checkpoint")
        with sw.Cluster.open(tmp_path / "checkpoint") as again:
            assert len(again) == len(store)


def test_several_addresses_and_secrets(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=1000) as store:
        play(store, 1, 30)
        for secret in (None, "short"):
            with pytest.raises(ValueError, match=r"0\.0\.0\.0.*needs a shared secret of at least 16"):
                sw.StoreServer(store, f"unix:{tmp_path / 'socket'}", "0.0.0.0:0", secret=secret)
        assert not (tmp_path / "socket").exists()
        with sw.StoreServer(store, f"unix:{tmp_path / 'socket'}", "0.0.0.0:0", secret=SECRET) as server:
            port = server.addresses[1].rpartition(":")[2]
            assert "StoreServer at unix:" in repr(server)
            for address in (server.address, f"127.0.0.1:{port}"):
                with sw.connect(address, secret=SECRET) as cluster:
                    assert cluster.links[0].is_local, "on the same machine the unix socket is nearer"
                    assert len(cluster.transitions(name=address).sample(8)) == 8
                with pytest.raises(ConnectionError, match="secret is another"):
                    sw.connect(address, secret="fedcba9876543210")
        assert not (tmp_path / "socket").exists()
        with pytest.raises(ConnectionError, match="nothing answers"):
            sw.connect(f"unix:{tmp_path / 'socket'}")


def test_mistakes_are_named(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'socket'}"
    with sw.Store(SPEC, capacity=1000) as store, sw.StoreServer(store, address) as server:
        for arguments, named in (
            ((store, "127.0.0.1:0"), "served already, by <StoreServer at unix:"),
            ((sw.Store(SPEC, capacity=10), address), "another process listens there"),
            ((sw.Store(SPEC, capacity=10), "nowhere"), "expected unix:PATH"),
            ((sw.Store(SPEC, capacity=10),), "no address"),
            ((SPEC, address), "expected a sharpwave.Store"),
            ((sw.Store(SPEC, capacity=10), "127.0.0.1:0", "256.1.1.1:0"), "256"),
        ):
            with pytest.raises((ValueError, TypeError, OSError), match=named):
                sw.StoreServer(*arguments)
        for given, named in (
            ({"tls_certificate": "/none.pem"}, "^tls_certificate=/none.pem: No such file"),
            ({"tls_certificate": __file__}, r"^tls_certificate=.*; expected a certificate .* as tls_key=, its key"),
            ({"tls_key": __file__}, r"^tls_key=.*; give tls_certificate= too"),
        ):
            with pytest.raises(ValueError, match=named):
                sw.StoreServer(sw.Store(SPEC, capacity=10), "127.0.0.1:0", **given)  # type: ignore[arg-type]
        for authority, named in (("/none.pem", "No such file"), (__file__, "expected a PEM file of certificates")):
            with pytest.raises(ValueError, match=f"^tls_authority={authority}: .*{named}"):
                sw.connect(address, tls_authority=authority)
        for own in (-1, 1.5, True):
            with pytest.raises(ValueError, match="own_lanes"):
                sw.StoreServer(sw.Store(SPEC, capacity=10), "127.0.0.1:0", own_lanes=own)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"this store has steps of .*connect"):
            sw.Cluster(sw.Spec(obs=sw.Field((2,), "uint8"), action=sw.Field((), "int64")), address=address)
        with sw.connect(address) as cluster:
            with pytest.raises(ValueError, match="started elsewhere; resize them there"):
                cluster.resize(shards=2)
            view = cluster.transitions()
            play(store, 1, 30)
            assert len(view.sample(4)) == 4
            store.close()
            assert not Path(address.removeprefix("unix:")).exists() and server.address == address
            with pytest.raises((ShardLostError, sw.EmptyError)):
                view.sample(4)
        with pytest.raises(ValueError, match="store: closed"):
            sw.StoreServer(store, address)


def test_a_path_is_the_address_of_a_unix_socket(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=1000) as store, sw.StoreServer(store, tmp_path / "socket") as server:
        assert server.address == f"unix:{tmp_path / 'socket'}"
        with pytest.raises(OSError, match="or a server of this one"):
            sw.StoreServer(sw.Store(SPEC, capacity=10), tmp_path / "socket")


def test_a_server_leaves_a_socket_that_another_has_put_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with sw.Store(SPEC, capacity=1000) as store, sw.Store(SPEC, capacity=1000) as other:
        with sw.StoreServer(store, path):
            path.rename(tmp_path / "before")  # so that its node is not used again
            later = sw.StoreServer(other, path)
        assert path.exists()
        later.close()
        assert not path.exists()


def test_lanes_of_writers_and_of_the_process(tmp_path: Path) -> None:
    with (
        sw.Store(SPEC, capacity=10_000) as store,
        sw.StoreServer(store, "127.0.0.1:0", own_lanes=4) as server,
        sw.connect(server.address) as cluster,
    ):
        writer = cluster.writer(lanes=2)
        play(writer, 2, 20)
        writer.close()
        play(store, 4, 20)
        assert store.lane_steps.tolist() == [20] * 6
        with pytest.raises(ValueError, match=r"lane 4 is that of writer .*own_lanes="):
            play(store, 5, 1, 20)
        assert store.lane_steps.tolist() == [20] * 6
        play(store, 4, 1, 20)


def test_a_lane_of_a_writer_that_sent_nothing_yet_is_refused_to_the_process() -> None:
    with (
        sw.Store(SPEC, capacity=1000) as store,
        sw.StoreServer(store, "127.0.0.1:0") as server,
        sw.connect(server.address) as cluster,
    ):
        cluster.writer(lanes=1, name="first")
        with pytest.raises(ValueError, match="lane 0 is that of writer 'first'"):
            store.append(**{name: value[0] for name, value in rows(1, 0).items()})


PLAIN = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))


def test_no_verb_of_the_process_reaches_a_lane_of_a_writer() -> None:
    """Their segments would count as duplicates of each other, and be dropped though they were acknowledged."""
    with (
        sw.Store(PLAIN, capacity=10_000) as store,
        sw.StoreServer(store, "127.0.0.1:0") as server,
        sw.connect(server.address) as cluster,
    ):
        remote = cluster.writer(name="remote", segment_steps=32)
        no = np.zeros(1, bool)
        step: dict[str, Any] = {"action": 0, "reward": 1.0, "terminated": False, "truncated": False}
        episode: dict[str, Any] = {
            "action": np.zeros(3, int),
            "reward": np.ones(3),
            "terminated": True,
            "truncated": False,
        }
        store.append(obs=np.zeros(4), lane=5, **step)  # opens the lanes before it
        pipe = sw.SegmentWriter(PLAIN, 1, lambda one: store.add_segment(one.packed, one.dictionaries), segment_steps=32)

        def extend(to: Any, steps: int) -> None:
            for number in range(steps):
                obs = np.full((1, 4), number, np.float32)
                to.extend(obs=obs, action=[number], reward=np.ones(1), terminated=no, truncated=no)

        for refused in (
            lambda: extend(pipe, 100),
            lambda: store.append(obs=np.zeros(4), **step),
            lambda: store.add_episode(obs=np.zeros((4, 4)), **episode),
            lambda: store.annotate(0, {"seed": 1}),
            lambda: store.annotate(0, {"seed": 1}, episode=True),
        ):
            with pytest.raises(ValueError, match=r"(add_segment|extend|annotate): lane 0 is that of writer 'remote'"):
                refused()
        store.annotate(5, {"seed": 1})
        extend(remote, 97)
        remote.flush()
        assert remote.delivery.acknowledged == 96 and store.lane_steps.tolist() == [96, 0, 0, 0, 0, 1]


def test_writers_go_on_with_a_store_that_is_served_again(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'socket'}"
    with sw.Store(SPEC, capacity=10_000, segment_steps=4) as store:
        first = sw.StoreServer(store, address)
        cluster = sw.connect(address)
        writer = cluster.writer(lanes=2, name="actor")
        play(writer, 2, 22)
        first.close()
        first.close()
        play(writer, 2, 22, 22)  # kept until the store is there again
        with sw.StoreServer(store, address):
            writer.flush()
            play(writer, 2, 16, 44)
            writer.close()
            assert store.lane_steps.tolist() == [60, 60]
            view = store.transitions()
            batch = view.fetch(view.sampleable_ids())
            assert len(batch) == 120 and np.array_equal(batch.action, batch.step) and batch.terminated.sum() == 12
        cluster.close()


@contextlib.contextmanager
def two_views(address: str) -> Iterator[tuple[sw.Store, sw.StoreServer, sw.Cluster, list[Any]]]:
    """Serve a store of 30 steps; yield it, its server, a client, and two views of it, the second one with a limiter."""
    with sw.Store(SPEC, capacity=1000) as store, sw.StoreServer(store, address) as server:
        play(store, 1, 30)
        with sw.connect(address) as cluster:
            limited = cluster.transitions(name="limited", limiter=sw.MinSize(5))
            yield store, server, cluster, [cluster.transitions(), limited]


def test_clients_of_a_closed_server_say_so_at_once_and_go_on_when_it_is_back(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'socket'}"
    with two_views(address) as (store, server, cluster, (view, limited)):
        stream = view.stream(4)
        assert len(next(stream)) == len(view.sample(4)) == len(limited.sample(4)) == 4
        server.close()
        for _ in range(2):
            for draw in (lambda: next(stream), lambda: view.sample(4), lambda: limited.sample(4)):
                with pytest.raises(ShardLostError, match="no shard can be reached: unix:"):
                    draw()
        for length in (lambda: len(view), lambda: len(cluster), cluster.stats):
            with pytest.raises(ShardLostError, match="unix:"):
                length()
        with sw.StoreServer(store, address):
            time.sleep(0.3)  # a lost shard is tried again after 0.2 s
            assert len(next(stream)) == len(view.sample(4)) == len(limited.sample(4)) == 4


def test_clients_wait_for_a_server_as_long_as_they_are_told(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'socket'}"
    with two_views(address) as (store, server, cluster, (view, limited)):
        once = cluster.transitions(name="once", max_times_sampled=1)
        stream, made = view.stream(4, timeout=30), list[sw.StoreServer]()
        draws: list[Callable[[], Any]] = [partial(one.sample, 4, timeout=30) for one in (view, limited, once)]
        draws += [partial(next, stream), partial(limited.wait, 4, timeout=30)]
        for draw in draws:
            draw()
            server.close()
            with pytest.raises(ShardLostError, match="no shard can be reached: unix:"):
                view.sample(4, timeout=0.5)
            later = threading.Timer(0.5, lambda: made.append(sw.StoreServer(store, address)))
            later.start()
            draw()
            later.join()
            server = made.pop()
        server.close()


def test_closing_waits_for_requests_and_frees_the_views_of_clients(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=100_000) as store:
        play(store, 1, 30)
        before = store.stats()["bytes"]
        server = sw.StoreServer(store, f"unix:{tmp_path / 'socket'}")
        cluster = sw.connect(server.address)
        failed: list[BaseException] = []

        def learn() -> None:
            try:
                view = cluster.transitions(sampler=sw.Prioritized())
                while True:
                    batch = view.sample(64)
                    view.update_priorities(batch, np.ones(64))
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=learn)
        thread.start()
        time.sleep(0.2)
        server.close()
        thread.join(60)
        assert isinstance(failed[0], (ShardLostError, sw.EmptyError))
        cluster.close()
        gc.collect()
        after = store.stats()["bytes"]
        assert after["connections"] == 0 and after["samplers"] <= before["samplers"]
        play(store, 1, 30, 30)


def test_forks_leave_the_server_to_the_parent(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=1000) as store, sw.StoreServer(store, f"unix:{tmp_path / 'socket'}") as server:
        play(store, 1, 30)
        with sw.connect(server.address) as cluster:
            view = cluster.transitions()
            view.sample(4)

            def child() -> None:
                server.close()
                assert len(view.sample(4)) == 4  # over a connection of its own
                assert len(store.transitions(name="own").sample(4)) == 4

            assert in_fork(child) == 0
            assert len(view.sample(4)) == 4 and Path(server.address.removeprefix("unix:")).exists()


ENDS = """
import sys, threading
import numpy as np, sharpwave as sw
spec = sw.Spec(obs=sw.Field((40,), "uint8"), action=sw.Field((), "int64"))
store = sw.Store(spec, capacity=1000)
for k in range(50):
    store.append(obs=np.zeros(40, np.uint8), action=k, reward=0.0, terminated=k % 10 == 9, truncated=False)
sw.StoreServer(store, "127.0.0.1:0", f"unix:{sys.argv[1]}")  # nothing else holds it
del store

def learn(cluster):
    view = cluster.transitions(name=str(threading.get_ident()))
    while True:
        view.sample(64)

for _ in range(4):
    threading.Thread(target=learn, args=(sw.connect(f"unix:{sys.argv[1]}"),), daemon=True).start()
sw.connect(f"unix:{sys.argv[1]}").transitions().sample(8)
print("end")
"""


def test_a_process_that_ends_without_closing_ends_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    done = subprocess.run([sys.executable, "-c", ENDS, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "end\n", done.stderr
    assert not path.exists()


def test_a_version_is_served_and_not_written_to(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=1000, disk=tmp_path / "store") as store:
        play(store, 1, 30)
        store.snapshot("paper")
    with (
        sw.Store.open(tmp_path / "store", version="paper") as version,
        sw.StoreServer(version, "127.0.0.1:0") as server,
        sw.connect(server.address) as cluster,
    ):
        assert len(cluster.transitions().sample(8)) == 8
        with pytest.raises(ValueError, match="version 'paper'"):
            cluster.delete(where="length > 1")


def test_closing_wakes_a_put_that_waits_for_a_limiter_of_the_owner(tmp_path: Path) -> None:
    """The segment stays the writer's, which has it sent once the store is served again."""
    address = f"unix:{tmp_path / 'socket'}"
    with sw.Store(SPEC, capacity=1000, segment_steps=8) as store:
        view = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(20))
        server = sw.StoreServer(store, address)
        with sw.connect(address) as cluster:
            writer = cluster.writer(name="actor")
            play(writer, 1, 60)
            end = time.monotonic() + 30
            while not store._gate.waiting and time.monotonic() < end:
                time.sleep(0.01)
            assert store._gate.waiting == 1
            server.close()
            assert not store._gate.waiting
            with sw.StoreServer(store, address):
                closing = threading.Thread(target=writer.close)
                closing.start()
                seen = list[int]()
                while len(seen) < 40:
                    seen += view.sample(4, timeout=30).action.tolist()
                closing.join()
                assert seen == [*range(40)]
