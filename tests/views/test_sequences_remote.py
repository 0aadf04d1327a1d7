"""Sequences of segments that were sealed elsewhere, some of which are lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import sharpwave as sw
from tests.log.test_remote_segments import GAMMA, Far, spec
from tests.support.sequence_oracle import Episode, SequenceOracle, Settings, assert_same_sequences


class Arrived(SequenceOracle):
    """Where segments are missing an episode is truncated, and goes on in pieces whose steps keep their numbers."""

    def __init__(self, far: Far, settings: Settings) -> None:
        super().__init__(far.truth, settings)
        self.far = far

    def episodes(self) -> Iterator[Episode]:
        for whole in super().episodes():
            arrived = [step.serial in self.far.arrived.where for step in whole.steps]
            later = any(
                step.serial in self.far.arrived.where
                for step in self.oracle.lanes[whole.lane][whole.begin + len(whole.steps) :]
            )
            begin = 0
            for at, is_here in enumerate(arrived):
                if not is_here:
                    begin = at + 1
                elif at == len(arrived) - 1:
                    yield self.piece(whole, begin, at + 1, whole.over or later)
                elif not arrived[at + 1]:
                    yield self.piece(whole, begin, at + 1, later or any(arrived[at + 1 :]))

    def piece(self, whole: Episode, begin: int, end: int, over: bool) -> Episode:
        steps = whole.steps[begin:end]
        if over and not steps[-1].ended:
            steps[-1] = replace(steps[-1], truncated=True)
        return Episode(whole.lane, whole.begin + begin, steps, over, begin)


@given(
    lanes=st.integers(1, 3),
    ends=st.lists(st.sampled_from(["-", "-", "-", "-", "-", "-", "-", "t", "c"]), min_size=40, max_size=300),
    lost=st.lists(st.booleans(), max_size=60),
    length=st.integers(1, 6),
    burn_in=st.sampled_from([0, 1, 4]),
    n_step=st.integers(1, 4),
    codec=st.sampled_from(["auto", "delta", "zstd", "raw"]),
    data=st.data(),
)
def test_windows_of_what_arrives(
    lanes: int,
    ends: list[str],
    lost: list[bool],
    length: int,
    burn_in: int,
    n_step: int,
    codec: str,
    data: st.DataObject,
) -> None:
    stride = data.draw(st.integers(1, length), "stride")
    far = Far(lanes, codec=codec)
    oracle = Arrived(far, Settings(length, burn_in, stride, n_step, GAMMA))
    with sw.Store(spec(), capacity=100_000, segment_steps=8) as store:
        view = store.sequences(**oracle.settings.asked())
        losses = iter(lost)
        for at in range(0, len(ends) - lanes, lanes):
            far.step(ends[at : at + lanes])
            while far.sealed:
                far.deliver(store, lost=next(losses, False))
                len(view)
        ids = assert_same_sequences(view, oracle)
        assert ids == assert_same_sequences(store.sequences(**oracle.settings.asked(), name="late"), oracle)


def test_an_episode_goes_on_behind_a_lost_segment() -> None:
    """Three segments of eight steps, of which the second is lost: the window of step 6 is short, those of steps 16 and
    18 have no burn-in, and the one of step 20 has."""
    far = Far(1)
    with sw.Store(spec(), capacity=1000, segment_steps=8) as store:
        view = store.sequences(4, burn_in=3, stride=2, gamma=GAMMA)
        for _ in range(25):
            far.step("-")
        far.deliver(store)
        far.deliver(store, lost=True)
        far.deliver(store)
        found = {int(batch["serial"][0, 3]): batch.copy() for batch in map(view.fetch, view.sampleable_ids()[:, None])}
        assert sorted(found) == [0, 2, 4, 6]
        far.step("t")
        for _ in range(8):
            far.step("-")
        while far.sealed:
            far.deliver(store)
        found = {int(batch["serial"][0, 3]): batch.copy() for batch in map(view.fetch, view.sampleable_ids()[:, None])}
        assert sorted(found) == [0, 2, 4, 6, 20, 22, 24, 26]
        assert found[6].mask[0].tolist() == [True] * 5 + [False] * 2
        assert found[6].discount[0].tolist() == [GAMMA] * 5 + [0, 0]
        assert not found[20].first.any()
