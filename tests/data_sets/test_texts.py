"""Texts and rows of any length in data of others are fields; a text of a whole episode is its annotation as well."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sharpwave as sw
from tests.data_sets.hostile import DATA, change_column, example, lerobot, rlds, sound, varint
from tests.data_sets.test_columns import noted

WORDS = ["push"] * 3 + ["pull"] * 6 + ["lift"] * 7 + ["drop"] * 40
"""Of 56 rows of LeRobot's, in episodes of 3, 12, 1 and 40 rows, the last of which has no step but in the third."""
EPISODES = [(0, 3), (3, 14), (15, 16), (16, 55)]


def with_column(folder: Path, name: str, values: Any, dtype: str = "string", shape: Any = (1,)) -> str:
    """Add a column to a LeRobot data set of one file, and to its description."""
    change_column(next(folder.glob("data/*/*.parquet")), name, lambda rows: values)
    info = folder / "meta" / "info.json"
    said = json.loads(info.read_text())
    said["features"][name] = {"dtype": dtype, "shape": shape, "names": None}
    info.write_text(json.dumps(said))
    return f"lerobot:{folder}"


@pytest.mark.parametrize("kind", ["column", "lists", "dictionary"])
def test_string_columns_of_lerobot(tmp_path: Path, kind: str) -> None:
    values: Any = pa.array(WORDS)
    if kind != "column":
        values = pa.array([[one] for one in WORDS]) if kind == "lists" else values.dictionary_encode()
    place = with_column(lerobot(tmp_path, "images"), "subtask", values)
    store = sw.load(place)
    assert store.spec.fields["subtask"] == sw.Field(str, shared=True)
    assert [one["subtask"].strings() for one in store.episodes()] == [WORDS[a:b] for a, b in EPISODES]
    assert [one.info.get("subtask") for one in store.episodes()] == ["push", None, "lift", "drop"]
    assert not any("subtask" in one for one in noted(store)["left_out"])
    assert len(store.episodes(where="subtask = 'push'")) == 1


def test_texts_in_lerobots_observations_and_nulls(tmp_path: Path) -> None:
    words = [None if row in (4, 5) else f"{row} \u00e4" for row in range(56)]
    store = sw.load(with_column(lerobot(tmp_path, "images"), "observation.said", pa.array(words)))
    assert store.spec.fields["obs.said"] == sw.Field(str)
    found = [text for one in store.episodes() for text in one.obs["said"].strings()[: one.length]]
    assert found == [words[row] or "" for a, b in EPISODES for row in range(a, b)]
    assert any(
        "observation.said: null in some rows; stored as empty texts: 1 ep" in one for one in noted(store)["notes"]
    )


@pytest.mark.parametrize("shape", [[None], [-1], [None, 2]])
def test_lists_of_any_length_of_lerobot(tmp_path: Path, shape: list[Any]) -> None:
    inner = tuple(shape[1:])
    rows = [np.arange(row % 5 * 2, dtype=np.int32).reshape(-1, *inner) for row in range(56)]
    kind = pa.list_(pa.list_(pa.int32(), 2)) if inner else pa.list_(pa.int32())
    place = with_column(
        lerobot(tmp_path, "images"), "tokens", pa.array([x.tolist() for x in rows], kind), "int32", shape
    )
    store = sw.load(place)
    assert store.spec.fields["tokens"] == sw.Field((None, *inner), "int32")
    found = [row for one in store.episodes() for row in one["tokens"]]
    expected = [rows[row] for a, b in EPISODES for row in range(a, b)]
    assert len(found) == len(expected) and all(map(np.array_equal, found, expected))


@pytest.mark.parametrize(
    ("values", "shape", "message"),
    [
        (pa.array([[1, 2]] * 55 + [None], pa.list_(pa.int32())), [None], "with 1 nulls, expected a list in each row"),
        (pa.array([[1, None]] * 56, pa.list_(pa.int32())), [None], "a null where a value is expected"),
        (pa.array([[[1, 2, 3], [4]]] * 56, pa.list_(pa.list_(pa.int32()))), [None, 2], "lists of 3 and of 1 values"),
        (pa.array([[1, 2, 3], [4]] * 28, pa.list_(pa.int32())), [2], "lists of 3 and of 1 values, expected one size"),
        (pa.array([[1.0]] * 56), [None], "double, expected int32|float64, expected int32"),
        (pa.array([7] * 56, pa.int32()), [None], "expected a list in each row"),
    ],
    ids=["null list", "null", "inner", "fixed", "dtype", "numbers"],
)
def test_damaged_lists_of_lerobot(tmp_path: Path, values: Any, shape: list[Any], message: str) -> None:
    place = with_column(lerobot(tmp_path, "images"), "tokens", values, "int32", shape)
    with pytest.raises(ValueError, match=f"episode [03] cannot be read: .*{message}"):
        sw.load(place)


def test_texts_of_lerobot_that_are_no_utf8(tmp_path: Path) -> None:
    words = pa.array([b"\xff" if row == 20 else b"go" for row in range(56)])
    text = pa.StringArray.from_buffers(56, words.buffers()[1], words.buffers()[2])
    place = with_column(lerobot(tmp_path, "images"), "subtask", text)
    with pytest.raises(ValueError, match=r"episode 3 cannot be read: subtask: row 4 is b'\\xff', which is no UTF-8"):
        sw.load(place)
    assert len(sw.load(place, skip_damaged=True).episodes()) == 3


@pytest.mark.parametrize("layout", ["v2.1", "images"])
def test_tasks_of_lerobot(tmp_path: Path, layout: str) -> None:
    """A task is the text of a row's task_index, in JSON lines or in a table, whose index pandas may name or not."""
    folder = lerobot(tmp_path, layout)
    files = sorted(folder.glob("data/*/*.parquet"))
    texts = {0: "push", 1: "pull \u00e4"}
    number = 0
    for file in files:
        rows = pq.read_metadata(file).num_rows
        numbers = np.arange(number, number + rows) % 2
        number += rows
        change_column(file, "task_index", partial(_column, numbers))
    info = folder / "meta" / "info.json"
    said = json.loads(info.read_text())
    said["features"]["task_index"] = {"dtype": "int64", "shape": [1], "names": None}
    info.write_text(json.dumps(said))
    for path in folder.glob("meta/tasks.*"):
        path.unlink()
    assert any(
        one.startswith("task: task_index has the numbers") for one in noted(sw.load(f"lerobot:{folder}"))["left_out"]
    )
    if layout == "images":  # v3.0
        table = pa.table({"task_index": [0, 1], "__index_level_0__": list(texts.values())})
        pq.write_table(table, folder / "meta" / "tasks.parquet")
    else:
        lines = [json.dumps({"task_index": one, "task": text}) for one, text in texts.items()]
        (folder / "meta" / "tasks.jsonl").write_text("\n".join(lines))
    store = sw.load(f"lerobot:{folder}")
    assert store.spec.fields["task"] == sw.Field(str, shared=True)
    for one in store.episodes():
        assert one["task"].strings() == [texts[int(number)] for number in one["task_index"].reshape(-1)]
    if layout != "images":
        (folder / "meta" / "tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "push"}))
        notes = "\n".join(noted(sw.load(f"lerobot:{folder}"))["notes"])
        assert "task_index: 1 is not in meta/tasks; its task is stored as ''" in notes
        (folder / "meta" / "tasks.jsonl").write_text("\n".join([*lines, json.dumps({"task_index": 1, "task": "lift"})]))
        notes = "\n".join(noted(sw.load(f"lerobot:{folder}"))["notes"])
        assert "meta/tasks.jsonl: has task_index 1 twice or more; the last text is taken" in notes
        (folder / "meta" / "tasks.jsonl").write_text("")
        store = sw.load(f"lerobot:{folder}")
        assert "task" not in store.spec.fields
        assert any("tasks.jsonl has no tasks" in one for one in noted(store)["left_out"])


@pytest.mark.parametrize("layout", ["lerobot", "lerobot_video/v2.1", "lerobot_video/v3.0"])
def test_tasks_that_lerobot_wrote(layout: str) -> None:
    """Each episode has its own, which LeRobot also lists with the episode."""
    for one in sw.load(f"lerobot:{DATA / layout}").episodes():
        assert one["task"].strings() == one.info["tasks"] * one.length and [one.info["task"]] == one.info["tasks"]


def test_texts_that_tensorflow_datasets_wrote() -> None:
    store = sw.load(f"rlds:{DATA / 'rlds'}")
    assert store.spec.fields["language_instruction"] == sw.Field(str, shared=True)
    for one in store.episodes():
        assert one["language_instruction"].strings() == ["do it"] * one.length
        assert one.info["language_instruction"] == "do it" and one.info["file_path"].startswith("/x/")


def _column(numbers: Any, rows: int) -> Any:
    return pa.array(numbers, pa.int64())


TEXT = {"pythonClassName": "x.Text", "text": {}}


def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    shapes = {"dimensions": [str(n) for n in shape]} if shape else {}
    return {"pythonClassName": "x.Tensor", "tensor": {"shape": shapes, "dtype": dtype, "encoding": encoding}}


def listed(feature: dict[str, Any], length: int = -1) -> dict[str, Any]:
    return {"pythonClassName": "x.Sequence", "sequence": {"feature": feature, "length": str(length)}}


def test_texts_of_rlds(tmp_path: Path) -> None:
    parts = {"state": tensor("float32"), "hint": tensor("string")}
    steps = {"language_instruction": TEXT, "observation": {"featuresDict": {"features": parts}}}
    made = []
    words = (["push"] * 3, ["push", "push", "pull", ""], ["lift \u00e4"] * 2)
    for some in words:
        found = sound(len(some))
        found["steps/observation/state"] = found.pop("steps/observation")
        found |= {"steps/language_instruction": (1, [word.encode() for word in some])}
        found |= {"steps/observation/hint": (1, [b"left"] * len(some))}
        made.append(example(found))
    place = rlds(tmp_path, steps, *made)
    store = sw.load(place)
    assert store.spec.fields["language_instruction"] == sw.Field(str, shared=True)
    assert store.spec.fields["obs.hint"] == sw.Field(str)
    episodes = store.episodes()
    assert [one["language_instruction"].strings() for one in episodes] == list(words)
    assert [one.obs["hint"].strings() for one in episodes] == [["left"] * (len(some) + 1) for some in words]
    assert [one.info.get("language_instruction") for one in episodes] == ["push", None, "lift \u00e4"]
    assert [one.info["observation.hint"] for one in episodes] == ["left"] * 3
    assert noted(store)["left_out"] == []

    plain = sw.Store(sw.Spec(obs={"state": sw.Field((), "float32")}, action=sw.Field((), "int64")), capacity=100)
    sw.load(place, into=plain)  # a store without such fields keeps the annotations
    assert [one.info.get("language_instruction") for one in plain.episodes()] == ["push", None, "lift \u00e4"]
    left = noted(plain)["left_out"]
    assert left == ["obs.hint: the store has no such field", "language_instruction: the store has no such field"]


def test_strings_of_rlds_that_are_no_utf8(tmp_path: Path) -> None:
    """A tensor of strings may hold any bytes, a Text may not."""
    words = ([b"a", b"b"], [b"\xff\x00", b""])
    made = [example(sound(2) | {"steps/raw": (1, some)}) for some in words]
    store = sw.load(rlds(tmp_path, {"raw": tensor("string")}, *made))
    assert store.spec.fields["raw"] == sw.Field(bytes, shared=True)
    assert [one["raw"].bytes() for one in store.episodes()] == list(words)
    assert any("steps/raw: read as bytes" in one for one in noted(store)["notes"])
    place = rlds(tmp_path, {"raw": TEXT}, *made)
    with pytest.raises(ValueError, match=r"episode 1.*steps/raw: row 0 is b'\\xff\\x00', which is no UTF-8"):
        sw.load(place)
    assert len(sw.load(place, skip_damaged=True).episodes()) == 1


def integers(values: list[int]) -> tuple[int, bytes]:
    return 3, b"".join(map(varint, values))


def floats(values: Any) -> tuple[int, bytes]:
    return 2, np.asarray(values, "<f4").tobytes()


def ragged(name: str, values: tuple[int, Any], lengths: list[int]) -> dict[str, Any]:
    """Return the features of lists, as TensorFlow Datasets writes sequences in steps."""
    return {f"steps/{name}/ragged_flat_values": values, f"steps/{name}/ragged_row_lengths_0": integers(lengths)}


def test_lists_of_rlds(tmp_path: Path) -> None:
    boxes = {"featuresDict": {"features": {"at": tensor("float32", 2), "name": TEXT}}}
    steps = {
        "tokens": listed(tensor("int32")),
        "boxes": listed(boxes),
        "pair": listed(tensor("float32"), 2),
        "packed": tensor("float32", -1, 3, encoding="bytes"),
        "unknown": tensor("float32", -1),
        "words": listed(TEXT),
    }
    points = [np.arange(3 * n, dtype="<f4").reshape(n, 3) for n in (2, 0, 1)]
    made = sound(3) | ragged("tokens", integers([5, 6, 7, 8]), [3, 0, 1])
    made |= ragged("boxes/at", floats(range(8)), [0, 4, 0]) | ragged("pair", floats(range(6)), [2, 2, 2])
    made |= {"steps/packed": (1, [one.tobytes() for one in points])}
    nothing = sound(2) | ragged("tokens", (1, b""), [0, 0]) | ragged("boxes/at", floats([]), [0, 0])
    nothing |= ragged("pair", floats(range(4)), [2, 2]) | {"steps/packed": (1, [b"", b""])}
    store = sw.load(rlds(tmp_path, steps, example(made), example(nothing)))
    fields = store.spec.fields
    assert fields["tokens"] == sw.Field((None,), "int32") and fields["boxes.at"] == sw.Field((None, 2), "float32")
    assert fields["pair"] == sw.Field((2,), "float32") and fields["packed"] == sw.Field((None, 3), "float32")
    one, other = store.episodes()
    assert [row.tolist() for row in one["tokens"]] == [[5, 6, 7], [], [8]]
    assert [row.tolist() for row in one["boxes.at"]] == [[], [[0, 1], [2, 3], [4, 5], [6, 7]], []]
    assert one["pair"].tolist() == [[0, 1], [2, 3], [4, 5]] and all(map(np.array_equal, one["packed"], points))
    assert [len(row) for row in other["tokens"]] == [0, 0] and other["tokens"][0].dtype == np.int32
    left = noted(store)["left_out"]
    assert [said.split(":")[0] for said in left] == ["steps/boxes/name", "steps/unknown", "steps/words"]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (ragged("tokens", integers([5, 6, 7]), [3, 1, 0]), "3 items, expected the 4 of its lengths"),
        (ragged("tokens", integers([5, 6, 7]), [3, 0]), "the lengths of 2 rows, expected 3"),
        (ragged("tokens", integers([5]), [(1 << 64) - 1, 1, 1]), "its lengths, the least of which is -1"),
        (ragged("tokens", integers([1 << 40]), [1, 0, 0]), "a value does not fit int32"),
        (ragged("tokens", (1, [b"a"]), [1, 0, 0]), "1 values, expected numbers"),
        ({"steps/tokens": integers([5, 6, 7])}, "has no steps/tokens"),
    ],
    ids=["truncated", "rows", "negative", "dtype", "texts", "missing"],
)
def test_damaged_lists_of_rlds(tmp_path: Path, features: dict[str, Any], message: str) -> None:
    good = example(sound(3) | ragged("tokens", integers([5, 6, 7]), [3, 0, 0]))
    place = rlds(tmp_path, {"tokens": listed(tensor("int32"))}, good, example(sound(3) | features))
    with pytest.raises(ValueError, match=f"episode 1.*{message}"):
        sw.load(place)
    assert len(sw.load(place, skip_damaged=True).episodes()) == 1


def test_texts_that_are_too_long(tmp_path: Path) -> None:
    """Longer than annotations: the field has it. Longer than the field: refused, unless the store has no such field."""
    place = texts_of_size(tmp_path / "some", 10, 50_000)
    store = sw.load(place)
    assert [one["note"].strings() for one in store.episodes()] == [["x" * 10] * 3, ["x" * 50_000] * 3]
    assert [one.info.get("note") for one in store.episodes()] == ["x" * 10, None]
    place = texts_of_size(tmp_path / "more", 10, 4 << 20)
    with pytest.raises(ValueError, match=r"episode 1: note: row 0 has 4,194,304 bytes.*greater max_length="):
        sw.load(place)
    fields = {"obs": sw.Field((), "float32"), "action": sw.Field((), "int64")}
    wide = sw.Store(sw.Spec(**fields, note=sw.Field(str, max_length=1 << 23)), capacity=10)
    assert [len(one["note"][0]) for one in sw.load(place, into=wide).episodes()] == [10, 4 << 20]
    with pytest.warns(UserWarning, match="annotations: those of 1 episodes are too large; not imported"):
        store = sw.load(place, into=sw.Store(sw.Spec(**fields), capacity=10))
    assert [len(one.info.get("note", "")) for one in store.episodes()] == [10, 0]
    with pytest.raises(ValueError, match="note has str rows, expected bytes, as the store's spec"):
        sw.load(place, into=sw.Store(sw.Spec(**fields, note=sw.Field(bytes)), capacity=10))


def texts_of_size(folder: Path, *sizes: int) -> str:
    folder.mkdir()
    return rlds(folder, {"note": TEXT}, *(example(sound(3) | {"steps/note": (1, [b"x" * n] * 3)}) for n in sizes))
