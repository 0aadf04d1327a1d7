"""Shrinking of a failing program: operations are removed, and made smaller, while it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from sharpwave.testing.torture.model import Violation
from sharpwave.testing.torture.outcomes import outcome
from sharpwave.testing.torture.program import Operation, StoreProgram


def shrunk(program: StoreProgram, failure: Violation, seconds: float) -> tuple[StoreProgram, Violation]:
    """Return the smallest program found in the time that fails in the same way, and its failure."""
    deadline = time.monotonic() + seconds

    def try_one(candidate: StoreProgram) -> bool:
        nonlocal program, failure
        if time.monotonic() > deadline:
            return False
        found, _, at = outcome(candidate)
        if found is None or found.what != failure.what:
            return False
        program, failure = candidate.with_operations(candidate.operations[: at + 1]), found
        return True

    before = None
    while before != program and time.monotonic() < deadline:
        before = program
        for make in (_settings, _operations):
            make(lambda: program, try_one)
    return program, failure


def _operations(now: Callable[[], StoreProgram], try_one: Callable[[StoreProgram], bool]) -> None:
    """Remove operations, many at first, from the last ones on; then make the remaining ones smaller."""
    part = max(1, len(now().operations) // 2)
    while True:
        end = len(now().operations)
        while end > 0:
            operations = now().operations
            begin = max(0, end - part)
            try_one(now().with_operations(operations[:begin] + operations[end:]))
            end = min(begin, len(now().operations))
        if part == 1:
            break
        part //= 2
    at = 0
    while at < len(now().operations):
        operations = now().operations
        others = _smaller_operations(operations[at])
        at += not any(try_one(now().with_operations([*operations[:at], o, *operations[at + 1 :]])) for o in others)


def _settings(now: Callable[[], StoreProgram], try_one: Callable[[StoreProgram], bool]) -> None:
    """Remove views, and take plainer settings."""
    for view in now().views:
        if len(now().views) > 1:
            try_one(replace(now(), views=tuple(one for one in now().views if one != view)))
    if now().stack:
        try_one(replace(now(), stack=0))
    if now().words:
        try_one(replace(now(), words=False))
    if now().width > 6:
        try_one(replace(now(), width=6))
    for name, plain in {"codec": "raw", "ram": None, "on_full": "raise", "seed": 0}.items():
        if now().settings.get(name, plain) != plain:
            try_one(replace(now(), settings=now().settings | {name: plain}))


def _smaller_operations(operation: Operation) -> Iterator[Operation]:
    if operation["do"] == "steps":
        lanes, ends = operation["lanes"], operation["ends"]
        times = len(ends) // len(lanes)
        for fewer in {times // 2, times - 1} - {0, times}:
            yield operation | {"ends": ends[-fewer * len(lanes) :]}
        if len(lanes) > 1:
            rows = [ends[at : at + len(lanes)] for at in range(0, len(ends), len(lanes))]
            yield operation | {"lanes": lanes[:-1], "ends": "".join(row[:-1] for row in rows)}
        if operation["how"] != "episode" and ends.strip("."):
            yield operation | {"ends": "." * len(ends)}
        for name in ("next_obs", "joins", "whole"):
            if operation.get(name):
                yield {key: value for key, value in operation.items() if key != name}
    elif operation["do"] == "fault" and operation["at"] > 1:
        yield operation | {"at": operation["at"] // 2}
