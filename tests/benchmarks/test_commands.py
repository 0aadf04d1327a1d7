"""Pages name programs and options of benchmarks that exist, and every program is named by a page."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
COMMAND = re.compile(r"benchmarks/(\w+)\.py((?:[^\S\n]+[^`\n#;|]*)?)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist(page: Path) -> None:
    for name, arguments in COMMAND.findall(page.read_text("utf-8")):
        path = ROOT / "benchmarks" / f"{name}.py"
        assert path.is_file(), f"{page.name}: benchmarks/{name}.py"
        ours = arguments.partition(" -- ")[0]
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", ours):
            assert f'"{option}"' in path.read_text("utf-8"), f"{page.name}: {name}.py {option}"


def test_every_program_is_on_a_page() -> None:
    told = {name for page in PAGES for name, _ in COMMAND.findall(page.read_text("utf-8"))}
    listed = runpy.run_path(str(ROOT / "benchmarks" / "__main__.py"))["programs"]()
    assert len(listed) > 20 and {name.removesuffix(".py") for name in listed} <= told
