"""A store's folder looked at from outside, against a list of what was appended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.cli.episode_pictures import shown_frames
from sharpwave.format.region import (
    Damage,
    Identity,
    read_region,
)
from sharpwave.offline.folder_check import check
from sharpwave.offline.surveys import survey
from tests.offline.written import SPEC, Writer, contents, fill, observation, region_of, told, written


@pytest.mark.parametrize("codec", ["auto", "delta", "zstd", "raw"])
def test_the_numbers_are_those_of_what_was_appended(codec: str, tmp_path: Path) -> None:
    writer = written(tmp_path, codec)
    before = contents(tmp_path)
    found, sound = survey(tmp_path), check(tmp_path)
    assert contents(tmp_path) == before, "looking changed something"
    assert sound.damages == found.damages == [] and sound.notes == []
    assert sound.steps == found.steps == 500
    assert {lane: sum(one.header.steps for one in chain.segments) for lane, chain in found.lanes.items()} == {
        lane: len(steps) for lane, steps in writer.history.items()
    }
    assert told(found.episodes) == writer.episodes()
    assert all(one.begun for one in found.episodes)
    assert sound.segments + sound.tails - sound.superseded == len(found.segments)
    assert sound.tails == 3 and sound.files == 1 and sound.lanes == 3
    for name, size in {"flags": 1, "reward": 4, "action": 8, "obs.picture": 576, "obs.position": 8}.items():
        taken = found.packed[name].values()
        assert sum(one.steps for one in taken) == 500 and sum(one.raw_bytes for one in taken) == 500 * size
    total = sum(one.bytes for codecs in found.packed.values() for one in codecs.values()) + found.overhead_bytes
    assert total == sum(one.header.nbytes for one in found.segments)
    assert found.described.limits == {"capacity": 100_000, "ram": None, "disk_limit": None, "seed": 0}
    assert found.regions[0].nbytes == region_of(tmp_path).stat().st_size >= (found.regions[0].used or 1 << 60)


def test_frames_are_those_that_were_appended(tmp_path: Path) -> None:
    writer = written(tmp_path, segment_steps=5)
    found = survey(tmp_path)
    for episode in found.episodes:
        mine = writer.history[episode.lane][episode.first_step :][: episode.steps]
        shown = list(shown_frames(found, episode, "obs.picture", np.arange(episode.steps + 5)))
        assert [one.step for one in shown] == list(range(episode.steps + (episode.end != "unfinished")))
        reward = np.concatenate([part.arrays["reward"][part.rows] for part in found.read(episode, ())])
        assert reward.tolist() == [reward for _, reward, _ in mine]
        for one, (serial, _, _) in zip(shown, mine, strict=False):
            np.testing.assert_array_equal(one.frame, observation(serial)["picture"])
        if episode.end != "unfinished":
            assert shown[-1].final
            gained = np.concatenate([[0], np.cumsum([reward for _, reward, _ in mine], dtype=np.float64)])
            chosen = [n for n in (0, 3, 4, 9, episode.steps) if n <= episode.steps]
            few = list(shown_frames(found, episode, "obs.picture", np.unique(chosen)))
            assert [one.step for one in few] == sorted(set(chosen))
            np.testing.assert_allclose([one.gained for one in few[1:]], np.diff(gained[[one.step for one in few]]))
    longest = max(found.episodes, key=lambda one: one.steps)
    some = np.array([0, 3, longest.steps - 1])
    assert [step for step, _ in found.frames(longest, "obs.position", some)] == some.tolist()


def test_a_store_that_is_being_written_to_can_be_looked_at(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=400, disk=tmp_path, segment_steps=8) as store:
        writer = Writer(store)
        for round_ in range(12):
            fill(writer, 100, 3, seed=round_)
            if round_ % 3 == 0:
                store.flush()
            found = check(tmp_path)
            assert found.damages == [] and found.steps > 0
            survey(tmp_path)
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
        assert len(store.transitions()) > 300


def test_what_is_half_written_at_one_look_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    path = region_of(tmp_path)
    looks = iter([[100, 300], [300, 500]])

    def writing(*arguments: Any) -> Any:
        region, records, damages = read_region(*arguments)
        return region, records, [*damages, *(Damage(path, at, 8, "torn") for at in next(looks))]

    monkeypatch.setattr("sharpwave.disk.region_scan.read_region", writing)
    assert [one.offset for one in check(tmp_path).damages] == [300]


def test_a_file_that_goes_meanwhile_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    gone = tmp_path / "regions" / f"{9:012d}.region"
    paths = [region_of(tmp_path), gone]
    monkeypatch.setattr("sharpwave.offline.scan.region_files", lambda folder, part: paths)
    assert check(tmp_path).damages == [] and survey(tmp_path).steps == 500


def test_evicted_regions_leave_no_damage(tmp_path: Path) -> None:
    spec = sw.Spec(obs=sw.Field((64, 64), "uint8"), action=sw.Field((), "int64"))
    rng = np.random.default_rng(0)
    with sw.Store(spec, capacity=600, disk=tmp_path, codec="raw", segment_steps=8) as store:
        for at in range(1500):
            obs = rng.integers(0, 256, (64, 64), dtype=np.uint8)
            lane = int(rng.integers(3)) if at > 600 else 0
            end = at % 50 == 49
            store.append(
                lane=lane,
                obs=obs,
                action=0,
                reward=1.0,
                terminated=end,
                truncated=False,
                final_obs=obs if end else None,
            )
        store.flush()
        held = len(store)
    assert not (tmp_path / "regions" / f"{0:012d}.region").exists()
    sound, found = check(tmp_path), survey(tmp_path)
    assert sound.damages == [] and sound.steps == found.steps >= held
    assert not all(one.begun for one in found.episodes), "the beginning of the oldest has left"
    whole = [one for one in found.episodes if one.whole]
    assert whole and all(one.total == one.steps for one in whole)


CHILD = """
import sys, numpy as np, sharpwave as sw
spec = sw.Spec(obs=sw.Field((6, 7), "uint8", stack=3), action=sw.Field((), "int64"))
store = sw.Store(spec, capacity=100_000, disk=sys.argv[1], segment_steps=16)
k = 0
while True:
    for _ in range(37):
        picture = np.full((6, 7), k % 200, np.uint8)
        store.append(lane=k % 2, obs=picture, action=k % 5, reward=1, terminated=k % 38 > 35, truncated=False)
        k += 1
    store.flush()
    print(k, flush=True)
"""


def test_what_a_killed_process_left_is_sound_before_and_after_it_is_opened_again(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with subprocess.Popen([sys.executable, "-c", CHILD, folder], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        acknowledged = [int(child.stdout.readline()) for _ in range(20)][-1]
        assert check(folder).damages == []  # while it writes
        child.send_signal(signal.SIGKILL)
    before = contents(folder)
    sound, found = check(folder), survey(folder)
    assert contents(folder) == before
    assert sound.damages == [] and sound.steps == found.steps >= acknowledged
    whole = [one for one in found.episodes if one.whole]
    assert len(whole) >= acknowledged // 38 * 2 - 2
    assert {one.steps for one in whole} == {19} and {one.total for one in whole} == {19.0}
    for _ in range(3):  # opened, and left without a flush: rows that were open are written again as sealed segments
        with sw.Store.open(folder) as store:
            for k in range(50):
                picture = np.zeros((6, 7), np.uint8)
                store.append(lane=k % 3, obs=picture, action=0, reward=1, terminated=False, truncated=False)
        again = check(folder)
        assert again.damages == [] and again.notes == []
        assert again.steps == survey(folder).steps


def test_paths_that_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "file", "empty"):
        for look in (check, survey):
            with pytest.raises(FileNotFoundError, match="no store there"):
                look(tmp_path / name)
    sw.Store(SPEC, capacity=100, disk=tmp_path / "new").close()
    assert check(tmp_path / "new").damages == [] and survey(tmp_path / "new").steps == 0


def test_identity_is_optional_for_reading(tmp_path: Path) -> None:
    written(tmp_path)
    other = Identity(bytes(16), 0)
    assert read_region(region_of(tmp_path), other)[0] is None
