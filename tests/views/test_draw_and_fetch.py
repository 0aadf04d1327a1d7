"""Ids without batches, and batches of ids: ``draw``, ``Store.ids``, and ``fetch`` of what is gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sharpwave as sw

LANES = 3


def filled(steps: int = 400, capacity: int = 300, **settings: Any) -> tuple[sw.Store, list[Any]]:
    """Store of three lanes with episodes of seven steps, whose actions are their numbers; and what extend returned."""
    store = sw.Store(
        sw.Spec(obs=sw.Field((2,), "float32", stack=2), action=sw.Field((), "int64"), lane_of=sw.Field((), "int64")),
        capacity=capacity,
        seed=3,
        **settings,
    )
    ids = [
        store.extend(
            obs=np.full((LANES, 2), t, np.float32),
            action=np.full(LANES, t),
            reward=np.ones(LANES),
            terminated=np.full(LANES, t % 7 == 6),
            truncated=np.zeros(LANES, bool),
            lane_of=np.arange(LANES),
        )
        for t in range(steps)
    ]
    return store, ids


SAMPLERS: dict[str, Any] = {
    "uniform": sw.Uniform,
    "prioritized": lambda: sw.Prioritized(alpha=1.0, beta=0.5),
    "rank": lambda: sw.RankPrioritized(),
    "fifo": sw.Fifo,
}


@pytest.mark.parametrize("kind", ["transitions", "sequences"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_draw_is_a_sample_without_its_batch(kind: str, sampler: str) -> None:
    stores = [filled()[0] for _ in range(2)]
    views: list[Any] = []
    for store in stores:
        asked = dict(sampler=SAMPLERS[sampler](), max_times_sampled=3)
        views.append(store.transitions(**asked) if kind == "transitions" else store.sequences(4, **asked))
    one, other = views
    for _ in range(4):
        drawn, batch = one.draw(20, beta=0.7), other.sample(20, beta=0.7)
        for name in ("ids", "probabilities", "weights"):
            np.testing.assert_array_equal(getattr(drawn, name), getattr(batch, name))
            assert getattr(drawn, name).dtype == getattr(batch, name).dtype
        assert len(one) == len(other)  # they count as sampled
        np.testing.assert_array_equal(one.fetch(drawn).action, batch.action)
        errors = np.arange(20.0)[:, None] * np.ones(batch.mask.shape[1]) if kind == "sequences" else np.arange(20.0)
        assert one.update_priorities(drawn, errors) == other.update_priorities(batch, errors)
    with pytest.raises(ValueError, match="another store"):
        other.fetch(drawn)


def test_a_draw_waits_and_is_refused_as_a_sample() -> None:
    store = filled(steps=5)[0]
    with pytest.raises(sw.LimiterTimeoutError):
        store.transitions(limiter=sw.MinSize(200)).draw(4, timeout=0.0)
    with pytest.raises(sw.EmptyError):
        store.transitions(name="used", max_times_sampled=1).draw(100)
    with pytest.raises(ValueError, match="batch_size=0"):
        store.transitions(name="none").draw(0)


def test_ids_are_those_that_extend_returned_and_batches_have() -> None:
    store, written = filled()
    view = store.transitions(n_step=3)
    batch = view.sample(64)
    np.testing.assert_array_equal(store.ids(batch.lane, batch.step), batch.ids)
    assert (batch.step == batch.action).all() and (batch.lane == batch["lane_of"]).all()
    held = [t for t in range(400) if (store.ids(np.arange(LANES), t, missing="mask") >= 0).all()]
    assert 250 / LANES < len(held) <= 300 / LANES and held[-1] == 399
    for t in held:
        np.testing.assert_array_equal(store.ids(range(LANES), t), written[t])
    fetched = view.fetch(written[held[0]])
    assert (fetched.action == held[0]).all() and fetched["lane_of"].tolist() == [0, 1, 2]
    assert store.ids(1, 399).tolist() == [written[399][1]]
    assert store.ids([], []).shape == (0,)


def test_windows_name_their_lane_and_first_trained_step() -> None:
    store, _ = filled()
    batch = store.sequences(3, burn_in=2).sample(32)
    np.testing.assert_array_equal(batch.step, batch.action[:, 2])
    np.testing.assert_array_equal(batch.lane, batch["lane_of"][:, 2])


def test_fields_may_be_named_like_numbers_of_a_batch() -> None:
    names = ("terminated_", "n", "step", "mask", "first", "bootstrap")
    store = sw.Store(
        sw.Spec(obs=sw.Field((), "int64"), action=sw.Field((), "int64"), **{k: sw.Field((), "int64") for k in names}),
        capacity=100,
    )
    for t in range(20):
        store.append(obs=t, action=t, reward=0, terminated=t % 5 == 4, truncated=False, **{k: -t for k in names})
    batch = store.transitions().sample(16)
    windows = store.sequences(5).sample(4)
    for name in names:
        np.testing.assert_array_equal(batch[name], -batch.action)
        np.testing.assert_array_equal(windows[name], -windows.action)
    assert (batch.n == 1).all() and windows.mask.all() and windows.first[:, 0].all()
    np.testing.assert_array_equal(batch.step, batch.action)


def test_what_is_gone_is_masked() -> None:
    store, written = filled()
    view = store.transitions(n_step=2, gamma=1.0)
    asked = [written[0][0], written[390][1], 1 << 60, -7, written[399][2]]  # evicted, held, no ids, not known yet
    batch = view.fetch(np.array(asked), missing="mask")
    assert batch.ids.tolist() == [-1, asked[1], -1, -1, -1]
    assert batch.weights.tolist() == [0, 1, 0, 0, 0]
    assert batch.obs[1].tolist() == [[389, 389], [390, 390]] and batch.reward[1] == 2
    for name in ("obs", "next_obs", "action", "reward", "discount", "lane_of", "terminated", "n", "step"):
        assert not batch[name][[0, 2, 3, 4]].any(), name
    nothing = view.fetch(np.array([written[0][0]] * 2), missing="mask")
    assert nothing.ids.tolist() == [-1, -1] and not nothing.obs.any() and not nothing.weights.any()
    with pytest.raises(KeyError, match=str(asked[0])):
        view.fetch(np.array(asked))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda store: store.ids(0, 3), KeyError, "step 3 of lane 0 was evicted"),
        (lambda store: store.ids([2, 9], 399), KeyError, "step 399 of lane 9"),
        (lambda store: store.ids(0, 400), KeyError, "not appended yet"),
        (lambda store: store.ids([0, 1], [1, 2, 3]), ValueError, r"lanes \(2,\) and steps \(3,\)"),
        (lambda store: store.ids([[0]], 399), ValueError, r"shape \(1, 1\)"),
        (lambda store: store.ids(0.5, 399), TypeError, "float64"),
        (lambda store: store.ids(0, 399, missing="skip"), ValueError, "missing='skip'"),
        (lambda store: store.transitions().fetch([1], missing=None), ValueError, "missing=None"),
    ],
)
def test_questions_that_make_no_sense(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call(filled()[0])


def test_a_disk_store_finds_its_steps_again(tmp_path: Any) -> None:
    store, written = filled(disk=tmp_path / "store")
    store.close()
    with sw.Store.open(tmp_path / "store") as again:
        view = again.transitions()
        ids = again.ids(range(LANES), 380)
        assert view.fetch(ids).action.tolist() == [380] * LANES
        assert (ids == np.asarray(written[380])).all()
