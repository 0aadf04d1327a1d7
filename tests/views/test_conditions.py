"""Views with conditions: what they refuse, each sampler, limited uses, streams, blends, gaps, processes, clusters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.views.step_views import NStep

pc = pytest.importorskip("pyarrow.compute")
pytest.importorskip("duckdb")

SPEC = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), length=sw.Field((), "float32"))
PUSH = "task = 'push'"


def add(store: sw.Store, task: Any, steps: int, lane: int = 0, **info: Any) -> None:
    """Add an episode whose actions count up and whose rewards alternate."""
    store.annotate(lane, {"task": task, **info}, episode=True)
    store.add_episode(
        lane=lane,
        obs=np.arange(steps + 1)[:, None].repeat(2, 1),
        action=np.arange(steps),
        reward=np.arange(steps) % 2,
        terminated=True,
        length=np.arange(steps) * 10,
    )


def written(episodes: int = 30, **more: Any) -> sw.Store:
    options: dict[str, Any] = {"capacity": 4000, "segment_steps": 8} | more
    store = sw.Store(SPEC, **options)
    for k in range(episodes):
        add(store, ("push", "pull", "lift")[k % 3], 3 + k % 11, k % 2, version=k)
    return store


def places(view: Any, ids: Any = None) -> set[tuple[int, int]]:
    """(lane, step) of items, by default of all that can be sampled."""
    batch = view.fetch(view.sampleable_ids() if ids is None else ids)
    return set(zip(batch.lane.tolist(), batch.step.tolist(), strict=True))


def steps_of(store: sw.Store, where: Any) -> set[tuple[int, int]]:
    """(lane, step) of every step of the ended episodes chosen."""
    chosen = (one for one in store.episodes(where=where) if one.ended)
    return {(one.lane, one.first_step + k) for one in chosen for k in range(one.length)}


@pytest.mark.parametrize(
    "where",
    [
        PUSH,
        "Task = 'push' AND Length > 8 -- long ones",
        '"return" >= 3',
        "version in (3, 4, 9) or last_step < 20",
        pc.field("length") > 8,
        (pc.field("task") == "push") & (pc.field("version") > 3),
    ],
)
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_view_has_the_episodes_that_episodes_has(where: Any, on_disk: bool, tmp_path: Path) -> None:
    """Before the view was made, and after; the running episode is left out."""
    store = written(disk=tmp_path / "d") if on_disk else written()
    view = store.transitions(where=where)
    assert places(view) == steps_of(store, where) != set()
    for k in range(12):
        add(store, "push", 9, k % 2, version=k)
    store.annotate(0, {"task": "push", "version": 3}, episode=True)
    for k in range(12):
        store.append(obs=[k, k], action=k, reward=1, terminated=False, truncated=False, length=0)
    assert places(view) == steps_of(store, where)
    store.end_episode(0, [12, 12])
    assert places(view) == steps_of(store, where)
    assert view.where == str(where) and "where" in view._repr_html_()
    store.close()


def test_a_condition_on_steps_is_evaluated_for_each() -> None:
    """Columns of steps beside facts and annotations; a field with a fact's name is field.NAME."""
    store = written()
    rows = store.table("steps").read_all().to_pylist()
    facts = {(one["lane"], one["first_step"]): one for one in store.table("episodes").read_all().to_pylist()}

    def expected(holds: Callable[[Any, Any], bool]) -> set[tuple[int, int]]:
        return {(one["lane"], one["step"]) for one in rows if holds(one, facts[one["lane"], one["first_step"]])}

    both = store.transitions(name="a", where="reward > 0 and task = 'push' and action > 3")
    assert places(both) == expected(lambda s, e: s["reward"] > 0 and e["task"] == "push" and s["action"] > 3)
    where = (pc.field("reward") > 0) & (pc.field("task") == "push") & (pc.field("action") > 3)
    assert places(store.transitions(name="b", where=where)) == places(both)
    named = store.transitions(name="c", where='"field.length" > 50 and length < 9')
    assert places(named) == expected(lambda s, e: s["length"] > 50 and e["length"] < 9)
    windows = store.sequences(4, stride=2, where="action >= 4 and obs[1] < 8 and task = 'push'")
    batch = windows.fetch(windows.sampleable_ids())
    found = set(zip(batch.lane.tolist(), batch.step.tolist(), strict=True))
    assert found == expected(lambda s, e: s["action"] in (4, 6) and e["task"] == "push") != set()


def test_windows_and_hindsight_have_the_items_of_matching_episodes() -> None:
    """Every item without a condition whose first step is of such an episode, and no other, n-step returns included."""
    spec = sw.Spec(
        obs={name: sw.Field((2,), "float32") for name in ("achieved_goal", "desired_goal")},
        action=sw.Field((), "int64"),
    )
    store, rng = sw.Store(spec, capacity=300, segment_steps=8), np.random.default_rng(0)
    makers: list[Callable[..., Any]] = [
        lambda **more: store.sequences(5, burn_in=3, stride=2, n_step=2, **more),
        lambda **more: store.transitions(n_step=4, sampler=sw.Prioritized(), **more),
        lambda **more: store.transitions(relabel=sw.Future(reward_fn=lambda a, d, i: np.zeros(len(a))), **more),
    ]
    plain = [make(name=f"plain-{k}") for k, make in enumerate(makers)]
    views = [make(name=f"where-{k}", where=PUSH) for k, make in enumerate(makers)]
    tasks: dict[tuple[int, int], str] = {}
    for k in range(120):
        lane, steps, task = k % 2, int(rng.integers(1, 30)), str(rng.choice(["push", "pull"]))
        first = int(store.lane_steps[lane]) if lane < store.lanes else 0
        store.annotate(lane, {"task": task}, episode=True)
        obs = np.full((steps + 1, 2), k)
        store.add_episode(
            lane=lane, obs={"achieved_goal": obs, "desired_goal": obs}, action=np.arange(steps),
            reward=np.ones(steps), terminated=False,
        )  # fmt: skip
        tasks |= {(lane, first + t): task for t in range(steps)}
        for without, view in zip(plain, views, strict=True):
            expected = {place for place in places(without) if tasks[place] == "push"}
            assert places(view) == expected, view
            if expected:
                batch = view.sample(16)
                assert places(view, batch.ids) <= expected
                shape = (16, 5) if view is views[0] else (16,)
                assert view.update_priorities(batch.ids, np.ones(shape)) == 0
                ids = without.sampleable_ids()
                there = np.ones((len(ids), *shape[1:]))
                assert view.update_priorities(np.asarray(ids), there) == len(ids) - len(expected)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "uniform": sw.Uniform,
    "prioritized": sw.Prioritized,
    "rank": sw.RankPrioritized,
    "fifo": sw.Fifo,
    "lifo": sw.Lifo,
    "mixture": lambda: sw.Mixture([(0.5, sw.Prioritized()), (0.5, sw.Fifo())]),
}


@pytest.mark.parametrize(
    ("kind", "uses"),
    [
        pytest.param(kind, uses, marks=() if k % 2 == (uses is None) else pytest.mark.nightly)
        for k, kind in enumerate(SAMPLERS)
        for uses in (None, 2)
    ],
)
def test_every_sampler_draws_matching_items_only(kind: str, uses: int | None, tmp_path: Path) -> None:
    """Also through evictions, streams and checkpoints, with limited uses, each of which is used up once."""
    store = sw.Store(SPEC, capacity=200, segment_steps=8, disk=tmp_path / "d")

    def made(of: sw.Store) -> Any:
        return of.transitions(sampler=SAMPLERS[kind](), where=PUSH, max_times_sampled=uses)

    view, drawn = made(store), dict[tuple[int, int], int]()
    for k in range(60):
        add(store, ("push", "pull")[k % 2], 2 + k % 9, k % 3)
        if k % 7 == 6 and len(view) > 3:
            batch = view.sample(3)
            for place in zip(batch.lane.tolist(), batch.step.tolist(), strict=True):
                drawn[place] = drawn.get(place, 0) + 1
            assert places(view) <= steps_of(store, PUSH) | drawn.keys()
    if uses is None:
        assert places(view) >= steps_of(store, PUSH)
    else:
        assert max(drawn.values()) <= uses
    stream = view.stream(2, lookahead=3)
    for _ in range(4):
        batch = next(stream)
        assert places(view, batch.ids) <= steps_of(store, PUSH)
        add(store, "pull", 5)
    store.checkpoint(tmp_path / "c")
    again = sw.Store.open(tmp_path / "c", disk=tmp_path / "e")
    restored = made(again)
    assert places(restored) == places(view)
    other = restored.stream(2, lookahead=3)
    for _ in range(3):
        np.testing.assert_array_equal(next(other).step, next(stream).step)
    before = len(view)
    stream.close()
    assert len(view) >= before and places(view) <= steps_of(store, PUSH)
    other.close()
    again.close()
    store.close()


def test_blends_take_views_with_conditions() -> None:
    """Each part has its own condition."""
    store, other = written(), written()
    blend = sw.Blend([(0.5, store.transitions(where=PUSH)), (0.5, other.transitions(where="task = 'lift'"))])
    for _ in range(5):
        batch = blend.sample(32)
        found = list(zip(batch.lane.tolist(), batch.step.tolist(), strict=True))
        for k, where in enumerate([PUSH, "task = 'lift'"]):
            assert {one for one, source in zip(found, batch.source, strict=True) if source == k} <= steps_of(
                store, where
            )


def test_episodes_are_weighted_by_priorities() -> None:
    """Each step is drawn in proportion to its episode's weight; the batch's weights stay 1."""
    store = written()
    view = store.transitions(sampler=sw.Prioritized(alpha=1, beta=0))
    for one in store.episodes(where=PUSH):
        assert view.update_priorities(one.ids, np.full(one.length, 3)) == 0
    heavy = steps_of(store, PUSH)
    total = 3 * len(heavy) + len(store) - len(heavy)
    batch = view.sample(512)
    expected = [
        3 / total if (lane, step) in heavy else 1 / total for lane, step in zip(batch.lane, batch.step, strict=True)
    ]
    np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-5)
    np.testing.assert_array_equal(batch.weights, 1)


def test_an_episode_is_judged_once() -> None:
    """By what is held when it has ended; evictions change nothing then. A view made later judges what is left."""
    store = sw.Store(SPEC, capacity=64, segment_steps=8)
    view = store.transitions(where="length >= 40")
    add(store, "push", 48)
    assert len(view) == 48
    add(store, "push", 32)
    later = store.transitions(name="later", where="length >= 40")
    assert places(view) == {(0, step) for step in range(16, 48)} and len(later) == 0


def test_parts_of_an_episode_are_judged_by_themselves() -> None:
    """Where a reservoir evicts steps in between, as the table of episodes has it."""
    store = sw.Store(SPEC, capacity=200, segment_steps=4, retention=sw.Reservoir(3), seed=2)
    for n_step in (1, 3):
        name = f"n{n_step}"
        plain = store.transitions(name=f"plain {name}", n_step=n_step)
        view = store.transitions(name=name, n_step=n_step, where="true")
        for k in range(30):
            add(store, "push", 25, k % 2)
            held = {place for place in places(plain)}
            assert places(view) <= held
            assert places(store.transitions(name=f"new {name} {k}", n_step=n_step, where="true")) == held


def test_an_episode_for_which_a_condition_fails_is_not_drawn() -> None:
    """The others are: each is judged by itself. A warning says so once."""
    store = sw.Store(SPEC, capacity=4000)
    view = store.transitions(where="cast(task as integer) > 3")
    for task in ("5", "push", "7", 9, None):
        add(store, task, 4)
    with pytest.warns(RuntimeWarning, match=r"cast\(task as integer\).*push.*not drawn.*lane 0, from step 4"):
        assert places(view) == {(0, step) for step in (*range(4), *range(8, 16))}
    add(store, "x", 4)
    assert len(view) == 12


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("length >", "syntax"),
        ("true; drop table episodes", "SELECT|syntax"),
        ("true) or (true", "syntax"),
        ("no_such(length) > 3", "no_such.*columns lane, first_step"),
        ("count(*) > 3", "aggregates"),
        ("", "syntax"),
        ("length > 3 and steps.reward > 0", r"no table 'steps'; name 'reward' alone.*quote \"steps\.reward\""),
        ("info.length = 'long'", r"quote \"info\.length\""),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_refused(where: str, message: str) -> None:
    store = written(3)
    with pytest.raises(ValueError, match=message):
        store.transitions(where=where)
    with pytest.raises(TypeError, match="expected a condition in SQL"):
        store.transitions(where=3)
    with pytest.raises(ValueError, match="only_ended"):
        store.view(plain(), where=PUSH)
    with pytest.raises(ValueError, match=r"secret|access|disabled|Permission"):
        store.transitions(where="(select count(*) from read_csv('/etc/passwd')) > 3")


def test_a_column_added_later_is_refused() -> None:
    """Its values change after an episode was judged. Batches have it, and conditions on other columns work."""
    store = written()
    store.add_column("advantage", sw.Field((), "float32"))
    for where in ("advantage > 0", pc.field("advantage") > 0):
        with pytest.raises(ValueError, match="'advantage' is a column added later"):
            store.transitions(where=where)
    view = store.transitions(where="action > 2 and task = 'push'")
    assert (view.sample(8)["advantage"] == 0).all()


def plain() -> Any:
    """A view that finds all items."""
    view = NStep(1, 0.9)
    view.only_ended = None
    return view


def test_a_view_of_ones_own_takes_a_condition() -> None:
    store = written()
    view = store.view(NStep(2, 0.9), where=PUSH)
    assert places(view) == steps_of(store, PUSH)


def test_nothing_that_matches_is_said() -> None:
    store = written()
    view = store.transitions(where="task = 'sweep'")
    with pytest.raises(sw.EmptyError, match="once its episode has ended and matches \"task = 'sweep'\""):
        view.sample(1)


def test_another_condition_begins_anew(tmp_path: Path) -> None:
    """It is a setting of the view; the same one restores priorities."""
    store = written()
    view = store.transitions(sampler=sw.Prioritized(), where=PUSH)
    batch = view.sample(8)
    view.update_priorities(batch.ids, np.full(8, 9.0))
    store.checkpoint(tmp_path / "c")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = sw.Store.open(tmp_path / "c").transitions(sampler=sw.Prioritized(), where=PUSH)
    assert same.sampler.state()["max_priority"] > 9 and places(same) == places(view)
    for where in (None, "task = 'pull'"):
        with pytest.warns(RuntimeWarning, match="where was"):
            sw.Store.open(tmp_path / "c").transitions(sampler=sw.Prioritized(), where=where)


KILLED = """
import sys, time, numpy as np
from pathlib import Path
import sharpwave as sw
from tests.views.test_conditions import add, written, PUSH
store = written(30, disk=Path(sys.argv[1]), capacity=150)
view = store.transitions(sampler=sw.Prioritized(), where=PUSH)
batch = view.sample(8)
view.update_priorities(batch.ids, np.full(8, 9.0))
add(store, "push", 40)
print(len(view), flush=True)
store.flush()
add(store, "pull", 30, 1)
print("ready", flush=True)
time.sleep(60)
"""


def test_judgements_outlive_a_kill(tmp_path: Path) -> None:
    """Steps of an episode that matched stay, though the rest of it was evicted before the kill."""
    folder = tmp_path / "d"
    arguments = [sys.executable, "-c", KILLED, str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    store = sw.Store.open(folder)
    view = store.transitions(sampler=sw.Prioritized(), where=PUSH)
    assert places(view) == steps_of(store, PUSH) != set()
    assert view.sampler.state()["max_priority"] > 9
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_judges_by_itself() -> None:
    """A child goes on with its copy of a store, and ends; so does the parent."""
    store = written()
    view = store.transitions(where=PUSH)
    before = len(view)
    child = os.fork()
    if not child:
        add(store, "push", 9)
        code = 0 if len(view) == before + 9 and len(view.sample(4)) == 4 else 1
        del view, store
        os._exit(code)
    assert os.waitpid(child, 0) == (child, 0)
    add(store, "push", 4)
    assert len(view) == before + 4


@pytest.mark.usefixtures("forked_shards")
def test_shards_judge_their_own_episodes() -> None:
    """A condition in SQL is a setting of the view; an expression is refused."""
    with sw.Cluster(SPEC, shards=2, capacity=4000) as cluster:
        writers = [cluster.writer(lanes=1) for _ in range(2)]
        for k in range(20):
            writer, task = writers[k % 2], ("push", "pull")[k // 2 % 2]
            writer.annotate(0, {"task": task})
            for t in range(5):
                step = {"action": [1 if task == "push" else 2], "reward": [t], "terminated": [t == 4], "length": [0]}
                writer.extend(obs=[[t, t]], final_obs=[[t, t]], truncated=[False], **step)
        for writer in writers:
            writer.seal()
            writer.flush()
        view = cluster.transitions(where=PUSH)
        assert len(view) == 50
        assert (view.sample(64).action == 1).all()
        windows = cluster.sequences(3, where="task = 'pull' and reward >= 3")
        assert len(windows) == 10 and (windows.sample(16).action[:, :2] == 2).all()
        with pytest.raises(TypeError, match="a cluster takes a condition in SQL"):
            cluster.transitions(name="other", where=pc.field("length") > 3)
        with pytest.raises(ValueError, match="syntax"):
            cluster.transitions(name="other", where="length >")
