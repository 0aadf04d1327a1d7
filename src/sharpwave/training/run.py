"""A run and its folder: config.json, metrics.jsonl, TensorBoard events, checkpoints, summary.json, curve.png."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from sharpwave.training import setup
from sharpwave.training.callbacks import Callback, Checkpoints, Display, JsonLines, Metrics, TensorBoard
from sharpwave.training.checkpoints import save_checkpoint, write_json
from sharpwave.training.curve import draw_curve
from sharpwave.training.loop import train
from sharpwave.training.recipes import Recipe


def run_folder(out: Path | None, name: str, seed: int) -> Path:
    """Make the folder of a new run: ``out``, or ``runs/<name>-<time>-<seed>``.

    Raises:
        ValueError: ``out`` is there already and not empty, or is a file.
    """
    folder = out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{seed}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"--out: {str(folder)!r} exists and is not empty; a run writes into a folder of its own. "
            "Give another name or remove it"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out: {str(folder)!r} cannot be made: {error}") from error
    return folder


def read_recipe(folder: Path) -> Recipe:
    """The recipe that a run was made with.

    Raises:
        ValueError: the folder has no config.json, or one that is damaged.
    """
    path = folder / "config.json"
    try:
        return Recipe.from_dict(json.loads(path.read_text())["settings"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{str(path)!r} is not the config of a run: {error}") from error


def run(name: str, recipe: Recipe, out: Path | None, console: Console) -> tuple[Path, Metrics]:
    """Train by ``recipe``, showing and keeping what happens; SIGINT and SIGTERM end it cleanly.

    Returns:
        the run's folder and its summary.
    Raises:
        ValueError: a setting that does not fit, or a folder that is in use.
    """
    with ExitStack() as stack:
        env = setup.environments(recipe)
        stack.callback(env.close)
        agent = setup.agent(recipe, env)
        store, replay = setup.memory(recipe, env)
        stack.callback(store.close)
        # All that the user may have got wrong has been refused by now; only a good run leaves a folder.
        folder = run_folder(out, name, recipe.seed)
        write_json(folder / "config.json", {"recipe": name, "settings": recipe.to_dict()})
        console.print(f"Run folder: {folder}  (tensorboard --logdir {folder})", soft_wrap=True, highlight=False)
        interrupted = stack.enter_context(caught_signals())

        def save(metrics: Metrics) -> None:
            save_checkpoint(folder / "checkpoints", agent, metrics)

        callbacks: list[Callback] = [
            JsonLines(folder / "metrics.jsonl"),
            TensorBoard(folder / "tensorboard"),
            Checkpoints(save, recipe.checkpoint_every),
            Display(
                console, f"{name}: {recipe.env} on {agent.device}, seed {recipe.seed}", recipe.steps, recipe.stop_reward
            ),
        ]
        for callback in callbacks:
            stack.callback(callback.close)
        last = train(recipe, env, agent, store, replay, callbacks, interrupted)
        save(last)
    summary = {"recipe": name, "env": recipe.env, "seed": recipe.seed, "device": str(agent.device), **last}
    del summary["seconds_left"]
    write_json(folder / "summary.json", summary)
    draw_curve(folder / "metrics.jsonl", folder / "curve.png", f"{name}, seed {recipe.seed}", recipe.stop_reward)
    return folder, summary


@contextmanager
def caught_signals() -> Iterator[Callable[[], str | None]]:
    """While inside, SIGINT and SIGTERM are noted instead of ending the process; a second SIGINT ends it as ever.

    Yields:
        a function that says which signal came, or None.
    """
    came: list[str] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(signal.Signals(number).name)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: f"interrupted by {came[0]}" if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.stdout.flush()
