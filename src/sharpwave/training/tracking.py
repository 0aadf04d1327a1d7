"""Callback that logs a run to Weights & Biases."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from sharpwave.extras import install
from sharpwave.training.callbacks import Callback
from sharpwave.training.config import Config
from sharpwave.training.event_logs import episode_scalars, evaluation_scalars, report_scalars
from sharpwave.training.progress import Metrics
from sharpwave.training.recipes.recipe import Recipe

PROJECT = "sharpwave"
"""Project of runs for which ``WANDB_PROJECT`` names none."""


def check_tracking(recipe: Recipe) -> None:
    """Check that wandb is installed if the recipe asks for it.  Raises: ValueError."""
    if recipe.training.track and importlib.util.find_spec("wandb") is None:
        raise ValueError(f"--track needs Weights & Biases, which is not installed: {install('wandb')}")


class WeightsAndBiases(Callback):
    """Callback that logs the scalars of TensorBoard's file to Weights & Biases, against environment steps.

    wandb's own environment variables apply: ``WANDB_PROJECT``, ``WANDB_MODE=offline`` and so on. Its files lie in the
    run's folder; a resumed run continues its log.

    Args:
        folder: the run's folder.
    Raises:
        ValueError: wandb refuses the run: no account is configured, or its server cannot be reached.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        import wandb

        try:
            self._run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=folder.name,
                id=config.run,
                resume="allow",
                dir=str(folder),
                config={"recipe": config.name, **config.recipe.to_table()},
                settings=wandb.Settings(console="off"),  # the display writes to the terminal
            )
        except wandb.errors.Error as error:
            raise ValueError(
                f"--track: Weights & Biases refuses the run: {error}; WANDB_MODE=offline logs into its folder instead"
            ) from error
        self._run.define_metric("*", step_metric="steps")

    def on_episode(self, metrics: Metrics) -> None:
        self._log(metrics, episode_scalars(metrics))

    def on_report(self, metrics: Metrics) -> None:
        self._log(metrics, report_scalars(metrics))

    def on_evaluation(self, metrics: Metrics) -> None:
        self._log(metrics, evaluation_scalars(metrics))

    def close(self) -> None:
        self._run.finish()

    def _log(self, metrics: Metrics, scalars: dict[str, float]) -> None:
        # "steps" is also the name of an episode's length in TensorBoard.
        if "steps" in scalars:
            scalars["episode_steps"] = scalars.pop("steps")
        self._run.log({**scalars, "steps": metrics["steps"]})
