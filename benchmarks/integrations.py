"""Frameworks with their own replay buffers, and with ours: Stable-Baselines3, Tianshou or TorchRL.

    python benchmarks/integrations.py [sb3] [--steps 50000] [--rounds 3] [--env PongNoFrameskip-v4] [--out FILE]
    python benchmarks/integrations.py tianshou      # 20,000 steps
    python benchmarks/integrations.py torchrl       # 20,000 steps
    python benchmarks/integrations.py hindsight [--rounds 3] [--steps 4000] [--env FetchReach-v4]

Eight environments, stacks of four frames (uint8), random actions. Each buffer in a process of its own, in turn,
``--rounds`` times; medians, and the lowest and highest. Speeds are by processor time. Memory is the growth of what the
process holds (for a memory-mapped storage that of its files), from before the buffer was made until ``--steps``
transitions are in it, without freed ones; "counted" is the total of the store's own `stats()`. Adding and sampling are
timed as the framework calls them (TorchRL: batches of 64 steps in time, as a collector returns them); an update is one
of its DQN on a CPU with one thread, sampling included. sb3-extra-buffers is measured where it is installed. "NaN
check": milliseconds of ``hasnull``, which Tianshou 2's trainer calls after every collection.

``hindsight``: SAC with hindsight experience replay on FetchReach, our buffer beside SB3's own. It needs
``pip install '.[sb3]' gymnasium-robotics 'mujoco<3.4'``. A robot's arm moves its gripper to a goal within 50 steps; the
reward is -1 until it is there. Hyperparameters are of RL Baselines3 Zoo, with tau=0.05; observations are normalized.
After every 500 steps the policy's mean action plays 50 episodes of another environment, whose goals are the same for
all runs. "nothing relabelled": our buffer with n_sampled_goal=0. A round is a seed; each run has a process of its own
with one thread. The table has the share of episodes that end at the goal, the mean of the seeds and in brackets the
lowest and the highest; seconds are those of training.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import runner
import torch

LANES, STACK = 8, 4
COUNTED = "counted"
"""What the store counts of ``bytes``: without Python's objects, and without other memory of the process."""
HEADS = {"bytes": "bytes each", "adds": "adds/s", "sample 32": "sampled/s, 32", "sample 256": "256"}
"""Columns of every table, by what ``measure`` calls them; then what else it found, by its own name, and updates/s."""

Found = dict[str, float]
Make = Callable[..., Any]


class Framework(ABC):
    """A framework in whose programs our buffers replace its own.

    Attributes:
        steps: of a buffer by default.
        results: the results' file.
    """

    steps: int
    results: str

    @abstractmethod
    def buffers(self) -> dict[str, Make]:
        """Return the buffers, each made for so many steps."""

    @abstractmethod
    def measure(self, name: str, env: str, steps: int) -> Found:
        """Fill a buffer and measure it, in a process of its own."""


def found_of(grown: int, steps: int, spent: list[float], per_add: int, store: Any) -> Found:
    """Return bytes a transition and the speed of adding to the fuller half; ``store``: ours, or ``None``."""
    found = {"bytes": grown / steps, "adds": per_add / statistics.mean(spent[len(spent) // 2 :])}
    return found if store is None else found | {COUNTED: store.stats()["total_bytes"] / steps}


def processor_s(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def rate(call: Callable[[], object], seconds: float) -> float:
    """Return how often ``call`` is done a second of processor time: the median over batches of ten calls."""
    call()
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not rates:
        began = time.process_time()
        for _ in range(10):
            call()
        rates.append(10 / (time.process_time() - began))
    return statistics.median(rates)


def held_bytes() -> int:
    """Return the process's resident memory, without what was freed and the allocator keeps (on Linux)."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return runner.memory(part="VmRSS")


class Vector:
    """Environments by SB3's Atari wrappers, as a vector of SB3's."""

    def __init__(self, env: str) -> None:
        import ale_py
        import gymnasium as gym
        from stable_baselines3.common.env_util import make_atari_env
        from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage

        gym.register_envs(ale_py)
        self.envs: Any = VecTransposeImage(VecFrameStack(make_atari_env(env, n_envs=LANES, seed=1), STACK))
        self.obs = self.envs.reset()
        self._rng = np.random.default_rng(0)

    def play(self, steps: int) -> Iterator[tuple[Any, ...]]:
        """Yield steps of all environments: obs, what follows it, actions, rewards, ends, infos."""
        for _ in range(steps // LANES):
            action = self._rng.integers(0, self.envs.action_space.n, LANES)
            new_obs, rewards, dones, infos = self.envs.step(action)
            after = new_obs.copy()
            for i in np.flatnonzero(dones):
                after[i] = infos[i]["terminal_observation"]
            yield self.obs, after, action, rewards, dones, infos
            self.obs = new_obs


class SB3(Framework):
    """Stable-Baselines3."""

    steps, results, updates = 50_000, "integrations.json", 60

    def buffers(self) -> dict[str, Make]:
        """Return SB3's own, in both configurations, sb3-extra-buffers' and ours."""
        from stable_baselines3.common.buffers import ReplayBuffer as Theirs

        from sharpwave.integrations.sb3 import PrioritizedReplayBuffer, ReplayBuffer

        def extra(*arguments: Any, **given: Any) -> Any:
            from sb3_extra_buffers.compressed import CompressedReplayBuffer  # type: ignore[import-not-found]

            types = {"elem_type": np.uint8, "runs_type": np.uint16}
            return CompressedReplayBuffer(*arguments, dtypes=types, **given)

        halved = {"optimize_memory_usage": True, "handle_timeout_termination": False}
        return {
            "SB3": Theirs,
            "SB3, optimize_memory_usage": partial(Theirs, **halved),
            "sb3-extra-buffers, zstd": partial(extra, compression_method="zstd-3"),
            "sb3-extra-buffers, rle": partial(extra, compression_method="rle"),
            "ours": partial(ReplayBuffer, seed=1),
            "ours, prioritized": partial(PrioritizedReplayBuffer, seed=1),
        }

    def measure(self, name: str, env: str, steps: int) -> Found:
        """Fill a buffer and measure it."""
        from stable_baselines3 import DQN

        vector, makes = Vector(env), self.buffers()
        spaces = vector.envs.observation_space, vector.envs.action_space
        makes["ours"](100, *spaces, n_envs=LANES).view  # noqa: B018  # kernels and libraries are loaded
        before, spent = held_bytes(), []
        buffer = makes[name](steps, *spaces, n_envs=LANES)
        for step in vector.play(steps):
            spent.append(processor_s(partial(buffer.add, *step)))
        store = buffer.transitions.store if name.startswith("ours") else None
        found = found_of(held_bytes() - before, steps, spent, LANES, store)
        for size in (32, 256):
            found[f"sample {size}"] = size * rate(partial(buffer.sample, size), 3.0)
        model = DQN("CnnPolicy", vector.envs, buffer_size=LANES, learning_starts=10**9, device="cpu", seed=1)
        model.replay_buffer, model._logger = buffer, _Quiet()
        model.train(2, 32)
        return found | {"updates": self.updates / processor_s(lambda: model.train(self.updates, 32))}


class _Quiet:
    """Logger of nothing."""

    def record(self, *args: Any, **kwargs: Any) -> None: ...


class Tianshou(Framework):
    """Tianshou."""

    steps, results, updates = 20_000, "integrations_tianshou.json", 40

    def buffers(self) -> dict[str, Make]:
        """Return Tianshou's own, in both configurations, and ours."""
        import tianshou.data as theirs

        from sharpwave.integrations import tianshou as ours

        stacked: dict[str, Any] = {"stack_num": STACK, "save_only_last_obs": True, "ignore_obs_next": True}
        priorities: dict[str, Any] = {"alpha": 0.6, "beta": 0.4}
        return {
            "Tianshou": theirs.VectorReplayBuffer,
            "Tianshou, only last frames": partial(theirs.VectorReplayBuffer, **stacked),
            "ours": ours.VectorReplayBuffer,
            "Tianshou, prioritized, last frames": partial(
                theirs.PrioritizedVectorReplayBuffer, **priorities, **stacked
            ),
            "ours, prioritized": partial(ours.PrioritizedVectorReplayBuffer, **priorities),
        }

    def measure(self, name: str, env: str, steps: int) -> Found:
        """Fill a buffer and measure it."""
        from tianshou.algorithm.algorithm_base import policy_within_training_step
        from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
        from tianshou.algorithm.optim import AdamOptimizerFactory
        from tianshou.data import Batch
        from tianshou.env.atari.atari_network import DQNet

        vector, makes = Vector(env), self.buffers()
        shape, actions = vector.envs.observation_space.shape, vector.envs.action_space

        def batch(obs: Any, after: Any, act: Any, rewards: Any, dones: Any, infos: Any) -> Batch:
            truncated = dones & [bool(info.get("TimeLimit.truncated", False)) for info in infos]
            ends = {"terminated": dones & ~truncated, "truncated": truncated}
            return Batch(
                {"obs": obs, "obs_next": after, "act": act, "rew": rewards, "info": Batch(), "policy": Batch()} | ends
            )

        warm, none = makes[name](640, LANES), np.zeros(LANES, np.bool_)
        for _ in range(
            8
        ):  # kernels and libraries are loaded; it stays, as memory that it let go of would be used again
            warm.add(batch(vector.obs, vector.obs, np.zeros(LANES, np.int64), none * 1.0, none, [{}] * LANES))
        warm.sample(8)
        before, spent = held_bytes(), []
        buffer = makes[name](steps, LANES)
        for step in vector.play(steps):
            spent.append(processor_s(partial(buffer.add, batch(*step))))
        store = buffer.transitions.store if name.startswith("ours") else None
        found = found_of(held_bytes() - before, steps, spent, LANES, store)
        for size in (32, 256):
            found[f"sample {size}"] = size * rate(partial(buffer.sample, size), 3.0)
        found["NaN check"] = 1000 * processor_s(buffer.hasnull)
        policy = DiscreteQLearningPolicy(model=DQNet(*shape, action_shape=int(actions.n)), action_space=actions)
        algorithm = DQN(
            policy=policy, optim=AdamOptimizerFactory(1e-4), n_step_return_horizon=3, target_update_freq=500
        )

        def update(count: int) -> None:
            for _ in range(count):
                algorithm.update(buffer=buffer, sample_size=32)

        with policy_within_training_step(policy):
            update(2)
            return found | {"updates": self.updates / processor_s(partial(update, self.updates))}


class TorchRL(Framework):
    """TorchRL."""

    steps, results, updates, times = 20_000, "integrations_torchrl.json", 40, 64

    def buffers(self) -> dict[str, Make]:
        """Return TorchRL's own over its storages, its own over ours, and ours."""
        from torchrl.data import CompressedListStorage, LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer

        from sharpwave.integrations.torchrl import ReplayBuffer, SharpwaveStorage

        def over(storage: Make, **given: Any) -> Make:
            return lambda size, folder: TensorDictReplayBuffer(storage=storage(size, folder), batch_size=32, **given)

        return {
            "LazyTensorStorage": over(lambda size, folder: LazyTensorStorage(size)),
            "LazyMemmapStorage": over(lambda size, folder: LazyMemmapStorage(size, scratch_dir=folder)),
            "CompressedListStorage": over(lambda size, folder: CompressedListStorage(size)),
            "ours": lambda size, folder: ReplayBuffer(size, batch_size=32),
            "ours, prioritized": lambda size, folder: ReplayBuffer(size, batch_size=32, alpha=0.6),
            "SharpwaveStorage": lambda size, folder: TensorDictReplayBuffer(
                storage=SharpwaveStorage(size), batch_size=32, collate_fn=torch.nn.Identity()
            ),
        }

    def measure(self, name: str, env: str, steps: int) -> Found:
        """Fill a buffer and measure it."""
        logging.disable()
        makes = self.buffers()
        warm = makes["ours"](1000, "")  # kernels and libraries are loaded
        warm.extend(next(batches(env, 1, self.times)))
        warm.sample(8)
        del warm
        before, spent = held_bytes(), []
        with tempfile.TemporaryDirectory() as folder:
            buffer = makes[name](steps, folder)
            for data in batches(env, steps, self.times):
                spent.append(processor_s(partial(buffer.extend, data.reshape(-1))))
            actions = data["action"].shape[-1]
            del data
            grown = held_bytes() - before
            if name == "LazyMemmapStorage":
                grown = sum(512 * file.stat().st_blocks for file in Path(folder).rglob("*") if file.is_file())
            store = buffer.transitions.store if name.startswith("ours") else None
            found = found_of(grown, steps, spent, LANES * self.times, store)
            found["sample 32"] = 32 * rate(buffer.sample, 3.0)
            buffer._batch_size = None
            found["sample 256"] = 256 * rate(partial(buffer.sample, 256), 3.0)
            buffer._batch_size = 32
            update = updates(buffer, actions)
            update()
            spent_s = processor_s(lambda: [update() for _ in range(self.updates)])
            return found | {"updates": self.updates / spent_s}


def batches(name: str, steps: int, times: int) -> Any:
    """Play, and yield what a collector would return, [LANES, times]."""
    import ale_py
    import gymnasium as gym
    from tensordict import TensorDict

    gym.register_envs(ale_py)

    def make() -> Any:
        return gym.wrappers.FrameStackObservation(gym.wrappers.AtariPreprocessing(gym.make(name)), STACK)

    envs: Any = gym.vector.SyncVectorEnv([make] * LANES, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    envs.action_space.seed(0)
    obs, _ = envs.reset(seed=1)
    shape, count = (LANES, times), int(envs.single_action_space.n)
    trajectory = np.arange(LANES)
    for _ in range(-(-steps // (LANES * times))):
        before, after = (np.empty((*shape, *obs.shape[1:]), np.uint8) for _ in range(2))
        actions, numbers = np.empty(shape, np.int64), np.empty(shape, np.int64)
        rewards, ends = np.empty((*shape, 1), np.float32), np.zeros((2, *shape, 1), np.bool_)
        for t in range(times):
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


def updates(buffer: Any, actions: int) -> Callable[[], None]:
    """Return an update of DQN from a sample."""
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

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


class Pixels(torch.nn.Sequential):
    """Network of Mnih et al. (2015), from bytes."""

    def forward(self, obs: torch.Tensor) -> Any:
        """Return the actions' values."""
        return super().forward(obs.float() / 255)  # type: ignore[no-untyped-call]


# hindsight

EVERY, EPISODES = 500, 50
HINDSIGHT = {"SB3's HerReplayBuffer": 4, "ours": 4, "nothing relabelled": 0}
"""Buffers by name, each with the number of relabelled transitions for each one as it was stored."""


def success(model: Any, norm: Any, env: Any) -> float:
    """Return the share of held-out episodes that end at the goal."""
    reached = 0.0
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=10_000 + episode)
        ended = False
        while not ended:
            action, _ = model.predict(norm.normalize_obs(obs), deterministic=True)
            obs, _, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
        reached += float(info["is_success"])
    return reached / EPISODES


def trained(name: str, seed: int, env: str, steps: int) -> dict[str, Any]:
    """Train once; return success by number of steps, and seconds of training without evaluation."""
    import gymnasium as gym
    import gymnasium_robotics  # type: ignore[import-not-found]
    from stable_baselines3 import SAC, HerReplayBuffer
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    from sharpwave.integrations import sb3

    gym.register_envs(gymnasium_robotics)
    envs = VecNormalize(DummyVecEnv([lambda: gym.make(env)]), norm_reward=False)
    model = SAC(
        "MultiInputPolicy", envs, learning_rate=1e-3, buffer_size=100_000, learning_starts=1000, batch_size=256,
        gamma=0.95, tau=0.05, policy_kwargs={"net_arch": [64, 64]}, device="cpu", seed=seed,
        replay_buffer_class=HerReplayBuffer if name.startswith("SB3") else sb3.HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": HINDSIGHT[name], "goal_selection_strategy": "future"},
    )  # fmt: skip
    held_out, seconds, found = gym.make(env), 0.0, {}
    for done in range(EVERY, steps + 1, EVERY):
        began = time.perf_counter()
        model.learn(EVERY, reset_num_timesteps=False)
        seconds += time.perf_counter() - began
        found[done] = success(model, envs, held_out)
    return {"success": found, "seconds": seconds}


def show_hindsight(env: str, steps: int, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Print a row for each buffer, and the mean, lowest and highest success after every ``EVERY`` steps."""
    marks = [str(done) for done in range(EVERY, steps + 1, EVERY)]
    title = f"{env}, success in {EPISODES} held-out episodes"
    table = runner.table(title, "buffer", *(f"{int(mark):,}" for mark in marks), "seconds", left=("buffer",))
    for name, seeds in runs.items():
        scores = np.array([[run["success"][mark] for mark in marks] for run in seeds])
        cells = [f"{s.mean():.0%} ({s.min():.0%}-{s.max():.0%})" for s in scores.T]
        table.add_row(name, *cells, f"{np.median([run['seconds'] for run in seeds]):.0f}")
    runner.console(120).print(table)


FRAMEWORKS: dict[str, Framework] = {"sb3": SB3(), "tianshou": Tianshou(), "torchrl": TorchRL()}


def main() -> None:
    """Measure each buffer in turn, print a table, and write all runs."""
    parser = runner.parser(__doc__)
    parser.add_argument("what", nargs="?", choices=[*FRAMEWORKS, "hindsight"], default="sb3")
    parser.add_argument("--steps", type=int, help="transitions in each buffer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--env", help="default: PongNoFrameskip-v4; of hindsight: FetchReach-v4")
    parser.add_argument("--out", type=Path, help="file of all runs; default: the framework's in results/")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    of = FRAMEWORKS.get(given.what)
    steps = given.steps or (of.steps if of else 4_000)
    env = given.env or ("PongNoFrameskip-v4" if of else "FetchReach-v4")
    if given.one:
        name, turn = given.one
        torch.set_num_threads(1)
        print(json.dumps(of.measure(name, env, steps) if of else trained(name, int(turn), env, steps)))
        return
    runner.check_idle()
    runs: dict[str, list[Any]] = {name: [] for name in (of.buffers() if of else HINDSIGHT)}
    for turn in range(given.rounds):
        for name, found in runs.items():
            options = ["--one", name, str(turn), "--steps", str(steps), "--env", env]
            one = runner.last_line([sys.executable, __file__, given.what, *options], name)
            found += [] if one is None else [one]
        out = given.out or runner.RESULTS / (of.results if of else "hindsight.json")
        runner.write(out, {"env": env, "steps": steps, "runs": runs})
    there = {name: found for name, found in runs.items() if found}
    if of:
        show(f"{env}, {steps:,} transitions: median of {given.rounds} (lowest - highest)", there)
    else:
        show_hindsight(env, steps, there)


def show(title: str, runs: dict[str, list[Found]]) -> None:
    """Print a table, and ratios of ours to SB3's own, larger being better."""
    keys = dict.fromkeys(key for found in runs.values() for key in found[0])
    own = [key for key in keys if key not in HEADS and key != "updates"]
    table = runner.table(title, "buffer", *HEADS.values(), *own, "updates/s", left=("buffer",))
    for name, found in runs.items():
        columns = {key: [run[key] for run in found if key in run] for key in (*HEADS, *own, "updates")}
        table.add_row(name, *(cell(values, key in HEADS or key == COUNTED) for key, values in columns.items()))
    runner.console().print(table)
    medians = {
        name: {key: statistics.median(run[key] for run in some) for key in some[0]} for name, some in runs.items()
    }
    if "SB3" in medians and "ours" in medians:
        base = medians["SB3"]
        ratios = {key: (base[key] / medians["ours"][key]) ** (1 if key == "bytes" else -1) for key in base}
        print("ours to SB3's: " + ", ".join(f"{key} {value:.2f}" for key, value in ratios.items()))


def cell(values: list[float], whole: bool) -> str:
    """Return the median with the lowest and the highest."""
    if not values:
        return "-"
    low, middle, high = (
        f"{one:,.{0 if whole else 1}f}" for one in (min(values), statistics.median(values), max(values))
    )
    return f"{middle}\n({low} - {high})"


if __name__ == "__main__":
    main()
