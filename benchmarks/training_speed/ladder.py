"""The ladder: every rung measured in slices, each in its own process, in turn, so that noise affects all of them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharpwave.training.files import write_json
from training_speed import solved
from training_speed.progress import Results, begin, say
from training_speed.rungs import RUNGS
from training_speed.runs import train

FILE = "ladder.json"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
TIME_LIMIT_S = 3600.0
"""Time limit of a slice, in seconds."""
NEVER_STOP = "22"
"""Mean reward beyond Pong's range: the run ends only by the limits set here."""


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
                write_json(path, results)
                speed = one["steps"] / one["seconds"]
                say(f"slice {number} of {rounds * len(seeds) * len(there)}: {name}, seed {seed}: {speed:,.1f} steps/s")
    write_json(path, results)
    return results


def solve(out: Path, names: Sequence[str], seeds: Sequence[int], *, fresh: bool = False) -> list[solved.Finished]:
    """Train the rungs of recipe ``pong-dqn`` with every seed until both measures pass the bound or steps run out."""
    found = []
    for seed in seeds:
        for name in names:
            if RUNGS[name].kind != "sharpwave":
                continue
            folder = out / f"{name}-seed{seed}"
            say(f"{name}, seed {seed}: training until it is solved by both measures, in {folder}")
            arguments = ["pong-dqn", "--seed", str(seed), "--device", "cpu", "--stop-reward", NEVER_STOP]
            arguments += ["--evaluate-from", NEVER_STOP]
            for setting, value in RUNGS[name].settings.items():
                arguments += ["--" + setting.replace("_", "-"), str(value)]
            train(folder, arguments, fresh=fresh, enough=solved.solved)
            found.append(solved.finished_run(folder))
    return found


def _slice(asked: dict[str, Any]) -> dict[str, Any]:
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(asked["threads"]))
    path = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    command = [sys.executable, "-m", "training_speed.slices", json.dumps(asked)]
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


def rows(results: Results) -> list[dict[str, Any]]:
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
