"""Parquet files of unknown origin, read through pyarrow; a column's decoded size is checked before it is decoded.

A column of any length can take a few bytes: one value and its number of repetitions. The headers of its pages declare
the numbers of values and bytes, so they are read first.
Source of the format: github.com/apache/parquet-format, parquet.thrift, and Thrift's compact protocol.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from sharpwave.data.episode import needed
from sharpwave.data.opened_files import REMEDY, File, ReadBudget, explained

WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
LEVEL_BYTES = 4
"""Bytes that pyarrow takes for the position of a value in nested lists."""
DICTIONARY_PAGE, PLAIN_DICTIONARY, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 2, 2, 7, 8
PAGES = {0: (5, 2), DICTIONARY_PAGE: (7, 2), 3: (8, 4)}
"""Kinds of pages that pyarrow reads: numbers of the header's fields that describe the page and its encoding."""
HEADER_BYTES, MAX_HEADER_BYTES = 1 << 10, 1 << 20


class _Pages(NamedTuple):
    """Pages of a column in a row group: number of values, bytes of the largest page and of all, and encodings."""

    values: int
    largest: int
    nbytes: int
    encodings: set[int]


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
            metadata = self._file.metadata
            self.rows = [int(metadata.row_group(number).num_rows) for number in range(metadata.num_row_groups)]
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
            if begin != metadata.num_columns:
                raise ValueError(f"{file.path}: {metadata.num_columns} columns, expected the {begin} of its schema")
            closing.pop_all()

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
        """Return a column of integers' least value in each row group, if the file's statistics have it."""
        metadata, leaf = self._file.metadata, self._leaves[name][0]
        said = (metadata.row_group(number).column(leaf).statistics for number in range(metadata.num_row_groups))
        return [one.min for one in said if one is not None and one.has_min_max and isinstance(one.min, int)]

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
        column = self._file.metadata.row_group(group).column(leaf)
        at, total = int(column.data_page_offset), int(column.num_values)
        if column.has_dictionary_page and 0 < (column.dictionary_page_offset or 0) < at:
            at = int(column.dictionary_page_offset)
        end = min(at + int(column.total_compressed_size), self._input.size)
        self._budget.check_bytes(f"{self.path}: a column", end - at)  # pyarrow reads it as a whole
        values = largest = nbytes = 0
        encodings: set[int] = set()
        while at < end and values < total:
            self._budget.check_time()
            header, size = self._header(at, end)
            kind, unpacked, packed = (int(header.get(number, 0)) for number in (1, 2, 3))
            described, encoded = PAGES.get(kind, (0, 0))  # pyarrow skips other kinds
            inner = header.get(described) or {}
            count, encoding = int(inner.get(1, 0)), inner.get(encoded)
            if min(unpacked, packed, count) < 0:
                raise ValueError(f"{self.path}: a page of {packed:,} bytes and {count:,} values at byte {at:,}")
            if kind != DICTIONARY_PAGE:
                values += count
            encodings.add(RLE_DICTIONARY if kind == DICTIONARY_PAGE else int(encoding or 0))
            largest, nbytes = max(largest, unpacked), nbytes + unpacked
            at += size + packed
        return _Pages(values, largest, nbytes, encodings)

    def _header(self, at: int, end: int) -> tuple[dict[int, Any], int]:
        """Parse the header of a page; return its fields by number, and its size."""
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


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Parse a struct in Thrift's compact protocol; return its fields by number, and where it ends.

    Raises: IndexError: it is incomplete.  ValueError: it is invalid.
    """
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            signed, at = _number(data, at)
            number = signed >> 1 ^ -(signed & 1)
        if number in fields:  # parsers differ in which of them counts
            raise ValueError(f"a page's header with field {number} twice")
        fields[number], at = _value(data, at, head & 15, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if depth > 8:
        raise ValueError("a page's header nested deeper than 8 structs")
    if kind in (1, 2):  # the type is the value
        return kind == 1, at
    if kind == 3:
        return data[at], at + 1
    if kind in (4, 5, 6):
        signed, at = _number(data, at)
        return signed >> 1 ^ -(signed & 1), at
    if kind == 7:
        return None, _within(data, at + 8)
    if kind == 8:
        nbytes, at = _number(data, at)
        return None, _within(data, at + nbytes)
    if kind in (9, 10):
        count, inner, at = data[at] >> 4, data[at] & 15, at + 1
        if count == 15:
            count, at = _number(data, at)
        for _ in range(count):
            _, at = (None, _within(data, at + 1)) if inner in (1, 2) else _value(data, at, inner, depth + 1)
        return None, at
    if kind == 12:
        return _struct(data, at, depth + 1)
    raise ValueError(f"a page's header with a field of type {kind}")


def _within(data: bytes, at: int) -> int:
    if at > len(data):
        raise IndexError
    return at


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits in a page's header")
