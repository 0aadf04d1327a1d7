"""Arguments of buffers: Tianshou's, and checks of the store's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sharpwave.spec import Field, Spec
from sharpwave.store import Store

THEIRS = (
    *("size", "total_size", "buffer_num", "stack_num", "ignore_obs_next", "save_only_last_obs", "sample_avail"),
    *("random_seed", "alpha", "beta", "weight_norm"),
)
"""Arguments of Tianshou's buffers; others are the store's."""


def checked_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a store.  Raises: ValueError, TypeError: invalid settings."""
    if "retention" in settings:
        raise ValueError("retention: expected none; the oldest are evicted, as in Tianshou's buffers")
    disk = settings.get("disk")
    if disk is not None and (Path(disk) / "store.json").exists():
        raise ValueError(
            f"disk={str(disk)!r} already holds a store; load the buffer saved with it, or give an empty folder"
        )
    in_memory = {name: value for name, value in settings.items() if name not in ("disk", "disk_limit", "on_full")}
    Store(Spec(obs=Field((1,), "uint8"), action=Field((), "int64")), **in_memory).close()
    return settings
