"""Videos of what a run's policy looks at."""

import numpy as np
import torch

from sharpwave.training.video import newest_frame, overlay


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
