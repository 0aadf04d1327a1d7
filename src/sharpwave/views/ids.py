"""Ids that carry their store's tag, so that another store refuses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


SEVERAL = object()
"""Tag of ids from more than one store."""


class Ids(np.ndarray):
    """Array int64 [n] whose slices, copies, selections and concatenations keep the store's tag.

    ``np.asarray(ids)``, lists and tensors of it are plain numbers, which no store can tell from its own.

    Attributes:
        store: the store's tag, the same object for all of its ids; ``None``: unknown.
    """

    store: object | None = None
    __array_priority__ = 1.0  # otherwise concatenations would be plain

    def __array_finalize__(self, source: Any) -> None:
        if isinstance(source, Ids):  # 0.35 us less than getattr(source, "store", None) where it is a plain array
            self.store = source.store

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(func, types, args, kwargs)
        tag = _joined(_ids_in((*args, *kwargs.values())))
        for made in _ids_in((result,)):
            if made.store is not tag:
                made.store = tag
        return result


def tagged(ids: Ints, tag: object) -> Ids:
    """Return ids of a store over the same memory."""
    made = ids.view(Ids)
    made.store = tag
    return made


def tag_of(ids: Any) -> object | None:
    """Return the tag of the store of ids; ``None`` if unknown."""
    if isinstance(ids, Ids):
        return ids.store
    return _joined(_ids_in((ids,))) if isinstance(ids, (list, tuple)) else None


def _ids_in(values: Any) -> Iterator[Ids]:
    for value in values:
        if isinstance(value, Ids):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _ids_in(value)


def _joined(found: Iterator[Ids]) -> object | None:
    tags = {one.store for one in found if one.store is not None}
    return None if not tags else tags.pop() if len(tags) == 1 else SEVERAL
