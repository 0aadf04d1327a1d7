"""Configurations of the compared replay memories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from sharpwave.bench.contenders import Contender, Sharpwave
from sharpwave.bench.peers import SB3, Cpprb, Tianshou, TorchRL


@dataclass(frozen=True)
class Setup:
    """Library in one configuration.

    Attributes:
        package: name for pip.
        module: name for ``import``.
        make: function from the observations' stack, or ``None``, to a contender.
        stacks_only: whether it differs from the library's other setup only for stacked observations.
    """

    package: str
    module: str
    make: Callable[[int | None], Contender]
    stacks_only: bool = False


def installed(module: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return find_spec(module) is not None
    except ValueError:  # sys.modules has None for it: importing it is blocked
        return False


SETUPS = {
    "Sharpwave": Setup("sharpwave", "sharpwave", lambda stack: Sharpwave("auto")),
    "Sharpwave raw": Setup("sharpwave", "sharpwave", lambda stack: Sharpwave("raw")),
    "SB3": Setup("stable-baselines3", "stable_baselines3", lambda stack: SB3(optimized=False)),
    "SB3 optimized": Setup("stable-baselines3", "stable_baselines3", lambda stack: SB3(optimized=True)),
    "cpprb": Setup("cpprb", "cpprb", lambda stack: Cpprb(stack_compress=stack is not None)),
    "cpprb stacks": Setup("cpprb", "cpprb", lambda stack: Cpprb(stack_compress=False), stacks_only=True),
    "Tianshou": Setup("tianshou", "tianshou", lambda stack: Tianshou(last_frame=stack is not None)),
    "Tianshou stacks": Setup("tianshou", "tianshou", lambda stack: Tianshou(last_frame=False), stacks_only=True),
    "TorchRL": Setup("torchrl", "torchrl", lambda stack: TorchRL()),
}
"""Setups by the name in the tables. The others are compared with the first."""
