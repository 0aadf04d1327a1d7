"""What a data set takes in a store: a sample of its episodes is really encoded."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sharpwave.data.formats import open_source
from sharpwave.loading import Fit
from sharpwave.offline.episodes import Packed, survey
from sharpwave.spec import Spec
from sharpwave.store import Store

SAMPLE_RAM = 1 << 31


@dataclass(frozen=True)
class Measured:
    """A data set and a sample of it, encoded.

    Attributes:
        steps, episodes: of the data set. ``sampled``: steps in the sample.
        packed: of the sample, by field and codec. ``overhead``: bytes a step of headers and checksums.
        growing: bytes a step in memory of encoded steps, index and samplers. ``fixed``: bytes that do not grow.
    """

    name: str
    spec: Spec
    steps: int
    episodes: int
    sampled: int
    packed: dict[str, dict[str, Packed]]
    overhead: float
    growing: float
    fixed: int

    def total(self, steps: int) -> float:
        """Return the bytes of memory that a store of ``steps`` steps takes."""
        return self.growing * steps + self.fixed

    @property
    def arrays(self) -> float:
        """Bytes a step of arrays with the observation and the next one."""
        spec = self.spec
        return (
            sum(field.row_bytes * (2 if name in spec.obs_names else 1) for name, field in spec.fields.items()) + 4 + 2
        )  # a float32 reward, terminated and truncated


def measure(text: str, steps: int) -> Measured:
    """Encode episodes of a data set, spread evenly over it, of some ``steps`` steps.

    Raises: ValueError, FileNotFoundError, ModuleNotFoundError: as ``load``.
    """
    source = open_source(text)
    try:
        count = min(len(source), max(1, math.ceil(steps * len(source) / max(1, source.steps))))
        fit = Fit(source.spec, source.spec, source.name)
        with Store(source.spec, ram=SAMPLE_RAM) as store, tempfile.TemporaryDirectory() as folder:
            replay = store.transitions()
            for number in np.unique(np.linspace(0, len(source) - 1, count).astype(int)).tolist():
                store.add_episode(**fit.arrays(source.read(number)))
            replay.sample(1)
            stats = store.stats()
            path = Path(folder) / "sample"
            store.checkpoint(path)
            found = survey(path)
        taken = stats["bytes"]
        fixed = taken["open_segments"] + taken["encoders"] + taken["dictionaries"] + taken["batches"]
        sampled = len(store)
        encoded = sum(one.bytes for codecs in found.packed.values() for one in codecs.values()) + found.overhead_bytes
        growing = (encoded / max(1, found.steps)) + (taken["index"] + taken["samplers"]) / sampled
        overhead = found.overhead_bytes / max(1, found.steps)
        return Measured(
            source.name, source.spec, source.steps, len(source), sampled, found.packed, overhead, growing, fixed
        )
    finally:
        source.close()
