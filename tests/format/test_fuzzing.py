"""A fuzzer for headers (``fuzzing.py``): changed segments, notes, records and frames are read, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.format.fuzzing import run, targets


@pytest.mark.parametrize("name", targets(Path()))
def test_a_few_inputs(name: str, tmp_path: Path) -> None:
    found = run(name, targets(tmp_path)[name], inputs=200, seed=1, only=None)
    assert found["refused"] and found["read"], "some inputs are refused, and some are read"
