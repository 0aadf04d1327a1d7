"""Data flow: the calls of one ``extend``, ``sample`` or ``update_priorities``, and the files to read for a part.

    python -m sharpwave.testing.trace [extend | append | sample | update_priorities | table]

Prints a call's tree of Python functions, each with its place. ``table`` (the default) counts calls, files and lines
for each verb and for some parts. Python's profiler does not see the core's functions.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import sharpwave as sw

ROOT = Path(sw.__file__).parent
LANES, BATCH = 8, 32

PARTS = {
    "DQN": ("agents/dqn.py", ("agents",)),
    "SAC": ("agents/sac.py", ("agents",)),
    "the delta codec, without the core": ("codecs/delta.py", ("codecs", "native")),
    "recovery of a disk": ("persistence/opening.py", ("persistence", "disk", "format")),
    "a cluster's draw": ("serve/remote_replay.py", ("serve",)),
    "a run": ("training/run.py", ("training", "agents")),
    "`store.py` and all that it imports": ("store.py", ()),
}
"""Entry file of each part, and the folders whose files count; ``()``: all."""


@dataclass(frozen=True)
class Call:
    """Call of a function of the package. ``where``: file and line below the package; ``depth`` 1: called first."""

    name: str
    where: str
    depth: int


def traced(act: Callable[[], object]) -> list[Call]:
    """Return the calls of the package's functions while ``act`` runs a second time, in order."""
    calls: list[Call] = []
    inside: list[bool] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            path = frame.f_code.co_filename
            ours = path.startswith(str(ROOT)) and path != __file__ and not frame.f_code.co_name.startswith("<")
            inside.append(ours)
            if ours:
                where = f"{Path(path).relative_to(ROOT)}:{frame.f_code.co_firstlineno}"
                calls.append(Call(frame.f_code.co_qualname, where, sum(inside)))
        elif event == "return" and inside:
            inside.pop()

    act()  # the first call binds names
    sys.setprofile(watch)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def verbs() -> dict[str, Callable[[], object]]:
    """Return the traced calls by name, on a full store of small vectors with a prioritized view."""
    spec = sw.Spec(obs=sw.Field((11,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=4_096)
    view = store.transitions(sampler=sw.Prioritized(), n_step=3)
    obs = np.random.default_rng(0).normal(size=(LANES, 11)).astype(np.float32)
    steps: dict[str, Any] = {
        "obs": obs,
        "action": np.zeros(LANES, np.int64),
        "reward": np.zeros(LANES, np.float32),
        "terminated": np.zeros(LANES, np.bool_),
        "truncated": np.zeros(LANES, np.bool_),
    }
    one = {name: values[0] for name, values in steps.items()} | {"terminated": False, "truncated": False}
    for _ in range(1_030):
        store.extend(**steps)
    batch = view.sample(BATCH)
    view.update_priorities(batch.ids, np.ones(BATCH, np.float32))
    store.append(lane=LANES, **one)
    view.sample(BATCH)
    return {
        "append": lambda: store.append(lane=LANES, **one),
        "extend": lambda: store.extend(**steps),
        "sample": lambda: view.sample(BATCH),
        "update_priorities": lambda: view.update_priorities(batch.ids, np.ones(BATCH, np.float32)),
    }


def tree(calls: list[Call]) -> str:
    return "\n".join(f"{'  ' * (call.depth - 1) + call.name:60} {call.where}" for call in calls)


def imports(path: Path) -> list[tuple[str, str]]:
    """Return the absolute names that a file of the package imports, modules and their members, each with the place:
    "module", "function" or "typing" (for type checkers only)."""
    parsed = ast.parse(path.read_text())
    where: dict[ast.AST, str] = {}
    for node in ast.walk(parsed):  # outermost first
        typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if typing or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            where |= dict.fromkeys(ast.walk(node), "typing" if typing else "function")
    package = ["sharpwave", *path.relative_to(ROOT).parts[:-1]]
    found: list[tuple[str, str]] = []
    for node in ast.walk(parsed):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            names = [".".join([*module, alias.name]) for alias in node.names]
        found += [(name, where.get(node, "module")) for name in names]
    return found


def imported(entry: Path, rooms: tuple[str, ...] = ()) -> set[Path]:
    """Return a file and the package's files that it imports, directly or not, except for type checkers only.

    Args:
        rooms: folders whose files count; ``()``: all.
    """
    found, left = set[Path](), [entry]
    while left:
        path = left.pop()
        if path in found or (rooms and path.relative_to(ROOT).parts[0] not in rooms):
            continue
        found.add(path)
        for name, where in imports(path):
            parts = name.split(".")
            if parts[0] == "sharpwave" and len(parts) > 1 and where != "typing":
                files = [ROOT.joinpath(*parts[1:]), ROOT.joinpath(*parts[1:-1])]  # a module, or a member of one
                left += [file for file in (one.with_suffix(".py") for one in files) if file.is_file()]
    return found


def table() -> str:
    """Return the reading needed, as a Markdown table: for each verb its calls, and for each part its files."""
    rows = [("to understand", "calls", "files", "depth", "lines"), ("---", *["---:"] * 4)]
    for name, act in verbs().items():
        calls = traced(act)
        files = {call.where.partition(":")[0] for call in calls}
        rows.append((f"`{name}`", str(len(calls)), str(len(files)), str(max(call.depth for call in calls)), ""))
    parts = {name: imported(ROOT / entry, rooms) for name, (entry, rooms) in PARTS.items()}
    for name, paths in (parts | {"all Python": set(ROOT.rglob("*.py"))}).items():
        rows.append((name, "", str(len(paths)), "", f"{sum(map(_lines, paths)):,}"))
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = (
        [one.rjust(w) if k else one.ljust(w) for k, (one, w) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def main() -> None:
    """Print a verb's calls, or the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="?", default="table", choices=("append", "extend", "sample", "update_priorities", "table")
    )
    what = parser.parse_args().what
    print(table() if what == "table" else tree(traced(verbs()[what])))


if __name__ == "__main__":
    main()
