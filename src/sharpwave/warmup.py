"""Compilation of the kernels ahead: small stores are written, sampled, reopened and verified once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sharpwave.codecs.dictionaries import PLACES
from sharpwave.format.segment import FIRST_FIELD
from sharpwave.native.jit import COMPILING
from sharpwave.offline.verify import check
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.spec import Field, Spec
from sharpwave.store import Store
from sharpwave.views.cutting import CutReader, RowCutter
from sharpwave.views.replay import Replay

LANES, STEPS, SIDE = 2, 300, 84
BATCHES = (32, 256)
"""Of frames, the second is decoded by several threads."""


def warm_up(told: Callable[[str], None] = lambda name: None) -> int:
    """Compile the kernels of common stores: frames, vectors, transitions, sequences, a disk; return how many.

    0: all were compiled before, and kept. What rarer stores need in addition (other samplers, retentions, fields of
    other dtypes) is compiled when it is first used.

    Args:
        told: called with the name of each kernel that is being compiled.

    Cost: some 20 s on one core.
    """
    before, COMPILING.told = len(COMPILING.names), told
    try:
        frames = Spec(obs=Field((SIDE, SIDE), "uint8", stack=4), action=Field((), "int64"))
        vectors = Spec(obs=Field((4,), "float32"), action=Field((), "int64"))
        for spec in (frames, vectors):
            _use(Store(spec, capacity=1000))
        with tempfile.TemporaryDirectory(prefix="sharpwave-warmup-") as made:
            folder = Path(made) / "store"
            _use(Store(frames, capacity=1000, ram="64MiB", disk=folder))
            check(folder, lambda total: lambda nbytes: None)
            with Store.open(folder) as store:
                store.transitions().sample(BATCHES[0])
    finally:
        COMPILING.told = None
    return len(COMPILING.names) - before


def _use(store: Store) -> None:
    """Write steps of ``LANES`` lanes, sample them in each way, and close the store."""
    shape = store.spec.fields["obs"].shape
    with store:
        by_steps, sequences = store.transitions(n_step=3), store.sequences(length=8, burn_in=4, stride=4, n_step=2)
        by_priority = store.transitions(n_step=3, sampler=Prioritized(alpha=0.6, beta=0.4))
        obs = np.zeros((LANES, *shape), store.spec.fields["obs"].dtype)
        ended, no = np.ones(LANES, bool), np.zeros(LANES, bool)
        for step in range(STEPS):
            obs.reshape(LANES, -1)[:, step % obs[0].size] += 1  # a little changes, as in a game
            store.extend(
                obs=obs,
                action=np.arange(LANES),
                reward=np.ones(LANES, np.float32),
                terminated=ended if step % 50 == 49 else no,
                truncated=no,
            )
        store.append(obs=obs[0], action=1, reward=0.0, terminated=False, truncated=False)
        for size in BATCHES:
            for view in (by_steps, by_priority):
                batch = view.sample(size)
            by_priority.update_priorities(batch.ids, np.ones(size))
        windows = sequences.sample(BATCHES[0])
        store.ids(np.zeros(1, np.int64), np.zeros(1, np.int64))
        assert windows.obs.shape[0] == BATCHES[0]
        del batch, windows  # of a store that has little memory
        _cut(by_steps)
        _cut(sequences)


def _cut(replay: Replay[Any]) -> None:
    """Cut the rows of a batch out, and read them, as shards and their learners do."""
    source, fields = replay.source, list(replay.source.log.spec.fields.values())
    target = source.lend(BATCHES[0])
    target.cutter = cutter = RowCutter(source.log)
    source.draw_into(target, 0.0)
    for name, column in cutter.columns.items():
        pieces = column.all_pieces
        length = np.full(BATCHES[0], target.columns[name].shape[1]) if pieces is None else pieces[0]
        table = source.log.tables[FIRST_FIELD + column.field]
        CutReader(column.rows, length, table, np.ones(PLACES, np.uint8), fields[column.field])
