"""The notebook runs from top to bottom, and shows what it says."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def test_every_cell_runs_and_shows_what_the_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = 0
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body[-1]
        value = None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, str(NOTEBOOK), "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
        for output in cell["outputs"]:
            assert repr(value) == "".join(output["data"]["text/plain"])
            assert ("text/html" in output["data"]) == hasattr(value, "_repr_html_")
            shown += 1
    assert shown == 6 and [path.name for path in tmp_path.iterdir()] == ["pong.sharpwave"]
