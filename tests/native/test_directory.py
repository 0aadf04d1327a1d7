"""Systems without positional reads and writes keep stores in memory, and say so."""

import os
from pathlib import Path

import pytest

import sharpwave as sw


def test_a_system_without_pread_refuses_folders_and_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=1_000)
    monkeypatch.delattr(os, "pread")
    with pytest.raises(OSError, match=r"Windows.*no pread.*leave out disk="):
        sw.Store(spec, capacity=1_000, disk=tmp_path / "replay")
    with pytest.raises(OSError, match="no pread"):
        store.checkpoint(tmp_path / "ckpt")
    assert not list(tmp_path.iterdir())
    assert len(store) == 0
