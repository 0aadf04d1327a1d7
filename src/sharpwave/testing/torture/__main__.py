"""Worker that runs programs one after another, and writes a line of JSON about each to standard output."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from sharpwave.testing.torture.faults import preloaded
from sharpwave.testing.torture.outcomes import outcome
from sharpwave.testing.torture.program import StoreProgram, random_program
from sharpwave.testing.torture.shrink import shrunk


def main() -> None:
    """Run the request in a line of JSON on standard input: one ``program``, or random ones from ``seed`` on."""
    asked: dict[str, Any] = json.loads(sys.stdin.readline())
    tell(ready=True, preloaded=preloaded())
    if "program" in asked:
        one(StoreProgram.from_json(asked["program"]), asked["shrink_s"])
        return
    seed, until = asked["seed"], time.time() + asked["seconds"]
    for number in range(asked["programs"]):
        if time.time() > until:
            break
        one(random_program(seed + number * asked["jobs"], **asked["kinds"]), asked["shrink_s"])


def one(program: StoreProgram, shrink_s: float) -> None:
    begun = time.monotonic()
    failure, counts, at = outcome(program)
    said: dict[str, Any] = {"seed": program.seed, "kind": kind_of(program), "counts": counts, "at": at}
    if failure is not None:
        said["what"], said["message"] = failure.what, str(failure)
        small = program.with_operations(program.operations[: at + 1])
        if shrink_s > 0:
            again, _, _ = outcome(small)
            said["again"] = again is not None and again.what == failure.what
            if said["again"]:
                small, failure = shrunk(small, failure, shrink_s)
        said["script"] = small.script(str(failure))
        said["operations"] = len(small.operations)
    tell(**said, seconds=time.monotonic() - begun)


def kind_of(program: StoreProgram) -> str:
    """Return the kind of a program's store: its retention, its limits, and its policy when full."""
    limits = [name for name in ("capacity", "disk_limit", "ram") if name in program.settings]
    return f"{program.settings['retention']}, {' and '.join(limits)}, {program.settings['on_full']}"


def tell(**said: Any) -> None:
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
