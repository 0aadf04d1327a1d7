"""Priorities that start from a column, against priorities computed from what was appended and written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.views.toy_view import Pieces

SPEC = sw.Spec(
    obs=sw.Field((2,), "float32"),
    action=sw.Field((), "int64"),
    score=sw.Field((), "float32"),
    flag=sw.Field((1,), "bool"),
    pair=sw.Field((2,), "float32"),
    text=sw.Field(str),
    core=sw.Field((), "float32", every=4),
)
SCORES = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), score=sw.Field((), "float32"))
EPS = 1e-3
Step = tuple[int, int]


class Played:
    """A store, and the scores and rewards of its steps by lane and number."""

    def __init__(self, **options: Any) -> None:
        self.store = sw.Store(SCORES, **{"capacity": 4000, "segment_steps": 8} | options)
        self.rng = np.random.default_rng(1)
        self.rewards, self.scores = dict[Step, float](), dict[Step, float]()

    def play(self, steps: int, ended: bool = True, lane: int = 0, **facts: Any) -> Any:
        """Add an episode, and return its steps' ids; or steps that a later call goes on from."""
        first = int(self.store.lane_steps[lane]) if lane < self.store.lanes else 0
        reward, score = (self.rng.normal(size=steps).astype(np.float32) for _ in range(2))
        for k in range(steps):
            self.rewards[lane, first + k], self.scores[lane, first + k] = float(reward[k]), float(score[k])
        obs, action = self.rng.random((steps + 1, 2)), np.arange(steps)
        if facts:
            self.store.annotate(lane, facts, episode=True)
        if ended:
            return self.store.add_episode(
                lane=lane, obs=obs, action=action, reward=reward, terminated=True, score=score
            )
        no = np.zeros((steps, 1), bool)
        arrays: dict[str, Any] = {
            "obs": obs[:-1, None],
            "action": action[:, None],
            "reward": reward[:, None],
            "score": score[:, None],
        }
        return self.store.extend(**arrays, terminated=no, truncated=no)


def chances(view: Any, size: int = 256) -> dict[Step, float]:
    """The probability of each item that a batch has, by lane and step."""
    batch = view.sample(size)
    steps = zip(batch.lane.tolist(), batch.step.tolist(), strict=True)
    return dict(zip(steps, batch.probabilities.tolist(), strict=True))


def check(view: Any, priorities: dict[Step, float], alpha: float) -> None:
    """Have all items of a view these priorities? A batch shows some, and their share shows the sum of all."""
    mass = {step: priority**alpha for step, priority in priorities.items()}
    found = chances(view)
    assert found
    assert len(view) == len(priorities)
    for step, chance in found.items():
        assert chance == pytest.approx(mass[step] / sum(mass.values()), rel=1e-5), step


def of(values: dict[Step, float]) -> dict[Step, float]:
    return {step: abs(value) + EPS for step, value in values.items()}


def sampler(by: str | None, alpha: float = 0.7) -> sw.Prioritized:
    return sw.Prioritized(alpha=alpha, eps=EPS, by=by)


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("by", ["reward", "score"])
def test_items_start_from_the_absolute_value_of_a_field_of_their_step(by: str, disk: bool, tmp_path: Path) -> None:
    played = Played(disk=tmp_path / "store" if disk else None)
    played.play(13)
    view = played.store.transitions(sampler=sampler(by), n_step=3)
    for k in range(12):  # through sealed and open segments, and some that grow
        played.play(5 + k)
        values = played.rewards if by == "reward" else played.scores
        check(view, of(values), 0.7)


def test_steps_that_cannot_be_sampled_yet_start_when_they_can(tmp_path: Path) -> None:
    played = Played()
    view = played.store.transitions(sampler=sampler("reward"), n_step=2)
    for k in range(9):
        played.play(3 + k % 2, ended=False)
        known = dict(list(played.rewards.items())[:-2])
        check(view, of(known), 0.7)


def test_missing_values_start_as_without_a_column_and_later_ones_change_nothing() -> None:
    played = Played()
    played.store.add_column("late", sw.Field((), "float64"))
    view = played.store.transitions(sampler=sampler("late", alpha=1.0))
    first = played.play(10)
    played.store.write_column("late", first[2:6], [-3.0, 0.0, np.nan, -np.inf])
    expected = {(0, k): 3 + EPS if k == 2 else EPS if k == 3 else 1.0 for k in range(10)}
    check(view, expected, 1.0)
    played.store.write_column("late", first[:2], [7.0, 7.0])
    check(view, expected, 1.0)
    second = played.play(3)  # the largest priority so far is that of a value
    played.store.write_column("late", second[:1], [0.5])
    expected |= {(0, 10): 0.5 + EPS, (0, 11): 3 + EPS, (0, 12): 3 + EPS}
    check(view, expected, 1.0)
    played.store.drop_column("late")
    played.play(1)
    check(view, expected | {(0, 13): 3 + EPS}, 1.0)


def test_a_value_beyond_float32_counts_as_missing() -> None:
    played = Played()
    ids = played.play(4)
    played.store.add_column("late", sw.Field((), "float64"))
    played.store.write_column("late", ids, [1e300, 2.0, -1e39, 3.0])
    view = played.store.transitions(sampler=sampler("late", alpha=1.0))
    check(view, {(0, 0): 1.0, (0, 1): 2 + EPS, (0, 2): 1.0, (0, 3): 3 + EPS}, 1.0)


def test_flags_of_one_number_a_step_are_0_and_1() -> None:
    store = sw.Store(SPEC, capacity=100)
    flag = np.array([[False], [True], [True]])
    store.add_episode(
        lane=0, obs=np.zeros((4, 2)), action=np.zeros(3, int), reward=np.zeros(3), terminated=True,
        score=np.zeros(3), flag=flag, pair=np.zeros((3, 2)), text=["", "a", "b"], core=np.zeros(3),
    )  # fmt: skip
    view = store.transitions(sampler=sampler("flag", alpha=1.0))
    check(view, {(0, 0): EPS, (0, 1): 1 + EPS, (0, 2): 1 + EPS}, 1.0)


def test_windows_mix_the_values_of_their_trained_steps() -> None:
    played = Played()
    view = played.store.sequences(5, burn_in=2, stride=3, eta=0.8, n_step=2, sampler=sampler("score"))
    begins: list[tuple[int, int]] = []  # of episodes: the first step, and how many
    for k in range(8):
        begins.append((sum(steps for _, steps in begins), 7 + 2 * k))
        played.play(begins[-1][1])
        expected = {}
        for first, steps in begins:
            for begin in range(0, steps, 3):
                values = [abs(played.scores[0, first + i]) for i in range(begin, min(begin + 5, steps))]
                expected[0, first + begin] = 0.8 * max(values) + 0.2 * sum(values) / len(values) + EPS
        check(view, expected, 0.7)


def test_a_window_with_a_missing_value_starts_as_without() -> None:
    played = Played()
    ids = played.play(8)
    played.store.add_column("late", sw.Field((), "float32"))
    played.store.write_column("late", ids[:7], np.full(7, 5.0))
    view = played.store.sequences(4, sampler=sampler("late", alpha=1.0))
    assert sorted(set(view.sample(64).probabilities.round(6))) == pytest.approx([1 / (6 + EPS), (5 + EPS) / (6 + EPS)])


def test_updates_and_a_reopened_store_keep_priorities_and_start_only_new_items(tmp_path: Path) -> None:
    played = Played(disk=tmp_path / "store")
    ids = played.play(20)
    view = played.store.transitions(sampler=sampler("score"))
    check(view, of(played.scores), 0.7)
    view.update_priorities(ids[:5], np.full(5, 2.5))
    expected = of(played.scores) | {(0, k): 2.5 + EPS for k in range(5)}
    check(view, expected, 0.7)
    played.play(3)  # found by nobody before the store is closed
    played.store.close()
    played.store = sw.Store.open(tmp_path / "store")
    played.play(4)
    expected |= of({step: value for step, value in played.scores.items() if step[1] >= 20})
    view = played.store.transitions(sampler=sampler("score"))
    check(view, expected, 0.7)
    checkpoint = tmp_path / "checkpoint"
    played.store.checkpoint(checkpoint)
    played.store.close()
    with sw.Store.open(checkpoint, disk=tmp_path / "other") as store:
        check(store.transitions(sampler=sampler(None)), expected, 0.7)  # by= may change, as beta


def test_new_steps_of_a_segment_that_a_saved_state_has_in_part_start_from_the_column(tmp_path: Path) -> None:
    folder, before = tmp_path / "store", tmp_path / "before"
    played = Played(disk=folder)
    played.play(5, ended=False)
    view = played.store.transitions(sampler=sampler("score"))
    view.update_priorities(view.sampleable_ids(), np.full(4, 2.5))
    played.store.flush()
    shutil.copytree(folder / "views", before)
    played.play(4, ended=False)
    played.store.close()
    shutil.rmtree(folder / "views")  # as if killed before the views were written again
    before.rename(folder / "views")
    expected = of(played.scores) | {(0, k): 2.5 + EPS for k in range(4)}
    del expected[0, 8]  # its successor is unknown
    with sw.Store.open(folder) as store:
        check(store.transitions(sampler=sampler("score")), expected, 0.7)


def test_a_condition_deletions_mixtures_and_limited_uses() -> None:
    pytest.importorskip("duckdb")
    played = Played()
    view = played.store.transitions(where="good", sampler=sampler("reward"), name="where")
    mixed = played.store.transitions(
        sampler=sw.Mixture([(0.5, sampler("score")), (0.5, sw.Uniform())], beta=0), name="mixed"
    )
    once = played.store.transitions(sampler=sampler("reward"), max_times_sampled=1, name="once")
    episodes: list[tuple[range, bool]] = []
    for k in range(6):
        first = len(played.rewards)
        played.play(4 + k, good=k % 2 == 0)
        episodes.append((range(first, len(played.rewards)), k % 2 == 0))
        check(view, of({(0, i): played.rewards[0, i] for steps, good in episodes if good for i in steps}), 0.7)
        mass = {step: value**0.7 for step, value in of(played.scores).items()}
        for step, chance in chances(mixed).items():
            expected = 0.5 * mass[step] / sum(mass.values()) + 0.5 / len(mass)
            assert chance == pytest.approx(expected, rel=1e-5)
    assert len(once) == len(played.rewards)
    largest = [abs(played.rewards[0, int(step)]) for step in once.sample(20).step]
    assert np.mean(largest) > np.mean([abs(value) for value in played.rewards.values()])
    played.store.delete(episodes=[played.store.episodes()[2]])
    gone = set(episodes[2][0])
    played.play(3, good=True)
    left = {step: value for step, value in played.rewards.items() if step[1] not in gone}
    good = {i for steps, is_good in episodes if is_good for i in steps} | set(range(first + 9, first + 12))
    check(view, of({step: value for step, value in left.items() if step[1] in good}), 0.7)


def test_a_blend_of_views_that_start_from_columns() -> None:
    one, two = Played(), Played()
    two.rng = np.random.default_rng(2)
    views = [one.store.transitions(sampler=sampler("score")), two.store.transitions(sampler=sampler("reward"))]
    blend = sw.Blend([(0.25, views[0]), (0.75, views[1])])
    for _ in range(4):
        one.play(9), two.play(12)
        batch = blend.sample(256)
        for k, values in enumerate((one.scores, two.rewards)):
            here = np.asarray(batch.source) == k
            mass = {step: value**0.7 for step, value in of(values).items()}
            for step, chance in zip(batch.step[here].tolist(), batch.probabilities[here].tolist(), strict=True):
                assert chance == pytest.approx((0.25, 0.75)[k] * mass[0, step] / sum(mass.values()), rel=1e-5)


def test_steps_are_evicted_and_read_from_a_disk_with_little_memory(tmp_path: Path) -> None:
    played = Played(disk=tmp_path / "store", capacity=600, ram="6MiB")
    view = played.store.transitions(sampler=sampler("score"), name="all")
    for _ in range(60):
        played.play(20)
        held = {step for episode in played.store.episodes() for step in _steps(episode)}
        check(view, of({step: value for step, value in played.scores.items() if step in held}), 0.7)
    late = played.store.transitions(sampler=sampler("score"), name="late")  # finds all at once
    check(late, of({step: value for step, value in played.scores.items() if step in held}), 0.7)


def _steps(episode: Any) -> list[Step]:
    return [(episode.lane, episode.first_step + k) for k in range(episode.length)]


@pytest.mark.parametrize(
    ("by", "error"),
    [
        ("obs", ValueError), ("action", ValueError), ("pair", ValueError), ("text", ValueError), ("core", ValueError),
        ("unknown", ValueError), ("late.written", ValueError), ("terminated", ValueError), (3, TypeError),
    ],
)  # fmt: skip
def test_a_column_of_other_than_one_number_a_step_is_refused_by_its_name(by: Any, error: type[Exception]) -> None:
    store = sw.Store(SPEC, capacity=100)
    store.add_column("late", sw.Field((), "float32"))
    one = sampler(by)
    with pytest.raises(error, match=f"by={by!r}"):
        store.transitions(sampler=one)
    with pytest.raises(error, match="'reward'"):
        store.sequences(3, sampler=sw.Mixture([(1.0, one)]))
    if error is ValueError:
        with pytest.raises(error, match="'reward', 'score', 'flag', 'late'"):
            store.transitions(sampler=one)


def test_a_view_that_does_not_tell_its_steps_refuses_by_name() -> None:
    store = sw.Store(SCORES, capacity=100)
    with pytest.raises(ValueError, match=r"by='score', but Pieces"):
        store.view(Pieces(3), sampler=sampler("score"))


@pytest.mark.parametrize("length", [None, 2], ids=["transitions", "sequences"])
@pytest.mark.parametrize(
    "between",
    ["limiter", "flush", "snapshot", "delete", "len", "append", "checkpoint", "reopen", "eviction"],
)
def test_values_written_before_the_first_draw_count_whatever_found_the_items(
    between: str, length: int | None, tmp_path: Path
) -> None:
    on_disk = between in ("flush", "snapshot", "reopen")
    played = Played(disk=tmp_path / "store" if on_disk else None, capacity=64 if between == "eviction" else 4000)
    played.store.add_column("late", sw.Field((), "float32"))

    def view() -> Any:
        one: Any = sampler("late", alpha=1.0)
        if between == "append":  # an order of insertions matters, so that each append finds its items
            one = sw.Mixture([(1.0, one), (1e-300, sw.Fifo())], beta=0)
        limiter = sw.MinSize(5) if between in ("limiter", "eviction") else None
        if length is None:
            return played.store.transitions(sampler=one, limiter=limiter)
        return played.store.sequences(length, stride=length, sampler=one, limiter=limiter)

    drawn, stride = view(), length or 1
    expected: dict[Step, float] = {}
    for k in range(12):
        first = len(played.scores)
        played.play(10)
        if between == "flush":
            played.store.flush()
        elif between == "snapshot":
            played.store.snapshot(f"version-{k}")
        elif between == "delete":
            played.store.delete(episodes=[])
        elif between == "len":
            assert len(drawn) > 0
        elif between in ("checkpoint", "reopen"):
            folder = tmp_path / f"{between} {k}"
            if between == "checkpoint":
                played.store.checkpoint(folder)
            played.store.close()
            played.store = sw.Store.open(tmp_path / "store" if on_disk else folder)
            drawn = view()
        value, steps = 0.1 * (1 + k % 5), range(first, first + 10, stride)
        expected |= {(0, step): value + EPS if step < first + 8 else 1.0 for step in steps}
        if k % 3 == 0:  # an error that is known before the value stays
            newest = drawn.sampleable_ids()
            newest = newest[drawn.fetch(newest).step == first]
            drawn.update_priorities(newest, np.full((1, *drawn.view.error_shape), 0.25))
            expected[0, first] = 0.25 + EPS
        played.store.write_column("late", played.store.ids(0, np.arange(first, first + 8)), np.full(8, value))
        if k % 3 == 2:
            held = {step for episode in played.store.episodes() for step in _steps(episode)}
            expected = {step: priority for step, priority in expected.items() if step in held}
            assert (len(held) < len(played.scores)) == (between == "eviction" and k > 5)
            check(drawn, expected, 1.0)
            later = played.store.ids(0, np.arange(first, first + 10))
            played.store.write_column("late", later, np.full(10, 9.0))  # too late
            check(drawn, expected, 1.0)


def test_a_step_in_the_place_of_an_evicted_one_that_was_never_drawn_starts_by_its_own_value() -> None:
    played = Played(capacity=32)
    played.store.add_column("late", sw.Field((), "float32"))
    view = played.store.transitions(sampler=sampler("late", alpha=1.0))
    for k in range(20):
        first = len(played.scores)
        played.store.write_column("late", played.play(5 + k % 4), np.full(5 + k % 4, 1.0 + k))
        assert len(view) > 0
    expected = {}
    for episode in played.store.episodes():
        for step in _steps(episode):
            values, _ = played.store.read_column("late", played.store.ids(*step))
            expected[step] = values.item() + EPS
    assert (0, first) in expected
    check(view, expected, 1.0)


def test_steps_found_before_a_draw_count_as_new_ones_in_a_state_that_other_settings_restore(tmp_path: Path) -> None:
    played = Played()
    played.store.add_column("late", sw.Field((), "float32"))
    view = played.store.transitions(sampler=sampler("late", alpha=1.0))
    first = played.play(4)
    played.store.write_column("late", first, np.full(4, 3.0))
    view.sample(4)
    played.store.write_column("late", played.play(4), np.full(4, 2.0))
    played.store.checkpoint(tmp_path / "checkpoint")
    old, largest = {(0, k): 3 + EPS for k in range(4)}, {(0, k): 3 + EPS for k in range(4, 8)}
    with sw.Store.open(tmp_path / "checkpoint") as store:
        check(store.transitions(sampler=sampler(None, alpha=1.0)), old | largest, 1.0)
    with sw.Store.open(tmp_path / "checkpoint") as store:
        values = {(0, k): 2 + EPS for k in range(4, 8)}
        check(store.transitions(sampler=sampler("late", alpha=1.0)), old | values, 1.0)


# ranks


def check_ranks(view: Any, values: dict[Step, float], alpha: float = 0.7) -> None:
    """Is each item drawn by its rank among these values?"""
    ordered = sorted(values, key=lambda step: -abs(values[step]))
    mass = {step: (1 / rank) ** alpha for rank, step in enumerate(ordered, 1)}
    found = chances(view)
    assert found and len(view) == len(values)
    for step, chance in found.items():
        assert chance == pytest.approx(mass[step] / sum(mass.values()), rel=1e-6), step


@pytest.mark.parametrize("by", ["reward", "score", "late"])
def test_ranks_start_from_a_column(by: str, tmp_path: Path) -> None:
    played = Played(disk=tmp_path / "store")
    if by == "late":
        played.store.add_column("late", sw.Field((), "float64"))
    view = played.store.transitions(sampler=sw.RankPrioritized(by=by))
    values = dict[Step, float]()

    def more(steps: int) -> None:
        before, written = len(played.rewards), played.rng.normal(size=steps)
        ids = played.play(steps)
        new = list(played.rewards)[before:]
        if by == "late":
            played.store.write_column("late", ids, written)
            values.update(zip(new, written.tolist(), strict=True))
        else:
            values.update((step, (played.rewards if by == "reward" else played.scores)[step]) for step in new)

    for steps in (9, 12, 30, 60):  # at least as many as before: the heap is sorted
        more(steps)
        check_ranks(view, values)
    batch = view.sample(16)
    view.update_priorities(batch, np.zeros(16))
    for lane, step in zip(batch.lane.tolist(), batch.step.tolist(), strict=True):
        values[lane, step] = 0.0
    more(120)  # that no draw has seen: they start after the checkpoint
    played.store.checkpoint(tmp_path / "checkpoint")
    played.store.close()
    with sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "copy") as again:
        restored = again.transitions(sampler=sw.RankPrioritized(by=by))
        zeros = [step for step, value in values.items() if value == 0]
        restored.sample(1)
        same = np.repeat(again.ids(*np.array(zeros[:1]).T), len(values))
        restored.update_priorities(same, np.zeros(len(values)))  # so many changes that the heap is sorted
        found = chances(restored, 400)
        mass = np.arange(1, len(values) + 1) ** -0.7
        ordered = [step for step in sorted(values, key=lambda step: -abs(values[step])) if step not in zeros]
        for rank, step in enumerate(ordered, 1):
            if step in found:
                assert found[step] == pytest.approx(rank**-0.7 / mass.sum(), rel=1e-6)


def test_a_wrong_column_of_ranks_is_named() -> None:
    with (
        sw.Store(SPEC, capacity=100) as store,
        pytest.raises(ValueError, match=r"^RankPrioritized: by='pair', expected"),
    ):
        store.transitions(sampler=sw.RankPrioritized(by="pair"))
