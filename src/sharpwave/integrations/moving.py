"""Moving of all transitions to a store that stores observations by other stacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.store import Store
from sharpwave.views.transitions import NStep

Array = npt.NDArray[Any]
Named = dict[str, Array]

BATCH = 256


def move(old: Store, new: Store, single: str | None, changed: Callable[[Named], Named]) -> None:
    """Append all transitions of ``old`` to ``new``, lane by lane, in order; unfinished episodes stay unfinished.

    Args:
        single: name of the observation, if it is no dict.
        changed: converts observations of ``old``, [n, *shape] by name, to the form of ``new``.

    Cost: decoding and encoding all steps.
    """
    view = old.view(NStep(1, 1.0, newest=True), name="move")
    steps = old.lane_steps.tolist()
    lanes = [old.ids(lane, np.arange(max(0, end - len(old)), end), missing="mask") for lane, end in enumerate(steps)]
    ids = np.concatenate([found[found >= 0] for found in lanes]) if lanes else np.empty(0, np.int64)
    for begin in range(0, len(ids), BATCH):
        batch = view.fetch(ids[begin : begin + BATCH])
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


def _named(obs: Any, single: str | None) -> Named:
    return obs if single is None else {single: obs}


def _joined(obs: Named, single: str | None) -> Any:
    return obs if single is None else obs[single]
