"""Memory that views keep, as ``stats()`` counts it and as the process takes it."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest

import sharpwave as sw
from tests.log.test_remote_segments import Far, picture, spec

SEGMENTS, STEPS = 50, 384


@pytest.fixture(scope="module")
def segments() -> list[sw.SealedSegment]:
    far = Far(1, segment_steps=STEPS)
    for _ in range(SEGMENTS * STEPS + 1):
        far.step("-")
    assert len(far.sealed) == SEGMENTS
    return far.sealed


@pytest.mark.parametrize("kind", ["sequences", "transitions"])
def test_td_errors_of_steps_that_wait_are_counted(segments: list[sw.SealedSegment], kind: str) -> None:
    """Nearly all steps wait, for a window of 5,000 steps or more; what else the segments take is subtracted."""

    def growth(td_error: npt.NDArray[np.float32] | None) -> tuple[int, int]:
        with sw.Store(spec(), capacity=SEGMENTS * STEPS, segment_steps=STEPS) as store:
            sampler = sw.Prioritized()
            view: sw.Sequences | sw.Transitions = (
                store.sequences(20_000, sampler=sampler)
                if kind == "sequences"
                else store.transitions(n_step=20_000, sampler=sampler)
            )
            store.add_segment(segments[0].packed, segments[0].dictionaries)
            len(view)
            tracemalloc.start()
            counted = -store.stats()["bytes"]["samplers"]
            for sealed in segments[1:]:
                errors = None if td_error is None else td_error.copy()
                store.add_segment(sealed.packed, sealed.dictionaries, td_error=errors)
            del errors
            len(view)
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return counted + store.stats()["bytes"]["samplers"], taken

    growth(None)  # what is imported and made once
    counted, taken = np.subtract(growth(np.ones(STEPS, np.float32)), growth(None))
    assert counted == pytest.approx(taken, rel=0.12)
    assert counted > (SEGMENTS - 1) * STEPS * 4


def test_arrays_of_windows_are_counted() -> None:
    """Working memory that grows with batches, and says where each window's steps lie."""
    with sw.Store(spec(), capacity=10_000, segment_steps=8, seed=0) as store:
        view = store.sequences(64, n_step=4)
        for k in range(1_000):
            store.append(obs=picture(k), action=0, reward=0.0, terminated=False, truncated=False, serial=k)
        view.sample(2)
        tracemalloc.start()
        counted = -store.stats()["bytes"]["samplers"] - view.work_bytes
        view.sample(512)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        counted += store.stats()["bytes"]["samplers"] + view.work_bytes
        assert counted == pytest.approx(taken, rel=0.1)
        assert counted > 200_000
