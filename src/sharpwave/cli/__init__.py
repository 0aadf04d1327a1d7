"""The ``sharpwave`` command: what it says where something is missing or does not fit."""

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
"""What ``sharpwave[train]`` installs; the command line itself needs some of it."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0; 1 where something failed; 2 where the user's input does not fit.

    The last two with a sentence on what to do.
    """
    if (sys.argv[1:] if arguments is None else arguments)[:1] == [
        "--version"
    ]:  # told where commands lack what they need
        print(f"sharpwave {__version__}")
        sys.exit(0)
    try:
        from sharpwave.cli.app import app

        app(args=arguments)
    except (ValueError, OSError, ModuleNotFoundError, NewerVersionError) as error:
        # Everything the user may get wrong is refused with a ValueError that says what to do; so no traceback.
        if os.environ.get("SHARPWAVE_TRACEBACK"):
            raise
        if isinstance(error, ModuleNotFoundError):
            missing = (error.name or "").split(".")[0]
            if missing not in TRAINING_PACKAGES:
                raise
            message = f"this command needs {missing}: pip install 'sharpwave[train]'"
        else:
            message = printable(str(error))
        print(f"sharpwave: {message}\n(SHARPWAVE_TRACEBACK=1 shows where this was raised)", file=sys.stderr)
        sys.exit(1 if isinstance(error, OSError) else 2)
