"""Checkpoints while a run goes on: one that cannot be written ends nothing, is told, and is tried again sooner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

import sharpwave as sw
from sharpwave.agents.dqn import DQN
from sharpwave.training.callbacks import Callback, Metrics
from sharpwave.training.checkpoints import newest_checkpoint, save_checkpoint
from sharpwave.training.folder import BEST, LAST
from sharpwave.training.held_out import HeldOut
from sharpwave.training.policies import keep_policy
from sharpwave.training.recipes import Recipe
from sharpwave.training.state import TrainingState


class NotSavedError(RuntimeError):
    """A run has ended, and its last checkpoint could not be written whole."""


class Saver:
    """Saves the checkpoints of a run.

    Args:
        folder: where they lie, in the run's, which holds the best and the last policy.  run: the run's id.
        store: the replay memory, part of them if the recipe says so.
        callbacks: flushed before each.  say: told in a sentence what went wrong.
        counted: episodes that had ended at the checkpoint before the first one here.

    Attributes:
        lost: why the last one could not be written; "" if it was.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        recipe: Recipe,
        agent: DQN,
        store: sw.Store,
        callbacks: Sequence[Callback],
        say: Callable[[str], None],
        counted: int = 0,
    ) -> None:
        self._folder, self._run, self._recipe, self._agent = folder, run, recipe, agent
        self._store = store if recipe.save_replay else None
        self._callbacks, self._say, self._counted = callbacks, say, counted
        self._figures: Metrics = {}
        self._best: dict[str, Tensor] = {}
        self.lost = ""

    def __call__(self, state: TrainingState, report: Metrics) -> None:
        """Save one. Where that fails, say so, and have it tried again sooner."""
        progress = state.progress
        passed = progress.passed(self._recipe.checkpoint_every)
        # Not where the last one was lost: that one has broken them off a moment ago.
        if not self._recipe.actors and state.episodes.count == self._counted and passed and not self.lost:
            self._say(
                f"No episode has ended in the {self._recipe.checkpoint_every:,} steps before this checkpoint, and it "
                "breaks them all off: give a longer --checkpoint-every"
            )
        self._counted = state.episodes.count
        for callback in self._callbacks:
            callback.flush()
        self._figures = {"steps": report["steps"], "report": report, "training": state.to_dict()}
        self._best = state.held_out.best_weights
        weights, steps = self._agent.policy_weights(), {"steps": report["steps"]}
        keep_policy(self._folder.parent / LAST, weights, steps, self._say)
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

    def keep(self, held_out: HeldOut) -> None:
        """Save the best policy, which has just been found. Where that fails, say so."""
        assert held_out.best is not None
        keep_policy(self._folder.parent / BEST, held_out.best_weights, held_out.best.figures(), self._say)

    def finish(self) -> None:
        """The run has ended: where its last checkpoint was lost, save what takes less room, all but the replay memory.

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
