"""Reverb in ``workloads.py``: its server in this process, items as references to chunks that their neighbours share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
import workload_data
from workload_table import LANES, Load

TABLE, CHUNK_STEPS, UNCONFIRMED = "elements", 5, 64


class Memory:
    """The contender. See ``workload_worker.Contender``."""

    def __init__(self, load: Load, folder: Path) -> None:
        self.load, self.columns = load, workload_data.read(folder)
        self.times, self._at = len(self.columns["reward"]), 0
        self._obs = [name for name in self.columns if name.startswith("obs")]
        self._steps = (load.window + load.burn_in) or 1
        self._frames = self._steps + (load.stack or 1)  # those of its stacks, and one after it
        selector = reverb.selectors.Prioritized(0.6) if load.kind == "prioritized" else reverb.selectors.Uniform()
        signature = {
            name: tf.TensorSpec(
                (self._frames if name in self._obs else self._steps, *column.shape[2:]), tf.as_dtype(column.dtype)
            )
            for name, column in self.columns.items()
        }
        table = reverb.Table(
            TABLE, selector, reverb.selectors.Fifo(), max_size=load.elements, max_times_sampled=load.uses or 0,
            rate_limiter=reverb.rate_limiters.MinSize(1), signature=signature,
        )  # fmt: skip
        self.server = reverb.Server([table], None)
        self._client = self.server.localhost_client()
        self._learner = reverb.TFClient(f"localhost:{self.server.port}")
        self._writers = [self._client.trajectory_writer(num_keep_alive_refs=self._frames + 1) for _ in range(LANES)]
        for writer in self._writers:
            for name in self.columns:
                writer.configure((name,), num_keep_alive_refs=self._frames + CHUNK_STEPS, max_chunk_length=CHUNK_STEPS)
        self._batches: Any = None

    def add(self) -> float:
        """Add a step of each lane, and the elements that it completes; return how many elements these are."""
        at = self._at % self.times
        self._at += 1
        for lane, writer in enumerate(self._writers):
            writer.append({name: column[at, lane] for name, column in self.columns.items()})
            if writer.episode_steps > self._frames and self._at % self.load.steps == 0:
                history = writer.history
                window = {name: history[name][-self._frames :] for name in self._obs}
                others = [name for name in self.columns if name not in self._obs]
                window |= {name: history[name][-self._steps - 1 : -1] for name in others}
                writer.create_item(TABLE, 1.0, window)
                writer.flush(block_until_num_items=UNCONFIRMED)
        return LANES / self.load.steps

    def fill(self, elements: int) -> None:
        """Add so many elements."""
        for _ in range(elements * self.load.steps // LANES + self._frames + 1):
            self.add()
        for writer in self._writers:
            writer.flush()

    def sample(self) -> Any:
        """Return a batch."""
        if self._batches is None:
            dataset = reverb.TrajectoryDataset.from_table_signature(
                f"localhost:{self.server.port}", TABLE, max_in_flight_samples_per_worker=2 * self.load.batch
            )
            self._batches = dataset.batch(self.load.batch, drop_remainder=True).prefetch(1).as_numpy_iterator()
        return next(self._batches)

    def update(self, batch: Any, rng: np.random.Generator) -> None:
        """Set the priorities of a batch."""
        self._learner.update_priorities(TABLE, batch.info.key, rng.exponential(size=len(batch.info.key)))

    def handed(self, batch: Any) -> int:
        """Return the bytes of a batch's arrays of observations."""
        return sum(batch.data[name].nbytes for name in self._obs)

    def counted(self) -> dict[str, float]:
        """Return the steps that it holds."""
        return {"steps": self._client.server_info()[TABLE].current_size * self.load.steps}
