"""``.npz`` files: read row by row from the archive, never unpickled; written one array after the other."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from sharpwave.data.columns import ColumnSource
from sharpwave.data.episode import existing
from sharpwave.data.opened_files import ReadBudget, explained, open_path

SKIP_BYTES = 1 << 20
NUMPYS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
"""numpy's compression methods. Other decoders allocate declared sizes, such as LZMA's dictionary."""


MAX_HEADER_BYTES = 10_000
"""Limit of an array's header, numpy's own."""


class NpzArray:
    """Array in an archive, ``what``, read forwards; going back opens it anew.

    Raises: ValueError: not an array of plain numbers.
    """

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, what: str) -> None:
        if info.compress_type not in NUMPYS:
            raise ValueError(
                f"compressed by method {info.compress_type}, expected {' or '.join(NUMPYS.values())}; write it by "
                "numpy.savez_compressed"
            )
        self._archive, self._info, self._file = archive, info, archive.open(info)
        self._what = f"{what}: {info.filename.removesuffix('.npy')}"
        version = npy.read_magic(self._file)
        readers = {(1, 0): (2, npy.read_array_header_1_0), (2, 0): (4, npy.read_array_header_2_0)}
        if version not in readers:
            raise ValueError(f"version {version} of the format, expected 1.0 or 2.0; save it by numpy.savez")
        size, reader = readers[version]
        length = self._file.read(size)
        if int.from_bytes(length, "little") > MAX_HEADER_BYTES:  # numpy would read the whole header first
            raise ValueError(f"a header of {int.from_bytes(length, 'little'):,} bytes, expected {MAX_HEADER_BYTES:,}")
        header = io.BytesIO(length + self._file.read(int.from_bytes(length, "little")))
        shape, fortran, self.dtype = reader(header)
        self.shape: tuple[int, ...] = tuple(shape)
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
        with explained(f"{self._what}: rows {begin} to {end} cannot be read"):
            return self._rows(begin, end)

    def _rows(self, begin: int, end: int) -> npt.NDArray[Any]:
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


def open_npz(place: str, budget: ReadBudget) -> ColumnSource:
    """Open an ``.npz`` file in the D4RL layout.  Raises: FileNotFoundError, ValueError."""
    path = existing(place, "npz")
    what, arrays = f"npz: {str(path)!r}", dict[str, NpzArray]()
    file = open_path(path, budget)
    with explained(what):
        archive = zipfile.ZipFile(file)
    budget.closing.callback(archive.close)
    infos = [one for one in archive.infolist() if one.filename.endswith(".npy")]
    budget.check_count(what, len(infos), "arrays")
    for info in infos:
        with explained(f"{what}: {info.filename}"):
            arrays[info.filename.removesuffix(".npy")] = NpzArray(archive, info, what)
    budget.check_total_bytes(what, sum(one.nbytes for one in arrays.values()))
    return ColumnSource(f"npz:{path}", arrays, budget)


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
        self._archive.close()
