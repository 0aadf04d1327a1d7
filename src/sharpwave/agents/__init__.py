"""Learning algorithms: they take batches and return temporal-difference errors, and are independent of the store."""

from sharpwave.agents.bandits import KLUCB, UCB1, UCBV, Bandit, SlidingUCB, ThompsonBeta, ThompsonGaussian, UCB1Tuned

__all__ = ["KLUCB", "UCB1", "UCBV", "Bandit", "SlidingUCB", "ThompsonBeta", "ThompsonGaussian", "UCB1Tuned"]
