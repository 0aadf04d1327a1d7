"""A run's log in Weights & Biases: by a stand-in that keeps what it is told, and where wandb is installed by itself."""

import io
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from rich.console import Console

from sharpwave.extras import install
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import run

SHORT = load_recipe("cartpole").override(
    steps=300, warmup_steps=200, report_every=100, checkpoint_every=300, hidden_units=8, evaluate_every=0,
    stop_reward=None, track=True,
)  # fmt: skip


class Wandb(SimpleNamespace):
    """Stand-in for the module."""

    def __init__(self):
        refusal = type("Error", (Exception,), {})
        super().__init__(errors=SimpleNamespace(Error=refusal), Settings=dict, refused=None, __spec__=object())
        self.logged, self.finished, self.steps = [], False, {}

    def init(self, **options):
        if self.refused:
            raise self.refused
        self.options = options
        return self

    def define_metric(self, name, step_metric):
        self.steps[name] = step_metric

    def log(self, values):
        self.logged.append(values)

    def finish(self):
        self.finished = True


@pytest.fixture
def wandb(monkeypatch):
    made = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", made)
    return made


def quiet_run(folder):
    return run("cartpole", SHORT, folder, Console(file=io.StringIO()))


def test_what_is_logged(wandb, tmp_path):
    quiet_run(tmp_path / "run")
    assert wandb.options["name"] == "run" and wandb.options["dir"] == str(tmp_path / "run")
    assert wandb.options["config"]["training"]["steps"] == 300 and len(wandb.options["id"]) == 32
    assert wandb.steps == {"*": "steps"} and wandb.finished
    reports = [values for values in wandb.logged if "avg_fps" in values]
    assert [values["steps"] for values in reports] == [100, 200, 300] and reports[-1]["learner/learning_rate"] > 0
    episode = next(values for values in wandb.logged if "reward" in values)
    assert episode["reward"] == episode["episode_steps"] <= episode["steps"]


def test_a_refusal_names_the_remedy(wandb, tmp_path):
    wandb.refused = wandb.errors.Error("no API key")
    with pytest.raises(ValueError, match="refuses the run: no API key; WANDB_MODE=offline"):
        quiet_run(tmp_path / "run")


def test_without_wandb_no_run_begins(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="not installed: " + re.escape(install("wandb"))):
        quiet_run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_itself_offline(tmp_path):
    options = [
        "--steps=300",
        "--warmup-steps=200",
        "--evaluate-every=0",
        "--set=evaluation.stop_reward=null",
        "--track",
    ]
    command = [
        sys.executable,
        "-m",
        "sharpwave.cli",
        "train",
        "cartpole",
        f"--out={tmp_path / 'run'}",
        *options,
        "--set=evaluation.stop_reward=null",
    ]
    environment = {**os.environ, "WANDB_MODE": "offline"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
