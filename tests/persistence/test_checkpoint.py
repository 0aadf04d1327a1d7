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
from sharpwave import store as store_module
from sharpwave.format.checkpoint_state import read_state, write_state
from sharpwave.native.directory import Directory
from sharpwave.native.files import Files
from sharpwave.offline.verify import check

SPEC = sw.Spec(obs=sw.Field((8, 8), "uint8", stack=2), action=sw.Field((), "int64"))
LANES = 3


class Play:
    """Appends steps of which each says where and when it was: every fifth episode is truncated, others terminate."""

    def __init__(self, store: sw.Store, steps: int = 0) -> None:
        self.store, self.steps = store, steps

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            ends, fifth = self.steps % 17 == 16, self.steps % 85 == 84
            self.store.extend(
                obs=frames(self.steps),
                action=np.full(LANES, self.steps),
                reward=np.arange(LANES) + self.steps % 4,
                terminated=np.full(LANES, ends and not fifth),
                truncated=np.full(LANES, ends and fifth),
                final_obs=frames(self.steps + 1),
            )
            self.steps += 1


def frames(step: int) -> np.ndarray[Any, Any]:
    found = np.zeros((LANES, 8, 8), np.uint8)
    found[:, 0, 0], found[:, 0, 1], found[:, 1, 0] = step % 256, step // 256, np.arange(LANES)
    return found


def assert_right(batch: Any) -> None:
    """The observation is that of the step that ``action`` names, its successor that of one up to three later."""
    seen, after = (obs[:, -1, 0, 0] + 256 * obs[:, -1, 0, 1].astype(int) for obs in (batch.obs, batch.next_obs))
    np.testing.assert_array_equal(seen, batch.action)
    assert ((after - seen >= 1) & (after - seen <= 3)).all()
    np.testing.assert_array_equal(batch.obs[:, -1, 1, 0], batch.next_obs[:, -1, 1, 0], err_msg="lane")


SAMPLERS: dict[str, Callable[[], Any]] = {
    "uniform": sw.Uniform,
    "proportional": lambda: sw.Prioritized(alpha=0.7, beta=0.5),
    "rank": sw.RankPrioritized,
    "fifo": sw.Fifo,
    "lifo": sw.Lifo,
    "mixture": lambda: sw.Mixture([(0.6, sw.Prioritized()), (0.3, sw.RankPrioritized()), (0.1, sw.Lifo())]),
}


def learned(play: Play, view: Any, rng: np.random.Generator, rounds: int) -> list[list[np.ndarray[Any, Any]]]:
    """What a learner sees that goes on for some rounds."""
    seen = []
    for _ in range(rounds):
        play.go_on(3)
        batch = view.sample(16)
        assert_right(batch)
        seen.append([getattr(batch, name).copy() for name in ("ids", "obs", "reward", "weights", "probabilities")])
        view.update_priorities(batch.ids, rng.normal(size=16))
    return seen


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("most", [None, 2], ids=["any times", "twice"])
@pytest.mark.parametrize("kind", SAMPLERS)
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


def test_a_checkpoint_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Files):
        left = 10**9

        def _count(self) -> None:
            Failing.left -= 1
            if Failing.left < 0:
                raise OSError(28, "No space left on device")

        def pwrite(self, *args: Any) -> None:
            self._count()
            super().pwrite(*args)

        def fsync(self, descriptor: int) -> None:
            self._count()
            super().fsync(descriptor)

        def fsync_folder(self, directory: Directory) -> None:
            self._count()
            super().fsync_folder(directory)

        def open(self, directory: Directory, name: str) -> int:
            self._count()
            return super().open(directory, name)

    for disk in (False, True):
        place: dict[str, Any] = {"disk": tmp_path / "store"} if disk else {}
        folder = tmp_path / f"checkpoint {disk}"
        monkeypatch.setattr(store_module, "Files", Failing)
        store = sw.Store(SPEC, capacity=600, segment_steps=16, **place)
        play = Play(store)
        play.go_on(100)
        store.checkpoint(folder)
        play.go_on(20)
        failed = 0
        while True:
            Failing.left = failed
            try:
                store.checkpoint(folder)
            except OSError as error:
                assert "No space" in str(error)
                failed += 1
                Failing.left = 10**9
                opened = sw.Store.open(folder, disk=tmp_path / f"opened {failed}" if disk else None)
                assert opened.recovery is not None and not opened.recovery.damages
                number = int(next(path.name for path in folder.iterdir() if path.name.isdigit()))
                # Where only the last sync failed it is the new one, which a power cut might take back.
                assert opened.total_steps == 100 * LANES or (number == 2 and opened.total_steps == 120 * LANES)
                opened.close()
            else:
                break
        Failing.left = 10**9
        assert failed > 3
        assert [path.name for path in sorted(folder.iterdir())][1:] == ["lock", "store.json"], "nothing is left over"
        play.go_on(300)
        store.close()


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_what_is_damaged_is_named_and_the_rest_goes_on(tmp_path: Path, disk: bool) -> None:
    place: dict[str, Any] = {"disk": tmp_path / "store"} if disk else {}
    store = sw.Store(SPEC, capacity=600, segment_steps=16, **place)
    play, view = Play(store), store.transitions(n_step=3, sampler=sw.Prioritized())
    play.go_on(200)
    learned(play, view, np.random.default_rng(1), 5)
    store.checkpoint(tmp_path / "checkpoint")
    store.close()
    region = sorted((tmp_path / "checkpoint").rglob("*.region"))[0]
    content = bytearray(region.read_bytes())
    content[len(content) // 2] ^= 16
    region.write_bytes(content)  # the link is not broken: the store's own file is damaged as well
    assert len(check(tmp_path / "checkpoint").damages) >= 1
    opened = sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "other" if disk else None)
    assert opened.recovery is not None and any(region.name in damage for damage in opened.recovery.damages)
    assert len(store) - 16 <= len(opened) < len(store)
    again = opened.transitions(n_step=3, sampler=sw.Prioritized())
    learned(Play(opened, play.steps), again, np.random.default_rng(2), 20)


def test_a_state_of_any_content_is_refused_or_makes_a_store_that_works(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=600, segment_steps=16)
    settings: dict[str, Any] = {"n_step": 2, "max_times_sampled": 3}
    views = [store.transitions(name=kind, sampler=SAMPLERS[kind](), **settings) for kind in SAMPLERS]
    play = Play(store)
    play.go_on(150)
    stream = views[0].stream(8, lookahead=2)
    next(stream)
    store.checkpoint(tmp_path)
    path = tmp_path / "1" / "state.npz"
    state = read_state(path)
    rng = np.random.default_rng(0)
    leaves = list(paths_of(state))
    tried = 0
    for where in leaves:
        before = at(state, where)
        for value in changed(before, rng):
            put(state, where, value)
            path.unlink()
            with Directory.open(path.parent) as directory:
                write_state(directory, path.name, state, Files())
            opened = sw.Store.open(tmp_path)
            assert opened.recovery is not None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                for kind in SAMPLERS:
                    view = opened.transitions(name=kind, sampler=SAMPLERS[kind](), **settings)
                    if len(view) >= 8:
                        assert_right(view.sample(8))
                        assert_right(next(view.stream(8)))
            Play(opened, play.steps).go_on(20)
            tried += 1
        put(state, where, before)
    assert tried > 100
    path.write_bytes(path.read_bytes()[:-100])
    opened = sw.Store.open(tmp_path)
    assert opened.recovery is not None and "state.npz" in opened.recovery.damages[0]
    assert len(opened) > len(store) - 2 * LANES, "segments are there, and rows of open ones"


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths_of(one, (*path, key))
    else:
        yield path


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def put(value: Any, path: tuple[Any, ...], one: Any) -> None:
    at(value, path[:-1])[path[-1]] = one


def changed(value: Any, rng: np.random.Generator) -> list[Any]:
    if not isinstance(value, np.ndarray):
        return ["x", -1]
    found: list[Any] = [3, value[:-1], np.concatenate([value, value])]
    if value.size:
        wild = value.copy()
        wild[rng.integers(0, value.size)] = rng.choice([0, 1, 2**31 - 1 if value.itemsize > 1 else 255])
        found.append(wild)
    return found


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
        for k in range(6):
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


def test_folders_that_are_none_or_in_use_are_refused(tmp_path: Path) -> None:
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
    with pytest.raises(ValueError, match="is no checkpoint; a store on disk stays there"):
        sw.Store.open(tmp_path / "other", disk=tmp_path / "new")
    with pytest.raises(FileNotFoundError, match="no store there"):
        sw.Store.open(tmp_path / "nothing")
    (tmp_path / "checkpoint" / "1").rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match=r"checkpoint.1: named by .*store.json, and not there"):
        sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "new")
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.checkpoint(tmp_path / "late")
