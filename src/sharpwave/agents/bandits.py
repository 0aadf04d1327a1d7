"""Bandits: arms are chosen by how often each was chosen and by its rewards, over many independent problems at once.

Action values of a network need a strategy instead (``exploration.py``); a bandit suits a few options that are tried
again and again, such as a setting for an episode.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BISECTIONS = 32
"""Halvings of an interval of at most 1 in which KL-UCB's bound is found."""


class Bandit(Protocol):
    """Choice of an arm in each of several independent problems, the *lanes*.

    Attributes:
        counts: float64 [lanes, arms], how often each arm was chosen.
        means: float64 [lanes, arms], mean reward of each arm; 0 for one that was never chosen.
        lowest, highest: range of rewards.
    """

    lowest, highest = -np.inf, np.inf

    @property
    @abstractmethod
    def counts(self) -> Floats: ...
    @property
    @abstractmethod
    def means(self) -> Floats: ...

    @abstractmethod
    def choose(self, rng: np.random.Generator) -> Ints:
        """Choose an arm for each lane, int64 [lanes]; nothing is counted."""

    def update(self, arm: npt.ArrayLike, reward: npt.ArrayLike, lane: npt.ArrayLike | None = None) -> None:
        """Count rewards.

        Args:
            arm: int [N], the arms that were chosen.  reward: float [N], their rewards.
            lane: int [N], their lanes; repeated ones count as often. None: of every lane, in order.
        Raises:
            ValueError: no such arm or lane, or a reward out of range; nothing was counted.
        """
        name, (lanes, arms) = type(self).__name__, self.counts.shape
        rows, arm, given = np.arange(lanes) if lane is None else np.asarray(lane), np.asarray(arm), np.asarray(reward)
        given = given.astype(np.float64)
        if not (arm.shape == given.shape == rows.shape and arm.ndim == 1):
            raise ValueError(f"{name}: got arms {arm.shape}, rewards {given.shape}, lanes {rows.shape}, expected [N]")
        if not len(arm):
            return
        for what, numbers, count in (("arms", arm, arms), ("lanes", rows, lanes)):
            if numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= count:
                raise ValueError(
                    f"{name}: got {what} from {numbers.min()} to {numbers.max()}, expected 0 to {count - 1}, integers"
                )
        if not np.all((given >= self.lowest) & (given <= self.highest)):  # NaN is neither
            raise ValueError(
                f"{name}: got rewards from {given.min()} to {given.max()}, expected {self.lowest:g} to "
                f"{self.highest:g}; scale them to that"
            )
        self.count(rows, arm, given)

    @abstractmethod
    def count(self, lane: Ints, arm: Ints, reward: Floats) -> None:
        """Count valid rewards, each [N]."""


class CountingBandit(Bandit):
    """Bandit that counts rewards, their sums and their squares. Subclasses give every arm an index to be chosen by."""

    lowest, highest = 0.0, 1.0

    def __init__(self, arms: int, lanes: int = 1) -> None:
        if arms < 1 or lanes < 1:
            raise ValueError(f"{type(self).__name__}: got {arms} arms and {lanes} lanes, expected at least 1 of each")
        self._counts, self._sums, self._squares = (np.zeros((lanes, arms)) for _ in range(3))

    @property
    def counts(self) -> Floats:
        return self._counts

    @property
    def means(self) -> Floats:
        return self._sums / np.maximum(self._counts, 1)

    @property
    def variances(self) -> Floats:
        """Variance of each arm's rewards around their mean, float64 [lanes, arms]; 0 for an arm never chosen."""
        return np.maximum(self._squares / np.maximum(self._counts, 1) - self.means**2, 0.0)

    @abstractmethod
    def index(self, rng: np.random.Generator) -> Floats:
        """Return the index of every arm, float64 [lanes, arms]; the arm with the largest is chosen."""

    def choose(self, rng: np.random.Generator) -> Ints:
        chosen: Ints = self.index(rng).argmax(axis=1)
        return chosen

    def count(self, lane: Ints, arm: Ints, reward: Floats) -> None:
        np.add.at(self._counts, (lane, arm), 1.0)
        np.add.at(self._sums, (lane, arm), reward)
        np.add.at(self._squares, (lane, arm), reward**2)


class ConfidenceBandit(CountingBandit):
    """Bandit whose index is an upper confidence bound of an arm's mean. Each arm is chosen once first, in order."""

    def index(self, rng: np.random.Generator) -> Floats:
        total = self._counts.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):  # of arms never chosen
            bound = self.bound(np.log(np.maximum(total, 1.0)))
        return np.where(self._counts == 0, np.inf, bound)

    @abstractmethod
    def bound(self, log_total: Floats) -> Floats:
        """Return the bound of every arm, float64 [lanes, arms]; of those never chosen it may be anything.

        Args:
            log_total: float64 [lanes, 1], ln of the number of choices.
        """


class UCB1(ConfidenceBandit):
    """Mean + sqrt(2 ln n / n_j), for rewards in 0 ... 1.

    Source: Auer, Cesa-Bianchi and Fischer (2002), Finite-time analysis of the multiarmed bandit problem, figure 1.
    """

    def bound(self, log_total: Floats) -> Floats:
        return self.means + np.sqrt(2 * log_total / self._counts)


class UCB1Tuned(ConfidenceBandit):
    """Mean + sqrt(ln n / n_j * min(1/4, V_j)), V_j = variance + sqrt(2 ln n / n_j): rewards that vary little are
    tried less. For rewards in 0 ... 1, whose variance is at most 1/4.

    Source: Auer, Cesa-Bianchi and Fischer (2002), section 4.
    """

    def bound(self, log_total: Floats) -> Floats:
        rate = log_total / self._counts
        return self.means + np.sqrt(rate * np.minimum(0.25, self.variances + np.sqrt(2 * rate)))


class UCBV(ConfidenceBandit):
    """Mean + sqrt(2 V_j E / n_j) + 3 c E / n_j with the variance V_j and E = zeta ln n, for rewards in 0 ... 1.

    Args:
        zeta: above 1; the regret is then logarithmic.
        c: weight of the last term; below 1 it explores less than is proven to do.
    Source: Audibert, Munos and Szepesvari (2009), Exploration-exploitation tradeoff using variance estimates in
    multi-armed bandits, eq. 1 and section 3.
    """

    def __init__(self, arms: int, lanes: int = 1, zeta: float = 1.2, c: float = 1.0) -> None:
        super().__init__(arms, lanes)
        self._zeta, self._c = zeta, c

    def bound(self, log_total: Floats) -> Floats:
        rate = self._zeta * log_total / self._counts
        return self.means + np.sqrt(2 * self.variances * rate) + 3 * self._c * rate


class KLUCB(ConfidenceBandit):
    """Largest q with n_j d(mean, q) <= ln n + c ln ln n, d the divergence of Bernoulli distributions.

    For rewards in 0 ... 1; the regret is the smallest possible for large n where they are 0 or 1.

    Args:
        c: 3 in the proof, 0 in practice.
    Source: Garivier and Cappe (2011), The KL-UCB algorithm for bounded stochastic bandits and beyond, algorithm 1.
    """

    def __init__(self, arms: int, lanes: int = 1, c: float = 0.0) -> None:
        super().__init__(arms, lanes)
        self._c = c

    def bound(self, log_total: Floats) -> Floats:
        extra = self._c * np.log(np.maximum(log_total, 1.0))
        return kl_upper_bound(self.means, (log_total + extra) / np.maximum(self._counts, 1.0))


def kl_upper_bound(mean: Floats, divergence: Floats) -> Floats:
    """Find the largest q in mean ... 1 with d(mean, q) <= divergence, d(p, q) = p ln p/q + (1-p) ln (1-p)/(1-q).

    Args:
        mean: float64 [...], in 0 ... 1.  divergence: float64, of a shape that broadcasts with it.
    """
    mean = np.clip(mean, 0.0, 1.0)
    entropy = _x_log_x(mean) + _x_log_x(1 - mean)
    low = mean
    # Pinsker: d(p, q) >= 2 (q - p)^2.
    high = np.minimum(mean + np.sqrt(divergence / 2), 1.0)
    low, high = np.broadcast_arrays(low, high)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = entropy - mean * np.log(middle) - (1 - mean) * np.log1p(-middle)
        below = apart <= divergence  # false for NaN, of a mean of 1, whose interval is empty
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low


def _x_log_x(x: Floats) -> Floats:
    return x * np.log(np.where(x > 0, x, 1.0))


class ThompsonBeta(CountingBandit):
    """Sample of each mean's posterior Beta(a + successes, b + failures), for rewards of 0 and 1.

    A reward between counts as that share of a success.

    Args:
        a, b: the prior, which is uniform by default.
    Source: Thompson (1933), On the likelihood that one unknown probability exceeds another; Chapelle and Li (2011),
    An empirical evaluation of Thompson sampling, algorithm 2.
    """

    def __init__(self, arms: int, lanes: int = 1, a: float = 1.0, b: float = 1.0) -> None:
        super().__init__(arms, lanes)
        self._a, self._b = a, b

    def index(self, rng: np.random.Generator) -> Floats:
        drawn: Floats = rng.beta(self._a + self._sums, self._b + self._counts - self._sums)
        return drawn


class ThompsonGaussian(CountingBandit):
    """Sample of each mean's posterior Normal(sum / (n_j + 1), scale^2 / (n_j + 1)), for rewards up to 1e150.

    Args:
        scale: standard deviation of an arm's rewards, and of the prior of its mean, which is around 0.
    Source: Agrawal and Goyal (2013), Further optimal regret bounds for Thompson sampling, algorithm 2 (scale 1).
    """

    lowest, highest = -1e150, 1e150  # a sum of their squares is finite

    def __init__(self, arms: int, lanes: int = 1, scale: float = 1.0) -> None:
        super().__init__(arms, lanes)
        self._scale = scale

    def index(self, rng: np.random.Generator) -> Floats:
        trials = self._counts + 1
        return rng.normal(self._sums / trials, self._scale / np.sqrt(trials))
