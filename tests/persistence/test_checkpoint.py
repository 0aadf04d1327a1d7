"""Checkpoints: what the machine of test_checkpoint_machine.py does not come to."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.offline.folder_check import check
from tests.persistence.play import LANES, SAMPLERS, SPEC, Play, assert_right, learned
from tests.support.examples import every_two


@pytest.mark.parametrize(("disk", "most", "kind"), every_two([False, True], [None, 2], SAMPLERS))
def test_every_sampler_goes_on_as_if_nothing_had_been(tmp_path: Path, kind: str, most: int | None, disk: bool) -> None:
    place: dict[str, Any] = {"disk": tmp_path / "store"} if disk else {}
    store = sw.Store(SPEC, capacity=600, segment_steps=16, **place)

    def view_of(store: sw.Store) -> Any:
        return store.transitions(n_step=3, sampler=SAMPLERS[kind](), max_times_sampled=most)

    play, view = Play(store), view_of(store)
    play.go_on(300)
    learned(play, view, np.random.default_rng(1), 20)
    store.checkpoint(tmp_path / "checkpoint")
    opened = sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "other" if disk else None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = view_of(opened)
    there = learned(Play(opened, play.steps), again, np.random.default_rng(2), 40)
    for one, other in zip(learned(play, view, np.random.default_rng(2), 40), there, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("retention", [sw.Reservoir(3), sw.LowestPriority()], ids=["reservoir", "lowest priority"])
def test_what_leaves_next_is_remembered(tmp_path: Path, retention: Any) -> None:
    store = sw.Store(SPEC, capacity=600, segment_steps=16, retention=retention)
    play, view = Play(store), store.transitions(sampler=sw.Prioritized())
    play.go_on(400)
    learned(play, view, np.random.default_rng(1), 20)
    store.checkpoint(tmp_path)
    opened = sw.Store.open(tmp_path)
    again = opened.transitions(sampler=sw.Prioritized())
    for one, replay in ((store, view), (opened, again)):
        learned(Play(one, play.steps), replay, np.random.default_rng(2), 60)
    assert np.array_equal(np.sort(view.sampleable_ids()), np.sort(again.sampleable_ids()))


def test_other_settings_of_a_view_are_named_and_beta_may_change(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=600)
    Play(store).go_on(100)
    mixture = sw.Mixture([(0.5, sw.Prioritized(alpha=0.5)), (0.5, sw.Uniform())])
    kept = [
        store.transitions(sampler=sw.Prioritized(beta=0.4)),
        store.transitions(name="second", n_step=3),
        store.transitions(name="third", sampler=mixture),
    ]
    store.checkpoint(tmp_path)
    opened = sw.Store.open(tmp_path)
    opened.transitions(sampler=sw.Prioritized(beta=0.9)).sample(8)
    with pytest.warns(
        RuntimeWarning,
        match="view 'second' of the checkpoint is another: n_step was 3, is 5; sampler was Uniform, is Fifo",
    ):
        assert len(opened.transitions(name="second", n_step=5, sampler=sw.Fifo())) > 0
    other = sw.Mixture([(0.7, sw.Prioritized(alpha=0.6)), (0.3, sw.Uniform())])
    with pytest.warns(RuntimeWarning, match="share 0 was 0.5, is 0.7; sampler part 0: alpha was 0.5, is 0.6"):
        opened.transitions(name="third", sampler=other)
    assert len(kept) == 3


def test_a_sampler_that_is_used_already_is_refused(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=600)
    Play(store).go_on(50)
    sampler = sw.Uniform()
    view = store.transitions(sampler=sampler)
    store.checkpoint(tmp_path)
    opened = sw.Store.open(tmp_path)
    with pytest.raises(ValueError, match="serves a view already"):
        opened.transitions(sampler=sampler)
    assert len(view.sample(4).ids) == 4


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_in_other_limits(tmp_path: Path, disk: bool) -> None:
    place: dict[str, Any] = {"disk": tmp_path / "store"} if disk else {}
    store = sw.Store(SPEC, capacity=6000, segment_steps=16, **place)
    play, view = Play(store), store.transitions(sampler=sw.Prioritized())
    play.go_on(2000)
    view.update_priorities(view.sample(64).ids, np.arange(64.0))
    store.checkpoint(tmp_path / "checkpoint")
    opened = sw.Store.open(tmp_path / "checkpoint", capacity=900, ram="8MiB", disk=tmp_path / "other" if disk else None)
    assert opened.recovery is not None
    assert opened.recovery.differences == ["capacity was 6,000, is 900", "ram was None, is 8,388,608"]
    assert 900 - 16 * LANES <= len(opened) <= 900
    again = opened.transitions(sampler=sw.Prioritized())
    kept = again.fetch(again.sampleable_ids())
    for lane in range(LANES):
        steps = np.sort(kept.action[kept.obs[:, -1, 1, 0] == lane])
        assert len(steps) > 280 and np.array_equal(steps, np.arange(steps[0], 1999)), "the newest of each lane"
    learned(Play(opened, play.steps), again, np.random.default_rng(1), 20)


def test_a_store_in_memory_goes_on_in_less_of_it_with_its_newest_steps(tmp_path: Path) -> None:
    spec = sw.Spec(obs=sw.Field((64, 64), "uint8"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=4000, segment_steps=16, codec="raw")
    rng = np.random.default_rng(0)
    for k in range(3000):
        obs = rng.integers(0, 256, (64, 64), dtype=np.uint8)
        store.append(obs=obs, action=k, reward=0.0, terminated=False, truncated=False)
    store.transitions()
    store.checkpoint(tmp_path)
    opened = sw.Store.open(tmp_path, ram="6MiB")
    assert opened.recovery is not None and opened.recovery.differences == ["ram was None, is 6,291,456"]
    view = opened.transitions()
    ids = view.sampleable_ids()
    actions = np.sort(np.concatenate([view.fetch(ids[k : k + 100]).action for k in range(0, len(ids), 100)]))
    assert 500 < len(actions) < 1500 and np.array_equal(actions, np.arange(2999 - len(actions), 2999))
    assert opened.stats()["total_bytes"] <= 6 << 20


def test_a_store_in_memory_goes_on_disk(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=3000, segment_steps=16)
    play, view = Play(store), store.transitions(sampler=sw.Prioritized())
    play.go_on(500)
    store.checkpoint(tmp_path / "checkpoint")
    opened = sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "disk", ram="8MiB")
    again = opened.transitions(sampler=sw.Prioritized())
    there = learned(Play(opened, play.steps), again, np.random.default_rng(1), 9)
    for one, other in zip(learned(play, view, np.random.default_rng(1), 9), there, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
    opened.flush()
    opened.close()
    assert not check(tmp_path / "disk").damages and not check(tmp_path / "checkpoint").damages


def test_a_checkpoint_of_a_store_on_disk_takes_no_second_copy_and_outlives_it(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=2000, segment_steps=16, disk=tmp_path / "store")
    play = Play(store)
    play.go_on(600)
    store.checkpoint(tmp_path / "checkpoint")
    own = {path.stat().st_ino for path in (tmp_path / "store").rglob("*.region")}
    there = {path.stat().st_ino for path in (tmp_path / "checkpoint").rglob("*.region")}
    assert own <= there and len(there - own) == 1, "but for the rows of open segments"
    play.go_on(3000)  # all that was there has left
    store.close()
    assert not check(tmp_path / "checkpoint").damages
    with sw.Store.open(tmp_path / "checkpoint") as opened:
        view = opened.transitions()
        actions = view.fetch(view.sampleable_ids()).action
        assert actions.max() == 598 and len(actions) == len(opened) - LANES
        opened.checkpoint(tmp_path / "second")
    with sw.Store.open(tmp_path / "checkpoint") as again:  # it is a store on disk now
        assert again.recovery is not None and not again.recovery.damages
    assert not check(tmp_path / "second").damages


def test_writers_and_samplers_go_on_meanwhile(tmp_path: Path) -> None:
    for disk in (False, True):
        place: dict[str, Any] = {"disk": tmp_path / "store", "ram": "8MiB"} if disk else {}
        store = sw.Store(SPEC, capacity=3000, segment_steps=16, **place)
        play, view = Play(store), store.transitions(n_step=2, sampler=sw.Prioritized())
        play.go_on(400)
        done = threading.Event()
        errors: list[BaseException] = []

        def guarded(work: Callable[[], None], errors: list[BaseException] = errors) -> None:
            try:
                work()
            except BaseException as error:  # told below
                errors.append(error)

        def write(play: Play = play, done: threading.Event = done) -> None:
            while not done.is_set() and play.steps < 65_000:  # frames tell two bytes of a step's number
                play.go_on(10)

        def learn(view: Any = view, done: threading.Event = done) -> None:
            while not done.is_set():
                batch = view.sample(16)
                assert_right(batch)
                view.update_priorities(batch.ids, np.ones(16))

        threads = [threading.Thread(target=guarded, args=(work,)) for work in (write, learn)]
        for thread in threads:
            thread.start()
        for k in range(3):
            folder = tmp_path / f"checkpoint {disk} {k % 2}"
            store.checkpoint(folder)
            opened = sw.Store.open(folder, disk=tmp_path / f"opened {k}" if disk else None)
            assert opened.recovery is not None and not opened.recovery.damages
            again = opened.transitions(n_step=2, sampler=sw.Prioritized())
            all_of_it = again.fetch(again.sampleable_ids())
            assert_right(all_of_it)
            for lane in range(LANES):
                steps = np.sort(all_of_it.action[all_of_it.obs[:, -1, 1, 0] == lane])
                assert np.array_equal(steps, np.arange(steps[0], steps[-1] + 1)), "a lane without holes"
            assert len(opened) <= 3000 and not check(folder).damages
            opened.close()
        done.set()
        for thread in threads:
            thread.join(60)
        assert not errors, errors
        store.close()


def test_folders_that_are_none_or_in_use_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharpwave.persistence.checkpoint.WAIT_S", 0.05)
    store = sw.Store(SPEC, capacity=600, disk=tmp_path / "store")
    Play(store).go_on(30)
    with pytest.raises(FileExistsError, match="the store's own folder; give another one"):
        store.checkpoint(tmp_path / "store")
    other = sw.Store(SPEC, capacity=600, disk=tmp_path / "other")
    with pytest.raises(sw.StoreInUseError, match="is in use by process"):
        store.checkpoint(tmp_path / "other")
    other.close()
    with pytest.raises(FileExistsError, match="holds a store that is no checkpoint; give a folder of its own"):
        store.checkpoint(tmp_path / "other")
    store.checkpoint(tmp_path / "checkpoint")
    with pytest.raises(FileExistsError, match="holds a store already"):
        sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "other")
    with pytest.raises(ValueError, match="is no checkpoint; a store on disk is opened in place"):
        sw.Store.open(tmp_path / "other", disk=tmp_path / "new")
    with pytest.raises(FileNotFoundError, match="no store there"):
        sw.Store.open(tmp_path / "nothing")
    (tmp_path / "checkpoint" / "1").rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match=r"checkpoint.1: named by .*store.json, and not there"):
        sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "new")
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.checkpoint(tmp_path / "late")


def test_rows_that_were_flushed_and_dropped_since_cost_nothing_else(tmp_path: Path) -> None:
    """An episode that is broken off loses its last step, which may be all that its open segment held."""
    spec = sw.Spec(obs=sw.Field((2,), "uint8"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=40, segment_steps=3, disk=tmp_path / "store")
    view = store.transitions(sampler=sw.Prioritized(alpha=1.0, beta=1.0))
    for k in range(4):
        store.append(obs=[k, 0], action=k, reward=k, terminated=False, truncated=False)
    store.flush()
    store.break_episode(0)
    ids = view.sampleable_ids()
    view.update_priorities(ids, np.arange(1.0, 1.0 + len(ids)))
    store.checkpoint(tmp_path / "c")
    with sw.Store.open(tmp_path / "c", disk=tmp_path / "again") as opened:
        assert opened.recovery is not None and not opened.recovery.damages and len(opened) == len(store) == 3
        batch = opened.transitions(sampler=sw.Prioritized(alpha=1.0, beta=1.0)).sample(8)
        total = 6.0 + 3e-6
        expected = {int(id_): (k + 1) / total for k, id_ in enumerate(ids)}
        found = dict(zip(batch.ids.tolist(), batch.probabilities.tolist(), strict=True))
        assert found == pytest.approx({id_: expected[id_] for id_ in found}, rel=1e-3)
    store.close()


def test_a_lane_broken_off_behind_evicted_steps_opens_with_the_items_it_had(tmp_path: Path) -> None:
    """The step before the gap needs one that is gone: opening must not end its episode there instead."""
    spec = sw.Spec(obs=sw.Field((2,), "uint8"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=4, segment_steps=8, retention=sw.Reservoir(0))
    view = store.transitions(n_step=2)
    for lane, k in ((1, 0), (0, 1), (0, 2), (0, 3), (0, 4)):
        store.append(lane=lane, obs=[k, lane], action=k, reward=k, terminated=False, truncated=False)
    assert store.stats()["evicted_steps"] == 1, "from the middle of lane 0"
    store.break_episode(0)
    store.checkpoint(tmp_path / "c")
    with sw.Store.open(tmp_path / "c") as opened:
        there = opened.transitions(n_step=2).sampleable_ids()
        np.testing.assert_array_equal(there, view.sampleable_ids())
        assert len(there) == 1
