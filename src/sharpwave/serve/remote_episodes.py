"""Episodes of a cluster: found by its shards, read from them, deleted, and columns computed from them by a client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bytes, Ints
from sharpwave.json_values import decode
from sharpwave.log.late_columns import WRITTEN, described
from sharpwave.ragged import Ragged
from sharpwave.serve.cut_batches import ragged_in
from sharpwave.serve.late_values import REQUEST_BYTES, Columns, rows_of, value_requests
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.remote_ids import incarnations
from sharpwave.serve.shard_episodes import FLAGS, GONE, IDS, MAX_RUNS, OF_STEPS, REWARDS, EpisodeArray
from sharpwave.serve.wire import Frame, Part, Request, WireError, array_in
from sharpwave.spec import Field, Spec
from sharpwave.views.episodes import SINCE, Episodes, Order, StoredEpisode, Table, given_episodes, joined, places_in
from sharpwave.views.ids import Ids, Tag, tagged

AHEAD_BYTES = 4 << 20
"""Bytes of arrays that are read ahead, unless a single episode has more."""


class RemoteReader:
    """Reader of episodes of one shard; as ``RunReader``.

    Args:
        link: to the shard. ``shard``: its incarnation, which found the episodes.
        columns: columns added later, by name; the owner may add some.

    Attributes:
        ahead: arrays that were read already, by the episode's first id.
    """

    def __init__(self, link: Link, shard: int, spec: Spec, columns: Columns, tag: Tag) -> None:
        self.link, self.shard, self.spec = link, shard, spec
        self._columns, self._tag = columns, tag
        self.ahead: dict[tuple[int, EpisodeArray], Any] = {}

    @property
    def fields(self) -> Collection[str]:
        """Names of all fields, also of columns added later."""
        return [*self.spec.fields, *(part for name in self._columns for part in (name, name + WRITTEN))]

    def field(self, name: str) -> Field:
        """Return the field of an array, by its name."""
        if name.endswith(WRITTEN) and name.removesuffix(WRITTEN) in self._columns:
            return Field((), "bool")
        return OF_STEPS.get(name) or self._columns.get(name) or self.spec.fields[name]

    def ids(self, first: int, count: int) -> Ids:
        """Return the ids of steps."""
        return tagged(self._one(EpisodeArray(IDS), first, count), self._tag)

    def flags(self, first: int, count: int) -> Bytes:
        """Return the flags of steps."""
        return np.asarray(self._one(EpisodeArray(FLAGS), first, count))

    def rewards(self, first: int, count: int) -> npt.NDArray[np.float32]:
        """Return the rewards of steps, float32 [count]."""
        return np.asarray(self._one(EpisodeArray(REWARDS), first, count))

    def read(self, name: str, first: int, count: int, *, final: bool = False) -> Any:
        """Return a field of steps; with ``final`` also the observation after the last one."""
        return self._one(EpisodeArray(name, final), first, count)

    def annotations(self, first: int, count: int) -> dict[str, Any]:
        """Return the annotations of the episode that steps are of."""
        reply = self.call(Request.EPISODE_INFO, {}, _runs([(first, count, False)]))
        return dict(decode(reply.head["info"]))

    def _one(self, array: EpisodeArray, first: int, count: int) -> Any:
        found = self.ahead.get((first, array), self)
        if found is self:
            (arrays,) = self.arrays([(first, count, array.final)], [array])
            found = None if arrays is None else arrays[0]
        if found is None:
            raise KeyError(f"episode: steps of it were evicted or deleted {SINCE}")
        return found

    def arrays(
        self, runs: Sequence[tuple[int, int, bool]], asked: Sequence[EpisodeArray]
    ) -> Iterator[list[Any] | None]:
        """Yield arrays of episodes, each given by its first id, its number of steps and whether it ended; ``None``: it
        was evicted or deleted.

        Raises: ShardLostError.  DamagedError, MemoryError: as ``EpisodeReader.read``.
        """
        place, begin, parts = 0, 0, list[list[Any]]()
        head = {"arrays": [list(one) for one in asked]}
        while place < len(runs):
            some = runs[place : place + MAX_RUNS]
            reply = self.call(Request.READ_EPISODES, head | {"begin": begin}, _runs(some))
            steps = array_in(reply.parts, "steps", np.int64, -1)
            if not 0 < len(steps) <= len(some):
                raise WireError(f"{len(steps)} numbers of steps of {len(some)} episodes")
            cursors = [_ReplyRows(reply, number, self.field(one.name), one) for number, one in enumerate(asked)]
            for count in steps.tolist():
                _, whole, ended = runs[place]
                if count == GONE:
                    yield None
                    place, begin, parts = place + 1, 0, []
                    continue
                if not 0 < count <= whole - begin:
                    raise WireError(f"{count!r} steps of an episode, expected {whole - begin} at most")
                last = begin + count == whole
                parts.append([one.take(count + (last and ended and one.array.final)) for one in cursors])
                begin += count
                if last:
                    yield [
                        _joined(self.field(one.name), pieces)
                        for one, pieces in zip(asked, zip(*parts, strict=True), strict=True)
                    ]
                    place, begin, parts = place + 1, 0, []

    def call(self, kind: Request, head: Mapping[str, Any], parts: Mapping[str, Part]) -> Frame:
        """Send the shard a request, again if the connection broke; return its reply.

        Raises: ShardLostError: it cannot be reached, or was started again: it may have other steps under these ids.
        """
        for _ in range(2):
            with self.link.lock:  # the connection stays the one that was made to this incarnation
                self.link.connect()
                if self.link.incarnation != self.shard:
                    raise ShardLostError(f"shard {self.link.address}: was started again {SINCE}")
                try:
                    return self.link.call(kind, head, parts)
                except ShardLostError as error:
                    lost = error
        raise lost


class _ReplyRows:
    """Rows of one array in a reply, which is checked as untrusted input; taken one episode after the other."""

    def __init__(self, reply: Frame, number: int, kind: Field, array: EpisodeArray) -> None:
        self.array, self._kind, self._at, self._item = array, kind, 0, 0
        self._absent = False
        if kind.ragged:
            self._values, self._lengths = ragged_in(reply.parts, str(number), kind)
        elif str(number) in reply.parts:
            self._values = array_in(reply.parts, str(number), np.uint8, -1, kind.row_bytes)
        else:  # a column that the shard lacks
            self._absent = True

    def take(self, count: int) -> Any:
        """Return the next rows."""
        kind, begin, self._at = self._kind, self._at, self._at + count
        if self._absent:
            return np.zeros((count, *kind.shape), kind.np_dtype)
        if self._at > len(self._lengths if kind.ragged else self._values):
            raise WireError(f"array {self.array.name!r} of episodes: has fewer rows than steps")
        if not kind.ragged:
            return rows_of(self._values[begin : self._at].copy(), kind)  # not of the message's memory
        lengths = self._lengths[begin : self._at]
        first, self._item = self._item, self._item + int(lengths.sum())
        return Ragged.of_parts([self._values[first : self._item]], [lengths], kind.text)


def _joined(kind: Field, parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if not kind.ragged:
        return np.concatenate(parts)
    return Ragged.of_parts([one.values for one in parts], [one.lengths for one in parts], kind.text)


def _runs(runs: Sequence[tuple[int, int, bool]]) -> dict[str, Part]:
    """Return the parts of a request that name episodes."""
    first, count, ended = zip(*runs, strict=True)
    return {"first": np.array(first, np.int64), "count": np.array(count, np.int64), "ended": np.array(ended, np.bool_)}


# finding them


class RemoteEpisodes(Episodes):
    """Episodes that were in a cluster's shards when they were asked for.

    Args:
        readers: of the shards. ``of``: int64 [n], the number of each episode's.
    """

    def __init__(self, table: Table, readers: Sequence[RemoteReader], of: Ints) -> None:
        self._table, self._readers, self._of = table, readers, of

    def _reader_of(self, place: int) -> RemoteReader:
        return self._readers[int(self._of[place])]

    def _some(self, places: Any) -> RemoteEpisodes:
        return RemoteEpisodes(self._table.some(places), self._readers, self._of[places])


def found(
    links: Sequence[Link], spec: Spec, columns: Columns, tag: Tag, where: str | None, order: Order | None
) -> RemoteEpisodes:
    """Ask all shards for their episodes.

    Args:
        order: as for ``Store.episodes``, over all shards; ``None``: one shard behind the other, the oldest first.

    Raises: ShardLostError; and as ``Store.episodes``.
    """
    tables, readers, ages = list[Table](), list[RemoteReader](), list[Ints]()
    for link in links:
        for last in (False, True):
            try:
                with link.lock:
                    link.connect()
                    shard = link.incarnation
                    reply = link.call(Request.EPISODES, {"where": where})
                break
            except ShardLostError:
                if last:
                    raise
        table, age = _checked(reply)
        tables.append(table)
        ages.append(age)
        readers.append(RemoteReader(link, shard, spec, columns, tag))
    of = np.repeat(np.arange(len(tables)), [len(one.lane) for one in tables])
    whole = RemoteEpisodes(joined(tables), readers, of)
    if order is None:
        return whole
    return whole._some(places_in(order, whole._table, np.concatenate([np.zeros(0, np.int64), *ages])))


def _checked(reply: Frame) -> tuple[Table, Ints]:
    kinds = ("i8", "i8", "i8", "f8", "u1", "?", "i8", "i8")
    names = (*Table._fields, "age")
    count = len(array_in(reply.parts, names[0], kinds[0], -1))
    arrays = (array_in(reply.parts, name, kind, count) for name, kind in zip(names, kinds, strict=True))
    *columns, age = (array.copy() for array in arrays)  # not of the message's memory
    table = Table(*columns)
    if count and (table.length.min() < 1 or table.id.min() < 0):
        raise WireError("episodes of a shard without steps, or ids")
    return table, age


# deletion


def deleted(members: Sequence[Link], given: Any) -> int:
    """Delete episodes of shards, which another client of theirs may have found; return the number of their steps that
    were held.

    Raises:
        TypeError, ValueError: not episodes of this cluster, or one that had not ended; nothing was changed.
        ShardLostError: as ``RemoteReader.call``.
    """
    by_reader: dict[int, tuple[RemoteReader, list[StoredEpisode]]] = {}
    known: list[int] | None = None
    for one in given_episodes(given):
        reader = one._reader
        if not isinstance(reader, RemoteReader) or not (
            reader.link in members or reader.shard in (known := incarnations(members) if known is None else known)
        ):
            raise ValueError(f"delete: {one!r:.200} is of another store or cluster")
        if one.ended is None:
            raise ValueError(
                f"delete: the episode of lane {one.lane} had not ended when episodes() found it; call that again"
            )
        by_reader.setdefault(id(reader), (reader, []))[1].append(one)
    total = 0
    for reader, several in by_reader.values():
        for begin in range(0, len(several), MAX_RUNS):
            some = several[begin : begin + MAX_RUNS]
            parts = _runs([(one._first_id, one.length, True) for one in some])
            for name, numbers in (
                ("lane", [one.lane for one in some]),
                ("first_step", [one.first_step for one in some]),
            ):
                parts[name] = np.array(numbers, np.int64)
            total += int(reader.call(Request.DELETE, {}, parts).head["deleted"])
    return total


# columns computed from them


class ClusterColumns:
    """A cluster, for ``derive``: many episodes are read by one request, and values of many written by another.

    Args:
        columns: columns added later, by name.
        episodes: returns the episodes for which a condition holds. ``add``: adds a column. ``save``: flushes shards.
    """

    def __init__(
        self,
        columns: Columns,
        episodes: Callable[[Any, Columns], RemoteEpisodes],
        add: Callable[[str, Field], None],
        save: Callable[[], object],
    ) -> None:
        self.columns, self._episodes, self._add, self._save = columns, episodes, add, save
        self._until = 0  # episodes before this one were read ahead
        self._name = ""
        self._kept: list[tuple[RemoteReader, Ints, Ints, npt.NDArray[Any]]] = []
        self._kept_bytes = 0

    def add_column(self, name: str, field: Field) -> None:
        """Add a column."""
        self._add(name, field)
        self.columns[name] = field

    def episodes(self, where: Any) -> list[StoredEpisode]:
        """Return the episodes for which a condition holds, one shard behind the other."""
        return list(self._episodes(where, self.columns))

    def read_ahead(
        self, episodes: Sequence[StoredEpisode], number: int, name: str | None, needs: Sequence[str]
    ) -> None:
        """Read an episode and others of its shard behind it, unless that was done."""
        if number < self._until:
            return
        reader = episodes[number]._reader
        assert isinstance(reader, RemoteReader)
        if number:
            before = episodes[number - 1]._reader
            assert isinstance(before, RemoteReader)
            before.ahead.clear()
        arrays = _needed(reader, needs)
        row_bytes = 1 + sum(reader.field(one.name).typical_bytes for one in arrays)
        group, nbytes = list[StoredEpisode](), 0
        for one in episodes[number : number + MAX_RUNS]:
            nbytes += one.length * row_bytes
            if one._reader is not reader or (group and nbytes > AHEAD_BYTES):
                break
            group.append(one)
        self._until = number + len(group)
        if name is not None:
            self._read(reader, group, [EpisodeArray(name + WRITTEN)])
            group = [one for one in group if not np.all(reader.ahead[one._first_id, EpisodeArray(name + WRITTEN)])]
        if group and arrays:
            self._read(reader, group, arrays)

    def _read(self, reader: RemoteReader, group: Sequence[StoredEpisode], arrays: Sequence[EpisodeArray]) -> None:
        runs = [(one._first_id, one.length, one.ended is not None) for one in group]
        for one, values in zip(group, reader.arrays(runs, arrays), strict=True):
            for number, array in enumerate(arrays):
                final = array.final and one.ended is not None
                reader.ahead[one._first_id, EpisodeArray(array.name, final)] = (
                    None if values is None else values[number]
                )

    def is_written(self, name: str, episode: StoredEpisode) -> bool:
        """Return whether all steps of an episode have a value."""
        return bool(np.all(episode[name + WRITTEN]))

    def write(self, name: str, episode: StoredEpisode, part: slice, values: npt.NDArray[Any]) -> int:
        """Keep values for one of the next requests; return the number of steps that were written meanwhile."""
        reader, written = episode._reader, 0
        assert isinstance(reader, RemoteReader)
        if self._kept and self._kept[0][0] is not reader:
            written += self._send()
        numbers = np.arange(episode.length)[part]
        rows = self.columns[name].rows(name, values, len(numbers))
        self._name = name
        self._kept.append((reader, np.full(len(numbers), episode.lane), episode.first_step + numbers, rows))
        self._kept_bytes += rows.nbytes + 16 * len(numbers)
        if self._kept_bytes >= REQUEST_BYTES:
            written += self._send()
        return written

    def flush(self, *, disk: bool = True) -> int:
        """Send kept values, and flush shards to their disks."""
        written = self._send()
        if disk:
            self._save()
        return written

    def _send(self) -> int:
        """Send kept values; return the number of their steps that are held.  Raises: ShardLostError."""
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        if not kept:
            return 0
        name, reader, written = self._name, kept[0][0], 0
        lanes, steps, rows = (np.concatenate([one[k] for one in kept]) for k in (1, 2, 3))
        head = {"name": name, "field": described(self.columns[name])}
        for parts in value_requests(rows, {"lanes": lanes, "steps": steps}):
            written += int(reader.call(Request.WRITE_COLUMN, head, parts).head["written"])
        return written


def _needed(reader: RemoteReader, needs: Sequence[str]) -> list[EpisodeArray]:
    """Return the arrays that ``derive`` reads ahead for a function's needs; others are read when they are used."""
    found = list[EpisodeArray]()
    for name in needs:
        if name == "obs":
            found += [EpisodeArray(one, True) for one in reader.spec.obs_names]
        elif name == "action":
            found += [EpisodeArray(one) for one in reader.spec.action_names]
        elif name in ("terminated", "truncated"):
            found.append(EpisodeArray(FLAGS))
        elif name == "reward":
            found.append(EpisodeArray(REWARDS))
        elif name in reader.fields:
            found.append(EpisodeArray(name))
    return list(dict.fromkeys(found))
