"""Minari data sets of which an episode is damaged, or parts have no fixed size."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest

import sharpwave as sw
from tests.data_sets.test_columns import noted
from tests.support.examples import every_two

minari = pytest.importorskip("minari")
from minari.serialization import serialize_space  # noqa: E402

STEPS = 5
DAMAGES: dict[str, tuple[Callable[[Any], None], str]] = {}
"""What is done to an episode, by name, and what is said of it."""


def damage(message: str) -> Callable[[Callable[[Any], None]], None]:
    def add(change: Callable[[Any], None]) -> None:
        DAMAGES[change.__name__] = change, message

    return add


def put(group: Any, name: str, values: Any) -> None:
    del group[name]
    group[name] = values


@damage(r"obs has shape \(5, 3\), expected \(6, 3\): one more than rewards")
def no_last_observation(group: Any) -> None:
    put(group, "observations", group["observations"][:-1])


@damage("reward")
def nan_reward(group: Any) -> None:
    group["rewards"][2] = np.nan


@damage(r"action has shape \(3,\), expected \(5,\): as many as rewards")
def short_actions(group: Any) -> None:
    put(group, "actions", group["actions"][:-2])


@damage(r"obs has shape \(6, 4\), expected \(6, 3\)")
def wide_observations(group: Any) -> None:
    put(group, "observations", np.zeros((STEPS + 1, 4), np.float32))


@damage("has 5 rewards, and terminations and truncations")
def an_end_within(group: Any) -> None:
    group["terminations"][1] = True


@damage("has 5 rewards, and terminations and truncations")
def short_terminations(group: Any) -> None:
    put(group, "terminations", group["terminations"][:-1])


@damage("rewards")
def no_rewards(group: Any) -> None:
    del group["rewards"]


@damage("object|string|text")
def texts(group: Any) -> None:
    put(group, "actions", [b"up"] * STEPS)


@damage("episode_. is missing; fetch")
def no_episode(group: Any) -> None:
    del group.parent[group.name]


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, space: Any = None, **observations: Any) -> Path:
    """Write four episodes as minari does; return the file of their arrays."""
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    rng = np.random.default_rng(0)
    episodes = []
    for number in range(4):
        obs: Any = rng.random((STEPS + 1, 3), np.float32)
        if observations:
            obs = {"state": obs, **observations}
        episodes.append(
            EpisodeBuffer(
                id=number,
                observations=obs,
                actions=np.zeros(STEPS, np.int64),
                rewards=np.ones(STEPS),
                terminations=np.arange(STEPS) == STEPS - 1,
                truncations=np.zeros(STEPS, np.bool_),
                infos={},
            )
        )
    box = gym.spaces.Box(-9, 9, (3,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            "me/maze-v0", episodes, observation_space=space or box, action_space=gym.spaces.Discrete(2)
        )
    return folder / "me" / "maze-v0" / "data" / "main_data.hdf5"


@pytest.mark.parametrize(("name", "number"), every_two(DAMAGES, [0, 2]))
def test_one_damaged_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    change, message = DAMAGES[name]
    with h5py.File(write(tmp_path, monkeypatch), "r+") as file:
        change(file[f"episode_{number}"])
    with pytest.raises(ValueError, match=rf"data/main_data\.hdf5: episode {number}\b.*({message})"):
        sw.load("minari:me/maze-v0")
    store = sw.load("minari:me/maze-v0", skip_damaged=True)
    note = noted(store)
    assert [one.length for one in store.episodes()] == [STEPS] * 3 and note["skipped_episodes"] == 1
    assert f"data/main_data.hdf5: episode {number}" in note["skipped"][0]
    assert note["audit"]["store"]["reward"] == 15.0
    assert store.spec.fields["obs"].shape == (3,)


def test_infos_that_are_left_out_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(write(tmp_path, monkeypatch), "r+") as file:
        for number in range(4):
            file[f"episode_{number}/infos/distance"] = np.ones(STEPS)
        for number in (1, 2):
            file[f"episode_{number}/infos/late"] = np.ones(STEPS + 1)
    notes = noted(sw.load("minari:me/maze-v0"))["notes"]
    assert any(one.startswith("infos distance: not one value for each observation; left out: 4 ep") for one in notes)
    assert any(one.startswith("infos late: not in the episode that defines the fields; left") for one in notes)


def test_an_episode_of_a_number_that_none_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(write(tmp_path, monkeypatch), "r+") as file:
        file.move("episode_1", "episode_9")
    store = sw.load("minari:me/maze-v0", skip_damaged=True)
    said = "episodes: episode_9: not among the 4 that metadata.json counts"
    assert noted(store)["left_out"] == [said] and noted(store)["skipped_episodes"] == 1


def test_unselected_steps_do_not_count_skipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(write(tmp_path, monkeypatch), "r+") as file:
        file["episode_0/rewards"][2] = np.nan
    note = noted(sw.load("minari:me/maze-v0", skip_damaged=True, episodes=range(2)))
    assert note["audit"]["unselected"]["steps"] == 2 * STEPS and note["audit"]["read"]["steps"] == STEPS


def test_unselected_steps_where_a_skipped_episode_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(write(tmp_path, monkeypatch), "r+") as file:
        del file["episode_2"], file["episode_0"].attrs["total_steps"]
    note = noted(sw.load("minari:me/maze-v0", skip_damaged=True, episodes=[1, 2, 3]))
    assert note["audit"]["unselected"] | {"episodes": 1, "steps": STEPS} == note["audit"]["unselected"]
    assert note["audit"]["source"]["steps"] == 3 * STEPS and note["skipped_episodes"] == 1


def test_every_episode_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(write(tmp_path, monkeypatch), "r+") as file:
        for number in range(4):
            del file[f"episode_{number}/rewards"]
    with pytest.raises(ValueError, match=r"episode 0.*rewards"):
        sw.load("minari:me/maze-v0", skip_damaged=True)


def read_by_minari(name: str) -> list[Any]:
    return list(minari.load_dataset(name).iterate_episodes())


def test_texts_in_observations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = gym.spaces.Dict(x=gym.spaces.Text(20), y=gym.spaces.Discrete(3))
    space = gym.spaces.Dict({"state": gym.spaces.Box(-9, 9, (3,)), "mission": gym.spaces.Text(20), "in": inner})
    words = ["go to the red ball"] * (STEPS + 1)
    said = ["", "a", "\u00e4\u4e2d", "b" * 999, "a", "z"]
    write(tmp_path, monkeypatch, space, mission=words, **{"in": {"x": said, "y": np.ones(STEPS + 1, np.int64)}})
    store = sw.load("minari:me/maze-v0")  # without a warning
    assert set(store.spec.obs_names) == {"obs.state", "obs.mission", "obs.in.x", "obs.in.y"}
    for one, other in zip(store.episodes(), read_by_minari("me/maze-v0"), strict=True):
        assert one.info["observation.mission"] == words[0] and "observation.in.x" not in one.info
        assert one.obs["mission"].strings() == other.observations["mission"] == words
        assert one.obs["in"]["x"].strings() == other.observations["in"]["x"] == said
        np.testing.assert_array_equal(one.obs["in"]["y"], other.observations["in"]["y"])
        np.testing.assert_array_equal(one.reward, other.rewards.astype(np.float32))
    assert noted(store)["left_out"] == []


def test_texts_that_vary_and_infos_that_some_episodes_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first episode defines the fields: ``late`` is none, an episode without ``word`` has empty ones."""
    space = gym.spaces.Dict({"state": gym.spaces.Box(-9, 9, (3,)), "mission": gym.spaces.Text(20)})
    path = write(tmp_path, monkeypatch, space, mission=["go"] * (STEPS + 1))
    with h5py.File(path, "r+") as file:
        for number in (1, 3):
            file[f"episode_{number}/observations/mission"][4] = "stop"
            file[f"episode_{number}/infos/late"] = ["a"] * (STEPS + 1)
        for number in (0, 1, 2):
            file[f"episode_{number}/infos/word"] = [f"{number}.{row}" for row in range(STEPS + 1)]
        file["episode_2/infos/late"] = list("abcabc")
    store = sw.load("minari:me/maze-v0")
    assert [one.info.get("observation.mission") for one in store.episodes()] == ["go", None, "go", None]
    assert [one.obs["mission"][4] for one in store.episodes()] == ["go", "stop", "go", "stop"]
    assert [one.info.get("infos.late") for one in store.episodes()] == [None, "a", None, "a"]
    assert store.spec.fields["infos.word"] == sw.Field(str, shared=True)
    expected = [[f"{number}.{row}" for row in range(1, STEPS + 1)] for number in range(3)] + [[""] * STEPS]
    assert [one["infos.word"].strings() for one in store.episodes()] == expected
    notes = "\n".join(noted(store)["notes"])
    assert "infos word: a text that is missing; stored as empty texts: 1 episodes" in notes
    assert "infos late: not in the episode that defines the fields; left out: 1 episodes" in notes


def test_texts_in_a_tuple_and_in_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = gym.spaces.Tuple([gym.spaces.Text(20), gym.spaces.Discrete(9), gym.spaces.Dict(x=gym.spaces.Text(20))])
    space = gym.spaces.Dict({"state": gym.spaces.Box(-9, 9, (3,)), "in": inner})
    words = ["go"] * (STEPS + 1)
    path = write(tmp_path, monkeypatch, space, **{"in": (words, np.arange(STEPS + 1), {"x": ["to"] * (STEPS + 1)})})
    said = json.loads((path.parent / "metadata.json").read_text())
    said["action_space"] = serialize_space(gym.spaces.Text(99))
    (path.parent / "metadata.json").write_text(json.dumps(said))
    with h5py.File(path, "r+") as file:
        for number in range(4):
            put(file[f"episode_{number}"], "actions", [f"{number}!" * row for row in range(STEPS)])
    store = sw.load("minari:me/maze-v0")
    assert set(store.spec.obs_names) == {"obs.state", "obs.in.0", "obs.in.1", "obs.in.2.x"}
    for one, other in zip(store.episodes(), read_by_minari("me/maze-v0"), strict=True):
        assert one.info["observation.in.0"] == "go" and one.info["observation.in.2.x"] == "to"
        assert one.obs["in"][0].strings() == other.observations["in"][0] == words
        np.testing.assert_array_equal(one.obs["in"][1], np.arange(STEPS + 1))
        assert one.action.strings() == other.actions


def test_observations_of_text_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = gym.spaces.Dict({"a": gym.spaces.Text(20), "b": gym.spaces.Dict({"c": gym.spaces.Text(3)})})
    words = ["go"] * (STEPS + 1)
    write(tmp_path, monkeypatch, space, a=words, b={"c": words})
    store = sw.load("minari:me/maze-v0")
    assert store.episodes()[0].obs["b"]["c"].strings() == words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda group: put(group, "mission", np.array([b"go", b"\xff\xfe", b"", b"a", b"b", b"c"])),
            "is no UTF-8.*byte 0",
        ),
        (lambda group: put(group, "mission", np.zeros(STEPS + 1)), "row 0 is .*0.0.*, expected a text"),
        (lambda group: put(group, "mission", ["go"] * STEPS), "mission.*expected"),
        (
            lambda group: put(group, "mission", ["x" * 2_000_000] * (STEPS + 1)),
            "row 0 has 2,000,000 bytes",
        ),
    ],
    ids=["bytes", "numbers", "short", "long"],
)
def test_damaged_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, message: str) -> None:
    space = gym.spaces.Dict({"state": gym.spaces.Box(-9, 9, (3,)), "mission": gym.spaces.Text(20)})
    path = write(tmp_path, monkeypatch, space, mission=["go"] * (STEPS + 1))
    with h5py.File(path, "r+") as file:
        change(file["episode_2/observations"])
    with pytest.raises(ValueError, match=f"episode 2.*{message}"):
        sw.load("minari:me/maze-v0")
    store = sw.load("minari:me/maze-v0", skip_damaged=True)
    assert len(store.episodes()) == 3 and noted(store)["skipped_episodes"] == 1


def test_spaces_that_minari_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, monkeypatch).parent / "metadata.json"
    said = json.loads(path.read_text())
    inner = json.loads(said["action_space"])
    said["action_space"] = json.dumps({"type": "Sequence", "feature_space": inner})
    path.write_text(json.dumps(said))
    with pytest.raises(ValueError, match="a space of type Sequence, which minari's files cannot hold"):
        sw.load("minari:me/maze-v0")


def test_texts_in_arrow_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """minari reads them, if they are trusted."""
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    folder = tmp_path / "me" / "arrow-v0" / "data"
    folder.mkdir(parents=True)
    space = gym.spaces.Dict(state=gym.spaces.Box(-9, 9, (3,)), mission=gym.spaces.Text(20))
    storage = MinariStorage.new(
        folder, observation_space=space, action_space=gym.spaces.Text(9), data_format="arrow", jpeg_encoding=False
    )
    storage.update_metadata({"dataset_id": "me/arrow-v0", "minari_version": minari.__version__})
    words = ["", "go \u00e4", "go", "go", "stop", "end"]
    episode = EpisodeBuffer(
        observations={"state": np.ones((STEPS + 1, 3), np.float32), "mission": words},
        actions=["a" * row for row in range(STEPS)],
        rewards=list(np.arange(STEPS, dtype=np.float64)),
        terminations=[*[False] * (STEPS - 1), True],
        truncations=[False] * STEPS,
        infos={"word": words},
    )
    storage.update_episodes([episode])
    (one,) = sw.load("minari:me/arrow-v0", trust=True).episodes()
    (other,) = read_by_minari("me/arrow-v0")
    assert one.obs["mission"].strings() == other.observations["mission"] == words
    assert one.action.strings() == other.actions and one["infos.word"].strings() == words[1:]
    np.testing.assert_array_equal(one.reward, other.rewards)
