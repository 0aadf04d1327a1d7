"""PPO in minibatches: advantages along lanes and a whole update, against Stable-Baselines3's on the same rollout."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import sharpwave as sw
from sharpwave.agents.a2c import LOG_PROBABILITY
from sharpwave.agents.action_distributions import RAW
from sharpwave.agents.ppo import PPO
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.rollouts import LaneOrder, MinibatchSettings, advantages, minibatches

sb3: Any = pytest.importorskip("stable_baselines3")

LANES, STEPS, SIZE, LENGTH = 3, 24, 4, 5


def test_advantages_reach_across_windows_but_not_across_an_episode_s_end_or_a_gap():
    # Lane 7: steps 3 4 | 5 6 | 7 and an end, padded. Lane 2: a window at 0, then a gap, then one at 9.
    mask = np.array([[1, 1], [1, 0], [1, 1], [1, 1], [1, 1]], bool)
    places = LaneOrder.of(np.array([7, 7, 2, 7, 2]), np.array([5, 7, 9, 3, 0]), mask)
    assert places.order.tolist() == [4, 2, 3, 0, 1] and places.follower.tolist() == [1, -1, -1, 0, -1]
    reward, zeros = np.where(mask, 1.0, 0.0), np.zeros(mask.shape)
    cut = np.zeros(mask.shape, bool)
    cut[1, 0] = True
    found = advantages(reward, np.full(mask.shape, 0.5), zeros, zeros, cut, 0.5, places)
    # Each delta is 1 and each factor .25: 1, 1.25, 1.3125, ...
    sums = np.cumsum(0.25 ** np.arange(5))
    np.testing.assert_allclose(found[[3, 0, 1]].ravel(), [*sums[::-1], 0.0])
    np.testing.assert_allclose(found[[2, 4]], [[1.25, 1.0]] * 2)


def test_lanes_of_two_memories_are_two_lanes():
    places = LaneOrder.of(np.zeros(2, int), np.array([0, 2]), np.ones((2, 2), bool), shard=np.array([1, 0]))
    assert places.follower.tolist() == [-1, -1]


def test_minibatches_have_all_steps_once_and_nearly_one_size():
    parts = minibatches(70, 16, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(70)) and {len(part) for part in parts} == {17, 18}
    assert [len(part) for part in minibatches(3, 16, np.random.default_rng(0))] == [3]


class Noise(gymnasium.Env):
    """Random observations and rewards; episodes end at random, by either way."""

    def __init__(self, action_space):
        self.observation_space, self.action_space = Box(-9, 9, (SIZE,), np.float32), action_space

    def _obs(self):
        return self.np_random.normal(size=SIZE).astype(np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action):
        end = self.np_random.choice(12)
        return self._obs(), float(self.np_random.normal()), end == 0, end == 1, {}


def weights_of(policy):
    """Return weights of Stable-Baselines3's policy by our names."""
    layers = {"policy": policy.mlp_extractor.policy_net, "value": policy.mlp_extractor.value_net}
    found: dict[str, Any] = {}
    for name, net in layers.items():
        for ours, theirs in (("0.0", net[0]), ("1", net[2])):
            found |= {f"{name}.{ours}.weight": theirs.weight, f"{name}.{ours}.bias": theirs.bias}
    normal = hasattr(policy, "log_std")
    last = "policy.3.mean" if normal else "policy.3"
    found |= {f"{last}.weight": policy.action_net.weight, f"{last}.bias": policy.action_net.bias}
    found |= {"value.3.weight": policy.value_net.weight, "value.3.bias": policy.value_net.bias}
    return found | ({"policy.3.log_std": policy.log_std} if normal else {})


class Recorded(sb3.common.callbacks.BaseCallback):
    """Stores the steps of a rollout, as its actors would."""

    def __init__(self, store, named):
        super().__init__()
        self.store, self.named = store, named

    def _on_rollout_start(self):
        self.obs = self.model._last_obs.copy()

    def _on_step(self):
        here = self.locals
        raw = here["actions"].reshape(LANES, -1).astype(np.float32)
        action = here["clipped_actions"]
        truncated = np.array([one.get("TimeLimit.truncated", False) for one in here["infos"]])
        final = np.stack([
            one.get("terminal_observation", obs) for one, obs in zip(here["infos"], here["new_obs"], strict=True)
        ])  # fmt: skip
        self.store.extend(
            obs=self.obs, action=action, reward=here["rewards"], terminated=here["dones"] & ~truncated,
            truncated=here["dones"] & truncated, final_obs=final,
            **{LOG_PROBABILITY: here["log_probs"].numpy()}, **({RAW: raw} if RAW in self.named else {}),
        )  # fmt: skip
        self.obs = here["new_obs"].copy()
        return True


SPACES: dict[str, Any] = {"numbered": Discrete(3), "normal": Box(-2, 2, (2,), np.float32)}
CASES: dict[str, dict[str, Any]] = {
    "numbered": {},
    "normal": {"action_bounds": "clipped", "log_std_start": -0.5},
    "state noise": {"action_bounds": "clipped", "log_std_start": -0.5, "sde_every": 4},
    "clipped value": {"clip_value": 0.1, "clip": 0.05},
    "raw advantages": {"standardize_advantages": False, "entropy_cost": 0.1, "target_divergence": 1e-4},
}


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_that_of_stable_baselines3(case):
    from stable_baselines3.common.env_util import make_vec_env

    changes = CASES[case]
    space = SPACES["normal" if "action_bounds" in changes else "numbered"]
    env = make_vec_env(lambda: Noise(space), LANES, seed=3)
    noise: dict[str, Any] = {"use_sde": True, "sde_sample_freq": 4} if "sde_every" in changes else {}
    model = sb3.PPO(
        "MlpPolicy", env, seed=0, device="cpu", n_steps=STEPS, batch_size=24, n_epochs=3, gamma=0.9, gae_lambda=0.8,
        learning_rate=1e-2, clip_range=changes.get("clip", 0.2), clip_range_vf=changes.get("clip_value"),
        ent_coef=changes.get("entropy_cost", 0.01), target_kl=changes.get("target_divergence"),
        normalize_advantage=changes.get("standardize_advantages", True),
        policy_kwargs={"net_arch": [8, 8], "log_std_init": changes.get("log_std_start", 0.0)}, **noise,
    )  # fmt: skip
    settings = PPO.Settings(
        hidden_units=8, activation="tanh", orthogonal=True, lr=1e-2, trace=0.8, value_cost=1.0, clip_together=True,
        replay=MinibatchSettings(batch_size=1, length=LENGTH, gamma=0.9, epochs=3, minibatch_size=24), **changes,
    )  # fmt: skip
    learner = PPO(Spaces(env.observation_space, space), settings)
    learner.load_policy({**learner.policy_tensors(), **weights_of(model.policy)})
    learner.value.load_state_dict(
        {name.removeprefix("value."): one for name, one in weights_of(model.policy).items() if "value." in name}
    )
    action = sw.Field(space.shape, str(space.dtype))
    spec = sw.Spec(obs=sw.Field((SIZE,), "float32"), action=action, **learner.step_fields())
    with sw.Store(spec, capacity=500, seed=0) as store:
        view = learner.replay().open(store, None, 0)
        _, recorded = model._setup_learn(LANES * STEPS, Recorded(store, learner.step_fields()))
        model.collect_rollouts(env, recorded, model.rollout_buffer, STEPS)
        # The windows that end the rollout are whole once the next step is known.
        fields: Any = {
            name: np.zeros((LANES, *field.shape), np.float32) for name, field in learner.step_fields().items()
        }
        store.extend(
            obs=model._last_obs, action=np.zeros((LANES, *space.shape), space.dtype), reward=np.zeros(LANES),
            terminated=np.zeros(LANES, bool), truncated=np.ones(LANES, bool), final_obs=model._last_obs, **fields,
        )  # fmt: skip
        batch = view.sample(len(view)).copy().torch()
    batch.mask &= batch.step[:, None] + torch.arange(LENGTH) < STEPS
    steps = learner.rollout(batch)
    buffer = model.rollout_buffer
    np.testing.assert_allclose(steps.advantage, buffer.advantages.T.ravel(), atol=1e-5)
    np.testing.assert_allclose(steps.value + steps.advantage, buffer.returns.T.ravel(), atol=1e-5)
    np.testing.assert_allclose(steps[LOG_PROBABILITY], buffer.log_probs.T.ravel(), atol=1e-6)

    np.random.seed(5)
    model.train()
    generator: Any = np.random.RandomState(5)
    learner._rng = generator
    before = weights_of(model.policy)
    learner.learn(batch, 0)
    trained = {**learner.policy_tensors(), **{f"value.{k}": v for k, v in learner.value.state_dict().items()}}
    for name, expected in before.items():
        np.testing.assert_allclose(trained[name].detach(), expected.detach(), rtol=0, atol=1e-5, err_msg=name)
