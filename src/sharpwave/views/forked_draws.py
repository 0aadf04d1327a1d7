"""Draws in forked processes: a generator of each one's own."""

from __future__ import annotations

import sys

import numpy as np

from sharpwave.native.forks import path


def own_generator(inherited: np.random.Generator) -> np.random.Generator:
    """Return a generator for the draws of a forked process, at the first of them.

    What it draws follows from the generator's state at the fork, from which fork this is and, in a worker of PyTorch's
    DataLoader, from the worker's number and seed. So it differs in every fork, and is the same in a run that forks in
    the same order and seeds torch.
    """
    state = inherited.integers(1 << 32, size=8, dtype=np.uint64).tolist()  # of this process's copy
    return np.random.default_rng(np.random.SeedSequence([*state, *_worker()], spawn_key=path()))


def _worker() -> tuple[int, ...]:
    """Return number and seed of the DataLoader's worker that this process is; empty: it is none. A worker is told
    after the fork, so hooks of forks come too early to ask."""
    worker_info = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    worker = None if worker_info is None else worker_info()
    return () if worker is None else (int(worker.id), int(worker.seed))
