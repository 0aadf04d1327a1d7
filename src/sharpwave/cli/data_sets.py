"""``sharpwave import SOURCE STORE`` and ``sharpwave export STORE TARGET``: data sets in and out."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sharpwave.data.episode import LastStep

if TYPE_CHECKING:
    from sharpwave.store import Store


def import_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="minari:NAME (a local data set), hdf5:FILE (D4RL, robomimic, ManiSkill, d3rlpy), hdf5:FOLDER (ALOHA), "
            "npz:FILE (the D4RL layout), parquet:FILE (an export), lerobot:FOLDER, rlds:FOLDER or zarr:FOLDER",
        ),
    ],
    store: Annotated[
        Path | None, typer.Argument(metavar="STORE", help="folder of a store, or a new one; none with --check")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="read the data and print the result of an import, without writing")
    ] = False,
    lane: Annotated[int | None, typer.Option(min=0, help="lane to append to \\[default: a new one]")] = None,
    capacity: Annotated[
        str | None, typer.Option(help="limit of a new store in steps, for example 1e6 \\[default: the data's]")
    ] = None,
    ram: Annotated[str | None, typer.Option(help="limit of its memory, for example 2GiB")] = None,
    disk_limit: Annotated[str | None, typer.Option(help="limit of its files, for example 50GiB")] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="lift the bounds on memory and time of strangers' files, and follow links in a folder"
        ),
    ] = False,
    last: Annotated[
        LastStep,
        typer.Option(
            help="meaning of RLDS's last steps: step (with an action and a reward), final (only the final "
            "observation), or auto, decided by the data"
        ),
    ] = "auto",
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="leave out damaged episodes, and list them")
    ] = False,
    episodes: Annotated[
        str | None,
        typer.Option(help="episodes to import, for example 0:10,15, or a filter key of robomimic \\[default: all]"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Import a data set into a store on disk. Repeat an interrupted import to continue it.

    Examples:

        sharpwave import minari:D4RL/door/human-v2 door/

        sharpwave import hdf5:halfcheetah.hdf5 cheetah/ --ram 1GiB

        sharpwave import --check npz:steps.npz

        sharpwave import hdf5:low_dim.hdf5 lift/ --episodes train
    """
    from sharpwave import loading
    from sharpwave.cli.plan import parse_count
    from sharpwave.escaping import quoted
    from sharpwave.showing import byte_text

    settings: dict[str, Any] = {"ram": ram, "disk_limit": disk_limit}
    settings["capacity"] = None if capacity is None else parse_count(capacity)
    given = {name: value for name, value in settings.items() if value is not None}
    reading: dict[str, Any] = {"progress": False if quiet else None, "trust": trust, "last": last}
    reading |= {"skip_damaged": skip_damaged, "episodes": episodes}
    if check:
        if store is not None or given or lane is not None:
            raise ValueError("--check writes nothing; leave out STORE, --lane and limits of the store")
        _tell(loading.check(source, **reading))
        return
    if store is None:
        raise ValueError("STORE is missing: give the folder of a store, or a new folder; or give --check, to read only")
    imported, note = loading.load_noting(source, disk=store, lane=lane, **reading, **given)
    with imported:
        stats = imported.stats()
        _tell(note)
        nbytes, held = stats["disk"]["bytes"], len(imported)
        before = "" if imported.spec.ragged_names else f", {stats['raw_bytes_per_step']:,.1f} before encoding"
        typer.echo(f"{quoted(store)}: {held:,} steps in {byte_text(nbytes)} of files")
        typer.echo(f"{stats['encoded_bytes_per_step']:,.1f} bytes a step{before}")
        if stats["evicted_steps"]:
            typer.echo(f"{stats['evicted_steps']:,} steps were evicted: the store's limits hold fewer")


def _tell(note: dict[str, Any]) -> None:
    """Print the notes of an import."""
    from sharpwave.escaping import printable

    read = note["audit"]["read"]
    typer.echo(f"{read['episodes']:,} episodes, {read['steps']:,} steps of {printable(note['name'])}")
    for one in note["left_out"]:
        typer.echo(f"left out: {printable(one)}")
    for one in note["skipped"]:
        typer.echo(f"skipped: {printable(one)}")
    if (more := note["skipped_episodes"] - len(note["skipped"])) > 0:
        typer.echo(f"skipped: {more:,} more damaged episodes")
    for one in note["notes"]:
        typer.echo(printable(one))
    for name, one in note["audit"].items():
        if name == "unselected":
            typer.echo(
                f"unselected: {one['episodes']:,} episodes, {one['steps']:,} steps, whose rewards and ends are not read"
            )
        elif one["steps"] or one["episodes"]:
            typer.echo(
                f"{name.replace('_', ' ')}: {one['episodes']:,} episodes, {one['steps']:,} steps, rewards of "
                f"{one['reward']:,.7g}; {one['terminated']:,} terminated, {one['truncated']:,} truncated, "
                f"{one['unmarked']:,} unmarked"
            )


def export_command(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="a store's folder, a checkpoint's folder, or its .sharpwave file")
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="minari:NAME, npz:FILE, hdf5:FILE (the D4RL layout) or parquet:FILE; it must be new"
        ),
    ],
    order: Annotated[str, typer.Option(help="oldest, newest, return or length")] = "oldest",
    lanes: Annotated[str | None, typer.Option(help="lanes to export, for example 0,3 \\[default: all]")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Export a store's whole episodes as a data set.

    Examples:

        sharpwave export replay/ npz:replay.npz

        sharpwave export ckpt/ minari:me/pong/dqn-v0 --order return
    """
    try:
        chosen = None if lanes is None else [int(one) for one in lanes.split(",")]
    except ValueError:
        raise ValueError(f"--lanes: got {lanes!r}, expected numbers such as 0,3") from None
    with ExitStack() as stack:
        opened = _opened(store, stack)
        held = opened.episodes(lanes=chosen)
        written = opened.export(target, order=order, lanes=chosen, progress=False if quiet else None)  # type: ignore[arg-type]
        typer.echo(f"{written:,} episodes in {target}")
        if written < len(held):
            typer.echo(f"left out: {len(held) - written:,} episodes without their first or last step")


def _opened(path: Path, stack: ExitStack) -> Store:
    """Open a store; a checkpoint of a store on disk in a folder of its own, so that it stays a checkpoint."""
    from sharpwave.disk.store_folder import read_manifest
    from sharpwave.persistence.checkpoint_file import folder_of
    from sharpwave.store import Store

    disk, folder = None, stack.enter_context(folder_of(path))
    if folder.is_dir():
        manifest = read_manifest(folder)
        if manifest.get("checkpoint") and manifest.get("on_disk"):
            try:
                made = tempfile.TemporaryDirectory(prefix=".export-", dir=path.absolute().parent)
            except OSError:  # it cannot be written to; the files are copied, not linked
                made = tempfile.TemporaryDirectory(prefix=".export-")
            disk = stack.enter_context(made)
    return stack.enter_context(Store.open(folder, disk=disk))
