"""robomimic's files, written as its ``dataset_states_to_obs.py`` and MimicGen's ``write_demo_to_hdf5`` write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import sharpwave as sw
from tests.data_sets.data import same
from tests.data_sets.test_columns import noted
from tests.support.examples import every_two

ENV = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}}
LENGTHS = [4, 1, 6]


def demo(length: int, seed: int = 0) -> dict[str, Any]:
    """Return the arrays of a demonstration: rewards float64, dones int64, observations float64 and uint8."""
    rng = np.random.default_rng([length, seed])
    state, image = rng.normal(size=(length + 1, 3)), rng.integers(256, size=(length + 1, 4, 4, 3), dtype=np.uint8)
    return {
        "actions": rng.normal(size=(length, 7)),
        "states": rng.normal(size=(length, 9)),
        "rewards": np.array([*[0.0] * (length - 1), 1.0]),
        "dones": np.array([*[0] * (length - 1), 1]),
        "obs/object": state[:-1],
        "next_obs/object": state[1:],
        "obs/agentview_image": image[:-1],
        "next_obs/agentview_image": image[1:],
    }


def write(path: Path, demos: list[dict[str, Any]], numbers: list[int] | None = None) -> str:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        numbers = numbers or list(range(len(demos)))
        for number, arrays in zip(numbers, demos, strict=True):
            group = data.create_group(f"demo_{number}")
            for name, values in arrays.items():
                group.create_dataset(name, data=values, compression="gzip" if name.startswith("obs/") else None)
            group.attrs["model_file"] = "<mujoco/>"
            group.attrs["num_samples"] = len(arrays["actions"])
        data.attrs["total"] = sum(len(one["actions"]) for one in demos)
        data.attrs["env_args"] = json.dumps(ENV, indent=4)
        file["mask/train"] = np.array([f"demo_{one}" for one in (0, 10) if one in numbers], dtype="S")
    return f"hdf5:{path}"


def test_demonstrations_bit_for_bit(tmp_path: Path) -> None:
    """In the order of their numbers, which is not that of their names."""
    demos = [demo(length) for length in LENGTHS]
    store = sw.load(write(tmp_path / "low_dim.hdf5", demos, [0, 2, 10]))
    assert store.spec.fields["obs.object"].dtype == "float64"
    for one, arrays, number in zip(store.episodes(), demos, [0, 2, 10], strict=True):
        length = len(arrays["actions"])
        assert one.whole and one.ended == "terminated" and one.info["demo"] == f"demo_{number}"
        for name in ("object", "agentview_image"):
            obs, after = arrays[f"obs/{name}"], arrays[f"next_obs/{name}"]
            assert same(one.obs[name], np.concatenate([obs, after[-1:]]))
        assert same(one.action, arrays["actions"]) and same(one["states"], arrays["states"])
        assert same(one.reward, arrays["rewards"].astype(np.float32)) and one.length == length
    note = noted(store)
    assert json.loads(note["about"]["env_args"]) == ENV
    assert note["notes"][0] == "read as robomimic writes it" and note["left_out"] == []
    assert note["audit"]["source"] == note["audit"]["read"] == note["audit"]["store"]
    assert note["audit"]["read"] == {
        "episodes": 3, "steps": 11, "reward": 3.0, "terminated": 3, "truncated": 0, "unmarked": 0
    }  # fmt: skip


def test_without_next_observations(tmp_path: Path) -> None:
    """A last step that did not terminate is left out; dones of mode 0 are true wherever the task is solved."""
    demos = [{k: v for k, v in demo(length).items() if not k.startswith("next_obs")} for length in LENGTHS]
    demos[1]["dones"][:] = demos[2]["dones"][:] = 0
    demos[0]["dones"][1:] = 1
    demos[2]["dones"][2] = 1
    store = sw.load(write(tmp_path / "image.hdf5", demos))
    first, second = store.episodes()
    assert first.ended == "terminated" and same(first.obs["object"][:4], demos[0]["obs/object"])
    assert second.ended == "truncated" and same(second.obs["object"], demos[2]["obs/object"]) and second.length == 5
    note = noted(store)
    assert note["left_out"] == [
        "2 steps at the ends of episodes that did not terminate, with rewards of 2: the observation after them is not "
        "in the data",
        "1 episodes of one such step",
    ]
    assert "terminated: true before the last step in 2 episodes, which do not end there" in note["notes"]
    assert note["audit"]["source"]["steps"] == 11 and note["audit"]["source"]["reward"] == 3.0


def test_mimicgen(tmp_path: Path) -> None:
    """No rewards, dones or next observations; arrays that are not one value a step."""
    demos = []
    for length in (5, 4, 6):
        one = {k: v for k, v in demo(length).items() if k.split("/")[0] in ("obs", "actions", "states")}
        one |= {"datagen_info/eef_pose": np.zeros((length, 4, 4)), "src_demo_inds": np.zeros(2, np.int64)}
        demos.append(one | {"src_demo_labels": np.zeros((length, 1), np.int64)})
    store = sw.load(write(tmp_path / "demo.hdf5", demos))
    assert [one.length for one in store.episodes()] == [4, 3, 5]
    assert set(store.spec.extra_names) == {"states", "datagen_info.eef_pose", "src_demo_labels"}
    note = noted(store)
    assert "src_demo_inds (int64), in 3 episodes: not one value a step in most of them" in note["left_out"]
    assert "rewards: none in the data; 0 is stored" in note["notes"]


DAMAGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "short rewards": (lambda one: put(one, "rewards", np.zeros(3)), "reward has 3 rows, expected 4"),
    "short state": (lambda one: put(one, "states", np.zeros((3, 9))), "states has 3 rows, expected 4"),
    "no action": (lambda one: one.__delitem__("actions"), "has no actions"),
    "no obs": (lambda one: one.__delitem__("obs"), "dataset_states_to_obs.py"),
    "no camera": (lambda one: one.__delitem__("obs/object"), "next_obs has .*, expected those of obs"),
    "nan reward": (lambda one: put(one, "rewards", np.full(4, np.nan)), "reward"),
    "dones of 2": (lambda one: put(one, "dones", np.full(4, 2)), "terminated has 2, expected 0 and 1"),
    "wide obs": (lambda one: put(one, "obs/object", np.zeros((4, 4))), r"obs object has rows of \(4,\) float64"),
    "float32 obs": (lambda one: put(one, "obs/object", np.zeros((4, 3), np.float32)), "float32, expected .* float64"),
    "num_samples": (lambda one: one.attrs.__setitem__("num_samples", 5), "num_samples is 5, expected the rows"),
    "two episodes": (lambda one: put(one, "obs/object", np.zeros((4, 3))), "row 0: next_obs object is not the observ"),
    "array": (lambda one: put(one.parent, one.name.split("/")[-1], np.zeros(3)), "is no group"),
    "link": (lambda one: put(one, "actions", h5py.SoftLink("/data/demo_2/actions")), "is a link to elsewhere"),
}


def put(group: Any, name: str, values: Any) -> None:
    del group[name]
    group[name] = values


@pytest.mark.parametrize(("name", "number"), every_two(DAMAGES, [0, 3]))
def test_one_damaged_demonstration(tmp_path: Path, name: str, number: int) -> None:
    change, message = DAMAGES[name]
    place = write(tmp_path / "x.hdf5", [demo(4, seed) for seed in range(5)])
    with h5py.File(tmp_path / "x.hdf5", "r+") as file:
        change(file[f"data/demo_{number}"])
    with pytest.raises(ValueError, match=rf"x\.hdf5.*demo_{number}\b.*({message})"):
        sw.load(place)
    store = sw.load(place, skip_damaged=True)
    assert [one.info["demo"] for one in store.episodes()] == [f"demo_{n}" for n in range(5) if n != number]
    assert noted(store)["skipped_episodes"] == 1 and f"demo_{number}" in noted(store)["skipped"][0]


def test_states_without_observations(tmp_path: Path) -> None:
    demos = [{k: v for k, v in demo(4, seed).items() if k in ("actions", "states")} for seed in range(2)]
    with pytest.raises(ValueError, match=r"demo_0: has no obs, expected observations; .*dataset_states_to_obs.py"):
        sw.load(write(tmp_path / "demo.hdf5", demos))


def test_next_observations_that_differ_by_rounding(tmp_path: Path) -> None:
    one = demo(4)
    one["next_obs/object"] = one["next_obs/object"] * np.array([[1], [1 + 1e-9], [1], [1]])
    store = sw.load(write(tmp_path / "x.hdf5", [one]))
    assert store.episodes()[0].info["next_obs_rounded"] == 1
    assert same(store.episodes()[0].obs["object"][:4], one["obs/object"])


def test_a_demonstration_that_was_deleted(tmp_path: Path) -> None:
    place = write(tmp_path / "x.hdf5", [demo(4, seed) for seed in range(4)])
    with h5py.File(tmp_path / "x.hdf5", "r+") as file:
        del file["data/demo_3"], file["mask/train"]
        file["mask/train"] = np.array(["demo_0", "demo_3"], dtype="S")
    store = sw.load(place)
    assert noted(store)["left_out"] == [
        "mask/train: lists demo_3, which data lacks",
        "steps: total says 16, sound demonstrations have 12",
    ]
    with h5py.File(tmp_path / "x.hdf5", "r+") as file:
        file["mask/numbers"] = np.zeros(3)
    assert "mask/numbers: cannot be read" in noted(sw.load(place))["left_out"]


def test_fields_that_would_have_one_name(tmp_path: Path) -> None:
    place = write(tmp_path / "x.hdf5", [demo(4, seed) | {"a.b": np.ones(4), "a/b": np.zeros(4)} for seed in range(2)])
    store = sw.load(place)
    assert same(store.episodes()[0]["a.b"], np.zeros(4))
    assert noted(store)["left_out"] == ["a.b: would have the name of a/b"]


def test_what_an_environment_says_of_a_demonstration(tmp_path: Path) -> None:
    place = write(tmp_path / "x.hdf5", [demo(4)])
    with h5py.File(tmp_path / "x.hdf5", "r+") as file:
        file["data/demo_0"].attrs["ep_meta"] = '{"lang": "open the drawer"}'
    assert sw.load(place).episodes()[0].info["ep_meta"] == '{"lang": "open the drawer"}'


def test_a_demonstration_that_lacks_what_others_have(tmp_path: Path) -> None:
    demos = [demo(4, seed) for seed in range(3)]
    demos[1] = {name: values for name, values in demos[1].items() if "next_obs" not in name and name != "dones"}
    notes = noted(sw.load(write(tmp_path / "x.hdf5", demos)))["notes"]
    assert "next_obs: none in 1 episodes" in notes
    assert "nothing says how 1 episodes ended; they count as truncated" in notes
