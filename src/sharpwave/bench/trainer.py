"""The trainer's speed: seconds of a recipe's own training loop in a separate process, split into parts by a clock.

It prints one JSON object a slice.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from typing import Any

from gymnasium.vector import VectorWrapper

from sharpwave.envs import games
from sharpwave.training import setup
from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.experience import LocalExperience
from sharpwave.training.loop import train
from sharpwave.training.progress import Metrics, TrainingState
from sharpwave.training.recipes import load_recipe, tables
from sharpwave.training.recipes.recipe import Recipe

PARTS = ("environment", "inference", "sampling", "learning", "waiting", "other")
"""``inference``: the network's forward pass to act. ``sampling``: until there are tensors. ``learning``: forward,
backward, optimizer. ``waiting``: for another process. ``other``: everything else, mostly storing."""


class Clock:
    """Clock that splits time into ``PARTS``, which add up to the whole: of nested parts the inner one is charged.

    Args:
        seconds: [len(PARTS)], array for the times, such as memory shared with another process; None: allocate it.
        now: function that returns the time in seconds.

    Attributes:
        calls: calls of functions of ``timed`` since the restart, by part.
    """

    def __init__(
        self, seconds: MutableSequence[float] | None = None, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds = [0.0] * len(PARTS) if seconds is None else seconds
        self.calls = dict.fromkeys(PARTS, 0)
        self._now = now
        self._running = [PARTS.index("other")]
        self._charged = now()

    def restart(self) -> None:
        self._charged = self._now()
        self.calls = dict.fromkeys(PARTS, 0)
        for part in range(len(PARTS)):
            self._seconds[part] = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge the time inside the block to ``name``."""
        self._charge()
        self._running.append(PARTS.index(name))
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function`` so that its calls are charged to ``name``."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            with self.part(name):
                return function(*arguments, **options)

        return call

    def split(self) -> dict[str, float]:
        """Return the seconds since the restart by part."""
        self._charge()
        return dict(zip(PARTS, self._seconds, strict=True))

    def _charge(self) -> None:
        now = self._now()
        self._seconds[self._running[-1]] += now - self._charged
        self._charged = now


WARMUP_STEPS = 2_000
SETTLING_UPDATES = 10
"""Updates before the clock starts: the first ones compile and allocate."""
SLICE_S = 1.0
NEVER = 10**12


def recipe_for(env: str) -> tuple[str, Recipe]:
    """Return the recipe that trains ``env``, and its name."""
    for name in tables():
        recipe = load_recipe(name)
        if recipe.env.name == env:
            return name, recipe
    name = "atari" if env in games() else "gymnasium"
    return name, load_recipe(name).override(env=env)


def train_on_clock(recipe: Recipe, clock: Clock, callback: Callback) -> Metrics:
    """Train by ``recipe`` until ``callback`` ends it, timing its parts by ``clock``; return the last report."""
    env = recipe.env.make()
    plain = setup.agent(recipe, env)
    store, view = setup.memory(recipe, env, plain)
    agent: Any = Timed(plain, clock, act="inference", learn="learning")
    state = TrainingState.fresh(recipe, agent)
    experience = LocalExperience(timed_env(env, clock), agent, store, recipe.training.seed, state.progress)
    with setup.arithmetic(recipe), store:
        timed_view = Timed(view, clock, sample="sampling")
        return train(Training(recipe, agent, store, timed_view, experience, state, [callback]))


class Timed:
    """Proxy of an object that charges calls of some methods to parts of a clock.

    Args:
        parts: part by name of the method.
    """

    def __init__(self, wrapped: Any, clock: Clock, **parts: str) -> None:
        self._wrapped = wrapped
        self._timed = {name: clock.timed(part, getattr(wrapped, name)) for name, part in parts.items()}

    def __getattr__(self, name: str) -> Any:
        return self._timed[name] if name in self._timed else getattr(self._wrapped, name)

    def __len__(self) -> int:
        return len(self._wrapped)


def timed_env(env: Any, clock: Clock) -> Any:
    """Time the steps of a vector of environments by a subclass, as a recorder looks for methods in the class."""
    names = ("step_async", "step_wait") if hasattr(env, "step_async") else ("step",)
    methods = {name: staticmethod(clock.timed("environment", getattr(env, name))) for name in names}
    return type("TimedEnv", (VectorWrapper,), methods)(env)


class Slices(Callback):
    """Callback that reports every slice of training, and ends training after ``seconds``.

    Args:
        tell: called with steps, updates, seconds, parts, and ``left_s``: the seconds left.
    """

    def __init__(self, clock: Clock, seconds: float, tell: Callable[[dict[str, Any]], None]) -> None:
        self._clock, self._left_s, self._tell = clock, seconds, tell
        self._first_step: int | None = None  # of the slice; None: still warming up

    def on_step(self, training: Training) -> None:
        steps, updates = training.state.progress.steps, self._clock.calls["learning"]
        if self._first_step is not None:
            parts = self._clock.split()
            seconds = sum(parts.values())
            if seconds < min(SLICE_S, self._left_s):
                return
            self._left_s -= seconds
            counts = {"steps": steps - self._first_step, "updates": updates}
            self._tell({**counts, "seconds": seconds, "parts": parts, "left_s": max(0.0, self._left_s)})
            if self._left_s <= 0:
                training.stop("measured")
        elif updates < SETTLING_UPDATES:
            return
        self._first_step = steps
        self._clock.restart()


def measure(recipe: Recipe, seconds: float, tell: Callable[[dict[str, Any]], None]) -> None:
    """Train for ``seconds`` after a short warm-up; ``tell`` is as for ``Slices``."""
    recipe = recipe.override(
        warmup_steps=min(recipe.training.warmup_steps, WARMUP_STEPS), stop_reward=None, stop_worst=None, steps=NEVER,
        evaluate_every=0, report_every=NEVER, checkpoint_every=NEVER,
    )  # fmt: skip
    clock = Clock()
    train_on_clock(recipe, clock, Slices(clock, seconds, tell))


def main() -> None:
    """Measure the part that the argument names; whatever libraries print goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    asked = json.loads(sys.argv[1])
    recipe = load_recipe(asked["recipe"]).override(env=asked["env"])
    measure(recipe, asked["seconds"], lambda one: print(json.dumps(one), file=answers))
    answers.close()


if __name__ == "__main__":
    main()
