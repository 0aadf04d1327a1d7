"""Actors on a Ray of two simulated nodes: how they are shared out, and a run that learns while a shard is killed."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharpwave.training.actors.ray_nodes import shares
from sharpwave.training.callbacks import Callback
from sharpwave.training.recipes import load_recipe
from tests.serve.on_ray import simulated

from ..trainer import Trained

EXAMPLES = Path(__file__).parents[3] / "examples" / "cluster"


def test_actors_are_shared_out_by_processors() -> None:
    assert shares(9, {"a": 2.0, "b": 4.0}, {"a": 0, "b": 0}) == {"a": 3, "b": 6}
    assert shares(2, {"a": 4.0, "b": 4.0}, {"a": 3, "b": 0}) == {"b": 2}
    assert shares(3, {}, {}) == {} and shares(-1, {"a": 1.0}, {"a": 1}) == {}


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"ray": "10.0.0.1:6379"}, r"--ray: .*auto, ray or ray://HOST:PORT"),
        ({"ray": "auto", "connect": "h:1"}, r"--connect: .*none beside --ray"),
        ({"shards": 2}, r"--shards: got 2.*--ray"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        load_recipe("cartpole").override(**given)


def options_of(command: str) -> set[str]:
    from typer.testing import CliRunner

    from sharpwave.cli.commands import app

    said = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "300", "TERM": "dumb"})
    assert said.exit_code == 0, said.output
    return set(re.findall(r"--[a-z][a-z-]+", said.output))


@pytest.mark.parametrize("name", [path.name for path in sorted(EXAMPLES.iterdir())])
def test_examples_are_well_formed_and_give_options_that_exist(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    if name.endswith(".yaml"):
        documents = list(yaml.safe_load_all(text))
        assert documents and all({"apiVersion", "kind", "metadata"} <= one.keys() for one in documents)
    commands = re.findall(r"sharpwave (serve|actors|train apex)\b(.*)", text.replace("\\\n", " "))
    commands += [("serve", " ".join(re.findall(r"- (--\S+)", text)))] if name == "serve.yaml" else []
    assert commands
    for command, rest in commands:
        given = set(re.findall(r"--[a-z][a-z-]+", rest))
        assert given <= options_of(command) | {"--help"}, (command, given)


def test_a_run_on_ray_learns_while_a_shard_is_killed() -> None:
    class Killer(Callback):
        killed = 0

        def on_step(self, training: Any) -> None:
            deadline = time.monotonic() + 60
            while not self.killed and len(training.experience._actors.joined()) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)  # else the first node may have played all before the other joins
            both = all(state.count for state in training.view._of.states)
            if training.state.progress.updates >= 20 and both and not self.killed:
                self.killed, self.then = training.store._processes.processes[0], training.state.progress.updates
                os.kill(self.killed, signal.SIGKILL)

    recipe = load_recipe("cartpole").override(
        actors=2, num_envs=4, steps=2_000, warmup_steps=400, report_every=500, segment_steps=8, batch_size=32,
        prioritized=True, ray="ray", shards=2, device="cpu",
    )  # fmt: skip
    killer = Killer()
    with pytest.MonkeyPatch.context() as patch, simulated(2, patch) as (ray, _):
        trained = Trained(recipe, killer)
        try:
            assert trained.training.error is None and trained.last["steps"] >= 2_000
            assert killer.killed and trained.last["updates"] > killer.then + 50
            assert len(ray.nodes()) == 2
        finally:
            trained.store.close()
