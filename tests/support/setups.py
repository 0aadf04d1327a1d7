"""Environments as people set them up around a :class:`Recorder`, each held against what it really did.

`benchmarks/truth.py` runs all of them for longer, `test_truth.py` some.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np

import sharpwave as sw
from sharpwave.segment_writer import SegmentWriter
from tests.support.truth import MODES, Compared, Counting, CrashesAfter, Logged, Truth, compare

Maker = Callable[[int], Any]
"""An environment's number -> the environment that is logged; what is around it comes from ``Setup.around``."""

VECTOR = sw.Field((3,), "int32")
LANES = 3


@dataclass(frozen=True)
class Setup:
    """One way to play.

    Attributes:
        make, around: the environment that is logged, and the wrappers around it.
        vector: what steps several, if anything does; ``mode``: its autoreset mode; ``copy``: ``SyncVectorEnv(copy=)``.
        field, action: of the store.
        reset_every, mask_every, remake_every, reopen_every: steps after which the player resets, resets some
            sub-environments, makes the Recorder anew, opens the store again (new environments).
        disk: the store lies there, else what is opened is a checkpoint.
        waits: a limiter makes some appends time out.
        reward: what wrappers make of a reward.
        play: who plays, if not :func:`play`. ``share``: of the steps, where frames are large.
    """

    name: str
    make: Maker = Counting
    around: Callable[[Any], Any] = lambda env: env
    vector: Literal["", "sync", "async"] = ""
    mode: str = "SameStep"
    copy: bool = True
    field: sw.Field | dict[str, sw.Field] = VECTOR
    action: sw.Field = sw.Field((), "int64")  # noqa: RUF009 (frozen)
    reset_every: int = 0
    mask_every: int = 0
    remake_every: int = 0
    reopen_every: int = 0
    disk: bool = False
    waits: bool = False
    reward: Callable[[float], float] = lambda reward: reward
    play: Callable[[Setup, int, Path], tuple[sw.Store, Truth]] | None = None
    share: float = 1.0

    def run(self, steps: int) -> tuple[int, Compared]:
        """Play for so many calls of ``step``. Returns steps stored, and what came of comparing."""
        with tempfile.TemporaryDirectory() as folder:
            store, truth = (self.play or play)(self, round(self.share * steps), Path(folder))
            oracle = truth.oracle()
            total = Compared()
            for n_step in (1, 3):
                one = compare(store, oracle, n_step)
                total.compared, total.wrong = total.compared + one.compared, total.wrong + one.wrong
                total.missing += one.missing
            held = len(store)
            store.close()
            return held, total


class Player:
    """Plays a set-up: makes environments, recorders and stores anew as often as it says."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup, self.folder = setup, folder
        self.lanes = LANES if setup.vector else 1
        self.spec = sw.Spec(obs=setup.field, action=setup.action)
        disk = folder / "disk" if setup.disk else None
        self.store = sw.Store(self.spec, capacity=100_000, segment_steps=16, disk=disk)
        self.truth = Truth(folder, setup.field, setup.reward)
        self.rng = np.random.default_rng(0)
        self.env = self.environment()
        self.recorder = sw.Recorder(self.env, self.store)
        self.limit()
        self.reset(seed=3)

    def environment(self) -> Any:
        setup = self.setup

        def maker(lane: int) -> Callable[[], Any]:
            path = self.truth.path(lane)
            return lambda: setup.around(Logged(setup.make(lane), path))

        makers = [maker(lane) for lane in range(self.lanes)]
        if not setup.vector:
            return makers[0]()
        if setup.vector == "sync":
            return gym.vector.SyncVectorEnv(makers, copy=setup.copy, autoreset_mode=MODES[setup.mode])
        return gym.vector.AsyncVectorEnv(makers, autoreset_mode=MODES[setup.mode])

    def limit(self) -> None:
        if self.setup.waits:
            self.queue = self.store.transitions(
                sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(20 * self.lanes), seed=0
            )

    def reset(self, **how: Any) -> None:
        self.recorder.reset(**how)
        self.over = np.zeros(self.lanes, bool)

    def step(self) -> None:
        action: Any = (
            np.array([self.env.action_space.sample()]) if not self.setup.vector else self.env.action_space.sample()
        )
        wait = {"timeout": 0.0} if self.setup.waits else {}
        self.sizes = [self.truth.files[lane][-1].stat().st_size for lane in range(self.lanes)]
        try:
            result = self.recorder.step(action if self.setup.vector else action[0], **wait)
        except (ValueError, TimeoutError) as error:
            result = error.result  # type: ignore[union-attr]
            if isinstance(error, TimeoutError):
                for lane in np.flatnonzero(~self.over if self.setup.mode == "NextStep" else np.ones(self.lanes, bool)):
                    self.truth.refuse(int(lane))
                if len(self.queue):
                    self.queue.sample(len(self.queue))
        self.over = np.atleast_1d(result[2]) | np.atleast_1d(result[3])
        if self.over.any() and (not self.setup.vector or self.setup.mode == "Disabled"):
            self.reset(**({"options": {"reset_mask": self.over.copy()}} if self.setup.vector else {}))

    def crashed(self) -> None:
        """Another environment takes the place of the one that raised. What others did in that step is not known."""
        for lane, size in enumerate(self.sizes):
            with self.truth.files[lane][-1].open() as file:
                file.seek(size)
                if '"action"' in file.read():
                    self.truth.refuse(lane)
        if self.setup.vector or self.rng.random() < 0.5:
            self.env.close(**({"terminate": True} if self.setup.vector == "async" else {}))
            self.env = self.environment()
            self.recorder = sw.Recorder(self.env, self.store)
        self.reset()

    def between(self, k: int) -> None:
        """What the player does between two steps, now and then."""
        setup = self.setup

        def due(every: int) -> bool:
            return bool(every) and k % every == every - 1

        if due(setup.reset_every):
            self.reset(seed=k)
        if due(setup.mask_every):
            mask = self.rng.random(self.lanes) < 0.5
            if mask.any():
                over = self.over & ~mask
                self.reset(options={"reset_mask": mask})
                self.over = over
        if due(setup.remake_every):
            self.recorder = sw.Recorder(self.env, self.store)
            self.reset()
        if due(setup.reopen_every):
            path = self.folder / ("disk" if setup.disk else f"checkpoint-{k}")
            self.store.flush() if setup.disk else self.store.checkpoint(path)
            self.store.close()
            self.env.close()
            self.store = sw.Store.open(path)
            self.env = self.environment()
            self.recorder = sw.Recorder(self.env, self.store)
            self.reset()


def play(setup: Setup, steps: int, folder: Path) -> tuple[sw.Store, Truth]:
    """Random play through a Recorder; what is open at the end is reset, so that every step has an end."""
    player = Player(setup, folder)
    player.env.action_space.seed(1)
    for k in range(steps):
        try:
            player.step()
        except RuntimeError:
            player.crashed()
        player.between(k)
    player.reset()
    player.recorder.close()
    return player.store, player.truth


def play_without_recorder(setup: Setup, steps: int, folder: Path) -> tuple[sw.Store, Truth]:
    """A loop of one's own that gives ``next_obs`` and tells the store of no reset but those that episodes end with."""
    truth = Truth(folder, setup.field)
    store = sw.Store(sw.Spec(obs=setup.field, action=setup.action), capacity=100_000, segment_steps=16)
    env, rng = Logged(Counting(), truth.path(0)), np.random.default_rng(0)
    obs, _ = env.reset()
    for k in range(steps):
        after, reward, terminated, truncated, _ = env.step(k)
        store.append(obs=obs, action=k, reward=reward, terminated=terminated, truncated=truncated, next_obs=after)
        obs = env.reset()[0] if terminated or truncated or rng.random() < 0.1 else after
    store.break_episode(0)
    return store, truth


def play_into_segments(setup: Setup, steps: int, folder: Path) -> tuple[sw.Store, Truth]:
    """A Recorder into a SegmentWriter whose segments now and then find nobody; what is unsealed at the end is lost."""
    spec = sw.Spec(obs=setup.field, action=setup.action)
    truth, rng = Truth(folder, setup.field), np.random.default_rng(0)
    store = sw.Store(spec, capacity=100_000, segment_steps=16)

    def hand_over(one: Any) -> None:
        if rng.random() < 0.3:
            raise OSError("nobody there")
        store.add_segment(one.packed, one.dictionaries)

    makers = [lambda lane=lane: Logged(Counting(lane), truth.path(lane)) for lane in range(LANES)]
    env = gym.vector.SyncVectorEnv(makers, autoreset_mode=MODES["SameStep"])
    recorder = sw.Recorder(env, SegmentWriter(spec, LANES, hand_over, segment_steps=4))
    recorder.reset()
    refused = 0
    for _ in range(steps):
        try:
            recorder.step(env.action_space.sample())
        except OSError:
            refused += 1
            for lane in range(LANES):
                truth.refuse(lane)
    assert refused > steps / 50
    for lane in range(LANES):
        store.break_episode(lane)
    replay = store.transitions()
    batch = replay.fetch(replay.sampleable_ids())
    truth.limits = dict(enumerate(np.bincount(batch.obs[:, -1, 0], minlength=LANES).tolist()))
    return store, truth


def play_atari(setup: Setup, steps: int, folder: Path, **options: Any) -> tuple[sw.Store, Truth]:
    """ale-py's vectors; a twin with the same seeds and actions says what happened."""
    from ale_py.vector_env import AtariVectorEnv

    def make() -> Any:
        return AtariVectorEnv(
            num_envs=2, num_threads=1, max_num_frames_per_episode=200, autoreset_mode=MODES[setup.mode], **options
        )

    env, twin, rng = make(), make(), np.random.default_rng(0)
    store = sw.Store(sw.Spec(obs=setup.field, action=setup.action), capacity=100_000)
    truth = Truth(folder, setup.field)
    recorder = sw.Recorder(env, store)

    def reset(seed: int | None = None) -> None:
        recorder.reset(seed=seed)
        for lane, obs in enumerate(twin.reset(seed=seed)[0]):
            truth.events[lane].append({"reset": obs[-1].copy()})

    reset(5)
    over = np.zeros(2, bool)
    for k in range(steps):
        action = rng.integers(0, env.single_action_space.n, 2)
        recorder.step(action)
        obs, reward, terminated, truncated, info = twin.step(action)
        done = terminated | truncated
        for lane in range(2):
            if setup.mode == "NextStep" and over[lane]:
                truth.events[lane].append({"reset": obs[lane, -1].copy()})
                continue
            same = setup.mode == "SameStep" and done[lane]
            after = info["final_obs"][lane][-1] if same else obs[lane, -1]
            event = {"action": int(action[lane]), "reward": float(reward[lane]), "obs": np.array(after)}
            truth.events[lane].append(event | {"ended": [bool(terminated[lane]), bool(truncated[lane])]})
            if same:
                truth.events[lane].append({"reset": obs[lane, -1].copy()})
        over = done
        if k % 150 == 149:
            reset(k)
            over[:] = False
    reset()
    env.close()
    twin.close()
    return store, truth


def named(name: str, **options: Any) -> Maker:
    """A registered environment, without its TimeLimit: that belongs around the log."""
    return lambda lane: gym.make(name, max_episode_steps=-1, disable_env_checker=True, **options)


def stacked(padding: Any) -> Callable[[Any], Any]:
    return lambda env: gym.wrappers.FrameStackObservation(gym.wrappers.TimeLimit(env, 11), 4, padding_type=padding)


def doubled(env: Any) -> Any:
    env = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(env, 8))
    return gym.wrappers.TransformReward(env, lambda reward: 2 * float(reward) - 1)


def atari_game(lane: int) -> Any:
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    return gym.wrappers.AtariPreprocessing(env, noop_max=5, screen_size=42)


def _setups() -> list[Setup]:
    both = {"count": VECTOR, "half": sw.Field((), "float32")}
    stacks = sw.Field((3,), "int32", stack=4)
    zeros = replace(stacks, pad="zeros")
    pong = sw.Field((84, 84), "uint8", stack=4, pad="zeros")
    limited = partial(gym.wrappers.TimeLimit, max_episode_steps=20)
    found = [
        Setup("one environment", field=stacks, reset_every=17),
        Setup("one that hands out the same buffer", make=partial(Counting, same_buffer=True), reset_every=17),
        Setup("CartPole", make=named("CartPole-v1"), field=sw.Field((4,), "float32")),
        Setup(
            "Pendulum, time limit",
            make=named("Pendulum-v1"),
            around=limited,
            field=sw.Field((3,), "float32"),
            action=sw.Field((1,), "float32"),
        ),
        Setup("Taxi, time limit", make=named("Taxi-v4"), around=limited, field=sw.Field((), "int64")),
        Setup("Blackjack (a tuple)", make=named("Blackjack-v1"), field=sw.Field((3,), "int64")),
        Setup("a dict", make=partial(Counting, kind="dict"), field=both, reset_every=17),
        Setup("statistics, doubled reward, time limit", around=doubled, reward=lambda r: 2 * r - 1),
        Setup("stacked, first frame repeated", around=stacked("reset"), field=stacks, reset_every=23),
        Setup("stacked, zeros", around=stacked("zero"), field=zeros, reset_every=23),
        Setup("recorder made again", field=stacks, remake_every=7),
        Setup("store opened from checkpoints", field=stacks, reopen_every=29),
        Setup("store opened after it was flushed", field=stacks, reopen_every=29, disk=True),
        Setup("refused: not a number", make=partial(Counting, nan_every=7), field=stacks),
        Setup("refused: a limiter", field=stacks, waits=True),
        Setup("crashes", make=partial(Counting, raise_every=13), field=stacks),
        Setup("crashes in a wrapper", around=partial(CrashesAfter, every=13), field=stacks),
        Setup("forgotten resets, next_obs=", field=stacks, play=play_without_recorder),
        Setup("into segments, some refused", field=stacks, play=play_into_segments),
    ]
    for mode in MODES:
        some: dict[str, Any] = {"vector": "sync", "mode": mode}
        other: dict[str, Any] = {"vector": "async", "mode": mode}
        found += [
            Setup(f"Sync, {mode}", field=stacks, around=limited, reset_every=41, **some),
            Setup(f"Sync, {mode}, same buffers", copy=False, **some),
            Setup(f"Sync, {mode}, reset masks", field=stacks, mask_every=4, **some),
            Setup(f"Sync, {mode}, stacked", around=stacked("zero"), field=zeros, mask_every=9, **some),
            Setup(f"Sync, {mode}, 3 tuples of 3", make=partial(Counting, kind="tuple"), **some),
            Setup(f"Sync, {mode}, refused: not a number", make=partial(Counting, nan_every=7), field=stacks, **some),
            Setup(f"Sync, {mode}, refused: a limiter", field=stacks, waits=True, **some),
            Setup(f"Sync, {mode}, recorder made again", field=stacks, remake_every=7, **some),
            Setup(f"Async, {mode}", field=stacks, around=doubled, reward=lambda r: 2 * r - 1, **other),
            Setup(f"Async, {mode}, dicts, stacked", make=partial(Counting, kind="dict"), around=stacked("reset"),
                  field={"count": stacks, "half": sw.Field((), "float32", stack=4)}, mask_every=9,
                  **other),
        ]  # fmt: skip
    sync: dict[str, Any] = {"vector": "sync", "field": stacks}
    found += [
        Setup("Sync, crashes", make=partial(Counting, raise_every=43), **sync),
        Setup("Sync, store opened from checkpoints", reopen_every=29, **sync),
        Setup("Sync, store opened after it was flushed", reopen_every=29, disk=True, **sync),
        Setup("Async, crashes", make=partial(Counting, raise_every=101), **sync | {"vector": "async"}),
        Setup(
            "Sync, Disabled, Pong preprocessed and stacked", make=atari_game, around=stacked("zero"), vector="sync",
            mode="Disabled", field=replace(pong, shape=(42, 42)), share=0.25,
        ),
    ]  # fmt: skip
    games: list[tuple[str, dict[str, Any]]] = [("pong", {}), ("breakout", {"episodic_life": True})]
    for mode in ("NextStep", "SameStep"):
        for game, options in games:
            name = f"AtariVectorEnv, {mode}, {game}" + "".join(f", {option}" for option in options)
            found.append(Setup(name, mode=mode, field=pong, share=0.25, play=partial(play_atari, game=game, **options)))
    return found


SETUPS = {setup.name: setup for setup in _setups()}
