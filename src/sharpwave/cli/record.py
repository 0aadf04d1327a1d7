"""``sharpwave record ENV --out FOLDER``: record episodes, as demonstrations for an agent."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer


def record(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="a recipe, whose environment is played (lock), an Atari game (breakout), or a Gymnasium id",
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder to write, which must be new or empty")],
    policy: Annotated[
        Path | None, typer.Option(metavar="RUN", help="play by a run's best policy, in the run's environment")
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="play by FUNCTION(rng), called at each episode's start, which returns a function obs -> action",
        ),
    ] = None,
    keyboard: Annotated[bool, typer.Option("--keyboard", help="play yourself, in a window")] = False,
    episodes: Annotated[int, typer.Option(min=1, help="episodes to record")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="seed of the environment, the script and random actions")] = 0,
    epsilon: Annotated[float, typer.Option(min=0.0, max=1.0, help="probability of a random action")] = 0.0,
    trust: Annotated[
        bool, typer.Option("--trust", help="let the run's config.json import the module that it names as MODULE:ENV")
    ] = False,
) -> None:
    """Record episodes into a store's folder, and print every score.

    Ctrl-C ends the recording; whole episodes are kept.
    """
    from sharpwave.cli.stream import console as standard_output
    from sharpwave.training import recording, setup
    from sharpwave.training.scores import Episode
    from sharpwave.training.signals import caught_signals
    from sharpwave.training.text import byte_text, quoted

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

    def tell(episode: Episode) -> None:
        nonlocal count
        count += 1
        say(f"episode {count:3d}  score {episode.reward:g}  {episode.steps:,} steps")

    recipe = _recipe(env, policy, trust)
    with ExitStack() as stack:
        stack.enter_context(setup.arithmetic(recipe))
        made = setup.environments(recipe, 1, render=keyboard)
        stack.callback(made.close)
        player: Any
        if policy is not None:
            from sharpwave.training.evaluation import chosen_checkpoint, with_policy

            figures, agent = with_policy(setup.agent(recipe, made), policy, chosen_checkpoint(policy, None))
            say(f"Playing by the weights of step {figures['steps']:,}")
            player = recording.PolicyPlayer(agent)
        elif script is not None:
            begin = recording.load_script(script)
            player = recording.ScriptPlayer(begin, made.single_action_space, seed, script)
        else:
            from sharpwave.training.keyboard import Keyboard

            player = Keyboard(made)
            stack.callback(player.close)
            say(player.help)
        interrupted = stack.enter_context(caught_signals())
        found = recording.record(
            made, player, out, episodes=episodes, seed=seed, epsilon=epsilon, tell=tell, interrupted=interrupted
        )
    if not found.episodes:
        typer.echo("sharpwave: no episode ended; nothing was written", err=True)
        raise typer.Exit(1)
    mean = sum(one.reward for one in found.episodes) / len(found.episodes)
    say(
        f"{len(found.episodes)} episodes, {found.steps:,} steps, mean score {mean:.2f}; {byte_text(found.nbytes)} in "
        f"{quoted(out)}"
    )
    if (command := _training(env, recipe)) is not None:
        say(f"learn from them: sharpwave train {command} --demonstrations {quoted(out)}")


def _training(env: str, recipe: Any) -> str | None:
    """Return the arguments that train an agent in this environment from demonstrations; None: it needs a recipe."""
    from sharpwave.training.recipes import RECIPES, load_recipe

    if env in RECIPES and hasattr(load_recipe(env).agent, "demonstrations"):
        return env
    return f"r2d3 --env {recipe.env.name}" if recipe.env.kind == "gymnasium" else None


def _recipe(env: str, policy: Path | None, trust: bool) -> Any:
    """Return a recipe with the environment ``env``; with a policy, that of its run.

    Raises:
        ValueError: an unknown environment, or the run is of another one.
    """
    from sharpwave.envs import games
    from sharpwave.training.config import read_config
    from sharpwave.training.evaluation import chosen_checkpoint
    from sharpwave.training.recipes import RECIPES, load_recipe
    from sharpwave.training.recipes.environments import Atari, Gymnasium
    from sharpwave.training.recipes.recipe import Recipe

    if policy is not None:
        chosen_checkpoint(policy, None)  # raises where there is no run
        config = read_config(policy, trust=trust)
        if env not in (config.name, config.recipe.env.name):
            raise ValueError(
                f"record: run {str(policy)!r} plays {config.recipe.env.name}, not {env}; expected "
                f"sharpwave record {config.recipe.env.name}"
            )
        return config.recipe.override(device="cpu", threads=1)
    if env in RECIPES:
        return load_recipe(env).override(threads=1)
    return Recipe(env=Atari(env) if env in games() else Gymnasium(env)).override(threads=1)
