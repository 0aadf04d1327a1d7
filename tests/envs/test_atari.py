"""Atari vectors: cropping, actions, clipping, and that the replayed stack is the acting stack."""

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode

import sharpwave as sw
from sharpwave.envs import AtariFrames, AtariSettings, make_env, step_spec


def test_frames_and_actions_are_what_was_asked_for():
    env = AtariFrames("pong", 3, AtariSettings(height=42, width=40, crop=(34, 194), actions=("NOOP", "RIGHT", "LEFT")))
    obs, _ = env.reset(seed=0)
    assert obs.shape == (3, 4, 42, 40) and obs.dtype == np.uint8
    assert env.single_action_space == Discrete(3) and env.num_envs == 3
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert not obs[:, :3].any() and obs[:, 3].any()  # zeros before the first frame


def test_crop_is_a_slice_of_the_shrunk_screen():
    whole = AtariFrames("pong", 1, AtariSettings(height=105, width=80))
    field = AtariFrames("pong", 1, AtariSettings(height=80, width=80, crop=(34, 194)))
    np.testing.assert_array_equal(whole.reset(seed=1)[0][:, :, 17:97], field.reset(seed=1)[0])


def test_other_instances_do_not_change_the_reset_mode():
    env = AtariFrames("pong", 1, AtariSettings())
    from ale_py.vector_env import AtariVectorEnv

    AtariVectorEnv("pong", 1, autoreset_mode=AutoresetMode.NEXT_STEP)  # writes into a dict shared by its class
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_rewards_are_clipped_and_the_game_s_own_are_kept():
    env = AtariFrames("qbert", 4, AtariSettings())
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = env.single_action_space
    assert isinstance(actions, Discrete)
    clipped, own = [], []
    for _ in range(300):
        _, reward, _, _, infos = env.step(rng.integers(0, actions.n, 4))
        clipped.append(reward)
        own.append(infos["unclipped_reward"])
    assert np.abs(clipped).max() == 1.0 and np.max(own) >= 25.0
    np.testing.assert_array_equal(np.sign(own), clipped)


def test_the_twin_in_colour_shows_the_same_game():
    env = AtariFrames("pong", 1, AtariSettings(height=210, width=160, sticky=0.25), render=True)
    env.reset(seed=5)
    for _ in range(50):
        obs, *_ = env.step(env.action_space.sample())
    (screen,) = env.render()
    assert screen.shape == (210, 160, 3)
    # The luminance of the colours is the grey that the agent sees, but for rounding and where the larger of two frames
    # is taken (a colour at a time): some pixels of what moves (0 to 64 seen).
    grey = screen @ np.array([0.299, 0.587, 0.114])
    assert (np.abs(grey - obs[0, -1]) > 3).sum() < 100


def test_the_replayed_stack_is_the_stack_that_was_acted_on():
    env = AtariFrames("pong", 2, AtariSettings(max_episode_frames=120))
    store = sw.Store(step_spec(env), capacity=512)
    recorded = sw.Recorder(env, store)
    seen = {}
    rng = np.random.default_rng(0)
    obs, _ = recorded.reset(seed=0)
    for step in range(100):
        action = rng.integers(0, 6, 2)
        for lane in range(2):
            seen[obs[lane].tobytes()] = (step, lane)
        obs, *_ = recorded.step(action)
    batch = store.transitions(seed=0).sample(256)
    for stack in batch.obs:
        assert np.ascontiguousarray(stack).tobytes() in seen


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("breakot", "did you mean the Atari game breakout"),
        ("NoSuchEnv-v3", "expected an Atari game such as pong"),
    ],
)
def test_unknown_or_unfit_environments(name, message):
    with pytest.raises(ValueError, match=message):
        make_env(name, 1)


def test_settings_of_another_kind_are_refused():
    """They would be ignored: ALE/Pong-v5 skips four frames, and repeats actions with a probability of .25."""
    with pytest.raises(ValueError, match=r"AtariSettings for the Gymnasium id 'ALE/Pong-v5', expected .*, as 'pong'"):
        make_env("ALE/Pong-v5", 1, AtariSettings(sticky=0.5))
    with pytest.raises(ValueError, match=r"stack: got 2 for the Atari game 'pong', expected AtariSettings\(stack=2\)"):
        make_env("pong", 1, stack=2)


def test_unknown_action_and_crop():
    with pytest.raises(ValueError, match="pong has no 'JUMP', expected some of NOOP"):
        AtariFrames("pong", 1, AtariSettings(actions=("JUMP",)))
    with pytest.raises(ValueError, match="crop: got 200:211"):
        AtariSettings(crop=(200, 211))
