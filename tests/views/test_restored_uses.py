"""Limited uses in a checkpoint: items without their burn-in are not counted, and those of lost steps go with them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.sampling.test_sampler_kinds import MAKERS

SPEC = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))


def append(store: sw.Store, first: int, count: int, rng: np.random.Generator) -> None:
    for number in range(first, first + count):
        ends = bool(rng.random() < 0.04)
        store.append(obs=np.full(2, number), action=number, reward=0.0, terminated=ends, truncated=False)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(("burn_in", "stride"), [(5, 1), (9, 4), (3, 2)])
def test_a_restored_view_goes_on_as_the_unbroken_one(kind: str, burn_in: int, stride: int, tmp_path: Path) -> None:
    rng, settings = np.random.default_rng(0), {"capacity": 120, "segment_steps": 8, "seed": 1}
    store = sw.Store(SPEC, **settings)  # type: ignore[arg-type]

    def view(of: sw.Store) -> Any:
        return of.sequences(6, burn_in=burn_in, stride=stride, sampler=MAKERS[kind](), max_times_sampled=2)

    replay, appended, misses = view(store), 0, 0
    for life in range(6):
        for _ in range(4):
            append(store, appended, 23, rng)
            appended += 23
            replay.sample(int(rng.integers(1, 7)))
        store.checkpoint(tmp_path / str(life))
        opened = sw.Store.open(tmp_path / str(life))
        again = view(opened)
        misses += int((again.source.items.spans[:, 0] > 0).sum())
        assert len(again) == len(replay) == len(again.sampleable_ids())
        assert again.source.items.uses_left == replay.source.items.uses_left
        np.testing.assert_array_equal(np.sort(again.sampleable_ids()), np.sort(replay.sampleable_ids()))
        ours, theirs = again.sample(len(again) // 2), replay.sample(len(replay) // 2)
        for name in ("action", "ids", "probabilities", "mask"):
            np.testing.assert_array_equal(ours[name], theirs[name])
        store.close()
        store, replay = opened, again
    assert misses  # windows without their burn-in
    store.close()


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("appended_first", [False, True])
def test_nothing_of_lost_open_steps_passes_to_those_after_them(
    disk: bool, appended_first: bool, tmp_path: Path
) -> None:
    """Their ids, uses, priorities and draws ahead: the steps after them lie in the same slot."""

    def view(of: sw.Store) -> Any:
        return of.transitions(sampler=sw.Prioritized(), max_times_sampled=2)

    rng, sealed, steps, new = np.random.default_rng(0), 3 * 64, 240, 10_000
    store = sw.Store(SPEC, capacity=2000, segment_steps=64)
    append(store, 0, steps, rng)
    replay = view(store)
    ids = replay.sampleable_ids()
    replay.update_priorities(ids, np.full(len(ids), 0.01))
    stream = replay.stream(10, lookahead=2)
    given = Counter(np.concatenate([next(stream).action for _ in range(30)]).tolist())
    store.checkpoint(tmp_path / "checkpoint")
    (region,) = (tmp_path / "checkpoint").rglob("*.region")
    content = bytearray(region.read_bytes())
    at = content.find(np.arange(sealed, steps).tobytes())  # the actions of the open segment
    assert at > 0
    content[at] ^= 1
    region.write_bytes(content)
    opened = sw.Store.open(tmp_path / "checkpoint", disk=tmp_path / "opened" if disk else None)
    assert opened.recovery is not None
    assert "48 steps of its open segment are lost" in opened.recovery.damages[-1]
    replay = None if appended_first else view(opened)
    append(opened, new, 60, rng)
    replay = replay or view(opened)
    found = replay.sampleable_ids()
    late = found[replay.fetch(found).action >= new]
    assert len(late) >= 59 and not set(late.tolist()) & set(ids.tolist())
    items = replay.source.items
    for those, priority in ((late, 1.0), (found[~np.isin(found, late)], 0.01)):
        chances = items.sampler.probabilities(items.resolve(those)[0])
        np.testing.assert_allclose(chances * items.sampler._tree.sums.total, (priority + (priority < 1) * 1e-6) ** 0.6)
    batches = replay.stream(10, lookahead=0)
    after = Counter(np.concatenate([next(batches).action for _ in range(2)]).tolist())
    while items.uses_left:
        after.update(replay.sample(1).action.tolist())
    assert {action: count for action, count in after.items() if action >= new} == dict.fromkeys(
        range(new, new + len(late)), 2
    )
    assert not [action for action in after if sealed <= action < new]
    assert max((given + after).values()) == 2
    opened.close()
    store.close()
