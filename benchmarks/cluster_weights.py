"""Errors of importance weights against one memory's, with shards of unequal priorities. Part of ``cluster.py``."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cluster_ours import Shards

SHARDS, STEPS, BATCHES = 4, 4_000, 50


def measure(name: str, folder: Path, reverb: str | None) -> dict[str, float]:
    """Return the largest relative errors of ``probability`` and ``weight`` over some batches.

    A writer of shard k gives its items priorities from 4^k to 8 * 4^k.
    """
    from cluster import fresh, reverb_servers, worker

    with ExitStack() as stack:
        if name == "Reverb":
            assert reverb is not None
            addresses = [address for _, address in reverb_servers(stack, reverb, fresh(stack, SHARDS))]
            module, python = "cluster_reverb", reverb
        else:
            shards = Shards(SHARDS, 100_000)
            stack.callback(shards.close)
            addresses, module, python = shards.addresses[name], "cluster_ours", sys.executable
        arguments = (module, str(folder), *addresses)
        learner = None
        if name != "Reverb":  # first: priorities are those of its view; Reverb's learner draws from its beginning on
            learner = worker(stack, python, "learner", *arguments)
            learner.ask(do="ready")
        writers = worker(stack, python, "writers", *arguments)
        mass = writers.ask(do="write_skewed", writers=SHARDS, steps=STEPS)["mass"]
        learner = learner or worker(stack, python, "learner", *arguments)
        answer: dict[str, Any] = learner.ask(do="weights", mass=mass, batches=BATCHES)
        return answer
