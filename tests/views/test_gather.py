"""Windows of rows out of segments of every codec."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.codecs.codec_registry import by_name
from sharpwave.testing.columns_in_memory import ColumnsInMemory, naive_window
from sharpwave.views import gather as gather_module
from tests.support.examples import examples

EXAMPLES = settings(max_examples=examples(80))


@EXAMPLES
@given(data=st.data(), window=st.integers(1, 5), zeros=st.booleans(), many=st.booleans(), in_core=st.booleans())
def test_a_window_is_a_slice_of_the_rows(
    data: st.DataObject, window: int, zeros: bool, many: bool, in_core: bool
) -> None:
    """Every codec side by side in one batch, by the core and by its own decoder; with ``many`` on several threads."""
    shape = data.draw(st.sampled_from([(60,), (5, 12)]), "shape")
    field = sw.Field(shape, "uint8", pad="zeros" if zeros else "repeat")
    size, line = field.row_bytes, field.line_bytes
    slots = data.draw(st.integers(1, 5), "slots")
    memory = ColumnsInMemory(field, slots, 20)
    columns = []
    for s in range(slots):
        rng = np.random.default_rng(data.draw(st.integers(0, 999), "seed"))
        rows = np.tile(rng.integers(0, 4, size // 20).repeat(20), (int(rng.integers(12, 20)), 1)).astype(np.uint8)
        rows[:, rng.integers(0, size, 2)] = rng.integers(0, 256, (len(rows), 2))
        codec = by_name(data.draw(st.sampled_from(["delta", "raw", "zstd"]), "codec"))
        shared = rows[0].tobytes() if codec.name == "delta" and data.draw(st.booleans(), "reference") else b""
        payload = codec.encode(rows, shared, line)
        assert payload is not None
        memory.put(s, codec, len(rows), payload, shared)
        columns.append(rows)
    batch = 500 if many else data.draw(st.integers(1, 9), "batch")
    rng = np.random.default_rng(batch)
    slot = rng.integers(0, slots, batch)
    newest = np.array([rng.integers(0, len(columns[s])) for s in slot])
    first = np.array([rng.integers(0, n + 1) for n in newest])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather_module, "THREADS", 3 if many else 1)
        patch.setattr(gather_module, "THREAD_BYTES", 1)
        if not in_core:
            patch.setattr(gather_module, "DECODED", np.zeros(256, np.uint8))
        out = memory.read(slot, newest, first, window)
    for i in range(batch):
        expected = naive_window(columns[slot[i]], newest[i], first[i], window, zeros)
        np.testing.assert_array_equal(out[i], expected)
