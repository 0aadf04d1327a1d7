"""Random network distillation as an option of DQN and PPO: whole updates against their equations in float64."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from sharpwave.agents.a2c import LOG_PROBABILITY
from sharpwave.agents.dqn import DQN
from sharpwave.agents.ppo import PPO
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.rollouts import MinibatchSettings
from sharpwave.views.batch import Batch

SIZE, ACTIONS, WEIGHT = 3, 2, 0.7
SPACES = Spaces(Box(-np.inf, np.inf, (SIZE,), np.float32), Discrete(ACTIONS))


def doubles(module):
    return {name: one.detach().double().requires_grad_(True) for name, one in module.state_dict().items()}


def layers(weights, x, *names, relu=torch.relu):
    """Apply linear layers, with a ReLU between them."""
    for at, name in enumerate(names):
        x = (relu(x) if at else x) @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return x


def errors(weights, obs, seen):
    """Return the predictor's errors for observations that are whitened by all that were seen."""
    white = ((obs - seen.mean(dim=0)) / (seen.var(dim=0, correction=0) + 1e-8).sqrt()).clamp(-5, 5)
    found = layers(weights, white, "predictor.0.0", "predictor.1", "predictor.3")
    return (found - layers(weights, white, "random.0.0", "random.1")).square().mean(dim=1)


def check_gradients(module, weights, *parts):
    for name, one in module.named_parameters():
        if name.startswith(parts):
            np.testing.assert_allclose(one.grad, weights[name].grad, rtol=1e-4, atol=1e-6, err_msg=name)


def test_dqn_is_rewarded_for_what_its_predictor_does_not_know():
    settings = DQN.Settings(
        hidden_units=4, network="mlp", novelty="rnd", novelty_weight=WEIGHT, novelty_size=5, max_grad_norm=0.0
    )
    torch.manual_seed(1)
    learner, rng = DQN(SPACES, settings), np.random.default_rng(0)
    seen, kept = torch.zeros(0, SIZE, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    for update in range(2):
        online, target, novelty = (doubles(one) for one in (learner.online, learner.target, learner.distillation))
        obs, next_obs = (torch.from_numpy(rng.normal(2, 3, (8, SIZE)).astype(np.float32)) for _ in range(2))
        action = torch.from_numpy(rng.integers(0, ACTIONS, 8))
        reward, discount = torch.randn(8), torch.full((8,), 0.9)
        given: Any = dict.fromkeys(Batch.__dataclass_fields__) | {
            "obs": obs, "next_obs": next_obs, "action": action, "reward": reward, "discount": discount,
            "weights": torch.ones(8), "fields": {},
        }  # fmt: skip
        learned = learner.learn(Batch(**given), update)

        seen = torch.cat([seen, next_obs.double()])
        error = errors(novelty, next_obs.double(), seen)
        kept = torch.cat([kept, error.detach()])
        names = ("torso.0", "head.hidden", "head.advantage")
        q, next_q = (layers(one, next_obs.double(), *names) for one in (online, target))
        bonus = WEIGHT * error.detach() / kept.std(correction=0)
        goal = reward + bonus + discount * next_q.gather(1, q.argmax(dim=1, keepdim=True)).squeeze(1)
        difference = goal.detach() - layers(online, obs.double(), *names).gather(1, action[:, None]).squeeze(1)
        assert learned.td_error is not None
        np.testing.assert_allclose(learned.td_error, difference.detach(), rtol=1e-4, atol=1e-5)
        torch.nn.functional.huber_loss(difference, torch.zeros_like(difference)).backward()
        error.mean().backward()
        check_gradients(learner.online, online, "")
        check_gradients(learner.distillation, novelty, "predictor")
    assert all(one.grad is None for one in learner.distillation.random.parameters())


def test_ppo_has_a_value_of_novelty_whose_returns_go_on_in_the_next_episode():
    gamma, later, share = 0.9, 0.8, 0.6
    replay = MinibatchSettings(batch_size=1, length=2, gamma=gamma, epochs=1, minibatch_size=100)
    settings = PPO.Settings(
        hidden_units=4, network="mlp", novelty="rnd", novelty_weight=WEIGHT, novelty_size=5, novelty_gamma=later,
        trace=share, max_grad_norm=0.0, replay=replay, standardize_advantages=False,
    )  # fmt: skip
    torch.manual_seed(1)
    learner, rng = PPO(SPACES, settings, seed=1), np.random.default_rng(0)
    # A lane's steps 0 1 | 2 and an end | 3 4 of the next episode, in another order.
    obs = torch.from_numpy(rng.normal(2, 3, (3, 3, SIZE)).astype(np.float32))
    obs[1, 0] = obs[2, 2]  # windows 2, 0, 1: a window's last observation begins the next one
    mask = torch.tensor([[True, False], [True, True], [True, True]])
    ended = torch.tensor([[True, False], [False, False], [False, False]])
    reward, action = torch.randn(3, 2) * mask, torch.from_numpy(rng.integers(0, ACTIONS, (3, 2)))
    old = torch.full((3, 2), -0.6)
    obs[0, 0] = obs[2, 2]
    batch: Any = SimpleNamespace(
        obs=obs, action=action, mask=mask, step_reward=reward, discount=gamma * (1 - ended.float()), terminated=ended,
        truncated=torch.zeros(3, 2, dtype=torch.bool), lane=torch.zeros(3, dtype=torch.int64),
        step=torch.tensor([2, 3, 0]), shards=None,
    )  # fmt: skip

    class Fields(SimpleNamespace):
        def __getitem__(self, name):
            return {LOG_PROBABILITY: old}[name]

    batch = Fields(**vars(batch))
    policy, value, extra, novelty = (
        doubles(one) for one in (learner.policy, learner.value, learner.novelty_value, learner.distillation)
    )
    rollout = learner.rollout(batch)
    learner.learn_rollout(rollout)

    along = [(2, 0), (2, 1), (0, 0), (1, 0), (1, 1)]
    now = torch.stack([obs[w, t] for w, t in along]).double()
    after = torch.stack([obs[w, t + 1] for w, t in along]).double()
    error = errors(novelty, after, after)
    names, total, returns = ("0.0", "1", "3"), 0.0, []
    for one in error.tolist():
        total = later * total + one
        returns.append(total)
    seen = np.array(returns)
    # The scale begins as 1e-4 of a return of mean 0 and variance 1.
    n, mean = len(seen), seen.mean()
    variance = (n * seen.var() + 1e-4 + mean**2 * n * 1e-4 / (n + 1e-4)) / (n + 1e-4)
    bonus = error.detach() / np.sqrt(variance + 1e-8)
    with torch.no_grad():
        v, v_after = (layers(value, one, *names).squeeze(1) for one in (now, after))
        i = layers(extra, now, *names).squeeze(1)
        # After the end comes the next episode's first observation; at the end of all, the last one that was seen.
        i_after = torch.cat([i[1:], layers(extra, after[-1:], *names).squeeze(1)])
    ends, advantage, behind, behind_extra = [False, False, True, False, False], [], 0.0, 0.0
    goals = []
    for t in reversed(range(5)):
        w, c = along[t]
        on = 0.0 if ends[t] else gamma
        behind = float(reward[w, c]) + on * float(v_after[t]) - float(v[t]) + on * share * behind
        delta = float(bonus[t] + later * i_after[t] - i[t])
        behind_extra = delta + later * share * behind_extra
        advantage.append(behind + WEIGHT * behind_extra)
        goals.append((behind + float(v[t]), behind_extra + float(i[t])))
    advantages = torch.tensor(advantage[::-1], dtype=torch.float64)
    goal = torch.tensor(goals[::-1], dtype=torch.float64)
    assert rollout.novelty is not None
    np.testing.assert_allclose(rollout.novelty.sum(dim=1), goal[:, 1], rtol=1e-4, atol=1e-4)
    log_policy = layers(policy, now, *names).log_softmax(dim=1)
    taken = log_policy.gather(1, torch.stack([action[w, t] for w, t in along])[:, None]).squeeze(1)
    ratio = (taken + 0.6).exp()
    loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    for weights, which in ((value, 0), (extra, 1)):
        loss = loss + 0.25 * (layers(weights, now, *names).squeeze(1) - goal[:, which]).square().mean()
    loss = loss + 0.01 * (log_policy.exp() * log_policy).sum(dim=1).mean()
    loss.backward()
    error.mean().backward()
    for module, weights in ((learner.policy, policy), (learner.value, value), (learner.novelty_value, extra)):
        check_gradients(module, weights, "")
    check_gradients(learner.distillation, novelty, "predictor")
