"""What is legal becomes a part of what is observed, wherever the environment says it; what is wrong is named."""

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

import sharpwave as sw
from sharpwave.envs import ActionMasks, VectorActionMasks, make_env, step_spec
from sharpwave.teams import random_actions
from tests.support.examples import every_two
from tests.training.made_up import Maze

MAZE = "tests.training.made_up:"


def true_mask(cells):
    maze, masks = Maze(), []
    for cell in np.ravel(cells):
        maze.cell = int(cell)
        masks.append(maze.legal())
    return np.array(masks).reshape(*np.shape(cells), 4)


@pytest.mark.parametrize("name", ["Maze-v0", "MazeMethod-v0", "MazeParts-v0"])
def test_masks_of_infos_of_the_method_and_of_observations_are_observed_alike(name):
    env = make_env(MAZE + name, 2)
    inner = Dict(observation=Discrete(16)) if "Parts" in name else Dict(obs=Discrete(16))
    assert env.single_observation_space == Dict(inner.spaces | {"action_mask": MultiBinary(4)})
    obs, _ = env.reset(seed=1)
    assert obs["action_mask"].dtype == np.int8
    for cell, mask in zip(obs[next(iter(inner))], obs["action_mask"], strict=True):
        np.testing.assert_array_equal(mask, true_mask(cell))
    env.close()
    plain = make_env(MAZE + name, 2, action_masks=False)
    assert ("action_mask" in getattr(plain.single_observation_space, "spaces", {})) == ("Parts" in name)
    plain.close()


def played(vector, store, steps):
    """Play at random among legal actions; the environments fail if one is not."""
    recorder, rng = sw.Recorder(vector, store), np.random.default_rng(0)
    obs, _ = recorder.reset(seed=3)
    for _ in range(steps):
        obs, *_ = recorder.step(1 + random_actions(obs["action_mask"], rng))
    recorder.close()


@pytest.mark.parametrize(
    ("vector", "mode", "whole"),
    every_two([SyncVectorEnv, AsyncVectorEnv], [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP], [False, True]),
)
def test_a_step_has_the_mask_of_its_observation_and_of_the_next_one_the_true_final_one_included(vector, mode, whole):
    """Of n-step transitions and of windows, in a store of a program's own; wrapped one by one, or as a whole."""
    if whole:
        env = VectorActionMasks(vector([lambda: TimeLimit(Maze(), 7)] * 3, autoreset_mode=mode))
    else:
        env = vector([lambda: ActionMasks(TimeLimit(Maze(), 7))] * 3, autoreset_mode=mode)
    with sw.Store(step_spec(env), capacity=10_000, segment_steps=16) as store:
        played(env, store, 200)
        batch = store.transitions(n_step=3, seed=1).sample(500)
        for obs in (batch.obs, batch.next_obs):
            np.testing.assert_array_equal(obs["action_mask"], true_mask(obs["obs"]))
        assert true_mask(batch.obs["obs"])[np.arange(500), batch.action - 1].all()
        final = batch.next_obs["obs"] == Maze.GOAL
        assert final.any() and not batch.next_obs["action_mask"][final].any()
        assert (batch.discount[final] == 0).all()
        windows = store.sequences(5, seed=1).sample(200)
        real = np.concatenate([windows.mask, np.zeros((200, 1), np.bool_)], axis=1)
        real[:, 1:] |= windows.mask  # the observation behind each real step, too
        cells, masks = windows.obs["obs"], windows.obs["action_mask"]
        np.testing.assert_array_equal(masks[real], true_mask(cells[real]))


def test_a_mask_beside_a_stack_of_as_many_frames_is_no_stack():
    """Four actions, and the four newest pictures: the newest mask is stored once, and pictures once each."""
    env = make_env(MAZE + "MazePicture-v0", 2, stack=4)
    space: Any = env.single_observation_space
    assert space["obs"].shape == (4, 8, 8)
    spec = step_spec(env)
    assert spec.fields["obs.obs"] == sw.Field((8, 8), "uint8", stack=4)
    assert spec.fields["obs.action_mask"] == sw.Field((4,), "int8")
    with sw.Store(spec, capacity=1_000) as store:
        played(env, store, 60)
        batch = store.transitions(seed=1).sample(100)
        for obs in (batch.obs, batch.next_obs):
            newest = obs["obs"][:, -1].reshape(100, 4, 2, 4, 2)[:, :, 0, :, 0].reshape(100, 16).argmax(axis=1)
            np.testing.assert_array_equal(obs["action_mask"], true_mask(newest))


def test_of_masks_that_are_stacked_with_their_observations_the_newest_counts():
    env = make_env(MAZE + "MazeParts-v0", 1, stack=3)
    space: Any = env.single_observation_space
    assert space["action_mask"] == MultiBinary(4)
    obs, _ = env.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(20):
        np.testing.assert_array_equal(obs["action_mask"][0], true_mask(obs["observation"][0, -1]))
        obs, *_ = env.step(1 + random_actions(obs["action_mask"], rng))
    env.close()


class Says(gymnasium.Env):
    """Says ``mask`` in its infos, or nothing if it is None."""

    observation_space = Box(0, 1, (2,), np.float32)

    def __init__(self, mask, actions=None, render_mode=None):
        self.action_space, self.mask = actions or Discrete(3), mask

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {} if self.mask is None else {"action_mask": self.mask}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {"action_mask": self.mask}


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (
            np.ones(4, np.int8),
            r"Says: info\['action_mask'\] is int8 of shape \(4,\), expected \(3,\), bool or integers",
        ),
        (np.ones((1, 3), np.bool_), r"is bool of shape \(1, 3\), expected \(3,\)"),
        (np.ones(3), r"is float64 of shape \(3,\), expected \(3,\), bool or integers: 1 for each legal action, else 0"),
        (np.array([0, 1, 2]), r"has the values \[0, 1, 2\], expected 0 and 1"),
        (np.zeros(3, np.int8), "allows none of the 3 actions, expected at least one legal action, unless the episode"),
        (None, r"is None, expected \(3,\), bool or integers"),
        (["left"], r"expected \(3,\), bool or integers"),
    ],
)
def test_a_mask_that_cannot_be_one_is_refused_with_its_values(mask, said):
    with pytest.raises(ValueError, match=said):
        ActionMasks(Says(mask)).reset()


def test_a_lane_of_a_vector_without_a_mask_is_named():
    vector = SyncVectorEnv([lambda: Says(np.ones(3, np.int8)), lambda: Says(None)])
    with pytest.raises(ValueError, match=r"info\['action_mask'\] of environment 1 is None, expected \(3,\), bool"):
        VectorActionMasks(vector).reset()


def test_a_final_state_may_have_no_legal_action_and_masks_are_copied():
    env = Says(np.array([True, False, True]))
    masked = ActionMasks(env)
    obs, _ = masked.reset()
    env.mask[:] = False
    after, _, terminated, *_ = masked.step(0)
    assert terminated and after["action_mask"].tolist() == [0, 0, 0] and obs["action_mask"].tolist() == [1, 0, 1]


gymnasium.register("SaysNothing-v0", lambda **options: Says(None, **options))
gymnasium.register("SaysMaskOfPairs-v0", lambda **options: Says(np.ones(3, np.int8), MultiDiscrete([3, 2]), **options))


def test_masks_of_other_actions_are_left_out_with_a_warning_and_environments_without_stay_as_they_are():
    with pytest.warns(UserWarning, match="SaysMaskOfPairs-v0: its action masks are not used: its actions are MultiDi"):
        env = make_env("SaysMaskOfPairs-v0", 1)
    assert env.single_observation_space == Says.observation_space
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_env("SaysNothing-v0", 1).single_observation_space == Says.observation_space
    with pytest.raises(ValueError, match="expected Discrete"):
        ActionMasks(Says(None, Box(-1, 1, (1,), np.float32)))


def test_a_source_that_is_none_or_that_the_environment_lacks_is_refused_at_once():
    with pytest.raises(ValueError, match="source is 'methd', expected one of observation, method, info"):
        ActionMasks(Maze(), "methd")  # type: ignore[arg-type]
    cart = gymnasium.make("CartPole-v1")
    with pytest.raises(ValueError, match=r"CartPole-v1 has no method action_masks\(\)"):
        ActionMasks(cart, "method")
    with pytest.raises(ValueError, match="expected a Dict with a part 'action_mask'"):
        ActionMasks(cart, "observation")
