"""Fixtures of the store's tests, and how long hypothesis looks.

``SHARPWAVE_HYPOTHESIS_EXAMPLES=2000 pytest tests/store`` looks longer; the default is a short look.
"""

from __future__ import annotations

import os

import hypothesis

hypothesis.settings.register_profile(
    "sharpwave",
    deadline=None,
    derandomize=False,
    max_examples=int(os.environ.get("SHARPWAVE_HYPOTHESIS_EXAMPLES", "40")),
    stateful_step_count=40,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
    print_blob=True,
)
hypothesis.settings.load_profile("sharpwave")
