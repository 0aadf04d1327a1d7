"""Augmented images: shifted by their definition, brighter or darker, and learned from but not acted upon."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from sharpwave.agents.augmentation import _by_pixels, _by_rows, random_intensity, random_shift, shift
from sharpwave.agents.dqn import DQN, DQNSettings
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.rainbow import Rainbow

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


def test_each_image_has_a_factor_of_its_own_of_the_given_deviation() -> None:
    images = torch.rand(20_000, 2, 3, 4) + 0.1
    found = random_intensity(images, 0.05, np.random.default_rng(1)) / images
    factors = found[:, 0, 0, 0].double().numpy()
    torch.testing.assert_close(found, found[:, :1, :1, :1].expand_as(found))
    assert 0.9 - 1e-6 < factors.min() < 0.901 and 1.099 < factors.max() < 1.1 + 1e-6  # cut at two deviations
    cut = np.clip(np.random.default_rng(2).standard_normal(1_000_000), -2, 2)
    np.testing.assert_allclose([factors.mean(), factors.std()], [1, 0.05 * cut.std()], atol=1e-3)


def test_only_images_are_changed() -> None:
    vectors, images = torch.randn(5, 9), torch.randn(5, 2, 8, 8)
    changes: list[tuple[Any, float]] = [(random_shift, 3), (random_intensity, 0.1)]
    for change, largest in changes:
        found = change({"vector": vectors, "image": images}, largest, np.random.default_rng(0))
        assert found["vector"] is vectors and not torch.equal(found["image"], images)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_brightened_images_keep_precision_and_layout(layout: torch.memory_format) -> None:
    images = torch.randn(3, 4, 5, 6, dtype=torch.bfloat16).contiguous(memory_format=layout)
    found = random_intensity(images, 0.05, np.random.default_rng(0))
    assert found.dtype == torch.bfloat16 and found.is_contiguous(memory_format=layout)


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


def test_without_images_augmentation_is_refused() -> None:
    with pytest.raises(ValueError, match="--random-shift: got 4, expected a network for images with it"):
        DQN.Settings(network="mlp", random_shift=4)
    vectors = Spaces(Box(-1, 1, (8,), np.float32), Discrete(3))
    with pytest.raises(ValueError, match="--random-shift: got 4, expected 0: no observation is an image"):
        DQN(vectors, DQN.Settings(random_shift=4))
    with pytest.raises(ValueError, match=r"--random-intensity: got 0\.05, expected 0: no observation is an image"):
        DQN(vectors, DQN.Settings(random_intensity=0.05))
