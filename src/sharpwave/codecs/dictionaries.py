"""Dictionaries that encoded columns share: stored once, referred to by the hash of their content."""

from __future__ import annotations

import hashlib

import numpy as np
import zstandard

from sharpwave.codecs import registry as codecs

PLACES = 256
"""Dictionaries of one field that can live at a time; place 0 is "none"."""
KEY_BYTES = 8
DECOMPRESSOR_BYTES = 56 << 10
"""Of memory that a zstd decompressor takes beside its dictionary."""


def key_of(data: bytes) -> int:
    """The key by which segments refer to a dictionary: 8 bytes of BLAKE2b over its content; 0 for the empty one."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=KEY_BYTES).digest(), "little") if data else 0


class DictionaryTable:
    """The dictionaries of one field, counted by use and dropped when the last segment that refers to them goes.

    Attributes:
        references: uint8 [places, row_bytes]; delta's reference rows, by place, where the gather kernel reads them.
            Place 0 is all zeros. Pages of unused places are never touched.
    """

    def __init__(self, row_bytes: int) -> None:
        self.references = np.zeros((PLACES, row_bytes), np.uint8)
        self._data: list[bytes] = [b""] * PLACES
        self._uses = [0] * PLACES
        self._place: dict[int, int] = {0: 0}
        self._decompressors: dict[int, zstandard.ZstdDecompressor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that live dictionaries take, with the kernel's copies of references and with decompressors."""
        decompressors = DECOMPRESSOR_BYTES * len(self._decompressors)
        return sum(len(data) for data in self._data) + self.references.shape[1] * len(self._place) + decompressors

    def add(self, data: bytes) -> int | None:
        """Place of ``data``, counted as used once more; ``None`` if all places are taken."""
        key = key_of(data)
        place = self._place.get(key)
        if place is None:
            place = next((i for i in range(1, PLACES) if self._uses[i] == 0), None)
            if place is None:
                return None
            self._place[key] = place
            self._data[place] = data
            if len(data) == self.references.shape[1]:
                self.references[place] = np.frombuffer(data, np.uint8)
        self.use(place)
        return place

    def use(self, place: int) -> None:
        """Count one more user. Place 0 is not counted."""
        if place:
            self._uses[place] += 1

    def drop(self, place: int) -> None:
        """Count one user less; the last one's going frees the place."""
        if place == 0:
            return
        self._uses[place] -= 1
        if self._uses[place] == 0:
            del self._place[key_of(self._data[place])]
            self._data[place] = b""
            self._decompressors.pop(place, None)

    def data(self, place: int) -> bytes:
        """Content of the dictionary at ``place``."""
        return self._data[place]

    def decompressor(self, place: int) -> zstandard.ZstdDecompressor:
        """A decompressor with the dictionary at ``place``, kept while the dictionary lives."""
        if place not in self._decompressors:
            self._decompressors[place] = codecs.zstd_decompressor(self._data[place])
        return self._decompressors[place]
