"""Playing what was learned: scores of whole episodes, and a video of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.agents.dqn import DQN
from sharpwave.training import setup
from sharpwave.training.checkpoints import latest_checkpoint, load_checkpoint
from sharpwave.training.config import read_config
from sharpwave.training.episodes import Episodes

ShowFrame = Callable[[npt.NDArray[np.uint8]], None]


def play(
    agent: DQN, env: setup.Env, episodes: int, epsilon: float, seed: int, show: ShowFrame | None = None
) -> list[float]:
    """Play ``episodes`` whole episodes and return their unclipped scores.

    Every environment plays its share, so long episodes count as much as short ones.

    Args:
        show: given the picture of environment 0 at every step; needs an environment made to render.
    """
    lanes = env.num_envs
    share = np.full(lanes, episodes // lanes) + (np.arange(lanes) < episodes % lanes)
    rng = np.random.default_rng(seed)
    scores: list[list[float]] = [[] for _ in range(lanes)]
    running = Episodes(lanes)
    obs, _ = env.reset(seed=seed)
    while any(len(scores[lane]) < share[lane] for lane in range(lanes)):
        if show is not None:
            pictures: Any = env.render()
            show(pictures[0])
        step: Any = env.step(agent.act(obs, epsilon, rng))
        obs, reward, terminated, truncated, infos = step
        for episode in running.add(infos.get("unclipped_reward", reward), terminated | truncated):
            scores[episode.lane].append(episode.reward)
    return [score for lane in range(lanes) for score in scores[lane][: share[lane]]]


def evaluate(
    run: Path,
    episodes: int,
    epsilon: float,
    seed: int,
    device: str = "auto",
    video: Path | None = None,
    *,
    trust: bool = False,
) -> tuple[dict[str, Any], list[float]]:
    """Play with a run's newest weights.

    Args:
        video: an .mp4 or .gif file to write; then one environment plays all episodes, one after another.
        trust: the module that the name of the run's environment asks to import may be imported.
    Returns:
        the checkpoint's figures, and the scores.
    Raises:
        ValueError: no run or no checkpoint there, or a video that cannot be written.
    """
    checkpoint = latest_checkpoint(run)
    recipe = replace(
        read_config(run, trust=trust).recipe, device=device, threads=1
    )  # few observations at a time: more threads only wait
    env = setup.environments(
        recipe, 1 if video is not None else min(episodes, recipe.num_envs), render=video is not None
    )
    try:
        agent = setup.agent(recipe, env)
        state = load_checkpoint(checkpoint, agent)
        if video is None:
            return state, play(agent, env, episodes, epsilon, seed)
        with _open_video(video, int(env.metadata.get("render_fps", 30))) as show:
            return state, play(agent, env, episodes, epsilon, seed, show)
    finally:
        env.close()


class _open_video:
    """Context manager giving a function that appends a picture to the file."""

    def __init__(self, path: Path, fps: int) -> None:
        if path.suffix.lower() not in (".mp4", ".gif"):
            raise ValueError(f"video: got {path.name!r}, expected a name that ends in .mp4 or .gif")
        if not path.parent.is_dir():
            raise ValueError(f"video: the folder {str(path.parent)!r} does not exist; make it first")
        import imageio.v2 as imageio

        try:
            if path.suffix.lower() == ".gif":
                self._writer = imageio.get_writer(path, mode="I", duration=1000 / fps, loop=0)
            else:
                # macro_block_size 2: what the codec needs; a larger one would rescale the screen.
                self._writer = imageio.get_writer(path, fps=fps, macro_block_size=2)
        except (ImportError, ValueError) as error:
            raise ValueError(f"video: {path.name!r} cannot be written: {error}; a .gif needs no ffmpeg") from error

    def __enter__(self) -> ShowFrame:
        show: ShowFrame = self._writer.append_data
        return show

    def __exit__(self, *_: object) -> None:
        self._writer.close()
