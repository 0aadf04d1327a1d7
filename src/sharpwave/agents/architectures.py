"""Networks that an agent can have, by name: those of this package, and image models that others register. Settings
read the names without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

# Each convolution: channels, kernel, stride.
CONVOLUTIONS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. (2015); 84x84 -> 7x7x64
    "dqn-2013": ((16, 8, 4), (32, 4, 2)),  # Mnih et al. (2013), with 256 hidden units; 84x84 -> 9x9x32
    "efficient": ((32, 5, 5), (64, 5, 5)),  # van Hasselt et al. (2019), data-efficient Rainbow; 84x84 -> 3x3x64
    "small": ((16, 6, 3), (32, 4, 2)),  # for frames of some 42x42; -> 5x5x32
    "tiny": ((16, 3, 1),),  # Young and Tian (2019), MinAtar; 10x10 -> 8x8x16
}
RESIDUAL = "impala"
"""Espeholt et al. (2018), the deep network of IMPALA, with 256 hidden units; 84x84 -> 11x11x32."""
NETWORKS = ("auto", *CONVOLUTIONS, RESIDUAL, "mlp")
"""Names of this package's networks."""
MIN_SIDES = {"nature": 64, "small": 30, "tiny": 5}
"""Smallest shorter side of frames for which "auto" chooses each network."""

ImageModel = Callable[[tuple[int, int, int]], "nn.Module"]
"""Class of a network for images: it is made for images of (channels, height, width), and maps float
[B, channels, height, width] to features [B, ...]."""

GROUP = "sharpwave.image_models"
"""Entry points by which other packages provide image models: ``wide = "my_package.models:Wide"``."""

_registered: dict[str, ImageModel] = {}


def networks() -> tuple[str, ...]:
    """Return the names of all networks, the registered image models included."""
    return (*NETWORKS, *(name for name in _provided() if name not in NETWORKS), *_registered)


def register_image_model(name: str, model: ImageModel) -> None:
    """Register an image model for this process and those of its runs; an entry point registers one for every process.

    Raises:
        ValueError: another network has the name.
    """
    if name in networks() and _registered.get(name) is not model:
        raise ValueError(f"image model {name!r}: the name is taken; choose another than {', '.join(networks())}")
    _registered[name] = model


def registered_image_models() -> Mapping[str, ImageModel]:
    return dict(_registered)


def image_model(name: str) -> ImageModel:
    """Return a registered image model.  Raises: ValueError: an unknown name, or one that cannot be imported."""
    if name in _registered:
        return _registered[name]
    if name not in _provided():
        raise ValueError(f"network: got {name!r}, expected one of {', '.join(networks())}")
    point = _provided()[name]
    try:
        model: ImageModel = point.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"network {name!r}: its entry point {point.value!r} cannot be loaded ({error}); repair or uninstall the "
            "package that declares it, or choose another network"
        ) from error
    return model


@cache
def _provided() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
