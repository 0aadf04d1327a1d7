"""Shared values: declarations, what they cost, when they are freed, refusals by name, damage."""

from __future__ import annotations

import importlib.util
import json
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.codecs import shared
from sharpwave.codecs.ragged_rows import Kind
from sharpwave.disk import disk_budget, region_files
from sharpwave.disk.region_files import RegionFiles
from sharpwave.errors import DamagedError
from sharpwave.format.region import SHARED, read_region, space
from sharpwave.native.file_operations import Files
from sharpwave.offline.folder_check import check
from sharpwave.offline.recorded import RecordedEpisodes
from sharpwave.offline.surveys import survey
from sharpwave.spec import Spec

PROMPT = sw.Field((None,), "int32", shared=True)


def spec_of(**fields: sw.Field) -> sw.Spec:
    return sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), **fields)


def prompt(number: int, length: int = 300) -> Any:
    return np.random.default_rng(number).integers(0, 50_000, length).astype(np.int32)


def append(store: Any, number: int, ends: bool = True, **values: Any) -> None:
    store.append(obs=np.full(2, number), action=number, reward=0, terminated=ends, truncated=False, **values)


def answers(store: Any, prompts: range, each: int = 16) -> None:
    """Append ``each`` answers to every prompt, the steps of an episode."""
    for number in prompts:
        for k in range(each):
            append(store, number, k == each - 1, prompt=prompt(number))


def held(store: sw.Store) -> int:
    return len(store._log.shared)


def files_of(folder: Path) -> list[Path]:
    return sorted((folder / "regions").glob("*.region"))


def values_in(path: Path) -> list[Any]:
    region, records, _ = read_region(path)
    assert region is not None
    region.close()
    return [one for one in records if one.kind == SHARED]


def damage(path: Path, value: Any) -> None:
    """Flip a bit of a value's bytes in a region file."""
    content = bytearray(path.read_bytes())
    content[value.offset + 40] ^= 4
    path.write_bytes(content)


# declarations


def test_fields_say_that_they_share() -> None:
    spec = spec_of(a=PROMPT, b=sw.Field(str, shared=True), c=sw.Field((3,), "uint8", shared=True), d=sw.Field(str))
    assert Spec.from_json(spec.description()) == spec and spec.shared_names == ("a", "b", "c")
    assert spec.schema_hash != spec_of(a=sw.Field((None,), "int32"), b=sw.Field(str), c=sw.Field((3,), "uint8"),
                                       d=sw.Field(str)).schema_hash  # fmt: skip


@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        (lambda: sw.Field((3,), "int32", every=3, shared=True), ValueError, "every=3 of shared values"),
        (lambda: sw.Field((3,), "uint8", stack=3, shared=True), ValueError, "stack=3 of shared values"),
        (lambda: sw.Field((3,), "uint8", codec="zstd", shared=True), ValueError, "codec='zstd' of shared values"),
        (lambda: sw.Field((3,), "uint8", shared=1), TypeError, "shared=1, expected True or False"),  # type: ignore[arg-type]
        (
            lambda: sw.Spec(obs=sw.Field((3,), "uint8", shared=True), action=sw.Field((), "int64")),
            ValueError,
            "obs has shared=True; only fields beside obs and action",
        ),
        (
            lambda: sw.Spec(obs=sw.Field((3,), "uint8"), action={"a": sw.Field((), "int64", shared=True)}),
            ValueError,
            "action.a has shared=True",
        ),
        (
            lambda: sw.Store(spec_of(a=sw.Field((9,), "uint8", shared=True)), capacity=100, codec={"a": "zstd"}),
            ValueError,
            "'a', whose shared values have no codec",
        ),
        (
            lambda: sw.Store(spec_of(), capacity=100).add_column("a", sw.Field((9,), "uint8", shared=True)),
            ValueError,
            "'a' has shared=True, which only fields of the spec",
        ),
        (
            lambda: sw.Store(
                spec_of(a=sw.Field((1 << 20,), "uint8", shared=True)), capacity=10_000, segment_steps=2000
            ),
            ValueError,
            "segment_steps=2000.*exceed the limit",
        ),
    ],
)
def test_wrong_declarations_are_refused(make: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        make()


@pytest.mark.parametrize("said", [1, "yes", None])
def test_a_schema_that_says_nonsense_is_refused(said: Any) -> None:
    description = spec_of(a=PROMPT).description()
    description["fields"]["a"]["shared"] = said
    with pytest.raises(TypeError, match="shared="):
        Spec.from_json(description)


def test_stores_require_the_feature(tmp_path: Path) -> None:
    with sw.Store(spec_of(a=PROMPT), capacity=100, disk=tmp_path / "s") as store:
        append(store, 0, a=[1, 2])
    assert "shared values" in json.loads((tmp_path / "s" / "store.json").read_text())["requires"]
    with sw.Store(spec_of(), capacity=100, disk=tmp_path / "t"):
        pass
    assert "shared values" not in json.loads((tmp_path / "t" / "store.json").read_text())["requires"]


def test_wrong_rows_are_refused_and_hold_nothing() -> None:
    field = sw.Field(str, shared=True, max_length=5)
    store = sw.Store(spec_of(a=field, b=sw.Field((2,), "uint8", shared=True)), capacity=100)
    wrong: list[dict[str, Any]] = [{"a": "123456", "b": [1, 2]}, {"a": b"1", "b": [1, 2]}, {"a": "1", "b": [1, 999]}]
    for values in wrong:
        with pytest.raises((ValueError, TypeError)):
            append(store, 0, **values)
    assert len(store) == held(store) == 0


# what values cost, and when they are freed


def test_answers_of_one_prompt_cost_it_once() -> None:
    sizes = {}
    for name, field in {"shared": PROMPT, "each": sw.Field((None,), "int32")}.items():
        store = sw.Store(spec_of(prompt=field), capacity=10_000, segment_steps=16)
        rng = np.random.default_rng(0)
        for number in rng.permutation(np.repeat(np.arange(40), 16)).tolist():  # so that none follows its like
            append(store, number, prompt=prompt(number))
        taken = store.stats()["bytes"]
        sizes[name] = taken["arena_used"] + taken.get("shared_values", 0)
        batch = store.transitions().sample(64)
        assert all((row == prompt(n)).all() for row, n in zip(batch["prompt"], batch.action.tolist(), strict=True))
    assert sizes["shared"] < sizes["each"] / 4


def test_statistics_count_values() -> None:
    store = sw.Store(spec_of(prompt=PROMPT, name=sw.Field(str, shared=True)), capacity=1000)
    for number in range(10):
        append(store, number, prompt=prompt(number % 3), name="one name")
    found = store.stats()["shared"]
    assert found["prompt"]["values"] == 3 and found["name"]["values"] == 1
    assert found["name"]["bytes"] == 8 + len("one name") and found["prompt"]["bytes"] >= 3 * 300 * 2
    assert store.stats()["bytes"]["shared_values"] > sum(one["bytes"] for one in found.values())
    assert "shared" not in sw.Store(spec_of(), capacity=1000).stats()


def test_encoded_bytes_a_step_count_values() -> None:
    taken = {}
    for many in (1, 100):
        store = sw.Store(spec_of(prompt=PROMPT), capacity=1000, segment_steps=16)
        append(store, 0, prompt=prompt(0))
        assert store.stats()["encoded_bytes_per_step"] == 0, "nothing is sealed yet"
        for number in range(1, 400):
            append(store, number, prompt=prompt(number % many))
        found = store.stats()
        taken[many] = found["encoded_bytes_per_step"], found["shared"]["prompt"]["bytes"] / 400, found["fixed_bytes"]
    (once, one, fixed), (often, hundred, as_fixed) = taken[1], taken[100]
    assert hundred > 50 * one and abs((often - once) - (hundred - one)) <= 16, "references of 16 bytes"
    assert abs(fixed - as_fixed) < 20_000


def test_values_are_freed_with_their_last_segment() -> None:
    store = sw.Store(spec_of(prompt=PROMPT), capacity=160, segment_steps=16)
    answers(store, range(100))
    assert held(store) == 10 and store.stats()["bytes"]["shared_values"] < 10 * (300 * 4 + 1000)
    answers(store, range(95, 96))  # one that is held already: the oldest is freed for it
    assert held(store) == 9
    store.clear()
    assert held(store) == 0 and store._log.shared.nbytes < 1000


def test_values_of_deleted_episodes_are_freed() -> None:
    store = sw.Store(spec_of(prompt=PROMPT), capacity=1000, segment_steps=16)
    answers(store, range(20))
    store.delete(episodes=[one for one in store.episodes() if one.first_step < 160])
    assert len(store) == 160
    answers(store, range(20, 30))
    assert held(store) <= 30
    batch = store.transitions().fetch(store.transitions(name="b").sampleable_ids())
    assert set(batch.action.tolist()) == set(range(10, 30))


def test_memory_limits_evict_until_values_fit() -> None:
    ram = 8 << 20
    store = sw.Store(spec_of(image=sw.Field((64, 1024), "uint8", shared=True)), ram=ram, segment_steps=8)
    rng = np.random.default_rng(0)
    for number in range(400):  # 25 MiB of images
        append(store, number, image=rng.integers(0, 256, (64, 1024), np.uint8))
        assert store.stats()["total_bytes"] <= ram
    assert 20 < len(store) < 120 and len(store) >= held(store)
    batch = store.transitions().sample(8)
    assert batch["image"].shape == (8, 64, 1024) and batch.action.min() > 250


@pytest.mark.parametrize("steps", [None, 16])
@pytest.mark.parametrize("kind", ["items", "str", "bytes"])
def test_memory_limits_seal_segments_of_new_values_early(kind: str, steps: int | None) -> None:
    """Values of one open segment would fill the memory."""
    ram, size = 8 << 20, 1 << 19
    fields = {
        "items": sw.Field((None,), "uint8", shared=True, max_length=size),
        "str": sw.Field(str, shared=True, max_length=size),
        "bytes": sw.Field(bytes, shared=True, max_length=size),
    }

    def value(number: int) -> Any:
        items = np.random.default_rng(number).integers(0, 256, size // (2 if kind == "str" else 1)).astype(np.uint8)
        return {"items": items, "str": items.tobytes().hex(), "bytes": items.tobytes()}[kind]

    store = sw.Store(spec_of(value=fields[kind]), ram=ram, segment_steps=steps)
    for number in range(60):
        append(store, number, value=value(number))
        assert store.stats()["total_bytes"] <= ram
    assert 6 < len(store) < 30 and len(store) >= held(store)
    replay = store.transitions()
    numbers = []
    for id_ in replay.sampleable_ids():
        batch = replay.fetch([id_])
        numbers.append(int(batch.action[0]))
        assert np.array_equal(batch["value"][0], value(numbers[-1]))
    assert sorted(numbers)[-1] >= 58


def test_a_run_of_new_values_takes_several_segments() -> None:
    ram, count = 8 << 20, 200
    image = sw.Field((64, 1024), "uint8", shared=True)
    store = sw.Store(spec_of(image=image), ram=ram, segment_steps=128)
    images = np.random.default_rng(0).integers(0, 256, (count, 1, 64, 1024)).astype(np.uint8)
    ended = np.zeros((count, 1), bool)
    store.extend(
        obs=np.zeros((count, 1, 2)), action=np.arange(count)[:, None], reward=np.zeros((count, 1)), terminated=ended,
        truncated=ended, image=images,
    )  # fmt: skip
    assert store.stats()["total_bytes"] <= ram and 50 < len(store) < 120
    batch = store.transitions().sample(16)
    assert (batch["image"] == images[batch.action, 0]).all()


def test_segments_of_few_values_are_not_sealed_early() -> None:
    store = sw.Store(spec_of(prompt=PROMPT), ram=8 << 20, segment_steps=64)
    values = [prompt(k, 50_000) for k in range(4)]  # 800 KB
    for number in range(640):
        append(store, number, number % 16 == 15, prompt=values[number // 16 % 4])
    assert store.stats()["segments"] <= 11


def test_a_value_that_memory_has_no_room_for_is_refused_and_others_go_on() -> None:
    size = 8 << 20
    spec = spec_of(value=sw.Field((None,), "uint8", shared=True, max_length=size))
    store = sw.Store(spec, ram=6 << 20, segment_steps=16)
    for number in range(50):
        append(store, number, value=np.full(number, 3, np.uint8))
    noise = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8)
    for _ in range(2):
        with pytest.raises(MemoryError, match=r"shared values of open segments take .* raise ram="):
            append(store, 50, value=noise)
        assert len(store) == 50 == held(store)  # none was evicted for it
    for number in range(50, 100):
        append(store, number, value=noise[:number])
        assert store.stats()["total_bytes"] <= 6 << 20
    assert len(store) == 100 and held(store) == 100


def test_less_memory_opens_as_many_steps_as_their_values_let(tmp_path: Path) -> None:
    spec = spec_of(value=sw.Field((None,), "uint8", shared=True, max_length=1 << 17))
    rng = np.random.default_rng(0)

    def fill(store: sw.Store, numbers: range) -> None:
        for number in numbers:
            append(store, number, value=rng.integers(0, 256, 1 << 17).astype(np.uint8))

    with sw.Store(spec, ram=64 << 20, segment_steps=8) as store:
        fill(store, range(100))
        store.checkpoint(tmp_path / "a")
    with sw.Store.open(tmp_path / "a", ram=8 << 20) as store:
        assert 30 < len(store) < 64 and store.stats()["total_bytes"] <= 8 << 20
        assert store.recovery is not None and not store.recovery.damages
        assert store.transitions(name="b").sample(16).action.min() >= 100 - len(store)
        fill(store, range(100, 150))
        assert store.stats()["total_bytes"] <= 8 << 20
    with sw.Store(spec, capacity=1000, segment_steps=8, disk=tmp_path / "d") as store:
        fill(store, range(100))
    with sw.Store.open(tmp_path / "d", ram=8 << 20) as store:  # they stay on disk
        assert len(store) == 100 and store.stats()["total_bytes"] <= 8 << 20


def test_values_of_a_store_on_disk_may_take_more_than_memory(tmp_path: Path) -> None:
    ram, images = 8 << 20, np.random.default_rng(0).integers(0, 256, (400, 64, 1024), np.uint8)  # 25 MiB
    spec = spec_of(image=sw.Field((64, 1024), "uint8", shared=True))

    def all_are_theirs(store: sw.Store) -> None:
        replay = store.transitions(name="a")
        ids = np.asarray(replay.sampleable_ids())
        for some in np.array_split(np.random.default_rng(1).permutation(ids), 50):
            batch = replay.fetch(some)
            assert (batch["image"] == images[batch.action % 400]).all() and store.stats()["total_bytes"] <= ram

    with sw.Store(spec, capacity=10_000, ram=ram, segment_steps=8, disk=tmp_path) as store:
        for number in [*range(400), *range(400, 500)]:  # the last ones are there
            append(store, number, image=images[number % 400])
            assert store.stats()["total_bytes"] <= ram
        assert len(store) == 500 and held(store) == 400
        all_are_theirs(store)
        store.flush()
        before = store.stats()["disk"]["bytes_read"]
        all_are_theirs(store)
        assert store.stats()["disk"]["bytes_read"] > before + 10 * (1 << 20)
    with mock.patch.object(RegionFiles, "read_shared", side_effect=AssertionError):
        store = sw.Store.open(tmp_path)  # reads none of them
    with store:
        assert len(store) == 500 and not store.recovery.damages  # type: ignore[union-attr]
        all_are_theirs(store)


def test_a_batch_announces_the_values_that_it_reads(tmp_path: Path) -> None:
    with sw.Store(spec_of(prompt=PROMPT), capacity=2000, segment_steps=64, disk=tmp_path, ram="8MiB") as store:
        for number in range(1000):
            append(store, number, prompt=prompt(number))
    with sw.Store.open(tmp_path) as store:
        replay, rng = store.transitions(), np.random.default_rng(0)
        announced: list[Any] = []
        read: list[Any] = []

        def reading(self: Any, descriptor: int, out: memoryview, offset: int) -> int:
            read.append((descriptor, offset, len(out)))
            return real(self, descriptor, out, offset)

        real = Files.pread
        for k in range(6):
            ids = np.sort(replay.sampleable_ids())[rng.permutation(900)[:60]]
            announced.clear()
            read.clear()
            with (
                mock.patch.object(region_files, "will_read", lambda ranges: announced.extend(ranges)),
                mock.patch.object(Files, "pread", reading),
            ):
                batch = replay.fetch(ids)
            assert all(
                np.array_equal(row, prompt(number))
                for row, number in zip(batch["prompt"], batch.action.tolist(), strict=True)
            )
            assert announced == sorted(announced, key=lambda place: place[1]) and set(announced) <= set(read)
            assert len(announced) > 20 - 3 * k, "those that are in the cache are not read again"
            with mock.patch.object(region_files, "will_read", lambda ranges: announced.append("again")):
                replay.fetch(ids)
            assert "again" not in announced


def test_the_cache_of_values_gives_way_to_batches_and_open_segments(tmp_path: Path) -> None:
    ram, images = 8 << 20, np.random.default_rng(0).integers(0, 256, (200, 64, 1024), np.uint8)  # 12.5 MiB
    spec = spec_of(image=sw.Field((64, 1024), "uint8", shared=True), own=sw.Field((8192,), "uint8"))
    with (
        mock.patch("sharpwave.log.step_log.VALUE_CACHE_SHARE", 1),
        sw.Store(spec, capacity=10_000, ram=ram, segment_steps=8, disk=tmp_path) as store,
    ):
        replay = store.transitions()
        for number in range(200):
            append(store, number, image=images[number], own=np.zeros(8192, np.uint8))
            if number % 20 == 19:
                for size in (1, 32):
                    batch = replay.sample(size)
                    assert (batch["image"] == images[batch.action]).all()
                    assert store.stats()["total_bytes"] <= ram
                    del batch
        held_batch = replay.sample(32)
        store.extend(
            obs=np.zeros((1, 9, 2)), action=np.arange(9)[None], reward=np.zeros((1, 9)), image=images[None, :9],
            terminated=np.ones((1, 9), bool), truncated=np.zeros((1, 9), bool), own=np.zeros((1, 9, 8192), np.uint8),
        )  # fmt: skip
        assert len(held_batch) == 32 and len(store) == 209 and store.stats()["total_bytes"] <= ram


def test_an_index_that_fills_memory_is_refused_by_name(tmp_path: Path) -> None:
    ram, spec = 8 << 20, spec_of(image=sw.Field((64, 1024), "uint8", shared=True))
    images = np.random.default_rng(0).integers(0, 256, (200, 64, 1024), np.uint8)
    with (
        mock.patch("sharpwave.log.step_log.MAX_VALUE_SHARE", 0.001),
        sw.Store(spec, capacity=10_000, ram=ram, segment_steps=8, disk=tmp_path) as store,
    ):
        with pytest.raises(MemoryError, match=r"index of 1 shared values.* leaves too few of ram=.*; raise it"):
            append(store, 0, image=images[0])
        assert len(store) == held(store) == 0
        sealed: list[sw.SealedSegment] = []
        writer = sw.SegmentWriter(spec, 1, sealed.append, first_lane=1, segment_steps=8)
        for image in images[100:120]:
            writer.extend(
                obs=np.zeros((1, 2)), action=[0], reward=[0.0], terminated=[False], truncated=[False], image=[image]
            )
        with pytest.raises(MemoryError, match="shared values"):
            store.add_segment(sealed[0].packed, sealed[0].dictionaries)
        assert len(store) == held(store) == 0
    with sw.Store.open(tmp_path) as store:
        store.add_segment(sealed[0].packed, sealed[0].dictionaries)
        append(store, 0, image=images[0])
        assert len(store) == 9 and held(store) == 9


# everything that reads


@pytest.mark.parametrize("on_disk", [False, True])
def test_every_reader_has_the_values(on_disk: bool, tmp_path: Path) -> None:
    image = sw.Field((4, 5), "uint8", shared=True)
    spec = spec_of(prompt=PROMPT, task=sw.Field(str, shared=True), image=image, plain=sw.Field((), "int32"))
    where: dict[str, Any] = {"disk": tmp_path / "s"} if on_disk else {}

    def task(k: int) -> str:
        return f"task é {k // 7 % 3}"

    with sw.Store(spec, capacity=2000, segment_steps=8, **where) as store:
        for k in range(200):
            append(store, k, k % 10 == 9, prompt=prompt(k // 16), task=task(k), image=np.full((4, 5), k // 9), plain=k)

        def same(batch: Any, numbers: Any) -> None:
            for i, k in enumerate(numbers):
                assert (batch["prompt"][i] == prompt(k // 16)).all() and batch["task"][i] == task(k)
                assert (batch["image"][i] == k // 9).all() and batch["image"].dtype == np.uint8

        replay = store.transitions()
        ids = replay.sampleable_ids()
        same(replay.fetch(ids), range(200))
        one = replay.fetch(ids[:5], fields=("image",))
        assert (one["image"] == np.zeros((5, 4, 5))).all()
        batch = next(iter(replay.stream(16, lookahead=1)))
        same(batch, batch.action.tolist())
        blend = sw.Blend([(0.5, replay), (0.5, store.transitions(name="other"))]).sample(32)
        same(blend, blend.action.tolist())
        windows = store.sequences(4, burn_in=2, stride=2).sample(32)
        for b, t in zip(*np.nonzero(windows.mask), strict=True):
            k = int(windows.action[b, t])
            assert (windows["prompt"][b, t] == prompt(k // 16)).all() and windows["task"][b, t] == task(k)
            assert (windows["image"][b, t] == k // 9).all()
        assert not windows["image"][~windows.mask].any() and not windows["task"].lengths[~windows.mask].any()
        episode = store.episodes()[3]
        assert episode["task"].strings() == [task(k) for k in range(30, 40)]
        assert (episode["image"][:, 0, 0] == np.arange(30, 40) // 9).all()
        if importlib.util.find_spec("pyarrow"):
            table = store.table("steps", fields=("task", "image", "prompt")).read_all().to_pydict()
            assert table["task"] == [task(k) for k in range(200)]
            assert table["prompt"][170] == prompt(10).tolist()
        if on_disk:
            store.flush()
            store.snapshot("v")
            with sw.Store.open(tmp_path / "s", version="v") as version:
                same(version.transitions().fetch(np.asarray(ids)), range(200))
            assert not check(tmp_path / "s").damages
            found = survey(tmp_path / "s")
            parts = [found.unpack(one, ("task", "image")) for one in found.lanes[0].segments]
            texts = [bytes(row).decode() for part in parts for row in part["task"]]
            assert texts == [task(k) for k in range(200)]
            assert np.concatenate([part["image"] for part in parts])[:, 0, 0].tolist() == [k // 9 for k in range(200)]
    if on_disk:
        recorded = [one.fields["image"][:, 0, 0].tolist() for one in RecordedEpisodes(tmp_path / "s")]
        assert [one for part in recorded for one in part] == [k // 9 for k in range(200)]


def test_segments_from_elsewhere_must_bring_their_values() -> None:
    spec, sealed = spec_of(prompt=PROMPT), list[sw.SealedSegment]()
    writer = sw.SegmentWriter(spec, 1, sealed.append, segment_steps=8)
    for number in range(9):
        writer.extend(
            obs=np.zeros((1, 2)), action=[number], reward=[0.0], terminated=[False], truncated=[False],
            prompt=[prompt(number // 4)],
        )  # fmt: skip
    assert held_by(writer) == 1 and len(sealed) == 1
    (one,) = sealed
    keys = sorted(one.dictionaries)
    assert len(keys) == 2
    store = sw.Store(spec, capacity=100, segment_steps=8)
    other = shared.pack(prompt(7).tobytes(), spec.fields["prompt"].kind)
    wrong = (
        {keys[0]: one.dictionaries[keys[0]]},
        {**one.dictionaries, keys[0]: other},
        {**one.dictionaries, keys[1]: b""},
    )
    for values, why in zip(wrong, ("missing", "its content has the key", "expected a head"), strict=True):
        with pytest.raises(DamagedError, match=why):
            store.add_segment(one.packed, values)
        assert len(store) == held(store) == 0
    store.add_segment(one.packed, one.dictionaries)
    assert len(store) == 8 and held(store) == 2


def held_by(writer: sw.SegmentWriter) -> int:
    return len(writer._log.shared)


# files


@pytest.fixture
def small_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REGION_BYTES", "MIN_REGION_BYTES"):
        monkeypatch.setattr(disk_budget, name, 1 << 15)


def check_regions(store: sw.Store) -> None:
    """Check that each region has the values that its segments need, and counts no dead ones."""
    index = store._log.index
    for number, region in store._log.disk.regions.regions.items():  # type: ignore[union-attr]
        slots = np.flatnonzero((index.region == number) & (index.sealed > 0) & (index.rows > 0))
        needed = {key for slot in slots.tolist() for key in store._log.shared.of(slot)}
        regions = store._log.disk.regions  # type: ignore[union-attr]
        assert all(regions.has(number, *key) for key in needed)
        there = {one.key: one for one in values_in(region.path) if regions.has(number, one.column, one.key)}
        assert all((one.column, one.key) in store._log.shared for one in there.values())
        assert regions.shared_bytes(number) == sum(space(one.nbytes) for one in there.values())


def test_a_region_has_each_value_once(tmp_path: Path) -> None:
    with sw.Store(spec_of(prompt=PROMPT), capacity=10_000, segment_steps=8, disk=tmp_path) as store:
        answers(store, range(12))
        for _ in range(3):
            answers(store, range(12), each=1)
            store.flush()
        found = [one.key for path in files_of(tmp_path) for one in values_in(path)]
        assert len(files_of(tmp_path)) == 1 and len(found) == len(set(found)) == 12
    seen = survey(tmp_path)
    assert check(tmp_path).shared_values == 12 == seen.regions[0].described()["shared_values"]
    sizes = seen.sizes()
    assert sizes["shared_values"] == sum(one.nbytes for one in values_in(files_of(tmp_path)[0])) > 12 * 300
    assert sizes["dictionaries"] == 0 and sizes["raw"] == seen.steps * (8 + 8 + 4 + 1)


def test_values_that_a_region_has_need_no_room_there_again(tmp_path: Path) -> None:
    spec, size = spec_of(image=sw.Field((450_000,), "uint8", shared=True)), 450_000
    images = np.random.default_rng(0).integers(0, 256, (4, size), np.uint8)  # all of them: most of a file of 2 MiB
    with sw.Store(spec, ram=64 << 20, disk=tmp_path, disk_limit=16 << 20, segment_steps=8) as store:
        for number in range(240):
            append(store, number, image=images[number % 4])
            if number % 50 == 0:
                store.flush()
        assert len(store) == 240 and len(files_of(tmp_path)) == 1
        other = np.random.default_rng(1).integers(0, 256, size, np.uint8)
        for number in range(240, 260):  # with a fifth one they do not fit: other files get those that they need
            append(store, number, image=[*images, other][number % 5])
        assert len(store) == 260 and 1 < len(files_of(tmp_path)) < 6
        assert store.stats()["disk"]["bytes"] <= 16 << 20
        check_regions(store)
        batch = store.transitions().sample(64)
        numbers = batch.action
        chosen = np.where(numbers < 240, numbers % 4, numbers % 5)
        assert (batch["image"] == np.concatenate([images, other[None]])[chosen]).all()


@pytest.mark.parametrize("on_disk", [False, True])
def test_values_are_written_many_at_once(on_disk: bool, tmp_path: Path) -> None:
    where: dict[str, Any] = {"disk": tmp_path / "s"} if on_disk else {}
    with sw.Store(spec_of(prompt=PROMPT), capacity=10_000, segment_steps=500, **where) as store:
        with mock.patch.object(Files, "pwrite", autospec=True, side_effect=Files.pwrite) as written:
            answers(store, range(2000), each=1)
            store.checkpoint(tmp_path / "c")
        assert held(store) == 2000 and written.call_count < 40
    with sw.Store.open(tmp_path / "c", disk=tmp_path / "t" if on_disk else None) as store:
        batch = store.transitions().fetch(store.transitions(name="a").sampleable_ids())
        assert len(batch) == 2000
        assert all((row == prompt(n)).all() for row, n in zip(batch["prompt"], batch.action.tolist(), strict=True))


@pytest.mark.usefixtures("small_regions")
def test_compaction_copies_the_values_that_held_segments_need(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"disk_limit": 1 << 19, "retention": sw.Reservoir(3), "segment_steps": 8}
    with mock.patch("sharpwave.persistence.settings.MIN_DISK_BYTES", 1 << 15):
        with sw.Store(spec_of(prompt=PROMPT), disk=tmp_path, **settings) as store:
            answers(store, range(1500), each=4)
            assert store.stats()["evicted_steps"] > 1000
            assert store.stats()["disk"]["bytes"] <= 1 << 19
            check_regions(store)
            before, values = len(store), held(store)
            assert values <= before
        with sw.Store.open(tmp_path) as store:
            assert not store.recovery.damages  # type: ignore[union-attr]
            assert abs(len(store) - before) <= 8 and held(store) <= values
            check_regions(store)
            replay = store.transitions()
            batch = replay.fetch(replay.sampleable_ids())
            assert all((row == prompt(n)).all() for row, n in zip(batch["prompt"], batch.action.tolist(), strict=True))


@pytest.mark.usefixtures("small_regions")
def test_regions_of_dead_values_are_compacted(tmp_path: Path) -> None:
    """A region whose segments live on, small as they are, but whose values were all replaced."""
    spec = spec_of(prompt=PROMPT)
    with sw.Store(spec, capacity=10_000, segment_steps=4, disk=tmp_path) as store:
        answers(store, range(200), each=1)  # regions of values that single steps have
        budget, regions = store._log.disk.budget, store._log.disk.regions.regions  # type: ignore[union-attr]
        first = next(iter(regions))
        before = budget.needed_bytes(first)
        index = store._log.index
        slots = np.flatnonzero((index.region == first) & (index.sealed > 0) & (index.rows > 0)).tolist()
        assert len(slots) > 4
        for slot in slots[:-1]:
            store._log.admission.evict_one(slot)
        assert budget.needed_bytes(first) < before / 3
        assert store._log.compaction is not None and store._log.compaction.compact()
        assert first not in regions
        kept = store.transitions()
        batch = kept.fetch(kept.sampleable_ids())
        assert all((row == prompt(n)).all() for row, n in zip(batch["prompt"], batch.action.tolist(), strict=True))


def test_a_damaged_value_loses_the_segments_that_refer_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with sw.Store(spec_of(prompt=PROMPT), capacity=10_000, segment_steps=8, disk=folder) as store:
        answers(store, range(10))
    (path,) = files_of(folder)
    records = values_in(path)
    chosen = records[4]
    damage(path, chosen)
    key = shared.text_of(chosen.key)
    result = check(folder)
    assert any(f"shared value {key}: checksum" in str(one) for one in result.damages)
    assert sum("prompt refers to shared value" in str(one) for one in result.damages) == 2  # 16 steps, 8 a segment
    with sw.Store.open(folder) as store:
        damages = store.recovery.damages  # type: ignore[union-attr]
        assert any(f"shared value {key}: checksum" in one for one in damages)
        assert sum(f"prompt refers to shared value {key}, which is missing" in one for one in damages) == 2
        replay = store.transitions()
        batch = replay.fetch(replay.sampleable_ids())
        assert sorted(set(batch.action.tolist())) == [0, 1, 2, 3, 5, 6, 7, 8, 9] and len(batch) == 144
        assert all((row == prompt(n)).all() for row, n in zip(batch["prompt"], batch.action.tolist(), strict=True))
        answers(store, range(4, 5))
        assert held(store) == 10


@pytest.mark.usefixtures("small_regions")
def test_a_segment_whose_value_only_another_region_has_is_rewritten(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with sw.Store(spec_of(prompt=PROMPT), capacity=10_000, segment_steps=8, disk=folder) as store:
        answers(store, range(60), each=8)
        answers(store, range(1, 60), each=8)
    there = [(path, one) for path in files_of(folder) for one in values_in(path)]
    path, chosen = next((path, one) for path, one in there if [o.key for _, o in there].count(one.key) == 2)
    damage(path, chosen)
    (found,) = check(folder).damages  # the segments that refer to it are whole
    assert "checksum" in str(found) and check(folder).steps == 119 * 8
    for _ in range(2):
        with sw.Store.open(folder) as store:
            assert not any("refers to" in one for one in store.recovery.damages)  # type: ignore[union-attr]
            assert len(store) == 119 * 8 and held(store) == 60
            replay = store.transitions(name="a")
            batch = replay.fetch(replay.sampleable_ids())
            assert all((row == prompt(n)).all() for row, n in zip(batch["prompt"], batch.action.tolist(), strict=True))


def value_of_an_older_region(folder: Path) -> tuple[Path, Any]:
    """Write 8 answers to each of 100 prompts; return the oldest region's file, and the value of prompt 4 in it."""
    with sw.Store(spec_of(prompt=PROMPT), capacity=10_000, segment_steps=8, disk=folder) as store:
        answers(store, range(100), each=8)
    path = files_of(folder)[0]
    return path, values_in(path)[4]


@pytest.mark.usefixtures("small_regions")
def test_a_damaged_value_of_an_older_region_is_found_when_it_is_read(tmp_path: Path) -> None:
    path, chosen = value_of_an_older_region(folder := tmp_path / "s")
    damage(path, chosen)
    key = shared.text_of(chosen.key)
    with sw.Store.open(folder) as store:
        assert not store.recovery.damages and len(store) == 800  # type: ignore[union-attr]
        replay = store.transitions()
        with pytest.raises(DamagedError, match=f"shared value {key}: {path}: byte [0-9,]*: checksum"):
            replay.fetch(replay.sampleable_ids())
        batch = replay.fetch(np.asarray(replay.sampleable_ids())[np.arange(800) // 8 != 4])
        assert set(batch.action.tolist()) == set(range(100)) - {4}
        assert all((row == prompt(n)).all() for row, n in zip(batch["prompt"], batch.action.tolist(), strict=True))
        answers(store, range(4, 5), each=8)  # it is written once more
        answers(store, range(100, 200), each=8)
    with sw.Store.open(folder) as store:
        replay = store.transitions()
        batch = replay.fetch(replay.sampleable_ids())
        assert len(batch) == 1608 and set(batch.action.tolist()) == set(range(200))
        assert all((row == prompt(n)).all() for row, n in zip(batch["prompt"], batch.action.tolist(), strict=True))


@pytest.mark.usefixtures("small_regions")
def test_a_lost_value_is_named_by_its_first_damage_and_a_failed_read_is_tried_again(tmp_path: Path) -> None:
    path, chosen = value_of_an_older_region(folder := tmp_path / "s")
    with sw.Store.open(folder) as store:
        replay = store.transitions()
        ids = replay.sampleable_ids()
        with (
            mock.patch.object(Files, "pread", side_effect=OSError(5, "Input/output error")),
            pytest.raises(OSError, match=r"shared value .* could not be read: Input/output error"),
        ):
            replay.fetch(ids)
        assert len(replay.fetch(ids)) == 800
    damage(path, chosen)
    with sw.Store.open(folder) as store:
        replay = store.transitions()
        for _ in range(3):
            with pytest.raises(DamagedError, match=f"{path}: byte {chosen.offset:,}: checksum"):
                replay.fetch(replay.sampleable_ids())


@pytest.mark.usefixtures("small_regions")
def test_another_copy_in_the_same_file_takes_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with sw.Store(spec_of(prompt=PROMPT), capacity=10_000, segment_steps=4, disk=folder) as store:
        for number in (7, 1):
            answers(store, range(number, number + 1), each=4)
    with sw.Store.open(folder) as store:
        store.delete(episodes=[one for one in store.episodes() if one.first_step == 0])
        answers(store, range(7, 8), each=4)  # the value is written again
        answers(store, range(100, 200), each=4)
    path = files_of(folder)[0]
    found = [one for one in values_in(path) if one.key == values_in(path)[0].key]
    assert len(found) == 2 and len(files_of(folder)) > 1
    whole = path.read_bytes()
    for one in found:
        damage(path, one)
        with sw.Store.open(folder) as store:
            assert not store.recovery.damages  # type: ignore[union-attr]
            replay = store.transitions(name="a")
            batch = replay.fetch(replay.sampleable_ids())
            assert len(batch) == 408 and 7 in batch.action
            assert all((row == prompt(n)).all() for row, n in zip(batch["prompt"], batch.action.tolist(), strict=True))
        path.write_bytes(whole)


def test_a_foreign_file_is_not_taken_for_the_newest(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with sw.Store(spec_of(prompt=PROMPT), capacity=10_000, segment_steps=8, disk=folder) as store:
        answers(store, range(10))
    (path,) = files_of(folder)
    chosen = values_in(path)[4]
    damage(path, chosen)
    (path.parent / "999999999999.region").write_bytes(b"foreign")
    with sw.Store.open(folder) as store:
        damages = store.recovery.damages  # type: ignore[union-attr]
        assert any(f"shared value {shared.text_of(chosen.key)}: checksum" in one for one in damages)
        assert len(store.transitions().fetch(store.transitions(name="a").sampleable_ids())) == 144


def test_a_value_with_another_ones_key_is_refused(tmp_path: Path) -> None:
    """Its checksum is right, and so is the segment's: but it is not what the key says."""
    folder = tmp_path / "s"
    with sw.Store(spec_of(prompt=PROMPT), capacity=10_000, segment_steps=8, disk=folder) as store:
        answers(store, range(3))
    (path,) = files_of(folder)
    one, other = values_in(path)[:2]
    content = bytearray(path.read_bytes())
    content[one.offset : one.offset + 16] = shared.bytes_of(other.key)
    body = bytes(content[one.offset : one.offset + one.nbytes - 4])
    content[one.offset + one.nbytes - 4 : one.offset + one.nbytes] = zlib.crc32(body).to_bytes(4, "little")
    path.write_bytes(content)
    assert check(folder).damages
    with sw.Store.open(folder) as store:
        assert any("refers to shared value" in one for one in store.recovery.damages)  # type: ignore[union-attr]
        batch = store.transitions().fetch(store.transitions(name="a").sampleable_ids())
        assert all((row == prompt(n)).all() for row, n in zip(batch["prompt"], batch.action.tolist(), strict=True))


# the bytes of a value

KINDS = {
    "tokens": Kind(np.dtype("int32"), (), None, 1000, 4000),
    "image": Kind(np.dtype("uint8"), (8, 8), None, 1, 64),
    "floats": Kind(np.dtype("float32"), (3,), None, 100, 1200),
    "text": Kind(np.dtype("uint8"), (), "str", 1000, 1000),
    "bytes": Kind(np.dtype("uint8"), (), "bytes", 1000, 1000),
}


@pytest.mark.parametrize("name", KINDS)
def test_values_are_packed_and_unpacked(name: str) -> None:
    kind, rng = KINDS[name], np.random.default_rng(0)
    for items in [1] if name == "image" else [0, 1, 5, 99]:
        for high in (2, 100):
            row = rng.integers(0, high, (items, *kind.inner)).astype(kind.dtype)
            content = row.tobytes()
            packed = shared.pack(content, kind)
            assert shared.unpack(packed, kind) == content and len(packed) <= 8 + len(content)
            assert shared.checked(packed, kind, shared.key_of(content, kind)) == packed
    assert len({shared.key_of(bytes(64), one) for one in KINDS.values()}) == len(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_any_bytes_are_refused_or_unpacked(name: str) -> None:
    kind, rng = KINDS[name], np.random.default_rng(1)
    row = rng.integers(0, 3, (1 if name == "image" else 90, *kind.inner)).astype(kind.dtype)
    packed, refused = shared.pack(row.tobytes(), kind), 0
    for k in range(3000):
        changed = bytearray(packed)
        for _ in range(1 + k % 3):
            changed[int(rng.integers(0, 12 if k % 2 else len(changed)))] = int(rng.integers(0, 256))
        try:
            found = shared.unpack(bytes(changed[: len(changed) - (k % 5 == 0)]), kind)
            assert len(found) <= kind.most_bytes and len(found) % kind.item_bytes == 0
        except DamagedError:
            refused += 1
    assert refused > 500
    for size in range(12):
        with pytest.raises(DamagedError):
            shared.unpack(b"\xff" * size, kind)
