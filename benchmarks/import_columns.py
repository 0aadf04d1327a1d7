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


def damage(change: Callable[[Data], Any]) -> Callable[[Data], Any]:
    DAMAGES[change.__name__.replace("_", " ").strip()] = change
    return change


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


@damage
def rewards_of_two(data: Data) -> None:
    data["rewards"] = np.stack([data["rewards"]] * 2, 1)


@damage
def no_timeouts(data: Data) -> None:
    without(data, "timeouts")


@damage
def no_next_observations(data: Data) -> None:
    without(data, "next_observations")


@damage
def nothing_says_where_truncated_ones_end(data: Data) -> None:
    unmarked(data)


@damage
def rounded_next_observations(data: Data) -> None:
    data["next_observations"] *= np.float32(1 + 2e-7)


@damage
def next_observations_off_by_a_thousandth(data: Data) -> None:
    data["next_observations"] *= np.float32(1.001)


@damage
def next_observations_are_the_observations(data: Data) -> None:
    data["next_observations"] = data["observations"].copy()


@damage
def next_observations_a_row_early(data: Data) -> None:
    data["next_observations"] = np.roll(data["next_observations"], -1, axis=0)


@damage
def zeros_of_another_sign(data: Data) -> None:
    data["zero"] = -np.zeros(COUNT)


@damage
def timeouts_a_row_early(data: Data) -> None:
    data["timeouts"] = np.roll(data["timeouts"], -1)


@damage
def timeouts_a_row_late(data: Data) -> None:
    data["timeouts"] = np.roll(data["timeouts"], 1)


@damage
def terminals_a_row_early(data: Data) -> None:
    data["terminals"] = np.roll(data["terminals"], -1)


@damage
def terminals_a_row_late(data: Data) -> None:
    data["terminals"] = np.roll(data["terminals"], 1)


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


@damage
def a_text_a_step(data: Data) -> None:
    data["mission"] = np.array(["go"] * COUNT, "S2")


@damage
def further_field_of_other_length(data: Data) -> None:
    data["infos/qpos"] = np.zeros(3)


@damage
def two_names_of_terminals(data: Data) -> None:
    data["terminated"] = data["terminals"]


@damage
def two_names_of_timeouts(data: Data) -> None:
    data["truncated"] = data["timeouts"]


@damage
def dones_only(data: Data) -> None:
    unmarked(data)
    without(data, "terminals")
    data["dones"] = END


@damage
def dones_and_timeouts(data: Data) -> None:
    without(data, "terminals")
    data["dones"] = END


@damage
def dones_that_contradict_terminals(data: Data) -> None:
    unmarked(data)
    data["dones"] = END & (EPISODE < 3)


@damage
def dones_true_everywhere(data: Data) -> None:
    unmarked(data)
    data["dones"] = np.ones(COUNT, bool)


@damage
def is_first_a_row_late(data: Data) -> None:
    unmarked(data)
    data["is_first"] = np.roll(STEP == 0, 1)


@damage
def steps_that_contradict_episodes(data: Data) -> None:
    unmarked(data)
    data["step"], data["episode"] = STEP, np.minimum(EPISODE, 4)


@damage
def step_of_the_whole_run(data: Data) -> None:
    unmarked(data)
    data["step"], data["episode"] = np.arange(COUNT), EPISODE


@damage
def step_of_the_whole_run_only(data: Data) -> None:
    unmarked(data)
    data["step"] = np.arange(COUNT)


@damage
def observations_in_a_dict(data: Data) -> None:
    for name in ("observations", "next_observations"):
        data[f"{name}/state"] = data.pop(name)


@damage
def next_observations_of_another_key(data: Data) -> None:
    data["observations/state"], data["next_observations/other"] = (
        data.pop("observations"),
        data.pop("next_observations"),
    )


@damage
def next_observations_of_another_width(data: Data) -> None:
    data["next_observations"] = data["next_observations"][:, :2]


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
    if after is not None:
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
