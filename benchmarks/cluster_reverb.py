"""Reverb in ``cluster.py``: servers, writers and a learner. Run by the interpreter that has it.

An item is a one-step transition: five frames, action, reward and end, as references to chunks that its neighbours
share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from cluster import ALPHA, BATCH, LOOKAHEAD, SHAPE, STACK, Step

TABLE = "transitions"
CHUNK_STEPS = 5
"""Steps in a chunk: of 1, 5, 8, 16 and 32 the least processor time a batch; longer ones take fewer bytes a step."""
UNCONFIRMED = 64
"""Items that the server has not confirmed beyond which a writer waits."""


class Server:
    """A server, in this process, with room for ``capacity`` items."""

    def __init__(self, capacity: int) -> None:
        frames, one = STACK + 1, tf.TensorSpec((1,), tf.float32)
        signature = {
            "obs": tf.TensorSpec((frames, *SHAPE), tf.uint8), "action": tf.TensorSpec((1,), tf.int64),
            "reward": one, "terminated": tf.TensorSpec((1,), tf.bool),
        }  # fmt: skip
        table = reverb.Table(
            TABLE, reverb.selectors.Prioritized(ALPHA), reverb.selectors.Fifo(), max_size=capacity,
            rate_limiter=reverb.rate_limiters.MinSize(1), signature=signature,
        )  # fmt: skip
        self.server = reverb.Server([table], None)
        self.address = f"127.0.0.1:{self.server.port}"


class Writer:
    """One environment's writer, to one server."""

    def __init__(self, addresses: list[str], number: int) -> None:
        client = reverb.Client(addresses[number % len(addresses)])
        self._writer = client.trajectory_writer(num_keep_alive_refs=max(CHUNK_STEPS, STACK + 2))
        for column in ("obs", "action", "reward", "terminated"):
            self._writer.configure(
                (column,), num_keep_alive_refs=max(CHUNK_STEPS, STACK + 2), max_chunk_length=CHUNK_STEPS
            )
        self._made = self._confirmed = 0

    def write(self, step: Step) -> None:
        """Append a step, and create the item that its successor completes."""
        self._writer.append(
            {"obs": step.obs, "action": np.int64(step.number), "reward": step.reward, "terminated": step.terminated}
        )
        if self._writer.episode_steps > STACK:
            self._item()
        if step.ended:
            self._writer.append(
                {"obs": step.after, "action": np.int64(-1), "reward": np.float32(0), "terminated": True}
            )
            if self._writer.episode_steps > STACK:
                self._item()
            self._writer.end_episode()

    def _item(self) -> None:
        """Create the item of the step whose successor was appended last."""
        history = self._writer.history
        window = {name: history[name][-2:-1] for name in ("action", "reward", "terminated")}
        self._writer.create_item(TABLE, 1.0, {"obs": history["obs"][-STACK - 1 :], **window})
        self._made += 1
        self._writer.flush(block_until_num_items=UNCONFIRMED)

    def flush(self) -> int:
        """Wait until every item is confirmed; return how many were since the last call."""
        self._writer.flush()
        confirmed, self._confirmed = self._made - self._confirmed, self._made
        return confirmed


class Learner:
    """Reader of all servers, an equal part of each batch from each, which updates priorities."""

    def __init__(self, addresses: list[str]) -> None:
        self._clients = [reverb.TFClient(address) for address in addresses]
        self.count = len(addresses)
        part = BATCH // len(addresses)

        def of(address: Any) -> Any:
            return reverb.TrajectoryDataset.from_table_signature(
                address, TABLE, max_in_flight_samples_per_worker=2 * part
            )

        if len(addresses) == 1:
            dataset = of(addresses[0])
        else:
            sources = [of(address) for address in addresses]
            choice = tf.data.Dataset.range(len(addresses)).repeat().interleave(
                lambda i: tf.data.Dataset.from_tensors(i).repeat(part), cycle_length=1, block_length=part
            )  # fmt: skip
            dataset = tf.data.Dataset.choose_from_datasets(sources, choice)
        self._batches = dataset.batch(BATCH, drop_remainder=True).prefetch(LOOKAHEAD).as_numpy_iterator()

    def sample(self) -> Any:
        """Return the next batch."""
        return next(self._batches)

    def update(self, batch: Any, priorities: Any) -> None:
        """Set the priorities of a batch, by the server that each part came from."""
        for keys, values, client in zip(
            np.split(batch.info.key, self.count), np.split(priorities, self.count), self._clients, strict=True
        ):
            client.update_priorities(TABLE, keys, values.astype(np.float64))

    def numbers(self, batch: Any) -> Any:
        """Return the numbers of the steps of a batch."""
        return batch.data["action"][:, 0]

    def frames(self, batch: Any) -> Any:
        """Return the five frames of each item."""
        return batch.data["obs"]

    def link_bytes(self) -> int:
        """Return 0: gRPC counts nothing; its connections are counted by the system."""
        return 0
