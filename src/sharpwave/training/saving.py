"""Callback that writes a run's checkpoints and policies; a failed write is reported and retried, training goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torch import Tensor

import sharpwave as sw
from sharpwave.agents.demonstrations import DemonstratedReplay
from sharpwave.disk.region_files import FULL
from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.checkpoints import is_tensors, keep_policy, newest_checkpoint, save_checkpoint
from sharpwave.training.folder import BEST, CHECKPOINTS, LAST
from sharpwave.training.progress import Metrics


class NotSavedError(RuntimeError):
    """Error raised when a run has ended and its last checkpoint could not be written completely."""


class Saver(Callback):
    """Callback that writes a run's checkpoints and its best and last policy. It must be the last callback.

    A failed write is reported and tried again later; training goes on. Checkpoints hold the replay memory if the
    recipe's ``save_replay`` is set, and the demonstrations that the view draws from.

    Args:
        folder: the run's folder.
        run: the run's id.
        say: called with a sentence about each failure.
    Attributes:
        lost: the error of the last checkpoint if it could not be written; else "".
    """

    def __init__(self, folder: Path, run: str, say: Callable[[str], None]) -> None:
        self._folder, self._run, self._say = folder, run, say
        self._training: Training | None = None
        self._counted = 0  # episodes that had ended by the previous checkpoint
        self._figures: Metrics = {}
        self._best: dict[str, Tensor] = {}
        self.lost = ""
        self._free = self._too_little = 0  # bytes left on the disk before the last attempt, and before one that failed

    def on_begin(self, training: Training) -> None:
        self._training, self._counted = training, training.state.scores.count

    def wants_checkpoint(self, training: Training) -> bool:
        """Return whether a checkpoint is due, and the disk has room for one: it breaks off all episodes.

        Where it has none, that is reported as a failure, and the run goes on as if no checkpoint had been due.
        """
        if training.reason is not None:
            return True
        if not training.state.progress.checkpoint_due:
            return False
        lacking = self._lacking(training)
        if lacking:
            self._failed(training, lacking)
        return not lacking

    def _lacking(self, training: Training) -> str:
        """Return why the disk has no room for a checkpoint, which would be deleted again; or ""."""
        with suppress(OSError):
            place = self._folder / CHECKPOINTS
            self._free = shutil.disk_usage(place if place.exists() else self._folder).free
            need = max(self._least_bytes(training), self._too_little + 1)
            if self._free < need:
                return f"the disk has {self._free:,} bytes left, a checkpoint takes at least {need:,}; make room"
        return ""

    def _least_bytes(self, training: Training) -> int:
        """Return disk space that a checkpoint takes at least: tensors, and steps that stores hold in memory.

        Stores on disk count for nothing: their files are linked where that is possible.
        """
        groups = [value for value in training.agent.state().values() if is_tensors(value)]
        groups.append(training.state.held_out.best_weights)
        tensors: int = sum(tensor.nbytes for group in groups for tensor in group.values())
        stats = [store.stats() for store in _memories(training) if store is not None]
        return tensors + sum(int(one["bytes"]["arena_used"]) for one in stats if "disk" not in one)

    def _failed(self, training: Training, why: str) -> None:
        """Report a checkpoint that is not written, and when it is tried again."""
        self.lost, progress = why, training.state.progress
        retry_at = progress.saved(False)
        self._say(
            f"The checkpoint at {progress.steps:,} steps could not be written: {why}. {self._kept()}; the next attempt "
            f"is made at {retry_at:,} steps"
        )

    def on_checkpoint(self, training: Training, metrics: Metrics) -> None:
        """Write a checkpoint; on failure report it and retry later."""
        recipe, state = training.recipe, training.state
        progress, count, every = state.progress, state.scores.count, recipe.training.checkpoint_every
        # No warning after a failed checkpoint: that one broke all episodes off only a moment ago.
        here = not recipe.actors.count and not recipe.offline
        if here and count == self._counted and progress.passed(every) and not self.lost:
            self._say(
                f"No episode has ended in the {every:,} steps before this checkpoint, which breaks all of them off; "
                "give a longer --checkpoint-every"
            )
        self._counted = count
        self._figures = {"steps": metrics["steps"], "report": metrics, "training": state.to_dict()}
        if recipe.replay.save_replay and isinstance(training.view, DemonstratedReplay):
            self._figures["blend"] = training.view.state()
        self._best = state.held_out.best_weights
        keep_policy(self._folder / LAST, training.agent.policy_tensors(), {"steps": metrics["steps"]}, self._say)
        before = self.lost
        try:
            self._save(training, *_memories(training))
        except OSError as error:
            if error.errno in FULL:
                self._too_little = self._free
            self._failed(training, str(error))
        else:
            self.lost, self._too_little = "", 0
            progress.saved(True)
            if before:
                self._say(f"The checkpoint at {progress.steps:,} steps was written; the run is saved again")

    def on_evaluation(self, metrics: Metrics) -> None:
        """Write the policy if this evaluation is the best so far; report a failure."""
        assert self._training is not None
        held_out = self._training.state.held_out
        if metrics["best"] and held_out.best is not None:
            keep_policy(self._folder / BEST, held_out.best_weights, held_out.best.figures(), self._say)

    def finish(self) -> None:
        """Save the run's last checkpoint without the replay memory if it could not be written with it.

        Raises:
            NotSavedError: the last checkpoint could not be written completely; the message says what was saved.
        """
        training = self._training
        if not self.lost or training is None:
            return
        steps = self._figures["steps"]
        message = f"The run's last checkpoint, at {steps:,} steps, could not be written: {self.lost}."
        saved = None
        if _memories(training)[0] is not None:
            with suppress(OSError):
                saved = self._save(training, None, None)
        if saved is None:
            raise NotSavedError(f"{message} Training since the previous checkpoint is lost. {self._kept()}")
        raise NotSavedError(
            f"{message} It was saved without the replay memory: checkpoint {saved.name} can be evaluated, and a run "
            "resumed from it fills a new memory before it learns"
        )

    def _save(self, training: Training, store: sw.Store | None, demonstrations: sw.Store | None) -> Path:
        return save_checkpoint(
            self._folder / CHECKPOINTS,
            training.agent,
            self._figures,
            store,
            self._run,
            self._best,
            training.recipe.training.keep_every,
            demonstrations,
        )

    def _kept(self) -> str:
        found = newest_checkpoint(self._folder / CHECKPOINTS, self._run)
        return "No checkpoint has been written yet" if found is None else f"Checkpoint {found.name} is kept"


def _memories(training: Training) -> tuple[sw.Store | None, sw.Store | None]:
    """Return the stores that a checkpoint includes: the replay memory, unless it is a cluster, and demonstrations."""
    saved, store, view = training.recipe.replay.save_replay, training.store, training.view
    return (
        store if saved and isinstance(store, sw.Store) else None,
        view.demonstrations if saved and isinstance(view, DemonstratedReplay) else None,
    )
