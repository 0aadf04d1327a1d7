"""Native core: its functions beside Python's own."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpwave.native import core


@given(st.binary(max_size=300), st.integers(0, 15))
def test_crc32_is_zlibs(data, shift):
    held = np.frombuffer(bytes(shift) + data, np.uint8)[shift:]
    assert core.crc32(held) == zlib.crc32(data)


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)]
)
def test_crc32c_is_that_of_rfc_3720(data, expected):
    assert core.crc32c(np.frombuffer(data, np.uint8)) == expected


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((2, 2), np.uint8), np.zeros(8, np.uint8)[::2], b"abc"])
def test_an_array_of_another_kind_is_refused(array):
    with pytest.raises(TypeError, match="incompatible function arguments"):
        core.crc32(array)
