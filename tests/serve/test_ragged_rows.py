"""Rows of any length from writers elsewhere: a store or a cluster gives the written rows, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.serve.cut_batches import take_ragged
from sharpwave.serve.shard import Shard
from sharpwave.serve.wire import Frame, WireError
from tests.serve.serving import Kind, served
from tests.store.test_ragged_machine import FIELDS, rows_of, same
from tests.support.examples import by_day, examples

SPEC = sw.Spec(obs=sw.Field((40,), "uint8"), action=sw.Field((), "int64"), **FIELDS)
LENGTHS = st.one_of(st.just(0), st.integers(0, 40), st.integers(500, 3000))
Written = dict[tuple[int, int], dict[str, Any]]
"""Rows by lane and step."""


def write(writers: list[Any], lanes: int, lengths: list[int], first: int = 0, end: int = 7) -> Written:
    """Write as many steps as there are ``lengths`` into each lane of each writer, the last ending an episode;
    return the rows."""
    written: Written = {}
    for step, length in enumerate(lengths, first):
        of = [rows_of(FIELDS, [(length + 3 * lane + k) % 3001 for k in range(4)], step) for lane in range(lanes)]
        given: dict[str, Any] = {name: [rows[name] for rows in of] for name in FIELDS}
        ended = np.full(lanes, step % end == end - 1 or step == first + len(lengths) - 1)
        obs = np.arange(lanes, dtype=np.uint8)[:, None] + np.full((lanes, 40), step % 200, np.uint8)
        for writer in writers:
            writer.extend(
                obs=obs, action=np.full(lanes, step), reward=np.ones(lanes), terminated=ended, truncated=ended & False,
                final_obs=obs, **given,
            )  # fmt: skip
        written |= {(lane, step): rows for lane, rows in enumerate(of)}
    return written


def assert_rows(batch: Any, written: Written) -> None:
    """Compare a batch's rows of any length with those that were written."""
    for i, where in enumerate(zip(batch.lane.tolist(), batch.step.tolist(), strict=True)):
        for name in FIELDS:
            assert same(batch[name][i], written[where][name]), (where, name)


@settings(max_examples=examples(40), deadline=None)
@given(
    lanes=st.integers(1, 3),
    lengths=st.lists(LENGTHS, min_size=2, max_size=40),
    segment_steps=st.sampled_from([1, 5, 16]),
    seed=st.integers(0, 9),
)
def test_segments_bring_rows_of_any_length(lanes: int, lengths: list[int], segment_steps: int, seed: int) -> None:
    with sw.Store(SPEC, capacity=1000, segment_steps=16) as store, sw.Store(SPEC, capacity=1000) as local:

        def hand_over(sealed: sw.SealedSegment) -> None:
            store.add_segment(sealed.packed, sealed.dictionaries)

        writer = sw.SegmentWriter(SPEC, lanes, hand_over, segment_steps=segment_steps)
        written = write([writer, local], lanes, lengths, end=2 + seed)
        writer.seal()
        there, here = store.transitions(), local.transitions()
        ids = there.sampleable_ids()
        batch, whole = there.fetch(ids), here.fetch(here.sampleable_ids())
        assert_rows(batch, written)
        assert_rows(whole, written)
        assert len(ids) == len(here) == len(written)


def test_a_writer_refuses_rows_that_do_not_fit_and_takes_nothing() -> None:
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), blob=sw.Field(bytes, max_length=3))
    sealed: list[sw.SealedSegment] = []
    writer = sw.SegmentWriter(spec, 2, sealed.append, segment_steps=1)
    step: dict[str, Any] = {"obs": np.zeros((2, 2)), "action": [0, 0], "reward": [0, 0]}
    step |= {"terminated": [True, True], "truncated": [False, False]}
    wrong: list[tuple[Any, str]] = [
        ([b"abc", b"abcd"], "blob.*4.*at most 3"),
        ([b"abc"], "blob"),
        ([b"a", "a"], "blob"),
    ]
    for rows, why in wrong:
        with pytest.raises((ValueError, TypeError), match=why):
            writer.extend(**step, blob=rows)
    writer.extend(**step, blob=[b"abc", b""])
    writer.seal()
    assert sorted(one.lane for one in sealed) == [0, 1]


@pytest.mark.parametrize("kind", by_day("tcp", "unix"))
@pytest.mark.parametrize("view", ["transitions", "sequences"])
def test_clusters_draw_the_rows_of_their_stores(view: str, kind: Kind, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"n_step": 3} if view == "transitions" else {"length": 5, "burn_in": 3, "stride": 2}
    with served(2, tmp_path, kind, spec=SPEC) as there:
        local = sw.Store(SPEC, capacity=1000)
        play = np.random.default_rng(0).choice([0, 1, 7, 30, 900, 3000], 60).tolist()
        for shard in range(2):
            writer = there.cluster.writer(lanes=2, shard=shard)
            written = write([writer, local] if not shard else [writer], 2, play)
            writer.close()
        replay = getattr(there.cluster, view)(**settings)
        own = getattr(local, view)(**settings, name="own")
        drawn = [replay.sample(40), replay.sample(7), next(iter(replay.stream(16)))]
        drawn += [sw.Blend([(0.5, replay), (0.5, own)]).sample(32), replay.sample(40, lookahead=2)]
        for batch in drawn:
            if view == "transitions":
                assert_rows(batch, written)
                continue
            for b, t in zip(*np.nonzero(batch.mask), strict=True):
                at = int(batch.lane[b]), int(batch.step[b] + t - batch.burn_in)
                assert all(same(batch[name][b, t], written[at][name]) for name in FIELDS), (at, batch.step[b])
            assert not any(batch[name].lengths[~batch.mask].any() for name in FIELDS)


@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
def test_a_shard_lost_in_the_middle_costs_no_row(kind: Kind, tmp_path: Path) -> None:
    with served(2, tmp_path, kind, spec=SPEC) as there:
        for shard in range(2):
            writer = there.cluster.writer(lanes=1, shard=shard)
            written = write([writer], 1, [0, 5, 400, 30] * 10)
            writer.close()
        replay = there.cluster.transitions(max_times_sampled=5, sampler=sw.Uniform())
        assert_rows(replay.sample(32, lookahead=1), written)
        there.servers[1].close()
        batch = replay.sample(32)
        assert len(batch) == 32
        assert_rows(batch, written)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"values:text": None}, "without rows of text"),
        ({"lengths:text": np.array([1, 1, 1])}, "lengths"),
        ({"lengths:text": np.array([-1, 3])}, "do not fit"),
        ({"lengths:text": np.array([1, 2])}, "do not fit"),
        ({"lengths:text": np.array([1 << 62, 2 - (1 << 62)])}, "do not fit"),
        ({"values:text": np.zeros((2, 2), np.uint8)}, "do not fit"),
        ({"values:text": np.zeros(2, np.int8)}, "do not fit"),
        ({"values:text": np.full(2, 255, np.uint8)}, "UTF-8"),
    ],
)
def test_malformed_rows_of_a_message_are_refused(changed: dict[str, Any], why: str) -> None:
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), text=sw.Field(str))
    replay = sw.Store(spec, capacity=100).transitions()
    target = replay.source.lend(2)
    parts = {"values:text": np.frombuffer(b"ab", np.uint8), "lengths:text": np.array([0, 2])}
    take_ragged(target, Frame(0, 0, {}, parts), spec)
    assert target.batch["text"].strings() == ["", "ab"]
    with pytest.raises(WireError, match=why):
        take_ragged(target, Frame(0, 0, {}, parts | changed), spec)


BLOBS = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"), blob=sw.Field(bytes))


@pytest.mark.parametrize("kind", by_day("tcp", "unix"))
def test_a_draw_that_a_shard_has_no_room_for_costs_no_use(kind: Kind, tmp_path: Path) -> None:
    with served(1, tmp_path, kind, spec=BLOBS, ram=128 << 20) as there:
        writer = there.cluster.writer(lanes=1)
        ends = {"terminated": [False], "truncated": [False]}
        for step in range(301):
            blob = [bytes([step % 256]) * 100_000]
            writer.extend(obs=np.zeros((1, 3), np.float32), action=[step], reward=[0.0], blob=blob, **ends)
        writer.close()
        view = there.cluster.transitions(sampler=sw.Uniform(), max_times_sampled=1)
        count = len(view)
        with pytest.raises(MemoryError, match="a draw of 256 items takes 25,"):
            view.sample(256)
        assert len(view) == count
        given = [view.sample(20) for _ in range(count // 20)]
        drawn = [number for batch in given for number in batch.action.tolist()]
        assert len(set(drawn)) == len(drawn) == count // 20 * 20
        assert all(row == bytes([k % 256]) * 100_000 for b in given for k, row in zip(b.action, b["blob"], strict=True))


@pytest.mark.parametrize("kind", by_day("unix", "tcp"))
def test_a_reply_without_rows_is_refused(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(1, tmp_path, kind, spec=SPEC) as there:
        writer = there.cluster.writer(lanes=1)
        write([writer], 1, [1, 2, 3] * 20)
        writer.close()
        view, drawn = there.cluster.transitions(), Shard._drawn
        monkeypatch.setattr(Shard, "_drawn", lambda *given: drawn(*given) and ({}, {}))
        with pytest.raises(WireError):
            view.sample(8)
