"""Data sets of TensorFlow Datasets and of LeRobot, written by these packages (``tests/data``) and read without them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import sharpwave as sw
from sharpwave.data import tfrecord
from tests.data.lerobot import frames
from tests.data.rlds import LENGTHS, SPLITS, steps_of
from tests.data_sets.data import opened, same

DATA = Path(__file__).parent.parent / "data"


def test_rlds_is_read_as_tensorflow_datasets_wrote_it() -> None:
    store = sw.load(f"rlds:{DATA / 'rlds'}")
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
