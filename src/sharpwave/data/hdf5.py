"""HDF5 files in the D4RL layout."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data.columns import ColumnSource, open_columns
from sharpwave.data.packages import needed
from sharpwave.native.interrupts import Lock

FREE_BYTES, MAX_RATIO = 1 << 26, 2000
"""What an array may declare beyond what it holds, as reading takes time for what is declared: gzip reaches 1,032."""
METADATA = "metadata"
"""Group that describes a D4RL data set."""


class Hdf5Columns:
    """Arrays of an HDF5 file. Links to other files, and arrays that are kept in others, are not followed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        h5py = needed("h5py", "data")
        try:
            self._file: Any = h5py.File(path, "r")
        except (OSError, RuntimeError) as error:
            raise ValueError(f"hdf5: {str(path)!r} is no HDF5 file, or damaged ({error})") from error
        self._arrays: dict[str, Any] = {}
        try:
            self._collect(h5py, self._file, "", 0)
        except (RuntimeError, OSError, KeyError) as error:
            self._file.close()
            raise ValueError(f"hdf5: {str(path)!r} is damaged ({error})") from error
        except BaseException:
            self._file.close()
            raise

    def _collect(self, h5py: Any, group: Any, prefix: str, depth: int) -> None:
        for key in group:
            name = prefix + key
            if name == METADATA:
                continue
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise ValueError(f"hdf5: {str(self.path)!r}: {name} is a link to elsewhere, which is not followed")
            found = group[key]
            if isinstance(found, h5py.Group):
                if depth >= 8:
                    raise ValueError(f"hdf5: {str(self.path)!r}: {name} is nested deeper than 8 groups")
                self._collect(h5py, found, f"{name}/", depth + 1)
            elif isinstance(found, h5py.Dataset):
                if found.is_virtual or found.external:
                    raise ValueError(f"hdf5: {str(self.path)!r}: {name} is kept in other files, which are not read")
                nbytes, there = (
                    int(np.prod(found.shape or (), dtype=object)) * found.dtype.itemsize,
                    found.id.get_storage_size(),
                )
                if nbytes > FREE_BYTES + MAX_RATIO * there:
                    raise ValueError(
                        f"hdf5: {str(self.path)!r}: {name} declares {nbytes:,} bytes, and holds {there:,}; not read"
                    )
                self._arrays[name] = found

    def names(self) -> list[str]:
        """Return the names of all arrays."""
        return list(self._arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return an array's shape."""
        return tuple(self._arrays[name].shape or ())

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return an array's dtype."""
        dtype: np.dtype[Any] = self._arrays[name].dtype
        return dtype

    def rows(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        """Read rows.  Raises: ValueError."""
        try:
            array = np.asarray(self._arrays[name][begin:end])
        except (OSError, RuntimeError, KeyError, MemoryError) as error:
            raise ValueError(
                f"hdf5: {str(self.path)!r}: {name}: rows {begin} to {end} cannot be read ({error})"
            ) from error
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_hdf5(path: str) -> ColumnSource:
    """Open an HDF5 file in the D4RL layout.  Raises: as ``open_columns``."""
    return open_columns("hdf5", path, Hdf5Columns)


class Hdf5Output(io.RawIOBase):
    """File that never fails HDF5, which ends the process (SIGSEGV) where closing cannot write what it has cached.

    Attributes:
        error: what failed first, on a full disk. What is written from then on is kept in memory.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._at, self._kept = 0, dict[int, bytes]()  # what could not be written, by offset
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset if whence == os.SEEK_SET else self._file.seek(offset, whence)
        return self._at

    def write(self, part: Any) -> int:
        try:
            if self.error is None:
                view = memoryview(part).cast("B")
                self._file.seek(self._at)
                while view:
                    view = view[self._file.write(view) :]
        except OSError as error:
            self.error = error
        if self.error is not None:
            self._kept[self._at] = bytes(part)
        return len(part)

    def readinto(self, into: Any) -> int:
        self._file.seek(self._at)
        count = self._file.readinto(into)
        if (kept := self._kept.get(self._at)) is not None:
            count = min(len(kept), len(into))
            into[:count] = kept[:count]
        return count

    def truncate(self, size: int | None = None) -> int:
        try:
            self._at = self._file.truncate(self._at if size is None else size)
        except OSError as error:
            self.error = self.error or error
        return self._at

    def close(self) -> None:
        self._file.close()
        super().close()

    def sync(self) -> None:
        """Sync the file: some file systems tell only then that the disk is full.  Raises: OSError."""
        os.fsync(self._file.fileno())

    def check(self) -> None:
        """Raise what failed."""
        if self.error is not None:
            raise self.error


class Hdf5Writer:
    """Writer of an HDF5 file: ``write`` one array after the other, in parts of rows."""

    def __init__(self, path: Path) -> None:
        h5py = needed("h5py", "data")
        self._uninterrupted = Lock()  # an interrupt between two lines of Hdf5Output would be a failure to HDF5
        with self._uninterrupted:
            self._output = Hdf5Output(path)
            self._file: Any = h5py.File(self._output, "w")

    def write(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], parts: Any) -> None:
        """Write an array [N, ...] of ``shape`` from an iterable of its rows, in order."""
        with self._uninterrupted:
            array = self._file.create_dataset(name, shape, dtype, chunks=True, compression="gzip", compression_opts=1)
        at = 0
        try:
            for part in parts:
                with self._uninterrupted:
                    array[at : at + len(part)] = part
                at += len(part)
                self._output.check()
        finally:
            with self._uninterrupted:
                del array  # which writes what HDF5 has cached of it

    def close(self) -> None:
        """Complete the file.  Raises: OSError: something could not be written."""
        with self._uninterrupted:
            self._file.close()
            self._output.close()
        self._output.check()
