"""Parts that a program has registered are known to every process of its runs, or the run is refused."""

import functools
import importlib.util
import io
import subprocess
import sys
import types

import pytest
from rich.console import Console
from torch import nn

from sharpwave.agents import architectures, registry
from sharpwave.agents.architectures import register_image_model
from sharpwave.errors import NotRegisteredError
from sharpwave.training.folder import Config, read_config, write_config
from sharpwave.training.recipes import default_recipe, load_recipe
from sharpwave.training.run import run
from sharpwave.training.setup import OwnParts, check_own_parts, own_parts

from .tabular import Tabular

PICTURES = load_recipe("gymnasium").override(
    env="tests.training.made_up:Pictures-v0", steps=600, warmup_steps=100, checkpoint_every=600,
    report_every=200, evaluate_every=300, hidden_units=8, num_envs=2,
)  # fmt: skip


class Corner(nn.Sequential):
    """The mean of a picture's corner, by channel."""

    def __init__(self, shape):
        super().__init__(nn.Conv2d(shape[0], 4, 3), nn.AdaptiveAvgPool2d(1))


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(architectures, "_registered", {})
    monkeypatch.setattr(registry, "AGENTS", dict(registry.AGENTS))


@pytest.mark.slow
def test_actors_and_the_evaluator_know_a_registered_image_model(tmp_path):
    register_image_model("corner", Corner)
    recipe = PICTURES.override(network="corner", actors=1, evaluate_beside=True, actor_restarts=0)
    _, summary = run("pictures", recipe, tmp_path / "run", Console(file=io.StringIO()))
    assert summary["reason"] == "the limit of 600 steps" and summary["actor_restarts"] == 0
    assert summary["held_out"] is not None


def test_a_registered_agent_is_known_under_its_import_path():
    registry.register(Tabular)
    parts = own_parts(default_recipe("tabular"))
    assert parts == OwnParts(agents={"tabular": "tests.training.tabular:Tabular"})
    del registry.AGENTS["tabular"]
    parts.register()
    assert registry.agent_class("tabular") is Tabular
    assert own_parts(load_recipe("cartpole")) == OwnParts()


def test_the_config_of_a_run_whose_image_model_is_not_registered_here_is_not_called_damaged(tmp_path):
    register_image_model("corner", Corner)
    config = Config("pictures", PICTURES.override(network="corner"))
    write_config(tmp_path, config)
    architectures._registered.clear()
    with pytest.raises(NotRegisteredError, match=r"--network: got 'corner', .* Nothing is damaged"):
        read_config(tmp_path, trust=True)
    register_image_model("corner", Corner)
    assert read_config(tmp_path, trust=True) == config


def local():
    class Local(Corner):
        pass

    return Local


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (local(), "local.<locals>.Local is not found at the top level of module tests.training.test_own_parts"),
        (lambda shape: Corner(shape), "<lambda> is not found at the top level of module"),
        (functools.partial(Corner), "it has no name in a module"),
    ],
)
@pytest.mark.parametrize("processes", [{"actors": 2}, {"evaluate_beside": True}])
def test_what_no_other_process_can_import_is_refused_before_the_run_begins(tmp_path, model, reason, processes):
    register_image_model("corner", model)
    refusal = r"--network corner: .* cannot be imported by the processes of --actors"
    with pytest.raises(ValueError, match=refusal) as refused:
        run("pictures", PICTURES.override(network="corner", **processes), tmp_path / "run", Console(file=io.StringIO()))
    assert reason in str(refused.value) and not (tmp_path / "run").exists()


SOURCE = """
from torch import nn
class Made(nn.Flatten):
    pass
"""


def test_a_class_of_a_module_that_only_this_process_has_is_refused(tmp_path, monkeypatch):
    recipe = PICTURES.override(actors=1)
    made = types.ModuleType("made_by_hand")
    exec(SOURCE, made.__dict__)
    monkeypatch.setitem(sys.modules, "made_by_hand", made)
    register_image_model("by-hand", made.Made)
    with pytest.raises(ValueError, match=r"Made'> cannot .*: module made_by_hand was made in this process; no file"):
        check_own_parts(recipe.override(network="by-hand"))

    def loaded(file):
        file.write_text(SOURCE)
        spec = importlib.util.spec_from_file_location("of_a_file", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "of_a_file", module)
        spec.loader.exec_module(module)
        return module.Made

    (tmp_path / "other").mkdir()
    register_image_model("of-a-file", loaded(tmp_path / "of_a_file.py"))
    with pytest.raises(ValueError, match="module of_a_file was made in this process; no file"):
        check_own_parts(recipe.override(network="of-a-file"))
    monkeypatch.syspath_prepend(tmp_path)
    check_own_parts(recipe.override(network="of-a-file"))
    register_image_model("other-file", loaded(tmp_path / "other" / "of_a_file.py"))
    with pytest.raises(ValueError, match=r"was loaded from .*other.of_a_file.py, and by that name they would import"):
        check_own_parts(recipe.override(network="other-file"))


@pytest.mark.slow
def test_a_class_of_an_interactive_session_is_refused():
    code = """
from torch import nn
from sharpwave.agents.architectures import register_image_model
from sharpwave.training.setup import own_parts
from sharpwave.training.recipes import load_recipe
class Mine(nn.Flatten):
    pass
register_image_model("mine", Mine)
own_parts(load_recipe("cartpole").override(network="mine"))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "it was defined in a notebook or an interactive session" in ended.stderr.splitlines()[-1]
