"""All Python on the pages runs; a page's blocks share their names, from top to bottom."""

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, blocks, name

WITH_PYTHON = [page for page in PAGES if any(blocks(page, "python"))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_python_on_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page, "python"):
        code = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's line
        exec(compile(code, str(page), "exec"), names)


def test_what_the_readme_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = next(blocks(PAGES[0], "python"))
    exec(compile(first.text, "README.md", "exec"), {})
    *shape, reward, bytes_per_step = capsys.readouterr().out.split()
    assert " ".join(shape) == "(256, 4, 84, 84)"
    assert float(reward) == pytest.approx(1 + 0.99 + 0.99**2)
    assert float(bytes_per_step) > 0
