"""The command line as a user runs it: in a process of its own, or in this one where that proves no less."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from sharpwave.cli import main
from tests.support.shared import once


@dataclass
class Result:
    """How a command ended, and everything it printed."""

    code: int
    text: str


# Wide, so that sentences are not broken over lines.
SETTINGS = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", "SDL_VIDEODRIVER": "dummy"}
ENVIRONMENT = {**os.environ, **SETTINGS}
COMMAND = [sys.executable, "-W", "error", "-m", "sharpwave.cli"]


@pytest.fixture(scope="session")
def sharpwave():
    """A function that runs ``sharpwave`` with arguments."""

    def run(*arguments, timeout=120):
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
        )  # fmt: skip
        return Result(done.returncode, done.stdout)

    return run


@pytest.fixture
def here(capfd, monkeypatch):
    """A function that does what ``sharpwave`` does, without the seconds that a new process needs to import torch."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments)])
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, "".join(capfd.readouterr()))

    return run


@pytest.fixture(scope="session")
def pong_run(tmp_path_factory):
    """The folder of a few hundred steps of Pong, and what was printed."""

    def train(folder):
        arguments = [
            "train", "pong", "--out", folder / "pong", "--steps", 600, "--warmup-steps", 400, "--num-envs", 4,
            "--report-every", 200, "--frame", "42x42", "--crop", "34:194", "--actions", "NOOP,RIGHT,LEFT",
            "--network", "small", "--prioritized", "--threads", 1,
        ]  # fmt: skip
        text = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(text), redirect_stderr(text):
            for name, value in SETTINGS.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main([*map(str, arguments)])
        assert ended.value.code == 0, text.getvalue()
        (folder / "text").write_text(text.getvalue())

    folder = once(tmp_path_factory, "pong_run", train)
    return folder / "pong", (folder / "text").read_text()
