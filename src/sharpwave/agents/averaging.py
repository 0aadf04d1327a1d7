"""Averaging of networks: hard copies and exponential moving averages of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


def move_towards(follower: nn.Module, source: nn.Module, share: float) -> None:
    """Move ``follower`` towards ``source`` in place: follower <- follower + share * (source - follower).

    A share of 1 copies. Buffers are averaged as parameters are, so that running statistics match the averaged weights;
    integer buffers, which have no mean, are copied.

    Args:
        source: a network of the same shape.  share: from 0 to 1.
    """
    import torch

    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share: got {share}, expected from 0 to 1")
    pairs: list[tuple[Tensor, Tensor]] = [*zip(follower.parameters(), source.parameters(), strict=True)]
    pairs += zip(follower.buffers(), source.buffers(), strict=True)
    copied = [(own, other) for own, other in pairs if share == 1.0 or not own.is_floating_point()]
    mixed = [(own, other) for own, other in pairs if share != 1.0 and own.is_floating_point()]
    with torch.no_grad():
        if copied:
            torch._foreach_copy_(_column(copied, 0), _column(copied, 1))
        if mixed:
            torch._foreach_lerp_(_column(mixed, 0), _column(mixed, 1), share)


def _column(pairs: list[tuple[Tensor, Tensor]], index: int) -> list[Tensor]:
    return [pair[index] for pair in pairs]
