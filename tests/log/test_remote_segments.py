"""Segments sealed elsewhere: a store that takes them in answers as one that was written to, or refuses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from tests.support.examples import examples
from tests.support.oracle import Oracle, Stacking, assert_same_transition

SHAPE = (6, 8)
GAMMA = 0.5


def spec(shape: tuple[int, ...] = SHAPE) -> sw.Spec:
    return sw.Spec(obs=sw.Field(shape, "uint8", stack=3), action=sw.Field((), "int64"), serial=sw.Field((), "int64"))


def picture(serial: int) -> Any:
    """No two alike; a still background, so that frames are worth encoding."""
    frame = np.full(SHAPE, 7, np.uint8)
    frame[serial % 6, serial % 8] = 8 + serial % 240
    frame[0, :2] = serial & 255, serial >> 8
    return frame


class Far:
    """A writer and the history of what went in; segments wait in ``sealed`` until they are delivered."""

    def __init__(self, lanes: int, segment_steps: int = 8, **kwargs: Any) -> None:
        self.sealed: list[sw.SealedSegment] = []
        self.writer = sw.SegmentWriter(spec(), lanes, self.sealed.append, segment_steps=segment_steps, **kwargs)
        self.lanes, self.serial = lanes, 0
        self.truth, self.arrived = Oracle(Stacking(3)), Oracle(Stacking(3))
        self.count = [0] * lanes

    def step(self, ends: Sequence[str]) -> None:
        """One step of every lane; ``ends``: a letter for each, t(erminated), c(ut off, truncated) or anything else."""
        serials = np.arange(self.serial, self.serial + self.lanes)
        self.serial += self.lanes
        frames, finals = (
            np.stack([picture(s) for s in serials.tolist()]),
            np.stack([picture(s + 30_000) for s in serials.tolist()]),
        )
        te, tr = np.array([e == "t" for e in ends]), np.array([e == "c" for e in ends])
        reward = serials % 5
        self.writer.extend(
            obs=frames, action=serials, reward=reward, terminated=te, truncated=tr, final_obs=finals, serial=serials
        )
        for lane, serial in enumerate(serials.tolist()):
            self.truth.append(
                lane, frames[lane], np.int64(serial), float(reward[lane]), te[lane], tr[lane], finals[lane],
                serial=serial,
            )  # fmt: skip

    def deliver(self, store: sw.Store, lost: bool = False) -> None:
        """Hand the oldest segment to ``store``, or lose it."""
        sealed = self.sealed.pop(0)
        if lost:
            return
        history, arrived = self.truth.lanes[sealed.lane], self.arrived.lanes.setdefault(sealed.lane, [])
        if sealed.first_step > self.count[sealed.lane] and arrived and not arrived[-1].ended:
            self.arrived.end_episode(sealed.lane, arrived[-1].obs)  # whatever: it counts for how far returns reach
        for step in history[sealed.first_step : sealed.first_step + sealed.steps]:
            self.arrived.append(
                sealed.lane, step.obs, step.action, step.reward, step.terminated, step.truncated, step.final_obs,
                serial=step.serial,
            )  # fmt: skip
        self.count[sealed.lane] = sealed.first_step + sealed.steps
        store.add_segment(sealed.packed, sealed.dictionaries)

    def assert_same(self, view: sw.Transitions, n_step: int) -> None:
        """The view has the steps that arrived; observations are true ones, returns reach as far as steps arrived."""
        ids = view.sampleable_ids()
        expected = self.arrived.sampleable(n_step)
        assert len(ids) == len(view) == len(expected)
        if not len(ids):
            return
        batch = view.fetch(ids)
        assert set(batch["serial"].tolist()) == expected
        for row, serial in enumerate(batch["serial"].tolist()):
            used = self.arrived.n_used(*self.arrived.where[serial], n_step)
            assert used is not None
            cut = self.arrived.transition(serial, n_step, GAMMA).truncated  # where what came next was lost
            assert_same_transition(batch, row, replace(self.truth.transition(serial, used, GAMMA), truncated=cut))


@settings(max_examples=examples(40))
@given(
    st.integers(1, 3),
    st.lists(st.sampled_from(["", "", "", "", "", "t", "c"]), min_size=40, max_size=300),
    st.lists(st.booleans(), max_size=60),
    st.integers(1, 4),
    st.sampled_from(["auto", "delta", "zstd", "raw"]),
)
def test_what_arrives_is_what_was_written(
    lanes: int, ends: list[str], lost: list[bool], n_step: int, codec: str
) -> None:
    far = Far(lanes, codec=codec)
    store = sw.Store(spec(), capacity=100_000, segment_steps=8)
    view = store.transitions(n_step=n_step, gamma=GAMMA)
    losses = iter(lost)
    for at in range(0, len(ends) - lanes, lanes):
        far.step([end or "-" for end in ends[at : at + lanes]])
        while far.sealed:
            far.deliver(store, lost=next(losses, False))
    assert len(store) == far.arrived.total_steps
    far.assert_same(view, n_step)
    late = store.transitions(n_step=n_step, gamma=GAMMA)
    far.assert_same(late, n_step)


def filled(far: Far, store: sw.Store, steps: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        far.step("".join(rng.choice(list("-----------tc"), far.lanes)))
        while far.sealed:
            far.deliver(store)


@pytest.mark.parametrize("retention", [sw.Fifo(), sw.Reservoir(), sw.LowestPriority()])
def test_a_full_store_lets_segments_go(retention: Any) -> None:
    far, store = Far(3), sw.Store(spec(), capacity=200, segment_steps=8, retention=retention)
    view = store.transitions(n_step=3, gamma=GAMMA, sampler=sw.Prioritized())
    filled(far, store, 400)
    assert 150 < len(store) <= 200 and store.total_steps == far.arrived.total_steps > 1_000
    assert store.stats()["evicted_steps"] == store.total_steps - len(store)
    batch = view.fetch(view.sampleable_ids())
    held = set(batch["serial"].tolist())
    assert 100 < len(held) == len(view)
    for row, serial in enumerate(batch["serial"].tolist()):
        used = {round(float(np.log(d) / np.log(GAMMA))) for d in [batch.discount[row]] if d > 0}
        full = far.arrived.n_used(*far.arrived.where[serial], 3)
        assert full is not None
        # Where what follows has left, a return may sum fewer rewards, never other ones.
        n = used.pop() if used else full
        assert 1 <= n <= full
        assert_same_transition(batch, row, far.truth.transition(serial, n, GAMMA))
    for _ in range(50):
        assert set(view.sample(32)["serial"].tolist()) <= held


def test_first_priorities_are_those_that_came() -> None:
    far, store = Far(1), sw.Store(spec(), capacity=1_000, segment_steps=8)
    view = store.transitions(n_step=3, sampler=sw.Prioritized(alpha=0.5, eps=0.25))
    for _ in range(17):
        far.step("-")
    first, second = far.sealed
    errors = np.arange(16, dtype=np.float32) - 4
    store.add_segment(first.packed, first.dictionaries, td_error=errors[:8])
    assert len(view) == 8 - 3  # the last three wait for their successors
    store.add_segment(second.packed, second.dictionaries, td_error=errors[8:])
    expected = np.sqrt(np.abs(errors[: 16 - 3]) + 0.25)
    batch = view.sample(64)
    np.testing.assert_allclose(batch.probabilities, (expected / expected.sum())[batch["serial"]], rtol=1e-6)
    with pytest.raises(ValueError, match=r"td_error has shape \(7,\), expected \(8,\)"):
        store.add_segment(second.packed, second.dictionaries, td_error=errors[:7])


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    far, store = Far(1, codec="delta"), sw.Store(spec(), capacity=1_000, segment_steps=8)
    view = store.transitions(n_step=1, gamma=GAMMA)
    for _ in range(33):
        far.step("-")
    one, two, three, _ = far.sealed
    assert one.dictionaries or two.dictionaries
    far.deliver(store)
    far.deliver(store)
    with pytest.raises(sw.DamagedError, match="begins with step 8 of lane 0, expected 16 or later: each segment once"):
        store.add_segment(two.packed, two.dictionaries)
    damaged = bytearray(three.packed)
    damaged[len(damaged) // 2] ^= 4
    with pytest.raises(sw.DamagedError, match="checksum"):
        store.add_segment(bytes(damaged), three.dictionaries)
    if three.dictionaries:
        with pytest.raises(sw.DamagedError, match="dictionary"):
            store.add_segment(three.packed, {})
        with pytest.raises(sw.DamagedError, match="its content has another key"):
            store.add_segment(three.packed, {key: bytes(len(data)) for key, data in three.dictionaries.items()})
    other = sw.Store(spec((6, 9)), capacity=1_000, segment_steps=8)
    with pytest.raises(sw.DamagedError, match="another Spec"):
        other.add_segment(three.packed, three.dictionaries)
    with pytest.raises(sw.DamagedError, match="at most 4"):
        sw.Store(spec(), capacity=1_000, segment_steps=4).add_segment(one.packed, one.dictionaries)
    elsewhere = Far(1, first_steps=[16])  # begins an episode, where none had ended
    for _ in range(9):
        elsewhere.step("-")
    refused = r"begins an episode, but the one before did not end one; .* first_steps=store\.lane_steps \+ 1"
    with pytest.raises(sw.DamagedError, match=refused):
        store.add_segment(elsewhere.sealed[0].packed, elsewhere.sealed[0].dictionaries)
    far.assert_same(view, 1)
    far.deliver(store)
    far.assert_same(view, 1)
    own = sw.Store(spec(), capacity=1_000, segment_steps=8)
    own.append(obs=picture(0), action=0, reward=0.0, terminated=False, truncated=False, serial=0)
    with pytest.raises(ValueError, match="lane 0 is being appended to"):
        own.add_segment(one.packed, one.dictionaries)


def test_a_writer_in_place_of_another_skips_a_number() -> None:
    """What the first one had not sent is lost, and its episode is truncated; the second one's steps all count."""
    store = sw.Store(spec(), capacity=1_000, segment_steps=8)
    view = store.transitions(gamma=GAMMA)
    first = Far(1)
    for _ in range(13):
        first.step("-")
    first.deliver(store)
    second = Far(1, first_steps=store.lane_steps + 1)
    second.serial = 100
    for _ in range(9):
        second.step("-")
    (sealed,) = second.sealed
    store.add_segment(sealed.packed, sealed.dictionaries)
    batch = view.fetch(view.sampleable_ids())
    rows = {int(serial): row for row, serial in enumerate(batch["serial"])}
    assert rows.keys() == {*range(8), *range(100, 107)}
    np.testing.assert_array_equal(batch.next_obs[rows[7]], np.stack([picture(serial) for serial in (6, 7, 8)]))
    np.testing.assert_array_equal(batch.obs[rows[100]], np.stack([picture(100)] * 3))
    assert store.lane_steps.tolist() == [17]


def test_without_a_place_for_a_dictionary_the_columns_are_kept_raw() -> None:
    far, store = Far(2, codec="delta"), sw.Store(spec(), capacity=10_000, segment_steps=8)
    table = store._log.tables[2]
    for number in range(1, 256):
        table.add(number.to_bytes(48, "little"))
    view = store.transitions(n_step=2, gamma=GAMMA)
    filled(far, store, 100)
    far.assert_same(view, 2)
    assert store.stats()["codecs"]["obs"].get("delta", 0) == 0


def test_own_steps_after_segments_begin_an_episode() -> None:
    far, store = Far(1), sw.Store(spec(), capacity=1_000, segment_steps=8)
    view = store.transitions(n_step=3, gamma=GAMMA)
    for _ in range(9):
        far.step("-")
    far.deliver(store)
    assert len(view) == 5
    for serial in range(100, 105):
        store.append(obs=picture(serial), action=serial, reward=1.0, terminated=False, truncated=False, serial=serial)
    batch = view.fetch(view.sampleable_ids())
    rows = {int(serial): row for row, serial in enumerate(batch["serial"])}
    assert set(rows) == {*range(8), 100, 101}
    np.testing.assert_array_equal(batch.next_obs[rows[7]], np.stack([picture(s) for s in (6, 7, 8)]))
    assert batch.discount[rows[7]] == GAMMA and batch.discount[rows[5]] == GAMMA**3
    np.testing.assert_array_equal(batch.obs[rows[100]], np.stack([picture(100)] * 3))


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_checkpoint_ends_what_was_under_way(tmp_path: Path, on_disk: bool) -> None:
    disk: dict[str, Any] = {"disk": tmp_path / "store", "ram": "8MiB"} if on_disk else {}
    far, store = Far(2), sw.Store(spec(), capacity=400, segment_steps=8, **disk)
    view = store.transitions(n_step=2, gamma=GAMMA, sampler=sw.Prioritized())
    filled(far, store, 100)
    steps, known = len(store), len(view)
    store.checkpoint(tmp_path / "checkpoint")
    store.close()
    again = sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "again" if on_disk else None)
    view = again.transitions(n_step=2, gamma=GAMMA, sampler=sw.Prioritized())
    assert len(again) == steps and again.lane_steps.tolist() == far.count
    assert known <= len(view) == steps  # every step has a successor now: an episode's end, if need be
    resumed = Far(2, first_steps=[count + 1 for count in far.count])
    for _ in range(17):
        resumed.step("--")
    for sealed in resumed.sealed:
        again.add_segment(sealed.packed, sealed.dictionaries)
    assert len(again) == min(steps + 32, len(again)) and again.total_steps == far.arrived.total_steps + 32
    assert len(view.sample(64).obs) == 64
    again.checkpoint(tmp_path / "second")  # with the episodes that were ended after their segments were sealed
    third = sw.Store.open(tmp_path / "second", disk=tmp_path / "third" if on_disk else None)
    assert third.recovery is not None and not third.recovery.damages
    assert len(third) == len(again)
    ids = view.sampleable_ids()
    later = third.transitions(n_step=2, gamma=GAMMA, sampler=sw.Prioritized())
    assert len(later) >= len(ids)
    for name in ("obs", "next_obs", "reward", "discount"):
        np.testing.assert_array_equal(getattr(later.fetch(np.asarray(ids)), name), getattr(view.fetch(ids), name))
    again.close()
    third.close()


def test_a_store_on_disk_comes_back_with_what_arrived(tmp_path: Path) -> None:
    far = Far(2)
    store = sw.Store(spec(), capacity=4_000, segment_steps=8, disk=tmp_path / "store", ram="8MiB")
    filled(far, store, 100)
    for _ in range(30):
        far.step("--")
    far.deliver(store)
    far.sealed.pop(0)
    far.sealed.pop(0)  # two segments are lost on the way
    while far.sealed:
        far.deliver(store)
    view = store.transitions(n_step=3, gamma=GAMMA)
    far.assert_same(view, 3)
    store.close()
    again = sw.Store.open(tmp_path / "store")
    assert again.recovery is not None and not again.recovery.damages
    for lane, history in far.arrived.lanes.items():
        if not history[-1].ended:
            far.arrived.end_episode(lane, history[-1].obs)
    far.assert_same(again.transitions(n_step=3, gamma=GAMMA), 3)
    again.close()


def test_a_gap_in_a_writers_segments_ends_no_episode_whose_later_steps_were_evicted() -> None:
    one = sw.Spec(obs=sw.Field((1,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(one, capacity=100, segment_steps=8, retention=sw.LowestPriority())
    view = store.transitions(n_step=3, sampler=sw.Prioritized())

    def write(first: int, steps: int) -> None:
        def send(sealed: Any) -> None:
            store.add_segment(sealed.packed, sealed.dictionaries)

        writer = sw.SegmentWriter(one, 1, send, segment_steps=8, first_steps=[first])
        for k in range(first, first + steps):
            writer.extend(obs=[[k]], action=[k], reward=[1.0], terminated=[False], truncated=[False])

    write(0, 25)
    view.update_priorities(store.ids(0, np.arange(14)), np.full(14, 50.0))
    store.resize(capacity=20)  # steps 16 to 23 are evicted
    held = [(0, 16, None)]
    assert [(e.first_step, e.length, e.ended) for e in store.episodes()] == held
    store.resize(capacity=60)
    write(int(store.lane_steps[0]) + 1, 9)
    assert [(e.first_step, e.length, e.ended) for e in store.episodes()] == [*held, (25, 8, None)]
    batch = view.fetch(view.sampleable_ids())
    assert not batch.truncated.any()
    assert batch.step.max() < 16 + 25
    store.close()
