"""Parquet files of unknown origin, read through pyarrow; a column's decoded size is checked before it is decoded.

A column of any length can take a few bytes: one value and its number of repetitions. The headers of its pages declare
the numbers of values and bytes, so they are read first. The footer tells where the pages lie; it is parsed here, too,
since pyarrow's descriptions of row groups and columns end the process at some damaged bytes.
Source of the format: github.com/apache/parquet-format, parquet.thrift, and Thrift's compact protocol.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.data.episode import needed
from sharpwave.data.opened_files import REMEDY, File, ReadBudget, explained

WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
LEVEL_BYTES = 4
"""Bytes that pyarrow takes for the position of a value in nested lists."""
DICTIONARY_PAGE, PLAIN_DICTIONARY, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 2, 2, 7, 8
PAGES = {0: (5, 2, 5), DICTIONARY_PAGE: (7, 2, 0), 3: (8, 4, 8)}
"""Kinds of pages that pyarrow reads: numbers of the header's fields that describe the page, its encoding and its
statistics."""
LEAST = 6
"""Number of the field of statistics that has the least value, as the values are encoded."""
TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
"""Types of Thrift's compact protocol."""
ROW_GROUPS, COLUMNS, ROWS, METADATA = (4, LIST), (1, LIST), (3, I64), (3, STRUCT)
VALUES, PACKED, DATA_PAGE, DICTIONARY = (5, I64), (7, I64), (9, I64), (11, I64)
"""Fields of the footer, and of a column in a row group."""
MAX_DEPTH = 8
"""Limit of structs in structs and lists."""
Fields = dict[tuple[int, int], Any]
"""Fields of a struct by number and type: as in pyarrow, one of another type than expected is as none."""
HEADER_BYTES, MAX_HEADER_BYTES = 1 << 10, 1 << 20


class _Pages(NamedTuple):
    """Pages of a column in a row group: number of values, bytes of the largest page and of all, encodings, and the
    least value of each page that declares it, if it has the size of a number."""

    values: int
    largest: int
    nbytes: int
    encodings: set[int]
    least: list[bytes]


class ParquetFile:
    """Parquet file; ``file`` is closed with it, and if opening fails.

    Attributes:
        schema: of pyarrow. ``rows``: of each row group.
    """

    def __init__(self, file: File, budget: ReadBudget) -> None:
        self._input, self._budget, self.path = file, budget, file.path
        self._arrow: Any = needed("pyarrow", "data")
        module = needed("pyarrow.parquet", "data")
        self._settings: dict[str, Any] = {
            "pre_buffer": False,
            "thrift_string_size_limit": min((1 << 31) - 1, max(1, file.nbytes)),
            "thrift_container_size_limit": min((1 << 31) - 1, 1000 + file.nbytes // 8),
        }
        self._texts: Any = None
        with explained(f"{file.path}: is no Parquet file, or damaged"), contextlib.ExitStack() as closing:
            closing.callback(file.close)
            footer = int.from_bytes(file.read_at(file.size - 8, 4), "little")
            if footer > file.nbytes:
                raise ValueError(f"{file.path}: declares {footer:,} bytes of metadata in {file.nbytes:,}")
            file.seek(0)
            self._file: Any = module.ParquetFile(file, **self._settings)
            self.schema: Any = self._file.schema_arrow
            groups = self._read_groups(file.read_at(file.size - 8 - footer, footer), self._file.metadata.num_columns)
            self.rows, self._chunks = [rows for rows, _ in groups], [chunks for _, chunks in groups]
            if min(self.rows, default=0) < 0:
                raise ValueError(f"{file.path}: row groups of {self.rows[:8]} rows, expected none below 0")
            budget.check_steps(str(file.path), sum(self.rows))
            self._leaves: dict[str, range] = {}
            begin = 0
            for field in self.schema:
                if field.name in self._leaves:
                    raise ValueError(f"{file.path}: has the column {field.name!r} twice, expected it once")
                count = self._count(field.type)
                self._leaves[field.name] = range(begin, begin + count)
                begin += count
            if begin != (count := self._file.metadata.num_columns):
                raise ValueError(f"{file.path}: {count} columns, expected the {begin} of its schema")
            closing.pop_all()

    def _read_groups(self, footer: bytes, columns: int) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """Return of each row group the number of rows, and of its columns the begin, bytes and values [columns, 3]."""

        def group(said: Fields) -> Any:
            self._budget.check_time()
            if (found := said.get(COLUMNS)) is None:  # of the schema, or another list
                return None
            if len(found) != columns:
                raise ValueError(f"a row group of {len(found)} columns, expected {columns}")
            chunks = np.zeros((columns, 3), np.int64)
            for number, one in enumerate(found):
                column = one[METADATA]
                begin, dictionary = column[DATA_PAGE], column.get(DICTIONARY, 0)
                chunks[number] = dictionary if 0 < dictionary < begin else begin, column[PACKED], column[VALUES]
            return said[ROWS], chunks

        groups: list[tuple[int, npt.NDArray[np.int64]]] = _struct(footer, 0, 0, group)[0].get(ROW_GROUPS, [])
        return groups

    def _count(self, kind: Any) -> int:
        """Return the number of the file's columns in a column of pyarrow."""
        types = self._arrow.types
        if isinstance(kind, self._arrow.BaseExtensionType):
            return self._count(kind.storage_type)
        if types.is_struct(kind) or types.is_map(kind):
            children = [kind.key_type, kind.item_type] if types.is_map(kind) else [field.type for field in kind]
            return sum(self._count(one) for one in children)
        return self._count(kind.value_type) if types.is_nested(kind) else 1

    def read(self, group: int, columns: list[str], max_bytes: float | None = None) -> Any:
        """Return the existing ones of ``columns`` in a row group as a table of pyarrow, texts in dictionaries.

        Args:
            max_bytes: limit of the values; default: the budget's.

        Raises: ValueError: they are damaged, or exceed the limit.
        """
        what = f"{self.path}: row group {group}"
        limit = min(self._budget.array_bytes if max_bytes is None else max_bytes, self._budget.array_bytes)
        with explained(what):
            columns = [name for name in columns if name in self._leaves]
            nbytes, unpacked, file = 0, 0, self._file
            for name, leaf in ((one, leaf) for one in columns for leaf in self._leaves[one]):
                pages, column = self._pages(group, leaf), self._file.schema.column(leaf)
                text = column.physical_type == "BYTE_ARRAY"
                kind = self.schema.field(name).type
                if text and self._has_extension(kind):  # pyarrow reads it without its dictionary
                    raise ValueError(
                        f"{self.path}: {name!r} is {kind}, expected texts of no extension type; write them as strings"
                    )
                unpacked += pages.nbytes
                width = WIDTHS.get(column.physical_type, max(0, column.length))
                nested = column.max_definition_level or column.max_repetition_level
                nbytes += pages.values * (width + (LEVEL_BYTES if nested else 0)) + (
                    pages.nbytes if text else pages.largest
                )
                if text and DELTA_BYTE_ARRAY in pages.encodings:  # each text may begin with the whole text before it
                    nbytes += pages.values * pages.largest
                if text and pages.encodings & {PLAIN_DICTIONARY, RLE_DICTIONARY}:
                    nbytes += pages.values * LEVEL_BYTES
                    file = self._with_dictionaries()
            self._check(what, nbytes, limit)
            self._budget.check_total_bytes(f"{what}: its pages", unpacked)  # no check of time while it is read
            table = file.read_row_group(group, columns=columns, use_threads=False)
            if file is not self._file:
                self._check(what, nbytes + self.text_bytes(table), limit)
            return table

    def least(self, name: str) -> list[int]:
        """Return a column of integers' least value in each row group, if the headers of its pages have it.

        The footer's statistics have it too, but one damaged byte of them ends the process: pyarrow makes them in a
        function that may not raise.
        """
        found: list[int] = []
        for group in range(len(self.rows)):
            with contextlib.suppress(ValueError), explained(name):  # damaged, which reading the row group reports
                if least := self._pages(group, self._leaves[name][0]).least:
                    found.append(min(int.from_bytes(one, "little", signed=True) for one in least))
        return found

    def _with_dictionaries(self) -> Any:
        """Return the file, opened so that texts stay numbers of a dictionary."""
        if self._texts is None:
            columns = (self._file.schema.column(number) for number in range(self._file.metadata.num_columns))
            texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
            module = needed("pyarrow.parquet", "data")
            self._texts = module.ParquetFile(self._input, read_dictionary=texts, **self._settings)
        return self._texts

    def _has_extension(self, kind: Any) -> bool:
        if isinstance(kind, self._arrow.BaseExtensionType):
            return True
        children = (kind.field(number).type for number in range(kind.num_fields))
        return any(self._has_extension(one) for one in children)

    def text_bytes(self, values: Any) -> int:
        """Return the bytes of a table's or column's texts, counted at each occurrence."""
        types, compute = self._arrow.types, needed("pyarrow.compute", "data")
        if isinstance(values, self._arrow.Table):
            return sum(self.text_bytes(chunk) for column in values.columns for chunk in column.chunks)
        if types.is_dictionary(values.type):
            lengths = compute.binary_length(values.dictionary)
            return compute.sum(compute.cast(lengths, "int64").take(values.indices)).as_py() or 0
        if types.is_struct(values.type):
            return sum(self.text_bytes(one) for one in values.flatten())
        return self.text_bytes(values.flatten()) if types.is_nested(values.type) else 0

    def _check(self, what: str, nbytes: float, limit: float) -> None:
        if nbytes > limit:
            raise ValueError(f"{what}: makes {nbytes:,.0f} bytes at a time, expected at most {limit:,.0f}; {REMEDY}")

    def _pages(self, group: int, leaf: int) -> _Pages:
        """Read the headers of a column's pages.  Raises: ValueError."""
        at, packed, total = map(int, self._chunks[group][leaf])
        end = min(at + packed, self._input.size)
        self._budget.check_bytes(f"{self.path}: a column", end - at)  # pyarrow reads it as a whole
        values = largest = nbytes = 0
        encodings, least = set[int](), list[bytes]()
        while at < end and values < total:
            self._budget.check_time()
            header, size = self._header(at, end)
            kind, unpacked, packed = (header.get((number, I32), 0) for number in (1, 2, 3))
            described, encoded, counted = PAGES.get(kind, (0, 0, 0))  # pyarrow skips other kinds
            inner = header.get((described, STRUCT), {})
            count, encoding = inner.get((1, I32), 0), inner.get((encoded, I32), 0)
            if min(unpacked, packed, count) < 0:
                raise ValueError(f"{self.path}: a page of {packed:,} bytes and {count:,} values at byte {at:,}")
            if kind != DICTIONARY_PAGE:
                values += count
            encodings.add(RLE_DICTIONARY if kind == DICTIONARY_PAGE else encoding)
            said = inner.get((counted, STRUCT), {}).get((LEAST, BINARY), b"")
            least += [said] if len(said) in (4, 8) else []
            largest, nbytes = max(largest, unpacked), nbytes + unpacked
            at += size + packed
        return _Pages(values, largest, nbytes, encodings, least)

    def _header(self, at: int, end: int) -> tuple[Fields, int]:
        """Parse the header of a page; return its fields, and its size."""
        for limit in (HEADER_BYTES, MAX_HEADER_BYTES):
            data = self._input.read_at(at, min(limit, end - at))
            try:
                return _struct(data, 0, 0)
            except IndexError:
                continue
        raise ValueError(f"{self.path}: the header of a page at byte {at:,} does not end")

    def close(self) -> None:
        """Close the file."""
        if self._texts is not None:
            self._texts.close()
        self._file.close()
        self._input.close()


def _struct(data: bytes, at: int, depth: int, each: Callable[[Any], Any] | None = None) -> tuple[Fields, int]:
    """Parse a struct in Thrift's compact protocol; return its fields, and where it ends.

    Args:
        each: replaces the structs in its lists, which saves memory.

    Raises: IndexError: it is incomplete.  ValueError: it is invalid.
    """
    fields: Fields = {}
    numbers = set[int]()
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _signed(data, at)
        if number in numbers:  # parsers differ in which of them counts
            raise ValueError(f"a header with field {number} twice")
        numbers.add(number)
        kind = head & 15
        fields[number, kind], at = _value(data, at, kind, depth, each)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int, each: Callable[[Any], Any] | None = None) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise ValueError(f"a header nested deeper than {MAX_DEPTH} structs")
    if kind in (TRUE, FALSE):  # the type is the value
        return kind == TRUE, at
    if kind == I8:
        return data[at], at + 1
    if kind in (I16, I32, I64):
        value, at = _signed(data, at)
        if value.bit_length() > (63 if kind == I64 else 31):  # parsers keep different bits of it
            raise ValueError(f"a header with the number {value}, which does not fit its type")
        return value, at
    if kind == DOUBLE:
        return None, _within(data, at + 8)
    if kind == BINARY:
        nbytes, at = _number(data, at)
        return data[at : at + nbytes], _within(data, at + nbytes)
    if kind in (LIST, SET):
        count, inner, at = data[at] >> 4, data[at] & 15, at + 1
        if count == 15:
            count, at = _number(data, at)
        items = []
        for _ in range(count):
            item, at = (None, _within(data, at + 1)) if inner in (TRUE, FALSE) else _value(data, at, inner, depth + 1)
            items.append(each(item) if each is not None and inner == STRUCT else item)
        return items, at
    if kind == STRUCT:
        return _struct(data, at, depth + 1)
    raise ValueError(f"a header with a field of type {kind}")


def _within(data: bytes, at: int) -> int:
    if at > len(data):
        raise IndexError
    return at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _number(data, at)
    return value >> 1 ^ -(value & 1), at


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits in a header")
