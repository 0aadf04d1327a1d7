"""A run and its folder: config.json, metrics.jsonl, TensorBoard events, checkpoints, summary.json, curve.png."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

import sharpwave as sw
from sharpwave.agents.dqn import DQN
from sharpwave.training import setup
from sharpwave.training.callbacks import Callback, Display, JsonLines, Metrics, TensorBoard
from sharpwave.training.checkpoints import save_checkpoint, write_json
from sharpwave.training.crew import ActorsDiedError
from sharpwave.training.curve import draw_curve
from sharpwave.training.learner import train_with_actors
from sharpwave.training.loop import train
from sharpwave.training.recipes import Recipe
from sharpwave.training.state import TrainingState

try:
    import fcntl
except ImportError:  # Windows: two processes on one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

CONFIG, METRICS, SUMMARY, CURVE, CHECKPOINTS, DISK = (
    "config.json", "metrics.jsonl", "summary.json", "curve.png", "checkpoints", "replay",
)  # fmt: skip


def run(name: str, recipe: Recipe, out: Path | None, console: Console) -> tuple[Path, Metrics]:
    """Train by ``recipe``, showing and keeping what happens; SIGINT and SIGTERM end it cleanly.

    Returns:
        the run's folder and its summary.
    Raises:
        ValueError: a setting that does not fit, or a folder that is in use.
        ActorsDiedError: actors died too often; there is a checkpoint.
    """
    with ExitStack() as stack:
        env = setup.environments(recipe, 1 if recipe.actors else None)  # where actors play, to know its spaces
        stack.callback(env.close)
        agent = setup.agent(recipe, env)
        # All that the user may have got wrong has been refused by now; only a good run leaves a folder.
        folder = run_folder(out, name, recipe.seed)
        try:
            store, replay = setup.memory(recipe, env, folder / DISK)
        except ValueError:
            shutil.rmtree(folder)
            raise
        stack.callback(store.close)
        stack.enter_context(locked(folder))
        console.print(f"Run folder: {folder}  (tensorboard --logdir {folder})", soft_wrap=True, highlight=False)
        return folder, Run(folder, name, recipe, env, agent, store, replay).train(console)


@dataclass(frozen=True)
class Run:
    """A run that is ready to train: its folder, its settings and what they were made into.

    Attributes:
        state: where a run that is resumed stands; None: at its start.
    """

    folder: Path
    name: str
    recipe: Recipe
    env: setup.Env
    agent: DQN
    store: sw.Store
    replay: Any
    state: TrainingState | None = None

    def train(self, console: Console) -> Metrics:
        """Train to the end, or until a signal comes; returns the summary.

        Raises:
            ActorsDiedError: they died too often; there is a checkpoint.
        """
        recipe, folder = self.recipe, self.folder
        write_json(folder / CONFIG, {"recipe": self.name, "settings": recipe.to_dict()})
        title = f"{self.name}: {recipe.env} on {self.agent.device}, seed {recipe.seed}"
        with ExitStack() as stack:
            interrupted = stack.enter_context(caught_signals())
            callbacks: list[Callback] = [
                JsonLines(folder / METRICS),
                TensorBoard(folder / "tensorboard", None if self.state is None else self.state.progress.steps),
                Display(console, title, recipe.steps, recipe.stop_reward),
            ]
            for callback in callbacks:
                stack.callback(callback.close)

            counted = 0 if self.state is None else self.state.episodes.count

            def save(state: TrainingState, report: Metrics) -> None:
                nonlocal counted
                if (
                    not recipe.actors
                    and state.episodes.count == counted
                    and state.progress.passed(recipe.checkpoint_every)
                ):
                    console.print(
                        f"No episode has ended in the {recipe.checkpoint_every:,} steps before this checkpoint, and it "
                        "breaks them all off: give a longer --checkpoint-every",
                        soft_wrap=True, highlight=False,
                    )  # fmt: skip
                counted = state.episodes.count
                for callback in callbacks:
                    callback.flush()
                figures = {"steps": report["steps"], "report": report, "training": state.to_dict()}
                replay = self.store if recipe.save_replay else None
                save_checkpoint(folder / CHECKPOINTS, self.agent, figures, replay)

            told = (callbacks, interrupted, self.state, save)
            if recipe.actors:

                def say(text: str) -> None:
                    console.print(text, soft_wrap=True, highlight=False, markup=False)

                last = train_with_actors(recipe, self.agent, self.store, self.replay, *told, say)
            else:
                last = train(recipe, self.env, self.agent, self.store, self.replay, *told)
        failed = last.pop("failed", False)
        summary = summarize(folder, self.name, recipe, str(self.agent.device), last)
        if failed:
            raise ActorsDiedError(
                f"{last['reason']}\nThe run ended with a checkpoint; to go on: sharpwave train --resume {folder}"
            )
        return summary


def summarize(folder: Path, name: str, recipe: Recipe, device: str, last: Metrics) -> Metrics:
    """Write a run's summary and draw its curve; returns the summary.

    Args:
        last: the last report, with ``reason``.
    """
    summary = {"recipe": name, "env": recipe.env, "seed": recipe.seed, "device": device, **last}
    del summary["seconds_left"]
    write_json(folder / SUMMARY, summary)
    draw_curve(folder / METRICS, folder / CURVE, f"{name}, seed {recipe.seed}", recipe.stop_reward)
    return summary


def run_folder(out: Path | None, name: str, seed: int) -> Path:
    """Make the folder of a new run: ``out``, or ``runs/<name>-<time>-<seed>``.

    Raises:
        ValueError: ``out`` is there already and not empty, or is a file.
    """
    folder = out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{seed}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"--out: {str(folder)!r} exists and is not empty; a run writes into a folder of its own. "
            f"Give another name or remove it; to go on with a run: sharpwave train --resume {folder}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out: {str(folder)!r} cannot be made: {error}") from error
    return folder


def read_config(folder: Path) -> tuple[str, Recipe]:
    """The recipe's name, and the settings that a run was made with.

    Raises:
        ValueError: the folder has no config.json, or one that is damaged.
    """
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text())
        return str(config["recipe"]), Recipe.from_dict(config["settings"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{str(path)!r} is not the config of a run: {error}") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While inside, no other process trains in the folder; the lock ends with the process, however that ends.

    Raises:
        ValueError: another process does.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
                raise ValueError(
                    f"run {str(folder)!r} is in use by process {holder}, which trains it; end that first"
                ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


@contextmanager
def caught_signals() -> Iterator[Callable[[], str | None]]:
    """While inside, SIGINT, SIGTERM and SIGHUP are noted and do not end the process; a second SIGINT ends it as ever.

    A SIGHUP that is ignored already, as nohup does, stays ignored.

    Yields:
        a function that says which signal came, or None.
    """
    came: list[str] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(signal.Signals(number).name)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    caught = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        caught.append(signal.SIGHUP)
    before: dict[int, Any] = {number: signal.signal(number, note) for number in caught}
    try:
        yield lambda: f"interrupted by {came[0]}" if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
