"""Replay buffers for Tianshou whose observations are in a Sharpwave store.

Use ``VectorReplayBuffer(100_000, 8, ram="2GiB")`` instead of ``tianshou.data``'s; the rest stays. See
docs/frameworks/tianshou.md.
"""

from sharpwave.extras import install

try:
    import tianshou.data  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"Tianshou's buffers need Tianshou: {install('tianshou')}") from error

from sharpwave.integrations.tianshou.buffers import (
    CachedReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)
from sharpwave.integrations.tianshou.stored import EvictedError

__all__ = [
    "CachedReplayBuffer",
    "EvictedError",
    "PrioritizedReplayBuffer",
    "PrioritizedVectorReplayBuffer",
    "ReplayBuffer",
    "VectorReplayBuffer",
]
