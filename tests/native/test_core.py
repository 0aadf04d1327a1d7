"""Native core: its functions beside Python's own."""

import subprocess
import sys
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


ENDING = """
import threading, time
import numpy as np
from sharpwave.native import core

def work():
    data = np.zeros(1 << 22, np.uint8)
    while True:
        core.crc32(data)

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""


def test_a_process_ends_while_its_threads_work_in_the_core():
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
