"""Stores of every format version there was: each opens, with every step, priority and random state, and is sound.

``tests/data/write.py`` wrote them.
"""

from __future__ import annotations

import json
import runpy
import zipfile
from pathlib import Path
from typing import Any

import pytest

import sharpwave as sw
from sharpwave.tiers.check import check

DATA = Path(__file__).parent.parent / "data"
VERSIONS = sorted(path.name for path in DATA.glob("v*"))
STORES = [(path.parent.name, path.stem) for path in sorted(DATA.glob("v*/*.zip"))]
WRITE = runpy.run_path(str(DATA / "write.py"))


def unpacked(version: str, name: str, folder: Path) -> Path:
    """A copy of a store of the corpus."""
    with zipfile.ZipFile(DATA / version / f"{name}.zip") as file:
        file.extractall(folder / name)
    return folder / name


def expected(version: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / version / "expected.json").read_text())[name]
    return found


def test_there_is_a_store_of_each_sort_of_each_version() -> None:
    assert "v1" in VERSIONS
    for version in VERSIONS:
        assert {name for of, name in STORES if of == version} >= set(WRITE["STORES"])


@pytest.mark.parametrize(("version", "name"), STORES)
def test_a_store_of_a_version_comes_back(version: str, name: str, tmp_path: Path) -> None:
    folder = unpacked(version, name, tmp_path)
    found = check(folder)
    assert not found.damages
    assert found.steps and found.dictionaries and found.tails
    with sw.Store.open(folder) as store:
        assert store.recovery is not None and not store.recovery.damages
        assert not store.recovery.differences
        told = WRITE["told"](store, WRITE["views_of"](store))
        WRITE["play"](store, 40)  # and it goes on
        store.flush()
    was = expected(version, name)
    for view, steps in was["views"].items():
        for id_, step in steps["steps"].items():
            *values, chance = step
            assert told["views"][view]["steps"][id_][:-1] == values, (view, id_)
            assert told["views"][view]["steps"][id_][-1] == pytest.approx(chance, rel=1e-6, abs=2e-9), (view, id_)
        assert told["views"][view]["steps"].keys() == steps["steps"].keys()
        assert told["views"][view]["first_batch"] == steps["first_batch"]
    assert {key: told[key] for key in ("steps", "lane_steps")} == {key: was[key] for key in ("steps", "lane_steps")}
    assert not check(folder).damages
