"""``sharpwave verify``: what it prints, and its exit codes."""

import json
import os
import subprocess

import pytest

import sharpwave as sw
from tests.cli.conftest import COMMAND, ENVIRONMENT
from tests.cli.stores import make_store


@pytest.fixture
def folder(tmp_path):
    return make_store(tmp_path / "replay")


def test_a_sound_store(sharpwave, folder):
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}
    result = sharpwave("verify", folder)
    assert result.code == 0, result.text
    words = result.text.split()
    assert "Sound." in words and words[words.index("steps") + 1] == "137" and "\x1b" not in result.text
    assert before == {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_reader_that_has_gone_changes_no_exit_code(folder, command):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [*COMMAND, command, str(folder)], env=ENVIRONMENT, stdout=closed, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_store_in_use_and_files_that_cannot_be_written(sharpwave, folder):
    with sw.Store.open(folder):
        for path in folder.rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            result = sharpwave("verify", folder)
        finally:
            for path in folder.rglob("*"):
                path.chmod(0o755 if path.is_dir() else 0o644)
    assert result.code == 0, result.text


def test_damages_are_named_with_file_and_offset(here, folder):
    (path,) = (folder / "regions").glob("*.region")
    with path.open("r+b") as file:
        file.seek(3000)
        file.write(b"\xff")
        file.seek(5000)
        file.write(b"\xff")
    (folder / "regions" / "000000000009.region").write_bytes(os.urandom(5000))
    result = here("verify", folder)
    assert result.code == 1 and "Sound" not in result.text and "Traceback" not in result.text
    assert f"{path}: byte " in result.text and "checksum" in result.text
    assert "000000000009.region: byte 0: no region's header" in result.text
    assert "damages. sharpwave.Store.open restores what is intact" in result.text


def test_a_terminal_is_shown_no_more_than_a_hundred_damages(here, folder):
    for number in range(10, 130):
        (folder / "regions" / f"{number:012d}.region").write_bytes(b"garbage")
    result = here("verify", folder)
    assert result.code == 1 and "... and 20 more damages" in result.text and "120 damages" in result.text


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_a_path_that_is_no_store(here, tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    result = here("verify", tmp_path / name)
    assert result.code == 2 and "no store there" in result.text and "Traceback" not in result.text


def test_help_says_the_exit_codes(here):
    result = here("verify", "--help")
    assert result.code == 0 and "1 if anything is damaged, 2 if there is no store" in " ".join(result.text.split())


def test_neither_torch_nor_gymnasium_is_needed(folder):
    code = "import sys; sys.modules['torch'] = sys.modules['gymnasium'] = None; from sharpwave.cli import main; "
    code += f"main(['verify', {str(folder)!r}])"
    done = subprocess.run([COMMAND[0], "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_of_a_run_s_folder_the_memory_is_read(here, tmp_path):
    assert here("inspect", tmp_path).code == here("verify", tmp_path).code == 2
    for inside in (
        "checkpoints/000000002000/replay", "checkpoints/000000003000/replay", "replay", "replay-2", "replay-10",
    ):  # fmt: skip
        make_store(tmp_path / "a run" / inside)
        assert json.loads(here("inspect", "--json", tmp_path / "a run").text)["path"] == str(
            tmp_path / "a run" / inside
        )
        found = here("verify", tmp_path / "a run")
        assert found.code == 0 and inside in found.text.replace("\n", "").replace(" ", "")
