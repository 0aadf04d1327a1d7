"""Speed of training Pong, from a textbook's DQN to recipe pong-dqn, one step of engineering at a time.

    python benchmarks/ladder.py [--rungs baseline,n-envs,full] [--seeds 0 1 2] [--rounds 3] [--steps 1000]
        [--warmup 5000] [--threads 2] [--finished FOLDER] [--out FOLDER] [--fresh]

Printed are, for each step: speed, where the time goes, memory, and the time to solve Pong. Every rung (``textbook.py``)
is measured in slices, each in a process of its own, in turn, so that noise affects all of them.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import runner
import textbook
import torch
import training_runs as solved
from rich.console import Console
from rich.text import Text
from runner import RESULTS, say, write
from textbook import CAPACITY, RUNGS, TEXTBOOK, Rung, chosen
from training_runs import BOUND, MEASURES, Results, begin, finished_runs

from sharpwave.bench.trainer import PARTS, Clock, train_on_clock
from sharpwave.showing import byte_text, number_text
from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.recipes import load_recipe

FILE = "ladder.json"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
TIME_LIMIT_S = 3600.0
"""Time limit of a slice, in seconds."""
SLICE = "--slice"
SETTLE_TURNS = 10
"""Turns with updates between the warm-up and the start of the clock: first calls compile and allocate."""

Slice = dict[str, Any]


# a slice, in a process of its own


class Window:
    """Turns of a loop: those that fill the memory, SETTLE_TURNS more, and the measured ones.

    Args:
        warmup, steps: environment steps, rounded up to whole turns.
        per_turn: environment steps of a turn.
    """

    def __init__(self, warmup: int, steps: int, per_turn: int) -> None:
        self.warm = math.ceil(warmup / per_turn)
        self.begin = self.warm + SETTLE_TURNS
        self.end = self.begin + math.ceil(steps / per_turn)
        self.steps = (self.end - self.begin) * per_turn


class Usage:
    """Memory and processor time of several processes since the start."""

    def __init__(self) -> None:
        self._processes = [psutil.Process()]
        self._bytes = self._rss()
        self._cpu = 0.0

    def add(self, pid: int) -> None:
        """Add a process that has just started; all of its memory counts."""
        self._processes.append(psutil.Process(pid))

    def restart(self) -> None:
        """Restart the count of processor time; memory is still counted from the start."""
        self._cpu = self._cpu_seconds()

    def result(self) -> dict[str, float]:
        """Return the growth of resident memory, and processor seconds of all threads."""
        return {"memory_bytes": self._rss() - self._bytes, "cpu_seconds": self._cpu_seconds() - self._cpu}

    def _rss(self) -> int:
        return sum(process.memory_info().rss for process in self._processes)

    def _cpu_seconds(self) -> float:
        return float(sum(sum(process.cpu_times()[:2]) for process in self._processes))


def measure_slice(name: str, seed: int, warmup: int, steps: int, threads: int) -> Slice:
    """Measure a rung.

    Args:
        warmup: random steps that fill the memory first.
        steps: steps to measure.
        threads: torch's threads; two processes divide them.
    Returns:
        steps, seconds, updates; processes: time of each by part (of ``PARTS``); memory_bytes:
        growth of all processes; stored, bytes_per_transition; cpu_seconds.
    """
    rung = RUNGS[name]
    torch.set_num_threads(max(1, threads // 2) if rung.kind == "parallel" else threads)
    torch.manual_seed(seed)
    loops = {"textbook": one_process, "parallel": two_processes, "sharpwave": full, "sb3": peer}
    return loops[rung.kind](rung, seed, warmup, steps * rung.times)


def one_process(rung: Rung, seed: int, warmup: int, steps: int) -> Slice:
    """Step every environment once, then make one update."""
    usage, clock, rng = Usage(), Clock(), np.random.default_rng(seed)
    lanes = textbook.make_lanes(rung.lanes, rung.envs)
    learner = textbook.Learner(lanes.stack, lanes.num_actions, rung.no_grad)
    buffer = textbook.ListBuffer()
    window = Window(warmup, steps, rung.envs)
    states = lanes.reset(seed)
    before = 0
    for turn in range(window.end):
        if turn == window.begin:
            clock.restart()
            usage.restart()
            before = learner.updates
        with clock.part("inference"):
            if turn < window.warm:
                actions = rng.integers(lanes.num_actions, size=rung.envs).tolist()
            else:
                epsilon = textbook.exploration(turn * rung.envs)
                actions = textbook.act(learner.net, states, lanes.num_actions, epsilon, rng)
        with clock.part("environment"):
            outcomes = lanes.step(actions)
        for state, action, outcome in zip(states, actions, outcomes, strict=True):
            buffer.append(textbook.Transition(state, action, outcome.reward, outcome.done, outcome.next_state))
        states = [outcome.state for outcome in outcomes]
        if turn >= window.warm:
            with clock.part("sampling"):
                batch = textbook.tensors(buffer.sample(textbook.BATCH * rung.envs, rng))
            with clock.part("learning"):
                learner.learn(batch)
    split = {"learner": clock.split()}
    return result(window.steps, learner.updates - before, split, usage.result(), len(buffer), buffer.nbytes())


def two_processes(rung: Rung, seed: int, warmup: int, steps: int) -> Slice:
    """Take PER_UPDATE transitions from the acting process, then make one update of PER_UPDATE times the batch."""
    usage, clock, rng = Usage(), Clock(), np.random.default_rng(seed)
    learner = textbook.Learner(*textbook.shape(rung), rung.no_grad)
    buffer = textbook.ListBuffer()
    window = Window(warmup, steps, textbook.PER_UPDATE)
    before = 0
    with textbook.Player(rung, learner.net, seed, warmup) as player:
        usage.add(player.pid)
        played = player.seconds()
        for turn in range(window.end):
            if turn == window.begin:
                clock.restart()
                usage.restart()
                before, played = learner.updates, player.seconds()
            with clock.part("waiting"):
                transitions = [player.get() for _ in range(textbook.PER_UPDATE)]
            for transition in transitions:
                buffer.append(transition)
            if turn >= window.warm:
                with clock.part("sampling"):
                    batch = textbook.tensors(buffer.sample(textbook.BATCH * textbook.PER_UPDATE, rng))
                with clock.part("learning"):
                    learner.learn(batch)
        split = clock.split()
        now = player.seconds()
        split_all = {"learner": split, "player": {part: now[part] - played[part] for part in now}}
        return result(window.steps, learner.updates - before, split_all, usage.result(), len(buffer), buffer.nbytes())


class Measured(Callback):
    """Callback that measures the turns of a window, and ends training with it.

    Attributes:
        split: seconds by part.
        updates: updates within the window.
        used: result of ``Usage.result``.
    """

    def __init__(self, window: Window, clock: Clock, usage: Usage) -> None:
        self.window, self._clock, self._usage = window, clock, usage
        self._turn = self.updates = 0
        self.split: dict[str, float] = {}
        self.used: dict[str, float] = {}

    def on_step(self, training: Training) -> None:
        self._turn += 1
        if self._turn == self.window.begin:
            self._clock.restart()
            self._usage.restart()
        if self._turn == self.window.end:
            self.split, self.used = self._clock.split(), self._usage.result()
            self.updates = self._clock.calls["learning"]
            training.stop("measured")


def full(rung: Rung, seed: int, warmup: int, steps: int) -> Slice:
    """Measure recipe ``pong-dqn`` in Sharpwave's own loop, with environment, agent and view on the clock."""
    usage, clock = Usage(), Clock()
    pong = load_recipe("pong-dqn")
    recipe = pong.override(capacity=max(pong.replay.capacity, warmup),
        seed=seed, warmup_steps=warmup, stop_reward=None, threads=torch.get_num_threads(), device="cpu",
        steps=10**12, report_every=10**12, checkpoint_every=10**12, **rung.settings,
    )  # fmt: skip
    measured = Measured(Window(warmup, steps, recipe.env.num_envs), clock, usage)
    last = train_on_clock(recipe, clock, measured)
    split, window = {"learner": measured.split}, measured.window
    stored = last["replay_steps"]
    return result(window.steps, measured.updates, split, measured.used, stored, stored * last["bytes_per_step"])


def peer(rung: Rung, seed: int, warmup: int, steps: int) -> Slice:
    """Measure stable-baselines3's DQN with its zoo's settings for Atari; learning begins after ``warmup``."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    usage, clock = Usage(), Clock()
    model = DQN(
        "CnnPolicy", VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=1, seed=seed), 4),
        buffer_size=100_000, learning_rate=1e-4, batch_size=32, learning_starts=warmup, target_update_interval=1000,
        train_freq=4, gradient_steps=1, exploration_fraction=0.1, exploration_final_eps=0.01, seed=seed, device="cpu",
    )  # fmt: skip
    buffer: Any = model.replay_buffer
    for owner, method, part in (
        (model.env, "step", "environment"), (model, "_sample_action", "inference"), (buffer, "sample", "sampling"),
        (model, "train", "learning"),
    ):  # fmt: skip
        setattr(owner, method, clock.timed(part, getattr(owner, method)))
    window = Window(warmup, steps, 1)
    split: dict[str, float] = {}
    before = 0

    def on_step(local: dict[str, Any], _: dict[str, Any]) -> bool:
        nonlocal before
        turn = local["self"].num_timesteps
        if turn == window.begin:
            clock.restart()
            usage.restart()
            before = model._n_updates
        if turn == window.end:
            split.update(clock.split())
        return bool(turn < window.end)

    model.learn(10_000_000, callback=on_step)  # the zoo's length, of which exploration takes a share
    arrays = [array for array in vars(buffer).values() if isinstance(array, np.ndarray)]
    nbytes = sum(array.nbytes for array in arrays) / buffer.buffer_size * buffer.size()
    return result(window.steps, model._n_updates - before, {"learner": split}, usage.result(), buffer.size(), nbytes)


def result(
    steps: int, updates: int, processes: dict[str, dict[str, float]], used: dict[str, float], stored: int, nbytes: float
) -> Slice:
    """Make the result of ``measure_slice``. ``nbytes``: of all that is stored; ``used``: from ``Usage.result``."""
    return {
        "steps": steps,
        "updates": updates,
        "seconds": sum(processes["learner"].values()),
        "processes": processes,
        "stored": stored,
        "bytes_per_transition": nbytes / stored,
        **used,
        "torch_threads": torch.get_num_threads(),
    }


def answer_slice(asked: str) -> None:
    """Measure the slice that the argument describes; print a line of JSON, other output goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers.write(json.dumps(measure_slice(**json.loads(asked))) + "\n")
    answers.close()


# the ladder


def measure(
    out: Path, names: Sequence[str], seeds: Sequence[int], rounds: int, steps: int, warmup: int, threads: int,
    *, fresh: bool = False,
) -> Results:  # fmt: skip
    """Measure the missing ones of ``rounds`` slices of every rung and seed; the file is written after each.

    Args:
        out: folder of the results.
        steps, warmup: steps of a slice, and of its warm-up.
        threads: threads of torch and OpenMP; two processes divide them.
    Raises:
        ValueError: the folder has results of other settings.
        RuntimeError: a slice failed; earlier ones are kept.
    """
    path = out / FILE
    results = begin(path, {"steps": steps, "warmup": warmup, "threads": threads}, fresh=fresh)
    slices: dict[str, list[dict[str, Any]]] = results.setdefault("slices", {})
    results["absent"] = {name: missing for name in names if (missing := RUNGS[name].missing())}
    there = [name for name in names if name not in results["absent"]]
    number = 0
    for turn in range(rounds):
        for seed in seeds:
            for name in runner.in_turn(there, turn):
                number += 1
                done = slices.setdefault(name, [])
                if any(one["seed"] == seed and one["round"] == turn for one in done):
                    continue
                asked = {"name": name, "seed": seed, "warmup": warmup, "steps": steps, "threads": threads}
                one = {"seed": seed, "round": turn, "load_average": os.getloadavg()[0], **_slice(asked)}
                done.append(one)
                write(path, results)
                speed = one["steps"] / one["seconds"]
                say(f"slice {number} of {rounds * len(seeds) * len(there)}: {name}, seed {seed}: {speed:,.1f} steps/s")
    write(path, results)
    return results


def _slice(asked: dict[str, Any]) -> dict[str, Any]:
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(asked["threads"]))
    command = [sys.executable, __file__, SLICE, json.dumps(asked)]
    how: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        ran = subprocess.run(command, timeout=TIME_LIMIT_S, check=False, **how)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"{asked['name']}: {asked['steps']:,} steps took longer than {TIME_LIMIT_S:g} s; give fewer --steps"
        ) from error
    if ran.returncode:
        raise RuntimeError(f"{asked['name']}: the process ended with {ran.returncode}:\n{ran.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def rows_of(results: Results) -> list[dict[str, Any]]:
    """Summarize the slices of every rung.

    Returns:
        rung, change, slices; steps_per_second {median, low, high}; milliseconds {process: {part: median a step}};
        cpu_milliseconds; memory_bytes, bytes_per_transition; updates_per_step; frames, minutes {measure: {median, low,
        high} or None}; frames_from: "runs", "published" or None; published {steps_per_second, minutes} or None.
    """
    return [_row(name, results) for name in RUNGS if results["slices"].get(name)]


def runs_of(name: str, results: Results) -> list[solved.Finished]:
    """Return the finished runs of a rung of recipe ``pong-dqn``."""
    rung = RUNGS[name]
    return [
        run for run in results.get("finished", []) if rung.kind == "sharpwave" and run["changes"] == dict(rung.settings)
    ]


def _row(name: str, results: Results) -> dict[str, Any]:
    rung, slices = RUNGS[name], results["slices"][name]
    speeds = [one["steps"] / one["seconds"] for one in slices]
    finished = runs_of(name, results)
    frames, minutes, source = _to_solve(name, statistics.median(speeds), finished)
    stored = [one["bytes_per_transition"] for one in slices]
    if finished:
        stored = [run["bytes_per_step"] for run in finished]  # of a full memory, not of one that is filling
    return {
        "rung": name,
        "change": rung.change,
        "slices": len(slices),
        "steps_per_second": solved.spread(speeds),
        "milliseconds": {
            process: {
                part: 1000 * statistics.median(one["processes"][process][part] / one["steps"] for one in slices)
                for part in slices[0]["processes"][process]
            }
            for process in slices[0]["processes"]
        },
        "cpu_milliseconds": 1000 * statistics.median(one["cpu_seconds"] / one["steps"] for one in slices),
        "memory_bytes": statistics.median(one["memory_bytes"] for one in slices),
        "bytes_per_transition": statistics.median(stored),
        "updates_per_step": statistics.median(one["updates"] / one["steps"] for one in slices),
        "frames": frames,
        "minutes": minutes,
        "frames_from": source,
        "published": rung.published and asdict(rung.published),
    }


def _to_solve(
    name: str, speed: float, finished: Sequence[solved.Finished]
) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """Return frames and minutes by measure, and their source. Minutes are measured only of finished runs."""
    nothing: dict[str, Any] = dict.fromkeys(solved.MEASURES)
    rung = RUNGS[name]
    if rung.kind == "sharpwave":
        if not finished:
            return nothing, nothing, None
        found: list[dict[str, Any]] = [
            {
                measure: solved.spread(run[measure] and run[measure][what] for run in finished)
                for measure in solved.MEASURES
            }
            for what in ("frames", "minutes")
        ]
        return found[0], found[1], "runs"
    published = rung.published or (RUNGS[rung.frames_of].published if rung.frames_of else None)
    if published is None:
        return nothing, nothing, None
    frames, minutes = published.frames, solved.minutes_for(published.frames, speed)
    known = [{**nothing, "alpha": dict.fromkeys(("median", "low", "high"), one)} for one in (frames, minutes)]
    return known[0], known[1], "published"


COLOURS = dict(zip(PARTS, ("#1c7ed6", "#37b24d", "#f59f00", "#c92a2a", "#dee2e6", "#868e96"), strict=True))


def tables(results: Results, rows: list[dict[str, Any]], console: Console) -> None:
    """Print both tables, with explanations of their figures."""
    heads = ("steps/s", *PARTS, "CPU", "memory", "transition", f"{CAPACITY // 1000}K of them")
    speed = runner.table("The ladder: where the time of a step goes", "", *heads)
    for row in rows:
        for number, (process, milliseconds) in enumerate(row["milliseconds"].items()):
            times = [number_text(milliseconds[part]) if milliseconds[part] else "" for part in PARTS]
            if number == 0:
                each = row["bytes_per_transition"]
                memory = [byte_text(row["memory_bytes"]), f"{each:,.0f} B", byte_text(each * CAPACITY)]
                first = [row["rung"], spread_text(row["steps_per_second"], 1)]
                speed.add_row(*first, *times, number_text(row["cpu_milliseconds"]), *memory, style=_style(row))
            else:
                speed.add_row(f"  {process}", "", *times, style="dim")
    for name, reason in results["absent"].items():
        speed.add_row(name, Text(reason), style="yellow")  # plain text: [bench] is not markup
    console.print(speed)
    settings, where = results["settings"], results["environment"]
    counts = " or ".join(map(str, sorted({row["slices"] for row in rows})))
    console.print(
        f"Milliseconds of a step, medians; slices a rung: {counts}, of {settings['steps']:,} steps (full and "
        f"full-float32: {RUNGS['full'].times} times as many) after a warm-up of {settings['warmup']:,}; steps/s with "
        "the lowest and the highest slice. Threads of torch and OpenMP, divided where there are two processes: "
        f"{settings['threads']}. CPU: of all processes and threads. Memory: growth of all processes in a slice. "
        f"A step is an action in one environment, four frames of the emulator.\n{where['machine']}, "
        f"load {where['load_average']:.1f}, {where['date']}, "
        + ", ".join(f"{name} {number}" for name, number in where["versions"].items()),
        style="dim", highlight=False,
    )  # fmt: skip

    measured = tuple(f"{what}, {measure}" for measure in MEASURES.values() for what in ("frames", "minutes"))
    title = f"To a mean reward of {BOUND:g}"
    solved = runner.table(title, "", *measured, "frames from", "published", left=("", "frames from"))
    for row in rows:
        mark = "~" if row["frames_from"] == "published" else ""
        cells = []
        for measure in MEASURES:
            cells += [
                spread_text(row["frames"][measure], 0),
                spread_text(row["minutes"][measure], 0 if mark else 1, mark),
            ]
        published = row["published"]
        theirs = "-" if published is None else f"{published['steps_per_second']:g}/s, {published['minutes']:g} min"
        solved.add_row(row["rung"], *cells, _source(row, results), theirs, style=_style(row))
    console.print(solved)
    console.print(
        "Frames are agent steps. alpha .98: running mean of episodes' rewards, each counting .02; mean of 100: of the "
        "last episodes. ~: steps/s measured, minutes extrapolated from N frames to solve of the run that did finish. "
        "That is the published one, with its steps/s times its minutes as frames; runs of full were made here and have "
        "minutes of their own. -: not published, or not known of runs that ended before.\n"
        f"Published: {TEXTBOOK}.",
        style="dim", highlight=False,
    )  # fmt: skip


def figure(results: Results, rows: list[dict[str, Any]], path: Path) -> None:
    """Draw stacked bars of a step's milliseconds, a bar for each process; beside them the minutes to the bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = [(row, process) for row in rows for process in row["milliseconds"]]
    names = [row["rung"] if process == "learner" else process for row, process in bars]
    with pyplot.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        height = 0.36 * len(bars) + 2.2
        learned = any(run["curve"] for run in results.get("finished", []))
        heights = [height, 4.2] if learned else [height]
        shown = pyplot.figure(figsize=(13, sum(heights)), layout="constrained")
        upper, *lower = shown.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        axes = upper.subplots(1, 2, sharey=True, width_ratios=[3, 2])
        left = [0.0] * len(bars)
        for part in PARTS:
            values = [row["milliseconds"][process][part] for row, process in bars]
            axes[0].barh(range(len(bars)), values, left=left, color=COLOURS[part], height=0.72, label=part)
            left = [before + value for before, value in zip(left, values, strict=True)]
        for at, (row, process) in enumerate(bars):
            if process == "learner":
                _note(axes[0], left[at], at, f"{row['steps_per_second']['median']:,.0f} steps/s")
        axes[0].set_yticks(range(len(bars)), names)
        axes[0].set_xlim(0, 1.18 * max(left))
        axes[0].set_title("milliseconds of an environment step", loc="left", fontsize=10)
        axes[0].legend(loc="lower right", fontsize=8, frameon=False)
        axes[0].invert_yaxis()
        _draw_minutes(axes[1], bars)
        for below in lower:
            _draw_curves(below.subplots(), rows, results)
        for axis in axes:
            axis.tick_params(length=0, axis="y")
        where = results["environment"]
        shown.suptitle(f"DQN on Pong, step by step ({where['machine']}, {where['date']})", fontsize=11, weight="bold")
        shown.savefig(path, dpi=130)
        pyplot.close(shown)


def _draw_minutes(axis: Any, bars: list[tuple[dict[str, Any], str]]) -> None:
    """Draw minutes to solve, thick: measured, thin: published; of two known measures the textbook's."""
    highest = 1.0
    for at, (row, process) in enumerate(bars):
        if process != "learner":
            continue
        here = row["minutes"]["alpha"] or row["minutes"]["mean100"]
        if here is not None:
            extrapolated = row["frames_from"] == "published"
            measure = "alpha" if row["minutes"]["alpha"] else "mean100"
            text = f"~{here['median']:,.0f}" if extrapolated else f"{here['median']:,.1f}, measured"
            axis.barh(at, here["median"], color="#0b7285" if not extrapolated else "#74c0fc", height=0.72)
            _note(axis, here["median"], at, text + (" (mean of 100)" if measure == "mean100" else ""))
            highest = max(highest, here["median"])
        else:
            _note(axis, 1.0, at, "not known")
        if row["published"] is not None:
            axis.plot([row["published"]["minutes"]] * 2, [at - 0.4, at + 0.4], color="#212529", linewidth=2)
            highest = max(highest, row["published"]["minutes"])
    axis.plot([], [], color="#212529", linewidth=2, label="as published, on its machine")
    axis.set_xscale("log")
    axis.set_xlim(1, highest * 5)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_title(f"minutes to a mean of {BOUND:g} (~ extrapolated)", loc="left", fontsize=10)
    axis.legend(loc="lower right", fontsize=8, frameon=False)


def _draw_curves(axis: Any, rows: list[dict[str, Any]], results: Results) -> None:
    """Draw scores by frames of every finished run: speed-ups must not change them."""
    for row, colour in zip(
        [row for row in rows if RUNGS[row["rung"]].kind == "sharpwave"], ("#0b7285", "#e8590c"), strict=False
    ):
        for number, run in enumerate(runs_of(row["rung"], results)):
            label = f"{row['rung']}: {RUNGS[row['rung']].change}" if number == 0 else None
            across, means = zip(*run["curve"], strict=True) if run["curve"] else ((), ())
            axis.plot([frames / 1000 for frames in across], means, color=colour, linewidth=1.3, alpha=0.8, label=label)
    axis.axhline(BOUND, linestyle="--", linewidth=1, color="gray")
    axis.set_xlabel("thousand frames", fontsize=9)
    axis.set_title("mean reward of 100 episodes by frames; a line a seed", loc="left", fontsize=10)
    axis.legend(loc="lower right", fontsize=8, frameon=False)


def _note(axis: Any, across: float, at: int, text: str) -> None:
    axis.annotate(
        f" {text}", (across, at), va="center", fontsize=8, color="#495057", xytext=(2, 0), textcoords="offset points"
    )


def _source(row: dict[str, Any], results: Results) -> str:
    if row["frames_from"] == "runs":
        return f"{len(runs_of(row['rung'], results))} runs in {Path(results['finished_from']).name}"
    if row["frames_from"] == "published":
        same = RUNGS[row["rung"]].frames_of
        return f"published, {same}" if same else "published"
    return "-"


def spread_text(value: dict[str, float | None] | None, digits: int, mark: str = "") -> str:
    """Format a spread: "12.3", or "12.3 (11.9 to 14.0)" where values differ."""
    if value is None:
        return "-"
    text = f"{mark}{value['median']:,.{digits}f}"
    if value["low"] == value["high"]:
        return text
    high = "never" if value["high"] is None else f"{value['high']:,.{digits}f}"
    return f"{text} ({value['low']:,.{digits}f} to {high})"


def _style(row: dict[str, Any]) -> str:
    return "bold cyan" if RUNGS[row["rung"]].kind == "sharpwave" else ""


def main() -> None:
    """Measure, print and draw the ladder; invalid input is explained in a sentence."""
    parser = runner.parser(__doc__)
    parser.add_argument("--rungs", default="", help="with commas, as baseline,n-envs,full; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=3, help="slices of each rung and seed")
    parser.add_argument("--steps", type=int, default=1_000, help="environment steps of a slice")
    parser.add_argument("--warmup", type=int, default=5_000, help="random steps that fill the memory before a slice")
    parser.add_argument("--threads", type=int, default=2, help="of torch and OpenMP; two processes divide them")
    parser.add_argument(
        "--finished", type=Path, default=RESULTS / "ladder-pong.json",
        help="a folder of finished runs of recipe pong-dqn, or a JSON of summaries: frames to solve",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for ladder.json and ladder.png")
    parser.add_argument("--fresh", action="store_true", help="start over instead of continuing earlier results")
    given = parser.parse_args()
    try:
        names, finished = chosen(given.rungs), finished_runs(given.finished)
        slices = given.seeds, given.rounds, given.steps, given.warmup, given.threads
        results = measure(given.out, names, *slices, fresh=given.fresh)
    except (ValueError, OSError, KeyboardInterrupt) as error:
        sys.exit(str(error) or "interrupted; finished measurements are kept")
    results["finished"], results["finished_from"] = finished, str(given.finished)
    rows = results["rows"] = rows_of(results)
    write(given.out / FILE, results)
    tables(results, rows, runner.console(170))
    if rows:
        figure(results, rows, given.out / "ladder.png")
        say(f"written: {given.out / FILE}, {given.out / 'ladder.png'}")


if __name__ == "__main__":
    answer_slice(sys.argv[2]) if sys.argv[1:2] == [SLICE] else main()
