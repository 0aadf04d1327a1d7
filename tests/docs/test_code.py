"""All Python on the pages runs."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, name, run

TRACES = ("import jax", "import register")
"""Pages with these are run in a process of their own: JAX warns of every later fork, and what is registered stays."""
SLOW = {"docs/algorithms/qmix.md", "docs/store/cluster.md", "docs/frameworks/index.md", "docs/frameworks/torchrl.md"}
"""Pages whose programs start tens of processes, learn for seconds, or import a peer library."""
NIGHTLY = {"docs/frameworks/tianshou.md", "docs/training/seeds.md"}
"""Pages whose programs learn for longer, beside a peer library or from several seeds."""
WITH_PYTHON = [page for page in PAGES if any(blocks(page, "python"))]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            marks=[pytest.mark.slow] * (name(page) in SLOW) + [pytest.mark.nightly] * (name(page) in NIGHTLY),
            id=name(page),
        )
        for page in WITH_PYTHON
    ],
)
def test_python_on_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text("utf-8")
    if not any(trace in text for trace in TRACES):
        run(page)
    elif "import jax" in text and not find_spec("jax"):
        pytest.skip("the page needs JAX: pip install jax")
    else:
        command = [sys.executable, "-W", "error", "-c", f"from tests.docs.pages import *; run(Path({str(page)!r}))"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_what_the_readme_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = next(blocks(PAGES[0], "python"))
    exec(compile(first.text, "README.md", "exec"), {})
    *shape, reward, bytes_per_step = capsys.readouterr().out.split()
    assert " ".join(shape) == "(256, 4, 84, 84)"
    assert float(reward) == pytest.approx(1 + 0.99 + 0.99**2)
    assert float(bytes_per_step) > 0


@pytest.mark.slow
def test_the_agent_on_the_page_passes_its_suite(tmp_path: Path) -> None:
    """The page only defines the subclass of the suite, so running the page's code runs none of its tests."""
    page = next(page for page in PAGES if page.name == "extending.md")
    code = "\n".join(block.text for block in blocks(page, "python"))
    (tmp_path / "test_page.py").write_text(code, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "TestLinear", "test_page.py"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
