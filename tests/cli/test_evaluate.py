"""``sharpwave eval`` and ``sharpwave saliency``: scores, their spread, videos, and errors that teach."""

import io
import json
import os
import sys

import numpy as np
import pytest
import torch
from rich.console import Console

from sharpwave.extras import install
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import run
from sharpwave.training.video import newest_frame, open_video, overlay

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cartpole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "cartpole"
    recipe = load_recipe("cartpole").override(steps=400, warmup_steps=200)
    run("cartpole", recipe, folder, Console(file=io.StringIO()))
    return folder


@pytest.mark.slow
def test_scores_repeat_for_a_seed(sharpwave, here, cartpole_run):
    first, second = (play("eval", cartpole_run, "--episodes", 3, "--seed", 7) for play in (sharpwave, here))
    assert first.code == 0 and first.text == second.text
    assert first.text.count("score") == 3 and "mean" in first.text and "std" in first.text


def test_several_runs_are_compared(here, cartpole_run, tmp_path):
    other, recipe = tmp_path / "1", load_recipe("cartpole").override(steps=400, warmup_steps=200, seed=1)
    run("cartpole", recipe, other, Console(file=io.StringIO()))
    alone = [here("eval", one, "--episodes", 3).text.splitlines()[-1] for one in (cartpole_run, other)]
    result = here("eval", cartpole_run, other, "--episodes", 3)
    *lines, last = result.text.splitlines()
    assert result.code == 0 and len(lines) == 2
    for line, folder, said in zip(lines, (cartpole_run, other), alone, strict=True):
        assert line.startswith(f"{folder}  last weights, of step 400  ")
        assert line.endswith(said.removesuffix("  of 3 episodes"))
    means = [float(said.split()[1]) for said in alone]
    assert float(last.split()[1]) == pytest.approx(sum(means) / 2, abs=0.02) and last.endswith("of 2 runs")
    result = here("eval", cartpole_run, other, "--video", tmp_path / "pole.gif")
    assert result.code == 2 and "--video: got 2 runs, expected one to film" in result.text


@pytest.mark.slow
def test_video_of_an_atari_game(here, pong_run, tmp_path):
    folder, _ = pong_run
    video = tmp_path / "pong.mp4"
    result = here("eval", folder, "--episodes", 1, "--epsilon", 1, "--video", video)
    assert result.code == 0, result.text
    assert video.read_bytes()[4:8] == b"ftyp"


def test_video_of_a_gymnasium_environment(here, cartpole_run, tmp_path):
    pytest.importorskip("pygame")
    video = tmp_path / "pole.gif"
    result = here("eval", cartpole_run, "--episodes", 1, "--video", video)
    assert result.code == 0, result.text
    assert video.read_bytes().startswith(b"GIF8")


def test_a_video_without_a_renderer_is_refused_by_its_name(here, cartpole_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    result = here("eval", cartpole_run, "--episodes", 1, "--video", tmp_path / "pole.gif")
    assert result.code == 2 and "Traceback" not in result.text
    assert f"env 'CartPole-v1' needs pygame for its pictures: {install('train')}\n" in result.text
    result = here("train", "cartpole", "--out", tmp_path / "run", "--steps", 10, "--video-every", 5)
    assert result.code == 2 and "needs pygame" in result.text and not (tmp_path / "run").exists()
    assert not list(tmp_path.iterdir())


def test_a_video_that_is_broken_off_leaves_the_earlier_file(tmp_path):
    picture = np.zeros((16, 16, 3), np.uint8)
    for name in ("film.gif", "film.mp4"):
        (tmp_path / name).write_bytes(b"earlier")
        with pytest.raises(KeyboardInterrupt), open_video(tmp_path / name, 10) as show:
            show(picture)
            assert (tmp_path / name).read_bytes() == b"earlier"
            raise KeyboardInterrupt
        assert (tmp_path / name).read_bytes() == b"earlier"
        with open_video(tmp_path / name, 10) as show:
            show(picture)
        assert len((tmp_path / name).read_bytes()) > len(b"earlier")
    assert sorted(os.listdir(tmp_path)) == ["film.gif", "film.mp4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "does not exist"),
        (["."], "is not a run folder"),
        (["RUN", "--video", "film.avi"], "expected a name that ends in .mp4 or .gif"),
        (["RUN", "--video", "nowhere/film.gif"], "make it first"),
        (["RUN", "--episodes", "0"], "--episodes"),
    ],
)
def test_errors_teach(here, cartpole_run, arguments, message):
    result = here("eval", *(cartpole_run if word == "RUN" else word for word in arguments))
    assert result.code == 2 and message in result.text and "Traceback" not in result.text


def test_a_run_without_a_checkpoint(here, cartpole_run, tmp_path):
    (tmp_path / "config.json").write_text((cartpole_run / "config.json").read_text())
    result = here("eval", tmp_path)
    assert result.code == 2 and "has no checkpoint yet" in result.text


def test_a_damaged_config(here, cartpole_run, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"recipe": "x"}))
    (tmp_path / "checkpoints").symlink_to(cartpole_run / "checkpoints")
    result = here("eval", tmp_path)
    assert result.code == 2 and "is not the config of a run" in result.text


# saliency


def test_saliency_of_an_atari_game(here, pong_run, tmp_path):
    import imageio.v3 as imageio

    folder, _ = pong_run
    result = here("saliency", folder, "--out", tmp_path / "pong.gif", "--frames", 3)
    assert result.code == 0 and "3 frames" in result.text, result.text
    frames = imageio.imread(tmp_path / "pong.gif", index=None)
    assert frames.shape[1:] == (168 + 16, 4 * 168 + 3 * 4, 3)  # value, advantage, two convolutions


def test_a_run_without_images_is_refused(here, tmp_path):
    run = tmp_path / "run"
    options = ["--steps", 20, "--warmup-steps", 10, "--num-envs", 1, "--evaluate-every", 0, "--set"]
    assert here("train", "cartpole", "--out", run, *options, "evaluation.stop_reward=null").code == 0
    result = here("saliency", run, "--out", tmp_path / "pole.gif")
    assert result.code == 2 and "depend on images, got dqn: its network takes no image" in result.text


def test_the_newest_frame_of_observations_of_every_layout():
    grey = np.full((8, 9), 7, np.uint8)
    colour = np.dstack([grey, grey + 1, grey + 2])
    stacked = np.stack([np.zeros_like(grey), grey])
    assert (newest_frame(grey) == 7).all() and newest_frame(grey).shape == (8, 9, 3)
    assert (newest_frame(stacked) == 7).all()
    assert (newest_frame(colour) == colour).all() and (newest_frame(np.stack([colour // 7, colour])) == colour).all()
    channels = np.zeros((8, 9, 4), bool)
    channels[0, 0, :2], channels[1, 1, 0] = True, True
    assert newest_frame(channels)[:2, :2, 0].tolist() == [[255, 0], [0, 127]]


def test_the_strongest_pixels_are_the_most_opaque():
    frame = np.full((2, 2, 3), 100, np.uint8)
    drawn = overlay(frame, torch.tensor([[[0.0, 0.0], [0.0, 5.0]]]))
    assert (drawn[0] == 100).all() and (drawn[1, 0] == 100).all() and (drawn[1, 1] != 100).any()
    assert (overlay(frame, torch.zeros(1, 2, 2)) == frame).all()
