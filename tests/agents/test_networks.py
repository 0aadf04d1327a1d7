"""Q-networks: shapes, scaling, dueling, and errors that teach."""

import pytest
import torch

from sharpwave.agents.networks import NETWORKS, network_builder


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dueling", [False, True])
def test_one_value_an_action(name, dueling):
    shape = (4,) if name == "mlp" else (4, 84, 84)
    network = network_builder(name, shape, 6, 16, dueling)()
    obs = torch.zeros(3, *shape) if name == "mlp" else torch.zeros(3, *shape, dtype=torch.uint8)
    assert network(obs).shape == (3, 6)


def test_frames_are_scaled_to_one():
    network = network_builder("efficient", (1, 84, 84), 2, 16, False)()
    seen = []
    network.torso[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network(torch.full((1, 1, 84, 84), 255, dtype=torch.uint8))
    torch.testing.assert_close(seen[0], torch.ones(1, 1, 84, 84))


def test_dueling_advantages_have_no_mean():
    network = network_builder("mlp", (4,), 3, 8, True)()
    value = []
    network.head.value.register_forward_hook(lambda _, __, out: value.append(out))
    q = network(torch.randn(5, 4))
    torch.testing.assert_close(q.mean(dim=1, keepdim=True), value[0])


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet", (4, 84, 84), "got 'resnet', expected one of nature"),
        ("nature", (4,), r"observations of shape \(4,\); use 'mlp'"),
        ("nature", (4, 20, 20), "cannot take frames of 20x20"),
    ],
)
def test_errors_say_what_came_and_what_to_do(name, shape, message):
    with pytest.raises(ValueError, match=message):
        network_builder(name, shape, 2, 8, False)()


def test_values_are_float32_under_autocast():
    """bfloat16 has 8 significant bits: rounded to it, values of two actions may become equal."""
    torch.manual_seed(0)
    network = network_builder("small", (4, 42, 42), 3, 64, True)()
    frames = torch.randint(0, 255, (8, 4, 42, 42), dtype=torch.uint8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = network(frames)
    assert values.dtype == torch.float32
    assert (values != values.bfloat16().float()).any()
