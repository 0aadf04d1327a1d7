"""A fuzzer for every format (``fuzzing.py``): mutations of a sound data set are loaded, or refused as documented."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sharpwave as sw
from tests.data_sets.fuzzing import FORMATS, MUTATIONS
from tests.support.examples import examples

pytest.importorskip("minari")
pytest.importorskip("av")


def fuzz(count: int, *kinds: str) -> None:
    """Try mutations in a process of its own, which a parser may end, and whose memory is its alone; the last line that
    it prints names the format and the number."""
    root = Path(__file__).parent.parent.parent
    env = os.environ | {"PYTHONPATH": f"{Path(sw.__file__).parent.parent}:{root}", "SHARPWAVE_FUZZ": str(count)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.data_sets.fuzzing", *kinds]
    answer = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    assert answer.returncode == 0, f"signal or status {answer.returncode}: {answer.stderr[-2000:]}"


@pytest.mark.slow
def test_a_few_mutations() -> None:
    """Of all formats in one process, and of the nightly ones the first."""
    fuzz(min(examples(40), MUTATIONS), *FORMATS)


@pytest.mark.nightly
@pytest.mark.timeout(0)  # SHARPWAVE_FUZZ may say a million
@pytest.mark.parametrize("kind", FORMATS)
def test_many_mutations(kind: str) -> None:
    fuzz(MUTATIONS, kind)
