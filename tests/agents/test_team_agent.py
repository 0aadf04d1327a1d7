"""Choices among legal actions, which spaces are a team's, and mixtures of values."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sharpwave.agents.actions import epsilon_greedy
from sharpwave.agents.masac import MASAC, drawn, legal_policy, others_actions
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.team_networks import Mixer, Sum, TeamInputs, mixed, team_of
from sharpwave.agents.vdn import QMIX, VDN
from sharpwave.teams import legal_actions, random_actions
from sharpwave.training.scores import sometimes_random
from tests.agents.team_batches import SPACES
from tests.support.examples import examples

MASKS = arrays(np.int8, (4, 3, 5), elements=st.integers(0, 1))


def allowed(mask, action):
    """Whether each action is legal, an absent agent's 0 included; a plain loop."""
    return all(
        mask[index][a] == 1 or (a == 0 and not mask[index].any())
        for index, a in np.ndenumerate(action)
    )  # fmt: skip


def legal_epsilon_greedy(values, mask, epsilon, rng):
    """As value decomposition chooses: `epsilon` of each lane."""
    greedy = np.where(legal_actions(mask), values, -np.inf).argmax(axis=2)
    return epsilon_greedy(greedy, mask.shape[2], epsilon[:, None], rng, mask)


@settings(max_examples=examples(50), deadline=None)
@given(mask=MASKS, epsilon=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_no_choice_is_illegal(mask, epsilon, seed):
    """Not even where all values are equal or minus infinity would win."""
    rng = np.random.default_rng(seed)
    for values in (rng.normal(size=mask.shape), np.zeros(mask.shape), np.where(mask, -1e30, 1e30)):
        assert allowed(mask, legal_epsilon_greedy(values, mask, np.full(4, epsilon), rng))
        tensor, legal = torch.from_numpy(values), torch.from_numpy(legal_of(mask))
        policy, log_policy = legal_policy(tensor, legal)
        assert not policy[~legal].any() and not log_policy[~legal].any()
        torch.testing.assert_close(policy.sum(dim=2), torch.ones(4, 3, dtype=torch.float64))
        assert allowed(mask, drawn(log_policy, legal).numpy())
    assert allowed(mask, random_actions(mask, rng))
    greedy = legal_epsilon_greedy(np.zeros(mask.shape), mask, np.zeros(4), rng)
    found = sometimes_random(greedy, {"action_mask": mask}, MultiDiscrete([5] * 3), epsilon, rng)
    assert found.dtype == greedy.dtype and allowed(mask, found)


def legal_of(mask):
    legal = mask.astype(bool)
    for index in np.ndindex(mask.shape[:2]):
        legal[index][0] |= not mask[index].any()
    return legal


@settings(max_examples=examples(25), deadline=None)
@given(mask=MASKS, seed=st.integers(0, 1000), explore=st.booleans())
@pytest.mark.parametrize("algorithm", [VDN, QMIX, MASAC])
def test_no_agent_acts_illegally(algorithm, mask, seed, explore):
    """Whatever its networks say: the output of action `seed % 5` is a thousand higher."""
    spaces = Spaces(Dict(agents=Box(-1, 1, (3, 2)), action_mask=MultiBinary((3, 5))), MultiDiscrete([5] * 3))
    agent = algorithm(spaces, algorithm.Settings(hidden_units=4), seed=seed)
    network = agent.policy if algorithm is MASAC else agent.online["agent"]
    with torch.no_grad():
        network[4].bias[seed % 5] += 1e3
    obs = {"agents": np.random.default_rng(seed).normal(size=(4, 3, 2)).astype(np.float32), "action_mask": mask}
    step = 25_000  # about half of the actions are random
    assert allowed(mask, agent.act(obs, agent.begin(4), step, explore=explore).action)


def test_random_actions_are_uniform_over_the_legal_ones():
    mask = np.array([[[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]]], np.int8).repeat(30_000, axis=0)
    chosen = random_actions(mask, np.random.default_rng(0))
    counts = np.stack([np.bincount(chosen[:, agent], minlength=4) for agent in range(3)])
    np.testing.assert_allclose(counts[0], [10_000, 0, 10_000, 10_000], atol=400)
    assert counts[1].tolist() == [30_000, 0, 0, 0] and counts[2].tolist() == [0, 30_000, 0, 0]


def test_draws_have_the_policy_s_probabilities():
    torch.manual_seed(0)
    logits = torch.log(torch.tensor([0.5, 0.3, 0.9, 0.2])).expand(40_000, 1, 4)
    legal = torch.tensor([True, True, False, True]).expand(40_000, 1, 4)
    counts = torch.bincount(drawn(legal_policy(logits, legal)[1], legal)[:, 0], minlength=4)
    np.testing.assert_allclose(counts, [20_000, 12_000, 0, 8_000], atol=500)


def test_each_agent_explores_for_itself_by_its_lane_s_epsilon():
    """Values make action 3 greedy; of 3 legal actions a random one is another two times of three."""
    values = np.zeros((2, 20_000, 4)) + np.arange(4)
    mask = np.ones((2, 20_000, 4), np.int8)
    mask[:, :, 0] = 0
    other = legal_epsilon_greedy(values, mask, np.array([0.3, 0.0]), np.random.default_rng(0)) != 3
    assert abs(other[0].mean() - 0.3 * 2 / 3) < 0.01 and not other[1].any()
    assert legal_epsilon_greedy(values, mask, np.ones(2), np.random.default_rng(0)).min() == 1


def test_the_others_actions_by_hand():
    got = others_actions(torch.tensor([[1, 0, 2]]), 3)
    assert got.tolist() == [[[0, 0, 0, 1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0, 0, 1], [0, 1, 0, 1, 0, 0, 0, 0, 0]]]


def test_inputs_by_hand():
    """The second agent is absent; integers are scaled by their bounds; the state is that of the environment."""
    spaces = Spaces(
        Dict(agents=Box(0, 4, (2, 1), np.uint8), action_mask=MultiBinary((2, 2)), state=Box(-9, 9, (3,))),
        MultiDiscrete([2, 2]),
    )
    inputs = TeamInputs(spaces, team_of(spaces, "qmix"))
    seen = inputs(
        {
            "agents": torch.tensor([[[3], [0]]], dtype=torch.uint8),
            "action_mask": torch.tensor([[[0, 1], [0, 0]]], dtype=torch.int8),
            "state": torch.tensor([[5.0, 6.0, 7.0]]),
        }
    )
    assert seen.agents.tolist() == [[[0.75, 1, 1, 0], [0, 0, 0, 1]]] and seen.state.tolist() == [[5, 6, 7, 1, 0]]
    assert seen.legal.tolist() == [[[False, True], [True, False]]]
    assert (inputs.features, inputs.state_size) == (4, 5)


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (Box(-1, 1, (3,)), Discrete(4)),
        (SPACES.observation, Discrete(9)),
        (SPACES.observation, MultiDiscrete([3, 4])),
        (SPACES.observation, MultiDiscrete([3, 3], start=[1, 0])),
        (Dict(agents=Box(-1, 1, (3, 2)), action_mask=MultiBinary((2, 3))), SPACES.action),
    ],
)
def test_spaces_that_are_no_team_s_are_refused(observation, action):
    with pytest.raises(ValueError, match=r"qmix needs a team: .* the garden has .*TeamEnv makes one"):
        QMIX(Spaces(observation, action, "the garden"))


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
