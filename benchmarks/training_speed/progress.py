"""Results that grow slice by slice in a JSON file, so that an interrupted benchmark can be continued."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from sharpwave.bench.machine import environment

PACKAGES = ("sharpwave", "torch", "numpy", "gymnasium", "ale-py", "stable-baselines3", "opencv-python-headless")

Results = dict[str, Any]


def begin(path: Path, settings: dict[str, Any], *, fresh: bool) -> Results:
    """Read the results in ``path`` to continue, or make new ones if there are none.

    Args:
        settings: settings that must be equal for slices to be comparable.
    Raises:
        ValueError: results of other settings, or a file without results.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if fresh or not path.exists():
        return {"settings": settings, "environment": environment(PACKAGES)}
    try:
        results: Results = json.loads(path.read_text())
        found = results["settings"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{str(path)!r} holds no results: {error}; remove it or give --fresh") from error
    for name, value in settings.items():
        if found.get(name) != value:
            raise ValueError(
                f"--{name.replace('_', '-')}: got {value}, but {str(path)!r} was measured with {found.get(name)}; "
                "give that to continue, --fresh to start over, or another --out"
            )
    results["environment"] = environment(PACKAGES)
    return results


def numbers(text: str, option: str, minimum: int = 0) -> list[int]:
    """Parse numbers: "0,1,2" -> [0, 1, 2].

    Raises:
        ValueError: not integers of at least ``least``, separated by commas.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) >= minimum for part in parts):
        raise ValueError(f"{option}: got {text!r}, expected integers of at least {minimum} with commas, as 10,20")
    return list(dict.fromkeys(int(part) for part in parts))


def say(text: str) -> None:
    """Print progress to stderr, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def run_command(command: Callable[..., None]) -> None:
    """Run a benchmark by its command line and exit; invalid input is explained in a sentence."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        app()
    except (ValueError, OSError) as error:
        sys.exit(str(error))
