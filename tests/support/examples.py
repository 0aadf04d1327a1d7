"""How many examples hypothesis looks at, or seeds a test has, where the number is the test's own: more by night."""

from __future__ import annotations

import os


def examples(count: int, most: int = 10_000) -> int:
    """Return ``count``; as many as ``SHARPWAVE_HYPOTHESIS_EXAMPLES`` says where these are more, up to ``most``."""
    asked = os.environ.get("SHARPWAVE_HYPOTHESIS_EXAMPLES")
    return count if asked is None else max(count, min(int(asked), most))
