"""Networks: shapes for every kind of observation, dueling, and errors that teach."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text

from sharpwave.agents.architectures import CONVOLUTIONS, NETWORKS
from sharpwave.agents.inputs import FrameInputs, image_shape, inputs_for
from sharpwave.agents.modules import to_tensors
from sharpwave.agents.networks import QHead, QNetwork
from sharpwave.agents.torsos import torso_for


def image(*shape):
    return Box(0, 255, shape, np.uint8)


def vector(*shape):
    return Box(-np.inf, np.inf, shape, np.float32)


def q_network(space, network, dueling=False, units=16):
    torso = torso_for(space, network, units)
    return QNetwork(torso, QHead(torso.features, units, 6, dueling))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dueling", [False, True])
def test_one_value_an_action(name, dueling):
    space = image(4, 84, 84)
    obs = torch.zeros(3, 4, 84, 84, dtype=torch.uint8)
    assert q_network(space, name, dueling)(inputs_for(space, images=name != "mlp")(obs)).shape == (3, 6)
    obs = torch.zeros(3, 4)
    if name not in CONVOLUTIONS:
        assert q_network(vector(4), name, dueling)(inputs_for(vector(4))(obs)).shape == (3, 6)


@pytest.mark.parametrize(
    "space",
    [
        vector(),
        vector(3, 2),
        image(128),
        image(96, 96, 3),
        image(3, 64, 64),
        image(4, 96, 96, 3),  # a stack of pictures
        image(10, 10),
        Box(0, 1, (10, 10, 4), np.bool_),  # type: ignore[arg-type]  # MinAtar
        Discrete(5, start=2),
        MultiDiscrete([2, 3]),
        MultiBinary(4),
        Dict(picture=image(42, 42, 3), speed=vector(2), gear=Discrete(4)),
    ],
    ids=str,
)
def test_every_observation_of_arrays_has_a_network(space):
    space.seed(0)
    samples = [space.sample() for _ in range(3)]
    if isinstance(space, Dict):
        obs: Any = {name: np.stack([one[name] for one in samples]) for name in space.spaces}
    else:
        obs = np.stack(samples)
    inputs = inputs_for(space)
    values = q_network(space, "auto")(inputs(to_tensors(obs, torch.device("cpu"))))
    assert values.shape == (3, 6) and values.isfinite().all() and len(values.unique()) > 6  # all of it is looked at


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 84, 84), (4, 84, 84)),
        ((96, 96, 3), (3, 96, 96)),
        ((2, 96, 96, 3), (6, 96, 96)),
        ((210, 160), (1, 210, 160)),
        ((10, 10, 10), (10, 10, 10)),
        ((4, 4), None),
        ((128,), None),
    ],
)
def test_what_is_an_image(shape, expected):
    assert image_shape(image(*shape)) == expected


def test_channels_of_a_picture_reach_the_network_as_channels():
    picture = torch.arange(2 * 6 * 5 * 3, dtype=torch.uint8).view(2, 6, 5, 3)
    found = FrameInputs((6, 5, 3))(picture)
    torch.testing.assert_close(found, picture.permute(0, 3, 1, 2).float() / 255)
    stacked = FrameInputs((2, 6, 5, 3))(picture.view(1, 2, 6, 5, 3))
    torch.testing.assert_close(stacked, picture.permute(0, 3, 1, 2).reshape(1, 6, 6, 5).float() / 255)


def test_channels_of_a_picture_are_standardized_each():
    inputs = FrameInputs((6, 5, 3))
    pictures = torch.zeros(10, 6, 5, 3, dtype=torch.uint8) + torch.tensor([10, 20, 30], dtype=torch.uint8)
    inputs.standardize(pictures)
    torch.testing.assert_close(inputs(pictures), torch.zeros(10, 3, 6, 5))


def test_categories_are_one_hot_and_bounded_integers_are_scaled():
    assert inputs_for(Discrete(3, start=5))(torch.tensor([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert inputs_for(MultiDiscrete([2, 3]))(torch.tensor([[1, 2]])).tolist() == [[0, 1, 0, 0, 1]]
    assert inputs_for(Box(-10, 30, (2,), np.int32))(torch.tensor([[-10, 10]])).tolist() == [[0.0, 0.5]]


def test_dueling_advantages_have_no_mean():
    network = q_network(vector(4), "mlp", dueling=True, units=8)
    value = []
    network.head.value.register_forward_hook(lambda _, __, out: value.append(out))
    q = network(torch.randn(5, 4))
    torch.testing.assert_close(q.mean(dim=1, keepdim=True), value[0])


@pytest.mark.parametrize(
    ("name", "space", "message"),
    [
        ("resnet", image(4, 84, 84), "got 'resnet', expected one of auto, nature"),
        ("nature", vector(4), r"observations of shape \(4,\); use 'mlp'"),
        ("nature", image(4, 20, 20), "cannot take frames of 20x20"),
    ],
)
def test_errors_say_what_came_and_what_to_do(name, space, message):
    with pytest.raises(ValueError, match=message):
        torso_for(space, name, 8)


def test_an_observation_that_is_no_array_is_named():
    with pytest.raises(ValueError, match=r"observations: got Text\(.*expected Box, Discrete"):
        inputs_for(Text(5))


def test_values_are_float32_under_autocast():
    """bfloat16 has 8 significant bits: rounded to it, values of two actions may become equal."""
    torch.manual_seed(0)
    network = q_network(image(4, 42, 42), "small", dueling=True, units=64)
    frames = torch.randint(0, 255, (8, 4, 42, 42), dtype=torch.uint8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = network(FrameInputs((4, 42, 42))(frames))
    assert values.dtype == torch.float32
    assert (values != values.bfloat16().float()).any()
