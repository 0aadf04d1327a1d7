"""What the README shows runs, and what it links to is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", README, re.S)
    exec(compile(examples[0], "README.md", "exec"), {})
    shape, reward, bytes_per_step = re.fullmatch(r"(\(.*\)) (\S+) (\S+)\n", capsys.readouterr().out).groups()
    assert shape == "(256, 4, 84, 84)"
    assert float(reward) == pytest.approx(1 + 0.99 + 0.99**2)
    assert float(bytes_per_step) > 0


def test_the_example_of_a_store_on_disk_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = re.findall(r"```python\n(.*?)```", README, re.S)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(first, "README.md", "exec"), names)
    exec(compile(second, "README.md", "exec"), names)
    assert len(names["store"]) == 1000 * 8 - 8  # type: ignore[arg-type]  # each lane's last step has no successor
    assert len(names["again"]) == 1000 * 8  # type: ignore[arg-type]


def test_links_and_pictures_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks/README.md"]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_modules_that_the_architecture_names_exist() -> None:
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)", (ROOT / "docs" / "architecture.md").read_text()):
        assert (
            any(next((ROOT / top).rglob(name), None) for top in ("src", "tests", "benchmarks"))
            or (ROOT / name).exists()
        ), name
