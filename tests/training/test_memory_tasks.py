"""T-maze and lock: environments as Gymnasium wants them; memory solves them, and four frames do not."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from sharpwave.envs.small_tasks import TASKS, Lock, TMaze, register_tasks

DIGITS = 2
"""Of a lock's combination."""


@pytest.mark.parametrize("name", TASKS)
def test_gymnasium_s_checks(name: str) -> None:
    register_tasks()
    register_tasks()
    check_env(gymnasium.make(name).unwrapped, skip_render_check=True)


Policy = Callable[[list[np.ndarray[Any, Any]]], int]


def score(env: gymnasium.Env[Any, Any], policy: Policy, seed: int) -> float:
    """The return of one episode; the policy sees all observations so far."""
    seen, total, ended = [env.reset(seed=seed)[0]], 0.0, False
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(np.int64(policy(seen)))
        seen.append(obs)
        total, ended = total + float(reward), terminated or truncated
    return total


def remembering_turn(seen: list[np.ndarray[Any, Any]]) -> int:
    return 0 if not seen[-1][1] else 1 if seen[0][0] == 1 else 2


def combination(first: np.ndarray[Any, Any], keys: int = 4, digits: int = DIGITS) -> tuple[int, ...]:
    """The digits that a lock's first observation shows."""
    return tuple(first[: keys * digits].reshape(digits, keys).argmax(axis=1).tolist())


def fitting(digits: tuple[int, ...], door: int, keys: int = 4) -> int:
    return (digits[door % len(digits)] + door) % keys


def remembering_key(seen: list[np.ndarray[Any, Any]], keys: int = 4, digits: int = DIGITS) -> int:
    return fitting(combination(seen[0], keys, digits), int(seen[-1][keys * digits :].argmax()), keys)


@pytest.mark.parametrize(
    ("env", "policy"),
    [
        (TMaze(), remembering_turn),
        (TMaze(5), remembering_turn),
        (Lock(), remembering_key),
        (Lock(3, 6, 1), partial(remembering_key, keys=6, digits=1)),
    ],
)
def test_remembering_the_first_observation_gets_all(env: gymnasium.Env[Any, Any], policy: Policy) -> None:
    assert {score(env, policy, seed) for seed in range(30)} == {1.0}


def test_both_cues_and_all_keys_are_shown_alike() -> None:
    cues = [TMaze().reset(seed=seed)[0][0] for seed in range(400)]
    assert set(cues) == {-1.0, 1.0} and abs(np.mean(cues)) < 0.15
    digits = np.array([combination(Lock().reset(seed=seed)[0]) for seed in range(400)])
    for column in digits.T:
        assert np.bincount(column).min() > 70
    assert len({tuple(row) for row in digits.tolist()}) == 4**DIGITS


def test_four_episodes_show_every_value_of_every_digit() -> None:
    """So eight demonstrations show each twice."""
    env = Lock()
    for seed in (0, 1, None, None):
        dealt = [combination(env.reset(seed=seed if k == 0 else None)[0]) for k in range(4)]
        assert [sorted(column) for column in zip(*dealt, strict=True)] == [[0, 1, 2, 3]] * DIGITS


def frames_at(env: gymnasium.Env[Any, Any], actions: list[int], seed: int) -> bytes:
    """The last four observations after ``actions``."""
    seen = [env.reset(seed=seed)[0]]
    seen += [env.step(np.int64(action))[0] for action in actions]
    return np.array(seen[-4:]).tobytes()


def test_four_frames_at_the_junction_are_the_same_for_both_cues() -> None:
    """So whatever a policy of four frames turns to, it is right for one cue and wrong for the other: 0 in the mean."""
    found: defaultdict[float, set[bytes]] = defaultdict(set)
    for seed in range(20):
        env = TMaze()
        found[float(env.reset(seed=seed)[0][0])].add(frames_at(env, [0] * 20, seed))
    assert len(found) == 2 and found[-1.0] == found[1.0]
    for turn in (1, 2):
        by_cue = {float(TMaze().reset(seed=seed)[0][0]): seed for seed in range(20)}
        rewards = [score(TMaze(), partial(_turning, turn), seed) for seed in by_cue.values()]
        assert sorted(rewards) == [-1.0, 1.0]


def test_four_frames_at_a_lock_s_later_doors_are_the_same_for_all_combinations() -> None:
    """From the fifth door on. What is pressed there fits one combination: the others' episodes end with nothing."""
    seeds = {combination(Lock().reset(seed=seed)[0]): seed for seed in range(1000)}
    assert len(seeds) == 4**DIGITS
    for door in range(8):
        frames = {frames_at(Lock(), [fitting(digits, k) for k in range(door)], seed) for digits, seed in seeds.items()}
        assert len(frames) == (len(seeds) if door < 4 else 1)
    pressed = {tuple(fitting(digits, door) for door in range(4, 8)) for digits in seeds}
    assert len(pressed) == len(seeds)


def test_the_same_key_again_and_again_opens_no_lock() -> None:
    for key in range(4):
        for seed in range(100):
            assert score(Lock(), partial(_pressing, key), seed) == 0.0


def _pressing(key: int, seen: list[np.ndarray[Any, Any]]) -> int:
    return key


def _turning(turn: int, seen: list[np.ndarray[Any, Any]]) -> int:
    return turn if seen[-1][1] else 0


def test_a_random_player_opens_the_lock_once_in_65536() -> None:
    """Each of eight doors is passed by one key in four."""
    passed = 0
    for digit in range(4):
        env = Lock()
        seed = next(seed for seed in itertools.count() if combination(env.reset(seed=seed)[0])[0] == digit)
        for pressed in range(4):
            env.reset(seed=seed)
            obs, reward, terminated, _, _ = env.step(np.int64(pressed))
            passed += not terminated
            assert reward == 0 and obs.argmax() == 4 * DIGITS + (pressed == digit)
    assert passed == 4 and 4.0**-8 == 1 / 65536


def test_a_maze_ends_in_any_case() -> None:
    env = TMaze(6)
    env.reset(seed=0)
    ends = [env.step(np.int64(1))[2:4] for _ in range(30)]
    assert ends == [(False, False)] * 29 + [(False, True)]
    assert score(TMaze(6), lambda seen: 0, 1) == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TMaze(0), "length=0"),
        (lambda: Lock(0), "doors=0"),
        (lambda: Lock(8, 1), "keys=1"),
        (lambda: Lock(8, 4, 0), "digits=0"),
    ],
)
def test_sizes_are_checked(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
