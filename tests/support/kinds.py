"""Parameters of tests that something happens to at any operation."""

import pytest

from tests.support.faulty import KINDS

EACH_KIND = [
    pytest.param(kind, marks=() if kind in ("ENOSPC", "killed", "power cut in a write") else pytest.mark.slow)
    for kind in KINDS
]
"""Every kind; one of each sort (an error, an end, a power cut) in each run, the others in that of ``.ci/run``."""
