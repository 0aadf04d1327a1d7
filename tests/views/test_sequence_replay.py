"""Views of sequences: priorities, uses and order, batches, checkpoints and disks, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.support.oracle import FRAME_SHAPE, play_all
from tests.support.sequence_oracle import (
    serials_of,
)
from tests.views.windows import spec_of, store_of, windows_of

# priorities, uses, order


def test_a_windows_priority_is_of_its_real_trained_steps() -> None:
    """3/4 max + 1/4 mean: of 3 and 1 that is 2.75; the second window trains one step, the junk is not counted."""
    with store_of() as store:
        play_all(store, "abc.")
        replay = store.sequences(2, burn_in=2, eta=0.75, sampler=sw.Prioritized(alpha=1.0, beta=1.0, eps=0.25))
        ids = replay.sampleable_ids()
        serials = serials_of(replay.fetch(ids), 2)
        errors = {0: [3, -1], 2: [-2, 100]}
        assert replay.update_priorities(ids, [errors[serial] for serial in serials]) == 0
        batch = replay.sample(32)
        expected = {0: 3 / 5.25, 2: 2.25 / 5.25}
        np.testing.assert_allclose(batch.probabilities, [expected[s] for s in serials_of(batch, 2)], rtol=1e-6)
        play_all(store, "de.")  # as much as the largest so far
        batch = replay.sample(32)
        expected = {0: 3 / 8.25, 2: 2.25 / 8.25, 3: 3 / 8.25}
        np.testing.assert_allclose(batch.probabilities, [expected[s] for s in serials_of(batch, 2)], rtol=1e-6)


@pytest.mark.parametrize(("eta", "priority"), [(1.0, 4.0), (0.0, 2.0), (0.9, 3.8)])
def test_eta_mixes_the_largest_and_the_mean(eta: float, priority: float) -> None:
    with store_of() as store:
        play_all(store, "abcd. e.")
        replay = store.sequences(4, eta=eta, sampler=sw.Prioritized(alpha=1.0, beta=0.0, eps=1e-9))
        ids = replay.sampleable_ids()
        long, short = sorted(ids.tolist(), key=lambda one: serials_of(replay.fetch([one]), 0)[0])
        replay.update_priorities([long, short], [[1, -4, 3, 0], [1, 9, 9, 9]])
        batch = replay.sample(32)
        share = np.where(batch.ids == long, priority, 1.0) / (priority + 1)
        np.testing.assert_allclose(batch.probabilities, share, rtol=1e-6)


def test_priorities_may_be_given_for_a_batch() -> None:
    with store_of() as store:
        play_all(store, "abcdefgh.")
        replay = store.sequences(2, sampler=sw.Prioritized(alpha=0.5))
        batch = replay.sample(8)
        assert replay.update_priorities(batch, np.ones((8, 2), np.float32)) == 0
        assert replay.update_priorities(batch.torch().ids, batch.torch().reward) == 0


def test_a_queue_gives_windows_out_in_order_and_once() -> None:
    with store_of() as store:
        queue = store.sequences(2, sampler=sw.Fifo(), max_times_sampled=1)
        play_all(store, "abcde. fg. hi")
        assert serials_of(queue.sample(2), 0) == [0, 2]
        assert serials_of(queue.sample(2), 0) == [4, 5]
        assert len(queue) == 0
        with pytest.raises(sw.EmptyError):
            queue.sample(1)
        play_all(store, "j")
        assert serials_of(queue.sample(1), 0) == [7]


@pytest.mark.parametrize("sampler", [sw.Uniform, sw.Prioritized, sw.Fifo, sw.Lifo])
def test_each_window_is_given_out_so_often(sampler: Any) -> None:
    with store_of() as store:
        play_all(store, "abcde. fg. hi|J k.")
        replay = store.sequences(2, burn_in=1, stride=1, sampler=sampler(), max_times_sampled=3)
        count = len(replay)
        assert count == 10
        seen = [one for size in (1, 7, 9, 13) for one in replay.sample(size).ids.tolist()]
        assert len(seen) == 3 * count and all(seen.count(one) == 3 for one in set(seen))
        assert len(set(seen)) == count and len(replay) == 0


# a batch


def test_a_batch_and_its_copies() -> None:
    with store_of(spec_of(2)) as store:
        play_all(store, "abcdefgh.")
        replay = store.sequences(2, burn_in=1, n_step=2)
        batch = replay.sample(5)
        assert len(batch) == 5 and batch.burn_in == 1
        assert batch.obs.shape == (5, 5, 2, *FRAME_SHAPE)
        for name in ("action", "step_reward", "reward", "discount", "bootstrap", "mask", "first"):
            assert batch[name] is getattr(batch, name) and batch[name].shape == (5, 3)
        copy, tensors = batch.copy(), batch.torch()
        assert copy.burn_in == tensors.burn_in == 1
        for name in ("obs", "action", "reward", "mask", "first", "bootstrap", "serial", "ids", "weights"):
            np.testing.assert_array_equal(copy[name], batch[name])
            np.testing.assert_array_equal(tensors[name].numpy(), batch[name])
            assert not np.shares_memory(copy[name], batch[name])
        with pytest.raises(KeyError, match="no field 'core'"):
            batch["core"]
        again = replay.fetch(batch)
        np.testing.assert_array_equal(again.obs, batch.obs)
        with store_of() as other, pytest.raises(ValueError, match="of another store"):
            other.sequences(2).fetch(batch)


def test_a_dict_of_observations() -> None:
    obs = {"image": sw.Field((2,), "uint8", stack=2, pad="zeros"), "speed": sw.Field((), "float32")}
    with sw.Store(sw.Spec(obs=obs, action=sw.Field((), "int64")), capacity=100, segment_steps=2) as store:
        for k in (1, 2, 3):
            store.append(
                obs={"image": [k, k], "speed": k / 2}, action=k, reward=k, terminated=False, truncated=k == 3,
                final_obs={"image": [9, 9], "speed": 4.5},
            )  # fmt: skip
        batch = store.sequences(4, n_step=1).sample(1)
        assert batch.obs["image"][0, :, :, 0].tolist() == [[0, 1], [1, 2], [2, 3], [3, 9], [0, 0]]
        assert batch.obs["speed"][0].tolist() == [0.5, 1, 1.5, 4.5, 0]


def test_transitions_and_sequences_share_a_store() -> None:
    with store_of() as store:
        one, two, three = store.sequences(2), store.sequences(3, burn_in=1), store.transitions()
        play_all(store, "abcdefg. hi")
        assert (len(one), len(two), len(three)) == (4, 3, 8)
        assert {view.name for view in (one, two, three)} >= {"sequences", "transitions"}
        assert len(set(one.sampleable_ids().tolist())) == 4


# from a checkpoint, and from disk


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_checkpoint_keeps_priorities_ids_and_the_windows_under_way(tmp_path: Path, on_disk: bool) -> None:
    def view_of(store: sw.Store) -> Any:
        return store.sequences(3, burn_in=2, n_step=2, gamma=0.5, sampler=sw.Prioritized(alpha=1.0), name="learner")

    settings: dict[str, Any] = {"disk": tmp_path / "store"} if on_disk else {}
    store = store_of(**settings)
    view = view_of(store)
    play_all(store, "abcdefgh. ijklmn")
    ids = view.sampleable_ids()
    view.update_priorities(ids, np.arange(3 * len(ids)).reshape(-1, 3))
    store.checkpoint(tmp_path / "checkpoint")
    with sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "again" if on_disk else None) as again:
        other = view_of(again)
        for _ in range(3):
            one, two = view.sample(6), other.sample(6)
            for name in ("ids", "obs", "reward", "probabilities", "weights", "mask", "serial"):
                np.testing.assert_array_equal(one[name], two[name])
        for both in (store, again):
            play_all(both, "opq|R")
        assert windows_of(view) == windows_of(other)
        assert set(view.sampleable_ids().tolist()) == set(other.sampleable_ids().tolist())
    store.close()


def test_a_store_on_disk_has_the_same_windows_when_it_is_opened(tmp_path: Path) -> None:
    with store_of(disk=tmp_path / "store") as store:
        play_all(store, "abcdefg. hijk|L mn")
        view = store.sequences(2, burn_in=3, n_step=2, gamma=0.5)
        before, ids = windows_of(view), set(view.sampleable_ids().tolist())
    with sw.Store.open(tmp_path / "store") as again:
        view = again.sequences(2, burn_in=3, n_step=2, gamma=0.5)
        after = windows_of(view)
        assert {letter: window for letter, window in after.items() if letter in before} == before
        assert set(after) - set(before) == {"m"}  # n was what m led to, and ends the episode
        assert after["m"].obs == "000mn00" and after["m"].columns == "---^-"
        assert ids < set(view.sampleable_ids().tolist())


# what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length=0"),
        ({"length": -1}, "length=-1"),
        ({"length": 1.5}, "length=1.5"),
        ({"length": "80"}, "length='80'"),
        ({"length": 2, "burn_in": -1}, "burn_in=-1"),
        ({"length": 2, "burn_in": 0.5}, "burn_in=0.5"),
        ({"length": 2, "burn_in": None}, "burn_in=None"),
        ({"length": 2, "stride": 0}, "stride=0"),
        ({"length": 2, "stride": -2}, "stride=-2"),
        ({"length": 2, "stride": 3}, "stride=3"),  # every third step would be trained from no window
        ({"length": 2, "stride": 1.0}, "stride=1.0"),
        ({"length": 2, "n_step": 0}, "n_step=0"),
        ({"length": 2, "n_step": 2.0}, "n_step=2.0"),
        ({"length": 2, "gamma": 1.01}, "gamma=1.01"),
        ({"length": 2, "gamma": -0.1}, "gamma=-0.1"),
        ({"length": 2, "gamma": float("nan")}, "gamma=nan"),
        ({"length": 2, "eta": -0.1}, "eta=-0.1"),
        ({"length": 2, "eta": 1.1}, "eta=1.1"),
        ({"length": 2, "eta": float("nan")}, "eta=nan"),
        ({"length": 2, "eta": None}, "eta=None"),
        ({"length": 2, "max_times_sampled": 0}, "max_times_sampled=0"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with store_of() as store:
        with pytest.raises(ValueError, match=message):
            store.sequences(**arguments)
        assert len(store.sequences(2)) == 0  # and the store is as it was


def test_too_large_a_stride_says_why() -> None:
    with store_of() as store, pytest.raises(ValueError, match=r"stride=81.*(80|length)"):
        store.sequences(80, stride=81)


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        (np.ones(3), r"td_error has shape \(3,\), expected \(3, 2\)"),
        (np.ones((3, 3)), r"td_error has shape \(3, 3\), expected \(3, 2\)"),  # burn-in is not trained
        (np.ones((2, 2)), r"td_error has shape \(2, 2\), expected \(3, 2\)"),
        (np.ones((3, 2, 1)), r"td_error has shape \(3, 2, 1\), expected \(3, 2\)"),
        (np.array([[1, 2], [3, np.nan], [5, 6]]), r"td_error\[1, 1\] is nan"),
        (np.array([[1, 2], [3, np.inf], [5, 6]]), r"td_error\[1, 1\] is inf"),
        ([["a", "b"]] * 3, "td_error cannot be read as numbers"),
    ],
)
def test_td_errors_that_make_no_sense(errors: Any, message: str) -> None:
    with store_of() as store:
        play_all(store, "abcdef.")
        replay = store.sequences(2, burn_in=1, sampler=sw.Prioritized(alpha=1.0))
        ids = replay.sampleable_ids()
        replay.update_priorities(ids, [[1, 1], [2, 2], [4, 4]])
        before = sorted(set(replay.sample(64).probabilities.tolist()))
        with pytest.raises(ValueError, match=message):
            replay.update_priorities(ids, errors)
        assert sorted(set(replay.sample(64).probabilities.tolist())) == before


def test_nothing_to_sample_yet() -> None:
    with store_of() as store:
        replay = store.sequences(3, burn_in=2, n_step=2)
        with pytest.raises(sw.EmptyError):
            replay.sample(1)
        play_all(store, "abcd")  # the window of a waits for e
        with pytest.raises(sw.EmptyError):
            replay.sample(1)
        play_all(store, "e")
        assert len(replay.sample(4)) == 4
