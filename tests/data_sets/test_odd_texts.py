"""Odd columns of texts in data of others are left out and named, or empty texts; the data set is never refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sharpwave as sw
from tests.data_sets.hostile import example, lerobot, rlds, sound
from tests.data_sets.test_columns import noted
from tests.data_sets.test_texts import TEXT, WORDS, integers, listed, tensor, with_column

LISTS = pa.list_(pa.string())
PLACES = [(0, 3), (3, 14), (15, 16), (16, 55)]
"""Rows of the steps of each episode of LeRobot's data set, of 56 rows."""


def files(folder: Path, episodes: list[dict[str, Any]], **features: tuple[str, list[int]]) -> str:
    """Write a LeRobot data set of one file an episode, with further columns."""
    (folder / "meta").mkdir(parents=True)
    (folder / "data").mkdir()
    lines = []
    for number, columns in enumerate(episodes):
        rows = len(next(iter(columns.values())))
        table = {
            "observation.state": np.arange(rows, dtype=np.float32),
            "action": np.zeros(rows, np.float32),
            "next.done": np.arange(rows) == rows - 1,
        }
        pq.write_table(pa.table(table | columns), folder / "data" / f"{number}.parquet")
        lines.append(json.dumps({"episode_index": number, "length": rows}))
    said = {"observation.state": ("float32", [1]), "action": ("float32", [1]), "next.done": ("bool", [1])} | features
    info = {
        "codebase_version": "v2.1",
        "data_path": "data/{episode_index}.parquet",
        "features": {name: {"dtype": dtype, "shape": shape} for name, (dtype, shape) in said.items()},
    }
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    (folder / "meta" / "episodes.jsonl").write_text("\n".join(lines))
    return f"lerobot:{folder}"


def left_out(store: sw.Store) -> str:
    return "\n".join(noted(store)["left_out"])


def notes(store: sw.Store) -> str:
    return "\n".join(noted(store)["notes"])


@pytest.mark.parametrize(
    ("values", "shape", "why"),
    [
        (pa.array([["a", "b"], [], ["c"]] * 18 + [["d"], ["e"]], LISTS), [-1], "lists of texts"),
        (pa.array([["a", "b"], [], ["c"]] * 18 + [["d"], ["e"]], LISTS), [1], "lists of texts"),
        (pa.array([["a"], None, ["b", "c"]] * 18 + [["d"], ["e"]], LISTS), [1], "lists of texts"),
        (pa.array([["a", "b"]] * 56, LISTS), [2], "lists of texts"),
        (pa.array([["a", "b"]] * 56, pa.list_(pa.string(), 2)), [1], "lists of texts"),
        (pa.array(range(56)), [1], "int64, expected texts"),
        (pa.array([[0.5]] * 56), [1], "double, expected texts"),
        (pa.array([{"a": "x"}] * 56), [1], "struct<a: string>, expected texts"),
    ],
)
def test_columns_of_lerobot_without_one_text_a_row(tmp_path: Path, values: Any, shape: list[int], why: str) -> None:
    store = sw.load(with_column(lerobot(tmp_path, "images"), "said", values, shape=shape))
    assert "said" not in store.spec.fields and len(store.episodes()) == 4
    assert f"said: {why}" in noted(store)["left_out"]


@pytest.mark.parametrize("kind", [LISTS, pa.list_(pa.string(), 1), pa.large_list(pa.string())])
def test_lists_of_one_text_with_nulls(tmp_path: Path, kind: Any) -> None:
    rows = [None if row % 5 == 1 else [None] if row % 5 == 2 else [word] for row, word in enumerate(WORDS)]
    store = sw.load(with_column(lerobot(tmp_path, "images"), "said", pa.array(rows, kind)))
    expected = ["" if row % 5 in (1, 2) else word for row, word in enumerate(WORDS)]
    assert [one["said"].strings() for one in store.episodes()] == [expected[a:b] for a, b in PLACES]
    assert "said: null in some rows; stored as empty texts: 3 episodes" in notes(store)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({}, "no texts in some files"),
        ({"said": [1, 2, 3]}, "no texts in some files"),
        ({"said": pa.array([["x", "y"], [], ["z"]], LISTS)}, "lists of other than one text in some rows"),
        ({"said": pa.nulls(3)}, "null in some rows"),
    ],
    ids=["missing", "numbers", "lists", "null"],
)
def test_columns_of_later_files_of_lerobot(tmp_path: Path, second: dict[str, Any], why: str) -> None:
    """A row of one text in a list keeps it."""
    episodes: list[dict[str, Any]] = [{"said": ["a", "b"]}, second or {"more": [0, 0, 0]}, {"said": ["c", "c"]}]
    store = sw.load(files(tmp_path / "data", episodes, said=("string", [1])))
    found = [one["said"].strings() for one in store.episodes()]
    assert found == [["a", "b"], ["", "", "z" if "lists" in why else ""], ["c", "c"]]
    assert f"said: {why}; stored as empty texts: 1 episodes" in notes(store)


@pytest.mark.parametrize(
    ("numbers", "shape"), [([[0, 1], [1, 0]], [2]), ([[0], [1, 0]], [-1])], ids=["pairs", "any length"]
)
def test_tasks_of_several_numbers(tmp_path: Path, numbers: Any, shape: list[int]) -> None:
    place = files(tmp_path / "data", [{"task_index": numbers}], task_index=("int64", shape))
    tasks = [json.dumps({"task_index": number, "task": text}) for number, text in enumerate("ab")]
    (tmp_path / "data" / "meta" / "tasks.jsonl").write_text("\n".join(tasks))
    store = sw.load(place)
    assert [row.tolist() for row in next(iter(store.episodes()))["task_index"]] == numbers
    assert "task" not in store.spec.fields and "task: task_index is not one number a row" in left_out(store)


def test_tasks_with_surrogates(tmp_path: Path) -> None:
    place = files(tmp_path / "data", [{"task_index": [0, 0]}], task_index=("int64", [1]))
    (tmp_path / "data" / "meta" / "tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "a\ud800"}))
    store = sw.load(place)
    assert "task" not in store.spec.fields and "task: task_index has the numbers only" in left_out(store)


def test_lists_that_are_all_empty(tmp_path: Path) -> None:
    """pandas writes them without the type of their values."""
    episodes = [{"tokens": pa.array([[], []], pa.list_(pa.null()))}, {"tokens": pa.array([[7]], pa.list_(pa.int32()))}]
    store = sw.load(files(tmp_path / "data", episodes, tokens=("int32", [-1])))
    assert [[row.tolist() for row in one["tokens"]] for one in store.episodes()] == [[[], []], [[7]]]


@pytest.mark.parametrize("dtype", ["string", "int32"])
def test_features_of_one_name_in_lerobot(tmp_path: Path, dtype: str) -> None:
    """Numbers keep it, else the first."""
    values = {"weights": ["a", "b"], "info.weights": ["c", "d"] if dtype == "string" else pa.array([1, 2], pa.int32())}
    features: dict[str, Any] = {"weights": ("string", [1]), "info.weights": (dtype, [1])}
    store = sw.load(files(tmp_path / "data", [values], **features))
    found = list(next(iter(store.episodes()))["info.weights"])
    if dtype == "string":
        assert found == ["a", "b"] and "info.weights: would have the name of weights" in left_out(store)
    else:
        assert np.ravel(found).tolist() == [1, 2] and "weights: would have the name of info.weights" in left_out(store)


def test_features_of_one_name_in_rlds(tmp_path: Path) -> None:
    info = {"featuresDict": {"features": {"discount": TEXT}}}
    steps = {"info": info, "discount": tensor("int64"), "a": {"featuresDict": {"features": {"b": TEXT}}}, "a.b": TEXT}
    texts = {f"steps/{name}": (1, [name.encode()] * 2) for name in ("info/discount", "a/b", "a.b")}
    store = sw.load(rlds(tmp_path, steps, example(sound(2) | texts | {"steps/discount": integers([3, 4])})))
    (one,) = store.episodes()
    assert one["info.discount"].tolist() == [3, 4][: one.length]
    assert set(one["a.b"]) == {"a/b"}
    assert "steps/info/discount: would have the name of discount" in left_out(store)
    assert "steps/a.b: would have the name of a/b" in left_out(store)


def test_texts_that_an_episode_of_rlds_lacks(tmp_path: Path) -> None:
    steps = {"said": TEXT, "none": listed(tensor("int64"), 0)}
    some = sound(2) | {"steps/said": (1, [b"go"] * 2)}
    store = sw.load(rlds(tmp_path, steps, example(some), example(sound(2))))
    assert [set(one["said"]) for one in store.episodes()] == [{"go"}, {""}]
    assert "steps/said: a text that is missing; stored as empty texts: 1 episodes" in notes(store)
    assert left_out(store) == "steps/none: (0,) has no values"


def test_annotations_of_texts_that_are_not_all_utf8(tmp_path: Path) -> None:
    made = [example(sound(2) | {"steps/said": (1, [text] * 2)}) for text in (b"go", b"\xe9", b"\xc3\xa9")]
    store = sw.load(rlds(tmp_path, {"said": tensor("string")}, *made))
    assert store.spec.fields["said"].text == "bytes"
    assert [one.info.get("said") for one in store.episodes()] == ["go", None, "\u00e9"]
    assert "steps/said: read as bytes, since some are no UTF-8" in notes(store)
    assert len(store.episodes(where="said = 'go'")) == 1


def test_annotations_that_fit_beside_a_long_one(tmp_path: Path) -> None:
    columns = {"a": ["x"] * 2, "b": ["q" * 9000] * 2, "c": ["z"] * 2}
    place = files(tmp_path / "data", [columns], **dict.fromkeys(columns, ("string", [1])))
    store = sw.load(place)
    (one,) = store.episodes()
    assert (one.info["a"], one.info["c"]) == ("x", "z") and "b" not in one.info
    assert list(one["b"]) == ["q" * 9000] * 2
    assert "annotation b: no room but in its field: 1 episodes" in notes(store) and not left_out(store).count("annot")

    spec = sw.Spec(obs={"state": sw.Field((1,), "float32")}, action=sw.Field((1,), "float32"))
    with pytest.warns(UserWarning, match="annotations: those of 1 episodes are too large; not imported"):
        plain = sw.load(place, into=sw.Store(spec, capacity=10))
    (one,) = plain.episodes()
    assert (one.info["a"], one.info["c"]) == ("x", "z") and "b" not in one.info
    assert "annotation b: no room: 1 episodes" in notes(plain)


def test_infos_of_minari_that_are_no_texts_in_an_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    made = sw.Store(sw.Spec(obs=sw.Field((1,), "float32"), action=sw.Field((), "int64")), capacity=10)
    for _ in range(2):
        made.add_episode(obs=np.zeros((3, 1)), action=[0, 1], reward=[0.0, 1.0], terminated=True)
    made.export("minari:said-v0")
    with h5py.File(tmp_path / "said-v0" / "data" / "main_data.hdf5", "r+") as file:
        file["episode_0/infos/said"], file["episode_1/infos/said"] = ["a", "b", "c"], np.arange(3)
    store = sw.load("minari:said-v0")
    assert [one["infos.said"].strings() for one in store.episodes()] == [["b", "c"], ["", ""]]
    assert "infos said: a text that is missing; stored as empty texts: 1 episodes" in notes(store)


def described(place: str, **about: Any) -> str:
    """Add features that describe episodes to an RLDS data set."""
    path = Path(place.removeprefix("rlds:")) / "features.json"
    said = json.loads(path.read_text())
    said["featuresDict"]["features"]["episode_metadata"] = {"featuresDict": {"features": about}}
    path.write_text(json.dumps(said))
    return place


def test_descriptions_of_rlds_go_before_texts_of_steps(tmp_path: Path) -> None:
    made = []
    for said, of_steps in (("the episode", "each step"), ("both", "both"), (None, "each step")):
        about = {} if said is None else {"episode_metadata/said": (1, [said.encode()])}
        made.append(example(sound(3) | {"steps/said": (1, [of_steps.encode()] * 3)} | about))
    place = described(rlds(tmp_path, {"said": TEXT}, *made), said=TEXT)
    store = sw.load(place)
    assert [one.info["said"] for one in store.episodes()] == ["the episode", "both", "each step"]
    assert [set(one["said"]) for one in store.episodes()] == [{"each step"}, {"both"}, {"each step"}]
    why = "annotation said: as the episode's description has it; the text of its steps differs: 1 episodes"
    assert why in notes(store)
    plain = sw.load(
        place, into=sw.Store(sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64")), capacity=99)
    )
    assert [one.info["said"] for one in plain.episodes()] == ["the episode", "both", "each step"]


def test_lists_that_describe_episodes_of_rlds(tmp_path: Path) -> None:
    features = {
        "tags": listed(TEXT),
        "scores": listed(tensor("float32")),
        "pose": tensor("float32", 2, 2),
        "seed": tensor("int64"),
        "picture": {"pythonClassName": "x.Image", "image": {}},
        "rows": listed(listed(tensor("int64"))),
    }
    some = {
        "tags": (1, [b"a", "\u00e9".encode()]),
        "scores": (2, np.array([0.5], np.float32).tobytes()),
        "seed": integers([7]),
    }
    some |= {"pose": (2, np.arange(4, dtype="<f4").tobytes()), "picture": (1, [b"..."])}
    other = {"tags": (1, []), "scores": (2, bytes(4 * 2000)), "pose": (2, bytes(12)), "seed": integers([1, 2])}
    made = [example(sound(3) | {f"episode_metadata/{name}": x for name, x in one.items()}) for one in (some, other)]
    store = sw.load(described(rlds(tmp_path, {}, *made), **features))
    one, two = (episode.info for episode in store.episodes())
    expected = {"tags": ["a", "\u00e9"], "scores": [0.5], "pose": [[0.0, 1.0], [2.0, 3.0]], "seed": 7}
    assert {name: one[name] for name in expected} == expected and two["tags"] == []
    assert left_out(store).split("\n") == [
        "episode_metadata/picture: Image is not read",
        "episode_metadata/rows: lists of Sequence is not read",
    ]
    for why in (
        "episode_metadata/scores: more than 1,024 values; left out",
        "episode_metadata/pose: values that do not have its shape (2, 2); left out",
        "episode_metadata/seed: values that do not have its shape (); left out",
    ):
        assert f"{why}: 1 episodes" in notes(store)


def test_odd_descriptions_of_rlds(tmp_path: Path) -> None:
    """Values that cannot be annotations are left out and named; all other values are imported."""
    features = {
        "level": {"pythonClassName": "x.class_label_feature.ClassLabel", "classLabel": {"numClasses": "9"}},
        "score": tensor("float32"),
        "scores": listed(tensor("float32")),
        "said": TEXT,
        "length": listed(tensor("int64")) | {"sequence": listed(tensor("int64"))["sequence"] | {"length": "x"}},
        "shape": {"pythonClassName": "x.Tensor", "tensor": {"dtype": "int64", "shape": {"dimensions": ["a"]}}},
        "form": {"pythonClassName": "x.Tensor", "tensor": ["int64"]},
        "large": tensor("int64", 10**30),
    }
    about = {
        "level": integers([3]),
        "score": (2, np.array([np.nan], np.float32).tobytes()),
        "scores": (2, np.array([0.5, np.inf], np.float32).tobytes()),
        "said": (1, [b""]),
        "length": integers([1]),
        "shape": integers([1]),
        "form": integers([1]),
        "large": integers([1]),
    }
    steps = sound(3) | {"steps/said": (1, [b"each step"] * 3)}
    made = example(steps | {f"episode_metadata/{name}": x for name, x in about.items()})
    store = sw.load(described(rlds(tmp_path, {"said": TEXT}, made), **features))
    (info,) = (episode.info for episode in store.episodes())
    assert {name: info.get(name) for name in features} == dict.fromkeys(features) | {"level": 3, "said": "each step"}
    odd = "features.json has an odd length or shape of it"
    assert left_out(store).split("\n") == [f"episode_metadata/{name}: {odd}" for name in ("length", "shape", "form")]
    for name, why in (
        ("score", "not finite; left out"),
        ("scores", "not finite; left out"),
        ("large", f"do not have its shape ({10**30},); left out"),
    ):
        assert f"episode_metadata/{name}: values that {'are ' if 'not f' in why else ''}{why}: 1 episodes" in notes(
            store
        )
    assert "the text of its steps differs" not in notes(store)


@pytest.mark.parametrize("layout", ["columns", "demonstrations"])
@pytest.mark.parametrize("where", ["obs", "next"])
def test_observations_of_hdf5_of_which_the_last_next_one_is_no_utf8(tmp_path: Path, layout: str, where: str) -> None:
    said = [b"a", b"\xc3\xa9", b"b", b"\xff" if where == "next" else b"c"]
    before, after = said[:3], said[1:]
    if where == "obs":
        before, after = [b"\xff", *said[1:3]], said[1:]
    with h5py.File(path := tmp_path / "data.hdf5", "w") as file:
        names = ("observations", "next_observations", "actions", "rewards", "terminals")
        group: Any = file
        if layout == "demonstrations":
            names, group = ("obs", "next_obs", "actions", "rewards", "dones"), file.create_group("data/demo_0")
        for name, texts in zip(names, (before, after), strict=False):
            group.create_dataset(f"{name}/said", data=texts, dtype=h5py.string_dtype())
            group[f"{name}/state"] = np.arange(3.0) + (name != names[0])
        for name, values in zip(names[2:], (np.zeros((3, 1)), np.zeros(3), [False, False, True]), strict=True):
            group[name] = values
    store = sw.load(f"hdf5:{path}")
    assert store.spec.fields["obs.said"] == sw.Field(bytes)
    (one,) = store.episodes()
    assert one.obs["said"].bytes() == [*before, after[-1]]


@pytest.mark.parametrize("name", ["observation.state.said", "action.said", "observation"])
def test_texts_of_lerobot_in_the_path_of_another_feature(tmp_path: Path, name: str) -> None:
    columns = {name: ["a", "b"], "observation.images.said": ["c", "d"]}
    store = sw.load(files(tmp_path / "data", [columns], **dict.fromkeys(columns, ("string", [1]))))
    other = {"action.said": "action"}.get(name, "observation.state")
    assert left_out(store).split("\n")[-1] == f"{name}: its name lies within, or around, that of {other}"
    assert set(store.spec.fields) == {"obs.state", "obs.images.said", "action"}
    assert next(iter(store.episodes())).obs["images"]["said"].strings()[:2] == ["c", "d"]


def test_texts_that_are_absent_are_no_annotations(tmp_path: Path) -> None:
    words = ([b"go"] * 2, None, [b""] * 2)
    made = [example(sound(2) | ({} if one is None else {"steps/said": (1, one)})) for one in words]
    store = sw.load(rlds(tmp_path, {"said": TEXT}, *made))
    assert [one.info.get("said") for one in store.episodes()] == ["go", None, None]
    (tmp_path / "robot").mkdir()
    columns = [{"said": pa.array(texts, pa.string())} for texts in ([None, None], ["a", "a"])]
    place = files(tmp_path / "robot" / "data", columns, said=("string", [1]))
    assert [one.info.get("said") for one in sw.load(place).episodes()] == [None, "a"]
