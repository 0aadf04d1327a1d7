"""Small files that would take gigabytes, hours, or what lies outside their folder (``hostile.py``), and sound ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import sharpwave as sw
from sharpwave.data import opened_files
from tests.data_sets.data import d4rl
from tests.data_sets.fuzzing import FORMATS
from tests.data_sets.hostile import CASES

LOADED = {"lerobot_unlisted_column"}
"""Sound, but for what is not read of them."""
LONG = {
    "lerobot_long_lists", "lerobot_short_tasks", "robomimic_one_group_by_many_names", "zarr_archive_of_zeros",
}  # fmt: skip
"""Those that take most of the time of all: by night alone."""
pytestmark = pytest.mark.timeout(600)  # the first of them waits for all to be loaded

HOSTILE = "test_a_hostile_data_set_is_refused"
MAX_GROWTH = 700 << 20
"""What any of them may take: a quarter of a gigabyte, as it is decoded and as it is handed on, and the libraries."""


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What loading said, of those data sets that this run asks for."""
    pytest.importorskip("minari")
    pytest.importorskip("av")
    root = Path(__file__).parent.parent.parent
    env = os.environ | {"PYTHONPATH": f"{Path(sw.__file__).parent.parent}:{root}"}
    tests = [one for one in request.session.items if getattr(one, "originalname", "") == HOSTILE]
    names = [one.callspec.params["name"] for one in tests]  # type: ignore[attr-defined]
    answer = subprocess.run(
        [sys.executable, "-m", "tests.data_sets.hostile", *names],
        cwd=root,
        env=env,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    return {one["name"]: one for one in map(json.loads, answer.stdout.splitlines())}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.nightly if one in LONG else pytest.mark.slow) for one in CASES]
)
def test_a_hostile_data_set_is_refused(outcomes: dict[str, Any], name: str) -> None:
    found = outcomes[name]
    assert found["documented"], found
    assert found["growth"] < MAX_GROWTH, found
    assert "place" in found, found  # else it could not be made
    if name in LOADED:
        assert not found["error"], found
        return
    assert found["error"] == "ValueError", found
    kind, _, place = found["place"].partition(":")
    assert found["said"].startswith(f"{kind}:") and place in found["said"], found
    assert "elsewhere" not in found["said"] or "link" in found["said"]


@pytest.mark.parametrize("ending", ["npz", "hdf5", "parquet"])
def test_data_of_zeros_is_sound(tmp_path: Path, ending: str) -> None:
    """Black frames take a thousandth of their bytes, and are no bomb."""
    data = d4rl([200, 100], with_next=True, shape=(1,))
    frames = np.zeros((300, 84, 84, 3), np.uint8)
    data["observations"], data["next_observations"] = frames, frames
    np.savez_compressed(tmp_path / "x.npz", **data)
    store = sw.load(f"npz:{tmp_path / 'x.npz'}")
    store.export(f"{ending}:{tmp_path / 'again'}.{ending}")
    path = tmp_path / f"again.{ending}"
    assert path.stat().st_size < frames.nbytes / 50
    again = sw.load(f"{ending}:{path}")
    assert [one.length for one in again.episodes()] == [200, 100] and not again.episodes()[1].obs.any()


def test_trust_lifts_the_bounds(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, values in d4rl([4, 6], with_next=False).items():
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk(values.shape)
            plist.set_deflate(9)
            plist.set_deflate(9)
            kind, space = h5py.h5t.py_create(values.dtype, logical=True), h5py.h5s.create_simple(values.shape)
            group = file.require_group(name.rpartition("/")[0] or "/")
            made = h5py.h5d.create(group.id, name.rpartition("/")[2].encode(), kind, space, plist)
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    place = f"hdf5:{tmp_path / 'x.h5'}"
    with pytest.raises(ValueError, match=r"filters \['gzip', 'gzip'\], expected each .* once at most; .*trust=True"):
        sw.load(place)
    assert [one.length for one in sw.load(place, trust=True).episodes()] == [4, 5]


def test_trust_follows_links_in_a_folder(tmp_path: Path) -> None:
    """As the cache of the Hugging Face hub keeps data sets."""
    source, made = Path(__file__).parent.parent / "data" / "rlds", tmp_path / "set"
    made.mkdir()
    for one in source.iterdir():
        (made / one.name).symlink_to(one)
    with pytest.raises(ValueError, match=r"features.json: its path leads through a symbolic link.*cp -rL"):
        sw.load(f"rlds:{made}")
    assert len(sw.load(f"rlds:{made}", trust=True)) == len(sw.load(f"rlds:{source}"))
    (tmp_path / "link").symlink_to(source)
    assert len(sw.load(f"rlds:{tmp_path / 'link'}")) == len(sw.load(f"rlds:{source}"))  # as the user says


def test_a_virtual_data_set_is_read_by_nobody(tmp_path: Path) -> None:
    """Not even if trusted: what it leads to is another file."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, values in d4rl([4, 6], with_next=False).items():
            if name != "observations":
                file[name] = values
        file["observations"] = h5py.ExternalLink("other.hdf5", "/x")
    with pytest.raises(ValueError, match="link to elsewhere, which is not followed"):
        sw.load(f"hdf5:{tmp_path / 'x.h5'}", trust=True)


@pytest.mark.parametrize("kind", FORMATS)
def test_reading_for_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Also from within a library that is reading, which makes another error of it."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    place = FORMATS[kind](tmp_path)
    monkeypatch.setattr(opened_files, "FREE_S", -2.0)
    with pytest.raises(ValueError, match=rf"{kind.partition('_')[0]}:.*reading has taken .* trust=True"):
        sw.load(place)
    assert len(sw.load(place, trust=True).episodes())
