"""Disk space of closed stores: space allocated for later steps is given back."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import sharpwave as sw

SPEC = sw.Spec(obs=sw.Field((8,), "float32"), action=sw.Field((), "int64"))
NOTES = 8 << 10


def play(store: sw.Store, first: int, steps: int) -> None:
    rng = np.random.default_rng(first)
    store.add_episode(
        obs=rng.random((steps + 1, 8)).astype(np.float32),
        action=np.arange(first, first + steps),
        reward=np.zeros(steps),
        terminated=True,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep the space")
def test_a_closed_store_takes_the_space_of_its_steps(tmp_path: Path) -> None:
    """And goes on in the same file."""
    held = 0
    for life in range(4):
        with sw.Store(SPEC, disk=tmp_path / "s", capacity=100_000, exist_ok=True) as store:
            play(store, held, 3000)
            held += 3000
            opened = store.stats()["disk"]["bytes"]
        (region,) = (tmp_path / "s" / "regions").iterdir()
        size, taken = region.stat().st_size, region.stat().st_blocks * 512
        content = region.read_bytes().rstrip(b"\0")
        assert taken <= len(content) + NOTES + len(content) // 256 + 2 * 4096, life
        assert taken < opened and size > opened
        with sw.Store.open(tmp_path / "s") as store:
            found = np.concatenate([np.asarray(one.action) for one in store.episodes()])
            assert np.array_equal(found, np.arange(held))
    assert os.listdir(tmp_path / "s" / "regions") == [region.name]
