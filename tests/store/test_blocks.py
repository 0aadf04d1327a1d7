"""``extend`` with an axis of time: the store is as if its times had been appended one after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from tests.store.test_add_episode import assert_same, spec_of
from tests.support.examples import examples

ARRAYS = ("action", "reward", "core", "serial", "terminated", "truncated")


def rollout(seed: int, times: int, lanes: int, mapping: bool, ends: float, forgets: float) -> dict[str, Any]:
    """Arguments of ``extend`` with an axis of time. Episodes end with probability ``ends``, and with ``forgets`` an
    environment is reset and does not say so."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 9, (times + 1, lanes, 3, 4)).astype(np.uint8)
    serial = np.arange(times * lanes).reshape(times, lanes) + 1000 * seed
    how = rng.choice(4, (times, lanes), p=[1 - ends - forgets, ends / 2, ends / 2, forgets])
    nexts = frames[1:].copy()
    nexts[how > 0] = 255 - rng.integers(0, 9, (int((how > 0).sum()), 3, 4)).astype(np.uint8)

    def obs(values: Any) -> Any:
        speed = values[..., 0, 0].astype(np.float32) / 2
        return {"frame": values, "speed": speed} if mapping else values

    return dict(
        obs=obs(frames[:-1]),
        next_obs=obs(nexts),
        action=np.stack([serial, serial * 2], -1),
        reward=serial / 4,
        core=np.stack([serial, -serial], -1).astype(np.float32),
        serial=serial,
        terminated=how == 1,
        truncated=how == 2,
    )


def at(values: Any, t: int) -> Any:
    return {name: one[t] for name, one in values.items()} if isinstance(values, dict) else values[t]


def extend_one_by_one(store: sw.Store, given_: dict[str, Any], **kwargs: Any) -> list[list[int]]:
    times = len(given_["reward"])
    return [
        store.extend(**{name: at(values, t) for name, values in given_.items()}, **kwargs).tolist()
        for t in range(times)
    ]


@settings(max_examples=examples(60))
@given(
    blocks=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3), st.booleans()), min_size=1, max_size=6),
    seed=st.integers(0, 2**20),
    ends=st.sampled_from([0.0, 0.1, 0.6]),
    known=st.sampled_from(["next_obs", "final_obs", "both"]),
    segment_steps=st.sampled_from([1, 2, 5, 16, 64]),
    stack=st.sampled_from([None, 3]),
    every=st.sampled_from([None, None, 4]),
    mapping=st.booleans(),
    n_step=st.integers(1, 4),
)
def test_it_is_as_if_extended_time_by_time(
    blocks: list[tuple[int, int, bool]],
    seed: int,
    ends: float,
    known: str,
    segment_steps: int,
    stack: int | None,
    every: int | None,
    mapping: bool,
    n_step: int,
) -> None:
    """Both ways in turn in the first store, and only time by time in the second, with resets that nobody reported."""
    stores = [sw.Store(spec_of(stack, every, mapping), capacity=4000, segment_steps=segment_steps) for _ in range(2)]
    for k, (times, lanes, whole) in enumerate(blocks):
        given_ = rollout(seed + k, times, lanes, mapping, ends, 0.0 if known == "final_obs" else 0.1)
        if known != "next_obs":
            given_["final_obs"] = given_["next_obs"]
        if known == "final_obs":
            del given_["next_obs"]
        names = np.arange(3)[::-1][:lanes]
        if whole:
            ids = stores[0].extend(**given_, lanes=names)
            assert ids.shape == (times, lanes)
            steps = stores[0].lane_steps[names] - np.arange(times, 0, -1)[:, None] if times else np.zeros((0, lanes))
            found = stores[0].ids(np.tile(names, times), steps.reshape(-1).astype(np.int64), missing="mask")
            assert ((found == ids.reshape(-1)) | (found < 0)).all()
        else:
            extend_one_by_one(stores[0], given_, lanes=names)
        extend_one_by_one(stores[1], given_, lanes=names)
    assert_same(stores[0], stores[1], n_step)
    assert stores[0].stats()["broken_episodes"] == stores[1].stats()["broken_episodes"]


def test_what_follows_is_compared_with_the_last_next_obs() -> None:
    """0 to 4, then 100 to 104: no transition from 4 to 100, in a block or between blocks."""
    for split in (5, 10):
        store = sw.Store(sw.Spec(obs=sw.Field((), "int64"), action=sw.Field((), "int64")), capacity=100)
        obs = np.array([0, 1, 2, 3, 4, 100, 101, 102, 103, 104])[:, None]
        no = np.zeros((10, 1), np.bool_)
        for part in (slice(0, split), slice(split, 10)):
            store.extend(
                obs=obs[part], next_obs=obs[part] + 1, action=obs[part], reward=obs[part] / 1.0,
                terminated=no[part], truncated=no[part],
            )  # fmt: skip
        view = store.transitions()
        batch = view.fetch(view.sampleable_ids())
        assert (batch.next_obs - batch.obs).tolist() == [1] * len(batch.obs) == [1] * 9  # 105 is still to be seen
        assert store.stats()["broken_episodes"] == 1


@pytest.mark.parametrize("retention", [sw.Fifo, sw.Reservoir, sw.LowestPriority])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_full_store_evicts_for_it(tmp_path: Path, retention: Any, on_disk: bool) -> None:
    disk = tmp_path / "store" if on_disk else None
    store = sw.Store(spec_of(2), capacity=150, segment_steps=8, disk=disk, retention=retention(), seed=0)
    view = store.transitions()
    for k in range(8):
        given_ = rollout(k, 60, 3, False, 0.1, 0.0)
        store.extend(**given_)
        assert len(store) <= 150
        batch = view.fetch(view.sampleable_ids())
        assert len(batch.obs) > 20
        for row, serial in enumerate(batch["serial"].tolist()):
            known = rollout(serial // 1000, 60, 3, False, 0.1, 0.0)
            where = np.divmod(serial % 1000, 3)
            np.testing.assert_array_equal(batch.obs[row, 1], known["obs"][where])
            np.testing.assert_array_equal(batch.next_obs[row, 1], known["next_obs"][where])
    store.close()


def test_limiters_admit_it_time_by_time() -> None:
    store = sw.Store(spec_of(), capacity=1000)
    queue = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(10))
    given_ = rollout(0, 30, 2, False, 0.0, 0.0)
    with pytest.raises(sw.LimiterTimeoutError, match="the learner has to sample") as caught:
        store.extend(**given_, timeout=0.0)
    note = caught.value.__notes__[0]
    assert note.startswith("extend: ") and note.endswith(
        " of 60 steps were appended, as episodes that are truncated there"
    )
    assert int(note.split()[1]) == len(store) == len(queue) and 10 <= len(store) < 20
    batch = queue.sample(len(store))
    assert batch["serial"].tolist() == list(range(len(batch.obs))) and batch.truncated.sum() == 2
    np.testing.assert_array_equal(batch.next_obs, given_["next_obs"].reshape(-1, 3, 4)[: len(batch.obs)])


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (dict(obs=np.zeros((5, 3, 4), np.uint8)), ValueError, r"obs: got shape \(5, 3, 4\) uint8, expected \[5, 2"),
        (dict(terminated=[False, False]), ValueError, r"terminated: got shape \(2,\) bool, expected \[5, 2, ...\]"),
        (dict(action=np.zeros((5, 2), np.int64)), ValueError, r"action: got shape \(10,\) int64, expected \(10, 2\)"),
        (dict(reward=np.full((5, 2), np.inf)), ValueError, "reward: row 0 is inf"),
        (dict(next_obs=None, truncated=np.ones((5, 2), bool)), ValueError, "final_obs: row 0 is truncated"),
        (dict(speed=np.zeros((5, 2))), KeyError, "unknown field 'speed'"),
        (dict(lanes=[1, 1]), ValueError, "repeats a lane"),
        (dict(lanes=[1, 2, 3]), ValueError, "lanes: got shape"),
    ],
)  # fmt: skip
def test_what_does_not_fit_changes_nothing(change: dict[str, Any], error: type[Exception], says: str) -> None:
    store = sw.Store(spec_of(), capacity=100)
    with pytest.raises(error, match=says):
        store.extend(**rollout(0, 5, 2, False, 0.0, 0.0) | change)
    assert store.total_steps == 0 and store.lanes == 0
