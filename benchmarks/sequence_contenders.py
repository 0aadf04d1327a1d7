"""Contenders of ``sequences.py``: windows of an episode's steps, as R2D2 learns from; peers are imported when built.

Every contender stores as its action the step's number in the recording, so that its samples can be checked, and hands
out the same content: observations of a window's steps and of those that returns bootstrap from, action, reward, end,
and the recurrent state of the first step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import sharpwave as sw
from sharpwave.bench.contenders import Contender, times
from sharpwave.bench.played import PlayedSteps

BURN_IN, LENGTH, STRIDE, N_STEP, GAMMA = 40, 80, 40, 5, 0.997
STEPS = BURN_IN + LENGTH
WINDOW = STEPS + N_STEP
"""Observations of a window, the last of which returns bootstrap from."""
STATE = (2, 512)
ALPHA, BETA = 0.9, 0.6
STATES = 4093
"""Different recurrent states: a prime, so that the segments of a store do not repeat one another."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Step:
    """Step of all lanes. ``final_obs``: their last observations; ``None`` where no episode ended."""

    number: npt.NDArray[np.int64]
    obs: npt.NDArray[np.uint8]
    state: npt.NDArray[np.float32]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    final_obs: npt.NDArray[np.uint8] | None


@dataclass
class Seen:
    """Batch to be checked: [B, STEPS] observations and numbers of steps, which of them are steps, and states [B]."""

    obs: Array
    number: Array
    mask: Array
    state: Array


@functools.cache
def recurrent_states() -> npt.NDArray[np.float32]:
    """Return made-up recurrent states [STATES, *STATE], which no codec compresses much."""
    return np.tanh(np.random.default_rng(0).standard_normal((STATES, *STATE), np.float32))


def play(recording: PlayedSteps, begin: int, end: int) -> Iterator[Step]:
    """Yield all lanes' steps of ``begin <= t < end``."""
    states = recurrent_states()
    for start, stop, number in times(recording, begin, end):
        obs = np.array(recording.obs[start:stop])
        for i, t in enumerate(range(start, stop)):
            ended = recording.final_place[t].max() >= 0
            yield Step(
                number[i],
                obs[i],
                states[number[i] % STATES],
                recording.reward[t],
                recording.terminated[t] | recording.truncated[t],
                recording.next_frames(t, t + 1)[0] if ended else None,
            )


class Windows(Contender):
    """Replay memory of windows, whose items are each made of a step of all lanes. Peers' are not prioritized."""

    def items(self, recording: PlayedSteps, begin: int, end: int) -> Iterator[Any]:
        """Yield the item of each step."""
        return map(self.item, play(recording, begin, end))

    def item(self, step: Step) -> Any:
        """Convert a step to the argument of ``add``."""
        return step

    def prioritize(self, fill: Callable[[], None]) -> bool:
        return False


class Sharpwave(Windows):
    """Contender ``sharpwave.Store.sequences``: padded windows at both ends of an episode, among the others."""

    def __init__(self, codec: str) -> None:
        self.codec = codec

    def build(self, recording: PlayedSteps, steps: int) -> None:
        spec = sw.Spec(
            obs=sw.Field(recording.frame_shape, "uint8"),
            action=sw.Field((), "int64"),
            state=sw.Field(STATE, "float32", every=STRIDE),
        )
        self.store = sw.Store(spec, capacity=steps, codec={"obs": self.codec}, seed=0)
        settings: dict[str, Any] = {"burn_in": BURN_IN, "stride": STRIDE, "n_step": N_STEP, "gamma": GAMMA}
        self.prioritized = self.store.sequences(
            LENGTH, sampler=sw.Prioritized(alpha=ALPHA, beta=BETA), name="prioritized", seed=1, **settings
        )
        self.uniform = self.store.sequences(LENGTH, name="uniform", seed=2, **settings)

    def item(self, step: Step) -> Any:
        return {
            "obs": step.obs,
            "action": step.number,
            "state": step.state,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": np.zeros_like(step.terminated),
            "final_obs": step.final_obs,
        }

    def add(self, item: Any) -> None:
        self.store.extend(**item)

    def sample(self, batch: int) -> Any:
        return self.uniform.sample(batch)

    def prioritize(self, fill: Callable[[], None]) -> bool:
        return True

    def sample_prioritized(self, batch: int, td_error: Array) -> Any:
        """Return a prioritized batch, its priorities updated with ``td_error`` [B, LENGTH]."""
        sampled = self.prioritized.sample(batch)
        self.prioritized.update_priorities(sampled.ids, td_error)
        return sampled

    def seen(self, sampled: Any) -> Seen:
        return Seen(sampled.obs[:, :STEPS], sampled.action, sampled.mask, sampled["state"])

    def close(self) -> None:
        self.store.close()


class Ring(Windows):
    """Contender numpy: a ring of raw frames, copied into memory that every batch of its size shares.

    A lane's first steps are written once more behind its last ones, so that each window lies in one piece; it is copied
    by one call. A batch is overwritten by the next, which spares the page faults of new memory.
    """

    def build(self, recording: PlayedSteps, steps: int) -> None:
        self.lanes = recording.lanes
        self.size = steps // self.lanes
        rows = self.lanes, self.size + WINDOW - 1
        self.obs = np.zeros((*rows, *recording.frame_shape), np.uint8)
        self.state = np.zeros((*rows, *STATE), np.float32)
        self.action, self.episode = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.reward, self.terminated = np.zeros(rows, np.float32), np.zeros(rows, np.bool_)
        self.episodes = np.zeros(self.lanes, np.int64)
        self.added = 0
        self.rng = np.random.default_rng(0)
        self.batches: dict[int, list[Array]] = {}

    def add(self, item: Any) -> None:
        t = self.added % self.size
        for row in (t, t + self.size) if t < WINDOW - 1 else (t,):
            self.obs[:, row], self.state[:, row] = item.obs, item.state
            self.action[:, row], self.reward[:, row] = item.number, item.reward
            self.terminated[:, row], self.episode[:, row] = item.terminated, self.episodes
        self.episodes += item.terminated
        self.added += 1

    def sample(self, batch: int) -> Any:
        columns: list[Array] = [self.obs, self.action, self.reward, self.terminated]
        if batch not in self.batches:
            self.batches[batch] = [np.zeros((batch, WINDOW, *column.shape[2:]), column.dtype) for column in columns]
        lanes, begins = self._begins(batch)
        for column, out in zip(columns, self.batches[batch], strict=True):
            for i, (lane, begin) in enumerate(zip(lanes, begins, strict=True)):
                out[i] = column[lane, begin : begin + WINDOW]
        return [*self.batches[batch], self.state[lanes, begins]]

    def _begins(self, batch: int) -> tuple[list[int], list[int]]:
        """Return lanes and first rows of windows that lie in one episode."""
        held = min(self.added, self.size)
        oldest = self.added % self.size if self.added > self.size else 0
        lanes: list[int] = []
        begins: list[int] = []
        while len(lanes) < batch:
            lane = self.rng.integers(self.lanes, size=2 * batch)
            begin = (oldest + self.rng.integers(held - WINDOW + 1, size=2 * batch)) % self.size
            inside = self.episode[lane, begin] == self.episode[lane, begin + WINDOW - 1]
            lanes += lane[inside].tolist()
            begins += begin[inside].tolist()
        return lanes[:batch], begins[:batch]

    def seen(self, sampled: Any) -> Seen:
        obs, action, _, _, state = sampled
        return Seen(obs[:, :STEPS], action[:, :STEPS], np.ones((len(obs), STEPS), np.bool_), state)


class TorchRL(Windows):
    """Contender TorchRL: ``SliceSampler`` over a storage of [time, lanes]; slices that lie in one episode.

    Each step has its recurrent state, as all steps of a slice have the same fields.
    """

    def build(self, recording: PlayedSteps, steps: int) -> None:
        from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

        self.lanes = recording.lanes
        storage = LazyTensorStorage(steps, ndim=2)
        # cache_values: trajectory boundaries are looked for again after a write only.
        sampler = SliceSampler(
            slice_len=WINDOW, end_key="done", cache_values=True, strict_length=True, truncated_key=None, init_key=None
        )
        self.buffer: Any = TensorDictReplayBuffer(storage=storage, sampler=sampler, dim_extend=0)

    def item(self, step: Step) -> Any:
        import torch
        from tensordict import TensorDict

        columns: dict[str, Any] = {
            "obs": step.obs, "action": step.number, "reward": step.reward, "done": step.terminated[:, None],
            "state": step.state,
        }  # fmt: skip
        tensors = {name: torch.from_numpy(np.array(array))[None] for name, array in columns.items()}
        return TensorDict(tensors, batch_size=[1, self.lanes])

    def add(self, item: Any) -> None:
        self.buffer.extend(item)

    def sample(self, batch: int) -> Any:
        return self.buffer.sample(batch * WINDOW)

    def seen(self, sampled: Any) -> Seen:
        obs, action = (
            sampled[name].reshape(-1, WINDOW, *sampled[name].shape[1:]).numpy() for name in ("obs", "action")
        )
        state = sampled["state"].reshape(-1, WINDOW, *STATE)[:, 0].numpy()
        return Seen(obs[:, :STEPS], action[:, :STEPS], np.ones((len(obs), STEPS), np.bool_), state)


class Flashbax(Windows):
    """Contender Flashbax: the trajectory buffer, jitted, on the processor. Its windows cross the ends of episodes.

    Each step has its recurrent state, as all steps of a window have the same fields.
    """

    def build(self, recording: PlayedSteps, steps: int) -> None:
        import flashbax
        import jax
        import jax.numpy as jnp

        self.lanes, self.length = recording.lanes, steps // recording.lanes
        self.made: dict[int, Any] = {}
        self._sampler(1)
        step = {
            "obs": jnp.zeros(recording.frame_shape, jnp.uint8), "action": jnp.zeros((), jnp.int32),
            "reward": jnp.zeros((), jnp.float32), "terminated": jnp.zeros((), jnp.bool_),
            "state": jnp.zeros(STATE, jnp.float32),
        }  # fmt: skip
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
            "terminated": step.terminated, "state": step.state,
        }  # fmt: skip
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
        state = np.asarray(sampled["state"])[:, 0]
        return Seen(obs, number, np.ones(number.shape, np.bool_), state)


class Reverb(Windows):
    """Contender Reverb: overlapping items of whole windows, written by a ``TrajectoryWriter`` a lane, in this process.

    Its chunks are compressed. A state is stored for the first step of each window only.
    """

    def build(self, recording: PlayedSteps, steps: int) -> None:
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
