"""Shared values: values of a field that many steps have, each stored once beside the segments. A column has their keys.

======= ======= ================================================================================================
offset  type    of a value's bytes
======= ======= ================================================================================================
0       uint8   how its content is stored: 0 as it is, 1 as numbers of the codec packed, 2 as a zstd frame
1       uint8   bytes of a packed number; 0 where none is packed
2       uint16  0
4       uint32  items; 1 where values have one length
8               the content as it is stored
======= ======= ================================================================================================
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import zstandard

from sharpwave.arrays import Bytes
from sharpwave.codecs.codec_protocol import Packed
from sharpwave.codecs.codec_registry import MIN_AUTO_BYTES
from sharpwave.codecs.packed import PackedNumbers
from sharpwave.codecs.ragged_rows import AS_THEY_ARE, MIN_TEXT_BYTES, PACKED, ZSTD, Kind, check_text
from sharpwave.codecs.zstd import compressor, decompressor
from sharpwave.errors import DamagedError
from sharpwave.native import core

KEY_BYTES = 16
IS_SHARED = 1 << 8 * KEY_BYTES
"""Bit of the number of a shared value's key, which a column does not have: so no dictionary has such a number."""
HEAD = struct.Struct("<BBHI")
RECORD_BYTES = KEY_BYTES + 4
"""Bytes of a value's record beside its own: its key, and a checksum."""
MAX_SHARE = 7 / 8
"""Share of its content's bytes that a value may take packed, or else it is stored as it is, which is read faster."""


def digest_of(content: bytes | memoryview, kind: Kind) -> bytes:
    """Return the 16 bytes of a value's key: BLAKE2b over its kind and its content.  Cost: 3 us, and 1 us a KiB."""
    what = f"{kind.text or kind.dtype.name}{list(kind.inner)}".encode()
    digest = hashlib.blake2b(what, digest_size=KEY_BYTES)
    digest.update(content)
    return digest.digest()


def key_of(content: bytes | memoryview, kind: Kind) -> int:
    """Return the key of a value.  Cost: as ``digest_of``."""
    return number_of(digest_of(content, kind))


def number_of(key: bytes) -> int:
    """Return the number of a key's 16 bytes."""
    return IS_SHARED | int.from_bytes(key, "little")


def bytes_of(number: int) -> bytes:
    """Return the 16 bytes of a key."""
    return (number ^ IS_SHARED).to_bytes(KEY_BYTES, "little")


def text_of(number: int) -> str:
    """Return a key's bytes in hexadecimal, for error messages."""
    return bytes_of(number).hex()


def keys_of(rows: Bytes) -> list[int]:
    """Return the distinct keys in a column uint8 [n, 16]."""
    different = np.unique(rows.reshape(-1, KEY_BYTES).view("<u8"), axis=0)
    return [IS_SHARED | low | high << 64 for low, high in different.tolist()]


def pack(content: bytes, kind: Kind) -> bytes:
    """Return the bytes of a value."""
    array, items = np.frombuffer(content, np.uint8), len(content) // kind.item_bytes
    how, unit, stored = AS_THEY_ARE, 0, content
    most = int(MAX_SHARE * len(content))
    if kind.dtype.kind != "f" and kind.text is None and len(array):
        number = kind.item_bytes if kind.item_bytes < MIN_AUTO_BYTES else kind.dtype.itemsize
        packed = PackedNumbers().encode(array.reshape(-1, number))
        if packed is not None and len(packed) <= most:
            how, unit, stored = PACKED, number, packed
    if len(content) >= MIN_TEXT_BYTES:
        frame = compressor().compress(content)
        if len(frame) <= min(most, int(MAX_SHARE * len(stored))):
            how, unit, stored = ZSTD, 0, frame
    return HEAD.pack(how, unit, 0, items) + stored


def unpack(packed: bytes, kind: Kind) -> bytes:
    """Return a value's content from bytes of any origin.  Raises: DamagedError."""
    if len(packed) < HEAD.size:
        raise DamagedError(f"shared value: {len(packed)} bytes, expected a head of {HEAD.size}")
    how, unit, zero, items = HEAD.unpack_from(packed)
    nbytes, stored = items * kind.item_bytes, len(packed) - HEAD.size
    if zero or items > kind.most_items or (unit != 0) != (how == PACKED):
        raise DamagedError(f"shared value: {items:,} items, expected at most {kind.most_items:,}, or a wrong head")
    if how == PACKED and unit in {kind.item_bytes, kind.dtype.itemsize} and unit < MIN_AUTO_BYTES and items:
        PackedNumbers().check(Packed(np.frombuffer(packed, np.uint8, offset=HEAD.size), nbytes // unit, unit))
    elif how != ZSTD and not (how == AS_THEY_ARE and stored == nbytes):
        raise DamagedError(f"shared value: {stored:,} bytes of kind {how}, expected a value of {nbytes:,}")
    found = content(packed, kind)
    if kind.text == "str":
        check_text(found, 0)
    return found


def content(packed: bytes, kind: Kind) -> bytes:
    """Return a value's content from bytes that were checked, but for a zstd frame.  Raises: DamagedError."""
    how, unit, _, items = HEAD.unpack_from(packed)
    nbytes = items * kind.item_bytes
    if how == AS_THEY_ARE:
        return packed[HEAD.size :]
    if how == PACKED:
        values = np.empty((nbytes // unit, unit), np.uint8)
        core.decode_packed(np.frombuffer(packed, np.uint8, offset=HEAD.size), 0, values)
        return values.tobytes()
    try:
        frame = packed[HEAD.size :]
        if zstandard.frame_content_size(frame) not in (-1, nbytes):  # the library would allocate so much
            raise DamagedError(f"shared value: a frame of another size, expected {nbytes:,} bytes")
        found: bytes = decompressor().decompress(frame, max_output_size=nbytes)
    except (zstandard.ZstdError, MemoryError) as error:
        raise DamagedError(f"shared value: {error}") from error
    if len(found) != nbytes:
        raise DamagedError(f"shared value: {len(found):,} bytes, expected {nbytes:,}")
    return found


def checked(packed: bytes, kind: Kind, key: int) -> bytes:
    """Return the bytes of a value of any origin if its content has the key.  Raises: DamagedError."""
    checked_content(packed, kind, key)
    return packed


def checked_content(packed: bytes, kind: Kind, key: int) -> bytes:
    """Return the content of a value of any origin if it has the key.  Raises: DamagedError."""
    content = unpack(packed, kind)
    found = key_of(content, kind)
    if found != key:
        raise DamagedError(f"shared value {text_of(key)}: its content has the key {text_of(found)}")
    return content
