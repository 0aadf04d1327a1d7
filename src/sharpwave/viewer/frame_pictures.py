"""Pictures of observations: frames as pixels, several in one PNG."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.spec import Field

Pixels = npt.NDArray[np.uint8]

MAX_CHANNELS, MAX_SIDE = 64, 4096
"""Limits of a frame: a larger array is no picture."""
SHOWN_SIDE = 512
"""Pixels of a frame's longer side that are shown; a larger frame is shown by every k-th line."""
MAX_PIXELS = 4 << 20
"""Limit of the pixels of one PNG."""
COLUMNS = 8
"""Number of frames in a row of a PNG."""
MAX_FRAMES = 64
PALETTE = np.array(
    [[79, 143, 247], [242, 142, 43], [89, 161, 79], [225, 87, 89], [176, 122, 161], [237, 201, 72], [118, 183, 178]],
    np.uint8,
)
"""Colors of the channels of a picture that has neither 1, 3 nor 4 of them."""


def is_picture(field: Field) -> bool:
    """Return whether a field's values can be drawn: [H, W], [H, W, channels] or [channels, H, W]."""
    shape = field.shape
    if field.ragged:
        return False
    channels = 1
    if len(shape) == 3:
        channels = shape[0] if _channels_first(shape) else shape[2]
        shape = shape[1:] if _channels_first(shape) else shape[:2]
    return len(shape) == 2 and channels <= MAX_CHANNELS and all(4 <= side <= MAX_SIDE for side in shape)


def shown_size(field: Field) -> tuple[int, int, int]:
    """Return the drawn height and width of a frame, and the number of its lines for each drawn one."""
    shape = field.shape
    if len(shape) == 3:
        shape = shape[1:] if _channels_first(shape) else shape[:2]
    step = math.ceil(max(shape) / SHOWN_SIDE)
    return -(-shape[0] // step), -(-shape[1] // step), step


def frames_in_one(field: Field, side: int = SHOWN_SIDE) -> int:
    """Return the largest number of frames in one PNG, each reduced to ``side``."""
    height, width = reduced_size(field, side)
    return max(1, min(MAX_FRAMES, MAX_PIXELS // (height * width)))


def reduced_size(field: Field, side: int) -> tuple[int, int]:
    """Return height and width of a frame whose longer side is reduced to ``side``."""
    height, width, _ = shown_size(field)
    scale = min(1.0, side / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def pixels_of(value: npt.NDArray[Any], field: Field) -> Pixels:
    """Return a frame as uint8 [H, W, 3].

    Values other than uint8 are stretched from their smallest to their largest. Channels that are no colors get a
    color each; in each pixel the largest value wins.
    """
    _, _, step = shown_size(field)
    frame = value[:, :, None] if value.ndim == 2 else value
    if value.ndim == 3 and _channels_first(value.shape):
        frame = frame.transpose(1, 2, 0)
    frame = frame[::step, ::step]
    if frame.dtype != np.uint8:
        frame = _stretched(frame)
    channels = frame.shape[2]
    if channels == 4 and value.dtype == np.uint8 and not _channels_first(value.shape):  # over black
        frame = (frame[:, :, :3].astype(np.uint16) * frame[:, :, 3:] // 255).astype(np.uint8)
    elif channels not in (1, 3):
        brightest = frame.argmax(axis=2)
        level = frame.max(axis=2).astype(np.uint16)[:, :, None]
        frame = (PALETTE[brightest % len(PALETTE)] * level // 255).astype(np.uint8)
    return np.broadcast_to(frame, (*frame.shape[:2], 3)).astype(np.uint8)


def sheet(frames: list[tuple[int, Pixels]], places: dict[int, int], field: Field, side: int = SHOWN_SIDE) -> bytes:
    """Return a PNG of frames in reading order, ``COLUMNS`` in a row, without margins.

    Args:
        frames: (step, pixels) of each. ``places``: the place by step; places of missing frames stay black.
        side: reduce frames to this longer side.
    """
    from PIL import Image

    height, width = reduced_size(field, side)
    count = len(places)
    columns, rows = min(COLUMNS, count), -(-count // COLUMNS)
    picture = np.zeros((rows * height, columns * width, 3), np.uint8)
    for step, pixels in frames:
        row, column = divmod(places[step], COLUMNS)
        if pixels.shape[:2] != (height, width):
            pixels = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX))
        picture[row * height : (row + 1) * height, column * width : (column + 1) * width] = pixels
    gray = bool((picture[:, :, 0] == picture[:, :, 1]).all() and (picture[:, :, 1] == picture[:, :, 2]).all())
    out = io.BytesIO()
    Image.fromarray(picture[:, :, 0].copy() if gray else picture).save(out, "PNG", compress_level=1)
    return out.getvalue()


def _stretched(frame: npt.NDArray[Any]) -> Pixels:
    values = np.nan_to_num(frame.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if high > low:
        values = (values / 2 - low / 2) / (high / 2 - low / 2)  # in halves, since the difference may overflow
    else:
        values = np.full_like(values, 1.0 if high > 0 else 0.0)
    return (values * 255).astype(np.uint8)


def _channels_first(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] < shape[2] and shape[0] < 8 and shape[2] > 4
