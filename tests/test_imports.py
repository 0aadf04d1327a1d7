"""The store needs neither torch nor gymnasium, and dependencies point one way."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import sharpwave
from sharpwave.testing import trace

ROOT = Path(sharpwave.__file__).parent

# A module imports from its own room and from those on lines before it: arrows point one way.
ROOMS = """
arrays
arguments errors escaping extras json_values nesting native showing teams
codecs ragged
field_values
spec
spaces validation
format
sampling memory
disk
log
persistence views
offline
data
store_stats writing
segment_writer store
environment_kinds
loading
serve
observations
environment_spec step_infos
recorder
integrations
configuration
agents envs
training
viewer
bench
testing
cli
""".strip()
FLOOR = {room: floor for floor, rooms in enumerate(ROOMS.splitlines()) for room in rooms.split()}
STORE = {room for room in FLOOR if FLOOR[room] <= FLOOR["store"]}
HEAVY = {"torch", "gymnasium", "ale_py", "cv2", "tensorboard", "matplotlib", "rich", "typer", "ray"}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> list[tuple[str, str]]:
    return [*trace.imports(path)]


MODULES = sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "__init__.py")


@pytest.mark.parametrize("room", sorted({part_of(path) for path in MODULES}))
def test_arrows_point_one_way(room: str) -> None:
    assert room in FLOOR, f"{room}: which floor? Say so in ROOMS"
    for path in MODULES:
        if part_of(path) != room:
            continue
        for name, where in imports(path):
            top, *rest = name.split(".")
            if top in HEAVY and where == "module":
                assert room not in STORE, f"{path.relative_to(ROOT)} imports {name}"
            if top == "sharpwave" and rest and rest[0] in FLOOR and rest[0] != room:
                assert FLOOR[rest[0]] < FLOOR[room], f"{path.relative_to(ROOT)} imports {name}, which is not below it"


def module_name(path: Path) -> str:
    return ".".join(["sharpwave", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


def test_no_modules_import_each_other() -> None:
    """Not even in a round, for type checkers only, or inside functions; but the package lists, for type checkers, names
    that it imports when they are used."""
    paths = {module_name(path): path for path in ROOT.rglob("*.py")}
    graph = {
        module: {
            name if name in paths else name.rpartition(".")[0]  # a module, or what it holds
            for name, where in imports(path)
            if not (path.name == "__init__.py" and where == "typing")
            if name.startswith("sharpwave") and name != "sharpwave._core"  # which imports none
        }
        for module, path in paths.items()
    }
    assert set().union(*graph.values()) <= set(paths)
    TopologicalSorter(graph).prepare()  # CycleError names the modules of a circle


def test_importing_the_store_loads_nothing_heavy() -> None:
    code = (
        "import sys, sharpwave; names = set(sys.modules); "
        f"print(sorted({HEAVY!r} & names), sorted(n for n in names if n.startswith('sharpwave.agents')))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout.split("\n")[0] == "[] []"


LATER = (
    "asyncio", "concurrent", "csv", "email", "http", "importlib.metadata", "importlib.resources", "logging",
    "multiprocessing", "secrets", "socket", "ssl", "subprocess", "unittest", "urllib.request",
    "sharpwave.data", "sharpwave.loading", "sharpwave.offline", "sharpwave.serve",
)  # fmt: skip
"""Modules, and packages with all of theirs, that take long to import and that few stores need."""


def test_importing_the_store_loads_what_all_stores_need() -> None:
    """And no more, beyond what numpy imports itself."""
    code = "import sys, numpy; before = set(sys.modules); import sharpwave; print(*sorted(set(sys.modules) - before))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert [name for name in answer.stdout.split() if any(f"{name}.".startswith(f"{one}.") for one in LATER)] == []


def test_names_that_are_imported_when_they_are_used() -> None:
    code = (
        "import sharpwave as sw; from sharpwave import Cluster, load; import pickle; "
        "assert {'Cluster', 'connect', 'load'} < set(dir(sw)) and all(getattr(sw, name) for name in sw.__all__); "
        "assert sw.loading.load is load is pickle.loads(pickle.dumps(load)); assert not hasattr(sw, 'unknown')"
    )
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)


def test_algorithms_are_exported_by_name() -> None:
    """Torch is imported by their use only."""
    code = (
        "import sys, sharpwave as sw; from sharpwave.agents import registry; names = registry.class_names(); "
        "agents = [getattr(sw.agents, name) for name in names]; "
        "assert [agent.Settings.kind for agent in agents] == [*names.values()] == [*registry.AGENTS]; "
        "assert all(agent.__name__ == name for name, agent in zip(names, agents)); "
        "assert set(names) < set(sw.agents.__all__) <= set(dir(sw.agents)); "
        "assert sw.agents.SAC.Settings(lr=1e-4).lr == 1e-4; assert not hasattr(sw.agents, 'Unknown'); "
        "print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout == "False\n"


def test_no_name_of_a_class_is_used_twice() -> None:
    """But the names that other frameworks give to their buffers."""
    classes = re.compile(r"^class _*([A-Za-z]\w*)", re.MULTILINE)
    names = [name for path in MODULES for name in classes.findall(path.read_text("utf-8"))]
    assert {name for name in names if names.count(name) > 1} == {"ReplayBuffer", "PrioritizedReplayBuffer"}


def test_no_name_of_a_module_is_used_twice() -> None:
    names = [path.stem for path in MODULES if not path.stem.startswith("__")]
    assert not {name for name in names if names.count(name) > 1}
