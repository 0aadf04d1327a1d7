"""Checkpoints while a run goes on: one that cannot be written ends nothing, is told, and is tried again sooner."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torch import Tensor

import sharpwave as sw
from sharpwave.agents.protocol import Agent
from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.checkpoints import newest_checkpoint, save_checkpoint
from sharpwave.training.folder import BEST, LAST
from sharpwave.training.policies import keep_policy
from sharpwave.training.progress import Metrics, TrainingState
from sharpwave.training.recipes.recipe import Recipe


class NotSavedError(RuntimeError):
    """A run has ended, and its last checkpoint could not be written whole."""


class Saver(Callback):
    """Writes a run's checkpoints, its best and its last policy. To be the last of the callbacks.

    Args:
        folder: of the checkpoints, in the run's, which holds the policies.  run: the run's id.
        store: the replay memory, part of checkpoints if the recipe says so.
        state: the run's.
        say: told in a sentence what went wrong.

    Attributes:
        lost: why the last checkpoint could not be written; "" if it was.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        recipe: Recipe,
        agent: Agent,
        store: sw.Store,
        state: TrainingState,
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._run, self._recipe, self._agent = folder, run, recipe, agent
        self._store = store if recipe.replay.save_replay else None
        self._state, self._say = state, say
        self._counted = state.scores.count  # episodes that had ended at the checkpoint before
        self._figures: Metrics = {}
        self._best: dict[str, Tensor] = {}
        self.lost = ""

    def wants_checkpoint(self, training: Training) -> bool:
        return self._state.progress.checkpoint_due or training.reason is not None

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        """Write a checkpoint. Where that fails, say so, and have it tried again sooner."""
        progress, count = self._state.progress, self._state.scores.count
        every = self._recipe.training.checkpoint_every
        passed = progress.passed(every)
        # Not where the last one was lost: that one has broken them off a moment ago.
        if not self._recipe.actors.count and count == self._counted and passed and not self.lost:
            self._say(
                f"No episode has ended in the {every:,} steps before this checkpoint, and it breaks them all off: give "
                "a longer --checkpoint-every"
            )
        self._counted = count
        self._figures = {"steps": metrics["steps"], "report": metrics, "training": self._state.to_dict()}
        self._best = self._state.held_out.best_weights
        steps = {"steps": metrics["steps"]}
        keep_policy(self._folder.parent / LAST, self._agent.policy_tensors(), steps, self._say)
        before = self.lost
        try:
            save_checkpoint(self._folder, self._agent, self._figures, self._store, run=self._run, best=self._best)
        except OSError as error:
            self.lost = str(error)
            self._say(
                f"The checkpoint at {progress.steps:,} steps could not be written: {self.lost}. {self._kept()}; the "
                f"next one is tried within {progress.retry_every:,} steps"
            )
        else:
            self.lost = ""
            if before:
                self._say(f"The checkpoint at {progress.steps:,} steps is written; no more is missing")
        progress.unsaved = bool(self.lost)

    def on_evaluation(self, metrics: Metrics) -> None:
        """Write the best policy, if it has just been found. Where that fails, say so."""
        held_out = self._state.held_out
        if metrics["best"] and held_out.best is not None:
            keep_policy(self._folder.parent / BEST, held_out.best_weights, held_out.best.figures(), self._say)

    def finish(self) -> None:
        """Save what takes less room, all but the replay memory, where the run's last checkpoint was lost.

        Raises:
            NotSavedError: it was lost, saying what of it is there.
        """
        if not self.lost:
            return
        steps = self._figures["steps"]
        told = f"The run's last checkpoint, at {steps:,} steps, could not be written: {self.lost}."
        saved = None
        if self._store is not None:
            with suppress(OSError):
                saved = save_checkpoint(self._folder, self._agent, self._figures, run=self._run, best=self._best)
        if saved is not None:
            raise NotSavedError(
                f"{told} Without the replay memory it was: checkpoint {saved.name} plays, and a run resumed from it "
                "fills a new memory before it learns"
            )
        raise NotSavedError(f"{told} What came after the checkpoint before is lost. {self._kept()}")

    def _kept(self) -> str:
        found = newest_checkpoint(self._folder, self._run)
        return "There is none yet" if found is None else f"Checkpoint {found.name} is kept"
