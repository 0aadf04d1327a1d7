"""Views come back from a checkpoint by name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.format.checkpoint_state import STATE, read_state, write_state
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files
from tests.views.toy_view import Pieces

SPEC = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"))


def filled(steps: int = 200) -> sw.Store:
    store = sw.Store(SPEC, capacity=1000, segment_steps=16)
    for k in range(steps):
        store.append(obs=np.full(3, k), action=k, reward=k, terminated=k % 20 == 19, truncated=False)
    return store


def prioritized(store: sw.Store, name: str | None = None, **settings: Any) -> Any:
    return store.transitions(name=name, sampler=sw.Prioritized(), **settings)


def learned(view: Any, seed: int) -> Any:
    """The view, with priorities by ``seed``."""
    ids = np.sort(view.sampleable_ids())
    view.update_priorities(ids, np.random.default_rng(seed).exponential(size=len(ids)))
    return view


def same(view: Any, other: Any) -> bool:
    """Whether two views go on alike: their next batch and its probabilities are the same."""
    one, two = view.sample(64), other.sample(64)
    return bool(np.array_equal(one.ids, two.ids) and np.array_equal(one.probabilities, two.probabilities))


def opened(store: sw.Store, folder: Path) -> sw.Store:
    store.checkpoint(folder)
    again = sw.Store.open(folder)
    assert again.recovery is not None
    assert again.recovery.damages == []
    return again


def unclaimed(store: sw.Store) -> list[str]:
    assert store.recovery is not None
    return store.recovery.views


def test_names_come_back_in_any_order(tmp_path: Path) -> None:
    store = filled()
    views = {name: learned(prioritized(store, name), seed) for seed, name in enumerate(["actor", "critic", "world"])}
    again = opened(store, tmp_path)
    assert unclaimed(again) == ["actor", "critic", "world"]
    for name in ("world", "actor", "critic"):
        assert same(prioritized(again, name), views[name])
    assert unclaimed(again) == []


def test_a_notebooks_cell_that_is_run_again_keeps_its_view(tmp_path: Path) -> None:
    """What the checkpoint keeps is the view that is in use, not the first that was ever made."""
    for name in (None, "learner"):
        store = filled()
        view = prioritized(store, name)
        view = learned(prioritized(store, name), 1)
        view = learned(prioritized(store, name), 2)
        again = opened(store, tmp_path / str(name))
        assert unclaimed(again) == [name or "transitions"]
        assert same(prioritized(again, name), view)


def test_views_without_a_name_are_called_by_their_kind_and_only_one_of_them_is_kept(tmp_path: Path) -> None:
    store = filled()
    first, second = learned(prioritized(store), 1), learned(prioritized(store), 2)
    named = learned(prioritized(store, "transitions-2"), 3)
    with pytest.warns(RuntimeWarning, match="two views in use are named 'transitions'.* Give each its own name="):
        again = opened(store, tmp_path)
    assert unclaimed(again) == ["transitions", "transitions-2"]
    assert same(prioritized(again, "transitions-2"), named)
    assert same(prioritized(again), second)
    assert len(first.sample(8).ids) == 8, "the first goes on sampling"


def test_of_two_views_in_use_with_one_name_the_last_is_kept_and_the_other_named(tmp_path: Path) -> None:
    store = filled()
    first, second = learned(prioritized(store, "learner"), 1), learned(prioritized(store, "learner"), 2)
    with pytest.warns(RuntimeWarning, match="two views in use are named 'learner'; the one made last is kept"):
        store.checkpoint(tmp_path)
    assert same(prioritized(sw.Store.open(tmp_path), "learner"), second)
    assert len(first.sample(8).ids) == 8, "the first goes on sampling"


def test_other_settings_are_told_and_the_new_view_takes_the_place(tmp_path: Path) -> None:
    store = filled()
    kept = learned(prioritized(store, "other"), 1)
    learner = learned(prioritized(store, "learner"), 2)
    again = opened(store, tmp_path)
    with pytest.warns(
        RuntimeWarning, match=r"view 'learner' of the checkpoint is another: n_step was 1, is 3\. .* lost"
    ):
        new = prioritized(again, "learner", n_step=3)
    assert unclaimed(again) == ["other"]
    third = opened(again, tmp_path)
    assert sorted(unclaimed(third)) == ["learner", "other"]
    assert same(prioritized(third, "learner", n_step=3), new)
    assert same(prioritized(third, "other"), kept), "never asked for, and kept twice"
    del learner


def test_batches_drawn_ahead_wait_as_well(tmp_path: Path) -> None:
    store = filled()
    view = learned(prioritized(store, "learner"), 1)
    streams = [view.stream(8, lookahead=3), view.stream(8, lookahead=2)]
    for stream in streams:
        next(stream)
    again = opened(opened(store, tmp_path / "once"), tmp_path / "twice")
    other = prioritized(again, "learner")
    first = other.stream(8, lookahead=3)
    third = opened(again, tmp_path / "thrice")  # with one of the streams asked for
    last = prioritized(third, "learner")
    expected = [next(stream).ids.copy() for stream in streams]
    assert np.array_equal(next(first).ids, expected[0])
    assert np.array_equal(next(other.stream(8, lookahead=2)).ids, expected[1])
    assert np.array_equal(next(last.stream(8, lookahead=3)).ids, expected[0])
    assert np.array_equal(next(last.stream(8, lookahead=2)).ids, expected[1])


@pytest.mark.parametrize("most", [None, 2], ids=["any times", "twice"])
@pytest.mark.parametrize("twice", [False, True], ids=["", "written again before it is asked for"])
@pytest.mark.parametrize(
    "sampler",
    [sw.Prioritized, sw.RankPrioritized, lambda: sw.Mixture([(1, sw.Prioritized())])],
    ids=["proportional", "rank", "mixture"],
)
def test_what_came_and_was_evicted_before_a_view_was_asked_for(
    sampler: Any, twice: bool, most: int | None, tmp_path: Path
) -> None:
    """Slots hold other segments by then: their steps are new, and not those whose priorities were kept."""

    def view_of(of: sw.Store) -> Any:
        return of.transitions(name="learner", sampler=sampler(), max_times_sampled=most)

    def write(to: sw.Store, steps: int) -> None:
        for k in range(to.total_steps, to.total_steps + steps):
            to.append(obs=np.full(3, k), action=k, reward=k, terminated=k % 20 == 19, truncated=False)

    def seen(view: Any) -> dict[int, float]:
        ids = view.sampleable_ids()
        actions = view.fetch(ids).action.tolist()
        view.sample(1)  # the probabilities are those of the last draw
        return dict(zip(actions, view.sampler.probabilities(ids & 0xFFFFFFFF).tolist(), strict=True))

    store = sw.Store(SPEC, capacity=160, segment_steps=16)
    write(store, 300)
    view = learned(view_of(store), 3)
    used_up = np.sort(view.fetch(np.unique(view.sample(40).ids)).action)
    store.checkpoint(tmp_path / "once")
    late = sw.Store.open(tmp_path / "once")
    for each in (store, late):
        write(each, 70)
    if twice:
        late.checkpoint(tmp_path / "twice")
        before = late.stats()["bytes"]["samplers"]
        assert before > 8 * 160, "what waits takes memory"
        late = sw.Store.open(tmp_path / "twice")
        for each in (store, late):
            write(each, 30)
    again = view_of(late)
    assert len(again) == len(view)
    ours, theirs = seen(view), seen(again)
    assert ours.keys() == theirs.keys() and used_up[0] < 300 <= max(ours)
    if sampler is not sw.RankPrioritized:  # ranks of equal priorities are in another order
        assert theirs == pytest.approx(ours)
    assert sorted(theirs.values()) == pytest.approx(sorted(ours.values()))
    best = sorted(theirs, key=lambda action: theirs[action])[-20:]
    assert min(best) >= 290, "new steps have the largest priority"


def test_refused_settings_cost_nothing(tmp_path: Path) -> None:
    store = filled()
    view = learned(prioritized(store, "learner"), 2)
    again = opened(store, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="n_step"):
            prioritized(again, "learner", n_step=3)
        sampler = sw.Prioritized()
        again.transitions(name="mine", sampler=sampler)
        with pytest.raises(ValueError, match="serves a view already"):
            again.transitions(name="learner", sampler=sampler)
        assert same(prioritized(again, "learner"), view)


def test_what_was_given_out_before_is_not_given_out_silently_anew(tmp_path: Path) -> None:
    store = filled()
    view = learned(prioritized(store), 1)
    again = opened(store, tmp_path / "prioritized")
    assert len(prioritized(again)) == len(view)  # and is dropped
    with pytest.warns(RuntimeWarning, match="view 'transitions' of the checkpoint was asked for before"):
        prioritized(again)
    uniform = opened_uniform(tmp_path / "uniform")
    for _ in range(3):
        uniform.transitions().sample(8)  # nothing is lost


def opened_uniform(folder: Path) -> sw.Store:
    store = filled()
    view = store.transitions()
    store.checkpoint(folder)
    del view
    return sw.Store.open(folder)


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31m", "x" * 101, 3, b"learner"])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="expected 1 to 100 printable characters"):
        filled(4).transitions(name=name)


def test_a_states_names_that_are_none_are_damage(tmp_path: Path) -> None:
    store = filled()
    views = [prioritized(store, "a"), prioritized(store, "b"), prioritized(store, "c")]
    store.checkpoint(tmp_path)
    (path,) = tmp_path.rglob(STATE)
    state = read_state(path)
    for one, name in zip(state["views"].values(), ["c", 7, "c"], strict=True):
        one["name"] = name
    path.unlink()
    with Directory.open(path.parent) as directory:
        write_state(directory, STATE, state, Files())
    again = sw.Store.open(tmp_path)
    assert again.recovery is not None
    assert [damage.split(":")[0] for damage in again.recovery.damages] == ["view 1", "view 2"]
    assert again.recovery.views == ["c"]
    del views


def test_the_view_that_says_what_leaves_stays_the_first_in_whatever_order_they_are_asked_for(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=320, segment_steps=16, retention=sw.LowestPriority())

    def write(to: sw.Store, first: int, steps: int) -> None:
        for k in range(first, first + steps):
            to.append(obs=np.full(3, k), action=k, reward=0, terminated=k % 20 == 19, truncated=False)

    write(store, 0, 320)
    makes = prioritized(store), prioritized(store, "critic")  # the one without a name was made first
    for view, seed in zip(makes, (1, 2), strict=True):
        learned(view, seed)
    again = opened(opened(store, tmp_path / "1"), tmp_path / "2")
    asked = [prioritized(again, "critic"), prioritized(again)]
    third = opened(again, tmp_path / "3")
    asked += [prioritized(third, "critic"), prioritized(third)]
    for each in (store, again, third):
        write(each, 320, 160)
    assert len(asked) == 4

    def left(of: sw.Store) -> list[int]:
        view = of.transitions(name="all", sampler=sw.Fifo(), max_times_sampled=1)
        return sorted(view.sample(len(view)).action.tolist())

    assert left(store) == left(again) == left(third)


class Parted(sw.Uniform):
    """Has a setting that is called as a mixture's, and is none."""

    def __init__(self, parts: Any) -> None:
        super().__init__()
        self.of = parts

    def settings(self) -> dict[str, Any]:
        return {"parts": self.of}


@pytest.mark.parametrize("parts", [[1, 2, 3], 2, [[1, 2], [3, 4]], {"a": 1}, []])
def test_a_samplers_settings_may_be_called_parts(tmp_path: Path, parts: Any) -> None:
    store = filled()
    view = store.transitions(sampler=Parted(parts))
    mixed = store.transitions(name="mixed", sampler=sw.Mixture([(0.5, Parted(parts)), (0.5, sw.Prioritized())]))
    again = opened(store, tmp_path / "first")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(again.transitions(sampler=Parted(parts)), view)
        both = sw.Mixture([(0.5, Parted(parts)), (0.5, sw.Prioritized())])
        assert same(again.transitions(name="mixed", sampler=both), mixed)
    third = opened(store, tmp_path / "second")
    with pytest.warns(RuntimeWarning, match=r"sampler: parts was .*, is \[\[7, 8\]\]"):
        third.transitions(sampler=Parted([[7, 8]]))


class Long(Pieces):
    kind = "k" * 101


def test_a_kind_that_is_no_name_is_refused_before_a_checkpoint_is_written_with_it() -> None:
    with pytest.raises(ValueError, match="expected 1 to 100 printable characters"):
        filled().view(Long(2))


def test_a_view_serves_one_replay() -> None:
    store, pieces = filled(), Pieces(2)
    first = store.view(pieces)
    with pytest.raises(ValueError, match="serves a replay already"):
        store.view(pieces, name="other")
    assert len(first.sample(8).ids) == 8


@pytest.mark.parametrize("most", [None, 3])
def test_what_is_evicted_does_not_depend_on_when_a_view_is_asked_for(tmp_path: Path, most: int | None) -> None:
    store = sw.Store(SPEC, capacity=400, segment_steps=8, retention=sw.LowestPriority())

    def append(store: sw.Store, steps: int) -> None:
        for k in range(store.total_steps, store.total_steps + steps):
            store.append(obs=np.full(3, k), action=k, reward=k, terminated=k % 20 == 19, truncated=False)

    append(store, 400)
    view = learned(prioritized(store, max_times_sampled=most), 1)
    for _ in range(4 if most else 0):
        view.sample(100)
    store.checkpoint(tmp_path)
    held = []
    for early in (True, False):
        again = sw.Store.open(tmp_path)
        first = prioritized(again, max_times_sampled=most) if early else None
        append(again, 200)
        first = first or prioritized(again, max_times_sampled=most)
        other = again.transitions(name="other")
        held.append(np.sort(other.fetch(other.sampleable_ids()).action))
    assert np.array_equal(held[0], held[1])
    assert held[0][0] < 200, "not the oldest were evicted"


class WithTuple(sw.Prioritized):
    """A sampler whose settings are not as JSON gives them back."""

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"shares": (np.float32(0.5), (1, 2))}


def test_settings_that_hold_tuples_and_numbers_of_numpy_are_the_same_after_a_checkpoint(tmp_path: Path) -> None:
    store = filled()
    view = learned(store.transitions(sampler=WithTuple()), 1)
    again = opened(store, tmp_path / "one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(view, again.transitions(sampler=WithTuple()))


def test_a_sampler_serves_another_view_where_the_first_refused_the_store() -> None:
    class Refusing(Pieces):
        def bind(self, log: Any) -> None:
            raise ValueError("this log does not fit")

    store, sampler = filled(), sw.Uniform()
    with pytest.raises(ValueError, match="does not fit"):
        store.view(Refusing(2), sampler=sampler)
    assert len(store.view(Pieces(2), sampler=sampler)) > 0
