"""Every file operation of a store's life fails in every way, or is its last: what was acknowledged is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from .faults import ERRORS, KINDS, round_of


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acknowledged_is_lost_at_any_operation(tmp_path: Path, kind: str) -> None:
    """Every third operation here, each with another beginning for each kind; all of them in benchmarks/crash.py."""
    operations = round_of(tmp_path / "whole", "delta", 0, kind).log
    assert {"open", "allocate", "pwrite", "fsync", "fsync_folder", "rename", "unlink"} == set(operations)
    for at in range(1 + KINDS.index(kind) % 3, len(operations) + 1, 3):
        try:
            files = round_of(tmp_path / str(at), "delta", at, kind, seed=at)
        except BaseException as error:
            error.add_note(f"operation {at}, {operations[at - 1]}: {kind}")
            raise
        assert files.count >= at and files.dead != (kind in ERRORS)
