"""A new algorithm is one file and one line of registration: it trains, is resumed, evaluated, and has its options."""

import io
import json
from importlib.metadata import EntryPoint

import pytest
from gymnasium.spaces import Box, Discrete
from rich.console import Console

from sharpwave.agents import registry
from sharpwave.agents.protocol import Spaces
from sharpwave.cli import main
from sharpwave.testing.agent import AgentSuite
from sharpwave.training.evaluation import evaluate
from sharpwave.training.recipes import load_recipe, recipe_names
from sharpwave.training.run import resume

from .tabular import Tabular


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "AGENTS", dict(registry.AGENTS))
    registry.register(Tabular)


class TestTabular(AgentSuite):
    spaces = Spaces(Discrete(5), Discrete(3))

    def make_agent(self, spaces, seed):
        return Tabular(spaces, Tabular.Settings(), seed=seed)


def sharpwave(capfd, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return ended.value.code, "".join(capfd.readouterr())


@pytest.mark.slow
def test_it_trains_from_the_command_line_and_learns(registered, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "run"
    code, text = sharpwave(
        capfd, "train", "tabular", "--env", "CliffWalking-v1", "--steps", 6_000, "--warmup-steps", 200, "--rate", 0.5,
        "--epsilon-steps", 3_000, "--evaluate-every", 0, "--update-every", 2, "--set", "agent.replay.batch_size=64",
        "--out", folder, "--checkpoint-every", 3_000, "--capacity", 10_000,
    )  # fmt: skip
    assert code == 0, text
    config = json.loads((folder / "config.json").read_text())["settings"]
    assert config["agent"]["kind"] == "tabular" and config["agent"]["rate"] == 0.5
    assert evaluate(folder, episodes=2, seed=0, epsilon=0.0).mean == -13  # the shortest way past the cliff
    quiet = Console(file=io.StringIO())
    assert resume(folder, {"steps": 7_000}, quiet)[1]["updates"] == (7_000 - 200) // 2
    code, text = sharpwave(capfd, "train", "tabular", "--help")
    assert code == 0 and "--rate" in text and "--double" not in text
    assert "tabular" in sharpwave(capfd, "train", "--help")[1]


def test_its_refusals_name_the_environment(registered, tmp_path, capfd):
    code, text = sharpwave(capfd, "train", "tabular", "--env", "CartPole-v1", "--out", tmp_path / "run")
    assert code == 2 and "tabular needs Discrete observations; CartPole-v1 has Box(" in text


@pytest.mark.slow
def test_a_process_that_has_not_registered_it_says_so(registered, tmp_path, capfd):
    folder = tmp_path / "run"
    code, text = sharpwave(
        capfd, "train", "tabular", "--env", "FrozenLake-v1", "--steps", 200, "--warmup-steps", 100,
        "--evaluate-every", 0, "--out", folder,
    )  # fmt: skip
    assert code == 0, text
    del registry.AGENTS["tabular"]
    for command in (["saliency", "--out", tmp_path / "film.gif"], ["eval"], ["train", "--resume"]):
        code, text = sharpwave(capfd, *command, folder)
        assert code == 2 and "agent: got kind 'tabular', expected one of " in text, text
        assert "import the module that registers it" in text and "Nothing is damaged" in text
        assert "Put back a copy" not in text
    registry.register(Tabular)
    assert sharpwave(capfd, "eval", folder, "--episodes", 1)[0] == 0


def test_a_package_s_entry_point_is_known(monkeypatch):
    point = EntryPoint("tabular", "tests.training.tabular:Tabular", registry.GROUP)
    with monkeypatch.context() as patch:
        patch.setattr(registry, "entry_points", lambda group: [point])
        registry._provided.cache_clear()
        assert registry.agent_class("tabular") is Tabular
        assert load_recipe("tabular").agent == Tabular.Settings() and "tabular" in recipe_names()
    registry._provided.cache_clear()


def test_a_name_is_given_once(registered):
    class Other(Tabular):
        pass

    with pytest.raises(ValueError, match="agent 'tabular': the name is taken"):
        registry.register(Other)
    with pytest.raises(ValueError, match=r"agent: got kind 'genius', expected one of .*dqn, .*, tabular"):
        registry.agent_class("genius")


def test_spaces_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"tabular needs Discrete actions; the environment has Box"):
        Tabular(Spaces(Discrete(3), Box(-1, 1, (2,))))
