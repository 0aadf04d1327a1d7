"""A run: training by a recipe in a new folder, or resumed in its own from its newest undamaged checkpoint."""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import sharpwave as sw
from sharpwave.agents.demonstrations import DEMONSTRATIONS, DemonstratedReplay
from sharpwave.agents.episode_outcomes import complete
from sharpwave.agents.protocol import Agent
from sharpwave.escaping import printable, quoted
from sharpwave.serve.supervisor import ProcessDiedError
from sharpwave.showing import duration_text
from sharpwave.training import beside_data, setup
from sharpwave.training import folder as files
from sharpwave.training.actors.inference import layout_of
from sharpwave.training.callbacks import (
    ActorHooks,
    Callback,
    CallbackError,
    Experience,
    Guarded,
    Lasting,
    MakeActorCallback,
    StopWhen,
    Training,
    caught_signals,
    check_actor_callbacks,
    check_callbacks,
)
from sharpwave.training.checkpoints import NO_STATE, Saver, keep_policy, load_best, load_checkpoint
from sharpwave.training.evaluation import HeldOutEvaluations
from sharpwave.training.experience import ActorExperience, LaterExperience, LocalExperience, NoExperience
from sharpwave.training.logs import Display, JsonLines, TensorBoard, WeightsAndBiases, check_tracking
from sharpwave.training.loop import train
from sharpwave.training.offline_data import learned_from, make_room, with_environment
from sharpwave.training.own_environments import check_given, given_again
from sharpwave.training.policy_files import describe
from sharpwave.training.progress import RECENT, Metrics, TrainingState
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.results import TrainingRun, draw_curve, origin_text
from sharpwave.training.setup import check_own_parts
from sharpwave.training.video import SaliencyVideos, check_videos

Say = Callable[[str], None]


def run(
    name: str,
    recipe: Recipe,
    out: Path | None = None,
    console: Console | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    actor_callbacks: Sequence[MakeActorCallback] = (),
) -> TrainingRun:
    """Train by ``recipe`` in a new run folder; SIGINT, SIGTERM and SIGHUP end the run with a checkpoint.

    Args:
        name: name of the recipe, for titles and the folder.
        out: the run's folder; None: ``runs/<name>-<time>-<seed>``.
        console: where progress is displayed; None: standard output.
        callbacks: hooks in this process; their ``close`` is called.
        actor_callbacks: functions without arguments, such as classes, that make an actor callback; called in each
            process
            that steps environments. With actors they are pickled.
    Returns:
        the run: ``folder, summary = run(...)``.
    Raises:
        ValueError: a setting is invalid, or the folder is in use.
        OSError: the folder cannot be written to at all.
        ProcessDiedError, CallbackError: an actor or the evaluator died too often, or a callback raised; the run ended
            with
            a checkpoint.
        NotSavedError: the last checkpoint could not be written.
    """
    recipe, console = with_environment(recipe), console or Console()
    with _parts(recipe, callbacks, actor_callbacks, console) as parts:
        # The settings are valid by now: a run that is refused leaves no folder.
        folder = parts.stack.enter_context(files.new_folder(out, name, recipe.training.seed))
        store, view = setup.memory(recipe, parts.env, parts.agent, folder / files.DISK)
        parts.stack.callback(_close, store, parts.say)
        shown = out or os.path.relpath(folder)
        parts.say(f"Run folder: {shown}  (tensorboard --logdir {quoted(shown)})")
        origin = learned_from(store, view)
        if origin is not None:
            parts.say(f"Learns from {origin_text(origin)}")
        config = files.Config(name, recipe, secrets.token_hex(16), files.store_id(folder / files.DISK), origin)
        return parts.train(folder, config, store, view, TrainingState.fresh(recipe, parts.agent))


def resume(
    folder: Path,
    changes: dict[str, Any],
    console: Console | None = None,
    *,
    env: Any = None,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
    actor_callbacks: Sequence[MakeActorCallback] = (),
) -> TrainingRun:
    """Resume a run from its newest undamaged checkpoint.

    Training after that checkpoint is discarded and repeated; without actors it repeats exactly.

    Args:
        changes: new values of settings of ``resumable``, by option name.
        env: the environment of a run that was given an object or a function, again.
        trust: allow importing the module that the environment's name refers to.
        console, callbacks, actor_callbacks: as for ``run``; a run does not save them.
    Returns:
        the run, even if it had already ended.
    Raises:
        ValueError: the folder holds no run or no usable checkpoint, or is in use.
        NewerVersionError: a later release wrote the run.
        OSError, ProcessDiedError, CallbackError, NotSavedError: as ``run``.
    """
    files.checkpoints(folder)  # raises where there is no run or no checkpoint
    folder, console = folder.absolute(), console or Console()
    config = files.read_config(folder, trust=trust or env is not None)  # then the environment's module is not imported
    with files.locked(folder):
        recipe = config.recipe.override(**changes)
        if env is not None:
            recipe = given_again(recipe, env)
        config = config._replace(recipe=recipe)
        with _parts(recipe, callbacks, actor_callbacks, console) as parts:
            saved = _newest_whole(folder, config, parts)
            if saved.memory is None:
                parts.say(
                    f"{folder} has ended already, by {saved.ended}; to continue, give more --steps, --max-minutes or "
                    "--patience, or another --stop-reward"
                )
                summary = files.read_summary(folder)
                if summary is None:  # it was killed before it wrote them
                    last = {**saved.report, "reason": saved.ended, "final": saved.state.held_out.final()}
                    summary = _summarize(folder, config, parts.agent, last, parts.say)
                elif not (folder / files.CURVE).exists():
                    _draw(folder, config, parts.say)
                return TrainingRun(folder, summary)
            store, view, replay_id = saved.memory
            parts.stack.callback(_close, store, parts.say)
            make_room(recipe, store, saved.state.progress.steps)
            _tell_resumed(folder, recipe, saved, store, parts.say)
            origin = learned_from(store, view)
            if origin != config.learned_from and origin is not None and config.learned_from is not None:
                before, now = origin_text(config.learned_from), origin_text(origin)
                parts.say(f"The data have changed since they were read: they were {before}; now they are {now}")
            # The state of the checkpoint: files about later training go before it is made again.
            (folder / files.SUMMARY).unlink(missing_ok=True)
            progress, held_out = saved.state.progress, saved.state.held_out
            last = {"steps": progress.steps, **parts.about}
            keep_policy(folder / files.LAST, parts.agent.policy_tensors(), last, parts.say)
            if held_out.best is None:
                (folder / files.BEST).unlink(missing_ok=True)
            else:
                best = {**held_out.best.figures(), **parts.about}
                keep_policy(folder / files.BEST, held_out.best_weights, best, parts.say)
            dropped = files.drop_metrics(folder / files.METRICS, progress.steps)
            if dropped:
                parts.say(
                    f"Dropped {dropped:,} lines about later steps from {files.METRICS}; they will be written again"
                )
            return parts.train(
                folder,
                config._replace(replay=replay_id, learned_from=origin or config.learned_from),
                store,
                view,
                saved.state,
            )


@dataclass(frozen=True)
class RunParts:
    """Parts of a run that its settings alone decide; ``stack`` closes them."""

    stack: ExitStack
    recipe: Recipe
    env: setup.Env
    agent: Agent
    callbacks: Sequence[Callback]
    actor_callbacks: Sequence[MakeActorCallback]
    console: Console
    say: Say

    @property
    def about(self) -> dict[str, Any]:
        """Description of the run's policies, which their files hold."""
        return describe(self.recipe, self.env)

    def train(
        self, folder: Path, config: files.Config, store: sw.Store | sw.Cluster, view: Any, state: TrainingState
    ) -> TrainingRun:
        """Train until the run ends or a signal arrives.  Raises: as ``run``."""
        recipe, agent, say, settings = self.recipe, self.agent, self.say, self.recipe.training
        title = f"{config.name}: {recipe.env.name} on {agent.device}, seed {settings.seed}"
        say(f"Networks compute in {agent.precision} on {agent.device}")
        if not state.progress.will_learn and state.end_reached(recipe) is None:
            say(
                f"This run will make no update: it ends after {settings.steps:,} steps (--steps), and learning begins "
                f"after {settings.warmup_steps:,} (--warmup-steps), then {recipe.update_ratio_text}"
            )
        with ExitStack() as stack:
            interrupted = stack.enter_context(caught_signals())
            files.write_config(folder, config)  # first: by it the folder's other files are the run's
            callbacks: list[Any] = []

            def add(callback: Any) -> None:
                callbacks.append(callback)
                stack.callback(callback.close)

            evaluations = HeldOutEvaluations(folder / files.VIDEOS, say, interrupted)
            saliency = SaliencyVideos(folder / files.SALIENCY, recipe.evaluation.saliency_every, say=say)
            for own in (evaluations, saliency, StopWhen(interrupted), *self.callbacks):
                add(Guarded(own))
            add(Lasting(JsonLines(folder / files.METRICS), files.METRICS, say))
            board = TensorBoard(folder / files.TENSORBOARD, state.progress.steps or None)
            add(Lasting(board, "TensorBoard's file", say))
            if settings.track:
                add(Lasting(WeightsAndBiases(folder, config), "Weights & Biases' log", say))
            goal = recipe.evaluation.stop_reward
            display = Display(self.console, title, settings.steps, goal, offline=recipe.offline)
            add(Lasting(display, "the display", say))
            save = Saver(folder, config.run, say, self.about)
            add(save)  # last: the others sync their files before a checkpoint refers to them
            training = Training(recipe, agent, store, view, self._experience(store, view, state), state, callbacks)
            last = train(training)
        ended = state.end_reached(recipe)
        every, least = recipe.evaluation.evaluate_every, recipe.evaluation.evaluate_from
        if ended is not None and every and state.progress.steps >= every and not state.held_out.count:
            reach = "" if least is None else f" with a mean of {least:g} (--evaluate-from)"
            say(
                f"This run made no held-out evaluation: the first is made once {RECENT} training episodes have ended"
                f"{reach}, and {state.scores.count:,} have"
            )
        if ended is not None:
            last["final"] = state.held_out.final()
            if recipe.offline and state.held_out.count:
                last[beside_data.KEY] = self._beside_data(folder, config, store, state, last["final"])
        summary = _summarize(folder, config, agent, last, say)
        save.finish()
        if training.error is not None:
            advice = f"The run ended with a checkpoint; to resume it: sharpwave train --resume {quoted(folder)}"
            if ended is not None:
                advice = (
                    f"The run had reached its end, {ended}, and ended with a checkpoint: nothing is left to resume. To "
                    f"play its last policy: sharpwave eval {quoted(folder)} --checkpoint last"
                )
            if not isinstance(training.error, (CallbackError, ProcessDiedError)):  # an environment's, as it is
                training.error.add_note(advice)
                raise training.error
            raise type(training.error)(f"{training.error}\n{advice}") from training.error.__cause__
        return TrainingRun(folder, summary)

    def _beside_data(
        self, folder: Path, config: files.Config, store: sw.Store | sw.Cluster, state: TrainingState, final: Any
    ) -> dict[str, Any]:
        """Return how the last policy compares with the data; warn where it is below."""
        scores = state.held_out.last_scores(self.agent.policy_tensors(), state.progress.steps, final)
        compared = beside_data.compared(folder, config, beside_data.behavior_of(store), scores)
        for text in beside_data.warnings_of(compared):
            self.say(text)
        return compared

    def _experience(self, store: sw.Store | sw.Cluster, view: Any, state: TrainingState) -> Experience:
        recipe, agent, progress = self.recipe, self.agent, state.progress
        hooks = ActorHooks(self.actor_callbacks)
        if recipe.offline:
            after = getattr(recipe.agent, "online_after", None)
            if after is None:
                return NoExperience()
            assert isinstance(store, sw.Store)
            playing = LocalExperience(self.env, agent, store, recipe.training.seed, progress, hooks, recipe.env.name)
            return LaterExperience(after, playing, progress, lambda: complete(agent.replay(), store))
        if recipe.actors.count:
            return ActorExperience(recipe, agent, store, view, progress, self.say, tuple(self.actor_callbacks))
        return LocalExperience(self.env, agent, store, recipe.training.seed, progress, hooks, recipe.env.name)


@contextmanager
def _parts(
    recipe: Recipe,
    callbacks: Sequence[Callback],
    actor_callbacks: Sequence[MakeActorCallback],
    console: Console,
) -> Iterator[RunParts]:
    """Check all that can be checked before a run begins, and make its environments and its agent."""
    for package in ("tensorboard", "matplotlib"):  # the run imports them later
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"no module named {package!r}", name=package)
    check_tracking(recipe)
    check_callbacks(callbacks)
    check_actor_callbacks(actor_callbacks, recipe.actors.count)
    if actor_callbacks and recipe.actors.count and (recipe.actors.hub or recipe.replay.ray):
        raise ValueError(
            f"{'--hub-listen' if recipe.actors.hub else '--ray'}: actor callbacks run on this machine, but all "
            "actors are on other machines; leave out the callbacks or that option"
        )
    check_own_parts(recipe)
    check_given(recipe)
    with ExitStack() as stack:
        stack.enter_context(setup.arithmetic(recipe))
        only_spaces = bool(recipe.actors.count) or recipe.offline
        env = recipe.env.make(1 if only_spaces else None)
        stack.callback(env.close)
        agent = setup.agent(recipe, env)
        check_videos(recipe, agent)
        if recipe.actors.central:
            layout_of(agent)  # another agent is refused here

        def say(text: str) -> None:
            console.print(printable(text), soft_wrap=True, highlight=False, markup=False)

        yield RunParts(stack, recipe, env, agent, callbacks, actor_callbacks, console, say)


def _close(store: sw.Store | sw.Cluster, say: Say) -> None:
    """Close the replay memory. An error is reported, not raised: it would hide how the run ended."""
    try:
        store.close()
    except OSError as error:
        say(str(error))


def _summarize(folder: Path, config: files.Config, agent: Agent, last: Metrics, say: Say) -> Metrics:
    """Draw a run's curve, write its summary and return it. A failure to write is reported, not raised.

    The curve comes first: of a run that was killed between the two, the summary is missing, by which a resume knows.
    """
    recipe = config.recipe
    machine = {"device": str(agent.device), "precision": agent.precision}
    summary = {"recipe": config.name, "env": recipe.env.name, "seed": recipe.training.seed, **machine, **last}
    if recipe.offline:
        summary["data"] = recipe.agent.data
    if config.learned_from is not None:
        summary["learned_from"] = config.learned_from
    del summary["seconds_left"]
    _draw(folder, config, say)
    try:
        files.write_summary(folder, summary)
    except OSError as error:
        say(f"{files.SUMMARY} could not be written: {error}")
    return summary


def _draw(folder: Path, config: files.Config, say: Say) -> None:
    try:
        draw_curve(folder, config)
    except (OSError, ImportError, *NO_STATE) as error:
        say(f"{files.CURVE} could not be written: {error}")


# Resuming


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
    memory: tuple[sw.Store | sw.Cluster, Any, str] | None = None


def _newest_whole(folder: Path, config: files.Config, parts: RunParts) -> Saved:
    damaged = []
    for checkpoint in reversed(files.checkpoints(folder)):
        try:
            return _load(folder, checkpoint, config, parts)
        except (ValueError, FileNotFoundError) as error:
            parts.say(f"Checkpoint {checkpoint.name} cannot be used: {error}")
            damaged.append(checkpoint.name)
    raise ValueError(
        f"run {str(folder)!r} cannot be resumed: none of its checkpoints ({', '.join(damaged)}) can be used; "
        "begin a new run"
    )


def _load(folder: Path, checkpoint: Path, config: files.Config, parts: RunParts) -> Saved:
    recipe = config.recipe
    values = load_checkpoint(checkpoint, parts.agent, resume=True)
    try:
        state = TrainingState.from_dict(recipe, parts.agent, values["training"])
        report = files.checked_report(values["report"])
    except NO_STATE as error:
        raise ValueError(f"its figures are not in the form that this release writes ({error!r})") from error
    state.held_out.best_weights = load_best(checkpoint, values)
    if (state.held_out.best is None) != (not state.held_out.best_weights):
        raise ValueError("it holds a best policy without its evaluation, or an evaluation without its policy")
    ended = state.end_reached(recipe)
    if ended is not None:
        return Saved(checkpoint, report, state, ended)
    store, view, replay_id = _memory(folder, checkpoint / files.REPLAY, config, parts)
    if store.recovery is not None and store.recovery.damages:
        store.close()
        raise ValueError(f"its replay memory is damaged: {store.recovery.damages[0]}")
    if (checkpoint / DEMONSTRATIONS).is_dir() and isinstance(view, DemonstratedReplay):
        try:
            view.restore(values["blend"])
        except NO_STATE as error:
            store.close()
            raise ValueError(f"the state of its blend cannot be restored ({error!r})") from error
    return Saved(checkpoint, report, state, None, (store, view, replay_id))


def _memory(
    folder: Path, replay: Path, config: files.Config, parts: RunParts
) -> tuple[sw.Store | sw.Cluster, Any, str]:
    """Open the replay memory of a checkpoint, or make a new one; on disk it replaces the run's previous memory."""
    recipe, saved = config.recipe, replay if replay.is_dir() else None
    if not recipe.replay.disk_limit:
        return *setup.memory(recipe, parts.env, parts.agent, None, saved), ""
    ids = {config.replay, files.store_id(saved) if saved is not None else ""}
    for disk in files.memory_folders(folder, ids):
        try:
            return *setup.memory(recipe, parts.env, parts.agent, disk, saved), files.store_id(disk)
        except FileExistsError as error:
            parts.say(f"The replay memory is written to another folder of the run: {error}")
    raise AssertionError("memory_folders never ends")


def _tell_resumed(folder: Path, recipe: Recipe, saved: Saved, store: sw.Store | sw.Cluster, say: Say) -> None:
    """Report the state that is resumed; without its replay memory a new warm-up begins."""
    progress = saved.state.progress
    say(
        f"Resumed {folder} from checkpoint {saved.checkpoint.name}: {progress.steps:,} steps, "
        f"{progress.updates:,} updates, {saved.state.scores.count:,} episodes, "
        f"{duration_text(progress.minutes * 60)} of training"
    )
    if recipe.actors.count:
        say("All environments begin new episodes; with actors a resumed run does not repeat exactly")
    elif not recipe.offline:
        say("All environments begin new episodes, as they did when the run wrote the checkpoint")
    if (saved.checkpoint / files.REPLAY).is_dir():
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
