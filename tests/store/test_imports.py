"""The store needs neither torch nor gymnasium, and dependencies point one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sharpwave

ROOT = Path(sharpwave.__file__).parent

# a module may import from its own layer and from those before it
LAYERS = [
    {"errors", "native", "interrupts", "spec", "checks", "words", "escaping", "delta", "codecs", "segment"},
    {"tiers", "sampling", "settings"},
    {"views"},
    {"accounting", "checkpoint"},
    {"opening", "lifetime"},
    {"store", "writer"},
    {"recorder", "observations"},
    {"agents", "envs"},
    {"training"},
    {"bench"},
    {"cli"},
]
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
STORE = {name for names in LAYERS[:7] for name in names}
HEAVY = {"torch", "gymnasium", "ale_py", "cv2", "tensorboard", "matplotlib", "rich", "typer", "ray"}


def imported(path: Path) -> list[tuple[str, bool]]:
    """(absolute name, whether importing the module leaves it alone: for type checkers only, or inside a function)."""
    tree = ast.parse(path.read_text())
    later = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for inner in ast.walk(node)
    }
    package = ["sharpwave", *path.relative_to(ROOT).parts[:-1]]
    names: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(alias.name, node in later) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            names += [(".".join([*module, alias.name]), node in later) for alias in node.names]
    return names


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


MODULES = sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_dependencies_point_one_way(path: Path) -> None:
    part = part_of(path)
    assert part in LAYER, f"{part}: which layer? Say so in LAYERS"
    for name, later in imported(path):
        top, *rest = name.split(".")
        if top in HEAVY and not later:
            assert part not in STORE, f"{path.name} imports {name}"
        if top == "sharpwave" and rest and rest[0] in LAYER and not later:
            assert LAYER[rest[0]] <= LAYER[part], f"{part} imports {name}, which is above it"


def test_importing_the_store_loads_nothing_heavy() -> None:
    code = (
        "import sys, sharpwave; names = set(sys.modules); "
        f"print(sorted({HEAVY!r} & names), sorted(n for n in names if n.startswith('sharpwave.agents')))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout.split("\n")[0] == "[] []"
