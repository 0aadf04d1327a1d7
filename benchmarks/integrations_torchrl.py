"""TorchRL with its own storages and with ours.

    python benchmarks/integrations_torchrl.py [--steps 20000] [--rounds 3] [--env PongNoFrameskip-v4]

Eight environments, stacks of four frames (uint8) as ``CatFrames`` makes them, random actions, batches of 64 steps in
time, as a collector returns them. Each buffer in a process of its own, in turn, ``--rounds`` times; medians of speed by
processor time. Memory is the growth of what the process holds (for a memory-mapped storage that of its files) from
before the buffer was made until ``--steps`` transitions are in it, without what was freed since. ``extend`` and
``sample`` are timed as a program calls them; an update is one of ``DQNLoss`` with a convolutional network on a CPU with
one thread, sampling included.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import torch
from integration_runs import counted, held_bytes, main, rate
from tensordict import TensorDict
from torchrl.data import CompressedListStorage, LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from sharpwave.integrations.torchrl import ReplayBuffer, SharpwaveStorage

LANES, TIME, UPDATES, STACK = 8, 64, 40, 4


def theirs(storage: Callable[[int], Any]) -> Callable[[int, str], Any]:
    """Return a maker of TorchRL's buffer over a storage."""
    return lambda size, folder: TensorDictReplayBuffer(storage=storage(size), batch_size=32)


BUFFERS: dict[str, Callable[[int, str], Any]] = {
    "LazyTensorStorage": theirs(LazyTensorStorage),
    "LazyMemmapStorage": lambda size, folder: theirs(partial(LazyMemmapStorage, scratch_dir=folder))(size, folder),
    "CompressedListStorage": theirs(CompressedListStorage),
    "ours": lambda size, folder: ReplayBuffer(size, batch_size=32),
    "ours, prioritized": lambda size, folder: ReplayBuffer(size, batch_size=32, alpha=0.6),
    "SharpwaveStorage": lambda size, folder: TensorDictReplayBuffer(
        storage=SharpwaveStorage(size), batch_size=32, collate_fn=torch.nn.Identity()
    ),
}


def batches(name: str, steps: int) -> Any:
    """Play, and yield what a collector would return, [LANES, TIME]."""
    gym.register_envs(ale_py)

    def make() -> Any:
        return gym.wrappers.FrameStackObservation(gym.wrappers.AtariPreprocessing(gym.make(name)), STACK)

    envs: Any = gym.vector.SyncVectorEnv([make] * LANES, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    envs.action_space.seed(0)
    obs, _ = envs.reset(seed=1)
    shape, count = (LANES, TIME), int(envs.single_action_space.n)
    trajectory = np.arange(LANES)
    for _ in range(-(-steps // (LANES * TIME))):
        before, after = (np.empty((*shape, *obs.shape[1:]), np.uint8) for _ in range(2))
        actions, numbers = np.empty(shape, np.int64), np.empty(shape, np.int64)
        rewards, ends = np.empty((*shape, 1), np.float32), np.zeros((2, *shape, 1), np.bool_)
        for t in range(TIME):
            before[:, t], actions[:, t], numbers[:, t] = obs, envs.action_space.sample(), trajectory
            obs, rewards[:, t, 0], ends[0, :, t, 0], ends[1, :, t, 0], infos = envs.step(actions[:, t])
            after[:, t] = obs
            for lane in np.flatnonzero(ends[:, :, t, 0].any(0)):
                after[lane, t] = infos["final_obs"][lane]
                trajectory[lane] = trajectory.max() + 1
        flags = {"terminated": ends[0], "truncated": ends[1], "done": ends[0] | ends[1]}
        tensors = {key: torch.from_numpy(value.copy()) for key, value in flags.items()}
        none = {key: torch.zeros_like(value) for key, value in tensors.items()}
        nested = {"observation": torch.from_numpy(after), "reward": torch.from_numpy(rewards), **tensors}
        one_hot = torch.nn.functional.one_hot(torch.from_numpy(actions), count)
        root = {"observation": torch.from_numpy(before), "action": one_hot, **none, "next": nested}
        yield TensorDict({**root, "collector": {"traj_ids": torch.from_numpy(numbers)}}, shape)


class Pixels(torch.nn.Sequential):
    """Network of Mnih et al. (2015), from bytes."""

    def forward(self, obs: torch.Tensor) -> Any:
        """Return the actions' values."""
        return super().forward(obs.float() / 255)  # type: ignore[no-untyped-call]


def updates(buffer: Any, actions: int) -> Callable[[], None]:
    """Return an update of DQN from a sample."""
    torch.manual_seed(0)
    layers = [torch.nn.LazyConv2d(width, size, stride) for width, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1))]
    parts = [part for layer in layers for part in (layer, torch.nn.ReLU())]
    head = (torch.nn.Flatten(), torch.nn.LazyLinear(512), torch.nn.ReLU(), torch.nn.LazyLinear(actions))
    network = Pixels(*parts, *head)
    network(torch.zeros(1, STACK, 84, 84))
    loss_of = DQNLoss(QValueActor(network, in_keys=["observation"], action_space="one-hot"), action_space="one-hot")
    target, optimizer = SoftUpdate(loss_of, tau=0.01), torch.optim.Adam(loss_of.parameters(), 1e-4)

    def update() -> None:
        sample = buffer.sample()
        optimizer.zero_grad()
        loss_of(sample)["loss"].backward()
        optimizer.step()
        target.step()
        buffer.update_tensordict_priority(sample)

    return update


def measure(name: str, env: str, steps: int) -> dict[str, float]:
    """Fill a buffer and measure it; in a process of its own."""
    logging.disable()
    torch.set_num_threads(1)
    warm = ReplayBuffer(1000)  # kernels and libraries are loaded
    warm.extend(next(batches(env, 1)))
    warm.sample(8)
    del warm
    before = held_bytes()
    with tempfile.TemporaryDirectory() as folder:
        buffer, spent = BUFFERS[name](steps, folder), []
        for data in batches(env, steps):
            flat = data.reshape(-1)
            began = time.process_time()
            buffer.extend(flat)
            spent.append(time.process_time() - began)
        actions = data["action"].shape[-1]
        del data, flat
        grown = held_bytes() - before
        if name == "LazyMemmapStorage":
            grown = sum(512 * file.stat().st_blocks for file in Path(folder).rglob("*") if file.is_file())
        found = {"bytes": grown / steps, "adds": LANES * TIME / statistics.mean(spent[len(spent) // 2 :])}
        if isinstance(buffer, ReplayBuffer):
            found |= counted(buffer.transitions.store, steps)
        found["sample 32"] = 32 * rate(buffer.sample, 3.0)
        buffer._batch_size = None
        found["sample 256"] = 256 * rate(partial(buffer.sample, 256), 3.0)
        buffer._batch_size = 32
        update = updates(buffer, actions)
        update()
        began = time.process_time()
        for _ in range(UPDATES):
            update()
        return found | {"updates": UPDATES / (time.process_time() - began)}


if __name__ == "__main__":
    main(__file__, __doc__, BUFFERS, measure, steps=20_000)
