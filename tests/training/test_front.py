"""``sharpwave.train``: the same runs as the command line's, and environments of every kind."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from rich.console import Console
from safetensors.numpy import load_file

import sharpwave as sw
from sharpwave.envs.given import Given, GivenVector
from sharpwave.training.callbacks import Callback
from sharpwave.training.front import chosen_recipe
from sharpwave.training.logs import Display
from sharpwave.training.recipes import default_recipe, load_recipe

SHORT: dict[str, Any] = {"steps": 400, "warmup_steps": 100, "threads": 1, "progress": False}


def settings(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())["settings"]
    return found


def weights(folder: Path) -> dict[str, Any]:
    return {name: one.tolist() for name, one in load_file(folder / "last.safetensors").items()}


def make_cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def make_pong(num_envs: int) -> AtariVectorEnv:
    return AtariVectorEnv("pong", num_envs, img_height=42, img_width=42, autoreset_mode=AutoresetMode.NEXT_STEP)


def cartpoles(mode: AutoresetMode, kind: str = "sync", lanes: int = 3) -> Any:
    return gymnasium.make_vec("CartPole-v1", lanes, vectorization_mode=kind, vector_kwargs={"autoreset_mode": mode})


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        pytest.param(
            {"env": "CartPole-v1", "agent": "dqn", "batch_size": 16},
            ["dqn", "--set", "agent.replay.batch_size=16"],
            marks=pytest.mark.slow,
        ),
        pytest.param({"env": "CartPole-v1", "recipe": "cartpole"}, ["cartpole"], marks=pytest.mark.nightly),
        pytest.param(
            {"env": "Pendulum-v1", "agent": sw.agents.SAC}, ["sac", "--env", "Pendulum-v1"], marks=pytest.mark.nightly
        ),
    ],
)
def test_the_command_line_makes_the_same_run(given: dict[str, Any], arguments: list[str], tmp_path: Path) -> None:
    run = sw.train(**given, **SHORT | {"steps": 160}, seed=3, out=tmp_path / "called")
    options = ["--steps", "160", "--warmup-steps", "100", "--threads", "1", "--seed", "3", "--out", "typed"]
    command = [sys.executable, "-m", "sharpwave.cli", "train", *arguments, *options]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, timeout=120)
    assert settings(run.folder) == settings(tmp_path / "typed")
    assert weights(run.folder) == weights(tmp_path / "typed")
    assert sorted(path.name for path in run.folder.iterdir()) == sorted(
        path.name for path in (tmp_path / "typed").iterdir()
    )


def test_settings_of_an_algorithm_are_its_settings_in_the_run(tmp_path: Path) -> None:
    chosen = sw.agents.DQN.Settings(lr=1e-3, hidden_units=32)
    run = sw.train("CartPole-v1", chosen, **SHORT, out=tmp_path / "run", n_step=3)
    said = settings(run.folder)["agent"]
    assert (said["lr"], said["hidden_units"], said["replay"]["n_step"]) == (1e-3, 32, 3)
    assert run.summary["updates"] > 0


def chosen(env: Any, agent: Any = None, **given: Any) -> Any:
    return chosen_recipe(env, agent, None, given)


def test_without_an_agent_the_environment_decides() -> None:
    assert chosen("CartPole-v1") == ("cartpole", load_recipe("cartpole"), "made for CartPole-v1")
    assert chosen("pong")[:2] == ("pong", load_recipe("pong"))
    assert chosen("seaquest")[:2] == ("atari", load_recipe("atari").override(env="seaquest"))
    assert chosen("Acrobot-v1")[:2] == ("gymnasium", load_recipe("gymnasium").override(env="Acrobot-v1"))
    assert chosen("Pendulum-v1")[:2] == ("sac", load_recipe("sac").override(env="Pendulum-v1"))
    assert chosen("sharpwave/Meeting-v0")[:2] == ("qmix", load_recipe("qmix").override(env="sharpwave/Meeting-v0"))
    made = gymnasium.make("Pendulum-v1")
    assert [chosen(env)[0] for env in (made, make_cartpole, cartpoles(AutoresetMode.SAME_STEP), make_pong)] == [
        "sac",
        "gymnasium",
        "gymnasium",
        "atari",
    ]


def test_a_recipe_for_games_counts_in_games_only() -> None:
    assert chosen("pong", "rainbow")[1] == load_recipe("rainbow").override(env="pong")
    assert chosen("CartPole-v1", "rainbow")[1].agent == sw.agents.Rainbow.Settings()


def test_an_algorithm_learns_in_short_runs_too() -> None:
    usual = default_recipe("dqn").override(env="CartPole-v1")
    assert chosen("CartPole-v1", "dqn")[1] == usual  # a million steps
    recipe = chosen("CartPole-v1", "dqn", steps=4_000)[1]
    agent = recipe.agent
    assert (recipe.training.warmup_steps, agent.exploration.steps, agent.target_every) == (200, 1_000, 80)
    assert recipe.evaluation.evaluate_every == 800
    sac = chosen("Pendulum-v1", "sac", steps=5_000)[1]
    assert (sac.training.warmup_steps, sac.agent.random_steps) == (250, 250)
    # Long runs, what is given, a recipe in its own environment and recipes by name stay as they are.
    assert chosen("CartPole-v1", "dqn", steps=400_000)[1].training.warmup_steps == 10_000
    assert chosen("Pendulum-v1", sw.agents.SAC.Settings(random_steps=7), steps=5_000)[1].agent.random_steps == 7
    given = {"steps": 4_000, "warmup_steps": 10_000, "epsilon_steps": 250_000, "target_every": 8_000}
    found = chosen("CartPole-v1", "dqn", **given, evaluate_every=50_000)[1]
    assert found == usual.override(steps=4_000)
    assert chosen("HalfCheetah-v5", "sac", steps=9_000)[1] == load_recipe("sac").override(steps=9_000)
    by_name = chosen_recipe("Acrobot-v1", None, "gymnasium", {"steps": 4_000})[1]
    assert by_name == load_recipe("gymnasium").override(env="Acrobot-v1", steps=4_000)


def test_a_choice_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sw.train("Acrobot-v1", steps=16, out=tmp_path / "run")
    assert "Recipe gymnasium, for discrete actions, by dqn; agent= or recipe= choose another" in capsys.readouterr().out


def test_a_run_remembers_what_it_was_given(tmp_path: Path) -> None:
    """Of an object and of functions; a run that is opened, or pickled, does not."""
    short: dict[str, Any] = SHORT | {"steps": 40, "warmup_steps": 30}
    given: list[Any] = [make_cartpole(), make_cartpole, lambda: gymnasium.make("CartPole-v1")]
    for number, env in enumerate(given):
        run = sw.train(env, "dqn", **short, out=tmp_path / str(number))
        assert len(run.evaluate(episodes=1).scores) == 1
        resumed = run.resume(steps=48, progress=False)
        assert resumed.summary["steps"] == 48 and len(resumed.evaluate(episodes=1).scores) == 1
    with pytest.raises(ValueError, match="was an object of the program"):
        pickle.loads(pickle.dumps(run)).evaluate(episodes=1)
    opened = sw.TrainingRun.open(tmp_path / "1")
    with pytest.raises(ValueError, match="in Python with trust=True"):
        opened.evaluate(episodes=1)
    assert len(opened.evaluate(episodes=1, trust=True).scores) == 1
    with pytest.raises(ValueError, match="in Python with trust=True"):
        opened.resume(steps=56, progress=False)
    assert opened.resume(steps=56, env=make_cartpole, progress=False).summary["steps"] == 56  # nothing is imported


def test_a_run_and_a_path_stand_for_a_folder_in_settings(tmp_path: Path) -> None:
    made = sw.train("CartPole-v1", "dqn", **SHORT | {"steps": 100, "warmup_steps": 30}, out=tmp_path / "run")
    for data in (made, made.folder, str(made.folder)):
        assert chosen(None, "bc", data=data)[1].agent.data == str(tmp_path / "run")
    given: Any = made
    assert sw.agents.CQL.Settings(data=given).data == str(tmp_path / "run")


def test_a_folder_at_home_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    sw.train("CartPole-v1", "dqn", **SHORT | {"steps": 16, "warmup_steps": 8}, out="~/mine")
    assert (tmp_path / "mine" / "summary.json").is_file()
    assert sw.TrainingRun.open("~/mine").folder == tmp_path / "mine"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"recipe": 5}, "recipe: got 5, expected one of "),
        ({"callbacks": 5}, "callbacks: got 5, expected a list"),
        ({"actor_callbacks": 5}, "actor_callbacks: got 5, expected a list"),
        (
            {"actors": 2},
            r"--actors: got 2, but other processes cannot use the environment object CartPole-v1; give a function",
        ),
        ({"out": __file__}, "is a file; a run needs a folder of its own"),
    ],
)
def test_errors_say_what_is_expected(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        sw.train(make_cartpole(), **SHORT | {"out": tmp_path / "run"} | given)
    assert not (tmp_path / "run").exists()


def test_a_run_says_that_nothing_was_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = SHORT | {"steps": 60, "warmup_steps": 50, "evaluate_every": 30, "progress": True}
    sw.train("CartPole-v1", "dqn", **short, out=tmp_path / "run")
    assert "This run made no held-out evaluation: the first is made once 20 training" in capsys.readouterr().out


class Terminated(Callback):
    def __init__(self, number: int) -> None:
        self._number = number

    def on_learner_begin(self, training: Any) -> None:
        signal.raise_signal(self._number)


def test_a_termination_ends_the_program_after_the_checkpoint(tmp_path: Path) -> None:
    """By the handler that the program had; Ctrl-C returns the run."""
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            run = sw.train("CartPole-v1", "dqn", **SHORT, out=tmp_path / str(number), callbacks=[Terminated(number)])
            assert run.summary["reason"] == f"interrupted by {signal.Signals(number).name}"
            assert len([*(run.folder / "checkpoints").iterdir()]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]


class Breaks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment that raises once in a step, or in a reset."""

    def __init__(self, step: int = 0, reset: int = 0) -> None:
        super().__init__(make_cartpole())
        self.until = {"step": step, "reset": reset}

    def _count(self, call: str) -> None:
        self.until[call] -= 1
        if self.until[call] == 0:
            raise ZeroDivisionError(f"{call} broke\n  again")

    def step(self, action: Any) -> Any:
        self._count("step")
        return super().step(action)

    def reset(self, **settings: Any) -> Any:
        self._count("reset")
        return super().reset(**settings)


@pytest.mark.parametrize(("broken", "call"), [(Breaks(step=250), "step"), (Breaks(reset=6), "reset")])
def test_an_environment_that_raises_leaves_a_checkpoint(broken: Breaks, call: str, tmp_path: Path) -> None:
    """Of all steps before; the run goes on from there."""
    short = SHORT | {"warmup_steps": 50}
    with pytest.raises(ZeroDivisionError, match=f"{call} broke") as raised:
        sw.train(broken, "dqn", **short, out=tmp_path / "run")
    where, advice = raised.value.__notes__
    assert "sharpwave train --resume" in advice and "run" in advice
    when = "250" if call == "step" else r"\d+"
    assert re.fullmatch(rf"Raised by .*, environment 0 of the run, in step {when} after a reset with seed \d+", where)
    run = sw.TrainingRun.open(tmp_path / "run")
    reached = run.summary["steps"]
    assert run.summary["reason"] == f"ZeroDivisionError: {call} broke again" and len(run.store) == reached > 50
    assert call == "reset" or reached == 249
    cut = [one for one in run.store.episodes() if one.ended == "truncated"]
    assert cut and all(one.info["broken_off"] for one in cut)  # CartPole truncates after 500 steps, none so soon
    assert run.resume(env=broken, progress=False).summary["steps"] == 400


def test_an_environment_that_raises_before_learning_raises_at_once(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="step broke") as raised:
        sw.train(Breaks(step=20), "dqn", **SHORT, out=tmp_path / "run")
    where = "Raised by CartPole-v1, environment 0 of the run, in step 20 after a reset with seed 0"
    assert raised.value.__notes__ == [where] and not (tmp_path / "run" / "checkpoints").exists()


class Stops(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment that ends the program in a step, or is interrupted twice in one."""

    def __init__(self, raises: type[BaseException] | None) -> None:
        super().__init__(make_cartpole())
        self.raises, self.left = raises, 150

    def step(self, action: Any) -> Any:
        self.left -= 1
        if self.left == 0 and self.raises is not None:
            raise self.raises
        for _ in range(2 * (self.left == 0)):
            signal.raise_signal(signal.SIGINT)
        return super().step(action)


@pytest.mark.parametrize("raises", [SystemExit, KeyboardInterrupt, None])
def test_an_environment_that_ends_the_program_leaves_a_checkpoint(
    raises: type[BaseException] | None, tmp_path: Path
) -> None:
    """Ctrl-C, pressed twice, leaves none."""
    with pytest.raises(raises or KeyboardInterrupt):
        sw.train(Stops(raises), "dqn", **SHORT | {"warmup_steps": 50}, out=tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints").exists() == (raises is not None)


class Walk(gymnasium.Env[Any, Any]):
    """Walk from 0 to 5; the observation is the place, and the step of the episode."""

    observation_space = Box(0, 100, (2,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.place, self.steps = self.place + 1 + int(action), self.steps + 1
        return self._seen(), float(action), self.place >= 5, False, {}

    def _seen(self) -> Any:
        return np.array([self.place, self.steps], np.float32)


class Closing(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    def __init__(self, env: Any) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self.resets, self.closed = 0, False

    def reset(self, **options: Any) -> Any:
        self.resets += 1
        return super().reset(**options)

    def close(self) -> None:
        self.closed = True


class Vector:
    """Vector by hand, which is no Gymnasium class: of walks that are reset by hand."""

    single_observation_space, single_action_space = Walk.observation_space, Walk.action_space
    metadata: ClassVar = {"autoreset_mode": "Disabled"}

    def __init__(self, num_envs: int, *, masks: bool = True) -> None:
        self.num_envs, self._masks = num_envs, masks
        self._walks = [Walk() for _ in range(num_envs)]
        self._obs = np.zeros((num_envs, 2), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask") if self._masks else None
        for lane in range(self.num_envs):
            if mask is None or mask[lane]:
                self._obs[lane] = self._walks[lane].reset()[0]
        return self._obs, {}

    def step(self, actions: Any) -> Any:
        results = [walk.step(action) for walk, action in zip(self._walks, actions, strict=True)]
        self._obs[:] = [result[0] for result in results]
        ended = np.array([result[2] for result in results])
        return self._obs, np.array([result[1] for result in results]), ended, np.zeros_like(ended), {}

    def close(self) -> None:
        raise AssertionError("it is its owner's")


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vectors_of_all_modes_give_the_same_steps(mode: AutoresetMode) -> None:
    """As a vector that resets in the same step."""
    usual, given = cartpoles(AutoresetMode.SAME_STEP), GivenVector(cartpoles(mode))
    actions = np.random.default_rng(0).integers(0, 2, (200, 3))
    (obs, _), (same, _) = usual.reset(seed=5), given.reset(seed=5)
    np.testing.assert_array_equal(obs, same)
    ends = 0
    for action in actions:
        obs, reward, terminated, truncated, infos = usual.step(action)
        mine = given.step(action)
        ended = terminated | truncated
        for one, other in zip((obs, reward, terminated, truncated), mine[:4], strict=True):
            np.testing.assert_array_equal(one, other)
        for lane in np.flatnonzero(ended):
            np.testing.assert_array_equal(infos["final_obs"][lane], mine[4]["final_obs"][lane])
        ends += int(ended.sum())
    assert ends > 10


def test_a_vector_made_by_hand(tmp_path: Path) -> None:
    run = sw.train(Vector(2), **SHORT, out=tmp_path / "run")
    assert run.summary["episodes"] > 60 and run.summary["held_out"] is None
    with run.store as store:
        ended = [episode for episode in store.episodes() if episode.whole and episode.ended == "terminated"]
        assert len(ended) > 60
        for episode in ended:
            places = episode.obs[:, 0]
            assert places[0] == 0 and places[-2] < 5 <= places[-1]
            assert np.diff(places).tolist() == (1 + episode.action).tolist()


def test_a_vector_that_resets_all_lanes_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot reset single environments"):
        sw.train(Vector(2, masks=False), **SHORT, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_environment_is_trained_in_and_stays_open(tmp_path: Path) -> None:
    env = Closing(make_cartpole())
    asked: dict[str, Any] = {"evaluate_every": 500, "evaluate_from": 0.0, "epsilon_steps": 20_000}
    run = sw.train(env, **SHORT | {"steps": 900}, **asked, out=tmp_path / "run")
    assert not env.closed
    assert run.summary["evaluations"] >= 1 and len(run.summary["final"]["scores"]) == 30
    assert run.summary["episodes"] < env.resets <= run.summary["episodes"] + 4  # its episodes are training's only
    assert settings(run.folder)["env"] == {
        "kind": "own", "name": "CartPole-v1", "num_envs": 1, "stack": 1, "action_masks": True, "factory": ""
    }  # fmt: skip


@pytest.mark.slow
def test_atari_vectors(tmp_path: Path) -> None:
    run = sw.train(
        make_pong, recipe="pong", num_envs=2, steps=120, warmup_steps=60, threads=1, progress=False,
        out=tmp_path / "run", evaluate_every=0, stop_reward=None, evaluate_from=None, capacity=10_000,
    )  # fmt: skip
    assert run.summary["steps"] == 120 and run.summary["updates"] > 0
    assert run.store.spec.fields["obs"].shape == (42, 42) and run.store.spec.fields["obs"].stack == 4
    assert settings(run.folder)["env"]["factory"] == f"{__name__}:make_pong"


@pytest.mark.slow
def test_actors_make_environments_by_a_function(tmp_path: Path) -> None:
    run = sw.train(make_cartpole, **SHORT, num_envs=2, actors=2, out=tmp_path / "run")
    assert run.summary["steps"] >= 400 and run.summary["updates"] > 0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"env": 3}, "env: got 3, expected a Gymnasium id, an Atari game, an environment"),
        ({}, "env: got none, expected an environment"),
        ({"env": lambda: 3}, "made 3, expected a gymnasium.Env or a VectorEnv"),
        ({"env": "CartPole-v1", "agent": "dqm"}, "agent: got 'dqm', did you mean dqn?"),
        ({"env": "CartPole-v1", "agent": "cartpole"}, "'cartpole' is a recipe, expected an algorithm"),
        ({"env": "CartPole-v1", "recipe": "cartpol"}, "recipe: got 'cartpol', did you mean cartpole"),
        ({"env": "CartPole-v1", "lr": 3}, r"unknown settings lr \(did you mean learning_rate\?\)"),
        ({"env": "CartPole-v1", "batch_size": "many"}, "setting batch_size: got 'many', expected int"),
        ({"env": Walk(), "actors": 1}, "other processes cannot use the environment object Walk; give a function"),
        ({"env": lambda: Walk(), "actors": 1}, "cannot be sent to actor processes"),
        ({"env": Walk(), "num_envs": 4}, "--num-envs: got 4, but Walk has 1"),
        ({"env": Walk(), "evaluate_every": 100}, "evaluate_every: got 100, but Walk cannot be made again"),
        ({"env": Vector(2), "stack": 2}, "--stack: got 2 for a vector"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    given: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        sw.train(**given, **SHORT, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_in_a_thread_signals_stay_as_they_are(tmp_path: Path) -> None:
    runs: list[Any] = []
    thread = threading.Thread(target=lambda: runs.append(sw.train("CartPole-v1", **SHORT, out=tmp_path / "run")))
    thread.start()
    thread.join(120)
    assert runs[0].summary["steps"] == 400


SCRIPT = """
import sharpwave as sw
print("begun")
run = sw.train("CartPole-v1", steps=300, warmup_steps=100, threads=1, progress=False, {more})
print(run.summary["steps"])
"""


@pytest.mark.slow
def test_a_script_without_a_guard(tmp_path: Path) -> None:
    """It works where no process is started, and else says what to do."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(more=""))
    alone = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert alone.stdout == "begun\n300\n", alone.stderr
    script.write_text(SCRIPT.format(more="actors=1, actor_restarts=0"))
    failed = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert failed.returncode and 'under if __name__ == "__main__":' in failed.stderr
    assert len([*(tmp_path / "runs").iterdir()]) == 2


def test_given_objects_are_not_sent_to_processes() -> None:
    import pickle

    with pytest.raises(TypeError, match="give a function"):
        pickle.dumps(Given(Walk()))
    assert pickle.loads(pickle.dumps(Given(make_cartpole))).factory is make_cartpole


@pytest.mark.slow
def test_a_run_of_an_object_is_resumed_with_it(tmp_path: Path) -> None:
    """And is then as if it had not been interrupted."""
    asked: dict[str, Any] = {"recipe": "gymnasium", "checkpoint_every": 400}
    whole = sw.train(make_cartpole(), **SHORT | {"steps": 800}, **asked, out=tmp_path / "whole")
    first = sw.train(make_cartpole(), **SHORT, **asked, out=tmp_path / "parts")
    opened = sw.TrainingRun.open(first.folder)
    with pytest.raises(ValueError, match=r"'CartPole-v1' was an object of the program .*resume\(env=\.\.\.\)"):
        opened.resume(steps=800, progress=False)
    with pytest.raises(ValueError, match="Vector has 2 environments, the run has 1"):
        opened.resume(steps=800, env=Vector(2), progress=False)
    with pytest.raises(ValueError, match="batch_size cannot be changed in a run that is resumed"):
        opened.resume(batch_size=3, env=make_cartpole())
    folder, summary = opened.resume(steps=800, env=make_cartpole(), progress=False)
    assert (folder, summary["steps"]) == (first.folder, 800)
    assert weights(folder) == weights(whole.folder)


def test_a_run_with_its_name_is_resumed_without_its_environment(tmp_path: Path) -> None:
    run = sw.train("CartPole-v1", **SHORT, out=tmp_path / "run")
    with pytest.raises(ValueError, match="expected none: the run's settings make its CartPole-v1"):
        run.resume(steps=500, env=make_cartpole())
    assert run.resume(steps=500, progress=False).summary["steps"] == 500


def test_the_figures_of_a_run_are_a_table(tmp_path: Path) -> None:
    run = sw.train("CartPole-v1", **SHORT, report_every=100, out=tmp_path / "run")
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    metrics = run.metrics
    assert metrics["event"] == [line["event"] for line in lines]
    episodes, reports = metrics.of("episode"), metrics.of("report")
    assert episodes["reward"] == [line["reward"] for line in lines if line["event"] == "episode"]
    assert reports["steps"] == [100, 200, 300, 400] and reports["learner.learning_rate"][0] == 2e-3
    assert "reward" not in reports and set(metrics.to_dict()) == set(metrics)
    frame = reports.to_pandas()
    assert frame["updates"].tolist() == reports["updates"] and len(metrics.to_pandas()) == len(lines)
    assert f"{len(lines)} rows of event, steps" in repr(metrics)
    assert metrics._repr_html_().count("<tr>") == 11
    polars = pytest.importorskip("polars")
    assert isinstance(metrics.to_polars(), polars.DataFrame) and metrics.to_polars().height == len(lines)


@pytest.mark.parametrize("disk", [{}, {"disk_limit": "1GiB"}], ids=["memory", "disk"])
def test_the_replay_memory_of_a_run(disk: dict[str, Any], tmp_path: Path) -> None:
    run = sw.train("CartPole-v1", **SHORT, **disk, out=tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with run.store as store:
        assert len(store) == 400 and sum(len(one.reward) for one in store.episodes()) == 400
        assert {path: path.read_bytes() for path in before} == before
        assert run.resume(steps=500, progress=False).summary["steps"] == 500  # while it is open
    del store
    with run.store as store:
        assert len(store) == 500
    del store
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_without_its_replay_memory_says_so(tmp_path: Path) -> None:
    run = sw.train("CartPole-v1", **SHORT, save_replay=False, out=tmp_path / "run")
    with pytest.raises(ValueError, match="has no checkpoint with its replay memory; runs with save_replay=False"):
        _ = run.store


def test_a_notebook_shows_progress_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, text: str) -> None:
            shown.append(text)

    def display(text: str, **options: Any) -> Handle:
        assert options == {"display_id": True}
        shown.append(text)
        return Handle()

    notebook = types.ModuleType("IPython.display")
    monkeypatch.setattr(notebook, "HTML", str, raising=False)
    monkeypatch.setattr(notebook, "display", display, raising=False)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    board = Display(Console(force_jupyter=True), "<cartpole>", 400, None)
    run = sw.train("CartPole-v1", **SHORT, out=tmp_path / "run")
    reports = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    board.on_report(next(event for event in reports if event["event"] == "report"))
    board.close()
    assert len(shown) == 2 and "&lt;cartpole&gt;" in shown[1] and "<td>400 / 400</td>" in shown[1]


KERNEL = """
import asyncio, json, signal, sys, traceback

names, out = {}, sys.stdout
sys.stdout = sys.stderr


async def kernel():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            exec(json.loads(line), names)
            said = str(names.pop("said", ""))
        except BaseException as error:
            said = type(error).__name__
            traceback.print_exc()
        finally:
            signal.signal(signal.SIGINT, before)
        print(json.dumps(said), file=out, flush=True)


asyncio.new_event_loop().run_until_complete(kernel())
"""
"""A kernel of a notebook as ipykernel is to its cells: they run in the main thread, inside an event loop; SIGINT, which
is sent to the whole group of processes, raises KeyboardInterrupt in a cell and is ignored between two."""
LONG = "run = sw.train('CartPole-v1', 'dqn', steps=200_000, warmup_steps=100, evaluate_every=0, threads=1, seed=3)\n"
TOLD = "said = (run.summary['reason'], run.summary['steps'], str(run.folder))"


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="interrupts of a group of processes")
def test_an_interrupted_kernel_keeps_the_run_and_takes_further_cells(tmp_path: Path) -> None:
    """The same cell again begins a second run; the first one is resumed."""
    here = {**os.environ, "PYTHONPATH": str(Path(sw.__file__).parents[1])}
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL], cwd=tmp_path, env=here, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert kernel.stdin is not None and kernel.stdout is not None
    told = kernel.stdout

    def begin(cell: str) -> None:
        assert kernel.stdin is not None
        kernel.stdin.write(json.dumps(cell) + "\n")
        kernel.stdin.flush()

    def interrupted(cell: str, until: Callable[[], bool]) -> Any:
        begin(cell)
        limit = time.monotonic() + 120
        while not until():
            assert time.monotonic() < limit and kernel.poll() is None
            time.sleep(0.05)
        os.killpg(kernel.pid, signal.SIGINT)
        return json.loads(told.readline())

    def learning(runs: int) -> bool:
        reports = [path.read_text() for path in tmp_path.glob("runs/*/metrics.jsonl")]
        return len(reports) == runs and all('"updates"' in one for one in reports)

    try:
        runs = []
        for number in (1, 2):
            said = interrupted("import sharpwave as sw\n" + LONG + TOLD, partial(learning, number))
            reason, steps, folder = ast.literal_eval(said)
            assert reason == "interrupted by SIGINT" and 1_000 <= steps < 200_000
            assert [int(one.name) for one in (tmp_path / folder / "checkpoints").iterdir()] == [steps]
            runs.append(folder)
        assert len({*runs}) == 2
        waiting = tmp_path / "waiting"
        loop = f"open({str(waiting)!r}, 'w').close()\nwhile True: pass"
        assert interrupted(loop, waiting.exists) == "KeyboardInterrupt"
        begin(f"more = {steps} + 400\nrun = run.resume(steps=more, progress=False)\n" + TOLD)
        _, reached, folder = ast.literal_eval(json.loads(told.readline()))
        assert steps + 400 <= reached < steps + 500 and folder == runs[-1]
    finally:
        kernel.kill()
        kernel.communicate()


def test_a_run_has_its_policy_and_plays_it(tmp_path: Path) -> None:
    run = sw.train(make_cartpole, "dqn", **SHORT, num_envs=2, out=tmp_path / "run")
    assert run.policy.predict(np.zeros(4, np.float32))[0] in (0, 1)
    scores = run.evaluate(make_cartpole, episodes=3)
    assert len(scores.scores) == 3


@pytest.mark.slow
def test_a_function_in_the_current_folder_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command line, once it is trusted."""
    (tmp_path / "walks.py").write_text("import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run = sw.train(importlib.import_module("walks").make, **SHORT, num_envs=2, out="run")
    assert settings(run.folder)["env"]["factory"] == "walks:make"
    program = "import sys; sys.path.remove(''); from sharpwave.cli import main; main()"
    command = [sys.executable, "-c", program, "eval", "run", "--episodes", "2"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert refused.returncode and "would import the module 'walks'" in refused.stderr
    played = subprocess.run([*command, "--trust"], capture_output=True, text=True, timeout=120)
    assert "of 2 episodes" in played.stdout, played.stderr
