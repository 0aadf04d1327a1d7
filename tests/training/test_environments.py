"""Any Gymnasium environment with discrete actions trains, or says by name what is missing."""

import io
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Dict
from rich.console import Console

import sharpwave as sw
from sharpwave.envs import make_env, step_spec
from sharpwave.envs.given import Given
from sharpwave.envs.gym import register_for
from sharpwave.training import setup
from sharpwave.training.evaluation import evaluate
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import resume, run
from sharpwave.training.scores import play

from .trainer import Trained

QUICK = load_recipe("gymnasium").override(
    steps=400, warmup_steps=200, num_envs=2, capacity=1_000, hidden_units=16, batch_size=8, evaluate_every=0, n_step=2
)
MADE_UP = "tests.training.made_up:"


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        ("CartPole-v1", {}),
        ("MountainCar-v0", {}),
        ("Acrobot-v1", {}),
        ("FrozenLake-v1", {}),
        ("Taxi-v4", {}),
        pytest.param("CliffWalking-v1", {}, marks=pytest.mark.nightly),  # whose random episodes are thousands of steps
        ("Blackjack-v1", {}),  # a tuple of three categories
        pytest.param(  # 210x160x3
            "ALE/Pong-v5",
            {"steps": 80, "warmup_steps": 40, "batch_size": 2, "standardize": True},
            marks=pytest.mark.nightly,
        ),
        ("MinAtar/Breakout-v1", {}),
        (MADE_UP + "Pictures-v0", {"standardize": True}),
        (MADE_UP + "Pictures-v0", {"stack": 3, "network": "impala", "warmup_steps": 360}),  # [3, 20, 24, 3]
        (MADE_UP + "Grey-v0", {}),
        (MADE_UP + "Nested-v0", {"standardize": True}),
        (MADE_UP + "Nested-v0", {"network": "mlp"}),
        (MADE_UP + "Nested-v0", {"stack": 2}),
        (MADE_UP + "Pair-v0", {"prioritized": True}),
        (MADE_UP + "Counter-v0", {}),  # actions are bytes from 2
    ],
)
def test_it_trains_and_its_policy_plays(env, changes):
    recipe = QUICK.override(**{"env": env, **changes})
    trained = Trained(recipe)
    assert trained.last["updates"] == (recipe.training.steps - recipe.training.warmup_steps) // 4
    assert np.isfinite(trained.last["avg_loss"]) and trained.last["replay_steps"] == recipe.training.steps
    if "Pong" not in env:
        vector = recipe.env.make(2)
        scores = play(setup.player(recipe, vector, trained.agent.policy_tensors()), vector, 2, 0.5, seed=3)
        assert len(scores) == 2
        vector.close()
    trained.close()


MINATAR = "MinAtar/Breakout-v1"
make_games: Any = partial(gymnasium.make_vec, MINATAR, num_envs=1, vectorization_mode="sync")


@pytest.mark.parametrize(
    "door",
    [
        lambda: make_env(MINATAR, num_envs=1),
        lambda: Given(partial(gymnasium.make, MINATAR)).make(1, 1, 1, True),
        lambda: Given(make_games()).make(1, None, 1, True),
        lambda: Given(make_games()).make(1, 1, 1, True),  # another one, to evaluate in
        lambda: Given(make_games).make(1, None, 1, True),
    ],
    ids=["id", "function", "vector", "like a vector", "function of vectors"],
)
def test_an_episode_of_minatar_depends_on_its_seed_only(door):
    """Its sticky action repeated, as an episode's first, the last one of the episode before: in one of ten here."""
    register_for(MINATAR)
    made = door()

    def first_step(action_before, seed):
        made.reset(seed=1)
        made.step(np.array([action_before]))
        made.reset(seed=seed)
        return made.step(np.array([1]))[0].tobytes()

    assert [first_step(0, seed) for seed in range(60)] == [first_step(2, seed) for seed in range(60)]
    made.close()


def test_games_of_minatar_out_of_reach_are_told_of():
    register_for(MINATAR)
    vector = gymnasium.wrappers.vector.RecordEpisodeStatistics(make_games())
    with pytest.warns(UserWarning, match="may repeat the last action of the episode before .*; give the id"):
        Given(vector).make(1, None, 1, True)
    games = make_games()
    Given(games).make(1, None, 1, True)
    assert "WholeResets" not in str(games.envs[0])  # the program's own vector is as it was
    vector.close()


@pytest.mark.nightly
def test_observations_and_actions_of_several_parts_come_from_actors_too():
    """With priorities, which need the final observations of truncated episodes."""
    recipe = QUICK.override(env=MADE_UP + "Nested-v0", actors=1, prioritized=True, segment_steps=8, steps=600, stack=2)
    trained = Trained(recipe)
    assert trained.last["updates"] > 0 and trained.last["episodes"] > 20
    trained.close()


def test_actions_of_several_parts_are_learned():
    """One of six is right, by what is seen: random play scores 8 / 6."""
    recipe = QUICK.override(
        env=MADE_UP + "Levers-v0", steps=900, epsilon_steps=600, n_step=1, gamma=0.0, learning_rate=2e-2
    )
    trained = Trained(recipe)
    assert trained.store.spec.fields["action"].shape == (2,)
    vector = recipe.env.make(2)
    player = setup.player(recipe, vector, trained.agent.policy_tensors())
    assert np.mean(play(player, vector, 6, 0.0, seed=3)) > 6
    assert 0.3 < np.mean(play(player, vector, 30, 1.0, seed=3)) < 3
    vector.close()
    trained.close()


def test_an_agent_learns_without_the_words_that_its_environment_says():
    with pytest.warns(UserWarning, match=r"env 'Words-v0': obs\['said'\] \(Text\): .* the agent does not see it"):
        trained = Trained(QUICK.override(env=MADE_UP + "Words-v0"))
    assert trained.last["updates"] == 50
    assert trained.store.spec.obs_names == ("obs.seen",)
    trained.close()
    with pytest.warns(UserWarning, match=r"env 'Remarks-v0': obs\[0\] \(Text\), obs\[1\]\[0\] \(Text\): of varying"):
        env = make_env(MADE_UP + "Remarks-v0", 2)
    assert isinstance(env.single_observation_space, Dict)
    assert env.reset()[0].keys() == {"1/1"} == env.single_observation_space.keys()
    env.close()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Pendulum-v1", r"dqn needs discrete actions; Pendulum-v1 has Box\(1,\); expected .* --env MODULE:NAME"),
        ("MountainCarContinuous-v0", r"dqn needs discrete actions; MountainCarContinuous-v0 has Box\(1,\)"),
        (
            MADE_UP + "OnlyWords-v0",
            r"env 'OnlyWords-v0': obs\['said'\] \(Text\): .* and no other part; expected arr",
        ),
        ("NoSuchEnv-v3", "env 'NoSuchEnv-v3' cannot be made"),
    ],
)
def test_what_is_missing_is_named(env, message):
    recipe = QUICK.override(env=env)
    with pytest.raises(ValueError, match=message):
        setup.agent(recipe, recipe.env.make(1))


def test_nested_observations_are_stored_by_flat_keys():
    env = make_env(MADE_UP + "Nested-v0", 2)
    assert {name: (field.shape, field.dtype) for name, field in step_spec(env).fields.items() if "obs" in name} == {
        "obs.arm/grip": ((), "int64"), "obs.arm/joints": ((4,), "float32"), "obs.camera": ((16, 16, 3), "uint8"),
    }  # fmt: skip
    obs, _ = env.reset(seed=0)
    assert isinstance(env.single_observation_space, Dict)
    assert obs["arm/joints"].shape == (2, 4) and env.single_observation_space.keys() == obs.keys()
    env.close()


def test_box_actions_are_stored_where_nobody_learns_from_them():
    env = make_env("Pendulum-v1", 2)
    assert step_spec(env).fields["action"].shape == (1,)
    env.close()


def test_stacks_are_stored_as_single_frames_and_replayed_as_seen():
    env = make_env(MADE_UP + "Nested-v0", 2, stack=3)
    fields = step_spec(env).fields
    assert {name: (one.shape, one.stack, one.pad) for name, one in fields.items() if name.startswith("obs.")} == {
        "obs.arm/grip": ((), 3, "repeat"),
        "obs.arm/joints": ((4,), 3, "repeat"),
        "obs.camera": ((16, 16, 3), 3, "repeat"),
    }
    store = sw.Store(step_spec(env), capacity=100)
    recorded = sw.Recorder(env, store)
    obs, _ = recorded.reset(seed=0)
    seen = set()
    env.action_space.seed(0)
    for _ in range(30):
        seen |= {tuple(obs[key][lane].tobytes() for key in sorted(obs)) for lane in range(2)}
        obs, *_ = recorded.step(env.action_space.sample())
    batch = store.transitions(seed=0).sample(64)
    replayed = [tuple(batch.obs[key][i].tobytes() for key in sorted(obs)) for i in range(64)]
    assert batch.obs["camera"].shape == (64, 3, 16, 16, 3) and set(replayed) <= seen
    store.close()
    env.close()


def test_stacks_of_vectors_are_no_pictures():
    """Five vectors of six numbers are 30 numbers to the network, not a picture of 5x6 pixels."""
    recipe = QUICK.override(env="Acrobot-v1", stack=5)
    env = recipe.env.make()
    agent: Any = setup.agent(recipe, env)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (2, 5, 6)
    assert agent.inputs(torch.from_numpy(obs)).tolist() == obs.reshape(2, 30).tolist()
    assert agent.online.torso[0].in_features == 30
    with pytest.raises(ValueError, match="'tiny' takes images"):
        setup.agent(recipe.override(network="tiny"), env)
    env.close()


def test_pictures_in_stacks_from_training_to_evaluation(tmp_path):
    """Trained, resumed and evaluated."""
    out = tmp_path / "run"
    recipe = QUICK.override(env=MADE_UP + "Pictures-v0", stack=2, network="tiny", warmup_steps=360)
    said = Console(file=io.StringIO(), width=200)
    _, summary = run("gymnasium", recipe, out, said)
    assert "Networks compute in float32 on cpu" in said.file.getvalue()  # type: ignore[attr-defined]
    assert summary["steps"] >= 400 and summary["precision"] == "float32"
    _, summary = resume(out, {"steps": 600}, said, trust=True)
    assert summary["steps"] >= 600
    policy = sw.Policy.load(out, trust=True)
    scores = evaluate(policy, episodes=2, seed=3, epsilon=0.5).scores
    assert len(scores) == 2 and policy.agent.precision == "float32"
