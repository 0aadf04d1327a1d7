"""Contenders of ``sequences.py`` from other libraries, each imported when it is built."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from sequence_contenders import STATE, STEPS, STRIDE, WINDOW, Contender, Seen, Step

from sharpwave.bench.recording import Recording

BLOCK = 64
"""Times of all lanes that TorchRL is filled with at once."""


class TorchRL(Contender):
    """Contender TorchRL: ``SliceSampler`` over a storage of [time, lanes]; slices that lie in one episode.

    Args:
        mapped: keep the steps in memory-mapped files.
        state: store each step's recurrent state: all steps of a slice have the same fields.
    """

    def __init__(self, mapped: bool = False, state: bool = True) -> None:
        self.mapped, self.state = mapped, state
        self.folder: str | None = None

    def build(self, recording: Recording, steps: int) -> None:
        from torchrl.data import LazyMemmapStorage, LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

        self.lanes = recording.lanes
        if self.mapped:
            self.folder = tempfile.mkdtemp(prefix="sharpwave-bench-")
            storage: Any = LazyMemmapStorage(steps, scratch_dir=self.folder, ndim=2)
        else:
            storage = LazyTensorStorage(steps, ndim=2)
        # cache_values: trajectory boundaries are looked for again after a write only.
        sampler = SliceSampler(
            slice_len=WINDOW, end_key="done", cache_values=True, strict_length=True, truncated_key=None, init_key=None
        )
        self.buffer: Any = TensorDictReplayBuffer(storage=storage, sampler=sampler, dim_extend=0)

    def item(self, step: Step) -> Any:
        return self._items([step])

    def fill(self, steps: Iterable[Step]) -> None:
        """Add ``steps`` in blocks, as each call takes milliseconds."""
        left = iter(steps)
        while block := list(islice(left, BLOCK)):
            self.add(self._items(block))

    def _items(self, steps: list[Step]) -> Any:
        import torch
        from tensordict import TensorDict

        columns: dict[str, list[Any]] = {
            "obs": [step.obs for step in steps],
            "action": [step.number for step in steps],
            "reward": [step.reward for step in steps],
            "done": [step.terminated[:, None] for step in steps],
        }
        if self.state:
            columns["state"] = [step.state for step in steps]
        tensors = {name: torch.from_numpy(np.stack(arrays)) for name, arrays in columns.items()}
        return TensorDict(tensors, batch_size=[len(steps), self.lanes])

    def add(self, item: Any) -> None:
        self.buffer.extend(item)

    def sample(self, batch: int) -> Any:
        return self.buffer.sample(batch * WINDOW)

    def seen(self, sampled: Any) -> Seen:
        obs, action = (
            sampled[name].reshape(-1, WINDOW, *sampled[name].shape[1:]).numpy() for name in ("obs", "action")
        )
        if self.state:
            state = sampled["state"].reshape(-1, WINDOW, *STATE)[:, 0].numpy()
        else:
            state = np.empty((0, *STATE), np.float32)
        return Seen(obs[:, :STEPS], action[:, :STEPS], np.ones((len(obs), STEPS), np.bool_), state)

    def close(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class Flashbax(Contender):
    """Contender Flashbax: the trajectory buffer, jitted, on the processor. Its windows cross the ends of episodes.

    Args:
        state: store each step's recurrent state: all steps of a window have the same fields.
    """

    def __init__(self, state: bool = True) -> None:
        self.state = state

    def build(self, recording: Recording, steps: int) -> None:
        import flashbax
        import jax
        import jax.numpy as jnp

        self.lanes, self.length = recording.lanes, steps // recording.lanes
        self.made: dict[int, Any] = {}
        self._sampler(1)
        step = {
            "obs": jnp.zeros(recording.frame_shape, jnp.uint8), "action": jnp.zeros((), jnp.int32),
            "reward": jnp.zeros((), jnp.float32), "terminated": jnp.zeros((), jnp.bool_),
        }  # fmt: skip
        if self.state:
            step["state"] = jnp.zeros(STATE, jnp.float32)
        buffer = self._buffer(flashbax, 1)
        self.memory: Any = jax.jit(buffer.init)(step)
        self._add = jax.jit(buffer.add, donate_argnums=0)
        self.key = jax.random.key(0)
        self._split: Any = jax.jit(lambda key: tuple(jax.random.split(key)))

    def _buffer(self, flashbax: Any, batch: int) -> Any:
        return flashbax.make_trajectory_buffer(
            add_batch_size=self.lanes, sample_batch_size=batch, sample_sequence_length=WINDOW, period=STRIDE,
            min_length_time_axis=WINDOW, max_length_time_axis=self.length,
        )  # fmt: skip

    def _sampler(self, batch: int) -> Any:
        import flashbax
        import jax

        if batch not in self.made:
            self.made[batch] = jax.jit(self._buffer(flashbax, batch).sample)
        return self.made[batch]

    def item(self, step: Step) -> Any:
        columns: dict[str, Any] = {
            "obs": step.obs, "action": step.number.astype(np.int32), "reward": step.reward,
            "terminated": step.terminated,
        }  # fmt: skip
        if self.state:
            columns["state"] = step.state
        return {name: array[:, None] for name, array in columns.items()}

    def add(self, item: Any) -> None:
        self.memory = self._add(self.memory, item)
        self.memory.current_index.block_until_ready()

    def sample(self, batch: int) -> Any:
        self.key, key = self._split(self.key)
        sampled = self._sampler(batch)(self.memory, key).experience
        for array in sampled.values():
            array.block_until_ready()
        return sampled

    def seen(self, sampled: Any) -> Seen:
        obs, number = np.asarray(sampled["obs"])[:, :STEPS], np.asarray(sampled["action"])[:, :STEPS]
        state = np.asarray(sampled["state"])[:, 0] if self.state else np.empty((0, *STATE), np.float32)
        return Seen(obs, number, np.ones(number.shape, np.bool_), state)


class Reverb(Contender):
    """Contender Reverb: overlapping items of whole windows, written by a ``TrajectoryWriter`` a lane, in this process.

    Its chunks are compressed. A state is stored for the first step of each window only.
    """

    def build(self, recording: Recording, steps: int) -> None:
        import reverb
        import tensorflow as tf

        rows = {
            "obs": tf.TensorSpec((WINDOW, *recording.frame_shape), tf.uint8),
            "action": tf.TensorSpec((WINDOW,), tf.int64), "reward": tf.TensorSpec((WINDOW,), tf.float32),
            "terminated": tf.TensorSpec((WINDOW,), tf.bool), "state": tf.TensorSpec(STATE, tf.float32),
        }  # fmt: skip
        self.server = reverb.Server(
            [
                reverb.Table(
                    "windows", reverb.selectors.Uniform(), reverb.selectors.Fifo(), max_size=max(1, steps // STRIDE),
                    rate_limiter=reverb.rate_limiters.MinSize(1), signature=rows,
                )
            ]
        )  # fmt: skip
        self.address = f"localhost:{self.server.port}"
        client = reverb.Client(self.address)
        self.writers = [client.trajectory_writer(num_keep_alive_refs=WINDOW) for _ in range(recording.lanes)]
        self.written = [0] * recording.lanes
        self.batches: dict[int, Iterator[Any]] = {}

    def item(self, step: Step) -> Any:
        return step

    def add(self, item: Any) -> None:
        for lane, writer in enumerate(self.writers):
            row = {
                "obs": item.obs[lane], "action": item.number[lane], "reward": item.reward[lane],
                "terminated": item.terminated[lane],
            }  # fmt: skip
            number = self.written[lane]
            if number % STRIDE == 0:
                row["state"] = item.state[lane]
            writer.append(row)
            number += 1
            if number >= WINDOW and (number - WINDOW) % STRIDE == 0:
                history = writer.history
                window = {name: history[name][-WINDOW:] for name in ("obs", "action", "reward", "terminated")}
                window["state"] = history["state"][-WINDOW]
                writer.create_item("windows", 1.0, window)
                writer.flush(1)
            self.written[lane] = number
            if item.terminated[lane]:
                writer.end_episode()
                self.written[lane] = 0

    def sample(self, batch: int) -> Any:
        if batch not in self.batches:
            import reverb

            dataset = reverb.TrajectoryDataset.from_table_signature(
                self.address, "windows", max_in_flight_samples_per_worker=2 * batch
            )
            self.batches[batch] = dataset.batch(batch).as_numpy_iterator()
        return next(self.batches[batch])

    def seen(self, sampled: Any) -> Seen:
        data = sampled.data
        number = data["action"][:, :STEPS]
        return Seen(data["obs"][:, :STEPS], number, np.ones(number.shape, np.bool_), data["state"])

    def close(self) -> None:
        self.server.stop()
