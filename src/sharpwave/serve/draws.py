"""How one batch is divided among shards, so that each item is drawn in proportion to its mass in all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Share:
    """One shard's part of a batch.

    Attributes:
        shard: its number in the cluster. ``begin``, ``end``: items of the batch that it draws.
        points: float64 [end - begin], from 0 to below 1, where in the shard's own mass they are, in random order.
        probability: with which a point of the whole mass was in this shard's part of it.
    """

    shard: int
    begin: int
    end: int
    points: Floats
    probability: float


def divide(masses: Floats, batch_size: int, rng: np.random.Generator) -> list[Share]:
    """Divide a batch by points that are stratified over the sum of ``masses``: one in each of its equal parts.

    An item whose shard draws it with probability p is drawn with probability ``share.probability * p``, whatever the
    shard's mass has become since: the weights that follow from it are unbiased when ``masses`` are out of date.

    Args:
        masses: float64 [shards], of which one at least is above 0.

    Cost: 20 us.
    """
    ends = np.cumsum(masses)
    total = float(ends[-1])
    points = (np.arange(batch_size) + rng.random(batch_size)) * (total / batch_size)
    bounds = np.searchsorted(points, ends)
    bounds[np.flatnonzero(masses)[-1] :] = batch_size  # rounding may push the last points past the total
    shares = []
    begin = 0
    for shard, end in enumerate(bounds.tolist()):
        mass = float(masses[shard])
        if end > begin and mass > 0:
            inside = (points[begin:end] - (float(ends[shard]) - mass)) / mass
            np.clip(inside, 0.0, np.nextafter(1.0, 0.0), out=inside)
            shares.append(Share(shard, begin, end, rng.permutation(inside), mass / total))
            begin = end
    return shares
