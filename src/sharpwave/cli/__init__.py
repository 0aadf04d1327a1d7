"""The ``sharpwave`` command. One file a command; each imports what is slow to import only when it is run."""

from __future__ import annotations

import os
import sys

import typer

from sharpwave.cli import bench, inspect, plan, train, verify
from sharpwave.cli import eval as eval_command
from sharpwave.errors import NewerVersionError

app = typer.Typer(
    name="sharpwave",
    help="A compressed replay memory for deep reinforcement learning, and a trainer built on it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(train.app, name="train")
app.command("eval")(eval_command.evaluate)
app.add_typer(bench.app, name="bench")
app.command("plan")(plan.plan)
app.command("inspect")(inspect.inspect)
app.command("verify")(verify.verify)

TRAINING_PACKAGES = ("torch", "gymnasium", "ale_py", "tensorboard", "safetensors", "matplotlib", "imageio", "psutil")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0, or 2 with a sentence on what to do where the user's input does not fit."""
    try:
        app(args=arguments)
    except (ValueError, ModuleNotFoundError, NewerVersionError) as error:
        # Everything the user may get wrong is refused with a ValueError that says what to do; so no traceback.
        if os.environ.get("SHARPWAVE_TRACEBACK"):
            raise
        if isinstance(error, ModuleNotFoundError):
            if error.name is None or error.name.split(".")[0] not in TRAINING_PACKAGES:
                raise
            message = f"this command needs {error.name}: pip install 'sharpwave[train]'"
        else:
            message = str(error)
        print(f"sharpwave: {message}\n(SHARPWAVE_TRACEBACK=1 shows where this was raised)", file=sys.stderr)
        sys.exit(2)
