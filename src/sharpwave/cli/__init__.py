"""Entry point of the ``sharpwave`` command, and its messages for invalid input and missing packages."""

from __future__ import annotations

import os
import sys

from sharpwave import __version__
from sharpwave.errors import NewerVersionError
from sharpwave.training.text import printable

TRAINING_PACKAGES = (
    "typer", "click", "shellingham", "rich", "torch", "gymnasium", "ale_py", "tensorboard", "safetensors", "matplotlib",
    "imageio", "psutil", "PIL", "yaml",
)  # fmt: skip
"""Packages that ``sharpwave[train]`` installs; the command line itself needs some of them."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with 0, 1 after a failure, or 2 for invalid input.

    A failure and invalid input are explained on standard error.
    """
    if (sys.argv[1:] if arguments is None else arguments)[:1] == [
        "--version"
    ]:  # the command's error names what is missing
        print(f"sharpwave {__version__}")
        sys.exit(0)
    try:
        from sharpwave.cli.app import app

        app(args=arguments)
    except (ValueError, OSError, ModuleNotFoundError, NewerVersionError) as error:
        # Invalid input raises a ValueError that names the remedy: a traceback would hide it.
        if os.environ.get("SHARPWAVE_TRACEBACK"):
            raise
        if isinstance(error, ModuleNotFoundError):
            missing = (error.name or "").split(".")[0]
            if "pip install" in str(error):  # it names the extra itself
                message = str(error)
            elif missing not in TRAINING_PACKAGES:
                raise
            else:
                message = f"this command needs {missing}: pip install 'sharpwave[train]'"
        else:
            message = printable(str(error))
        print(f"sharpwave: {message}\n(SHARPWAVE_TRACEBACK=1 shows where this was raised)", file=sys.stderr)
        sys.exit(1 if isinstance(error, OSError) else 2)
