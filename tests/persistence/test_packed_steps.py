"""Flags and rewards are packed on disk: they come back, bit by bit, in every way that a store is left and opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.codecs.packed import PackedNumbers
from sharpwave.format import segment
from sharpwave.format.region import ALIGNMENT, FIRST, RECORD, SEGMENT, read_region
from sharpwave.log.remote_segments import sealed_after, settle, take_in
from sharpwave.offline.folder_check import check
from tests.format.test_versions import WRITE, unpacked, with_crc
from tests.support.examples import examples
from tests.support.faults import killed

SPEC = sw.Spec(obs=sw.Field((2,), "int32", stack=2), action=sw.Field((), "int64"))
STEPS = 64
REWARDS = {
    "zero": [0.0],
    "few": [0.0, 1.0, -1.0, -0.0],
    "any": np.random.default_rng(0).standard_normal(500).astype(np.float32).tolist(),
    "subnormal": [1e-42, 3e38, -3e38],
}
Played = list[tuple[int, float, bool, bool]]


@st.composite
def played(draw: st.DrawFn) -> Played:
    """Action, reward, terminated and truncated of a lane's steps."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = REWARDS[draw(st.sampled_from(list(REWARDS)))]
    often = draw(st.sampled_from([0.0, 0.01, 0.3]))
    ends = rng.random(draw(st.integers(1, 300))) < often
    which = rng.random(len(ends)) < 0.5
    return [
        (i, float(np.float32(rng.choice(values))), bool(end and one), bool(end and not one))
        for i, (end, one) in enumerate(zip(ends, which, strict=True))
    ]


def append(store: sw.Store, steps: Played) -> None:
    for action, reward, terminated, truncated in steps:
        final = [-1, action] if terminated or truncated else None
        store.append(
            obs=[0, action], action=action, reward=reward, terminated=terminated, truncated=truncated, final_obs=final
        )


def steps_of(store: sw.Store) -> Played:
    """Return what a store has of its lane."""
    found: Played = []
    for one in store.episodes():
        assert one.obs[: len(one.action), 1].tolist() == one.action.tolist()
        parts = (one.action.tolist(), one.reward.tolist(), one.terminated.tolist(), one.truncated.tolist())
        found += zip(*parts, strict=True)
    return found


def same(found: Played, expected: Played) -> None:
    assert [one[0] for one in found] == [one[0] for one in expected]
    rewards = [np.array([one[1] for one in some], np.float32) for some in (found, expected)]
    assert rewards[0].tobytes() == rewards[1].tobytes()
    assert [one[2:] for one in found] == [one[2:] for one in expected]


def codecs_of(folder: Path) -> set[tuple[int, int]]:
    """Return the codecs of flags and rewards of all segments on disk."""
    found = set()
    for path in folder.rglob("*.region"):
        region, records, _ = read_region(path)
        assert region is not None
        region.close()
        content = path.read_bytes()
        for one in records:
            if one.kind == SEGMENT:
                header = segment.parse(content[one.offset : one.offset + one.nbytes], SPEC)
                found.add((header.placed[0].codec, header.placed[1].codec))
    return found


@settings(max_examples=examples(40), deadline=None)
@given(first=played(), second=played())
def test_every_step_comes_back(first: Played, second: Played, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("packed")
    store = sw.Store(SPEC, capacity=1000, disk=folder / "s", segment_steps=STEPS)
    append(store, first)
    same(steps_of(store), first)
    store.checkpoint(folder / "c")
    store.flush()
    store.close()
    # A step without a successor is dropped; the one before it is truncated.
    kept = list(first)
    if not any(kept[-1][2:]):
        kept.pop()
        if kept and not any(kept[-1][2:]):
            kept[-1] = (*kept[-1][:3], True)
    with sw.Store.open(folder / "s") as again:
        same(steps_of(again), kept)
        append(again, second)
        same(steps_of(again), kept + second)
        again.flush()
    assert not check(folder / "s").damages
    with sw.Store.open(folder / "c", disk=folder / "d") as copy:
        same(steps_of(copy), first)
        append(copy, second)
        same(steps_of(copy), first + second)
        copy.checkpoint(folder / "e")
    with sw.Store.open(folder / "e") as last:
        same(steps_of(last), first + second)


@pytest.mark.parametrize("fields", [None, ("action",)])
def test_an_episode_of_another_writer_is_truncated_where_it_stops(fields: Any, tmp_path: Path) -> None:
    """The last segment is in memory when its packed flags grow, and is written again."""
    wide = sw.Spec(obs=sw.Field((512,), "uint8"), action=sw.Field((), "int64"))
    rng, count = np.random.default_rng(0), 4 * STEPS
    obs = rng.integers(0, 256, (count + 1, 512), np.uint8)
    with (
        sw.Store(wide, capacity=1000, segment_steps=STEPS) as store,
        sw.Store(wide, capacity=1000, disk=tmp_path / "s", segment_steps=STEPS) as other,
    ):
        for i in range(count + 1):
            store.append(obs=obs[i], action=i, reward=0.0, terminated=False, truncated=False)
        for one in sealed_after(store._log, np.zeros(1, np.int64), 1 << 20):
            take_in(other._log, *one)
        view = other.transitions()
        assert other._log.segment_cache is not None
        other._log.segment_cache.clear()
        batch = view.fetch(view.sampleable_ids(), fields=fields)  # the last step's return is not known yet
        assert len(batch.action) == count - 1 and not batch.truncated.any()
        assert other._log.index.resident[:4].all() == (fields is None)
        settle(other._log)
        other.append(obs=obs[0], action=0, reward=0.0, terminated=True, truncated=False, final_obs=obs[1])
        batch = view.fetch(np.sort(view.sampleable_ids()))
        assert batch.truncated.tolist() == [False] * (count - 1) + [True, False]
        assert np.array_equal(batch.obs, obs[[*range(count), 0]])
        assert np.array_equal(batch.next_obs, obs[[*range(1, count + 1), 1]])
    with sw.Store.open(tmp_path / "s") as again:
        view = again.transitions()
        batch = view.fetch(np.sort(view.sampleable_ids()), fields=("action",))
        assert batch.truncated.tolist() == [False] * (count - 1) + [True, False]
        assert batch.action.tolist() == [*range(count), 0]
    assert not check(tmp_path / "s").damages


def test_memory_takes_packed_steps(tmp_path: Path) -> None:
    steps = [(i, float(i % 3), i % 150 == 149, False) for i in range(640)]
    with sw.Store(SPEC, capacity=1000, segment_steps=STEPS) as store:
        append(store, steps)
        store.checkpoint(tmp_path / "c")
    (path,) = (tmp_path / "c").rglob("*.region")
    region, records, _ = read_region(path)
    assert region is not None
    region.close()
    content = path.read_bytes()
    out, before = bytearray(content[:FIRST]), len(content)
    for one in records:
        payload, head = content[one.offset : one.offset + one.nbytes], content[one.offset - RECORD.size : one.offset]
        if one.kind == SEGMENT:
            payload = segment.with_steps(payload, segment.parse(payload, SPEC), SPEC, packs=True)[0]
        out += with_crc(head[:8] + len(payload).to_bytes(8, "little") + head[16:-4]) + payload
        out += bytes(-len(out) % ALIGNMENT)
    out[:FIRST] = with_crc(bytes(out[:24]) + len(out).to_bytes(8, "little") + bytes(out[32 : FIRST - 4]))
    path.write_bytes(out)
    assert len(out) < before - 9 * 3 * STEPS
    with sw.Store.open(tmp_path / "c") as store:
        assert store.recovery is not None and not store.recovery.damages and store.stats()["bytes"]["arena_used"] > 0
        same(steps_of(store), steps)


@pytest.mark.parametrize("on_disk", [False, True], ids=["from memory", "from disk"])
@pytest.mark.parametrize("to_disk", [False, True], ids=["to memory", "to disk"])
def test_segments_move_between_memory_and_disk(on_disk: bool, to_disk: bool, tmp_path: Path) -> None:
    steps = [(i, float(i % 3), i % 150 == 149, False) for i in range(640)]
    places: list[Any] = [tmp_path / name if one else None for name, one in (("a", on_disk), ("b", to_disk))]
    with (
        sw.Store(SPEC, capacity=1000, disk=places[0], segment_steps=STEPS) as store,
        sw.Store(SPEC, capacity=1000, disk=places[1], segment_steps=STEPS) as other,
    ):
        append(store, steps)
        for one in sealed_after(store._log, np.zeros(1, np.int64), 1 << 20):
            take_in(other._log, *one)
        found = steps_of(other)
        assert len(found) >= 640 - STEPS
        same(found, steps[: len(found)])
    if to_disk:
        assert codecs_of(tmp_path / "b") == {(PackedNumbers.number, PackedNumbers.number)}


def test_an_episode_that_is_broken_off_is_truncated_on_disk_too(tmp_path: Path) -> None:
    """The packed flags of a segment without ends grow with the end."""
    steps = [(i, 1.0, False, False) for i in range(3 * STEPS)]
    store = sw.Store(SPEC, capacity=1000, disk=tmp_path / "s", segment_steps=STEPS)
    append(store, steps)
    append(store, [(3 * STEPS, 1.0, False, False)])  # seals the third segment; never flushed
    killed(store)
    with sw.Store.open(tmp_path / "s") as again:
        assert steps_of(again)[-1] == (*steps[-1][:3], True)
        view = again.transitions()
        batch = view.fetch(view.sampleable_ids())
        assert sorted(batch.action.tolist()) == list(range(3 * STEPS))
        assert np.array_equal(batch.obs[:, -1, 1], batch.action)
    with sw.Store.open(tmp_path / "s") as again:
        same(steps_of(again), [*steps[:-1], (*steps[-1][:3], True)])
    assert codecs_of(tmp_path / "s") == {(PackedNumbers.number, PackedNumbers.number)}
    assert not check(tmp_path / "s").damages


@pytest.mark.parametrize("name", ["flushed", "reservoir"])
def test_an_older_store_names_the_feature_once_it_goes_on(name: str, tmp_path: Path) -> None:
    folder = unpacked("v2", name, tmp_path)
    before = json.loads((folder / "store.json").read_text())["requires"]
    assert "packed steps" not in before
    with sw.Store.open(folder) as store:
        WRITE["play"](store, 400)
        store.flush()
    assert json.loads((folder / "store.json").read_text())["requires"] == [*before, "packed steps"]
    assert not check(folder).damages
    with sw.Store.open(folder) as store:
        assert store.recovery is not None and not store.recovery.damages and len(store)
