"""One slice of one rung, measured in a process of its own: ``ladder_slices.py '{"name": ...}'``."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

import numpy as np
import psutil
import textbook
import torch
from textbook import RUNGS, Rung

from sharpwave.bench.trainer import Clock, train_on_clock
from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.recipes import load_recipe

SETTLE_TURNS = 10
"""Turns with updates between the warm-up and the start of the clock: first calls compile and allocate."""

Slice = dict[str, Any]


class Window:
    """Turns of a loop: those that fill the memory, SETTLE_TURNS more, and the measured ones.

    Args:
        warmup, steps: environment steps, rounded up to whole turns.
        per_turn: environment steps of a turn.
    """

    def __init__(self, warmup: int, steps: int, per_turn: int) -> None:
        self.warm = math.ceil(warmup / per_turn)
        self.begin = self.warm + SETTLE_TURNS
        self.end = self.begin + math.ceil(steps / per_turn)
        self.steps = (self.end - self.begin) * per_turn


class Usage:
    """Memory and processor time of several processes since the start."""

    def __init__(self) -> None:
        self._processes = [psutil.Process()]
        self._bytes = self._rss()
        self._cpu = 0.0

    def add(self, pid: int) -> None:
        """Add a process that has just started; all of its memory counts."""
        self._processes.append(psutil.Process(pid))

    def restart(self) -> None:
        """Restart the count of processor time; memory is still counted from the start."""
        self._cpu = self._cpu_seconds()

    def result(self) -> dict[str, float]:
        """Return the growth of resident memory, and processor seconds of all threads."""
        return {"memory_bytes": self._rss() - self._bytes, "cpu_seconds": self._cpu_seconds() - self._cpu}

    def _rss(self) -> int:
        return sum(process.memory_info().rss for process in self._processes)

    def _cpu_seconds(self) -> float:
        return float(sum(sum(process.cpu_times()[:2]) for process in self._processes))


def measure(name: str, seed: int, warmup: int, steps: int, threads: int) -> Slice:
    """Measure a rung.

    Args:
        warmup: random steps that fill the memory first.
        steps: steps to measure.
        threads: torch's threads; two processes divide them.
    Returns:
        steps, seconds, updates; processes: time of each by part (see ``clock.PARTS``); memory_bytes:
        growth of all processes; stored, bytes_per_transition; cpu_seconds.
    """
    rung = RUNGS[name]
    torch.set_num_threads(max(1, threads // 2) if rung.kind == "parallel" else threads)
    torch.manual_seed(seed)
    loops = {"textbook": one_process, "parallel": two_processes, "sharpwave": full, "sb3": peer}
    return loops[rung.kind](rung, seed, warmup, steps * rung.times)


def one_process(rung: Rung, seed: int, warmup: int, steps: int) -> Slice:
    """Step every environment once, then make one update."""
    usage, clock, rng = Usage(), Clock(), np.random.default_rng(seed)
    lanes = textbook.make_lanes(rung.lanes, rung.envs)
    learner = textbook.Learner(lanes.stack, lanes.num_actions, rung.no_grad)
    buffer = textbook.ListBuffer()
    window = Window(warmup, steps, rung.envs)
    states = lanes.reset(seed)
    before = 0
    for turn in range(window.end):
        if turn == window.begin:
            clock.restart()
            usage.restart()
            before = learner.updates
        with clock.part("inference"):
            if turn < window.warm:
                actions = rng.integers(lanes.num_actions, size=rung.envs).tolist()
            else:
                epsilon = textbook.exploration(turn * rung.envs)
                actions = textbook.act(learner.net, states, lanes.num_actions, epsilon, rng)
        with clock.part("environment"):
            outcomes = lanes.step(actions)
        for state, action, outcome in zip(states, actions, outcomes, strict=True):
            buffer.append(textbook.Transition(state, action, outcome.reward, outcome.done, outcome.next_state))
        states = [outcome.state for outcome in outcomes]
        if turn >= window.warm:
            with clock.part("sampling"):
                batch = textbook.tensors(buffer.sample(textbook.BATCH * rung.envs, rng))
            with clock.part("learning"):
                learner.learn(batch)
    split = clock.split()
    return result(
        window.steps,
        learner.updates - before,
        {"learner": split},
        usage.result(),
        len(buffer),
        buffer.nbytes() / len(buffer),
    )


def two_processes(rung: Rung, seed: int, warmup: int, steps: int) -> Slice:
    """Take PER_UPDATE transitions from the acting process, then make one update of PER_UPDATE times the batch."""
    usage, clock, rng = Usage(), Clock(), np.random.default_rng(seed)
    learner = textbook.Learner(*textbook.shape(rung), rung.no_grad)
    buffer = textbook.ListBuffer()
    window = Window(warmup, steps, textbook.PER_UPDATE)
    before = 0
    with textbook.Player(rung, learner.net, seed, warmup) as player:
        usage.add(player.pid)
        played = player.seconds()
        for turn in range(window.end):
            if turn == window.begin:
                clock.restart()
                usage.restart()
                before, played = learner.updates, player.seconds()
            with clock.part("waiting"):
                transitions = [player.get() for _ in range(textbook.PER_UPDATE)]
            for transition in transitions:
                buffer.append(transition)
            if turn >= window.warm:
                with clock.part("sampling"):
                    batch = textbook.tensors(buffer.sample(textbook.BATCH * textbook.PER_UPDATE, rng))
                with clock.part("learning"):
                    learner.learn(batch)
        split = clock.split()
        now = player.seconds()
        processes = {"learner": split, "player": {part: now[part] - played[part] for part in now}}
        return result(
            window.steps,
            learner.updates - before,
            processes,
            usage.result(),
            len(buffer),
            buffer.nbytes() / len(buffer),
        )


class Measured(Callback):
    """Callback that measures the turns of a window, and ends training with it.

    Attributes:
        split: seconds by part.
        updates: updates within the window.
        used: result of ``Usage.result``.
    """

    def __init__(self, window: Window, clock: Clock, usage: Usage) -> None:
        self.window, self._clock, self._usage = window, clock, usage
        self._turn = self.updates = 0
        self.split: dict[str, float] = {}
        self.used: dict[str, float] = {}

    def on_step(self, training: Training) -> None:
        self._turn += 1
        if self._turn == self.window.begin:
            self._clock.restart()
            self._usage.restart()
        if self._turn == self.window.end:
            self.split, self.used = self._clock.split(), self._usage.result()
            self.updates = self._clock.calls["learning"]
            training.stop("measured")


def full(rung: Rung, seed: int, warmup: int, steps: int) -> Slice:
    """Measure recipe ``pong-dqn`` in Sharpwave's own loop, with environment, agent and view on the clock."""
    usage, clock = Usage(), Clock()
    pong = load_recipe("pong-dqn")
    recipe = pong.override(capacity=max(pong.replay.capacity, warmup),
        seed=seed, warmup_steps=warmup, stop_reward=None, threads=torch.get_num_threads(), device="cpu",
        steps=10**12, report_every=10**12, checkpoint_every=10**12, **rung.settings,
    )  # fmt: skip
    measured = Measured(Window(warmup, steps, recipe.env.num_envs), clock, usage)
    last = train_on_clock(recipe, clock, measured)
    split, window = {"learner": measured.split}, measured.window
    return result(window.steps, measured.updates, split, measured.used, last["replay_steps"], last["bytes_per_step"])


def peer(rung: Rung, seed: int, warmup: int, steps: int) -> Slice:
    """Measure stable-baselines3's DQN with its zoo's settings for Atari; learning begins after ``warmup``."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    usage, clock = Usage(), Clock()
    model = DQN(
        "CnnPolicy", VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=1, seed=seed), 4),
        buffer_size=100_000, learning_rate=1e-4, batch_size=32, learning_starts=warmup, target_update_interval=1000,
        train_freq=4, gradient_steps=1, exploration_fraction=0.1, exploration_final_eps=0.01, seed=seed, device="cpu",
    )  # fmt: skip
    buffer: Any = model.replay_buffer
    for owner, method, part in (
        (model.env, "step", "environment"), (model, "_sample_action", "inference"), (buffer, "sample", "sampling"),
        (model, "train", "learning"),
    ):  # fmt: skip
        setattr(owner, method, clock.timed(part, getattr(owner, method)))
    window = Window(warmup, steps, 1)
    split: dict[str, float] = {}
    before = 0

    def on_step(local: dict[str, Any], _: dict[str, Any]) -> bool:
        nonlocal before
        turn = local["self"].num_timesteps
        if turn == window.begin:
            clock.restart()
            usage.restart()
            before = model._n_updates
        if turn == window.end:
            split.update(clock.split())
        return bool(turn < window.end)

    model.learn(10_000_000, callback=on_step)  # the zoo's length, of which exploration takes a share
    arrays = [array for array in vars(buffer).values() if isinstance(array, np.ndarray)]
    each = sum(array.nbytes for array in arrays) / buffer.buffer_size
    return result(window.steps, model._n_updates - before, {"learner": split}, usage.result(), buffer.size(), each)


def result(
    steps: int, updates: int, processes: dict[str, dict[str, float]], used: dict[str, float], stored: int, each: float
) -> Slice:
    """Make the result of ``measure``. ``each``: bytes of a transition; ``used``: from ``Usage.result``."""
    return {
        "steps": steps,
        "updates": updates,
        "seconds": sum(processes["learner"].values()),
        "processes": processes,
        "stored": stored,
        "bytes_per_transition": each,
        **used,
        "torch_threads": torch.get_num_threads(),
    }


def main() -> None:
    """Measure the slice that the argument describes; print a line of JSON, other output goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers.write(json.dumps(measure(**json.loads(sys.argv[1]))) + "\n")
    answers.close()


if __name__ == "__main__":
    main()
