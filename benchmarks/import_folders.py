"""Data sets of Minari, LeRobot and RLDS, and damages of them (``imports.py``)."""

# mypy: disable-error-code="func-returns-value, misc, var-annotated"
from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from imports import LENGTHS, Episode, Format

from sharpwave.data.tfrecord import masked_crc

Change = Callable[..., Any]
ALL = range(len(LENGTHS))
HIT = 3
"""Number of the episode that is damaged; it has 7 steps and was truncated."""


def cut(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def flip(path: Path, share: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 0x55
    path.write_bytes(content)


# Minari, written by minari


def write_minari(folder: Path, episodes: list[Episode], change: Change) -> str:
    import gymnasium as gym
    import minari
    from minari.data_collector import EpisodeBuffer

    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    buffers = []
    for number, one in enumerate(episodes):
        last = np.arange(len(one.reward)) == len(one.reward) - 1
        words = ["go"] * len(one.obs)
        buffers.append(
            EpisodeBuffer(
                id=number, observations={"state": one.obs, "mission": words}, actions=one.action,
                rewards=one.reward.astype(np.float64), terminations=last & one.terminated,
                truncations=last & (not one.terminated), infos={"x": np.arange(len(one.obs))},
            )
        )  # fmt: skip
    space = gym.spaces.Dict({"state": gym.spaces.Box(-999, 999, (3,)), "mission": gym.spaces.Text(9)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            "me/toy-v0", buffers, observation_space=space, action_space=gym.spaces.Discrete(9)
        )
    data = folder / "me" / "toy-v0" / "data"
    if getattr(change, "of_files", False):
        change(data)
    else:
        with h5py.File(data / "main_data.hdf5", "r+") as file:
            change(file)
    return "minari:me/toy-v0"


def of_files(change: Change) -> Change:
    """Mark a damage of files, not of the arrays in them."""

    def changed(folder: Path) -> Any:
        return change(folder)

    changed.of_files = True  # type: ignore[attr-defined]
    return changed


MINARI: dict[str, Change] = {"": lambda data: None}


def put(name: str, values: Callable[[Any], Any], number: int = HIT) -> Change:
    def change(file: Any) -> None:
        group = file[f"episode_{number}"]
        made = values(group[name][()])
        del group[name]
        group[name] = made

    return change


for name in ("observations/state", "actions", "rewards", "terminations", "truncations", "infos/x"):
    MINARI[f"{name} short"] = put(name, lambda x: x[:-1])
    MINARI[f"{name} long"] = put(name, lambda x: np.concatenate([x, x[:1]]))
    MINARI[f"{name} empty"] = put(name, lambda x: x[:0])
    MINARI[f"{name} missing"] = lambda file, name=name: file[f"episode_{HIT}"].__delitem__(name)
    MINARI[f"{name} text"] = put(name, lambda x: ["a"] * len(x))
for name, dtype in (
    ("observations/state", "f8"), ("observations/state", "f2"), ("actions", "u1"), ("actions", "f4"), ("rewards", "f4"),
    ("rewards", "f2"), ("terminations", "u1"), ("truncations", "f4"), ("observations/state", ">f4"), ("rewards", "c8"),
):  # fmt: skip
    MINARI[f"{name} as {dtype} in one"] = put(name, lambda x, dtype=dtype: x.astype(dtype))
MINARI["rewards [N, 1] in one"] = put("rewards", lambda x: x[:, None])
MINARI["terminations [N, 1] in one"] = put("terminations", lambda x: x[:, None])
MINARI["NaN reward"] = put("rewards", lambda x: np.where(np.arange(len(x)) == 2, np.nan, x))
MINARI["reward beyond float32"] = put("rewards", lambda x: np.where(np.arange(len(x)) == 2, 1e300, x))
MINARI["termination within"] = put("terminations", lambda x: np.arange(len(x)) == 2)
MINARI["truncation within"] = put("truncations", lambda x: np.arange(len(x)) >= 2)
MINARI["terminations of 2"] = put("terminations", lambda x: x * 2 + 2)
MINARI["no end"] = put("truncations", lambda x: x & False)
MINARI["no end of a terminated one"] = put("terminations", lambda x: x & False, 2)
MINARI["wide observations"] = put("observations/state", lambda x: np.repeat(x, 2, 1))
MINARI["flat observations"] = put("observations/state", lambda x: x[:, 0])
MINARI["mission varies"] = put("observations/mission", lambda x: [b"go"] * (len(x) - 1) + [b"stop"])
MINARI["mission missing"] = lambda file: file[f"episode_{HIT}/observations"].__delitem__("mission")
MINARI["mission of numbers"] = put("observations/mission", lambda x: np.arange(len(x)))
MINARI["mission short"] = put("observations/mission", lambda x: x[:-1])


def with_another(file: Any, other: Any) -> None:
    """Put something in the place of the episode."""
    del file[f"episode_{HIT}"]
    file[f"episode_{HIT}"] = other


def swapped(file: Any) -> None:
    for old, new in (("episode_3", "x"), ("episode_1", "episode_3"), ("x", "episode_1")):
        file.move(old, new)


MINARI |= {
    "an episode is missing": lambda file: file.__delitem__(f"episode_{HIT}"),
    "the last episode is missing": lambda file: file.__delitem__(f"episode_{len(LENGTHS) - 1}"),
    "the first episode is missing": lambda file: file.__delitem__("episode_0"),
    "an episode comes twice": lambda file: (file.__delitem__("episode_5"), file.copy("episode_3", "episode_5")),
    "an episode more": lambda file: file.copy("episode_3", "episode_6"),
    "episodes in another order": swapped,
    "an episode is an array": lambda file: with_another(file, np.zeros(3)),
    "an episode is a link": lambda file: with_another(file, h5py.SoftLink("/episode_1")),
    "an episode of another number": lambda file: file[f"episode_{HIT}"].attrs.__setitem__("id", 9),
}


def said(**changes: Any) -> Change:
    @of_files
    def change(data: Path) -> None:
        path = data / "metadata.json"
        found = json.loads(path.read_text())
        path.write_text(json.dumps({**found, **{k: v(found[k]) for k, v in changes.items()}}))

    return change


MINARI["metadata of more episodes"] = said(total_episodes=lambda n: n + 1)
MINARI["metadata of fewer episodes"] = said(total_episodes=lambda n: n - 1)
MINARI["metadata of more steps"] = said(total_steps=lambda n: n + 1)
MINARI["metadata of fewer steps"] = said(total_steps=lambda n: n - 1)
MINARI["metadata of no episodes"] = said(total_episodes=lambda n: 0, total_steps=lambda n: 0)
MINARI["metadata of other actions"] = said(action_space=lambda one: one.replace("9", "2"))
MINARI["metadata is no JSON"] = of_files(lambda data: (data / "metadata.json").write_text("{"))
MINARI["no metadata"] = of_files(lambda data: (data / "metadata.json").unlink())
MINARI["no data"] = of_files(lambda data: (data / "main_data.hdf5").unlink())
for share in (0.05, 0.5, 0.9, 0.99):
    MINARI[f"cut at {share:.0%}"] = of_files(lambda data, share=share: cut(data / "main_data.hdf5", share))


# LeRobot, by its layout


def frames(episodes: list[Episode]) -> dict[str, list[Any]]:
    """Return the columns of all rows; of a truncated episode there is one more, of its final observation."""
    found: dict[str, list[Any]] = {}
    for number, one in enumerate(episodes):
        count = len(one.reward) + (not one.terminated)
        for t in range(count):
            real = t < len(one.reward)
            row = {
                "observation.state": one.obs[t].tolist(), "action": [float(one.action[t])] if real else [0.0],
                "next.reward": float(one.reward[t]) if real else 0.0, "next.done": one.terminated and t == count - 1,
                "timestamp": t / 10, "frame_index": t, "episode_index": number,
                "index": len(found.get("index", [])), "task_index": 0, "text": "go",
            }  # fmt: skip
            for key, value in row.items():
                found.setdefault(key, []).append(value)
    return found


TYPES = {
    "observation.state": pa.list_(pa.float32()), "action": pa.list_(pa.float32()), "next.reward": pa.float32(),
    "next.done": pa.bool_(), "timestamp": pa.float32(), "text": pa.string(),
}  # fmt: skip
FEATURES = {
    name: {"dtype": dtype, "shape": shape, "names": None}
    for name, dtype, shape in (
        ("observation.state", "float32", [3]), ("action", "float32", [1]), ("next.reward", "float32", [1]),
        ("next.done", "bool", [1]), ("timestamp", "float32", [1]), ("frame_index", "int64", [1]),
        ("episode_index", "int64", [1]), ("index", "int64", [1]), ("task_index", "int64", [1]), ("text", "string", [1]),
    )
}  # fmt: skip


class Rows:
    """Data set of LeRobot before it is written: ``rows`` by column, ``lines`` of its episodes, ``info``, ``types``."""

    def __init__(self, episodes: list[Episode], version: str) -> None:
        self.rows, self.types, self.version = frames(episodes), dict(TYPES), version
        self.info: dict[str, Any] = {
            "codebase_version": version, "total_episodes": len(episodes), "chunks_size": 1000, "fps": 10,
            "total_frames": len(self.rows["index"]), "features": json.loads(json.dumps(FEATURES)),
            "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
            if version == "v2.1" else "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        }  # fmt: skip
        numbers = np.array(self.rows["episode_index"])
        begins = [int(np.argmax(numbers == n)) for n in ALL]
        self.lines = [
            {"episode_index": n, "tasks": ["go"], "length": int((numbers == n).sum()), "data/chunk_index": 0,
             "data/file_index": 0, "dataset_from_index": begins[n],
             "dataset_to_index": begins[n] + int((numbers == n).sum())} for n in ALL
        ]  # fmt: skip
        self.in_files = numbers.copy()
        """Number of the file that each row is written into, in v2.1."""
        self.after: Callable[[Path], Any] = lambda folder: None

    def keep(self, which: Any) -> None:
        """Keep these rows only, in this order."""
        order = np.arange(len(self.in_files))[which]
        self.rows = {name: [values[i] for i in order] for name, values in self.rows.items()}
        self.in_files = self.in_files[order]

    def of(self, number: int) -> np.ndarray[Any, Any]:
        return np.flatnonzero(np.array(self.rows["episode_index"]) == number)

    def table(self, which: Any) -> pa.Table:
        order = np.arange(len(self.in_files))[which]
        arrays = {k: pa.array([v[i] for i in order], self.types.get(k)) for k, v in self.rows.items()}
        return pa.table(arrays)

    def write(self, folder: Path) -> None:
        (folder / "meta").mkdir(parents=True)
        (folder / "data" / "chunk-000").mkdir(parents=True)
        (folder / "meta" / "info.json").write_text(json.dumps(self.info))
        if self.version == "v2.1":
            (folder / "meta" / "episodes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in self.lines))
            for n in sorted(set(self.in_files.tolist())):
                path = folder / "data" / "chunk-000" / f"episode_{n:06d}.parquet"
                parquet.write_table(self.table(self.in_files == n), path)
        else:
            parquet.write_table(self.table(slice(None)), folder / "data" / "chunk-000" / "file-000.parquet")
            (folder / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
            parquet.write_table(
                pa.Table.from_pylist(self.lines), folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
            )
        self.after(folder)


def lerobot(version: str) -> Callable[[Path, list[Episode], Change], str]:
    def write(folder: Path, episodes: list[Episode], change: Change) -> str:
        made = Rows(episodes, version)
        change(made)
        made.write(folder / "set")
        return f"lerobot:{folder / 'set'}"

    return write


LEROBOT: dict[str, Change] = {"": lambda data: None}


def rewrite(column: str, change: Callable[[list[Any], np.ndarray[Any, Any]], None], kind: Any = None) -> Change:
    """Return a damage that changes a column's list, given the rows of the episode."""

    def changed(data: Rows) -> None:
        change(data.rows[column], data.of(HIT))
        if kind is not None:
            data.types[column] = kind

    return changed


def setting(row: int, value: Any) -> Callable[[list[Any], np.ndarray[Any, Any]], None]:
    return lambda values, rows: values.__setitem__(int(rows[row]), value)


def each(convert: Callable[[Any], Any]) -> Callable[[list[Any], np.ndarray[Any, Any]], None]:
    return lambda values, rows: values.__setitem__(slice(None), [convert(one) for one in values])


def missing(column: str, *, declared: bool = True) -> Change:
    def change(data: Rows) -> None:
        del data.rows[column]
        if not declared:
            del data.info["features"][column]

    return change


for column in ("observation.state", "action", "next.reward", "next.done", "text"):
    LEROBOT[f"{column} missing"] = missing(column)
    LEROBOT[f"no {column}"] = missing(column, declared=False)
for column in ("timestamp", "task_index", "index", "frame_index", "episode_index"):
    LEROBOT[f"{column} missing"] = missing(column)
LEROBOT["NaN reward"] = rewrite("next.reward", setting(2, float("nan")))
LEROBOT["null reward"] = rewrite("next.reward", setting(2, None))
LEROBOT["null action"] = rewrite("action", setting(2, None))
LEROBOT["null done"] = rewrite("next.done", setting(2, None))
LEROBOT["action of two"] = rewrite("action", setting(2, [1.0, 2.0]))
LEROBOT["action of none"] = rewrite("action", setting(2, []))
LEROBOT["done within"] = rewrite("next.done", setting(2, True))
LEROBOT["done a row early"] = lambda data: data.rows.update({"next.done": [*data.rows["next.done"][1:], False]})
LEROBOT["done a row late"] = lambda data: data.rows.update({"next.done": [False, *data.rows["next.done"][:-1]]})
LEROBOT["done nowhere"] = rewrite("next.done", each(lambda one: False))
LEROBOT["done at each end"] = lambda data: [data.rows["next.done"].__setitem__(int(data.of(n)[-1]), True) for n in ALL]
LEROBOT["reward at a last row"] = rewrite("next.reward", setting(-1, 1.0))
LEROBOT["rewards [1]"] = rewrite("next.reward", each(lambda one: [one]), pa.list_(pa.float32()))
LEROBOT["rewards as float64"] = rewrite("next.reward", each(float), pa.float64())
LEROBOT["done as int64"] = rewrite("next.done", each(int), pa.int64())
LEROBOT["done as text"] = rewrite("next.done", each(str), pa.string())
LEROBOT["states as float64"] = rewrite("observation.state", each(list), pa.list_(pa.float64()))
LEROBOT["states of fixed size"] = rewrite("observation.state", each(list), pa.list_(pa.float32(), 3))
LEROBOT["large lists"] = rewrite("observation.state", each(list), pa.large_list(pa.float32()))
LEROBOT["text varies"] = rewrite("text", setting(2, "stop"))
LEROBOT["null text"] = rewrite("text", setting(2, None))
LEROBOT["frame_index from 1 on"] = rewrite("frame_index", each(lambda one: one + 1))
LEROBOT["frame_index of another row"] = rewrite("frame_index", setting(2, 5))
LEROBOT["frame_index as float"] = rewrite("frame_index", each(float), pa.float64())
LEROBOT["frame_index as uint8"] = rewrite("frame_index", each(int), pa.uint8())
LEROBOT["episode_index of another row"] = rewrite("episode_index", setting(2, 1))
LEROBOT["episode_index as float"] = rewrite("episode_index", each(float), pa.float64())
LEROBOT["episode_index as text"] = rewrite("episode_index", each(str), pa.string())
LEROBOT["episode_index [1]"] = rewrite("episode_index", each(lambda one: [one]), pa.list_(pa.int64()))
LEROBOT["index of a file"] = rewrite("index", each(lambda one: one + 100))
LEROBOT["index jumps"] = rewrite("index", setting(2, 999))
LEROBOT["timestamp jumps"] = rewrite("timestamp", setting(2, 77.0))
LEROBOT["no first row"] = lambda data: data.keep(~np.isin(np.arange(len(data.in_files)), data.of(HIT)[0]))
LEROBOT["no third row"] = lambda data: data.keep(~np.isin(np.arange(len(data.in_files)), data.of(HIT)[2]))
LEROBOT["no last row"] = lambda data: data.keep(~np.isin(np.arange(len(data.in_files)), data.of(HIT)[-1]))
LEROBOT["a row comes twice"] = lambda data: data.keep(np.insert(np.arange(len(data.in_files)), 12, 12))
LEROBOT["two rows swapped"] = lambda data: data.keep(np.r_[0:12, 13, 12, 14 : len(data.in_files)])
LEROBOT["rows shuffled"] = lambda data: data.keep(np.random.default_rng(0).permutation(len(data.in_files)))
LEROBOT["rows of an episode missing"] = lambda data: data.keep(np.array(data.rows["episode_index"]) != HIT)
LEROBOT["rows of an episode first"] = lambda data: data.keep(
    np.argsort(np.array(data.rows["episode_index"]) != HIT, kind="stable")
)
LEROBOT["an episode is not listed"] = lambda data: data.lines.pop(HIT)
LEROBOT["an episode is listed twice"] = lambda data: data.lines.append(data.lines[HIT])
LEROBOT["episodes listed in another order"] = lambda data: data.lines.reverse()
LEROBOT["an unknown episode is listed"] = lambda data: data.lines.append(data.lines[HIT] | {"episode_index": 9})
LEROBOT["listed longer"] = lambda data: data.lines[HIT].update(length=data.lines[HIT]["length"] + 1)
LEROBOT["listed shorter"] = lambda data: data.lines[HIT].update(length=data.lines[HIT]["length"] - 1)
LEROBOT["listed with length 0"] = lambda data: data.lines[HIT].update(length=0)
LEROBOT["listed with length -1"] = lambda data: data.lines[HIT].update(length=-1)
LEROBOT["listed elsewhere"] = lambda data: data.lines[HIT].update(dataset_from_index=0)
LEROBOT["tasks are missing"] = lambda data: [one.pop("tasks") for one in data.lines]
LEROBOT["info of more episodes"] = lambda data: data.info.update(total_episodes=9)
LEROBOT["info of more frames"] = lambda data: data.info.update(total_frames=99)
LEROBOT["info of other shapes"] = lambda data: data.info["features"]["observation.state"].update(shape=[4])
LEROBOT["info of other dtypes"] = lambda data: data.info["features"]["observation.state"].update(dtype="float64")
LEROBOT["info of another version"] = lambda data: data.info.update(codebase_version="v9.0")


def later(change: Callable[[Path], Any]) -> Change:
    return lambda data: setattr(data, "after", change)


def first_file(folder: Path) -> Path:
    return sorted((folder / "data" / "chunk-000").iterdir())[-1]


for share in (0.1, 0.5, 0.9, 0.99):
    LEROBOT[f"cut at {share:.0%}"] = later(lambda folder, share=share: cut(first_file(folder), share))
LEROBOT["a file is missing"] = later(lambda folder: first_file(folder).unlink())
LEROBOT["a file is empty"] = later(lambda folder: first_file(folder).write_bytes(b""))
LEROBOT["no info"] = later(lambda folder: (folder / "meta" / "info.json").unlink())
LEROBOT["no list of episodes"] = later(
    lambda folder: [shutil.rmtree(one) if one.is_dir() else one.unlink() for one in folder.glob("meta/episodes*")]
)


# RLDS, by the layout of TensorFlow Datasets


def varint(value: int) -> bytes:
    found = b""
    while True:
        byte, value = value & 0x7F, value >> 7
        if not value:
            return found + bytes([byte])
        found += bytes([byte | 0x80])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(features: dict[str, Any]) -> bytes:
    """Return an Example: lists of bytes, float arrays, and integer arrays."""
    entries = b""
    for name, values in features.items():
        if isinstance(values, list):
            kind, inner = 1, b"".join(message(1, one) for one in values)
        elif values.dtype.kind == "f":
            kind, inner = 2, message(1, values.astype("<f4").tobytes())
        else:
            kind, inner = 3, message(1, b"".join(varint(int(one) & (1 << 64) - 1) for one in values.reshape(-1)))
        entries += message(1, message(1, name.encode()) + message(2, message(kind, inner)))
    return message(1, entries)


class Records:
    """Data set of RLDS before it is written: ``episodes`` as features, ``features`` of a step, by path."""

    def __init__(self, episodes: list[Episode]) -> None:
        self.episodes: list[dict[str, Any]] = []
        for one in episodes:
            count = len(one.obs)
            at = np.arange(count)
            self.episodes.append({
                "steps/observation/state": one.obs.copy(), "steps/action": np.append(one.action, 0),
                "steps/reward": np.append(one.reward, np.float32(0)), "steps/is_first": at == 0,
                "steps/is_last": at == count - 1, "steps/is_terminal": (at == count - 1) & one.terminated,
                "steps/language_instruction": [b"go"] * count,
            })  # fmt: skip
        self.features: dict[str, Any] = {
            key: {"pythonClassName": "x.Tensor", "tensor": {
                "shape": {"dimensions": shape}, "dtype": dtype, "encoding": "none"}}
            for key, dtype, shape in (
                ("action", "int64", []), ("reward", "float32", []), ("is_first", "bool", []), ("is_last", "bool", []),
                ("is_terminal", "bool", []))
        }  # fmt: skip
        state = {
            "pythonClassName": "x.Tensor",
            "tensor": {"shape": {"dimensions": ["3"]}, "dtype": "float32", "encoding": "none"},
        }
        self.features["observation"] = {"featuresDict": {"features": {"state": state}}}
        self.features["language_instruction"] = {"pythonClassName": "x.Text", "text": {}}
        self.after: Callable[[Path], Any] = lambda folder: None

    @property
    def hit(self) -> dict[str, Any]:
        return self.episodes[HIT]

    def keep(self, number: int, which: Any) -> None:
        one = self.episodes[number]
        for key, values in one.items():
            order = np.arange(len(values))[which]
            one[key] = [values[i] for i in order] if isinstance(values, list) else values[order]

    def write(self, folder: Path) -> None:
        folder.mkdir()
        said = {
            "featuresDict": {
                "features": {"steps": {"sequence": {"feature": {"featuresDict": {"features": self.features}}}}}
            }
        }
        (folder / "features.json").write_text(json.dumps(said))
        halves = self.episodes[: HIT + 1], self.episodes[HIT + 1 :]
        for number, part in enumerate(halves):
            with (folder / f"x-train.tfrecord-{number:05d}-of-00002").open("wb") as file:
                for one in part:
                    content = example(one)
                    header = len(content).to_bytes(8, "little")
                    file.write(header + masked_crc(header).to_bytes(4, "little"))
                    file.write(content + masked_crc(content).to_bytes(4, "little"))
        lengths = [str(len(part)) for part in halves]
        (folder / "dataset_info.json").write_text(
            json.dumps({"name": "x", "version": "1.0.0", "splits": [{"name": "train", "shardLengths": lengths}]})
        )
        self.after(folder)


def write_rlds(folder: Path, episodes: list[Episode], change: Change) -> str:
    made = Records(episodes)
    change(made)
    made.write(folder / "1.0.0")
    return f"rlds:{folder / '1.0.0'}"


RLDS: dict[str, Change] = {"": lambda data: None}


def values(key: str, change: Callable[[Any], Any], every: bool = False) -> Change:
    def changed(data: Records) -> None:
        for one in data.episodes if every else [data.hit]:
            one[f"steps/{key}"] = change(one[f"steps/{key}"])

    return changed


def with_value(row: int, value: Any) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array = array.astype(np.result_type(array, type(value)))
        array[row] = value
        return array

    return change


for key in ("observation/state", "action", "reward", "is_first", "is_last", "is_terminal", "language_instruction"):
    RLDS[f"{key} short"] = values(key, lambda x: x[:-1])
    RLDS[f"{key} long"] = values(key, lambda x: x + x[:1] if isinstance(x, list) else np.concatenate([x, x[:1]]))
    RLDS[f"{key} empty"] = values(key, lambda x: x[:0])
    RLDS[f"{key} missing"] = lambda data, key=key: data.hit.pop(f"steps/{key}")
    RLDS[f"{key} not declared"] = lambda data, key=key: data.features.pop(key.split("/")[0])
for key in ("observation/state", "action", "reward", "is_last", "is_terminal"):
    RLDS[f"{key} as text"] = values(key, lambda x: [b"1"] * len(x))
RLDS["action as float"] = values("action", lambda x: x.astype("f4"))
RLDS["action of half"] = values("action", lambda x: x.astype("f4") + 0.5)
RLDS["flags as float"] = values("is_last", lambda x: x.astype("f4"))
RLDS["flags of 2"] = values("is_last", lambda x: x.astype("i8") * 2)
RLDS["NaN reward"] = values("reward", with_value(2, np.nan))
RLDS["last reward"] = lambda data: [one["steps/reward"].__setitem__(-1, 1.0) for one in data.episodes]
RLDS["last reward of one"] = values("reward", with_value(-1, 1.0))
RLDS["last action of one"] = values("action", with_value(-1, 3))
RLDS["last action is NaN"] = values("action", lambda x: with_value(-1, np.nan)(x.astype("f4")))
RLDS["is_last within"] = values("is_last", with_value(2, True))
RLDS["is_last nowhere"] = values("is_last", lambda x: x & False)
RLDS["is_terminal within"] = values("is_terminal", with_value(2, True))
RLDS["is_first nowhere"] = values("is_first", lambda x: x & False)
RLDS["is_first within"] = values("is_first", with_value(2, True))
RLDS["is_terminal a row early"] = values("is_terminal", lambda x: np.roll(np.arange(len(x)) == len(x) - 1, -1))
RLDS["instruction varies"] = values("language_instruction", lambda x: [*x[:-1], b"stop"])
RLDS["an episode is empty"] = lambda data: data.keep(HIT, slice(0, 0))
RLDS["an episode of one row"] = lambda data: data.keep(HIT, [-1])
RLDS["no first row"] = lambda data: data.keep(HIT, slice(1, None))
RLDS["no last row"] = lambda data: data.keep(HIT, slice(None, -1))
RLDS["rows reversed"] = lambda data: data.keep(HIT, slice(None, None, -1))
RLDS["two episodes joined"] = lambda data: [
    data.hit.update({k: v + data.episodes[1][k] if isinstance(v, list) else np.concatenate([v, data.episodes[1][k]])})
    for k, v in list(data.hit.items())
]
RLDS["episodes in another order"] = lambda data: data.episodes.reverse()
RLDS["an episode comes twice"] = lambda data: data.episodes.insert(1, data.episodes[HIT])
RLDS["an episode is missing"] = lambda data: (
    data.episodes.pop(HIT),
    setattr(data, "after", lambda folder: relabel(folder, ["4", "2"])),
)


def relabel(folder: Path, lengths: list[str]) -> None:
    splits = [{"name": "train", "shardLengths": lengths}]
    (folder / "dataset_info.json").write_text(json.dumps({"name": "x", "version": "1.0.0", "splits": splits}))


def shard(folder: Path, number: int) -> Path:
    return sorted(folder.glob("*.tfrecord*"))[number]


def both(change: Callable[[Path], Any]) -> Change:
    return lambda data: setattr(data, "after", change)


for share in (0.01, 0.3, 0.6, 0.99):
    RLDS[f"cut at {share:.0%}"] = both(lambda folder, share=share: cut(shard(folder, 0), share))
    RLDS[f"a byte at {share:.0%}"] = both(lambda folder, share=share: flip(shard(folder, 0), share))
RLDS["a shard is missing"] = both(lambda folder: shard(folder, 1).unlink())
RLDS["a shard is empty"] = both(lambda folder: shard(folder, 1).write_bytes(b""))
RLDS["a shard ends after a record"] = lambda data: (
    data.episodes.pop(),
    setattr(data, "after", lambda folder: relabel(folder, ["4", "2"])),
)
RLDS["no features"] = both(lambda folder: (folder / "features.json").unlink())
RLDS["no dataset_info"] = both(lambda folder: (folder / "dataset_info.json").unlink())


FORMATS = {
    "minari": Format(write_minari, MINARI),
    "lerobot v2.1": Format(lerobot("v2.1"), LEROBOT),
    "lerobot v3.0": Format(lerobot("v3.0"), LEROBOT),
    "rlds": Format(write_rlds, RLDS),
}
