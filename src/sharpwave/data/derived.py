"""Columns computed from others, episode by episode, while the store goes on."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import as_array
from sharpwave.data.progress_bar import shown
from sharpwave.nesting import map_leaves
from sharpwave.spec import Field
from sharpwave.views.episodes import SINCE, StoredEpisode
from sharpwave.views.view_replay import without_gradient

FLUSH_S = 30.0
"""Seconds after which values are flushed to disk: the most that a kill costs."""
PART_STEPS = 4096
"""Limit of the steps that a function gets at a time with ``by="step"``."""
PARTS = ("obs", "action", "reward", "terminated", "truncated")
"""Attributes of an episode that a function can need, beside fields by their flat names."""


class Deriving(Protocol):
    """Store or cluster, one column of which is computed. ``columns``: columns added later, by name."""

    @property
    def columns(self) -> Mapping[str, Field]: ...

    def add_column(self, name: str, field: Field) -> None: ...

    def episodes(self, where: Any) -> list[StoredEpisode]: ...

    def read_ahead(
        self, episodes: Sequence[StoredEpisode], number: int, name: str | None, needs: Sequence[str]
    ) -> None:
        """Prepare to read an episode, and others behind it: whether it has its values of ``name``, if that is given,
        and the arrays ``needs`` unless it has."""

    def is_written(self, name: str, episode: StoredEpisode) -> bool:
        """Return whether all steps of an episode have a value.  Raises: KeyError: steps were evicted or deleted."""

    def write(self, name: str, episode: StoredEpisode, part: slice, values: npt.NDArray[Any]) -> int:
        """Write values of some of an episode's steps, or keep them for a later call; return the number of steps that
        were written meanwhile."""

    def flush(self, *, disk: bool = True) -> int:
        """Write kept values, and flush to disk; return the number of steps that were written."""


class StoreColumns:
    """A store of this process, for ``derive``."""

    def __init__(self, store: Any) -> None:
        self._store = store

    @property
    def columns(self) -> Mapping[str, Field]:
        """Columns added later, by name."""
        columns: dict[str, Field] = self._store.columns
        return columns

    def add_column(self, name: str, field: Field) -> None:
        """Add a column."""
        self._store.add_column(name, field)

    def episodes(self, where: Any) -> list[StoredEpisode]:
        """Return the episodes for which a condition holds."""
        return list(self._store.episodes(where=where))

    def read_ahead(
        self, episodes: Sequence[StoredEpisode], number: int, name: str | None, needs: Sequence[str]
    ) -> None:
        """Do nothing: reads take no time on the way."""

    def is_written(self, name: str, episode: StoredEpisode) -> bool:
        """Return whether all steps of an episode have a value."""
        return bool(self._store.read_column(name, episode.ids)[1].all())

    def write(self, name: str, episode: StoredEpisode, part: slice, values: npt.NDArray[Any]) -> int:
        """Write values."""
        try:
            ids = episode.ids[part]
        except KeyError:  # evicted while the function ran
            return 0
        return int(self._store.write_column(name, ids, values))

    def flush(self, *, disk: bool = True) -> int:
        """Flush values to disk."""
        if disk:
            self._store.flush(views=False)
        return 0


def derive(
    target: Deriving,
    name: str,
    function: Callable[..., npt.ArrayLike],
    needs: Sequence[str] | None,
    field: Field | None,
    by: str,
    again: bool,
    unfinished: bool,
    where: Any,
    progress: bool | Callable[[int, int], None] | None,
) -> int:
    """Compute a column, as ``Store.derive`` says."""
    if by not in ("episode", "step"):
        raise ValueError(f"derive: by={by!r}, expected 'episode' or 'step'")
    if not callable(function):
        raise TypeError(f"derive: function={function!r}, expected a function of an episode's arrays")
    if isinstance(needs, str):
        raise TypeError(f"derive: needs={needs!r}, expected a list of names")
    if needs is None and by == "step":
        raise ValueError("derive: by='step' without needs, expected the names of the arrays that the function gets")
    every = again or name not in target.columns
    if name in target.columns:
        if field is not None and field != target.columns[name]:
            raise ValueError(f"derive: field={field!r}, but the column {name!r} is {target.columns[name]!r}")
    elif field is not None:
        target.add_column(name, field)
    episodes = [one for one in target.episodes(where) if one.whole or unfinished]
    done, flushed = 0, time.monotonic()
    try:
        with shown(progress, f"deriving {name}", sum(one.length for one in episodes)) as advance:
            for number, episode in enumerate(episodes):
                target.read_ahead(episodes, number, None if every else name, needs or ())
                for part, given in _lacking(target, None if every else name, episode, needs, by):
                    values = _values(name, function, given, part.stop - part.start, episode)
                    if name not in target.columns:
                        target.add_column(name, _field_of(values))
                    done += target.write(name, episode, part, values)
                advance(episode.length)
                if time.monotonic() - flushed > FLUSH_S:
                    done += target.flush()
                    flushed = time.monotonic()
    except BaseException:
        with suppress(Exception):
            target.flush(disk=False)
        raise
    done += target.flush(disk=False)
    if done:
        target.flush()
    return done


def _lacking(
    target: Deriving, name: str | None, episode: StoredEpisode, needs: Sequence[str] | None, by: str
) -> list[tuple[slice, list[Any]]]:
    """Return the parts of an episode to compute: none, if it has its values of ``name``, or is held no longer."""
    try:
        if name is not None and target.is_written(name, episode):
            return []
        return list(_parts(episode, needs, by))
    except KeyError as error:
        if SINCE not in str(error):
            raise
        return []


def _parts(episode: StoredEpisode, needs: Sequence[str] | None, by: str) -> Iterator[tuple[slice, list[Any]]]:
    """Yield the steps that the function is called for at a time, and the arrays it gets."""
    arrays = [episode] if needs is None else [_array(episode, one) for one in needs]
    if by == "episode":
        yield slice(0, episode.length), arrays
        return
    for begin in range(0, episode.length, PART_STEPS):
        part = slice(begin, min(begin + PART_STEPS, episode.length))
        yield part, [map_leaves(operator.itemgetter(part), one) for one in arrays]


def _array(episode: StoredEpisode, name: str) -> Any:
    return getattr(episode, name) if name in PARTS else episode[name]


def _values(
    name: str, function: Callable[..., npt.ArrayLike], given: list[Any], count: int, episode: StoredEpisode
) -> npt.NDArray[Any]:
    what = f"derive: {name}: lane {episode.lane}, the episode from step {episode.first_step}"
    try:
        values = function(*given)
        array = as_array(name, without_gradient(values) if hasattr(values, "detach") else values)
    except Exception as error:
        error.add_note(what)
        raise
    if not array.ndim or len(array) != count or array.dtype.kind not in "buif":
        raise ValueError(f"{what}: got values of shape {array.shape} {array.dtype}, expected {count} rows of numbers")
    return array


def _field_of(values: npt.NDArray[Any]) -> Field:
    kind = np.dtype(np.float32) if values.dtype.kind == "f" else values.dtype
    return Field(values.shape[1:], kind.name)
