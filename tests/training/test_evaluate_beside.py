"""Evaluations in a process of their own, and their videos."""

import io
import json

import pytest
from rich.console import Console

from sharpwave.training import setup
from sharpwave.training.callbacks import HeldOutEvaluations
from sharpwave.training.evaluator import Evaluator
from sharpwave.training.held_out import measure
from sharpwave.training.policies import load_policy
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import run
from sharpwave.training.video import film

SHORT = load_recipe("cartpole").override(
    steps=1_200, warmup_steps=800, checkpoint_every=1_200, report_every=200, hidden_units=8, update_every=8,
    stop_reward=None, evaluate_every=400, evaluate_from=None, evaluate_beside=True, video_every=2, seed=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def weights():
    env = setup.environments(SHORT, 1)
    tensors = setup.agent(SHORT, env).policy_tensors()
    env.close()
    return tensors


def test_the_process_measures_as_this_one_does_and_its_death_is_noticed(weights):
    evaluator = Evaluator(SHORT)
    try:
        assert evaluator.wait(120) is None and evaluator.idle
        evaluator.begin(weights, 40, None)
        measured = evaluator.wait(120)
        assert measured is not None and measured.evaluation == measure(SHORT, weights, 40)
        assert measured.weights is weights and evaluator.idle and evaluator.poll() is None
        evaluator.begin({}, 50, None)
        with pytest.raises(RuntimeError, match=r"has failed:\n(.*\n)*ValueError: weights do not fit"):
            evaluator.wait(120)
        evaluator._process.kill()
        with pytest.raises(RuntimeError, match=r"the process that evaluates has died, exit code -?\d+"):
            evaluator.wait(120)
        evaluator.idle = True  # as after an outcome
        with pytest.raises(RuntimeError, match=r"the process that evaluates has died"):
            evaluator.begin(weights, 60, None)
    finally:
        evaluator.close()


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
    for _ in range(2):
        error = film(SHORT, weights, 1, tmp_path / "videos" / "1.mp4")
        callback._filmed(tmp_path / "videos" / "1.mp4", error)
    assert len(said) == 1 and "The video 1.mp4 could not be written" in said[0] and "training goes on" in said[0]
