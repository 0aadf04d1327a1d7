"""Encoded images, PNG and JPEG, as data sets hold them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data.packages import needed


def decode(content: bytes, shape: tuple[int, ...] | None, what: str) -> npt.NDArray[Any]:
    """Decode an image to uint8 or uint16 [height, width, channels].

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
            array = np.asarray(image)
    except (OSError, ValueError, SyntaxError, module.DecompressionBombError) as error:
        raise ValueError(f"{what}: an image cannot be decoded ({error})") from error
    array = array[:, :, None] if array.ndim == 2 else array
    if shape is not None and array.shape != shape:
        raise ValueError(f"{what}: an image of {array.shape}, expected {shape}")
    return array
