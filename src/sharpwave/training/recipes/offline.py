"""Learning from data that are there before, in the environment that they name: modest settings, tuned on no task."""

from sharpwave.training.recipes.recipe import default_recipe

RECIPE = default_recipe("cql")
