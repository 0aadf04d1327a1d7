"""Resuming a run in its own folder, from its newest undamaged checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import sharpwave as sw
from sharpwave.agents.demonstrations import DEMONSTRATIONS, DemonstratedReplay
from sharpwave.agents.protocol import Agent
from sharpwave.training import figures, setup
from sharpwave.training.actor_callbacks import MakeActorCallback, check_actor_callbacks
from sharpwave.training.callbacks import Callback, check_callbacks
from sharpwave.training.checkpoints import NO_STATE, REPLAY, checkpoints, load_best, load_checkpoint
from sharpwave.training.config import Config, read_config
from sharpwave.training.files import write_bytes
from sharpwave.training.folder import BEST, LAST, METRICS, SUMMARY, locked
from sharpwave.training.own_parts import check_own_parts
from sharpwave.training.policies import keep_policy
from sharpwave.training.progress import Metrics, TrainingState
from sharpwave.training.replay_folder import candidates, store_id
from sharpwave.training.run import Run, check_installed, let_go, read_summary, summarize
from sharpwave.training.saliency import check_saliency
from sharpwave.training.text import duration_text, speaker
from sharpwave.training.tracking import check_tracking
from sharpwave.training.video import check_videos

MAX_LINE_BYTES = 1 << 20
"""Size limit of a line of metrics."""


def resume(
    folder: Path,
    changes: dict[str, Any],
    console: Console,
    *,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
    actor_callbacks: Sequence[MakeActorCallback] = (),
) -> tuple[Path, Metrics]:
    """Resume a run from its newest undamaged checkpoint.

    Training after that checkpoint is discarded and repeated; without actors it repeats exactly.

    Args:
        changes: new values of settings of ``resumable``, by option name.
        trust: allow importing the module that the environment's name refers to.
        callbacks, actor_callbacks: as for ``sharpwave.training.run.run``; a run does not save them.
    Returns:
        the run's folder and its summary, even if the run had already ended.
    Raises:
        ValueError: the folder holds no run or no usable checkpoint, or is in use.
        NewerVersionError: a later release wrote the run.
        OSError, ProcessDiedError, CallbackError, NotSavedError: as ``sharpwave.training.run.run``.
    """
    say = speaker(console)
    check_installed()
    checkpoints(folder)  # raises where there is no run or no checkpoint
    folder = folder.absolute()
    with ExitStack() as stack:
        found = read_config(folder, trust=trust)
        stack.enter_context(locked(folder))
        recipe = found.recipe.override(**changes)
        check_tracking(recipe)
        check_callbacks(callbacks)
        check_actor_callbacks(actor_callbacks, recipe.actors.count)
        check_own_parts(recipe)
        config = found._replace(recipe=recipe)
        stack.enter_context(setup.arithmetic(recipe))
        env = setup.environments(recipe, 1 if recipe.actors.count or recipe.offline else None)
        stack.callback(env.close)
        check_videos(recipe)
        agent = setup.agent(recipe, env)
        check_saliency(recipe, agent)
        saved = _newest_whole(folder, config, env, agent, say)
        if saved.memory is None:
            say(
                f"{folder} has ended already, by {saved.ended}; to continue, give more --steps, --max-minutes or "
                "--patience, or another --stop-reward"
            )
            summary = read_summary(folder)
            if summary is None:
                last = {**saved.report, "reason": saved.ended, "final": saved.state.held_out.final()}
                summary = summarize(folder, config, agent, last, say)
            return folder, summary
        store, view, replay_id = saved.memory
        config = config._replace(replay=replay_id)
        stack.callback(let_go, store, say)
        progress = saved.state.progress
        say(
            f"Resumed {folder} from checkpoint {saved.checkpoint.name}: {progress.steps:,} steps, "
            f"{progress.updates:,} updates, {saved.state.scores.count:,} episodes, "
            f"{duration_text(progress.minutes * 60)} of training"
        )
        if recipe.offline:
            pass
        elif recipe.actors.count:
            say("All environments begin new episodes; with actors a resumed run does not repeat exactly")
        else:
            say("All environments begin new episodes, as they did when the run wrote the checkpoint")
        if (saved.checkpoint / REPLAY).is_dir():
            say(f"The replay memory holds {len(store):,} steps")
        elif recipe.offline:
            say(f"The checkpoint has no replay memory: {len(store):,} steps were read again from {recipe.agent.data}")
        elif recipe.replay.connect and len(store) >= recipe.training.warmup_steps:
            say(f"The replay memory at {recipe.replay.connect} holds {len(store):,} steps")
        else:
            progress.warm_up_again()
            say(
                "The checkpoint has no replay memory: a new one is filled for "
                f"{recipe.training.warmup_steps:,} steps before learning goes on"
            )
        (folder / SUMMARY).unlink(missing_ok=True)
        restore_policies(folder, saved.state, agent, say)
        dropped = drop_metrics(folder / METRICS, progress.steps)
        if dropped:
            say(f"Dropped {dropped:,} lines about later steps from {METRICS}; they will be written again")
        made = Run(folder, config, env, agent, store, view, saved.state, tuple(callbacks), tuple(actor_callbacks))
        return folder, made.train(console)


@dataclass(frozen=True)
class Saved:
    """Checkpoint that was loaded into the agent.

    Attributes:
        report: the last report before the checkpoint.
        ended: why the run has ended; None: it has not.
        memory: the store, its view, and the store's id if it is on disk, else ""; None for a run that has ended.
    """

    checkpoint: Path
    report: Metrics
    state: TrainingState
    ended: str | None
    memory: tuple[sw.Store | sw.Cluster, Any, str] | None


def _newest_whole(folder: Path, config: Config, env: setup.Env, agent: Agent, say: Callable[[str], None]) -> Saved:
    damage = []
    for checkpoint in reversed(checkpoints(folder)):
        try:
            return _load(folder, checkpoint, config, env, agent, say)
        except (ValueError, FileNotFoundError) as error:
            say(f"Checkpoint {checkpoint.name} cannot be used: {error}")
            damage.append(checkpoint.name)
    raise ValueError(
        f"run {str(folder)!r} cannot be resumed: none of its checkpoints ({', '.join(damage)}) can be used; "
        "begin a new run"
    )


def _load(
    folder: Path, checkpoint: Path, config: Config, env: setup.Env, agent: Agent, say: Callable[[str], None]
) -> Saved:
    said, recipe = load_checkpoint(checkpoint, agent, resume=True), config.recipe
    try:
        state, report = TrainingState.from_dict(recipe, agent, said["training"]), figures.report(said["report"])
    except NO_STATE as error:
        raise ValueError(f"its figures are not in the form that this release writes ({error!r})") from error
    state.held_out.best_weights = load_best(checkpoint, said)
    if (state.held_out.best is None) != (not state.held_out.best_weights):
        raise ValueError("it holds a best policy without its evaluation, or an evaluation without its policy")
    ended = state.end_reached(recipe)
    if ended is not None:
        return Saved(checkpoint, report, state, ended, None)
    saved = checkpoint / REPLAY if (checkpoint / REPLAY).is_dir() else None
    store, view, replay = _memory(folder, config, env, agent, saved, say)
    if store.recovery is not None and store.recovery.damages:
        store.close()
        raise ValueError(f"its replay memory is damaged: {store.recovery.damages[0]}")
    if (checkpoint / DEMONSTRATIONS).is_dir() and isinstance(view, DemonstratedReplay):
        try:
            view.restore(said["blend"])
        except NO_STATE as error:
            store.close()
            raise ValueError(f"the state of its blend cannot be restored ({error!r})") from error
    return Saved(checkpoint, report, state, None, (store, view, replay))


def _memory(
    folder: Path, config: Config, env: setup.Env, agent: Agent, saved: Path | None, say: Callable[[str], None]
) -> tuple[sw.Store | sw.Cluster, Any, str]:
    """Open the replay memory of a checkpoint, or make a new one; on disk it replaces the run's previous memory."""
    if not config.recipe.replay.disk_limit:
        return *setup.memory(config.recipe, env, agent, None, saved), ""
    ids = {config.replay, store_id(saved) if saved is not None else ""}
    for disk in candidates(folder, ids):
        try:
            return *setup.memory(config.recipe, env, agent, disk, saved), store_id(disk)
        except FileExistsError as error:
            say(f"The replay memory is written to another folder of the run: {error}")
    raise AssertionError("candidates never ends")


def restore_policies(folder: Path, state: TrainingState, agent: Agent, say: Callable[[str], None]) -> None:
    """Restore the best and the last policy as they were at the checkpoint."""
    keep_policy(folder / LAST, agent.policy_tensors(), {"steps": state.progress.steps}, say)
    best = state.held_out.best
    if best is None:
        (folder / BEST).unlink(missing_ok=True)
    else:
        keep_policy(folder / BEST, state.held_out.best_weights, best.figures(), say)


def drop_metrics(path: Path, after: int) -> int:
    """Remove damaged lines and those about more than ``after`` steps; return how many were removed.

    Raises: OSError: the file cannot be written; where nothing is to be removed it is not.
    """
    kept, dropped, whole = [], 0, True
    if path.is_file():
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                whole &= line.endswith(b"\n")
                if _steps(line) <= after:
                    kept.append(line.rstrip(b"\n") + b"\n")
                else:
                    dropped += 1
    if dropped or not whole:
        write_bytes(path, b"".join(kept))
    return dropped


def _steps(line: bytes) -> float:
    """Return the steps of a line of metrics; infinity for a damaged line."""
    try:
        return float(json.loads(line)["steps"])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return float("inf")
