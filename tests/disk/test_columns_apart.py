"""From disk, batches of some fields read these fields' bytes only; any mix of them and of whole segments is right."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.codecs.packed import PackedNumbers
from sharpwave.disk import segment_cache
from sharpwave.format import segment
from sharpwave.format.segment_header import COLUMN_CHECKSUMS
from sharpwave.log.remote_segments import sealed_after
from sharpwave.offline.folder_check import check
from tests.support.examples import examples
from tests.support.faults import killed

STEPS = 12_000
SPEC = sw.Spec(
    obs={"picture": sw.Field((512,), "uint8"), "place": sw.Field((2,), "float32")},
    action=sw.Field((), "int64"),
    token=sw.Field((), "int32"),
    text=sw.Field(str),
    core=sw.Field((4,), "float32", every=5),
)


def columns(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "picture": rng.integers(0, 256, (STEPS + 1, 512), np.uint8),
        "place": rng.standard_normal((STEPS + 1, 2)).astype(np.float32),
        "action": np.arange(STEPS),
        "token": rng.integers(0, 1000, STEPS).astype(np.int32),
        "text": np.array(["x" * int(n) + str(i) for i, n in enumerate(rng.integers(0, 90, STEPS))], object),
        "core": rng.standard_normal((STEPS, 4)).astype(np.float32),
    }


def filled(folder: Path, rng: np.random.Generator, **settings: Any) -> dict[str, Any]:
    """Fill a store with an episode, and close it."""
    found = columns(rng)
    with sw.Store(SPEC, capacity=20_000, disk=folder, seed=0, **settings) as store:
        store.add_episode(
            obs={name: found[name] for name in ("picture", "place")},
            action=found["action"],
            reward=np.zeros(STEPS),
            terminated=True,
            **{name: found[name] for name in ("token", "text", "core")},
        )
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A closed store, of which each test has a copy, and its columns."""
    folder = tmp_path_factory.mktemp("written") / "s"
    return folder, filled(folder, np.random.default_rng(0))


@pytest.fixture
def found(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> dict[str, Any]:
    """The columns of the store in the folder "s"."""
    shutil.copytree(written[0], tmp_path / "s")
    return written[1]


def verify(batch: Any, found: dict[str, Any], fields: tuple[str, ...] | None) -> None:
    steps = batch.step
    assert np.array_equal(steps, steps.astype(int))
    every = ("obs", "token", "text", "core", "action") if fields is None else fields
    for name in every:
        if name == "obs":
            for part in ("picture", "place"):
                assert np.array_equal(batch.obs[part], found[part][steps])
                assert np.array_equal(batch.next_obs[part], found[part][steps + 1])
        elif name == "reward":
            assert not batch.reward.any()
        elif name == "obs.place":
            assert np.array_equal(batch.obs["place"], found["place"][steps])
        elif name == "text":
            assert batch["text"].strings() == found["text"][steps].tolist()
        elif name == "core":
            assert np.array_equal(batch["core"], found["core"][steps // 5 * 5])
        elif name == "action":
            assert np.array_equal(batch.action, steps)
        else:
            assert np.array_equal(batch[name], found[name][steps])


SOME = [("token",), ("action", "token"), ("core",), ("text",), ("obs.place", "token"), ("obs",), None, ("reward",)]


def test_a_small_field_takes_a_small_part_of_the_bytes(found: dict[str, Any], tmp_path: Path) -> None:
    read = {}
    for fields in (None, ("obs",), ("token",), ("reward",)):
        with sw.Store.open(tmp_path / "s") as store:
            verify(store.transitions().sample(512, fields=fields), found, fields)
            read[fields] = store.stats()["disk"]["bytes_read"]
            store.transitions().sample(512, fields=fields)
            verify(store.transitions().sample(512), found, None)
    assert read["reward",] == 0
    assert read["token",] < read[None] / 20
    assert read["obs",] == read[None], "most of a segment is read as a whole"


@pytest.mark.parametrize("ram", ["5MiB", "64MiB"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_any_mix_of_fields_is_right(ram: str, seed: int, found: dict[str, Any], tmp_path: Path) -> None:
    rng = np.random.default_rng([seed, 1])
    store = sw.Store.open(tmp_path / "s", ram=ram)
    view, windows = store.transitions(), store.sequences(16)
    stream = view.stream(8, lookahead=3, fields=("token",))
    whole = view.stream(8, lookahead=2)
    for _ in range(examples(120, most=120)):
        fields = SOME[int(rng.integers(len(SOME)))]
        match int(rng.integers(6)):
            case 0:
                verify(next(stream), found, ("token",))
            case 1:
                verify(next(whole), found, None)
            case 2:
                ids = rng.choice(view.sampleable_ids(), 40)
                verify(view.fetch(ids, fields=fields), found, fields)
            case 3:
                batch = windows.sample(4, fields=("token",))
                steps = batch.step[:, None] + np.arange(16)
                assert np.array_equal(batch["token"][batch.mask], found["token"][steps[batch.mask]])
            case 4:
                (episode,) = store.episodes()
                name = ("token", "text", "core")[int(rng.integers(3))]
                values = episode[name]
                expected = found[name] if name != "core" else values
                assert (values.strings() if name == "text" else values.tolist()) == expected.tolist()
            case _:
                verify(view.sample(int(rng.integers(1, 64)), fields=fields), found, fields)
        held = store._log.segment_cache
        assert held is not None and not (held.index.resident * held._parts).any()
    stats = store.stats()
    assert stats["damaged"] == []
    if ram == "5MiB":
        assert stats["disk"]["resident_segments"] < stats["segments"] < stats["disk"]["misses"]
    stream.close()
    whole.close()
    store.append(obs={"picture": found["picture"][0], "place": [0, 0]}, action=0, reward=0, terminated=False,
                 truncated=False, token=1, text="", core=np.zeros(4))  # fmt: skip
    store.close()
    assert not check(tmp_path / "s").damages


def test_damage_of_a_field_that_is_read_is_found_and_other_fields_go_on(found: dict[str, Any], tmp_path: Path) -> None:
    store = sw.Store.open(tmp_path / "s")
    assert store._log.disk is not None
    index, slot = store._log.index, 3
    column = list(store._log.layout.names).index("token")
    place = int(index.region_offset[slot] + index.offset[column, slot])
    path = store._log.disk.regions.regions[int(index.region[slot])].path
    content = bytearray(path.read_bytes())
    content[place + 60] ^= 4
    path.write_bytes(content)
    view = store.transitions()
    ids = np.sort(view.sampleable_ids())
    mine = ids[(ids & (2**32 - 1)) // store._log.stride == slot]
    verify(view.fetch(mine, fields=("action",)), found, ("action",))
    with pytest.raises(sw.DamagedError, match="checksum"):
        view.fetch(mine, fields=("token",))
    killed(store)


def test_segments_without_checksums_of_columns_are_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "MIN_APART_BYTES", 1 << 40)
    found = filled(tmp_path / "s", np.random.default_rng(6))
    with sw.Store.open(tmp_path / "s") as store:
        assert store._log.segment_cache is not None and not store._log.segment_cache.apart.any()
        verify(store.transitions().sample(512, fields=("token",)), found, ("token",))
        assert store.stats()["disk"]["bytes_read"] > 512 * STEPS / 2


def test_an_interrupted_read_leaves_no_column_behind(
    found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sw.Store.open(tmp_path / "s", seed=0) as store:
        view, cache = store.transitions(), store._log.segment_cache
        assert cache is not None
        wait, interrupts = cache._readers.wait, iter([True])

        def interrupted(slots: Any) -> None:
            if next(interrupts, False):
                raise KeyboardInterrupt
            wait(slots)

        monkeypatch.setattr(cache._readers, "wait", interrupted)
        before = list(store._log.arena.live)
        with pytest.raises(KeyboardInterrupt):
            view.sample(64, fields=("token",))
        assert not cache._state.any() and not cache._parts.any() and list(store._log.arena.live) == before
        verify(view.sample(64, fields=("token",)), found, ("token",))
        verify(view.sample(64), found, None)


def test_a_promise_of_checksums_that_there_are_not_is_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "MIN_APART_BYTES", 1 << 40)
    found = filled(tmp_path / "s", np.random.default_rng(10))
    monkeypatch.setattr(segment, "has_column_checksums", lambda data: True)
    with sw.Store.open(tmp_path / "s") as store:
        view = store.transitions()
        for fields in SOME * 2:
            verify(view.sample(64, fields=fields), found, fields)
        assert store.stats()["damaged"] == []


def test_more_ranges_than_are_read_together(
    found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_cache, "TOGETHER", 7)
    with sw.Store.open(tmp_path / "s") as store:
        verify(store.transitions().sample(512, fields=("token", "core")), found, ("token", "core"))
        assert store.stats()["disk"]["bytes_read"] < 512 * STEPS / 4


def test_each_part_of_a_segment_ends_with_its_checksum() -> None:
    import zlib

    spec = sw.Spec(obs=sw.Field((512,), "uint8"), action=sw.Field((), "int64"))
    rows = np.random.default_rng(8).integers(0, 256, (65, 512), np.uint8)
    flags = PackedNumbers().encode(np.zeros((64, 1), np.uint8)) or b""
    made = [
        segment.SegmentColumn(PackedNumbers.number, 64, flags),
        segment.SegmentColumn(0, 64, bytes(4 * 64)),
        segment.SegmentColumn(0, 65, rows.tobytes()),
        segment.SegmentColumn(0, 64, bytes(8 * 64)),
    ]
    data, begins = segment.pack(spec.schema_hash, 0, 0, 64, 65, 0, made, episode_step=0, features=COLUMN_CHECKSUMS)
    assert segment.has_column_checksums(data)
    for begin, end in zip([0, *begins[2:]], [*begins[2:], len(data) - 4], strict=True):
        assert zlib.crc32(data[begin : end - 4]) == int.from_bytes(data[end - 4 : end], "little")
    header, arrays = segment.unpack(data, spec, lambda _: b"")
    assert arrays["obs"].tobytes() == rows.tobytes() and header.nbytes == len(data)


def test_steps_in_another_lane_are_read_apart_too(found: dict[str, Any], tmp_path: Path) -> None:
    """The first checksum of a segment's parts covers its lane."""
    moved = tmp_path / "other"
    with sw.Store.open(tmp_path / "s") as store, sw.Store(SPEC, capacity=20_000, disk=moved) as other:
        had = np.zeros(1, np.int64)
        while part := sealed_after(store._log, had, 1 << 20):
            for copy in part:
                other.add_segment(segment.readdressed(copy.packed, 1, int(had[0])), copy.dictionaries)
                had[0] += segment.parse(copy.packed, SPEC).steps
    with sw.Store.open(moved) as other:
        view, before = other.transitions(), other.stats()["disk"]["bytes_read"]
        verify(view.fetch(view.sampleable_ids(), fields=("token",)), found, ("token",))
        assert other.stats()["disk"]["bytes_read"] - before < 8 * STEPS
