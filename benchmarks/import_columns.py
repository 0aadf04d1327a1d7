"""Files in the D4RL layout, and damages of them (``imports.py``)."""

# mypy: disable-error-code="func-returns-value, misc, var-annotated"
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from imports import LENGTHS, Episode, Format

Data = dict[str, Any]
STARTS = np.cumsum([0, *LENGTHS[:-1]])
COUNT = sum(LENGTHS)
ENDS = STARTS + np.array(LENGTHS) - 1
EPISODE = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
STEP = np.arange(COUNT) - STARTS[EPISODE]
END = np.isin(np.arange(COUNT), ENDS)
DAMAGES: dict[str, Callable[[Data], Any]] = {"": lambda data: None}
"""Damage of the arrays; it may return a function that damages the file's bytes."""


def without(data: Data, *names: str) -> None:
    for name in names:
        del data[name]


def unmarked(data: Data) -> None:
    """Take away all that says where truncated episodes end."""
    without(data, "timeouts", "next_observations")


def also(name: str, **arrays: Any) -> None:
    """Add a damage: nothing but these arrays says where truncated episodes end."""

    def change(data: Data) -> None:
        unmarked(data)
        data.update({one.replace("__", "/"): values for one, values in arrays.items()})

    DAMAGES[name] = change


def renamed(old: str, new: str) -> None:
    DAMAGES[f"{old} named {new}"] = lambda data: data.update({new: data.pop(old)})


def cast(name: str, dtype: str) -> None:
    DAMAGES[f"{name} as {dtype}"] = lambda data: data.update({name: data[name].astype(dtype)})


def resized(name: str, rows: int) -> None:
    def change(data: Data) -> None:
        values = data[name]
        data[name] = values[:rows] if rows < 0 else np.concatenate([values, values[:rows]])

    DAMAGES[f"{name} {'short' if rows < 0 else 'long'}"] = change


def put(label: str, name: str, row: Any, value: Any) -> None:
    def change(data: Data) -> None:
        data[name] = data[name].astype(
            np.result_type(data[name], np.float64) if isinstance(value, float) else data[name].dtype
        )
        data[name][row] = value

    DAMAGES[label] = change


for one in ("episode", "episode_id", "traj_ids", "trajectory_index", "infos__episode_id", "ep_id", "episodeId"):
    also(f"ends by {one}", **{one: EPISODE})
for one in ("step", "timesteps", "t", "frame_index", "time_step", "elapsed_steps"):
    also(f"ends by {one}", **{one: STEP})
also("ends by step [N, 1] from 1 on", step=STEP[:, None] + 1)
also("ends by step of two each", step=STEP * 2)
for one in ("dones", "done", "is_last", "is_end", "episode_ends", "episode_terminals"):
    also(f"ends by {one}", **{one: END})
for one in ("is_first", "is_start", "episode_starts"):
    also(f"ends by {one}", **{one: STEP == 0})
also("ends by TimeLimit.truncated", **{"infos/TimeLimit.truncated": END & (EPISODE % 2 == 1)})
also("numbers of another name", place=EPISODE)
also("steps of another name", place=STEP)
also("single values", step=STEP, episodes=np.int64(6), steps=np.int64(COUNT), timeout=np.float64(30))
also("ends by another flag and t", finished=END, t=STEP)
also("ends by float16 is_last [N, 1]", is_last=END.astype(np.float16)[:, None])
also("ends by unsigned steps", step=STEP.astype(np.uint8))
also("numbers of episodes come again", episode=EPISODE % 2)
for one in ("terminations", "terminateds", "terminal", "is_terminal", "terminated"):
    renamed("terminals", one)
for one in ("truncations", "timeout", "infos/TimeLimit.truncated"):
    renamed("timeouts", one)
for old, new in (
    ("observations", "obs"),
    ("actions", "action"),
    ("rewards", "reward"),
    ("next_observations", "next_obs"),
):
    renamed(old, new)
for old in ("observations", "actions", "rewards", "terminals"):
    renamed(old, "unknown")
for one in ("float16", "float32", "uint64", "int8"):
    cast("terminals", one)
for one in ("float64", "float16", ">f4"):
    cast("rewards", one)
for one in ("float64", "float16", ">f4", "int16", "complex64"):
    cast("observations", one)
for one in ("float64", "float16", "complex64"):
    cast("next_observations", one)
for one in ("uint8", "float32", "complex64", "S4"):
    cast("actions", one)
for one in ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts"):
    resized(one, -1)
    resized(one, 2)
for one in ("rewards", "terminals", "timeouts", "actions"):
    DAMAGES[f"{one} [N, 1]"] = lambda data, one=one: data.update({one: data[one][:, None]})
put("NaN reward", "rewards", 6, np.nan)
put("infinite reward", "rewards", 6, np.inf)
put("reward beyond float32", "rewards", 6, 1e300)
put("terminal of 2", "terminals", 6, 2.0)
put("terminal of -1", "terminals", 6, -1.0)
put("NaN terminal", "terminals", 6, np.nan)
put("NaN in next observations", "next_observations", 6, np.nan)
put("infinite next observation", "next_observations", 6, np.inf)
put("terminal within an episode", "terminals", 10, True)
put("timeout within an episode", "timeouts", 10, True)


def moved(name: str, rows: int) -> Callable[[Data], Any]:
    """Return a damage that moves a column by some rows."""
    return lambda data: data.update({name: np.roll(data[name], rows, axis=0)})


def scaled(factor: float) -> Callable[[Data], Any]:
    """Return a damage that scales the next observations."""
    return lambda data: data.update(next_observations=data["next_observations"] * np.float32(factor))


DAMAGES |= {
    "rewards of two": lambda data: data.update(rewards=np.stack([data["rewards"]] * 2, 1)),
    "no timeouts": lambda data: without(data, "timeouts"),
    "no next observations": lambda data: without(data, "next_observations"),
    "nothing says where truncated ones end": unmarked,
    "rounded next observations": scaled(1 + 2e-7),
    "next observations off by a thousandth": scaled(1.001),
    "next observations are the observations": lambda data: data.update(next_observations=data["observations"].copy()),
    "next observations a row early": moved("next_observations", -1),
    "zeros of another sign": lambda data: data.update(zero=-np.zeros(COUNT)),
    "timeouts a row early": moved("timeouts", -1),
    "timeouts a row late": moved("timeouts", 1),
    "terminals a row early": moved("terminals", -1),
    "terminals a row late": moved("terminals", 1),
}


def rows(data: Data, which: Any) -> None:
    for name in list(data):
        data[name] = data[name][which]


def chosen(label: str, which: Any, **arrays: Any) -> None:
    """Add damages: only these rows are there; with all that says where episodes end, and with these arrays only."""

    def all_of_it(data: Data) -> None:
        data.update(arrays)
        rows(data, which)

    DAMAGES[label] = all_of_it

    def change(data: Data) -> None:
        unmarked(data)
        data.update(arrays)
        rows(data, which)

    for name in arrays:
        DAMAGES[f"{label}, {name} only"] = change


REORDERED = np.concatenate([np.flatnonzero(one == EPISODE) for one in (3, 1, 0, 2, 5, 4)])
chosen("episodes in another order", REORDERED, episode_id=EPISODE)
chosen("no first step of an episode", ~((EPISODE == 3) & (STEP == 0)), step=STEP)
chosen("no third step of an episode", ~((EPISODE == 3) & (STEP == 2)), step=STEP)
chosen("no last step of an episode", ~((EPISODE == 3) & (STEP == 6)))
chosen("no first step, numbered", ~((EPISODE == 3) & (STEP == 0)), timestep=STEP, episode=EPISODE)
chosen("an episode is missing", EPISODE != 3, episode_id=EPISODE)
chosen("an episode comes twice", np.concatenate([np.arange(COUNT), np.flatnonzero(EPISODE == 3)]), episode_id=EPISODE)
chosen("an episode twice in a row", np.insert(np.arange(COUNT), STARTS[4], np.flatnonzero(EPISODE == 3)), step=STEP)
chosen("rows shuffled", np.random.default_rng(0).permutation(COUNT), episode_id=EPISODE)
chosen("rows shuffled, steps", np.random.default_rng(0).permutation(COUNT), step=STEP)
chosen("rows reversed", np.arange(COUNT)[::-1], step=STEP)
chosen("a row comes twice", np.insert(np.arange(COUNT), 11, 11), step=STEP)
chosen("two rows swapped", np.r_[0:10, 11, 10, 12:COUNT], step=STEP)
chosen("no rows", slice(0, 0))


def instead(name: str, *removed: str, **arrays: Any) -> None:
    """Add a damage: arrays in place of all that says where truncated episodes end, and of the removed ones."""

    def change(data: Data) -> None:
        unmarked(data)
        without(data, *removed)
        data.update(arrays)

    DAMAGES[name] = change


instead("dones only", "terminals", dones=END)
instead("dones that contradict terminals", dones=END & (EPISODE < 3))
instead("dones true everywhere", dones=np.ones(COUNT, bool))
instead("is first a row late", is_first=np.roll(STEP == 0, 1))
instead("steps that contradict episodes", step=STEP, episode=np.minimum(EPISODE, 4))
instead("step of the whole run", step=np.arange(COUNT), episode=EPISODE)
instead("step of the whole run only", step=np.arange(COUNT))


def in_dict(data: Data, after: str) -> None:
    """Name the observations as parts of a dict, and the next ones as its part ``after``."""
    data["observations/state"] = data.pop("observations")
    data[f"next_observations/{after}"] = data.pop("next_observations")


DAMAGES |= {
    "a text a step": lambda data: data.update(mission=np.array(["go"] * COUNT, "S2")),
    "further field of other length": lambda data: data.update({"infos/qpos": np.zeros(3)}),
    "two names of terminals": lambda data: data.update(terminated=data["terminals"]),
    "two names of timeouts": lambda data: data.update(truncated=data["timeouts"]),
    "dones and timeouts": lambda data: (without(data, "terminals"), data.update(dones=END)),
    "observations in a dict": lambda data: in_dict(data, "state"),
    "next observations of another key": lambda data: in_dict(data, "other"),
    "next observations of another width": lambda data: data.update(next_observations=data["next_observations"][:, :2]),
}


def cut(label: str, change: Callable[[bytes], bytes]) -> None:
    DAMAGES[label] = lambda data: change


for share in (0.1, 0.5, 0.9, 0.99):
    cut(f"cut at {share:.0%}", lambda content, share=share: content[: int(share * len(content))])
cut("empty file", lambda content: b"")
cut("text file", lambda content: b"observations,actions\n")
cut("zeros behind", lambda content: content + bytes(100))
cut("zeros before", lambda content: bytes(100) + content)


def arrays_of(episodes: list[Episode]) -> Data:
    ends = np.zeros((2, COUNT), np.bool_)
    for at, one in zip(ENDS, episodes, strict=True):
        ends[:, at] = one.terminated, not one.terminated
    return {
        "observations": np.concatenate([one.obs[:-1] for one in episodes]),
        "next_observations": np.concatenate([one.obs[1:] for one in episodes]),
        "actions": np.concatenate([one.action for one in episodes]),
        "rewards": np.concatenate([one.reward for one in episodes]),
        "terminals": ends[0],
        "timeouts": ends[1],
    }


def written(
    path: Path, episodes: list[Episode], change: Callable[[Data], Any], save: Callable[[Path, Data], None]
) -> str:
    data = arrays_of(episodes)
    after = change(data)
    save(path, data)
    if callable(after):
        path.write_bytes(after(path.read_bytes()))
    return f"{path.suffix[1:]}:{path}"


def write_npz(folder: Path, episodes: list[Episode], change: Callable[[Data], Any]) -> str:
    return written(folder / "x.npz", episodes, change, lambda path, data: np.savez(path, **data))


def write_hdf5(folder: Path, episodes: list[Episode], change: Callable[[Data], Any]) -> str:
    def save(path: Path, data: Data) -> None:
        with h5py.File(path, "w") as file:
            for name, values in data.items():
                file[name] = values

    return written(folder / "x.hdf5", episodes, change, save)


def fortran(data: Data) -> None:
    data["observations"] = np.asfortranarray(data["observations"])


def objects(data: Data) -> None:
    data["actions"] = data["actions"].astype(object)


FORMATS = {
    "npz": Format(write_npz, DAMAGES | {"Fortran order": fortran, "pickled actions": objects}),
    "hdf5": Format(write_hdf5, DAMAGES),
}
