"""ManiSkill's, ALOHA's and d3rlpy's files, written as their writers write them.

These are ``RecordEpisode.flush_trajectory`` of ManiSkill 3, ``record_sim_episodes.py`` and ``compress_data.py`` of ACT,
and ``dump`` of d3rlpy 1 and 2.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

import sharpwave as sw
from tests.data_sets.data import same
from tests.data_sets.test_columns import noted

LENGTHS = [4, 1, 6]
Episode = dict[str, Any]


def maniskill(length: int, seed: int) -> Episode:
    """Return the arrays of a trajectory, T + 1 of observations and states."""
    rng = np.random.default_rng([length, seed])
    return {
        "obs/agent/qpos": rng.normal(size=(length + 1, 9)).astype(np.float32),
        "obs/sensor_data/base_camera/rgb": rng.integers(256, size=(length + 1, 4, 4, 3), dtype=np.uint8),
        "obs/sensor_data/base_camera/depth": rng.integers(9999, size=(length + 1, 4, 4, 1), dtype=np.int16),
        "actions": rng.normal(size=(length, 8)).astype(np.float32),
        "terminated": np.arange(length) == (length - 1 if seed % 2 else length),
        "truncated": np.arange(length) == (length if seed % 2 else length - 1),
        "success": np.arange(length) == length - 1,
        "env_states/actors/cube": rng.normal(size=(length + 1, 13)).astype(np.float32),
        "rewards": rng.normal(size=length).astype(np.float32),
    }


def write_maniskill(folder: Path, episodes: list[Episode], described: bool = True) -> str:
    with h5py.File(folder / "trajectory.h5", "w") as file:
        for number, arrays in enumerate(episodes):
            group = file.create_group(f"traj_{number}", track_order=True)
            for name, values in arrays.items():
                gzip = {"compression": "gzip", "compression_opts": 5} if name.endswith(("rgb", "depth")) else {}
                group.create_dataset(name, data=values, **gzip)
    said = [{"episode_id": n, "episode_seed": 40 + n, "control_mode": "pd", "elapsed_steps": len(one["actions"])} for n, one in enumerate(episodes)]  # fmt: skip  # noqa: E501
    if described:
        whole = {"env_info": {"env_id": "PickCube-v1"}, "episodes": said, "source_type": None}
        (folder / "trajectory.json").write_text(json.dumps(whole))
    return f"hdf5:{folder / 'trajectory.h5'}"


def aloha(length: int, seed: int) -> Episode:
    """Return the arrays of an episode: pictures are smooth, so that JPEG keeps them nearly."""
    rng = np.random.default_rng([length, seed])
    ramp = np.linspace(0, 120, 32, dtype=np.uint8)
    top = np.broadcast_to(ramp[None, :, None, None], (length, 32, 32, 3)) + np.array([0, 50, 100], np.uint8)
    return {
        "observations/images/top": np.ascontiguousarray(top),
        "observations/images/top_depth": rng.integers(9999, size=(length, 32, 32), dtype=np.uint16),
        "observations/qpos": rng.normal(size=(length, 14)).astype(np.float32),
        "observations/qvel": rng.normal(size=(length, 14)).astype(np.float32),
        "action": rng.normal(size=(length, 14)).astype(np.float32),
        "base_action": rng.normal(size=(length, 2)).astype(np.float32),
    }


def write_aloha(folder: Path, episodes: list[Episode], compress: bool = False) -> str:
    for number, arrays in enumerate(episodes):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file.attrs["sim"] = True
            if compress:
                file.attrs["compress"] = True
            for name, values in arrays.items():
                if not compress or not name.endswith("/top"):
                    file[name] = values
                    continue
                packed = [cv2.imencode(".jpg", one, [int(cv2.IMWRITE_JPEG_QUALITY), 95])[1] for one in values]
                padded = file.create_dataset(name, (len(packed), max(map(len, packed))), dtype="uint8")
                for row, one in enumerate(packed):
                    padded[row, : len(one)] = one.reshape(-1)
                file["compress_len"] = np.array([[len(one) for one in packed]], np.float32)
    return f"hdf5:{folder}"


def d3rlpy(length: int, seed: int) -> Episode:
    rng = np.random.default_rng([length, seed])
    return {
        "observations": rng.normal(size=(length, 3)).astype(np.float32),
        "actions": rng.integers(4, size=(length, 1)),
        "rewards": rng.normal(size=(length, 1)).astype(np.float32),
        "terminated": seed % 2 == 0,
    }


def write_d3rlpy(folder: Path, episodes: list[Episode]) -> str:
    with h5py.File(folder / "dataset.h5", "w") as file:
        file.create_dataset("columns", data=list(episodes[0]))
        file.create_dataset("num_episodes", data=len(episodes))
        for number, arrays in enumerate(episodes):
            for name, values in arrays.items():
                if isinstance(values, list | tuple):
                    for part, one in enumerate(values):
                        file.create_dataset(f"{name}_{number}_{part}", data=one)
                else:
                    file.create_dataset(f"{name}_{number}", data=values)
        file.create_dataset("version", data="2.1")
    return f"hdf5:{folder / 'dataset.h5'}"


def test_maniskill(tmp_path: Path) -> None:
    """Nine, ten: in the order of their numbers."""
    made = [maniskill(length, n) for n, length in enumerate(LENGTHS * 4)]
    store = sw.load(write_maniskill(tmp_path, made))
    for n, (one, arrays) in enumerate(zip(store.episodes(), made, strict=True)):
        assert same(one.obs["agent"]["qpos"], arrays["obs/agent/qpos"])
        assert same(one.obs["sensor_data"]["base_camera"]["rgb"], arrays["obs/sensor_data/base_camera/rgb"])
        assert same(one.obs["sensor_data"]["base_camera"]["depth"], arrays["obs/sensor_data/base_camera/depth"])
        assert same(one.action, arrays["actions"]) and same(one.reward, arrays["rewards"])
        assert same(one.terminated, arrays["terminated"]) and same(one.truncated, arrays["truncated"])
        assert same(one["success"], arrays["success"])
        assert same(one["env_states.actors.cube"], arrays["env_states/actors/cube"][:-1])
        assert one.info["trajectory"] == f"traj_{n}" and one.info["episode_seed"] == 40 + n
    note = noted(store)
    assert json.loads(note["about"]["env_info"]) == {"env_id": "PickCube-v1"}
    assert note["notes"] == ["read as ManiSkill writes it"]
    assert note["left_out"] == ["the last row of further fields that have one more than there are steps"]
    assert note["audit"]["source"] == note["audit"]["store"] and note["audit"]["read"]["terminated"] == 6


def test_maniskill_without_its_json(tmp_path: Path) -> None:
    store = sw.load(write_maniskill(tmp_path, [maniskill(4, 1)], described=False))
    assert store.episodes()[0].info["trajectory"] == "traj_0"
    assert any("no JSON file" in one for one in noted(store)["notes"])
    (tmp_path / "trajectory.json").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match=r"trajectory\.json: its path leads through a symbolic link"):
        sw.load(f"hdf5:{tmp_path / 'trajectory.h5'}")


@pytest.mark.parametrize("compress", [False, True])
def test_aloha(tmp_path: Path, compress: bool) -> None:
    made = [aloha(length, n) for n, length in enumerate(LENGTHS)]
    store = sw.load(write_aloha(tmp_path, made, compress))
    note = noted(store)
    assert [one.length for one in store.episodes()] == [3, 5]
    assert note["audit"]["left_out"] == {
        "episodes": 1, "steps": 3, "reward": 0.0, "terminated": 0, "truncated": 0, "unmarked": 1
    }  # fmt: skip
    assert note["notes"][2:] == [
        "rewards: none in the data; 0 is stored",
        "nothing says how an episode ended; all count as truncated",
    ]
    for one, arrays in zip(store.episodes(), [made[0], made[2]], strict=True):
        for name in ("qpos", "qvel"):
            assert same(one.obs[name], arrays[f"observations/{name}"])
        assert same(one.obs["images"]["top_depth"], arrays["observations/images/top_depth"])
        assert same(one.action, arrays["action"][:-1]) and same(one["base_action"], arrays["base_action"][:-1])
        difference = np.abs(one.obs["images"]["top"].astype(int) - arrays["observations/images/top"])
        assert difference.max() <= (4 if compress else 0)
        assert not one.reward.any() and one.ended == "truncated" and one.info["sim"] is True


def test_aloha_jpegs_as_opencv_decodes_them(tmp_path: Path) -> None:
    """ACT's loader has ``cv2.imdecode``; one file alone is a data set, too."""
    write_aloha(tmp_path, [aloha(5, 0)], compress=True)
    (one,) = sw.load(f"hdf5:{tmp_path / 'episode_0.hdf5'}").episodes()
    with h5py.File(tmp_path / "episode_0.hdf5") as file:
        rows = file["observations/images/top"][()]
    decoded: list[Any] = [cv2.imdecode(row, 1) for row in rows]
    assert np.array_equal(one.obs["images"]["top"], decoded)


def test_aloha_texts_and_other_files(tmp_path: Path) -> None:
    write_aloha(tmp_path, [aloha(5, 0)])
    with h5py.File(tmp_path / "episode_0.hdf5", "r+") as file:
        file["language_raw"] = [b"pick up the cube"]
    (tmp_path / "notes.txt").write_text("x")
    store = sw.load(f"hdf5:{tmp_path}")
    assert store.episodes()[0].info["language_raw"] == "pick up the cube"
    assert noted(store)["left_out"][0] == "1 files: no episode (notes.txt)"
    (tmp_path / "episode_0.hdf5").rename(tmp_path / "other.hdf5")
    with pytest.raises(ValueError, match=r"has \['notes.txt', 'other.hdf5'\], expected ALOHA's episode_0.hdf5"):
        sw.load(f"hdf5:{tmp_path}")


def test_d3rlpy(tmp_path: Path) -> None:
    made = [d3rlpy(length, n) for n, length in enumerate([4, 1, 6, 5])]
    store = sw.load(write_d3rlpy(tmp_path, made))
    first, second, third = store.episodes()
    assert first.ended == second.ended == "terminated" and third.ended == "truncated"
    assert same(first.obs[:4], made[0]["observations"]) and same(second.obs[:6], made[2]["observations"])
    assert same(third.obs, made[3]["observations"]) and third.length == 4
    assert same(first.action, made[0]["actions"]) and same(first.reward, made[0]["rewards"][:, 0])
    note = noted(store)
    assert note["notes"] == ["read as d3rlpy 2 writes it"] and note["audit"]["left_out"]["steps"] == 2
    assert note["audit"]["source"]["steps"] == 16


def test_d3rlpy_tuples(tmp_path: Path) -> None:
    one = d3rlpy(4, 0)
    one["observations"] = (one["observations"], np.zeros((4, 2, 2), np.uint8))
    (episode,) = sw.load(write_d3rlpy(tmp_path, [one])).episodes()
    assert same(episode.obs[0][:4], one["observations"][0]) and same(episode.obs[1][:4], one["observations"][1])


def test_d3rlpy_1(tmp_path: Path) -> None:
    """All steps in a few arrays; ``episode_terminals`` are true at ends of both kinds."""
    made = [d3rlpy(length, n) for n, length in enumerate(LENGTHS)]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in ("observations", "actions", "rewards"):
            file[name] = np.concatenate([one[name] for one in made])
        file["terminals"] = np.array([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1], np.float32)
        file["episode_terminals"] = np.array([0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1], np.float32)
        file["discrete_action"], file["version"] = True, "1.1.1"
    first, second = sw.load(f"hdf5:{tmp_path / 'x.h5'}").episodes()
    assert first.ended == second.ended == "terminated" and (first.length, second.length) == (4, 6)
    assert same(second.obs[:6], made[2]["observations"]) and same(second.reward, made[2]["rewards"][:, 0])


def put(file: Any, name: str, values: Any) -> None:
    del file[name]
    file[name] = values


Damage = Callable[[Any, str], None]
WRITERS: dict[str, tuple[Callable[[int, int], Episode], Callable[[Path, list[Episode]], str], str, str]] = {
    "maniskill": (maniskill, write_maniskill, "trajectory.h5", "traj_1/{}"),
    "aloha": (aloha, write_aloha, "episode_1.hdf5", "{}"),
    "d3rlpy": (d3rlpy, write_d3rlpy, "dataset.h5", "{}_1"),
}
ACTIONS = {"maniskill": "actions", "aloha": "action", "d3rlpy": "actions"}
DAMAGES: dict[str, tuple[Damage, str]] = {
    "none": (lambda file, name: file.__delitem__(name), "has no actions"),
    "short": (
        lambda file, name: put(file, name, file[name][:-2]),
        "rows, expected (3|4, one more)|expected 5 as elapsed_steps",
    ),
    "wide": (lambda file, name: put(file, name, np.zeros((5, 99), file[name].dtype)), r"rows of \(99,\)"),
    "text": (lambda file, name: put(file, name, [b"up"] * 5), "expected .*, as in most episodes"),
    "link": (lambda file, name: put(file, name, h5py.SoftLink("/x")), "is a link to elsewhere"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", WRITERS)
def test_one_damaged_episode(tmp_path: Path, kind: str, damage: str) -> None:
    make, write, file_name, array = WRITERS[kind]
    place = write(tmp_path, [make(5, n) for n in range(4)])
    change, message = DAMAGES[damage]
    with h5py.File(tmp_path / file_name, "r+") as file:
        change(file, array.format(ACTIONS[kind]))
    with pytest.raises(ValueError, match=rf"(?s){tmp_path}.*(traj_1|episode_1\.hdf5|episode 1)\b.*({message})"):
        sw.load(place)
    store = sw.load(place, skip_damaged=True)
    assert len(store.episodes()) == 3 and noted(store)["skipped_episodes"] == 1


def test_aloha_files_with_both_names_of_rewards_keep_both(tmp_path: Path) -> None:
    paid = np.arange(5, dtype=np.float32)
    place = write_aloha(tmp_path, [aloha(5, 0) | {"reward": paid, "rewards": paid + 9}])
    (episode,) = sw.load(place).episodes()
    assert episode.reward.tolist() == [0, 1, 2, 3] and episode["rewards"].tolist() == [9, 10, 11, 12]


def one_aloha(folder: Path, **more: Any) -> str:
    """Return a single file of five rows with these arrays at its top."""
    return write_aloha(folder, [aloha(5, 0) | {"reward": np.ones(5)} | more]) + "/episode_0.hdf5"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("episode_id", [0, 0, 1, 1, 1]),
        ("Episode", [0, 0, 1, 1, 1]),
        ("step", [0, 1, 0, 1, 2]),
        ("Is_First", [True, False, True, False, False]),
        ("IS_LAST", [False, True, False, False, True]),
        ("Dones", [False, True, False, False, True]),
        ("infos/timeouts", [False, True, False, False, True]),
    ],
)
def test_a_file_as_alohas_of_several_episodes_is_not_taken_for_one(tmp_path: Path, name: str, values: Any) -> None:
    with pytest.raises(ValueError, match="terminals"):
        sw.load(one_aloha(tmp_path, **{name: np.array(values)}))


def test_a_file_as_alohas_that_says_how_episodes_end_in_capitals(tmp_path: Path) -> None:
    store = sw.load(one_aloha(tmp_path, Terminals=np.array([False, True, False, False, True])))
    assert [(one.length, one.ended) for one in store.episodes(order="oldest")] == [(2, "terminated"), (3, "terminated")]
    store.close()


def test_an_aloha_file_may_number_its_rows(tmp_path: Path) -> None:
    numbers = {"timestep": np.arange(5), "episode_index": np.full(5, 7), "is_first": np.arange(5) == 0}
    store = sw.load(one_aloha(tmp_path, **numbers))
    assert [one.length for one in store.episodes()] == [4]
    store.close()


def test_texts_of_each_step_among_alohas_observations(tmp_path: Path) -> None:
    words = np.array([b"go", b"go", b"stop", b"go", "zur\u00fcck".encode()])
    store = sw.load(write_aloha(tmp_path, [aloha(5, 0) | {"observations/said": words}]))
    (one,) = store.episodes()
    assert one.obs["said"].strings() == ["go", "go", "stop", "go", "zur\u00fcck"] and one.length == 4
    assert not any(one.startswith("said (") for one in noted(store)["left_out"])
    store.close()


def test_an_aloha_file_that_is_none(tmp_path: Path) -> None:
    place = write_aloha(tmp_path, [aloha(5, n) for n in range(3)])
    content = (tmp_path / "episode_0.hdf5").read_bytes()
    (tmp_path / "episode_0.hdf5").write_bytes(content[:500])
    with pytest.raises(ValueError, match=r"episode_0\.hdf5.*is no HDF5 file, or damaged"):
        sw.load(place)
    assert len(sw.load(place, skip_damaged=True).episodes()) == 2
    (tmp_path / "episode_0.hdf5").unlink()
    (tmp_path / "episode_0.hdf5").symlink_to(tmp_path / "episode_1.hdf5")
    with pytest.raises(ValueError, match=r"episode_0\.hdf5.*its path leads through a symbolic link"):
        sw.load(place)


def test_rewards_that_one_episode_lacks_beside_one_without_steps(tmp_path: Path) -> None:
    made = [d3rlpy(1, 1), d3rlpy(4, 2), d3rlpy(3, 4)]
    place = write_d3rlpy(tmp_path, made)
    with h5py.File(tmp_path / "dataset.h5", "a") as file:
        del file["rewards_1"]
    assert "rewards: none in 1 episodes; 0 is stored" in noted(sw.load(place))["notes"]


def test_an_action_that_few_episodes_have_is_named(tmp_path: Path) -> None:
    place = write_maniskill(tmp_path, [maniskill(4, n) for n in range(3)])
    with h5py.File(tmp_path / "trajectory.h5", "a") as file:
        for n in range(3):
            del file[f"traj_{n}/actions"]
            file[f"traj_{n}/actions/left"] = np.ones((4, 2), np.float32)
        file["traj_1/actions/right"] = np.ones((4, 2), np.float32)
    store = sw.load(place)
    assert list(store.episodes()[0].action) == ["left"]
    assert "right (float32), in 1 episodes: not one value a step in most of them" in noted(store)["left_out"]


@pytest.mark.parametrize("kind", WRITERS)
def test_observations_of_another_length_than_the_format_has(tmp_path: Path, kind: str) -> None:
    """A row that is missing may be any one: ManiSkill's have one more than actions, others as many."""
    make, write, file_name, array = WRITERS[kind]
    place = write(tmp_path, [make(5, n) for n in range(4)])
    with h5py.File(tmp_path / file_name, "r+") as file:
        if kind == "maniskill":
            for name in ("agent/qpos", "sensor_data/base_camera/rgb", "sensor_data/base_camera/depth"):
                put(file, f"traj_1/obs/{name}", file[f"traj_1/obs/{name}"][1:])
        else:
            for name in (one for one in make(5, 0) if "obs" not in one and one != "terminated"):
                put(file, array.format(name), file[array.format(name)][:-1])
    expected = "5 rows, expected 6, one more than" if kind == "maniskill" else "5 rows, expected 4, as"
    with pytest.raises(ValueError, match=f"obs.* has {expected} the shortest actions"):
        sw.load(place)
    assert len(sw.load(place, skip_damaged=True).episodes()) == 3


Said = Callable[[list[Episode]], object]
JSON: dict[str, tuple[Said, str]] = {
    "listed only": (
        lambda said: said.append({"episode_id": 7}),
        "episodes: the JSON file lists traj_7, which this file lacks",
    ),
    "not listed": (lambda said: said.pop(1), "descriptions: the JSON file does not list traj_1"),
    "twice": (
        lambda said: said.append(dict(said[2])),
        "episodes: the JSON file lists traj_2 twice; neither description is taken",
    ),
    "without a number": (lambda said: said[0].pop("episode_id"), "episodes: 1 of the JSON file have no episode_id"),
    "no success": (
        lambda said: said[1].update(success=False),
        "success: the JSON file differs for traj_1",
    ),
}


def described(folder: Path, change: Said) -> str:
    place = write_maniskill(folder, [maniskill(4, n) for n in range(3)])
    whole = json.loads((folder / "trajectory.json").read_text())
    change(whole["episodes"])
    (folder / "trajectory.json").write_text(json.dumps(whole))
    return place


@pytest.mark.parametrize("name", JSON)
def test_maniskills_json_that_differs(tmp_path: Path, name: str) -> None:
    change, message = JSON[name]
    store = sw.load(described(tmp_path, change))
    assert message in noted(store)["left_out"] and len(store.episodes()) == 3


def test_maniskills_terminated_that_is_missing_is_named(tmp_path: Path) -> None:
    place = write_maniskill(tmp_path, [maniskill(4, 1), maniskill(3, 2)], described=False)
    with h5py.File(place.removeprefix("hdf5:"), "a") as file:
        for group in file.values():
            del group["terminated"]
    notes = noted(sw.load(place))["notes"]
    assert "terminated: missing in 2 episodes with truncated; none of them terminated" in notes


def test_maniskills_steps_that_differ(tmp_path: Path) -> None:
    place = described(tmp_path, lambda said: said[1].update(elapsed_steps=5))
    with pytest.raises(ValueError, match="traj_1: has 4 actions, expected 5 as elapsed_steps of the JSON file says"):
        sw.load(place)
    assert len(sw.load(place, skip_damaged=True).episodes()) == 2
