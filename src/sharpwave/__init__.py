"""Sharpwave: a compressed experience store for deep reinforcement learning, and the off-policy trainer built on it."""

from .errors import DamagedError, EmptyError, StoreInUseError
from .recorder import Recorder
from .sampling.retention import Fifo
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
    "Prioritized",
    "Recorder",
    "Spec",
    "Store",
    "StoreInUseError",
    "Transitions",
    "Uniform",
]
