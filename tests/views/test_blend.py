"""``Blend``: which view an item is from, what each view learns of it, and that a failing part changes nothing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.views.view_parts import _moves, _order
from tests.sampling.test_samplers import chi_square, chi_square_bound

NUMBER = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"))


def numbered(first: int, steps: int = 100, seed: int = 0, **settings: Any) -> sw.Store:
    """One episode of steps whose actions are numbers from ``first`` on."""
    store = sw.Store(NUMBER, capacity=1000, seed=seed, **settings)
    append(store, first, steps)
    return store


def append(store: sw.Store, first: int, steps: int) -> None:
    for number in range(first, first + steps):
        store.append(obs=number, action=number, reward=1.0, terminated=False, truncated=False)


def prioritized() -> sw.Prioritized:
    return sw.Prioritized(alpha=1.0, beta=1.0)


def states(*views: Any) -> list[Any]:
    """What the next draws of views depend on."""
    return [(view.source.items.rng.bit_generator.state, view.source.items.samples, len(view)) for view in views]


@pytest.mark.parametrize("shares", [(1 / 4, 3 / 4), (1, 255), (2.0, 1.0), (1, 0), (0.0, 0.5)])
def test_items_come_from_each_view_with_its_share(shares: tuple[float, float]) -> None:
    with numbered(0) as one, numbered(1000) as two:
        blend = sw.Blend([(shares[0], one.transitions()), (shares[1], two.transitions())], seed=3)
        expected = np.array(shares) / sum(shares)
        np.testing.assert_allclose(blend.shares(), expected)
        counts = np.zeros(2)
        for _ in range(40):
            batch = blend.sample(500)
            assert batch.source.dtype == np.int64 and batch.source.shape == (500,)
            np.testing.assert_array_equal(batch.source, batch.action >= 1000)
            counts += np.bincount(batch.source, minlength=2)
        assert blend.samples == counts.sum() == 20_000
        some = expected > 0
        assert not counts[~some].any()
        if some.all():
            assert chi_square(counts, expected * 20_000) < chi_square_bound(2)


def test_three_views_of_one_store() -> None:
    with numbered(0) as store:
        views = [store.transitions(name=name, sampler=prioritized()) for name in ("a", "b", "c")]
        views[1].update_priorities(views[1].sampleable_ids(), np.arange(99.0))
        blend = sw.Blend([(1, view) for view in views])
        batch = blend.sample(3000)
        counts = np.bincount(batch.source)
        assert chi_square(counts, np.full(3, 1000.0)) < chi_square_bound(3)
        assert batch.action[batch.source == 1].mean() > 60 > 55 > batch.action[batch.source == 0].mean()


def test_shares_may_be_scheduled() -> None:
    with numbered(0) as one, numbered(1000) as two:
        seen: list[int] = []

        def falling(samples: int) -> float:
            seen.append(samples)
            return max(0.0, 1 - samples / 1000)

        blend = sw.Blend([(falling, one.transitions()), (lambda samples: min(1.0, samples / 1000), two.transitions())])
        sources = [blend.sample(250).source.mean() for _ in range(6)]
        assert sources[0] == 0 and sources[4] == sources[5] == 1
        assert 0.1 < sources[1] < 0.4 < sources[2] < 0.6 < sources[3] < 0.9
        assert set(seen) == {0, 250, 500, 750, 1000, 1250}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_schedule_may_return_numbers_of_few_bits(dtype: str) -> None:
    steps = np.linspace(0, 1, 60).astype(dtype)
    with numbered(0) as one, numbered(1000) as two:
        parts = [(lambda n: steps[n // 32] + steps[1], one.transitions()), (lambda n: steps[-1], two.transitions())]
        blend = sw.Blend(parts)
        for _ in range(50):
            assert blend.shares().sum() == pytest.approx(1, abs=1e-15)
            blend.sample(32)


def test_probabilities_are_the_blend_s_and_weights_each_view_s() -> None:
    with numbered(0, 11) as one, numbered(1000, 21) as two:
        views = [one.transitions(sampler=prioritized()), two.transitions()]
        errors = np.arange(1.0, 11.0)
        views[0].update_priorities(views[0].sampleable_ids(), errors)
        by_action = dict(zip(views[0].fetch(views[0].sampleable_ids()).action.tolist(), errors, strict=True))
        batch = sw.Blend([(0.2, views[0]), (0.8, views[1])]).sample(2000)
        own = batch.source == 0
        np.testing.assert_allclose(batch.probabilities[~own], 0.8 / 20)
        priorities = np.array([by_action[action] for action in batch.action[own].tolist()])
        np.testing.assert_allclose(batch.probabilities[own], 0.2 * priorities / errors.sum(), rtol=1e-3)
        assert (batch.weights[~own] == 1).all()
        np.testing.assert_allclose(batch.weights[own], priorities.min() / priorities, rtol=1e-3)


def test_priorities_go_to_the_view_that_an_item_is_from() -> None:
    with numbered(0) as one, numbered(1000) as two:
        views = [one.transitions(sampler=prioritized()), two.transitions(sampler=prioritized())]
        blend = sw.Blend([(1, views[0]), (1, views[1])])
        batch = blend.sample(64)  # ids of both stores are the same numbers
        assert set(batch.ids[batch.source == 0].tolist()) & set(batch.ids[batch.source == 1].tolist())
        chosen = [int(batch.action[batch.source == k][0]) for k in (0, 1)]
        assert blend.update_priorities(batch, np.where(np.isin(batch.action, chosen), 1e9, 1e-9)) == 0
        for view, action in zip(views, chosen, strict=True):
            assert (view.sample(50).action == action).all()  # others have 1e-9, or 1 as new ones


def test_priorities_of_a_batch_on_a_device() -> None:
    """Its arrays are no numpy arrays until they are copied to the host."""

    @dataclass
    class OnDevice:
        array: Any

        def cpu(self) -> Any:
            return self.array

    @dataclass
    class Moved:
        source: Any
        ids: Any

    with numbered(0) as one, numbered(1000) as two:
        views = [store.transitions(sampler=prioritized()) for store in (one, two)]
        blend = sw.Blend([(1, view) for view in views])
        batch = blend.sample(20)
        moved: Any = Moved(OnDevice(batch.source), OnDevice(batch.ids))
        assert blend.update_priorities(moved, np.full(20, 3.0)) == 0
        for k, view in enumerate(views):
            one_of = view.fetch(view.sampleable_ids())
            raised = set(batch.action[batch.source == k].tolist())
            found = view.source.items.sampler.state()["values"]
            assert np.isclose(found, 3.0, rtol=1e-5).sum() == len(raised & set(one_of.action.tolist()))


def test_stale_items_are_counted_and_skipped() -> None:
    with sw.Store(NUMBER, capacity=50, segment_steps=10) as one, numbered(1000) as two:
        append(one, 0, 50)
        blend = sw.Blend([(1, one.transitions(sampler=prioritized())), (1, two.transitions(sampler=prioritized()))])
        batch = blend.sample(40)
        append(one, 50, 60)  # evicts what was sampled
        assert blend.update_priorities(batch, np.ones(40)) == np.count_nonzero(batch.source == 0)


def test_batches_of_windows_are_joined_with_all_their_parts() -> None:
    core = {"core": sw.Field((2,), "float32", every=2)}
    spec = sw.Spec(obs={"a": sw.Field((3,), "uint8", stack=2), "b": sw.Field((), "float32")},
                   action=sw.Field((), "int64"), **core)  # fmt: skip
    stores = [sw.Store(spec, capacity=100) for _ in range(2)]
    for k, store in enumerate(stores):
        for number in range(20):
            store.append(
                obs={"a": np.full(3, number + 100 * k, np.uint8), "b": number}, action=number + 100 * k, reward=1.0,
                terminated=number % 10 == 9, truncated=False, final_obs={"a": np.zeros(3, np.uint8), "b": 0.0},
                core=np.full(2, number + 100 * k),
            )  # fmt: skip
    views = [store.sequences(4, burn_in=2, stride=2, n_step=2, sampler=prioritized()) for store in stores]
    blend = sw.Blend([(0.3, views[0]), (0.7, views[1])])
    batch = blend.sample(50)
    assert len(batch) == 50 and batch.burn_in == 2 and set(batch.source.tolist()) == {0, 1}
    for k, view in enumerate(views):
        mine = batch.source == k
        alone = view.fetch(batch.ids[mine])
        for name in ("action", "reward", "step_reward", "discount", "bootstrap", "mask", "first", "core"):
            np.testing.assert_array_equal(batch[name][mine], alone[name], err_msg=name)
        for name in ("a", "b"):
            np.testing.assert_array_equal(batch.obs[name][mine], alone.obs[name])
    assert blend.update_priorities(batch, np.ones((50, 4))) == 0
    tensors = batch.torch()
    assert tensors.source.tolist() == batch.source.tolist() and tensors.burn_in == 2
    for store in stores:
        store.close()


def test_the_same_seed_gives_the_same_batches_also_from_a_state() -> None:
    def blends(seed: int) -> sw.Blend[Any]:
        views = [numbered(first, seed=0).transitions(seed=first) for first in (0, 1000)]
        return sw.Blend([(0.4, views[0]), (0.6, views[1])], seed=seed)

    one, two, other = blends(1), blends(1), blends(2)
    for _ in range(3):
        np.testing.assert_array_equal(one.sample(30).action, two.sample(30).action)
    assert not np.array_equal(blends(1).sample(30).source, other.sample(30).source)
    restored = blends(7)
    restored.restore(one.state())
    assert restored.samples == one.samples == 90
    np.testing.assert_array_equal(restored.sample(30).source, one.sample(30).source)


def test_a_stream_gives_batches() -> None:
    with numbered(0) as one, numbered(1000) as two:
        blend = sw.Blend([(1, one.transitions()), (1, two.transitions())])
        batches = [batch for batch, _ in zip(blend.stream(8), range(3), strict=False)]
        assert [len(batch) for batch in batches] == [8, 8, 8]


# what fails


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({}, sw.EmptyError),
        ({"limiter": sw.MinSize(10)}, sw.LimiterTimeoutError),
    ],
    ids=["empty", "limiter"],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_part_that_cannot_be_sampled_leaves_all_undrawn(limits: Any, error: Any, order: int) -> None:
    with numbered(0) as one, sw.Store(NUMBER, capacity=100) as two:
        views = [one.transitions(max_times_sampled=1), two.transitions(**limits)][::order]
        blend = sw.Blend([(1, view) for view in views], seed=5)
        assert len(blend) == 0
        before, state = states(*views), blend.state()
        for _ in range(3):
            with pytest.raises(error):
                blend.sample(40, timeout=0)
        assert states(*views) == before and blend.state() == state
        append(two, 1000, 20)
        assert len(blend) == 99 + 19
        batch = blend.sample(40)
        again = np.random.default_rng(5).choice(2, size=40, p=[0.5, 0.5])
        np.testing.assert_array_equal(batch.source, again)


def test_a_thread_waits_no_longer_than_its_own_timeout_for_one_that_waits_for_steps() -> None:
    with sw.Store(NUMBER, capacity=100) as store:
        blend = sw.Blend([(1, store.transitions(limiter=sw.MinSize(10)))])
        batches: list[Any] = []
        waiting = threading.Thread(target=lambda: batches.append(blend.sample(4, timeout=30)))
        waiting.start()
        while not store.stats()["sample_waits"]:
            time.sleep(0.001)
        with pytest.raises(sw.LimiterTimeoutError, match=r"timed out after 0\.1 s; another thread samples"):
            blend.sample(4, timeout=0.1)
        assert waiting.is_alive()  # it was not waited for
        append(store, 0, 20)
        waiting.join()
        assert len(batches) == 1


def test_too_few_uses_left_in_one_part_leave_all_undrawn() -> None:
    with numbered(0) as one, numbered(1000, 5) as two:
        views = [one.transitions(), two.transitions(max_times_sampled=1)]
        blend = sw.Blend([(1, views[0]), (1, views[1])])
        before = states(*views)
        with pytest.raises(sw.EmptyError, match="nothing was taken"):
            blend.sample(40)
        assert states(*views) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size=0, expected an integer from 1"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"batch_size": 8, "beta": 2}, "beta=2, expected a number from 0 to 1"),
        ({"batch_size": 8, "timeout": -1}, "timeout=-1, expected seconds"),
    ],
)
def test_arguments_of_sample_are_named(arguments: dict[str, Any], message: str) -> None:
    with numbered(0) as one, numbered(1000) as two:
        views = [one.transitions(), two.transitions()]
        blend = sw.Blend([(1, views[0]), (1, views[1])])
        before = states(*views)
        with pytest.raises(ValueError, match=message):
            blend.sample(**arguments)
        assert states(*views) == before and blend.samples == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_errors_that_one_view_refuses_change_no_view(bad: float) -> None:
    with numbered(0) as one, numbered(1000) as two:
        views = [one.transitions(sampler=prioritized()), two.transitions(sampler=prioritized())]
        blend = sw.Blend([(1, views[0]), (1, views[1])])
        batch = blend.sample(20)
        errors = np.full(20, 5.0)
        errors[np.flatnonzero(batch.source == 1)[-1]] = bad
        with pytest.raises(ValueError, match=r"td_error\[\d+\] is"):
            blend.update_priorities(batch, errors)
        with pytest.raises(ValueError, match=r"shape \(19,\), expected \(20,\)"):
            blend.update_priorities(batch, errors[1:])
        for view in views:
            assert np.ptp(view.sample(99).probabilities) < 1e-9  # all have their first priority still


def test_a_batch_of_another_blend_is_refused() -> None:
    with numbered(0) as one, numbered(1000) as two:
        views = [one.transitions(sampler=prioritized()), two.transitions(sampler=prioritized())]
        mine, other = (sw.Blend([(1, view) for view in order]) for order in (views, views[::-1]))
        batch = other.sample(20)
        for given in (batch, batch.copy()):
            with pytest.raises(ValueError, match="this batch is of another blend"):
                mine.update_priorities(given, np.ones(20))
        assert other.update_priorities(batch.copy(), np.ones(20)) == 0


def test_a_batch_is_memory_of_the_store_with_the_largest_share() -> None:
    with numbered(0, ram=4 << 20) as one, numbered(1000) as two:
        blend = sw.Blend([(0.7, one.sequences(4)), (0.3, two.sequences(4))])
        before = [store.stats()["held_batch_bytes"] for store in (one, two)]
        batch = blend.sample(256)
        held = [store.stats()["held_batch_bytes"] - was for store, was in zip((one, two), before, strict=True)]
        assert held[0] >= batch.obs.nbytes + batch.action.nbytes and held[1] == 0
        with pytest.raises(MemoryError, match="does not fit"):
            blend.sample(100_000)
        part = batch.action[3:5]
        expected = part.tolist()
        del batch
        for _ in range(3):
            blend.sample(256)
        assert part.tolist() == expected, "a slice keeps its memory"


@pytest.mark.parametrize("seed", range(5))
def test_items_move_as_little_as_can_be(seed: int) -> None:
    """Grouped 0 0 0 1 1 and wanted 1 0 0 0 1: the first and the fourth change places."""
    moves = [places.tolist() for places in _moves(np.array([1, 0, 0, 0, 1]))]
    assert sorted(zip(*moves, strict=True)) == [(0, 3), (3, 0)]
    source = np.random.default_rng(seed).integers(0, 3, 40)
    grouped = np.sort(source)
    for items, places in (_moves(source), _order(source)):
        moved = grouped.copy()
        moved[places] = moved[items]
        np.testing.assert_array_equal(moved, source)
    assert len(_moves(source)[0]) == np.count_nonzero(grouped != source)


def test_queues_keep_their_order() -> None:
    with numbered(0) as one, numbered(1000) as two:
        blend = sw.Blend([(1, view) for view in (one.transitions(sampler=sw.Fifo()), two.transitions())])
        batch = blend.sample(40)
        mine = batch.action[batch.source == 0]
        np.testing.assert_array_equal(mine, np.arange(len(mine)))


def test_ids_alone_do_not_say_which_view_they_are_from() -> None:
    with numbered(0) as one, numbered(1000) as two:
        blend = sw.Blend([(1, one.transitions()), (1, two.transitions())])
        batch = blend.sample(4)
        for given in (batch.ids, one.transitions(name="alone").sample(4)):
            with pytest.raises(TypeError, match="a batch that this blend sampled"):
                blend.update_priorities(given, np.ones(4))


def test_parts_are_refused_by_name() -> None:
    with numbered(0) as one, numbered(1000) as two:
        view, other = one.transitions(), two.transitions()
        wrong: list[Any] = [None, 5, view, [], [view], [(1, "view")], [(0.5, view), other], [(1, one)]]
        for parts in wrong:
            with pytest.raises(TypeError, match=r"expected a list of \(share, view\)"):
                sw.Blend(parts)
        shares: list[Any] = [-1, float("nan"), float("inf"), "half", True, None]
        for share in shares:
            with pytest.raises(ValueError, match=r"Blend: share=.*, expected a finite number of at least 0"):
                sw.Blend([(1, view), (share, other)])
        with pytest.raises(ValueError, match="sum to 0, expected a positive one"):
            sw.Blend([(0, view), (0.0, other)])
        with pytest.raises(ValueError, match="sum to inf, expected a positive one that is finite"):
            sw.Blend([(1e308, view), (1e308, other)])
        numpys: list[Any] = [np.int64(1), np.float32(3)]
        assert sw.Blend(list(zip(numpys, (view, other), strict=True))).shares().tolist() == [0.25, 0.75]
        blend = sw.Blend([(1, view), (lambda samples: -samples, other)])
        blend.sample(4)
        with pytest.raises(ValueError, match="share=-4, expected a finite number"):
            blend.sample(4)


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ({"length": 4}, {"length": 5}, "action"),
        ({"length": 4, "n_step": 2}, {"length": 4}, "obs"),
        ({"length": 4, "burn_in": 2}, {"length": 3, "burn_in": 3}, "burn_in"),
        ({"length": 4, "gamma": 0.9}, {"length": 4}, r"gamma \(gamma: 0.9 and 0.99\)"),
        ({"length": 4, "n_step": 2}, {"length": 4, "n_step": 3}, r"n_step.* \(n_step: 2 and 3\)"),
    ],
)
def test_views_whose_batches_differ_are_refused(first: Any, second: Any, named: str) -> None:
    with numbered(0) as one, numbered(1000) as two:
        with pytest.raises(ValueError, match=rf"differ in .*{named}.*expected views of one kind"):
            sw.Blend([(1, one.sequences(**first)), (1, two.sequences(**second))])
        with pytest.raises(ValueError, match=r"differ in .*kind"):
            views: list[Any] = [one.transitions(), two.sequences(4)]
            sw.Blend([(1, view) for view in views])


def test_transitions_of_another_gamma_are_refused_and_windows_of_another_stride_are_not() -> None:
    with numbered(0) as one, numbered(1000) as two:
        with pytest.raises(ValueError, match=r"differ in gamma \(gamma: 0.9 and 0.5\)"):
            sw.Blend([(1, one.transitions(gamma=0.9)), (1, two.transitions(gamma=0.5))])
        parts = [(1, one.sequences(4, stride=1, eta=0.5)), (1, two.sequences(4))]
        assert len(sw.Blend(parts).sample(32)) == 32


def test_stores_of_other_fields_are_refused() -> None:
    other = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((2,), "float32"))
    message = r"differ in action \(action: .*int64.* and .*float32"
    with numbered(0) as one, sw.Store(other, capacity=10) as two, pytest.raises(ValueError, match=message):
        sw.Blend([(1, one.transitions()), (1, two.transitions())])
