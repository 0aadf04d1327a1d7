"""HDF5 files: groups and arrays that are checked before they are read, and a writer."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data.episode import needed
from sharpwave.data.opened_files import REMEDY, File, ReadBudget, explained
from sharpwave.native.interrupts import InterruptLock

MAX_DEPTH = 8
"""Limit of groups in groups."""
FREE_BYTES, MAX_RATIO = 1 << 26, 2000
"""Bytes that an array may declare beyond the stored ones: gzip reaches a ratio of 1,032."""
PART_BYTES = 1 << 20
"""Bytes that are inflated at a time, to count them."""
ROWS_AT_A_TIME = 64
"""Rows of any length in memory at a time, before they are counted."""
GZIP = 1
FILTERS = {GZIP: "gzip", 2: "shuffle", 3: "fletcher32"}
"""Filters whose cost is bounded by an array's bytes. HDF5 trusts parameters of nbit and scaleoffset and may read beyond
the chunk; lzf and szip make any number of bytes from few; for others HDF5 looks for a library to load."""
GZIP_RATIO = 1032
"""Largest ratio of gzip's output to its input."""
MAX_NAME_CHARACTERS = 1024
"""Limit of an array's path: links to one array repeat it at no cost."""
HEAP, EDGE_BYTES, MIN_HEAP_BYTES = re.compile(b"GCOL\1"), 4, 4096
"""Signature and version of a global heap collection, which has values of any length; their bytes without one; the least
size of a collection: HDF5 refuses smaller ones."""


class _HeapCheckedInput:
    """File for HDF5 that checks each global heap collection among the bytes read: where an object of a damaged one ends
    where it begins, HDF5 loops forever, and takes no interrupt.

    Source: HDF5 file format specification, III.E, "Global Heap".

    Attributes:
        length_bytes: size of lengths in the file.
    """

    def __init__(self, file: File) -> None:
        self._file, self.length_bytes = file, 8
        self.seek, self.tell, self.read = file.seek, file.tell, file.read

    def readinto(self, buffer: Any) -> int:
        file, at = self._file, self._file.tell()
        places = self._across(at)  # first, since its buffer serves the following reads
        file.seek(at)
        count = file.readinto(buffer)
        places += [at + one.start() for one in HEAP.finditer(memoryview(buffer)[:count])] + self._across(at + count)
        for place in places:
            self._check(place)
        return count

    def _across(self, edge: int) -> list[int]:
        """Return where a signature lies across the edge of a read: HDF5 may read it in two parts."""
        begin = max(0, edge - EDGE_BYTES)
        part = self._file.read_at(begin, min(edge + EDGE_BYTES, self._file.size) - begin)
        return [begin + one.start() for one in HEAP.finditer(part)]

    def _check(self, at: int) -> None:
        """Check the objects of a collection.  Raises: ValueError: HDF5 would not get to its end."""
        file, head = self._file, 8 + -(-self.length_bytes // 8) * 8  # of a collection, and of an object
        size = int.from_bytes(file.read_at(at, min(head, file.size - at))[8 : 8 + self.length_bytes], "little")
        if not MIN_HEAP_BYTES <= size <= file.size - at:  # which HDF5 refuses, too
            return
        content, place = file.read_at(at, size), head
        while place + head <= size:
            nbytes = int.from_bytes(content[place + 8 : place + 8 + self.length_bytes], "little")
            is_free = content[place : place + 2] == b"\0\0"  # its size includes the head
            taken = nbytes if is_free else head + -(-nbytes // 8) * 8
            if not 0 < taken <= size - place:
                raise ValueError(
                    f"a value of any length, at byte {at + place:,}, takes {taken:,} bytes, expected 1 to "
                    f"{size - place:,}; write or fetch the file anew"
                )
            place += taken


class Hdf5File:
    """Groups and arrays of an HDF5 file, each checked before it is read; ``file`` is closed with it, and on failure.

    No reference to another file is followed: links, virtual arrays, values in other files.
    """

    def __init__(self, file: File, budget: ReadBudget) -> None:
        self._h5py = needed("h5py", "data")
        self._what, self._budget, self._input = f"hdf5: {str(file.path)!r}", budget, file
        self._groups: dict[int, str] = {}
        with explained(f"{self._what} is no HDF5 file, or damaged"), contextlib.ExitStack() as failing:
            failing.callback(file.close)
            self._checked = _HeapCheckedInput(file)
            self.root: Any = self._h5py.File(self._checked, "r")
            self._checked.length_bytes = self.root.id.get_create_plist().get_sizes()[1]
            failing.pop_all()

    def _address(self, one: Any) -> int:
        return int(self._h5py.h5o.get_info(one.id).addr)

    def arrays(self, group: Any, prefix: str = "", leave: str = "") -> dict[str, Any]:
        """Return the arrays of a group and its subgroups, by their paths; skip the group ``leave``.

        Raises: ValueError: a link leaves the file, groups are nested too deep, or an array declares too many bytes.
        """
        with explained(f"{self._what} is damaged", self._what):
            self._found = self._declared = 0
            return dict(self._walk(group, prefix, leave, {self._address(self.root), self._address(group)}, 0))

    def group(self, group: Any, name: str) -> Any:
        """Return a subgroup, for ``arrays``.  Raises: ValueError: it is missing."""
        with explained(f"{self._what} is damaged", self._what):
            if not isinstance(found := self._member(group, name, name), self._h5py.Group):
                raise ValueError(f"{self._what}: {name} is no group, expected a group; write the data set anew")
            if (first := self._groups.setdefault(self._address(found), name)) != name:  # names cost nothing
                raise ValueError(f"{self._what}: {name} is a second name of {first}, expected one; copy the group")
            return found

    def find(self, group: Any, name: str) -> Any:
        """Return the group or array of a name in a group, or None if it is missing.  Raises: ValueError: a link."""
        with explained(f"{self._what} is damaged", self._what):
            if group.get(name, getlink=True) is None:
                return None
            if isinstance(found := self._member(group, name, name), self._h5py.Dataset):
                self._declared = 0
                self._check(found, name)
            return found

    def names(self, group: Any, name: str) -> list[str]:
        """Return the names in a subgroup; an empty list if it is an array, or missing.  Raises: ValueError."""
        found = self.find(group, name)
        return [one for one in found if isinstance(one, str)] if isinstance(found, self._h5py.Group) else []

    def attribute(self, group: Any, name: str) -> str | int | float | None:
        """Return an attribute that is a single text or number; else None.  Raises: ValueError."""
        with explained(f"{self._what} is damaged", self._what):
            if name not in group.attrs or (kind := group.attrs.get_id(name)).shape != ():
                return None
            text = self._h5py.check_string_dtype(kind.dtype)
            if text is None and kind.dtype.kind not in "buif":
                return None
            self._budget.check_bytes(f"{self._what}: {name}", kind.dtype.itemsize)
            return _plain(group.attrs[name])

    def texts(self, array: Any, name: str) -> list[str]:
        """Read the texts of an array [N] or [].  Raises: ValueError: it has other values."""
        with explained(f"{self._what}: {name}: cannot be read", self._what):
            if self._h5py.check_string_dtype(array.dtype) is None or len(array.shape or ()) > 1:
                raise ValueError(f"{self._what}: {name} is {array.shape} {array.dtype}, expected texts [N]")
            rows = [(row,) for row in range(len(array))] if array.shape else [()]
            self._budget.check_count(f"{self._what}: {name}", len(rows), "names")
            self._budget.check_bytes(f"{self._what}: {name}", len(rows) * array.dtype.itemsize)
            found = []
            for row in rows:  # one by one: many rows may share the same bytes of the file
                self._budget.check_time()
                found.append(str(_plain(array[row])))
            return found

    def _member(self, group: Any, key: str, name: str) -> Any:
        link = group.get(key, getlink=True)
        if link is None:
            raise ValueError(f"{self._what}: {name} is missing; fetch the data set anew")
        if not isinstance(link, self._h5py.HardLink):
            raise ValueError(
                f"{self._what}: {name} is a link to elsewhere, which is not followed; copy its target into the file"
            )
        return group[key]

    def _walk(self, group: Any, prefix: str, leave: str, groups: set[int], depth: int) -> Iterator[tuple[str, Any]]:
        for key in group:
            if isinstance(key, bytes):
                raise ValueError(f"{self._what}: {prefix}{key!r} is no UTF-8, expected a UTF-8 name; rename it")
            name = prefix + key
            if len(name) > MAX_NAME_CHARACTERS:
                raise ValueError(
                    f"{self._what}: {name[:64]}... has {len(name):,} characters, expected at most "
                    f"{MAX_NAME_CHARACTERS:,}; rename it"
                )
            if name == leave:
                continue
            self._found += 1
            self._budget.check_count(f"{self._what}: names", self._found, "names")
            self._budget.check_time()
            found = self._member(group, key, name)
            if isinstance(found, self._h5py.Group):
                if depth >= MAX_DEPTH:
                    raise ValueError(
                        f"{self._what}: {name} is nested deeper than {MAX_DEPTH} groups; write its arrays further up"
                    )
                if (address := self._address(found)) in groups:  # else a few names make any number of paths
                    raise ValueError(
                        f"{self._what}: {name} is a second name of a group, expected one; nested in itself?"
                    )
                groups.add(address)
                yield from self._walk(found, f"{name}/", leave, groups, depth + 1)
            elif isinstance(found, self._h5py.Dataset):
                self._check(found, name)
                yield name, found

    def _check(self, array: Any, name: str) -> None:
        what = f"{self._what}: {name}"
        plist = array.id.get_create_plist()
        if array.is_virtual or plist.get_external_count():
            raise ValueError(f"{what} is kept in other files, which are not read; copy it into this one")
        codes = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
        if not self._budget.trust and (len(codes) != len(set(codes)) or not set(codes) <= FILTERS.keys()):
            raise ValueError(
                f"{what} has the filters {[FILTERS.get(code, code) for code in codes]}, expected each of "
                f"{', '.join(FILTERS.values())} once at most; {REMEDY}"
            )
        itemsize = array.id.get_type().get_size()
        declared = math.prod(array.shape or ()) * itemsize
        there = min(array.id.get_storage_size(), self._input.nbytes)
        if not self._budget.trust and declared > FREE_BYTES + MAX_RATIO * there:
            raise ValueError(
                f"{what} declares {declared:,} bytes, and holds {there:,}; not read. Is the file complete? {REMEDY}"
            )
        self._declared += declared
        self._budget.check_total_bytes(what, self._declared)
        if array.chunks is not None:  # reading any value decodes the whole chunk
            nbytes = math.prod(array.chunks) * itemsize
            self._budget.check_bytes(f"{what}: chunks of {array.chunks}", nbytes)
            if GZIP in codes and GZIP_RATIO * there > self._budget.array_bytes:
                self._check_chunks(array, what, nbytes, codes.index(GZIP))

    def _check_chunks(self, array: Any, what: str, nbytes: int, place: int) -> None:
        """Refuse chunks that gzip inflates beyond their declared size: HDF5 allocates as much as they need."""
        for number in range(array.id.get_num_chunks()):
            chunk = array.id.get_chunk_info(number)
            if GZIP_RATIO * chunk.size <= self._budget.array_bytes or chunk.filter_mask >> place & 1:
                continue
            _, packed = array.id.read_direct_chunk(chunk.chunk_offset)
            inflate, made = zlib.decompressobj(), 0
            while not inflate.eof and made <= nbytes and packed:
                self._budget.check_time()
                made += len(inflate.decompress(packed, PART_BYTES))
                packed = inflate.unconsumed_tail
            if made > nbytes:
                raise ValueError(
                    f"{what}: a chunk makes more than the {nbytes:,} bytes that it declares, expected that many; write "
                    "the data set anew"
                )

    def read(self, array: Any, name: str, rows: slice | tuple[()] = ()) -> npt.NDArray[Any]:
        """Read rows of an array, or all of it, in the machine's byte order.  Raises: ValueError."""
        which = f"rows {rows.start} to {rows.stop}" if isinstance(rows, slice) else "values"
        with explained(f"{self._what}: {name}: {which} cannot be read", self._what):
            found = np.asarray(array[rows])
            return found.astype(found.dtype.newbyteorder("="), copy=False)

    def rows_of_any_length(self, array: Any, name: str, begin: int, end: int) -> npt.NDArray[np.object_]:
        """Read rows that are texts, or arrays of any length; many may share the same bytes of the file.

        Raises: ValueError.
        """
        found, nbytes = np.empty(end - begin, object), 0
        for at in range(begin, end, ROWS_AT_A_TIME):
            self._budget.check_time()
            part = self.read(array, name, slice(at, min(at + ROWS_AT_A_TIME, end)))
            nbytes += sum(one.nbytes if isinstance(one, np.ndarray) else len(one) for one in part)
            self._budget.check_bytes(f"{self._what}: {name}: rows {begin:,} to {end - 1:,}", nbytes)
            found[at - begin : at - begin + len(part)] = part
        return found

    def close(self) -> None:
        """Close the file."""
        self.root.close()
        self._input.close()


def _plain(value: Any) -> str | int | float:
    """Convert a value of HDF5 to a text or number of Python."""
    value = value.item() if hasattr(value, "item") else value
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class Hdf5Output(io.RawIOBase):
    """File that never fails HDF5, since HDF5 ends the process (SIGSEGV) if it cannot write its cache in ``close``.

    Attributes:
        error: the first failure, as of a full disk. Later writes are kept in memory.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._at, self._kept = 0, dict[int, bytes]()  # bytes that could not be written, by offset
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
        """Sync the file: some file systems report a full disk only then.  Raises: OSError."""
        os.fsync(self._file.fileno())

    def check(self) -> None:
        """Raise the first failure, if any."""
        if self.error is not None:
            raise self.error


class Hdf5Writer:
    """Writer of an HDF5 file: ``write`` one array after the other, in parts of rows."""

    def __init__(self, path: Path) -> None:
        h5py = needed("h5py", "data")
        self._uninterrupted = InterruptLock()  # HDF5 would take an interrupt in Hdf5Output for a failure
        with self._uninterrupted:
            self._output = Hdf5Output(path)
            self._file: Any = h5py.File(self._output, "w")

    def write(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], parts: Any) -> None:
        """Write an array [N, ...] of ``shape`` from an iterable of its rows, in order.

        Args:
            dtype: of objects for rows of any length, with ``str``, or the dtype of numbers, in its metadata ``vlen``.
        """
        with self._uninterrupted:
            array = self._file.create_dataset(name, shape, dtype, chunks=True, compression="gzip", compression_opts=1)
        at, h5py = 0, needed("h5py", "data")
        kind = h5py.h5t.py_create(dtype)
        try:
            for part in parts:
                with self._uninterrupted:
                    if dtype.kind == "O":  # of rows of equal length h5py would make an array of numbers
                        place = array.id.get_space()
                        place.select_hyperslab((at,), (len(part),))
                        array.id.write(h5py.h5s.create_simple((len(part),)), place, part, kind)
                    else:
                        array[at : at + len(part)] = part
                at += len(part)
                self._output.check()
        finally:
            with self._uninterrupted:
                del array  # HDF5 writes its cache of the array

    def close(self) -> None:
        """Complete the file.  Raises: OSError: a write failed."""
        with self._uninterrupted:
            self._file.close()
            self._output.close()
        self._output.check()
