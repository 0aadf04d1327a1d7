"""Survey of a store's folder for people: lanes, episodes, bytes; and the frames of an episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.registry import name_of
from sharpwave.errors import DamagedError
from sharpwave.format.metadata import read_metadata
from sharpwave.format.region import DICTIONARY, NOTE, SEGMENT, TAIL, Damage, Record
from sharpwave.offline.scan import (
    Chain,
    Described,
    Noted,
    Progress,
    Reader,
    Segment,
    chains,
    damage_of,
    describe,
    misnamed,
    readers,
    region_files,
    size_of,
    that_count,
)
from sharpwave.spec import START, TERMINATED, TRUNCATED

ENDED = TERMINATED | TRUNCATED
End = Literal["terminated", "truncated", "unfinished"]


@dataclass(frozen=True)
class Episode:
    """Run of one lane's steps.

    Attributes:
        lane, first_step, steps: the lane's numbers of its steps, counted from 0.
        total: sum of the rewards.
        end: how it ended; "unfinished" where the successor of its last step is missing.
        begun: whether its first step is in the store.
        written: position of its last step's segment in the order of writing.
        annotations: as far as its segments have them.
    """

    lane: int
    first_step: int
    steps: int
    total: float
    end: End
    begun: bool
    written: int
    annotations: Mapping[str, Any] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether both its first and its last step are in the store."""
        return self.begun and self.end != "unfinished"


@dataclass
class Packed:
    """Size of a field's columns with one codec. ``raw_bytes``: of their steps' values, each once."""

    columns: int = 0
    steps: int = 0
    bytes: int = 0
    raw_bytes: int = 0


@dataclass(frozen=True)
class RegionFile:
    """Region file: the numbers of its segments, tails and dictionaries, and the bytes of its records."""

    path: Path
    nbytes: int
    used: int
    segments: int
    tails: int
    dictionaries: int


@dataclass
class Survey:
    """Contents of a folder.

    Attributes:
        lanes: by lane, its segments that count.
        episodes: in the order of their ends.
        packed: by field and codec, of the segments that count.
        overhead_bytes: of their headers, tables and checksums.
        dictionary_bytes: of all region files.
        damages: of bytes that could not be read, and are in no other number.
    """

    folder: Path
    described: Described
    lanes: dict[int, Chain] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    packed: dict[str, dict[str, Packed]] = field(default_factory=dict)
    overhead_bytes: int = 0
    dictionary_bytes: int = 0
    regions: list[RegionFile] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)

    @property
    def segments(self) -> list[Segment]:
        """Segments that count, lane by lane."""
        return [one for chain in self.lanes.values() for one in chain.segments]

    @property
    def steps(self) -> int:
        """Steps in the segments that count."""
        return sum(one.header.steps for one in self.segments)


@dataclass(frozen=True)
class Shown:
    """Frame of an episode.

    Attributes:
        step: its number in the episode; that of the final observation is the number of steps.
        reward: its step's, which comes after it; ``None`` for the final observation.
        gained: sum of the rewards from the frame shown before to this one.
    """

    step: int
    reward: float | None
    frame: npt.NDArray[Any]
    gained: float = 0.0


class Piece(NamedTuple):
    """Steps of one episode that lie in one segment."""

    begin: int  # row in the segment
    end: int
    total: float  # of the rewards
    starts: bool  # the episode
    flags: int  # of the last step
    annotations: Mapping[str, Any]


@dataclass
class Contents:
    """Contents of one region file; ``segments`` come with their steps, cut into episodes, and ``notes`` are of
    evictions."""

    file: RegionFile | None = None
    segments: list[tuple[Segment, list[Piece]]] = field(default_factory=list)
    notes: list[Noted] = field(default_factory=list)
    dictionary_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)


def survey(folder: Path, progress: Callable[[int], Progress] = lambda total: lambda nbytes: None) -> Survey:
    """Return the contents of a store's folder: every checksum is verified, and flags and rewards are decoded.

    Raises:
        FileNotFoundError: no store there.  DamagedError: ``store.json`` is not as a store writes it.
    """
    described = describe(folder)
    advance = progress(sum(map(size_of, region_files(folder))))
    files: list[Contents] = []
    for reader in readers(folder, described.identity):
        if isinstance(reader, Damage):
            files.append(Contents(damages=[reader]))
            advance(reader.nbytes)
        else:
            files.append(read_contents(reader, reader.records, described, advance))
    return assemble(folder, described, files)


def assemble(folder: Path, described: Described, files: Sequence[Contents]) -> Survey:
    """Return the survey of a folder of these region files, oldest first. Cost: O(segments + episodes)."""
    result = Survey(folder, described)
    found: list[tuple[int, Segment]] = []
    pieces: dict[tuple[Path, Record], list[Piece]] = {}
    for number, contents in enumerate(files):
        if contents.file is not None:
            result.regions.append(contents.file)
        result.damages += contents.damages
        result.dictionary_bytes += contents.dictionary_bytes
        for one, cut in contents.segments:
            found.append((number, one))
            pieces[one.path, one.record] = cut
    found = that_count(folder, found, result.damages)
    notes = [note for contents in files for note in contents.notes]
    result.lanes = chains(found, result.described.segment_steps, notes)
    for lane, chain in result.lanes.items():
        episodes = _Episodes(lane)
        for one in chain.segments:
            episodes.add(one, pieces.pop((one.path, one.record)))
            _count(result, one)
        result.episodes += episodes.close()
    result.episodes.sort(key=lambda one: (one.written, one.lane, one.first_step))
    return result


def read_contents(reader: Reader, records: Sequence[Record], described: Described, advance: Progress) -> Contents:
    """Decode the flags and rewards of the segments among a reader's newly found records.

    Args:
        records: all of the file, those found earlier included, for the file's numbers.
    """
    contents = Contents(damages=[*reader.damages, *misnamed(reader)])
    nbytes, told = size_of(reader.path), 0
    if reader.region is not None:
        kinds = [record.kind for record in records]
        segments, tails, dictionaries = (kinds.count(kind) for kind in (SEGMENT, TAIL, DICTIONARY))
        contents.file = RegionFile(reader.path, nbytes, reader.region.used, segments, tails, dictionaries)
    for record in reader.records:
        advance(record.offset - told)
        told = record.offset
        if record.kind == DICTIONARY:
            contents.dictionary_bytes += record.nbytes
        if record.kind == NOTE:
            contents.notes += reader.note(record)
        if record.kind in (DICTIONARY, NOTE):
            continue
        try:
            header, arrays = reader.unpack(record, described, ("flags", "reward"))
            said = dict(read_metadata(header.metadata, header.steps).episodes)
        except (DamagedError, OSError) as error:
            contents.damages.append(damage_of(reader, record, error))
            continue
        if header.steps:  # else only frames of an episode under way
            one = Segment(reader.path, record, header)
            contents.segments.append((one, _pieces(arrays["flags"], arrays["reward"], said)))
    advance(max(0, nbytes - told))
    return contents


def _count(result: Survey, one: Segment) -> None:
    spec = result.described.spec
    sizes = {"flags": 1, "reward": 4} | {name: field.row_bytes for name, field in spec.fields.items()}
    for (name, size), column in zip(sizes.items(), one.header.placed, strict=True):
        packed = result.packed.setdefault(name, {}).setdefault(name_of(column.codec), Packed())
        packed.columns += 1
        packed.steps += one.header.steps
        packed.bytes += column.nbytes
        packed.raw_bytes += (column.rows if name in spec.sparse_names else one.header.steps) * size
    result.overhead_bytes += one.header.nbytes - sum(column.nbytes for column in one.header.placed)


def _pieces(
    flags: npt.NDArray[np.uint8], reward: npt.NDArray[np.float32], said: Mapping[int, Mapping[str, Any]]
) -> list[Piece]:
    """Return a segment's steps, cut before an episode's first step and after its last."""
    cut = flags & START != 0
    cut[1:] |= flags[:-1] & ENDED != 0
    cut[0] = True
    begins = np.flatnonzero(cut)
    totals = np.add.reduceat(reward.astype(np.float64), begins).tolist()
    bounds = [*begins.tolist(), len(flags)]
    return [
        Piece(begin, end, total, bool(flags[begin] & START), int(flags[end - 1]), said.get(begin, {}))
        for begin, end, total in zip(bounds, bounds[1:], totals, strict=False)
    ]


class _Episodes:
    """Assembler of one lane's episodes from its segments, added in order."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.episodes: list[Episode] = []
        self._first = self._next = -1
        self._total = 0.0
        self._begun = False
        self._written = 0
        self._annotations: dict[str, Any] = {}

    def add(self, one: Segment, pieces: list[Piece]) -> None:
        """Add the lane's next segment."""
        first = one.header.first_step
        if first != self._next:
            self._close("unfinished")
        for piece in pieces:
            if piece.starts:
                self._close("unfinished")
            if self._first < 0:
                self._first, self._total, self._begun = first + piece.begin, 0.0, piece.starts
                self._annotations = {}
            self._total += piece.total
            self._annotations.update(piece.annotations)
            self._next, self._written = first + piece.end, one.record.sequence
            if piece.flags & ENDED:
                self._close("terminated" if piece.flags & TERMINATED else "truncated")

    def _close(self, end: End) -> None:
        if self._first >= 0:
            steps = self._next - self._first
            about = (self._total, end, self._begun, self._written, self._annotations)
            self.episodes.append(Episode(self.lane, self._first, steps, *about))
        self._first = -1

    def close(self) -> list[Episode]:
        """Return all episodes; the last one may be unfinished."""
        self._close("unfinished")
        return self.episodes


def frames(result: Survey, episode: Episode, name: str, wanted: npt.NDArray[np.int64]) -> Iterator[Shown]:
    """Yield field ``name`` of the observation at steps of an episode.

    Args:
        wanted: rising step numbers, 0 for the episode's first step; ``episode.steps`` is the final observation, if the
            episode ended. Numbers beyond are left out.

    Raises:
        DamagedError: a segment was deleted meanwhile, or cannot be decoded.
    """
    rows, gained = _Rows(result, name), 0.0
    try:
        for one in result.lanes[episode.lane].segments:
            begin = one.header.first_step - episode.first_step  # of the segment's first step, counted in the episode
            end = min(begin + one.header.steps, episode.steps)
            if end <= max(begin, 0) or not wanted.size or begin > wanted[-1]:
                continue
            inside = wanted[(wanted >= max(begin, 0)) & (wanted < end)]
            final = end == episode.steps and episode.end != "unfinished" and episode.steps in wanted
            flags, reward, values = rows.of(one, frames=bool(inside.size) or final)
            before = np.concatenate([[0], np.cumsum(flags & ENDED != 0)])
            at = max(-begin, 0)
            for row in (inside - begin).tolist():
                gained += float(reward[at:row].sum(dtype=np.float64))
                frame = values[one.header.context + row + before[row]]
                yield Shown(begin + row, float(reward[row]), frame, gained)
                at, gained = row, 0.0
            gained += float(reward[at : end - begin].sum(dtype=np.float64))
            if final:
                row = episode.steps - 1 - begin
                yield Shown(episode.steps, None, values[one.header.context + row + before[row] + 1], gained)
    finally:
        rows.close()


class _Rows:
    """Decoder of segments for ``frames``; a file stays open for consecutive segments in it."""

    def __init__(self, result: Survey, name: str) -> None:
        self.result, self.name = result, name
        self._reader: Reader | None = None

    def of(
        self, one: Segment, *, frames: bool
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[Any]]:
        """Return a segment's flags, rewards and, if ``frames``, rows of the field."""
        try:
            if self._reader is None or self._reader.path != one.path:
                self.close()
                self._reader = Reader(one.path, self.result.described.identity)
            if self._reader.region is None:
                raise DamagedError(self._reader.damages[0].what)
            names = ("flags", "reward", self.name) if frames else ("flags", "reward")
            _, arrays = self._reader.unpack(one.record, self.result.described, names)
            flags, values = arrays["flags"], arrays[names[-1]]
            if not frames:
                return flags, arrays["reward"], values
            needed = one.header.context + len(flags) + int((flags & ENDED != 0).sum())
            if len(values) < needed:
                raise DamagedError(f"{len(values):,} frames, expected at least {needed:,}")
        except (OSError, DamagedError) as error:
            raise DamagedError(f"{one.path}: byte {one.record.offset:,}: {error}") from error
        return flags, arrays["reward"], values

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
