"""Recipes are whole, frozen, and refuse what does not fit by its name on the command line."""

import dataclasses
import json
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

from sharpwave.agents.dqn import DQN
from sharpwave.agents.registry import kinds
from sharpwave.configuration import Checked, again, leaves, setting
from sharpwave.training import setup
from sharpwave.training.recipes import load_recipe, recipe_names, tables
from sharpwave.training.recipes.recipe import Atari, Gymnasium, Recipe, parse_lines, parse_size, resumable


@pytest.mark.parametrize("name", tables())
def test_recipes_survive_json(name):
    recipe = load_recipe(name)
    assert Recipe.from_table(recipe.to_table()) == recipe


def test_recipes_that_were_never_run_to_a_score_say_so():
    named = {name for name, about in recipe_names().items() if "Experimental" in about}
    tasks = ("pendulum", "acrobot", "lunarlander", "bipedalwalker")
    zoo = {f"{task}-{kind}" for kind in ("ppo", "a2c") for task in tasks}
    in_100_000_steps = ("data-efficient-rainbow", "der", "drq", "spr", "sr-spr")
    atari = {"rainbow", "iqn", "drqn", "r2d2-atari", "r2d3-atari", *in_100_000_steps}
    assert named == zoo | atari | {"simba", "tqc", "redq", "droq", "rlpd"}


def test_a_recipe_has_the_settings_of_another_but_for_its_own():
    pong, dqn, apex = load_recipe("pong"), load_recipe("pong-dqn"), load_recipe("apex")
    assert dqn.env == pong.env and dqn.agent.kind == "dqn" and apex.agent.network == dqn.agent.network == "small"
    assert (apex.replay.capacity, apex.actors.count, apex.training.steps) == (100_000, 2, pong.training.steps)
    assert apex.agent == replace(dqn.agent, replay=apex.agent.replay, exploration=apex.agent.exploration)


@pytest.mark.parametrize("recipe", [Recipe(env=Atari()), Recipe(env=Gymnasium()), load_recipe("rainbow")])
def test_every_setting_says_what_it_is_and_has_an_option_of_its_own(recipe):
    settings = list(leaves(recipe))
    for leaf in settings:
        assert leaf.field.metadata["help"] and leaf.field.metadata["group"], leaf.key
    assert len({leaf.flag for leaf in settings}) == len({leaf.key for leaf in settings}) == len(settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "l1"}, "--loss: got 'l1', expected one of huber, mse"),
        ({"gamma": 1.5}, "--gamma: got 1.5, expected from 0 to 1"),
        ({"batch_size": 0}, "--batch-size: got 0, expected at least 1"),
        ({"num_envs": 10**9}, "--num-envs: got 1000000000, expected from 1 to 65536"),
        ({"stack": 10**9}, "--stack: got 1000000000, expected from 1 to 64"),
        ({"frame": "84"}, "--frame: got '84', expected height x width"),
        ({"frame": "5x84"}, "--frame: got '5x84', expected height x width of at least 8x8 pixels"),
        ({"frame": "84xx"}, "--frame: got '84xx', expected positive integers"),
        ({"crop": "194:34"}, "--crop: got '194:34', expected first:last"),
        ({"warmup_steps": 11, "capacity": 10}, "--warmup-steps: got 11, expected at most the capacity of 10 steps"),
        ({"learning_rate": 0.0}, "--learning-rate: got 0.0, expected above 0"),
        ({"prioritized": True, "beta_steps": 0}, "--beta-steps: got 0, expected at least 1"),
        ({"epsilon_end": -1.0}, "--epsilon-end: got -1.0, expected from 0 to 1"),
        ({"average_decay": 1.0}, "--average-decay: got 1.0, expected at least 0 and below 1"),
        (
            {"evaluate_every": 0, "stop_reward": 1.0},
            "--evaluate-every: got 0, .*needs it .--set evaluation.stop_reward=null",
        ),
        ({"standardize": True, "network": "mlp"}, "--standardize: got True, expected a network for images"),
        ({"warp_drive": 1}, "unknown settings warp_drive, expected some of env, num_envs"),
    ],
)
def test_errors_name_the_option(changes, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Recipe().override(**changes)


@pytest.mark.parametrize(
    ("recipe", "changes", "needs"),
    [
        ("minatar-rainbow", {"atoms": 21}, "--atoms: got 21, which has no effect here; it needs --head c51"),
        ("rainbow", {"quantiles": 8}, "--quantiles: .* it needs --head qr or --head iqn"),
        ("minatar-rainbow", {"late_fractions": True}, "--late-fractions: .* it needs --head iqn"),
        ("rainbow", {"loss": "mse"}, "--loss: got 'mse', which has no effect here; it needs --head expected"),
        ("rainbow", {"huber_delta": 2.0}, "--huber-delta: .* it needs --head qr or --head iqn or --head expected"),
        ("rainbow", {"head": "expected", "loss": "mse", "huber_delta": 2.0}, "--huber-delta: .* --loss huber"),
        ("rainbow", {"epsilon_end": 0.1}, "--epsilon-end: .* it needs --no-noisy or --noisy-epsilon"),
        ("rainbow", {"noisy": False, "noisy_sigma": 0.1}, "--noisy-sigma: .* it needs --noisy"),
        ("rainbow", {"munchausen_lowest": -2.0}, "--munchausen-lowest: .* it needs --munchausen above 0"),
        ("rainbow", {"augmentations": 2}, "--augmentations: .* it needs --random-shift or --random-intensity above 0"),
        ("rainbow", {"self_prediction_weight": 5.0}, "--self-prediction-weight: .* it needs --self-prediction above 0"),
        ("rainbow", {"reset_keeps": 0.5}, "--reset-keeps: .* it needs --reset-every above 0"),
        ("rainbow", {"act_by_target": True, "average_decay": 0.9}, "--average-decay: .* it needs --no-act-by-target"),
        ("pong", {"double": False}, "--double: .* it needs --munchausen 0"),
        ("gymnasium", {"dueling_baseline": "max"}, "--dueling-baseline: .* it needs --dueling"),
        ("gymnasium", {"target_every": 500}, "--target-every: .* it needs --target-tau 0"),
        ("tmaze", {"learning_rate_steps": 500}, "--learning-rate-steps: .* it needs --learning-rate-end"),
        ("pong-dqn", {"priority_alpha": 0.5}, "--priority-alpha: .* it needs --prioritized"),
        ("tmaze", {"beta_steps": 500}, "--beta-steps: .* it needs --beta-end"),
        ("drqn", {"eta": 0.5}, "--eta: .* it needs --prioritized"),
        ("pong", {"temperature_end": 0.5}, "--temperature-end: .* it needs --explore softmax"),
        ("minatar-pqn", {"explore": "softmax", "epsilon_end": 0.5}, "--epsilon-end: .* it needs --explore epsilon"),
        ("minatar", {"stop_worst": 1.0}, "--stop-worst: .* it needs --stop-reward"),
        ("minatar", {"evaluate_every": 0, "evaluate_beside": True}, "--evaluate-beside: .* it needs --evaluate-every"),
        ("pong", {"weights_every": 100}, "--weights-every: got 100, which has no effect here; it needs --actors"),
        ("pong", {"segment_steps": 64}, "--segment-steps: .* it needs --actors"),
        ("simba", {"hidden_layers": 3}, "--hidden-layers: got 3, .* it needs --blocks plain"),
        ("td3", {"blocks": "simba", "hidden_layers": 3}, "--hidden-layers: .* it needs --blocks plain"),
        ("cartpole-ppo", {"clip_together": True, "max_grad_norm": 0.0}, "--clip-together: .* it needs --max-grad-norm"),
        ("apex", {"actors": 0, "actor_restarts": 0}, "--actor-restarts: .* it needs --actors"),
    ],
)
def test_what_is_asked_for_has_an_effect(recipe, changes, needs):
    with pytest.raises(ValueError, match=needs):
        load_recipe(recipe).override(**changes)


def test_updates_are_the_steps_of_an_offline_run():
    assert load_recipe("calql").override(updates=500) == load_recipe("calql").override(steps=500)
    with pytest.raises(ValueError, match="unknown settings updates"):
        Recipe().override(updates=500)


def test_settings_that_a_recipe_has_anyway_may_lose_their_effect():
    recipe = load_recipe("minatar-rainbow")
    assert recipe.override(head="c51").agent.quantiles == 16  # which c51 does not use
    assert recipe.override(head="c51", quantiles=16, atoms=21).agent.atoms == 21
    assert load_recipe("pong").override(stop_reward=None, stop_worst=None).evaluation.stop_worst is None
    assert load_recipe("rainbow").override(noisy_epsilon=True, epsilon_end=0.1).agent.exploration.end == 0.1


def test_observations_without_images_are_not_standardized():
    recipe = load_recipe("gymnasium").override(standardize=True)
    env = recipe.env.make(1)
    with pytest.raises(ValueError, match="--standardize: got True, expected --no-standardize: no observation is an"):
        setup.agent(recipe, env)
    env.close()


def test_atoms_are_in_order():
    with pytest.raises(ValueError, match=r"--highest-return: got -20\.0, expected above the -10\.0 of"):
        load_recipe("rainbow").override(highest_return=-20.0)


def test_settings_that_fit_only_together_are_changed_together():
    recipe = Recipe().override(capacity=100, warmup_steps=100)
    assert (recipe.replay.capacity, recipe.training.warmup_steps) == (100, 100)
    assert recipe.override(capacity=50, warmup_steps=50).override(env="breakout").env == Atari("breakout")
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.training.steps = 5  # type: ignore[misc]


def test_a_config_of_another_version_is_refused_by_name():
    with pytest.raises(ValueError, match=r"unknown settings agent\.warp_drive"):
        Recipe.from_table({"agent": {"warp_drive": 1}})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"agent": {"kind": "genius"}}, "agent: got kind 'genius', expected one of .*dqn, "),
        ({"env": {"kind": "minecraft"}}, "env: got kind 'minecraft', expected one of atari, gymnasium"),
        ({"training": 5}, "setting training: got int, expected a table of settings"),
        ({"training": {"steps": "many"}}, r"setting training\.steps: got 'many', expected int"),
        ({"agent": {"replay": {"gamma": True}}}, r"setting agent\.replay\.gamma: got True, expected float"),
    ],
)
def test_tables_of_another_kind_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        Recipe.from_table(table)


def test_a_table_says_which_of_several_kinds_it_is():
    recipe = Recipe.from_table({"env": {"kind": "gymnasium", "name": "Acrobot-v1"}, "agent": {"lr": 1}})
    assert recipe.env == Gymnasium("Acrobot-v1") and recipe.agent == DQN.Settings(lr=1.0)
    assert recipe.to_table()["env"]["kind"] == "gymnasium" and recipe.to_table()["agent"]["kind"] == "dqn"


def test_settings_that_a_resumed_run_may_change_are_settings():
    known = {leaf.name for leaf in leaves(Recipe())}
    assert set(resumable()) <= known and next(iter(resumable())) == "steps"


def test_an_algorithm_is_a_recipe_of_its_own_defaults():
    assert load_recipe("dqn") == Recipe(env=Gymnasium(), agent=DQN.Settings())
    with pytest.raises(ValueError, match=r"unknown recipe 'chess', expected one of cartpole, .*pong"):
        load_recipe("chess")


def test_sizes_and_lines():
    assert parse_size("84x84", "--obs") == (84, 84)
    assert parse_size("17", "--obs") == (17,)
    assert parse_lines("34:194", "--crop") == (34, 194)


@pytest.mark.nightly
def test_lunarlander_trains(tmp_path):
    """In a process of its own: Box2D warns as it is imported, and crashes where warnings are errors."""
    options = ("--steps", "400", "--warmup-steps", "200", "--out", str(tmp_path / "run"))
    command = [sys.executable, "-m", "sharpwave.cli", "train", "lunarlander", *options]
    subprocess.run(command, check=True, timeout=240, capture_output=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] >= 400 and summary["updates"] > 0


def test_numbers_of_numpy_are_those_of_python():
    values = {
        "steps": np.int64(300),
        "seed": np.uint8(7),
        "learning_rate": np.float32(0.5),
        "max_minutes": np.float64(2),
    }
    recipe = load_recipe("cartpole").override(**values)
    found = [recipe.training.steps, recipe.training.seed, recipe.agent.lr, recipe.training.max_minutes]
    assert found == [300, 7, 0.5, 2.0] and [type(one) for one in found] == [int, int, float, float]
    for name, value in (("steps", 300.5), ("steps", np.float64(300.5)), ("steps", True), ("seed", np.True_)):
        with pytest.raises(ValueError, match=f"setting {name}: got"):
            load_recipe("cartpole").override(**{name: value})


def test_a_setting_declared_again_has_another_default_and_is_else_the_same() -> None:
    @dataclass(frozen=True)
    class Given(Checked):
        lr: float = setting(1e-3, "learning rate", "Learning", flag="--learning-rate", above=0)

    @dataclass(frozen=True)
    class Other(Given):
        lr: float = again(Given, lr=0.5)

    (first,), (second,) = fields(Given), fields(Other)
    assert (Given().lr, Other().lr) == (1e-3, 0.5) and first.metadata == second.metadata
    with pytest.raises(ValueError, match=r"--learning-rate: got 0\.0, expected"):
        Other(lr=0)


AS_NUMPY = {int: np.uint64, float: np.float64, bool: np.bool_, str: np.str_}


def settings_of(recipe):
    """The settings of a recipe, nested ones included, outermost first."""
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            yield value
            yield from settings_of(value)


@pytest.mark.parametrize("kind", kinds())
def test_every_class_of_settings_takes_numpys_numbers_as_pythons(kind):
    """Made in Python, settings have no command line that would read them."""
    found = 0
    for settings in settings_of(load_recipe(kind)):
        plain = {
            field.name: value
            for field in dataclasses.fields(settings)
            if type(value := getattr(settings, field.name)) in (int, float, bool, str)
        }
        given = {name: AS_NUMPY[type(value)](value) for name, value in plain.items()}
        made = replace(settings, **given)
        assert {name: (getattr(made, name), type(getattr(made, name))) for name in plain} == {
            name: (value, type(value)) for name, value in plain.items()
        }
        found += len(plain)
    assert found > 30


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lr": "1e-3"}, "setting lr: got '1e-3', expected float"),
        ({"lr": np.ones(2)}, "setting lr: got ndarray, expected float"),
        ({"hidden_units": 64.5}, r"setting hidden_units: got 64\.5, expected int"),
        ({"hidden_units": True}, "setting hidden_units: got True, expected int"),
        ({"dueling": 1.5}, r"setting dueling: got 1\.5, expected bool"),
        ({"network": b"mlp"}, "setting network: got bytes, expected str"),
    ],
)
def test_settings_made_in_python_have_the_types_of_their_options(given, said):
    with pytest.raises(ValueError, match=said):
        DQN.Settings(**given)
    converted: dict[str, Any] = {"lr": np.float32(0.5), "hidden_units": 64.0}
    assert DQN.Settings(**converted) == DQN.Settings(lr=0.5, hidden_units=64)
