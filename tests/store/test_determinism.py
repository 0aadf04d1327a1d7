"""Same seed, same batches."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sharpwave as sw

SAMPLERS: dict[str, Callable[[], Any]] = {
    "uniform": sw.Uniform,
    "prioritized": lambda: sw.Prioritized(alpha=0.7),
    "rank": sw.RankPrioritized,
    "mixture": lambda: sw.Mixture([(0.7, sw.Prioritized(alpha=0.7)), (0.2, sw.Uniform()), (0.1, sw.Lifo())]),
}


def run(
    sampler: str = "uniform",
    seed: int = 3,
    view_seed: int | None = None,
    codec: str = "auto",
    others: bool = False,
    held: int = 0,
) -> str:
    """Write, sample and update in turn, and give a digest of every batch."""
    digest = hashlib.sha256()
    spec = sw.Spec(obs=sw.Field((6, 6), "uint8", stack=3), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=90, segment_steps=8, codec=codec, seed=seed) as store:
        replay = store.transitions(n_step=3, sampler=SAMPLERS[sampler](), seed=view_seed)
        other = store.transitions(sampler=sw.Uniform(), seed=99) if others else None
        made = np.random.default_rng(0)
        kept: list[sw.Batch] = []
        for k in range(120):
            store.extend(
                obs=made.integers(0, 9, (2, 6, 6)).astype(np.uint8),
                action=np.array([k, -k]),
                reward=made.normal(size=2).astype(np.float32),
                terminated=np.array([k % 9 == 8, False]),
                truncated=np.array([False, k % 14 == 5]),
                final_obs=np.full((2, 6, 6), 7, np.uint8),
            )
            if k < 5:
                continue
            batch = replay.sample(16)
            kept = [batch, *kept][:held]
            for part in (batch.ids, batch.obs, batch.next_obs, batch.reward, batch.discount, batch.weights):
                digest.update(np.ascontiguousarray(part).tobytes())
            if sampler != "uniform":
                replay.update_priorities(batch.ids, np.abs(batch.reward))
            if other is not None:
                other.sample(5)
                np.random.random(3)
    return digest.hexdigest()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_same_seed_same_batches(sampler: str) -> None:
    assert run(sampler) == run(sampler)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_other_seed_other_batches(sampler: str) -> None:
    assert run(sampler, seed=3) != run(sampler, seed=4)
    assert run(sampler, view_seed=3) != run(sampler, view_seed=4)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_views_own_seed_decides(sampler: str) -> None:
    assert run(sampler, seed=3, view_seed=8) == run(sampler, seed=4, view_seed=8)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_other_views_and_other_generators_change_nothing(sampler: str) -> None:
    assert run(sampler, view_seed=8) == run(sampler, view_seed=8, others=True)


@pytest.mark.parametrize("codec", ["raw", "zstd", "delta"])
def test_neither_codec_nor_batches_that_are_held_change_what_is_drawn(codec: str) -> None:
    assert run("prioritized", codec=codec, held=5) == run("prioritized")


def test_fetching_and_counting_do_not_move_the_draws() -> None:
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
    drawn = []
    for curious in (False, True):
        with sw.Store(spec, capacity=50, seed=1) as store:
            replay = store.transitions()
            for k in range(30):
                store.append(obs=np.array([k, k], np.float32), action=k, reward=0.0, terminated=False, truncated=False)
            ids = []
            for _ in range(5):
                ids.append(replay.sample(8).ids.tolist())
                if curious:
                    replay.fetch(replay.sampleable_ids()[:3])
                    len(replay)
                    store.stats()
            drawn.append(ids)
    assert drawn[0] == drawn[1]


def test_another_process_draws_the_same() -> None:
    code = "from store.test_determinism import run; print(run('prioritized'))"
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert answer.stdout.strip() == run("prioritized")
