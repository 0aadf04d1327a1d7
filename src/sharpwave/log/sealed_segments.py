"""Sealed segments: their bytes, their entries in the index, and the dictionaries of their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sharpwave.arrays import Bytes
from sharpwave.codecs.dictionaries import DictionaryTable
from sharpwave.codecs.raw import RAW
from sharpwave.disk.disk_tier import DiskTier
from sharpwave.disk.region_files import FULL, Needed
from sharpwave.errors import DamagedError
from sharpwave.format import segment
from sharpwave.format.segment import FIRST_FIELD, FLAGS, REWARD, SegmentColumn
from sharpwave.format.segment_header import PACKED_STEPS, Placed
from sharpwave.log.inventory import Inventory
from sharpwave.log.segment_space import SegmentSpace
from sharpwave.log.shared_values import Key, SharedValues
from sharpwave.native import core
from sharpwave.spec import ENDED, START, TRUNCATED


class Location(NamedTuple):
    """Location of a sealed segment: its offset in the arena, and with a disk its region and its offset in the file."""

    base: int
    region: int = -1
    offset: int = 0


class Sealed:
    """Sealed segments: their bytes, their entries in the index, their dictionaries. Does not choose which to keep.

    Args:
        disk: disk tier of the segments, if any.
        inventory: has the bytes of all sealed segments, on disk or in memory.

    Attributes:
        tables: dictionaries, by column. ``shared``: values of shared fields.
    """

    def __init__(
        self,
        space: SegmentSpace,
        disk: DiskTier | None,
        tables: Sequence[DictionaryTable],
        inventory: Inventory,
        shared: SharedValues,
    ) -> None:
        self._space, self._disk, self.tables = space, disk, tables
        self._inventory, self.shared = inventory, shared
        self._stride, self._spine_bytes = space.layout.stride, space.layout.spine_bytes
        self._undecodable: dict[int, str] = {}
        self._unwritten: set[int] = set()  # slots of segments whose records lack the end of their episode

    @property
    def damaged(self) -> dict[int, str]:
        """Error messages of segments that could not be read or decoded, by slot."""
        return self._undecodable if self._space.segment_cache is None else self._space.segment_cache.damaged

    def enter(
        self,
        slot: int,
        rows: int,
        location: Location,
        packed: bytes,
        placed: Sequence[int],
        columns: Sequence[SegmentColumn | Placed],
        places: Sequence[int],
    ) -> None:
        """Copy a segment's bytes to its ``location`` in the arena, and mark it sealed in the index.

        Memory is allocated first: until all of it is done, the segment is an open one.

        Args:
            placed: offset in ``packed`` of each of its columns. ``places``: of their dictionaries.
        """
        index, memory, base = self._space.index, self._space.arena.memory, location.base
        segment_cache = self._space.segment_cache
        memory[base : base + len(packed)] = np.frombuffer(packed, np.uint8)
        index.base[slot], index.nbytes[slot] = base, len(packed)
        index.region[slot], index.region_offset[slot] = location.region, location.offset
        if segment_cache is not None:
            segment_cache.place(slot, base)
        for c, (column, begin, of_dictionary) in enumerate(zip(columns, placed, places, strict=True)):
            index.codec[c, slot], index.dictionary[c, slot] = column.codec, of_dictionary
            index.offset[c, slot] = base + begin
        index.sealed[slot] = 1
        self.shared.settle(slot)
        if segment_cache is not None:
            segment_cache.apart[slot] = segment.has_column_checksums(packed)
            self._fill_spine(slot, memory, rows)
        self._inventory.sealed_bytes += len(packed)

    def adopt(self, slot: int, content: Bytes) -> bool:
        """Adopt a segment that the index describes already, with offsets from its beginning.

        With a disk it stays there. Without, it is copied into the arena; returns False if there is no room for it.
        """
        index, arena = self._space.index, self._space.arena
        segment_cache = self._space.segment_cache
        if segment_cache is not None:
            segment_cache.apart[slot] = segment.has_column_checksums(content)
            self._fill_spine(slot, content, int(index.rows[slot]))
        else:
            base = arena.allocate(len(content))
            if base is None:
                index.rows[slot] = 0
                return False
            arena.memory[base : base + len(content)] = content
            index.base[slot] = base
            index.offset[:, slot] += base
        index.sealed[slot] = 1
        self.shared.settle(slot)
        self._inventory.sealed_bytes += len(content)
        return True

    def _fill_spine(self, slot: int, source: Bytes, rows: int) -> None:
        """Decode a segment's flags and rewards from ``source``, where they are at ``offset``, to their permanent
        memory."""
        index, memory = self._space.index, self._space.arena.memory
        spine = slot * self._spine_bytes
        for c, to in ((FLAGS, spine + 4 * self._stride), (REWARD, spine)):
            begin, size = int(index.offset[c, slot]), segment.STEP_BYTES[c] * rows
            if index.codec[c, slot] == RAW:
                memory[to : to + size] = source[begin : begin + size]
            else:
                core.decode_packed(source[begin:], 0, memory[to : to + size].reshape(rows, -1))
            index.offset[c, slot] = to

    def free(self, slot: int) -> None:
        """Free the bytes of the segment in ``slot``, which is being evicted.  Raises: MemoryError; nothing changed."""
        space, index = self._space, self._space.index
        nbytes = int(index.nbytes[slot])
        if space.segment_cache is not None:
            space.segment_cache.forget(slot)
        self.drop_dictionaries(index.dictionary[:, slot].tolist())
        self._undecodable.pop(slot, None)
        self._unwritten.discard(slot)
        if self._disk is None:
            space.arena.free(int(index.base[slot]), nbytes)
        else:
            self._disk.release(int(index.region[slot]), nbytes)
        self._inventory.sealed_bytes -= nbytes

    def take_dictionaries(
        self, columns: Sequence[SegmentColumn | Placed], dictionary: Callable[[int], bytes]
    ) -> list[int] | None:
        """Take a reference to the dictionary of each column of a segment; return their places.

        ``None``: a table is full, and no reference is taken.
        """
        places: list[int] = []
        for table, column in zip(self.tables, columns, strict=True):
            place = table.add(dictionary(column.dictionary)) if column.dictionary else 0
            if place is None:
                self.drop_dictionaries(places)
                return None
            places.append(place)
        return places

    def dictionaries(self, places: Sequence[int]) -> dict[Key, bytes]:
        """Return the dictionaries at ``places``, by column, each by (column, key)."""
        columns = enumerate(zip(self.tables, places, strict=True))
        return {(c, table.uses.key(place)): table.data(place) for c, (table, place) in columns if place}

    def needed(self, slot: int, places: Sequence[int] | None = None) -> Needed:
        """Return the dictionaries and shared values to be written with a segment, by (column, key).

        Args:
            places: of the dictionaries, by column; ``None``: those in the index.
        """
        if places is None:
            places = self._space.index.dictionary[:, slot].tolist()
        return {**self.dictionaries(places), **self.shared.needed(slot)}

    def drop_dictionaries(self, places: Iterable[int]) -> None:
        """Release the dictionaries at ``places``, by column, that a segment referred to."""
        for table, place in zip(self.tables, places, strict=False):
            if place:
                table.drop(place)

    def adjoins(self, slot: int, following: int) -> bool:
        """Return whether the segment in ``following`` begins with the step after the last one of that in ``slot``."""
        index = self._space.index
        return bool(index.first_step[following] == index.first_step[slot] + index.rows[slot])

    def goes_on(self, slot: int, following: int) -> bool:
        """Return whether the segment in ``following``, sealed or open, continues the episode under way in ``slot``."""
        index = self._space.index
        if not self.adjoins(slot, following):
            return False
        if not index.rows[following]:
            return not index.begins[following]
        return not self._space.arena.memory[index.offset[FLAGS, following]] & START

    def truncate(self, slot: int) -> bool:
        """Truncate the episode after a segment's last step, with the successor's frame as the final one.

        Returns whether the episode was unfinished so far. The bytes on disk are unchanged; see ``rewrite_truncated``.
        """
        index, memory = self._space.index, self._space.arena.memory
        last = index.offset[FLAGS, slot] + index.rows[slot] - 1
        if memory[last] & ENDED:
            return False
        memory[last] |= TRUNCATED
        if self._space.segment_cache is None:  # the flags are part of the segment's bytes
            segment.seal_again(memory[index.base[slot] : index.base[slot] + index.nbytes[slot]])
        return True

    def rewrite_truncated(self, slots: Iterable[int], release: bool = False) -> OSError | None:
        """Write the segments in ``slots``, which ``truncate`` changed only in memory, to disk again.

        A process that ended in mid-episode leaves a last segment whose episode goes on; the lane's next segment, from a
        later process, begins an episode (START). The break is known from START alone, unless that next segment is
        evicted or dropped. So a refusing disk is no error, and ``rewrite_left`` tries again.

        Args:
            release: whether to delete the old record's region if nothing in it is held.

        Returns the error of a full disk, if it refused one.
        """
        full: OSError | None = None
        if self._disk is None or self._space.segment_cache is None:
            return full
        for slot in slots:
            self._unwritten.add(slot)
            try:
                self._space.segment_cache.arrive(np.array([slot]))  # end reads under way, which return the old record
                self._rewrite_truncated(self._disk, slot, release)
                self._unwritten.discard(slot)
            except MemoryError:
                pass
            except OSError as error:
                full = error if error.errno in FULL else full
        return full

    def rewrite_left(self) -> None:
        """Write the segments again that ``rewrite_truncated`` could not.  Raises: OSError: the disk is full still."""
        error = self.rewrite_truncated(sorted(self._unwritten), release=True) if self._unwritten else None
        if error is not None:
            raise error

    def _rewrite_truncated(self, disk: DiskTier, slot: int, release: bool) -> None:
        index, spec, segment_cache = self._space.index, self._space.layout.spec, self._space.segment_cache
        region, nbytes = int(index.region[slot]), int(index.nbytes[slot])
        found = disk.regions.read_record(region, int(index.region_offset[slot]), nbytes)
        if found is None:
            return  # damaged: leave it as it is
        header = segment.parse(found[1], spec)
        flags = segment.step_rows(found[1], header, FLAGS)
        flags[-1] |= TRUNCATED
        packs = bool(header.features & PACKED_STEPS)
        content, header = segment.with_steps(found[1], header, spec, packs, flags)
        needed = self.needed(slot)
        place = disk.append(index.segment_id(slot), content, index.latest_generation, needed, found[0].sequence)
        if segment_cache is not None:
            segment_cache.leave(slot)  # packed flags may have another size, which moves the columns behind them
            segment_cache.apart[slot] = segment.has_column_checksums(content)
        index.region[slot], index.region_offset[slot] = place
        index.nbytes[slot] = len(content)
        for c in range(FIRST_FIELD, len(header.placed)):
            index.offset[c, slot] = header.placed[c].offset
        self._inventory.sealed_bytes += len(content) - nbytes
        disk.release(region, nbytes) if release else disk.held.release(region, nbytes)

    def head(self, slot: int) -> Bytes:
        """Return a segment's first bytes, up to its fields' columns or further: from memory if they are there.

        Changes by ``truncate`` may be missing.  Raises: DamagedError: they cannot be read.
        """
        index, segment_cache = self._space.index, self._space.segment_cache
        if segment_cache is None or index.resident[slot]:
            return self._space.arena.memory[index.base[slot] : index.base[slot] + index.nbytes[slot]]
        try:
            content = self.content(slot, segment_cache.head_bytes(slot))
        except DamagedError:
            content = self.content(
                slot
            )  # as the cache does: a stranger's header may promise a checksum that is not there
        segment_cache.bytes_read += len(content)
        return content

    def content(self, slot: int, first: int | None = None) -> Bytes:
        """Return a segment's bytes: from memory, or with a disk from its file.

        Args:
            first: on disk only so many of the first, which end with a checksum of theirs.

        Raises: DamagedError: they cannot be read.
        """
        index, nbytes = self._space.index, int(self._space.index.nbytes[slot])
        if self._disk is None:
            return self._space.arena.memory[index.base[slot] : index.base[slot] + nbytes]
        content = np.empty(nbytes if first is None else first, np.uint8)
        problem = self._disk.regions.read_segment(int(index.region[slot]), int(index.region_offset[slot]), content.data)
        if problem is not None:
            raise DamagedError(f"segment {index.segment_id(slot)}: {problem}")
        return content

    def packed(self, slot: int) -> tuple[int, bytes, dict[tuple[int, int], bytes]]:
        """Return the id and bytes of a segment, and its dictionaries and shared values by (column, key).

        Raises: DamagedError.
        """
        index = self._space.index
        beside = self.dictionaries(index.dictionary[:, slot].tolist()) | self.shared.of(slot)
        return index.segment_id(slot), self.content(slot).tobytes(), beside
