"""The pages that users read, and the code on them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)


class Block(NamedTuple):
    """A fenced block of code: its language, its text, and the line of the page where the text begins."""

    language: str
    text: str
    line: int


def name(page: Path) -> str:
    """The page's path in the repository, as a test's id."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> Iterator[Block]:
    """Yield the page's blocks of a language, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        if match[1] == language:
            yield Block(match[1], match[2], text.count("\n", 0, match.start(2)) + 1)


def run(page: Path) -> None:
    """Run the page's Python; its blocks share their names, from top to bottom."""
    names: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page, "python"):
        code = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's line
        exec(compile(code, str(page), "exec"), names)
