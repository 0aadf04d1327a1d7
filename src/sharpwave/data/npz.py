"""``.npz`` files: read row by row from the archive, never unpickled; written one array after the other."""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from sharpwave.data.columns import ColumnSource, open_columns
from sharpwave.data.opened_files import File, ReadBudget, explained

SKIP_BYTES = 1 << 20
NUMPYS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
"""numpy's compression methods. Other decoders allocate declared sizes, such as LZMA's dictionary."""


MAX_HEADER_BYTES = 10_000
"""Limit of an array's header, numpy's own."""


class _Member:
    """Array in an archive, read forwards; going back opens it anew.

    Raises: ValueError: not an array of plain numbers.
    """

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        if info.compress_type not in NUMPYS:
            raise ValueError(
                f"compressed by method {info.compress_type}, expected {' or '.join(NUMPYS.values())}; write it by "
                "numpy.savez_compressed"
            )
        self._archive, self._info, self._file = archive, info, archive.open(info)
        version = npy.read_magic(self._file)
        readers = {(1, 0): (2, npy.read_array_header_1_0), (2, 0): (4, npy.read_array_header_2_0)}
        if version not in readers:
            raise ValueError(f"version {version} of the format, expected 1.0 or 2.0; save it by numpy.savez")
        size, reader = readers[version]
        length = self._file.read(size)
        if int.from_bytes(length, "little") > MAX_HEADER_BYTES:  # numpy would read the whole header first
            raise ValueError(f"a header of {int.from_bytes(length, 'little'):,} bytes, expected {MAX_HEADER_BYTES:,}")
        header = io.BytesIO(length + self._file.read(int.from_bytes(length, "little")))
        self.shape, fortran, self.dtype = reader(header)
        if self.dtype.hasobject:
            raise ValueError("holds pickled objects, which are not read; save plain arrays")
        if fortran and len(self.shape) > 1:
            raise ValueError("in Fortran order, expected C order (numpy.ascontiguousarray)")
        self._begin = self._file.tell()
        self._row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        if min(self.shape, default=0) < 0 or self._begin + self.nbytes != info.file_size:
            raise ValueError(
                f"{info.file_size - self._begin:,} bytes of values, expected {self.nbytes:,} for {self.shape} "
                f"{self.dtype}; is the file complete?"
            )
        self._at = 0

    def rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        if begin < self._at:
            self._file.close()
            self._file = self._archive.open(self._info)
            self._skip(self._begin)
            self._at = 0
        self._skip((begin - self._at) * self._row_bytes)
        content = self._file.read((end - begin) * self._row_bytes)
        if len(content) < (end - begin) * self._row_bytes:
            raise ValueError(f"ends before row {end:,}; is the file complete?")
        self._at = end
        array = np.frombuffer(content, self.dtype).reshape(end - begin, *self.shape[1:])
        return array.astype(self.dtype.newbyteorder("="), copy=False)

    def _skip(self, nbytes: int) -> None:
        while nbytes > 0 and (part := self._file.read(min(nbytes, SKIP_BYTES))):
            nbytes -= len(part)

    def close(self) -> None:
        self._file.close()


class NpzColumns:
    """Arrays of an ``.npz`` file."""

    def __init__(self, file: File, budget: ReadBudget) -> None:
        self.path, self._file = file.path, file
        with explained(f"npz: {str(self.path)!r}"):
            self._archive = zipfile.ZipFile(file)
        self._members: dict[str, _Member] = {}
        try:
            infos = [one for one in self._archive.infolist() if one.filename.endswith(".npy")]
            budget.check_count(f"npz: {str(self.path)!r}", len(infos), "arrays")
            for info in infos:
                with explained(f"npz: {str(self.path)!r}: {info.filename}"):
                    self._members[info.filename.removesuffix(".npy")] = _Member(self._archive, info)
            budget.check_total_bytes(f"npz: {str(self.path)!r}", sum(one.nbytes for one in self._members.values()))
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        """Return the names of all arrays."""
        return list(self._members)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return an array's shape."""
        return tuple(self._members[name].shape)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return an array's dtype."""
        return self._members[name].dtype

    def rows(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        """Read rows.  Raises: ValueError."""
        with explained(f"npz: {str(self.path)!r}: {name}: rows {begin} to {end} cannot be read"):
            return self._members[name].rows(begin, end)

    def close(self) -> None:
        """Close the file."""
        for member in self._members.values():
            member.close()
        self._archive.close()
        self._file.close()


def open_npz(path: str, budget: ReadBudget) -> ColumnSource:
    """Open an ``.npz`` file in the D4RL layout.  Raises: as ``open_columns``."""
    return open_columns("npz", path, lambda file: NpzColumns(file, budget), budget)


class NpzWriter:
    """Writer of an ``.npz`` file: ``write`` one array after the other, in parts of rows."""

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)

    def write(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], parts: Any) -> None:
        """Write an array [N, ...] of ``shape`` from an iterable of its rows, in order."""
        with self._archive.open(f"{name}.npy", "w", force_zip64=True) as file:
            stream: IO[bytes] = file
            described = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            npy.write_array_header_1_0(stream, described)
            for part in parts:
                stream.write(np.ascontiguousarray(part, dtype).data.cast("B") if part.size else b"")

    def close(self) -> None:
        """Complete the file."""
        with contextlib.closing(self._archive):
            pass
