"""Commands of ``sharpwave``. Slow imports are made only when a command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from sharpwave.cli import bench, data_sets, evaluate, plan, record, services, sql, store_folders, torture, train

app = typer.Typer(
    name="sharpwave",
    help="A compressed replay memory for deep reinforcement learning, and a trainer built on it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def sharpwave(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit (instead of a command).")
    ] = False,
) -> None:
    """Declare --version, which ``sharpwave.cli.main`` handles before it imports the commands' packages."""


app.add_typer(train.app, name="train")
app.command("eval")(evaluate.evaluate)
app.command("saliency")(evaluate.saliency)
app.command("record")(record.command)
app.command("plan")(plan.plan)
app.command("import")(data_sets.import_command)
app.command("export")(data_sets.export_command)
app.add_typer(bench.app, name="bench")
app.command("inspect")(store_folders.inspect)
app.command("verify")(store_folders.verify)
app.command("sql")(sql.sql)
app.command("serve")(services.serve)
app.command("actors")(services.actors)
app.command("torture")(torture.torture)
app.command("view")(services.view)
