"""Codecs that installed packages bring, in processes that know nothing else of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.codecs import codec_registry

CODEC = """
import numpy as np
from sharpwave.codecs.codec_protocol import Codec

class Plain(Codec):
    name, number = "plain", 200
    def encode(self, rows, dictionary=b"", line_bytes=0):
        return rows.tobytes()
    def check(self, column): ...
    def decode_row(self, column, row):
        return np.frombuffer(column.payload, np.uint8)[row * column.size : (row + 1) * column.size]
"""
WRITE = """
import sys
import numpy as np
import sharpwave as sw
spec = sw.Spec(obs=sw.Field((64,), "uint8", codec=sys.argv[2]), action=sw.Field((), "int64"))
with sw.Store(spec, capacity=1000, segment_steps=8, disk=sys.argv[1]) as store:
    for k in range(50):
        store.append(obs=np.full(64, k), action=k, reward=0, terminated=False, truncated=False)
"""


def installed(folder: Path, **points: str) -> Path:
    """Make a folder of installed packages: one with these entry points."""
    info = folder / "brings_codecs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brings-codecs\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[sharpwave.codecs]", *lines, ""]))
    (folder / "brings_codecs.py").write_text(CODEC)
    return folder


def run(packages: Path | None, *command: str) -> subprocess.CompletedProcess[str]:
    paths = [str(packages or ""), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=240, check=False, env=environment
    )


def test_a_codec_of_an_installed_package_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_by_name", "_by_number"):
        monkeypatch.setattr(codec_registry, name, dict(getattr(codec_registry, name)))
    monkeypatch.setattr(codec_registry, "_looked_at", set())
    monkeypatch.setattr(codec_registry, "_broken", {})
    points = {"plain": "brings_codecs:Plain", "broken": "no_such_module:Codec"}
    monkeypatch.syspath_prepend(installed(tmp_path / "site", **points))
    spec = sw.Spec(obs=sw.Field((64,), "uint8", codec="plain"), action=sw.Field((), "int64"))
    rows = np.random.default_rng(0).integers(0, 256, (50, 64), np.uint8)
    with sw.Store(spec, capacity=1000, segment_steps=8) as store:
        for k, row in enumerate(rows):
            store.append(obs=row, action=k, reward=0, terminated=False, truncated=False)
        assert store.stats()["codecs"]["obs"] == {"plain": 6}
        batch = store.transitions().sample(64)
        assert np.array_equal(batch.obs, rows[batch.action])
    with pytest.raises(ValueError, match=r"'broken' of sharpwave.codecs could not be loaded \(ModuleNotFoundError"):
        codec_registry.by_name("other")
    sys.modules.pop("brings_codecs")


@pytest.mark.slow
def test_a_store_with_a_codec_of_an_installed_package_is_read_by_every_process(tmp_path: Path) -> None:
    packages, store = installed(tmp_path / "site", plain="brings_codecs:Plain"), str(tmp_path / "store")
    written = run(packages, "-c", WRITE, store, "plain")
    assert written.returncode == 0, written.stderr
    verified = run(packages, "-m", "sharpwave.cli", "verify", store)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    inspected = run(packages, "-m", "sharpwave.cli", "inspect", "--json", store)
    assert inspected.returncode == 0 and '"plain"' in inspected.stdout
    without = run(None, "-m", "sharpwave.cli", "verify", store)
    assert without.returncode != 0 and "plain" in without.stdout + without.stderr


@pytest.mark.slow
def test_a_broken_entry_point_is_named_and_harms_no_store_that_does_not_need_it(tmp_path: Path) -> None:
    packages = installed(tmp_path / "site", broken="no_such_module:Codec", plain="brings_codecs:Plain")
    assert run(packages, "-c", WRITE, str(tmp_path / "raw"), "raw").returncode == 0
    assert run(packages, "-c", WRITE, str(tmp_path / "plain"), "plain").returncode == 0
    assert run(packages, "-m", "sharpwave.cli", "verify", str(tmp_path / "plain")).returncode == 0
    refused = run(packages, "-c", WRITE, str(tmp_path / "other"), "other")
    assert "'broken' of sharpwave.codecs could not be loaded (ModuleNotFoundError" in refused.stderr
