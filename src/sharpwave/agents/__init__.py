"""Learning agents: a batch goes in, temporal-difference errors come out. They know nothing of the store."""

from sharpwave.agents.dqn import DQN, DQNSettings, Learned

__all__ = ["DQN", "DQNSettings", "Learned"]
