"""Runner: what all benchmarks share. Processes of contenders, turns, medians, tables, figures and result files.

Programs import it as their neighbour: ``python benchmarks/NAME.py``. It needs only Sharpwave's own dependencies until a
table is printed or a figure drawn, so that a contender with an interpreter of its own can import it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sharpwave.bench.machine import AnsweringChild, cores
from sharpwave.bench.machine import answer as answer
from sharpwave.bench.machine import in_turn as in_turn
from sharpwave.bench.report import rates

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

HERE = Path(__file__).parent
RESULTS, SOURCE = HERE / "results", HERE.parent / "src"
OURS, THEIRS = "#0b7285", "#adb5bd"
"""Colours of bars."""
BUSY = 0.5
"""Load a core above which a warning says that figures are disturbed."""

Results = dict[str, Any]


# the command line


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the program's docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def say(text: str) -> None:
    """Print progress to stderr, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def check_idle() -> float:
    """Return the load of the last minute, and warn if other programs disturb the figures."""
    load = os.getloadavg()[0]
    if load > BUSY * cores():
        say(f"load {load:.1f} on {cores()} cores: other programs disturb the figures; ratios of one run still compare")
    return load


def write(path: Path, results: Any) -> None:
    """Write results as JSON; a crash leaves the results before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(path)


def read_lines(path: Path) -> list[Results]:
    """Return the results of a file that has one a line, or none if it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# processes


def worker(
    script: str,
    *arguments: object,
    name: str = "",
    python: str = sys.executable,
    threads: int = 0,
    log: Path | None = None,
) -> AnsweringChild:
    """Start a contender's process: a program of this folder that answers requests.

    Args:
        threads: number of cores that it is pinned to, the last ones, and of threads that libraries start; 0: no limit.
        log: file for its standard error.
    """
    env = {"PYTHONPATH": os.pathsep.join([str(SOURCE), str(HERE), os.environ.get("PYTHONPATH", "")])}
    env |= {"TF_CPP_MIN_LOG_LEVEL": "3", "GLOG_minloglevel": "3", "RL_LOGGING_LEVEL": "ERROR"}
    begin = None
    if threads:
        env |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        begin = lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])  # noqa: E731
    command = [python, str(HERE / script), *map(str, arguments)]
    return AnsweringChild(name or script, command, log, env, begin)


def last_line(command: Sequence[str], name: str) -> Any:
    """Run a program and return the JSON of its last line; ``None`` if it fails, whose last words are printed."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        say(f"{name}: {(ran.stderr.strip() or 'no message').splitlines()[-1]}")
        return None
    return json.loads(ran.stdout.splitlines()[-1])


def processor_s(process: int) -> float:
    """Return the seconds of processors that a process took so far; 0: it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int | str = "self", part: str = "RssAnon") -> int:
    """Return bytes of a process as Linux counts them: private memory, or another part; 0: it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith(f"{part}:"):
                return int(line.split()[1]) * 1024
    return 0


# figures


def middle(rounds: Iterable[Results], figure: str) -> float:
    """Return the median of a figure over rounds."""
    return float(statistics.median(one[figure] for one in rounds))


def rate(results: Results, name: str, what: str) -> float:
    """Return a contender's median of steps added or items sampled a second; 0: not measured."""
    found = rates(results, name, what)
    return statistics.median(found) if found else 0.0


def bytes_a_step(results: Results, name: str) -> float:
    """Return the growth of a contender's process per step."""
    fill = results["contenders"][name]["fill"]
    return float(fill["bytes"] / fill["steps"])


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else [*values] * 3
    return low, median, high


def slope(x: Any, y: Any, groups: Any = None) -> tuple[float, float]:
    """Fit a line by least squares; return its slope and the standard error, NaN below three points.

    Args:
        groups: number of each point's group, each of which has an offset of its own.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    groups = np.zeros(len(x), np.int64) if groups is None else np.asarray(groups)
    count = len(np.unique(groups))
    for group in np.unique(groups):
        x = np.where(groups == group, x - x[groups == group].mean(), x)
        y = np.where(groups == group, y - y[groups == group].mean(), y)
    spread = float((x**2).sum())
    if len(x) < 2 + count or spread == 0:
        return float("nan"), float("nan")
    steep = float((x * y).sum()) / spread
    rest = y - steep * x
    return steep, float(np.sqrt((rest**2).sum() / (len(x) - 1 - count) / spread))


# tables and pictures


def table(title: str, *columns: str, left: Sequence[str] = ("",)) -> Table:
    """Return an empty table. ``left``: columns of text, the others are of numbers."""
    from rich.table import Table

    made = Table(title=title, title_style="bold", title_justify="left")
    for column in columns:
        made.add_column(column, justify="left" if column in left else "right")
    return made


def console(width: int = 150) -> Console:
    """Return a console as wide as a table needs, whatever the terminal is."""
    from rich.console import Console

    return Console(width=width)


def machine_text(where: Results) -> str:
    """Return a line about the machine, its load and the packages."""
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    return f"{where['machine']}, load {where['load_average']:.1f}, {versions}"


@contextlib.contextmanager
def picture(path: Path, title: str, *grid: int, **how: Any) -> Iterator[Any]:
    """Yield the axes of a picture that is written to ``path``.

    Args:
        grid: rows and columns of its panels. ``how``: as of matplotlib's ``subplots``.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        shown, axes = pyplot.subplots(*grid, layout="constrained", **how)
        yield axes
        shown.suptitle(title, fontsize=11, weight="bold")
        shown.savefig(path, dpi=130)
        pyplot.close(shown)


def bars(axis: Any, title: str, names: Sequence[str], values: Sequence[float], *, logarithmic: bool = False) -> None:
    """Draw a bar for each contender, ours in a colour, with its number; 0 is written as "none"."""
    colours = [OURS if name.startswith("sharpwave") else THEIRS for name in names]
    axis.barh(range(len(names)), values, color=colours, height=0.72)
    axis.set_yticks(range(len(names)), names)
    how: dict[str, Any] = {"va": "center", "fontsize": 8, "color": "#495057", "textcoords": "offset points"}
    for i, value in enumerate(values):
        axis.annotate(f" {value:,.0f}" if value else "none", (value, i), xytext=(2, 0), **how)
    if logarithmic:
        axis.set_xscale("log")
        axis.set_xlim(10, 4 * max(value or 1 for value in values))
    else:
        axis.set_xlim(0, 1.25 * max(values, default=1))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k" if value >= 1000 else f"{value:,.0f}")
    axis.set_title(title, loc="left", fontsize=10)
    axis.tick_params(length=0)
    if not axis.yaxis_inverted():
        axis.invert_yaxis()
