"""Ids that carry a tag of their store and of the kind of items they number, so that other views refuse them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from sharpwave.arrays import Ints
from sharpwave.native import core


class Tag(NamedTuple):
    """Store and kind of items that ids number.

    Attributes:
        store: the store's own object.
        space: the view's ``id_space``: views of the same one can use each other's ids.
    """

    store: object
    space: str


SEVERAL = object()
"""Tag of ids of more than one."""


class Ids(np.ndarray):
    """Array int64 [n] whose slices, copies, selections by index and concatenations keep its tag.

    Results of other functions (``np.where``, ``rng.permutation``), ``np.asarray(ids)``, lists, tensors and unpickled
    ids are plain numbers, which no store can tell from its own.

    Attributes:
        tag: a ``Tag``; ``None``: unknown.
    """

    tag: object | None = None
    __array_priority__ = 1.0  # otherwise concatenations would be plain

    __array_finalize__ = core.keep_tag()  # of the array that one derives from

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(func, types, args, kwargs)
        tag = _joined(_ids_in((*args, *kwargs.values())))
        for made in _ids_in((result,)):
            if made.tag is not tag:
                made.tag = tag
        return result


def tagged(ids: Ints, tag: object) -> Ids:
    """Return ids over the same memory."""
    made = ids.view(Ids)
    made.tag = tag
    return made


def tag_of(ids: Any) -> object | None:
    """Return the tag of ids; ``None`` if unknown."""
    if isinstance(ids, Ids):
        return ids.tag
    return _joined(_ids_in((ids,))) if isinstance(ids, (list, tuple)) else None


def check_tag(what: str, ids: Any, tag: Tag) -> None:
    """Refuse ids whose known tag differs from ``tag``.  Raises: ValueError."""
    other = tag_of(ids)
    if other is None or other == tag:
        return
    unchecked = "np.asarray(ids) is not checked"
    if isinstance(other, Tag) and other.store is tag.store:
        raise ValueError(
            f"{what}: these ids are of {other.space}, expected ids of {tag.space}; pass them to the view that they "
            f"were sampled from. {unchecked}"
        )
    several = "of several views, or " if other is SEVERAL else ""
    raise ValueError(
        f"{what}: these ids are {several}of another store (or of one that was opened again), where they name other "
        f"steps; pass them to a view of the store that they were sampled from. {unchecked}"
    )


def _ids_in(values: Any) -> Iterator[Ids]:
    for value in values:
        if isinstance(value, Ids):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _ids_in(value)


def _joined(found: Iterator[Ids]) -> object | None:
    tags = {one.tag for one in found if one.tag is not None}
    return None if not tags else tags.pop() if len(tags) == 1 else SEVERAL
