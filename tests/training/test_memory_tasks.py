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

from sharpwave.envs.memory_tasks import TASKS, Lock, TMaze, register_tasks


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


def remembering_key(seen: list[np.ndarray[Any, Any]]) -> int:
    return int(seen[0][:-1].argmax())


@pytest.mark.parametrize(
    ("env", "policy"),
    [
        (TMaze(), remembering_turn),
        (TMaze(5), remembering_turn),
        (Lock(), remembering_key),
        (Lock(3, 6), remembering_key),
    ],
)
def test_remembering_the_first_observation_gets_all(env: gymnasium.Env[Any, Any], policy: Policy) -> None:
    assert {score(env, policy, seed) for seed in range(30)} == {1.0}


def test_both_cues_and_all_keys_are_shown_alike() -> None:
    cues = [TMaze().reset(seed=seed)[0][0] for seed in range(400)]
    assert set(cues) == {-1.0, 1.0} and abs(np.mean(cues)) < 0.15
    keys = [Lock().reset(seed=seed)[0][:-1].argmax() for seed in range(400)]
    assert np.bincount(keys).min() > 70


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


def test_four_frames_at_a_lock_s_later_doors_are_the_same_for_all_keys() -> None:
    """From the fifth door on, so one key in four fits: the others' episodes end there with nothing."""
    keys = {int(Lock().reset(seed=seed)[0][:-1].argmax()): seed for seed in range(40)}
    assert len(keys) == 4
    for door in range(8):
        frames = {frames_at(Lock(), [key] * door, seed) for key, seed in keys.items()}
        assert len(frames) == (4 if door < 4 else 1)
    # Policies of four frames press the key that they see, and a fixed one at each later door.
    best = max(
        np.mean([score(Lock(), partial(_four_frames, later), seed) for seed in keys.values()])
        for later in itertools.product(range(2), repeat=4)
    )
    assert best == 0.25


def _turning(turn: int, seen: list[np.ndarray[Any, Any]]) -> int:
    return turn if seen[-1][1] else 0


def _four_frames(later: tuple[int, ...], seen: list[np.ndarray[Any, Any]]) -> int:
    last = np.array(seen[-4:])[:, :-1]
    return int(last.max(axis=0).argmax()) if last.any() else later[len(seen) - 5]


def test_a_random_player_opens_the_lock_once_in_65536() -> None:
    """Each of eight doors is passed by one key in four."""
    passed = 0
    for key in range(4):
        env = Lock()
        seed = next(seed for seed in itertools.count() if env.reset(seed=seed)[0][key] == 1)
        for pressed in range(4):
            env.reset(seed=seed)
            obs, reward, terminated, _, _ = env.step(np.int64(pressed))
            passed += not terminated
            assert reward == 0 and obs[-1] == (0.125 if pressed == key else 0)
    assert passed == 4 and 4.0**-8 == 1 / 65536


def test_a_maze_ends_in_any_case() -> None:
    env = TMaze(6)
    env.reset(seed=0)
    ends = [env.step(np.int64(1))[2:4] for _ in range(12)]
    assert ends == [(False, False)] * 11 + [(False, True)]
    assert score(TMaze(6), lambda seen: 0, 1) == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda: TMaze(0), "length=0"), (lambda: Lock(0), "doors=0"), (lambda: Lock(8, 1), "keys=1")],
)
def test_sizes_are_checked(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
