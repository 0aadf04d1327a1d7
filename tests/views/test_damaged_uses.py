"""Damaged segments where uses are limited: what is left is given out, and where it is too little an error says so."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.sampling.test_sampler_kinds import MAKERS
from tests.views.blends import append, blend_of, made, right

STEPS, SEGMENT = 160, 16


def damaged(folder: Path, segments: int) -> sw.Store:
    """A store of ``STEPS`` steps, whose first segments on disk cannot be decoded."""
    written, _ = made(0, disks=folder)
    append(written, 0, STEPS)
    written.close()
    store = sw.Store.open(folder / "0")  # with nothing in memory, and everything in order
    (region,) = (folder / "0" / "regions").iterdir()
    content, index = bytearray(region.read_bytes()), store._log.index
    for slot in np.argsort(index.region_offset[: index.highest])[:segments]:
        begin, size = int(index.region_offset[slot]), int(index.nbytes[slot])
        content[begin + size // 2 : begin + size] = bytes(size - size // 2)
    region.write_bytes(content)
    return store


def emptied(draw: Any) -> tuple[Counter[int], Exception]:
    """What is given out until nothing is, and the error then."""
    given: Counter[int] = Counter()
    while True:
        try:
            batch = draw()
        except (sw.EmptyError, ValueError) as error:
            return given, error
        right(batch) if batch.source is not None else None
        given.update(batch.action.tolist())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("way", ["sample", "stream", "blend", "blended stream"])
@pytest.mark.filterwarnings("ignore:.*sampled no more")
def test_too_few_uses_are_left_after_damage(kind: str, way: str, tmp_path: Path) -> None:
    """A batch of as many items as there were before: drawing it again would never end."""
    store = damaged(tmp_path, 5)
    view = store.transitions(sampler=MAKERS[kind](), max_times_sampled=1)
    size = len(view)
    blend = sw.Blend([(1, view)])
    draw: Any = {
        "sample": lambda: view.sample(size),
        "stream": lambda: next(stream),
        "blend": lambda: blend.sample(size),
        "blended stream": lambda: next(stream),
    }[way]
    stream: Any = view.stream(size, lookahead=0) if way == "stream" else blend.stream(size, lookahead=0)
    with pytest.raises(sw.EmptyError, match=r"nothing was taken|no step can be sampled"):
        draw()
    assert 0 < len(view) < size or "stream" in way
    append(store, STEPS, STEPS)
    assert len(set(draw().action.tolist())) == size
    store.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("way", ["sample", "stream", "blended stream"])
@pytest.mark.parametrize("lookahead", [0, 3])
def test_all_that_can_be_read_is_given_out(kind: str, way: str, lookahead: int, tmp_path: Path) -> None:
    store = damaged(tmp_path, 4)
    view = store.transitions(sampler=MAKERS[kind](), max_times_sampled=2)
    blend = sw.Blend([(1, view)])
    stream: Any = (view if way == "stream" else blend).stream(4, lookahead=lookahead)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given, error = emptied(lambda: view.sample(4) if way == "sample" else next(stream))
    assert isinstance(error, sw.EmptyError) and any("sampled no more" in str(one.message) for one in caught)
    ahead: Counter[int] = Counter()
    for one in stream.drawn:
        for ids in [part.ids for part in one.parts.values()]:
            ahead.update(view.fetch(ids[view.source.items.resolve(ids)[1]]).action.tolist())
    left = set(view.fetch(view.sampleable_ids()).action.tolist()) if len(view) else set()
    for number in range(SEGMENT * 4, STEPS):  # of intact segments: each use is given out, drawn ahead or left
        assert given[number] + ahead[number] <= 2
        assert given[number] + ahead[number] == 2 or number in left, number
    assert sum(given.values()) >= 2 * (STEPS - SEGMENT * 4) - 3
    store.close()


def test_a_damaged_segment_costs_the_other_store_of_a_blend_nothing(tmp_path: Path) -> None:
    store, other = damaged(tmp_path, 3), made(STEPS)[1]
    views = [one.transitions(sampler=sw.Fifo(), max_times_sampled=1) for one in (store, other)]
    stream = blend_of(views, (1, 1)).stream(8, lookahead=2)
    with pytest.warns(RuntimeWarning, match="sampled no more"):
        given, error = emptied(lambda: next(stream))
    assert isinstance(error, sw.EmptyError)
    others = [number for number in given if number >= 100_000]
    waiting = sum(len(part.ids) for one in stream.drawn for k, part in one.parts.items() if k == 1)
    assert len(others) + waiting == views[1].source.items.samples
    store.close()


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.filterwarnings("ignore:.*sampled no more")
def test_what_cannot_be_read_for_a_while_is_given_out_no_more_often(kind: str, n_step: int, tmp_path: Path) -> None:
    """A checkpoint made meanwhile knows how often the items were given; opened where all is readable, it goes on."""

    def view(of: sw.Store) -> Any:
        return of.transitions(n_step=n_step, sampler=MAKERS[kind](), max_times_sampled=2)

    store, _ = made(STEPS)
    replay = view(store)
    items = len(replay)
    given = Counter(replay.sample(items).action.tolist())
    store.checkpoint(tmp_path / "before")
    store.close()
    store = sw.Store.open(tmp_path / "before", disk=tmp_path / "store")
    replay = view(store)
    region = min((tmp_path / "store" / "regions").iterdir())  # the checkpoint's
    whole, index = region.read_bytes(), store._log.index
    content = bytearray(whole)
    for slot in range(0, STEPS // SEGMENT, 2):
        begin, size = int(index.region_offset[slot]), int(index.nbytes[slot])
        content[begin : begin + size] = bytes(size)
    region.write_bytes(content)
    given.update(replay.sample(items // 4).action.tolist())
    assert store.stats()["damaged"] and replay.source.items.uses_left < 2 * items - sum(given.values())
    region.write_bytes(whole)
    store.checkpoint(tmp_path / "meanwhile")
    store.close()
    store = sw.Store.open(tmp_path / "meanwhile")
    replay = view(store)
    assert store.recovery is not None and not store.recovery.damages
    assert replay.source.items.uses_left == 2 * items - sum(given.values())
    while replay.source.items.uses_left:
        given.update(replay.sample(1).action.tolist())
    assert len(given) == items and set(given.values()) == {2}
    store.close()


@pytest.mark.filterwarnings("ignore:.*sampled no more")
def test_steps_in_the_place_of_a_damaged_segment_have_all_their_uses(tmp_path: Path) -> None:
    store = damaged(tmp_path, 3)
    replay = store.transitions(sampler=sw.Fifo(), max_times_sampled=2)
    for _ in range(STEPS):
        replay.sample(1)
    assert store.stats()["damaged"]
    store.resize(capacity=STEPS)
    slots = set(range(store._log.index.highest))
    append(store, STEPS, 4 * STEPS)
    assert {int(item) // store._log.stride for item in replay.source.items.resolve(replay.sampleable_ids())[0]} <= slots
    assert replay.source.items.uses_left == 2 * len(replay)
    store.close()
