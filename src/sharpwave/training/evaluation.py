"""Evaluating a run's saved policy: scores of whole episodes, and a video of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from sharpwave.agents.protocol import Agent
from sharpwave.training import setup
from sharpwave.training.checkpoints import checkpoints, load_checkpoint
from sharpwave.training.config import read_config
from sharpwave.training.folder import BEST, LAST
from sharpwave.training.measuring import lanes_for, play
from sharpwave.training.policies import load_policy
from sharpwave.training.video import open_video

__all__ = ["evaluate", "play"]


def evaluate(
    run: Path,
    episodes: int,
    epsilon: float,
    seed: int,
    device: str = "auto",
    video: Path | None = None,
    checkpoint: str | None = None,
    *,
    trust: bool = False,
) -> tuple[dict[str, Any], list[float]]:
    """Play whole episodes with a policy that a run has saved.

    Args:
        epsilon: probability of a random action.
        video: an .mp4 or .gif file to write; one environment then plays all episodes in turn.
        checkpoint: "best", the policy with the best held-out evaluation, "last", that of the newest checkpoint, or
            the steps of a checkpoint; None: the best if there is one, else the last.
        trust: allow importing the module that the environment's name refers to.
    Returns:
        figures about the weights and how they were played, including ``steps``, ``checkpoint``, ``device`` and
        ``precision``; the scores.
    Raises:
        ValueError: the folder holds no run or no policy, the seed is too large, or the video cannot be written.
    """
    checkpoint = chosen_checkpoint(run, checkpoint)
    # Batches are small: further threads would only wait.
    recipe = read_config(run, trust=trust).recipe.override(device=device, threads=1)
    if seed > recipe.env.max_seed:
        raise ValueError(
            f"--seed: got {seed}, expected at most {recipe.env.max_seed} for {recipe.env.kind} environments"
        )
    env = setup.environments(recipe, 1 if video is not None else lanes_for(episodes), render=video is not None)
    with closing(env), setup.arithmetic(recipe):
        state, agent = with_policy(setup.agent(recipe, env), run, checkpoint)
        state = {**state, "checkpoint": checkpoint, "device": str(agent.device), "precision": agent.precision}
        if video is None:
            return state, play(agent, env, episodes, epsilon, seed)
        with open_video(video, int(env.metadata.get("render_fps", 30))) as show:
            return state, play(agent, env, episodes, epsilon, seed, show)


def chosen_checkpoint(run: Path, checkpoint: str | None) -> str:
    """Return which of a run's policies is meant: "best", "last" or the steps of a checkpoint; None: best, or else last.

    Raises:
        ValueError: the folder holds no run, or no such checkpoint.
    """
    found = [steps_of(path) for path in checkpoints(run)]
    if checkpoint not in (None, "best", "last", *found):
        raise ValueError(
            f"--checkpoint: got {checkpoint!r}, expected best, last or the steps of a checkpoint: {', '.join(found)}"
        )
    return checkpoint or ("best" if (run / BEST).is_file() else "last")


def steps_of(checkpoint: Path) -> str:
    """Return the name by which a checkpoint is chosen: its steps, without leading zeros."""
    steps, *number = checkpoint.name.split("-")
    return "-".join([str(int(steps)), *number])


def with_policy(agent: Agent, run: Path, checkpoint: str) -> tuple[dict[str, Any], Agent]:
    """Load a saved policy into ``agent``; return the policy's figures and the agent.

    Raises:
        ValueError: the policy is missing, damaged, or another network's.
    """
    if checkpoint not in ("best", "last"):
        figures = load_checkpoint(next(one for one in checkpoints(run) if steps_of(one) == checkpoint), agent)
        agent.load_policy(agent.policy_tensors())
        return figures, agent
    try:
        weights, figures = load_policy(run / {"best": BEST, "last": LAST}[checkpoint])
    except FileNotFoundError as error:
        if checkpoint == "best":
            raise ValueError(
                f"run {str(run)!r} has no {BEST}: no held-out evaluation has been made yet; use --checkpoint last"
            ) from error
        figures = load_checkpoint(checkpoints(run)[-1], agent)  # run of a release that wrote no policies
        weights = agent.policy_tensors()
    agent.load_policy(weights)
    return figures, agent
