"""A checkpoint's ``state.npz``: a store's state without its segments, as a tree of arrays and numbers.

The file has NumPy's format in an uncompressed zip, with checksums and without pickle; NumPy can read it. It is
untrusted input. So it does not go through the zip module, which trusts a file's own sizes: only the bytes that
``write_tree`` writes are accepted, and reading takes no more memory than the file has bytes.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sharpwave.errors import DamagedError, NewerVersionError
from sharpwave.native import descriptors
from sharpwave.native.descriptors import max_read_bytes
from sharpwave.native.directory import Directory, open_file
from sharpwave.native.file_operations import Files

Arrays = dict[str, np.ndarray[Any, Any]]

STATE = "state.npz"
"""File name in a checkpoint's folder."""
VERSION = 2
TREE = "tree"
MAX_ARRAYS, TREE_BYTES = 1 << 16, 16 << 20
"""Limits for a file's arrays and for its JSON, in bytes. Each view has a few arrays, each prefetched batch three."""

_COMMENT = "sharpwave tree {:d} crc32 {:08x}"
_COMMENTED = re.compile(rb"sharpwave tree ([1-9][0-9]{0,8}) crc32 ([0-9a-f]{8})")
_MEMBER = struct.Struct("<4sHHHHHIIIHH")  # magic, version, flags, method, time, date, CRC-32, sizes, name, extra; 30
_ZIP64 = struct.Struct("<HHQQ")  # id, bytes that follow, sizes
_HEADER = re.compile(rb"\{'descr': '([<|][biuf][1248])', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n")
_STRIDE = 1 << 20


class _Member(NamedTuple):
    """An array's file inside the zip."""

    offset: int
    nbytes: int
    checksum: int


def write_state(directory: Directory, name: str, tree: dict[str, Any], files: Files) -> None:
    """Write dicts and lists of arrays, numbers, strings and ``None`` to a new file, and sync.  Raises: OSError."""
    files.create(directory, name, lambda descriptor: write_tree(descriptor, tree))


def read_state(path: Path, directory: Directory | None = None) -> dict[str, Any]:
    """Read a file that ``write_state`` wrote, in no more memory than it has bytes (see ``read_tree``).

    Args:
        directory: folder to open the file from; by default ``path``'s.

    Raises:
        DamagedError: not a checkpoint's state, or damaged.  NewerVersionError.
        IrregularError: not a regular file.  OSError.
    """
    descriptor = open_file(path, directory)
    try:
        return read_tree(descriptor)
    except DamagedError as error:
        raise DamagedError(f"{path}: not a checkpoint's state, or damaged ({error})") from error
    except NewerVersionError as error:
        raise NewerVersionError(f"{path}: {error.what}") from error
    finally:
        os.close(descriptor)


def write_tree(descriptor: int, tree: dict[str, Any]) -> None:
    """Write dicts and lists of arrays, numbers, strings and ``None`` into an empty file.  Raises: OSError."""
    arrays: Arrays = {}
    arrays[TREE] = np.frombuffer(json.dumps(_plain(tree, arrays)).encode(), np.uint8)
    with os.fdopen(descriptor, "wb", closefd=False) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as members:
        members.comment = _COMMENT.format(VERSION, 0).encode()
        for name, array in arrays.items():
            with members.open(f"{name}.npy", "w", force_zip64=True) as member:  # np.save would copy the array
                header = np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(array))
                np.lib.format.write_array_header_1_0(member, header)
                member.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    end = os.fstat(descriptor).st_size - 8
    descriptors.pwrite(descriptor, b"%08x" % _checksum(descriptor, 0, end), end)


def read_tree(descriptor: int) -> dict[str, Any]:
    """Read a file that ``write_tree`` wrote, in no more memory than the file has bytes (without arrays: 400 MB).

    Raises:
        DamagedError: not a tree, or damaged.  NewerVersionError.  OSError.
    """
    size = os.fstat(descriptor).st_size
    if size > max_read_bytes(descriptor):
        raise DamagedError(f"{size:,} bytes, nearly all of them a hole in a sparse file")
    _check_end(descriptor, size)
    members = _members(descriptor, size)
    if TREE not in members or members[TREE].nbytes > TREE_BYTES:
        raise DamagedError(f"no array {TREE} of at most {TREE_BYTES:,} bytes")
    try:
        tree = json.loads(_array(descriptor, members.pop(TREE)).tobytes())
        tree = _rich(tree, descriptor, members)
    except (ValueError, RecursionError) as error:  # from JSON, or UnicodeDecodeError
        raise DamagedError(str(error) or "JSON nested too deep") from error
    if not isinstance(tree, dict):
        raise DamagedError(f"the tree is a {type(tree).__name__}, expected a dict")
    return tree


def _plain(value: Any, arrays: Arrays) -> Any:
    """Return a tree as JSON values, with names in place of arrays, which are added to ``arrays``."""
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, dict):
        return {"dict": {key: _plain(one, arrays) for key, one in value.items()}}
    if isinstance(value, list):
        return [_plain(one, arrays) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def _rich(value: Any, descriptor: int, members: dict[str, _Member]) -> Any:
    """Undo ``_plain``. Each array may be named only once, so that a file cannot demand more memory than it has."""
    if isinstance(value, list):
        return [_rich(one, descriptor, members) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items() if len(value) == 1 else (("", None),)
    if kind == "dict" and isinstance(content, dict):
        return {key: _rich(one, descriptor, members) for key, one in content.items()}
    if kind == "array" and isinstance(content, str) and content in members:
        return _array(descriptor, members.pop(content))
    raise DamagedError(f"{kind[:20]!r} in the tree, expected a dict, or an array of the file, each at most once")


def _check_end(descriptor: int, size: int) -> None:
    """Check the comment at the zip's end: the version and the file's checksum."""
    tail = descriptors.pread(descriptor, 64, max(0, size - 64))
    commented = _COMMENTED.search(tail)
    if commented is None or commented.end() != len(tail):
        raise DamagedError("the comment at the end of the file is missing or damaged")
    found, stored = _checksum(descriptor, 0, size - 8), int(commented[2], 16)
    if found != stored:
        raise DamagedError(f"checksum {found:08x}, expected {stored:08x}")
    if int(commented[1]) > VERSION:
        raise NewerVersionError(f"array tree version {int(commented[1])}, this release reads up to {VERSION}")


def _members(descriptor: int, size: int) -> dict[str, _Member]:
    """Return the arrays by name, in the order of the file."""
    members: dict[str, _Member] = {}
    at = 0
    while True:
        head = descriptors.pread(descriptor, _MEMBER.size + 255 + _ZIP64.size, at)
        if head[:4] == b"PK\1\2":  # the zip's directory, which repeats all this
            return members
        if len(head) < _MEMBER.size:
            raise DamagedError(f"byte {at:,}: expected the beginning of an array")
        magic, _, flags, method, _, _, checksum, packed, nbytes, name_bytes, extra_bytes = _MEMBER.unpack_from(head)
        if (magic, flags, method, extra_bytes) != (b"PK\3\4", 0, 0, _ZIP64.size) or name_bytes > 255:
            raise DamagedError(f"byte {at:,}: expected the beginning of an array")
        name = head[_MEMBER.size : _MEMBER.size + name_bytes]
        extra = head[_MEMBER.size + name_bytes : _MEMBER.size + name_bytes + extra_bytes]
        begin = at + _MEMBER.size + name_bytes + extra_bytes
        if len(extra) == _ZIP64.size and packed == nbytes == 0xFFFFFFFF:
            number, follow, nbytes, packed = _ZIP64.unpack(extra)
            if (number, follow) == (1, 16) and packed == nbytes <= size - begin:
                known = re.fullmatch(rb"([a-z0-9]{1,20})\.npy", name)
                if known is None or known[1].decode() in members or len(members) >= MAX_ARRAYS:
                    raise DamagedError(
                        f"byte {at:,}: an array with a bad or repeated name, or more than {MAX_ARRAYS:,} arrays"
                    )
                members[known[1].decode()] = _Member(begin, nbytes, checksum)
                at = begin + nbytes
                continue
        raise DamagedError(f"byte {at:,}: an array's sizes contradict the file's {size:,} bytes")


def _array(descriptor: int, member: _Member) -> np.ndarray[Any, Any]:
    """Read an array, and check that its shape and bytes agree."""
    begin, nbytes, checksum = member
    if _checksum(descriptor, begin, begin + nbytes) != checksum:
        raise DamagedError(f"byte {begin:,}: an array does not match its checksum")
    magic = descriptors.pread(descriptor, 10, begin)
    length = int.from_bytes(magic[8:], "little")
    header = _HEADER.fullmatch(descriptors.pread(descriptor, min(length, 512), begin + 10))
    if magic[:8] != b"\x93NUMPY\1\0" or length > 512 or header is None:
        raise DamagedError(f"byte {begin:,}: expected a header as NumPy writes it, for an array of plain numbers")
    dtype = np.dtype(header[1].decode())
    shape = tuple(int(n) for n in header[2].decode().replace(" ", "").split(",") if n)
    content = np.empty(nbytes - 10 - length, np.uint8)
    if len(shape) > 8 or max(shape, default=0) > 1 << 62 or math.prod(shape) * dtype.itemsize != content.size:
        raise DamagedError(f"byte {begin:,}: array of shape {shape} {dtype}, but {content.size:,} bytes")
    for at in range(0, content.size, _STRIDE):
        part = descriptors.pread(descriptor, min(_STRIDE, content.size - at), begin + 10 + length + at)
        content[at : at + len(part)] = np.frombuffer(part, np.uint8)
    return content.view(dtype).reshape(shape)


def _checksum(descriptor: int, begin: int, end: int) -> int:
    found = 0
    for at in range(begin, end, _STRIDE):
        found = zlib.crc32(descriptors.pread(descriptor, min(_STRIDE, end - at), at), found)
    return found
