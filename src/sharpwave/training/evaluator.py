"""A process that plays held-out evaluations while the learner goes on."""

from __future__ import annotations

import contextlib
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.torch import load, save
from torch import Tensor

from sharpwave.serve import wire
from sharpwave.serve.supervisor import Supervised, end, follow_parent, spawned
from sharpwave.training import setup
from sharpwave.training.atomic_files import discard_partial
from sharpwave.training.held_out import Evaluation, measure
from sharpwave.training.own_parts import OwnParts, own_parts
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.video import film

ASKED, ANSWERED = 1, 2
"""Kinds of frames."""
STOP_S = 1.0
"""Time in which the process may end by itself before it is killed."""
WAIT_S = 0.1
"""Period at which a wait for an evaluation asks whether to go on."""
MAX_RESTARTS = 3
"""Restarts of the process in a run; after one more death the run ends."""


class Asked(NamedTuple):
    """Evaluation that was asked for.

    Attributes:
        steps: the steps after which the policy ``weights`` was taken.
        video: file for a video of an episode; None: it is not filmed.
    """

    weights: dict[str, Tensor]
    steps: int
    video: Path | None


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

    A process that has died is replaced, and its successor measures the same policy from the first episode.

    Args:
        say: called with a sentence each time that the process is replaced.

    Attributes:
        child: the process, under its supervisor.
    """

    def __init__(self, recipe: Recipe, say: Callable[[str], None] = lambda text: None) -> None:
        self._recipe, self._own = recipe, own_parts(recipe)
        self._asked: Asked | None = None
        self._started = False
        self._socket: socket.socket
        self.child = Supervised(
            "the process of --evaluate-beside",
            self._begun,
            MAX_RESTARTS,
            ". Without --evaluate-beside the learner evaluates by itself",
            say,
        )
        self.child.start()

    @property
    def idle(self) -> bool:
        """Whether it has started and measures nothing."""
        return self._started and self._asked is None

    @property
    def measuring(self) -> bool:
        """Whether an evaluation is under way."""
        return self._asked is not None

    def begin(self, weights: dict[str, Tensor], steps: int, video: Path | None) -> None:
        """Begin to measure a policy, and then to film an episode of it where ``video`` is a path; it must be idle.

        Raises:
            ProcessDiedError: the process has died too often.
        """
        assert self.idle
        self._asked = Asked(weights, steps, video)
        self._send()

    def poll(self, timeout_s: float = 0.0) -> Measured | None:
        """Return the outcome of the evaluation under way; None: it has not ended, or there is none.

        Raises:
            ProcessDiedError: the process has died too often.
        """
        try:
            if self.idle or not wait([self._socket], timeout_s):
                return None
            frame = wire.receive(self._socket)
        except OSError:
            frame = None
        if frame is None:
            self._start_again()
            return None
        said = frame.head
        if "failure" in frame.parts:
            self._start_again(bytes(frame.parts["failure"]).decode())
            return None
        if not self._started:
            self._started = True
            if self._asked is not None:
                self._send()
            return None
        assert self._asked is not None
        weights, self._asked = self._asked.weights, None
        scores, fresh = (frame.parts[name].tolist() for name in ("scores", "fresh"))
        evaluation = Evaluation(said["steps"], scores, fresh)
        return Measured(evaluation, weights, said["minutes"], said["video_error"])

    def wait(self, give_up: Callable[[], bool] = lambda: False) -> Measured | None:
        """Wait for the outcome of the evaluation under way, however long it takes.

        Args:
            give_up: asked several times a second; if it returns True, the wait ends.
        Returns:
            the outcome; None: there is no evaluation, or the wait was given up.
        Raises:
            ProcessDiedError: the process has died too often.
        """
        while not self.idle and not give_up():
            measured = self.poll(WAIT_S)
            if measured is not None:
                return measured
        return None

    def close(self) -> None:
        """End the process; an evaluation under way is abandoned."""
        self._socket.close()
        if not self.idle and self.child.alive:
            self.child.process.kill()
        end([self.child], STOP_S)
        if self._asked is not None and self._asked.video is not None:
            discard_partial(self._asked.video)

    def _begun(self) -> Any:
        self._started = False
        process, self._socket = spawned(serve, "evaluator", self._recipe, self._own)
        return process

    def _send(self) -> None:
        assert self._asked is not None
        weights, steps, video = self._asked
        head = {"steps": steps, "video": None if video is None else str(video)}
        parts = {"weights": save({name: tensor.contiguous() for name, tensor in weights.items()})}
        try:
            wire.send(self._socket, ASKED, 0, head, parts)
        except OSError:
            self._start_again()

    def _start_again(self, failure: str = "") -> None:
        """Replace the process, which has died or sent the text of its ``failure``."""
        self.child.failure = failure
        self.child.bury(STOP_S)
        self._socket.close()
        self.child.restart(
            "" if self._asked is None else f" and measures the policy of step {self._asked.steps:,} from the start"
        )


def serve(learner: socket.socket, recipe: Recipe, own: OwnParts) -> None:
    """Measure the policies that arrive until the socket is closed. The target of the process."""
    follow_parent()
    try:
        own.register()
        recipe = recipe.override(device="cpu", threads=1)
        with setup.arithmetic(recipe):
            wire.send(learner, ANSWERED, 0, {})
            while (asked := wire.receive(learner)) is not None:
                wire.send(learner, ANSWERED, 0, *_answer(recipe, load(bytes(asked.parts["weights"])), **asked.head))
    except Exception:
        with contextlib.suppress(OSError):  # the learner has ended
            failure = traceback.format_exc(limit=-8).encode(errors="replace")
            wire.send(learner, ANSWERED, 0, {}, {"failure": failure})


def _answer(
    recipe: Recipe, weights: Mapping[str, Tensor], steps: int, video: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    begun = time.perf_counter()
    evaluation = measure(recipe, weights, steps)
    error = "" if video is None else film(recipe, weights, steps, Path(video))
    minutes = (time.perf_counter() - begun) / 60
    parts = {"scores": np.array(evaluation.scores), "fresh": np.array(evaluation.fresh)}  # JSON has no NaN
    return {"steps": evaluation.steps, "minutes": minutes, "video_error": error}, parts
