"""Random programs on stores whose shared values lie in small regions, against functions of a step's number."""

from __future__ import annotations

import gc
import random
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.disk import disk_budget
from sharpwave.log import step_log

RAM = 8 << 20
RETENTIONS = (sw.Fifo(), sw.Reservoir(1), sw.LowestPriority())


def prompt_of(step: int) -> Any:
    number = step * 7919 % 97 if step // 50 % 2 else step % 500
    return np.random.default_rng(number).integers(0, 9999, number % 7 * 60).astype(np.int32)


def text_of(step: int) -> str:
    return "x" * (step % 5) + str(step // 13 % 40)


def check(store: sw.Store) -> None:
    """Check the values of all steps, and that each region has those of its segments."""
    assert store.recovery is None or not store.recovery.damages
    replay = store.transitions(name="checked")
    for ids in np.array_split(np.asarray(replay.sampleable_ids()), 8):
        batch = replay.fetch(ids)
        for row, text, step in zip(batch["prompt"], batch["text"].strings(), batch.action.tolist(), strict=True):
            assert np.array_equal(row, prompt_of(step)) and text == text_of(step)
    assert store.stats()["total_bytes"] <= RAM
    log = store._log
    assert log.disk is not None and not log.shared._lost
    for slot in np.flatnonzero((log.index.sealed > 0) & (log.index.rows > 0)).tolist():
        assert all(log.disk.regions.has(int(log.index.region[slot]), *key) for key in log.shared.needed(slot))


@pytest.mark.parametrize("seed", range(3))
def test_values_are_theirs_through_any_program(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REGION_BYTES", "MIN_REGION_BYTES"):
        monkeypatch.setattr(disk_budget, name, 1 << 15)
    monkeypatch.setattr(step_log, "VALUE_CACHE_SHARE", (1 / 8, 0.0005, 0)[seed])
    rng, step = random.Random(seed), 0
    texts, tokens = sw.Field(str, shared=True), sw.Field((None,), "int32", shared=True)
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), prompt=tokens, text=texts)
    limits: dict[str, Any] = {"capacity": 600} if seed else {"disk_limit": 1 << 18}
    with mock.patch("sharpwave.persistence.settings.MIN_DISK_BYTES", 1 << 15):
        store = sw.Store(
            spec, disk=tmp_path / "s", ram=RAM, segment_steps=(8, 32, 128)[seed], retention=RETENTIONS[seed], **limits
        )
        for act in [*rng.choices(["flush", "checkpoint", "version", "delete", "branch"], k=4), "checkpoint"]:
            for _ in range(rng.randrange(100, 250)):
                values = {"prompt": prompt_of(step), "text": text_of(step)}
                ends = rng.random() < 0.1
                store.append(obs=[0, 0], action=step, reward=0, terminated=ends, truncated=False, **values)
                step += 1
            if act == "flush":
                store.flush()
                store.close()
                store = sw.Store.open(tmp_path / "s")
            elif act == "checkpoint":
                store.checkpoint(tmp_path / "c")
                with sw.Store.open(tmp_path / "c", disk=tmp_path / "o") as other:
                    assert len(other) == len(store)
                    check(other)
                shutil.rmtree(tmp_path / "o")
            elif act == "delete":
                store.delete(episodes=[store.episodes()[1]])
            else:
                store.snapshot(act)
                with (
                    sw.Store.open(tmp_path / "s", version=act)
                    if act == "version"
                    else store.branch(tmp_path / "b", act)
                ) as other:
                    check(other)
                shutil.rmtree(tmp_path / "b", ignore_errors=True)
                store.delete_version(act)
            check(store)
        assert store._log.disk is not None and len(store._log.disk.regions.regions) > 1
        store.close()
    gc.collect()
