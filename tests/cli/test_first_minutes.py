"""What a newcomer meets first: versions, help, completion, warming up, Ctrl-C at any time, a run that cannot learn."""

import os
import subprocess
import sys

import pytest

import sharpwave as sw
from tests.cli.test_core_install import EXTRA, command_without

CLI = {"typer", "click", "shellingham", "rich"}


@pytest.mark.parametrize("arguments", [["inspect", "STORE"], ["verify", "STORE"], ["plan"], ["--help"]])
def test_the_store_s_own_commands_need_nothing_of_the_trainer(arguments, tmp_path):
    spec = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=100, disk=tmp_path / "replay") as store:
        store.append(obs=[0, 0, 0, 0], action=0, reward=1.0, terminated=True, truncated=False)
    given = [str(tmp_path / "replay") if word == "STORE" else word for word in arguments]
    code, text = command_without([name for name in EXTRA if name not in CLI], *given)
    assert code == 0 and "Traceback" not in text, text


def test_help_cuts_nothing_off_at_80_columns(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = here("train", "pong", "--help").text
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text and "no-late-fractions" in "".join(text.replace("│", "").split())


def test_a_shell_completes_commands_and_recipes():
    asked = {"_SHARPWAVE_COMPLETE": "complete_bash", "COMP_WORDS": "sharpwave train lun", "COMP_CWORD": "2"}
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'sharpwave'; from sharpwave.cli import main; main()"]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["lunarlander", "lunarlander-ppo", "lunarlander-a2c"], done


@pytest.mark.parametrize("module", ["sharpwave.cli.commands", "sharpwave.offline.folder_check"])
def test_ctrl_c_ends_a_command_with_130_while_it_imports_and_while_it_runs(module, tmp_path):
    code = (
        "import builtins, sys\nreal = builtins.__import__\n"
        "def pressed(name, *rest, **named):\n"
        f"    if name == {module!r}: raise KeyboardInterrupt\n"
        "    return real(name, *rest, **named)\n"
        "builtins.__import__ = pressed\n"
        "from sharpwave.cli import main\nmain(['verify', '.'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130 and "Traceback" not in done.stderr, done


def test_a_run_that_cannot_learn_says_so_and_its_folder_can_be_inspected(here, tmp_path):
    run = ["train", "cartpole", "--out", tmp_path / "run", "--steps", 200]
    text = here(*run, "--warmup-steps", 300).text
    assert "This run will make no update: it ends after 200 steps (--steps)" in text
    assert "+ " in text and "of buffers" in text
    for command in ("inspect", "verify"):
        assert here(command, tmp_path / "run").code == 0
