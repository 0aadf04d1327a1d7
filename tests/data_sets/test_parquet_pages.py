"""Pages of Parquet files, written byte by byte: pyarrow and Sharpwave must read their headers alike."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sharpwave as sw
from sharpwave.data.opened_files import ReadBudget, open_path
from sharpwave.data.parquet_files import ParquetFile

I32, I64, TEXT, LIST, STRUCT = 5, 6, 8, 9, 12
"""Types of Thrift's compact protocol."""
COUNT = 1 << 28
"""Values of a page that takes some 30 bytes."""


def number(value: int) -> bytes:
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def value(kind: int, one: Any) -> bytes:
    if kind == TEXT:
        return number(len(one)) + bytes(one)
    if kind == LIST:
        inner, values = one
        return bytes([0xF0 | inner]) + number(len(values)) + b"".join(value(inner, each) for each in values)
    return thrift(*one) if kind == STRUCT else number(one << 1)


def thrift(*fields: tuple[int, int, Any]) -> bytes:
    """A struct of fields: their numbers, which may go back, their types and values."""
    return b"".join(bytes([kind]) + number(field << 1) + value(kind, one) for field, kind, one in fields) + b"\0"


def of_page(count: int, encoding: int) -> list[tuple[int, int, int]]:
    return [(1, I32, count), (2, I32, encoding), (3, I32, 3), (4, I32, 3)]


def page(body: bytes, *fields: tuple[int, int, Any], kind: int = 0, unpacked: int | None = None) -> bytes:
    return thrift((1, I32, kind), (2, I32, unpacked or len(body)), (3, I32, len(body)), *fields) + body


DICTIONARY = page(struct.pack("<i", 7), (7, STRUCT, [(1, I32, 1), (2, I32, 0)]), kind=2)


def one_list(count: int) -> bytes:
    """A page's levels and numbers in a dictionary, run-length encoded: a list of ``count`` values."""
    repeated = number(2) + b"\0" + number((count - 1) << 1) + b"\1"
    defined = number(count << 1) + b"\1"
    levels = b"".join(struct.pack("<I", len(one)) + one for one in (repeated, defined))
    return levels + b"\1" + number(count << 1) + b"\0"


def write(path: Path, pages: list[bytes], values: int, rows: int, repeated: bool = False, codec: int = 0) -> None:
    """Write a file of one column, x, of int32."""
    content = b"".join(pages)
    schema = [[(4, TEXT, b"schema"), (5, I32, 1)], [(1, I32, 1), (3, I32, 2 if repeated else 0), (4, TEXT, b"x")]]
    column = [(1, I32, 1), (2, LIST, (I32, [0, 3])), (3, LIST, (TEXT, [b"x"])), (4, I32, codec), (5, I64, values)]
    column += [(6, I64, 1000), (7, I64, len(content)), (9, I64, 4)]
    group = [(1, LIST, (STRUCT, [[(2, I64, 4), (3, STRUCT, column)]])), (2, I64, 1000), (3, I64, rows)]
    said = thrift((1, I32, 1), (2, LIST, (STRUCT, schema)), (3, I64, rows), (4, LIST, (STRUCT, [group])))
    path.write_bytes(b"PAR1" + content + said + struct.pack("<I", len(said)) + b"PAR1")


def read(path: Path) -> Any:
    budget = ReadBudget()
    file = ParquetFile(open_path(path, budget), budget)
    try:
        return file.read(0, ["x"])
    finally:
        file.close()


def test_pages_of_a_sound_file(tmp_path: Path) -> None:
    write(tmp_path / "x", [DICTIONARY, page(one_list(5), (5, STRUCT, of_page(5, 8)))], 5, 1, repeated=True)
    assert read(tmp_path / "x").column("x").to_pylist() == [[7] * 5]


HEADERS: dict[str, list[tuple[int, int, Any]]] = {
    "honest": [(5, STRUCT, of_page(COUNT, 8))],
    "another version's, too": [
        (8, STRUCT, [(1, I32, 1), (2, I32, 0), (3, I32, 1), (4, I32, 8), (5, I32, 0), (6, I32, 0)]),
        (5, STRUCT, of_page(COUNT, 8)),
    ],
    "again, of another type": [(5, STRUCT, [(1, I32, COUNT), (1, I64, 1), *of_page(COUNT, 8)[1:]])],
}


@pytest.mark.parametrize("header", HEADERS)
def test_values_of_a_page(tmp_path: Path, header: str) -> None:
    """Whatever else its header says, and pyarrow passes over."""
    write(tmp_path / "x", [DICTIONARY, page(one_list(COUNT), *HEADERS[header])], COUNT, 1, repeated=True)
    with pytest.raises(ValueError, match=r"makes 2,147,\d+,\d+ bytes at a time|header with field 1 twice"):
        read(tmp_path / "x")


def test_a_page_that_pyarrow_passes_over_has_no_values(tmp_path: Path) -> None:
    packed = pa.compress(struct.pack("<i", 7) + bytes(1 << 29), "zstd", asbytes=True)
    index = page(b"", (5, STRUCT, of_page(1, 0)), kind=1)
    write(tmp_path / "x", [index, page(packed, (5, STRUCT, of_page(1, 0)), unpacked=(1 << 29) + 4)], 1, 1, codec=6)
    with pytest.raises(ValueError, match=r"makes 536,870,.* bytes at a time"):
        read(tmp_path / "x")


def test_pages_unpacked_one_after_the_other(tmp_path: Path) -> None:
    """400 bytes each of which pyarrow makes 240 MiB, to read a value of them, while no time is looked at."""
    packed = pa.compress(struct.pack("<i", 7) + bytes(240 << 20), "brotli", asbytes=True)
    one = page(packed, (5, STRUCT, of_page(1, 0)), unpacked=(240 << 20) + 4)
    write(tmp_path / "x", [one] * 300, 300, 300, codec=4)
    with pytest.raises(ValueError, match="its pages: makes 75,497,473,200 bytes, expected at most"):
        read(tmp_path / "x")


FLIP = """
import sys
from pathlib import Path
import sharpwave as sw
path, begin, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
content, flipped = path.read_bytes(), path.with_name("flipped.parquet")
footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
for place in range(footer + begin, min(footer + end, len(content))):
    for bit in range(8):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        flipped.write_bytes(damaged)
        print(place - footer, bit, flush=True)
        try:
            sw.load(f"parquet:{flipped}", progress=False)
        except ValueError:
            pass
"""
"""Loads an export with each bit flipped of a part of the footer."""


@pytest.mark.parametrize(
    ("begin", "end"), [(15, 22), pytest.param(0, 1 << 20, marks=pytest.mark.nightly)], ids=["first column", "all"]
)
def test_a_flipped_bit_of_the_footer_never_ends_the_process(tmp_path: Path, begin: int, end: int) -> None:
    """Such as types other than those that statistics were made of, or levels other than histograms count."""
    store = sw.Store(sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64")), capacity=10)
    store.add_episode(obs=np.zeros((4, 2)), action=np.arange(3), reward=np.ones(3), terminated=True)
    store.export(f"parquet:{tmp_path / 'x.parquet'}", progress=False)
    command = [sys.executable, "-W", "ignore", "-c", FLIP, str(tmp_path / "x.parquet"), str(begin), str(end)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"at byte and bit {done.stdout.splitlines()[-1]}: {done.stderr[-2000:]}"
