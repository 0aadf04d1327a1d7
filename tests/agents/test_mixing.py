"""Mixtures of agents' values by hand, and that none falls when an agent's value rises."""

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sharpwave.agents.mixing import Mixer, Sum, mixed
from tests.support.examples import examples


def test_a_mixture_by_hand():
    """Two agents, two hidden units: 1*1 + 2*.5 - 4 = -2 and 1*0 + 2*3 + 1 = 7; ELU gives e^-2 - 1 and 7."""
    got = mixed(
        torch.tensor([[1.0, 2.0]], dtype=torch.float64),
        torch.tensor([[1.0, 0.0, 0.5, 3.0]], dtype=torch.float64),  # agent 0 to both units, agent 1 to both
        torch.tensor([[-4.0, 1.0]], dtype=torch.float64),
        torch.tensor([[10.0, 2.0]], dtype=torch.float64),
        torch.tensor([[-3.0]], dtype=torch.float64),
    )
    np.testing.assert_allclose(got, [10 * (np.exp(-2) - 1) + 2 * 7 - 3], rtol=1e-12)


def test_a_mixer_s_weights_are_absolute_values_of_what_the_state_makes():
    """One unit, weights given, of state 1, which is s = 1 / (1 + 1): |-8 s| = 4 and |1 - 12 s| = 5 by agent, bias
    4 s - 1 = 1, last |-4 s| = 2, bias 8 s + 1 + 2 = 7."""
    mixer: Any = Mixer(agents=2, state=1, units=1)
    with torch.no_grad():
        for layer, weight, bias in (
            (mixer.first_weights, [[-8.0], [-12.0]], [0.0, 1.0]),
            (mixer.first_bias, [[4.0]], [-1.0]),
            (mixer.last_weights, [[-4.0]], [0.0]),
            (mixer.last_bias[0], [[8.0]], [1.0]),
            (mixer.last_bias[2], [[1.0]], [2.0]),
        ):
            layer.weight.copy_(torch.tensor(weight))
            layer.bias.copy_(torch.tensor(bias))
        got = mixer(torch.tensor([[0.5, 0.2], [-1.0, 0.1]]), torch.tensor([[1.0], [1.0]]))
    # 4 * .5 + 5 * .2 + 1 = 4 -> 2 * 4 + 7 = 15; -4 + .5 + 1 = -2.5 -> 2 (e^-2.5 - 1) + 7
    np.testing.assert_allclose(got, [15.0, 2 * (np.exp(-2.5) - 1) + 7], rtol=1e-6)


def test_however_far_the_state_the_mixture_s_weights_stay_as_near_it():
    """Agents that walk away make no value grow without end."""
    torch.manual_seed(0)
    mixer = Mixer(agents=3, state=4, units=8)
    values, away = torch.randn(16, 3), torch.randn(16, 4)
    with torch.no_grad():
        far, farther = (mixer(values, scale * away) for scale in (1e4, 1e8))
    torch.testing.assert_close(far, farther, rtol=1e-2, atol=1e-2)


@settings(max_examples=examples(60), deadline=None)
@given(
    agents=st.integers(1, 5), state=st.integers(1, 6), units=st.integers(1, 8), scale=st.floats(0.01, 30),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_the_team_s_value_never_falls_when_an_agent_s_rises(agents, state, units, scale, seed):
    """dQtot/dQi >= 0, whatever weights, states and values; so each agent's best action is the team's best, too."""
    torch.manual_seed(seed)
    mixer = Mixer(agents, state, units).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(0, scale)
    values = (scale * torch.randn(16, agents, dtype=torch.float64)).requires_grad_()
    states = scale * torch.randn(16, state, dtype=torch.float64)
    (slopes,) = torch.autograd.grad(mixer(values, states).sum(), values)
    assert (slopes >= 0).all()
    with torch.no_grad():
        higher = values + scale * torch.rand_like(values)
        assert (mixer(higher, states) >= mixer(values, states) - 1e-9 * scale**3).all()
        # The joint action of highest value among all, by search, is worth what each agent's own best gives.
        options = scale * torch.randn(agents, 3, dtype=torch.float64)
        joint = torch.cartesian_prod(*options).reshape(-1, agents)
        every = mixer(joint, states[:1].expand(len(joint), -1))
        own = mixer(options.max(dim=1).values[None], states[:1])
        torch.testing.assert_close(every.max(), own[0])


def test_a_sum_is_a_sum():
    got = Sum()(torch.tensor([[1.0, 2.0, -4.0], [0.5, 0.0, 0.0]]), torch.zeros(2, 9))
    assert got.tolist() == [-1.0, 0.5]
