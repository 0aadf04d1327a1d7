"""A resumed R2D3 run repeats the run that was not stopped, demonstrations and their priorities included."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from rich.console import Console

import sharpwave as sw
from sharpwave.agents.demonstrations import DEMONSTRATIONS
from sharpwave.training.callbacks import Callback, Training
from sharpwave.training.folder import checkpoints
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import resume, run

RECIPE = load_recipe("lock").override(
    env="sharpwave/TMaze-v0", steps=1_600, num_envs=4, warmup_steps=200, checkpoint_every=800, report_every=400, seed=3,
    batch_size=8, hidden_units=8, core_units=8, capacity=600, stop_reward=None, evaluate_every=0,
    demonstration_share=0.9, demonstration_share_end=0.1, demonstration_share_steps=1_200,
)  # fmt: skip
TIMES = {
    "minutes",
    "avg_fps",
    "seconds_left",
    "replay_bytes",
    "bytes_per_step",
    "encoded_bytes_per_step",
    "fixed_bytes",
    "process_bytes",
}


def recorded(folder: Path) -> Path:
    """A store with three demonstrated episodes of the T-maze."""
    spec = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=100) as store:
        for cue in (-1, 1, -1):
            for step in range(21):
                end = step == 20
                store.append(
                    obs=np.array([cue * (step == 0), end, 1]), action=end * (1 if cue == 1 else 2), reward=float(end),
                    terminated=end, truncated=False, final_obs=np.array([0, 1, 1]),
                )  # fmt: skip
        store.checkpoint(folder)
    return folder


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200, _environ={})


def left(folder: Path) -> list[object]:
    """What a run has learned and reported."""
    last = checkpoints(folder)[-1]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    state = json.loads((last / "state.json").read_text())
    return [
        [{key: value for key, value in line.items() if key not in TIMES} for line in lines],
        *[(last / name).read_bytes() for name in ("weights.safetensors", "optimizer.safetensors")],
        state["blend"], state["agent"],
    ]  # fmt: skip


class Draws(Callback):
    """Keeps which view each item of a run's batches came from, with the steps made by then."""

    def __init__(self) -> None:
        self.drawn: list[tuple[int, list[int]]] = []

    def on_begin(self, training: Training) -> None:
        sample, progress = training.view.sample, training.state.progress

        def kept(*arguments: Any, **named: Any) -> Any:
            batch = sample(*arguments, **named)
            self.drawn.append((progress.steps, batch.source.tolist()))
            return batch

        training.view.sample = kept

    def follow_the_schedule(self) -> bool:
        """Whether demonstrations were drawn as often as the schedule says, early, between and late."""
        steps = np.array([step for step, _ in self.drawn])
        found = np.array([source.count(0) for _, source in self.drawn])
        share = 0.9 - 0.8 * np.minimum(steps / 1_200, 1.0)
        parts = [steps < 600, (steps >= 600) & (steps < 1_200), steps >= 1_200]
        return all(
            abs(found[part].sum() - 8 * share[part].sum()) < 5 * np.sqrt((8 * share * (1 - share))[part].sum())
            for part in parts
        )


class Whole(NamedTuple):
    folder: Path
    draws: Draws


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run that was not stopped, and whose demonstrations are gone: its checkpoints have them."""
    demonstrations = recorded(tmp_path_factory.mktemp("recorded") / "demonstrations")
    folder, draws = tmp_path_factory.mktemp("run") / "whole", Draws()
    run("lock", RECIPE.override(demonstrations=str(demonstrations)), folder, quiet(), callbacks=[draws])
    shutil.rmtree(demonstrations)
    return Whole(folder, draws)


@pytest.fixture
def whole(unbroken: Whole) -> Path:
    return unbroken.folder


def stopped_copy(whole: Path, to: Path) -> Path:
    """The run as it was at its first checkpoint."""
    shutil.copytree(whole, to)
    shutil.rmtree(checkpoints(to)[-1])
    return to


def test_it_records_the_demonstrations_that_it_learned_from(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "demonstrations")
    short = RECIPE.override(demonstrations=str(folder), steps=40, warmup_steps=20, checkpoint_every=20)
    made, summary = run("lock", short, tmp_path / "run", quiet())
    said = summary["learned_from"]
    assert (said["path"], said["version"], said["steps"], len(said["sha256"])) == (str(folder), None, 63, 64)
    shutil.rmtree(folder)
    _, summary = resume(made, {"steps": 60}, quiet())
    assert summary["learned_from"] == said


@pytest.mark.slow
def test_it_is_the_run_that_was_not_stopped(unbroken: Whole, tmp_path: Path) -> None:
    whole, draws = unbroken.folder, Draws()
    stopped = stopped_copy(whole, tmp_path / "stopped")
    resume(stopped, {}, quiet(), callbacks=[draws])
    assert left(whole) == left(stopped)
    assert draws.drawn == unbroken.draws.drawn[-len(draws.drawn) :] and 800 < draws.drawn[0][0] < 810
    assert len(unbroken.draws.drawn) > 300 and unbroken.draws.follow_the_schedule()
    batches = []
    for folder in (whole, stopped):
        with sw.Store.open(checkpoints(folder)[-1] / DEMONSTRATIONS) as store:
            view = RECIPE.agent.replay.open(store, "learner", 0)
            assert store.recovery is not None and not store.recovery.views, "the view is restored"
            batches.append(view.sample(50).copy())
    np.testing.assert_array_equal(batches[0].ids, batches[1].ids)
    np.testing.assert_array_equal(batches[0].probabilities, batches[1].probabilities)
    assert np.ptp(batches[0].probabilities) > 0, "priorities of the demonstrations were learned"


@pytest.mark.slow
def test_with_actors_the_share_follows_the_steps_that_arrived(tmp_path: Path) -> None:
    demonstrations, draws = recorded(tmp_path / "demonstrations"), Draws()
    recipe = RECIPE.override(demonstrations=str(demonstrations), actors=1, segment_steps=16)
    run("lock", recipe, tmp_path / "run", quiet(), callbacks=[draws])
    assert len({step for step, _ in draws.drawn}) > 10 and draws.follow_the_schedule()


@pytest.mark.parametrize("damaged", ["state", "demonstrations"])
def test_a_checkpoint_whose_blend_is_damaged_is_not_used(whole: Path, tmp_path: Path, damaged: str) -> None:
    stopped = stopped_copy(whole, tmp_path / "stopped")
    checkpoint = checkpoints(stopped)[-1]
    if damaged == "state":
        path = checkpoint / "state.json"
        path.write_text(path.read_text().replace('"blend"', '"bland"'))
    else:
        (path,) = (checkpoint / DEMONSTRATIONS).glob("1/regions/*")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(ValueError, match="none of its checkpoints"):
        resume(stopped, {}, quiet())
