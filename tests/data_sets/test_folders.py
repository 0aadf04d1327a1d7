"""Data sets of TensorFlow Datasets and of LeRobot, written by these packages (``tests/data``) and read without them."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

import sharpwave as sw
from sharpwave.data import tfrecord
from tests.data.lerobot import frames
from tests.data.rlds import LENGTHS, SPLITS, steps_of
from tests.data_sets.data import opened, same
from tests.data_sets.hostile import minari

DATA = Path(__file__).parent.parent / "data"


def test_rlds_is_read_as_tensorflow_datasets_wrote_it() -> None:
    store = sw.load(f"rlds:{DATA / 'rlds'}", last="final")
    expected = [(steps_of(e, offset), e) for count, offset in SPLITS.values() for e in range(count)]
    assert len(store.episodes()) == len(expected) and len(store) == sum(len(steps) - 1 for steps, _ in expected)
    for one in store.episodes():  # shuffled within a split
        steps, number = next(
            (steps, e)
            for steps, e in expected
            if len(steps) == one.length + 1 and (steps[0]["action"] == one.action[0]).all()
        )
        for key in ("image", "small", "packed"):
            assert same(one.obs[key], np.stack([step["observation"][key] for step in steps]))
        states = np.stack([step["observation"]["state"] for step in steps])
        assert same(one.obs["state"], states.astype(np.float32).astype(np.float64))  # the format has no float64
        assert same(one.action, np.stack([step["action"] for step in steps[:-1]]))
        assert same(one.reward, np.array([step["reward"] for step in steps[:-1]]))
        assert one.terminated[-1] == (number % 2 == 0) and one.truncated[-1] == (number % 2 == 1)
        assert one.info["seed"] == number and one.info["file_path"] == f"/x/{number}"
        assert one.info["language_instruction"] == "do it"
    assert sorted(one.length for one in store.episodes()) == sorted([*LENGTHS, *LENGTHS[:2]])


def test_crc_and_numbers_of_tfrecords() -> None:
    # RFC 3720, B.4: CRC-32C of 32 zeros is 0x8A9136AA, of 32 ones 0x62A8AB43.
    def masked(crc: int) -> int:
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    assert tfrecord.masked_crc(bytes(32)) == masked(0x8A9136AA)
    assert tfrecord.masked_crc(b"\xff" * 32) == masked(0x62A8AB43)
    # An Example with the feature "n" of the packed integers 300 and -1.
    numbers = b"\xac\x02" + b"\xff" * 9 + b"\x01"
    feature = b"\x1a" + bytes([len(numbers) + 2]) + b"\x0a" + bytes([len(numbers)]) + numbers
    entry = b"\x0a\x01n" + b"\x12" + bytes([len(feature)]) + feature
    data = b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry
    assert np.asarray(tfrecord.example(data)["n"]).tolist() == [300, -1]


def test_damaged_examples_raise_value_errors() -> None:
    with opened(DATA / "rlds" / "toy-train.tfrecord-00000-of-00001") as file:
        content = tfrecord.read(file, next(iter(tfrecord.records(file, "toy"))))
    rng = np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(content[: rng.integers(1, len(content))])
        for at in rng.integers(0, len(data), 3):
            data[at] = rng.integers(256)
        try:
            tfrecord.example(bytes(data))
        except ValueError:
            continue


def check_lerobot(store: sw.Store) -> None:
    episodes = list(store.episodes())
    assert [one.info["tasks"] for one in episodes] == [[f"task {number}"] for number in range(4)]
    for number, one in enumerate(episodes):
        rows, done = frames(number), number % 2 == 0
        steps = len(rows) if done else len(rows) - 1
        assert one.length == steps and one.ended == ("terminated" if done else "truncated")
        for name, key in (
            ("obs.state", "observation.state"),
            ("obs.environment_state", "observation.environment_state"),
            ("obs.images.top", "observation.images.top"),
        ):
            expected = np.stack([row[key] for row in rows])
            assert same(one.observations(name)[: len(rows)], expected), name
        assert same(one.action, np.stack([row["action"] for row in rows[:steps]]))
        assert same(one.reward, np.concatenate([row["next.reward"] for row in rows[:steps]]))


def test_lerobot_3_is_read_as_lerobot_wrote_it() -> None:
    check_lerobot(sw.load(f"lerobot:{DATA / 'lerobot'}"))


def test_lerobot_2_1_one_file_an_episode(tmp_path: Path) -> None:
    """The same data in the layout of v2.1, by its documentation."""
    (tmp_path / "meta").mkdir()
    (tmp_path / "data" / "chunk-000").mkdir(parents=True)
    info = json.loads((DATA / "lerobot" / "meta" / "info.json").read_text())
    info |= {"codebase_version": "v2.1"}
    info |= {"data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"}
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info))
    table = parquet.read_table(DATA / "lerobot" / "data" / "chunk-000" / "file-000.parquet")
    lines = []
    for number in range(4):
        rows = table.filter(pa.compute.equal(table.column("episode_index"), number))
        lines.append(json.dumps({"episode_index": number, "tasks": [f"task {number}"], "length": rows.num_rows}))
        parquet.write_table(rows, tmp_path / "data" / "chunk-000" / f"episode_{number:06d}.parquet")
    (tmp_path / "meta" / "episodes.jsonl").write_text("\n".join(lines))
    check_lerobot(sw.load(f"lerobot:{tmp_path}"))


@pytest.mark.parametrize(
    "changed",
    [
        {"data_path": "../../{chunk_index}{file_index}/etc/passwd"},
        {"data_path": "{chunk_index.__class__}"},
        {"data_path": "{unknown}"},
        {"codebase_version": "v9"},
        {"features": 3},
    ],
)
def test_hostile_lerobot_info_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    shutil.copytree(DATA / "lerobot", tmp_path / "copy")
    path = tmp_path / "copy" / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises((ValueError, FileNotFoundError), match="lerobot:"):
        sw.load(f"lerobot:{tmp_path / 'copy'}")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "lerobot", tmp_path / "set"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A data set of a file an episode."""
    return Path(shutil.copytree(DATA / "lerobot_video" / "v2.1", tmp_path / "set"))


def episodes_of(folder: Path) -> Path:
    return next(folder.glob("meta/episodes/*/*.parquet"))


def noted(store: sw.Store) -> dict[str, Any]:
    (note,) = store.annotations()["imports"].values()
    return dict(note)


def test_rows_are_found_by_their_episodes_number(images: Path) -> None:
    """Also where meta/episodes lacks the first episode of a file, or the rows are in another order than it says."""
    right = {one.info["tasks"][0]: one for one in sw.load(f"lerobot:{images}").episodes()}
    path = next(images.glob("data/*/*.parquet"))
    table = parquet.read_table(path)
    numbers = table.column("episode_index").to_numpy()
    parquet.write_table(table.take(np.argsort(-numbers, kind="stable")), path)
    store = sw.load(f"lerobot:{images}")
    assert [one.info["tasks"] for one in store.episodes()] == [[f"task {number}"] for number in range(4)]
    for one in store.episodes():
        assert same(one.obs, right[one.info["tasks"][0]].obs) and same(one.action, right[one.info["tasks"][0]].action)
    parquet.write_table(parquet.read_table(episodes_of(images)).slice(1), episodes_of(images))
    store = sw.load(f"lerobot:{images}")
    assert [one.info["tasks"] for one in store.episodes()] == [[f"task {number}"] for number in range(1, 4)]
    for one in store.episodes():
        assert same(one.obs, right[one.info["tasks"][0]].obs)
    assert f"{(numbers == 0).sum()} rows of episodes that meta/episodes does not list" in noted(store)["left_out"]


def test_rows_that_do_not_follow_one_another(images: Path) -> None:
    path = next(images.glob("data/*/*.parquet"))
    table = parquet.read_table(path)
    numbers = table.column("episode_index").to_numpy()
    at = int(np.flatnonzero(numbers == 1)[0])
    order = np.arange(len(table))
    order[[at, at + 1]] = order[[at + 1, at]]
    parquet.write_table(table.take(order), path)
    with pytest.raises(ValueError, match=rf"episode 1.*row {at} has frame_index 1, expected 0"):
        sw.load(f"lerobot:{images}")
    note = noted(sw.load(f"lerobot:{images}", skip_damaged=True))
    assert note["skipped_episodes"] == 1 and "frame_index" in note["skipped"][0]
    parquet.write_table(table.slice(0, len(table) - 1), path)
    rows = int((numbers == numbers[-1]).sum())
    message = rf"has {rows - 1} rows of episode_index {numbers[-1]}, but meta/episodes says {rows}"
    with pytest.raises(ValueError, match=message):
        sw.load(f"lerobot:{images}")
    left_out = noted(sw.load(f"lerobot:{images}", skip_damaged=True))["left_out"]
    assert not any("does not list" in one for one in left_out)  # a damaged episode is listed


def changed_rows(folder: Path, change: Any, lengths: dict[int, int]) -> None:
    """Change the rows of a data set, and how long it says that episodes are."""
    path = next(folder.glob("data/*/*.parquet"))
    parquet.write_table(change(parquet.read_table(path)), path)
    table = parquet.read_table(episodes_of(folder))
    said = table.column("length").to_pylist()
    said = [lengths.get(number, one) for number, one in enumerate(said)]
    at = table.column_names.index("length")
    parquet.write_table(
        table.set_column(at, "length", pa.array(said, table.schema.field(at).type)), episodes_of(folder)
    )


def test_what_lerobot_does_not_tell_is_counted(images: Path) -> None:
    """Without next.done nothing says that an episode terminated: its reward, and lost episodes, are counted."""
    info = images / "meta" / "info.json"
    said = json.loads(info.read_text())
    del said["features"]["next.done"]
    info.write_text(json.dumps(said))

    def one_row(table: pa.Table) -> pa.Table:
        first = (table.column("episode_index").to_numpy() != 0) | (table.column("frame_index").to_numpy() == 0)
        return table.filter(pa.array(first))

    changed_rows(images, one_row, {0: 1})
    rewards = [frames(0)[0]["next.reward"], *(frames(number)[-1]["next.reward"] for number in range(1, 4))]
    note = noted(store := sw.load(f"lerobot:{images}"))
    assert [one.length for one in store.episodes()] == [
        len(frames(1)) - 1,
        len(frames(3)) - 1,
    ]  # that of 2 is one frame
    left = note["audit"]["left_out"]
    assert left["steps"] == 4 and left["episodes"] == 2 and left["reward"] == pytest.approx(float(np.sum(rewards)))
    assert note["left_out"][0].startswith(
        "4 steps at the ends of episodes (without next.done none is known to terminate)"
    )
    assert note["left_out"][1] == "2 episodes of one such step"
    assert note["audit"]["source"]["episodes"] == 4 and note["audit"]["read"]["episodes"] == 2


def test_damage_found_while_episodes_are_sought_is_skipped(files: Path, tmp_path: Path) -> None:
    whole = sw.load(f"lerobot:{files}")
    next(files.glob("data/*/episode_000002.parquet")).unlink()
    with pytest.raises(FileNotFoundError, match="episode_000002"):
        sw.load(f"lerobot:{files}")
    store = sw.load(f"lerobot:{files}", skip_damaged=True)
    assert len(store.episodes()) == len(whole.episodes()) - 1
    note = noted(store)
    assert note["skipped_episodes"] == 1 and "episode_000002.parquet: episode 2: " in note["skipped"][0]
    folder = Path(shutil.copytree(DATA / "rlds", tmp_path / "rlds"))
    path = next(folder.glob("*train.tfrecord*"))
    with opened(path) as file:
        place = list(tfrecord.records(file, path.name))[3]
    content = bytearray(path.read_bytes())
    content[place.offset + place.nbytes // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path.name}.* does not match its checksum"):
        sw.load(f"rlds:{folder}")
    store = sw.load(f"rlds:{folder}", skip_damaged=True)
    assert len(store.episodes()) == len(sw.load(f"rlds:{DATA / 'rlds'}").episodes()) - 1
    assert "does not match its checksum" in noted(store)["skipped"][0]


def test_a_file_of_more_rows_than_its_episode(files: Path) -> None:
    path = files / "meta" / "episodes.jsonl"
    path.write_text(path.read_text().replace('"length": 40', '"length": 38'))
    with pytest.raises(ValueError, match=r"has 40 rows, but meta/episodes\.jsonl says 38; fetch both anew"):
        sw.load(f"lerobot:{files}")


def test_an_episode_that_is_listed_twice(files: Path) -> None:
    path = files / "meta" / "episodes.jsonl"
    path.write_text(path.read_text() * 2)
    with pytest.raises(ValueError, match="lists episode 0 twice"):
        sw.load(f"lerobot:{files}")


def test_what_is_not_imported_is_named(files: Path) -> None:
    path = files / "meta" / "episodes.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    said = sw.load(f"lerobot:{files}").annotations()["imports"][f"lerobot:{files}"]["left_out"]
    assert said[0].startswith("1 steps at the ends of episodes that did not terminate")
    assert said[1] == "episodes: info.json says 4, meta/episodes lists 2"


def test_files_that_the_metadata_do_not_name(files: Path, tmp_path: Path) -> None:
    """A file of an episode of v2.1, and of several of v3."""
    lines = files / "meta" / "episodes.jsonl"
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[:-1]))
    said = "episodes: 1 files without an episode in the metadata, data/chunk-000/{}.parquet"
    assert said.format("episode_000003") in noted(sw.load(f"lerobot:{files}"))["left_out"]
    folder = Path(shutil.copytree(DATA / "lerobot", tmp_path / "three"))
    data = folder / "data" / "chunk-000"
    shutil.copy(data / "file-000.parquet", data / "file-001.parquet")
    assert said.format("file-001") in noted(sw.load(f"lerobot:{folder}"))["left_out"]


def test_episodes_behind_a_link_are_not_passed_over(images: Path, tmp_path: Path) -> None:
    table, path = parquet.read_table(episodes_of(images)), episodes_of(images)
    (tmp_path / "elsewhere").mkdir()
    parquet.write_table(table.slice(2), tmp_path / "elsewhere" / "file-000.parquet")
    parquet.write_table(table.slice(0, 2), path)
    (path.parent.parent / "chunk-001").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"meta/episodes/chunk-001: its path leads through a symbolic link.*cp -rL"):
        sw.load(f"lerobot:{images}")
    whole = len(sw.load(f"lerobot:{DATA / 'lerobot'}"))
    assert len(sw.load(f"lerobot:{images}", trust=True)) == whole


@pytest.mark.parametrize("mode", ["I;16", "1", "P"])
def test_pixels_of_more_or_fewer_bits(images: Path, mode: str) -> None:
    """Their low bytes, bits and numbers of colors are no pixels."""
    info = images / "meta" / "info.json"
    said = json.loads(info.read_text())
    said["features"]["observation.images.top"]["shape"] = [8, 6, 1]
    info.write_text(json.dumps(said))
    content = io.BytesIO()
    Image.new(mode, (6, 8), 1).save(content, "PNG")
    path = next(images.glob("data/*/*.parquet"))
    table = parquet.read_table(path)
    at = table.column_names.index("observation.images.top")
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    rows = pa.array([{"bytes": content.getvalue(), "path": None}] * len(table), kind)
    parquet.write_table(table.set_column(at, "observation.images.top", rows), path)
    with pytest.raises(ValueError, match=f"pixels of mode {mode}, expected uint8"):
        sw.load(f"lerobot:{images}")


def test_names_drive_no_terminal(images: Path) -> None:
    info = images / "meta" / "info.json"
    said = json.loads(info.read_text())
    said["features"]["\x1b]0;x\x07"] = {"dtype": "string", "shape": [1]}
    info.write_text(json.dumps(said))
    noted = sw.load(f"lerobot:{images}").annotations()["imports"][f"lerobot:{images}"]["left_out"]
    assert r"\x1b]0;x\x07: the data do not have it" in noted
    path = episodes_of(images)
    path.parent.rename(path.parent.with_name("\x1b]0;x\x07"))
    next(images.glob("meta/episodes/*/*.parquet")).write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"meta/episodes/\\x1b\]0;x\\x07/file-000") as caught:
        sw.load(f"lerobot:{images}")
    assert str(caught.value).isprintable()


def test_minari_of_other_numbers_than_its_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps beyond the number that is said would evict the first ones from a store of that capacity."""
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    path = tmp_path / "me" / "toy-v0" / "data" / "metadata.json"
    place = minari(tmp_path, lambda data: None)
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"total_steps": 15}))
    with pytest.raises(ValueError, match="episodes to number 1 have 20 steps, expected the 15 that it says"):
        sw.load(place)
    path.write_text(json.dumps(said | {"total_episodes": 2, "total_steps": 20}))
    store = sw.load(place)
    left_out = noted(store)["left_out"]
    assert len(store) == 20 and left_out[-1] == "episodes: metadata.json says 2, main_data.hdf5 has 3"
