"""``sharpwave import``, ``export`` and ``plan --data``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.cli import main
from tests.data_sets.data import check_d4rl, d4rl

UNPRIVILEGED = """
import ctypes, os
if os.geteuid() == 0:  # root may write anywhere; without its capabilities it is a user like others
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, sets) == 0
"""
LENGTHS = [30, 100, 7]
EACH = """
import contextlib, io, json, sys
from sharpwave.cli import main
ended = []
for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(arguments)
            code = 0
        except SystemExit as error:
            code = error.code or 0
    ended.append([code, said.getvalue()])
print(json.dumps(ended))
"""


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    code = ended.value.code
    assert isinstance(code, int) or code is None
    return code or 0


def test_import_export_and_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = d4rl(LENGTHS)
    np.savez(tmp_path / "data.npz", **data)
    store, source = str(tmp_path / "store"), f"npz:{tmp_path / 'data.npz'}"
    for _ in range(2):
        assert run("import", source, store) == 0
        assert "3 episodes, 137 steps of npz:" in capsys.readouterr().out
    target = f"{tmp_path / 'out.hdf5'}"
    assert run("export", store, target, "--quiet") == 0
    assert "3 episodes in" in capsys.readouterr().out
    check_d4rl(sw.load(target), data, LENGTHS)
    assert run("export", store, target) == 1 and "exists" in capsys.readouterr().err
    assert run("export", store, f"npz:{tmp_path}/lane.npz", "--lanes", "x") == 2
    assert "--lanes: got 'x'" in capsys.readouterr().err
    assert run("plan", "--data", target, "--capacity", "1e5") == 0
    out = capsys.readouterr().out
    assert "137 steps encoded" in out and "24.0" in out and "infos.qpos" in out and "100,000 steps of it" in out
    assert run("plan", "--data", "csv:x") == 2 and "expected one of" in capsys.readouterr().err


@pytest.mark.parametrize("distinct", [True, False])
def test_sizes_of_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str], distinct: bool) -> None:
    """Those that segments hold, and those that are held once, of which more steps have more, or the same."""
    rng = np.random.default_rng(0)
    letters = rng.integers(97, 123, (1000 if distinct else 1, 500), np.uint8)
    texts = np.resize(np.array([bytes(one).decode() for one in letters]), 1000)
    data = d4rl([100] * 10)
    data = {name: one for name, one in data.items() if "observations" not in name}
    data |= {"observations/said": texts[::-1], "infos/said": texts}
    np.savez(tmp_path / "data.npz", **data)
    source = f"npz:{tmp_path / 'data.npz'}"
    store = sw.load(source)
    assert run("plan", "--data", source, "--capacity", "1e5", "--steps", "500") == 0
    out = " ".join(capsys.readouterr().out.split())
    found = re.search(
        r"the data set: .*? of RAM, ([\d,.]+) bytes a step.*100,000 steps of it: .*? ([\d,.]+) bytes", out
    )
    assert found is not None
    planned, of_more = (float(one.replace(",", "")) for one in found.groups())
    taken = sum(one for part, one in store.stats()["bytes"].items() if part not in ("arena_free", "annotations"))
    assert planned == pytest.approx(taken / len(store), rel=0.1)
    assert of_more > 600 if distinct else of_more < 200
    assert out.count(" 500.0 ") == 2  # raw bytes a step of each field
    assert run("import", source, str(tmp_path / "store"), "--quiet") == 0
    found = re.search(r"([\d,.]+) bytes a step\n", capsys.readouterr().out)
    assert found is not None
    assert float(found[1].replace(",", "")) > 600 if distinct else float(found[1]) < 200


def test_too_little_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = d4rl(LENGTHS)
    data = {name: one for name, one in data.items() if "observations" not in name}
    data["observations/said"] = np.array(["go"] * sum(LENGTHS))
    np.savez(tmp_path / "data.npz", **data)
    store, source = str(tmp_path / "store"), f"npz:{tmp_path / 'data.npz'}"
    assert run("import", source, store, "--quiet", "--ram", "4MiB") == 1
    said = capsys.readouterr().err
    assert (
        "episode 0 (rows 0 to 29): could not be stored (store:" in said
        and "repeat the import with a larger ram" in said
    )
    assert run("import", source, store, "--quiet", "--ram", "64MiB") == 0
    assert "3 episodes" in capsys.readouterr().out


def test_export_of_checkpoints_leaves_them(tmp_path: Path) -> None:
    data = d4rl(LENGTHS)
    np.savez(tmp_path / "data.npz", **data)
    places: tuple[dict[str, Any], ...] = ({}, {"disk": tmp_path / "store"})
    for place in places:
        with sw.load(f"npz:{tmp_path / 'data.npz'}", **place) as store:
            checkpoint = tmp_path / f"checkpoint{len(place)}"
            store.checkpoint(checkpoint)
        files = sorted(checkpoint.rglob("*"))
        assert run("export", str(checkpoint), f"npz:{tmp_path}/out{len(place)}.npz") == 0
        check_d4rl(sw.load(f"npz:{tmp_path}/out{len(place)}.npz"), data, LENGTHS)
        assert sorted(checkpoint.rglob("*")) == files and not list(tmp_path.glob(".export*"))


def test_export_of_a_checkpoint_in_a_single_file_also_of_a_store_on_disk(tmp_path: Path) -> None:
    data = d4rl(LENGTHS)
    np.savez(tmp_path / "data.npz", **data)
    places: tuple[dict[str, Any], ...] = ({}, {"disk": tmp_path / "store"})
    for place in places:
        with sw.load(f"npz:{tmp_path / 'data.npz'}", **place) as store:
            store.checkpoint(tmp_path / "one.sharpwave")
        assert run("export", str(tmp_path / "one.sharpwave"), f"npz:{tmp_path}/out{len(place)}.npz") == 0
        check_d4rl(sw.load(f"npz:{tmp_path}/out{len(place)}.npz"), data, LENGTHS)
        assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]


def test_import_into_a_file_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "data.npz", **d4rl(LENGTHS))
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        assert run("import", f"npz:{tmp_path / 'data.npz'}", str(tmp_path / place)) == 1
        said = capsys.readouterr().err
        assert f"{tmp_path / 'file'} is a file, expected a folder; give another path" in said
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of another kind")
def test_folders_that_cannot_be_written_to(tmp_path: Path) -> None:
    """In a process of its own, which loses what root may do."""
    data = d4rl(LENGTHS)
    np.savez(tmp_path / "data.npz", **data)
    locked = tmp_path / "locked"
    with sw.load(f"npz:{tmp_path / 'data.npz'}", disk=locked / "store") as store:
        store.checkpoint(locked / "checkpoint")
    folders = [one for one in [locked, *locked.rglob("*")] if one.is_dir()]
    before = sorted(locked.rglob("*"))

    for one in folders:
        one.chmod(0o555)
    for one in (locked / "store").iterdir():
        one.chmod(0o555 if one.is_dir() else 0o444)
    stored, checkpoint = str(locked / "store"), str(locked / "checkpoint")
    commands = [
        ["export", stored, f"npz:{tmp_path}/no.npz"],
        ["verify", stored],
        ["export", checkpoint, f"npz:{tmp_path}/out.npz"],
        ["export", checkpoint, f"npz:{locked}/out.npz"],
        ["import", f"npz:{tmp_path}/data.npz", str(locked / "new")],
    ]
    try:
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED + EACH, json.dumps(commands)],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    finally:
        for one in folders:
            one.chmod(0o755)
    assert done.returncode == 0, done.stderr
    codes, said = zip(*json.loads(done.stdout), strict=True)
    assert "/store cannot be written to (Permission denied)" in said[0] and "open a copy of the folder" in said[0]
    assert "Sound" in said[1] and "3 episodes in" in said[2]
    assert f"'{locked}/out.npz' could not be written (Permission denied); nothing is left" in said[3]
    assert f"{locked / 'new'} cannot be made (Permission denied); give a folder that can be written to" in said[4]
    assert codes == (1, 0, 0, 1, 1)
    check_d4rl(sw.load(f"npz:{tmp_path}/out.npz"), data, LENGTHS)
    assert sorted(locked.rglob("*")) == before and not (tmp_path / "no.npz").exists()
