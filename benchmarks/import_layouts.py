"""Files of robomimic, ManiSkill, ALOHA, d3rlpy and zarr, by their documented layouts, and of Parquet; and damages."""

# mypy: disable-error-code="func-returns-value, misc, var-annotated"
from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from import_folders import ALL, HIT, Change, cut, flip, of_files
from imports import LENGTHS, Episode, Format

import sharpwave as sw

ENDS = ("dones", "terminated", "truncated")


class Made:
    """Data set to be written.

    Attributes:
        arrays: of each episode, by name. ``numbers``: of the episodes.
        said: metadata of the data set. ``after``: damages of the files.
    """

    def __init__(self, arrays: list[dict[str, Any]], said: dict[str, Any]) -> None:
        self.arrays, self.numbers, self.said = arrays, list(range(len(arrays))), said
        self.after: Callable[[Path], Any] = lambda path: None

    def put(self, name: str, change: Callable[[Any], Any], number: int = HIT) -> None:
        self.arrays[number][name] = change(self.arrays[number][name])

    def every(self, change: Callable[[Any], Any]) -> None:
        for name, values in self.arrays[HIT].items():
            if np.ndim(values):
                self.put(name, change)


def put(file: Any, name: str, values: Any) -> None:
    if isinstance(values, dict):
        file.create_group(name)
        return
    file[name] = values


def robomimic(episodes: list[Episode]) -> Made:
    arrays = []
    for one in episodes:
        steps = len(one.reward)
        dones = (np.arange(steps) == steps - 1) & one.terminated
        arrays.append(
            {"obs/state": one.obs[:-1], "next_obs/state": one.obs[1:], "actions": one.action, "rewards": one.reward}
            | {"dones": dones.astype(np.int64), "states": one.obs[:-1].astype(np.float64)}
        )
    said = {"total": sum(LENGTHS), "mask": [f"demo_{number}" for number in range(len(LENGTHS))]}
    return Made(arrays, said | {"num_samples": list(LENGTHS)})


def write_robomimic(folder: Path, made: Made) -> Path:
    path = folder / "x.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for at, (number, arrays) in enumerate(zip(made.numbers, made.arrays, strict=True)):
            group = data.create_group(f"demo_{number}")
            for name, values in arrays.items():
                put(group, name, values)
            if at < len(made.said["num_samples"]):
                group.attrs["num_samples"] = made.said["num_samples"][at]
        if made.said["total"] is not None:
            data.attrs["total"] = made.said["total"]
        data.attrs["env_args"] = "{}"
        file["mask/train"] = np.array(made.said["mask"], "S16")
    return path


def maniskill(episodes: list[Episode]) -> Made:
    arrays, said = [], []
    for number, one in enumerate(episodes):
        last = np.arange(len(one.reward)) == len(one.reward) - 1
        arrays.append(
            {"obs": one.obs, "actions": one.action, "rewards": one.reward}
            | {"terminated": last & one.terminated, "truncated": last & (not one.terminated), "success": last}
        )
        said.append({"episode_id": number, "elapsed_steps": len(one.reward), "success": True, "episode_seed": number})
    return Made(arrays, {"env_info": {"env_id": "x"}, "episodes": said})


def write_maniskill(folder: Path, made: Made) -> Path:
    path = folder / "x.h5"
    with h5py.File(path, "w") as file:
        for number, arrays in zip(made.numbers, made.arrays, strict=True):
            for name, values in arrays.items():
                put(file.require_group(f"traj_{number}"), name, values)
    path.with_suffix(".json").write_text(json.dumps(made.said))
    return path


def aloha(episodes: list[Episode]) -> Made:
    names = ("observations/state", "action", "reward")
    return Made([dict(zip(names, (one.obs[:-1], one.action, one.reward), strict=True)) for one in episodes], {})


def write_aloha(folder: Path, made: Made) -> Path:
    for number, arrays in zip(made.numbers, made.arrays, strict=True):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            for name, values in arrays.items():
                put(file, name, values)
    return folder


def d3rlpy(episodes: list[Episode]) -> Made:
    arrays = [
        {"observations": one.obs[:-1], "actions": one.action[:, None], "rewards": one.reward[:, None]}
        | {"terminated": one.terminated}
        for one in episodes
    ]
    return Made(arrays, {"num_episodes": len(arrays)})


def write_d3rlpy(folder: Path, made: Made) -> Path:
    path = folder / "x.h5"
    with h5py.File(path, "w") as file:
        for number, arrays in zip(made.numbers, made.arrays, strict=True):
            for name, values in arrays.items():
                put(file, f"{name}_{number}", values)
        for name, one in made.said.items():
            file[name] = one
    return path


def of_episodes(build: Callable[[list[Episode]], Made], write: Callable[[Path, Made], Path]) -> Callable[..., str]:
    def written(folder: Path, episodes: list[Episode], change: Change) -> str:
        made = build(episodes)
        change(made)
        path = write(folder, made)
        made.after(path)
        return f"hdf5:{path}"

    return written


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "short": lambda one: one[:-1],
    "without the first row": lambda one: one[1:],
    "with a further row": lambda one: np.concatenate([one, one[-1:]]),
    "empty": lambda one: one[:0],
    "wide": lambda one: np.repeat(one[..., None], 2, -1),
    "as text": lambda one: [b"up"] * len(one),
    "one number": lambda one: 3,
    "a group": lambda one: {},
    "of objects": lambda one: h5py.SoftLink("/elsewhere"),
}


def damages(names: list[str]) -> dict[str, Change]:
    """Return the damages of an episode's arrays, and of its file."""
    found: dict[str, Change] = {"": lambda made: None}
    for name in names:
        found[f"no {name}"] = lambda made, name=name: made.arrays[HIT].pop(name)
        for how, change in ARRAYS.items():
            found[f"{name} {how}"] = lambda made, name=name, change=change: made.put(name, change)
        if "reward" in name:
            found[f"no {name} at all"] = lambda made, name=name: [one.pop(name) for one in made.arrays]
            found[f"NaN in {name}"] = lambda made, name=name: made.put(
                name,
                lambda one: np.where(
                    np.arange(len(one)).reshape(one.shape[:1] + (1,) * (one.ndim - 1)) == 2, np.nan, one
                ),
            )
        if name in ENDS:
            found[f"{name} of 2"] = lambda made, name=name: made.put(name, lambda one: np.full(len(one), 2))
            found[f"no {name} at all"] = lambda made, name=name: [one.pop(name) for one in made.arrays]
            found[f"{name} within"] = lambda made, name=name: made.put(name, lambda one: np.arange(len(one)) == 2)
    found["no arrays"] = lambda made: made.arrays[HIT].clear()
    found["all empty"] = lambda made: made.every(lambda one: one[:0])
    for share in (0.05, 0.5, 0.9):
        found[f"cut at {share:.0%}"] = lambda made, share=share: setattr(
            made, "after", lambda path: cut(one_file(path), share)
        )
    found["empty file"] = lambda made: setattr(made, "after", lambda path: one_file(path).write_bytes(b""))
    found["another signature"] = lambda made: setattr(made, "after", lambda path: flip(one_file(path), 0))
    found["numbers apart"] = lambda made: setattr(made, "numbers", [0, 1, 2, 3, 4, 12])
    return found


def one_file(path: Path) -> Path:
    return path / f"episode_{HIT}.hdf5" if path.is_dir() else path


def lose(made: Made, number: int) -> None:
    """Remove an episode's arrays, not its entries in the metadata."""
    del made.arrays[number], made.numbers[number]


ROBOMIMIC = damages(["obs/state", "next_obs/state", "actions", "rewards", "dones"]) | {
    "a demonstration is missing": lambda made: (lose(made, 3), made.said["num_samples"].pop(3)),
    "the last one is missing": lambda made: lose(made, 5),
    "no third row": lambda made: made.every(lambda one: np.delete(one, 2, 0)),
    "a row comes twice": lambda made: made.every(lambda one: np.insert(one, 2, one[2], 0)),
    "two rows swapped": lambda made: made.every(lambda one: one[[0, 2, 1, 3, 4, 5, 6]]),
    "total of another number": lambda made: made.said.update(total=7),
    "no total": lambda made: made.said.update(total=None),
    "mask of others": lambda made: made.said.update(mask=["demo_0", "demo_9"]),
}
MANISKILL = damages(["obs", "actions", "rewards", "terminated", "truncated"]) | {
    "a trajectory is missing": lambda made: lose(made, 3),
    "one is not listed": lambda made: made.said["episodes"].pop(3),
    "one is listed twice": lambda made: made.said["episodes"].append(made.said["episodes"][3]),
    "no third row": lambda made: made.every(lambda one: np.delete(one, 2, 0)),
    "other steps": lambda made: made.said["episodes"][3].update(elapsed_steps=9),
    "no success": lambda made: made.said["episodes"][3].update(success=False),
    "no episodes": lambda made: made.said.pop("episodes"),
    "JSON of nothing": lambda made: setattr(made, "after", lambda path: path.with_suffix(".json").write_text("")),
    "no JSON": lambda made: setattr(made, "after", lambda path: path.with_suffix(".json").unlink()),
}
ALOHA = damages(["observations/state", "action", "reward"]) | {
    "an episode is missing": lambda made: lose(made, 3),
    "a picture beside": lambda made: setattr(
        made, "after", lambda path: (path / "episode_0_qpos.png").write_bytes(b"")
    ),
    "another name": lambda made: setattr(
        made, "after", lambda path: (path / "episode_3.hdf5").rename(path / "episode_3_bad.hdf5")
    ),
    "a folder": lambda made: setattr(made, "after", lambda path: (path / "episode_9.hdf5").mkdir()),
    "a copy": lambda made: setattr(
        made, "after", lambda path: shutil.copy(path / "episode_3.hdf5", path / "episode_6.hdf5")
    ),
}
D3RLPY = damages(["observations", "actions", "rewards"]) | {
    "an episode is missing": lambda made: lose(made, 3),
    "the last one is missing": lambda made: lose(made, 5),
    "no terminated": lambda made: made.arrays[HIT].pop("terminated"),
    "terminated of 2": lambda made: made.put("terminated", lambda one: 2),
    "terminated a step": lambda made: made.put("terminated", lambda one: np.zeros(7)),
    "terminated as text": lambda made: made.put("terminated", lambda one: "no"),
    "num_episodes of another number": lambda made: made.said.update(num_episodes=3),
    "num_episodes a list": lambda made: made.said.update(num_episodes=[6]),
    "num_episodes as text": lambda made: made.said.update(num_episodes="6"),
    "no num_episodes": lambda made: made.said.clear(),
}


# zarr's format 2


def write_zarr(folder: Path, episodes: list[Episode], change: Change) -> str:
    columns = {
        "data/state": np.concatenate([one.obs[:-1] for one in episodes]),
        "data/action": np.concatenate([one.action for one in episodes]),
        "data/reward": np.concatenate([one.reward for one in episodes]),
        "meta/episode_ends": np.cumsum(LENGTHS),
    }
    made = Made([columns], {})
    change(made)
    root = folder / "x.zarr"
    for name in ("", "data", "meta"):
        (root / name).mkdir()
        (root / name / ".zgroup").write_text('{"zarr_format": 2}')
    for name, values in columns.items():
        array = np.asarray(values)
        chunks = [8, *array.shape[1:]] if array.shape else []
        (root / name).mkdir()
        said = {"zarr_format": 2, "shape": array.shape, "chunks": chunks, "dtype": array.dtype.str, "fill_value": 0}
        said |= {"compressor": {"id": "zlib", "level": 1}, "filters": None, "order": "C"}
        (root / name / ".zarray").write_text(json.dumps(said))
        for number in range(-(-len(array) // 8) if array.shape else 0):
            part = np.zeros(chunks, array.dtype)
            rows = array[number * 8 : number * 8 + 8]
            part[: len(rows)] = rows
            key = ".".join([str(number), *"0" * (array.ndim - 1)])
            (root / name / key).write_bytes(zlib.compress(part.tobytes()))
    made.after(root)
    return f"zarr:{root}"


def described(root: Path, name: str, **changed: Any) -> None:
    path = root / name / ".zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def chunk(root: Path, name: str) -> Path:
    return min(one for one in (root / name).iterdir() if one.name.startswith("1"))


ZARR: dict[str, Change] = {"": lambda made: None}
OF_FILES: dict[str, Callable[[Path, str], Any]] = {
    "gone": lambda root, name: shutil.rmtree(root / name),
    "without .zarray": lambda root, name: (root / name / ".zarray").unlink(),
    "of format 3": lambda root, name: (root / name / ".zarray").rename(root / name / "zarr.json"),
    "empty .zarray": lambda root, name: (root / name / ".zarray").write_text(""),
    "a list in .zarray": lambda root, name: (root / name / ".zarray").write_text("[]"),
    "without a chunk": lambda root, name: chunk(root, name).unlink(),
    "an empty chunk": lambda root, name: chunk(root, name).write_bytes(b""),
    "a cut chunk": lambda root, name: cut(chunk(root, name), 0.5),
    "a changed chunk": lambda root, name: flip(chunk(root, name), 0.5),
    "a chunk of others": lambda root, name: chunk(root, name).write_bytes(zlib.compress(bytes(8))),
    "of more rows": lambda root, name: described(root, name, shape=[99, *([3] if "state" in name else [])]),
    "of fewer rows": lambda root, name: described(root, name, shape=[9, *([3] if "state" in name else [])]),
    "of another dtype": lambda root, name: described(root, name, dtype="<f2"),
    "of no dtype": lambda root, name: described(root, name, dtype="|O"),
    "of other chunks": lambda root, name: described(root, name, chunks=[5, *([3] if "state" in name else [])]),
    "with another separator": lambda root, name: described(root, name, dimension_separator="_"),
    "by another compressor": lambda root, name: described(root, name, compressor={"id": "lz77"}),
}
for name in ("data/state", "data/action", "data/reward"):
    for how, change in OF_FILES.items():
        ZARR[f"{name} {how}"] = lambda made, name=name, change=change: setattr(
            made, "after", lambda root: change(root, name)
        )
    ZARR[f"{name} short"] = lambda made, name=name: made.put(name, lambda one: one[:-1], 0)
    ZARR[f"{name} long"] = lambda made, name=name: made.put(name, lambda one: np.concatenate([one, one[-1:]]), 0)
for name, values in {
    "texts": np.array(["go"] * sum(LENGTHS)),
    "times": np.arange(sum(LENGTHS)).astype("M8[ns]"),
    "a single value": np.array(10.0),
}.items():
    ZARR[f"{name} beside"] = lambda made, values=values: made.arrays[0].update({"data/other": values})
ZARR["NaN in data/reward"] = lambda made: made.arrays[0]["data/reward"].__setitem__(12, np.nan)
for how, moved in {
    "fall": lambda ends: ends[::-1],
    "below 0": lambda ends: -ends,
    "as floats": lambda ends: ends.astype(np.float64),
    "of two columns": lambda ends: np.stack([ends, ends], 1),
    "without the last": lambda ends: ends[:-1],
    "without the third": lambda ends: np.delete(ends, 3),
    "beyond the rows": lambda ends: ends + 9,
    "twice": lambda ends: np.insert(ends, 2, ends[2]),
    "of none": lambda ends: ends[:0],
}.items():
    if how != "without the third":  # nothing in the file shows it
        ZARR[f"ends {how}"] = lambda made, moved=moved: made.put("meta/episode_ends", moved, 0)
ZARR["no ends"] = lambda made: made.arrays[0].pop("meta/episode_ends")
ZARR["format 3"] = lambda made: setattr(made, "after", lambda root: (root / "zarr.json").write_text("{}"))

# Parquet, written by export


def write_parquet(folder: Path, episodes: list[Episode], change: Change) -> str:
    spec = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=1000) as store:
        for one in episodes:
            store.add_episode(obs=one.obs, action=one.action, reward=one.reward, terminated=one.terminated)
        store.export(f"parquet:{folder / 'x.parquet'}")
    path = folder / "x.parquet"
    if getattr(change, "of_files", False):
        change(path)
        return f"parquet:{path}"
    file = parquet.ParquetFile(path)
    groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    made = Groups(groups)
    change(made)
    if made.changed:
        with parquet.ParquetWriter(path, made.groups[0].schema) as writer:
            for group in made.groups:
                writer.write_table(group.cast(made.groups[0].schema), row_group_size=max(1, len(group)))
    return f"parquet:{path}"


class Groups:
    """Row groups of an export, one an episode."""

    def __init__(self, groups: list[pa.Table]) -> None:
        self.groups, self.changed = groups, False

    def column(
        self, name: str, change: Callable[[list[Any]], list[Any]], numbers: Any = (HIT,), kind: Any = None
    ) -> None:
        self.changed = True
        for number in numbers:
            group = self.groups[number]
            at = group.column_names.index(name)
            field = group.schema.field(name) if kind is None else pa.field(name, kind)
            array = pa.array(change(group.column(name).to_pylist()), field.type)
            self.groups[number] = group.set_column(at, field, array)

    def order(self, which: list[int]) -> None:
        self.changed, self.groups = True, [self.groups[number] for number in which]

    def keep(self, which: Any) -> None:
        group, self.changed = self.groups[HIT], True
        self.groups[HIT] = group.take(np.arange(len(group))[which])


PARQUET: dict[str, Change] = {"": lambda data: None}


def at(row: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda found: [value if i == row % len(found) else one for i, one in enumerate(found)]


for name in ("obs", "action", "reward", "terminated", "truncated", "episode", "step", "is_last"):
    PARQUET[f"null {name}"] = lambda data, name=name: data.column(name, at(2, None))
    PARQUET[f"no {name}"] = lambda data, name=name: (
        setattr(data, "changed", True),
        setattr(data, "groups", [one.drop_columns([name]) for one in data.groups]),
    )
    PARQUET[f"{name} as text"] = lambda data, name=name: data.column(
        name, lambda found: [str(one) for one in found], ALL, pa.string()
    )
PARQUET["NaN reward"] = lambda data: data.column("reward", at(2, float("nan")))
PARQUET["NaN in observations"] = lambda data: data.column("info", lambda found: found)
PARQUET["rewards as float64"] = lambda data: data.column("reward", lambda found: found, ALL, pa.float64())
PARQUET["actions as int32"] = lambda data: data.column("action", lambda found: found, ALL, pa.int32())
PARQUET["terminated within"] = lambda data: data.column("terminated", at(2, True))
PARQUET["truncated within"] = lambda data: data.column("truncated", at(2, True))
PARQUET["no end"] = lambda data: data.column("truncated", lambda found: [one and False for one in found])
PARQUET["is_last within"] = lambda data: data.column("is_last", at(2, True))
PARQUET["is_last nowhere"] = lambda data: data.column("is_last", at(-1, False))
PARQUET["step jumps"] = lambda data: data.column("step", at(2, 9))
PARQUET["episode of another number"] = lambda data: data.column("episode", lambda found: [1] * len(found))
PARQUET["a row of another episode"] = lambda data: data.column("episode", at(2, 1))
PARQUET["info is no JSON"] = lambda data: data.column("info", at(0, "{"))
PARQUET["info is a list"] = lambda data: data.column("info", at(0, "[1]"))
PARQUET["info in another row"] = lambda data: data.column("info", at(2, "{}"))
PARQUET["a final action"] = lambda data: data.column("action", at(-1, 3))
PARQUET["episodes in another order"] = lambda data: data.order([3, 1, 0, 2, 5, 4])
PARQUET["an episode is missing"] = lambda data: data.order([0, 1, 2, 4, 5])
PARQUET["the first episode is missing"] = lambda data: data.order([1, 2, 3, 4, 5])
PARQUET["an episode comes twice"] = lambda data: data.order([0, 1, 2, 3, 3, 4, 5])
PARQUET["no first row"] = lambda data: data.keep(slice(1, None))
PARQUET["no third row"] = lambda data: data.keep(np.r_[0:2, 3:8])
PARQUET["no last row"] = lambda data: data.keep(slice(None, -1))
PARQUET["a row comes twice"] = lambda data: data.keep(np.r_[0:3, 2:8])
PARQUET["rows reversed"] = lambda data: data.keep(slice(None, None, -1))
PARQUET["two rows swapped"] = lambda data: data.keep(np.r_[0, 2, 1, 3:8])
PARQUET["an episode of one row"] = lambda data: data.keep(slice(-1, None))
PARQUET["an empty episode"] = lambda data: data.keep(slice(0, 0))
PARQUET["no metadata"] = lambda data: (
    setattr(data, "changed", True),
    setattr(data, "groups", [one.replace_schema_metadata(None) for one in data.groups]),
)
PARQUET["two episodes in a row group"] = lambda data: (
    setattr(data, "changed", True),
    setattr(data, "groups", [*data.groups[:2], pa.concat_tables(data.groups[2:4]), *data.groups[4:]]),
)
PARQUET["all in one row group"] = lambda data: (
    setattr(data, "changed", True),
    setattr(data, "groups", [pa.concat_tables(data.groups)]),
)
for share in (0.05, 0.5, 0.9, 0.99):
    PARQUET[f"cut at {share:.0%}"] = of_files(lambda path, share=share: cut(path, share))
PARQUET["empty file"] = of_files(lambda path: path.write_bytes(b""))

FORMATS = {
    "robomimic": Format(of_episodes(robomimic, write_robomimic), ROBOMIMIC),
    "maniskill": Format(of_episodes(maniskill, write_maniskill), MANISKILL),
    "aloha": Format(of_episodes(aloha, write_aloha), ALOHA, marked=False),
    "d3rlpy": Format(of_episodes(d3rlpy, write_d3rlpy), D3RLPY),
    "zarr": Format(write_zarr, ZARR, marked=False),
    "parquet": Format(write_parquet, PARQUET),
}
