"""Relabelled transitions beside a plain account of the episodes: which goals each may get, how often, and what for."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.testing.view import AppendedStep, ViewSuite
from sharpwave.views.hindsight import Goals, Hindsight
from sharpwave.views.view_protocol import View
from tests.support.examples import examples
from tests.views.goals_account import SPEC, STRATEGIES, Account, Array, reward_fn


class TestItems(ViewSuite):
    """Of steps whose episode has ended, or was cut off by evictions."""

    spec = sw.Spec(
        obs={
            "observation": sw.Field((2,), "int64", stack=2),
            "achieved_goal": sw.Field((2,), "int64"),
            "desired_goal": sw.Field((2,), "int64"),
        },
        action=sw.Field((), "int64"),
    )

    def make_view(self) -> View[Any]:
        return Hindsight(sw.Future(k=1, reward_fn=lambda achieved, desired, info: achieved[:, 0] * 0.0), 1, 0.5)

    def expected(self, lane: list[AppendedStep]) -> set[Any]:
        found = set()
        for at, step in enumerate(lane):
            later = at
            while not lane[later].ended and later + 1 < len(lane) and lane[later + 1].held:
                later += 1
            if step.held and (lane[later].ended or later + 1 < len(lane)):
                found.add((step.serial, 0.0 if step.terminated else 0.5))
        return found

    def item(self, batch: Any, i: int) -> Any:
        assert batch.obs["achieved_goal"][i, 0] == batch.action[i]
        return int(batch.action[i]), float(batch.discount[i])


# goals

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["steps", "steps", "steps", "steps", "break", "check", "clear", "delete", "reopen"]),
        st.integers(0, 2),
        st.integers(1, 14),
        st.sampled_from(["", "terminated", "truncated", "truncated"]),
    ),
    max_size=24,
)


def played(
    operations: list[tuple[str, int, int, str]], strategy: type[Goals], k: float, folder: Path | None, **more: Any
) -> None:
    """Play operations on a store, and check after each of some kinds."""
    account = Account(sw.Store(SPEC, capacity=60, segment_steps=4, seed=1, **more))
    goals = strategy(k=k, reward_fn=reward_fn)
    replay = account.store.transitions(relabel=goals, gamma=0.5)
    for number, (what, lane, count, end) in enumerate([*operations, ("check", 0, 0, "")]):
        if what == "steps":
            for left in range(count, 0, -1):
                account.append(lane, end if left == 1 else "")
        elif what == "clear" and count == 1:
            account.clear()
        elif what == "delete":
            account.delete(count)
        elif what == "break":
            account.break_episode(lane)
        elif what == "reopen" and folder is not None:
            account.store.checkpoint(folder / str(number))
            account.store.close()
            account.store = sw.Store.open(folder / str(number))
            replay = account.store.transitions(relabel=goals, gamma=0.5)
        else:
            account.check(replay, strategy, k)
    account.check(account.store.transitions(relabel=goals, gamma=0.5, name="late"), strategy, k)
    account.store.close()


@settings(max_examples=examples(50))
@given(OPERATIONS, st.sampled_from(STRATEGIES), st.sampled_from([0.5, 1, 4, 1000]), st.booleans())
def test_each_goal_of_each_step(
    tmp_path_factory: Any, operations: Any, strategy: type[Goals], k: float, reservoir: bool
) -> None:
    retention = sw.Reservoir(3) if reservoir else sw.Fifo()
    played(operations, strategy, k, tmp_path_factory.mktemp("checkpoints"), retention=retention)


@settings(max_examples=examples(12))
@given(OPERATIONS, st.sampled_from(STRATEGIES))
def test_each_goal_of_each_step_on_disk(tmp_path_factory: Any, operations: Any, strategy: type[Goals]) -> None:
    folder = tmp_path_factory.mktemp("disk")
    played(operations, strategy, 4, folder, disk=folder / "store", disk_limit="16MiB")


def filled(episodes: int = 60, seed: int = 0, **more: Any) -> Account:
    """Episodes of 1 to 30 steps, in turn terminated and truncated, on three lanes."""
    account = Account(sw.Store(SPEC, **{"capacity": 2000, "segment_steps": 8, "seed": 1} | more))
    rng = np.random.default_rng(seed)
    for episode in range(episodes):
        for left in range(int(rng.integers(1, 31)), 0, -1):
            account.append(episode % 3, "" if left > 1 else "terminated" if episode % 2 else "truncated")
    return account


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_deleted_episodes_are_relabelled_no_more(strategy: type[Goals], on_disk: bool, tmp_path: Path) -> None:
    """Neither by sample nor by what a stream had drawn before; views made before and after agree."""
    more: dict[str, Any] = {"disk": tmp_path / "store"} if on_disk else {}
    account = filled(30, **more)
    goals = strategy(k=4, reward_fn=reward_fn)
    replay = account.store.transitions(relabel=goals, sampler=sw.Prioritized())
    stream = replay.stream(64, lookahead=3)
    first = next(stream)
    for number in (20, 3, 11, 0, 7):
        account.delete(number)
    gone = {one.serial for steps in account.lanes for one in steps if one.deleted}
    assert gone
    for view in (replay, account.store.transitions(relabel=goals, name="late")):
        account.check(view, strategy, 4)
        for batch in [view.sample(64) for _ in range(5)]:
            assert batch.relabelled.any() and not gone & set(batch.action.tolist())
    for batch in [next(stream) for _ in range(5)]:  # three of them were drawn before the deletion
        assert len(batch.action) == 64 and not gone & set(batch.action.tolist())
    of_gone = first.ids[np.isin(first.action, list(gone))]
    assert len(of_gone)
    with pytest.raises(KeyError):
        replay.fetch(of_gone)
    assert replay.update_priorities(of_gone, np.ones(len(of_gone))) == len(of_gone)


def goals_of(batch: Any) -> list[tuple[int, int]]:
    """(serial, goal) of the relabelled items of a batch."""
    rows = batch.relabelled
    return list(zip(batch.action[rows].tolist(), batch.obs["desired_goal"][rows, 1].tolist(), strict=True))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("sampler", [sw.Uniform, sw.Prioritized, sw.RankPrioritized])
def test_goals_are_uniform(strategy: type[Goals], sampler: Any) -> None:
    account = filled(9)
    allowed = account.goals(strategy)
    replay = account.store.transitions(relabel=strategy(k=4, reward_fn=reward_fn), sampler=sampler())
    batches = [replay.sample(512) for _ in range(60)]
    seen = Counter(pair for batch in batches for pair in goals_of(batch))
    relabelled, total = seen.total(), 60 * 512
    assert abs(relabelled - 0.8 * total) < 5 * np.sqrt(total * 0.16)
    assert all(goal in allowed[serial] for serial, goal in seen)
    drawn = Counter(serial for serial, _ in seen.elements())
    cells = [(seen[serial, goal], drawn[serial] / len(allowed[serial])) for serial in drawn for goal in allowed[serial]]
    chi_square = sum((count - expected) ** 2 / expected for count, expected in cells)
    degrees = len(cells) - len(drawn)
    assert chi_square <= degrees + 5 * np.sqrt(2 * degrees) + 1e-9


def test_priorities_are_as_ever() -> None:
    account = filled()
    goals = sw.Future(k=4, reward_fn=reward_fn)
    replay = account.store.transitions(relabel=goals, sampler=sw.Prioritized(alpha=1.0, beta=1.0, eps=1e-9))
    plain = account.store.transitions(name="plain", sampler=sw.Prioritized(alpha=1.0, beta=1.0, eps=1e-9))
    ids = replay.sampleable_ids()
    assert sorted(ids.tolist()) == sorted(plain.sampleable_ids().tolist())
    errors = 1.0 + np.arange(len(ids)) % 5
    for view in (replay, plain):
        assert view.update_priorities(ids, errors) == 0
    of = dict(zip(ids.tolist(), errors / errors.sum(), strict=True))
    for view in (replay, plain):
        batch = view.sample(256)
        np.testing.assert_allclose(batch.probabilities, [of[id_] for id_ in batch.ids.tolist()])
    assert replay.update_priorities(replay.sample(32), np.ones(32)) == 0


# reproducibility


def same(one: Any, other: Any) -> None:
    for name in ("ids", "relabelled", "reward", "discount", "terminated"):
        np.testing.assert_array_equal(one[name], other[name])
    for key in one.obs:
        np.testing.assert_array_equal(one.obs[key], other.obs[key])
        np.testing.assert_array_equal(one.next_obs[key], other.next_obs[key])


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_same_seed_same_goals_also_after_a_checkpoint(on_disk: bool, tmp_path: Path) -> None:
    goals = sw.Future(k=4, reward_fn=reward_fn)
    disks: list[dict[str, Any]] = [
        {"disk": tmp_path / str(k), "disk_limit": "16MiB"} if on_disk else {} for k in range(2)
    ]
    one, two = (filled(**disk).store for disk in disks)
    first, second = (store.transitions(relabel=goals, sampler=sw.Prioritized()) for store in (one, two))
    streams = [view.stream(32, lookahead=3) for view in (first, second)]
    for _ in range(3):
        same(first.sample(64), second.sample(64))
        same(next(streams[0]), next(streams[1]))
    if on_disk:
        return
    one.checkpoint(tmp_path / "checkpoint")
    again = sw.Store.open(tmp_path / "checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third = again.transitions(relabel=sw.Future(k=4, reward_fn=reward_fn), sampler=sw.Prioritized())
    resumed = third.stream(32, lookahead=3)
    for _ in range(5):
        same(next(streams[0]), next(resumed))
        same(first.sample(64), third.sample(64))


def test_what_is_drawn_can_be_fetched_as_it_would_have_been_sampled() -> None:
    one, two = filled().store, filled().store
    views = [store.transitions(relabel=sw.Episode(k=4, reward_fn=reward_fn)) for store in (one, two)]
    drawn = views[1].draw(64)
    fetched, sampled = views[1].fetch(drawn), views[0].sample(64)
    same(sampled, fetched)
    assert not views[1].fetch(drawn.ids).relabelled.any()
    assert one.transitions(name="plain").sample(8).relabelled is None
    assert one.transitions(name="plain").draw(8).uniforms is None


def test_another_strategy_does_not_restore_the_view(tmp_path: Path) -> None:
    store = filled().store
    kept = store.transitions(relabel=sw.Future(k=4, reward_fn=reward_fn), sampler=sw.Prioritized())
    store.checkpoint(tmp_path)
    del kept
    for other in (sw.Future(k=3, reward_fn=reward_fn), sw.Final(k=4, reward_fn=reward_fn), None):
        with pytest.warns(RuntimeWarning, match="is another"):
            sw.Store.open(tmp_path).transitions(relabel=other, sampler=sw.Prioritized())


# disk


def test_segments_of_goals_are_read_ahead(tmp_path: Path) -> None:
    account = filled(300, disk=tmp_path, disk_limit="16MiB", capacity=None, ram="4MiB")
    allowed = account.goals(sw.Future)
    replay = account.store.transitions(relabel=sw.Future(k=4, reward_fn=reward_fn))
    stream = replay.stream(32, lookahead=4)
    for _ in range(4):
        batch = next(stream)
        assert all(goal in allowed[serial] for serial, goal in goals_of(batch))
    ahead, items = stream.drawn[0].parts[0], replay.source.items
    assert ahead.slots is not None and ahead.uniforms is not None
    needed = replay.view.drawn_segments(items.resolve(ahead.ids)[0], ahead.uniforms)
    assert (needed[:, 0] != needed[:, 1]).any()
    sealed = needed[account.store._log.index.sealed[needed] > 0]
    assert set(sealed.tolist()) <= set(ahead.slots.tolist())


def test_goals_come_from_no_damaged_segment(tmp_path: Path) -> None:
    store = Account(sw.Store(SPEC, capacity=None, segment_steps=8, seed=1, disk=tmp_path, disk_limit="16MiB"))
    for left in range(64, 0, -1):
        store.append(0, "" if left > 1 else "truncated")
    store.append(0)
    replay = store.store.transitions(relabel=sw.Future(k=1e6, reward_fn=reward_fn))
    slot = int(replay.sampleable_ids()[20] & 0xFFFFFFFF) // 8
    first = int(store.store._log.index.first_step[slot])
    log = store.store._log
    log.segment_cache.clear()  # type: ignore[union-attr]
    region = max((path for path in tmp_path.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    with region.open("r+b") as file:
        file.seek(int(log.index.region_offset[slot]) + 200)
        file.write(bytes(64))
    with pytest.warns(RuntimeWarning, match="sampled no more"):
        batches = [replay.sample(64) for _ in range(20)]
    damaged = {2 * serial + 1 for serial in range(first, first + 8)}
    seen = {goal for batch in batches for _, goal in goals_of(batch)}
    assert len(replay) == 56 and seen and not seen & damaged


# functions


def test_rewards_get_what_gymnasium_robotics_gives() -> None:
    spec = sw.Spec(
        obs={name: sw.Field((), "int32") for name in ("achieved", "wanted")}, action=sw.Field((3,), "float32")
    )
    store = sw.Store(spec, capacity=1000, seed=0)
    for step in range(100):
        now, then = ({"achieved": at, "wanted": 500 + step // 10} for at in (step, step + 1))
        store.append(obs=now, next_obs=then, action=np.zeros(3), reward=1, terminated=step % 10 == 9, truncated=False)
    calls: list[tuple[Array, Array, Any]] = []

    def reward(achieved: Array, desired: Array, info: Any) -> Array:
        calls.append((achieved, desired, info))
        return achieved == desired  # booleans are numbers

    goals = sw.Future(k=4, reward_fn=reward, terminated_fn=reward, achieved_goal="achieved", desired_goal="wanted")
    batch = store.transitions(relabel=goals, gamma=0.5).sample(256)
    rows = batch.relabelled
    assert len(calls) == 2 and all(info is None for _, _, info in calls)
    for achieved, desired, _ in calls:
        assert achieved.dtype == desired.dtype == np.int32
        np.testing.assert_array_equal(achieved, batch.next_obs["achieved"][rows])
        np.testing.assert_array_equal(desired, batch.obs["wanted"][rows])
    reached = batch.next_obs["achieved"] == batch.obs["wanted"]
    assert reached[rows].any() and not reached[rows].all()
    np.testing.assert_array_equal(batch.reward, np.where(rows, reached, 1))
    ended = np.where(rows, reached, batch.next_obs["achieved"] % 10 == 0)
    np.testing.assert_array_equal(batch.terminated, ended)
    np.testing.assert_array_equal(batch.discount, np.where(ended, 0, 0.5).astype(np.float32))


def test_no_goals_at_all() -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError("nothing is relabelled")

    batch = filled().store.transitions(relabel=sw.Future(k=0, reward_fn=never)).sample(256)
    assert not batch.relabelled.any() and (batch.reward == 0.5).all()


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (lambda n: np.zeros((n, 1)), ValueError, "all of them at once"),
        (lambda n: 1.0, ValueError, "all of them at once"),
        (lambda n: np.full(n, "a"), ValueError, "all of them at once"),
        (lambda n: np.full(n, np.nan), ValueError, "finite"),
        (lambda n: np.full(n, 1e300), ValueError, "finite"),
        (lambda n: dict[str, int]()["goal"], KeyError, "goal"),
    ],
)
def test_an_error_of_the_function_leaves_everything_undrawn(answer: Any, error: Any, match: str) -> None:
    broken = [False]

    def reward(achieved: Array, desired: Array, info: Any) -> Any:
        return answer(len(achieved)) if broken[0] else reward_fn(achieved, desired, info)

    one, two = filled(), filled()
    first = one.store.transitions(relabel=sw.Final(reward_fn=reward), max_times_sampled=2)
    second = two.store.transitions(relabel=sw.Final(reward_fn=reward_fn), max_times_sampled=2)
    broken[0] = True
    with pytest.raises(error, match=match):
        first.sample(64)
    broken[0] = False
    same(first.sample(64), second.sample(64))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"k": -1}, ValueError, "k=-1"),
        ({"k": float("inf")}, ValueError, "k=inf"),
        ({"k": "4"}, ValueError, "k='4'"),
        ({"reward_fn": None}, TypeError, "compute_reward"),
        ({"terminated_fn": 3}, TypeError, "terminated_fn=3"),
        ({"achieved_goal": "desired_goal"}, ValueError, "two keys"),
    ],
)
def test_strategies_that_are_refused(arguments: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        sw.Future(**{"reward_fn": reward_fn} | arguments)


def test_views_that_are_refused() -> None:
    store, goals = filled(1).store, sw.Future(reward_fn=reward_fn)
    with pytest.raises(ValueError, match="n_step=3 with relabel=Future"):
        store.transitions(relabel=goals, n_step=3)
    with pytest.raises(TypeError, match="relabel='future', expected"):
        store.transitions(relabel="future")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'goal'"):
        store.transitions(relabel=sw.Future(reward_fn=reward_fn, desired_goal="goal"))
    fields = {"achieved_goal": sw.Field((2,), "int64"), "desired_goal": sw.Field((2,), "int64")}
    action = sw.Field((), "int64")
    for other, match in (
        (sw.Field((3,), "int64"), "expected the same"),
        (sw.Field((2,), "int32"), "expected the same"),
        (sw.Field((2,), "int64", stack=2), "without stack"),
    ):
        with pytest.raises(ValueError, match=match):
            sw.Store(sw.Spec(obs=fields | {"desired_goal": other}, action=action), capacity=10).transitions(
                relabel=goals
            )
    with pytest.raises(ValueError, match="is no dict"):
        sw.Store(sw.Spec(obs=sw.Field((2,), "int64"), action=action), capacity=10).transitions(relabel=goals)


def test_a_running_episode_is_not_sampled() -> None:
    account = Account(sw.Store(SPEC, capacity=100))
    for _ in range(20):
        account.append(0)
    replay = account.store.transitions(relabel=sw.Future(reward_fn=reward_fn))
    with pytest.raises(sw.EmptyError, match="once its episode has ended"):
        replay.sample(4)
    account.append(0, "terminated")
    account.append(0)
    assert len(replay) == 21


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_episode_ends_where_the_only_step_of_a_segment_is_broken_off(goes_on: bool) -> None:
    store = sw.Store(TestItems.spec, capacity=100, segment_steps=4)
    replay = store.transitions(relabel=sw.Future(reward_fn=lambda achieved, desired, info: achieved[:, 0]))

    def append(serial: int) -> None:
        obs = dict.fromkeys(("observation", "achieved_goal", "desired_goal"), np.full(2, serial))
        store.append(obs=obs, action=serial, reward=0.0, terminated=False, truncated=False)

    for serial in range(9):
        append(serial)
    assert len(replay) == 0
    store.break_episode(0)
    if goes_on:
        append(9)
    assert len(replay) == 8


def test_a_blend_of_goals() -> None:
    accounts = [filled(seed=seed) for seed in (0, 1)]
    goals = sw.Future(k=4, reward_fn=reward_fn)
    views = [account.store.transitions(relabel=goals) for account in accounts]
    blend = sw.Blend([(0.5, views[0]), (0.5, views[1])])
    for batch in (blend.sample(256), next(blend.stream(256))):
        for k, account in enumerate(accounts):
            allowed, mine = account.goals(sw.Future), batch.source == k
            pairs = zip(batch.action[mine], batch.obs["desired_goal"][mine, 1], batch.relabelled[mine], strict=True)
            found = [(serial, goal) for serial, goal, relabelled in pairs if relabelled]
            assert found and all(goal in allowed[serial] for serial, goal in found)
    with pytest.raises(ValueError, match="hindsight and transitions"):
        sw.Blend([(0.5, views[0]), (0.5, accounts[1].store.transitions(name="plain"))])


def test_info_has_no_actions_also_where_they_are_nested() -> None:
    seen: list[Any] = []

    def reward(achieved: Array, desired: Array, info: Any) -> Array:
        seen.append(info)
        return np.zeros(len(achieved))

    spec = sw.Spec(
        obs={"achieved_goal": sw.Field((), "int64"), "desired_goal": sw.Field((), "int64")},
        action=(sw.Field((), "int64"), {"turn": sw.Field((2,), "float32")}),
        weight=sw.Field((), "float32"),
    )
    store = sw.Store(spec, capacity=100)
    goals = np.arange(6)
    store.add_episode(
        obs={"achieved_goal": goals, "desired_goal": goals}, action=(goals[1:], {"turn": np.ones((5, 2), np.float32)}),
        reward=np.zeros(5), terminated=True, weight=np.ones(5, np.float32),
    )  # fmt: skip
    store.transitions(relabel=sw.Final(k=1000, reward_fn=reward)).sample(8)
    assert [set(info) for info in seen] == [{"weight"}]


def test_a_function_is_called_for_all_of_a_batch_and_may_append(tmp_path: Path) -> None:
    field, goal = sw.Field((64, 64, 3), "uint8"), sw.Field((2,), "float32")
    spec = sw.Spec(obs={"x": field, "achieved_goal": goal, "desired_goal": goal}, action=sw.Field((), "int64"))
    limits: dict[str, Any] = {"capacity": 2000, "ram": "24MiB", "segment_steps": 32}
    rng, goals = np.random.default_rng(0), {"achieved_goal": np.ones(2, "f4"), "desired_goal": np.zeros(2, "f4")}

    def append(store: sw.Store, steps: int) -> None:
        for step in range(steps):
            obs = {"x": rng.integers(0, 255, (64, 64, 3), np.uint8), **goals}
            store.append(obs=obs, action=0, reward=0, terminated=step % 9 == 8, truncated=False)

    with sw.Store(spec, disk=tmp_path / "replay", **limits) as store:
        append(store, 1500)
    calls: list[int] = []

    def reward(achieved: Any, desired: Any, info: Any) -> Any:
        calls.append(len(achieved))
        if len(calls) == 1:
            append(store, 1000)  # evicts steps of this batch
        return np.full(len(achieved), 5.0)

    with sw.Store.open(tmp_path / "replay", ram="24MiB") as store:
        batch = store.transitions(relabel=sw.Final(reward_fn=reward)).sample(200)  # read in parts
        assert calls == [int(batch.relabelled.sum())]
        assert np.array_equal(batch.reward, np.where(batch.relabelled, 5, 0)) and (batch.action == 0).all()
