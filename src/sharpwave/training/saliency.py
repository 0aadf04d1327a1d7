"""Pictures of what a saved policy looks at while it plays."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sharpwave.agents.dqn import DQN
from sharpwave.agents.inputs import FrameInputs
from sharpwave.agents.modules import to_tensors
from sharpwave.agents.saliency import Saliency, saliency
from sharpwave.training import setup
from sharpwave.training.config import read_config
from sharpwave.training.evaluation import chosen_checkpoint, with_policy
from sharpwave.training.video import open_video

Picture = npt.NDArray[np.uint8]
MIN_PANEL_SIDE = 168
"""Pixels of a panel's height at least: frames are enlarged by whole factors."""
CAPTION, GAP = 16, 4
OPACITY = 0.75
"""Opacity of the strongest pixels of a map."""


def write_saliency(
    run: Path, out: Path, frames: int, seed: int, device: str = "auto", checkpoint: str | None = None, *, trust: bool
) -> int:
    """Play with a run's saved policy and write a video of its saliency; return the number of frames.

    Args:
        out: an .mp4 or .gif file.
        frames: frames at most; the video ends with the episode.
        checkpoint, trust: as for ``sharpwave.training.evaluation.evaluate``.
    Raises:
        ValueError: the folder holds no run or no policy, or its agent or its observations have no such maps.
    """
    checkpoint = chosen_checkpoint(run, checkpoint)
    recipe = read_config(run, trust=trust).recipe.override(device=device, threads=1)
    env = setup.environments(recipe, 1)
    with closing(env), setup.arithmetic(recipe):
        agent = setup.agent(recipe, env)
        if not isinstance(agent, DQN) or not isinstance(agent.inputs, FrameInputs):
            raise ValueError(
                f"saliency needs an agent dqn or rainbow that observes images; the run's agent is {recipe.agent.kind}, "
                f"its observations are {env.single_observation_space}"
            )
        with_policy(agent, run, checkpoint)
        obs, _ = env.reset(seed=seed)
        state, shown, ended = agent.begin(1), 0, False
        with open_video(out, int(env.metadata.get("render_fps", 30))) as show:
            while shown < frames and not ended:
                seen = to_tensors(obs, agent.device)
                assert isinstance(seen, Tensor)
                show(draw(newest_frame(np.asarray(obs)[0]), saliency(agent, seen)))
                acted = agent.act(obs, state, 0, explore=False)
                step: Any = env.step(acted.action)
                obs, reward, terminated, truncated, _ = step
                state, ended = agent.observe(acted.state, reward, terminated | truncated), bool(terminated | truncated)
                shown += 1
    return shown


def newest_frame(obs: npt.NDArray[Any]) -> Picture:
    """Return the newest frame of an observation, uint8 [H, W, 3]; channels that are no colours become their mean."""
    if obs.ndim == 4 or (obs.ndim == 3 and obs.shape[0] < obs.shape[2]):  # a stack of frames
        obs = obs[-1]
    frame = obs.astype(np.float32)
    if frame.ndim == 3 and frame.shape[2] != 3:
        frame = frame.mean(axis=2)
    if obs.dtype != np.uint8:
        frame *= 255 / max(float(frame.max()), 1e-9)
    return np.broadcast_to(frame if frame.ndim == 3 else frame[..., None], (*frame.shape[:2], 3)).astype(np.uint8)


def draw(frame: Picture, maps: Saliency) -> Picture:
    """Draw the maps of the first observation of a batch side by side, each in colour over ``frame``, with captions."""
    from PIL import Image, ImageDraw

    named = {"value": maps.value, "advantage": maps.advantage}
    named |= {f"convolution {number}": one for number, one in enumerate(maps.convolutions, 1)}
    scale = -(-MIN_PANEL_SIDE // frame.shape[0])
    panels = [enlarged(overlay(frame, one[:1]), scale) for one in named.values()]
    height, width = panels[0].shape[:2]
    sheet = Image.new("RGB", ((width + GAP) * len(panels) - GAP, height + CAPTION + height % 2))
    for number, (name, panel) in enumerate(zip(named, panels, strict=True)):
        sheet.paste(Image.fromarray(panel), (number * (width + GAP), CAPTION))
        ImageDraw.Draw(sheet).text((number * (width + GAP) + 2, 2), name, fill="white")
    return np.asarray(sheet)


def overlay(frame: Picture, heat: Tensor) -> Picture:
    """Blend a map, float [1, h, w], scaled to its largest value, over a frame [H, W, 3]: the stronger, the more opaque.

    A map of zeros leaves the frame as it is.
    """
    import matplotlib

    height, width = frame.shape[:2]
    spread = torch.nn.functional.interpolate(heat[None].float().cpu(), (height, width), mode="bilinear")[0, 0].numpy()
    share = spread / max(float(spread.max()), 1e-12)
    colour = matplotlib.colormaps["inferno"](share)[..., :3] * 255
    opacity = OPACITY * share[..., None]
    blended: Picture = np.rint(frame * (1 - opacity) + colour * opacity).astype(np.uint8)
    return blended


def enlarged(frame: Picture, scale: int) -> Picture:
    """Enlarge a picture by a whole factor."""
    return frame.repeat(scale, axis=0).repeat(scale, axis=1)
