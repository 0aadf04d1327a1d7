"""Sharpwave: a compressed experience store for deep reinforcement learning, and the off-policy trainer built on it."""

from .errors import DamagedError, EmptyError, LimiterTimeoutError, NewerVersionError, StoreInUseError
from .recorder import Recorder
from .sampling.limiters import MinSize, Queue, SamplesPerInsert
from .sampling.mixture import Mixture
from .sampling.order import Fifo, Lifo
from .sampling.rank import RankPrioritized
from .sampling.retention import LowestPriority, Reservoir
from .sampling.samplers import Prioritized, Uniform
from .spec import Field, Spec
from .store import Store
from .views.batch import Batch
from .views.transitions import Transitions
from .writer import SealedSegment, SegmentWriter

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "DamagedError",
    "EmptyError",
    "Field",
    "Fifo",
    "Lifo",
    "LimiterTimeoutError",
    "LowestPriority",
    "MinSize",
    "Mixture",
    "NewerVersionError",
    "Prioritized",
    "Queue",
    "RankPrioritized",
    "Recorder",
    "Reservoir",
    "SamplesPerInsert",
    "SealedSegment",
    "SegmentWriter",
    "Spec",
    "Store",
    "StoreInUseError",
    "Transitions",
    "Uniform",
]
