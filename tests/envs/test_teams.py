"""Teams as one environment: rows of agents, masks, early leavers and ends, beside a made-up parallel environment."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Tuple
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import sharpwave as sw
from sharpwave.environment_spec import step_spec
from sharpwave.envs import TeamEnv, make_env
from sharpwave.envs.team_games import TwoStepGame
from sharpwave.extras import install
from sharpwave.teams import random_actions
from tests.envs.team_world import World
from tests.envs.tuple_world import Lift


def play(env, seed=0):
    """Actions, and what came of them, of an episode of random legal actions; the first observation before them."""
    rng = np.random.default_rng(seed)
    obs, info = env.reset(seed=seed)
    found = [(None, obs, 0.0, False, False, info)]
    while not (found[-1][3] or found[-1][4]):
        action = random_actions(found[-1][1]["action_mask"], rng)
        found.append((action, *env.step(action)))
        assert env.observation_space.contains(found[-1][1])
    return found


def test_an_episode_of_three_agents_of_which_one_leaves():
    """Written down by hand: what each sees, which actions are legal, who is paid, and how it ends."""
    world = World()
    env: Any = TeamEnv(world)
    assert env.observation_space["agents"] == Box(-1, 100, (3, 2), np.float32)
    assert env.observation_space["action_mask"].shape == (3, 4) and env.action_space.nvec.tolist() == [4, 4, 4]
    found = play(env, seed=3)
    assert [one[1]["agents"].tolist() for one in found] == [
        [[0, 1], [0, 2], [0, 3]],
        [[1, 1], [1, 2], [1, 3]],
        [[2, 1], [0, 0], [2, 3]],  # the bee has left
        [[3, 1], [0, 0], [3, 3]],
        [[4, 1], [0, 0], [4, 3]],  # those that are truncated see on
    ]
    assert [one[1]["action_mask"].tolist() for one in found] == [
        [[0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 1]],
        [[1, 0, 1, 0], [1, 0, 0, 0], [1, 0, 1, 1]],
        [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1]],
        [[0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0]],
        [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]],
    ]
    assert [one[5]["rewards"].tolist() for one in found[1:]] == [[1, 2, 3], [2, 4, 6], [3, 0, 9], [4, 0, 12]]
    assert [one[2] for one in found] == [0, 6, 12, 12, 16]
    assert [one[3:5] for one in found] == [(False, False)] * 4 + [(False, True)]
    assert [sorted(one) for one in world.log] == [["ant", "bee", "cat"]] * 2 + [["ant", "cat"]] * 2
    made = [[one.get(name, 0) for name in ("ant", "bee", "cat")] for one in world.log]
    expected = np.add([one[0] for one in found[1:]], [0, 5, 0])
    expected[2:, 1] = 0
    assert made == expected.tolist() and world.seeds == [3]


def test_a_team_that_dies_is_terminated_and_sees_nothing_more():
    *_, (_, obs, _, terminated, truncated, _) = play(TeamEnv(World(dies=True)))
    assert terminated and not truncated and not obs["agents"].any() and not obs["action_mask"].any()


def test_the_last_agents_to_leave_decide_how_it_ends():
    """The bee dies as the others' time is up: truncated, and the bee sees nothing more."""
    *_, (_, obs, _, terminated, truncated, info) = play(TeamEnv(World(steps=2)))
    assert truncated and not terminated and obs["action_mask"].any(axis=1).tolist() == [True, False, True]
    assert info["rewards"].tolist() == [2, 4, 6]


@pytest.mark.parametrize("masks", ["infos", "observations", "none"])
def test_masks_come_from_infos_or_observations_or_allow_all(masks):
    env = TeamEnv(World(masks=masks))
    obs, _ = env.reset()
    all_of_them = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    but_first = [[0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 1]]
    assert obs["action_mask"].tolist() == (all_of_them if masks == "none" else but_first)
    assert obs["agents"].tolist() == [[0, 1], [0, 2], [0, 3]]


def test_observations_of_different_sizes_are_padded():
    env: Any = TeamEnv(World(sizes=(2, 4, 3)), state=True)
    obs, _ = env.reset()
    assert obs["agents"].tolist() == [[0, 1, 0, 0], [0, 2, 0, 0], [0, 3, 0, 0]] and obs["state"].tolist() == [0, 42]
    assert env.observation_space.contains(obs) and env.observation_space["agents"].low[0].tolist() == [-1, -1, 0, 0]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([0, 1, 1], r"action 0 of agent 'ant' is not legal, expected one of \[1, 2\]"),
        ([1, 0, 1], r"action 0 of agent 'bee' is not legal, expected one of \[1\]"),
        ([1, 1, 4], r"action 4 of agent 'cat' is not legal, expected one of \[1, 2, 3\]"),
        ([1, 1, -1], r"action -1 of agent 'cat' is not legal"),
        ([1, 1], r"shape \(2,\), expected a number for each of \['ant', 'bee', 'cat'\]"),
    ],
)
def test_illegal_actions_are_refused_by_name(action, message):
    world = World()
    env = TeamEnv(world)
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.step(np.array(action))
    assert not world.log, "the environment was stepped"


def test_an_agent_that_is_there_without_a_legal_action_is_named():
    class Stuck(World):
        def reset(self, *args, **settings):
            seen, infos = super().reset(*args, **settings)
            infos["bee"]["action_mask"] = np.zeros(2, np.int8)
            return seen, infos

    env = TeamEnv(Stuck())
    obs, _ = env.reset()
    with pytest.raises(ValueError, match="agent 'bee' is present, but its mask allows no action"):
        env.step(random_actions(obs["action_mask"], np.random.default_rng(0)))


def test_what_a_team_cannot_be_is_named():
    class Continuous(World):
        def action_space(self, name):
            return Box(0, 1, (2,))

    with pytest.raises(ValueError, match=r"agent 'ant' has the actions Box\(.*\), expected Discrete"):
        TeamEnv(Continuous())
    with pytest.raises(ValueError, match="state_space is None, expected a Box"):
        TeamEnv(TwoStepGame(), state=True)


def test_gymnasium_finds_nothing_wrong_with_it():
    check_env(TeamEnv(TwoStepGame()), skip_render_check=True)


def vector(kind, mode):
    return kind([lambda steps=steps: TeamEnv(World(steps=steps)) for steps in (3, 4, 5)], autoreset_mode=mode)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TeamEnv(World()),
        lambda: vector(SyncVectorEnv, AutoresetMode.SAME_STEP),
        lambda: vector(SyncVectorEnv, AutoresetMode.NEXT_STEP),
        lambda: vector(AsyncVectorEnv, AutoresetMode.SAME_STEP),
    ],
    ids=["one", "same step", "next step", "async"],
)
def test_a_team_s_steps_are_rows_of_a_lane_with_observations_masks_and_rewards_per_agent(make):
    """The step and each agent's pay follow from what is seen, so that every row shows whether its parts belong
    together; the mask behind it is that of the next observation, the true final one at an episode's end."""
    env, rng = make(), np.random.default_rng(0)
    spec = step_spec(env)
    assert {name: field.shape for name, field in spec.fields.items()} == {
        "obs.agents": (3, 2), "obs.action_mask": (3, 4), "action": (3,), "rewards": (3,),
    }  # fmt: skip
    store = sw.Store(spec, capacity=2_000)
    recorder = sw.Recorder(env, store)
    obs, _ = recorder.reset(seed=0)
    for _ in range(60):
        obs, _, terminated, truncated, _ = recorder.step(random_actions(obs["action_mask"], rng))
        if recorder.mode == "Disabled" and (terminated or truncated):
            obs, _ = recorder.reset()
    env.close()
    batch = store.transitions(seed=0).sample(500)
    made = batch.obs["agents"][:, 0, 0]
    present = batch.obs["action_mask"].any(axis=2)
    np.testing.assert_array_equal(present, np.stack([made >= 0, made < 2, made >= 0], axis=1))
    np.testing.assert_array_equal(batch["rewards"], present * (made[:, None] + 1) * [1, 2, 3])
    np.testing.assert_array_equal(batch.reward, batch["rewards"].sum(axis=1))
    np.testing.assert_array_equal(batch.next_obs["agents"][:, 2], np.stack([made + 1, np.full(len(made), 3)], axis=1))
    forbidden = np.stack([(made + 1) % 3, (made + 1) % 4], axis=1).astype(np.int64)
    for agent, column in ((0, 0), (2, 1)):
        allowed = batch.next_obs["action_mask"][:, agent]
        np.testing.assert_array_equal(allowed[np.arange(len(made)), forbidden[:, column]], 0)
        assert (allowed.sum(axis=1) == (2, 3)[column]).all()
    assert batch.truncated.any() and (batch.discount[batch.truncated] > 0).all()


def test_the_two_step_game_pays_what_its_matrices_say():
    env = make_env("sharpwave/TwoStep-v0", 1)
    for first, matrix in enumerate(TwoStepGame.PAYOFFS):
        for one in (0, 1):
            for other in (0, 1):
                env.reset(seed=0)
                obs, reward, terminated, *_ = env.step(np.array([[first, other]]))
                assert (
                    reward[0] == 0 and not terminated[0] and obs["agents"][0].tolist() == [[0, *np.eye(2)[first]]] * 2
                )
                _, reward, terminated, _, infos = env.step(np.array([[one, other]]))
                assert terminated[0] and reward[0] == matrix[one][other]
                assert infos["final_info"]["rewards"][0].tolist() == [reward[0] / 2] * 2
    env.close()


def test_mpe_by_name():
    """Rewards of simple_spread, three agents of it, and its episodes of 25 steps."""
    mpe2 = pytest.importorskip("mpe2")
    env: Any = make_env("mpe2/simple_spread_v3", 2)
    parallel = mpe2.simple_spread_v3.parallel_env()
    assert env.single_observation_space["agents"].shape == (3, 18) and env.single_action_space.nvec.tolist() == [5] * 3
    obs, _ = env.reset(seed=5)
    seen, _ = parallel.reset(seed=5)
    for step in range(25):
        np.testing.assert_array_equal(obs["agents"][0], np.stack(list(seen.values())))
        obs, reward, terminated, truncated, infos = env.step(np.full((2, 3), step % 5))
        seen, rewards, *_ = parallel.step(dict.fromkeys(parallel.agents, step % 5))
        assert reward[0] == pytest.approx(sum(rewards.values()), rel=1e-6)
    assert truncated.all() and not terminated.any()
    final = infos["final_obs"][0]
    np.testing.assert_array_equal(final["agents"], np.stack(list(seen.values())))
    assert final["action_mask"].all()
    env.close()


def test_mpe_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="mpe2 has no such environment, expected one such as mpe2/simple_spread_v3"):
        make_env("mpe2/nothing_v1", 1)

    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.util.find_spec", missing)
    with pytest.raises(ValueError, match="needs mpe2: " + re.escape(install("mpe"))):
        make_env("mpe2/nothing_v1", 1)
    assert "mpe2/nothing_v1" not in gymnasium.registry


@pytest.mark.parametrize("name", ["Lift", "MaskedLift"])
def test_agents_of_tuples_are_a_team(name):
    """Beside the environment itself, whose actions count from 1; its checker, which warns of rewards that are lists, is
    silent, and its limit is its own."""
    env: Any = make_env(f"tests.envs.tuple_world:{name}-v0", 1)
    assert env.single_observation_space["agents"] == Box(0, 4, (2, 3), np.float32)
    assert (
        env.single_observation_space["action_mask"].shape == (2, 3) and env.single_action_space.nvec.tolist() == [3] * 2
    )
    own = Lift(12, masks=name == "MaskedLift")
    obs, _ = env.reset(seed=4)
    seen, info = own.reset(seed=4)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(300):
        np.testing.assert_array_equal(obs["agents"][0], np.stack(seen))
        np.testing.assert_array_equal(obs["action_mask"][0], info.get("action_mask", np.ones((2, 3))))
        action = random_actions(obs["action_mask"], rng)
        obs, reward, terminated, truncated, infos = env.step(action)
        seen, paid, *ended, info = own.step(tuple(action[0] + 1))
        assert reward[0] == pytest.approx(sum(paid)) and [terminated[0], truncated[0]] == ended
        pays = infos["final_info"]["rewards"] if any(ended) else infos["rewards"]
        np.testing.assert_allclose(pays[0], paid, rtol=1e-6)
        if any(ended):
            last = np.stack(seen) * ended[1]  # a team that has reached its end sees nothing
            np.testing.assert_array_equal(infos["final_obs"][0]["agents"], last)
            seen, info = own.reset()
            ends += 1
    assert ends > 20
    env.close()


def test_a_team_s_single_reward_is_shared_equally():
    class Shared(Lift):
        def step(self, action):
            seen, paid, *rest = super().step(action)
            return seen, sum(paid), *rest

    env = TeamEnv(Shared(12))
    env.reset(seed=0)
    _, reward, _, _, info = env.step(np.array([0, 0]))
    assert reward == pytest.approx(-0.01) and info["rewards"].tolist() == pytest.approx([-0.005] * 2)


@pytest.mark.parametrize(
    ("terminated", "truncated", "ends"),
    [
        ([True, False], [False, True], (False, True)),
        ([True, True], [False, True], (True, False)),
        ([False, False], True, (False, True)),
        ([True, False], [False, False], (False, False)),
        (True, True, (True, False)),
    ],
)
def test_agents_of_tuples_that_end_differently_end_the_episode_together(terminated, truncated, ends):
    class Apart(Lift):
        def step(self, action):
            seen, paid, *_, info = super().step(action)
            return seen, paid, terminated, truncated, info

    env = TeamEnv(Apart(12))
    env.reset(seed=0)
    obs, _, *found, _ = env.step(np.array([0, 0]))
    assert tuple(found) == ends
    assert obs["agents"].any() or not ends[1]  # what is estimated needs a final observation


def test_tuples_that_are_no_team_s_are_refused():
    class Odd(Lift):
        action_space = Tuple([Discrete(3), Box(0, 1)])

    with pytest.raises(ValueError, match=r"TeamEnv: env has the actions Tuple\(.*expected a tuple of Discrete actions"):
        TeamEnv(Odd(12))


@pytest.mark.parametrize(
    ("name", "package", "size", "actions"),
    [
        ("Foraging-8x8-2p-3f-v3", "lbforaging", 15, 6),
        ("lbforaging:Foraging-5x5-2p-1f-v3", "lbforaging", 9, 6),
        ("rware-tiny-2ag-v2", "rware", 71, 5),
    ],
)
def test_foraging_and_warehouses_by_name(name, package, size, actions):
    """Beside the package's own environment, step by step."""
    pytest.importorskip(package)
    env: Any = make_env(name, 1)
    assert env.single_observation_space["agents"].shape == (2, size)
    assert env.single_action_space.nvec.tolist() == [actions] * 2
    own: Any = gymnasium.make(name, disable_env_checker=True)
    obs, _ = env.reset(seed=5)
    seen, _ = own.reset(seed=5)
    rng = np.random.default_rng(0)
    for _ in range(40):
        np.testing.assert_array_equal(obs["agents"][0], np.stack(seen))
        action = random_actions(obs["action_mask"], rng)
        obs, reward, terminated, _, _ = env.step(action)
        seen, paid, ended, *_ = own.step(tuple(action[0].tolist()))
        assert reward[0] == pytest.approx(sum(paid)) and terminated[0] == ended
        if ended:
            break
    env.close()


def test_a_team_s_package_that_is_not_there_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    for name, package in (("Foraging-9x9-2p-2f-v9", "lbforaging"), ("rware-tiny-2ag-v9", "rware")):
        with pytest.raises(ValueError, match=f"needs {package}: " + re.escape(install("teams"))):
            make_env(name, 1)


def test_two_agents_meet_by_hand():
    """Both go straight to the goal and wait there; the last step pays, every step costs."""
    env: Any = make_env("sharpwave/Meeting-v0", 1)
    moves, returns = {(0, 0): 0, (1, 0): 1, (-1, 0): 2, (0, 1): 3, (0, -1): 4}, []
    for seed in range(40):
        obs, _ = env.reset(seed=seed)
        own, other = obs["agents"][0]
        assert own.tolist() == [*other[2:4], *other[:2], *other[4:]]
        far = max(int(np.abs(one[:2] - one[4:]).sum()) for one in (own, other))
        for step in range(1, far + 1):
            towards = np.sign(obs["agents"][0, :, 4:] - obs["agents"][0, :, :2]).astype(int)
            towards[towards.all(axis=1), 1] = 0
            obs, reward, terminated, truncated, _ = env.step(
                np.array([[moves[tuple(one)] for one in towards.tolist()]])
            )
            assert terminated[0] == (step == far) and not truncated[0]
            assert reward[0] == pytest.approx((step == far) - 0.01)
        returns.append(1 - 0.01 * far)
    assert np.mean(returns) == pytest.approx(0.96, abs=0.01)
    env.reset(seed=0)
    stayed = [env.step(np.zeros((1, 2), np.int64)) for _ in range(25)]
    assert [one[3][0] for one in stayed] == [False] * 24 + [True] and sum(one[1][0] for one in stayed) == pytest.approx(
        -0.25
    )
    env.close()
