"""A run and its output folder: config.json, metrics.jsonl, checkpoints, policies, summary.json and curve.png."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import sharpwave as sw
from sharpwave.agents.protocol import Agent
from sharpwave.training import figures, setup
from sharpwave.training.actor_callbacks import ActorHooks, MakeActorCallback, check_actor_callbacks
from sharpwave.training.actors.experience import ActorExperience
from sharpwave.training.actors.inference import layout_of
from sharpwave.training.callbacks import (
    Callback,
    Guarded,
    HeldOutEvaluations,
    Lasting,
    StopWhen,
    Training,
    check_callbacks,
)
from sharpwave.training.config import Config, write_config
from sharpwave.training.curve import draw_curve
from sharpwave.training.display import Display
from sharpwave.training.event_logs import JsonLines, TensorBoard
from sharpwave.training.experience import Experience, LocalExperience, NoExperience
from sharpwave.training.files import read_regular, sealed_json, write_text
from sharpwave.training.folder import (
    CHECKPOINTS,
    CURVE,
    DISK,
    METRICS,
    SALIENCY,
    SUMMARY,
    TENSORBOARD,
    VIDEOS,
    new_folder,
)
from sharpwave.training.loop import train
from sharpwave.training.offline_data import with_environment
from sharpwave.training.own_parts import check_own_parts
from sharpwave.training.progress import Metrics, TrainingState
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.replay_folder import store_id
from sharpwave.training.saliency import SaliencyVideos, check_saliency
from sharpwave.training.saving import Saver
from sharpwave.training.signals import caught_signals
from sharpwave.training.text import quoted, speaker
from sharpwave.training.tracking import WeightsAndBiases, check_tracking
from sharpwave.training.video import check_videos

MAX_SUMMARY_BYTES = 1 << 20
"""Size limit of summary.json."""


def run(
    name: str,
    recipe: Recipe,
    out: Path | None = None,
    console: Console | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    actor_callbacks: Sequence[MakeActorCallback] = (),
) -> tuple[Path, Metrics]:
    """Train by ``recipe`` in a new run folder; SIGINT, SIGTERM and SIGHUP end the run with a checkpoint.

    Args:
        name: name of the recipe, for titles and the folder.
        out: the run's folder; None: ``runs/<name>-<time>-<seed>``.
        console: where progress is displayed; None: standard output.
        callbacks: hooks in this process; their ``close`` is called.
        actor_callbacks: classes of actor callbacks, or other functions without arguments that make one, called in each
            process that steps environments. With actors they are pickled.
    Returns:
        the run's folder and its summary.
    Raises:
        ValueError: a setting is invalid, or the folder is in use.
        OSError: the folder cannot be written to at all.
        ProcessDiedError: an actor or the evaluator died too often; the run ended with a checkpoint.
        CallbackError: a callback raised; the run ended with a checkpoint.
        NotSavedError: the last checkpoint could not be written.
    """
    check_installed()
    console = console or Console()
    recipe = with_environment(recipe)
    check_tracking(recipe)
    check_callbacks(callbacks)
    check_actor_callbacks(actor_callbacks, recipe.actors.count)
    if actor_callbacks and recipe.actors.count and (recipe.actors.hub or recipe.replay.ray):
        raise ValueError(
            f"{'--hub-listen' if recipe.actors.hub else '--ray'}: actor callbacks are called in processes of this "
            "machine, and all actors are on others; leave one of the two out"
        )
    check_own_parts(recipe)
    with ExitStack() as stack:
        stack.enter_context(setup.arithmetic(recipe))
        only_spaces = bool(recipe.actors.count) or recipe.offline
        env = setup.environments(recipe, 1 if only_spaces else None)
        stack.callback(env.close)
        check_videos(recipe)
        agent = setup.agent(recipe, env)
        check_saliency(recipe, agent)
        if recipe.actors.central:
            layout_of(agent)  # another agent is refused here
        # The settings are valid by now: a run that is refused leaves no folder.
        folder = stack.enter_context(new_folder(out, name, recipe.training.seed))
        store, view = setup.memory(recipe, env, agent, folder / DISK)
        stack.callback(let_go, store, speaker(console))
        shown = out or os.path.relpath(folder)
        speaker(console)(f"Run folder: {shown}  (tensorboard --logdir {quoted(shown)})")
        config = Config(name, recipe, secrets.token_hex(16), store_id(folder / DISK))
        state = TrainingState.fresh(recipe, agent)
        made = Run(folder, config, env, agent, store, view, state, tuple(callbacks), tuple(actor_callbacks))
        return folder, made.train(console)


@dataclass(frozen=True)
class Run:
    """Run that is ready to train: its folder, its settings and the parts made from them.

    Attributes:
        view: the view of ``store`` that the agent learns from.
        state: progress, scores and evaluations.
        callbacks, actor_callbacks: as for ``run``.
    """

    folder: Path
    config: Config
    env: setup.Env
    agent: Agent
    store: sw.Store | sw.Cluster
    view: Any
    state: TrainingState
    callbacks: tuple[Callback, ...] = ()
    actor_callbacks: tuple[MakeActorCallback, ...] = ()

    def train(self, console: Console) -> Metrics:
        """Train until the run ends or a signal arrives; return the summary.

        Raises:
            OSError: the folder cannot be written to at all.
            ProcessDiedError: an actor or the evaluator died too often; the run ended with a checkpoint.
            CallbackError: a callback raised; the run ended with a checkpoint.
            NotSavedError: the last checkpoint could not be written.
        """
        folder, say, state = self.folder, speaker(console), self.state
        name, recipe, run, _ = self.config
        title = f"{name}: {recipe.env.name} on {self.agent.device}, seed {recipe.training.seed}"
        say(f"Networks compute in {self.agent.precision} on {self.agent.device}")
        steps = state.progress.steps
        if not state.progress.will_learn and state.end_reached(recipe) is None:
            settings = recipe.training
            say(
                f"This run will make no update: it ends after {settings.steps:,} steps (--steps), and learning begins "
                f"after {settings.warmup_steps:,} (--warmup-steps), then once in {settings.update_every:,} "
                "(--update-every)"
            )
        with ExitStack() as stack:
            interrupted = stack.enter_context(caught_signals())
            callbacks: list[Callback] = []
            evaluations = HeldOutEvaluations(folder / VIDEOS, say, interrupted)
            saliency = SaliencyVideos(folder / SALIENCY, recipe.evaluation.saliency_every, say=say)
            for own in (evaluations, saliency, StopWhen(interrupted), *self.callbacks):
                callbacks.append(Guarded(own))
                stack.callback(callbacks[-1].close)

            def add(callback: Callback, what: str) -> None:
                callbacks.append(Lasting(callback, what, say))
                stack.callback(callbacks[-1].close)

            add(JsonLines(folder / METRICS), METRICS)
            add(TensorBoard(folder / TENSORBOARD, steps or None), "TensorBoard's file")
            if recipe.training.track:
                add(WeightsAndBiases(folder, self.config), "Weights & Biases' log")
            write_config(folder, self.config)
            display = Display(
                console, title, recipe.training.steps, recipe.evaluation.stop_reward, offline=recipe.offline
            )
            add(display, "the display")
            save = Saver(folder / CHECKPOINTS, run, recipe, self.agent, self.store, self.view, state, say)
            callbacks.append(save)
            training = Training(recipe, self.agent, self.store, self.view, self._experience(say), state, callbacks)
            last = train(training)
        ended = state.end_reached(recipe)
        if ended is not None:
            last["final"] = state.held_out.final()
        summary = summarize(folder, self.config, self.agent, last, say)
        save.finish()
        if training.error is not None:
            advice = f"The run ended with a checkpoint; to resume it: sharpwave train --resume {quoted(folder)}"
            if ended is not None:
                advice = (
                    f"The run had reached its end, {ended}, and ended with a checkpoint: nothing is left to resume. To "
                    f"play its last policy: sharpwave eval {quoted(folder)} --checkpoint last"
                )
            raise type(training.error)(f"{training.error}\n{advice}") from training.error.__cause__
        return summary

    def _experience(self, say: Callable[[str], None]) -> Experience:
        recipe, progress = self.config.recipe, self.state.progress
        if recipe.offline:
            return NoExperience()
        if recipe.actors.count:
            return ActorExperience(recipe, self.agent, self.store, self.view, progress, say, self.actor_callbacks)
        hooks = ActorHooks(self.actor_callbacks)
        return LocalExperience(self.env, self.agent, self.store, recipe.training.seed, progress, hooks)


def let_go(store: sw.Store | sw.Cluster, say: Callable[[str], None]) -> None:
    """Close the replay memory; report an error instead of raising it, which would hide how the run ended."""
    try:
        store.close()
    except OSError as error:
        say(str(error))


def check_installed() -> None:
    """Check before a run begins that the packages it imports later are installed.  Raises: ModuleNotFoundError."""
    for name in ("tensorboard", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"no module named {name!r}", name=name)


def summarize(folder: Path, config: Config, agent: Agent, last: Metrics, say: Callable[[str], None]) -> Metrics:
    """Write a run's summary and draw its curve; return the summary. A failure to write is reported, not raised.

    Args:
        last: the last report, with ``reason``.
    """
    name, recipe = config.name, config.recipe
    machine = {"device": str(agent.device), "precision": agent.precision}
    summary = {"recipe": name, "env": recipe.env.name, "seed": recipe.training.seed, **machine, **last}
    if recipe.offline:
        summary["data"] = recipe.agent.data
    del summary["seconds_left"]
    try:
        write_text(folder / SUMMARY, sealed_json(summary))
        draw_curve(
            folder / METRICS,
            folder / CURVE,
            f"{name}, seed {recipe.training.seed}",
            recipe.evaluation.stop_reward,
            "updates" if recipe.offline else "environment steps",
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
    ) as error:  # neither is needed to resume
        say(f"{SUMMARY} and {CURVE} could not both be written: {error}")
    return summary


def read_summary(folder: Path) -> Metrics | None:
    """Read a run's summary; None: it is missing or damaged."""
    try:
        content = read_regular(folder / SUMMARY, MAX_SUMMARY_BYTES)
        summary: Metrics = figures.summary(json.loads(content))
        if "checksum" in summary and content != sealed_json(summary).encode():
            return None
        return {name: value for name, value in summary.items() if name != "checksum"}
    except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None
