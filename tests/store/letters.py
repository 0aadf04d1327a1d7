"""Stores of lettered and of numbered frames, and comparison with the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np

import sharpwave as sw
from tests.support.oracle import (
    FRAME_SHAPE,
    Oracle,
    Pad,
    assert_same_transition,
    letters_of,
)

EPS = 1e-12  # so small that it does not show in a sum of ordinary priorities


def letter_store(stack: int | None = 3, pad: Pad = "repeat", capacity: int = 100, **kwargs: Any) -> sw.Store:
    spec = sw.Spec(
        obs=sw.Field(FRAME_SHAPE, "uint8", stack=stack, pad=pad),
        action=sw.Field((), "int64"),
        serial=sw.Field((), "int64"),
    )
    return sw.Store(spec, capacity=capacity, **kwargs)


def told(replay: Any) -> dict[int, tuple[str, str, float, float]]:
    """serial -> (stack, next stack, return, discount) of every step that can be sampled."""
    ids = replay.sampleable_ids()
    if len(ids) == 0:
        return {}
    batch = replay.fetch(ids)
    return {
        serial: (
            letters_of(batch.obs[i]),
            letters_of(batch.next_obs[i]),
            float(batch.reward[i]),
            float(batch.discount[i]),
        )
        for i, serial in enumerate(batch["serial"].tolist())
    }


def id_of(replay: Any, serial: int) -> int:
    ids = replay.sampleable_ids()
    return int(ids[replay.fetch(ids)["serial"].tolist().index(serial)])


def numbered(k: int) -> np.ndarray[Any, Any]:
    """A frame for every number below 65,536."""
    one = np.full(FRAME_SHAPE, 7, np.uint8)
    one[0, 0], one[0, 1] = divmod(k, 256)
    return one


def append_numbered(store: sw.Store, oracle: Oracle, lane: int = 0, end: str = "") -> int:
    serial = store.total_steps
    final = numbered(40_000 + serial)
    terminated, truncated = end in (".", "!"), end in ("|", "!")
    store.append(
        lane=lane,
        obs=numbered(serial),
        action=serial,
        reward=serial % 8,
        terminated=terminated,
        truncated=truncated,
        final_obs=final if end else None,
        serial=serial,
    )
    oracle.append(
        lane, numbered(serial), np.int64(serial), serial % 8, terminated, truncated, final if end else None, serial
    )
    return serial


def held_from_of_one_lane(store: sw.Store, oracle: Oracle) -> dict[int, int]:
    return {0: oracle.total_steps - len(store)}


def assert_same_as_held(replay: Any, store: sw.Store, oracle: Oracle, n_step: int) -> None:
    ids = replay.sampleable_ids()
    expected = oracle.sampleable(n_step, held_from_of_one_lane(store, oracle))
    assert len(ids) == len(expected)
    if len(ids) == 0:
        return
    batch = replay.fetch(ids)
    assert set(batch["serial"].tolist()) == expected
    for i, serial in enumerate(batch["serial"].tolist()):
        assert_same_transition(batch, i, oracle.transition(serial, n_step, 0.5))
