"""Video files, and films of a run's policies."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType

from torch import Tensor

from sharpwave.extras import install
from sharpwave.training import setup
from sharpwave.training.files import discard_partial, partial_file, real_folder
from sharpwave.training.measuring import EPSILON, ShowFrame, held_out_seed, play
from sharpwave.training.recipes.recipe import Recipe


def check_videos(recipe: Recipe) -> None:
    """Check before a run begins that it can film evaluations, if it shall.

    Raises:
        ValueError: the environment renders no pictures, or imageio or its ffmpeg is not installed.
    """
    if not recipe.evaluation.video_every:
        return
    check_imageio("--video-every")
    setup.environments(recipe, 1, render=True).close()


def check_imageio(option: str) -> None:
    """Check that the packages that write videos, which ``option`` asks for, are installed.  Raises: ValueError."""
    for name in ("imageio", "imageio_ffmpeg"):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"{option} needs {name}, which is not installed: {install('train')}")


def film(recipe: Recipe, weights: Mapping[str, Tensor], steps: int, path: Path) -> str:
    """Play one held-out episode by a policy and write a video of it, with its folder; return why that failed, or "".

    Args:
        weights, steps: the policy, and the step of training that it is of.
        path: a new .mp4 or .gif file.
    """
    try:
        if not real_folder(path.parent):
            path.parent.mkdir()
        with closing(setup.environments(recipe, 1, render=True)) as env:
            player, seed = setup.player(recipe, env, weights), held_out_seed(recipe.training.seed, steps)
            with open_video(path, int(env.metadata.get("render_fps", 30))) as show:
                play(player, env, 1, EPSILON, seed, show)
    except (OSError, ValueError) as error:
        return str(error)
    return ""


class open_video:
    """Context manager of a video file; yields a function that appends a picture.

    The file is there once all is written; after an error nothing is, and an earlier file of that name stays.
    """

    def __init__(self, path: Path, fps: int) -> None:
        if path.suffix.lower() not in (".mp4", ".gif"):
            raise ValueError(f"video: got {path.name!r}, expected a name that ends in .mp4 or .gif")
        if not path.parent.is_dir():
            raise ValueError(f"video: the folder {str(path.parent)!r} does not exist; make it first")
        if path.is_dir():
            raise ValueError(f"video: {str(path)!r} is a folder, expected the name of a file")
        import imageio.v2 as imageio

        self._path, partial = path, partial_file(path)
        try:
            if path.suffix.lower() == ".gif":
                self._writer = imageio.get_writer(partial, mode="I", duration=1000 / fps, loop=0)
            else:
                # The codec needs even sides; imageio's default of 16 would rescale the screen.
                self._writer = imageio.get_writer(partial, fps=fps, macro_block_size=2)
        except (ImportError, ValueError) as error:
            raise ValueError(f"video: {path.name!r} cannot be written: {error}; a .gif needs no ffmpeg") from error

    def __enter__(self) -> ShowFrame:
        show: ShowFrame = self._writer.append_data
        return show

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        try:
            self._writer.close()
            if kind is None:
                os.replace(partial_file(self._path), self._path)
        finally:
            discard_partial(self._path)
