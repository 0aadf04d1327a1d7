"""What a ``Blend`` refuses, and that threads and views beside it change nothing of it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.views.test_blend import numbered, prioritized


def test_a_limiter_that_can_never_admit_a_whole_batch_is_found_at_the_first_one() -> None:
    """Parts are of random size: it was found once a part was too large, and every later call failed."""
    limiter = sw.SamplesPerInsert(8, 50, error_buffer=8)
    with numbered(0) as first, numbered(1000) as second:
        blend = sw.Blend([(0.5, first.transitions(limiter=limiter)), (0.5, second.transitions())])
        for _ in range(2):
            with pytest.raises(ValueError, match=r"batch_size=24 exceeds .* \(all of a batch may be from"):
                blend.sample(24)
            with pytest.raises(ValueError, match=r"all of a batch may be from view"):
                blend.stream(24)
        assert blend.samples == 0
        assert len(blend.sample(16).ids) == 16


@pytest.mark.parametrize("limiter", [None, sw.SamplesPerInsert(1.0, 50, error_buffer=1e9)])
def test_threads_wait_for_each_other_s_draws_whatever_the_timeout(limiter: Any) -> None:
    """The timeout is for steps that a limiter demands; this one always has enough."""
    with numbered(0) as first, numbered(1000) as second:
        blend = sw.Blend([(0.5, first.transitions(limiter=limiter)), (0.5, second.transitions())])
        stream = blend.stream(32, timeout=0)
        failed: list[Exception] = []

        def draw() -> None:
            try:
                for _ in range(300):
                    blend.sample(32, timeout=0)
                    next(stream)
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=draw) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert blend.samples >= 3 * 300 * 2 * 32


def test_priorities_are_set_in_all_stores_or_in_none() -> None:
    with numbered(0) as first, numbered(1000) as second:
        views = [first.transitions(sampler=prioritized()), second.transitions(sampler=prioritized())]
        blend = sw.Blend([(0.5, view) for view in views])
        batch = blend.sample(32)
        second.close()
        with pytest.raises(ValueError, match="closed"):
            blend.update_priorities(batch, np.full(32, 9.0))
        assert views[0].sample(64).probabilities == pytest.approx(np.full(64, 1 / len(views[0])))


def test_a_batch_of_a_blend_is_no_batch_of_a_view() -> None:
    with numbered(0) as first, numbered(1000) as second:
        view = first.transitions(sampler=prioritized())
        blend = sw.Blend([(0.5, view), (0.5, second.transitions(sampler=prioritized()))])
        batch = blend.sample(32)
        with pytest.raises(ValueError, match="update_priorities: this batch is of a blend"):
            view.update_priorities(batch, np.ones(32))
        with pytest.raises(ValueError, match="fetch: this batch is of a blend"):
            view.fetch(batch)
        own = np.asarray(batch.ids)[np.asarray(batch.source) == 0]
        assert view.update_priorities(own, np.ones(len(own))) == 0
        for beyond in (2, -1, 0.5, 1.0, True, "1", float("nan")):
            batch.source = np.full(32, beyond)  # as of a batch that lost its tag
            with pytest.raises(ValueError, match=r"not .* integers from 0 to 1"):
                blend.update_priorities(batch, np.ones(32))
        batch.source, batch.ids = np.ones((4, 8), np.int64), np.asarray(batch.ids).reshape(4, 8)
        with pytest.raises(ValueError, match=r"not .* integers from 0 to 1"):
            blend.update_priorities(batch, np.ones((4, 8)))


@pytest.mark.parametrize("seed", [-1, "x", 1.5, True, np.random.default_rng(0)])
def test_a_seed_is_an_integer(seed: Any) -> None:
    with numbered(0) as store, pytest.raises(ValueError, match=r"Blend: seed=.*expected an integer of at least 0"):
        sw.Blend([(1, store.transitions())], seed=seed)


@pytest.mark.parametrize("share", [10**400, np.longdouble("1e400")])
def test_a_share_beyond_float64_is_named(share: Any) -> None:
    with numbered(0) as store, pytest.raises(ValueError, match=r"Blend: share=.*expected a finite number"):
        sw.Blend([(share, store.transitions())])


def test_a_state_is_a_mapping() -> None:
    with numbered(0) as store:
        blend, nothing = sw.Blend([(1, store.transitions())]), None
        with pytest.raises(TypeError, match="Blend: got a state of NoneType"):
            blend.restore(nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-1, float("nan"), "x"])
def test_a_stream_checks_its_timeout(timeout: Any) -> None:
    with numbered(0) as store:
        view = store.transitions()
        for drawn_from in (view, sw.Blend([(1, view)])):
            with pytest.raises(ValueError, match=r"stream: timeout="):
                drawn_from.stream(4, timeout=timeout)
