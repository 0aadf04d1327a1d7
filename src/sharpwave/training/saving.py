"""Callback that writes a run's checkpoints and policies; a failed write is reported and retried, training goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

import sharpwave as sw
from sharpwave.agents.demonstrations import DemonstratedReplay
from sharpwave.agents.protocol import Agent
from sharpwave.disk.region_files import FULL
from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.checkpoints import least_bytes, newest_checkpoint, save_checkpoint
from sharpwave.training.folder import BEST, LAST
from sharpwave.training.policies import keep_policy
from sharpwave.training.progress import Metrics, TrainingState
from sharpwave.training.recipes.recipe import Recipe


class NotSavedError(RuntimeError):
    """Error raised when a run has ended and its last checkpoint could not be written completely."""


class Saver(Callback):
    """Callback that writes a run's checkpoints and its best and last policy. It must be the last callback.

    Args:
        folder: the folder of checkpoints; policies are written into its parent, the run's folder.
        run: the run's id.
        store, view: the replay memory, saved with checkpoints if the recipe's ``save_replay`` is set; demonstrations
            that the view draws from are saved with it.
        state: the run's state.
        say: called with a sentence about each failure.

    Attributes:
        lost: the error of the last checkpoint if it could not be written; else "".
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        recipe: Recipe,
        agent: Agent,
        store: sw.Store | sw.Cluster,
        view: Any,
        state: TrainingState,
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._run, self._recipe, self._agent = folder, run, recipe, agent
        # A cluster keeps the replay memory itself.
        self._store = store if recipe.replay.save_replay and isinstance(store, sw.Store) else None
        self._blend = view if recipe.replay.save_replay and isinstance(view, DemonstratedReplay) else None
        self._state, self._say = state, say
        self._counted = state.scores.count  # episodes that had ended by the previous checkpoint
        self._figures: Metrics = {}
        self._best: dict[str, Tensor] = {}
        self.lost = ""
        self._free = self._too_little = 0  # bytes left on the disk before the last attempt, and before one that failed

    def wants_checkpoint(self, training: Training) -> bool:
        """Return whether a checkpoint is due, and the disk has room for one: it breaks off all episodes.

        Where it has none, that is reported as a failure, and the run goes on as if no checkpoint had been due.
        """
        if training.reason is not None:
            return True
        if not self._state.progress.checkpoint_due:
            return False
        lacking = self._lacking()
        if lacking:
            self._failed(lacking)
        return not lacking

    def _lacking(self) -> str:
        """Return what says that the disk has no room for a checkpoint, which is deleted again if it fails; or ""."""
        with suppress(OSError):
            free = shutil.disk_usage(self._folder if self._folder.exists() else self._folder.parent).free
            self._free = free
            demonstrations = self._blend.demonstrations if self._blend is not None else None
            need = least_bytes(self._agent, self._state.held_out.best_weights, self._store, demonstrations)
            need = max(need, self._too_little + 1)
            if free < need:
                return f"the disk has {free:,} bytes left, a checkpoint takes at least {need:,}; make room"
        return ""

    def _failed(self, why: str) -> None:
        """Report a checkpoint that is not written, and when it is tried again."""
        self.lost, progress = why, self._state.progress
        retry_at = progress.saved(False)
        self._say(
            f"The checkpoint at {progress.steps:,} steps could not be written: {why}. {self._kept()}; the next attempt "
            f"is made at {retry_at:,} steps"
        )

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        """Write a checkpoint; on failure report it and retry later."""
        progress, count = self._state.progress, self._state.scores.count
        every = self._recipe.training.checkpoint_every
        passed = progress.passed(every)
        # No warning after a failed checkpoint: that one broke all episodes off only a moment ago.
        here = not self._recipe.actors.count and not self._recipe.offline
        if here and count == self._counted and passed and not self.lost:
            self._say(
                f"No episode has ended in the {every:,} steps before this checkpoint, which breaks all of them off; "
                "give a longer --checkpoint-every"
            )
        self._counted = count
        self._figures = {"steps": metrics["steps"], "report": metrics, "training": self._state.to_dict()}
        if self._blend is not None:
            self._figures["blend"] = self._blend.state()
        self._best = self._state.held_out.best_weights
        steps = {"steps": metrics["steps"]}
        keep_policy(self._folder.parent / LAST, self._agent.policy_tensors(), steps, self._say)
        before = self.lost
        try:
            self._save(self._store)
        except OSError as error:
            if error.errno in FULL:
                self._too_little = self._free
            self._failed(str(error))
        else:
            self.lost, self._too_little = "", 0
            progress.saved(True)
            if before:
                self._say(f"The checkpoint at {progress.steps:,} steps was written; the run is saved again")

    def on_evaluation(self, metrics: Metrics) -> None:
        """Write the policy if this evaluation is the best so far; report a failure."""
        held_out = self._state.held_out
        if metrics["best"] and held_out.best is not None:
            keep_policy(self._folder.parent / BEST, held_out.best_weights, held_out.best.figures(), self._say)

    def finish(self) -> None:
        """Save the run's last checkpoint without the replay memory if it could not be written with it.

        Raises:
            NotSavedError: the last checkpoint could not be written completely; the message says what was saved.
        """
        if not self.lost:
            return
        steps = self._figures["steps"]
        message = f"The run's last checkpoint, at {steps:,} steps, could not be written: {self.lost}."
        saved = None
        if self._store is not None:
            with suppress(OSError):
                saved = self._save(None)
        if saved is not None:
            raise NotSavedError(
                f"{message} It was saved without the replay memory: checkpoint {saved.name} can be evaluated, and a "
                "run resumed from it fills a new memory before it learns"
            )
        raise NotSavedError(f"{message} Training since the previous checkpoint is lost. {self._kept()}")

    def _save(self, store: sw.Store | None) -> Path:
        return save_checkpoint(
            self._folder,
            self._agent,
            self._figures,
            store,
            run=self._run,
            best=self._best,
            keep_every=self._recipe.training.keep_every,
            demonstrations=None if store is None or self._blend is None else self._blend.demonstrations,
        )

    def _kept(self) -> str:
        found = newest_checkpoint(self._folder, self._run)
        return "No checkpoint has been written yet" if found is None else f"Checkpoint {found.name} is kept"
