"""Learning algorithms: they take batches and return temporal-difference errors, and are independent of the store.

Each algorithm's class is here by name, with its settings: ``agents.SAC.Settings(lr=1e-4)``. Its module is
imported when it is first used; classes that a program registered, or another package provides, are found as well.
"""

from typing import TYPE_CHECKING, Any

from sharpwave.agents import registry
from sharpwave.agents.bandits import KLUCB, UCB1, UCBV, Bandit, ThompsonBeta, ThompsonGaussian, UCB1Tuned

if TYPE_CHECKING:
    from sharpwave.agents.a2c import A2C, A3C
    from sharpwave.agents.bc import BC
    from sharpwave.agents.calql import CalQL
    from sharpwave.agents.cql import CQL
    from sharpwave.agents.crossq import CrossQ
    from sharpwave.agents.dqn import DQN
    from sharpwave.agents.impala import IMPALA
    from sharpwave.agents.iql import IQL
    from sharpwave.agents.masac import MASAC
    from sharpwave.agents.ppo import PPO
    from sharpwave.agents.pqn import PQN
    from sharpwave.agents.r2d2 import R2D2
    from sharpwave.agents.r2d3 import R2D3
    from sharpwave.agents.rainbow import Rainbow
    from sharpwave.agents.rebrac import ReBRAC
    from sharpwave.agents.rlpd import RLPD
    from sharpwave.agents.sac import SAC
    from sharpwave.agents.td3 import TD3
    from sharpwave.agents.td3bc import TD3BC
    from sharpwave.agents.vdn import QMIX, VDN

__all__ = [
    "A2C",
    "A3C",
    "BC",
    "CQL",
    "DQN",
    "IMPALA",
    "IQL",
    "KLUCB",
    "MASAC",
    "PPO",
    "PQN",
    "QMIX",
    "R2D2",
    "R2D3",
    "RLPD",
    "SAC",
    "TD3",
    "TD3BC",
    "UCB1",
    "UCBV",
    "VDN",
    "Bandit",
    "CalQL",
    "CrossQ",
    "Rainbow",
    "ReBRAC",
    "ThompsonBeta",
    "ThompsonGaussian",
    "UCB1Tuned",
]


def __getattr__(name: str) -> Any:
    """Import the algorithm whose class has that name."""
    if not name.startswith("_") and name in (kinds := registry.class_names()):
        return registry.agent_class(kinds[name])
    raise AttributeError(f"module 'sharpwave.agents' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *registry.class_names()})
