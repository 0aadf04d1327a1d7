"""Recipes are whole, frozen, and refuse what does not fit by its name on the command line."""

import dataclasses

import pytest

from sharpwave.training.recipes import RECIPES, Recipe, parse_lines, parse_size


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_survive_json(name):
    _, recipe = RECIPES[name]
    assert Recipe.from_dict(recipe.to_dict()) == recipe


def test_every_setting_says_what_it_is():
    for field in dataclasses.fields(Recipe):
        assert field.metadata["help"] and field.metadata["group"], field.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "l1"}, "--loss: got 'l1', expected one of huber, mse"),
        ({"gamma": 1.5}, "--gamma: got 1.5, expected from 0 to 1"),
        ({"batch_size": 0}, "--batch-size: got 0, expected at least 1"),
        ({"frame": "84"}, "--frame: got '84', expected height x width"),
        ({"frame": "84xx"}, "--frame: got '84xx', expected positive whole numbers"),
        ({"crop": "194:34"}, "--crop: got '194:34', expected first:last"),
        ({"warmup_steps": 11, "capacity": 10}, "--warmup-steps: got 11, expected at most the capacity of 10 steps"),
        ({"learning_rate": 0.0}, "--learning-rate: got 0.0, expected above 0"),
    ],
)
def test_errors_name_the_option(changes, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Recipe(**changes)


def test_a_config_of_another_version_is_refused_by_name():
    with pytest.raises(ValueError, match="unknown settings warp_drive"):
        Recipe.from_dict({"warp_drive": 1})


def test_sizes_and_lines():
    assert parse_size("84x84", "--obs") == (84, 84)
    assert parse_size("17", "--obs") == (17,)
    assert parse_lines("34:194", "--crop") == (34, 194)
