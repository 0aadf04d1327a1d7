"""Videos of what a policy looks at while it learns: they change nothing, and refuse before a run begins."""

import io
from typing import Any

import pytest
import torch
from rich.console import Console

from sharpwave.training.checkpoints import load_policy
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import run
from sharpwave.training.video import SaliencyVideos

RECIPE = load_recipe("r2d2-atari").override(
    frame="36x36", network="small", max_episode_frames=200, noop_max=0, steps=240, warmup_steps=80, update_every=16,
    checkpoint_every=240, report_every=80, evaluate_every=0, hidden_units=8, core_units=8, batch_size=4, length=8,
    burn_in=0, stride=8, num_envs=2, capacity=1_000,
)  # fmt: skip


def trained(folder, recipe, **options):
    return run("r2d2-atari", recipe, folder, Console(file=io.StringIO()), **options)[0]


@pytest.mark.slow
def test_training_goes_on_as_without_them(tmp_path):
    import imageio.v2 as imageio

    filmed = trained(tmp_path / "filmed", RECIPE.override(saliency_every=100))
    plain = trained(tmp_path / "plain", RECIPE)
    videos = sorted((filmed / "saliency").iterdir())
    assert [video.name for video in videos] == ["000000000100.mp4", "000000000200.mp4"]
    reader: Any = imageio.get_reader(videos[0])
    with reader as film:
        assert film.count_frames() == 50  # the game's 200 frames, of which an agent sees every fourth
    assert not (plain / "saliency").exists()
    weights = [load_policy(folder / "last.safetensors")[0] for folder in (filmed, plain)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_said_once(tmp_path):
    said: list[str] = []
    (tmp_path / "file").write_text("x")
    callback = SaliencyVideos(tmp_path / "file", 60, say=said.append)
    trained(tmp_path / "run", RECIPE, callbacks=[callback])
    assert len(said) == 1 and "video of saliency could not be written" in said[0] and "training goes on" in said[0]


def test_a_run_without_images_is_refused_before_it_begins(tmp_path):
    recipe = load_recipe("cartpole").override(saliency_every=100)
    with pytest.raises(ValueError, match="depend on images, got dqn: its network takes no image"):
        trained(tmp_path / "run", recipe)
    assert not (tmp_path / "run").exists()
