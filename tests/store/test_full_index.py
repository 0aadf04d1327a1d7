"""Stores on disk whose index fills ``ram``: they refuse further steps while they can still be sampled and reopened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw

RAM = 4 << 20
STEPS = 500


def episode(number: int, shared: bool) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    texts = {"task": [f"task {number} {k // 50} " + "x" * 200 for k in range(STEPS)]} if shared else {}
    return {
        "obs": rng.random((STEPS + 1, 4)).astype(np.float32),
        "action": np.arange(STEPS),
        "reward": np.full(STEPS, number, np.float32),
        "terminated": True,
        **texts,
    }


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_a_store_that_is_full_before_its_first_view_can_be_sampled(shared: bool, tmp_path: Path) -> None:
    fields = {"obs": sw.Field((4,), "float32"), "action": sw.Field((), "int64")}
    spec = sw.Spec(**fields, **({"task": sw.Field(str, shared=True)} if shared else {}))
    store = sw.Store(spec, disk=tmp_path / "s", disk_limit="4GiB", ram=RAM, segment_steps=8)
    with pytest.raises(MemoryError, match="raise"):
        for number in range(1_000):
            store.add_episode(**episode(number, shared))
    assert len(store) > 20 * STEPS
    for view, size in ((store.transitions(), 64), (store.sequences(4), 4)):
        batch: Any = view.sample(size)
        assert len(batch) == size and store.stats()["total_bytes"] <= RAM
        del batch
    held = len(store)
    store.close()
    with sw.Store.open(tmp_path / "s") as again:
        assert len(again) >= held - 1
        batch = again.transitions().sample(64)
        for obs, action, number in zip(batch.obs, batch.action, batch.reward, strict=True):
            assert np.array_equal(obs, episode(int(number), shared)["obs"][action])


def test_open_segments_that_leave_little_to_batches_stop_no_store(tmp_path: Path) -> None:
    """The open segments of its lanes, not its index, fill ``ram``: further segments take the place of the oldest."""
    spec = sw.Spec(obs=sw.Field((84, 84), "uint8"), action=sw.Field((), "int64"))
    with sw.Store(spec, disk=tmp_path / "s", capacity=2000, ram="12MiB", segment_steps=64) as store:
        numbers = np.arange(16)
        for step in range(300):
            frames = np.full((16, 84, 84), step % 200, np.uint8)
            store.extend(obs=frames, action=numbers, reward=numbers, terminated=numbers < 0, truncated=numbers < 0)
        assert 1000 < len(store) <= 2000
        batch = store.transitions().sample(8)
        assert (batch.obs.reshape(8, -1) == batch.obs[:, :1, 0]).all()


def test_a_store_whose_ram_was_lowered_takes_further_steps(tmp_path: Path) -> None:
    spec = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))
    with sw.Store(spec, disk=tmp_path / "s", capacity=10**7, ram="64MiB") as store:
        for number in range(20):
            store.add_episode(**episode(number, False))
        store.resize(ram="9MiB")
        for number in range(20, 60):
            store.add_episode(**episode(number, False))
        assert len(store) >= 59 * STEPS
