"""Sealing of segments whose columns all stay raw, many lanes at once: a copy and a checksum, in one kernel.

The bytes are those that ``format.segment.pack`` makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.raw import RAW
from sharpwave.format.features import features_of
from sharpwave.format.segment import ALIGNMENT, CHECKSUM, COLUMN, HEADER, MAGIC, MAX_NUMBER, VERSION
from sharpwave.log.admission import Admission
from sharpwave.log.column_encoder import ColumnEncoder
from sharpwave.log.open_segments import Lanes
from sharpwave.log.row_kernels import ENDED, WHOLE, as_bytes, write_rows
from sharpwave.log.sealed_segments import Sealed
from sharpwave.log.segment_space import SegmentSpace
from sharpwave.native.crc32 import TABLE, crc32
from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import copy, store_word
from sharpwave.sampling.ordered import Fifo
from sharpwave.sampling.retention import Retention
from sharpwave.spec import START

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

MAGIC_WORD = int.from_bytes(MAGIC, "little") | VERSION << 32
HEADER_BYTES, COLUMN_BYTES, CHECKSUM_BYTES = HEADER.size, COLUMN.size, CHECKSUM.size


@njit(nogil=True, cache=True)
def _counts(framed: Bytes, c: int, rows: int, frames: int) -> int:
    return frames if c > 1 and framed[c - 2] else rows


@njit(nogil=True, cache=True)
def measure(
    memory: Bytes,
    offset: Ints,
    rows: Int32s,
    frames: Int32s,
    slots: Int32s,
    framed: Bytes,
    sizes: Ints,
    going_on: Bytes,
    nbytes: Ints,
) -> None:
    """Find of each of ``slots`` [n] whether its episode goes on, and the bytes of its sealed segment, with the frame of
    the next step if it does.

    Args:
        framed: uint8 [fields], whether a column has a row a frame. ``sizes``: int64 [columns], bytes of a row.
    """
    for i in range(slots.size):
        slot = slots[i]
        going_on[i] = memory[offset[0, slot] + rows[slot] - 1] & ENDED == 0
        total = HEADER_BYTES + COLUMN_BYTES * sizes.size
        for c in range(sizes.size):
            total += -total % ALIGNMENT
            total += sizes[c] * _counts(framed, c, rows[slot], frames[slot] + going_on[i])
        nbytes[i] = total + CHECKSUM_BYTES


@njit(nogil=True, cache=True)
def _pack(
    memory: Bytes,
    offset: Ints,
    slot: int,
    base: int,
    nbytes: int,
    framed: Bytes,
    sizes: Ints,
    about: Ints,
    steps: int,
    frames: int,
    context: int,
) -> None:
    """Write a segment at ``base``, from the columns at ``offset``, which becomes that of the sealed ones.

    Args:
        about: int64 [5]: schema, lane, first step, features and episode step.
    """
    columns = sizes.size
    store_word(memory, base, np.uint64(MAGIC_WORD | columns << 48))
    store_word(memory, base + 8, np.uint64(about[0]))
    store_word(memory, base + 16, np.uint64(about[1]))
    store_word(memory, base + 24, np.uint64(about[2]))
    store_word(memory, base + 32, np.uint64(steps | frames << 32))
    store_word(memory, base + 40, np.uint64(context))
    store_word(memory, base + 48, np.uint64(nbytes))
    store_word(memory, base + 56, np.uint64(about[3]))
    store_word(memory, base + 64, np.uint64(about[4]))
    at = HEADER_BYTES + COLUMN_BYTES * columns
    for c in range(columns):
        while at % ALIGNMENT:
            memory[base + at] = 0
            at += 1
        count = _counts(framed, c, steps, frames)
        size = count * sizes[c]
        entry = base + HEADER_BYTES + COLUMN_BYTES * c
        store_word(memory, entry, np.uint64(RAW | count << 32))
        store_word(memory, entry + 8, np.uint64(at))
        store_word(memory, entry + 16, np.uint64(size))
        store_word(memory, entry + 24, np.uint64(0))
        copy(memory, base + at, memory, offset[c, slot], size)
        offset[c, slot] = base + at
        at += size
    checksum = crc32(memory, base, base + at, TABLE)
    for k in range(CHECKSUM_BYTES):
        memory[base + at + k] = (checksum >> np.uint64(8 * k)) & np.uint64(0xFF)


@njit(nogil=True, cache=True)
def seal_raw(
    memory: Bytes,
    offset: Ints,
    codec: Bytes,
    dictionary: Int32s,
    by_slot_32: tuple[Int32s, Int32s, Int32s, Int32s, Int32s, Int32s, Int32s],
    by_slot_64: tuple[Ints, Ints, Ints, Ints, Ints],
    by_slot_8: tuple[Bytes, Bytes, Bytes],
    slots: Int32s,
    steps: Ints,
    shares: Int32s,
    successor_known: Bytes,
    lanes: Ints,
    following: Ints,
    bases: Ints,
    nbytes: Ints,
    going_on: Bytes,
    framed: Bytes,
    sizes: Ints,
    max_context: int,
    first_lane: int,
    schema: int,
    features: int,
) -> None:
    """Seal the open segments of ``lanes`` [n] at ``bases``, and open their next ones in the slots ``following``.

    The frame of the next step is behind the last of those whose episode goes on, and not counted yet.

    Cost: 3 us a segment of 12 KB.
    """
    rows, frames, context, lane_of, later, previous, region = by_slot_32
    base_of, nbytes_of, region_offset, first_step, episode_step = by_slot_64
    sealed, begins, resident = by_slot_8
    about = np.empty(5, np.int64)
    for i in range(lanes.size):
        lane, new = lanes[i], following[i]
        slot = int(slots[lane])
        count, held = int(rows[slot]), int(frames[slot])
        flags = offset[0, slot]
        start = -1  # row with which the episode under way began
        for r in range(count - 1, -1, -1):
            if memory[flags + r] & START:
                start = r
                break
        first = 0  # its first frame
        if start >= 0:
            first = int(context[slot]) + start
            for r in range(start):
                first += 1 if memory[flags + r] & ENDED else 0
        about[0], about[1], about[2], about[3], about[4] = (
            schema, first_lane + lane, first_step[slot], features, episode_step[slot]
        )  # fmt: skip
        keep = min(max_context, held - first) if going_on[i] else 0
        for c in range(sizes.size):
            offset[c, new], codec[c, new], dictionary[c, new] = offset[c, slot], RAW, 0
            codec[c, slot], dictionary[c, slot] = RAW, 0
        frames[slot] += going_on[i]
        _pack(
            memory, offset, slot, bases[i], nbytes[i], framed, sizes, about, count, int(frames[slot]),
            int(context[slot]),
        )  # fmt: skip
        base_of[slot], nbytes_of[slot], region[slot], region_offset[slot] = bases[i], nbytes[i], -1, 0
        sealed[slot] = 1
        if going_on[i]:  # the newest frames, and the next step's, go to the beginning
            for c in range(2, sizes.size):
                if framed[c - 2] and held > keep:
                    size = sizes[c]
                    for k in range(keep + 1):
                        copy(memory, offset[c, new] + k * size, memory, offset[c, new] + (held - keep + k) * size, size)
        lane_of[new], first_step[new], resident[new] = lane, steps[lane], 1
        begins[new] = not going_on[i]
        episode_step[new] = 0
        if going_on[i]:
            episode_step[new] = count - start if start >= 0 else episode_step[slot] + count
        context[new] = frames[new] = keep
        successor_known[lane] = going_on[i]
        later[slot], previous[new] = new, slot
        slots[lane], shares[lane] = new, WHOLE


class RawSealing:
    """Sealer of open segments, many at once, in a store without a disk that evicts the oldest.

    Args:
        encoders: by column.
    """

    def __init__(
        self,
        space: SegmentSpace,
        opened: Lanes,
        sealed: Sealed,
        encoders: Mapping[int, ColumnEncoder],
        admission: Admission,
        retention: Retention,
    ) -> None:
        self._space, self._opened, self._sealed = space, opened, sealed
        self._encoders = {c: one for c, one in encoders.items() if one.candidates}  # the others keep all raw
        self._admission, self._retention = admission, retention
        spec = space.layout.spec
        self.serves = isinstance(retention, Fifo) and space.segment_cache is None and not spec.sparse_names
        self._framed = np.array([name in spec.obs_names for name in spec.fields], np.uint8)
        self._schema = int(np.uint64(spec.schema_hash).astype(np.int64))
        self._features = features_of(spec)

    def seal(self, positions: Sequence[int], lanes: Ints, frames: Mapping[str, npt.NDArray[Any]]) -> list[int]:
        """Seal the open segments of the lanes at those ``positions`` that stay raw, and open their next ones.

        Args:
            lanes: int64 [n]. ``frames``: observations of their next steps by field [n, *shape].

        Returns the positions that are left.  Raises: MemoryError; some may be sealed.
        """
        opened, encoders = self._opened, self._encoders
        if not self.serves or opened.annotations:
            return list(positions)
        raw: list[int] = []
        left: list[int] = []
        for i in positions:
            lane = int(lanes[i])
            slot = opened.slots.item(lane)
            rows = self._space.index.rows.item(slot)
            stays = rows > 0 and opened.steps.item(lane) <= MAX_NUMBER
            for c, encoder in encoders.items():
                stays = stays and encoder.stays_raw(lane, rows, partial(opened.columns.so_far, slot, c))
            (raw if stays else left).append(i)
        while raw:
            done = self._seal_some(np.array(raw), lanes, frames)
            if not done:
                return raw + left  # memory is short: one by one, each evicting for itself
            for i in raw[:done]:
                for encoder in encoders.values():
                    encoder.count(int(lanes[i]))
            raw = raw[done:]
        return left

    def _seal_some(self, positions: Ints, lanes: Ints, frames: Mapping[str, npt.NDArray[Any]]) -> int:
        """Seal as many as there is room for in one chunk; return how many."""
        opened, space, index, admission = self._opened, self._space, self._space.index, self._admission
        layout, arena = space.layout, space.arena
        lanes = lanes[positions]
        slots = opened.slots[lanes]
        going_on, nbytes = np.empty(len(lanes), np.uint8), np.empty(len(lanes), np.int64)
        measure(
            arena.memory, index.offset, index.rows, index.frames, slots, self._framed, layout.sizes, going_on, nbytes
        )
        admission.fit_memory()
        bases = arena.allocate_some(nbytes)
        following: list[int] = []
        added: list[int] = []
        try:
            following.extend(index.take_some(len(bases)))
            following.extend(admission.take_slot() for _ in range(len(bases) - len(following)))
            done = len(following)
            if not done:
                return 0
            lanes, slots, going_on = lanes[:done], slots[:done], going_on[:done]
            coming = {c: as_bytes(frames[layout.names[c]][positions[:done]], done) for c in layout.obs_columns}
            new, total = np.array(following, np.int64), sum(nbytes[:done].tolist())
            for slot in slots.tolist():
                self._retention.add(slot, index.segment_id(slot))
                added.append(slot)
        except BaseException:
            for slot in reversed(added):
                self._retention.discard(slot)
            for slot in following:
                index.give_back(slot)
            for base, size in zip(bases.tolist(), nbytes.tolist(), strict=False):
                arena.free(base, size)
            raise
        # Nothing below fails.
        for c, data in coming.items():
            write_rows(arena.memory, index.offset[c], index.frames, slots, data)
        seal_raw(
            arena.memory, index.offset, index.codec, index.dictionary,
            (index.rows, index.frames, index.context, index.lane, index.next, index.previous, index.region),
            (index.base, index.nbytes, index.region_offset, index.first_step, index.episode_step),
            (index.sealed, index.begins, index.resident), opened.slots, opened.steps, opened.shares,
            opened.successor_known, lanes, new, bases, nbytes, going_on, self._framed, layout.sizes,
            layout.spec.context, opened.first_lane, self._schema, self._features,
        )  # fmt: skip
        opened.any_known = True
        opened.forget_ends(lanes)
        self._sealed.nbytes += total
        return done
