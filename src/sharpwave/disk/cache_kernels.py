"""Lists of the segments in each chunk of the arena, in kernels: a batch of hundreds of segments takes microseconds.

Two kinds of lists, each a ring through its head: the segments of every chunk, and the chunks that have any, in the
order in which they began to be filled. ``links`` holds each slot's or chunk's neighbours; nothing is searched for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.format.segment import FIRST_FIELD
from sharpwave.memory.arena import ALIGNMENT
from sharpwave.native import memory_ops as words
from sharpwave.native.jit import njit
from sharpwave.native.memory_ops import fetch_add

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]

BEFORE, AFTER = 0, 1


class ChunkLists(NamedTuple):
    """Segments in each chunk of the arena.

    Attributes:
        members: links; heads are chunks, nodes are slots.
        order: links; the only head is 0, nodes are chunks with segments, in the order in which they began to be filled.
        held: int64 [chunks], bytes of segments in each.
    """

    members: Int32s
    order: Int32s
    held: Ints


def chunk_lists(chunks: int, slots: int) -> ChunkLists:
    """Return empty lists."""
    return ChunkLists(rings(chunks, slots), rings(1, chunks), np.zeros(chunks, np.int64))


def rings(heads: int, nodes: int) -> Int32s:
    """Return links of empty lists: node n is ``heads + n``. Nodes that are never used cost no memory."""
    links = np.zeros((2, heads + nodes), np.int32)
    links[:, :heads] = np.arange(heads)
    return links


@njit(nogil=True, cache=True, inner=True)
def _append(links: Int32s, head: int, node: int) -> None:
    last = links[BEFORE, head]
    links[AFTER, last] = links[BEFORE, head] = node
    links[BEFORE, node], links[AFTER, node] = last, head


@njit(nogil=True, cache=True, inner=True)
def _remove(links: Int32s, node: int) -> None:
    before, after = links[BEFORE, node], links[AFTER, node]
    links[AFTER, before], links[BEFORE, after] = after, before


@njit(nogil=True, cache=True, inner=True)
def space(nbytes: int) -> int:
    """Return the bytes that a segment takes in the arena."""
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@njit(nogil=True, cache=True)
def place(
    lists: ChunkLists, resident: Bytes, slots: Ints, base: Ints, nbytes: Ints, first: int, chunk_bytes: int
) -> None:
    """Enter the segments in ``slots`` [n] as lying in the arena at their ``base``.

    Args:
        base, nbytes: int64 of all slots, as ``resident``.
        first, chunk_bytes: where the arena's first chunk begins, and the size of each.
    """
    members, order, held = lists
    for slot in slots:
        chunk = (base[slot] - first) // chunk_bytes
        if members[AFTER, chunk] == chunk:
            _append(order, 0, 1 + chunk)
        _append(members, chunk, held.size + slot)
        held[chunk] += space(nbytes[slot])
        resident[slot] = 1


@njit(nogil=True, cache=True)
def uncache(lists: ChunkLists, resident: Bytes, chunk: int, slot: int, nbytes: Ints, base: Ints, offset: Ints) -> None:
    """Take the segment in ``slot`` out of ``chunk``, in which it lies; its offsets count from its beginning again."""
    members, order, held = lists
    _remove(members, held.size + slot)
    if members[AFTER, chunk] == chunk:
        _remove(order, 1 + chunk)
    held[chunk] -= space(nbytes[slot])
    resident[slot] = 0
    offset[FIRST_FIELD:, slot] -= base[slot]


@njit(nogil=True, cache=True)
def uncache_chunk(
    lists: ChunkLists,
    resident: Bytes,
    chunk: int,
    nbytes: Ints,
    base: Ints,
    offset: Ints,
    pins: Int32s,
    kept: Ints,
) -> int:
    """Remove all segments from a chunk; return how many of them are pinned, whose slots ``kept`` receives."""
    members, held = lists.members, lists.held
    count = 0
    while members[AFTER, chunk] != chunk:
        slot = members[AFTER, chunk] - held.size
        uncache(lists, resident, chunk, slot, nbytes, base, offset)
        if pins[slot]:
            kept[count] = slot
            count += 1
    return count


@njit(nogil=True, cache=True)
def count(lists: ChunkLists, chunk: int, pins: Int32s) -> tuple[int, int]:
    """Return the number of segments in a chunk, and of those pinned."""
    members, heads = lists.members, lists.held.size
    found = pinned = 0
    node = members[AFTER, chunk]
    while node != chunk:
        found += 1
        pinned += pins[node - heads] > 0
        node = members[AFTER, node]
    return found, pinned


@njit(nogil=True, cache=True)
def choose(lists: ChunkLists, live: Ints, pins: Int32s, current: int, candidates: int) -> int:
    """Return the chunk with the fewest pinned segments among the oldest that could be freed; -1 if there is none.

    A chunk that is being filled (``current``), or with room reserved for reads under way, is left alone.
    """
    order, held = lists.order, lists.held
    best = fewest = -1
    looked = 0
    node = order[AFTER, 0]
    while node != 0 and looked < candidates and fewest != 0:
        chunk = node - 1
        if chunk != current and held[chunk] == live[chunk]:
            found, pinned = count(lists, chunk, pins)
            if pinned < found:
                looked += 1
                if best < 0 or pinned < fewest:
                    best, fewest = chunk, pinned
        node = order[AFTER, node]
    return best


@njit(nogil=True, cache=True)
def missing(slots: Ints, resident: Bytes, state: Ints, mark: int, wanted: Ints, where: Ints) -> tuple[int, int]:
    """Find the distinct ones of ``slots`` that are not resident and have ``state`` 0, and their positions in ``slots``.

    Args:
        mark: any ``state`` other than 0; slots have it during this call.
        wanted, where: int64 [n] each, receive them.

    Returns:
        How many are wanted; how many of ``slots`` are resident.
    """
    found = here = 0
    for i in range(slots.size):
        slot = slots[i]
        if resident[slot]:
            here += 1
        elif state[slot] == 0:
            state[slot] = mark
            wanted[found], where[found] = slot, i
            found += 1
    for i in range(found):
        state[wanted[i]] = 0
    return found, here


@njit(nogil=True, cache=True)
def pin(pins: Int32s, slots: Ints, by: int) -> None:
    """Add ``by`` to the pins of slots; a segment evicted since it was pinned has none."""
    for slot in slots:
        pins[slot] = max(0, pins[slot] + by)


@njit(nogil=True, cache=True)
def rebase(offset: Ints, base: Ints, slots: Ints) -> None:
    """Make the column offsets of ``slots`` count from the arena's beginning, not from the segment's."""
    for slot in slots:
        offset[FIRST_FIELD:, slot] += base[slot]


@njit(nogil=True, cache=True)
def copy(source: Bytes, begins: Ints, target: Bytes, to: Ints, nbytes: Ints) -> None:
    """Copy ranges [n] from one array of bytes to another."""
    for i in range(nbytes.size):
        words.copy(target, to[i], source, begins[i], nbytes[i])


@njit(nogil=True, cache=True)
def pick(slots: Ints, state: Ints, wanted: int, into: Ints) -> int:
    """Collect the distinct ones of ``slots`` in the ``wanted`` state, which becomes 0; return how many."""
    found = 0
    for slot in slots:
        if state[slot] != 0 and fetch_add(state, slot, 0) == wanted:  # the bytes read are seen as well
            state[slot] = 0
            into[found] = slot
            found += 1
    return found
