"""Episodes of a store: found by flags and rewards, which are always in memory; decoded field by field on demand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, get_args, overload

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bools, Bytes, Floats, Ints
from sharpwave.errors import DamagedError
from sharpwave.format.segment import FLAGS, REWARD
from sharpwave.json_values import decode
from sharpwave.log.step_log import StepLog
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.ragged import Ragged
from sharpwave.showing import MAX_PICTURES, contact_sheet, line_chart, table, titled
from sharpwave.spec import ENDED, START, TERMINATED, TRUNCATED, Spec
from sharpwave.views.gather import UndecodableError
from sharpwave.views.ids import Ids, Tag, tagged
from sharpwave.views.steps import Steps
from sharpwave.views.view_protocol import STEPS

Order = Literal["oldest", "newest", "return", "length"]
CHUNK_BYTES = 1 << 24
"""Bytes that are decoded at a time, while the store's lock is held."""
EPISODES = 256
"""Episodes whose annotations are read at a time, while the store's lock is held."""


SINCE = "since episodes() found it; call it again"
"""Error of episodes that are held no longer."""


class Table(NamedTuple):
    """Episodes, as arrays [n]: the lane, the lane's number of the first step, steps, the sum of rewards, the flags of
    the last step, whether the first step is the episode's first, and that step's id."""

    lane: Ints
    first_step: Ints
    length: Ints
    total: Floats
    flags: Bytes
    begun: Bools
    id: Ints

    def some(self, places: Any) -> Table:
        """Return the episodes at ``places``, a slice or indices."""
        arrays: list[Any] = [array[places] for array in self]
        return Table(*arrays)


def find(log: StepLog, lanes: Iterable[int], *, with_totals: bool = True) -> Table:
    """Find the episodes of which steps are held, lane by lane and in order. The store's lock is held.

    Cost: O(steps), by flags and rewards; some 12 us a segment.
    """
    return joined([part for lane in lanes if (part := find_in(log, _held(log, lane), with_totals)) is not None])


def joined(parts: Sequence[Table]) -> Table:
    """Return the episodes of all parts, in their order."""
    if not parts:
        no = np.zeros(0, np.int64)
        return Table(no, no, no, np.zeros(0), np.zeros(0, np.uint8), np.zeros(0, np.bool_), no)
    return Table(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _held(log: StepLog, lane: int) -> Iterator[int]:
    slot = int(log.inventory.oldest[lane])
    while slot >= 0:
        yield slot
        slot = int(log.index.next[slot])


def find_in(log: StepLog, slots: Iterable[int], with_totals: bool = True) -> Table | None:
    """Find the episodes in consecutive segments of one lane, as far as these hold them, without deleted ones; ``None``:
    they are empty."""
    index, steps = log.index, Steps(log)
    flags: list[Bytes] = []
    rewards: list[npt.NDArray[np.float32]] = []
    runs: list[tuple[int, int, int]] = []  # by segment: number of its first step, its steps, and its id
    lane = -1
    for slot in slots:
        if index.rows[slot]:
            lane = int(index.lane[slot])
            flags.append(steps.flags(slot))
            rewards.append(steps.rewards(slot))
            runs.append((int(index.first_step[slot]), int(index.rows[slot]), index.segment_id(slot)))
    if not runs:
        return None
    first, rows, ids = np.array(runs, np.int64).T
    all_flags = np.concatenate(flags)
    begins = np.concatenate([[0], np.cumsum(rows)[:-1]])  # rows at which segments begin
    cut = all_flags & START != 0
    cut[1:] |= all_flags[:-1] & ENDED != 0
    cut[begins[1:][first[1:] != first[:-1] + rows[:-1]]] = True  # steps between were evicted
    cut[0] = True
    starts = np.flatnonzero(cut)
    ends = np.append(starts[1:], len(all_flags))
    segment = np.searchsorted(begins, starts, side="right") - 1
    total = np.zeros(len(starts))
    if with_totals:
        total = np.add.reduceat(np.concatenate(rewards).astype(np.float64), starts)
    found = Table(
        np.full(len(starts), lane, np.int64),
        first[segment] + starts - begins[segment],
        ends - starts,
        total,
        all_flags[ends - 1],
        all_flags[starts] & START != 0,
        ids[segment] + starts - begins[segment],
    )
    return found if log.late.deleted is None else found.some(~log.late.is_deleted(found.id & LEAF_MASK))


class RunReader(Protocol):
    """Reader of runs of one lane's steps, each given by the id of its first step and its number of steps.

    Attributes:
        spec: of the steps. ``fields``: names of all fields: the spec's, and of columns added later.
        shard: the shard that has the steps, as in ``batch.shards``; -1: this process has them.

    Raises: KeyError: steps were evicted or deleted.
    """

    spec: Spec
    shard: int

    @property
    def fields(self) -> Collection[str]: ...
    def ids(self, first: int, count: int) -> Ids: ...
    def flags(self, first: int, count: int) -> Bytes: ...
    def rewards(self, first: int, count: int) -> npt.NDArray[np.float32]: ...
    def read(self, name: str, first: int, count: int, *, final: bool = False) -> Any: ...
    def annotations(self, first: int, count: int) -> dict[str, Any]: ...


class EpisodeReader:
    """Decoder of runs of one lane's steps, one part at a time under the store's lock.

    Args:
        life: kept: the store is closed only after everything that it gave out is freed.
    """

    shard = -1

    def __init__(self, log: StepLog, lock: Any, life: object) -> None:
        self.log, self.lock, self._life = log, lock, life
        self.spec: Spec = log.spec
        self._steps = Steps(log)

    @property
    def fields(self) -> Collection[str]:
        """Names of all fields, also of columns added later."""
        return self.log.late.spec.fields

    def ids(self, first: int, count: int) -> Ids:
        """Return the ids of steps.  Raises: KeyError: some were evicted."""
        with self.lock:
            slots, rows = self._locate(first, count)
            ids = self.log.index.generation[slots] << LEAF_BITS | slots * self.log.stride + rows
            return tagged(ids, Tag(self.log.tag, STEPS))

    def _locate(self, first: int, count: int) -> tuple[Ints, Ints]:
        """Return the slots and rows of ``count`` steps from the one with the id ``first``.

        Raises: KeyError: some were evicted.  Cost: O(count), and some us a segment.
        """
        self.log.check_open()
        index = self.log.index
        slot, row = divmod(first & LEAF_MASK, self.log.stride)
        slots, rows = np.empty((2, count), np.int64)
        done = 0
        while done < count:
            here = min(count - done, int(index.rows[slot]) - row)
            if here <= 0 or (not done and index.generation[slot] != first >> LEAF_BITS):
                raise KeyError(f"episode: steps of it were evicted {SINCE}")
            slots[done : done + here] = slot
            rows[done : done + here] = np.arange(row, row + here)
            done += here
            if done < count and (index.gap[slot] or index.next[slot] < 0):
                raise KeyError(f"episode: steps of it were evicted {SINCE}")
            slot, row = int(index.next[slot]), 0
        if self.log.late.is_deleted(slots * self.log.stride + rows).any():
            raise KeyError(f"episode: it was deleted {SINCE}")
        return slots, rows

    def flags(self, first: int, count: int) -> Bytes:
        with self.lock:
            slots, rows = self._locate(first, count)
            found: Bytes = self.log.arena.memory[self.log.index.offset[FLAGS, slots] + rows]
            return found

    def rewards(self, first: int, count: int) -> npt.NDArray[np.float32]:
        with self.lock:
            slots, rows = self._locate(first, count)
            found: npt.NDArray[np.float32] = self.log.arena.floats[(self.log.index.offset[REWARD, slots] >> 2) + rows]
            return found

    def read(self, name: str, first: int, count: int, *, final: bool = False) -> Any:
        """Decode a field of steps: [count, *shape]; with ``final`` also the observation after the last one. Of a ragged
        field return a ``Ragged`` of as many rows.

        Raises:
            KeyError: steps were evicted.  DamagedError: a segment cannot be read.  MemoryError: no room to read one.
        """
        kind, parts, done = self.log.late.spec.fields[name], list[Ragged](), 0
        out = np.empty((0 if kind.ragged else count + final, *kind.inner), kind.np_dtype)
        data = out.reshape(-1).view(np.uint8).reshape(len(out), 1, kind.item_bytes)
        chunk = max(1, CHUNK_BYTES // kind.typical_bytes)
        while done < count:
            with self.lock:
                slots, rows = (places[done : done + chunk] for places in self._locate(first, count))
                ready = self._ready(name, slots)
                slots, rows, last = slots[:ready], rows[:ready], final and done + ready == count
                try:
                    if kind.ragged:
                        part = self._steps.read_rows(name, slots, rows, final=last)
                        # Not in the store's memory of batches, which is for batches.
                        parts.append(Ragged(part.values.copy(), part.offsets, text=kind.text))
                    else:
                        self._steps.read(name, slots, rows, data[done : done + ready + last], final=last)
                except UndecodableError as error:
                    error.set_aside(self.log)
                    raise
            done += ready
        if not kind.ragged:
            return out
        return Ragged.of_parts([out, *(part.values for part in parts)], [part.lengths for part in parts], kind.text)

    def _ready(self, name: str, slots: Ints) -> int:
        """Read a field of steps into memory, or their segments; return how many of the first steps' are there."""
        cache = self.log.segment_cache
        if cache is None:
            return len(slots)
        changes = np.flatnonzero(np.diff(slots)) + 1
        begins = np.concatenate([[0], changes, [len(slots)]])
        segments = np.ascontiguousarray(slots[begins[:-1]])
        there = cache.require(segments, self.log.layout.bits([name]))
        if not there:
            raise MemoryError("episode: ram leaves no room to read a segment from disk; raise ram=")
        for slot in segments[:there].tolist():
            if slot in cache.damaged:
                raise DamagedError(cache.damaged[slot])
        return int(begins[there])

    def annotations(self, first: int, count: int) -> dict[str, Any]:
        """Return the annotations of the episode that steps are of, as the last one's segment has them."""
        with self.lock:
            slots, rows = self._locate(first, count)
            last = self.log.index.generation[slots[-1]] << LEAF_BITS | slots[-1] * self.log.stride + rows[-1]
            decoded: dict[str, Any] = decode(self.log.annotations_of([int(last)])[0])
            return decoded

    def annotations_of(self, table: Table) -> list[dict[str, Any]]:
        """Return the annotations of episodes, as the segment of the last step held has them: it has those made before,
        too. Of episodes evicted meanwhile there are none.

        Raises: DamagedError: a segment cannot be read.  Cost: some us an episode, and a parse of each segment's.
        """
        found: list[dict[str, Any]] = []
        while len(found) < len(table.id):
            with self.lock:
                self.log.check_open()
                known: dict[int, dict[int, dict[str, Any]]] = {}  # by slot
                for place in range(len(found), min(len(found) + EPISODES, len(table.id))):
                    slot, row = self._last_part(int(table.id[place]), int(table.length[place]))
                    if slot >= 0 and slot not in known:
                        known[slot] = self.log.annotations_in(slot)
                    found.append(decode(known[slot].get(row, {})) if slot >= 0 else {})
        return found

    def _last_part(self, first: int, count: int) -> tuple[int, int]:
        """Return the slot of the last held one of ``count`` steps from the one with the id ``first``, and the first
        one's row there; -1: there is none."""
        index = self.log.index
        slot, row = divmod(first & LEAF_MASK, self.log.stride)
        if index.generation[slot] != first >> LEAF_BITS or row >= index.rows[slot]:
            return -1, -1
        while (count := count - (int(index.rows[slot]) - row)) > 0:
            following = int(index.next[slot])
            if index.gap[slot] or following < 0 or not index.rows[following]:
                break
            slot, row = following, 0
        return slot, row


@dataclass(frozen=True)
class StoredEpisode:
    """Episode of T steps of a store, as far as they are held. Each access to an array decodes it.

    Attributes:
        lane, first_step: the lane, and the number of the first step there, counted from 0 over all its episodes.
        length: T.
        total_reward: the undiscounted return of these steps.
        begun: the first step is the episode's first; otherwise its beginning was evicted.
        ended: "terminated", "truncated" (not terminated), or ``None``: it is unfinished, or its end was evicted.
    """

    lane: int
    first_step: int
    length: int
    total_reward: float
    begun: bool
    ended: Literal["terminated", "truncated"] | None
    _first_id: int = field(repr=False)
    _reader: RunReader = field(repr=False, compare=False)

    @property
    def whole(self) -> bool:
        """Whether all steps of the episode are held, from its first to its last."""
        return self.begun and self.ended is not None

    @property
    def spec(self) -> Spec:
        """The store's spec."""
        return self._reader.spec

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all fields: the spec's, and of columns added later."""
        return tuple(self._reader.fields)

    @property
    def _where(self) -> tuple[int, int]:
        return self._first_id, self.length

    @property
    def obs(self) -> Any:
        """Observations [T + 1, *shape], newest frames only, the final observation last.

        [T, *shape] if ``ended`` is ``None``: the last step's successor may be unknown. In dicts and tuples, as the spec
        has them.
        """
        spec = self._reader.spec
        return spec.join_obs({name: self.observations(name) for name in spec.obs_names})

    def observations(self, name: str) -> Any:
        """Return a field of ``obs`` by its flat name, such as "obs" or "obs.camera": [T + 1, *shape] or [T, *shape];
        one of any length as a ``Ragged``."""
        if name not in self._reader.spec.obs_names:
            raise KeyError(f"episode: {name!r}, expected a field of the observation: {self._reader.spec.obs_names}")
        return self._reader.read(name, *self._where, final=self.ended is not None)

    @property
    def action(self) -> Any:
        """Actions [T, *shape]; in dicts and tuples, as the spec has them."""
        spec = self._reader.spec
        return spec.join_action({name: self._reader.read(name, *self._where) for name in spec.action_names})

    @property
    def reward(self) -> npt.NDArray[np.float32]:
        """Rewards, float32 [T]."""
        return self._reader.rewards(*self._where)

    @property
    def terminated(self) -> Bools:
        """Whether each step terminated the episode, bool [T]."""
        ends: Bools = self._reader.flags(*self._where) & TERMINATED != 0
        return ends

    @property
    def truncated(self) -> Bools:
        """Whether the episode was truncated after each step, bool [T]."""
        ends: Bools = self._reader.flags(*self._where) & TRUNCATED != 0
        return ends

    @property
    def info(self) -> dict[str, Any]:
        """Annotations of the episode, without annotations in evicted segments."""
        return self._reader.annotations(*self._where)

    @property
    def ids(self) -> Ids:
        """Ids of the steps, int64 [T], as ``batch.ids`` has them."""
        return self._reader.ids(*self._where)

    @property
    def shards(self) -> Ints:
        """The steps' shard in a cluster, int64 [T], as ``batch.shards`` has it; -1: this process has them."""
        return np.full(self.length, self._reader.shard, np.int64)

    def _repr_html_(self) -> str:
        facts = ("lane", "first_step", "length", "total_reward", "begun", "ended")
        rows = [(name, getattr(self, name)) for name in facts] + list(self.info.items())
        total = np.cumsum(self.reward, dtype=np.float64)
        chart = line_chart({"return so far": list(enumerate(total.tolist()))}, "steps")
        some = max(1, self.length // MAX_PICTURES)
        fixed = [name for name in self.spec.obs_names if not self.spec.fields[name].ragged]
        sheets = [contact_sheet(self.observations(name)[::some]) for name in fixed]
        return titled(f"episode of {self.length:,} steps", *sheets, chart, table(("", ""), rows))

    def __getitem__(self, name: str) -> Any:
        """Return a field [T, *shape] by its flat name; of a sparse one the last stored value at each step, one of any
        length as a ``Ragged``.

        A column added later has zeros where it was not written; ``"NAME.written"`` tells where it was.

        Raises:
            KeyError: no such field, or steps were evicted.  DamagedError: a segment cannot be read.
        """
        if name not in self.columns:
            raise KeyError(f"episode: no field {name!r}, expected one of {list(self.columns)}")
        return self._reader.read(name, *self._where)


def given_episodes(episodes: Any) -> Iterator[StoredEpisode]:
    """Yield the episodes of an argument: one, or several.  Raises: TypeError."""
    given = [episodes] if isinstance(episodes, StoredEpisode) else episodes
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"delete: episodes={episodes!r:.100}, expected episodes as episodes() gives them")
    for one in given:
        if not isinstance(one, StoredEpisode):
            raise TypeError(f"delete: got {one!r:.100} among the episodes, expected those that episodes() gives")
        yield one


class Episodes(Sequence[StoredEpisode]):
    """Episodes that were in a store when ``Store.episodes`` was called, in its order."""

    def __init__(self, table: Table, reader: RunReader) -> None:
        self._table, self._reader = table, reader

    def _reader_of(self, place: int) -> RunReader:
        return self._reader

    def _some(self, places: slice) -> Episodes:
        return Episodes(self._table.some(places), self._reader)

    def __len__(self) -> int:
        return len(self._table.lane)

    @overload
    def __getitem__(self, place: int) -> StoredEpisode: ...
    @overload
    def __getitem__(self, place: slice) -> Episodes: ...
    def __getitem__(self, place: int | slice) -> StoredEpisode | Episodes:
        if isinstance(place, slice):
            return self._some(place)
        lane, first, length, total, flags, begun, id_ = (array[place].item() for array in self._table)
        ended: Any = "terminated" if flags & TERMINATED else "truncated" if flags & TRUNCATED else None
        return StoredEpisode(lane, first, length, total, begun, ended, id_, self._reader_of(place))

    def __iter__(self) -> Iterator[StoredEpisode]:
        return (self[place] for place in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self):,} episodes, {int(self._table.length.sum()):,} steps>"

    def _repr_html_(self) -> str:
        head = ("lane", "first step", "length", "return", "ended")
        rows = [(one.lane, one.first_step, one.length, f"{one.total_reward:g}", one.ended or "-") for one in self[:10]]
        more = f"<small>and {len(self) - 10:,} more</small>" if len(self) > 10 else ""
        return titled(repr(self), table(head, rows), more)


def checked_order(order: Any) -> Order:
    """Check an argument.  Raises: ValueError."""
    if order not in get_args(Order):
        raise ValueError(f"episodes: order={order!r}, expected one of {', '.join(map(repr, get_args(Order)))}")
    checked: Order = order
    return checked


def checked_lanes(lanes: Any, count: int) -> list[int]:
    """Return the lanes asked for, of ``count``; ``None``: all.  Raises: ValueError, TypeError."""
    if lanes is None:
        return list(range(count))
    array = np.atleast_1d(np.asarray(lanes))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"episodes: lanes={lanes!r}, expected a lane's number, or a list of them")
    wrong = [lane for lane in array.tolist() if not 0 <= lane < count]
    if wrong:
        raise ValueError(f"episodes: lane {wrong[0]}, expected one of the {count} lanes written to")
    return list(dict.fromkeys(array.tolist()))


def ages(table: Table, lane_steps: Ints) -> Ints:
    """Return the number of steps that each episode's lane has made since."""
    return lane_steps[table.lane] - (table.first_step + table.length)


def places_in(order: Order, table: Table, age: Ints) -> Ints:
    """Return the places of a table in another order: the highest return or the longest first; or by ``ages``, the most
    ("oldest") or the fewest ("newest") first."""
    keys = {"oldest": -age, "newest": age, "return": -table.total, "length": -table.length}
    return np.argsort(keys[order], kind="stable")


def find_again(log: StepLog, chosen: Table) -> Table:
    """Find the episodes that begin within those ``chosen`` earlier, and others in the same segments.

    Cost: O(steps) of these segments; as ``find`` where the first step of one was evicted since.
    """
    index, stride = log.index, log.stride
    first = chosen.id & LEAF_MASK
    slots = np.minimum(first // stride, index.slots - 1)
    if (index.generation[slots] != chosen.id >> LEAF_BITS).any() or (index.rows[slots] == 0).any():
        return find(log, np.unique(chosen.lane).tolist(), with_totals=False)
    by_lane, steps = dict[int, set[int]](), Steps(log)
    ends = chosen.first_step + chosen.length
    for lane, slot, row, end in zip(
        chosen.lane.tolist(), slots.tolist(), (first % stride).tolist(), ends.tolist(), strict=True
    ):
        here = by_lane.setdefault(lane, set())
        here.add(slot)
        # To the end of the last episode that begins within: one that was unfinished may have gone on.
        while int(index.next[slot]) >= 0 and (
            index.first_step[slot] + index.rows[slot] < end or not (steps.flags(slot)[max(row, 0) :] & ENDED).any()
        ):
            slot, row = int(index.next[slot]), 0
            here.add(slot)
    parts = [
        find_in(log, sorted(here, key=lambda slot: int(index.first_step[slot])), with_totals=False)
        for _, here in sorted(by_lane.items())
    ]
    return joined([part for part in parts if part is not None])


def unfinished(log: StepLog, table: Table, fed: Collection[int]) -> Bools:
    """Return which episodes are parts of one that is under way: bool [n].

    Args:
        fed: lanes whose episodes arrive in segments.
    """
    lanes, places = np.unique(table.lane, return_inverse=True)
    begun = np.array([_running_from(log, lane, lane in fed) for lane in lanes.tolist()], np.int64)
    found: Bools = table.first_step + table.length > begun[places]
    return found


def _running_from(log: StepLog, lane: int, fed: bool) -> int:
    """Return the lane's number of the first step of the episode under way; without one, of the next step."""
    if not fed:
        return log.opened.running_episode(lane)
    index, end, slot = log.index, int(log.opened.steps[lane]), int(log.opened.slots[lane])
    while slot >= 0 and not index.rows[slot]:
        slot = int(index.previous[slot])
    if slot < 0 or (flags := Steps(log).flags(slot))[-1] & ENDED:
        return end
    starts = np.flatnonzero(flags & START)
    return int(index.first_step[slot]) + (int(starts[-1]) if len(starts) else -int(index.episode_step[slot]))


def within(table: Table, chosen: Table) -> Bools:
    """Return which episodes of ``table`` begin within one of those ``chosen`` earlier, of which steps may have been
    evicted since: bool [n]."""
    found = np.zeros(len(table.lane), np.bool_)
    for lane in np.unique(chosen.lane).tolist():
        here, of_lane = np.flatnonzero(table.lane == lane), chosen.lane == lane
        first, end = chosen.first_step[of_lane], chosen.first_step[of_lane] + chosen.length[of_lane]
        order = np.argsort(first, kind="stable")
        place = np.searchsorted(first[order], table.first_step[here], side="right") - 1
        found[here] = (place >= 0) & (table.first_step[here] < end[order][place])
    return found


def step_ids(reader: EpisodeReader, table: Table) -> Ints:
    """Return the ids of all steps of episodes, int64 [n]. The store's lock is held.  Raises: KeyError: evicted."""
    parts = [reader.ids(*where) for where in zip(table.id.tolist(), table.length.tolist(), strict=True)]
    return np.concatenate([np.zeros(0, np.int64), *(np.asarray(part) for part in parts)])
