"""What the pages link to, name and picture is there; the site builds without a warning."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sharpwave
from tests.docs.pages import PAGES, ROOT, name

LINKING = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md", *(ROOT / "examples").rglob("README.md")]
MAX_README_WORDS = 900


def test_readme_is_short() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").split()) < MAX_README_WORDS


@pytest.mark.parametrize("page", LINKING, ids=name)
def test_links_and_pictures_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{name(page)} links to {target}"


def test_modules_that_the_architecture_names_exist() -> None:
    tests = {path.name for path in (ROOT / "tests").rglob("*.py")}
    for page in (ROOT / "docs" / "architecture").glob("*.md"):
        for module in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)", page.read_text(encoding="utf-8")):
            bases = ("", "src/sharpwave", f"src/sharpwave/{page.stem}")
            found = module in tests or any((ROOT / base / module).exists() for base in bases)
            assert found, f"{name(page)} names {module}"


def test_rooms_that_the_architecture_describes_are_all() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "sharpwave").glob("*/__init__.py")}
    described = set(re.findall(r"`([a-z]+)/`", (ROOT / "docs" / "architecture" / "index.md").read_text("utf-8")))
    assert rooms == described


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "algorithms").glob("*.md")), ids=name)
def test_a_page_of_an_algorithm_has_every_part(page: Path) -> None:
    if page.name == "index.md":
        return
    text = page.read_text("utf-8")
    parts = re.findall("^## (.+)$", text, re.M)
    wanted = ["When to use it", "Train", "Curve", "Scores", "Settings that matter"]
    assert [part for part in parts if part in wanted] == wanted
    assert "sharpwave train" in text and "```python" in text and "| published |" in text
    assert f"benchmarks/recipes.py curves {page.stem}`" in text


def test_the_citation_names_this_version() -> None:
    assert f"version: {sharpwave.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_every_public_name_has_a_place_in_the_reference() -> None:
    pages = (ROOT / "docs" / "api").glob("*.md")
    described = set(re.findall(r"^::: sharpwave\.(\w+)$", "\n".join(page.read_text("utf-8") for page in pages), re.M))
    assert described == set(sharpwave.__all__)


def copy_sources(folder: Path, *files: str) -> None:
    """Copy what the site is built from: it and its cache are written beside it."""
    for part in ("docs", "src/sharpwave", "benchmarks/results"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("mkdocs.yml", *files):
        shutil.copy(ROOT / file, folder)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="the site needs the extra docs: pip install 'sharpwave[docs]'")
    copy_sources(tmp_path)
    hidden = tmp_path / "hidden"  # with pydantic, which the extra docs lacks, options that nobody knows are ignored
    hidden.mkdir()
    (hidden / "pydantic.py").write_text("raise ImportError('hidden')\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(hidden), *sys.path])}
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"]
    built = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "update_priorities" in (tmp_path / "site" / "search.json").read_text("utf-8")
    pages = {page.relative_to(tmp_path / "docs").with_suffix(".html") for page in (tmp_path / "docs").rglob("*.md")}
    assert pages <= {page.relative_to(tmp_path / "site") for page in (tmp_path / "site").rglob("*.html")}
    for page in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(r'<(?:script|link|img)\b[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text("utf-8"))
        assert not fetched, f"{page.name} fetches {fetched}"


@pytest.mark.nightly
def test_make_docs_builds_the_site_in_the_environment_that_it_makes(tmp_path: Path) -> None:
    copy_sources(tmp_path, "Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")

    def make(target: str) -> subprocess.CompletedProcess[str]:
        command = ["make", target, f"PYTHON={sys.executable}"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)

    if (installed := make(".venv/.docs")).returncode:
        pytest.skip(f"no packages can be installed here: {installed.stderr[-300:]}")
    built = make("docs")
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "site" / "index.html").exists()
