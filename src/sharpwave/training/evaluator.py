"""A process that plays held-out evaluations while the learner goes on."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load, save
from torch import Tensor

from sharpwave.training import setup
from sharpwave.training.actors.counters import CONTEXT
from sharpwave.training.actors.pool import no_interrupts
from sharpwave.training.actors.worker import follow_learner
from sharpwave.training.held_out import Evaluation, measure
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.video import film

STOP_S = 1.0
"""Time in which the process may end by itself before it is killed."""


class Measured(NamedTuple):
    """Outcome of an evaluation.

    Attributes:
        weights: the policy that was measured.
        minutes: time that it took.
        video_error: why its video could not be written; "": it was, or none was asked for.
    """

    evaluation: Evaluation
    weights: dict[str, Tensor]
    minutes: float
    video_error: str


class Evaluator:
    """Process that measures one policy at a time, on the CPU. It ends with the learner.

    Attributes:
        idle: whether it has started and measures nothing.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=serve, args=(recipe, theirs), name="evaluator", daemon=True)
        with no_interrupts():
            self._process.start()
        theirs.close()
        self.idle = False
        self._weights: dict[str, Tensor] | None = None  # of the policy that it measures

    def begin(self, weights: dict[str, Tensor], steps: int, video: Path | None) -> None:
        """Begin to measure a policy, and then to film an episode of it where ``video`` is a path; it must be idle.

        Raises:
            RuntimeError: the process has died.
        """
        assert self.idle
        self.idle, self._weights = False, weights
        asked = {"steps": steps, "video": None if video is None else str(video)}
        try:
            self._pipe.send_bytes(json.dumps(asked).encode())
            self._pipe.send_bytes(save({name: tensor.contiguous() for name, tensor in weights.items()}))
        except OSError:
            raise self._died() from None

    def poll(self, timeout_s: float = 0.0) -> Measured | None:
        """Return the outcome of the evaluation under way; None: it has not ended, or there is none.

        Raises:
            RuntimeError: the process has died or failed.
        """
        try:
            if self.idle or not self._pipe.poll(timeout_s):
                return None
            said = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._died() from None
        if "failure" in said:
            raise RuntimeError(f"the process that evaluates has failed:\n{said['failure']}")
        weights, self._weights, self.idle = self._weights, None, True
        if weights is None:  # it has started
            return None
        return Measured(Evaluation(said["steps"], said["scores"]), weights, said["minutes"], said["video_error"])

    def _died(self) -> RuntimeError:
        self._process.join(STOP_S)
        return RuntimeError(f"the process that evaluates has died, exit code {self._process.exitcode}")

    def wait(self, timeout_s: float) -> Measured | None:
        """Return the outcome of the evaluation under way, waiting for it; None: there is none.

        Raises:
            RuntimeError: the process has died or failed, or the evaluation took longer than ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while not self.idle:
            measured = self.poll(max(0.0, deadline - time.monotonic()))
            if measured is not None:
                return measured
            if time.monotonic() >= deadline:
                raise RuntimeError(f"the process that evaluates had not ended its evaluation after {timeout_s:g} s")
        return None

    def close(self) -> None:
        """End the process; an evaluation under way is abandoned."""
        self._pipe.close()
        if not self.idle:
            self._process.kill()
        self._process.join(STOP_S)
        self._process.kill()
        self._process.join()
        self._process.close()


def serve(recipe: Recipe, pipe: Connection) -> None:
    """Measure the policies that arrive until the pipe is closed. The target of the process."""
    follow_learner()
    recipe = recipe.override(device="cpu", threads=1)
    try:
        with setup.arithmetic(recipe):
            pipe.send_bytes(b"{}")
            while True:
                asked = json.loads(pipe.recv_bytes())
                _answer(recipe, pipe, load(pipe.recv_bytes()), asked["steps"], asked["video"])
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception:
        pipe.send_bytes(json.dumps({"failure": traceback.format_exc(limit=-8)}).encode())


def _answer(recipe: Recipe, pipe: Connection, weights: Mapping[str, Tensor], steps: int, video: str | None) -> None:
    begun = time.perf_counter()
    evaluation = measure(recipe, weights, steps)
    error = "" if video is None else film(recipe, weights, steps, Path(video))
    minutes = (time.perf_counter() - begun) / 60
    said = {"steps": steps, "scores": evaluation.scores, "minutes": minutes, "video_error": error}
    pipe.send_bytes(json.dumps(said).encode())
