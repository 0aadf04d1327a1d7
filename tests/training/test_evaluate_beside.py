"""Evaluations in a process of their own, and their videos."""

import contextlib
import io
import json
import math
import multiprocessing
import os
import signal
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from sharpwave.serve.supervisor import ProcessDiedError
from sharpwave.training import evaluation as evaluator_module
from sharpwave.training import setup
from sharpwave.training.callbacks import Callback
from sharpwave.training.checkpoints import load_policy
from sharpwave.training.evaluation import Evaluator, HeldOutEvaluations, Measured
from sharpwave.training.folder import checkpoints
from sharpwave.training.policies import Policy
from sharpwave.training.progress import Evaluation, HeldOut, measure
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import resume, run
from sharpwave.training.video import film

SHORT = load_recipe("cartpole").override(
    steps=1_200, warmup_steps=800, checkpoint_every=1_200, report_every=200, hidden_units=8, update_every=8,
    stop_reward=None, evaluate_every=400, evaluate_from=None, evaluate_beside=True, video_every=2, seed=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def weights():
    env = SHORT.env.make(1)
    tensors = setup.agent(SHORT, env).policy_tensors()
    env.close()
    return tensors


def halted(evaluator: Evaluator) -> None:
    """Stop an evaluator's process, which waits for a policy: it measures none before it goes on."""
    assert evaluator.child.process.pid is not None
    os.kill(evaluator.child.process.pid, signal.SIGSTOP)


def killed(evaluator: Evaluator) -> None:
    """Kill an evaluator's process as the kernel does that runs out of memory, and wait for its end."""
    pid = evaluator.child.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    evaluator.child.process.join()


def test_scores_that_are_no_numbers_arrive(weights, monkeypatch):
    scores = [1.0, math.nan, -math.inf]
    monkeypatch.setattr(evaluator_module, "follow_parent", lambda: None)
    monkeypatch.setattr(evaluator_module, "measure", lambda recipe, weights, steps: Evaluation(steps, scores))

    def spawned(target, name, *args):
        ours, theirs = socket.socketpair()
        sockets.callback(theirs.close)
        thread = threading.Thread(target=target, args=(theirs, *args))
        thread.start()
        sockets.callback(thread.join)
        return SimpleNamespace(pid=0, exitcode=0, close=lambda: None), ours

    monkeypatch.setattr(evaluator_module, "spawned", spawned)
    with contextlib.ExitStack() as sockets:
        evaluator = Evaluator(SHORT)
        sockets.callback(evaluator.close)
        assert evaluator.wait() is None and evaluator.idle
        evaluator.begin(weights, 40, None)
        measured = evaluator.wait()
    assert measured is not None and measured.evaluation.steps == 40 and measured.evaluation.fresh == []
    np.testing.assert_array_equal(measured.evaluation.scores, scores)


@pytest.mark.slow
def test_a_process_that_dies_is_replaced_and_measures_the_same_policy(weights):
    said: list[str] = []
    evaluator = Evaluator(SHORT, said.append)
    try:
        assert evaluator.wait() is None and evaluator.idle
        halted(evaluator)  # or it may have measured before it is killed
        evaluator.begin(weights, 40, None)
        killed(evaluator)
        measured = evaluator.wait()
        assert measured is not None and measured.evaluation == measure(SHORT, weights, 40)
        assert measured.weights is weights and evaluator.idle and evaluator.poll() is None
        assert said == [
            "The process of --evaluate-beside died of: signal SIGKILL; it is restarted and measures the policy of "
            "step 40 from the start; restarts left: 2"
        ]
        killed(evaluator)  # while it is idle: noticed when it is asked for something
        evaluator.begin({}, 60, None)
        assert "step 60 from the start; restarts left: 1" in said[-1]
        evaluator.child.limit = 2
        with pytest.raises(
            ProcessDiedError, match=r"--evaluate-beside died of: ValueError: weights do not fit"
        ) as refused:
            evaluator.wait()
        assert "restarts so far: 2" in str(refused.value) and "\nTraceback" in str(refused.value)
    finally:
        evaluator.close()


@pytest.mark.slow
def test_a_slow_evaluation_is_waited_for_until_the_run_is_interrupted(weights):
    evaluator = Evaluator(SHORT)
    try:
        assert evaluator.wait() is None
        halted(evaluator)  # as slow as can be
        evaluator.begin(weights, 40, None)
        assert evaluator.child.process.pid is not None
        begun = time.monotonic()
        assert evaluator.wait(lambda: time.monotonic() > begun + 0.5) is None and not evaluator.idle
        os.kill(evaluator.child.process.pid, signal.SIGCONT)
        assert evaluator.wait() is not None
    finally:
        evaluator.close()


class KillTheEvaluator(Callback):
    """Kill the process that evaluates whenever there is one."""

    def on_step(self, training):
        for child in multiprocessing.active_children():
            if child.name == "evaluator":
                child.kill()


def test_a_run_whose_evaluator_always_dies_ends_with_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("sharpwave.training.evaluation.MAX_RESTARTS", 1)
    out = io.StringIO()
    endless = SHORT.override(steps=10**9, checkpoint_every=10**9)
    with pytest.raises(ProcessDiedError, match=r"--evaluate-beside died of: signal SIGKILL"):
        run("cartpole", endless, tmp_path / "run", Console(file=out, width=500), callbacks=[KillTheEvaluator()])
    assert out.getvalue().count("The process of --evaluate-beside died of: signal SIGKILL") == 1
    (checkpoint,) = checkpoints(tmp_path / "run")
    steps = int(checkpoint.name) + 400
    _, summary = resume(tmp_path / "run", {"steps": steps, "evaluate_beside": False}, Console(file=out))
    assert summary["steps"] == steps


class KillTheEvaluatorAtTheEnd(KillTheEvaluator):
    """Kill the process just before the last step, so that the run waits in vain for its last evaluation."""

    def on_step(self, training):
        left = training.recipe.training.steps - training.state.progress.steps
        if 0 < left <= training.recipe.env.num_envs:
            super().on_step(training)


def test_a_run_at_its_end_whose_evaluator_dies_is_not_told_to_resume(tmp_path, monkeypatch):
    monkeypatch.setattr("sharpwave.training.evaluation.MAX_RESTARTS", 0)
    once, out = SHORT.override(evaluate_every=1_200, video_every=0), Console(file=io.StringIO(), width=500)
    with pytest.raises(ProcessDiedError, match=r"--evaluate-beside died of: signal SIGKILL") as ended:
        run("cartpole", once, tmp_path / "run", out, callbacks=[KillTheEvaluatorAtTheEnd()])
    assert "reached its end, the limit of 1,200 steps" in str(ended.value) and "--resume" not in str(ended.value)
    command = str(ended.value).rpartition("sharpwave ")[2].split()
    assert command == ["eval", str(tmp_path / "run"), "--checkpoint", "last"]
    assert Policy.load(tmp_path / "run", "last").steps == 1_200


@pytest.mark.slow
def test_a_run_waits_for_its_last_evaluation_and_films_every_second_one(tmp_path):
    folder, summary = run("cartpole", SHORT, tmp_path / "run", Console(file=io.StringIO()))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if line["event"] == "evaluation"]
    assert summary["evaluations"] == len(evaluations) >= 1
    assert [line["steps"] for line in evaluations][-1] == 1_200
    best, figures = load_policy(folder / "best.safetensors")
    assert measure(SHORT, best, figures["steps"]).scores == figures["scores"]
    (video,) = (folder / "videos").iterdir()
    assert int(video.stem) == evaluations[0]["steps"] and video.read_bytes()[4:8] == b"ftyp"


def test_videos_without_imageio_or_ffmpeg_are_refused_before_anything_begins(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "imageio_ffmpeg" else object())
    with pytest.raises(ValueError, match=r"--video-every needs imageio_ffmpeg, .*pip install"):
        run("cartpole", SHORT, tmp_path / "run", Console(file=io.StringIO()))
    assert not (tmp_path / "run").exists()


def test_a_video_that_cannot_be_written_is_reported_once(tmp_path, weights):
    said: list[str] = []
    (tmp_path / "videos").write_text("a file")
    callback = HeldOutEvaluations(tmp_path / "videos", said.append)
    state = SimpleNamespace(held_out=HeldOut(SHORT), progress=SimpleNamespace(minutes=0.0))
    running: Any = SimpleNamespace(state=state, tell=lambda *_: None)
    for _ in range(2):
        error = film(SHORT, weights, 1, tmp_path / "videos" / "000000000001.mp4")
        callback._take(running, Measured(Evaluation(1, [0.0]), weights, 0.0, error))
    assert (
        len(said) == 1
        and "The video 000000000001.mp4 could not be written" in said[0]
        and "training goes on" in said[0]
    )
