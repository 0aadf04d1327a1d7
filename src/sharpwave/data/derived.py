"""Columns computed from others, episode by episode, while the store goes on."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import as_array
from sharpwave.data.progress_bar import shown
from sharpwave.nesting import map_leaves
from sharpwave.spec import Field
from sharpwave.views.episodes import StoredEpisode
from sharpwave.views.replay import without_gradient

FLUSH_S = 30.0
"""Seconds after which values are flushed to disk: the most that a kill costs."""
PART_STEPS = 4096
"""Limit of the steps that a function gets at a time with ``by="step"``."""
PARTS = ("obs", "action", "reward", "terminated", "truncated")
"""Attributes of an episode that a function can need, beside fields by their flat names."""


def derive(
    store: Any,
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
    if name in store.columns:
        if field is not None and field != store.columns[name]:
            raise ValueError(f"derive: field={field!r}, but the column {name!r} is {store.columns[name]!r}")
    elif field is not None:
        store.add_column(name, field)
    episodes = [one for one in store.episodes(where=where) if one.whole or unfinished]
    done, flushed = 0, time.monotonic()
    with shown(progress, f"deriving {name}", sum(one.length for one in episodes)) as advance:
        for episode in episodes:
            try:
                ids = episode.ids
                known = not again and name in store.columns and store.read_column(name, ids)[1].all()
                parts = [] if known else list(_parts(episode, needs, by))
            except KeyError as error:
                if "evicted" not in str(error):
                    raise
                parts = []
            for part, given in parts:
                values = _values(name, function, given, part.stop - part.start, episode)
                if name not in store.columns:
                    store.add_column(name, _field_of(values))
                done += store.write_column(name, ids[part], values)
            advance(episode.length)
            if time.monotonic() - flushed > FLUSH_S:
                store.flush(views=False)
                flushed = time.monotonic()
    if done:
        store.flush(views=False)
    return done


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
