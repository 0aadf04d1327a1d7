"""Several samplers that share each batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sharpwave.arguments import is_number
from sharpwave.arrays import Floats, Ints
from sharpwave.sampling.sampler_protocol import Draw, Sampler, check_exponents, check_sampler, described


@dataclass
class Mixture:
    """Sampler that shares each batch among several: ``Mixture([(0.75, Prioritized()), (0.25, Uniform())])``.

    Of a batch of n a sampler of share s draws s n items, rounded at random so that this holds on average. An item's
    probability is the mixture's, ``sum_k s_k P_k``, regardless of the sampler that drew it; importance weights follow.
    A ``Fifo`` or ``Lifo`` that draws m items has probability 1/m for each of them and 0 for all others. The samplers'
    items are shuffled together.

    Args:
        parts: (share, sampler); shares are positive, and divided by their sum.
        beta: share of the bias that weights undo, 0 to 1. ``sample(beta=)`` overrides it.

    Raises:
        ValueError, TypeError: naming the argument.
    """

    parts: Sequence[tuple[float, Sampler]]
    beta: float = 0.4
    keeps_order: ClassVar[bool] = False
    _one: Draw = field(default_factory=lambda: Draw.of(1), init=False, repr=False)

    def __post_init__(self) -> None:
        check_exponents(self, beta=self.beta)
        if not isinstance(self.parts, Sequence) or not self.parts:
            raise TypeError(f"Mixture: parts={self.parts!r}, expected a list of (share, sampler), at least one")
        for part in self.parts:
            if not isinstance(part, tuple) or len(part) != 2:
                raise TypeError(
                    f"Mixture: part {part!r}, expected (share, sampler), such as (0.5, sharpwave.Uniform())"
                )
            check_sampler(f"Mixture: part {part!r} is no (share, sampler): sampler", part[1])
            share = part[0]
            if not is_number(share) or not 0 < share < math.inf:
                raise ValueError(f"Mixture: share {share!r} of {part[1]!r}, expected a positive, finite number")
        if len({id(sampler) for _, sampler in self.parts}) < len(self.parts):
            raise ValueError("Mixture: the same sampler object twice; make a new one for each part")
        shares = np.array([share for share, _ in self.parts], np.float64)
        self._shares = shares / shares.sum()
        self._samplers = [sampler for _, sampler in self.parts]
        self._inserted = 0  # parts that hold the items of an insert that was interrupted

    @property
    def in_order(self) -> bool:
        return any(sampler.in_order for sampler in self._samplers)

    def bind(self, groups: int, group_size: int) -> None:
        for sampler in self._samplers:
            sampler.bind(groups, group_size)

    def grow(self, groups: int) -> None:
        for sampler in self._samplers:
            sampler.grow(groups)

    def insert(self, groups: Ints, begins: Ints, ends: Ints) -> None:
        """Insert into every part. Repeating a call that raised continues with the part that ran out of memory."""
        while self._inserted < len(self._samplers):
            self._samplers[self._inserted].insert(groups, begins, ends)
            self._inserted += 1
        self._inserted = 0

    def remove(self, group: int) -> None:
        for sampler in self._samplers:
            sampler.remove(group)

    def exclude(self, items: Ints) -> Callable[[], None]:
        undos: list[Callable[[], None]] = []

        def undo() -> None:
            for one in reversed(undos):
                one()

        try:
            for sampler in self._samplers:
                undos.append(sampler.exclude(items))
        except BaseException:  # out of memory: items are excluded from all parts or from none
            undo()
            raise
        return undo

    def readmit(self, items: Ints) -> bool:
        """Have every part take excluded items back; return False if there is one that cannot."""
        takes = [getattr(sampler, "readmit", None) for sampler in self._samplers]
        return all(take is not None for take in takes) and all([take(items) for take in takes if take is not None])

    def draw(self, draw: Draw, rng: np.random.Generator) -> None:
        """Draw from every part. Cost: the parts' together, and each part's look-up of the others' items."""
        count = len(draw.items)
        ends = np.floor(np.cumsum(self._shares) * count + rng.random()).astype(np.int64)
        ends[-1] = count
        begin = 0
        for sampler, end in zip(self._samplers, np.minimum(ends, count).tolist(), strict=True):
            if end > begin:
                sampler.draw(draw.part(begin, end), rng)
            elif sampler.in_order:  # draws the next item, for the probabilities
                sampler.draw(self._one, rng)
            begin = end
        draw.probabilities[:] = self.probabilities(draw.items)

    def probabilities(self, items: Ints) -> Floats:
        """Return ``sum_k s_k P_k``."""
        total = np.zeros(len(items))
        for share, sampler in zip(self._shares, self._samplers, strict=True):
            total += share * sampler.probabilities(items)
        return total

    def update(self, items: Ints, td_error: Floats) -> None:
        for sampler in self._samplers:
            sampler.update(items, td_error)

    def settings(self) -> dict[str, Any]:
        """Return ``parts``: a list of [share, settings]; ``beta`` may change at any time."""
        return {"parts": [[float(share), described(sampler)] for share, sampler in self.parts]}

    def state(self) -> dict[str, Any]:
        return {"parts": [sampler.state() for sampler in self._samplers]}

    def restore(self, state: dict[str, Any]) -> None:
        parts = state.get("parts")
        if not isinstance(parts, list) or len(parts) != len(self._samplers):
            raise ValueError(
                f"Mixture: got state {state.get('parts')!r:.80}, expected that of {len(self._samplers)} parts"
            )
        for sampler, part in zip(self._samplers, parts, strict=True):
            sampler.restore(part)

    @property
    def nbytes(self) -> int:
        return sum(sampler.nbytes for sampler in self._samplers)
