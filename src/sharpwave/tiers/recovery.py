"""A store's folder -> a log that holds everything in it that is whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import segment
from ..codecs import RAW, DamagedError
from ..segment import FIRST_FIELD, FLAGS, REWARD, Column, Header
from ..spec import TERMINATED, TRUNCATED
from .disk import Disk
from .index import LEAF_BITS, LEAF_MASK
from .log import StepLog
from .regions import DICTIONARY, SEGMENT, Damage, Record, Regions

ENDED = TERMINATED | TRUNCATED
QUARANTINE = "quarantine"

Found = Sequence[tuple[int, Record]]


@dataclass
class Recovery:
    """What opening a store found.

    Attributes:
        segments, steps: that came back.
        cut_steps: flushed steps that were the last of an episode that went on; they cannot be learned from, because
            what came after them is not known. Their observation is the final one of the step before.
        damages: bytes that were set aside, each with its file, its offset and what was expected.
        differences: limits that are other than they were, and what that costs.
    """

    segments: int = 0
    steps: int = 0
    cut_steps: int = 0
    damages: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


def highest_slot(found: Found, stride: int) -> int:
    """The highest slot that a record's id names; -1 without any."""
    return max(((record.id & LEAF_MASK) // stride for _, record in found if record.kind != DICTIONARY), default=-1)


def adopt_all(log: StepLog, regions: Regions, found: Found, damages: Sequence[Damage], disk: Disk | None) -> Recovery:
    """Put every whole segment into the empty ``log``; with a ``disk`` they stay there until they are sampled.

    Every lane begins a new episode afterwards: where the last step known of it did not end one, that episode is
    truncated there, and the observation after that step is the final one. So it is at gaps that damage left.
    """
    adoption = Adoption(log, regions, found, disk)
    adoption.report.damages = [str(damage) for damage in damages]
    for number, record in newest(found, log.stride):
        if adoption.try_adopt(number, record):
            log.retention.add((record.id & LEAF_MASK) // log.stride)
    adoption.link()
    return adoption.report


def newest(found: Found, stride: int) -> list[tuple[int, Record]]:
    """Of every slot the record that counts, in the order of their writing."""
    best: dict[int, tuple[int, Record]] = {}
    for number, record in found:
        if record.kind == DICTIONARY:
            continue
        slot = (record.id & LEAF_MASK) // stride
        if slot not in best or _rank(best[slot][1]) < _rank(record):
            best[slot] = (number, record)
    return sorted(best.values(), key=lambda place: place[1].sequence)


def _rank(record: Record) -> tuple[int, bool, int]:
    """Of one slot's records the one with the latest generation counts; a sealed segment before its rows so far."""
    return record.id >> LEAF_BITS, record.kind == SEGMENT, record.sequence


def set_aside(disk: Disk, damages: Sequence[Damage]) -> None:
    """Delete regions that hold nothing any more; move those to ``quarantine`` of which nothing could be used."""
    folder = disk.folder / QUARANTINE
    damaged = {damage.path for damage in damages}
    for number in [number for number in disk.regions.regions if not disk.holds(number)]:
        if disk.regions.regions[number].path not in damaged:
            disk.regions.delete(number)
            continue
        region = disk.regions.regions.pop(number)
        os.close(region.descriptor)
    used = {region.path for region in disk.regions.regions.values()}
    for path in damaged - used:
        folder.mkdir(exist_ok=True)
        os.replace(path, folder / path.name)


class Adoption:
    """Takes segments in that lie in ``regions``, as the records ``found`` say.

    Args:
        disk: the log's, which has the regions; ``None``: the log keeps segments in memory.

    Attributes:
        full: a segment did not fit into memory.
    """

    def __init__(self, log: StepLog, regions: Regions, found: Found, disk: Disk | None) -> None:
        self.log, self.regions, self.disk = log, regions, disk
        self.report = Recovery()
        self.full = False
        self._dictionaries = {record.id: (number, record) for number, record in found if record.kind == DICTIONARY}
        generations = [region.generation for region in regions.regions.values()]
        generations += [record.id >> LEAF_BITS for _, record in found if record.kind != DICTIONARY]
        self._generation = max(generations, default=-1) + 1  # above all that were ever given out
        self._lanes: dict[int, list[int]] = {}

    def try_adopt(self, number: int, record: Record) -> bool:
        """Take a segment in. False: it is damaged, which is noted, or there is no room, or nothing in it."""
        try:
            return self._adopt(number, record)
        except (DamagedError, KeyError, OSError) as error:
            path = self.regions.regions[number].path
            self.report.damages.append(f"{path}: byte {record.offset:,}: segment {record.id}: {error}")
            return False

    def _adopt(self, number: int, record: Record) -> bool:
        log, index = self.log, self.log.index
        data: bytes | bytearray = self._content(number, record)
        header = segment.parse(memoryview(data), log.spec)
        if record.kind != SEGMENT:
            data = self._ended(header, data)
            if not data:
                return False
            header = segment.parse(memoryview(data), log.spec)
            number, offset = self.regions.append(SEGMENT, record.id, bytes(data), self._generation, {})
        else:
            offset = record.offset
        if header.steps > log.stride or header.frames > log.most_frames:
            raise DamagedError(f"{header.steps} steps, {header.frames} frames; expected at most {log.stride}")
        slot = (record.id & LEAF_MASK) // log.stride
        for c, column in enumerate(header.placed):
            shared = self._dictionary(column.dictionary)
            place = log.tables[c].add(shared) if shared else 0
            if place is None:
                raise DamagedError(f"column {c} needs a dictionary, and 255 others are in use")
            index.codec[c, slot], index.dictionary[c, slot], index.offset[c, slot] = column.codec, place, column.offset
        index.rows[slot], index.frames[slot], index.context[slot] = header.steps, header.frames, header.context
        index.lane[slot], index.first_step[slot] = header.lane, header.first_step
        index.generation[slot] = record.id >> LEAF_BITS
        index.nbytes[slot], index.region[slot], index.place[slot] = len(data), number, offset
        if not log.adopt(slot, np.frombuffer(data, np.uint8)):
            log.drop_dictionaries(index.dictionary[:, slot])
            self.full = True
            return False
        if self.disk is not None:
            self.disk.hold(number)
        self._lanes.setdefault(header.lane, []).append(slot)
        self.report.segments += 1
        self.report.steps += header.steps
        return True

    def link(self) -> None:
        """Chain the lanes' segments, open new ones behind them, and free every other slot."""
        log, index = self.log, self.log.index
        used = {slot for slots in self._lanes.values() for slot in slots}
        index.restore(used, self._generation)
        log.open_lanes(max(self._lanes, default=-1) + 1)
        for lane, slots in self._lanes.items():
            slots.sort(key=lambda slot: int(index.first_step[slot]))
            for slot, following in zip(slots, [*slots[1:], -1], strict=True):
                if following < 0 or not self._goes_on(slot, following):
                    log.truncate(slot)
            log.chain(lane, slots)
            log.begin_at(lane, int(index.first_step[slots[-1]] + index.rows[slots[-1]]))

    def link_lanes(self) -> None:
        """Chain the lanes' segments before their open ones, which are there already."""
        for lane, slots in self._lanes.items():
            slots.sort(key=lambda slot: int(self.log.index.first_step[slot]))
            self.log.chain(lane, slots)
            for slot, following in zip(slots, [*slots[1:], int(self.log.open_slots[lane])], strict=True):
                self.log.index.gap[slot] = not self._goes_on(slot, following)

    def _goes_on(self, slot: int, following: int) -> bool:
        index = self.log.index
        return bool(index.first_step[following] == index.first_step[slot] + index.rows[slot])

    def _content(self, number: int, record: Record) -> bytearray:
        out = bytearray(record.nbytes)
        self.regions.read(number, record.offset, memoryview(out))
        return out

    def _dictionary(self, key: int) -> bytes:
        return bytes(self._content(*self._dictionaries[key])) if key else b""

    def _ended(self, header: Header, data: bytes | bytearray) -> bytes:
        """An open segment's rows as a sealed segment: without the last step, if its episode went on."""
        _, arrays = segment.unpack(memoryview(data), self.log.spec, self._dictionary)
        flags = arrays["flags"].copy()
        steps, frames = header.steps, header.frames
        if steps and not flags[-1] & ENDED:
            steps -= 1
            self.report.cut_steps += 1
            if steps and not flags[steps - 1] & ENDED:
                flags[steps - 1] |= TRUNCATED  # the last frame was its successor's: now it is the final one
            else:
                frames -= 1
        if steps == 0:
            return b""
        arrays["flags"] = flags
        columns: list[Column] = []
        for name in self.log.names:
            rows: np.ndarray[Any, Any] = arrays[name][: frames if name in self.log.spec.obs_names else steps]
            columns.append(Column(RAW, len(rows), rows.tobytes()))
        assert (FLAGS, REWARD, FIRST_FIELD) == (0, 1, 2)
        schema = self.log.spec.schema_hash
        return segment.pack(schema, header.lane, header.first_step, steps, frames, header.context, columns)[0]
