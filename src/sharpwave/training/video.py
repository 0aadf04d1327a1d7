"""Videos: an episode of a policy, and the pixels that its network looks at while it plays.

Saliency is that of a Q-network: the pixels on which values depend, and the places where convolutions favor an action.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sharpwave.agents.inputs import DictInputs, FrameInputs
from sharpwave.agents.learner import to_tensors
from sharpwave.agents.networks import DictTorso, OwnTorso
from sharpwave.agents.protocol import Agent
from sharpwave.extras import install
from sharpwave.training import setup
from sharpwave.training.atomic_files import make_folder, replacing
from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.policies import Policy
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EPSILON, ShowFrame, held_out_seed, play

Picture = npt.NDArray[np.uint8]
MIN_PANEL_SIDE = 168
"""Pixels of a panel's height at least: frames are enlarged by whole factors."""
CAPTION, GAP = 16, 4
OPACITY = 0.75
"""Opacity of the strongest pixels of a map."""


def check_videos(recipe: Recipe, agent: Agent) -> None:
    """Check before a run begins that it can make the videos that its recipe asks for.

    Raises:
        ValueError: the environment renders no pictures, the agent or its observations have no maps of saliency, or
            imageio or its ffmpeg is not installed.
    """
    asked = {"--video-every": recipe.evaluation.video_every, "--saliency-every": recipe.evaluation.saliency_every}
    for option in (option for option, every in asked.items() if every):
        for name in ("imageio", "imageio_ffmpeg"):
            if importlib.util.find_spec(name) is None:
                raise ValueError(f"{option} needs {name}, which is not installed: {install('train')}")
    if recipe.evaluation.video_every:
        recipe.env.make(1, render=True).close()
    if recipe.evaluation.saliency_every:
        check_images(agent)


def film(recipe: Recipe, weights: Mapping[str, Tensor], steps: int, path: Path, saliency_frames: int = 0) -> str:
    """Play one held-out episode by a policy and write a video of it, with its folder; return why that failed, or "".

    The policy plays in an environment of its own, so that training goes on as without the video.

    Args:
        weights, steps: the policy, and the step of training that it is of.
        path: a new .mp4 or .gif file.
        saliency_frames: film the pixels that the network looks at, so many frames at most; 0: the whole episode.
    """
    seed = held_out_seed(recipe.training.seed, steps)
    try:
        make_folder(path.parent)
        with closing(recipe.env.make(1, render=not saliency_frames)) as env:
            player = setup.player(recipe, env, weights)
            if saliency_frames:
                film_saliency(player, env, path, saliency_frames, seed)
            else:
                with open_video(path, int(env.metadata.get("render_fps", 30))) as show:
                    play(player, env, 1, EPSILON, seed, show)
    except (OSError, ValueError, RuntimeError) as error:  # the last: torch cannot differentiate the network
        return str(error)
    return ""


@contextmanager
def open_video(path: Path, fps: int) -> Iterator[ShowFrame]:
    """Write a video file; yields a function that appends a picture.

    The file is there once all is written; after an error nothing is, and an earlier file of that name stays.

    Raises:
        ValueError: the name is none of a video in a folder that exists, or imageio's ffmpeg is not installed.
    """
    if path.suffix.lower() not in (".mp4", ".gif"):
        raise ValueError(f"video: got {path.name!r}, expected a name that ends in .mp4 or .gif")
    if not path.parent.is_dir():
        raise ValueError(f"video: the folder {str(path.parent)!r} does not exist; make it first")
    if path.is_dir():
        raise ValueError(f"video: {str(path)!r} is a folder, expected the name of a file")
    import imageio.v2 as imageio

    with replacing(path) as partial:
        try:
            if path.suffix.lower() == ".gif":
                writer = imageio.get_writer(partial, mode="I", duration=1000 / fps, loop=0)
            else:
                # The codec needs even sides; imageio's default of 16 would rescale the screen.
                writer = imageio.get_writer(partial, fps=fps, macro_block_size=2)
        except (ImportError, ValueError) as error:
            raise ValueError(f"video: {path.name!r} cannot be written: {error}; a .gif needs no ffmpeg") from error
        with closing(writer):
            yield writer.append_data


def video_name(steps: int) -> str:
    return f"{steps:012d}.mp4"


def write_saliency(
    run: Path, out: Path, frames: int, seed: int, device: str = "auto", checkpoint: str | None = None, *, trust: bool
) -> int:
    """Play with a run's saved policy and write a video of its saliency; return the number of frames.

    Args:
        out: an .mp4 or .gif file.
        frames: frames at most; the video ends with the episode.
        device, checkpoint, trust: as for ``Policy.load``.
    Raises:
        ValueError: the folder holds no run or no policy, or its agent or its observations have no such maps.
    """
    policy = Policy.load(run, checkpoint, device=device, trust=trust)
    check_images(policy.agent)
    env = policy.env_settings().make(1)
    with closing(env), setup.arithmetic(setup.ONE_THREAD):
        return film_saliency(policy.agent, env, out, frames, seed)


def check_images(agent: Agent) -> None:
    """Check that ``agent`` has maps of what it observes.  Raises: ValueError."""
    lacks = ""
    if not isinstance(agent, ImageAgent):
        lacks = "it has no differentiable_q"
    elif image_name(agent.inputs) is None:
        lacks = "its network takes no image"
    if lacks:
        raise ValueError(
            f"saliency needs an agent whose action values depend on images, got {agent.settings.kind}: {lacks}"
        )


def film_saliency(agent: Any, env: setup.Env, out: Path, frames: int, seed: int) -> int:
    """Play an episode in ``env`` and write a video of the agent's saliency; return the number of frames."""
    name = image_name(agent.inputs)
    obs, _ = env.reset(seed=seed)
    state, shown, ended = agent.begin(1), 0, False
    with open_video(out, int(env.metadata.get("render_fps", 30))) as show:
        while shown < frames and not ended:
            acted = agent.act(obs, state, 0, explore=False)  # first: it silences noisy layers
            maps = saliency(agent, to_tensors(obs, agent.device), state)
            seen: Any = obs[name] if name else obs
            show(draw(newest_frame(np.asarray(seen)[0]), maps))
            step: Any = env.step(acted.action)
            obs, reward, terminated, truncated, _ = step
            state, ended = agent.observe(acted.state, reward, terminated | truncated), bool(terminated | truncated)
            shown += 1
    return shown


class SaliencyVideos(Callback):
    """Callback that films saliency maps of a held-out episode every so many steps.

    Args:
        folder: where the videos are written, named by the steps; it is made with the first.
        every: steps between videos; 0: none.
        frames: frames of a video at most.
        say: called with a sentence when a video cannot be written, the first time.
    """

    def __init__(
        self, folder: Path, every: int, frames: int = 150, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._folder, self._every, self._frames, self._say = folder, every, frames, say
        self._failed = False

    def on_step(self, training: Training) -> None:
        progress = training.state.progress
        if self._every and progress.passed(self._every):
            weights, path = training.agent.policy_tensors(), self._folder / video_name(progress.steps)
            error = film(training.recipe, weights, progress.steps, path, self._frames)
            if error and not self._failed:
                self._say(f"The video of saliency could not be written: {error}; training goes on")
            self._failed = bool(error)


# Maps of saliency


@runtime_checkable
class ImageAgent(Protocol):
    """Agent whose Q-values are differentiable functions of its observation: DQN, PQN, R2D2 and their subclasses."""

    online: nn.Module
    inputs: nn.Module

    def differentiable_q(self, inputs: Any, state: Any) -> Tensor: ...


def image_name(inputs: nn.Module) -> str | None:
    """Return the name of the (first) image in a dict of observations; "": the observation is an image; None: none."""
    if isinstance(inputs, DictInputs):
        named = zip(inputs.names, inputs.parts, strict=True)
        return next((name for name, part in named if isinstance(part, FrameInputs)), None)
    return "" if isinstance(inputs, FrameInputs) else None


class Saliency(NamedTuple):
    """Maps of one batch of observations.

    Attributes:
        value, advantage: float [B, H, W], at least 0.
        convolutions: for each, from first to last, float [B, h, w], at least 0.
    """

    value: Tensor
    advantage: Tensor
    convolutions: list[Tensor]


def grad_cam(activations: Tensor, gradients: Tensor) -> Tensor:
    """Compute ReLU(sum_k w_k A^k), where w_k is the mean gradient of map k: Grad-CAM of one convolution.

    Args:
        activations: float [B, K, h, w], A.
        gradients: float [B, K, h, w], of the score by A.
    Returns:
        float [B, h, w].
    Source: Selvaraju et al. (2017), Grad-CAM, eq. 1 and 2.
    """
    assert activations.shape == gradients.shape and activations.dim() == 4, (activations.shape, gradients.shape)
    weights = gradients.mean(dim=(2, 3), keepdim=True)
    return (weights * activations).sum(dim=1).relu()


def value_and_advantage(q: Tensor) -> tuple[Tensor, Tensor]:
    """Split Q [B, A] into the state's value and the greedy action's advantage, both [B].

    The value is the mean over actions: exactly the value stream of a dueling network whose baseline is the mean. So
    networks of one stream have the same two maps.

    Source: Wang et al. (2016), Dueling network architectures, eq. 9.
    """
    value = q.mean(dim=1)
    return value, q.amax(dim=1) - value


def saliency(agent: ImageAgent, obs: Any, state: Any = None) -> Saliency:
    """Compute the maps of observations, one batch of images [B, ...], or of the first image in a dict.

    Value and advantage: the largest absolute derivative by a pixel over its channels and the stack (Wang et al. 2016,
    figure 2). Convolutions: Grad-CAM of the greedy action's Q, after the ReLU where that works in place.

    Args:
        state: the agent's acting state before the observations.
    """
    found: list[Tensor] = []
    name = image_name(agent.inputs) if isinstance(obs, dict) else None
    hooks = [
        module.register_forward_hook(lambda module, inputs, output: found.append(output))
        for module in _looking_at(agent.online, name).modules()
        if isinstance(module, nn.Conv2d)
    ]
    own = [module for module in agent.online.modules() if isinstance(module, OwnTorso)]
    try:
        for torso in own:
            torso.learns = False
        with torch.enable_grad():
            inputs = agent.inputs(obs)
            images = (inputs[name] if name else inputs).detach().requires_grad_()
            q = agent.differentiable_q({**inputs, name: images} if name else images, state)
            value, advantage = value_and_advantage(q)
            # Items of a batch are independent, so the gradient of the sum holds the gradient of each.
            by_value, by_advantage = (
                torch.autograd.grad(one.sum(), images, retain_graph=True, materialize_grads=True)[0]
                for one in (value, advantage)
            )
            gradients = torch.autograd.grad(q.amax(dim=1).sum(), found, materialize_grads=True) if found else ()
    finally:
        for torso in own:
            torso.learns = True
        for hook in hooks:
            hook.remove()
    maps = [grad_cam(one.detach(), gradient) for one, gradient in zip(found, gradients, strict=True)]
    return Saliency(by_value.abs().amax(dim=1), by_advantage.abs().amax(dim=1), maps)


def _looking_at(network: nn.Module, name: str | None) -> nn.Module:
    """Return the part of a network that looks at the image ``name`` of a dict; without a name the whole network."""
    for module in network.modules():
        if name and isinstance(module, DictTorso):
            return module.parts[module.names.index(name)]
    return network


# Pictures


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
    return frame.repeat(scale, axis=0).repeat(scale, axis=1)
