"""Options of Atari games on the games themselves: colours, starts, limits, actions, and lost lives as ends."""

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

import sharpwave as sw
from sharpwave.envs import AtariFrames, AtariSettings, step_spec
from sharpwave.training.recipes import load_recipe
from sharpwave.training.scores import play

from ..training.trainer import Trained


def played(settings, steps, game="breakout", lanes=2, seed=0):
    """Random play: the observations, and the steps' outcomes."""
    env = AtariFrames(game, lanes, settings)
    rng = np.random.default_rng(seed)
    obs, infos = env.reset(seed=seed)
    seen, outcomes, actions = [obs.copy()], [], len(env.action_names)
    for _ in range(steps):
        obs, reward, terminated, truncated, infos = env.step(rng.integers(0, actions, lanes).astype(np.int64))
        seen.append(obs.copy())
        outcomes.append((reward.copy(), terminated.copy(), truncated.copy(), {k: np.copy(v) for k, v in infos.items()}))
    return seen, outcomes


def test_colours_have_the_grey_frames_luminance():
    sizes: dict[str, Any] = {"height": 210, "width": 160, "max_pool": False}
    (grey, _), (colour, _) = (played(AtariSettings(rgb=rgb, **sizes), 12) for rgb in (False, True))
    assert colour[0].shape == (2, 4, 210, 160, 3) and grey[0].shape == (2, 4, 210, 160)
    luminance = np.stack(colour) @ np.array([0.299, 0.587, 0.114])
    assert np.abs(luminance - np.stack(grey)).max() < 2
    assert len({tuple(pixel) for pixel in colour[-1][0, -1, 60:90, 80]}) > 3  # rows of bricks
    small = played(AtariSettings(height=84, width=84, crop=(34, 194), rgb=True), 1)[0][0]
    assert small.shape == (2, 4, 84, 84, 3)


def test_a_frame_is_the_brighter_of_two_only_with_max_pool():
    (pooled, _), (single, _) = (played(AtariSettings(max_pool=pool), 40, "seaquest", 1) for pool in (True, False))
    newest = [np.stack(one)[1:, 0, -1].astype(int) for one in (pooled, single)]
    assert (newest[0] != newest[1]).any() and (newest[0] - newest[1] >= -1).all()  # rounded where it shrinks


@pytest.mark.parametrize(
    ("settings", "fewest", "most"),
    [
        (AtariSettings(noop_max=0, fire_reset=True), 1, 1),
        (AtariSettings(noop_max=4, fire_reset=False), 0, 3),
    ],
)
def test_how_a_game_begins(settings, fewest, most):
    env = AtariFrames("breakout", 2, settings)
    env.reset(seed=0)
    began = np.stack([env.reset()[1]["episode_frame_number"] for _ in range(20)])
    assert began.min() == fewest and began.max() == most


def test_a_game_without_the_fire_action_is_not_fired_at():
    assert played(AtariSettings(noop_max=0), 1, "freeway")[1][0][3]["episode_frame_number"].tolist() == [4, 4]


def test_the_limit_is_in_the_emulators_frames():
    _, outcomes = played(AtariSettings(max_episode_frames=60, noop_max=0), 30)
    assert [step for step, one in enumerate(outcomes, 1) if one[2].all()] == [15, 30]
    assert not any(one[1].any() for one in outcomes)


def test_all_actions_of_the_console():
    assert AtariFrames("breakout", 1, AtariSettings()).action_names == ("NOOP", "FIRE", "RIGHT", "LEFT")
    every = AtariFrames("breakout", 1, AtariSettings(full_actions=True))
    assert len(every.action_names) == 18 and every.action_names[-1] == "DOWNLEFTFIRE"
    some = AtariFrames("breakout", 1, AtariSettings(full_actions=True, actions=("UPFIRE", "LEFT")))
    assert some.single_action_space == Discrete(2)


def test_sticky_actions_change_the_game():
    (plain, _), (sticky, _) = (played(AtariSettings(sticky=one), 60, "pong") for one in (0.0, 0.25))
    assert (plain[-1] != sticky[-1]).any()


@pytest.mark.parametrize("rgb", [False, True])
def test_a_lost_life_ends_an_episode_and_the_game_goes_on(rgb):
    settings: dict[str, Any] = {"height": 32, "width": 32, "rgb": rgb}
    plain, plain_outcomes = played(AtariSettings(**settings), 500)
    seen, outcomes = played(AtariSettings(life_loss_ends=True, **settings), 500)
    ends, games = 0, 0
    since = np.full(2, 3)  # frames of the current life beside the newest one; at a game's start the others are zeros
    for step, (reward, terminated, _, infos) in enumerate(outcomes, 1):
        own_reward, over, cut, own = plain_outcomes[step - 1]
        before = outcomes[step - 2][3]["lives"] if step > 1 else np.array([5, 5])
        lost = (infos["lives"] < before) & ~over
        # It is the same game, step by step, with ends at lost lives added.
        np.testing.assert_array_equal(own_reward, reward)
        np.testing.assert_array_equal(infos["game_ended"], over | cut)
        np.testing.assert_array_equal(terminated, over | lost)
        np.testing.assert_array_equal(seen[step][:, -1], plain[step][:, -1])
        for lane in range(2):
            since[lane] = min(since[lane] + 1, 3)
            last = plain[step][lane] if not over[lane] else own["final_obs"][lane]
            expected = last.copy()
            expected[: 3 - since[lane]] = 0
            if terminated[lane]:
                np.testing.assert_array_equal(infos["final_obs"][lane], expected)
            if lost[lane]:
                since[lane] = 0
                assert not seen[step][lane, :-1].any()
            elif over[lane]:
                since[lane] = 3
                np.testing.assert_array_equal(seen[step][lane], plain[step][lane])
            else:
                np.testing.assert_array_equal(seen[step][lane], expected)
        ends, games = ends + int(terminated.sum()), games + int(over.sum())
    assert games >= 2 and ends >= 4 * games


def test_other_lanes_go_on_where_some_are_reset():
    env = AtariFrames("breakout", 2, AtariSettings(height=32, width=32, life_loss_ends=True))
    obs, infos = env.reset(seed=0)
    ended = np.zeros(2, bool)
    while not ended[0]:
        obs, _, ended, _, infos = env.step(np.array([1, 1]))
    obs, _ = env.reset(options={"reset_mask": np.array([False, True])})
    assert not obs[:, :-1].any() and obs[:, -1].any()
    obs, _, _, _, infos = env.step(np.array([1, 1]))
    assert obs[0, -2:].any() and not obs[:, :-2].any() and infos["lives"].tolist() == [4, 5]


def test_the_store_replays_lives_as_episodes():
    env = AtariFrames("breakout", 2, AtariSettings(height=32, width=32, life_loss_ends=True))
    store = sw.Store(step_spec(env), capacity=2_000)
    recorded = sw.Recorder(env, store)
    rng = np.random.default_rng(0)
    obs, _ = recorded.reset(seed=0)
    acted_on, ends = set(), 0
    for _ in range(400):
        acted_on |= {obs[lane].tobytes() for lane in range(2)}
        obs, _, terminated, _, infos = recorded.step(rng.integers(0, 4, 2))
        ends += int((terminated & ~infos["game_ended"]).sum())
    replay = store.transitions(seed=0)
    batch = replay.sample(2_000)
    assert {np.ascontiguousarray(stack).tobytes() for stack in batch.obs} <= acted_on
    ids = {int(one) for one, discount in zip(batch.ids, batch.discount, strict=True) if discount == 0}
    assert ends >= 8 and ends <= len(ids) <= ends + 6
    store.close()


QUICK: dict[str, Any] = {
    "frame": "32x32", "steps": 1_600, "warmup_steps": 1_400, "num_envs": 2, "capacity": 2_000, "hidden_units": 8,
    "network": "small", "batch_size": 4, "evaluate_every": 0, "standardize": False, "life_loss_ends": True,
}  # fmt: skip


@pytest.mark.slow
def test_scores_are_those_of_whole_games():
    trained = Trained(load_recipe("atari").override(**QUICK))
    # A game of five lives takes some 180 steps of random play, a life 35.
    assert 2 <= trained.last["episodes"] <= 14
    assert all(one["episode_steps"] > 90 for one in trained.kept.episodes)
    env = AtariFrames("breakout", 2, AtariSettings(height=32, width=32, life_loss_ends=True))
    other = AtariFrames("breakout", 2, AtariSettings(height=32, width=32))
    # Only random actions: the same games, whatever the policy sees of them.
    scores = [play(trained.agent, one, 2, 1.0, seed=5) for one in (env, other)]
    assert scores[0] == scores[1]
    trained.close()
