"""``sharpwave bench``: the store and the trainer, measured on this machine beside the peers that are installed."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sharpwave.cli.output import check_out
from sharpwave.cli.output import console as standard_output
from sharpwave.extras import install
from sharpwave.training.folder import replay_of

DEFAULT_ENV = "pong"
PLAY_SHARE, TRAINER_SHARE = 0.1, 0.25
"""Shares of the session's time for playing an environment and for the trainer."""


app = typer.Typer(invoke_without_command=True)


@app.callback()
def bench(
    context: typer.Context,
    env: Annotated[
        str | None,
        typer.Option(help="Atari game or Gymnasium id whose random play gives the frames; default pong"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="your frames: a store's or run's folder, only read, or a .npy file [frames, ...]"),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="approximate duration")] = 60,
    recipe: Annotated[
        str | None, typer.Option(help="recipe whose training is timed, or none; default the environment's recipe")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write all figures to this .json file, and a .png beside it")] = None,
) -> None:
    """Measure the store and the trainer on this machine, beside other replay memories that are installed.

    Compares bytes a step, steps added and transitions sampled a second with stable-baselines3, cpprb, Tianshou and
    TorchRL (pip install 'sharpwave\\[bench]'), each in a process of its own, asked in turn. Ctrl-C ends it
    with what has been measured.
    """
    if context.invoked_subcommand:
        return
    from sharpwave.bench.contenders import installed
    from sharpwave.bench.machine import environment
    from sharpwave.bench.played import record
    from sharpwave.bench.report import printed, summary
    from sharpwave.bench.session import measure_store, measure_trainer

    deadline = time.monotonic() + seconds
    if env is not None and data is not None:
        raise ValueError("bench: got --env and --data, two sources of frames; expected one of them")
    data = None if data is None else replay_of(data)
    if out is not None:
        check_out(out, ".json")
    trained, untrained = trained_recipe(recipe, env)
    if env is None and data is None and installed("gymnasium") and installed("ale_py"):
        env = DEFAULT_ENV
    results: dict[str, Any] = {
        "environment": environment(), "settings": {"seconds": seconds}, "contenders": {}, "limit": [], "absent": {},
        "failed": {}, "interrupted": False,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="sharpwave-bench-") as made, progress() as say:
        folder = Path(made)
        try:
            try:
                recording, text = record(env, data, folder, seconds * PLAY_SHARE, say)
            except OSError as error:
                if data is None:
                    raise
                raise ValueError(f"--data: {error}") from error
            results["data"] = recording.described() | {"text": text}
            store_seconds = seconds * (1 - TRAINER_SHARE if trained else 1)
            measure_store(results, recording, folder, seconds, deadline - seconds + store_seconds, say)
            if trained:
                measure_trainer(results, *trained, folder, deadline, say)
            elif untrained:
                results["absent"]["trainer"] = untrained
        except KeyboardInterrupt:
            results["interrupted"] = True
    if not results["contenders"]:
        why = "interrupted" if results["interrupted"] else "; ".join(results["failed"].values())
        raise ValueError(f"bench: nothing was measured: {why}")
    results["summary"] = summary(results)
    console = standard_output()
    for one in printed(results):
        console.print(one, highlight=False, markup=False)
    if out is not None:
        console.print(f"written: {written(results, out)}", soft_wrap=True, highlight=False, markup=False)
    if results["interrupted"]:
        raise typer.Exit(130)


@app.command()
def ablation(
    env: Annotated[
        list[str], typer.Option(help="Gymnasium id; may be given more than once, scores are then normalized")
    ] = ["MinAtar/Breakout-v1"],  # noqa: B006 - typer reads it
    seeds: Annotated[int, typer.Option(min=1, help="runs of each arm in each environment")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="seed of the first run")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="environment steps of a run")] = 500_000,
    at_a_time: Annotated[int, typer.Option(min=1, help="runs that train side by side, a core each")] = 1,
    out: Annotated[Path, typer.Option(help="file of the runs, a line each; the picture is drawn beside it")] = Path(
        "ablation.jsonl"
    ),
) -> None:
    """Train Rainbow (recipe minatar-rainbow) whole, without each of its parts, without all of them, and with each
    part that it lacks: priorities, three-step returns, dueling, noise, more of its Munchausen rewards, other heads.

    A run that has ended is a line of --out; started again, only missing runs are made. Its score is the mean of 30
    held-out episodes with the last weights. Printed are each arm's interquartile mean over runs, its 95 % bootstrap
    interval, and its share of the whole's.
    """
    from sharpwave.bench import learning_runs as arms
    from sharpwave.envs.gym import known

    check_out(out, ".jsonl")
    for name in env:
        if not known(name):
            raise ValueError(f"--env: got {name!r}, expected a Gymnasium id such as MinAtar/Breakout-v1")
    console = standard_output()
    lines = arms.ablate(env, range(first_seed, first_seed + seeds), steps, at_a_time, out, console.print)
    of = env[0] if len(env) == 1 else f"{len(env)} environments, normalized by the best arm's mean"
    found, title = arms.rows(lines), f"IQM score after {steps:,} steps: {of}"
    console.print(arms.table(found, title))
    arms.draw(found, title, out.with_suffix(".png"))
    console.print(f"written: {out}, {out.with_suffix('.png')}", soft_wrap=True, highlight=False, markup=False)


def trained_recipe(recipe: str | None, env: str | None) -> tuple[tuple[str, str] | None, str]:
    """Return the recipe to train and its environment; or ``None`` and the reason, if packages are missing.

    Raises: ValueError: an unknown recipe.
    """
    from sharpwave.bench.contenders import installed
    from sharpwave.training.recipes import load_recipe, tables

    if recipe == "none":
        return None, ""
    if recipe is not None and recipe not in tables():
        raise ValueError(f"--recipe: got {recipe!r}, expected none or one of {', '.join(tables())}")
    for package in ("torch", "gymnasium", "ale_py"):
        if not installed(package):
            return None, f"not measured, {package} is not installed: {install('train')}"
    if recipe is not None:
        return (recipe, env or load_recipe(recipe).env.name), ""
    from sharpwave.bench.trainer import recipe_for

    name, chosen = recipe_for(env or DEFAULT_ENV)
    return (name, chosen.env.name), ""


def written(results: dict[str, Any], out: Path) -> str:
    """Write the figures, and draw them if matplotlib is installed; return the names of the files."""
    from sharpwave.bench.contenders import installed
    from sharpwave.bench.report import figure
    from sharpwave.training.atomic_files import replacing

    with replacing(out) as partial:
        partial.write_text(json.dumps(results, indent=1) + "\n")
    if not installed("matplotlib"):
        return f"{out}; the figure needs matplotlib: {install('train')}"
    figure(results, out.with_suffix(".png"))
    return f"{out}, {out.with_suffix('.png')}"


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress: one changing line on a terminal, else a line for each stage."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("") as status:
            yield lambda text: status.update(escape(text))
    else:
        yield lambda text: print(text, file=sys.stderr, flush=True)
