"""A small store, and the check that it refuses bad input by name and is as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.support.oracle import FRAME_SHAPE, frame

BAD = (ValueError, TypeError, KeyError)


def spec() -> sw.Spec:
    return sw.Spec(
        obs=sw.Field(FRAME_SHAPE, "uint8", stack=3),
        action=sw.Field((), "int64"),
        serial=sw.Field((), "int64"),
    )


def dict_spec() -> sw.Spec:
    return sw.Spec(
        obs={"image": sw.Field(FRAME_SHAPE, "uint8", stack=2), "speed": sw.Field((2,), "float32")},
        action=sw.Field((2,), "float32"),
    )


def rows(**changes: Any) -> dict[str, Any]:
    good: dict[str, Any] = {
        "obs": np.stack([frame("h"), frame("x")]),
        "action": np.array([1, 2]),
        "reward": np.array([0.5, 0.25], np.float32),
        "terminated": np.zeros(2, bool),
        "truncated": np.zeros(2, bool),
        "serial": np.array([10, 11]),
    }
    return {name: value for name, value in (good | changes).items() if value is not ...}


def content(store: sw.Store) -> dict[str, Any]:
    """All that can be seen of a store, byte for byte."""
    seen: dict[str, Any] = {"len": len(store), "total": store.total_steps, "lanes": store.lanes}
    for n_step in (1, 3):
        replay = store.transitions(n_step=n_step, gamma=0.5)
        ids = replay.sampleable_ids()
        seen[f"ids {n_step}"] = ids.tolist()
        if len(ids):
            batch = replay.fetch(ids)
            for name in ("action", "reward", "discount"):
                seen[f"{name} {n_step}"] = getattr(batch, name).tobytes()
            for name in ("obs", "next_obs"):
                value = getattr(batch, name)
                arrays = value if isinstance(value, dict) else {"": value}
                seen |= {f"{name}.{key} {n_step}": array.tobytes() for key, array in arrays.items()}
    return seen


def refused(store: sw.Store, work: Callable[[], object], *says: str) -> None:
    """``work`` is refused, with every one of ``says`` (patterns) in the message, and the store is as it was."""
    before = content(store)
    with pytest.raises(BAD) as caught:
        work()
    for what in says:
        assert re.search(what, str(caught.value)), f"no {what!r} in: {caught.value}"
    assert content(store) == before
