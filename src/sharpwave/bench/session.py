"""Benchmark session: every contender in a process of its own, measured in turns; then the trainer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sharpwave.bench.contenders import SETUPS, installed
from sharpwave.bench.machine import AnsweringChild, ChildError, available_bytes, cores, in_turn
from sharpwave.bench.played import PlayedSteps
from sharpwave.bench.report import BATCHES

Results = dict[str, Any]
Say = Callable[[str], None]

SECONDS = 60
"""Length of a session that fills buffers of the sizes below; a shorter one fills smaller buffers."""
MAX_STEPS, MIN_STEPS = 1 << 16, 1 << 10
MAX_FRAME_BYTES, MAX_BUFFER_BYTES = 512 << 20, 256 << 20
"""Size limits of the frames added to an encoded store, and of a buffer of raw stacks."""
MIN_SLICE_S, MAX_SLICE_S = 0.05, 0.25
ROUNDS, MIN_ROUNDS = 6, 3
"""Rounds that the length of slices is chosen for, and rounds at least; with time left there are more."""
FILL_TIMEOUT_S, SLICE_TIMEOUT_S, START_TIMEOUT_S = 300, 120, 120
TRAINER_START_S = 5
LIMIT = "limit"


def sizes(recording: PlayedSteps, seconds: float) -> tuple[int, int]:
    """Return the steps of Sharpwave's encoded store, and those of every other buffer."""
    share, lanes = min(1.0, seconds / SECONDS), recording.lanes
    encoded = min(MAX_STEPS * share, MAX_FRAME_BYTES * share / recording.frame_bytes)
    transition = 2 * (recording.stack or 1) * recording.frame_bytes
    raw = min(encoded, MAX_BUFFER_BYTES * share / transition, available_bytes() / 16 / transition)
    return tuple(max(MIN_STEPS, int(steps)) // lanes * lanes for steps in (encoded, raw))  # type: ignore[return-value]


def measure_store(
    results: Results, recording: PlayedSteps, folder: Path, seconds: float, deadline: float, say: Say
) -> None:
    """Fill and measure all contenders that are installed, until ``deadline``; at least MIN_ROUNDS.

    Args:
        results: updated with ``contenders``, ``limit``, ``absent`` and ``failed`` as they are measured, so that an
            interrupt leaves partial results.
        folder: of the recording.  seconds: of the whole session.  deadline: of ``time.monotonic()``.
    """
    contest = _Contest(results)
    try:
        contest.fill(recording, folder, seconds, say)
        calls = sum(3 + 2 * one["fill"]["prioritized"] for one in results["contenders"].values()) + 1
        slice_s = min(max((deadline - time.monotonic()) / ROUNDS / calls, MIN_SLICE_S), MAX_SLICE_S)
        results["settings"]["slice_seconds"] = slice_s
        turn, took = 0, 0.0
        while turn < MIN_ROUNDS or time.monotonic() + took <= deadline:
            begin = time.monotonic()
            say(f"round {turn + 1}")
            contest.round(turn, slice_s)
            turn, took = turn + 1, time.monotonic() - begin
    finally:
        contest.close()


def measure_round(
    contenders: Results, turn: int, batches: Sequence[int], ask: Callable[[str, str, int], Results | None]
) -> None:
    """Measure everything of every contender, and add it to its ``rounds``.

    Args:
        turn: number of the round; each begins with another contender, so that disturbances reach all of them alike.
        ask: contender, what and batch -> its answer; ``None``: it failed.
    """
    for what, batch in [("add", 0), *((what, batch) for what in ("uniform", "prioritized") for batch in batches)]:
        for name in in_turn(list(contenders), turn):
            entry = contenders[name]
            if what == "prioritized" and not entry["fill"]["prioritized"]:
                continue
            answer = ask(name, what, batch)
            if answer is not None:
                entry["rounds"].setdefault(f"{what} {batch}" if batch else what, []).append(answer)


class _Contest:
    """Processes of the contenders. One that fails is dropped, and the results contain the reason."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._children: dict[str, AnsweringChild] = {}

    def fill(self, recording: PlayedSteps, folder: Path, seconds: float, say: Say) -> None:
        encoded, raw = sizes(recording, seconds)
        steps: dict[str, int] = {}
        for name, setup in SETUPS.items():
            if setup.stacks_only and recording.stack is None:
                continue
            if installed(setup.module):
                steps[name] = raw if steps else encoded
            else:
                self._results["absent"][setup.package] = f"not installed: pip install {setup.package}"
        steps[LIMIT] = 0
        filling: list[str] = []
        for name, count in steps.items():
            if len(filling) == cores():
                self._filled(filling.pop(0))
            say(f"filling {name}")
            self._start(name, folder, recording.stack, count)
            filling.append(name)
        for name in filling:
            self._filled(name)

    def round(self, turn: int, slice_s: float) -> None:
        measure_round(self._results["contenders"], turn, BATCHES, partial(self._measured, slice_s=slice_s))
        limit = self._measured(LIMIT, "windows", 256, slice_s)
        if limit is not None:
            self._results["limit"].append(limit["windows"])

    def close(self) -> None:
        for child in self._children.values():
            child.close()

    def _start(self, name: str, folder: Path, stack: int | None, steps: int) -> None:
        command = _command("measured", name, str(folder), str(stack or 0))
        self._children[name] = AnsweringChild(name, command, folder / f"{name}.log")
        self._children[name].send(do="fill", steps=steps)

    def _filled(self, name: str) -> None:
        filled = self._tried(name, lambda child: child.receive(FILL_TIMEOUT_S))
        if filled is not None and name != LIMIT:
            self._results["contenders"][name] = {"fill": filled, "rounds": {}}

    def _measured(self, name: str, what: str, batch: int, slice_s: float) -> dict[str, Any] | None:
        asked = {"do": "measure", "what": what, "batch": batch, "seconds": slice_s}
        return self._tried(name, lambda child: child.ask(SLICE_TIMEOUT_S, **asked))

    def _tried(self, name: str, ask: Callable[[AnsweringChild], dict[str, Any]]) -> dict[str, Any] | None:
        if name not in self._children:
            return None
        try:
            return ask(self._children[name])
        except ChildError as error:
            self._results["failed"][name] = str(error)
            self._children.pop(name).close()
            self._results["contenders"].pop(name, None)
            return None


def measure_trainer(results: Results, recipe: str, env: str, folder: Path, deadline: float, say: Say) -> None:
    """Train by a recipe until ``deadline``, at least two seconds; ``results["trainer"]`` gets every slice."""
    seconds = max(2.0, deadline - time.monotonic() - TRAINER_START_S)
    asked = json.dumps({"recipe": recipe, "env": env, "seconds": seconds})
    child = AnsweringChild(
        "trainer", [sys.executable, "-W", "ignore", "-m", "sharpwave.bench.trainer", asked], folder / "trainer.log"
    )
    found = results["trainer"] = {"recipe": recipe, "env": env, "slices": []}
    say(f"training by recipe {recipe}")
    left_s = seconds
    try:
        while left_s > 0:
            one = child.receive(START_TIMEOUT_S)
            left_s = one.pop("left_s")
            found["slices"].append(one)
            say(f"training by recipe {recipe}: {one['steps'] / one['seconds']:,.0f} steps a second")
    except ChildError as error:
        results["failed"]["trainer"] = str(error)
    finally:
        child.close()


def _command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", f"sharpwave.bench.{module}", *arguments]
