"""Heads: what networks' predictions mean, whatever precision the networks compute in."""

import pytest
import torch

from sharpwave.agents.heads import C51, IQN, QR, Expected, Head


@pytest.mark.parametrize("head", [Expected(), C51(), QR(16), IQN(16)], ids=lambda head: type(head).__name__)
def test_values_are_the_same_under_autocast(head: Head) -> None:
    """Near 9, bfloat16 has steps of 1/16, in which actions whose values differ by .03 become equal."""
    torch.manual_seed(0)
    value = 9 + 0.03 * torch.randn(512, 6, 1)
    predicted = value.squeeze(2)
    if isinstance(head, C51):
        predicted = -((torch.linspace(-10, 10, 51) - value) ** 2) / 2
    elif isinstance(head, QR):
        predicted = value + torch.randn(16)
    exact = head.values(predicted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = head.values(predicted)
    assert values.dtype == torch.float32 and torch.equal(values, exact)
