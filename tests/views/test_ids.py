"""Ids know which store they are of."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sharpwave as sw


def filled(steps: int = 200, **more: Any) -> sw.Store:
    spec = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=1000, seed=1, **more)
    for k in range(steps):
        store.append(obs=k, action=k, reward=0.0, terminated=True, truncated=False)
    return store


@pytest.fixture
def two() -> Iterator[tuple[Any, Any]]:
    """Views of two stores whose ids are the same numbers."""
    with filled() as one, filled() as other:
        views = tuple(store.transitions(sampler=sw.Prioritized(alpha=1.0)) for store in (one, other))
        yield views[0], views[1]


GUISES: dict[str, Callable[[Any], Any]] = {
    "batch": lambda batch: batch,
    "copied batch": lambda batch: batch.copy(),
    "ids": lambda batch: batch.ids,
    "slice": lambda batch: batch.ids[3:9],
    "copy": lambda batch: batch.ids.copy(),
    "copy.copy": lambda batch: copy.copy(batch.ids),
    "deepcopy": lambda batch: copy.deepcopy(batch.ids),
    "chosen": lambda batch: batch.ids[[4, 1, 2]],
    "masked": lambda batch: batch.ids[batch.ids % 2 == 0],
    "taken": lambda batch: np.take(batch.ids, [1, 2]),
    "sorted": lambda batch: np.sort(batch.ids),
    "unique": lambda batch: np.unique(batch.ids),
    "reshaped": lambda batch: batch.ids.reshape(4, 4)[1],
    "concatenated": lambda batch: np.concatenate([batch.ids, batch.ids]),
    "beside a list": lambda batch: np.concatenate([batch.ids, [5]]),
    "stacked": lambda batch: np.hstack([batch.ids[:3], batch.ids[4:]]),
    "as int64": lambda batch: batch.ids.astype(np.int64),
    "list of arrays": lambda batch: np.concatenate(list(np.split(batch.ids, 4))),
}


@pytest.mark.parametrize("guise", GUISES)
def test_ids_of_another_store_are_refused(two: tuple[Any, Any], guise: str) -> None:
    mine, other = two
    ids = GUISES[guise](other.sample(16))
    before = mine.sampler.state()["values"].tolist()
    for call in (lambda: mine.update_priorities(ids, np.full(len(ids), 9.0)), lambda: mine.fetch(ids)):
        with pytest.raises(ValueError, match="of another store"):
            call()
    assert mine.sampler.state()["values"].tolist() == before
    own = GUISES[guise](mine.sample(16))
    assert mine.update_priorities(own, np.full(len(own), 9.0)) in (0, int(guise == "beside a list"))
    assert other.update_priorities(ids, np.full(len(ids), 9.0)) in (0, int(guise == "beside a list"))


def test_ids_of_several_stores_are_refused_by_all(two: tuple[Any, Any]) -> None:
    joined = np.concatenate([view.sample(4).ids for view in two])
    for view in two:
        with pytest.raises(ValueError, match="of another store"):
            view.update_priorities(joined, np.ones(8))


def test_ids_found_by_any_view_serve_any_other_of_the_store(two: tuple[Any, Any]) -> None:
    with filled() as store:
        one, other = store.transitions(), store.transitions(n_step=2, sampler=sw.RankPrioritized())
        assert other.update_priorities(one.sample(8), np.ones(8)) == 0
        assert len(one.fetch(other.sampleable_ids())) == 200
        ids = next(one.stream(8)).ids
        assert other.fetch(ids).action.tolist() == one.fetch(ids).action.tolist()
    with pytest.raises(ValueError, match="of another store"):
        two[0].fetch(two[1].sampleable_ids())
    with pytest.raises(ValueError, match="of another store"):
        two[0].update_priorities(next(two[1].stream(4)), np.ones(4))


def test_ids_of_windows_name_other_items_in_views_of_another_stride() -> None:
    with filled() as store:
        windows, same = store.sequences(6, stride=3), store.sequences(8, stride=3, burn_in=2)
        ids = windows.sampleable_ids()
        shared = ids[np.isin(ids, same.sampleable_ids())]
        assert same.fetch(shared).action[:, 2].tolist() == windows.fetch(shared).action[:, 0].tolist()
        for other in (store.transitions(), store.sequences(6, stride=2)):
            with pytest.raises(
                ValueError, match=f"these ids are of windows of stride 3, expected ids of {other.view.id_space}"
            ):
                other.fetch(ids)
            with pytest.raises(ValueError, match="these ids are of windows of stride 3"):
                other.update_priorities(ids, np.ones((len(ids), *other.view.error_shape)))


def test_windows_are_found_by_views_that_know_less_of_them() -> None:
    """The store's first view of that stride has longer windows, and has not been asked since the steps came."""
    with filled(0, segment_steps=8) as store:
        longer, shorter = store.sequences(12, stride=4, name="long"), store.sequences(4, stride=4, name="short")
        for step in range(97):
            if step % 10 == 0:
                store.annotate(0, {"episode": step // 10}, episode=True)
            store.append(obs=step, action=step, reward=0.0, terminated=step % 10 == 9, truncated=False)
        ids = shorter.sampleable_ids()
        found = [one["episode"] for one in store.annotations_of(ids)]
        assert found == (shorter.fetch(ids).action[:, 0] // 10).tolist() and max(found) == 9
        other = store.sequences(4, stride=2)
        with pytest.raises(ValueError, match="these ids are of several views, or of another store"):
            store.annotations_of(np.concatenate([ids, other.sampleable_ids()]))
        for wrong in (ids + (1 << 40), ids - (1 << 40)):
            with pytest.raises(KeyError, match="was evicted"):
                store.annotations_of(wrong)
        del longer


def test_no_ids_are_no_batch_at_all(two: tuple[Any, Any]) -> None:
    batch = two[0].fetch([])
    assert len(batch) == 0 and batch.obs.shape == (0,) and two[0].update_priorities(batch, []) == 0


def test_plain_numbers_are_not_checked(two: tuple[Any, Any]) -> None:
    mine, other = two
    batch = other.sample(8)
    for ids in (np.asarray(batch.ids), batch.ids.tolist(), torch.from_numpy(batch.ids), batch.torch().ids):
        assert mine.update_priorities(ids, np.ones(8)) == 0
    assert mine.update_priorities(mine.sample(8).torch(), torch.ones(8)) == 0


def test_a_store_that_was_opened_anew_is_another(tmp_path: Path) -> None:
    with filled() as store:
        view = store.transitions()
        batch = view.sample(8)
        store.checkpoint(tmp_path / "ckpt")
        with sw.Store.open(tmp_path / "ckpt") as opened:
            again = opened.transitions()
            with pytest.raises(ValueError, match="opened again"):
                again.fetch(batch)
            assert again.fetch(np.asarray(batch.ids)).action.tolist() == batch.action.tolist()


def test_same_seed_same_ids() -> None:
    drawn = []
    for _ in range(2):
        with filled() as store:
            drawn.append(store.transitions().sample(32).ids.tolist())
    assert drawn[0] == drawn[1]
    assert max(drawn[0]) < 1 << 40  # plain numbers: no store adds anything of its own to them


def test_ids_are_an_array_like_any_other(two: tuple[Any, Any]) -> None:
    ids = two[0].sample(16).ids
    assert isinstance(ids, np.ndarray) and ids.dtype == np.int64 and ids.shape == (16,)
    assert (ids + 1 - 1 == ids).all() and ids.max() == max(ids.tolist())
    assert ids[3] == ids.tolist()[3] and {int(i) for i in ids} == set(ids.tolist())
    assert torch.from_numpy(ids).tolist() == ids.tolist()
    assert np.isin(ids, two[0].sampleable_ids()).all()


# what cannot work is refused, by name


@pytest.mark.parametrize("n_step", [10**10, 10**6 + 1, np.int64(2**62)])
def test_n_step_has_a_limit(n_step: Any) -> None:
    with filled() as store:
        with pytest.raises(ValueError, match=r"n_step=.*expected an integer from 1 to 1,000,000"):
            store.transitions(n_step=n_step)
        view = store.transitions(n_step=1_000_000)
        for k in range(1200):  # segments leave as well
            store.append(obs=k, action=k, reward=1.0, terminated=True, truncated=False)
        assert (view.sample(8).reward == 1).all()


def test_sizes_have_limits() -> None:
    with filled() as store:
        view = store.transitions()
        for call, says in (
            (lambda: view.sample(10**10), "batch_size=10000000000, expected an integer from 1 to 16,777,216"),
            (lambda: view.stream(10**10), "batch_size=10000000000, expected"),
            (lambda: view.stream(8, lookahead=10**10), "lookahead=10000000000, expected an integer from 0 to 1024"),
            (lambda: store.transitions(max_times_sampled=10**10), "max_times_sampled=10000000000, expected"),
            (lambda: store.transitions(gamma=float("nan")), "gamma=nan"),
            (lambda: store.resize(capacity=10**12), r"capacity=1000000000000, expected .* to 2\*\*31"),
        ):
            with pytest.raises(ValueError, match=says):
                call()
        assert len(view.sample(8)) == 8


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: sw.Prioritized(alpha=1.0),
        lambda: sw.Prioritized(alpha=0.0),
        sw.RankPrioritized,
        lambda: sw.Mixture([(0.5, sw.Prioritized(alpha=1.0)), (0.5, sw.RankPrioritized())]),
    ],
)
def test_the_largest_errors_can_be_summed(sampler: Callable[[], Any]) -> None:
    most = float(np.finfo(np.float32).max)
    with filled() as store:
        view = store.transitions(sampler=sampler())
        ids = view.sampleable_ids()
        for wrong in (1e308, -1e308, 3.5e38, np.inf, np.nan):
            errors = np.ones(len(ids))
            errors[7] = wrong
            with pytest.raises(ValueError, match=r"td_error\[7\] is .*at most 3.4e\+38"):
                view.update_priorities(ids, errors)
        assert view.update_priorities(ids, np.full(len(ids), most)) == 0
        for beta in (0.0, 0.4, 1.0):
            batch = view.sample(64, beta=beta)
            assert np.isfinite(batch.weights).all() and (batch.weights > 0).all() and (batch.probabilities > 0).all()
        view.update_priorities(ids[::2], np.zeros(100))  # beside the smallest
        for _ in range(20):
            batch = view.sample(64, beta=1.0)
            assert np.isfinite(batch.weights).all() and (batch.probabilities > 0).all()


@pytest.mark.parametrize("eps", [0, 1e-320, 1e-101, 1e31, 1e308, np.inf, np.nan, "small"])
def test_an_eps_whose_share_is_none_is_refused(eps: Any) -> None:
    with pytest.raises(ValueError, match=r"eps=.*expected a number from 1e-100 to 1e\+30"):
        sw.Prioritized(eps=eps)


@pytest.mark.parametrize("eps", [1e-100, 1e30])
def test_the_extremes_of_eps_can_be_sampled(eps: float) -> None:
    with filled() as store:
        view = store.transitions(sampler=sw.Prioritized(alpha=1.0, eps=eps))
        ids = view.sampleable_ids()
        view.update_priorities(ids, np.zeros(len(ids)))
        view.update_priorities(ids[:1], [3e38])
        for beta in (0.0, 1.0):
            batch = view.sample(64, beta=beta)
            assert np.isfinite(batch.weights).all() and (batch.probabilities > 0).all()
