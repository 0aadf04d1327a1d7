"""Fixtures of the tests, and how long hypothesis looks.

``SHARPWAVE_HYPOTHESIS_EXAMPLES=2000 pytest`` looks longer; the default is a short look.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before anything imports torch, and for all processes that tests start: there are as many pytest workers as processors,
# and with a team of threads in each they would spin waiting for threads that have no processor.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # runs that ask for two threads

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "sharpwave",
    deadline=None,
    derandomize=False,
    max_examples=int(os.environ.get("SHARPWAVE_HYPOTHESIS_EXAMPLES", "25")),
    stateful_step_count=40,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
    print_blob=True,
)
hypothesis.settings.load_profile("sharpwave")


@pytest.fixture(autouse=True, scope="session")
def quick_syncs() -> Iterator[None]:
    """No test waits for the disk: none cuts the power. (``faults.py`` plays power cuts on a disk of its own making.)"""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, os.fstat, raising=False)  # a descriptor that is none is still an error
        yield
