"""Filtered rows of codec predict beside plain twins, on the same random input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.codecs.predict import Predict
from sharpwave.native import core
from tests.support.examples import examples

Array = np.ndarray[Any, Any]
EXAMPLES = settings(max_examples=examples(60), deadline=None)
COLOURS = 128
"""Bit of the head."""


def predicted(kind: int, image: Array, reference: Array, y: int, x: int, distance: int) -> int:
    """The format's description, read aloud: what a filter expects at line y, byte x of an image [lines, line_bytes]."""
    left = int(image[y, x - distance]) if x >= distance else 0
    up = int(image[y - 1, x]) if y else 0
    corner = int(image[y - 1, x - distance]) if y and x >= distance else 0
    plane = left + up - corner
    median = sorted([left, up, plane])[1]
    return [0, left, up, (left + up) // 2, median, int(reference[y, x])][kind]


def naive_restore(filtered: Array, reference: Array, lines: int, line_bytes: int) -> Array:
    head, kinds = int(filtered[0]), filtered[1 : 1 + lines].tolist()
    residuals = filtered[1 + lines :].reshape(lines, line_bytes)
    behind = reference.reshape(lines, line_bytes).astype(int)
    if head & 128:
        for channel in (0, 2):
            behind[:, channel::3] = (behind[:, channel::3] - behind[:, 1::3]) % 256
    image = np.zeros((lines, line_bytes), int)
    for y in range(lines):
        for x in range(line_bytes):
            guess = predicted(kinds[y], image, behind, y, x, head & 63)
            image[y, x] = (int(residuals[y, x]) + guess) % 256
    if head & 128:
        for channel in (0, 2):
            image[:, channel::3] = (image[:, channel::3] + image[:, 1::3]) % 256
    return image.astype(np.uint8).reshape(-1)


def naive_head(image: Array) -> int:
    """The head by which the median edge predicts the middle 16 lines best; of equals the first."""
    lines, line_bytes = image.shape
    middle = image[max(0, (lines - 16) // 2) :][:16].astype(int)
    heads = [d for d in range(1, 9) if line_bytes % d == 0 and d < line_bytes] or [1]
    heads += [3 | COLOURS] if line_bytes % 3 == 0 and line_bytes > 3 else []

    def wrong(head: int) -> int:
        values = middle.copy()
        if head & COLOURS:
            for channel in (0, 2):
                values[:, channel::3] = (values[:, channel::3] - values[:, 1::3]) % 256
        total = 0
        for y in range(len(values)):
            for x in range(line_bytes):
                off = (values[y, x] - predicted(4, values, values, y, x, head & 63)) % 256
                total += min(off, 256 - off)
        return total

    return min(heads, key=wrong)


@EXAMPLES
@given(
    lines=st.integers(1, 20),
    pixels=st.integers(1, 6),
    channels=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    calm=st.booleans(),
)
def test_rows_are_restored_as_the_format_says(lines: int, pixels: int, channels: int, seed: int, calm: bool) -> None:
    rng, line_bytes = np.random.default_rng(seed), pixels * channels
    rows = rng.integers(0, 4 if calm else 256, (3, lines * line_bytes)).astype(np.uint8) + np.uint8(77)
    reference = rng.integers(0, 256, lines * line_bytes).astype(np.uint8)
    heads = [channels, 1] + ([3 | COLOURS] if line_bytes % 3 == 0 else [])
    for head in heads:
        filtered = np.empty((3, 1 + lines + lines * line_bytes), np.uint8)
        core.filter_rows(rows, reference, line_bytes, head, filtered)
        for row, one in zip(rows, filtered, strict=True):
            out = np.empty(row.size, np.uint8)
            assert core.restore_row(one, reference, line_bytes, out)
            np.testing.assert_array_equal(out, row)
            np.testing.assert_array_equal(naive_restore(one, reference, lines, line_bytes), row)
    core.filter_rows(rows, reference, line_bytes, 0, filtered)
    assert (filtered[:, 0] == naive_head(rows[1].reshape(lines, line_bytes))).all()


@EXAMPLES
@given(
    kinds=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    head=st.sampled_from([1, 3, 8, 63, 131]),
    seed=st.integers(0, 99),
)
def test_every_filter_restores_as_its_twin(kinds: list[int], head: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    filtered = rng.integers(0, 256, 1 + 4 + 4 * 9).astype(np.uint8)
    filtered[0], filtered[1:5] = head, kinds
    reference, out = rng.integers(0, 256, 36).astype(np.uint8), np.empty(36, np.uint8)
    assert core.restore_row(filtered, reference, 9, out)
    np.testing.assert_array_equal(out, naive_restore(filtered, reference, 4, 9))


@pytest.mark.parametrize(("head", "kind"), [(0, 1), (64, 1), (128, 1), (1, 6), (1, 255), (65, 0)])
def test_what_is_no_filtered_row_is_refused(head: int, kind: int) -> None:
    filtered = np.zeros(1 + 2 + 12, np.uint8)
    filtered[:2] = head, kind
    assert not core.restore_row(filtered, np.zeros(12, np.uint8), 6, np.empty(12, np.uint8))
    assert not core.restore_row(np.full(1 + 3 + 12, 131, np.uint8), np.zeros(12, np.uint8), 4, np.empty(12, np.uint8))


def test_auto_takes_it_for_noise_and_not_for_games() -> None:
    """A still picture with a camera's noise: near the noise's own entropy, where delta and zstd leave all of it."""
    rng = np.random.default_rng(0)
    still = (np.add.outer(np.arange(48), np.arange(48)) % 200)[:, :, None] + np.array([0, 20, 40])
    noisy = np.clip(still + rng.normal(0, 2, (300, 48, 48, 3)), 0, 255).astype(np.uint8)
    game = np.repeat(still[None].astype(np.uint8), 300, 0)
    game[np.arange(300), np.arange(300) % 48] = 255
    for frames, codec, most in ((noisy, "predict", 0.43), (game, "patches", 0.05)):
        store = sw.Store(sw.Spec(obs=sw.Field((48, 48, 3), "uint8"), action=sw.Field((), "int64")), capacity=1000)
        store.add_episode(
            obs=np.concatenate([frames, frames[:1]]), action=np.arange(300), reward=np.zeros(300), terminated=True
        )
        stats, view = store.stats(), store.transitions()
        assert set(stats["codecs"]["obs"]) == {codec}
        assert stats["encoded_bytes_per_step"] < most * frames[0].nbytes
        batch = view.sample(64)
        np.testing.assert_array_equal(batch.obs, frames[batch.action])


def test_a_reference_is_the_median() -> None:
    rows = np.array([[1, 9, 3], [2, 8, 3], [7, 1, 3], [3, 2, 4], [9, 3, 3]], np.uint8)
    assert Predict().train(rows) == bytes([3, 3, 3])
    assert Predict().train(rows[:2]) == b""
