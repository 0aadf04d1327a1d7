"""A folder followed while it is written to, against a survey of all of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.disk import region_scan
from sharpwave.errors import DamagedError
from sharpwave.format import region
from sharpwave.offline import scan, surveys
from sharpwave.offline.folder_check import check
from sharpwave.offline.recorded import RecordedEpisodes
from sharpwave.offline.surveys import Following, Survey, survey
from tests.offline.written import SPEC, Writer, contents, fill, region_of, told, written


def assert_same(found: Survey, expected: Survey) -> None:
    assert told(found.episodes) == told(expected.episodes)
    assert found.packed == expected.packed and found.overhead_bytes == expected.overhead_bytes
    assert found.sizes()["dictionaries"] == expected.sizes()["dictionaries"]
    for one, other in zip(found.regions, expected.regions, strict=True):
        assert (one.path, one.described()) == (other.path, other.described())
    assert found.damages == expected.damages


@pytest.mark.parametrize("region_bytes", [1 << 14, 1 << 26], ids=["many files", "one file"])
def test_it_finds_what_a_survey_finds(region_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evictions, new files, deleted ones and compaction included."""
    monkeypatch.setattr("sharpwave.disk.disk_budget.REGION_BYTES", region_bytes)
    monkeypatch.setattr("sharpwave.disk.disk_budget.MIN_REGION_BYTES", region_bytes)
    with sw.Store(SPEC, capacity=400, disk=tmp_path, segment_steps=8, codec="raw") as store:
        writer, following = Writer(store), Following(tmp_path)
        for round_ in range(12):
            fill(writer, 60, 3, seed=round_)
            if round_ % 3 == 0:
                store.flush()
            assert following.update()
            assert_same(following.survey, survey(tmp_path))
            assert not following.update()
        store.annotate(None, {"note": "seen"})
        store.flush()
        following.update()
        assert following.survey.described.annotations.store == {"note": "seen"}


def test_a_file_that_is_cut_off_behind_its_last_record_has_its_size(tmp_path: Path) -> None:
    """As a checkpoint leaves it, and closing: what was allocated ahead is free again."""
    with sw.Store(SPEC, capacity=20_000, disk=tmp_path / "store", segment_steps=16) as store:
        fill(Writer(store), 300, 2)
        store.flush()
        following = Following(tmp_path / "store")
        following.update()
        store.checkpoint(tmp_path / "saved")
        assert following.update() and not following.update()
        assert_same(following.survey, survey(tmp_path / "store"))


def test_it_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sw.Store(SPEC, capacity=20_000, disk=tmp_path, segment_steps=16) as store:
        writer = Writer(store)
        fill(writer, 2000, 2)
        following = Following(tmp_path)
        following.update()
        before = contents(tmp_path)
        known = max(one.record.offset + one.record.nbytes for one in following.survey.segments)
        offsets: set[int] = set()
        real = os.pread

        def pread(descriptor: int, nbytes: int, offset: int) -> bytes:
            offsets.add(offset)
            return real(descriptor, nbytes, offset)

        monkeypatch.setattr(os, "pread", pread)
        assert not following.update()
        fill(writer, 64, 2, seed=1)
        assert following.update()
        # Beside the header, nothing before the last known record is read.
        assert {offset for offset in offsets if offset < known} == {0} and len(before) > 1


def test_it_decodes_segments_of_the_survey(tmp_path: Path) -> None:
    written(tmp_path, segment_steps=5)
    following = Following(tmp_path)
    following.update()
    found = following.survey
    episode = max(found.episodes, key=lambda one: one.steps)
    for one in found.lanes[episode.lane].segments:
        arrays = following.survey.unpack(one, ("reward", "obs.picture"))
        assert set(arrays) == {"flags", "reward", "obs.picture"} and len(arrays["reward"]) == one.header.steps
    assert len(list(found.frames(episode, "obs.picture", np.arange(9)))) == min(9, episode.steps + 1)
    region_of(tmp_path).unlink()
    with pytest.raises(DamagedError, match="byte"):
        following.survey.unpack(found.segments[0], ("reward",))


def test_another_checkpoint_in_its_place(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=1000, segment_steps=8)
    writer = Writer(store)
    fill(writer, 100, 2)
    store.checkpoint(tmp_path / "saved")
    following = Following(tmp_path / "saved")
    assert following.update() and following.survey.steps == 100
    fill(writer, 50, 2, seed=1)
    store.checkpoint(tmp_path / "saved")
    assert following.update() and not following.update()
    assert_same(following.survey, survey(tmp_path / "saved"))


def test_a_checkpoint_that_another_replaces_meanwhile_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files were those of the one, and the segments it should have those of the other."""
    saved, real = tmp_path / "saved", scan._checkpoint
    with sw.Store(SPEC, capacity=1000, segment_steps=8) as store:
        writer = Writer(store)
        due: list[int] = []

        def replaced(*given: Any) -> Any:
            if due:
                fill(writer, 50, 2, seed=due.pop())
                store.checkpoint(saved)
            return real(*given)

        monkeypatch.setattr(scan, "_checkpoint", replaced)
        fill(writer, 100, 2)
        store.checkpoint(saved)
        following = Following(saved)
        due.append(1)
        assert following.update() and following.survey.steps == 150 and not following.survey.damages
        due.append(2)
        found = check(saved)
        assert found.steps == 200 and not found.damages


def test_a_record_that_was_half_written_is_found_later(tmp_path: Path) -> None:
    written(tmp_path)
    path = region_of(tmp_path)
    whole = path.read_bytes()
    _, records, _ = region.read_region(path)
    cut = records[-3].offset + records[-3].nbytes // 2
    path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
    following = Following(tmp_path)
    following.update()
    fewer = following.survey.steps
    assert following.survey.damages and fewer < 500
    with path.open("r+b") as file:  # the same file, written to
        file.write(whole)
    assert following.update() and following.survey.steps == 500 and not following.survey.damages


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 64])
def test_no_store_there(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Following(tmp_path)
    (tmp_path / "store.json").write_bytes(content)
    with pytest.raises(DamagedError):
        Following(tmp_path)


def test_progress_is_that_of_the_new_bytes(tmp_path: Path) -> None:
    written(tmp_path)
    told_: list[Any] = []
    following = Following(tmp_path)

    def begin(total: int) -> Any:
        told_.append(total)
        return told_.append

    following.update(begin)
    assert told_[0] == region_of(tmp_path).stat().st_size and sum(told_[1:]) <= told_[0]


def test_damage_in_a_file_that_grows_is_told_at_every_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = surveys._outline

    def outline(reader: Any, record: Any) -> Any:
        if not record.id >> 32 and record.id < 16:
            raise DamagedError("as if it could not be decoded")
        return real(reader, record)

    monkeypatch.setattr(surveys, "_outline", outline)
    with sw.Store(SPEC, capacity=20_000, disk=tmp_path, segment_steps=16) as store:
        writer = Writer(store)
        fill(writer, 300, 2)
        following = Following(tmp_path)
        for seed in range(3):
            assert following.update()
            assert len(following.survey.damages) == 1
            assert_same(following.survey, survey(tmp_path))
            fill(writer, 100, 2, seed=seed)


def test_damage_before_the_last_record_is_told_at_every_look(tmp_path: Path) -> None:
    """It is not read again: without a word of it, a damaged file looks sound from the second look on."""
    with sw.Store(SPEC, capacity=20_000, disk=tmp_path, segment_steps=16, codec="raw") as store:
        writer = Writer(store)
        fill(writer, 300, 2)
        store.flush()
        with region_of(tmp_path).open("r+b") as file:
            file.seek(region.FIRST + 200)
            file.write(b"\xff\xfe\xfd")
        following = Following(tmp_path)
        following.update()
        for seed in range(3):
            assert not following.update() and len(following.survey.damages) == 1
            assert_same(following.survey, survey(tmp_path))
            fill(writer, 100, 2, seed=seed)
            assert following.update()


def test_a_file_is_scanned_once_for_all_its_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, segment_steps=5)
    begins: list[int] = []

    def counted(path: Path, identity: Any, directory: Any, begin: int, values: Any) -> Any:
        begins.append(begin)
        return region.read_region(path, identity, directory, begin, values)

    monkeypatch.setattr(region_scan, "read_region", counted)
    assert sum(len(one.reward) for one in RecordedEpisodes(tmp_path)) > 100
    assert begins.count(region.FIRST) == 1 < len(begins)
