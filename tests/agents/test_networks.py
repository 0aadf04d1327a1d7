"""Q-networks: shapes, scaling, dueling, and errors that teach."""

import pytest
import torch

from sharpwave.agents.frames import fits_one_pass
from sharpwave.agents.networks import NETWORKS, FrameInputs, VectorInputs, input_module, network_builder


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dueling", [False, True])
def test_one_value_an_action(name, dueling):
    shape = (4,) if name == "mlp" else (4, 84, 84)
    network = network_builder(name, shape, 6, 16, dueling)()
    obs = torch.zeros(3, *shape) if name == "mlp" else torch.zeros(3, *shape, dtype=torch.uint8)
    assert network(input_module(name, shape)(obs)).shape == (3, 6)


def test_frames_are_scaled_to_one():
    inputs = FrameInputs((2, 3))
    torch.testing.assert_close(inputs(torch.full((1, 4, 2, 3), 255, dtype=torch.uint8)), torch.ones(1, 4, 2, 3))


def test_standardized_frames_differ_from_the_mean_frame_in_units_of_the_spread():
    inputs = FrameInputs((1, 2))
    # one pixel still at 50, the other 10 or 30: mean 20, deviations -10 and 10, root mean square over both sqrt(50)
    inputs.standardize(torch.tensor([[[[50, 10]]], [[[50, 30]]]], dtype=torch.uint8))
    values = inputs(torch.tensor([[[[50, 10]]], [[[51, 30]]]], dtype=torch.uint8))
    torch.testing.assert_close(values, torch.tensor([[[[0.0, -10.0]]], [[[1.0, 10.0]]]]) / 50**0.5)


def test_frames_that_are_all_alike_do_not_divide_by_zero():
    inputs = FrameInputs((1, 2))
    alike = torch.full((8, 4, 1, 2), 7, dtype=torch.uint8)
    inputs.standardize(alike)
    torch.testing.assert_close(inputs(alike + 1), torch.ones(8, 4, 1, 2))


def test_inputs_leave_the_observations_as_they_were():
    obs = torch.full((2, 4, 3, 3), 9.0)
    FrameInputs((3, 3))(obs)
    VectorInputs()(obs)
    torch.testing.assert_close(obs, torch.full((2, 4, 3, 3), 9.0))


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
        values = network(FrameInputs((42, 42))(frames))
    assert values.dtype == torch.float32
    assert (values != values.bfloat16().float()).any()


@pytest.mark.parametrize("count", [0, 1, 64])
@pytest.mark.parametrize("standardized", [False, True])
def test_bfloat16_frames_in_one_pass_are_what_torch_makes_of_them(count: int, standardized: bool) -> None:
    generator = torch.Generator().manual_seed(count)
    obs = torch.randint(0, 256, (count, 4, 11, 7), dtype=torch.uint8, generator=generator)
    inputs = FrameInputs((11, 7))
    if standardized:
        inputs.standardize(torch.randint(0, 256, (50, 4, 11, 7), dtype=torch.uint8, generator=generator))
    assert not fits_one_pass(obs)
    expected = ((obs.float() - inputs.mean) * (1 / inputs.scale)).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        assert fits_one_pass(obs) and not fits_one_pass(obs[:, :3]) and not fits_one_pass(obs.float())
        found = inputs(obs)
    assert found.dtype == torch.bfloat16 and found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found.view(torch.int16), expected.view(torch.int16))
