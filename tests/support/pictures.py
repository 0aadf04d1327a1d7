"""Random rows of bytes that look like what stores hold: from a still picture to noise."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]


@st.composite
def pictures(draw: st.DrawFn, most: int = 12, sizes: tuple[int, ...] = (1, 7, 8, 24, 60, 200)) -> tuple[Array, int]:
    """(rows uint8 [n, size], line): still, noisy, or something between; a line of 0 has nothing below it."""
    count, size = draw(st.integers(1, most)), draw(st.sampled_from(sizes))
    line = draw(st.sampled_from([0, 1, 4, 12, size]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    noise = draw(st.sampled_from([0.0, 0.02, 0.3, 1.0]))
    colours = draw(st.sampled_from([2, 3, 256]))
    rows = np.tile(rng.integers(0, colours, size), (count, 1))
    changed = rng.random(rows.shape) < noise
    rows[changed] = rng.integers(0, colours, int(changed.sum()))
    return rows.astype(np.uint8), line
