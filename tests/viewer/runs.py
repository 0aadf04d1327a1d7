"""Short runs of the trainer, for the viewer to look at."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from sharpwave.cli import main

SHORT = {"--evaluate-every": 0, "--set": "evaluation.stop_reward=null", "--threads": 1}


def trained(recipe: str, out: Path, **options: Any) -> Path:
    """Train in this process, and return the run's folder."""
    given = SHORT | {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    arguments = [str(part) for pair in given.items() for part in pair]
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(io.StringIO()):
        main(["train", recipe, "--out", str(out), *arguments])
    assert ended.value.code == 0
    return out
