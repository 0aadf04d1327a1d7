"""A store's folder looked at from outside, against a list of what was appended, and against every kind of damage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.disk.region_files import RegionFiles
from sharpwave.disk.store_folder import packed_manifest
from sharpwave.errors import DamagedError
from sharpwave.format import segment
from sharpwave.format.region import (
    DICTIONARY,
    FIRST,
    HEADER,
    MAGIC,
    RECORD,
    RECORD_MAGIC,
    SEGMENT,
    TAIL,
    Damage,
    Identity,
    read_region,
)
from sharpwave.native.files import Files
from sharpwave.offline.episodes import Episode, frames, survey
from sharpwave.offline.scan import LIMITS, describe
from sharpwave.offline.verify import check

SHAPE = (24, 24)
BACKGROUND = np.random.default_rng(9).integers(0, 256, SHAPE, dtype=np.uint8)
"""Nothing packs it; so that columns earn a dictionary."""
SPEC = sw.Spec(
    obs={
        "picture": sw.Field(SHAPE, "uint8", stack=3),
        "position": sw.Field((2,), "float32"),
    },
    action=sw.Field((), "int64"),
)


def observation(serial: int) -> dict[str, Any]:
    picture = BACKGROUND.copy()
    picture[serial % 24, serial % 23] = serial % 251 + 1
    picture[0, 0] = serial // 251
    return {"picture": picture, "position": np.array([serial, -serial], np.float32)}


@dataclass
class Writer:
    """Appends steps to a store, and keeps the plainest account of them: by lane (serial, reward, end)."""

    store: sw.Store
    history: dict[int, list[tuple[int, float, str]]] = field(default_factory=dict)
    serial: int = 0

    def append(self, lane: int, end: str = "", reward: float | None = None) -> None:
        reward = float(self.serial % 4 - 1) if reward is None else reward
        self.store.append(
            lane=lane, obs=observation(self.serial), action=self.serial % 5, reward=reward,
            terminated=end == "terminated", truncated=end == "truncated",
            final_obs=observation(self.serial + 30_000) if end else None,
        )  # fmt: skip
        self.history.setdefault(lane, []).append((self.serial, reward, end))
        self.serial += 1

    def episodes(self) -> list[tuple[int, int, int, float, str]]:
        """(lane, first step, steps, return, end)."""
        found = []
        for lane, steps in self.history.items():
            first = 0
            for at, (_, _, end) in enumerate(steps):
                if end or at == len(steps) - 1:
                    total = sum(reward for _, reward, _ in steps[first : at + 1])
                    found.append((lane, first, at + 1 - first, total, end or "unfinished"))
                    first = at + 1
        return sorted(found)


def fill(writer: Writer, steps: int, lanes: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        lane = int(rng.integers(lanes))
        writer.append(lane, str(rng.choice(["", "terminated", "truncated"], p=[0.92, 0.05, 0.03])))


def written(folder: Path, codec: str = "auto", steps: int = 500, lanes: int = 3, **settings: Any) -> Writer:
    """A store of several lanes, flushed and closed."""
    with sw.Store(SPEC, **{"capacity": 100_000, "segment_steps": 16, "codec": codec, "disk": folder, **settings}) as s:
        writer = Writer(s)
        fill(writer, steps, lanes)
        s.flush()
    return writer


def told(episodes: list[Episode]) -> list[tuple[int, int, int, float, str]]:
    return sorted((one.lane, one.first_step, one.steps, one.total, one.end) for one in episodes)


def region_of(folder: Path) -> Path:
    return min((folder / "regions").glob("*.region"))


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


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
    assert found.regions[0].nbytes == region_of(tmp_path).stat().st_size >= found.regions[0].used


def test_frames_are_those_that_were_appended(tmp_path: Path) -> None:
    writer = written(tmp_path, segment_steps=5)
    found = survey(tmp_path)
    for episode in found.episodes:
        mine = writer.history[episode.lane][episode.first_step :][: episode.steps]
        shown = list(frames(found, episode, "obs.picture", np.arange(episode.steps + 5)))
        assert [one.step for one in shown] == list(range(episode.steps + (episode.end != "unfinished")))
        for one, (serial, reward, _) in zip(shown, mine, strict=False):
            assert one.reward == reward
            np.testing.assert_array_equal(one.frame, observation(serial)["picture"])
        if episode.end != "unfinished":
            assert shown[-1].reward is None
            np.testing.assert_array_equal(shown[-1].frame, observation(mine[-1][0] + 30_000)["picture"])
    longest = max(found.episodes, key=lambda one: one.steps)
    some = np.array([0, 3, longest.steps - 1])
    assert [one.step for one in frames(found, longest, "obs.position", some)] == some.tolist()


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

    monkeypatch.setattr("sharpwave.offline.scan.read_region", writing)
    assert [one.offset for one in check(tmp_path).damages] == [300]


def test_a_file_that_goes_meanwhile_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    gone = tmp_path / "regions" / f"{9:012d}.region"
    paths = [region_of(tmp_path), gone]
    for module in ("scan", "verify", "episodes"):
        monkeypatch.setattr(f"sharpwave.offline.{module}.region_files", lambda folder: paths)
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


@pytest.fixture(scope="module")
def store_bytes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A store with dictionaries and tails, and the bytes of its region file, cut behind its last record."""
    folder = tmp_path_factory.mktemp("sound")
    written(folder, steps=300)
    path = region_of(folder)
    region, _, _ = read_region(path)
    assert region is not None and region.keys
    os.close(region.descriptor)
    return folder, path.read_bytes()[: region.used + 200]


@pytest.fixture
def damaged(store_bytes: tuple[Path, bytes], tmp_path: Path) -> Iterator[tuple[Path, Path, bytes]]:
    """A copy of it: its folder, its region file, that file's bytes."""
    folder, data = store_bytes
    copy = tmp_path / "store"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.region"))
    path = copy / "regions" / "000000000000.region"
    yield copy, path, data


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharpwave.offline.scan.LOOK_AGAIN_S", 0.0)


def test_every_flipped_bit_is_found_and_named(damaged: tuple[Path, Path, bytes]) -> None:
    folder, path, data = damaged
    rng = np.random.default_rng(1)
    path.write_bytes(data)
    baseline = [damage for damage in check(folder).damages if damage.path == path]
    assert len(baseline) == 1 and "the file ends here" in baseline[0].what  # this fixture cut the file
    places = [*rng.integers(0, len(data), 200).tolist(), 0, FIRST - 1, FIRST, len(data) - 1]
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        damages = [one for one in check(folder).damages if "the file ends here" not in one.what]
        assert damages, f"byte {place}"
        assert any(one.path == path and one.offset <= place < one.offset + one.nbytes for one in damages), (
            place, damages,
        )  # fmt: skip
        survey(folder)


def test_a_file_cut_off_anywhere_is_found(damaged: tuple[Path, Path, bytes]) -> None:
    folder, path, data = damaged
    rng = np.random.default_rng(2)
    for length in [0, 1, FIRST - 1, FIRST, FIRST + 1, len(data) - 1, *rng.integers(0, len(data), 100).tolist()]:
        path.write_bytes(data[:length])
        found = check(folder)
        assert any(one.path == path for one in found.damages)
        survey(folder)


def test_garbage_of_any_kind_is_damage_and_never_an_exception(damaged: tuple[Path, Path, bytes]) -> None:
    folder, path, data = damaged
    rng = np.random.default_rng(3)
    kinds = [b"", b"\0" * 500, b"SWRC" * 3000, data[:FIRST] + b"SWRC" * 20_000, data[FIRST:], data + data]
    for size in (1, 40, 72, 1000, 50_000):
        noise = rng.integers(0, 256, size, dtype=np.uint8).tobytes()
        kinds += [noise, data[:FIRST] + noise, data[:5000] + noise + data[5000:]]
    for content in kinds:
        path.write_bytes(content)
        assert check(folder).damages
        survey(folder)


def rewrite(folder: Path, kind: int, id_: int, payload: bytes) -> None:
    """A record whose checksums hold, appended in a region of its own."""
    identity = describe(folder).identity
    (number,) = {int(path.stem) + 1 for path in [max((folder / "regions").glob("*.region"))]}
    regions = RegionFiles(folder / "regions", identity, 1 << 16, Files())
    regions.next_number, regions.sequence = number, 10**6
    regions.append(kind, id_, payload, 10**6, {})
    regions.close()


def payloads(path: Path, kind: int) -> list[tuple[int, bytes]]:
    region, records, _ = read_region(path)
    assert region is not None
    found = [(one.id, os.pread(region.descriptor, one.nbytes, one.offset)) for one in records if one.kind == kind]
    os.close(region.descriptor)
    return found


def sealed(body: bytes) -> bytes:
    return body + zlib.crc32(body).to_bytes(4, "little")


def test_segments_that_lie_under_right_checksums_are_found(damaged: tuple[Path, Path, bytes]) -> None:
    folder, path, data = damaged
    path.write_bytes(data + bytes((1 << 20) - len(data)))
    rng = np.random.default_rng(4)
    id_, one = payloads(path, SEGMENT)[3]
    path.unlink()
    reported = 0
    for round_ in range(200):
        body = bytearray(one[:-4])
        for _ in range(int(rng.integers(1, 4))):
            body[int(rng.integers(0, len(body) if round_ % 2 else 300))] ^= 1 << int(rng.integers(8))
        body[4:6] = one[4:6]  # else it is another release's, and refused as that
        body[56:60] = one[56:60]  # the same holds for a feature that is not known
        path.write_bytes(data + bytes((1 << 20) - len(data)))
        rewrite(folder, SEGMENT, 10**6 << 32 | id_, sealed(bytes(body)))
        found = check(folder)  # some changes are other values, and as right as those before
        reported += bool([one for one in found.damages if one.path.name == f"{1:012d}.region"])
        survey(folder)
        (folder / "regions" / f"{1:012d}.region").unlink()
    assert reported > 50


def test_a_segment_that_claims_to_be_huge_is_not_believed(damaged: tuple[Path, Path, bytes]) -> None:
    folder, path, data = damaged
    path.write_bytes(data)
    id_, one = payloads(path, SEGMENT)[0]
    body = bytearray(one[:-4])
    body[32:36] = (2**32 - 1).to_bytes(4, "little")
    body[36:40] = (2**32 - 1).to_bytes(4, "little")
    for column in range(5):
        body[segment.HEADER.size + 32 * column + 4 : segment.HEADER.size + 32 * column + 8] = (2**32 - 1).to_bytes(
            4, "little"
        )
    rewrite(folder, TAIL, 10**6 << 32 | id_, sealed(bytes(body)))
    assert any("4,294,967,295 steps" in one.what for one in check(folder).damages)


def test_a_record_as_large_as_a_sparse_file_takes_no_memory(tmp_path: Path) -> None:
    import resource

    sw.Store(SPEC, capacity=100_000, disk=tmp_path).close()
    path = tmp_path / "regions" / f"{0:012d}.region"
    me = describe(tmp_path).identity
    nbytes = 1 << 29
    for kind in (SEGMENT, DICTIONARY):
        header = HEADER.pack(MAGIC, 1, 0, 0, nbytes, me.schema, me.store, 0, 0, 0)[:-4]
        record = RECORD.pack(RECORD_MAGIC, kind, nbytes - FIRST - RECORD.size, 0, 0, 0, 0)[:-4]
        parts = [header, zlib.crc32(header).to_bytes(4, "little"), record, zlib.crc32(record).to_bytes(4, "little")]
        path.write_bytes(b"".join(parts))
        os.truncate(path, nbytes)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert len(check(tmp_path).damages) == 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_missing_dictionaries_overlaps_and_copies_are_found(tmp_path: Path) -> None:
    written(tmp_path, "delta")
    path = region_of(tmp_path)
    segments = [(id_, payload) for id_, payload in payloads(path, SEGMENT)]
    refers = [one for one in segments if any(np.frombuffer(one[1][56 : 56 + 160], "<u8").reshape(5, 4)[:, 3])]
    rewrite(tmp_path, SEGMENT, 10**6 << 32 | refers[0][0], refers[0][1])  # as written, but in another region
    damages = check(tmp_path).damages
    assert any("which this region does not hold" in one.what and one.path.stem == f"{1:012d}" for one in damages)
    (tmp_path / "regions" / f"{1:012d}.region").unlink()

    written(tmp_path / "plain", "raw")
    _, plain = payloads(region_of(tmp_path / "plain"), SEGMENT)[4]
    rewrite(tmp_path / "plain", SEGMENT, 10**6 << 32 | 10**6, plain)  # the same steps in another slot
    (damage,) = check(tmp_path / "plain").damages
    assert "are in another segment as well" in damage.what
    survey(tmp_path / "plain")

    shutil.copy(path, tmp_path / "regions" / f"{7:012d}.region")
    assert "region 0, expected 000000000000.region" in check(tmp_path).damages[0].what


def test_what_does_not_belong_is_named(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    written(mine), written(other)
    stray = mine / "regions" / f"{5:012d}.region"
    shutil.copy(region_of(other), stray)
    (damage,) = check(mine).damages
    assert damage.path == stray and "region of store" in damage.what
    survey(mine)
    with sw.Store.open(mine) as store:
        assert store.recovery is not None and len(store.recovery.damages) == 1
    (mine / "notes.txt").write_text("hello")
    found = check(mine)
    assert found.damages == [damage], "another store's region is left where it is"
    assert any("notes.txt" in note for note in found.notes)
    os.mkfifo(mine / "regions" / "pipe.region")
    (mine / "regions" / "folder.region").mkdir()
    assert [one.what for one in check(mine).damages] == [
        damage.what, "a folder, expected a regular file", "a FIFO, expected a regular file"
    ]  # fmt: skip


def test_a_region_that_is_gone_leaves_gaps_and_no_wrong_episode(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=100_000, disk=tmp_path, disk_limit=16 << 20, codec="raw") as store:
        writer = Writer(store)
        fill(writer, 12_000, 2)
        store.flush()
    paths = sorted((tmp_path / "regions").glob("*.region"))
    assert len(paths) > 2
    paths[1].unlink()
    found = check(tmp_path)
    assert found.damages == [] and any("are not there" in note for note in found.notes)
    expected = {one[:3]: one for one in writer.episodes()}
    for one in survey(tmp_path).episodes:
        if one.whole:
            assert expected[one.lane, one.first_step, one.steps] == told([one])[0]
        else:
            assert (one.lane, one.first_step, one.steps) not in expected or one.end == "unfinished" or not one.begun


MANIFESTS = [
    b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format": 1, "store": "00", "schema": 1}',
    b'{"format": 1, "store": "%s", "schema": Infinity}' % (b"00" * 16),
]  # fmt: skip


@pytest.mark.parametrize("content", MANIFESTS, ids=range(len(MANIFESTS)))
def test_a_damaged_manifest_is_a_damage_and_the_rest_is_checked(content: bytes, tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "store.json").write_bytes(content)
    found = check(tmp_path)
    assert [one.path.name for one in found.damages] == ["store.json"] and found.segments > 10
    with pytest.raises(DamagedError, match=r"store\.json"):
        survey(tmp_path)


def test_every_part_of_a_manifest_may_be_anything(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "store.json"
    manifest = json.loads(path.read_text())
    for name in manifest.keys() - {"checksum"}:
        values: list[Any] = [None, -1, 1.5, "x", [], {}, {"fields": {}}, {"fields": {"obs": 3}}, 10**30]
        for value in values:
            if value is None and name in ("capacity", "ram", "disk_limit"):
                continue
            path.write_bytes(packed_manifest({**manifest, name: value}))
            assert check(tmp_path).damages or name in (*LIMITS, "on_full", "retention"), (name, value)
    path.unlink()
    assert "is missing" in check(tmp_path).damages[0].what


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
