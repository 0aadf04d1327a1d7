"""Recurrent networks: unrolled over windows they compute what stepping computes, and learn from trained steps only."""

import pytest
import torch
from torch import nn

from sharpwave.agents.recurrent import RecurrentQNetwork

SIZE, BESIDE, UNITS, ACTIONS = 5, 3, 6, 4


class Torso(nn.Linear):
    features = 7

    def __init__(self):
        super().__init__(SIZE, self.features)


def make(core, seed=0):
    torch.manual_seed(seed)
    return RecurrentQNetwork(Torso(), core, UNITS, BESIDE, nn.Linear(UNITS, ACTIONS)).double()


def drawn(network, batch, columns, seed=1):
    torch.manual_seed(seed)
    kinds = (batch, columns, SIZE), (batch, columns, BESIDE), (batch, network.state_size)
    return [torch.randn(*shape, dtype=torch.float64) for shape in kinds]


def stepped(network, x, beside, state, begin):
    """Q [T, A] of one window's columns from ``begin`` on, step by step from the stored state; before it, zeros."""
    q = torch.zeros(len(x), ACTIONS, dtype=torch.float64)
    for t in range(begin, len(x)):
        one, state = network.step(x[None, t], beside[None, t], state)
        q[t] = one[0]
    return q


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("burn_in", [0, 1, 4])
def test_unrolling_equals_stepping_from_the_stored_state(core, burn_in):
    """With every number of padding columns at the left, in one batch and in any order."""
    network = make(core)
    begin = torch.tensor([*range(burn_in + 1), *reversed(range(burn_in + 1)), burn_in])
    x, beside, state = drawn(network, len(begin), burn_in + 6)
    q = network.unroll(x.flatten(0, 1), beside, state, begin, burn_in)
    assert q.shape == (len(begin), 6, ACTIONS)
    for row in range(len(begin)):
        expected = stepped(network, x[row], beside[row], state[None, row], int(begin[row]))
        torch.testing.assert_close(q[row], expected[burn_in:], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_what_lies_in_padding_columns_changes_nothing(core):
    network = make(core)
    begin = torch.tensor([0, 2, 3])
    x, beside, state = drawn(network, 3, 8)
    before = network.unroll(x.flatten(0, 1), beside, state, begin, 3)
    for row in range(3):
        x[row, : begin[row]] = beside[row, : begin[row], :1] = 1e6
    torch.testing.assert_close(network.unroll(x.flatten(0, 1), beside, state, begin, 3), before, rtol=0, atol=0)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_no_gradient_flows_through_the_burn_in(core):
    """That of the parameters is the one of trained columns unrolled from a given state."""
    network, burn_in = make(core), 4
    begin = torch.tensor([0, 2, 4])
    x, beside, state = drawn(network, 3, 9)
    x.requires_grad_()
    state.requires_grad_()
    network.unroll(x.flatten(0, 1), beside, state, begin, burn_in).square().sum().backward()
    found = {name: one.grad.clone() for name, one in network.named_parameters()}
    assert not x.grad[:, :burn_in].any() and x.grad[:, burn_in:].abs().sum() > 0
    assert state.grad is None

    network.zero_grad()
    with torch.no_grad():
        refreshed = []
        for row in range(3):
            one = state[None, row]
            for t in range(int(begin[row]), burn_in):
                _, one = network.step(x[None, row, t], beside[None, row, t], one)
            refreshed.append(one)
    q = network.unroll(
        x[:, burn_in:].flatten(0, 1), beside[:, burn_in:], torch.cat(refreshed), torch.zeros(3).long(), 0
    )
    q.square().sum().backward()
    for name, one in network.named_parameters():
        torch.testing.assert_close(found[name], one.grad, rtol=1e-9, atol=1e-12, msg=name)


def test_the_forget_gate_is_open_at_first():
    """torch computes sigmoid(W x + b_ih + U h + b_hh), gates in the order input, forget, cell, output."""
    core = make("lstm").core
    forget = slice(UNITS, 2 * UNITS)
    assert (core.bias_ih_l0[forget] + core.bias_hh_l0[forget] == 1).all()
    others = [*range(UNITS), *range(2 * UNITS, 4 * UNITS)]
    assert core.bias_ih_l0[others].abs().max() <= UNITS**-0.5


def test_states_are_one_vector_for_each_lane():
    assert make("lstm").state_size == 2 * UNITS and make("gru").state_size == UNITS
    # An LSTM's vector is its output, then its cell.
    network = make("lstm")
    x, beside, state = drawn(network, 2, 1)
    _, after = network.step(x[:, 0], beside[:, 0], state)
    features = torch.cat([network.torso(x[:, 0]), beside[:, 0]], dim=1).unsqueeze(1)
    out, (hidden, cell) = network.core(features, (state[None, :, :UNITS], state[None, :, UNITS:].contiguous()))
    torch.testing.assert_close(after, torch.cat([hidden[0], cell[0]], dim=1), rtol=0, atol=0)
    torch.testing.assert_close(out[:, 0], hidden[0], rtol=0, atol=0)
