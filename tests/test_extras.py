"""What installs an extra: a command that works where this package is. Make's targets bring what README calls next."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sharpwave import extras

ROOT = Path(__file__).parents[1]


def checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the package look as if it ran from a checkout in that folder."""
    module = folder / "src" / "sharpwave" / "extras.py"
    module.parent.mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    monkeypatch.setattr(extras, "__file__", str(module))
    return folder


def test_a_checkout_installs_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = checkout(tmp_path / "my code", monkeypatch)
    monkeypatch.chdir(root)
    assert extras.install("view") == "pip install -e '.[view]'"
    monkeypatch.chdir(tmp_path)
    assert extras.install("view") == f"pip install -e '{root.resolve()}[view]'"


def test_an_installed_package_names_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "lib" / "python3.11" / "site-packages" / "sharpwave" / "extras.py"
    monkeypatch.setattr(extras, "__file__", str(module))
    monkeypatch.setattr(extras, "installed_from", lambda: None)
    assert extras.install("view") == "pip install 'sharpwave[view]'"


def test_a_package_that_was_installed_from_a_checkout_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "my code"
    (root / "src" / "sharpwave").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    notes = packages / "sharpwave-0.1.0.dist-info"
    notes.mkdir(parents=True)
    (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: sharpwave\nVersion: 0.1.0\n")
    (notes / "direct_url.json").write_text(json.dumps({"dir_info": {}, "url": root.as_uri()}))
    monkeypatch.setattr(extras, "__file__", str(packages / "sharpwave" / "extras.py"))
    monkeypatch.syspath_prepend(packages)
    assert extras.install("view") == f"pip install '{root}[view]'"
    monkeypatch.chdir(root)
    assert extras.install("view") == "pip install '.[view]'"
    (root / "pyproject.toml").unlink()  # it was moved away since
    assert extras.install("view") == "pip install 'sharpwave[view]'"


@pytest.mark.parametrize("target", ["pong", "cartpole"])
def test_make_installs_what_shows_the_run_that_it_trains(target: str, tmp_path: Path) -> None:
    command = ["make", "-n", "-C", str(ROOT), target, f"VENV={tmp_path}"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert " requirements train,view > " in said and "train,view.txt;" in said and "-e ." in said, said


@pytest.mark.parametrize(
    ("missing", "statement", "sentence"),
    [
        ("torch", "batch.torch()", "batch.torch() needs torch: pip install torch"),
        ("jax", "batch.jax()", "batch.jax() needs jax: pip install jax"),
        ("gymnasium", "import sharpwave.envs", "sharpwave.envs needs gymnasium: {train}"),
        ("ale_py", "import sharpwave.envs", "sharpwave.envs needs ale_py: {train}"),
        ("torch", "import sharpwave.integrations.cleanrl", "CleanRL's buffer needs torch: {train}"),
        (
            "stable_baselines3",
            "import sharpwave.integrations.sb3",
            "buffers for Stable-Baselines3 need stable_baselines3: {sb3}",
        ),
    ],
)
def test_what_is_missing_is_one_sentence(missing: str, statement: str, sentence: str) -> None:
    program = f"""
import sys
from sharpwave.views.batch import Arrays
batch = Arrays()
sys.modules[{missing!r}] = None
try:
    {statement}
except ModuleNotFoundError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    installs = {extra: extras.install(extra) for extra in ("train", "sb3")}
    assert said.stdout.strip() == sentence.format(**installs)
