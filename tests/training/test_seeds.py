"""Several seeds in processes: the runs are those of single calls, are kept, go on, and make one figure."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import sharpwave as sw
from sharpwave.training import folder as files
from sharpwave.training.checkpoints import clear_begun, save_policy
from sharpwave.training.front import chosen_recipe
from sharpwave.training.recipes import load_recipe
from sharpwave.training.seeds import SeedRuns

SHORT: dict[str, Any] = {"steps": 300, "warmup_steps": 100, "progress": False}
COUNTS = ("steps", "episodes", "updates", "replay_steps", "replay_bytes", "fixed_bytes", "minutes")
MEANS = ("mean_reward", "bytes_per_step", "encoded_bytes_per_step")
ENDED: dict[str, Any] = dict.fromkeys(COUNTS, 0) | dict.fromkeys(MEANS) | {"reason": "400 steps", "final": None}
"""Summary of a run that has ended, and made no evaluations."""


def make_cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def make_nothing() -> Any:
    raise OSError("no simulator here")


def weights(folder: Path) -> dict[str, Any]:
    return {name: one.tolist() for name, one in load_file(folder / "last.safetensors").items()}


@pytest.mark.slow
def test_seeds_are_trained_once_and_go_on(tmp_path: Path) -> None:
    """Each as by a call of its own."""
    first = sw.train_seeds(make_cartpole, "dqn", seeds=[4, 7], **SHORT, out=tmp_path / "seeds")
    assert [*first.runs] == [*first.scores] == [4, 7] and all(len(one) == 30 for one in first.scores.values())
    alone = sw.train(make_cartpole, "dqn", **SHORT, seed=7, threads=1, out=tmp_path / "alone")
    assert weights(first.runs[7].folder) == weights(alone.folder)

    begun = time.monotonic()
    again = sw.train_seeds(make_cartpole, "dqn", seeds=[7, 4], **SHORT, out=tmp_path / "seeds")
    assert again.scores == first.scores and again.iqm == first.iqm
    assert time.monotonic() - begun < 10  # no process was started

    with pytest.raises(ValueError, match=r"is a run with agent.replay.batch_size=32, but this one has .*=16"):
        sw.train_seeds(make_cartpole, "dqn", seeds=[4], batch_size=16, **SHORT, out=tmp_path / "seeds")
    more = sw.train_seeds(make_cartpole, "dqn", seeds=[4], **SHORT | {"steps": 400}, out=tmp_path / "seeds")
    assert more.runs[4].summary["steps"] == 400
    assert "1 seeds; 4: " in repr(more) and more._repr_html_().count("<tr>") == 2


def begun(folder: Path) -> Path:
    """A run as one that was killed before its first checkpoint leaves it, without its lock."""
    for name in ("tensorboard", "videos", "saliency"):
        (folder / name).mkdir(parents=True)
    (folder / "checkpoints" / ".000000000200.0123abcd.partial").mkdir(parents=True)
    files.write_config(folder, files.Config("cartpole", load_recipe("cartpole"), "1" * 32))
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / "videos" / "000000000200.mp4").write_bytes(b"")
    (folder / "saliency" / "000000000300.mp4").write_bytes(b"")
    (folder / "tensorboard" / "events.out.tfevents.0000000001.000000001.here.7").write_bytes(b"")
    return folder


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    save_policy(begun(tmp_path / "run") / "best.safetensors", {"weight": torch.zeros(2)}, {"steps": 100})
    clear_begun(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]
    (tmp_path / "run" / ".config.json.0123abcd.partial").write_bytes(b"{")  # it was killed even earlier
    with files.new_folder(tmp_path / "run", "cartpole", 0):
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]


def test_a_run_killed_amid_its_first_checkpoint_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sharpwave.training.checkpoints.save_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        sw.train("CartPole-v1", "dqn", **SHORT, out=tmp_path / "run")
    clear_begun(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]


@pytest.mark.parametrize(
    "kept",
    [
        "summary.json",
        "last.safetensors",
        "best.safetensors",
        "notes.txt",
        "analysis/one.csv",
        "tensorboard/mine.txt",
        "videos/mine.mp4",
        "saliency/000000000200.mp4/mine.mp4",
        "checkpoints/000000000200/online.safetensors",
        "checkpoints/.000000000200.0123abcd.partial/mine.txt",
        "replay/store.json",
    ],
)
def test_nothing_else_is_removed(kept: str, tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    (run / kept).parent.mkdir(parents=True, exist_ok=True)
    (run / kept).write_text("mine")
    (run / "lock").touch()
    before = sorted(run.rglob("*"))
    with pytest.raises(ValueError, match=f"no checkpoint to resume from.*{kept.split('/')[0]}.*give another"):
        clear_begun(run)
    assert sorted(run.rglob("*")) == before and (run / kept).read_text() == "mine"


def test_runs_of_different_length_make_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept runs start no process, unless more steps are asked for."""
    recipe = load_recipe("cartpole").override(threads=1, steps=400)
    for seed, steps in ((0, 400), (1, 403), (2, 600)):
        run = tmp_path / str(seed)
        (run / "checkpoints" / f"{steps:012d}").mkdir(parents=True)
        (run / "checkpoints" / f"{steps:012d}" / "state.json").touch()
        of = recipe.override(seed=seed, steps=600 if seed == 2 else 400)
        files.write_config(run, files.Config("cartpole", of, "1" * 32))
        files.write_summary(run, ENDED)
    (tmp_path / "scores.json").write_text('{"0": [1.0], "1": [3.0], "2": [5.0]}')
    settings: dict[str, Any] = {"recipe": "cartpole", "num_envs": recipe.env.num_envs, "out": tmp_path}
    with pytest.raises(ValueError, match=r"steps: got 400, expected at least.*: seed 2 has 600; scores of runs of"):
        sw.train_seeds("CartPole-v1", seeds=3, steps=400, **settings)
    kept = sw.train_seeds("CartPole-v1", seeds=2, steps=400, report_every=7, **settings)
    assert kept.means == {0: 1.0, 1: 3.0}
    given: list[Any] = [np.arange(2), np.int64(2), range(2), {0, 1}, iter([0, 1])]
    for seeds in given:
        assert [*sw.train_seeds("CartPole-v1", seeds=seeds, steps=400, **settings).scores] == [0, 1]
    for wrong in ([0.0], True, 0.5, "01"):
        with pytest.raises(ValueError, match=r"seeds: got .*, expected a number of seeds, or a list of integers"):
            sw.train_seeds("CartPole-v1", seeds=wrong, **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed: got 3, expected none"):
        sw.train_seeds("CartPole-v1", seed=3, **settings)
    for out, said in ((tmp_path / "0", "the folder of a run"), (tmp_path / "scores.json", "a file")):
        with pytest.raises(ValueError, match=f"is {said}, expected a folder"):
            sw.train_seeds("CartPole-v1", recipe="cartpole", out=out)
    with pytest.raises(ValueError, match="is a run of dqn, but this one is of ppo"):
        sw.train_seeds("CartPole-v1", "ppo", seeds=2, out=tmp_path)
    begun: list[str] = []

    def spawn(_: Any, name: str, *arguments: Any) -> None:
        begun.append(name)
        raise InterruptedError

    monkeypatch.setattr("sharpwave.training.seeds.spawned", spawn)
    with pytest.raises(InterruptedError):
        sw.train_seeds("CartPole-v1", seeds=2, steps=500, **settings)
    assert begun == ["seed 0"]
    assert '"0"' not in (tmp_path / "scores.json").read_text()  # it stands for no longer run


@pytest.mark.parametrize(
    "summary",
    [
        None,
        {"reason": "interrupted by SIGINT"},
        {"final": {"steps": 4, "scores": [2.0], "fresh": [], "mean": 2, "min": 2}},
    ],
)
def test_scores_stand_for_no_other_end_of_their_run(
    summary: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was killed or interrupted after it was resumed with more steps, or it has ended by itself with them."""
    recipe = chosen_recipe("CartPole-v1", "dqn", None, {"steps": 400, "threads": 1})[1]
    (tmp_path / "0").mkdir()
    files.write_config(tmp_path / "0", files.Config("dqn", recipe, "1" * 32))
    if summary is not None:
        files.write_summary(tmp_path / "0", {name: one for name, one in ENDED.items() if name != "final"} | summary)
    (tmp_path / "scores.json").write_text('{"0": [1.0]}')

    def spawn(*_: Any) -> None:
        raise InterruptedError

    monkeypatch.setattr("sharpwave.training.seeds.spawned", spawn)
    with pytest.raises(InterruptedError):
        sw.train_seeds("CartPole-v1", "dqn", seeds=1, steps=400, out=tmp_path)


def test_longer_runs_keep_settings_that_follow_their_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = chosen_recipe("CartPole-v1", "dqn", None, {"steps": 300, "threads": 1})[1]
    (tmp_path / "0").mkdir()
    files.write_config(tmp_path / "0", files.Config("dqn", recipe, "1" * 32))
    begun: list[Any] = []

    def spawn(*arguments: Any) -> None:
        begun.append(arguments[3])
        raise InterruptedError

    monkeypatch.setattr("sharpwave.training.seeds.spawned", spawn)
    with pytest.raises(InterruptedError):
        sw.train_seeds("CartPole-v1", "dqn", seeds=1, steps=400, out=tmp_path)
    assert begun == [recipe.override(steps=400)]
    with pytest.raises(ValueError, match=r"is a run with training[.]warmup_steps"):
        sw.train_seeds("CartPole-v1", "dqn", seeds=1, steps=400, warmup_steps=77, out=tmp_path)


@pytest.mark.slow
def test_failures_are_told_by_seed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a name or a function that makes it"):
        sw.train_seeds(make_cartpole(), seeds=2, out=tmp_path / "seeds")
    with pytest.raises(ValueError, match="expected neither: each seed has one process"):
        sw.train_seeds(make_cartpole, seeds=2, actors=1, out=tmp_path / "seeds")
    with pytest.raises(ValueError, match="expected seeds that differ"):
        sw.train_seeds("CartPole-v1", seeds=[1, 1], out=tmp_path / "seeds")
    assert not (tmp_path / "seeds").exists()
    with pytest.raises(OSError, match="no simulator here"):
        sw.train_seeds(make_nothing, seeds=[3], out=tmp_path / "seeds")
    with pytest.raises(
        RuntimeError, match=r"(?s)1 of 1 runs failed.*seed 3: .*env 'MinAtar/Nothing-v9' cannot be made"
    ):
        sw.train_seeds("MinAtar/Nothing-v9", seeds=[3], out=tmp_path / "seeds", progress=False)


SCRIPT = """
import sharpwave as sw
if __name__ == "__main__":
    sw.train_seeds("CartPole-v1", "dqn", seeds=[1], steps=10**6, warmup_steps=100, checkpoint_every=200, out="seeds")
"""


@pytest.mark.nightly
def test_interrupted_seeds_leave_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    running = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    checkpoints = tmp_path / "seeds" / "1" / "checkpoints"
    until = time.monotonic() + 120
    while not [*checkpoints.glob("0*")] and time.monotonic() < until:
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in running.communicate(timeout=90)[1]
    assert sw.TrainingRun.open(tmp_path / "seeds" / "1").summary["reason"] == "interrupted by SIGTERM"


def test_a_seed_counts_by_the_mean_of_its_episodes() -> None:
    """Of nine seeds the middle five count."""
    made = SeedRuns({}, {seed: [float(seed), 2.0 + seed] for seed in range(8)} | {8: [100.0]})
    assert made.means[3] == 4.0 and made.iqm == 5.0
    low, high = made.interval
    assert 1.0 < low < 5.0 < high < 100.0
