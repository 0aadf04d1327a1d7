"""Freeing a range or a slot allocates nothing, so that no eviction fails midway."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import ctypes, sys
import numpy as np
from sharpwave.memory.segment_index import GENERATION_BITS, SegmentIndex
from sharpwave.native import core

allocator = ctypes.CDLL(sys.argv[1])

def refused(granted, calls):
    allocator.arm(granted)
    found = 0
    for call in calls:
        try:
            call()
        except MemoryError:
            found += 1
    allocator.disarm()
    return found
"""

RANGES = """
def make(count):
    return core.Ranges(0, 4096, np.zeros((3, count), np.int64), True, False, None)

def emptied(ranges):
    held = [ranges.allocate(4096) for _ in range(20)]
    return refused(0, [lambda one=one: ranges.free(one, 4096) for one in held]), ranges.used_bytes, len(ranges.empty)

ranges = make(20)
print(emptied(ranges))
ranges.continue_in(make(40))
print(emptied(ranges))
"""

SLOTS = """
index = SegmentIndex(40, 10, 1)
print(refused(1, [index.take]))
slots = [index.take() for _ in range(40)]
index.generation[:] = 1 << GENERATION_BITS
print(refused(0, [lambda one=one: index.give_back(one) for one in slots]), len(index.free))
"""


@pytest.fixture(scope="module")
def allocator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not sys.platform.startswith("linux") or shutil.which("g++") is None:
        pytest.skip("it takes Linux and g++")
    if "LD_PRELOAD" in os.environ:
        pytest.skip("a sanitizer has an allocator of its own")
    library = tmp_path_factory.mktemp("allocator") / "no_memory.so"
    source = Path(__file__).with_name("no_memory.cpp")
    subprocess.run(["g++", "-std=c++20", "-shared", "-fPIC", source, "-o", library], check=True, timeout=60)
    return library


def printed(allocator: Path, program: str) -> str:
    """Return what a program prints whose C++ code has this allocator."""
    environment = os.environ | {"LD_PRELOAD": str(allocator)}
    command = [sys.executable, "-c", BEGIN + program, str(allocator)]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout


def test_ranges_that_are_freed_take_no_memory(allocator: Path) -> None:
    assert printed(allocator, RANGES) == "(0, 0, 19)\n(0, 0, 19)\n"


def test_slots_that_are_given_back_take_no_memory(allocator: Path) -> None:
    """Though a call that had memory for one kind of them found none for the other."""
    assert printed(allocator, SLOTS) == "1\n0 40\n"
