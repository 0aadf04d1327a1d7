"""A run and its folder: config.json, metrics.jsonl, checkpoints, best and last policy, summary.json, curve.png."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

import sharpwave as sw
from sharpwave.agents.protocol import Agent
from sharpwave.training import figures, setup
from sharpwave.training.actors.experience import ActorExperience
from sharpwave.training.actors.pool import ActorsDiedError
from sharpwave.training.callbacks import Callback, HeldOutEvaluations, Lasting, StopWhen, Training
from sharpwave.training.config import Config, write_config
from sharpwave.training.curve import draw_curve
from sharpwave.training.display import Display
from sharpwave.training.event_logs import JsonLines, TensorBoard
from sharpwave.training.experience import Experience, LocalExperience
from sharpwave.training.files import read_regular, sealed_json, write_text
from sharpwave.training.folder import CHECKPOINTS, CURVE, DISK, METRICS, SUMMARY, TENSORBOARD, new_folder
from sharpwave.training.loop import train
from sharpwave.training.progress import Metrics, TrainingState
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.replay_folder import store_id
from sharpwave.training.saving import Saver
from sharpwave.training.text import quoted, speaker

MAX_SUMMARY_BYTES = 1 << 20
"""No summary.json is larger."""


def run(name: str, recipe: Recipe, out: Path | None, console: Console) -> tuple[Path, Metrics]:
    """Train by ``recipe``, showing and keeping what happens; SIGINT, SIGTERM and SIGHUP end it cleanly.

    Returns:
        the run's folder and its summary.
    Raises:
        ValueError: a setting that does not fit, or a folder that is in use.
        OSError: the folder cannot be written to at all.
        ActorsDiedError: actors died too often; there is a checkpoint.
        NotSavedError: the last checkpoint could not be written.
    """
    check_installed()
    with ExitStack() as stack:
        stack.enter_context(setup.arithmetic(recipe))
        env = setup.environments(recipe, 1 if recipe.actors.count else None)  # where actors play, to know its spaces
        stack.callback(env.close)
        agent = setup.agent(recipe, env)
        # All that the user may have got wrong has been refused by now; only a good run leaves a folder.
        folder = stack.enter_context(new_folder(out, name, recipe.training.seed))
        store, view = setup.memory(recipe, env, agent, folder / DISK)
        stack.callback(let_go, store, speaker(console))
        shown = out or os.path.relpath(folder)
        speaker(console)(f"Run folder: {shown}  (tensorboard --logdir {quoted(shown)})")
        config = Config(name, recipe, secrets.token_hex(16), store_id(folder / DISK))
        return folder, Run(folder, config, env, agent, store, view, TrainingState.fresh(recipe, agent)).train(console)


@dataclass(frozen=True)
class Run:
    """A run that is ready to train: its folder, its settings and what they were made into.

    Attributes:
        view: what the agent learns from.  state: where the run stands.
    """

    folder: Path
    config: Config
    env: setup.Env
    agent: Agent
    store: sw.Store
    view: Any
    state: TrainingState

    def train(self, console: Console) -> Metrics:
        """Train to the end, or until a signal comes; returns the summary.

        Raises:
            OSError: the folder cannot be written to at all.
            ActorsDiedError: they died too often; there is a checkpoint.
            NotSavedError: the last checkpoint could not be written.
        """
        folder, say, state = self.folder, speaker(console), self.state
        name, recipe, run, _ = self.config
        title = f"{name}: {recipe.env.name} on {self.agent.device}, seed {recipe.training.seed}"
        steps = state.progress.steps
        with ExitStack() as stack:
            interrupted = stack.enter_context(caught_signals())
            callbacks: list[Callback] = [HeldOutEvaluations(), StopWhen(interrupted)]

            def add(callback: Callback, what: str) -> None:
                callbacks.append(Lasting(callback, what, say))
                stack.callback(callbacks[-1].close)

            add(JsonLines(folder / METRICS), METRICS)
            add(TensorBoard(folder / TENSORBOARD, steps or None), "TensorBoard's file")
            write_config(folder, self.config)
            add(Display(console, title, recipe.training.steps, recipe.evaluation.stop_reward), "the display")
            save = Saver(folder / CHECKPOINTS, run, recipe, self.agent, self.store, state, say)
            callbacks.append(save)
            training = Training(recipe, self.agent, self.store, self.view, self._experience(say), state, callbacks)
            last = train(training)
        if state.end_reached(recipe) is not None:
            last["final"] = state.held_out.final()
        summary = summarize(folder, self.config, str(self.agent.device), last, say)
        save.finish()
        if training.failed:
            raise ActorsDiedError(
                f"{last['reason']}\nThe run ended with a checkpoint; to go on: "
                f"sharpwave train --resume {quoted(folder)}"
            )
        return summary

    def _experience(self, say: Callable[[str], None]) -> Experience:
        recipe, progress = self.config.recipe, self.state.progress
        if recipe.actors.count:
            return ActorExperience(recipe, self.agent, self.store, progress, say)
        return LocalExperience(self.env, self.agent, self.store, recipe.training.seed, progress)


def let_go(store: sw.Store, say: Callable[[str], None]) -> None:
    """Close the replay memory; what could not be written of it is said, as the run's end is told beside it."""
    try:
        store.close()
    except OSError as error:
        say(str(error))


def check_installed() -> None:
    """See that what a run imports later is there, before it is begun.  Raises: ModuleNotFoundError."""
    for name in ("tensorboard", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"no module named {name!r}", name=name)


def summarize(folder: Path, config: Config, device: str, last: Metrics, say: Callable[[str], None]) -> Metrics:
    """Write a run's summary and draw its curve; returns the summary. What cannot be written is said.

    Args:
        last: the last report, with ``reason``.
    """
    name, recipe = config.name, config.recipe
    summary = {"recipe": name, "env": recipe.env.name, "seed": recipe.training.seed, "device": device, **last}
    del summary["seconds_left"]
    try:
        write_text(folder / SUMMARY, sealed_json(summary))
        draw_curve(
            folder / METRICS, folder / CURVE, f"{name}, seed {recipe.training.seed}", recipe.evaluation.stop_reward
        )
    except (
        OSError,
        ImportError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:  # all that is needed to go on is in the checkpoint
        say(f"{SUMMARY} and {CURVE} could not both be written: {error}")
    return summary


def read_summary(folder: Path) -> Metrics | None:
    """A run's summary; ``None`` if there is none, or one that is damaged."""
    try:
        content = read_regular(folder / SUMMARY, MAX_SUMMARY_BYTES)
        summary: Metrics = figures.summary(json.loads(content))
        if "checksum" in summary and content != sealed_json(summary).encode():
            return None
        return {name: value for name, value in summary.items() if name != "checksum"}
    except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None


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
