"""What is said of a store, a lane or an episode stays with it: sealed, flushed, killed, checkpointed, sent."""

from __future__ import annotations

import contextlib
import gc
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.cli.store_folders import describe as describe_store
from sharpwave.format.annotations import MAX_EPISODE_BYTES, MAX_STORE_BYTES
from sharpwave.offline.folder_check import check
from sharpwave.offline.surveys import survey
from tests.support.examples import stride
from tests.support.faults import SPEC, frame, killed, on
from tests.support.faulty import CUTS, ERRORS, Died, Faulty
from tests.support.kinds import EACH_KIND


def play(store: Any, count: int, *, lane: int = 0, begin: int = 0, length: int = 7, note: bool = True) -> None:
    """Steps of episodes of ``length``; each episode is annotated with its number, before its first step."""
    for serial in range(begin, begin + count):
        if note and serial % length == 0:
            if isinstance(store, sw.SegmentWriter):
                store.annotate(lane, {"number": serial // length})
            else:
                store.annotate(lane, {"number": serial // length}, episode=True)
        steps = {name: np.array([value]) for name, value in {"action": serial, "reward": 1.0, "serial": serial}.items()}
        store.extend(
            obs=frame(serial)[None], terminated=np.array([serial % length == length - 1]), truncated=np.array([False]),
            lanes=[lane], **steps,
        )  # fmt: skip


def numbers_of(store: sw.Store, length: int = 7) -> dict[int, int | None]:
    """What each step that can be sampled says of its episode, by serial number."""
    view = store.transitions()
    ids = view.sampleable_ids()
    said = store.annotations_of(ids)
    return dict(zip(view.fetch(ids)["serial"].tolist(), [one.get("number") for one in said], strict=True))


def assert_numbered(store: sw.Store, min_found: int) -> None:
    found = numbers_of(store)
    assert len(found) >= min_found
    assert {serial: number for serial, number in found.items() if number != serial // 7} == {}


VALUES = {
    "env": "ALE/Pong-v5",
    "seed": 3,
    "lr": 1e-4,
    "sticky": True,
    "hash": b"\x00\xffgit",
    "nested": [1, {"a": [None]}],
}


def test_values_of_every_kind_come_back(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=100, disk=tmp_path / "s", segment_steps=4) as store:
        for lane in (None, 0, 7):
            store.annotate(lane, VALUES)
            store.annotate(lane, {"seed": np.int64(4), "lr": None, "more": ("x", np.float32(0.5))})
        expected = {key: value for key, value in VALUES.items() if key != "lr"} | {"seed": 4, "more": ["x", 0.5]}
        assert store.annotations() == store.annotations(0) == store.annotations(7) == expected
        assert store.annotations(3) == {}
    with sw.Store.open(tmp_path / "s") as store:
        assert store.annotations() == store.annotations(0) == store.annotations(7) == expected
        store.annotate(7, dict.fromkeys(expected))
        assert store.annotations(7) == {}
    assert "7" not in json.loads((tmp_path / "s" / "store.json").read_text())["annotations"]["lanes"]


def test_metadata_of_fields_is_kept_with_the_store_and_is_no_part_of_the_schema(tmp_path: Path) -> None:
    said = {"unit": "m/s", "names": ["x", "y"], "calibration": b"\x00\xff", "range": {"low": np.float32(-0.5)}}
    speed = sw.Field((2,), "float32", every=3, metadata=said)
    said["unit"] = "changed by the caller later"
    fields: dict[str, Any] = {"obs": sw.Field((4,), "float32"), "action": sw.Field((), "int64")}
    spec = sw.Spec(**fields, speed=speed)
    expected = {"unit": "m/s", "names": ["x", "y"], "calibration": b"\x00\xff", "range": {"low": -0.5}}
    assert speed.metadata == expected and hash(speed) == hash(sw.Field((2,), "float32", every=3))
    assert spec.schema_hash == sw.Spec(**fields, speed=sw.Field((2,), "float32", every=3)).schema_hash
    with sw.Store(spec, capacity=100, disk=tmp_path / "s") as store:
        store.checkpoint(tmp_path / "c")
    for folder in ("s", "c"):
        with sw.Store.open(tmp_path / folder) as store:
            assert store.spec == spec and store.spec.fields["speed"].metadata == expected
            assert store.spec.fields["obs"].metadata == {}
    assert describe_store(survey(tmp_path / "s"))["fields"]["speed"]["metadata"]["calibration"] == {"$bytes": "AP8="}


def test_metadata_of_fields_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    for values, error in ((["x"], TypeError), ({"a": float("inf")}, ValueError), ({"$a": 1}, ValueError)):
        with pytest.raises(error, match="Field: metadata: "):
            sw.Field((), "int64", metadata=values)  # type: ignore[arg-type]
    spec = sw.Spec(obs=sw.Field((4,), "float32", metadata={"text": "x" * (1 << 19)}), action=sw.Field((), "int64"))
    with pytest.raises(ValueError, match=r"of store\.json, expected at most 458,752; shorten"):
        sw.Store(spec, capacity=100, disk=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("values", "error", "match"),
    [
        (["x"], TypeError, "got list, expected a dict"),
        ({1: 2}, ValueError, "key 1"),
        ({"a": {"$bytes": "x"}}, ValueError, r"'\$bytes' in a"),
        ({"a": float("nan")}, ValueError, "a is nan"),
        ({"a": [0, 1 << 64]}, ValueError, r"a\[1\] is an integer of more than 64 bits"),
        ({"a": {"b": object()}}, TypeError, r"a\.b is object"),
        ({"a": np.zeros(3)}, TypeError, "a is ndarray"),
        ({"a": [[[[[[[[[]]]]]]]]]}, ValueError, "deeper than 8"),
        ({"a": "x" * MAX_STORE_BYTES}, ValueError, "expected at most"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(values: Any, error: Any, match: str) -> None:
    store = sw.Store(SPEC, capacity=100)
    store.annotate(None, {"b": 1})
    for lane, episode in ((None, False), (0, False), (0, True)):
        with pytest.raises(error, match=match):
            store.annotate(lane, values, episode=episode)
        assert store.annotations(lane, episode=episode) == ({"b": 1} if lane is None else {})
    wrong: list[tuple[Any, bool]] = [(-1, False), (50, False), ("0", True), (None, True)]
    for place, episode in wrong:
        with pytest.raises(ValueError, match=r"annotate: (lane|episode)"):
            store.annotate(place, {}, episode=episode)


def test_store_and_lanes_share_a_limit_that_store_json_keeps(tmp_path: Path) -> None:
    """However they are nested, they take no more of the file than was counted."""
    with sw.Store(SPEC, capacity=1_000_000, disk=tmp_path / "s") as store:
        with pytest.raises(ValueError, match="expected at most 524,288 in all"):
            for lane in range(100_000):
                store.annotate(lane, {"a": [[1] * (lane % 50)], "b": {"c": {"d": lane}}})
        store.flush()
        assert (tmp_path / "s" / "store.json").stat().st_size < MAX_STORE_BYTES + 10_000
        assert lane > 200
    with sw.Store.open(tmp_path / "s") as store:
        assert store.annotations(lane - 1)["b"] == {"c": {"d": lane - 1}}


def test_an_episode_carries_them_through_sealing_flushing_and_a_kill(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=400, disk=tmp_path / "s", segment_steps=4)
    play(store, 45)
    assert_numbered(store, 44)
    assert store.annotations(0, episode=True) == {"number": 6}
    store.annotate(0, {"policy": 9}, episode=True)
    store.annotate(None, {"git": "0a1b"})
    store.flush()
    store.annotate(None, {"git": "lost"})
    killed(store)
    assert not check(tmp_path / "s").damages
    found = survey(tmp_path / "s")
    assert [one.annotations["number"] for one in found.episodes] == list(range(7))
    assert found.episodes[-1].annotations == {"number": 6, "policy": 9}
    with sw.Store.open(tmp_path / "s") as store:
        assert store.annotations() == {"git": "0a1b"}
        assert store.annotations(0, episode=True) == {}, "the lane begins another"
        assert_numbered(store, 43)
        play(store, 30, begin=49)
        assert_numbered(store, 70)


@pytest.mark.parametrize("disk", [False, True])
def test_a_checkpoint_has_them_all_those_of_the_next_episode_too(disk: bool, tmp_path: Path) -> None:
    for count in (42, 45, 46):
        limits: dict[str, Any] = {"disk": tmp_path / f"live{count}"} if disk else {}
        store = sw.Store(SPEC, capacity=400, segment_steps=4, **limits)
        play(store, count)
        store.annotate(0, {"number": count // 7, "later": True}, episode=True)
        store.annotate(2, {"before": "its first step"}, episode=True)
        store.annotate(1, {"seed": 5})
        expected = store.annotations(0, episode=True)
        store.checkpoint(tmp_path / f"c{count}")
        store.close()
        with sw.Store.open(tmp_path / f"c{count}") as again:
            assert again.recovery is not None and not again.recovery.damages
            assert again.annotations(0, episode=True) == expected
            assert again.annotations(2, episode=True) == {"before": "its first step"}
            assert again.annotations(1) == {"seed": 5}
            play(again, 20, begin=count, note=False)
            ids = again.transitions().sampleable_ids()
            said = dict(zip(again.transitions().fetch(ids)["serial"].tolist(), again.annotations_of(ids), strict=True))
            assert all(
                said[serial] == expected for serial in range(count // 7 * 7 + (count % 7 and 4), count // 7 * 7 + 7)
            )


def test_segments_from_elsewhere_carry_them(tmp_path: Path) -> None:
    made: list[sw.SealedSegment] = []
    writer = sw.SegmentWriter(SPEC, 2, made.append, segment_steps=4)
    with sw.Store(SPEC, capacity=400, disk=tmp_path / "s", segment_steps=8) as store:
        play(writer, 50, lane=1)
        for one in made:
            store.add_segment(one.packed, one.dictionaries)
        assert_numbered(store, 40)
        with pytest.raises(ValueError, match="come in segments"):
            store.annotate(1, {"a": 1}, episode=True)
        store.annotate(1, {"actor": 5})
    with sw.Store.open(tmp_path / "s") as store:
        assert_numbered(store, 40)
        assert store.annotations(1) == {"actor": 5}


def test_an_annotation_goes_with_its_episode_and_not_to_another() -> None:
    store = sw.Store(SPEC, capacity=400, segment_steps=4)
    play(store, 1)  # one step, which can only be dropped
    assert store.break_episode(0) and len(store) == 0
    assert store.annotations(0, episode=True) == {}
    play(store, 3, begin=7)
    store.end_episode(0, frame(99))
    assert store.annotations(0, episode=True) == {}
    play(store, 10, begin=14)
    found = numbers_of(store)
    assert found == {serial: serial // 7 for serial in [7, 8, 9, *range(14, 23)]}


def test_an_episode_broken_off_at_a_segment_s_first_step_leaves_its_annotations_to_no_other(tmp_path: Path) -> None:
    """Its last step is dropped, and the segment is empty then: the rest of the episode is sealed already."""
    with sw.Store(SPEC, capacity=400, disk=tmp_path / "s", segment_steps=4) as store:
        play(store, 5)
        assert store.break_episode(0)
        assert store.annotations(0, episode=True) == {}
        play(store, 9, begin=7)
        assert numbers_of(store) == {serial: serial // 7 for serial in [0, 1, 2, 3, *range(7, 15)]}
    assert not check(tmp_path / "s").damages
    with sw.Store.open(tmp_path / "s") as store:
        assert store.recovery is not None and not store.recovery.damages
        assert len(numbers_of(store)) == 12


def test_many_large_annotations_end_segments_early_and_are_all_there() -> None:
    store = sw.Store(SPEC, capacity=4000, segment_steps=64)
    text = "x" * (MAX_EPISODE_BYTES - 40)
    for serial in range(60):
        if serial % 2 == 0:
            store.annotate(0, {"number": serial // 2, "text": text}, episode=True)
        step = {"obs": frame(serial), "action": 0, "reward": 0, "serial": serial, "truncated": False}
        store.append(terminated=serial % 2 == 1, **step)
        if serial % 2 == 0:
            store.annotate(0, {"again": serial}, episode=True)
    assert {serial: number for serial, number in numbers_of(store).items() if number != serial // 2} == {}
    assert len(numbers_of(store)) == 60
    with pytest.raises(ValueError, match="for one episode, expected at most 4,096"):
        store.annotate(0, {"text": text + "y" * 40}, episode=True)


def test_memory_is_counted() -> None:
    store = sw.Store(SPEC, capacity=1000)
    assert store.stats()["bytes"]["annotations"] == 0
    play(store, 3)
    store.annotate(None, {"text": "x" * 1000})
    said = store.stats()
    assert said["bytes"]["annotations"] > 1000 and said["total_bytes"] == sum(said["bytes"].values())
    store.annotate(None, {"text": None})
    assert store.stats()["bytes"]["annotations"] < 1000


def test_lives_of_random_annotations(tmp_path: Path) -> None:
    """Anything said of a store or a lane before a flush is there after a kill; of an episode, where its step is."""
    rng = random.Random(4)
    folder = tmp_path / "s"
    said: dict[Any, Any] = {}
    flushed: dict[Any, Any] = {}
    store = sw.Store(SPEC, capacity=300, disk=folder, segment_steps=4)
    begin = 0
    for _ in range(150):
        act = rng.randrange(6)
        if act < 2:
            lane, key = rng.choice([None, 0, 1]), rng.choice("abc")
            value = rng.choice([1, "x", None, [2], b"3"])
            store.annotate(lane, {key: value})
            said[lane] = {k: v for k, v in {**said.get(lane, {}), key: value}.items() if v is not None}
        elif act < 4:
            play(store, count := rng.randrange(12), begin=begin)
            begin += count
        elif act == 4:
            store.flush()
            flushed = {lane: dict(values) for lane, values in said.items()}
        else:
            if rng.random() < 0.5:
                killed(store)
                said = {lane: dict(values) for lane, values in flushed.items()}
            else:
                store.close()
                flushed = {lane: dict(values) for lane, values in said.items()}
            store = sw.Store.open(folder)
            assert store.recovery is not None and not store.recovery.damages
            begin += -begin % 7
        for lane in (None, 0, 1):
            assert store.annotations(lane) == said.get(lane, {})
        assert_numbered(store, 0)
    store.close()


def test_a_recorder_says_which_environment_and_seed_a_lane_has() -> None:
    gym = pytest.importorskip("gymnasium")
    spec = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=1000)
    env = sw.Recorder(gym.make("CartPole-v1"), store, first_lane=2)
    env.reset(seed=11)
    assert store.annotations(2) == {"env": "CartPole-v1", "seed": 11}
    env.reset()
    assert store.annotations(2) == {"env": "CartPole-v1", "seed": 11}, "the last one that was given"
    several = sw.Recorder(gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"), store)
    several.reset(seed=[5, 6])
    assert [store.annotations(lane)["seed"] for lane in (0, 1)] == [5, 6]


@pytest.mark.parametrize("kind", EACH_KIND)
def test_what_a_flush_acknowledged_is_there_whatever_comes_of_any_later_operation(kind: str, tmp_path: Path) -> None:
    """Of the store, of a lane and of the episode under way; each round says something newer of all three."""
    at = 1
    while True:
        folder, files, acknowledged, store = tmp_path / str(at), Faulty(at, kind, seed=at), -1, None
        try:
            with on(files):
                for attempt in range(2):
                    with contextlib.suppress(OSError):
                        store = sw.Store(SPEC, capacity=40, disk=folder / str(attempt), segment_steps=4)
                        break
                assert store is not None
                folder = store._log.disk.folder  # type: ignore[union-attr]
                for number in range(6):
                    for lane, episode in ((None, False), (0, False), (0, True)):
                        store.annotate(lane, {"round": number}, episode=episode)
                    for serial in range(6 * number, 6 * number + 6):
                        step = {"obs": frame(serial), "action": 0, "reward": 0, "serial": serial}
                        with contextlib.suppress(OSError):
                            store.append(**step, terminated=False, truncated=False)
                    with contextlib.suppress(OSError):
                        store.flush()
                        acknowledged = number
                store.close()
        except Died:
            if store is not None:
                with contextlib.suppress(Died):
                    killed(store)
        except OSError:  # of closing, once
            pass
        if kind in CUTS and store is not None:
            files.cut_power(folder)
        if acknowledged >= 0:
            with on(Faulty()), sw.Store.open(folder) as again:
                assert again.annotations()["round"] >= acknowledged
                assert again.annotations(0)["round"] >= acknowledged
                ids = again.transitions().sampleable_ids()
                said = [one["round"] for one in again.annotations_of(ids)]
                assert said == sorted(said) and said[-1] >= acknowledged
        if files.count < at:
            break
        at += stride(1 if kind in ERRORS else 3)
    assert at > 40


@pytest.mark.parametrize("apart", [1, 3, 4])
def test_annotations_of_windows_are_those_of_their_episodes(apart: int) -> None:
    with sw.Store(SPEC, capacity=400, segment_steps=8) as store:
        play(store, 90)
        windows = store.sequences(4, stride=apart, burn_in=2)
        ids = windows.sampleable_ids()
        episodes = [int(one) // 7 for one in windows.fetch(ids)["serial"][:, 2]]  # of the first trained step
        assert len(set(episodes)) > 5
        assert [one.get("number") for one in store.annotations_of(ids)] == episodes
        del windows
        gc.collect()
        with pytest.raises(ValueError, match=f"annotations_of: these ids are of windows of stride {apart}, expected"):
            store.annotations_of(ids)


def test_ids_that_are_none_are_refused() -> None:
    spec = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=1000, segment_steps=8) as store:
        windows = store.sequences(4)
        for k in range(30):
            for lane in (0, 1):
                store.append(lane=lane, obs=k, action=k, reward=0.0, terminated=k == 29, truncated=False)
        known = windows.sampleable_ids()
        beyond = known[:1] + (8 - known[:1] % 8) - 1  # of a segment that has fewer windows than steps
        assert not np.isin(beyond, known).any()
        with pytest.raises(KeyError, match="is of no item"):
            store.annotations_of(beyond)
        for wrong in ([0.9], ["1"], 3, [[1]], [2**70]):
            with pytest.raises(ValueError, match=r"got ids of shape .*, expected int64 \[n\]"):
                store.annotations_of(wrong)
        assert len(store.annotations_of(windows.sample(3).ids)) == 3
