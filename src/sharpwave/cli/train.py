"""``sharpwave train RECIPE``: a command for each recipe, with an option for each setting."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from sharpwave.agents.registry import is_known
from sharpwave.cli.output import console, settings_table, summary_table
from sharpwave.configuration import Leaf, changed, choices, leaves
from sharpwave.escaping import printable
from sharpwave.training.recipes import OFFLINE, default_recipe, load_recipe, recipe_names
from sharpwave.training.recipes.recipe import Atari, resumable

if TYPE_CHECKING:
    from sharpwave.training.recipes.recipe import Recipe

WITH_RESUME = "With --resume"
FROM_FILE = "FILE"
"""In the place of a recipe's name: the recipe of a file, with an option for every setting too."""


class RecipeCommand(TyperCommand):
    """Command whose help text has names of options and defaults in full, on more lines where they are wide."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help text; typer would cut such names off, so that nobody could type them."""
        from typer import rich_utils

        def whole(highlighter: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def fold(text: Any) -> Any:
                highlighted = highlighter(text)
                highlighted.overflow = "fold"
                return highlighted

            return fold

        def whole_help(describe: Callable[..., Any]) -> Callable[..., Any]:
            def fold(**given: Any) -> Any:
                described = describe(**given)
                for text in described.renderables:  # a default's name, as no-late-fractions
                    text.overflow = "fold"
                return described

            return fold

        cutting = {"highlighter": whole, "negative_highlighter": whole, "_get_parameter_help": whole_help}
        before = {name: getattr(rich_utils, name) for name in cutting}
        try:
            for name, make in cutting.items():
                setattr(rich_utils, name, make(before[name]))
            super().format_help(ctx, formatter)
        finally:
            for name, one in before.items():
                setattr(rich_utils, name, one)


class RecipeGroup(TyperGroup):
    """Group of the recipes' commands. A recipe is imported only when its command runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(recipe_names())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a recipe's command for the help text, without importing the recipe."""
        names = recipe_names()
        return TyperCommand(cmd_name, help=names[cmd_name]) if cmd_name in names else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, *rest = args
        if name == FROM_FILE:
            from sharpwave.training.recipes.settings_files import read_recipe

            file = config_file(rest)
            assert file is not None  # parse_args has seen it
            stem, read = read_recipe(file, trust="--trust" in rest)
            explain_options_of_games(ctx, read, rest)
            return f"--config {name}", recipe_command(stem, read, alone=True), rest
        if name not in recipe_names():
            close = difflib.get_close_matches(name, recipe_names(), n=1)
            ctx.fail(
                f"unknown recipe {name!r}{f': did you mean {close[0]}? Expected' if close else ', expected'} one of "
                f"{', '.join(recipe_names())}; for other environments: "
                "sharpwave train atari --env GAME, sharpwave train gymnasium --env ID."
            )
        recipe = load_recipe(name)
        if name == "offline":
            recipe = of_algorithm(ctx, recipe, rest)
        explain_options_of_games(ctx, recipe, rest)
        return name, recipe_command(name, recipe), rest

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; ``--config FILE`` without a recipe's name is a command of its own. Explain which arguments
        ``--resume`` does not allow."""
        options = [argument.partition("=")[0] for argument in args]
        if "--resume" in options:
            allowed = [leaf.flag for leaf in resumable().values()]
            for before, option in zip(["", *args], options, strict=False):
                if option in recipe_names() and before != "--resume":
                    ctx.fail(
                        f"--resume takes the recipe from the run: sharpwave train --resume RUN, without {option!r}"
                    )
                if option.startswith("--") and option not in (*allowed, "--resume", "--trust", "--help"):
                    ctx.fail(f"{option} cannot be changed in a run that is resumed; expected only {', '.join(allowed)}")
        elif args and args[0] not in recipe_names() and config_file(args) is not None:
            for before, argument in zip(["", *args], args, strict=False):
                if argument in recipe_names() and not before.startswith("--"):
                    ctx.fail(f"the recipe's name comes first: sharpwave train {argument} --config FILE")
            args = [FROM_FILE, *args]
        rest: list[str] = super().parse_args(ctx, args)
        return rest


def explain_options_of_games(ctx: Any, recipe: Recipe, arguments: list[str]) -> None:
    """Fail with an explanation if arguments give an option that only Atari games have to a recipe of others."""
    games = {leaf.flag for leaf in leaves(Atari())} - {leaf.flag for leaf in leaves(recipe)}
    for argument in arguments:
        option = argument.partition("=")[0]
        if option.replace("--no-", "--", 1) in games:
            ctx.fail(
                f"{option} is an option of Atari games by name (sharpwave train atari --env pong); a Gymnasium id, "
                "ALE/Pong-v5 included, is played with its own settings"
            )


def config_file(arguments: list[str]) -> Path | None:
    """Return the file that arguments give with ``--config``, the last one; None: they give none."""
    file = value_of("--config", arguments)
    return None if file is None else Path(file)


def value_of(wanted: str, arguments: list[str]) -> str | None:
    """Return the value that arguments give an option, the last one; None: they give none."""
    found = None
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        option, equals, value = argument.partition("=")
        if option == wanted and (equals or following):
            found = value if equals else following
    return found


def of_algorithm(ctx: Any, recipe: Recipe, arguments: list[str]) -> Recipe:
    """Return recipe ``offline`` with the algorithm that arguments name, whose settings become options."""
    kind = value_of("--algorithm", arguments)
    if kind is None or kind == recipe.agent.kind:
        return recipe
    if is_known(kind) and (found := default_recipe(kind)).offline:
        return found
    ctx.fail(f"--algorithm: got {kind!r}, expected one that learns offline: {', '.join(OFFLINE)}")
    raise AssertionError("fail raises")


app = typer.Typer(
    cls=RecipeGroup,
    help="Train an agent: by a recipe, by a file of settings (--config FILE), or from a run's newest checkpoint "
    "(--resume RUN). Each setting is an option: sharpwave train RECIPE --help, or --config FILE --help, lists them. "
    "Options override --set, which overrides the file.",
    no_args_is_help=True,
    invoke_without_command=True,
    subcommand_metavar="RECIPE [OPTIONS]",
)

OUT = Annotated[
    Path | None,
    typer.Option("--out", help="folder of the run; default runs/<recipe>-<time>-<seed>", rich_help_panel="Run"),
]
CONFIG = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="file of settings: TOML, YAML, or another run's config.json",
        rich_help_panel="Run",
    ),
]
SET = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="one setting by its path, for example agent.lr=1e-4", rich_help_panel="Run"
    ),
]
TRUST = Annotated[
    bool, typer.Option("--trust", help="import the module named by the file or the run as MODULE:ENV, and run its code")
]
OF_OFFLINE: dict[str, Any] = {
    "algorithm": Annotated[
        str,
        typer.Option(
            "--algorithm",
            help=f"{' or '.join(OFFLINE)}; give it before --help to list its settings",
            rich_help_panel="Data",
        ),
    ],
    "updates": Annotated[
        int | None,
        typer.Option("--updates", min=1, help="updates to make; another name of --steps", rich_help_panel="Run"),
    ],
}
"""Further options of recipe ``offline``."""


def group(
    ctx: typer.Context,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="resume the run in this folder from its newest checkpoint"),
    ] = None,
    out: OUT = None,
    config: CONFIG = None,
    set_values: SET = [],  # noqa: B006 - typer reads it
    trust: TRUST = False,
    **values: Any,
) -> None:
    """Resume a run, or refuse options that belong behind a recipe's name."""
    changes = {name: value for name, value in values.items() if value is not None}
    if resume is not None:
        resume_run(resume, changes, trust)
    elif trust:
        ctx.fail("--trust needs a run, --resume RUN, or a file, --config FILE, to trust")
    elif changes or out or config or set_values:
        own = {"--out": out, "--config": config, "--set": set_values}
        given = [resumable()[name].flag for name in changes] + [flag for flag, value in own.items() if value]
        ctx.fail(f"{given[0]} comes after the recipe's name, or with --resume RUN or --config FILE")
    elif ctx.invoked_subcommand is None:
        ctx.fail(f"expected a recipe ({', '.join(recipe_names())}), --config FILE or --resume RUN")


def recipe_command(name: str, recipe: Recipe, *, alone: bool = False) -> Any:
    """Make a command with an option for each setting of a recipe; options that are given change the recipe.

    Args:
        alone: the recipe is that of the file that --config names.
    """

    def command(
        ctx: typer.Context,
        out: OUT = None,
        config: CONFIG = None,
        set_values: SET = [],  # noqa: B006 - typer reads it
        trust: TRUST = False,
        **values: Any,
    ) -> None:
        from sharpwave.training.recipes.settings_files import check_effects, read_recipe, values_of

        # Compared by name: typer vendors click, so click's own enum is another one.
        given = {key: value for key, value in values.items() if ctx.get_parameter_source(key).name == "COMMANDLINE"}  # type: ignore[union-attr]
        given.pop("algorithm", None)  # the recipe has it already
        chosen = recipe if config is None else read_recipe(config, recipe, trust=trust)[1]
        changes = values_of(chosen, set_values, **given)
        if config is None and is_known(name):
            chosen = fitted_to(name, chosen, changes)
        chosen = chosen.change(changes)
        if config is not None:
            check_effects(config, None if alone else recipe, chosen)
        train(name, chosen, out)

    further = {"algorithm": recipe.agent.kind, "updates": None} if recipe.offline else {}
    options = {name: (OF_OFFLINE[name], default) for name, default in further.items()}
    options |= {leaf.name: (option(leaf), leaf.value) for leaf in leaves(recipe)}
    single = typer.Typer(add_completion=False)
    single.command(name, cls=RecipeCommand, help=recipe_names().get(name, "Train by the settings of a file."))(
        with_options(command, options)
    )
    return typer.main.get_command(single)


def fitted_to(name: str, recipe: Recipe, changes: Mapping[tuple[str, ...], Any]) -> Recipe:
    """Return an algorithm's settings for a run of ``changes``, as ``sharpwave.train`` has them."""
    from sharpwave.training.recipes.suited import fitted, is_general

    env = changed(recipe.env, {path[1:]: value for path, value in changes.items() if path[0] == "env"})
    return fitted(recipe, changes) if not recipe.offline and is_general(name, env) else recipe


def option(leaf: Leaf, *, optional: bool = False) -> Any:
    """Declare the typer option of a setting; an ``optional`` one is None where it is not given."""
    about = leaf.field.metadata
    named = choices(leaf.field)
    kind = Literal[named] if named else leaf.hint
    names = f"{leaf.flag}/--no-{leaf.flag[2:]}" if kind is bool else leaf.flag
    return Annotated[
        kind | None if optional else kind, typer.Option(names, help=about["help"], rich_help_panel=about["group"])
    ]


def with_options(function: Callable[..., None], options: Mapping[str, tuple[Any, Any]]) -> Callable[..., None]:
    """Put options, annotations and defaults by name, in the place of ``**values`` of the signature that typer reads."""
    own = [one for one in inspect.signature(function, eval_str=True).parameters.values() if one.name != "values"]
    made = {name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in options}
    own += [made[name].replace(annotation=one, default=default) for name, (one, default) in options.items()]
    function.__annotations__ = {one.name: one.annotation for one in own}
    function.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return function


def _of_resume(leaf: Leaf) -> Any:
    about = typer.Option(leaf.flag, help=leaf.field.metadata["help"], rich_help_panel=WITH_RESUME)
    return Annotated[leaf.hint | None, about]


app.callback()(with_options(group, {name: (_of_resume(leaf), None) for name, leaf in resumable().items()}))


def train(name: str, recipe: Recipe, out: Path | None) -> None:
    from sharpwave.training.run import run

    shown = console()
    shown.print(settings_table(name, recipe))
    _end(shown, lambda: run(name, recipe, out, shown))


def resume_run(folder: Path, changes: dict[str, Any], trust: bool) -> None:
    from sharpwave.training.run import resume

    shown = console()
    _end(shown, lambda: resume(folder, changes, shown, trust=trust))


def _end(console: Any, train: Callable[[], tuple[Path, dict[str, Any]]]) -> None:
    """Train and print the summary.

    Exit with 1 if the run failed or its last checkpoint was not saved, with 130 after Ctrl-C.
    """
    from sharpwave.serve.supervisor import ProcessDiedError
    from sharpwave.training.callbacks import CallbackError, exit_by_signal
    from sharpwave.training.checkpoints import NotSavedError

    try:
        folder, summary = train()
        console.print(summary_table(folder, summary), crop=False)
        exit_by_signal(summary["reason"])
    except (CallbackError, NotSavedError, ProcessDiedError) as error:
        with contextlib.suppress(OSError):  # the terminal may be closed
            typer.echo(f"sharpwave: {printable(str(error))}", err=True)
        raise typer.Exit(1) from error
