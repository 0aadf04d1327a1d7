"""A recipe trained from several seeds, each in a process of its own: ``sharpwave.train_seeds``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import traceback
from collections import deque
from collections.abc import Iterable
from contextlib import closing
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from rich.console import Console

from sharpwave.configuration import changed, is_whole, leaves
from sharpwave.escaping import printable
from sharpwave.serve import wire
from sharpwave.serve.supervisor import follow_parent, spawned
from sharpwave.showing import table, titled
from sharpwave.training import folder as files
from sharpwave.training import setup
from sharpwave.training.atomic_files import write_bytes
from sharpwave.training.callbacks import check_sendable
from sharpwave.training.checkpoints import clear_begun
from sharpwave.training.front import check_guarded, chosen_recipe
from sharpwave.training.interquartile import interquartile_mean, interval
from sharpwave.training.policies import Policy
from sharpwave.training.recipes.recipe import OwnEnvironment, Recipe, resumable
from sharpwave.training.recipes.suited import SHARES
from sharpwave.training.results import TrainingRun
from sharpwave.training.run import resume, run
from sharpwave.training.scores import EPISODES, EPSILON, Purpose, held_out_seed, lanes_for, play

SCORES = "scores.json"
"""File in the folder of all seeds: the held-out scores of each run that has ended, by seed."""
ANSWER = 1
"""Kind of the frame by which a run's process says its outcome."""
WITHOUT_EFFECT = frozenset(("report_every", "track", "checkpoint_every", "keep_every", "threads", "device"))
"""Settings by which a run that has ended does not go on."""
STOP_S = 60.0
"""Time that a process may take to write its checkpoint when all are stopped."""


class SeedRuns:
    """Runs of a recipe from several seeds that have ended.

    Attributes:
        runs: by seed.
        scores: by seed, held-out scores of each run's best policy, of episodes that did not choose it.
    """

    def __init__(self, runs: dict[int, TrainingRun], scores: dict[int, list[float]]) -> None:
        self.runs, self.scores = runs, scores

    @property
    def means(self) -> dict[int, float]:
        """Mean held-out score of each run, by seed."""
        return {seed: sum(scores) / len(scores) for seed, scores in self.scores.items()}

    @property
    def iqm(self) -> float:
        """Interquartile mean of ``means``."""
        return interquartile_mean([*self.means.values()])

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of ``iqm``, by a stratified bootstrap of the seeds, as rliable has it."""
        return interval([[*self.means.values()]])

    def __repr__(self) -> str:
        low, high = self.interval
        means = ", ".join(f"{seed}: {mean:,.2f}" for seed, mean in self.means.items())
        return f"<SeedRuns: IQM {self.iqm:,.2f} ({low:,.2f} to {high:,.2f}) of {len(self.runs)} seeds; {means}>"

    def _repr_html_(self) -> str:
        low, high = self.interval
        rows = [
            (seed, f"{mean:,.2f}", f"{min(self.scores[seed]):,.2f}", printable(str(self.runs[seed].folder)))
            for seed, mean in self.means.items()
        ]
        title = f"IQM {self.iqm:,.2f}, 95 % interval {low:,.2f} to {high:,.2f}, of {len(rows)} seeds"
        return titled(title, table(("seed", "held-out mean", "lowest", "folder"), rows))


def train_seeds(
    env: Any = None,
    agent: Any = None,
    *,
    seeds: int | Iterable[int] = 5,
    processes: int = 2,
    recipe: str | Recipe | None = None,
    steps: int | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **settings: Any,
) -> SeedRuns:
    """Train from several seeds, each in a process of its own, and measure each run's policy on held-out episodes.

    The folder ``out`` has a run's folder for each seed. A call that is repeated keeps the runs that have ended, goes on
    with those that have not, and trains seeds that are new; with more ``steps`` it goes on with all.

    Args:
        env, agent, recipe, steps, settings: as for ``sharpwave.train``; an environment only by its name, or a function
            at the top level of a module. Without ``threads`` each run has one thread of torch.
        seeds: the first so many seeds, or a list of them.
        processes: runs at once.
        out: the folder; None: ``runs/<name>-seeds``.
        progress: print a line for each run that has ended.
    Raises:
        ValueError: as ``sharpwave.train``; an environment that processes cannot make; or ``out`` has runs of other
            settings, or of more steps.
        RuntimeError: runs failed, of whose errors it tells; the others have ended, and a repeated call keeps them.
    """
    if "seed" in settings:
        raise ValueError(f"seed: got {settings['seed']!r}, expected none: seeds= says which")
    wanted = _wanted(seeds)
    if not wanted or len({*wanted}) != len(wanted) or not is_whole(processes) or processes < 1:
        raise ValueError(f"got seeds={seeds!r} and processes={processes}, expected seeds that differ, and a process")
    settings |= {} if steps is None else {"steps": steps}
    name, base, _ = chosen_recipe(env, agent, recipe, {"threads": 1} | settings)
    check_guarded(base, starts=True)
    if base.actors.count or base.evaluation.evaluate_beside:
        raise ValueError("train_seeds: got --actors or --evaluate-beside, expected neither: each seed has one process")
    if isinstance(base.env, OwnEnvironment):
        if base.env.given.factory is None:
            raise ValueError(
                f"env: got an environment, {base.env.name}, expected a name or a function that makes it: each seed has "
                "a process of its own"
            )
        check_sendable("env", base.env.given.factory)
    folder = Path(out).expanduser() if out is not None else Path("runs") / f"{name}-seeds"
    if (folder / files.CONFIG).exists() or (folder.exists() and not folder.is_dir()):
        what = "the folder of a run" if folder.is_dir() else "a file"
        raise ValueError(f"out: {str(folder)!r} is {what}, expected a folder for the runs of all seeds")
    if recipe is None:
        whole = dataclasses.is_dataclass(agent) and not isinstance(agent, type)  # then its settings are asked for
        base = _as_begun(base, [folder / str(seed) for seed in wanted], {*base.paths(settings)}, whole)
    recipes = {seed: base.override(seed=seed) for seed in wanted}
    for seed, one in recipes.items():
        _changes(folder / str(seed), one)  # raises before anything is trained
    limit = base.training.steps + base.env.num_envs  # the last step of all environments may go beyond base's
    further = {seed: reached for seed in wanted if (reached := _reached(folder / str(seed))) >= limit}
    if further:
        said = ", ".join(f"seed {seed} has {reached:,}" for seed, reached in further.items())
        raise ValueError(
            f"steps: got {base.training.steps:,}, expected at least those of the runs in {str(folder)!r}: {said}; "
            "scores of runs of different lengths cannot be combined. Give more steps, or another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(quiet=not progress)
    scores = _SeedProcesses(name, recipes, folder.absolute(), console).run(processes)
    runs = {seed: TrainingRun.open(folder.absolute() / str(seed)) for seed in wanted}
    return SeedRuns(runs, {seed: scores[seed] for seed in wanted})


def _wanted(seeds: Any) -> list[int]:
    """Return the seeds that are asked for: the first so many, or a list of integers.  Raises: ValueError."""
    if is_whole(seeds):
        return [*range(int(seeds))]
    found = [*seeds] if isinstance(seeds, Iterable) else None
    if found is None or not all(map(is_whole, found)):
        raise ValueError(f"seeds: got {seeds!r}, expected a number of seeds, or a list of integers")
    return [int(seed) for seed in found]


class _SeedProcesses:
    """Processes that train a seed each, a few at a time."""

    def __init__(self, name: str, recipes: dict[int, Recipe], folder: Path, console: Console) -> None:
        self._name, self._recipes, self._folder, self._console = name, recipes, folder, console
        self._scores = _read_scores(folder / SCORES)

    def run(self, processes: int) -> dict[int, list[float]]:
        """Train the seeds that are missing; return the scores by seed.  Raises: RuntimeError: runs failed."""
        waiting = deque(seed for seed in self._recipes if not self._kept(seed))
        if any([self._scores.pop(seed, None) for seed in waiting]):  # of shorter runs
            self._write_scores()
        going: dict[socket.socket, tuple[int, Any]] = {}
        failed: dict[int, str] = {}
        try:
            while waiting or going:
                while waiting and len(going) < processes:
                    seed = waiting.popleft()
                    recipe = self._recipes[seed]
                    own = setup.own_parts(recipe)
                    process, answers = spawned(
                        _train, f"seed {seed}", self._name, recipe, own, self._folder / str(seed)
                    )
                    going[answers] = (seed, process)
                ready: Any = wait([*going])
                for answers in ready:
                    seed, process = going.pop(answers)
                    failure = self._outcome(seed, answers)
                    process.join()
                    answers.close()
                    if failure:
                        failed[seed] = failure
        finally:
            for _, process in going.values():
                process.terminate()  # its run ends with a checkpoint
            for answers, (_, process) in going.items():
                process.join(STOP_S)
                process.kill()
                answers.close()
        if failed:
            said = "\n".join(f"seed {seed}: {failure}" for seed, failure in failed.items())
            raise RuntimeError(
                f"{len(failed)} of {len(self._recipes)} runs failed, and are tried again by the next call:\n{said}"
            )
        return self._scores

    def _kept(self, seed: int) -> bool:
        """Whether a run has ended, and by settings that differ from those of now in nothing by which it would go on.

        Of a run that was resumed by itself meanwhile, the scores are not those of its end.
        """
        run = self._folder / str(seed)
        changes, scores = _changes(run, self._recipes[seed]), self._scores.get(seed)
        if changes is None or scores is None or not {*changes} <= WITHOUT_EFFECT:
            return False
        final = (files.read_summary(run) or {}).get("final", {})  # a run that goes on, or was interrupted, has none
        return final is None or final.get("scores") == scores

    def _outcome(self, seed: int, answers: socket.socket) -> str:
        """Take a run's scores; return why it failed, or ""."""
        frame = None
        with contextlib.suppress(OSError):
            frame = wire.receive(answers)
        if frame is None:
            return "its process ended without an answer"
        if "failure" in frame.head:
            return str(frame.head["failure"])
        self._scores[seed] = frame.parts["scores"].tolist()
        self._write_scores()
        mean = sum(self._scores[seed]) / len(self._scores[seed])
        self._console.print(f"seed {seed}: {frame.head['steps']:,} steps, held-out mean {mean:,.2f}", highlight=False)
        return ""

    def _write_scores(self) -> None:
        text = json.dumps({str(seed): scores for seed, scores in sorted(self._scores.items())})
        write_bytes(self._folder / SCORES, text.encode())


def _read_scores(path: Path) -> dict[int, list[float]]:
    try:
        return {int(seed): [float(one) for one in scores] for seed, scores in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{str(path)!r} is not a file of scores: {error}; remove it to measure all policies again"
        ) from error


def _as_begun(base: Recipe, folders: list[Path], asked: set[tuple[str, ...]], whole: bool) -> Recipe:
    """Return a recipe with the settings that follow a run's length as the runs in ``folders`` began with them.

    Args:
        asked: settings by path that were given.  whole: all of the agent's were.
    """
    begun = next((one for one in folders if (one / files.CONFIG).is_file()), None)
    if begun is None:
        return base
    before = {one.path: one.value for one in leaves(files.read_config(begun, trust=True).recipe)}
    kept = [one.path for one in leaves(base) if one.key in SHARES and one.path in before and one.path not in asked]
    return changed(base, {path: before[path] for path in kept if not (whole and path[0] == "agent")})


def _reached(folder: Path) -> int:
    """Return how many steps the run in a folder has made, as far as they are saved; 0: there is none."""
    found = [int(path.name.split("-")[0]) for path in files.complete_checkpoints(folder / files.CHECKPOINTS)]
    return max([*found, int((files.read_summary(folder) or {}).get("steps", 0))])


def _changes(folder: Path, recipe: Recipe) -> dict[str, Any] | None:
    """Return the settings in which a recipe goes beyond the run in its folder; None: there is no run.

    Raises: ValueError: the run has other settings, which a resume cannot change.
    """
    if not (folder / files.CONFIG).is_file():
        return None
    begun = files.read_config(folder, trust=True).recipe
    if begun.agent.kind != recipe.agent.kind:
        raise ValueError(
            f"out: {str(folder)!r} is a run of {begun.agent.kind}, but this one is of {recipe.agent.kind}; give "
            "another folder"
        )
    before = {leaf.key: leaf for leaf in leaves(begun)}
    now = {leaf.key: leaf for leaf in leaves(recipe)}
    other = [
        key for key in {**before, **now} if key not in before or key not in now or before[key].value != now[key].value
    ]
    fixed = [key for key in other if key not in now or now[key].name not in resumable()]
    if fixed:
        values = [
            f"{key}={one[key].value!r}" if key in one else f"no {key}" for key in fixed[:1] for one in (before, now)
        ]
        raise ValueError(
            f"out: {str(folder)!r} is a run with {values[0]}, but this one has {values[1]}; give another folder"
        )
    return {now[key].name: now[key].value for key in other}


def _train(parent: socket.socket, name: str, recipe: Recipe, own: setup.OwnParts, folder: Path) -> None:
    """Train a seed, or go on with it, and send its scores. The target of a process."""
    import numpy as np

    follow_parent()
    try:
        own.register()
        console = Console(quiet=True)
        changes = _changes(folder, recipe)
        if changes is not None and not files.complete_checkpoints(folder / files.CHECKPOINTS):
            clear_begun(folder)
            changes = None
        if changes is None:
            _, summary = run(name, recipe, folder, console)
        else:
            given = recipe.env.given if isinstance(recipe.env, OwnEnvironment) else None
            env = None if given is None else given.factory
            _, summary = resume(folder, changes, console, env=env, trust=True)
        if summary["reason"].startswith("interrupted"):
            raise InterruptedError(summary["reason"])
        final = summary.get("final")
        scores = _measured(recipe, folder) if final is None else final["scores"]
        wire.send(parent, ANSWER, 0, {"steps": summary["steps"]}, {"scores": np.array(scores)})
    except Exception as error:
        failure = f"{error}\n{traceback.format_exc(limit=-4)}"
        with contextlib.suppress(OSError):  # the parent has ended
            wire.send(parent, ANSWER, 0, {"failure": failure})


def _measured(recipe: Recipe, folder: Path) -> list[float]:
    """Return scores of held-out episodes by the policy of a run that made no evaluation."""
    policy = Policy.load(folder)
    seed = held_out_seed(recipe.training.seed, policy.steps, Purpose.REPORTING)
    with closing(recipe.env.make(lanes_for(EPISODES))) as env, setup.arithmetic(recipe):
        return play(policy.agent, env, EPISODES, EPSILON, seed)
