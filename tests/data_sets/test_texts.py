"""Texts of a step: one that an episode's rows share becomes its annotation; of others a warning says the name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sharpwave as sw
from tests.data_sets.hostile import change_column, example, lerobot, rlds, sound
from tests.data_sets.test_columns import noted


@pytest.mark.parametrize("kind", ["column", "lists", "dictionary"])
def test_string_columns_of_lerobot(tmp_path: Path, kind: str) -> None:
    """Episodes have 3, 12, 1 and 40 rows; the second has two texts."""
    folder = lerobot(tmp_path, "images")
    words = ["push"] * 3 + ["pull"] * 6 + ["lift"] * 7 + ["drop"] * 40

    def made(rows: int) -> Any:
        assert rows == 56
        values: Any = pa.array(words)
        if kind == "lists":
            return pa.array([[one] for one in words])
        return values.dictionary_encode() if kind == "dictionary" else values

    change_column(next(folder.glob("data/*/*.parquet")), "subtask", made)
    info = folder / "meta" / "info.json"
    said = json.loads(info.read_text())
    said["features"]["subtask"] = {"dtype": "string", "shape": [1], "names": None}
    info.write_text(json.dumps(said))
    with pytest.warns(UserWarning, match="subtask: text that varies within 1 episodes; not imported") as caught:
        store = sw.load(f"lerobot:{folder}")
    assert len(caught) == 1
    assert [(one.length, one.info.get("subtask")) for one in store.episodes()] == [
        (3, "push"), (11, None), (1, "lift"), (39, "drop")
    ]  # fmt: skip
    assert noted(store)["left_out"][-1] == "subtask: text that varies within 1 episodes"


def test_texts_of_rlds(tmp_path: Path) -> None:
    steps = {
        "language_instruction": {"pythonClassName": "x.Text", "text": {}},
        "observation": {"featuresDict": {"features": {
            "state": {"tensor": {"shape": {"dimensions": []}, "dtype": "float32", "encoding": "none"}},
            "hint": {"tensor": {"shape": {"dimensions": []}, "dtype": "string", "encoding": "none"}},
        }}},
    }  # fmt: skip
    made = []
    for words in (["push"] * 3, ["push", "push", "pull", "pull"], ["lift"] * 2):
        found = sound(len(words))
        found["steps/observation/state"] = found.pop("steps/observation")
        found |= {"steps/language_instruction": (1, [word.encode() for word in words])}
        found |= {"steps/observation/hint": (1, [b"left"] * len(words))}
        made.append(example(found))
    with pytest.warns(UserWarning, match="language_instruction: text that varies within 1 episodes; not imported"):
        store = sw.load(rlds(tmp_path, steps, *made))
    assert [one.info.get("language_instruction") for one in store.episodes()] == ["push", None, "lift"]
    assert [one.info["observation.hint"] for one in store.episodes()] == ["left"] * 3
    assert noted(store)["varying"] == {"language_instruction": 1}


def test_annotations_that_are_too_large_are_named(tmp_path: Path) -> None:
    steps = {"note": {"pythonClassName": "x.Text", "text": {}}}
    made = [example(sound(3) | {"steps/note": (1, [b"x" * size] * 3)}) for size in (10, 4 << 20)]
    with pytest.warns(UserWarning, match="annotations: those of 1 episodes are too large; not imported"):
        store = sw.load(rlds(tmp_path, steps, *made))
    assert [len(one.info.get("note", "")) for one in store.episodes()] == [10, 0]
    assert np.sum([one.length for one in store.episodes()]) == 6
