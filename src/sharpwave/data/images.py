"""Encoded images, PNG and JPEG, as data sets hold them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data.episode import needed

MODES = {"uint8": ("L", "LA", "RGB", "RGBA"), "uint16": ("I;16",)}
"""Pillow's modes that are read, by dtype. Other modes hold numbers of a palette, or single bits."""
START_OF_SCAN, MAX_SCANS = b"\xff\xda", 100
"""Mark of a JPEG's scan, and the limit of scans: each 12 bytes may scan all pixels. Encoders write some ten."""


def size(content: bytes, what: str) -> tuple[int, int]:
    """Return an image's height and width, without decoding it.  Raises: ValueError: it is no image, or too large."""
    module = needed("PIL.Image", "data")
    try:
        with module.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            return image.height, image.width
    except (OSError, ValueError, SyntaxError, module.DecompressionBombError) as error:
        raise ValueError(f"{what}: an image cannot be decoded ({error})") from error


def decode(
    content: bytes, shape: tuple[int, ...] | None, what: str, dtype: npt.DTypeLike = np.uint8
) -> npt.NDArray[Any]:
    """Decode an image to uint8 or uint16, as ``dtype`` says, [height, width, channels].

    Args:
        shape: expected; ``None``: any.

    Raises:
        ValueError: it is damaged, too large, or of another shape.
    """
    module = needed("PIL.Image", "data")
    try:
        with module.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            height, width = image.height, image.width
            if shape is not None and shape[:2] != (height, width):
                raise ValueError(f"{height} x {width} pixels, expected {shape[0]} x {shape[1]}")
            if image.mode not in (modes := MODES.get(np.dtype(dtype).name, ())):
                raise ValueError(f"pixels of mode {image.mode}, expected {np.dtype(dtype)} {modes}; convert it")
            if (scans := content.count(START_OF_SCAN) if image.format == "JPEG" else 0) > MAX_SCANS:
                raise ValueError(f"a JPEG of {scans:,} scans, expected at most {MAX_SCANS}; write it anew")
            array = np.asarray(image)
    except (OSError, ValueError, SyntaxError, module.DecompressionBombError) as error:
        raise ValueError(f"{what}: an image cannot be decoded ({error})") from error
    array = array[:, :, None] if array.ndim == 2 else array
    if shape is not None and array.shape != shape:
        raise ValueError(f"{what}: an image of {array.shape}, expected {shape}")
    return array
