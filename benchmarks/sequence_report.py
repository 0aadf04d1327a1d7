"""Report of ``sequences.py``: a table, goals met or missed, and a figure."""

from __future__ import annotations

import statistics
from pathlib import Path

from report import CONSOLE, Results, bytes_a_step, median
from rich.table import Table

from sharpwave.bench.summary import ratios

BATCHES = (64, 16)
OURS, PEERS = ("sharpwave",), ("TorchRL", "Flashbax", "Reverb")
STATELESS = "no state"
"""Contenders with this in their names lack the recurrent states, and are not what the goals are measured against."""
MAX_R2D2_BYTES = 1_000_000_000


def fastest_peer(results: Results, what: str) -> str | None:
    """Return the library that hands out the most windows a second with everything in them."""
    names = [name for name in results["contenders"] if name.startswith(PEERS) and STATELESS not in name]
    return max(names, key=lambda name: median(results, name, what) or 0.0, default=None)


def ratio(results: Results, name: str, other: str, what: str, others: str) -> float:
    """Return how many times as fast as ``other`` doing ``others`` ``name`` does ``what``, the median of rounds."""
    both = {name: results["contenders"][name]["rounds"][what], other: results["contenders"][other]["rounds"][others]}
    shown = {"contenders": {one: {"rounds": {what: rounds}} for one, rounds in both.items()}}
    return 1.0 if name == other and what == others else statistics.median(ratios(shown, name, other, what))


def rows(results: Results) -> list[tuple[str, str, str]]:
    """Return (title, contender, how it samples) of the table's rows."""
    found = []
    for name, entry in results["contenders"].items():
        found.append((name, name, "uniform"))
        if f"prioritized {BATCHES[0]}" in entry["rounds"]:
            found.append((f"{name}, prioritized", name, "prioritized"))
    return found


def table(results: Results) -> None:
    """Print all contenders."""
    settings, where = results["settings"], results["environment"]
    steps = settings["burn_in"] + settings["length"]
    shown = _table(f"Windows of {steps} steps of Pong, 84 x 84 uint8, {settings['steps']:,} steps")
    shown.add_column("")
    for batch in BATCHES:
        for column in (f"windows/s, {batch}", "x fastest peer", "CPU ms"):
            shown.add_column(column, justify="right")
    for column in ("bytes a step", "adds/s"):
        shown.add_column(column, justify="right")
    for title, name, how in rows(results):
        cells = []
        for batch in BATCHES:
            what, others = f"{how} {batch}", f"uniform {batch}"
            peer = fastest_peer(results, others)
            rounds = results["contenders"][name]["rounds"][what]
            cells.append(f"{median(results, name, what) or 0:,.0f}")
            cells.append(f"{ratio(results, name, peer, what, others):.2f}" if peer else "-")
            cells.append(f"{statistics.median(one['cpu_us'] for one in rounds) / 1000:.1f}")
        if how == "uniform":
            cells += [f"{bytes_a_step(results, name):,.0f}", f"{median(results, name, 'add') or 0:,.0f}"]
        else:
            cells += ["", ""]
        shown.add_row(title, *cells, style="bold cyan" if name.startswith(OURS) else "")
    copied = [f"{statistics.median(results['limit'][str(batch)]):,.0f}" for batch in BATCHES]
    shown.add_row("frames copied, all cores", copied[0], "", "", copied[1], "", "", "", "")
    CONSOLE.print(shown)
    load, versions = where["load"] or [0.0], where["versions"]
    CONSOLE.print(
        f"x: of the fastest library's uniform windows with recurrent states, median of {settings['rounds']} ratios; "
        f"CPU: of all threads, a batch.\n{where['machine']}, load {min(load):.1f} to {max(load):.1f}, "
        + ", ".join(f"{name} {number}" for name, number in versions.items()),
        style="dim",
    )
    for name, entry in results["contenders"].items():
        wrong = {part: share for part, share in entry["fill"]["wrong"].items() if share}
        if wrong:
            told = ", ".join(f"{share:.1%} of {part}" for part, share in wrong.items())
            CONSOLE.print(f"{name}: sampled what was not played so: {told}", style="yellow")


def goals(results: Results) -> None:
    """Print Sharpwave's goals, and what it reached."""
    shown = _table("Goals")
    for column in ("goal", "of", "reached", "against", ""):
        shown.add_column(column, justify="right" if column == "reached" else "left")

    def row(goal: str, of: str, text: str, against: str, met: bool) -> None:
        shown.add_row(goal, of, text, against, "[green]met" if met else "[red]missed")

    for title, name, how in rows(results):
        for batch in BATCHES if name == "sharpwave auto" else ():
            what, others = f"{how} {batch}", f"uniform {batch}"
            peer = fastest_peer(results, others)
            if peer:
                times = ratio(results, name, peer, what, others)
                row(f"windows of batch {batch}: at least 3 x", title, f"{times:.1f} x", peer, times >= 3)
    large = results.get("r2d2")
    if large:
        each, million = large["bytes"] / large["steps"], large["steps"] / 1e6
        smallest = {
            name: bytes_a_step(results, name)
            for name, entry in results["contenders"].items()
            if name.startswith(PEERS) and STATELESS not in name and entry["fill"]["bytes"] > 0
        }
        for name, held in smallest.items():
            share = held / each
            row("memory of a step: at most 1/50", f"{million:g}M steps", f"1/{share:.0f}", name, share >= 50)
        expected = 4e6 * each
        text = f"{expected / 1e6:,.0f} MB"
        row("4M steps: under 1 GB", f"{million:g}M steps", text, f"{each:,.0f} bytes a step", expected < MAX_R2D2_BYTES)
    CONSOLE.print(shown)


def figure(results: Results, path: Path) -> None:
    """Draw bars by contender: windows sampled a second at both batch sizes, and bytes a step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown_rows = [row for row in rows(results) if STATELESS not in row[0]]
    names = [title for title, _, _ in shown_rows]
    panels: list[tuple[str, list[float]]] = [
        (
            f"windows a second, batch {batch}",
            [median(results, name, f"{how} {batch}") or 0 for _, name, how in shown_rows],
        )
        for batch in BATCHES
    ]
    panels.append(("bytes a step", [bytes_a_step(results, name) for _, name, _ in shown_rows]))
    with pyplot.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        drawn, axes = pyplot.subplots(1, len(panels), figsize=(12, 3.6), sharey=True, layout="constrained")
        for axis, (title, values) in zip(axes, panels, strict=True):
            colours = ["#0b7285" if name.startswith(OURS) else "#adb5bd" for name in names]
            axis.barh(range(len(names)), values, color=colours, height=0.72)
            axis.set_yticks(range(len(names)), names)
            for i, value in enumerate(values):
                axis.annotate(
                    f" {value:,.0f}", (value, i), va="center", fontsize=8, color="#495057", xytext=(2, 0),
                    textcoords="offset points",
                )  # fmt: skip
            axis.set_xlim(0, 1.25 * max(values, default=1))
            axis.set_title(title, loc="left", fontsize=10)
            axis.tick_params(length=0)
        axes[0].invert_yaxis()
        where = results["environment"]
        drawn.suptitle(
            f"Windows of 120 steps of Pong, 84x84 uint8 ({where['machine']}, {where['date']})", fontsize=11,
            weight="bold",
        )  # fmt: skip
        drawn.savefig(path, dpi=130)
        pyplot.close(drawn)


def _table(title: str) -> Table:
    return Table(title=title, title_style="bold", title_justify="left")
