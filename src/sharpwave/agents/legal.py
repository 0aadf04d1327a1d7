"""Legal actions of a single agent: what its observations say of them. The value of an illegal action is -infinity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.agents.protocol import Spaces
from sharpwave.teams import ACTION_MASK

if TYPE_CHECKING:
    from torch import Tensor


def legal_in(spaces: Spaces, obs: Any) -> Any:
    """Return which actions are legal, bool [..., A]; ``None``: all, in spaces without a mask.

    Where a mask has none, all are: in final states, behind which no action is made, and in padding.

    Args:
        obs: observations [..., ...] by part, arrays or tensors.
    """
    if not spaces.masked:
        return None
    mask = obs[ACTION_MASK] != 0
    return mask | ~mask.any(-1)[..., None]


def with_legal(values: Tensor, legal: Tensor | None, taken: Tensor | None = None) -> Tensor:
    """Return values or logits [..., A], those of illegal actions -infinity.

    Args:
        legal: as from ``legal_in``.
        taken: int64 [...], actions that keep their value: those of data may have been illegal.
    """
    if legal is None:
        return values
    illegal = ~legal if taken is None else (~legal).scatter(-1, taken.unsqueeze(-1), False)
    return values.masked_fill(illegal, -math.inf)


def legal_rows(values: npt.NDArray[np.float32], legal: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.float32]:
    """Do as ``with_legal``, for arrays [N, A]."""
    return values if legal is None else np.where(legal, values, np.float32(-np.inf))
