"""No import of a damaged or unusual file differs from what was written without a word."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.examples import stride

PROGRAMS = Path(__file__).parents[2] / "benchmarks"
LEROBOT = ["lerobot v2.1", "lerobot v3.0"]
FORMATS = ["npz", "hdf5", "minari", *LEROBOT, "rlds", "parquet", "robomimic", "maniskill", "aloha", "d3rlpy", "zarr"]


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("minari")
    monkeypatch.syspath_prepend(str(PROGRAMS))
    monkeypatch.setenv("MINARI_DATASETS_PATH", "")  # the program sets it
    yield importlib.import_module("imports")
    for name in ("imports", "import_folders", "import_layouts"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files of minari's writer
@pytest.mark.parametrize("name", FORMATS)
def test_nothing_differs_without_a_word(imports: Any, name: str) -> None:
    known = imports.formats()[name]
    assert len(known.damages) >= 40
    each = stride(1)
    found = imports.run(name, known, ["", *list(known.damages)[FORMATS.index(name) % each :: each]])
    assert [f"{damage}: {one}" for damage, one in found.items() if one.verdict == "SILENT"] == []


def test_a_difference_without_a_word_is_seen(imports: Any) -> None:
    """Rewards that are changed in the file are no longer those that were written, and nothing says so."""

    def change(data: Any) -> None:
        data["rewards"] = data["rewards"] + 1

    known = imports.formats()["npz"]
    found = imports.run("npz", imports.Format(known.write, {"": known.damages[""], "wrong": change}), None)
    assert [one.verdict for one in found.values()] == ["exact", "SILENT"] and found["wrong"].invented == 26
