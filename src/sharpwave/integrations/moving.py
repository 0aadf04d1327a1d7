"""Moving of all transitions from one store to another whose observations are stored in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.store import Store
from sharpwave.views.batch import Batch
from sharpwave.views.transitions import NStep

Array = npt.NDArray[Any]
Named = dict[str, Array]

BATCH = 256


def move(old: Store, new: Store, single: str | None, changed: Callable[[Named], Named]) -> None:
    """Append all transitions of ``old`` to ``new``, lane by lane, in order; episodes that go on there go on here.

    Args:
        single: name of the observation where it is no dict.
        changed: returns observations as ``new`` has them, [n, *shape] by name, of those that ``old`` returns.

    Cost: decoding and encoding.
    """
    view = old.view(NStep(1, 1.0, newest=True), name="move")
    ids = view.sampleable_ids()
    where = _places(view, ids)
    order = np.lexsort((where[1], where[0]))
    for begin in range(0, len(ids), BATCH):
        batch = view.fetch(np.asarray(ids)[order[begin : begin + BATCH]])
        parts = [changed(_named(obs, single)) for obs in (batch.obs, batch.next_obs)]
        for row, lane in enumerate(batch.lane.tolist()):
            obs, next_obs = (_joined({k: v[row] for k, v in part.items()}, single) for part in parts)
            new.append(
                lane=lane,
                obs=obs,
                next_obs=next_obs,
                action=batch.action[row],
                reward=batch.reward[row],
                terminated=bool(batch.terminated[row]),
                truncated=bool(batch.truncated[row]),
            )


def _places(view: Any, ids: Array) -> tuple[Array, Array]:
    """Return lanes and steps of ``ids``: a batch at a time."""
    found: list[Batch] = [view.fetch(np.asarray(ids)[k : k + BATCH]) for k in range(0, len(ids), BATCH)]
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate([b.lane for b in found]), np.concatenate([b.step for b in found])


def _named(obs: Any, single: str | None) -> Named:
    return obs if single is None else {single: obs}


def _joined(obs: Named, single: str | None) -> Any:
    return obs if single is None else obs[single]
