"""The first pages name all that their code needs: at every run by their imports, each night as a reader runs them."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.first_hour import PAGES, Reader, wheel_of_the_tree
from tests.docs.pages import ROOT, blocks

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MODULES = cache(packages_distributions)
"""Half a second, which no other worker of the tests is to take."""
KEYS = [page.removeprefix("docs/") for page in PAGES]


def installed_by(page: Path) -> set[str]:
    """Return the distributions that the page's ``pip install`` lines bring, and those that these need."""
    needed = [Requirement(one) for one in PROJECT["dependencies"]]
    for line in re.findall(r"pip install ([^`\n#]+)", page.read_text("utf-8")):
        for word in line.replace("'", "").split():
            if not word.startswith("-"):
                needed.append(Requirement(re.sub(r"^\.", "sharpwave", word)))
    found: set[str] = set()
    seen: set[str] = set()
    while needed:
        one = needed.pop()
        if str(one) in seen:
            continue
        seen.add(str(one))
        name = canonicalize_name(one.name)
        if name == "sharpwave":
            extras = PROJECT["optional-dependencies"]
            needed += [Requirement(text) for extra in one.extras for text in extras[extra]]
            continue
        found.add(name)
        try:
            needs = [Requirement(text) for text in requires(one.name) or ()]
        except PackageNotFoundError:
            continue
        contexts = [{"extra": extra} for extra in ("", *one.extras)]
        needed += [it for it in needs if it.marker is None or any(map(it.marker.evaluate, contexts))]
    return found


@pytest.mark.parametrize("page", [ROOT / page for page in PAGES], ids=KEYS)
def test_what_the_page_imports_it_has_installed(page: Path) -> None:
    there = installed_by(page) | {"sharpwave"}
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block.text)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            for module in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"sharpwave"}:
                brought = {canonicalize_name(one) for one in MODULES().get(module, [])}
                assert brought & there, f"line {block.line} imports {module}, which nothing on the page installs"


@pytest.mark.parametrize("page", [ROOT / page for page in PAGES], ids=KEYS)
def test_commands_of_the_page_have_their_packages(page: Path) -> None:
    lines = [line for block in blocks(page, "sh") for line in block.text.splitlines()]
    if any(line.startswith("sharpwave ") for line in lines):
        assert "typer" in installed_by(page)
    if any(line.startswith("sharpwave train ") for line in lines):
        assert "torch" in installed_by(page)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of_the_tree(tmp_path_factory.mktemp("wheel"))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [ROOT / page for page in PAGES], ids=KEYS)
def test_the_page_runs_in_an_environment_of_its_own(page: Path, wheel: Path, tmp_path: Path) -> None:
    reader = Reader(page, tmp_path, wheel, steps=3_000)
    try:
        reader.read()
    finally:
        reader.close()
