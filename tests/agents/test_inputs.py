"""Observations on their way into networks: scaled, standardized, shifted, and made in one pass as torch makes them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from sharpwave.agents.dqn import DQN, DQNSettings
from sharpwave.agents.inputs import (
    FrameInputs,
    MeasuredInputs,
    OneHotInputs,
    VectorInputs,
    _by_pixels,
    _by_rows,
    fits_one_pass,
    has,
    inputs_for,
    random_shift,
    shift,
    standardize,
)
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.rainbow import Rainbow


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


SPACES = Spaces(Box(0, 255, (4, 12, 12), np.uint8), Discrete(3))


def padded(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """Shift an image [C, H, W] as its definition says: pad it by its border, then cut it out elsewhere."""
    _, height, width = image.shape
    wide = np.pad(image, [(0, 0), (5, 5), (5, 5)], mode="edge")
    return wide[:, 5 - down : 5 - down + height, 5 - right : 5 - right + width]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_image_moves_by_its_own_shift_and_is_bordered_by_itself(dtype: torch.dtype) -> None:
    images = torch.randn(121, 3, 6, 7).to(dtype)
    shifts = [(down, right) for down in range(-5, 6) for right in range(-5, 6)]
    down, right = torch.tensor(shifts).T.unsqueeze(2)
    found = shift(images, down, right)
    assert found.shape == images.shape and found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    for image, moved, (rows, columns) in zip(images.float().numpy(), found.float().numpy(), shifts, strict=True):
        np.testing.assert_array_equal(moved, padded(image, rows, columns))


def test_the_shift_of_other_devices_is_that_of_the_cpu() -> None:
    pixels = torch.randn(64, 5, 6, 3)
    down, right = torch.randint(-9, 10, (2, 64, 1))  # up to beyond the image
    assert torch.equal(_by_pixels(pixels, down, right), _by_rows(pixels, down, right))


def test_shifts_are_drawn_uniformly_for_each_item_and_direction() -> None:
    images = torch.zeros(4_000, 1, 11, 11)
    images[:, :, 5, 5] = 1.0
    found = random_shift(images, 2, np.random.default_rng(1))[:, 0].nonzero()
    assert len(found) == 4_000
    counts = np.zeros((5, 5))
    np.add.at(counts, (found[:, 1].numpy() - 3, found[:, 2].numpy() - 3), 1)
    assert ((counts - 160) ** 2 / 160).sum() < 52  # chi-squared of 24 degrees: passed in 1 of 1,200


def test_only_images_are_shifted() -> None:
    vectors, images = torch.randn(5, 9), torch.randn(5, 2, 8, 8)
    found = random_shift({"vector": vectors, "image": images}, 3, np.random.default_rng(0))
    assert found["vector"] is vectors and not torch.equal(found["image"], images)


@pytest.mark.parametrize(
    ("agent", "settings"),
    [(DQN, DQN.Settings(network="tiny")), (Rainbow, Rainbow.Settings(network="tiny", noisy=False))],
)
def test_updates_are_made_from_shifted_images_and_actions_from_the_images_themselves(
    agent: type[DQN], settings: DQNSettings
) -> None:
    def losses(pixels: int, seed: int, background: bool) -> list[float]:
        learner = agent(SPACES, replace(settings, random_shift=pixels), seed=seed)
        torch.manual_seed(0)
        for module in (learner.online, learner.target):
            for parameter in module.parameters():
                parameter.data.normal_(0, 0.1)
        obs = torch.randint(0, 256, (8, 4, 1 if background else 12, 1 if background else 12), dtype=torch.uint8)
        obs = obs.expand(8, 4, 12, 12).contiguous()
        batch = SimpleNamespace(
            obs=obs, next_obs=obs.flip(0), action=torch.arange(8) % 3, reward=torch.ones(8),
            discount=torch.full((8,), 0.9), weights=torch.ones(8),
        )  # fmt: skip
        assert np.array_equal(learner.values(obs.numpy()), learner.values(obs.numpy()))
        return [learner.loss(batch)[0].item() for _ in range(2)]

    first, second = losses(3, seed=1, background=False)
    assert first != second  # fresh shifts in every update
    assert [first, second] == losses(3, seed=1, background=False)
    assert first != losses(3, seed=2, background=False)[0]
    still = losses(0, seed=1, background=False)
    assert still[0] == still[1] != first
    assert losses(3, seed=1, background=True) == losses(0, seed=1, background=True)  # a plain image has no position


def test_without_images_shifts_are_refused() -> None:
    with pytest.raises(ValueError, match="--random-shift: got 4, expected a network for images with it"):
        DQN.Settings(network="mlp", random_shift=4)
    vectors = Spaces(Box(-1, 1, (8,), np.float32), Discrete(3))
    with pytest.raises(ValueError, match="--random-shift: got 4, expected 0: no observation is an image"):
        DQN(vectors, DQN.Settings(random_shift=4))
