"""The command line as a user runs it: in a process of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest


@dataclass
class Result:
    """How a command ended, and everything it printed."""

    code: int
    text: str


# Wide, so that sentences are not broken over lines.
ENVIRONMENT = {**os.environ, "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", "SDL_VIDEODRIVER": "dummy"}
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


@pytest.fixture(scope="session")
def pong_run(sharpwave, tmp_path_factory):
    """The folder of a few hundred steps of Pong, and what was printed."""
    folder = tmp_path_factory.mktemp("runs") / "pong"
    result = sharpwave(
        "train", "pong", "--out", folder, "--steps", 600, "--warmup-steps", 400, "--num-envs", 4, "--report-every", 200,
        "--frame", "42x42", "--crop", "34:194", "--actions", "NOOP,RIGHT,LEFT", "--network", "small", "--prioritized",
    )  # fmt: skip
    assert result.code == 0, result.text
    return folder, result.text
