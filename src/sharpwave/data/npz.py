"""``.npz`` files: read row by row from the archive, never unpickled; and written one array after the other."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from sharpwave.data.columns import ColumnSource, open_columns

SKIP_BYTES = 1 << 20
UNREADABLE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, MemoryError, RuntimeError)
"""Errors of damaged archives. RuntimeError: encrypted, or compressed in an unknown way."""


class _Member:
    """Array in an archive, read forwards; going back opens it anew.

    Raises: ValueError: not an array of plain numbers.
    """

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self._archive, self._info, self._file = archive, info, archive.open(info)
        try:
            version = npy.read_magic(self._file)
            reader = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
            if reader is None:
                raise ValueError(f"version {version} of the format")
            self.shape, fortran, self.dtype = reader(self._file)
        except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{info.filename}: no array ({error})") from error
        if self.dtype.hasobject:
            raise ValueError(f"{info.filename}: holds pickled objects, which are not read; save plain arrays")
        if fortran and len(self.shape) > 1:
            raise ValueError(f"{info.filename}: in Fortran order, expected C order (numpy.ascontiguousarray)")
        self._begin = self._file.tell()
        self._row_bytes = int(np.prod(self.shape[1:], dtype=object)) * self.dtype.itemsize if self.shape else 0
        declared = self._row_bytes * self.shape[0] if self.shape else self.dtype.itemsize
        if self._begin + declared != info.file_size:
            raise ValueError(
                f"{info.filename}: {info.file_size - self._begin:,} bytes of values, expected {declared:,} for "
                f"{self.shape} {self.dtype}"
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

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError) as error:
            raise ValueError(f"npz: {str(path)!r} is no .npz file ({error})") from error
        self._members: dict[str, _Member] = {}
        try:
            for info in self._archive.infolist():
                if info.filename.endswith(".npy"):
                    self._members[info.filename.removesuffix(".npy")] = _Member(self._archive, info)
        except UNREADABLE as error:
            self.close()
            raise ValueError(f"npz: {str(path)!r}: {error}") from error

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
        try:
            return self._members[name].rows(begin, end)
        except UNREADABLE as error:
            raise ValueError(
                f"npz: {str(self.path)!r}: {name}: rows {begin} to {end} cannot be read ({error})"
            ) from error

    def close(self) -> None:
        """Close the file."""
        for member in self._members.values():
            member.close()
        self._archive.close()


def open_npz(path: str) -> ColumnSource:
    """Open an ``.npz`` file in the D4RL layout.  Raises: as ``open_columns``."""
    return open_columns("npz", path, NpzColumns)


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
