"""Two stores whose steps show their numbers, views of them, and blends of those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing  # before a thread does, whose import a forked child would wait for

import sharpwave as sw

SPEC = sw.Spec(obs=sw.Field((16, 16), "uint8", stack=2), action=sw.Field((), "int64"))
FIRST = (0, 100_000)
"""Number of the first step of each store; a step's number is its action, and is drawn into its picture."""


def picture(number: int) -> np.ndarray[Any, Any]:
    made = np.full((16, 16), number % 251, np.uint8)
    made[0, :3] = number >> 16, number >> 8 & 255, number & 255
    return made


def append(store: sw.Store, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.append(obs=picture(number), action=number, reward=1.0, terminated=number % 40 == 39, truncated=False)


def made(count: int = 400, disks: Path | None = None, **settings: Any) -> list[sw.Store]:
    """Two stores of ``count`` steps; on disk with memory for a part of them."""
    stores = []
    for k, first in enumerate(FIRST):
        limits: dict[str, Any] = {"capacity": 2000} | ({} if disks is None else {"disk": disks / str(k), "ram": "4MiB"})
        stores.append(sw.Store(SPEC, segment_steps=16, seed=k, codec="raw", **limits | settings))
        append(stores[k], first, count)
    return stores


def transitions(stores: list[sw.Store], **settings: Any) -> list[Any]:
    return [store.transitions(**settings) for store in stores]


def prioritized(stores: list[sw.Store], **settings: Any) -> list[Any]:
    return [store.transitions(sampler=sw.Prioritized(alpha=0.7, beta=0.5), **settings) for store in stores]


def windows(stores: list[sw.Store]) -> list[Any]:
    settings: Any = {"burn_in": 2, "stride": 3, "n_step": 2}
    return [store.sequences(5, sampler=sw.Prioritized(alpha=0.9, beta=0.6), **settings) for store in stores]


def blend_of(views: list[Any], shares: tuple[Any, Any] = (0.3, 0.7)) -> sw.Blend[Any]:
    return sw.Blend([(share, view) for share, view in zip(shares, views, strict=True)], seed=4)


def falling(samples: int) -> float:
    return max(0.1, 1 - samples / 300)


def right(batch: Any, first: int = 0) -> None:
    """Pictures are of the steps whose numbers are the actions, and those of the view that ``source`` says.

    Args:
        first: the store of the first view.
    """
    real = batch.mask if hasattr(batch, "mask") else np.ones(len(batch), bool)
    numbers, pictures = batch.action[real], batch.obs[:, : batch.action.shape[1]][real] if real.ndim > 1 else batch.obs
    newest = pictures[..., -1, :, :]
    found = newest[..., 0, 0].astype(int) << 16 | newest[..., 0, 1].astype(int) << 8 | newest[..., 0, 2].astype(int)
    np.testing.assert_array_equal(found, numbers)
    source = np.broadcast_to(batch.source.reshape(-1, *[1] * (real.ndim - 1)), real.shape)[real]
    np.testing.assert_array_equal(numbers >= FIRST[1], source != first)


def same(one: Any, other: Any) -> bool:
    names = ("obs", "action", "reward", "discount", "ids", "source", "weights", "probabilities")
    return all(np.array_equal(one[name], other[name]) for name in names)


def errors_of(batch: Any, blend: sw.Blend[Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return rng.exponential(size=(len(batch), *blend.views[0].view.error_shape))
