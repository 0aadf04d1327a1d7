"""Codecs are lossless whatever the bytes, and refuse damaged ones by name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sharpwave.codecs import registry as codecs
from sharpwave.codecs.registry import CODECS, RAW
from sharpwave.errors import DamagedError
from tests.support.pictures import pictures

Array = np.ndarray[Any, Any]
EXAMPLES = settings(max_examples=80)


@EXAMPLES
@given(picture=pictures(), name=st.sampled_from(sorted(CODECS)), trained=st.booleans())
def test_every_codec_gives_back_the_bytes(picture: tuple[Array, int], name: str, trained: bool) -> None:
    rows, line = picture
    codec = CODECS[name]
    dictionary = codecs.train(codec, rows) if trained else b""
    payload = codecs.encode(codec, rows, dictionary, line)
    assume(payload is not None)
    assert payload is not None
    assert len(payload) < rows.nbytes or codec == RAW
    np.testing.assert_array_equal(codecs.decode(codec, payload, *rows.shape, dictionary, line), rows)


@EXAMPLES
@given(
    payload=st.binary(max_size=80),
    name=st.sampled_from(sorted(CODECS)),
    count=st.integers(0, 5),
    size=st.integers(1, 12),
    damage=st.booleans(),
    data=st.data(),
)
def test_a_damaged_payload_is_refused_or_read_but_never_anything_else(
    payload: bytes, name: str, count: int, size: int, damage: bool, data: st.DataObject
) -> None:
    codec = CODECS[name]
    if damage and count:
        rows = np.arange(count * 64, dtype=np.uint8).reshape(count, 64) // 16 * 0
        whole = codecs.encode(codec, rows)
        assume(whole is not None)
        assert whole is not None
        broken = bytearray(whole)
        broken[data.draw(st.integers(0, len(broken) - 1), "at")] ^= data.draw(st.integers(1, 255), "by")
        payload, size = bytes(broken), 64
    try:
        rows = codecs.decode(codec, payload, count, size, b"", 4)
    except DamagedError as error:
        assert str(error)
    else:
        assert rows.shape == (count, size)


@pytest.mark.parametrize("name", [None, "lz4", 1, "RAW"])
def test_an_unknown_codec_is_named_beside_the_known(name: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name!r}.*'auto'.*'delta'.*'zstd'.*'raw'"):
        codecs.codec_choice(name)


def test_small_rows_with_zstd_do_not_end_the_process() -> None:
    """zstd's trainer divides by zero, or reads past its end, on a handful of bytes: asked in a process of its own."""
    code = (
        "import sharpwave as sw\n"
        "spec = sw.Spec(obs=sw.Field((), 'uint8'), action=sw.Field((), 'int64'))\n"
        "for steps in (1, 2, 7, 8, 9, 10, 13, 16, 20):\n"
        "    with sw.Store(spec, capacity=200, segment_steps=steps, codec='zstd') as store:\n"
        "        for k in range(60):\n"
        "            store.append(obs=k * 37 % 251, action=k, reward=0.0, terminated=False, truncated=False)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, f"ended by signal {-answer.returncode}\n{answer.stderr}"
