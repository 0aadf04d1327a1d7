"""Speed of training Pong, from a textbook's DQN to recipe pong-dqn, one step of engineering at a time.

python benchmarks/ladder.py --help

Every rung is measured in slices, each in a process of its own, in turn, so that noise affects all of them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import training_runs as solved
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from runner import RESULTS, say, write
from textbook import CAPACITY, RUNGS, TEXTBOOK, chosen
from training_runs import BOUND, MEASURES, Results, begin, finished_runs, numbers, run_command

from sharpwave.bench.trainer import PARTS
from sharpwave.showing import byte_text, number_text

FILE = "ladder.json"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
TIME_LIMIT_S = 3600.0
"""Time limit of a slice, in seconds."""


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
            # Each turn begins with another rung, so that periodic disturbances affect all of them alike.
            first = turn % max(len(there), 1)
            for name in there[first:] + there[:first]:
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
    command = [sys.executable, str(Path(__file__).with_name("ladder_slices.py")), json.dumps(asked)]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        answers, said = process.communicate(timeout=TIME_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"{asked['name']}: {asked['steps']:,} steps took longer than {TIME_LIMIT_S:g} s; give fewer --steps"
        ) from error
    finally:
        process.kill()  # it has ended, or its slice has failed
        process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"{asked['name']}: the process ended with {process.returncode}:\n{said[-2000:]}")
    answer: dict[str, Any] = json.loads(answers)
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
        "published": None
        if rung.published is None
        else {"steps_per_second": rung.published.steps_per_second, "minutes": rung.published.minutes},
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
    return (
        {**nothing, "alpha": {"median": frames, "low": frames, "high": frames}},
        {**nothing, "alpha": {"median": minutes, "low": minutes, "high": minutes}},
        "published",
    )


COLOURS = dict(zip(PARTS, ("#1c7ed6", "#37b24d", "#f59f00", "#c92a2a", "#dee2e6", "#868e96"), strict=True))


def tables(results: Results, rows: list[dict[str, Any]], console: Console) -> None:
    """Print both tables, with explanations of their figures."""
    speed = _table("The ladder: where the time of a step goes")
    speed.add_column("")
    for column in ("steps/s", *PARTS, "CPU", "memory", "transition", f"{CAPACITY // 1000}K of them"):
        speed.add_column(column, justify="right", no_wrap=True)
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

    solved = _table(f"To a mean reward of {BOUND:g}")
    solved.add_column("")
    for measure in MEASURES.values():
        solved.add_column(f"frames, {measure}", justify="right", no_wrap=True)
        solved.add_column(f"minutes, {measure}", justify="right", no_wrap=True)
    solved.add_column("frames from", no_wrap=True)
    solved.add_column("published", justify="right", no_wrap=True)
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


def _table(title: str) -> Table:
    return Table(title=title, title_style="bold", title_justify="left", box=box.SIMPLE_HEAD)


def _style(row: dict[str, Any]) -> str:
    return "bold cyan" if RUNGS[row["rung"]].kind == "sharpwave" else ""


def ladder(
    rungs: Annotated[
        str, typer.Option("--rungs", help="rungs separated by commas, as baseline,n-envs,full; empty: all")
    ] = "",
    seeds: Annotated[str, typer.Option("--seeds", help="seeds separated by commas, as 0,1,2")] = "0",
    rounds: Annotated[int, typer.Option(min=1, help="slices of each rung and seed")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="environment steps of a slice")] = 1_000,
    warmup: Annotated[int, typer.Option(min=64, help="random steps that fill the memory before a slice")] = 5_000,
    threads: Annotated[int, typer.Option(min=1, help="threads of torch and OpenMP; two processes divide them")] = 2,
    finished: Annotated[
        Path | None,
        typer.Option(help="a folder of finished runs of recipe pong-dqn, or a JSON of summaries: frames to solve"),
    ] = RESULTS / "ladder-pong.json",
    out: Annotated[Path, typer.Option(help="folder for ladder.json and ladder.png")] = RESULTS,
    fresh: Annotated[bool, typer.Option("--fresh", help="start over instead of continuing earlier results")] = False,
) -> None:
    """Measure each step from a textbook's DQN to recipe pong-dqn: speed, where the time goes, memory, time to solve."""
    names, seed_list = chosen(rungs), numbers(seeds, "--seeds")
    known = None if finished is None else finished_runs(finished)
    results = measure(out, names, seed_list, rounds, steps, warmup, threads, fresh=fresh)
    if known is not None:
        results["finished"], results["finished_from"] = known, str(finished)
    rows = results["rows"] = rows_of(results)
    write(out / FILE, results)
    console = Console()
    tables(results, rows, Console(width=max(console.width, 170)))  # a narrower one would cut figures off
    if rows:
        figure(results, rows, out / "ladder.png")
        say(f"written: {out / FILE}, {out / 'ladder.png'}")


if __name__ == "__main__":
    run_command(ladder)
