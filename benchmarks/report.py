"""Report of ``store.py``: a table, goals met or missed, and a figure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sharpwave.bench.summary import rates, ratios

BATCHES = (32, 256, 1024)
CONSOLE = Console(width=150)

Results = dict[str, Any]


def median(results: Results, name: str, what: str) -> float | None:
    """Return rows (steps added or transitions sampled) per second; ``None``: not measured."""
    found = rates(results, name, what)
    return statistics.median(found) if found else None


def cpu_us(results: Results, name: str, what: str) -> float | None:
    """Return the processor time of all threads for one row, in microseconds."""
    rounds = results["contenders"][name]["rounds"].get(what)
    return statistics.median(r["cpu_us"] / r["rows"] for r in rounds) if rounds else None


def bytes_a_step(results: Results, name: str) -> float:
    """Return the growth of the process's memory per step."""
    fill = results["contenders"][name]["fill"]
    return float(fill["bytes"] / fill["steps"])


def counted(results: Results, name: str) -> float | None:
    """Return by which share ``stats()`` is above the growth of the process's memory; ``None``: no store of ours."""
    fill = results["contenders"][name]["fill"]
    return fill["stats"]["total_bytes"] / fill["bytes"] - 1 if "stats" in fill else None


def peers(results: Results) -> list[str]:
    """Return the names of other libraries' contenders."""
    return [name for name in results["contenders"] if not name.startswith("sharpwave")]


def against_fastest(results: Results, name: str, what: str) -> tuple[float, float, str] | None:
    """Return the speed of ``name`` relative to the fastest peer, by wall and by processor time, and that peer."""
    there = [peer for peer in peers(results) if median(results, peer, what)]
    if not there or name not in results["contenders"]:
        return None
    fastest = max(there, key=lambda peer: median(results, peer, what) or 0.0)
    rounds = [results["contenders"][n]["rounds"][what] for n in (name, fastest)]
    wall = statistics.median(ratios(results, name, fastest, what))
    cpu = statistics.median(b["cpu_us"] / a["cpu_us"] for a, b in zip(*rounds, strict=True))
    return wall, cpu, fastest


def table(results: Results) -> None:
    """Print all contenders, and the trees."""
    where = results["environment"]
    shown = _table(f"Replay memories on {where['game'].capitalize()}: 4 x 84 x 84 uint8 observations, 8 lanes")
    shown.add_column("")
    columns = ["steps", "bytes a step", "stats()", "adds/s"]
    columns += [f"{what} {batch}" for what in ("uniform", "PER") for batch in BATCHES] + ["CPU us a transition"]
    for column in columns:
        shown.add_column(column, justify="right")
    for name, entry in results["contenders"].items():
        cells = [f"{entry['fill']['steps']:,}", f"{bytes_a_step(results, name):,.0f}"]
        off = counted(results, name)
        cells.append("-" if off is None else f"{off:+.1%}")
        cells.append(_count(median(results, name, "add")))
        for what in ("uniform", "prioritized"):
            cells += [_count(median(results, name, f"{what} {batch}")) for batch in BATCHES]
        cells.append(f"{cpu_us(results, name, 'uniform 256') or 0:.1f}")
        shown.add_row(name, *cells, style=_style(name))
    CONSOLE.print(shown)
    CONSOLE.print(
        "uniform and PER (prioritized, priorities updated): transitions a second by batch size; medians of "
        f"{where['rounds']} rounds of {where['seconds']} s; CPU: uniform 256, all threads.\n"
        f"{where['machine']}, load {where['load_average']:.1f}, "
        + ", ".join(f"{name} {number}" for name, number in where["versions"].items()),
        style="dim",
    )
    trees = _table("Sum tree alone: draw 256 and update them, 2^20 leaves")
    trees.add_column("")
    trees.add_column("us", justify="right")
    for name, taken in results["trees"].items():
        trees.add_row(name, f"{statistics.median(taken):.0f}", style=_style(name))
    CONSOLE.print(trees)
    limit = statistics.median(results["limit"])
    CONSOLE.print(f"What memory allows: {limit:,.0f} transitions a second, copied from random places, on all cores.")
    for name, entry in results["contenders"].items():
        wrong = {part: share for part, share in entry["fill"]["wrong"].items() if share}
        if wrong:
            told = ", ".join(f"{share:.1%} of {part}" for part, share in wrong.items())
            CONSOLE.print(f"{name}: sampled frames that were never recorded: {told}", style="yellow")


def goals(results: Results) -> None:
    """Print Sharpwave's goals, what it reached, and what it was compared with."""
    shown = _table("Goals")
    for column in ("goal", "of", "reached", "against", ""):
        shown.add_column(column, justify="right" if column == "reached" else "left")

    def row(goal: str, of: str, value: float | None, text: str, against: str, met: bool) -> None:
        if value is not None:
            shown.add_row(goal, of, text, against, "[green]met" if met else "[red]missed")

    for name in ("sharpwave auto", "sharpwave delta", "sharpwave zstd"):
        if name not in results["contenders"]:
            continue
        fill = results["contenders"][name]["fill"]
        size = bytes_a_step(results, name)
        row("at most 250 bytes a transition", name, size, f"{size:,.0f}", f"{fill['steps']:,} steps", size <= 250)
        off = counted(results, name) or 0.0
        row("stats() within 5 % of the growth", name, off, f"{off:+.1%}", "private memory", abs(off) <= 0.05)
        rate = median(results, name, "add") or 0.0
        row("at least 100,000 adds/s", name, rate, f"{rate:,.0f}", "", rate >= 100_000)
    held = [("sharpwave auto", "uniform", 256, 3), ("sharpwave auto", "prioritized", 256, 3)]
    held += [("sharpwave auto", "uniform", 32, 1), ("sharpwave auto", "prioritized", 32, 1)]
    held += [("sharpwave raw", "uniform", 256, 10), ("sharpwave raw", "prioritized", 256, 10)]
    for name, what, batch, least in held:
        found = against_fastest(results, name, f"{what} {batch}")
        if found:
            goal = f"{what} {batch}: at least {least} x the fastest peer"
            text = f"{found[0]:.1f} x ({found[1]:.1f} x by CPU time)"
            row(goal, name, found[0], text, found[2], found[0] >= least)
    for name in ("sharpwave auto", "sharpwave raw"):
        sampled = median(results, name, "uniform 256") if name in results["contenders"] else None
        if sampled:
            share = sampled / statistics.median(results["limit"])
            goal = "uniform 256: as memory allows"
            row(goal, name, share, f"{share:.2f} x", "copying alone, from random places", share >= 0.8)
    if results["trees"]:
        spent = statistics.median(results["trees"]["sharpwave tree"])
        best = min(statistics.median(v) for n, v in results["trees"].items() if not n.startswith("sharpwave"))
        goal = "draw and update 256 of 2^20: at most 60 us"
        row(goal, "sum tree", spent, f"{spent:.0f} us", f"{best:.0f} us", spent <= 60)
    CONSOLE.print(shown)


def figure(results: Results, path: Path) -> None:
    """Draw bars by contender: bytes, adds, and transitions sampled at the batch sizes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(results["contenders"])
    panels: list[tuple[str, list[float | None]]] = [
        ("bytes a step", [bytes_a_step(results, name) for name in names]),
        ("steps added a second, 8 lanes", [median(results, name, "add") for name in names]),
    ]
    for what in ("uniform", "prioritized"):
        for batch in BATCHES[:2]:
            title = f"transitions a second, {what}, batch {batch}"
            panels.append((title, [median(results, name, f"{what} {batch}") for name in names]))
    with pyplot.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        shown, axes = pyplot.subplots(3, 2, figsize=(11, 10.5), sharey=True, layout="constrained")
        order = [axes[0, 0], axes[0, 1], axes[1, 0], axes[1, 1], axes[2, 0], axes[2, 1]]
        for axis, (title, values) in zip(order, panels, strict=True):
            _bars(axis, title, names, values, logarithmic=title.startswith("bytes"))
        where = results["environment"]
        shown.suptitle(
            f"Replay memories on {where['game'].capitalize()}, 4x84x84 uint8 ({where['machine']}, {where['date']})",
            fontsize=11,
            weight="bold",
        )
        shown.savefig(path, dpi=130)
        pyplot.close(shown)


def _bars(axis: Any, title: str, names: Sequence[str], values: Sequence[float | None], *, logarithmic: bool) -> None:
    ours = [name.startswith("sharpwave") for name in names]
    colours = ["#0b7285" if mine else "#adb5bd" for mine in ours]
    axis.barh(range(len(names)), [value or 0 for value in values], color=colours, height=0.72)
    axis.set_yticks(range(len(names)), names)
    for i, value in enumerate(values):
        text = "none" if value is None else f" {value:,.0f}"
        axis.annotate(
            text, (value or 0, i), va="center", fontsize=8, color="#495057", xytext=(2, 0), textcoords="offset points"
        )
    if logarithmic:
        axis.set_xscale("log")
        axis.set_xlim(10, 4 * max(value or 1 for value in values))
    else:
        axis.set_xlim(0, 1.22 * max(value or 0 for value in values))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k" if value >= 1000 else f"{value:,.0f}")
    axis.set_title(title, loc="left", fontsize=10)
    axis.tick_params(length=0)
    if not axis.yaxis_inverted():
        axis.invert_yaxis()


def _table(title: str) -> Table:
    return Table(title=title, title_style="bold", title_justify="left")


def _style(name: str) -> str:
    return "bold cyan" if name.startswith("sharpwave") else ""


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
