"""Protocol of codecs: a codec packs one field's rows into a payload, and unpacks any single row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sharpwave.arrays import Bytes, Ints
from sharpwave.errors import DamagedError
from sharpwave.native import core as native


@dataclass(frozen=True, slots=True)
class Packed:
    """Packed column with everything needed to decode it.

    Attributes:
        payload: bytes from ``Codec.encode``.
        count, size: number of rows, and bytes of each.
        dictionary: dictionary that the rows were encoded with.
        line_bytes: bytes from a pixel to the one below (``Field.line_bytes``); 0: no pixel is below another.
    """

    payload: bytes | memoryview | Bytes
    count: int
    size: int
    dictionary: bytes = b""
    line_bytes: int = 0


@dataclass(frozen=True)
class Competition:
    """Conditions for ``codec="auto"`` to take a codec.

    Attributes:
        max_share: largest payload, as a share of the rows' bytes.
        min_saved_bytes: bytes to save per row.
        preference: allowed bytes, as a multiple of the bytes of a codec whose preference is 1.
        tried_above: the codec is not tried if another leaves at most this share of the rows' bytes: a trial takes as
            long as encoding a segment.
        images: the codec is only for rows in which a pixel is below another (``Packed.line_bytes``).
    """

    max_share: float
    min_saved_bytes: int = 0
    preference: float = 1.0
    tried_above: float = 0.0
    images: bool = False


class Codec(ABC):
    """Way to pack a column: rows of bytes in, one payload out, every row decodable on its own.

    A codec is stateless: state between calls is in its encoders and decoders. To add one, write a subclass and pass an
    instance to ``sharpwave.codecs.codec_registry.register``; the conformance suite is ``sharpwave.testing.codec``.

    Attributes:
        name: as in ``Field(codec=)`` and in ``store.json``.
        number: as in a segment's column table: 0 to 127 are reserved for Sharpwave, 128 to 255 are for others.
        competition: conditions on which ``codec="auto"`` takes it; ``None``: only by name.
        decoder_bytes: memory of a decoder beside its dictionary.
        slow: whether encoding takes 2 us a row and more, mostly without the interpreter's lock: then it runs behind the
            caller if possible.
    """

    name: ClassVar[str]
    number: ClassVar[int]
    competition: ClassVar[Competition | None] = None
    decoder_bytes: ClassVar[int] = 0
    slow: ClassVar[bool] = False

    def max_dictionary_bytes(self, size: int) -> int:
        """Return the size of the largest dictionary for rows of ``size`` bytes; 0: the codec takes none."""
        return 0

    def train(self, rows: Bytes) -> bytes:
        """Return a dictionary for rows like ``rows`` uint8 [n, size]; ``b""``: none, or too few rows."""
        return b""

    @abstractmethod
    def encode(self, rows: Bytes, dictionary: bytes = b"", line_bytes: int = 0) -> bytes | None:
        """Pack ``rows`` uint8 [n, size]; ``None`` where the payload would not be smaller than the rows."""

    @abstractmethod
    def check(self, column: Packed) -> None:
        """Check the properties that ``decode_rows``, and the core for its own codecs, assume without a check.

        Raises:
            DamagedError: naming the damage and the expected value.
        """

    @abstractmethod
    def decode_row(self, column: Packed, row: int) -> bytes | Bytes:
        """Decode one row of a column that passed ``check``.

        Raises:
            DamagedError: the payload does not hold the row; ``check`` need not find this.
        """

    def verify(self, column: Packed) -> None:
        """Check that every row can be decoded, in the memory of one row.  Raises: DamagedError."""
        self.check(column)
        for row in range(column.count):
            self.decode_row(column, row)

    def decode(self, column: Packed) -> Bytes:
        """Decode all rows: uint8 [count, size].

        Raises:
            DamagedError: the payload does not hold them. No input raises another error, or takes more memory than
                ``count * size`` bytes beside the payload and a row.
        """
        self.check(column)
        rows = np.empty((column.count, column.size), np.uint8)
        for row in range(column.count):
            rows[row] = as_bytes(self.decode_row(column, row))
        return rows

    def memorized_bytes(self, payload: bytes, count: int) -> int:
        """Return the bytes that a payload saves only because its dictionary was trained on every other one of its
        rows."""
        return 0

    def encoder(self, size: int, line_bytes: int, max_rows: int) -> Encoder:
        """Return an encoder of columns with at most ``max_rows`` rows of ``size`` bytes."""
        return Encoder(self, line_bytes)

    def decoder(self, dictionary: bytes, size: int, line_bytes: int) -> Decoder:
        """Return a decoder of single rows.  Raises: DamagedError: the codec cannot use the dictionary."""
        return Decoder(self, dictionary, size, line_bytes)


class Encoder:
    """Encoder of one field's columns. A codec that reuses memory between columns overrides it.

    Attributes:
        core: the core's encoder that makes the same payloads, if there is one.
    """

    core: native.RowEncoder | None = None

    def __init__(self, codec: Codec, line_bytes: int) -> None:
        self._codec, self._line_bytes = codec, line_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of memory kept between columns."""
        return 0 if self.core is None else self.core.nbytes

    def encode(self, rows: Bytes, dictionary: bytes) -> bytes | None:
        if self.core is not None:
            return self.core.encode(np.ascontiguousarray(rows), as_bytes(dictionary), self._line_bytes)
        return self._codec.encode(rows, dictionary, self._line_bytes)

    def keep_only(self, dictionaries: Collection[bytes]) -> None:
        """Free state that is kept for other dictionaries than these."""


class Decoder:
    """Decoder of single rows of columns in memory that share a dictionary."""

    def __init__(self, codec: Codec, dictionary: bytes, size: int, line_bytes: int) -> None:
        self._codec, self._dictionary, self._size, self._line_bytes = codec, dictionary, size, line_bytes

    def decode_rows(
        self, memory: Bytes, begins: Ints, ends: Ints, counts: Ints, rows: Ints, out: Bytes, items: Ints
    ) -> None:
        """Decode ``rows`` [n, W] of the columns in ``memory[begins[i] : ends[i]]`` into ``out[items]``.

        Args:
            counts: number of rows of each column.
            out: uint8 [B, W, size], of which ``items`` [n] are written.

        Raises:
            DamagedError: a payload does not hold its rows.
        """
        for i, (begin, end, count) in enumerate(zip(begins.tolist(), ends.tolist(), counts.tolist(), strict=True)):
            column = Packed(memory[begin:end], count, self._size, self._dictionary, self._line_bytes)
            for j, row in enumerate(rows[i].tolist()):
                out[items[i], j] = as_bytes(self._codec.decode_row(column, row))


def as_bytes(row: bytes | memoryview | Bytes) -> Bytes:
    """Return bytes as an array, without a copy."""
    return np.frombuffer(row, np.uint8)


def read_offsets(name: str, payload: bytes | memoryview | Bytes, entries: int) -> tuple[Ints, Bytes]:
    """Return a table of ``entries`` little-endian uint32 as int64, and the bytes after it, to which its offsets refer.

    Raises:
        DamagedError: the offsets do not rise from 0 to the payload's end; begins with the codec's ``name``.
    """
    data = np.frombuffer(payload, np.uint8)
    if data.size < 4 * entries:
        raise DamagedError(f"{name} column: {data.size} bytes cannot hold {entries} offsets")
    offsets = data[: 4 * entries].view("<u4").astype(np.int64)
    packed = data[4 * entries :]
    if offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != packed.size:
        raise DamagedError(f"{name} column: offsets do not rise from 0 to the payload's {packed.size} bytes")
    return offsets, packed
