"""Episodes of a shard, for its clients: which there are, their content, and their deletion.

A client names an episode by the id of its first step, as this life of the shard has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sharpwave.json_values import encode
from sharpwave.memory.segment_index import LEAF_MASK
from sharpwave.ragged import Ragged
from sharpwave.serve.server import Client, Reply
from sharpwave.serve.wire import Frame, WireError, array_in
from sharpwave.spec import Field
from sharpwave.store import Store
from sharpwave.views.episodes import EpisodeReader, StoredEpisode, ages

IDS, FLAGS, REWARDS = ".ids", ".flags", ".rewards"
"""Names, which no field has, of what every step has."""
OF_STEPS = {IDS: Field((), "int64"), FLAGS: Field((), "uint8"), REWARDS: Field((), "float32")}
REPLY_BYTES = 4 << 20
"""Bytes of arrays of a reply, unless a single step has more, or the shard's memory for requests is short."""
MAX_RUNS = 4096
"""Episodes of a request."""
GONE = -1


class EpisodeArray(NamedTuple):
    """Array of episodes: the name of a field, or of ``OF_STEPS``; and whether the final observation of ended
    episodes belongs to it."""

    name: str
    final: bool = False


def table_of(store: Store, client: Client, frame: Frame) -> Reply:
    """Return the episodes for which a condition holds, an array for each column of ``Table``, and their ``age``."""
    where = frame.head.get("where")
    if where is not None and not isinstance(where, str):
        raise WireError(f"episodes where {where!r:.100}, expected a condition")
    table = store.episodes(where=where)._table
    client.budget.work(client.holding, 2 * sum(array.nbytes for array in table), "episodes")
    return {}, {**table._asdict(), "age": ages(table, store.lane_steps)}


def annotations_of(store: Store, frame: Frame) -> Reply:
    """Return the annotations of one episode.  Raises: KeyError: steps of it were evicted."""
    (first, count, _), *_ = _runs(store, frame)
    return {"info": encode(_reader(store).annotations(first, count), "episode")}, {}


def arrays_of(store: Store, client: Client, frame: Frame) -> Reply:
    """Return arrays of episodes, as many of them in order as a reply holds.

    The request has the episodes' ``first`` ids, their numbers of steps ``count``, and whether they ``ended``; and a
    list ``arrays`` of ``EpisodeArray``. Of the first episode it has had ``begin`` steps. The reply has ``steps`` [k],
    the number of steps of each of the first k that it brings, of which the last may be a part; or ``GONE``. Each array
    k is a part "k", uint8 [rows, row bytes]; of rows of any length it is "values:k" and "lengths:k". A column
    that the shard lacks has no part.
    """
    reader, runs, asked = _reader(store), _runs(store, frame), _asked(frame)
    fields = OF_STEPS | dict(store._log.late.spec.fields)
    wanted = [(number, one) for number, one in enumerate(asked) if one.name in fields]
    step_bytes = sum(max(1, fields[one.name].typical_bytes) for _, one in wanted) or 1
    left = max(step_bytes, min(REPLY_BYTES, client.budget.limit_bytes // 16))
    begin, steps = frame.head.get("begin", 0), list[int]()
    found: dict[int, list[Any]] = {number: [] for number, _ in wanted}
    if type(begin) is not int or not 0 <= begin < runs[0][1]:
        raise WireError(f"steps of an episode from {begin!r} on")
    for first, count, ended in runs:
        some = min(count - begin, left // step_bytes)
        if some <= 0:
            break
        client.budget.work(client.holding, 2 * some * step_bytes, "episodes")
        try:
            at = first if not begin else int(reader.ids(first, begin + 1)[-1])
            last = ended and begin + some == count
            parts = [_array(reader, one.name, at, some, last and one.final) for _, one in wanted]
        except KeyError:
            steps.append(GONE)
            begin = 0
            continue
        nbytes = sum(_nbytes(part) for part in parts)
        if nbytes > some * step_bytes:
            client.budget.work(client.holding, 2 * (nbytes - some * step_bytes), "episodes")
        for (number, _), part in zip(wanted, parts, strict=True):
            found[number].append(part)
        steps.append(some)
        left -= max(nbytes, step_bytes * some)
        if begin + some < count:
            break
        begin = 0
    sent: dict[str, Any] = {"steps": np.array(steps, np.int64)}
    for number, one in wanted:
        sent |= _parts(number, fields[one.name], found[number])
    return {}, sent


def chosen(store: Store, frame: Frame) -> list[StoredEpisode]:
    """Return the episodes that a request names.  Raises: WireError."""
    reader, runs = _reader(store), _runs(store, frame)
    lanes, steps = (array_in(frame.parts, name, np.int64, len(runs)).tolist() for name in ("lane", "first_step"))
    if not all(0 <= lane < store.lanes for lane in lanes):
        raise WireError(f"a deletion of episodes of lanes {lanes!r:.100}")
    return [
        StoredEpisode(lane, step, count, 0.0, False, None, first, reader)
        for lane, step, (first, count, _) in zip(lanes, steps, runs, strict=True)
    ]


def _reader(store: Store) -> EpisodeReader:
    return EpisodeReader(store._log, store._lock, store._life)


def _asked(frame: Frame) -> list[EpisodeArray]:
    asked = frame.head.get("arrays")
    if not isinstance(asked, list):
        raise WireError(f"arrays {asked!r:.100} of episodes, expected names")
    found = [EpisodeArray(*one) for one in asked if isinstance(one, list) and len(one) == 2]
    if len(found) != len(asked) or not all(isinstance(name, str) and isinstance(final, bool) for name, final in found):
        raise WireError(f"arrays {asked!r:.100} of episodes, expected names")
    return found


def _runs(store: Store, frame: Frame) -> list[tuple[int, int, bool]]:
    """Return the first id of each episode of a request, its number of steps, and whether it ended.

    Raises: WireError: or ids that no step has.
    """
    first = array_in(frame.parts, "first", np.int64, -1)
    many, most = len(first), store._log.index.leaves
    count, ended = array_in(frame.parts, "count", np.int64, many), array_in(frame.parts, "ended", np.bool_, many)
    fits = 0 < many <= MAX_RUNS and count.min() >= 1 and count.max() <= most
    if not fits or first.min() < 0 or (first & LEAF_MASK).max() >= most:
        raise WireError(f"{many:,} episodes of up to {count.max(initial=0):,} steps")
    return list(zip(first.tolist(), count.tolist(), ended.tolist(), strict=True))


def _array(reader: EpisodeReader, name: str, first: int, count: int, final: bool) -> Any:
    if name == IDS:
        return np.asarray(reader.ids(first, count))
    if name == FLAGS:
        return reader.flags(first, count)
    if name == REWARDS:
        return reader.rewards(first, count)
    return reader.read(name, first, count, final=final)


def _nbytes(part: Any) -> int:
    return int(part.values.nbytes + part.offsets.nbytes) if isinstance(part, Ragged) else int(part.nbytes)


def _parts(number: int, kind: Field, found: Sequence[Any]) -> dict[str, Any]:
    """Return arrays of the same field as parts of a reply."""
    if not kind.ragged:
        rows = [one.reshape(len(one), -1).view(np.uint8) for one in map(np.ascontiguousarray, found)]
        return {f"{number}": np.concatenate([np.zeros((0, kind.row_bytes), np.uint8), *rows])}
    return {
        f"values:{number}": np.concatenate([np.zeros((0, *kind.inner), kind.np_dtype), *(one.values for one in found)]),
        f"lengths:{number}": np.concatenate([np.zeros(0, np.int64), *(one.lengths for one in found)]),
    }
