"""A first import anywhere: with nowhere to keep machine code, and with a folder for it that somebody else has made."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import sharpwave
from sharpwave.native import jit as native

TEN_LINES = """
import numpy as np, sharpwave as sw
from sharpwave.native import jit as native
from numba import config
store = sw.Store(sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64")), capacity=1000)
replay = store.transitions()
no = np.zeros(2, bool)
for step in range(20):
    store.extend(obs=np.zeros((2, 4), np.float32), action=np.arange(2), reward=np.ones(2), terminated=no, truncated=no)
print("sampled", len(replay.sample(8).ids), native.CACHED, config.CACHE_DIR or "-", sw.__file__)
"""


UNPRIVILEGED = """
import ctypes, os
if os.geteuid() == 0:  # root may write anywhere; without its capabilities it is a user like others
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, sets) == 0
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the package that cannot be written to."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(Path(sharpwave.__file__).parent, folder / "sharpwave", ignore=shutil.ignore_patterns("__pycache__"))
    folders = [path for path in [folder, *folder.rglob("*")] if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    yield folder
    for path in folders:
        path.chmod(0o755)


def ten_lines(installed, temporary):
    """In a process of its own without a home, with that package and a folder for temporary files."""
    environment = {**os.environ, "HOME": "/proc/nowhere", "TMPDIR": str(temporary), "PYTHONPATH": str(installed)}
    for name in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED + TEN_LINES],
        env=environment,
        cwd=temporary,  # the first place where it looks for packages
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("sharpwave: compiling kernels, some seconds") == done.stderr.count("\n") == 1, done.stderr
    *printed, package = done.stdout.split()
    assert package == str(installed / "sharpwave" / "__init__.py")
    return printed


def test_without_a_home_machine_code_is_kept_with_temporary_files(installed, tmp_path):
    folder = tmp_path / f"sharpwave-{os.geteuid()}"
    assert ten_lines(installed, tmp_path) == ["sampled", "8", "True", str(folder)]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.rglob("*.nbi"))


def test_a_folder_that_others_can_write_to_is_not_used(installed, tmp_path):
    """What lies in it would be run as code. Kernels are compiled anew then."""
    folder = tmp_path / f"sharpwave-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert ten_lines(installed, tmp_path) == ["sampled", "8", "False", "-"]
    assert not list(folder.iterdir())


def test_whose_folder_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"sharpwave-{os.geteuid()}"
    assert native.own_folder() == folder
    assert native.own_folder() == folder  # the next process
    folder.chmod(0o770)
    assert native.own_folder() is None
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)
    assert native.own_folder() is None and not list(elsewhere.iterdir())
    folder.unlink()
    folder.write_text("a file")
    assert native.own_folder() is None
    folder.unlink()
    tmp_path.chmod(0o777)  # anybody could put another folder in its place
    assert native.own_folder() is None
    tmp_path.chmod(0o1777)
    assert native.own_folder() == folder
