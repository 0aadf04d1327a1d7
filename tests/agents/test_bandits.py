"""Bandits: every index against its paper's formula, worked out by hand, and regret on Bernoulli arms."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sharpwave.agents.bandits import (
    KLUCB,
    UCB1,
    UCBV,
    Bandit,
    CountingBandit,
    ThompsonBeta,
    ThompsonGaussian,
    UCB1Tuned,
    kl_upper_bound,
)
from sharpwave.agents.distributional import NoisyLinear, resample
from sharpwave.agents.exploration import EpsilonGreedy, Softmax, Strategy

ARMS = np.array([0.75, 0.65, 0.55, 0.45, 0.35])
LANES, STEPS = 150, 1_000
UNIFORM = STEPS * (ARMS.max() - ARMS.mean())  # 200
Choose = Callable[[int, np.random.Generator], npt.NDArray[np.int64]]


def regret(bandit: Bandit, choose: Choose | None = None) -> npt.NDArray[np.float64]:
    """Mean regret of the lanes after each step [STEPS]; each lane has the arms in an order of its own."""
    rng = np.random.default_rng(0)
    means = rng.permuted(np.tile(ARMS, (LANES, 1)), axis=1)
    lost = np.zeros(STEPS)
    for step in range(STEPS):
        arm = bandit.choose(rng) if choose is None else choose(step, rng)
        chosen = means[np.arange(LANES), arm]
        lost[step] = (ARMS.max() - chosen).mean()
        bandit.update(arm, rng.random(LANES) < chosen)
    return lost.cumsum()


def of_a_strategy(strategy: Strategy) -> npt.NDArray[np.float64]:
    """Regret of a strategy that is given the arms' mean rewards as values."""
    seen = ThompsonBeta(len(ARMS), LANES)
    every = slice(0, LANES)
    return regret(seen, lambda step, rng: strategy.choose(seen.means, step, every, LANES, rng))


@pytest.fixture(scope="module")
def regrets() -> dict[str, npt.NDArray[np.float64]]:
    made: list[CountingBandit] = [one(len(ARMS), LANES) for one in (UCB1, UCB1Tuned, UCBV, KLUCB, ThompsonBeta)]
    made += [ThompsonGaussian(len(ARMS), LANES, scale=0.5)]
    return {type(bandit).__name__: regret(bandit) for bandit in made}


@pytest.mark.parametrize("name", ["UCB1", "UCB1Tuned", "UCBV", "KLUCB", "ThompsonBeta", "ThompsonGaussian"])
def test_regret_grows_ever_more_slowly(regrets, name):
    """Bounds of UCB-V are the widest at 1,000 steps: it loses .57 of what uniform play does."""
    lost = regrets[name]
    assert lost[-1] < (0.65 if name == "UCBV" else 0.5) * UNIFORM
    assert lost[-1] - lost[STEPS // 2 - 1] < 0.65 * lost[STEPS // 2 - 1]  # uniform play: 1


def test_kl_ucb_and_thompson_lose_less_than_ucb1(regrets):
    for name in ("KLUCB", "ThompsonBeta", "ThompsonGaussian", "UCB1Tuned"):
        assert regrets[name][-1] < 0.6 * regrets["UCB1"][-1]


def test_kl_ucb_does_not_lose_much_more_than_anyone_must(regrets):
    """Lai and Robbins (1985): at least sum_j gap_j / d(p_j, p*) per ln n, here 9.0: 62 after 1,000 steps.

    That holds in the limit; KL-UCB is below it at 1,000 steps, and above half of it.
    """
    best, rest = ARMS[0], ARMS[1:]
    divergence = rest * np.log(rest / best) + (1 - rest) * np.log((1 - rest) / (1 - best))
    bound = ((best - rest) / divergence).sum() * math.log(STEPS)
    assert 0.3 * bound < regrets["KLUCB"][-1] < bound


def test_strategies_of_agents_by_their_regret():
    """With a fixed epsilon regret grows as steps do; with one that falls, or a temperature, it does not."""
    fixed = of_a_strategy(EpsilonGreedy(start=0.2, end=0.2))
    falling = of_a_strategy(EpsilonGreedy(start=1.0, end=0.01, steps=200, hold=20))
    softmax = of_a_strategy(Softmax(start=0.5, end=0.01, steps=300))
    half = STEPS // 2 - 1
    for lost in (fixed, falling, softmax):
        assert lost[-1] < 0.5 * UNIFORM
    assert fixed[-1] - fixed[half] > 0.2 * STEPS / 2 * (ARMS.max() - ARMS.mean())  # 20: those of its random actions
    for lost in (falling, softmax):
        assert lost[-1] - lost[half] < 0.3 * lost[half]


def test_lanes_of_a_ladder_explore_for_each_other():
    """Eight lanes learn from what all of them see: those that hardly explore lose a tenth of what uniform play does."""
    strategy, rng = EpsilonGreedy(start=0.4, end=0.4, ladder=7.0), np.random.default_rng(0)
    steps, problems, lost = 300, 30, np.zeros(8)
    for _ in range(problems):
        means, seen = rng.permutation(ARMS), ThompsonBeta(len(ARMS))
        for step in range(steps):
            arm = strategy.choose(np.tile(seen.means, (8, 1)), step, slice(0, 8), 8, rng)
            seen.update(arm, rng.random(8) < means[arm], lane=np.zeros(8, np.int64))
            lost += ARMS.max() - means[arm]
    by_lane = lost / problems / (steps * (ARMS.max() - ARMS.mean()))  # 1: uniform play
    assert by_lane[0] > 0.4 and (by_lane[4:] < 0.15).all()


def test_noisy_layers_explore():
    """A layer of a single input, each problem's arms by outputs of its own, learns the rewards by gradient descent."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    means = rng.permuted(np.tile(ARMS, (LANES, 1)), axis=1)
    layer = NoisyLinear(1, LANES * len(ARMS), sigma=0.5)
    lost = np.zeros(STEPS)
    for step in range(STEPS):
        resample(layer, rng)
        values = layer(torch.ones(1, 1)).view(LANES, len(ARMS))
        arm = values.argmax(dim=1)
        chosen = means[np.arange(LANES), arm.numpy()]
        lost[step] = (ARMS.max() - chosen).mean()
        reward = torch.from_numpy((rng.random(LANES) < chosen).astype(np.float32))
        loss = (values.gather(1, arm[:, None])[:, 0] - reward).square().sum()
        parameters = list(layer.parameters())
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.sub_(0.05 * gradient)
    first, second = lost[: STEPS // 2].sum(), lost[STEPS // 2 :].sum()
    assert first + second < 0.5 * UNIFORM and second < 0.8 * first


def played(bandit: CountingBandit) -> CountingBandit:
    """Arm 0 gave 1, 1, 0, 1 (mean 3/4, variance 3/16), arm 1 gave .5, .5 (mean 1/2, variance 0): n = 6."""
    for arm, reward in ((0, 1.0), (0, 1.0), (0, 0.0), (0, 1.0), (1, 0.5), (1, 0.5)):
        bandit.update([arm], [reward])
    return bandit


RNG = np.random.default_rng(0)
LN6 = math.log(6)


@pytest.mark.parametrize(
    ("bandit", "expected"),
    [
        (UCB1(2), [0.75 + math.sqrt(2 * LN6 / 4), 0.5 + math.sqrt(2 * LN6 / 2)]),
        # V = 3/16 + sqrt(2 ln 6 / 4) = 1.13 and 0 + sqrt(2 ln 6 / 2) = 1.34: both above 1/4.
        (UCB1Tuned(2), [0.75 + math.sqrt(LN6 / 4 / 4), 0.5 + math.sqrt(LN6 / 2 / 4)]),
        # E = 1.2 ln 6: sqrt(2 * 3/16 * E / 4) + 3 E / 4; the second arm's variance is 0: 3 E / 2.
        (UCBV(2), [0.75 + math.sqrt(0.375 * 1.2 * LN6 / 4) + 0.9 * LN6, 0.5 + 1.8 * LN6]),
        (UCBV(2, zeta=2, c=0.5), [0.75 + math.sqrt(0.375 * 2 * LN6 / 4) + 0.75 * LN6, 0.5 + 1.5 * LN6]),
    ],
    ids=["UCB1", "UCB1-Tuned", "UCB-V", "UCB-V, zeta 2, c .5"],
)
def test_index_by_hand(bandit, expected):
    np.testing.assert_allclose(played(bandit).index(RNG), [expected])


def test_tuned_bound_of_a_steady_arm_by_hand():
    """1,000 rewards of .5: V = sqrt(2 ln 1000 / 1000) = .1175, below 1/4."""
    bandit = UCB1Tuned(1)
    bandit.update(np.zeros(1_000, np.int64), np.full(1_000, 0.5), np.zeros(1_000, np.int64))
    rate = math.log(1_000) / 1_000
    np.testing.assert_allclose(bandit.index(RNG), [[0.5 + math.sqrt(rate * math.sqrt(2 * rate))]])


def test_kl_upper_bound_by_hand():
    """d(0, q) = -ln(1 - q), so q = 1 - e^-d; d(1/2, q) = -ln(4 q (1 - q)) / 2, so q = (1 + sqrt(1 - e^-2d)) / 2."""
    d = np.array([0.0, 0.1, 1.0, 10.0])
    np.testing.assert_allclose(kl_upper_bound(np.zeros(4), d), 1 - np.exp(-d), atol=1e-9)
    np.testing.assert_allclose(kl_upper_bound(np.full(4, 0.5), d), (1 + np.sqrt(1 - np.exp(-2 * d))) / 2, atol=1e-8)
    np.testing.assert_allclose(kl_upper_bound(np.ones(4), d), np.ones(4))


def test_index_of_kl_ucb_solves_its_equation():
    for bandit, right in ((KLUCB(2), LN6), (KLUCB(2, c=3.0), LN6 + 3 * math.log(LN6))):
        (q0, q1) = played(bandit).index(RNG)[0]
        assert 4 * (0.75 * math.log(0.75 / q0) + 0.25 * math.log(0.25 / (1 - q0))) == pytest.approx(right, abs=1e-6)
        assert 2 * (0.5 * math.log(0.5 / q1) + 0.5 * math.log(0.5 / (1 - q1))) == pytest.approx(right, abs=1e-6)


def test_posterior_of_thompson_beta():
    """Beta(1 + 3, 1 + 1) has mean 4/6 and variance 4 * 2 / (36 * 7); Beta(1 + 1, 1 + 1) mean 1/2, variance 1/20."""
    bandit, rng = played(ThompsonBeta(2)), np.random.default_rng(0)
    drawn = np.concatenate([bandit.index(rng) for _ in range(4_000)])
    np.testing.assert_allclose(drawn.mean(axis=0), [4 / 6, 1 / 2], atol=0.018)  # five standard errors
    np.testing.assert_allclose(drawn.var(axis=0), [8 / 252, 1 / 20], rtol=0.1)


def test_posterior_of_thompson_gaussian():
    """Means 3 / (4 + 1) and 1 / (2 + 1), variances 4 / 5 and 4 / 3 with a scale of 2."""
    bandit, rng = played(ThompsonGaussian(2, scale=2.0)), np.random.default_rng(0)
    drawn = np.concatenate([bandit.index(rng) for _ in range(4_000)])
    np.testing.assert_allclose(drawn.mean(axis=0), [3 / 5, 1 / 3], atol=0.095)
    np.testing.assert_allclose(drawn.var(axis=0), [4 / 5, 4 / 3], rtol=0.12)


@pytest.mark.parametrize("make", [UCB1, UCB1Tuned, UCBV, KLUCB])
def test_every_arm_is_chosen_once_first(make):
    bandit = make(3, 2)
    for arm in range(3):
        assert bandit.choose(RNG).tolist() == [arm, arm]
        bandit.update([arm, arm], [1.0, 0.0])
    assert np.isfinite(bandit.index(RNG)).all() and bandit.counts.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_lanes_are_independent_and_may_be_updated_alone():
    bandit = UCB1(2, lanes=3)
    bandit.update([0, 1, 1], [1.0, 0.5, 0.0], lane=[2, 0, 0])  # lane 0 twice
    assert bandit.counts.tolist() == [[0, 2], [0, 0], [1, 0]]
    assert bandit.means.tolist() == [[0, 0.25], [0, 0], [1, 0]]
    assert bandit.variances.tolist() == [[0, 0.0625], [0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("arm", "reward", "message"),
    [
        ([0, 2], [1.0, 0.0], "got arms from 0 to 2, expected 0 to 1"),
        ([0, -1], [1.0, 0.0], "got arms from -1 to 0"),
        ([0, 1], [1.0, 1.5], r"got rewards from 1.0 to 1.5, expected 0 to 1; scale"),
        ([0, 1], [float("nan"), 0.0], "got rewards from nan"),
        ([0], [1.0], "got arms"),
    ],
)
def test_wrong_updates_are_refused_and_nothing_is_counted(arm, reward, message):
    bandit = UCB1(2, lanes=2)
    with pytest.raises(ValueError, match=message):
        bandit.update(arm, reward)
    assert not bandit.counts.any()
    with pytest.raises(ValueError, match="got 0 arms"):
        UCB1(0)


@pytest.mark.parametrize(
    ("arm", "lane", "message"),
    [
        ([0, 0], [0, -1], "got lanes from -1 to 0, expected 0 to 1, integers"),
        ([0, 0], [0, 2], "got lanes from 0 to 2"),
        ([0, 0], [0, 0.5], "got lanes from 0.0 to 0.5, expected"),
        ([True, False], [0, 1], "got arms from False to True, expected"),
        ([0.0, 1.0], [0, 1], "got arms from 0.0 to 1.0, expected 0 to 1, integers"),
    ],
)
def test_updates_of_other_lanes_and_by_other_numbers_are_refused(arm, lane, message):
    bandit = UCB1(2, lanes=2)
    with pytest.raises(ValueError, match=message):
        bandit.update(arm, [1.0, 1.0], lane)
    assert not bandit.counts.any()
    bandit.update([], [], lane=[])
    assert not bandit.counts.any()


def test_gaussian_rewards_may_be_of_any_size():
    bandit = ThompsonGaussian(2)
    bandit.update([1], [-1e6])
    assert bandit.choose(np.random.default_rng(0)).tolist() == [0]
    with pytest.raises(ValueError, match="rewards from inf"):
        bandit.update([0], [math.inf])
    with pytest.raises(ValueError, match=r"rewards from 1e\+200 .* expected -1e\+150 to 1e\+150"):
        bandit.update([0], [1e200])  # its square would overflow
    assert bandit.counts.tolist() == [[0, 1]]
