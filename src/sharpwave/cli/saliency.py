"""``sharpwave saliency RUN``: a video of what a run's saved policy looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sharpwave.training.measuring import EVAL_SEED


def saliency(
    run: Annotated[Path, typer.Argument(help="a run's folder, as sharpwave train printed it")],
    out: Annotated[Path, typer.Option(help="the video's name, ending in .mp4 or .gif")],
    frames: Annotated[int, typer.Option(min=1, help="frames at most; the video ends with the episode")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="seed of the environment")] = EVAL_SEED,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda")] = "auto",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="best|last|STEPS",
            help="best: by held-out evaluation; last: of the newest checkpoint; or the steps of a checkpoint; default "
            "best, if there is one",
        ),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="let the run's config.json import the module that it names as MODULE:ENV")
    ] = False,
) -> None:
    """Play one episode and draw, over what the network sees, the pixels on which the state's value and the chosen
    action's advantage depend, and for each convolution where it sees what speaks for that action (Grad-CAM)."""
    from sharpwave.cli.stream import console
    from sharpwave.training.video import write_saliency

    shown = write_saliency(run, out, frames, seed, device, checkpoint, trust=trust)
    console().print(f"{shown:,} frames: {out}", soft_wrap=True, highlight=False)
