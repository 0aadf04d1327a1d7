"""Survey of a store's folder for people: lanes, episodes, bytes; and the frames of an episode."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bytes, Ints
from sharpwave.codecs.codec_registry import name_of
from sharpwave.disk.region_scan import SegmentReader
from sharpwave.errors import DamagedError
from sharpwave.format.annotations import BROKEN_OFF, read_metadata
from sharpwave.format.region import DICTIONARY, SHARED, Damage, Record
from sharpwave.format.segment_header import Header
from sharpwave.offline.scan import (
    LOOKS,
    Chain,
    Described,
    FileScan,
    FolderScan,
    Progress,
    Segment,
    chains,
    describe,
    no_progress,
    opened,
    part_of,
    size_of,
)
from sharpwave.offline.value_files import LateValues
from sharpwave.spec import ENDED, START, TERMINATED

End = Literal["terminated", "truncated", "unfinished"]


class TooLargeError(ValueError):
    """Error: a value, or a range of steps, is too large to show."""


class VanishedError(DamagedError):
    """Error: a file is gone since the survey was made; another survey finds its steps, as far as they are held."""


@dataclass(frozen=True)
class EpisodeSpan:
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

    @property
    def broken_off(self) -> bool:
        """Whether its program ended it early, and said so."""
        return bool(self.annotations.get(BROKEN_OFF))


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps of an episode in one segment, decoded.

    Attributes:
        first: number in the episode of the segment's first step; negative if the segment begins before the episode.
        rows: the segment's rows of these steps.
        ends: whether the episode ends with them: its final observation follows the last one's frame.
        arrays: whole columns of the segment by name, ``flags`` and ``reward`` included.
    """

    segment: Segment
    first: int
    rows: slice
    ends: bool
    arrays: dict[str, npt.NDArray[Any]]

    @cached_property
    def frames(self) -> Ints:
        """Row of each of the segment's steps in columns of observations, int64 [steps]."""
        ended = np.cumsum(self.arrays["flags"] & ENDED != 0)
        rows: Ints = self.segment.header.context + np.arange(len(ended)) + np.concatenate([[0], ended[:-1]])
        return rows


@dataclass
class PackedBytes:
    """Size of a field's columns with one codec. ``raw_bytes``: of their steps' values, each once; 0 of a ragged
    field."""

    columns: int = 0
    steps: int = 0
    bytes: int = 0
    raw_bytes: int = 0


@dataclass
class Survey:
    """Contents of a folder.

    Attributes:
        files: region files, as they were scanned, oldest first.
        lanes: by lane, its segments that count.
        episodes: in the order of their ends.
        packed: by field and codec, of the segments that count.
        overhead_bytes: of their headers, tables and checksums.
        damages: of bytes that could not be read, and are in no other number.
    """

    folder: Path
    described: Described
    files: Mapping[Path, FileScan] = field(default_factory=dict, repr=False)
    lanes: dict[int, Chain] = field(default_factory=dict)
    episodes: list[EpisodeSpan] = field(default_factory=list)
    packed: dict[str, dict[str, PackedBytes]] = field(default_factory=dict)
    overhead_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)

    @property
    def regions(self) -> list[FileScan]:
        """Region files with a sound header."""
        return [file for file in self.files.values() if file.used is not None]

    def bytes_of(self, kind: int) -> int:
        """Return the bytes of the dictionaries, or of the shared values, in all region files."""
        return sum(one.nbytes for file in self.files.values() for one in file.scan.dictionaries if one.kind == kind)

    @property
    def segments(self) -> list[Segment]:
        """Segments that count, lane by lane."""
        return [one for chain in self.lanes.values() for one in chain.segments]

    @property
    def steps(self) -> int:
        """Steps in the segments that count."""
        return sum(chain.steps for chain in self.lanes.values())

    @cached_property
    def late(self) -> LateValues:
        """Columns added later."""
        return LateValues(self.folder, self.described)

    @property
    def deleted_steps(self) -> int:
        """Steps in the segments that count that were deleted."""
        return sum(one.header.steps for one in self.segments) - self.steps

    def late_sizes(self) -> dict[str, dict[str, int]]:
        """Return the numbers of values of columns added later, of steps that count, and their bytes, as JSON.

        Raises: DamagedError: a file of values is damaged.  Cost: reading the columns.
        """
        counts = dict.fromkeys(self.late.fields, 0)
        for chain in self.lanes.values():
            parts = []
            for one in chain.segments:
                ids = one.record.id + np.arange(one.header.steps)
                parts.append(ids[~chain.deleted[one.record]] if one.record in chain.deleted else ids)
            for name in counts:
                counts[name] += int(np.count_nonzero(self.late.read(name, np.concatenate(parts))[1]))
        fields = self.late.fields
        return {name: {"values": n, "bytes": n * fields[name].row_bytes} for name, n in counts.items()}

    def sizes(self) -> dict[str, float]:
        """Return the bytes of the segments that count, encoded and raw, and of the files, as JSON.

        Rows of any length and shared values count neither in ``raw`` nor in ``ratio``: headers do not tell how long
        they are, or how many.
        """
        steps, total = self.steps, sum(one.header.nbytes for one in self.segments)
        spec = self.described.spec
        apart = {*spec.ragged_names, *spec.shared_names}
        raw = steps * (spec.step_bytes - sum(spec.fields[name].typical_bytes for name in apart))
        left_out = sum(one.bytes for name in apart for one in self.packed.get(name, {}).values())
        return {
            "segments": total,
            "per_step": total / max(1, steps),
            "raw": raw,
            "ratio": raw / max(1, total - left_out),
            "overhead": self.overhead_bytes,
            "dictionaries": self.bytes_of(DICTIONARY),
            "shared_values": self.bytes_of(SHARED),
            "files": sum(region.nbytes for region in self.regions),
        }

    def read(
        self,
        episode: EpisodeSpan,
        names: Collection[str],
        begin: int = 0,
        end: int | None = None,
        *,
        wanted: Ints | None = None,
        limit: int | None = None,
    ) -> Iterator[Stretch]:
        """Yield columns of the steps ``begin <= step < end`` of an episode, segment by segment.

        Args:
            wanted: rising numbers of steps; segments without any of them are skipped.
            limit: of the bytes of a segment's decoded rows.

        Raises:
            DamagedError: a segment was deleted meanwhile, or cannot be decoded.
            TooLargeError: decoding would exceed ``limit``.
        """
        end = episode.steps if end is None else min(end, episode.steps)
        sizes = {name: one.typical_bytes for name, one in self.described.spec.fields.items()}
        for one in self.lanes[episode.lane].segments:
            first, steps = one.header.first_step - episode.first_step, one.header.steps
            if first >= end or first + steps <= begin:
                continue
            if wanted is not None and not ((wanted >= first) & (wanted < first + steps)).any():
                continue
            nbytes = sum(sizes.get(name, 4) for name in names) * max(steps, one.header.frames)
            if limit is not None and nbytes > limit:
                raise TooLargeError(f"{nbytes:,} bytes to decode for a segment, at most {limit:,} are shown")
            arrays = self.unpack(one, ("reward", *names))
            low, high = max(begin, first), min(end, first + steps)
            ends = high == episode.steps and episode.end != "unfinished"
            yield Stretch(one, first, slice(low - first, high - first), ends, arrays)

    def frames(
        self, episode: EpisodeSpan, name: str, steps: Ints, *, limit: int | None = None
    ) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield (step, value) of a field of the observation; ``episode.steps`` is the final observation, if the episode
        ended.

        Args:
            steps: rising numbers of steps in the episode; missing steps are skipped.

        Raises:
            DamagedError, TooLargeError: as ``read``.
        """
        if not steps.size:
            return
        last = episode.steps - 1 if episode.end != "unfinished" else -1
        wanted = np.unique(np.minimum(steps, last)) if last >= 0 else steps
        for part in self.read(episode, (name,), int(wanted[0]), int(wanted[-1]) + 1, wanted=wanted, limit=limit):
            values, rows = part.arrays[name], part.frames
            begin, end = part.first + part.rows.start, part.first + part.rows.stop
            for step in wanted[(wanted >= begin) & (wanted < end)].tolist():
                if step in steps:
                    yield step, values[rows[step - part.first]]
                if step == last and episode.steps in steps:
                    yield episode.steps, values[rows[step - part.first] + 1]

    def ids(self, episode: EpisodeSpan, begin: int, end: int) -> Ints:
        """Return the ids of the steps ``begin <= step < end`` of an episode, int64; -1: missing."""
        found = np.full(end - begin, -1, np.int64)
        for one in self.lanes[episode.lane].segments:
            first = one.header.first_step - episode.first_step
            low, high = max(begin, first), min(end, first + one.header.steps)
            if low < high:
                found[low - begin : high - begin] = one.record.id + np.arange(low - first, high - first)
        return found

    def unpack(self, one: Segment, only: Collection[str]) -> dict[str, npt.NDArray[Any]]:
        """Decode some columns of a segment, and its flags. Cost: reading that segment.

        Raises:
            VanishedError: it was deleted meanwhile.  DamagedError: it cannot be decoded.
        """
        known = self.files.get(one.path)
        try:
            if known is None:
                raise DamagedError("the file was deleted meanwhile")
            begin, dictionaries = size_of(one.path), known.scan.dictionaries
            with opened(one.path, self.described, begin=begin, known=dictionaries) as (region, scan, reader):
                if region is None or reader is None:
                    raise DamagedError(scan.damages[0].what)
                header, arrays = reader.read(one.record, {"flags", *only})
            needed = header.context + header.steps + np.count_nonzero(arrays["flags"] & ENDED)
            if header.frames < needed:
                raise DamagedError(f"{header.frames:,} frames, expected at least {needed:,}")
        except FileNotFoundError as error:
            what = "the file was deleted since the folder was read; read it again"
            raise VanishedError(f"{one.path}: byte {one.record.offset:,}: {what}") from error
        except (OSError, DamagedError) as error:
            raise DamagedError(f"{one.path}: byte {one.record.offset:,}: {error}") from error
        return arrays


class Piece(NamedTuple):
    """Steps of one episode that lie in one segment."""

    begin: int  # row in the segment
    end: int
    total: float  # of the rewards
    starts: bool  # the episode
    flags: int  # of the last step
    annotations: Mapping[str, Any]


def survey(folder: Path, progress: Callable[[int], Progress] = no_progress) -> Survey:
    """Return the contents of a store's folder: every checksum is verified, and flags and rewards are decoded.

    Raises:
        FileNotFoundError: no store there.  DamagedError: ``store.json`` is not as a store writes it.
    """
    following = Following(folder)
    following.update(progress)
    return following.survey


class Following:
    """Survey of a folder that is kept up to date as another process writes to it. Nothing is locked or changed.

    Args:
        known: files of another survey; those that are the same ones, by links, are not read again.

    Attributes:
        survey: as of the last ``update``.

    Raises:
        FileNotFoundError: no store there.  DamagedError: ``store.json`` is not as a store writes it.
    """

    def __init__(self, folder: Path, known: Mapping[Path, FileScan] | None = None) -> None:
        self.folder = folder
        self._scan = FolderScan(folder, _outline, known)
        self.survey = Survey(folder, describe(folder))

    def update(self, progress: Callable[[int], Progress] = no_progress) -> bool:
        """Read new data; return whether anything changed.

        Raises:
            FileNotFoundError, DamagedError: as in the constructor; ``survey`` is unchanged.

        Cost: reading the new bytes, and O(segments + episodes).
        """
        changed = False
        for _ in range(LOOKS):
            changed |= self._update(progress)
            if part_of(self.folder) == self.survey.described.part:
                break
        return changed

    def _update(self, progress: Callable[[int], Progress]) -> bool:
        described, before = describe(self.folder), self.survey.described
        replaced = (described.identity, described.part) != (before.identity, before.part)
        if replaced:  # by another checkpoint, or another store
            self._scan = FolderScan(self.folder, _outline)
        changed = self._scan.update(described, progress) or replaced
        changed |= described.annotations.manifest() != before.annotations.manifest()
        changed |= described.column_files != before.column_files
        if changed or not self.survey.regions:
            self.survey = _assembled(self.folder, described, self._scan)
        return changed


def _outline(reader: SegmentReader, record: Record) -> tuple[Header, list[Piece]]:
    """Decode a segment's flags and rewards; return its header, and its steps cut into episodes."""
    header, arrays = reader.unpack(record, ("flags", "reward"))
    said = dict(read_metadata(header.metadata, header.steps).episodes)
    return header, _pieces(arrays["flags"], arrays["reward"], said) if header.steps else []


def _assembled(folder: Path, described: Described, scan: FolderScan) -> Survey:
    """Return the survey of a folder as it was read. Cost: O(segments + episodes)."""
    files = scan.files
    result = Survey(folder, described, files=files)
    result.damages = [damage for file in files.values() for damage in file.damages]
    pieces = {one.record: cut for file in files.values() for one, cut in file.segments}
    result.lanes, _ = chains(folder, described, scan, result.damages)
    for lane, chain in result.lanes.items():
        result.episodes += _episodes(lane, chain, pieces)
        for one in chain.segments:
            _count(result, one)
    result.episodes.sort(key=lambda one: (one.written, one.lane, one.first_step))
    return result


def _count(result: Survey, one: Segment) -> None:
    spec = result.described.spec
    sizes = {"flags": 1, "reward": 4} | {
        name: 0 if field.ragged else field.row_bytes for name, field in spec.columns.items()
    }
    for (name, size), column in zip(sizes.items(), one.header.placed, strict=True):
        packed = result.packed.setdefault(name, {}).setdefault(name_of(column.codec), PackedBytes())
        packed.columns += 1
        packed.steps += one.header.steps
        packed.bytes += column.nbytes
        packed.raw_bytes += (column.rows if name in spec.sparse_names else one.header.steps) * size
    result.overhead_bytes += one.header.nbytes - sum(column.nbytes for column in one.header.placed)


def _pieces(flags: Bytes, reward: npt.NDArray[np.float32], said: Mapping[int, Mapping[str, Any]]) -> list[Piece]:
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


def _episodes(lane: int, chain: Chain, pieces: Mapping[Record, list[Piece]]) -> list[EpisodeSpan]:
    """Return a lane's episodes, assembled from its segments; unfinished ones end at gaps, at starts and at the end."""
    found: list[EpisodeSpan] = []
    following = -1  # number of the step that would continue the last episode
    for one in chain.segments:
        for piece in pieces[one.record]:
            if one.record in chain.deleted and chain.deleted[one.record][piece.begin]:
                continue
            first = one.header.first_step + piece.begin
            if piece.starts or first != following:
                found.append(EpisodeSpan(lane, first, 0, 0.0, "unfinished", piece.starts, 0))
            before, following = found[-1], one.header.first_step + piece.end
            end: End = "unfinished"
            if piece.flags & ENDED:
                end, following = "terminated" if piece.flags & TERMINATED else "truncated", -1
            found[-1] = replace(
                before,
                steps=one.header.first_step + piece.end - before.first_step,
                total=before.total + piece.total,
                end=end,
                written=one.record.sequence,
                annotations=piece.annotations,  # which has those made before, too
            )
    return found
