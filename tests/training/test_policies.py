"""Policies act as their agents do, and their files say all that making them again takes."""

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import batch_space
from rich.console import Console
from safetensors.torch import save

import sharpwave as sw
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.registry import AGENTS, agent_class
from sharpwave.agents.space_tables import MAX_SPACE_BYTES, space_of, space_table
from sharpwave.configuration import from_table, leaves
from sharpwave.errors import NewerVersionError
from sharpwave.training.atomic_files import write_bytes
from sharpwave.training.checkpoints import load_policy, save_policy
from sharpwave.training.model_card import model_card
from sharpwave.training.policies import Policy
from sharpwave.training.policy_files import POLICY
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import Gymnasium
from sharpwave.training.run import run

NUMBERS = Box(-np.inf, np.inf, (3,), np.float32)
TEAM = Spaces(
    Dict(agents=Box(-1, 1, (2, 3), np.float32), action_mask=MultiBinary((2, 4))), MultiDiscrete([4, 4])
)  # fmt: skip
CONTINUOUS = Spaces(NUMBERS, Box(np.array([-2.0, 0.5], np.float32), np.array([2.0, 3.0], np.float32)))
IMAGES = Spaces(
    Dict({"picture": Box(0, 255, (12, 10, 3), np.uint8), "speed": Box(-1, 1, (2,), np.float32), "gear": Discrete(4)}),
    Discrete(3, start=2),
)
MASKED = Spaces(Dict(obs=NUMBERS, action_mask=MultiBinary(4)), Discrete(4))
SMALL = {"hidden_units": 8, "core_units": 8, "critic_units": 8, "atoms": 7}
FREE = Spaces(NUMBERS, Discrete(4))


OWN = {"dqn": IMAGES, "r2d2": MASKED, "rainbow": MASKED, "ppo": CONTINUOUS, "iql": CONTINUOUS}
"""Spaces of algorithms that act in several kinds; the others' are the first in which they act."""


def small_agent(kind, spaces=None, seed=0, **further):
    """An agent of a few units with random weights."""
    made = agent_class(kind)
    table = {one.key: SMALL[one.key] for one in leaves(made.Settings()) if one.key in SMALL} | further
    settings = from_table(made.Settings(), table)
    for tried in (spaces,) if spaces else (OWN[kind],) if kind in OWN else (FREE, CONTINUOUS, TEAM):
        torch.manual_seed(seed)
        try:
            return made(tried, settings, "cpu", seed)
        except ValueError as error:
            refused = error
    raise refused


def policy_of(agent):
    return Policy(agent, agent.spaces.observation, agent.spaces.action, figures={"steps": 70_000})


def row(obs, lane):
    return {name: part[lane] for name, part in obs.items()} if isinstance(obs, dict) else obs[lane]


def sampled(space, lanes, seed=0):
    batched = batch_space(space, lanes)
    batched.seed(seed)
    return batched.sample()


def damaged(path, at, to):
    content = bytearray(path.read_bytes())
    content[at] ^= to
    path.write_bytes(content)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    """A run of a few updates, with a best and a last policy."""
    recipe = load_recipe("cartpole").override(
        steps=1_500, warmup_steps=300, evaluate_every=500, stop_reward=None, evaluate_from=None, seed=2
    )
    folder = tmp_path_factory.mktemp("run") / "run"
    run("cartpole", recipe, folder, Console(file=io.StringIO()))
    return folder


# acting


@pytest.mark.parametrize("kind", sorted(AGENTS))
def test_a_policy_acts_as_its_agent_does_before_and_after_a_file(kind, tmp_path):
    """Alone and in batches, over steps whose memory it carries, with ends of episodes."""
    agent = small_agent(kind)
    path = policy_of(agent).save(tmp_path / "it.sharpwave")
    loaded = Policy.load(path, device="cpu")
    assert loaded.observation_space == agent.spaces.observation and loaded.action_space == agent.spaces.action
    assert loaded.agent.settings == agent.settings and loaded.steps == 70_000
    rng, state, given = np.random.default_rng(0), agent.begin(3), None
    begun, reward = np.ones(3, np.bool_), None
    for step in range(8):
        obs = sampled(agent.spaces.observation, 3, step)
        acted = agent.act(obs, state, 0, explore=False)
        action, given = loaded.predict(obs, given, begun, deterministic=True, reward=reward)
        np.testing.assert_array_equal(action, acted.action)
        if agent.remembers:
            with pytest.raises(ValueError, match=f"{kind} is recurrent"):
                loaded.act(obs)
        else:
            assert given is None
            np.testing.assert_array_equal(loaded.act(obs), acted.action)
            for lane in range(3):
                alone = loaded.act(row(obs, lane))
                np.testing.assert_allclose(alone, acted.action[lane], rtol=1e-5, atol=1e-6)
                assert loaded.action_space.contains(alone)
        reward, begun = rng.normal(size=3).astype(np.float32), rng.random(3) < 0.3
        state = agent.observe(acted.state, reward, begun)


def test_exploring_policies_explore_as_when_they_were_saved():
    agent = small_agent("dqn", FREE)
    agent.settings = agent.settings.__class__(hidden_units=8)
    obs = sampled(FREE.observation, 400)
    greedy = agent.act(obs, agent.begin(400), 0, explore=False).action
    for steps, low, high in ((0, 0.6, 0.9), (10**7, 0.0, 0.05)):  # epsilon is 1, then .01; a quarter repeats the best
        policy = Policy(agent, *FREE[:2], figures={"steps": steps})
        assert low <= (policy.act(obs, explore=True) != greedy).mean() <= high
        assert (policy.act(obs) == greedy).all() and (policy.predict(obs, deterministic=True)[0] == greedy).all()
    noisy = policy_of(small_agent("sac"))
    obs = sampled(NUMBERS, 5)
    first, second = noisy.predict(obs)[0], noisy.predict(obs)[0]
    assert (first != second).all() and (noisy.act(obs) == noisy.act(obs)).all()


def test_an_agent_with_a_memory_says_that_it_lacks_the_reward():
    policy = policy_of(small_agent("r2d2", FREE))
    obs = sampled(NUMBERS, 2)
    action, state = policy.predict(obs)
    assert action.shape == (2,)
    with pytest.warns(UserWarning, match="r2d2 takes the previous reward, and got none"):
        action, state = policy.predict(obs, state, np.array([True, False]))
    policy.predict(obs, state)  # once is enough
    one, memory = policy.predict(row(obs, 0))
    assert np.ndim(one) == 0 and np.ndim(policy.predict(row(obs, 0), memory, reward=1.0)[0]) == 0


@pytest.mark.parametrize("kind", ["r2d2", "vdn"])
def test_arguments_of_another_number_are_named_with_the_one_expected(kind):
    policy = policy_of(small_agent(kind))
    if not policy.agent.remembers:
        policy = policy_of(small_agent(kind, recurrent=True))
    obs = sampled(policy.observation_space, 4)
    _, state = policy.predict({name: part[:3] for name, part in obs.items()} if isinstance(obs, dict) else obs[:3])
    with pytest.raises(ValueError, match=r"state: got a state of 3 observations, expected .* for 4 observations"):
        policy.predict(obs, state)
    junk: Any
    for junk in (np.zeros((4, 8)), "junk", (None,), {}):
        with pytest.raises(
            ValueError, match=rf"state: got {type(junk).__name__}, expected the state that the last call"
        ):
            policy.predict(obs, junk)
    _, state = policy.predict(obs)
    for name, given, got in (
        ("episode_start", [True, False], r"shape \(2,\)"),
        ("reward", np.zeros(3), r"shape \(3,\)"),
        ("reward", "x", "'x'"),
    ):
        with pytest.raises(ValueError, match=rf"{name}: got {got}, expected one .* for each of 4 observations"):
            policy.predict(obs, state, **{name: given})


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (NUMBERS, np.zeros(4, np.float32), r"got shape \(4,\) float32, expected \(3,\) float32, or \(N, 3\)"),
        (NUMBERS, np.zeros((2, 2, 3), np.float32), r"got shape \(2, 2, 3\) float32"),
        (NUMBERS, np.full(3, (1 << 24) + 1), r"got shape \(3,\) int64, expected \(3,\) float32"),
        (NUMBERS, np.zeros((0, 3), np.float32), "observation: got none, expected one or more of Box"),
        (NUMBERS, [[1.0], [1.0, 2.0]], "expected an array of Box"),
        (NUMBERS, {"obs": np.zeros(3)}, "expected .* float32"),
        (Box(0, 255, (4, 4), np.uint8), np.zeros((4, 4), np.float32), r"\(4, 4\) float32, expected \(4, 4\) uint8"),
        (Box(0, 255, (4, 4), np.uint8), np.full((4, 4), 256), r"\(4, 4\) int64, expected \(4, 4\) uint8"),
        (IMAGES.observation, np.zeros(3), "got ndarray, expected a dict with 'gear', 'picture', 'speed'"),
        (IMAGES.observation, {"gear": 1}, "got the parts 'gear', expected a dict with"),
        (
            IMAGES.observation,
            {"gear": 1, "picture": np.zeros((2, 12, 10, 3), np.uint8), "speed": np.zeros(2, np.float32)},
            r"parts of the shapes .*'picture': \(2, 12, 10, 3\)",
        ),
    ],
)
def test_an_observation_of_another_space_is_named_with_the_one_expected(space, obs, message):
    agent = small_agent("dqn", Spaces(space, Discrete(3)))
    with pytest.raises(ValueError, match=message):
        policy_of(agent).act(obs)


def test_observations_that_mean_the_same_are_taken():
    """Floats of another size, integers that fit, lists, and nested parts as a run flattens them."""
    policy = policy_of(small_agent("dqn", FREE))
    obs = np.array([0.5, -1.0, 2.0])
    assert policy.act(obs) == policy.act(obs.tolist()) == policy.act(obs.astype(np.float32))
    assert policy.act([1, 0, -3]) == policy.act(np.array([1, 0, -3], np.int8)) == policy.act([1.0, 0.0, -3.0])
    nested = Spaces(Dict({"0": NUMBERS, "1/a": Discrete(4)}), Discrete(3))
    policy = policy_of(small_agent("dqn", nested))
    flat = {"0": obs, "1/a": 2}
    assert policy.act(flat) == policy.act((obs, {"a": np.int8(2)}))


# a run's


def test_a_run_s_policies_are_loaded_without_its_environment(cartpole, monkeypatch):
    monkeypatch.setattr(gymnasium, "make_vec", None)
    monkeypatch.setattr(sw, "Store", None)
    best, last = sw.Policy.load(cartpole), sw.Policy.load(str(cartpole), "last")
    assert (best.checkpoint, last.checkpoint, last.steps) == ("best", "last", 1_500)
    assert best.figures["mean"] == np.mean(best.figures["scores"])
    saved = sw.Policy.load(cartpole, "1500")
    obs = sampled(last.observation_space, 50)
    np.testing.assert_array_equal(saved.act(obs), last.act(obs))
    assert "dqn of CartPole-v1" in repr(best) and last.env is not None and last.env.name == "CartPole-v1"
    alone = sw.Policy.load(cartpole / "last.safetensors")  # the file says all
    np.testing.assert_array_equal(alone.act(obs), last.act(obs))
    with pytest.raises(ValueError, match="expected best, last or the steps"):
        sw.Policy.load(cartpole, "77")
    with pytest.raises(ValueError, match="which is no run's folder"):
        sw.Policy.load(cartpole / "last.safetensors", "best")


def test_a_run_whose_policies_do_not_say_their_spaces(cartpole, tmp_path):
    """Files of before: the environment is made once."""
    old = tmp_path / "run"
    shutil.copytree(cartpole, old)
    for name in ("best.safetensors", "last.safetensors"):
        weights, figures = load_policy(old / name)
        del figures[POLICY]
        save_policy(old / name, weights, figures)
    obs = sampled(sw.Policy.load(cartpole).observation_space, 50)
    np.testing.assert_array_equal(sw.Policy.load(old).act(obs), sw.Policy.load(cartpole).act(obs))
    with pytest.raises(ValueError, match="names no agent"):
        sw.Policy.load(old / "best.safetensors")


def test_loading_leaves_torch_s_generator_alone(cartpole):
    before = torch.get_rng_state()
    sw.Policy.load(cartpole)
    assert torch.equal(before, torch.get_rng_state())


def test_a_stack_of_vectors_is_taken_as_the_environment_gives_it(tmp_path):
    recipe = load_recipe("cartpole").override(steps=300, warmup_steps=100, stack=3, stop_reward=None, evaluate_every=0)
    run("cartpole", recipe, tmp_path / "run", Console(file=io.StringIO()))
    policy: Any = sw.Policy.load(tmp_path / "run")
    assert policy.observation_space.shape == (3, 4) and policy.agent.spaces.observation.shape == (12,)
    again = sw.Policy.load(policy.save(tmp_path / "copy"))
    obs = sampled(policy.observation_space, 20)
    np.testing.assert_array_equal(policy.act(obs), again.act(obs))
    assert sw.evaluate(again, episodes=2).scores == sw.evaluate(policy, episodes=2).scores


# evaluation


class OwnBox(Box):
    """Space of an environment's own class."""


def test_scores_of_an_evaluation(cartpole):
    policy = sw.Policy.load(cartpole)
    played = sw.evaluate(policy, episodes=12, seed=5)
    assert played == sw.evaluate(cartpole, episodes=12, seed=5) == sw.evaluate(policy, "CartPole-v1", 12, 5)
    assert len(played.scores) == 12 and played.mean == np.mean(played.scores) and played.std == np.std(played.scores)
    low, high = played.interval
    half = 1.96 * played.std / np.sqrt(12)  # that of a normal distribution is near
    assert low < played.mean < high and high - low == pytest.approx(2 * half, rel=0.25)
    assert f"mean {played.mean:.2f}" in str(played) and "of 12 episodes" in str(played)
    assert sw.evaluate(policy, episodes=12, seed=5, epsilon=1.0).mean < 60
    with pytest.raises(ValueError, match="episodes: got 0"):
        sw.evaluate(policy, episodes=0)
    with pytest.raises(ValueError, match="seed: got -1"):
        sw.evaluate(policy, seed=-1)
    with pytest.raises(ValueError, match=r"observations are Box.*\(2,\).*expected the Box.*\(4,\)"):
        sw.evaluate(policy, "MountainCar-v0", episodes=1)


def test_environments_that_a_program_gives(cartpole):
    """An object, which stays open, a vector, and a function."""
    policy, env = sw.Policy.load(cartpole), gymnasium.make("CartPole-v1")
    played = sw.evaluate(policy, env, episodes=3, seed=5, epsilon=0.0)
    alone = sw.evaluate(policy, lambda: gymnasium.make("CartPole-v1"), episodes=1, seed=5, epsilon=0.0)
    assert played.scores[0] == alone.scores[0] and len(played.scores) == 3
    env.reset()  # still open
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    assert len(sw.evaluate(policy, vector, episodes=5).scores) == 5
    with pytest.raises(ValueError, match=r"observations are Box.*expected the Box"):
        sw.evaluate(policy, gymnasium.make("Acrobot-v1"), episodes=1)
    own_space = gymnasium.wrappers.TransformObservation(env, lambda obs: obs, OwnBox(-1, 1, (4,)))
    assert space_table(OwnBox(-1, 1, (4,))) == space_table(Box(-1, 1, (4,)))
    assert len(sw.evaluate(policy, own_space, episodes=1).scores) == 1
    own = sw.train(env, "dqn", steps=200, warmup_steps=100, out=cartpole.parent / "own", progress=False).policy
    with pytest.raises(ValueError, match="was an object of the program that trained the policy; give one"):
        sw.evaluate(own, episodes=1)
    assert len(sw.evaluate(own, env, episodes=2).scores) == 2


def test_sb3_s_evaluation_gives_the_same_scores(cartpole):
    """evaluate_policy of Stable-Baselines3, whose environments are seeded alike."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    policy = sw.Policy.load(cartpole)
    env = make_vec_env("CartPole-v1", n_envs=10, seed=33)
    found, _ = evaluate_policy(policy, env, n_eval_episodes=20, return_episode_rewards=True, warn=False)
    ours = sw.evaluate(policy, episodes=20, seed=33, epsilon=0.0)
    assert sorted(found) == sorted(ours.scores) and np.mean(found) == ours.mean
    mean, _ = evaluate_policy(policy, gymnasium.make("CartPole-v1"), n_eval_episodes=1, warn=False)
    assert mean > 0


def test_enjoyed_as_rl_zoo_does(cartpole):
    """Its loop over a vector of one environment."""
    from stable_baselines3.common.env_util import make_vec_env

    policy, env = sw.Policy.load(cartpole), make_vec_env("CartPole-v1", n_envs=1, seed=0)
    obs, lstm_states, episode_start, ends = env.reset(), None, np.ones((1,), bool), 0
    for _ in range(600):
        action, lstm_states = policy.predict(obs, state=lstm_states, episode_start=episode_start, deterministic=True)
        obs, _, done, _ = env.step(action)
        episode_start, ends = done, ends + int(done[0])
    assert ends


# files


@pytest.mark.slow
def test_a_saved_folder_is_loaded_without_the_run(cartpole, tmp_path):
    policy = sw.Policy.load(cartpole)
    folder, file = policy.save(tmp_path / "pole"), policy.save(tmp_path / "pole.sharpwave")
    assert sorted(os.listdir(folder)) == ["README.md", "policy.json", "policy.safetensors"]
    assert (folder / "policy.safetensors").read_bytes() == file.read_bytes()
    said = json.loads((folder / "policy.json").read_text())
    assert said["policy"]["agent"]["kind"] == "dqn" and said["policy"]["env"]["name"] == "CartPole-v1"
    assert said["steps"] == policy.steps and said["policy"]["sharpwave"] == sw.__version__
    obs = sampled(policy.observation_space, 20)
    expected = policy.act(obs).tolist()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(folder, elsewhere / "it")
    np.save(elsewhere / "obs.npy", obs)
    code = (
        "import numpy, sharpwave as sw; policy = sw.Policy.load('it'); "
        "print(policy.act(numpy.load('obs.npy')).tolist()); print(sw.evaluate(policy, episodes=2).scores)"
    )
    here = {**os.environ, "PYTHONPATH": str(Path(sw.__file__).parents[1])}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=elsewhere, env=here, capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.splitlines() == [str(expected), str(sw.evaluate(policy, episodes=2).scores)]
    again = sw.Policy.load(file).save(tmp_path / "again")
    assert (again / "policy.safetensors").read_bytes() == file.read_bytes()


def test_the_model_card(cartpole, tmp_path):
    import yaml

    policy = sw.Policy.load(cartpole)
    text = (policy.save(tmp_path / "pole") / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    head = yaml.safe_load(front)
    assert head["tags"][-2:] == ["dqn", "CartPole-v1"]
    metric = head["model-index"][0]["results"][0]["metrics"][0]
    assert metric["value"].startswith(f"{policy.figures['mean']:.2f} ±")
    assert body.startswith("\n# dqn for CartPole-v1\n") and "| `hidden_units` | `" in body
    assert "policy.act(obs)" in body and "predict" not in body
    bare = policy_of(small_agent("r2d2")).save(tmp_path / "bare") / "README.md"
    assert "policy.predict(obs, state" in bare.read_text() and "model-index" not in bare.read_text()


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("![x](http://e)", r"!\[x\](http://e)"),
        ("a|b`c`*d*", r"a\|b\`c\`\*d\*"),
        ("x\n---\n# evil", "x --- # evil"),
        ("&lt;", "&amp;lt;"),
        ("my_env/Big_Maze-v0", r"my\_env/Big\_Maze-v0"),
    ],
)
def test_names_of_environments_are_text_in_the_model_card(name, heading):
    agent = small_agent("sac")
    env = Gymnasium(name=name)
    text = model_card(Policy(agent, agent.spaces.observation, agent.spaces.action, env=env))
    assert f"\n# sac for {heading}\n" in text and text.count("\n# ") == 1
    outside = "".join(re.split(r"```.*?```|`[^`\n]*`", text.split("---\n", 2)[2], flags=re.DOTALL))
    assert "<script" not in outside and "![x]" not in outside.replace("\\[", "")


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    policy = policy_of(small_agent("sac"))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        policy.save(tmp_path)
    with pytest.raises(ValueError, match=r"ends in \.sharpwave"):
        policy.save(tmp_path / "it.zip")
    assert os.listdir(tmp_path) == ["notes.txt"]
    first = policy.save(tmp_path / "it")
    changed = policy_of(small_agent("sac", seed=1)).save(tmp_path / "it")
    obs = sampled(policy.observation_space, 40)
    assert first == changed and (sw.Policy.load(first).act(obs) != policy.act(obs)).any()


def test_a_save_that_was_interrupted_is_made_up_for(tmp_path, monkeypatch):
    """Each write fails once; the folder is no policy's then, and saving again completes it."""
    policy, written = policy_of(small_agent("sac")), write_bytes
    for failing in ("policy.safetensors", "README.md", "policy.json"):
        folder = tmp_path / failing.partition(".")[2]

        def write(path, content, failing=failing):
            if path.name == failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written(path, content)

        with monkeypatch.context() as patch:
            for module in ("policies", "checkpoints"):
                patch.setattr(f"sharpwave.training.{module}.write_bytes", write)
            with pytest.raises(OSError):
                policy.save(folder)
        with pytest.raises(ValueError):
            sw.Policy.load(folder)
        (folder / ".policy.json.0123abcd.partial").write_bytes(b"{")  # of a process that was killed
        assert sw.Policy.load(policy.save(folder)).agent.settings == policy.agent.settings
    for name in ("README.md", "policy.safetensors"):  # a person's
        other = tmp_path / name.partition(".")[0]
        other.mkdir()
        (other / name).write_text("mine")
        with pytest.raises(ValueError, match="holds other files"):
            policy.save(other)


def test_names_of_files_and_folders(tmp_path, monkeypatch):
    policy = policy_of(small_agent("sac"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for name in ("model-v1.5", "a.b.c", "run.2026-11-29"):
        assert policy.save(f"~/{name}") == tmp_path / name and (tmp_path / name).is_dir()
        assert sw.Policy.load(f"~/{name}").steps == policy.steps
    assert policy.save("~/it.sharpwave").is_file()
    for name in ("it.zip", "it.pt", "it.onnx"):
        with pytest.raises(ValueError, match=rf"got '{name}', expected a name that ends in"):
            policy.save(tmp_path / name)
    with pytest.raises(ValueError, match="holds other files"):
        policy.save("~")


def test_a_damaged_file_is_refused(tmp_path):
    """Any flipped bit, any cut, and files of two policies in one folder."""
    policy = policy_of(small_agent("dqn", FREE))
    path = policy.save(tmp_path / "it.sharpwave")
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for at in [*range(12), *rng.integers(0, len(whole), 60).tolist(), len(whole) - 1]:
        damaged(path, at, 1 << int(rng.integers(8)))
        with pytest.raises(ValueError, match=r"policy .*it\.sharpwave.* is damaged"):
            sw.Policy.load(path)
        path.write_bytes(whole)
    for size in (0, 7, 8, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="is damaged"):
            sw.Policy.load(path)
    path.write_bytes(whole + b"more")
    with pytest.raises(ValueError, match="is damaged"):
        sw.Policy.load(path)
    folder = policy.save(tmp_path / "folder")
    for name, match in (("policy.json", r"policy\.json"), ("policy.safetensors", "is damaged")):
        kept = (folder / name).read_bytes()
        for at in rng.integers(0, len(kept), 20).tolist():
            damaged(folder / name, at, 1 << int(rng.integers(7)))
            with pytest.raises((ValueError, NewerVersionError), match=match):
                sw.Policy.load(folder)
            (folder / name).write_bytes(kept)
    other = policy_of(small_agent("sac")).save(tmp_path / "other")
    shutil.copy(other / "policy.json", folder / "policy.json")
    with pytest.raises(ValueError, match=r"of another policy than policy\.safetensors"):
        sw.Policy.load(folder)
    (folder / "policy.safetensors").unlink()
    with pytest.raises(ValueError, match="does not exist"):
        sw.Policy.load(folder)
    os.mkfifo(folder / "policy.safetensors")
    with pytest.raises(ValueError, match="cannot be read"):
        sw.Policy.load(folder)


def test_a_file_of_another_size_than_its_header_says_is_not_read(tmp_path):
    """Sparse files, of sizes that no memory has."""
    path = policy_of(small_agent("dqn", FREE)).save(tmp_path / "it.sharpwave")
    whole = path.stat().st_size
    for size in (3 << 30, 1 << 40):
        os.truncate(path, size)
        with pytest.raises(ValueError, match=rf"is damaged: {size:,} bytes, expected {whole:,} by its header"):
            sw.Policy.load(path)
    path.write_bytes((1 << 29).to_bytes(8, "little"))
    os.truncate(path, 1 << 40)
    with pytest.raises(ValueError, match="a header of 536,870,912 bytes"):
        sw.Policy.load(path)


def truly_large(path, change, size=3_000_000_000):
    """Make a sparse file of a policy of the size that its header says, which ``change`` changes before."""
    policy_of(small_agent("dqn", FREE)).save(path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    tensors = json.loads(content[8 : 8 + length])
    about = tensors.pop("__metadata__")
    text, checksum = json.loads(about["about"])
    figures = json.loads(text)
    change(figures[POLICY], tensors, size)
    header = json.dumps({"__metadata__": {"about": json.dumps([json.dumps(figures), checksum])}, **tensors}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + max(one["data_offsets"][1] for one in tensors.values()))


def more(about, tensors, size):
    """Add a tensor that no network of the description has."""
    end = max(one["data_offsets"][1] for one in tensors.values())
    tensors["more"] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}


def longer(about, tensors, size):
    """Give a tensor of the right shape bytes for another one."""
    name, begin = max(((name, one["data_offsets"][0]) for name, one in tensors.items()), key=lambda one: one[1])
    tensors[name]["data_offsets"] = [begin, begin + size]


def large(about, tensors, size):
    """Describe an agent of a large network, and the tensors that it has."""
    about["agent"]["hidden_units"] = units = 18_000
    about["agent"]["network"] = "mlp"
    end = 0
    for one in tensors.values():
        one["shape"] = [units if side == SMALL["hidden_units"] else side for side in one["shape"]]
        begin, end = end, end + 4 * int(np.prod(one["shape"]))
        one["data_offsets"] = [begin, end]


def unknown(about, tensors, size):
    """Describe an agent that no program here has."""
    about["agent"]["kind"] = "nobody"
    more(about, tensors, size)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (more, r"weights more: got shape \(3000000000,\), expected none"),
        (longer, r"weights policy.*: got 3,000,000,000 bytes, expected at most"),
        (unknown, "got kind 'nobody', expected one of"),
    ],
)
def test_a_large_file_is_checked_against_its_description_before_it_is_read(change, message, tmp_path, monkeypatch):
    def load(content):
        raise AssertionError("its tensors were read")

    monkeypatch.setattr("sharpwave.training.checkpoints.load", load)
    monkeypatch.setattr("sharpwave.training.checkpoints.bytearray", load, raising=False)
    truly_large(tmp_path / "it.sharpwave", change)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message):
            sw.Policy.load(tmp_path / "it.sharpwave")
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_a_file_larger_than_the_memory_is_an_error_that_says_so(tmp_path):
    truly_large(tmp_path / "it.sharpwave", large)
    code = (
        "import resource, sharpwave as sw, torch; sw.Policy; used = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = used * resource.getpagesize() + (1 << 30)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "try: sw.Policy.load('it.sharpwave')\n"
        "except ValueError as error: print(error)"
    )
    here = {**os.environ, "PYTHONPATH": str(Path(sw.__file__).parents[1])}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=here, capture_output=True, text=True, timeout=120, check=True
    )
    assert "is larger than the memory that is left" in ran.stdout


def rewritten(path, change):
    """Change the description of a policy's file; its checksums hold."""
    weights, figures = load_policy(path)
    change(figures[POLICY], weights)
    save_policy(path, weights, figures)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about, weights: about["agent"].update(hidden_units=1 << 40), "more than 1,073,741,824 numbers"),
        (lambda about, weights: about["agent"].update(hidden_units=9), r"weights policy.*: got shape .*expected shape"),
        (lambda about, weights: weights.popitem(), "weights .*: got none, expected shape"),
        (lambda about, weights: weights.update(more=torch.zeros(2)), "weights more: got shape .*, expected none"),
        (
            lambda about, weights: weights.update({name: one.long() for name, one in weights.items()}),
            r"weights policy.*: got torch\.int64, expected torch\.float32",
        ),
        (
            lambda about, weights: weights.update({name: one.bool() for name, one in weights.items()}),
            r"weights policy.*: got torch\.bool, expected torch\.float32",
        ),
        (
            lambda about, weights: about.update(
                observation={"kind": "Dict", "spaces": {f"{i}": about["observation"] for i in range(20_000)}}
            ),
            "20,001 parts, expected at most 1,024",
        ),
        (lambda about, weights: about["agent"].update(kind="nobody"), "got kind 'nobody', expected one of"),
        (lambda about, weights: about["agent"].update(kind="sac"), "cannot be loaded"),
        (lambda about, weights: about["agent"].update(unheard=1), "unknown settings unheard"),
        (lambda about, weights: about["observation"].update(shape=[1 << 30]), "bytes, expected at most"),
        (lambda about, weights: about["observation"].update(shape=[-3]), "expected an integer"),
        (lambda about, weights: about["observation"].update(shape="x"), "describes no Box"),
        (lambda about, weights: about["observation"].update(dtype="O"), "expected numbers"),
        (lambda about, weights: about["observation"].update(low=[0.0] * 9), "9 bounds for the shape"),
        (lambda about, weights: about["observation"].update(low="lowest"), "describes no Box"),
        (lambda about, weights: about["action"].update(n=1 << 61), "cannot be loaded"),
        (lambda about, weights: about.update(action=[]), "got kind 'None'"),
        (lambda about, weights: about.pop("agent"), "cannot be loaded"),
        (lambda about, weights: about.update(env={"kind": "nowhere"}), "cannot be loaded"),
    ],
)
def test_a_file_that_lies_under_a_checksum_that_holds(change, message, tmp_path):
    path = policy_of(small_agent("dqn", FREE)).save(tmp_path / "it.sharpwave")
    rewritten(path, change)
    with pytest.raises(ValueError, match=message):
        sw.Policy.load(path)


@pytest.mark.parametrize("steps", [-5, "7", 3.7, 1e30, float("nan"), True, None, 1 << 70])
def test_steps_that_are_none(steps, tmp_path):
    path = policy_of(small_agent("dqn", FREE)).save(tmp_path / "it.sharpwave")
    weights, figures = load_policy(path)
    save_policy(path, weights, {**figures, "steps": steps})
    with pytest.raises(ValueError, match=r"steps: got .*, expected a whole number of at least 0"):
        sw.Policy.load(path)


def test_a_file_of_a_later_release(tmp_path):
    path = policy_of(small_agent("dqn")).save(tmp_path / "it.sharpwave")
    weights, figures = load_policy(path)
    save_policy(path, weights, {**figures, "version": 99})
    with pytest.raises(NewerVersionError, match=r"it\.sharpwave: version 99"):
        sw.Policy.load(path)


def test_names_of_tensors_are_no_paths(tmp_path):
    """What a file calls its tensors writes nothing."""
    path = policy_of(small_agent("dqn", FREE)).save(tmp_path / "it.sharpwave")
    rewritten(path, lambda about, weights: weights.update({"../../outside": torch.zeros(2)}))
    before = sorted(tmp_path.parent.iterdir())
    with pytest.raises(ValueError, match=r"weights \.\./\.\./outside: got shape"):
        sw.Policy.load(path)
    assert sorted(tmp_path.parent.iterdir()) == before
    (tmp_path / "foreign.sharpwave").write_bytes(save({"a": torch.zeros(2)}))
    with pytest.raises(ValueError, match="is damaged"):
        sw.Policy.load(tmp_path / "foreign.sharpwave")


def test_a_module_is_imported_only_by_trust(tmp_path):
    policy = policy_of(small_agent("dqn", FREE))
    path = policy.save(tmp_path / "it.sharpwave")
    env = {"kind": "gymnasium", "name": "planted_here:Env-v0"}
    rewritten(path, lambda about, weights: about.update(env=env))
    loaded = sw.Policy.load(path)
    with pytest.raises(ValueError, match=r"would import the module 'planted_here'.*nothing was imported"):
        sw.evaluate(loaded, episodes=1)
    with pytest.raises(ValueError, match="no module 'planted_here'"):
        sw.evaluate(sw.Policy.load(path, trust=True), episodes=1)
    with pytest.raises(ValueError, match="names no environment"):
        sw.evaluate(policy, episodes=1)


@pytest.mark.parametrize(
    "space",
    [
        NUMBERS,
        Box(np.array([-0.1, 0], np.float32), np.array([1e-7, np.inf], np.float32)),
        Box(0, 1, (10, 10, 4), np.bool_),  # type: ignore[arg-type]
        Box(-(2**63), 2**63 - 1, (2,), np.int64),
        Box(-1, 1, (), np.float64),
        IMAGES.observation,
        Dict({"z": Discrete(2), "a": Dict({"b": MultiBinary((2, 3))})}),
        Tuple([Discrete(5, start=-3), MultiBinary(4)]),
        MultiDiscrete([3, 2], dtype=np.int8, start=[1, -2]),
        MultiDiscrete(np.array([[3, 2], [4, 1]])),
    ],
    ids=str,
)
def test_spaces_survive_json(space):
    again = space_of(json.loads(json.dumps(space_table(space), sort_keys=True)))
    assert again == space and again.dtype == space.dtype
    with pytest.raises(ValueError, match="expected Box, Discrete"):
        space_table(gymnasium.spaces.Text(4))
    size = MAX_SPACE_BYTES // 4 + 1
    with pytest.raises(ValueError, match="expected at most"):
        space_of({"kind": "Box", "shape": [size], "dtype": "float32", "low": 0, "high": 1})
