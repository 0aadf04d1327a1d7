"""What the commands say where only the store's own packages are installed."""

import importlib.metadata
import subprocess
import sys

import pytest

from sharpwave.extras import install
from tests.cli.conftest import ENVIRONMENT

EXTRA = [
    "typer", "click", "shellingham", "rich", "torch", "gymnasium", "ale_py", "tensorboard", "safetensors", "matplotlib",
    "imageio", "psutil", "PIL", "cv2",
]  # fmt: skip


def without(missing):
    """The start of a command line: ``sharpwave``, unable to import some packages, nor anything in them."""
    code = f"import sys; sys.modules.update(dict.fromkeys({missing!r})); from sharpwave.cli import main; main()"
    return [sys.executable, "-c", code]


def command_without(missing, *arguments, timeout=120):
    """Exit status and output of ``sharpwave`` with those arguments and without those packages."""
    done = subprocess.run(
        [*without(missing), *map(str, arguments)],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        ("verify .", "cli"),
        ("train cartpole", "train"),
        ("train minatar --track", "train,minatar,wandb"),
        ("eval runs/x", "train"),
        ("import minari:me/maze-v0 store", "cli,data,minari"),
        ("view runs/x", "view"),
    ],
)
def test_the_command_line_says_at_once_all_that_is_to_be_installed(arguments, extra):
    code, text = command_without(EXTRA, *arguments.split())
    assert code == 2 and "Traceback" not in text
    assert text == f"sharpwave: this command needs typer: {install(extra)}\n"


@pytest.mark.parametrize(
    "missing", ["torch", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("tensorboard", "matplotlib"))]
)
def test_training_says_what_to_install_before_it_begins(missing, tmp_path):
    code, text = command_without([missing], "train", "cartpole", "--out", tmp_path / "run", "--steps", 10)
    assert code == 2 and "Traceback" not in text, text
    assert f"this command needs {missing}: {install('train')}" in text
    assert not (tmp_path / "run").exists()


def test_the_store_needs_none_of_them():
    code = f"import sys; sys.modules.update(dict.fromkeys({EXTRA!r})); import sharpwave as sw; print(sw.Store.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "Store\n"


def test_the_version_is_told(here):
    said = f"sharpwave {importlib.metadata.version('sharpwave')}\n"
    assert here("--version").text == said
    assert command_without(EXTRA, "--version") == (0, said)
