"""``sharpwave record ENV --out FOLDER``: record episodes, as demonstrations for an agent."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sharpwave.cli.evaluate import TRUST
from sharpwave.cli.train import option, with_options
from sharpwave.configuration import Leaf, leaves
from sharpwave.training.recipes.recipe import Atari, Gymnasium

if TYPE_CHECKING:
    from sharpwave.training.recipes.recipe import Recipe

FROM_DEMONSTRATIONS = {"atari": "r2d3-atari", "gymnasium": "r2d3"}
"""Recipe that learns from demonstrations, by the kind of environment; continuous actions have another."""


def environment_options() -> dict[str, Leaf]:
    """Return the settings of every kind of environments, by option name, but for their number: one is played."""
    found = {leaf.name: leaf for settings in (Gymnasium(), Atari()) for leaf in leaves(settings)}
    return {name: leaf for name, leaf in found.items() if leaf.key != "num_envs"}


def record(
    what: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="a recipe, whose environment is played (lock), an Atari game (breakout), or a Gymnasium id",
        ),
    ],
    out: Annotated[Path, typer.Option(help="new or empty folder for the recording")],
    policy: Annotated[
        Path | None, typer.Option(metavar="RUN", help="a run's best policy plays, in the run's environment")
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="FUNCTION(rng), called at each episode's start, returns the player, a function obs -> action",
        ),
    ] = None,
    keyboard: Annotated[bool, typer.Option("--keyboard", help="you play, in a window")] = False,
    episodes: Annotated[int, typer.Option(min=1, help="episodes to record")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="seed of the environment, the script and random actions")] = 0,
    epsilon: Annotated[float, typer.Option(min=0.0, max=1.0, help="probability of a random action")] = 0.0,
    trust: TRUST = False,
    **values: Any,
) -> None:
    """Record episodes into a store's folder, and print every score.

    Ctrl-C ends the recording; whole episodes are kept.
    """
    from sharpwave.cli.output import console as standard_output
    from sharpwave.escaping import quoted
    from sharpwave.showing import byte_text
    from sharpwave.training import offline_data, recording, setup
    from sharpwave.training.callbacks import caught_signals, exit_by_signal
    from sharpwave.training.scores import EpisodeScore

    given = [name for name, one in (("--policy", policy), ("--script", script), ("--keyboard", keyboard)) if one]
    if len(given) != 1:
        raise ValueError(
            f"record: got {' and '.join(given) or 'no player'}, expected one of --policy RUN, --script "
            "FILE.py:FUNCTION and --keyboard"
        )
    recording.check_new(out)
    console = standard_output()

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    count = 0

    def tell(episode: EpisodeScore) -> None:
        nonlocal count
        count += 1
        say(f"episode {count:3d}  score {episode.reward:g}  {episode.steps:,} steps")

    recipe = _recipe(what, policy, trust, {name: value for name, value in values.items() if value is not None})
    with ExitStack() as stack:
        stack.enter_context(setup.arithmetic(recipe))
        made = recipe.env.make(1, render=keyboard)
        stack.callback(made.close)
        player: Any
        if policy is not None:
            from sharpwave.training.policies import Policy

            loaded = Policy.load(policy, device="cpu", trust=trust)
            loaded.check_env(made)
            say(f"Playing by the weights of step {loaded.steps:,}")
            player = recording.PolicyPlayer(loaded.agent)
        elif script is not None:
            begin = recording.load_script(script)
            player = recording.ScriptPlayer(begin, made.single_action_space, seed, script)
        else:
            player = recording.Keyboard(made)
            stack.callback(player.close)
            say(player.help)
        interrupted = stack.enter_context(caught_signals())
        found = recording.record(
            made, player, out, episodes=episodes, seed=seed, epsilon=epsilon, about=offline_data.about(recipe.env),
            tell=tell, interrupted=interrupted,
        )  # fmt: skip
    if not found.episodes:
        typer.echo("sharpwave: no episode ended; nothing was written", err=True)
        exit_by_signal(interrupted())
        raise typer.Exit(1)
    mean = sum(one.reward for one in found.episodes) / len(found.episodes)
    say(
        f"{len(found.episodes)} episodes, {found.steps:,} steps, mean score {mean:.2f}; {byte_text(found.nbytes)} in "
        f"{quoted(out)}"
    )
    say(f"learn from them: sharpwave train {_training(what, recipe, made)} --demonstrations {quoted(out)}")
    exit_by_signal(interrupted())


def _training(what: str, recipe: Recipe, made: Any) -> str:
    """Return the arguments that train an agent from demonstrations in this environment, ``made`` by the recipe."""
    from gymnasium.spaces import Box

    from sharpwave.training.offline_data import options
    from sharpwave.training.recipes import load_recipe, tables

    demonstrated = what in tables() and hasattr(load_recipe(what).agent, "demonstrations")
    continuous = isinstance(made.single_action_space, Box)
    name = what if demonstrated else "rlpd" if continuous else FROM_DEMONSTRATIONS[recipe.env.kind]
    own, usual = options(recipe.env), options(load_recipe(name).env)
    return " ".join([name, *(own[key] for key in own if key != "num_envs" and own[key] != usual[key])])


def _recipe(what: str, policy: Path | None, trust: bool, changes: dict[str, Any]) -> Recipe:
    """Return a recipe with the environment ``what``; with a policy, that of its run.

    Args:
        changes: settings of the environment, by option name.
    Raises:
        ValueError: an unknown environment, one that lacks a setting, or the run is of another one.
    """
    from sharpwave.envs import games
    from sharpwave.training.folder import chosen_checkpoint, read_config
    from sharpwave.training.recipes import load_recipe, tables
    from sharpwave.training.recipes.recipe import Recipe

    if policy is not None:
        chosen_checkpoint(policy, None)  # raises where there is no run
        config = read_config(policy, trust=trust)
        if what not in (config.name, config.recipe.env.name):
            raise ValueError(
                f"record: run {str(policy)!r} plays {config.recipe.env.name}, not {what}; expected "
                f"sharpwave record {config.recipe.env.name}"
            )
        recipe = config.recipe.override(device="cpu")
    elif what in tables():
        recipe = load_recipe(what)
    else:
        recipe = Recipe(env=Atari(what) if what in games() else Gymnasium(what))
    known = {leaf.name for leaf in leaves(recipe.env)}
    unknown = [environment_options()[name].flag for name in changes if name not in known]
    if unknown:
        raise ValueError(
            f"{unknown[0]} is an option of Atari games, and {recipe.env.name!r} is a Gymnasium id; expected the name "
            "of a game, as pong or breakout"
        )
    return recipe.override(threads=1, **changes)


command = with_options(
    record, {name: (option(leaf, optional=True), None) for name, leaf in environment_options().items()}
)
