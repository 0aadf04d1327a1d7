"""Entry point of the ``sharpwave`` command, and its messages for invalid input and missing packages."""

from __future__ import annotations

import os
import sys

from sharpwave import __version__
from sharpwave.errors import NewerVersionError
from sharpwave.escaping import printable
from sharpwave.extras import install

CLI_PACKAGES = ("typer", "click", "shellingham", "rich")
"""Packages that ``sharpwave[cli]`` installs."""
TRAINING_PACKAGES = (
    "torch", "gymnasium", "ale_py", "tensorboard", "safetensors", "matplotlib",
    "imageio", "psutil", "PIL", "yaml",
)  # fmt: skip
"""Packages that ``sharpwave[train]`` installs in addition."""
EXTRAS = {
    **dict.fromkeys(("train", "eval", "saliency", "record", "plan", "actors", "bench"), "train"),
    **dict.fromkeys(("import", "export"), "cli,data"),
    "view": "view",
}  # fmt: skip
"""Extras of commands that need more than ``cli``."""
FURTHER = {"minatar": "minatar", "minari:": "minari", "lerobot:": "lerobot", "--track": "wandb"}
"""Extras that arguments need which begin so, whatever their case."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with 0, 1 after a failure, 2 for invalid input, or 130 after Ctrl-C.

    A failure and invalid input are explained on standard error.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["--version"]:  # told without the command line's packages
        print(f"sharpwave {__version__}")
        sys.exit(0)
    try:
        from sharpwave.cli.commands import app

        app(args=arguments)
    except KeyboardInterrupt:  # while modules were imported
        sys.exit(130)
    except (ValueError, OSError, MemoryError, ModuleNotFoundError, NewerVersionError) as error:
        # Invalid input raises a ValueError that names the remedy: a traceback would hide it.
        if os.environ.get("SHARPWAVE_TRACEBACK"):
            raise
        if isinstance(error, ModuleNotFoundError):
            missing = (error.name or "").split(".")[0]
            extra = extras_of(arguments)
            if extra == "cli" and missing not in CLI_PACKAGES:
                extra = "train"
            if "pip install" in str(error):  # it names the extra itself
                message = str(error)
            elif missing not in CLI_PACKAGES + TRAINING_PACKAGES:
                raise
            else:
                message = f"this command needs {missing}: {install(extra)}"
        else:
            message = printable(str(error) or "no memory is left")
            message += "\n(SHARPWAVE_TRACEBACK=1 shows where this was raised)"
        print(f"sharpwave: {message}", file=sys.stderr)
        sys.exit(1 if isinstance(error, OSError | MemoryError) else 2)


def extras_of(arguments: list[str]) -> str:
    """Return the extras that a command line needs, all at once, separated by commas."""
    needed = EXTRAS.get(arguments[0], "cli") if arguments else "cli"
    said = [argument.lower() for argument in arguments[1:]]
    return ",".join([needed, *(extra for sign, extra in FURTHER.items() if any(one.startswith(sign) for one in said))])
