"""Windows of limited uses in a checkpoint: those whose burn-in was evicted are counted neither then nor afterwards."""

from __future__ import annotations

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
