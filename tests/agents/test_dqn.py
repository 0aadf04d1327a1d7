"""DQN: what one update does, worked out by hand on a network of a single linear layer; and initial priorities."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

import sharpwave as sw
from sharpwave.agents.actions import NumberedActions
from sharpwave.agents.dqn import DQN, NStepErrors
from sharpwave.agents.exploration import EpsilonGreedy, Softmax
from sharpwave.agents.learner import pick_device
from sharpwave.agents.protocol import Acted, Spaces
from sharpwave.agents.replay import TransitionsSettings

from .linear import make_dqn


def linear_agent(num_actions=2, **settings):
    """Q(s) = W s without bias, all values of W one: an update can be followed by hand."""

    def build():
        layer = nn.Linear(2, num_actions, bias=False)
        nn.init.ones_(layer.weight)
        return layer

    return make_dqn(build, num_actions, **{"loss": "mse", "max_grad_norm": 0.0, **settings})


def batch(**changes):
    values = {
        "obs": torch.tensor([[1.0, 0.0], [0.0, 2.0]]),
        "next_obs": torch.tensor([[1.0, 1.0], [0.0, 0.0]]),
        "action": torch.tensor([0, 1]),
        "reward": torch.tensor([1.0, -1.0]),
        "discount": torch.tensor([0.5, 0.0]),
        "weights": torch.tensor([1.0, 1.0]),
    }
    return SimpleNamespace(**{**values, **changes})


def gradient_of(agent, data):
    """The gradient that the optimizer was given."""
    seen: dict[str, torch.Tensor] = {}
    agent.optimizer.step = lambda: seen.update(grad=agent.online.weight.grad.clone())
    learned = agent.learn(data, 0)
    return seen["grad"], learned


@pytest.mark.parametrize("double", [False, True])
def test_td_errors_by_hand(double):
    # Q(s0, 0) = 1, target 1 + .5 * Q(s0') = 1 + .5 * 2 = 2: error 1.  Q(s1, 1) = 2, target -1: error -3.
    _, learned = gradient_of(linear_agent(double=double), batch())
    torch.testing.assert_close(learned.td_error, torch.tensor([1.0, -3.0]))
    assert learned.metrics["loss"].item() == pytest.approx((1 + 9) / 2)


def test_importance_weights_are_applied_exactly_once():
    # d/dW of mean(w * e^2) = -2 w e s / B: action 0: -2 * .5 * 1 * (1, 0) / 2; action 1: -2 * .25 * -3 * (0, 2) / 2.
    gradient, learned = gradient_of(linear_agent(), batch(weights=torch.tensor([0.5, 0.25])))
    torch.testing.assert_close(gradient, torch.tensor([[-0.5, 0.0], [0.0, 1.5]]))
    torch.testing.assert_close(learned.td_error, torch.tensor([1.0, -3.0]))  # unweighted
    assert learned.metrics["loss"].item() == pytest.approx((0.5 * 1 + 0.25 * 9) / 2)


def test_no_gradient_flows_through_the_targets():
    data = batch(obs=torch.zeros(2, 2))  # Q(s) = 0 with gradient 0: all that is left would come from the targets
    gradient, _ = gradient_of(linear_agent(double=True), data)
    torch.testing.assert_close(gradient, torch.zeros(2, 2))


def test_gradients_are_scaled_down_to_the_norm():
    gradient, _ = gradient_of(linear_agent(max_grad_norm=0.1), batch())
    assert gradient.norm().item() == pytest.approx(0.1, rel=1e-4)


def test_huber_is_used_where_asked():
    _, learned = gradient_of(linear_agent(loss="huber"), batch())
    assert learned.metrics["loss"].item() == pytest.approx((0.5 + 2.5) / 2)
    with pytest.raises(ValueError, match="--loss: got 'l1', expected one of huber, mse"):
        linear_agent(loss="l1")


def test_the_target_is_copied_once_every_period_whatever_steps_updates_fall_on():
    agent = linear_agent(target_every=100, lr=0.1)
    seen = [(step, agent.learn(batch(), step) and agent.target.weight.clone()) for step in (0, 99, 104, 199, 350, 399)]
    online = [torch.ones(2, 2)]
    again = linear_agent(target_every=10_000, lr=0.1)
    torch.testing.assert_close(seen[0][1], online[0])
    torch.testing.assert_close(seen[1][1], online[0])  # 99: no period is over
    for one, other in ((2, 3), (4, 5)):
        torch.testing.assert_close(seen[one][1], seen[other][1])
    for step in (0, 99):
        again.learn(batch(), step)
    torch.testing.assert_close(seen[2][1], again.online.weight.detach())  # 104: the network after two updates
    assert not torch.equal(seen[4][1], seen[3][1])  # 350: two periods, one copy


def test_target_moves_with_every_update_only_if_tau_is_set():
    still, moving = linear_agent(), linear_agent(target_tau=0.5)
    for agent in (still, moving):
        agent.learn(batch(), 0)
    torch.testing.assert_close(still.target.weight, torch.ones(2, 2))
    torch.testing.assert_close(moving.target.weight, (1 + moving.online.weight.detach()) / 2)


def test_acting_is_greedy_without_epsilon_and_leaves_no_graph():
    agent = linear_agent()
    with torch.no_grad():
        agent.online.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    obs = np.array([[2.0, 1.0], [1.0, 2.0]], np.float32)
    generator = agent.state()["exploration"]
    actions = agent.act(obs, agent.begin(2), 0, explore=False).action
    assert actions.tolist() == [0, 1] and actions.dtype == np.int64
    assert agent.state()["exploration"] == generator


def test_schedules_are_reported_by_name():
    """Half way: epsilon 1 ... .1, rate .1 ... .02, beta .4 ... 1; beta only where there are weights."""
    settings: dict[str, Any] = {
        "exploration": EpsilonGreedy(end=0.1, steps=100), "lr": 0.1, "lr_end": 0.02, "lr_steps": 100
    }  # fmt: skip
    replay = TransitionsSettings(prioritized=True, beta_steps=100)
    found = linear_agent(**settings, replay=replay).schedules(50)
    assert found == pytest.approx({"epsilon": 0.55, "learning_rate": 0.06, "beta": 0.7})
    assert linear_agent(**settings).schedules(50).keys() == {"epsilon", "learning_rate"}
    softmax = linear_agent(explore="softmax", softmax=Softmax(start=2.0, end=1.0, steps=100))
    assert softmax.schedules(50)["temperature"] == 1.5 and "epsilon" not in softmax.schedules(50)


def test_a_rate_that_falls_without_steps_is_refused():
    with pytest.raises(ValueError, match=r"learning-rate-steps.*expected at least 1 with --learning-rate-end"):
        DQN.Settings(lr=0.1, lr_end=0.02)


FROM_5 = NumberedActions(Spaces(Box(-1, 1, (2,)), Discrete(2, start=5)), "dqn")


def test_actions_are_counted_from_the_first_of_their_space():
    agent = linear_agent()
    agent.actions = FROM_5
    with torch.no_grad():
        agent.online.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert agent.act(np.array([[2.0, 1.0], [1.0, 2.0]]), agent.begin(2), 0, explore=False).action.tolist() == [5, 6]
    explored = agent.act(np.zeros((100, 2)), agent.begin(100), 0).action
    assert set(explored.tolist()) == {5, 6}
    learned = linear_agent().learn(batch(), 0)
    agent = linear_agent()
    agent.actions = FROM_5
    torch.testing.assert_close(agent.learn(batch(action=torch.tensor([5, 6])), 0).td_error, learned.td_error)


def test_box_actions_are_refused_by_name():
    spaces = Spaces(Box(-1, 1, (3,)), Box(-2, 2, (1,)), "Pendulum-v1")
    with pytest.raises(ValueError, match=r"dqn needs discrete actions; Pendulum-v1 has Box\(1,\)"):
        DQN(spaces)


def test_n_step_discount_reaches_the_target():
    """Rewards 1, 2, 4 with gamma .5 and n = 2: the store's discount is .25, and 0 where the episode ends."""
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=64) as store:
        for reward, terminated in ((1.0, False), (2.0, False), (4.0, True)):
            store.append(
                obs=np.ones(2, np.float32), action=0, reward=reward, terminated=terminated, truncated=False,
                final_obs=np.ones(2, np.float32),
            )  # fmt: skip
        data = store.transitions(n_step=2, gamma=0.5, seed=0).sample(256).torch("cpu")
        _, learned = gradient_of(linear_agent(), data)
    # Q = 2 everywhere. From step 0: 1 + .5 * 2 + .25 * 2 - 2 = .5; step 1: 2 + .5 * 4 - 2 = 2; step 2: 4 - 2 = 2.
    assert sorted(set(np.round(learned.td_error.numpy(), 5).tolist())) == [0.5, 2.0]
    from_first = learned.td_error[data.discount > 0]
    torch.testing.assert_close(from_first, torch.full_like(from_first, 0.5))


def test_bfloat16_stays_close():
    exact, _ = gradient_of(linear_agent(), batch())
    rounded, _ = gradient_of(linear_agent(precision="bfloat16"), batch())
    torch.testing.assert_close(rounded, exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("shape", "settings", "expected"),
    [
        ((4, 42, 42), {}, "bfloat16"),
        ((84, 84, 3), {"network": "nature"}, "bfloat16"),
        ((10, 10, 4), {}, "float32"),
        ((8,), {}, "float32"),
        ((4, 42, 42), {"network": "mlp"}, "float32"),
        ((4, 42, 42), {"precision": "float32"}, "float32"),
        ((8,), {"precision": "bfloat16"}, "bfloat16"),
    ],
)
def test_large_images_are_computed_in_bfloat16(monkeypatch, shape, settings, expected):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    space = Box(0, 255, shape, np.uint8)
    for seen in (space, Dict(seen=space, more=Box(-1, 1, (3,)))):
        agent = DQN(Spaces(seen, Discrete(2)), DQN.Settings(hidden_units=8, **settings))
        assert agent.precision == expected


def test_saved_tensors_bring_the_same_agent_back():
    agent, other = linear_agent(), linear_agent()
    for _ in range(3):
        agent.learn(batch(), 0)
    other.load(agent.state())
    for one in (agent, other):
        one.learn(batch(), 0)
    torch.testing.assert_close(agent.online.weight, other.online.weight, rtol=0, atol=0)
    with pytest.raises(ValueError, match="do not fit the agent's online module"):
        linear_agent(num_actions=3).load(agent.state())


def test_device_names():
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ValueError, match="got 'gpu', expected 'auto'"):
        pick_device("gpu")


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DQN.Settings().double = False  # type: ignore[misc]


@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
def test_errors_are_those_of_the_definition(n_step):
    rng, lanes, steps, gamma = np.random.default_rng(n_step), 3, 200, 0.9
    q, final_q = rng.normal(size=(steps, lanes, 4)).astype(np.float32), rng.normal(size=(steps, lanes, 4))
    action, reward = rng.integers(0, 4, (steps, lanes)), rng.normal(size=(steps, lanes))
    te, tr = rng.random((steps, lanes)) < 0.08, rng.random((steps, lanes)) < 0.08  # both at once, too
    errors, given = NStepErrors(lanes, n_step, gamma, kept=20, values=lambda final_obs, acted, reward: final_obs), 0
    for t in range(steps):
        acted = Acted(action[t], SimpleNamespace(values=q[t], chosen=action[t]))
        errors.add(acted, reward[t], te[t], tr[t], final_q[t] if tr[t].any() else None)
        assert errors.known == max(0, t + 1 - n_step)
        while given < errors.known:
            for lane in range(lanes):
                total, used = 0.0, 0
                while used < n_step:
                    total += gamma**used * reward[given + used, lane]
                    used += 1
                    if te[given + used - 1, lane] or tr[given + used - 1, lane]:
                        break
                last = given + used - 1
                if te[last, lane]:
                    after = 0.0
                elif tr[last, lane]:
                    after = final_q[last, lane].max()
                else:
                    after = q[last + 1, lane].max()
                expected = total + gamma**used * after - q[given, lane, action[given, lane]]
                np.testing.assert_allclose(errors.of(lane, given, 1), [expected], rtol=1e-5, atol=1e-6)
            given += 1
    assert given == steps - n_step
    np.testing.assert_array_equal(
        errors.of(1, given - 20, 20), [errors.of(1, at, 1)[0] for at in range(given - 20, given)]
    )


def test_errors_of_rescaled_values_by_hand():
    """h(x) = sqrt(x + 1) - 1 + .001 x, so h(3) = 1.003 and h(8) = 2.008: a value of 1.003 stands for 3."""
    errors = NStepErrors(1, 1, 0.5, kept=4, values=lambda final_obs, acted, reward: final_obs, rescale=1e-3)
    no, yes = np.zeros(1, bool), np.ones(1, bool)

    def add(value, reward, truncated, final):
        acted = Acted(np.zeros(1, int), SimpleNamespace(values=np.array([[value, -1.0]]), chosen=np.zeros(1, int)))
        errors.add(acted, np.array([reward]), no, truncated, final)

    add(0.25, 6.5, no, None)
    add(1.003, 8.0 - 1.5, yes, np.array([[1.003, 0.0]]))  # bootstraps from its final observation
    add(0.0, 0.0, no, None)
    np.testing.assert_allclose(errors.of(0, 0, 2), [2.008 - 0.25, 2.008 - 1.003], rtol=1e-6)
