"""Networks: shapes for every kind of observation, dueling, and errors that teach."""

from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text
from torch import nn

from sharpwave.agents import architectures
from sharpwave.agents.architectures import NETWORKS, networks, register_image_model
from sharpwave.agents.inputs import FrameInputs, image_shape, inputs_for
from sharpwave.agents.learner import to_tensors
from sharpwave.agents.networks import OwnTorso, QHead, QNetwork, torso_for


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
    if name in ("auto", "mlp"):
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
        ("nature", vector(4), r"observations of shape \(4,\); use --network mlp"),
        ("nature", image(4, 20, 20), "cannot take frames of 20x20 with 4 channels, expected at least 36x36"),
        ("dqn-2013", image(4, 19, 84), "cannot take frames of 19x84 with 4 channels, expected at least 20x20"),
        (
            "efficient",
            Dict(a=image(84, 84), b=image(24, 24)),
            "observation 'b': network 'efficient' cannot take frames",
        ),
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


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "features", "count"),
    [
        # Mnih et al. (2015): 84 -8/4-> 20 -4/2-> 9 -3/1-> 7; 7 * 7 * 64.
        ("nature", 3_136, (4 * 64 * 32 + 32) + (32 * 16 * 64 + 64) + (64 * 9 * 64 + 64)),
        # Mnih et al. (2013): 84 -8/4-> 20 -4/2-> 9; 9 * 9 * 32.
        ("dqn-2013", 2_592, (4 * 64 * 16 + 16) + (16 * 16 * 32 + 32)),
        # van Hasselt et al. (2019): 84 -5/5-> 16 -5/5-> 3; 3 * 3 * 64 = 576.
        ("efficient", 576, (4 * 25 * 32 + 32) + (32 * 25 * 64 + 64)),
        # Espeholt et al. (2018): 84 -> 42 -> 21 -> 11; 11 * 11 * 32. A section: one convolution and four of its blocks.
        (
            "impala",
            3_872,
            (4 * 9 * 16 + 16) + 4 * (16 * 9 * 16 + 16) + (16 * 9 * 32 + 32) + 9 * (32 * 9 * 32 + 32),
        ),
    ],
)
def test_networks_have_the_papers_sizes(name, features, count):
    torso = torso_for(image(4, 84, 84), name, 0)
    assert torso.features == features and parameters(torso) == count
    assert torso(torch.zeros(2, 4, 84, 84)).shape == (2, features)


def test_the_whole_networks_of_the_papers():
    """Nature's DQN has 1,686,180 weights and biases with Breakout's four actions; DQN-2013 has 677,686 with six."""

    def whole(name, units, actions):
        torso = torso_for(image(4, 84, 84), name, units)
        return parameters(QNetwork(torso, QHead(torso.features, units, actions, dueling=False)))

    assert whole("nature", 512, 4) == 77_984 + (3_136 * 512 + 512) + (512 * 4 + 4) == 1_686_180
    assert whole("dqn-2013", 256, 6) == 12_336 + (2_592 * 256 + 256) + (256 * 6 + 6) == 677_686
    assert whole("impala", 256, 6) == 97_744 + (3_872 * 256 + 256) + (256 * 6 + 6)


@pytest.mark.parametrize("name", ["nature", "dqn-2013", "efficient", "impala", "auto"])
@pytest.mark.parametrize("shape", [(64, 64, 3), (96, 96, 3), (210, 160), (4, 64, 64, 3), (2, 210, 160, 3)], ids=str)
def test_networks_take_images_of_every_size(name, shape):
    space = image(*shape)
    torso = torso_for(space, name, 8)
    obs = torch.randint(0, 256, (2, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    features = torso(inputs_for(space)(obs))
    assert features.shape == (2, torso.features) and not torch.equal(features[0], features[1])


def test_a_residual_block_adds_to_what_it_was_given():
    torch.manual_seed(0)
    torso = torso_for(image(1, 16, 16), "impala", 0)
    block, x = torso[2], torch.randn(1, 16, 8, 8)  # type: ignore[index]
    _, first, _, second = block.children()
    expected = x + second(first(x.relu()).relu())
    torch.testing.assert_close(block(x), expected)
    assert torso(torch.randn(3, 1, 16, 16)).min() == 0  # after the last section a ReLU


def test_several_images_and_values_of_a_dict_are_all_looked_at():
    space = Dict(front=image(64, 64, 3), map=image(16, 16), stack=image(4, 40, 40), speed=vector(2), gear=Discrete(4))
    torso = torso_for(space, "auto", 8)
    space.seed(0)
    one = {name: np.stack([part] * 2) for name, part in space.sample().items()}
    inputs = inputs_for(space)
    for name in space.spaces:
        other = {key: value.copy() for key, value in one.items()}
        other[name][1] = (other[name][1] + 1) % 4
        features = torso(inputs(to_tensors(other, torch.device("cpu"))))
        assert features.shape == (2, torso.features) and not torch.equal(features[0], features[1]), name


class Pooled(nn.Module):
    """The mean of each channel, batch-normalized: features [B, channels, 1, 1]."""

    def __init__(self, shape):
        super().__init__()
        self.norm = nn.BatchNorm2d(shape[0])

    def forward(self, frames):
        return self.norm(frames).mean(dim=(2, 3), keepdim=True)


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(architectures, "_registered", {})
    register_image_model("pooled", Pooled)
    return "pooled"


def test_an_image_model_of_ones_own(own):
    assert networks() == (*NETWORKS, own)
    register_image_model(own, Pooled)  # a second time, as when a module is run again
    torso = torso_for(image(96, 96, 3), own, 8)
    assert isinstance(torso, OwnTorso) and torso.features == 3
    torso = torso_for(Dict(camera=image(10, 10, 3), speed=vector(2)), own, 8)
    assert torso.features == 3 + 8
    with pytest.raises(ValueError, match="image model 'nature': the name is taken; choose another than auto"):
        register_image_model("nature", Pooled)
    with pytest.raises(ValueError, match=r"network 'pooled' takes images"):
        torso_for(vector(4), own, 8)


def test_image_models_of_other_packages_are_imported_on_demand(monkeypatch):
    values = {"theirs": f"{__name__}:Pooled", "gone": "no_such_package:Model", "less": f"{__name__}:NoSuchModel"}
    points = {name: EntryPoint(name, value, architectures.GROUP) for name, value in values.items()}
    monkeypatch.setattr(architectures, "_provided", lambda: points)
    assert "theirs" in networks()
    assert torso_for(image(10, 10), "theirs", 8).features == 1
    for name in ("gone", "less"):
        with pytest.raises(ValueError, match=f"network '{name}': its entry point '{values[name]}' cannot be loaded"):
            torso_for(image(10, 10), name, 8)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda shape: nn.Conv2d(shape[0], 1, 99), r"network 'wrong' cannot take frames of 10x10 with 3 channels"),
        (lambda shape: nn.Flatten(0), r"network 'wrong': its model returned \(300,\) for a batch of one"),
    ],
)
def test_image_models_that_do_not_fit(model, message, monkeypatch):
    monkeypatch.setattr(architectures, "_registered", {"wrong": model})
    with pytest.raises(ValueError, match=message):
        torso_for(image(10, 10, 3), "wrong", 8)


def test_batch_normalization_learns_from_batches_alone(own):
    """Statistics are learned where gradients are; acting and targets use them, whatever else is in the batch."""
    from sharpwave.agents.dqn import DQN
    from sharpwave.agents.protocol import Spaces

    agent = DQN(Spaces(image(10, 10, 3), Discrete(2)), DQN.Settings(network=own, hidden_units=4, target_every=10))
    frames = np.random.default_rng(0).integers(0, 256, (8, 10, 10, 3), np.uint8)
    state = agent.begin(8)
    agent.act(frames, state, 0, explore=False)

    def statistics(network):
        return network.torso.model.norm.running_mean.clone()

    assert not statistics(agent.online).any()

    class Batch:
        obs = next_obs = torch.from_numpy(frames)
        action, reward = torch.zeros(8, dtype=torch.int64), torch.ones(8)
        discount = weights = torch.ones(8)

    agent.learn(Batch, 0)
    learned = statistics(agent.online)
    torch.testing.assert_close(learned, 0.1 * torch.from_numpy(frames / 255).float().mean(dim=(0, 1, 2)))
    assert not statistics(agent.target).any()
    alone, together = agent.values(frames[:1]), agent.values(frames)[:1]
    np.testing.assert_allclose(alone, together, rtol=1e-5)
    agent.learn(Batch, 10)  # first copies to the target
    assert torch.equal(statistics(agent.target), learned) and not torch.equal(statistics(agent.online), learned)
    assert "policy.torso.model.norm.running_mean" in agent.policy_tensors()
