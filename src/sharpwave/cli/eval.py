"""``sharpwave eval RUN``: play episodes with a run's saved policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sharpwave.training.measuring import EPISODES, EPSILON, EVAL_SEED


def evaluate(
    run: Annotated[Path, typer.Argument(help="a run's folder, as sharpwave train printed it")],
    episodes: Annotated[int, typer.Option(min=1, help="whole episodes to play")] = EPISODES,
    epsilon: Annotated[float, typer.Option(min=0.0, max=1.0, help="probability of a random action")] = EPSILON,
    seed: Annotated[int, typer.Option(min=0, help="seed of the environments and the random actions")] = EVAL_SEED,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda")] = "auto",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="best|last|STEPS",
            help="best: by held-out evaluation; last: of the newest checkpoint; or the steps of a checkpoint; default "
            "best, if there is one",
        ),
    ] = None,
    video: Annotated[Path | None, typer.Option(help="also write a video, to a name ending in .mp4 or .gif")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="let the run's config.json import the module that it names as MODULE:ENV")
    ] = False,
) -> None:
    """Play episodes with a run's best weights, held fixed, and print every score."""
    import statistics

    from sharpwave.cli.stream import console as standard_output
    from sharpwave.training.evaluation import evaluate as play

    console = standard_output()
    state: dict[str, Any]
    state, scores = play(run, episodes, epsilon, seed, device, video, checkpoint, trust=trust)
    name = state["checkpoint"] if state["checkpoint"] in ("best", "last") else "saved"
    console.print(
        f"{name.capitalize()} weights, of step {state['steps']:,}; epsilon {epsilon:g}, seed {seed}, "
        f"{state['precision']} on {state['device']}",
        highlight=False,
    )
    for number, score in enumerate(scores, 1):
        console.print(f"episode {number:3d}  score {score:g}", highlight=False)
    console.print(
        f"[bold]mean {statistics.fmean(scores):.2f}[/]  std {statistics.pstdev(scores):.2f}  "
        f"min {min(scores):g}  max {max(scores):g}  of {len(scores)} episodes",
        highlight=False,
    )
    if video is not None:
        console.print(f"video: {video}", soft_wrap=True, highlight=False)
