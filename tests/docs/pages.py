"""The pages that users read, and the code on them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAM = '__name__ == "__main__"'
"""In a block that is a program of its own."""
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
    """Run the page's Python; its blocks share their names, from top to bottom.

    Runs on the pages of algorithms are cut to 200 steps.
    One with ``if __name__ == "__main__":`` is a program, which processes that it spawns import: it is run as a file.
    """
    names: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page, "python"):
        if PROGRAM in block.text:
            _run_program(page, block)
            continue
        text = re.sub(r"\bsteps=[\d_]+", "steps=200", block.text) if page.parent.name == "algorithms" else block.text
        code = "\n" * (block.line - 1) + text  # so that a traceback names the page's line
        exec(compile(code, str(page), "exec"), names)


def _run_program(page: Path, block: Block) -> None:
    program = Path(f"{page.stem}_line_{block.line}.py").absolute()
    program.write_text(block.text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
    command = [sys.executable, "-W", "error", str(program)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    good = not ran.returncode and "Traceback" not in ran.stderr  # of a process that it spawned
    assert good, f"{name(page)}, line {block.line}: {ran.stdout}{ran.stderr}"
