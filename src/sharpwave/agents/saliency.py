"""Saliency of Q-networks: the pixels on which values depend, and the places where convolutions favor an action."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sharpwave.agents.inputs import DictInputs, FrameInputs
from sharpwave.agents.networks import DictTorso, OwnTorso


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
