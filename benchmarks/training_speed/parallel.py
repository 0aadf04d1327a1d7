"""Acting in a separate process, as in the textbook: transitions over a queue, weights in shared memory.

The textbook's learner takes the available transitions and continues; this one waits for PER_UPDATE of them, so that the
ratio of steps to updates is that of the other rungs on every machine.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import multiprocessing, nn

from sharpwave.bench.clock import PARTS, Clock
from training_speed import textbook
from training_speed.lanes import make_lanes
from training_speed.rungs import Rung

PER_UPDATE = 4
TIMEOUT_S = 120.0
"""Seconds that one process waits for the other at most."""


def shape(rung: Rung) -> tuple[int, int]:
    """Return stack and number of actions of a rung's environments."""
    lanes = make_lanes(rung.lanes, 1)
    return lanes.stack, lanes.num_actions


class Player:
    """Context manager of the process that acts.

    Args:
        net: network that it acts with; moved to shared memory, so that every update is visible at once.
        warmup: initial random steps.
    """

    def __init__(self, rung: Rung, net: nn.Module, seed: int, warmup: int) -> None:
        context = multiprocessing.get_context("spawn")
        net.share_memory()
        self._queue: Any = context.Queue(maxsize=2 * PER_UPDATE)
        self._seconds = context.Array("d", len(PARTS), lock=False)
        self._process: Any = context.Process(
            target=play,
            args=(rung, net, seed, warmup, torch.get_num_threads(), self._queue, self._seconds),
            daemon=True,
        )

    def __enter__(self) -> Player:
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._process.kill()  # it has nothing to save, and may be blocked by a full queue
        self._process.join()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return int(self._process.pid)

    def get(self) -> textbook.Transition:
        """Return the next transition.

        Raises:
            RuntimeError: timed out.
        """
        try:
            transition: textbook.Transition = self._queue.get(timeout=TIMEOUT_S)
        except queue.Empty:
            state = "is running" if self._process.is_alive() else f"ended with {self._process.exitcode}"
            raise RuntimeError(
                f"timed out after {TIMEOUT_S:g} s without a transition from the acting process, which {state}"
            ) from None
        return transition

    def seconds(self) -> dict[str, float]:
        """Return the process's seconds so far, by part."""
        return dict(zip(PARTS, self._seconds, strict=True))


def play(rung: Rung, net: nn.Module, seed: int, warmup: int, threads: int, transitions: Any, seconds: Any) -> None:
    """Act until the process is killed or the queue is full for too long. The target of the process."""
    transitions.cancel_join_thread()  # so that unread transitions in the queue do not block the exit
    torch.set_num_threads(threads)
    rng = np.random.default_rng(seed)
    lanes = make_lanes(rung.lanes, rung.envs)
    clock = Clock(seconds)
    put: Callable[..., None] = clock.timed("waiting", transitions.put)
    states = lanes.reset(seed)
    step = 0
    while True:
        with clock.part("inference"):
            if step < warmup:
                actions = rng.integers(lanes.num_actions, size=rung.envs).tolist()
            else:
                actions = textbook.act(net, states, lanes.num_actions, textbook.exploration(step), rng)
        with clock.part("environment"):
            outcomes = lanes.step(actions)
        for state, action, outcome in zip(states, actions, outcomes, strict=True):
            put(textbook.Transition(state, action, outcome.reward, outcome.done, outcome.next_state), timeout=TIMEOUT_S)
        states = [outcome.state for outcome in outcomes]
        step += len(states)
