"""The kernels' CRC-32 against zlib's."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from sharpwave.native.crc32 import TABLE, by_tables, crc32


@pytest.mark.parametrize("begin", range(9))
def test_it_is_that_of_zlib(begin: int) -> None:
    data = np.random.default_rng(begin).integers(0, 256, 5000, dtype=np.uint8)
    for nbytes in [*range(140), 1000, 4097]:
        part = data[begin : begin + nbytes].tobytes()
        assert int(crc32(data, begin, begin + nbytes, TABLE)) == zlib.crc32(part)
        ones = np.uint64(0xFFFFFFFF)  # as where a processor cannot multiply without carries
        assert int(by_tables(data, begin, begin + nbytes, ones, TABLE) ^ ones) == zlib.crc32(part)
