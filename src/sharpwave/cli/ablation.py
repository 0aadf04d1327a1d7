"""``sharpwave bench ablation``: which part of Rainbow pays?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    from rich.console import Console

    from sharpwave.bench import ablation as arms
    from sharpwave.envs.gym import known

    if out.suffix.lower() != ".jsonl":
        raise ValueError(f"--out: got {out.name!r}, expected a name that ends in .jsonl")
    if not out.parent.is_dir():
        raise ValueError(f"--out: the folder {str(out.parent)!r} does not exist; make it first")
    for name in env:
        if not known(name):
            raise ValueError(f"--env: got {name!r}, expected a Gymnasium id as MinAtar/Breakout-v1")
    console = Console()
    lines = arms.ablate(env, range(first_seed, first_seed + seeds), steps, at_a_time, out, console.print)
    of = env[0] if len(env) == 1 else f"{len(env)} environments, normalized by the best arm's mean"
    found, title = arms.rows(lines), f"IQM score after {steps:,} steps: {of}"
    console.print(arms.table(found, title))
    arms.draw(found, title, out.with_suffix(".png"))
    console.print(f"written: {out}, {out.with_suffix('.png')}", soft_wrap=True, highlight=False, markup=False)
