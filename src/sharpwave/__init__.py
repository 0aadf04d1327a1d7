"""Sharpwave: a compressed experience store for deep reinforcement learning, and the off-policy trainer built on it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sharpwave.environment_spec import step_spec
from sharpwave.errors import (
    DamagedError,
    DuplicateError,
    EmptyError,
    LimiterTimeoutError,
    NewerVersionError,
    StoreInUseError,
    UnknownCodecError,
)
from sharpwave.ragged import Ragged
from sharpwave.recorder import Recorder
from sharpwave.sampling.limiters import MinSize, Queue, SamplesPerInsert
from sharpwave.sampling.mixture import Mixture
from sharpwave.sampling.ordered import Fifo, Lifo
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.rank import RankPrioritized
from sharpwave.sampling.retention import LowestPriority, Reservoir
from sharpwave.sampling.uniform import Uniform
from sharpwave.segment_writer import SealedSegment, SegmentWriter
from sharpwave.spec import Field, Spec
from sharpwave.store import Store
from sharpwave.views.batch import Batch, SequenceBatch
from sharpwave.views.blend import Blend
from sharpwave.views.hindsight import Episode, Final, Future
from sharpwave.views.sequences import Sequences
from sharpwave.views.step_views import Transitions

if TYPE_CHECKING:
    from sharpwave import agents
    from sharpwave.loading import load
    from sharpwave.serve.cluster import Cluster, connect
    from sharpwave.serve.link import ShardLostError
    from sharpwave.serve.store_server import StoreServer
    from sharpwave.training.evaluation import evaluate
    from sharpwave.training.front import train
    from sharpwave.training.policies import Policy
    from sharpwave.training.results import TrainingRun
    from sharpwave.training.seeds import train_seeds

__version__ = "0.1.0"


LATER = {
    "Cluster": "sharpwave.serve.cluster",
    "Policy": "sharpwave.training.policies",
    "ShardLostError": "sharpwave.serve.link",
    "StoreServer": "sharpwave.serve.store_server",
    "TrainingRun": "sharpwave.training.results",
    "agents": "",
    "connect": "sharpwave.serve.cluster",
    "evaluate": "sharpwave.training.evaluation",
    "load": "sharpwave.loading",
    "loading": "",
    "train": "sharpwave.training.front",
    "train_seeds": "sharpwave.training.seeds",
}
"""Names that are imported when they are first used, as most programs need none of them: the module that has each; "":
it is a module itself."""


def __getattr__(name: str) -> Any:
    """Import clusters, data sets and the trainer when they are first used."""
    if name not in LATER:
        raise AttributeError(f"module 'sharpwave' has no attribute {name!r}")
    module = import_module(LATER[name] or f"sharpwave.{name}")
    return getattr(module, name) if LATER[name] else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Batch",
    "Blend",
    "Cluster",
    "DamagedError",
    "DuplicateError",
    "EmptyError",
    "Episode",
    "Field",
    "Fifo",
    "Final",
    "Future",
    "Lifo",
    "LimiterTimeoutError",
    "LowestPriority",
    "MinSize",
    "Mixture",
    "NewerVersionError",
    "Policy",
    "Prioritized",
    "Queue",
    "Ragged",
    "RankPrioritized",
    "Recorder",
    "Reservoir",
    "SamplesPerInsert",
    "SealedSegment",
    "SegmentWriter",
    "SequenceBatch",
    "Sequences",
    "ShardLostError",
    "Spec",
    "Store",
    "StoreInUseError",
    "StoreServer",
    "TrainingRun",
    "Transitions",
    "Uniform",
    "UnknownCodecError",
    "agents",
    "connect",
    "evaluate",
    "load",
    "step_spec",
    "train",
    "train_seeds",
]
