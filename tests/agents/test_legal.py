"""Illegal actions in values, targets and policies: cases that are worked by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from sharpwave.agents.action_distributions import policy_for
from sharpwave.agents.actions import epsilon_greedy, legal_in, legal_rows, with_legal
from sharpwave.agents.cql import CQL, CQLSettings
from sharpwave.agents.distributional import C51, Expected
from sharpwave.agents.dqn import DQN, DQNSettings, NStepErrors, double_q_targets
from sharpwave.agents.exploration import EpsilonGreedy, Softmax
from sharpwave.agents.impala import IMPALA
from sharpwave.agents.losses import action_cross_entropy, greedy_policy, munchausen_bonus, soft_policy
from sharpwave.agents.pqn import PQN
from sharpwave.agents.protocol import Acted, Spaces
from sharpwave.agents.r2d2 import R2D2, R2D2Settings, SequencesSettings

INFINITY = math.inf
SPACES = Spaces(Dict(obs=Box(-1, 1, (2,), np.float32), action_mask=MultiBinary(3)), Discrete(3))


def tensor(*rows):
    return torch.tensor(rows)


def values(*rows):
    """Values [B, A], of which None is that of an illegal action."""
    return torch.tensor([[-INFINITY if one is None else float(one) for one in row] for row in rows])


def test_spaces_say_whether_there_is_a_mask_and_what_networks_see():
    assert SPACES.masked and SPACES.seen == Dict(obs=Box(-1, 1, (2,), np.float32))
    parts = SPACES.observation
    for other in (
        Spaces(Box(-1, 1, (3,), np.float32), Discrete(3)),
        Spaces(parts, Box(-1, 1, (3,), np.float32)),
        Spaces(parts, MultiDiscrete([3])),
    ):
        assert not other.masked and other.seen is other.observation and legal_in(other, None) is None
    with pytest.raises(ValueError, match=r"lights: the observation's 'action_mask' is MultiBinary\(3\), expected "
                       r"MultiBinary\(4\)"):  # fmt: skip
        Spaces(parts, Discrete(4), "lights").masked  # noqa: B018
    alone = Spaces(Dict(action_mask=MultiBinary(3)), Discrete(3))
    assert alone.seen == alone.observation  # a network needs something to see


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_where_a_mask_has_no_legal_action_all_are(kind):
    """As in final states and in padding, whose values are multiplied by 0: none may be infinite."""
    mask = [[[1, 0, 1], [0, 0, 0]]]
    legal = legal_in(SPACES, {"action_mask": kind(mask)})
    np.testing.assert_array_equal(legal, [[[True, False, True], [True, True, True]]])


def test_values_of_illegal_actions_are_minus_infinity_but_not_of_those_that_were_made():
    q, legal = tensor([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), tensor([True, False, True], [False, False, True])
    torch.testing.assert_close(with_legal(q, legal), values([1, None, 3], [None, None, 6]))
    torch.testing.assert_close(with_legal(q, legal, torch.tensor([1, 2])), values([1, 2, 3], [None, None, 6]))
    assert with_legal(q, None) is q
    rows = legal_rows(q.numpy(), legal.numpy())
    assert rows.dtype == np.float32 and rows.tolist() == [[1, -INFINITY, 3], [-INFINITY, -INFINITY, 6]]


def test_targets_are_of_the_best_legal_action():
    """The reward 1 plus half of 3, where an illegal action has 9."""
    reward, discount = torch.tensor([1.0]), torch.tensor([0.5])
    assert double_q_targets(values([2, None, 3]), values([2, None, 3]), reward, discount).item() == 2.5
    assert double_q_targets(tensor([2.0, 9.0, 3.0]), values([7, None, 5]), reward, discount).item() == 2.0
    assert greedy_policy(values([2, None, 3])).tolist() == [[0, 0, 1]]


def test_heads_mix_over_legal_actions_only():
    """Atoms -1, 0, 1: the greedy legal action's probabilities, moved by nothing, are the target."""
    reward, discount = torch.zeros(1), torch.ones(1)
    sure = torch.tensor([[[0.0, 0.0, 99.0], [99.0, 0.0, 0.0], [0.0, 99.0, 0.0]]])  # returns 1, -1 and 0
    head = C51(3, -1.0, 1.0)
    policy = greedy_policy(with_legal(head.values(sure), tensor([False, True, True])))
    torch.testing.assert_close(head.target(sure, policy, reward, discount), tensor([0.0, 1.0, 0.0]))
    assert Expected().target(tensor([9.0, 2.0, 3.0]), policy, reward, discount).item() == 3.0


def test_soft_policies_and_munchausen_terms_are_over_legal_actions():
    """Values 0 and log 3 at temperature 1: probabilities 1/4 and 3/4, whose entropy is 2 log 2 - 3/4 log 3."""
    q = values([0, math.log(3), None])
    policy, entropy = soft_policy(q, 1.0)
    torch.testing.assert_close(policy, tensor([0.25, 0.75, 0.0]))
    assert entropy.item() == pytest.approx(2 * math.log(2) - 0.75 * math.log(3))
    assert munchausen_bonus(q, torch.tensor([0]), 1.0, -10.0).item() == pytest.approx(-math.log(4))
    only, nothing = soft_policy(values([None, 5, None]), 0.03)
    assert only.tolist() == [[0, 1, 0]] and nothing.item() == 0


def test_a_policy_of_logits_has_no_part_in_illegal_actions_nor_gradient():
    """Logits 0 and log 3: log-probability log 3/4, entropy as above; the gradients of both are finite."""
    policy = policy_for(SPACES, "test")
    logits = torch.tensor([[0.0, math.log(3), 50.0]], requires_grad=True)
    predicted = with_legal(logits, tensor([True, True, False]))
    log_probability = policy.log_probability(predicted, SimpleNamespace(action=torch.tensor([1])))
    entropy = policy.entropy(predicted)
    assert log_probability.item() == pytest.approx(math.log(0.75))
    assert entropy.item() == pytest.approx(2 * math.log(2) - 0.75 * math.log(3))
    (log_probability + entropy).sum().backward()
    # d log p_1 = onehot - p; dH/dz_i = -p_i (log p_i + H)
    p, h = np.array([0.25, 0.75]), entropy.item()
    assert logits.grad is not None
    expected = [*(np.array([0.0, 1.0]) - p - p * (np.log(p) + h)), 0.0]
    np.testing.assert_allclose(logits.grad[0], expected, atol=1e-6)
    for seed in range(20):
        action, density, _ = policy.choose(predicted.detach(), np.random.default_rng(seed))
        assert action[0] in (0, 1) and np.isfinite(density).all()
    assert policy.choose(predicted.detach(), None)[0].tolist() == [1]


def test_random_actions_are_legal_and_equally_probable():
    q = np.array([[-INFINITY, 1.0, -INFINITY, 0.0]] * 4000)
    for strategy in (EpsilonGreedy(start=1.0, end=1.0), Softmax(start=1e6, end=1e6)):
        chosen = strategy.choose(q, 0, slice(0, 4000), 4000, np.random.default_rng(0))
        counts = np.bincount(chosen, minlength=4)
        assert counts[[0, 2]].tolist() == [0, 0] and abs(counts[1] - 2000) < 160  # 5 standard deviations
    assert (
        Softmax(start=0.0, end=0.0).choose(q, 0, slice(0, 4000), 4000, np.random.default_rng(0)).tolist() == [1] * 4000
    )


def test_without_illegal_actions_the_draws_are_those_of_before():
    """Two draws of N, as runs of earlier releases took them."""
    q = np.random.default_rng(1).random((64, 5))
    chosen = EpsilonGreedy(start=0.5, end=0.5).choose(q, 0, slice(0, 64), 64, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    explores, drawn = rng.random(64) < 0.5, rng.integers(0, 5, 64)
    np.testing.assert_array_equal(chosen, np.where(explores, drawn, q.argmax(axis=1)))
    np.testing.assert_array_equal(chosen, epsilon_greedy(q.argmax(axis=1), 5, 0.5, np.random.default_rng(0)))


def test_first_priorities_bootstrap_from_legal_actions():
    """One step that is truncated: 1 + .5 * 3 - 2, whatever the illegal action's value is."""
    final = np.array([[3.0, -INFINITY, 1.0]], np.float32)
    errors = NStepErrors(1, 1, 0.5, 4, lambda obs, acted, reward: final)
    state = SimpleNamespace(values=np.array([[-INFINITY, 2.0, 1.0]], np.float32), chosen=np.array([1]))
    cut, going = np.array([True]), np.array([False])
    errors.add(Acted(np.array([1]), state), np.array([1.0]), going, cut, "final")
    errors.add(Acted(np.array([1]), state), np.array([0.0]), going, going, None)
    assert errors.of(0, 0, 1).tolist() == [0.5]


# whole losses, with a network that gives values as the test says


class Given(torch.nn.Module):
    """Network whose output is what it sees: observations [B, 3] are the values."""

    def forward(self, inputs):
        return inputs["obs"]


GIVEN = Spaces(Dict(obs=Box(-99, 99, (3,), np.float32), action_mask=MultiBinary(3)), Discrete(3))


def given(agent):
    agent.inputs = torch.nn.Identity()
    for name in ("online", "target", "policy", "value"):
        if hasattr(agent, name):
            setattr(agent, name, Given())
    return agent


def batch_of(q, next_q, mask, next_mask, action, **more):
    obs, next_obs = ({"obs": tensor(one), "action_mask": tensor(by)} for one, by in ((q, mask), (next_q, next_mask)))
    return SimpleNamespace(
        obs=obs, next_obs=next_obs, action=torch.tensor([action]), reward=torch.tensor([1.0]),
        discount=torch.tensor([0.5]), weights=torch.ones(1), **more,
    )  # fmt: skip


@pytest.mark.parametrize("double", [True, False])
def test_dqn_bootstraps_from_the_next_observation_s_legal_actions(double):
    """1 + .5 * 4 - 2 = 1; the next observation's mask counts, not that of the step."""
    agent = given(DQN(GIVEN, DQNSettings(double=double)))
    batch = batch_of([2.0, 0.0, 0.0], [9.0, 4.0, 3.0], [1, 1, 1], [0, 1, 1], 0)
    loss, error = agent.loss(batch)
    assert error.item() == 1.0 and loss.item() == 0.5
    batch.next_obs["action_mask"][:] = 0  # a final state: nothing is bootstrapped, and nothing is infinite
    batch.discount[:] = 0
    assert agent.loss(batch)[1].item() == -1.0


def test_cql_lowers_legal_actions_only():
    """The penalty is log(e^1 + e^0) - 1 of the two legal actions, beside the squared error (1 + .5 * 4 - 1) / 2."""
    agent = given(CQL(GIVEN, CQLSettings(loss="mse", double=False)))
    batch = batch_of([1.0, 0.0, 7.0], [9.0, 4.0, 3.0], [1, 1, 0], [0, 1, 1], 0)
    assert agent.loss(batch)[0].item() == pytest.approx(2.0**2 + math.log(math.e + 1) - 1)
    batch.action[:] = 2  # the data made it, though it was illegal
    penalty = action_cross_entropy(tensor([1.0, 0.0, 7.0]), torch.tensor([2]))
    assert agent.loss(batch)[0].item() == pytest.approx(16.0 + penalty.item())


def window(q, mask, action, real=(True, True)):
    """Two steps and the observation behind them."""
    return SimpleNamespace(
        obs={"obs": tensor(q), "action_mask": tensor(mask)}, action=tensor(action), mask=tensor(list(real)),
        step_reward=tensor([1.0, 1.0]), discount=tensor([0.5, 0.5]), weights=torch.ones(1), burn_in=0,
    )  # fmt: skip


WINDOW = window([[2.0, 0.0, 0.0], [9.0, 4.0, 3.0], [8.0, 9.0, 6.0]], [[1, 1, 1], [0, 1, 1], [1, 0, 0]], [0, 1])


def test_r2d2_bootstraps_from_each_step_s_legal_actions(monkeypatch):
    """1 + .5 * 4 - 2 = 1 and 1 + .5 * 8 - 4 = 1."""
    settings = R2D2Settings(n_step=1, rescale=False, replay=SequencesSettings(length=2, burn_in=0, stride=2))
    agent = R2D2(GIVEN, settings)
    monkeypatch.setattr(agent, "_unroll", lambda network, batch: batch.obs["obs"])
    assert agent.loss(WINDOW)[1].tolist() == [[1.0, 1.0]]


def test_pqn_s_returns_are_of_legal_actions():
    """With lambda .65: step 2 has 1 + .5 * 8 = 5; step 1 has 1 + .5 * (.35 * 4 + .65 * 5) = 3.325."""
    agent = given(PQN(GIVEN))
    assert agent.loss(WINDOW)[0].item() == pytest.approx(0.5 * ((3.325 - 2) ** 2 + (5 - 4) ** 2) / 2)


def test_actor_critics_look_at_legal_actions_and_their_padding_stays_finite():
    """Logits 0 and log 3 of two legal actions, then the final observation's column as padding, in which action 0 is
    illegal: ratios of the real step are 1, those of padding, and its log-probability, 1 and 0."""
    agent = given(IMPALA(GIVEN))
    agent.value = torch.nn.Linear(3, 1)
    agent.value.forward = lambda inputs: inputs["obs"][:, :1]
    logits = [[0.0, math.log(3), 50.0], [9.0, 4.0, 3.0], [0.0, 0.0, 0.0]]
    batch = window(logits, [[1, 1, 0], [0, 1, 1], [0, 0, 0]], [1, 0], real=(True, False))
    stored = {"log_probability": tensor([math.log(0.75), 0.0])}

    class Batch(SimpleNamespace):
        def __getitem__(self, name):
            return stored[name]

    batch = Batch(**vars(batch))
    seen = agent.see(batch)
    np.testing.assert_allclose(seen.ratio, [[1.0, 1.0]], rtol=1e-6)
    np.testing.assert_allclose(seen.log_probability, [[math.log(0.75), 0.0]], rtol=1e-6)
    assert torch.isfinite(seen.entropy).all()
    loss, metrics = agent.loss(batch)
    assert math.isfinite(loss.item()) and metrics["divergence"].item() == pytest.approx(0.0, abs=1e-6)
