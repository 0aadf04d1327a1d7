"""Observations on their way into networks: scaled, standardized, and made in one pass as torch makes them."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from sharpwave.agents.inputs import (
    FrameInputs,
    MeasuredInputs,
    OneHotInputs,
    RunningInputs,
    VectorInputs,
    fits_one_pass,
    has,
    inputs_for,
    standardize,
)


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


def test_floating_point_frames_are_divided_by_their_own_spread():
    """Values 0 and .1: mean .05, deviation .05."""
    inputs = FrameInputs((1, 2), scale=1.0)
    inputs.standardize(torch.tensor([[[[0.0, 0.1]]], [[[0.1, 0.0]]]]))
    torch.testing.assert_close(inputs(torch.tensor([[[[0.0, 0.1]]]])), torch.tensor([[[[-1.0, 1.0]]]]))


@pytest.mark.parametrize(
    ("low", "high", "dtype", "expected"),
    [
        (0, 4, np.int64, [0.0, 0.25, 0.5]),
        (-2, 2, np.int8, [0.5, 0.75, 1.0]),
        (0, 255, np.uint8, [0.0, 1 / 255, 2 / 255]),
        (0, np.inf, np.int64, [0.0, 1.0, 2.0]),
        (-(2**31), 2**31 - 1, np.int32, [0.0, 1.0, 2.0]),
        (-(2**63), 2**63 - 1, np.int64, [0.0, 1.0, 2.0]),
        (0, 2**32 - 1, np.uint32, [0.0, 1.0, 2.0]),
    ],
)
def test_integers_are_scaled_by_their_bounds_unless_those_are_of_a_wide_dtype(low, high, dtype, expected):
    space = Box(low, high, (1,), dtype)
    found = inputs_for(space)(torch.from_numpy(np.array([[0], [1], [2]], dtype)))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32)[:, None])


def test_inputs_leave_the_observations_as_they_were():
    obs = torch.full((2, 4, 3, 3), 9.0)
    FrameInputs((3, 3))(obs)
    VectorInputs()(obs)
    torch.testing.assert_close(obs, torch.full((2, 4, 3, 3), 9.0))


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


def test_zeros_that_pad_windows_are_the_first_category_where_they_are_none():
    """Categories 1 to 3, -1 to 1 (0 is the second) and -5 to -4."""
    inputs = OneHotInputs([3, 3, 2], [1, -1, -5])
    found = inputs(torch.tensor([[0, 0, 0], [3, 1, -4]]))
    assert found.tolist() == [[1, 0, 0, 0, 1, 0, 1, 0], [0, 0, 1, 0, 0, 1, 0, 1]]
    for wrong in ([4, 0, -5], [1, 2, -5], [1, 0, -6]):
        with pytest.raises(RuntimeError):
            inputs(torch.tensor([wrong]))


def test_measured_vectors_have_mean_0_and_deviation_1_and_the_rest_stays_as_it_is():
    frames = Box(0, 255, (8, 8), np.uint8)
    space = Dict(
        where=Box(-np.inf, np.inf, (2, 2), np.float32), dial=Box(0, 8, (1,), np.int64), door=Discrete(3), eye=frames
    )
    inputs, plain = inputs_for(space, standardize=True), inputs_for(space)
    rng = np.random.default_rng(0)
    obs = {name: torch.from_numpy(np.stack([part.sample() for _ in range(50)])) for name, part in space.spaces.items()}
    obs["where"] = torch.from_numpy(rng.normal(3.0, [[0.1, 5.0], [1.0, 0.0]], (50, 2, 2)).astype(np.float32))
    before = plain(obs)
    torch.testing.assert_close(inputs(obs), before)
    assert has(inputs, MeasuredInputs) and not has(plain, MeasuredInputs)
    assert not has(inputs_for(frames, standardize=True), MeasuredInputs)
    standardize(inputs, obs, MeasuredInputs)
    after = inputs(obs)
    for name in ("where", "dial"):
        values = before[name].numpy()
        expected = (values - values.mean(axis=0)) / (values.std(axis=0) + 1e-3)
        np.testing.assert_allclose(after[name].numpy(), expected, atol=1e-4)
    for name in ("door", "eye"):
        torch.testing.assert_close(after[name], before[name])


@pytest.mark.parametrize("parts", [[300], [1] * 40, [256, 1, 30, 256]])
def test_running_statistics_are_those_of_all_that_was_measured(parts):
    """However it was split, and far from zero, where a sum of squares less the square of a sum would be lost."""
    rng = np.random.default_rng(len(parts))
    seen = (rng.normal(size=(sum(parts), 3)) * [1.0, 0.1, 0.0] + [0.0, 1e4, 7.0]).astype(np.float32)
    inputs = inputs_for(Box(-np.inf, np.inf, (3,), np.float32), standardize=True, vectors=RunningInputs)
    assert isinstance(inputs, RunningInputs)
    for part in np.split(seen, np.cumsum(parts)[:-1]):
        standardize(inputs, torch.from_numpy(part), RunningInputs)
    exact = seen.astype(np.float64)
    expected = np.clip((exact - exact.mean(axis=0)) / np.sqrt(exact.var(axis=0) + 1e-8), -10, 10)
    np.testing.assert_allclose(inputs(torch.from_numpy(seen)).numpy(), expected, atol=0.01)
    np.testing.assert_allclose(inputs.exact_mean.numpy(), exact.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose((inputs.squares / inputs.count).numpy(), exact.var(axis=0), rtol=1e-9, atol=1e-15)


def test_numbers_far_from_what_was_measured_are_clipped_and_nothing_is_before_that():
    inputs = RunningInputs(1)
    given = torch.tensor([[-50.0], [3.0], [50.0]])
    torch.testing.assert_close(inputs(given), torch.tensor([[-10.0], [3.0], [10.0]]))
    inputs.standardize(torch.tensor([[1.0], [3.0]]))  # mean 2, deviation 1
    torch.testing.assert_close(inputs(given), torch.tensor([[-10.0], [1.0], [10.0]]))


def test_running_statistics_are_of_a_dict_s_vectors_and_are_saved():
    space = Dict(speed=Box(-np.inf, np.inf, (2,), np.float32), gear=Discrete(3), picture=Box(0, 255, (8, 8), np.uint8))
    inputs = inputs_for(space, standardize=True, vectors=RunningInputs)
    obs = {
        "speed": torch.randn(20, 2),
        "gear": torch.randint(3, (20,)),
        "picture": torch.randint(256, (20, 8, 8), dtype=torch.uint8),
    }
    before = inputs(obs)
    standardize(inputs, obs, RunningInputs)
    after = inputs(obs)
    assert after["speed"].std(dim=0, correction=0).sub(1).abs().max() < 1e-3
    assert all(torch.equal(before[name], after[name]) for name in ("gear", "picture"))
    copy = inputs_for(space, standardize=True, vectors=RunningInputs)
    copy.load_state_dict(inputs.state_dict())
    more = obs["speed"] + 3
    for one in (inputs, copy):
        standardize(one, {**obs, "speed": more}, RunningInputs)
    assert torch.equal(inputs(obs)["speed"], copy(obs)["speed"])
