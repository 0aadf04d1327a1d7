"""Sharpwave: a compressed experience store for deep reinforcement learning, and the off-policy trainer built on it."""

from .errors import DamagedError, EmptyError
from .recorder import Recorder
from .sampling.mixture import Mixture
from .sampling.order import Fifo, Lifo
from .sampling.rank import RankPrioritized
from .sampling.samplers import Prioritized, Uniform
from .spec import Field, Spec
from .store import Store
from .views.batch import Batch
from .views.transitions import Transitions

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "DamagedError",
    "EmptyError",
    "Field",
    "Fifo",
    "Lifo",
    "Mixture",
    "Prioritized",
    "RankPrioritized",
    "Recorder",
    "Spec",
    "Store",
    "Transitions",
    "Uniform",
]
