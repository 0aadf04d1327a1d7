"""Dictionaries shared by encoded columns: stored once, referred to by a hash of their content."""

from __future__ import annotations

import hashlib

import numpy as np

from sharpwave.arrays import Bytes
from sharpwave.codecs.codec_protocol import Decoder
from sharpwave.codecs.codec_registry import by_number
from sharpwave.native import core
from sharpwave.native.untouched import zeros

PLACES = 256
"""Places of one field's dictionaries; place 0 stands for "none"."""
KEY_BYTES = 8


def key_of(data: bytes) -> int:
    """Return a dictionary's key in segments: 8 bytes of its BLAKE2b; 0 for the empty one."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=KEY_BYTES).digest(), "little") if data else 0


class DictionaryTable:
    """Reference-counted dictionaries of one field; the last segment's release frees a dictionary.

    Attributes:
        references: uint8 [places, row_bytes]; dictionaries as long as a row, by place, where the core reads them.
            Place 0 is all zeros. Pages of unused places are never touched.
        uses: references to each place's dictionary, and its key. Only ``drop`` releases the last reference.
    """

    def __init__(self, row_bytes: int) -> None:
        self.references: Bytes = zeros((PLACES, row_bytes), np.uint8)
        self._data: list[bytes] = [b""] * PLACES
        self._data_bytes = 0  # counted, as each append asks for them
        self.uses = core.DictionaryUses(PLACES)
        self._place: dict[int, int] = {0: 0}
        self._decoders: dict[tuple[int, int], Decoder] = {}  # by codec and place

    @property
    def nbytes(self) -> int:
        """Bytes of live dictionaries, with the kernels' copies and the decoders."""
        decoders = sum(by_number(codec).decoder_bytes for codec, _ in self._decoders)
        return self._data_bytes + int(self.references.shape[1]) * len(self._place) + decoders

    def add(self, data: bytes) -> int | None:
        """Take a reference to the dictionary ``data``; return its place, or ``None`` if all are taken."""
        key = key_of(data)
        place = self._place.get(key)
        if place is None:
            place = self.uses.first_free()
            if place is None:
                return None
            self._put(place, key, data)
        self.uses.use(place)
        return place

    def put(self, place: int, data: bytes) -> None:
        """Hold ``data`` at a free place of the caller's choice, for good: a copy of another table's."""
        self._put(place, key_of(data), data)
        self.uses.use(place)

    def _put(self, place: int, key: int, data: bytes) -> None:
        """Hold ``data`` at a place, without a reference."""
        self.uses.put(place, key)
        self._place[key] = place
        self._data[place] = data
        self._data_bytes += len(data)
        if len(data) == self.references.shape[1]:
            self.references[place] = np.frombuffer(data, np.uint8)

    def drop(self, place: int) -> None:
        """Release a reference; the last one frees the place."""
        if self.uses.drop(place):
            del self._place[self.uses.key(place)]
            self._data_bytes -= len(self._data[place])
            self._data[place] = b""
            for codec in [codec for codec, at in list(self._decoders) if at == place]:  # others may be added by a batch
                del self._decoders[codec, place]

    def data(self, place: int) -> bytes:
        """Return the content of the dictionary at a place."""
        return self._data[place]

    def decoder(self, codec: int, place: int, line_bytes: int) -> Decoder:
        """Return a codec's decoder with the dictionary at a place, kept while the dictionary lives.

        Raises:
            DamagedError: the codec cannot use the dictionary.
        """
        if (codec, place) not in self._decoders:
            size = self.references.shape[1]
            self._decoders[codec, place] = by_number(codec).decoder(self._data[place], size, line_bytes)
        return self._decoders[codec, place]
