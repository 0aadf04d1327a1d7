"""Shell lines on the pages can be typed: commands parse, targets, scripts and extras are there."""

import re
import shlex
import tomllib
from typing import Any

import pytest
import typer

from sharpwave.cli.commands import app
from sharpwave.training.recipes import load_recipe
from tests.docs.pages import PAGES, ROOT, blocks, name

LINES = [
    (f"{name(page)}:{block.line + number}", line)
    for page in PAGES
    for block in blocks(page, "sh")
    for number, line in enumerate(block.text.splitlines())
    if line.strip() and not line.startswith("#")
]
APP = typer.main.get_command(app)
RECIPE = ("pong", load_recipe("pong"))
PLAIN = {"git", "cd", "source", "python3"}


def parse(command: Any, words: list[str]) -> None:
    """Parse a command line down to its last command, and run nothing."""
    parent, called = None, "sharpwave"
    while True:
        context = command.make_context(called, list(words), parent=parent)
        if not hasattr(command, "resolve_command"):  # no group of commands
            return
        rest = [*context._protected_args, *context.args]
        if not rest:
            assert command.invoke_without_command, f"{called}: expected a command"
            return
        called, command, words = command.resolve_command(context, rest)
        parent = context


@pytest.mark.parametrize(("place", "line"), LINES, ids=[place for place, _ in LINES])
def test_shell_line(place: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharpwave.training.recipes.settings_files.read_recipe", lambda *_, **__: RECIPE)
    words = [word for word in shlex.split(line, comments=True) if not re.fullmatch(r"[A-Z_]+=.*", word)]
    if words[0] == "for":  # for NAME in VALUE ...; do COMMAND; done
        variable, value = f"${words[1]}", words[3]
        words = [word.replace(variable, value).rstrip(";") for word in words[words.index("do") + 1 : -1]]
    program, *rest = words
    program = program.removeprefix(".venv/bin/")
    if program == "sharpwave":
        if "--help" in rest:
            rest.remove("--help")
        parse(APP, rest)
    elif program == "make":
        targets = re.findall(r"^([\w ]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(rest) <= {target for line in targets for target in line.split()}
    elif program == "python":
        script = (ROOT / rest[0]).read_text(encoding="utf-8")
        for option in rest[1:]:
            assert not option.startswith("--") or f'"{option}"' in script, f"{rest[0]} has no {option}"
    elif program == "pip":
        assert rest[0] == "install"
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
        for extra in re.findall(r"\[(.*?)\]", line):
            assert set(extra.split(",")) <= set(extras)
    else:
        assert program in PLAIN or program in ("ruff", "mypy", "pytest", "pre-commit"), f"{program}: what is this?"
