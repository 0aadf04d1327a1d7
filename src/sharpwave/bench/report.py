"""Figures that follow from measured rounds, as tables for a terminal of 80 columns and as a picture.

A ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Results = dict[str, Any]

BATCHES = (32, 256)
MEASURES = ("add", *(f"{what} {batch}" for what in ("uniform", "prioritized") for batch in BATCHES))


def rates(results: Results, name: str, what: str) -> list[float]:
    """Return steps added or transitions sampled a second, by round."""
    return [one["calls"] * one["rows"] for one in results["contenders"][name]["rounds"].get(what, ())]


def ratios(results: Results, name: str, other: str, what: str) -> list[float]:
    """Return how many times as fast as ``other`` ``name`` is, by round."""
    # An interrupted round lacks some contenders.
    return [a / b for a, b in zip(rates(results, name, what), rates(results, other, what), strict=False)]


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return median, lowest and highest; ``None`` of nothing."""
    if not values:
        return None
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def summary(results: Results) -> Results:
    """Return bytes a step, rates and ratios of the first contender to each other one, and the trainer's rates."""
    names = list(results["contenders"])
    told: Results = {"contenders": {}, "ratios": {}, "limit": spread(results["limit"])}
    for name in names:
        fill = results["contenders"][name]["fill"]
        told["contenders"][name] = {
            "bytes_per_step": fill["filled_bytes"] / fill["steps"],
            **{what: spread(rates(results, name, what)) for what in MEASURES},
        }
    for name in names[1:]:
        mine, other = (told["contenders"][one]["bytes_per_step"] for one in (names[0], name))
        told["ratios"][name] = {
            "bytes_per_step": mine / other if other > 0 else None,
            **{what: spread(ratios(results, names[0], name, what)) for what in MEASURES},
        }
    slices = results.get("trainer", {}).get("slices", [])
    if slices:
        seconds = sum(one["seconds"] for one in slices)
        told["trainer"] = {
            "steps_per_second": spread([one["steps"] / one["seconds"] for one in slices]),
            "updates_per_second": spread([one["updates"] / one["seconds"] for one in slices]),
            "shares": {part: sum(one["parts"][part] for one in slices) / seconds for part in slices[0]["parts"]},
        }
    return told


SHORT = {"uniform": "uniform", "prioritized": "PER"}
HEADERS = {
    "add": "steps\nadded/s",
    **{f"{what} {batch}": f"{short}\n{batch}" for what, short in SHORT.items() for batch in BATCHES},
}


def count_text(value: float) -> str:
    """Format a count: 1234567 -> "1.23M"; 12345 -> "12.3k"; 123.4 -> "123"."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{unit}" if value < 999.5 * size else f"{value / size:,.0f}{unit}"
    return f"{value:.3g}"


def ratio_text(value: float) -> str:
    """Format a ratio: 0.815 -> "0.82x"; 12.34 -> "12.3x"; 172.2 -> "172x"."""
    return f"{value:.{2 if value < 1 else 1 if value < 99.95 else 0}f}x"


def spread_text(found: dict[str, float] | None, text: Callable[[float], str] = count_text) -> str:
    """Format a median with half the range from lowest to highest as a share of it: "412k ±3%"."""
    if found is None:
        return "-"
    median = found["median"]
    half = 50 * (found["high"] - found["low"]) / median
    return text(median) + (f" ±{half:.0f}%" if half else "")


def printed(results: Results) -> Iterator[Any]:
    """Yield the report's parts for a rich console to print."""
    told, contenders = results["summary"], results["contenders"]
    if contenders:
        yield _table(f"Replay memories: {results['data']['text']}", told["contenders"])
        rounds = max(len(one["rounds"].get("add", ())) for one in contenders.values())
        yield (
            "Steps added and transitions sampled a second, by batch size; PER: prioritized, priorities updated. "
            + (f"Medians of {rounds} rounds; ±: half their range." if rounds > 1 else "One round.")
        )
    if told["limit"]:
        yield f"Copying raw frames from random places, on all cores: {spread_text(told['limit'])} transitions a second."
    if told["ratios"]:
        yield ""
        yield _table(
            f"{next(iter(contenders))} to each: share of its memory, multiple of its speed", told["ratios"], True
        )
    for name, one in contenders.items():
        wrong = ", ".join(f"{share:.1%} of {part}" for part, share in one["fill"]["wrong"].items() if share)
        if wrong:
            yield f"{name} samples transitions that were never recorded: {wrong}"
    yield from _trainer(results)
    for name, why in {**results["absent"], **results["failed"]}.items():
        yield f"{name}: {why.removeprefix(f'{name}: ')}"
    where = results["environment"]
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items() if number != "absent")
    yield f"{where['machine']}; {versions}"
    if results["interrupted"]:
        yield "Interrupted: these are the figures up to then."


def _table(title: str, rows: dict[str, Any], ratio: bool = False) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_style="bold", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0
    )
    table.add_column("", no_wrap=True)
    for header in ("bytes\na step", *(HEADERS[what] for what in MEASURES)):
        table.add_column(header, justify="right", no_wrap=True)
    for name, one in rows.items():
        size = one["bytes_per_step"]
        size_text = "-" if size is None else f"{size:.1%}" if ratio else count_text(size)
        cells = [spread_text(one[what], ratio_text if ratio else count_text) for what in MEASURES]
        table.add_row(name, size_text, *cells, style="bold cyan" if name == "Sharpwave" else "")
    return table


def _trainer(results: Results) -> Iterator[str]:
    told = results["summary"].get("trainer")
    if told is None:
        return
    shares = sorted(told["shares"].items(), key=lambda one: -one[1])
    split = ", ".join(f"{part} {share:.0%}" for part, share in shares if share >= 0.005)
    trainer = results["trainer"]
    yield (
        f"Trainer, recipe {trainer['recipe']} on {trainer['env']}: {spread_text(told['steps_per_second'])} steps and "
        f"{spread_text(told['updates_per_second'])} updates a second; time: {split}."
    )


def figure(results: Results, path: Path) -> None:
    """Draw bars by contender: bytes a step, steps added and transitions sampled a second; whiskers from low to high."""
    from matplotlib.figure import Figure

    from sharpwave.training.atomic_files import replacing

    told = results["summary"]["contenders"]
    names = list(told)
    titles = {
        "bytes_per_step": "bytes a step",
        "add": "steps added a second",
        **{what: f"transitions a second, {what.replace(' ', ', batch ')}" for what in MEASURES[1:]},
    }
    shown = Figure(figsize=(11, 1.5 + 0.9 * len(names)), layout="constrained")
    axes: Any = shown.subplots(3, 2, sharey=True)
    for axis, (what, title) in zip(axes.flat, titles.items(), strict=True):
        found = [told[name][what] for name in names]
        if what == "bytes_per_step":
            found = [None if one <= 0 else {"median": one, "low": one, "high": one} for one in found]
            axis.set_xscale("log")
        _bars(axis, names, found)
        axis.set_title(title, loc="left", fontsize=10)
    axes[0, 0].invert_yaxis()
    shown.suptitle(f"{results['data']['text']}\n{results['environment']['machine']}", fontsize=11)
    with replacing(path) as partial:
        shown.savefig(partial, dpi=120, format="png")


def _bars(axis: Any, names: list[str], found: list[dict[str, float] | None]) -> None:
    values = [one["median"] if one else 0.0 for one in found]
    colours = ["#0b7285" if name.startswith("Sharpwave") else "#adb5bd" for name in names]
    axis.barh(range(len(names)), values, color=colours, height=0.72)
    for i, one in enumerate(found):
        if one is None:
            axis.annotate(" none", (0, i), va="center", fontsize=8, color="#868e96")
            continue
        axis.plot([one["low"], one["high"]], [i, i], color="#212529", linewidth=1)
        axis.annotate(
            count_text(one["median"]), (one["high"], i), va="center", fontsize=8, color="#495057", xytext=(4, 0),
            textcoords="offset points",
        )  # fmt: skip
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(length=0, which="both", labelbottom=False)  # every bar is labelled with its number
    axis.margins(x=0.2)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
