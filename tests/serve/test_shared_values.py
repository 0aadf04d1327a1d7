"""Shared values through writers elsewhere, clusters and actors: shards have each once, learners have all of them."""

from __future__ import annotations

import json
import queue
import socket
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.codecs.shared import number_of
from sharpwave.log.remote_segments import Copy
from sharpwave.serve import cut_batches, segment_parts, wire
from sharpwave.serve.merging import merge
from sharpwave.serve.remote_writer import put_request
from sharpwave.serve.replica_content import append_once, message, segments_of
from sharpwave.serve.segment_parts import KEYS, LENGTHS, MAX_VALUES, VALUES
from sharpwave.serve.wire import Request
from sharpwave.training.actors.channels import Arrival, Inbox, Outbox
from tests.serve.serving import Kind, served
from tests.support.examples import by_day

SPEC = sw.Spec(
    obs=sw.Field((40,), "uint8"),
    action=sw.Field((), "int64"),
    prompt=sw.Field((None,), "int32", shared=True),
    task=sw.Field(str, shared=True),
    image=sw.Field((8, 8, 3), "uint8", shared=True),
)


def values_of(number: int) -> dict[str, Any]:
    """Return the values of step ``number``, of which 16 and 5 and 40 have the same."""
    prompt = np.random.default_rng(number // 16).integers(0, 50_000, 200).astype(np.int32)
    return {
        "prompt": prompt,
        "task": f"task {number // 5}" * 5,
        "image": np.full((8, 8, 3), number // 40 % 256, np.uint8),
    }


def write(writer: Any, lanes: int, steps: int) -> None:
    for number in range(steps):
        given: dict[str, Any] = {name: [value] * lanes for name, value in values_of(number).items()}
        given["image"] = np.stack(given["image"])
        obs, ended = np.full((lanes, 40), number % 256, np.uint8), np.full(lanes, number % 50 == 49)
        writer.extend(
            obs=obs, action=np.full(lanes, number), reward=np.ones(lanes), terminated=ended, truncated=ended & False,
            final_obs=obs, **given,
        )  # fmt: skip


def check(batch: Any) -> None:
    numbers = batch.action.tolist()
    for i, number in enumerate(numbers):
        for name, value in values_of(number).items():
            found = batch[name][i]
            assert found == value if isinstance(value, str) else (found == value).all() and found.dtype == value.dtype


@pytest.mark.parametrize("kind", by_day("tcp", "unix"))
def test_clusters_draw_the_values_of_their_stores(kind: Kind, tmp_path: Path) -> None:
    with served(2, tmp_path, kind, spec=SPEC) as there:
        local = sw.Store(SPEC, capacity=1000)
        for shard in range(2):
            writer = there.cluster.writer(lanes=2, shard=shard)
            write(writer, 2, 400)
            writer.close()
        write(local, 2, 400)
        for store in there.stores:
            assert len(store) == 800
            assert {name: one["values"] for name, one in store.stats()["shared"].items()} == {
                "prompt": 25, "task": 80, "image": 10,
            }  # fmt: skip
        replay, own = there.cluster.transitions(), local.transitions(name="own")
        check(replay.sample(64))
        check(next(iter(replay.stream(32, lookahead=1))))
        parts: list[Any] = [(0.5, replay), (0.5, own)]
        check(sw.Blend(parts).sample(32))
        batch = there.cluster.sequences(length=5, burn_in=3, stride=2).sample(32)
        for b, t in zip(*np.nonzero(batch.mask), strict=True):
            for name, value in values_of(int(batch.action[b, t])).items():
                assert np.array_equal(batch[name][b, t], value), name
        assert not batch["image"][~batch.mask].any() and not batch["prompt"].lengths[~batch.mask].any()


def test_a_writer_may_send_more_values_than_a_connection_remembers(tmp_path: Path) -> None:
    with served(1, tmp_path, spec=SPEC) as there:
        writer = there.cluster.writer(lanes=1)
        write(writer, 1, 6000)
        writer.close()
        assert there.stores[0].stats()["shared"]["task"]["values"] == 1200
        check(there.cluster.transitions().sample(64))


def test_stores_are_merged_with_their_values(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        with sw.Store(SPEC, capacity=1000, segment_steps=8) as store:
            write(store, 1, 100)
            paths.append(tmp_path / str(number))
            store.checkpoint(paths[-1])
    with sw.Store(SPEC, capacity=2000, segment_steps=8) as whole:
        merge(whole, paths, [{}, {}], None)
        assert len(whole) == 192 and whole.stats()["shared"]["prompt"]["values"] == 6  # open segments stay behind
        replay = whole.transitions()
        check(replay.fetch(replay.sampleable_ids()))


def test_actors_send_values_with_their_segments() -> None:
    ends = socket.socketpair()
    arrived: queue.Queue[Any] = queue.Queue()
    inbox, outbox, store = Inbox(ends[1], arrived, "actor"), Outbox(ends[0]), sw.Store(SPEC, capacity=1000)
    writer = sw.SegmentWriter(SPEC, 1, lambda one: outbox.send(Arrival(one.steps, 0, one)), segment_steps=8)
    write(writer, 1, 300)
    writer.seal()
    ends[0].close()
    while (message := arrived.get(timeout=30)[1]) is not None:
        store.add_segment(message.segment.packed, message.segment.dictionaries)
    inbox.close()
    assert len(store) == 300 and store.stats()["shared"]["prompt"]["values"] == 19
    replay = store.transitions()
    check(replay.fetch(replay.sampleable_ids()))


def test_a_segment_may_have_many_small_values(tmp_path: Path) -> None:
    """Their names would not fit into the head of a message."""
    tasks = {name: sw.Field(str, shared=True, max_length=64) for name in ("a", "b", "c")}
    spec, steps = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), **tasks), 4000
    with sw.Store(spec, capacity=100_000, segment_steps=4096) as local:
        sealed: list[sw.SealedSegment] = []
        writer = sw.SegmentWriter(spec, 1, sealed.append, segment_steps=4096)
        for k in range(steps):
            writer.extend(
                obs=np.zeros((1, 2)), action=[k], reward=[0.0], terminated=[k == steps - 1], truncated=[False],
                **{name: [f"task {name} {k}"] for name in tasks},
            )  # fmt: skip
        writer.seal()
        (one,) = sealed
        assert len(one.dictionaries) == 3 * steps
        head, parts = put_request(one, None, set())
        frame = sent(Request.PUT, head, parts)
        assert len(json.dumps(frame.head)) < 1000
        assert segment_parts.values_in(frame.parts) == one.dictionaries
        local.add_segment(one.packed, one.dictionaries)
        # A replica: this segment, and others with the same values.
        copies = [Copy(one.packed, one.dictionaries), Copy(one.packed, dict(list(one.dictionaries.items())[:5]))]
        frame = sent(Request.REPLICATE, *message(copies))
        assert len(frame.parts[VALUES]) == sum(map(len, one.dictionaries.values()))
        (found, _) = segments_of(frame)
        with sw.Store(spec, capacity=100_000, segment_steps=4096) as replica:
            append_once(replica, *found)
            assert len(replica) == steps and replica.stats()["shared"] == local.stats()["shared"]


def test_segments_of_a_message_share_its_values() -> None:
    """A shard's memory for a message does not grow with segments times values."""
    values = {number_of(bytes([*k.to_bytes(2), *bytes(14)])): bytes(8) for k in range(20_000)}
    peaks = []
    for segments in (1, 100):
        frame = sent(Request.REPLICATE, *message([Copy(b"", values)] * segments))
        tracemalloc.start()
        found = segments_of(frame)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(found) == segments and all(one.dictionaries == values for one in found)
    assert peaks[1] < 1.2 * peaks[0], peaks


def sent(kind: Request, head: dict[str, Any], parts: dict[str, Any]) -> wire.Frame:
    """Return a message as the other end of a connection receives it."""
    ends = socket.socketpair()
    with ends[0], ends[1]:
        thread = threading.Thread(target=wire.send, args=(ends[0], kind, 1, head, parts))
        thread.start()
        frame = wire.receive(ends[1])
        thread.join()
    assert frame is not None
    return frame


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({KEYS: b"1"}, "value_keys.*expected uint8"),
        ({KEYS: np.zeros((2, 15), np.uint8)}, "value_keys.*expected uint8"),
        ({KEYS: np.zeros((2, 16), np.int8)}, "value_keys.*expected uint8"),
        ({KEYS: np.zeros((3, 16), np.uint8)}, "value_bytes.*expected int64 .3."),
        ({LENGTHS: np.array([8.0, 10.0])}, "value_bytes.*expected int64"),
        ({LENGTHS: np.array([[8, 10]])}, "value_bytes.*expected int64"),
        ({LENGTHS: np.array([-8, 26])}, "value_bytes: from -8 to 26"),
        ({LENGTHS: np.array([7, 11])}, "value_bytes: from 7 to 11"),
        ({LENGTHS: np.array([1 << 62, 1 << 62])}, "value_bytes: from"),
        ({LENGTHS: np.array([9, 10])}, "values: 18 bytes, expected 19"),
        ({VALUES: np.zeros(18, np.uint8)}, "values: expected bytes"),
        ({VALUES: memoryview(bytes(20))}, "values: 20 bytes, expected 18"),
        ({KEYS: np.broadcast_to(np.zeros((1, 16), np.uint8), (MAX_VALUES + 1, 16))}, "1,048,577 shared values"),
    ],
)
def test_malformed_parts_of_values_are_refused(wrong: dict[str, Any], why: str) -> None:
    keys = np.arange(32, dtype=np.uint8).reshape(2, 16)
    right: dict[str, Any] = {KEYS: keys, LENGTHS: np.array([8, 10]), VALUES: memoryview(bytes(18))}
    assert [len(data) for data in segment_parts.values_in(right).values()] == [8, 10]
    with pytest.raises(wire.WireError, match=why):
        segment_parts.values_in(right | wrong)
    for name in (LENGTHS, VALUES):
        with pytest.raises(wire.WireError, match=name):
            segment_parts.values_in({other: part for other, part in right.items() if other != name})


def test_strangers_values_are_refused_and_change_nothing(tmp_path: Path) -> None:
    with served(1, tmp_path, spec=SPEC) as there:
        link = there.cluster.links[0]
        assert link is not None
        sealed: list[sw.SealedSegment] = []
        writer = sw.SegmentWriter(SPEC, 1, sealed.append, segment_steps=8)
        write(writer, 1, 9)
        head, parts = put_request(sealed[0], None, set())
        lengths = parts[LENGTHS]
        assert isinstance(lengths, np.ndarray)
        for wrong in (
            {VALUES: bytes(len(parts[VALUES]))},
            {KEYS: np.zeros((len(lengths), 16), np.uint8)},
            {LENGTHS: lengths[::-1].copy()},
        ):
            with pytest.raises((ValueError, RuntimeError, LookupError)):
                link.call(Request.PUT, head, parts | wrong)
            assert len(there.stores[0]) == 0 and not len(there.stores[0]._log.shared)
        link.call(Request.PUT, head, parts)
        assert len(there.stores[0]) == 8


PROMPTS = sw.Spec(
    obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"), prompt=sw.Field(str, shared=True),
    image=sw.Field((32, 32), "uint8", shared=True), answer=sw.Field((None,), "int32"),
)  # fmt: skip


@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
@pytest.mark.parametrize("view", ["transitions", "sequences"])
def test_a_reply_has_each_value_once(kind: Kind, view: str, tmp_path: Path) -> None:
    """Sixteen answers to each of sixteen prompts."""
    rng = np.random.default_rng(0)
    prompts = ["".join(map(chr, rng.integers(97, 123, 2000 + k))) for k in range(16)]
    images = rng.integers(0, 256, (16, 32, 32), np.uint8)
    with served(1, tmp_path, kind, spec=PROMPTS) as there:
        for k in range(256):
            there.stores[0].append(
                obs=np.zeros(4, np.float32), action=k, reward=k, terminated=True, truncated=False,
                prompt=prompts[k // 16], image=images[k // 16], answer=np.arange(k % 16),
            )  # fmt: skip
        made = there.cluster.transitions() if view == "transitions" else there.cluster.sequences(1)
        link = there.cluster.links[0]
        before = link.received_bytes
        batch = made.sample(256)
        received = link.received_bytes - before
        action = batch.action if view == "transitions" else batch.action[:, 0]
        assert batch["prompt"].strings() == (
            [prompts[k // 16] for k in action] if view == "transitions" else [[prompts[k // 16]] for k in action]
        )
        assert np.array_equal(batch["image"].reshape(256, 32, 32), images[action // 16])
        distinct = sum(map(len, prompts)) + (images.nbytes if kind == "tcp" else 0)
        assert distinct < received < distinct + 256 * 150, received


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"which:text": None}, "which of 2 distinct"),
        ({"which:text": np.array([0, 1])}, "which of 2 distinct"),
        ({"which:text": np.array([0, 1, 2])}, "0 to 2 of 2"),
        ({"which:text": np.array([0, -1, 1])}, "-1 to 1 of 2"),
        ({"which:text": np.array([0.0, 1, 1])}, "which of 2 distinct"),
        ({"lengths:text": np.array([1, 2])}, "do not fit"),
        ({"values:text": np.array([97, 255], np.uint8)}, "UTF-8"),
    ],
)
def test_malformed_distinct_rows_of_a_message_are_refused(
    changed: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), text=sw.Field(str, shared=True))
    target = sw.Store(spec, capacity=100).transitions().source.lend(3)
    parts = {"values:text": np.frombuffer(b"ab", np.uint8), "lengths:text": np.array([0, 2])}
    parts |= {"which:text": np.array([1, 0, 1], np.uint8)}
    cut_batches.take_ragged(target, wire.Frame(0, 0, {}, parts), spec)
    assert target.batch["text"].strings() == ["ab", "", "ab"]
    with pytest.raises(wire.WireError, match=why):
        cut_batches.take_ragged(target, wire.Frame(0, 0, {}, parts | changed), spec)
    monkeypatch.setattr(cut_batches, "MAX_BODY_BYTES", 3)
    with pytest.raises(wire.WireError, match="4 bytes, expected at most 3"):
        cut_batches.take_ragged(target, wire.Frame(0, 0, {}, parts), spec)
