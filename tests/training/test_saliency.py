"""Saliency of a network that is small enough to be worked by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import Tensor, nn

from sharpwave.agents.architectures import register_image_model
from sharpwave.agents.dqn import DQN
from sharpwave.agents.learner import to_tensors
from sharpwave.agents.pqn import PQN
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.r2d2 import R2D2
from sharpwave.training.video import grad_cam, saliency, value_and_advantage


class Small:
    """Two actions on images of 2x3: a convolution of 1x2 with one map, a ReLU, and a linear layer on 2x2."""

    online: nn.Module
    inputs: nn.Module

    def __init__(self):
        convolution, linear = nn.Conv2d(1, 1, (1, 2), bias=False), nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            convolution.weight[:] = torch.tensor([1.0, -1.0])
            linear.weight[:] = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 2.0]])
        self.online = nn.Sequential(convolution, nn.ReLU(inplace=True), nn.Flatten(), linear)
        self.inputs = nn.Identity()

    def differentiable_q(self, inputs, state):
        return self.online(inputs)


def test_grad_cam_by_hand():
    """Weights are the mean gradients: 1 of the first map, -2 of the second. 1 * 3 - 2 * 1 = 1, 1 * 3 - 2 * 2 < 0."""
    activations = torch.tensor([[[[3.0, 3.0]], [[1.0, 2.0]]]])
    gradients = torch.tensor([[[[0.0, 2.0]], [[-2.0, -2.0]]]])
    assert grad_cam(activations, gradients).tolist() == [[[1.0, 0.0]]]


def test_the_value_is_the_mean_and_the_advantage_the_rest():
    """Of a dueling network Q = V + A - mean(A), with V = 5 and A = (1, 3)."""
    value, advantage = value_and_advantage(torch.tensor([[4.0, 6.0]]))
    assert (value.item(), advantage.item()) == (5.0, 1.0)


def test_maps_of_a_network_by_hand():
    """The convolution gives x0 - x1 and x1 - x2 of each row: (4, -2) and (1, 0) before the ReLU, (4, 0), (1, 0) after.

    Q0 = 4 + 3 * 1 = 7 is greedy, Q1 = 0. Gradients by the maps are (1, 2), (3, 4): their mean is 2.5, so Grad-CAM is
    2.5 times the maps. V = (Q0 + Q1) / 2 has the derivatives 1/2, 3/2 by the two maps above 0: +-1/2 and +-3/2 by the
    pixels from which they are made; A = Q0 - V has the same.
    """
    image = torch.tensor([[[[5.0, 1.0, 3.0], [2.0, 1.0, 1.0]]]])
    maps = saliency(Small(), image)
    expected = [[[0.5, 0.5, 0.0], [1.5, 1.5, 0.0]]]
    assert maps.value.tolist() == maps.advantage.tolist() == expected
    assert [one.tolist() for one in maps.convolutions] == [[[[10.0, 0.0], [2.5, 0.0]]]]


def test_items_of_a_batch_do_not_mix():
    images = torch.randn(5, 1, 2, 3, generator=torch.Generator().manual_seed(1))
    together = saliency(Small(), images)
    for item, image in enumerate(images):
        alone = saliency(Small(), image[None])
        assert torch.allclose(together.value[item], alone.value[0])
        assert torch.allclose(together.convolutions[0][item], alone.convolutions[0][0])


GREY = Box(0.0, 1.0, (12, 10), np.float32)
BESIDE = Dict(speed=Box(-1.0, 1.0, (3,), np.float32), camera=GREY, behind=GREY)


@pytest.mark.parametrize("space", [GREY, BESIDE], ids=["image", "dict"])
@pytest.mark.parametrize(
    "make",
    [
        lambda spaces: DQN(spaces, DQN.Settings(network="tiny", hidden_units=8)),
        lambda spaces: PQN(spaces, PQN.Settings(network="tiny", hidden_units=8)),
        lambda spaces: R2D2(spaces, R2D2.Settings(network="tiny", hidden_units=8, core_units=8)),
    ],
    ids=["dqn", "pqn", "r2d2"],
)
def test_maps_are_derivatives_of_what_the_agent_acts_by(make, space):
    """In the midst of an episode; the oracle moves one pixel at a time."""
    torch.manual_seed(3)
    agent = make(Spaces(space, Discrete(4)))
    space.seed(5)
    state = agent.begin(1)
    for _ in range(3):
        sample = space.sample()
        obs = {name: one[None] for name, one in sample.items()} if isinstance(sample, dict) else sample[None]
        before, acted = state, agent.act(obs, state, 0, explore=False)
        state = agent.observe(acted.state, np.ones(1), np.zeros(1, bool))
    tensors: Any = to_tensors(obs, agent.device)

    def q(pixel=None, change=0.0):
        moved = {name: one.clone() for name, one in tensors.items()} if isinstance(obs, dict) else tensors.clone()
        if pixel is not None:
            (moved["camera"] if isinstance(obs, dict) else moved)[0][pixel] += change
        with torch.no_grad():
            return agent.differentiable_q(agent.inputs(moved), before)[0]

    assert int(q().argmax()) == int(acted.action[0])
    maps = saliency(agent, tensors, before)
    assert [tuple(one.shape) for one in maps.convolutions] == [(1, 10, 8)]
    found, expected = [], []
    for flat in np.random.default_rng(0).integers(120, size=20):
        pixel = divmod(int(flat), 10)
        slope = (q(pixel, 5e-4) - q(pixel, -5e-4)) / 1e-3
        value = slope.mean()
        expected += [abs(value.item()), abs((slope[int(acted.action[0])] - value).item())]
        found += [maps.value[0][pixel].item(), maps.advantage[0][pixel].item()]
    alike = np.isclose(found, expected, rtol=0.05, atol=2e-4)
    assert alike.sum() >= 36 and max(expected) > 2e-3  # of 40: a ReLU may switch on between two points


class Moody(nn.Module):
    """An image model with everything that differs while it learns, and a convolution that Q does not depend on."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        channels, height, width = shape
        layers = [nn.Conv2d(channels, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(0.5), nn.Flatten()]
        super().__init__()
        self.seen = nn.Sequential(*layers, nn.Linear(2 * (height - 2) * (width - 2), 6), nn.BatchNorm1d(6))
        self.aside = nn.Conv2d(channels, 1, 3)

    def forward(self, images: Tensor) -> Tensor:
        self.aside(images)
        features: Tensor = self.seen(images)
        return features


def test_a_network_of_modes_is_looked_at_as_it_acts_and_left_as_it_was() -> None:
    register_image_model("moody", Moody)
    agent = DQN(Spaces(GREY, Discrete(4)), DQN.Settings(network="moody", hidden_units=8))
    images = torch.rand(1, 1, 12, 10)
    before = {name: one.clone() for name, one in agent.online.state_dict().items()}
    generator = torch.get_rng_state()
    one, other = saliency(agent, images), saliency(agent, images)  # one image: batch normalization could not learn
    assert torch.equal(one.value, other.value) and one.value.any()
    assert len(one.convolutions) == 2 and not one.convolutions[0].any()
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(before[name], now) for name, now in agent.online.state_dict().items())
    with torch.enable_grad():  # it learns as before
        agent.online(agent.inputs(torch.rand(3, 1, 12, 10)))
    assert any(not torch.equal(before[name], now) for name, now in agent.online.state_dict().items())
