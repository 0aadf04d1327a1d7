"""``sharpwave train RECIPE``: a command for every recipe, with an option for every setting."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer
from typer.core import TyperGroup

from sharpwave.cli.stream import console
from sharpwave.training.recipes import RECIPES, RESUMABLE, Recipe, flag
from sharpwave.training.text import printable


class RecipeGroup(TyperGroup):
    """Says which recipes there are when an unknown one is asked for, and what cannot be asked for with ``--resume``."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The recipe's command."""
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing:
            ctx.fail(
                f"unknown recipe {cmd_name!r}, expected one of {', '.join(RECIPES)}; "
                "for other Atari games: sharpwave train atari --env GAME."
            )
        return command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As ever, with a word on what does not go with ``--resume``."""
        options = [argument.partition("=")[0] for argument in args]
        if "--resume" in options:
            settings = {flag(field.name): field.name for field in dataclasses.fields(Recipe)} | {"--out": "out"}
            for before, option in zip(["", *args], options, strict=False):
                name = settings.get(option.replace("--no-", "--"))
                if option in RECIPES and before != "--resume":
                    ctx.fail(
                        f"--resume takes the recipe from the run: sharpwave train --resume RUN, without {option!r}"
                    )
                if name is not None and name not in RESUMABLE:
                    ctx.fail(
                        f"{option} cannot be changed in a run that is resumed; expected only "
                        f"{', '.join(map(flag, RESUMABLE))}"
                    )
        rest: list[str] = super().parse_args(ctx, args)
        return rest


app = typer.Typer(
    cls=RecipeGroup,
    help="Train an agent by a recipe; every setting of it is an option. Or go on with a run: --resume RUN.",
    no_args_is_help=True,
    invoke_without_command=True,
    subcommand_metavar="RECIPE [OPTIONS]",
)


def group_callback() -> Callable[..., None]:
    """A function that typer makes the group's own options of: ``--resume``, and the settings that go with it."""

    def callback(ctx: typer.Context, resume: Path | None, trust: bool, **values: Any) -> None:
        changes = {name: value for name, value in values.items() if value is not None}
        if resume is not None:
            resume_run(resume, changes, trust)
        elif trust:
            ctx.fail("--trust is about the run that is given with --resume RUN")
        elif changes:
            ctx.fail(f"{flag(next(iter(changes)))} comes after the recipe's name, or with --resume RUN")
        elif ctx.invoked_subcommand is None:
            ctx.fail(f"expected a recipe ({', '.join(RECIPES)}) or --resume RUN")

    hints = get_type_hints(Recipe)
    annotations: dict[str, Any] = {
        "resume": Annotated[
            Path | None,
            typer.Option(
                "--resume", metavar="RUN", help="go on with the run in this folder from its newest checkpoint"
            ),
        ],
        "trust": Annotated[
            bool,
            typer.Option("--trust", help="let the run's config.json import the module that it names as MODULE:ENV",
                         rich_help_panel="With --resume"),
        ],
    }  # fmt: skip
    for field in dataclasses.fields(Recipe):
        if field.name in RESUMABLE:
            annotations[field.name] = Annotated[
                hints[field.name] | None,
                typer.Option(flag(field.name), help=field.metadata["help"], rich_help_panel="With --resume"),
            ]
    return _with_options(callback, annotations, dict.fromkeys(annotations) | {"trust": False}, context=True)


def recipe_command(name: str, help: str, recipe: Recipe) -> Callable[..., None]:
    """A function whose parameters are the recipe's settings, which typer makes the options of a command of."""

    def command(**values: Any) -> None:
        out = values.pop("out")
        train(name, dataclasses.replace(recipe, **values), out)

    hints = get_type_hints(Recipe)
    annotations: dict[str, Any] = {
        "out": Annotated[
            Path | None,
            typer.Option("--out", help="folder of the run; default runs/<recipe>-<time>-<seed>", rich_help_panel="Run"),
        ]
    }
    defaults: dict[str, Any] = {"out": None}
    for field in dataclasses.fields(Recipe):
        kind = hints[field.name]
        if field.metadata["choices"]:
            kind = Literal[field.metadata["choices"]]
        option = flag(field.name)
        names = f"{option}/--no-{option[2:]}" if kind is bool else option
        annotations[field.name] = Annotated[
            kind, typer.Option(names, help=field.metadata["help"], rich_help_panel=field.metadata["group"])
        ]
        defaults[field.name] = getattr(recipe, field.name)
    command.__name__ = name
    command.__doc__ = help
    return _with_options(command, annotations, defaults)


def _with_options(
    function: Callable[..., None], annotations: dict[str, Any], defaults: dict[str, Any], context: bool = False
) -> Callable[..., None]:
    """Give a function of keywords the signature that typer reads its options from."""
    if context:
        annotations, defaults = {"ctx": typer.Context, **annotations}, {"ctx": inspect.Parameter.empty, **defaults}
    function.__annotations__ = annotations
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=defaults[key], annotation=annotation)
            for key, annotation in annotations.items()
        ]
    )
    return function


app.callback()(group_callback())
for _name, (_help, _recipe) in RECIPES.items():
    app.command(_name, help=_help)(recipe_command(_name, _help, _recipe))


def train(name: str, recipe: Recipe, out: Path | None) -> None:
    """Print the settings, train, print the summary."""
    from sharpwave.training.run import run

    shown = console()
    shown.print(settings_table(name, recipe))
    _end(shown, lambda: run(name, recipe, out, shown))


def resume_run(folder: Path, changes: dict[str, Any], trust: bool) -> None:
    """Go on with a run, print the summary."""
    from sharpwave.training.resume import resume

    shown = console()
    _end(shown, lambda: resume(folder, changes, shown, trust=trust))


def _end(console: Any, train: Callable[[], tuple[Path, dict[str, Any]]]) -> None:
    """Print what comes of it; exit with 1 where actors died too often, or the end could not be saved."""
    from sharpwave.training.actors.pool import ActorsDiedError
    from sharpwave.training.saving import NotSavedError

    try:
        console.print(summary_table(*train()), crop=False)
    except (ActorsDiedError, NotSavedError) as error:
        with contextlib.suppress(OSError):  # nobody may be there any more
            typer.echo(f"sharpwave: {printable(str(error))}", err=True)
        raise typer.Exit(1) from error


def settings_table(name: str, recipe: Recipe) -> Any:
    """The settings by group."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"Recipe {name}", title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    groups: dict[str, list[str]] = {}
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        shown = "-" if value is None or value == "" else f"{value:,}" if type(value) is int else str(value)
        groups.setdefault(field.metadata["group"], []).append(f"{field.name}={shown}")
    for group, settings in groups.items():
        table.add_row(f"[bold]{group}", Text("  ".join(settings)))
    return table


def evaluation_text(evaluation: dict[str, Any]) -> str:
    """An evaluation in a line."""
    count = len(evaluation["scores"])
    return (
        f"{evaluation['mean']:,.2f} (lowest {evaluation['min']:g}) of {count}, weights of step {evaluation['steps']:,}"
    )


def summary_table(folder: Path, summary: dict[str, Any]) -> Any:
    """What came of a run, to be printed with ``crop=False``."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from sharpwave.training.text import byte_text, duration_text, number_text, quoted

    ended = "Ended, " if summary["reason"].startswith("interrupted") else "Ended by "
    title = Text(printable(ended + summary["reason"]), style="table.title")
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    for name, key in (("held-out mean", "held_out"), ("on fresh seeds", "final")):
        if summary.get(key) is not None:
            table.add_row(name, evaluation_text(summary[key]))
    if summary.get("held_out") is None:
        table.add_row("held-out mean", "- (no evaluation was due, or worth it: --evaluate-every, --evaluate-from)")
    table.add_row("training mean of 100", number_text(summary["mean_reward"]))
    table.add_row("episodes", f"{summary['episodes']:,}")
    table.add_row("steps, updates", f"{summary['steps']:,}, {summary['updates']:,}")
    table.add_row("time", duration_text(summary["minutes"] * 60))
    replay = f"{summary['replay_steps']:,} steps in {byte_text(summary['replay_bytes'])}"
    table.add_row("replay memory", f"{replay}, {number_text(summary['bytes_per_step'], 1)} bytes a step")
    below = {"kept in": printable(str(folder)), "play it": f"sharpwave eval {quoted(folder)}"}
    if summary["reason"].startswith("interrupted"):
        below["go on with it"] = f"sharpwave train --resume {quoted(folder)}"
    # No cells, which would be cut off at the terminal's width: these are copied.
    lines = [Text(f" {name:<20}  {text}", no_wrap=True, overflow="ignore") for name, text in below.items()]
    return Group(table, *lines)
