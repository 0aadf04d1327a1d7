"""``sharpwave inspect PATH``, ``sharpwave verify PATH``: contents of a store's folder, and its damage."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sharpwave.cli.episode_pictures import image_field, write_picture
from sharpwave.cli.output import STORE_PATH, bytes_bar, check_out, table
from sharpwave.cli.output import console as standard_output
from sharpwave.errors import DamagedError
from sharpwave.escaping import escaped, quoted
from sharpwave.json_values import decode, encode
from sharpwave.showing import byte_text, number_text
from sharpwave.training.folder import replay_of

if TYPE_CHECKING:
    from sharpwave.offline.surveys import EpisodeSpan, Survey

ROWS = 16
"""Limit of listed lanes, and of listed region files; --json lists all."""
SHOWN = 100
"""Limit of printed damages, and of printed notes; a file full of garbage may have millions."""
BINS = 10
BAR = 40


def inspect(
    path: STORE_PATH,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
    episode: Annotated[int | None, typer.Option(min=0, help="choose an episode by its number, from 0")] = None,
    best: Annotated[bool, typer.Option("--best", help="choose the whole episode with the highest return")] = False,
    last: Annotated[bool, typer.Option("--last", help="choose the whole episode that ended last")] = False,
    out: Annotated[
        Path | None, typer.Option(help="write the chosen episode's frames: a contact sheet (.png) or a film (.gif)")
    ] = None,
    field: Annotated[str | None, typer.Option(help="field of the observation to draw; default the first image")] = None,
    frames: Annotated[
        int | None, typer.Option(min=1, help="frames to draw, evenly spaced; default 24 in .png, all in .gif")
    ] = None,
    fps: Annotated[float, typer.Option(min=1, max=100, help="frames a second of a .gif")] = 30,
) -> None:
    """Show the contents of a store's folder: schema, lanes, episodes, and the size of every field.

    Nothing is changed, and the store may be in use. Episodes are numbered from 0 in the order of their ends;
    lengths and returns are those of whole ones. Rows that were flushed but not sealed yet are counted too.
    """
    chosen = [name for name, given in (("--episode", episode is not None), ("--best", best), ("--last", last)) if given]
    if len(chosen) > 1:
        raise ValueError(f"inspect: {' and '.join(chosen)} choose an episode each; give one of them")
    from sharpwave.offline.surveys import survey
    from sharpwave.persistence.checkpoint_file import folder_of

    path = replay_of(path)
    if out is not None:
        if not chosen:
            raise ValueError("--out needs an episode; also give --best, --last or --episode N")
        check_out(out, ".png", ".gif")
        if path.resolve() in out.resolve().parents:
            raise ValueError(f"--out: {str(out)!r} is in the store's folder, which is only read; give another folder")
    with folder_of(path) as folder:
        with bytes_bar("reading") as progress:
            try:
                found = survey(folder, progress)
            except OSError as error:
                raise ValueError(f"inspect: {error}") from error
        name = None if out is None else image_field(found.described.spec, field)
        number = choose(found.episodes, episode, best) if chosen else None
        if as_json:
            described = describe(found)
            if number is not None:
                described["episode"] = episode_row(number, found.episodes[number])
            print(json.dumps(described, indent=1))
        elif number is None:
            show(found)
        else:
            print(episode_text(number, found.episodes[number]))
        if out is not None and name is not None and number is not None:
            count = write_picture(found, number, name, out, frames, fps)
            if not as_json:
                print(f"{count:,} frames: {out}")


def choose(episodes: list[EpisodeSpan], number: int | None, best: bool) -> int:
    """Return the number of the episode that was asked for.

    Raises:
        ValueError: no such episode.
    """
    if not episodes:
        raise ValueError("inspect: the store holds no episode yet")
    if number is not None:
        if number >= len(episodes):
            raise ValueError(f"--episode: got {number}, expected from 0 to {len(episodes) - 1}")
        return number
    whole = [n for n, one in enumerate(episodes) if one.whole]
    if not whole:
        raise ValueError("inspect: no episode is complete; choose one by --episode N")
    return max(whole, key=lambda n: (episodes[n].total, n)) if best else whole[-1]


def episode_row(number: int, one: EpisodeSpan) -> dict[str, Any]:
    return {
        "number": number,
        "lane": one.lane,
        "first_step": one.first_step,
        "steps": one.steps,
        "return": one.total,
        "end": one.end,
        "begun": one.begun,
        "annotations": dict(one.annotations),
    }


def episode_text(number: int, one: EpisodeSpan) -> str:
    begun = "" if one.begun else ", beginning missing"
    said = f"\n{annotation_text(one.annotations)}" if one.annotations else ""
    return (
        f"Episode {number}: lane {one.lane}, steps {one.first_step:,} to {one.first_step + one.steps - 1:,} "
        f"({one.steps:,}), return {one.total:g}, {one.end}{begun}{said}"
    )


def annotation_text(values: Mapping[str, Any]) -> str:
    return escaped(", ".join(f"{key}: {value}" for key, value in decode(values).items()))


def spread(values: list[float]) -> dict[str, Any]:
    """Return mean, median, min, max (``None`` of nothing) and a histogram: ``edges`` [n + 1] and ``counts`` [n]."""
    import numpy as np

    array = np.array([value for value in values if np.isfinite(value)], np.float64)
    if not array.size:
        return {"mean": None, "median": None, "min": None, "max": None, "edges": [], "counts": []}
    low, high = float(array.min()), float(array.max())
    counted = max(-low, high) < 2**53  # beyond it not every whole number is a float64
    if counted and high - low < BINS and (array == np.round(array)).all():  # a bar for each value
        edges = np.arange(low, high + 2)
    elif high > low:
        edges = np.linspace(low, high, BINS + 1)
    else:
        edges = np.array([low, low])
    counts = np.histogram(array, edges)[0] if high > low else np.array([array.size])
    found = {"mean": statistics.fmean(array), "median": statistics.median(array.tolist()), "min": low, "max": high}
    return found | {"edges": edges.tolist(), "counts": counts.tolist()}


def describe(found: Survey) -> dict[str, Any]:
    from sharpwave.persistence.versions import versions_in

    described, later, trouble, sizes = found.described, found.late, found.late.damage, {}
    try:
        sizes = found.late_sizes()
    except DamagedError as error:
        trouble = str(error)
    whole = [one for one in found.episodes if one.whole]
    ends = [one.end for one in found.episodes]
    taken = {
        name: {
            codec: {
                "columns": packed.columns,
                "steps": packed.steps,
                "bytes": packed.bytes,
                "bytes_per_step": packed.bytes / max(1, packed.steps),
                "raw_bytes": packed.raw_bytes,
                "ratio": packed.raw_bytes / max(1, packed.bytes),
            }
            for codec, packed in codecs.items()
        }
        for name, codecs in found.packed.items()
    }
    lanes = [
        {"lane": lane, **chain.described(), "gaps": [{"first_step": a, "steps": b - a} for a, b in chain.gaps]}
        for lane, chain in found.lanes.items()
    ]
    return {
        "path": str(found.folder),
        "store": described.identity.store.hex(),
        "fields": described.fields(),
        "columns": {
            name: {"shape": list(one.shape), "dtype": one.dtype, **sizes.get(name, {})}
            for name, one in later.fields.items()
        },
        "columns_trouble": trouble,
        "versions": [
            asdict(one) | {"folder": str(one.folder), "note": encode(one.note, "note")}
            for one in versions_in(found.folder)
        ],
        "annotations": described.annotations.manifest().get("annotations", {"store": {}, "lanes": {}}),
        "segment_steps": described.segment_steps,
        "limits": described.limits,
        "steps": found.steps,
        "deleted_steps": found.deleted_steps,
        "segments": len(found.segments),
        "lanes": lanes,
        "episodes": {
            "count": len(found.episodes),
            "whole": len(whole),
            **{end: ends.count(end) for end in ("terminated", "truncated", "unfinished")},
            "length": spread([one.steps for one in whole]),
            "return": spread([one.total for one in whole]),
        },
        "bytes": found.sizes() | {"fields": taken},
        "regions": [{"path": str(region.path), **region.described()} for region in found.regions],
        "damages": [damage_text(damage) for damage in found.damages],
    }


def show(found: Survey) -> None:
    """Print a survey of the store for people."""
    from rich.markup import escape

    console = standard_output()
    told = describe(found)
    sizes = told["bytes"]
    spec = found.described.spec
    kinds = {"rows of any length": spec.ragged_names, "shared values": spec.shared_names}
    apart = " and ".join(kind for kind, names in kinds.items() if names)
    but = f", but for {apart}" if apart else ""
    console.print(f"[bold]{told['steps']:,} steps[/] in {told['segments']:,} segments of {len(told['lanes']):,} lanes; "
                  f"{byte_text(sizes['segments'])}, {number_text(sizes['per_step'], 1)} bytes a step, "
                  f"{number_text(sizes['ratio'], 1)} times smaller than raw{but}", highlight=False)  # fmt: skip
    names = {"capacity": "steps", "ram": "bytes", "disk_limit": "bytes"}
    limits = [f"{name} {value:,} {names[name]}" for name, value in told["limits"].items() if value and name in names]
    console.print(f"Made with {', '.join(limits)}; seed {told['limits']['seed']}; up to {told['segment_steps']} steps "
                  "a segment", highlight=False)  # fmt: skip
    _show_annotations(console, told["annotations"])
    if told["deleted_steps"]:
        console.print(f"{told['deleted_steps']:,} further steps were deleted, and their segments have other steps, too",
                      highlight=False)  # fmt: skip
    fields = table("field", "shape", "dtype", "stack", "pad", "every", "codec", "shared")
    for name, one in told["fields"].items():
        shape = _shape(one)
        pad = one["pad"] if one["stack"] else "-"
        numbers = (str(one["stack"] or "-"), pad, str(one["every"] or "-"))
        shared = "yes" if one["shared"] else "-"
        fields.add_row(escape(escaped(name)), shape, one["dtype"], *numbers, one["codec"], shared)
    console.print(fields)
    for name, one in told["fields"].items():
        if one["metadata"]:
            line = f"{escaped(name)}: {annotation_text(one['metadata'])}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if told["columns"]:
        later = table("added later", "shape", "dtype", "values", "bytes")
        for name, one in told["columns"].items():
            sized = (f"{one['values']:,}", byte_text(one["bytes"])) if "values" in one else ("?", "?")
            later.add_row(escape(escaped(name)), _shape(one), one["dtype"], *sized)
        console.print(later)
    if trouble := told["columns_trouble"]:
        console.print(escaped(trouble), style="bold red", highlight=False, markup=False, soft_wrap=True)
    _show_versions(console, told["versions"])
    _show_bytes(console, told)
    _show_lanes(console, told)
    _show_episodes(console, told["episodes"])
    if found.damages:
        console.print(
            f"{len(found.damages):,} damages are not counted in these numbers; sharpwave verify "
            f"{quoted(found.folder)} names them",
            style="bold red",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _shape(told: dict[str, Any]) -> str:
    """Return the shape of a field as JSON in one word; rows of any length begin with "any", or with their limit."""
    first, *inner = told["shape"] or ["()"]
    if first is None:
        first = "any" if told["max_length"] is None else f"0-{told['max_length']}"
    return "x".join(map(str, (first, *inner)))


def _show_annotations(console: Any, told: dict[str, Any]) -> None:
    lines = [annotation_text(told["store"])] if told["store"] else []
    lines += [f"lane {lane}: {annotation_text(values)}" for lane, values in list(told["lanes"].items())[:ROWS]]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    _more(console, list(told["lanes"]), "lanes")


def _show_versions(console: Any, told: list[dict[str, Any]]) -> None:
    if not told:
        return
    from rich.markup import escape

    versions = table("version", "made", "steps", "parent", "note", left=5)
    for one in told[-ROWS:]:
        texts = (one["parent"] or "-", annotation_text(one["note"]))
        made = one["created"][:19].replace("T", " ")
        versions.add_row(one["name"], escape(escaped(made)), f"{one['steps']:,}", *(escape(escaped(t)) for t in texts))
    console.print(versions)
    _more(console, told, "versions")


def _show_bytes(console: Any, told: dict[str, Any]) -> None:
    from rich.markup import escape

    sizes, steps = told["bytes"], max(1, told["steps"])
    columns = table("packed", "codec", "steps", "bytes", "bytes a step", "smaller by", left=2)
    for name, codecs in sizes["fields"].items():
        for codec, one in codecs.items():
            row = (f"{one['steps']:,}", byte_text(one["bytes"]), number_text(one["bytes_per_step"], 1))
            columns.add_row(
                escape(escaped(name)), codec, *row, f"{number_text(one['ratio'], 1)} x" if one["raw_bytes"] else "-"
            )
    for name in ("overhead", "dictionaries"):
        columns.add_row(name, "", "", byte_text(sizes[name]), number_text(sizes[name] / steps, 1), "")
    if sizes["shared_values"]:  # also of evicted steps: no number of held ones divides them
        columns.add_row("shared values in all files", "", "", byte_text(sizes["shared_values"]), "-", "")
    console.print(columns)
    files = table("region file", "bytes", "used", "segments", "tails", "dictionaries")
    for one in told["regions"][:ROWS]:
        counts = (f"{one[name]:,}" for name in ("segments", "tails", "dictionaries"))
        files.add_row(escape(escaped(Path(one["path"]).name)), byte_text(one["bytes"]), byte_text(one["used"]), *counts)
    console.print(files)
    _more(console, told["regions"], "region files")


def _show_lanes(console: Any, told: dict[str, Any]) -> None:
    lanes = table("lane", "steps", "segments", "first step", "last step", "missing between")
    for one in told["lanes"][:ROWS]:
        missing = sum(gap["steps"] for gap in one["gaps"])
        counts = (f"{one[name]:,}" for name in ("steps", "segments", "first_step", "last_step"))
        lanes.add_row(str(one["lane"]), *counts, f"{missing:,}" if missing else "-")
    console.print(lanes)
    _more(console, told["lanes"], "lanes")


def _more(console: Any, rows: list[Any], what: str) -> None:
    if len(rows) > ROWS:
        console.print(f"  ... and {len(rows) - ROWS:,} more {what}; --json lists all\n", highlight=False)


def _show_episodes(console: Any, told: dict[str, Any]) -> None:
    console.print(
        f"[bold]{told['count']:,} episodes[/]: {told['terminated']:,} terminated, {told['truncated']:,} truncated, "
        f"{told['unfinished']:,} unfinished; {told['whole']:,} complete:",
        highlight=False,
    )
    for what in ("length", "return"):
        one = told[what]
        if not one["counts"]:
            continue
        numbers = "  ".join(f"{name} {number_text(one[name])}" for name in ("mean", "median", "min", "max"))
        console.print(f"\n[bold]{what}[/]  {numbers}", highlight=False)
        console.print("\n".join(histogram(one["edges"], one["counts"])), highlight=False, markup=False)


def histogram(edges: list[float], counts: list[int]) -> list[str]:
    """Return a line for each bin: its edge, a bar, the count."""
    labels = [f"{edge:,.6g}" for edge in edges[:-1]]
    width, largest = max(map(len, labels)), max(counts)
    blocks = " ▏▎▍▌▋▊▉"
    lines = []
    for label, count in zip(labels, counts, strict=True):
        eighths = max(round(count / largest * BAR * 8), count > 0)
        bar = "█" * (eighths // 8) + blocks[eighths % 8].strip()
        lines.append(f"  {label:>{width}}  {bar} {count:,}")
    return lines


def verify(path: STORE_PATH) -> None:
    """Read and decode everything in a store's folder, and list all damage.

    Nothing is changed, and the store may be in use. Checks every record's checksum, every segment's columns, every
    dictionary they refer to, every lane's chain of segments, and store.json.

    Exits with 0 if everything is intact, 1 if anything is damaged, 2 if there is no store.
    """
    from sharpwave.offline.folder_check import check
    from sharpwave.persistence.checkpoint_file import folder_of

    console, path = standard_output(), replay_of(path)
    try:
        with folder_of(path) as folder, bytes_bar("verifying") as progress:
            found = check(folder, progress)
    except OSError as error:
        raise ValueError(f"verify: {error}") from error
    counts = table("checked", "number", title=escaped(path))
    counts.add_column("", no_wrap=True)
    counts.add_row("region files", f"{found.files:,}", byte_text(found.bytes))
    counts.add_row("segments", f"{found.segments:,}", "sealed, decoded")
    counts.add_row("tails", f"{found.tails:,}", "rows of open segments")
    counts.add_row("superseded", f"{found.superseded:,}", "of the segments and tails, by later ones")
    for name in ("dictionaries", *(["shared_values"] if found.shared_values else []), "lanes", "steps"):
        counts.add_row(name.replace("_", " "), f"{getattr(found, name):,}", "")
    console.print(counts)

    def listed(lines: list[str], more: str) -> None:
        for line in lines[:SHOWN]:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if len(lines) > SHOWN:
            console.print(f"... and {len(lines) - SHOWN:,} more {more}", highlight=False)

    if found.notes:
        console.print("Notes (no damage):", style="bold")
        listed(found.notes, "notes")
    if not found.damages:
        console.print("Sound.", style="bold green")
        return
    console.print("Damaged:", style="bold red")
    listed([damage_text(damage) for damage in found.damages], "damages")
    console.print(
        f"{len(found.damages):,} damages. sharpwave.Store.open restores what is intact; files with nothing intact are "
        "moved to the folder quarantine.",
        highlight=False,
        soft_wrap=True,
    )
    raise typer.Exit(1)


def damage_text(damage: Any) -> str:
    return escaped(f"{damage.path}: byte {damage.offset:,}: {damage.what}; {damage.nbytes:,} bytes")
