"""Whole episodes: the store is as if their steps had been appended one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from tests.support.examples import every_two, examples


def spec_of(stack: int | None = None, every: int | None = None, mapping: bool = False) -> sw.Spec:
    frame = sw.Field((3, 4), "uint8", stack=stack)
    obs: Any = {"frame": frame, "speed": sw.Field((), "float32")} if mapping else frame
    return sw.Spec(
        obs=obs,
        action=sw.Field((2,), "int64"),
        core=sw.Field((2,), "float32", every=every),
        serial=sw.Field((), "int64"),
    )


def episode(first: int, steps: int, mapping: bool) -> dict[str, Any]:
    """Arguments of ``add_episode``: no two steps are equal."""
    serial = np.arange(first, first + steps)
    frames = np.random.default_rng(first).integers(0, 9, (steps + 1, 3, 4)).astype(np.uint8)
    obs: Any = {"frame": frames, "speed": np.arange(steps + 1, dtype=np.float32) + first} if mapping else frames
    core = np.stack([serial, -serial], 1).astype(np.float32)
    return dict(obs=obs, action=np.stack([serial, serial * 2], 1), reward=serial / 4, core=core, serial=serial)


def add_one_by_one(store: sw.Store, lane: int, terminated: bool, given: dict[str, Any]) -> list[int]:
    """The same, step by step."""
    obs, steps, ids = given["obs"], len(given["reward"]), []
    for t in range(steps):
        at = {name: values[t] for name, values in obs.items()} if isinstance(obs, dict) else obs[t]
        after = {name: values[t + 1] for name, values in obs.items()} if isinstance(obs, dict) else obs[t + 1]
        over = t == steps - 1
        one = store.append(
            lane=lane,
            obs=at,
            terminated=over and terminated,
            truncated=over and not terminated,
            final_obs=after if over else None,
            **{name: given[name][t] for name in ("action", "reward", "core", "serial")},
        )
        ids.append(one)
    return ids


def assert_same(one: sw.Store, other: sw.Store, n_step: int) -> None:
    batches = []
    for store in (one, other):
        view = store.transitions(n_step=n_step, gamma=0.5)
        ids = view.sampleable_ids()
        batches.append(view.fetch(ids) if len(ids) else None)
    assert (batches[0] is None) == (batches[1] is None)
    assert one.lane_steps.tolist() == other.lane_steps.tolist() and one.total_steps == other.total_steps
    if batches[0] is None:
        return
    orders = [np.lexsort((batch.step, batch.lane)) for batch in batches]  # type: ignore[union-attr]
    for name in ("obs", "next_obs", "action", "reward", "discount", "core", "serial", "terminated", "truncated", "n"):
        a, b = (batch[name] for batch in batches)  # type: ignore[index]
        for key in a if isinstance(a, dict) else [None]:
            parts = [x if key is None else x[key] for x in (a, b)]
            np.testing.assert_array_equal(parts[0][orders[0]], parts[1][orders[1]], err_msg=name)


@settings(max_examples=examples(60))
@given(
    episodes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.booleans(), st.booleans()), max_size=12),
    segment_steps=st.sampled_from([1, 2, 5, 16, 64]),
    stack=st.sampled_from([None, 3]),
    every=st.sampled_from([None, None, 4]),
    mapping=st.booleans(),
    n_step=st.integers(1, 4),
    codec=st.sampled_from(["raw", "delta", "zstd", "auto"]),
)
def test_it_is_as_if_appended(
    episodes: list[tuple[int, int, bool, bool]],
    segment_steps: int,
    stack: int | None,
    every: int | None,
    mapping: bool,
    n_step: int,
    codec: str,
) -> None:
    """Both ways in turn in the first store, and only step by step in the second; nothing is evicted."""
    stores = [
        sw.Store(spec_of(stack, every, mapping), capacity=2000, segment_steps=segment_steps, codec=codec)
        for _ in range(2)
    ]
    serial = 0
    for lane, steps, terminated, whole in episodes:
        given_ = episode(serial, steps, mapping)
        if whole:
            ids = stores[0].add_episode(lane=lane, terminated=terminated, **given_).tolist()
        else:
            ids = add_one_by_one(stores[0], lane, terminated, given_)
        number = int(stores[0].lane_steps[lane])
        assert stores[0].ids(lane, np.arange(number - steps, number)).tolist() == ids
        add_one_by_one(stores[1], lane, terminated, given_)
        serial += steps
    assert_same(stores[0], stores[1], n_step)


@pytest.mark.parametrize(
    ("retention", "on_disk", "steps"),
    every_two([sw.Fifo, sw.Reservoir, sw.LowestPriority], [False, True], [1, 7, 30, 250]),
)
def test_a_full_store_evicts_for_it(tmp_path: Path, retention: Any, on_disk: bool, steps: int) -> None:
    """Episodes longer than the store as well: of those the newest steps remain."""
    disk = tmp_path / "store" if on_disk else None
    store = sw.Store(spec_of(2), capacity=100, segment_steps=8, disk=disk, retention=retention(), seed=0)
    view = store.transitions()
    for k in range(12):
        lane = k % 3
        given_ = episode(k * 1000, steps, False)
        store.add_episode(lane=lane, terminated=k % 2 == 0, **given_)
        assert len(store) <= 100
        batch = view.fetch(view.sampleable_ids())
        for row, serial in enumerate(batch["serial"].tolist()):
            at, frames = serial % 1000, episode(serial // 1000 * 1000, steps, False)["obs"]
            np.testing.assert_array_equal(batch.obs[row], frames[[max(0, at - 1), at]])
            np.testing.assert_array_equal(batch.next_obs[row], frames[[at, at + 1]])
            assert batch.terminated[row] == (at == steps - 1 and serial // 1000 % 2 == 0)
            assert batch.truncated[row] == (at == steps - 1 and serial // 1000 % 2 == 1)
    if on_disk and retention is sw.Fifo:  # the others choose among open segments when they are sealed
        store.flush()
        held = len(view)
        store.close()
        with sw.Store.open(tmp_path / "store") as again:
            assert len(again) == held and not again.recovery.damages  # type: ignore[union-attr]


def test_limiters_count_its_steps() -> None:
    store = sw.Store(spec_of(), capacity=1000)
    queue = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(10))
    with pytest.raises(sw.LimiterTimeoutError, match="the learner has to sample") as caught:
        store.add_episode(terminated=True, timeout=0.0, **episode(0, 30, False))
    assert "of 30 steps were appended, as a truncated episode" in caught.value.__notes__[0]
    assert len(store) == int(caught.value.__notes__[0].split()[1]) == len(queue) == 11  # the last known by its end
    batch = queue.sample(11)
    assert batch["serial"].tolist() == list(range(11)) and batch.truncated.tolist() == [False] * 10 + [True]
    np.testing.assert_array_equal(batch.next_obs[10], episode(0, 30, False)["obs"][11])


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (dict(obs=np.zeros((5, 3, 4), np.uint8)), ValueError, r"obs: got shape \(5, 3, 4\)"),
        (dict(action=np.zeros((0, 2), np.int64)), ValueError, "at least one step"),
        (dict(action=3), ValueError, "at least one step"),
        (dict(reward=np.full(5, np.nan)), ValueError, "reward: row 0 is nan"),
        (dict(terminated=[True]), ValueError, r"terminated: got shape \(1,\)"),
        (dict(terminated=None), ValueError, "terminated: got"),
        (dict(speed=np.zeros(5)), KeyError, "unknown field 'speed'"),
        (dict(lane=-1), ValueError, "lane"),
    ],
)
def test_what_does_not_fit_changes_nothing(change: dict[str, Any], error: type[Exception], says: str) -> None:
    store = sw.Store(spec_of(), capacity=100)
    with pytest.raises(error, match=says):
        store.add_episode(**dict(terminated=True, **episode(0, 5, False)) | change)
    assert store.total_steps == 0 and store.lanes == 0


def test_an_episode_under_way_is_not_gone_on_with() -> None:
    store = sw.Store(spec_of(), capacity=100)
    given_ = episode(0, 5, False)
    add = {name: given_[name][0] for name in ("action", "reward", "core", "serial")}
    store.append(obs=given_["obs"][0], terminated=False, truncated=False, **add)
    with pytest.raises(ValueError, match=r"lane 0 has an unfinished episode; end it with break_episode\(0\)"):
        store.add_episode(terminated=True, **given_)
    store.add_episode(lane=1, terminated=True, **given_)
    store.break_episode(0)
    store.add_episode(lane=0, terminated=True, **given_)
    assert len(store.transitions()) == 10
