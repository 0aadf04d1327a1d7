"""Episodes of stores that are served, read and changed by clients, against those of the stores themselves."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.serve import remote_episodes, shard_episodes
from sharpwave.serve.link import ShardLostError
from sharpwave.serve.wire import Frame, Request, WireError
from tests.serve.serving import Kind, Served, served
from tests.serve.test_late_values import killed, written
from tests.support.examples import by_day

SPEC = sw.Spec(
    obs={"front": sw.Field((5, 4), "uint8", stack=2), "task": sw.Field(str)},
    action=sw.Field((), "int64"),
    tokens=sw.Field((None, 2), "int32"),
    note=sw.Field(bytes, shared=True),
    core=sw.Field((3,), "float32", every=4),
    flag=sw.Field((), "bool"),
)
PLAIN = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"))


def filled(there: Served, episodes: int = 5) -> None:
    rng = np.random.default_rng(0)
    for store in there.stores:
        for k in range(episodes):
            steps = 1 + 5 * k
            store.annotate(k % 2, {"k": k, "task": "push"}, episode=True)
            store.add_episode(
                lane=k % 2,
                obs={"front": rng.integers(0, 256, (steps + 1, 5, 4), np.uint8), "task": [f"do {k}"] * (steps + 1)},
                action=rng.integers(0, 9, steps), reward=rng.normal(size=steps), terminated=k % 3 == 0,
                truncated=k % 3 != 0, tokens=[rng.integers(0, 99, (int(n), 2)) for n in rng.integers(0, 6, steps)],
                note=[bytes([k]) * (t % 4) for t in range(steps)], core=rng.random((steps, 3)),
                flag=rng.random(steps) < 0.5,
            )  # fmt: skip


def same(one: Any, other: Any) -> None:
    """Compare two episodes in all that they have."""
    for name in ("lane", "first_step", "length", "total_reward", "begun", "ended", "whole", "info", "columns"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("reward", "terminated", "truncated", "ids", "action"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    arrays = [(one.obs[name], other.obs[name]) for name in one.obs]
    for left, right in [*arrays, *((one[name], other[name]) for name in one.columns)]:
        if isinstance(left, sw.Ragged):
            assert left.text == right.text
            np.testing.assert_array_equal(left.offsets, right.offsets)
            left, right = left.values, right.values
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    ("kind", "nbytes"),
    [
        ("unix", None),
        ("tcp", 400),  # a few steps
        pytest.param("tcp", 100, marks=pytest.mark.nightly),  # a step or none
        pytest.param("unix", 3000, marks=pytest.mark.nightly),
    ],
)
def test_episodes_are_those_of_the_stores(
    kind: Kind, nbytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a reply holds some steps of one, and where a shard lacks a column."""
    if nbytes is not None:
        monkeypatch.setattr(shard_episodes, "REPLY_BYTES", nbytes)
        monkeypatch.setattr(remote_episodes, "AHEAD_BYTES", nbytes)
    with served(2, tmp_path, kind, spec=SPEC) as there:
        filled(there)
        there.cluster.add_column("x", sw.Field((2,), "float64"))
        batch = there.cluster.transitions().sample(64)
        there.cluster.write_column("x", batch, np.random.default_rng(1).random((64, 2)))
        for order in ("oldest", "newest", "return", "length") if nbytes is None else ("oldest", "length"):
            found = there.cluster.episodes(order=order)
            own = [(store, one) for store in there.stores for one in store.episodes()]
            age = {id(one): int(store.lane_steps[one.lane]) - one.first_step - one.length for store, one in own}
            keys: dict[str, dict[int, float]] = {
                "oldest": {key: -one for key, one in age.items()},
                "newest": {**age},
                "return": {id(one): -one.total_reward for _, one in own},
                "length": {id(one): -one.length for _, one in own},
            }
            key = keys[order]
            expected = [one for _, one in sorted(own, key=lambda pair: key[id(pair[1])])]
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                same(one, other)
            same(found[3:][1], expected[4])
        some = there.cluster.episodes(where="length > 10 and task = 'push'")
        assert sorted(one.length for one in some) == [11, 11, 16, 16, 21, 21]
        there.stores[1].drop_column("x")
        there.cluster.add_column("y", sw.Field((), "int8"))
        there.stores[0].drop_column("y")
        assert not any(one["y.written"].any() or one["y"].any() for one in there.cluster.episodes())
        last = there.cluster.episodes()[-1]
        values = np.arange(last.length)
        assert there.cluster.write_column("y", last.ids, values, last.shards) == last.length
        assert last["y"].tolist() == values.tolist()

        def made(obs: Any, tokens: Any, note: Any, core: Any, flag: Any, reward: Any, truncated: Any, x: Any) -> Any:
            texts = [len(one) for one in obs["task"]][: len(reward)]
            return (
                np.array([len(one) + len(other) for one, other in zip(tokens, note, strict=True)]) + texts + flag
                + core.sum(1) + reward + truncated + x[:, 0] + obs["front"][: len(reward)].sum((1, 2))
            )  # fmt: skip

        needs = ["obs", "tokens", "note", "core", "flag", "reward", "truncated", "x"]
        assert there.cluster.derive("all", made, needs, field=sw.Field((), "float64")) == len(there.cluster)
        whole = there.cluster.derive(
            "same", lambda e: made(*(getattr(e, n) if n in ("obs", "reward", "truncated") else e[n] for n in needs)),
            field=sw.Field((), "float64"),
        )  # fmt: skip
        assert whole == len(there.cluster)
        for one in there.cluster.episodes():
            arrays = [getattr(one, n) if n in ("obs", "reward", "truncated") else one[n] for n in needs]
            assert one["all"].tolist() == one["same"].tolist() == made(*arrays).tolist()


def to_go(reward: Any) -> Any:
    return np.cumsum(reward[::-1])[::-1]


@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
def test_derive_goes_on_where_it_was(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error of the function, and where steps arrived; with all values, and of unfinished episodes."""
    monkeypatch.setattr(remote_episodes, "REQUEST_BYTES", 500)
    monkeypatch.setattr(remote_episodes, "AHEAD_BYTES", 300)
    with served(2, tmp_path, kind, spec=SPEC) as there:
        filled(there)
        calls: list[int] = []

        def fails(reward: Any) -> Any:
            calls.append(len(reward))
            if len(calls) == 7:
                raise ZeroDivisionError("here")
            return to_go(reward)

        with pytest.raises(ZeroDivisionError, match="here"):
            there.cluster.derive("x", fails, ["reward"])
        done = sum(calls[:6])
        assert sum(int(one["x.written"].sum()) for one in there.cluster.episodes()) == done
        assert there.cluster.derive("x", to_go, ["reward"]) == len(there.cluster) - done
        assert there.cluster.derive("x", to_go, ["reward"]) == 0
        assert there.cluster.derive("x", lambda reward: -reward, ["reward"], again=True, where="length > 10") > 0
        for one in there.cluster.episodes():
            expected = -one.reward if one.length > 10 else to_go(one.reward)
            np.testing.assert_allclose(one["x"], expected, rtol=1e-5)
        shown: list[tuple[int, int]] = []
        there.cluster.derive("y", to_go, ["reward"], progress=lambda *numbers: shown.append(numbers))
        assert shown[-1] == (len(there.cluster), len(there.cluster))


def test_derive_passes_over_episodes_that_are_deleted_meanwhile(tmp_path: Path) -> None:
    with served(2, tmp_path, spec=SPEC) as there:
        filled(there)

        def made(reward: Any) -> Any:
            if len(reward) == 11:
                there.stores[1].delete(where="length = 16 or length = 21")
            return to_go(reward)

        assert there.cluster.derive("x", made, ["reward"]) == 2 * sum(1 + 5 * k for k in range(5)) - 37
        assert all(one["x.written"].all() for one in there.cluster.episodes())


def test_deleted_by_episodes(tmp_path: Path) -> None:
    """Of several shards; the running one is refused, and so are those of another life of a shard, or of a store."""
    with served(2, tmp_path, spec=PLAIN) as there, sw.Store(PLAIN, capacity=100) as own:
        writers = [there.cluster.writer(shard=k) for k in range(2)]
        for step in range(40):
            for writer in writers:
                ends = np.array([step % 10 == 9 and step < 39])
                obs = np.zeros((1, 3))
                writer.extend(obs=obs, action=[step], reward=[1], terminated=ends, truncated=[False], final_obs=obs)
        for writer in writers:
            writer.flush()
        found = there.cluster.episodes()
        view = there.cluster.transitions()
        view.sample(8, lookahead=2)
        assert there.cluster.delete(episodes=found[0]) == 10
        assert there.cluster.delete(episodes=(one for one in found if one.first_step == 20)) == 20
        left = {(one.lane, one.first_step, one.length) for store in there.stores for one in store.episodes()}
        assert {(first, length) for _, first, length in left} == {(0, 10), (10, 10), (30, 2)}
        for _ in range(6):
            assert not {*view.sample(8).action.tolist()} & {*range(20, 30)}
        running = [one for one in found if one.first_step == 30]
        for some in (running, [*found[:2], running[0]]):
            with pytest.raises(ValueError, match="of lane 0 had not ended"):
                there.cluster.delete(episodes=some)
        own.add_episode(obs=np.zeros((4, 3)), action=np.arange(3), reward=np.ones(3), terminated=True)
        with pytest.raises(ValueError, match="of another store or cluster"):
            there.cluster.delete(episodes=own.episodes())
        with pytest.raises(ValueError, match="of another store"):
            own.delete(episodes=found)
        there.shards[0].incarnation += 1
        for link in there.cluster.links:
            link.close()
        ended = [one for one in found if one.ended]
        for call in (lambda: there.cluster.delete(episodes=ended), lambda: [one.action for one in found]):
            with pytest.raises(ShardLostError, match="was started again since episodes"):
                call()
        assert {(one.lane, one.first_step, one.length) for store in there.stores for one in store.episodes()} == left


def test_derive_survives_kills_of_shards_and_of_its_client(tmp_path: Path) -> None:
    """A kill costs at most what was not sent or flushed; another call computes it."""
    with sw.Cluster(PLAIN, shards=2, capacity=4000, segment_steps=8, disk=tmp_path / "d") as cluster:
        for shard in range(2):
            written(cluster, 1000 * shard, 300, shard)
        steps = len(cluster)

        def killing(action: Any) -> Any:
            if int(action[0]) == 1100:
                killed(cluster, 1)
            return action

        with pytest.raises(ShardLostError, match="was started again"):
            cluster.derive("x", killing, ["action"])
        assert 0 < cluster.derive("x", lambda action: action, ["action"]) <= steps
        child = os.fork()
        if not child:  # dies in the middle of another column
            with suppress(BaseException):

                def dies(action: Any) -> Any:
                    if int(action[0]) == 1100:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return action

                cluster.derive("y", dies, ["action"])
            os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        assert 0 < cluster.derive("y", lambda action: action, ["action"]) <= steps
        assert cluster.delete(episodes=[one for one in cluster.episodes() if one.first_step % 2]) > 0
        left = sorted(one.action.tolist() for one in cluster.episodes())
        for shard in range(2):
            killed(cluster, shard)  # after the flush at the end of derive
        assert left == sorted(one.action.tolist() for one in cluster.episodes())
        for one in cluster.episodes():
            for name in ("x", "y"):
                assert one[name + ".written"].all() and one[name].tolist() == one.action.tolist()


def test_malformed_requests_are_refused(tmp_path: Path) -> None:
    with served(1, tmp_path, spec=SPEC) as there:
        filled(there)
        shard = there.shards[0]
        table = there.stores[0].episodes()._table
        good = {"first": table.id[:2], "count": table.length[:2], "ended": np.ones(2, bool)}
        places = {"lane": table.lane[:2], "first_step": table.first_step[:2]}
        for parts in (
            {}, good | {"first": good["first"][:1]}, good | {"count": np.array([0, 1])},
            good | {"count": np.array([1 << 60, 1])}, good | {"first": np.array([-1, 0])},
            good | {"first": np.array([(1 << 32) - 1, 0])}, good | {"ended": np.ones(2)}, good | {"first": b"12"},
        ):  # fmt: skip
            for request in (Request.READ_EPISODES, Request.EPISODE_INFO, Request.DELETE):
                with pytest.raises(WireError):
                    frame = Frame(request, 1, {"arrays": [["action", False]]}, {**places, **parts})
                    shard.answer(Any, frame)  # type: ignore[arg-type]
        for arrays in (None, "action", [["action"]], [["action", 1]], [[1, False]]):
            with pytest.raises(WireError):
                shard.answer(Any, Frame(Request.READ_EPISODES, 1, {"arrays": arrays}, dict(good)))  # type: ignore[arg-type]
        for wrong in ({}, {"lane": np.array([0, 9])}, {"lane": np.array([-1, 0])}):
            with pytest.raises(WireError):
                parts = good | {"first_step": table.first_step[:2]} | wrong
                shard.answer(Any, Frame(Request.DELETE, 1, {}, parts))  # type: ignore[arg-type]
        with pytest.raises(WireError):
            shard.answer(Any, Frame(Request.EPISODES, 1, {"where": 3}))  # type: ignore[arg-type]
        assert len(there.stores[0].episodes()) == 5


def test_malformed_replies_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(1, tmp_path, spec=SPEC) as there:
        filled(there)
        one = there.cluster.episodes()[-1]
        answer = there.shards[0].answer
        change: dict[str, Any] = {}

        def other(client: Any, frame: Frame) -> Any:
            head, parts = answer(client, frame)
            return head, {name: part for name, part in (parts | change).items() if part is not None}

        monkeypatch.setattr(there.shards[0], "answer", other)
        for name, wrong in (
            ("action", {"steps": None}), ("action", {"steps": np.array([0])}), ("action", {"steps": np.array([999])}),
            ("action", {"steps": np.array([1, 1])}), ("action", {"0": np.zeros((one.length, 3), np.uint8)}),
            ("action", {"0": np.zeros((one.length - 1, 8), np.uint8)}), ("action", {"0": b"12345678"}),
            ("tokens", {"lengths:0": np.zeros(one.length)}), ("tokens", {"lengths:0": np.zeros(one.length, np.int64)}),
            ("tokens", {"values:0": np.zeros(4, np.uint8)}), ("tokens", {"lengths:0": None}),
            ("obs.task", {"values:0": np.full(one["obs.task"].values.nbytes, 255, np.uint8)}),
        ):  # fmt: skip
            change.clear()
            change.update(wrong)
            with pytest.raises(WireError):
                _ = one[name]
        for wrong in ({"lane": None}, {"age": np.zeros(3, np.int64)}, {"length": np.zeros(5, np.int64)}):
            change.clear()
            change.update(wrong)
            with pytest.raises(WireError):
                there.cluster.episodes()
        change.clear()
        assert one.length == len(one.action)
