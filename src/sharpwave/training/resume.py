"""Going on with a run: from its newest checkpoint that is whole, in its own folder."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

import sharpwave as sw
from sharpwave.agents.dqn import DQN
from sharpwave.training import setup
from sharpwave.training.callbacks import Metrics
from sharpwave.training.checkpoints import REPLAY, checkpoints, load_checkpoint, write_text
from sharpwave.training.recipes import Recipe
from sharpwave.training.run import DISK, METRICS, SUMMARY, Run, locked, read_config, summarize
from sharpwave.training.state import TrainingState
from sharpwave.training.text import duration_text


def resume(folder: Path, changes: dict[str, Any], console: Console) -> tuple[Path, Metrics]:
    """Go on with a run from its newest checkpoint that is whole.

    What the run did after that checkpoint is forgotten, and done again: without actors, in the same way.

    Args:
        changes: settings to replace, of :data:`~sharpwave.training.recipes.RESUMABLE`.
    Returns:
        the run's folder and its summary, also where the run had reached its end already.
    Raises:
        ValueError: no run there, no checkpoint, none that is whole, or a folder that is in use.
    """

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    checkpoints(folder)  # is it a run with any?
    with ExitStack() as stack:
        stack.enter_context(locked(folder))
        name, recipe = read_config(folder)
        recipe = replace(recipe, **changes)
        env = setup.environments(recipe, 1 if recipe.actors else None)
        stack.callback(env.close)
        agent = setup.agent(recipe, env)
        saved = _newest_whole(folder, recipe, env, agent, say)
        if saved.memory is None:
            say(f"{folder} has ended already, by {saved.ended}; to go on, give more --steps or another --stop-reward")
            if not (folder / SUMMARY).is_file():
                summarize(folder, name, recipe, str(agent.device), {**saved.report, "reason": saved.ended})
            summary: Metrics = json.loads((folder / SUMMARY).read_text())
            return folder, summary
        store, replay = saved.memory
        stack.callback(store.close)
        progress = saved.state.progress
        say(
            f"Resumed {folder} from checkpoint {saved.checkpoint.name}: {progress.steps:,} steps, "
            f"{progress.updates:,} updates, {saved.state.episodes.count:,} episodes, "
            f"{duration_text(progress.minutes * 60)} of training"
        )
        if recipe.actors:
            say("All environments begin new episodes; with actors no two runs are the same, nor is what follows")
        else:
            say("All environments begin new episodes, as they did in the run itself when it made the checkpoint")
        if (saved.checkpoint / REPLAY).is_dir():
            say(f"The replay memory holds {len(store):,} steps")
        else:
            progress.warm_up_again()
            say(
                "The checkpoint has no replay memory: a new one is filled for "
                f"{recipe.warmup_steps:,} steps before learning goes on"
            )
        (folder / SUMMARY).unlink(missing_ok=True)
        dropped = drop_metrics(folder / METRICS, progress.steps)
        if dropped:
            say(f"Lines of {METRICS} about later steps are dropped, and will be written again: {dropped:,}")
        return folder, Run(folder, name, recipe, env, agent, store, replay, saved.state).train(console)


@dataclass(frozen=True)
class Saved:
    """A checkpoint, loaded into the agent. ``memory``: store and view; None for a run that has ``ended``."""

    checkpoint: Path
    report: Metrics
    state: TrainingState
    ended: str | None
    memory: tuple[sw.Store, Any] | None


def _newest_whole(folder: Path, recipe: Recipe, env: setup.Env, agent: DQN, say: Any) -> Saved:
    damage = []
    for checkpoint in reversed(checkpoints(folder)):
        try:
            return _load(folder, checkpoint, recipe, env, agent)
        except (ValueError, FileNotFoundError) as error:
            say(f"Checkpoint {checkpoint.name} cannot be used: {error}")
            damage.append(checkpoint.name)
    raise ValueError(
        f"run {str(folder)!r} cannot be resumed: none of its checkpoints ({', '.join(damage)}) can be used; "
        "begin a new run"
    )


def _load(folder: Path, checkpoint: Path, recipe: Recipe, env: setup.Env, agent: DQN) -> Saved:
    figures = load_checkpoint(checkpoint, agent, resume=True)
    try:
        state, report = TrainingState.from_dict(recipe, figures["training"]), figures["report"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"its figures are not what this version writes ({error!r})") from error
    ended = state.end_reached(recipe)
    if ended is not None:
        return Saved(checkpoint, report, state, ended, None)
    disk, saved = folder / DISK, checkpoint / REPLAY
    if disk.is_dir():
        shutil.rmtree(disk)  # what it has beyond the checkpoint will be made again; the checkpoint has the rest
    store, view = setup.memory(recipe, env, disk, saved if saved.is_dir() else None)
    if store.recovery is not None and store.recovery.damages:
        store.close()
        raise ValueError(f"its replay memory is damaged: {store.recovery.damages[0]}")
    return Saved(checkpoint, report, state, None, (store, view))


def drop_metrics(path: Path, after: int) -> int:
    """Remove lines about more than ``after`` steps, and one that was cut short; returns how many they were."""
    lines = path.read_text().splitlines() if path.is_file() else []
    kept = [line for line in lines if _steps(line) <= after]
    write_text(path, "".join(f"{line}\n" for line in kept))
    return len(lines) - len(kept)


def _steps(line: str) -> float:
    """The steps that a line of metrics speaks of; infinity for one that is not whole."""
    try:
        return float(json.loads(line)["steps"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
