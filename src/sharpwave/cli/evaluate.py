"""``sharpwave eval RUN...``, ``sharpwave saliency RUN``: play by a run's saved policy, or film what it looks at."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer

from sharpwave.training.scores import EPISODES, EPSILON, EVAL_SEED

DEVICE = Annotated[str, typer.Option(help="auto, cpu, cuda")]
CHECKPOINT = Annotated[
    str | None,
    typer.Option(
        metavar="best|last|STEPS",
        help="best: the best policy by held-out evaluation; last: the newest checkpoint's; or a checkpoint's steps; "
        "default best, if there is one",
    ),
]
TRUST = Annotated[
    bool,
    typer.Option("--trust", help="import the module named by the run's config.json as MODULE:ENV, and run its code"),
]


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="a run's folder, printed by sharpwave train, or a saved policy; several: runs of several seeds",
        ),
    ],
    episodes: Annotated[int, typer.Option(min=1, help="whole episodes to play")] = EPISODES,
    epsilon: Annotated[float, typer.Option(min=0.0, max=1.0, help="probability of a random action")] = EPSILON,
    seed: Annotated[int, typer.Option(min=0, help="seed of the environments and the random actions")] = EVAL_SEED,
    device: DEVICE = "auto",
    checkpoint: CHECKPOINT = None,
    video: Annotated[Path | None, typer.Option(help="also write a video, to a name that ends in .mp4 or .gif")] = None,
    trust: TRUST = False,
) -> None:
    """Play episodes with a run's best weights, held fixed, and print each score.

    Of several runs each one's mean is printed, and the spread of these means.
    """
    from sharpwave.cli.output import console as standard_output
    from sharpwave.training.evaluation import evaluate as play
    from sharpwave.training.policies import Policy

    if video is not None and len(runs) > 1:
        raise ValueError(f"--video: got {len(runs)} runs, expected one to film")
    console = standard_output()
    means = []
    for run in runs:
        policy = Policy.load(run, checkpoint, device=device, trust=trust)
        played = play(policy, episodes=episodes, seed=seed, epsilon=epsilon, video=video)
        means.append(played.mean)
        name = policy.checkpoint if policy.checkpoint in ("best", "last") else "saved"
        weights = f"weights, of step {policy.steps:,}"
        if len(runs) > 1:
            spread = str(played).rpartition("  of ")[0]
            console.print(f"{run}  {name} {weights}  {spread}", highlight=False, markup=False, soft_wrap=True)
            continue
        console.print(
            f"{name.capitalize()} {weights}; epsilon {epsilon:g}, seed {seed}, "
            f"{policy.agent.precision} on {policy.agent.device}",
            highlight=False,
        )
        for number, score in enumerate(played.scores, 1):
            console.print(f"episode {number:3d}  score {score:g}", highlight=False)
        console.print(str(played), highlight=False, style="bold")
    if len(runs) > 1:
        spread = f"std {statistics.pstdev(means):.2f}  min {min(means):g}  max {max(means):g}"
        console.print(
            f"mean {statistics.fmean(means):.2f}  {spread}  of {len(runs)} runs", highlight=False, style="bold"
        )
    if video is not None:
        console.print(f"video: {video}", soft_wrap=True, highlight=False)


def saliency(
    run: Annotated[Path, typer.Argument(help="a run's folder, printed by sharpwave train")],
    out: Annotated[Path, typer.Option(help="name of the video, which ends in .mp4 or .gif")],
    frames: Annotated[int, typer.Option(min=1, help="largest number of frames; the video ends with the episode")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="seed of the environment")] = EVAL_SEED,
    device: DEVICE = "auto",
    checkpoint: CHECKPOINT = None,
    trust: TRUST = False,
) -> None:
    """Film one episode with saliency maps: the pixels on which the state's value and the chosen action's advantage
    depend, and for each convolution the regions that favor the action (Grad-CAM)."""
    from sharpwave.cli.output import console
    from sharpwave.training.video import write_saliency

    shown = write_saliency(run, out, frames, seed, device, checkpoint, trust=trust)
    console().print(f"{shown:,} frames: {out}", soft_wrap=True, highlight=False)
