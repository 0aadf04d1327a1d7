"""Building the core where something is missing: one sentence says what to install."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "build_backend" / "sharpwave_build.py"


def said(code: str, path: Path) -> str:
    """Return what the module's code ends with, where the programs are those in ``path``."""
    environment = {name: value for name, value in os.environ.items() if name != "CXX"} | {"PATH": str(path)}
    program = f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r}); from sharpwave_build import *; {code}"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and not done.stdout
    return done.stderr


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is not None, reason="zig's compiler is there")
def test_without_a_compiler(tmp_path: Path) -> None:
    expected = "sharpwave: no C++ compiler: install g++ or clang, or pip install ziglang\n"
    assert said("build_core()", tmp_path) == said("build_wheel('folder')", tmp_path) == expected


def test_without_tools(tmp_path: Path) -> None:
    assert said("check('numpy', 'no-such-tool', 'nor-this')", tmp_path) == (
        "sharpwave: building the native core takes no-such-tool, nor-this: pip install no-such-tool nor-this\n"
    )


def test_an_extra_needs_what_the_extras_that_it_includes_need(tmp_path: Path) -> None:
    table = """
    [project]
    dependencies = ["numpy>=2"]
    [project.optional-dependencies]
    all = ["sharpwave[some,more]", "z"]
    some = ["a[x,y]>=1,<2"]
    more = ["sharpwave[some]", "b", "z"]
    other = ["c"]
    """
    (tmp_path / "pyproject.toml").write_text(table)
    (tmp_path / "build_backend").mkdir()
    shutil.copy(PROGRAM, tmp_path / "build_backend")
    program = [sys.executable, str(tmp_path / "build_backend" / PROGRAM.name), "requirements"]

    def needed(extras: str) -> list[str]:
        said = subprocess.run([*program, extras], capture_output=True, text=True, check=True, timeout=60)
        return sorted(said.stdout.split())

    assert needed("all") == ["a[x,y]>=1,<2", "b", "numpy>=2", "z"]
    assert needed("some,other") == ["a[x,y]>=1,<2", "c", "numpy>=2"]  # as `make pong` asks for
