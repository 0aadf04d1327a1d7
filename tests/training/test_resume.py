"""A run resumed from its checkpoint is, bit for bit, the run that was never stopped."""

import io
import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from rich.console import Console

import sharpwave as sw
from sharpwave.training.folder import checkpoints, locked, read_summary
from sharpwave.training.progress import episode_seed
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import resume, run

from .trainer import options

TIMES = {
    "minutes", "evaluation_minutes", "avg_fps", "seconds_left", "replay_bytes", "bytes_per_step",
    "encoded_bytes_per_step", "fixed_bytes", "process_bytes", "disk",
}  # fmt: skip
CARTPOLE = load_recipe("cartpole").override(
    steps=3_000, checkpoint_every=1_000, report_every=500, capacity=2_000, seed=5,
    stop_reward=None, evaluate_every=700, evaluate_from=0.0,
)  # fmt: skip
PONG = load_recipe("pong").override(
    steps=2_400, checkpoint_every=800, report_every=400, num_envs=4, capacity=1_500, n_step=3,
    warmup_steps=600, batch_size=16, hidden_units=32, target_every=500, epsilon_steps=2_000, beta_steps=2_000,
    prioritized=True, sticky=0.25, precision="float32", threads=1,
)  # fmt: skip


def go(how, *arguments):
    """Run ``how`` and give back what it printed."""
    out = io.StringIO()
    folder, summary = how(*arguments, Console(file=out, width=200, _environ={}))
    return folder, summary, out.getvalue()


def stopped_copy(folder, to, steps):
    """What a run's folder would be had the process died some time after its checkpoint of ``steps``."""
    shutil.copytree(folder, to)
    for checkpoint in checkpoints(to):
        if int(checkpoint.name) > steps:
            shutil.rmtree(checkpoint)
    (to / "summary.json").unlink()
    (to / "curve.png").unlink()
    with (to / "metrics.jsonl").open("a") as file:
        file.write('{"event": "episode", "steps": 29')  # cut short
    return to


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def drawn(checkpoint, recipe, open_as=None):
    """Batches of the replay memory in a checkpoint, and its steps."""
    store = sw.Store.open(checkpoint / "replay", **({"disk": open_as} if open_as else {}))
    view = recipe.agent.replay.open(store, "learner", recipe.training.seed)
    batches = [view.sample(64).copy() for _ in range(20)]
    steps = len(store)
    store.close()
    return batches, steps


def assert_same(one, two, recipe, scratch):
    """All that two finished runs have left is equal, bit for bit, but for times and bytes."""
    assert metrics(one) == metrics(two)
    ours, theirs = checkpoints(one)[-1], checkpoints(two)[-1]
    assert ours.name == theirs.name == f"{recipe.training.steps:012d}"
    for name in ("weights.safetensors", "optimizer.safetensors", "random.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    states = [json.loads((checkpoint / "state.json").read_text())["training"] for checkpoint in (ours, theirs)]
    for state in states:
        del state["progress"]["minutes"], state["held_out"]["minutes"]
    assert states[0] == states[1]
    for name in ("last.safetensors", "best.safetensors"):
        assert (one / name).is_file() == (two / name).is_file()
        assert not (one / name).is_file() or (one / name).read_bytes() == (two / name).read_bytes(), name
    on_disk = [scratch / "one", scratch / "two"] if recipe.replay.disk_limit else [None, None]
    (first, steps), (second, steps_too) = (
        drawn(checkpoint, recipe, at) for checkpoint, at in zip((ours, theirs), on_disk, strict=True)
    )
    assert steps == steps_too > 0
    for a, b in zip(first, second, strict=True):
        for name in ("ids", "obs", "next_obs", "action", "reward", "discount", "weights", "probabilities"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    folder, _, _ = go(run, "cartpole", CARTPOLE, tmp_path_factory.mktemp("cartpole") / "run")
    return folder


@pytest.mark.nightly
def test_pong_resumed_is_the_run_that_was_not_stopped(tmp_path):
    whole, summary, text = go(run, "pong", PONG, tmp_path / "whole")
    assert "No episode has ended in the 800 steps before this checkpoint" in text  # 200 of each environment
    assert summary["updates"] == (2_400 - 600) // PONG.training.update_every
    stopped = stopped_copy(whole, tmp_path / "stopped", 1_600)
    _, resumed, text = go(resume, stopped, {})
    updates = (1_600 - 600) // PONG.training.update_every
    assert f"from checkpoint 000000001600: 1,600 steps, {updates} updates" in text and "begin new episodes" in text
    assert_same(whole, stopped, PONG, tmp_path)
    assert {**summary, **dict.fromkeys(TIMES)} == {**resumed, **dict.fromkeys(TIMES)}
    assert resumed["minutes"] > json.loads((checkpoints(whole)[0] / "state.json").read_text())["report"]["minutes"]
    assert (stopped / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_replay_memory_on_disk_goes_on_from_its_checkpoint(tmp_path):
    recipe = CARTPOLE.override(disk_limit="64MiB", ram="16MiB", prioritized=True)
    whole, _, _ = go(run, "cartpole", recipe, tmp_path / "whole")
    assert (whole / "replay" / "store.json").is_file()
    stopped = stopped_copy(whole, tmp_path / "stopped", 2_000)  # with the files that it had at 3,000 steps
    go(resume, stopped, {})
    assert_same(whole, stopped, recipe, tmp_path)
    # Linked, not copied: the newest checkpoint and the store share their files.
    linked = {path.stat().st_ino for path in (stopped / "replay").rglob("*.region")}
    assert linked & {path.stat().st_ino for path in checkpoints(stopped)[-1].rglob("*.region")}


@pytest.mark.slow
def test_killed_in_mid_run_and_resumed_from_the_command_line(tmp_path):
    """A process of its own, ended by SIGKILL wherever it is; another one goes on. This process runs without a stop."""
    recipe, killed = CARTPOLE.override(steps=10_000_000), tmp_path / "killed"
    command = [sys.executable, "-W", "error", "-m", "sharpwave.cli", "train"]
    same = ("steps", "checkpoint_every", "report_every", "capacity", "seed", "evaluate_every", "evaluate_from")
    process = subprocess.Popen(
        [*command, "cartpole", "--out", str(killed), *options(recipe, *same)], stdout=subprocess.DEVNULL
    )
    limit = time.monotonic() + 200
    # Or a later one: whoever looks too seldom finds that of 2,000 steps gone.
    while not any(int(path.name) >= 2_000 for path in (killed / "checkpoints").glob("[0-9]*")):
        assert time.monotonic() < limit and process.poll() is None, "no checkpoint came within 200 s"
        time.sleep(0.02)
    process.kill()
    process.wait()
    steps = int(checkpoints(killed)[-1].name) + 1_500
    done = subprocess.run(
        [*command, "--resume", str(killed), "--steps", str(steps)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"from checkpoint {steps - 1_500:012d}" in done.stdout.replace("\n", "")
    recipe = recipe.override(steps=steps)
    whole, _, _ = go(run, "cartpole", recipe, tmp_path / "whole")
    assert_same(whole, killed, recipe, tmp_path)


@pytest.mark.nightly
def test_cartpole_resumed_twice_is_the_run_that_was_not_stopped(cartpole, tmp_path):
    """Resumed at 2,000 to 2,500, and from there, a checkpoint in both, to the end."""
    more = CARTPOLE.override(checkpoint_every=500)
    whole, _, _ = go(run, "cartpole", more, tmp_path / "whole")
    half, _, _ = go(run, "cartpole", more.override(steps=2_000), tmp_path / "half")
    go(resume, half, {"steps": 2_500})
    _, _, text = go(resume, half, {"steps": 3_000, "report_every": 500})
    assert "from checkpoint 000000002500" in text and "No episode" not in text
    # The run that ended at 2,000 and at 2,500 has made the same reports there.
    assert_same(whole, half, more, tmp_path)
    assert metrics(whole) != metrics(cartpole)  # other checkpoints break off other episodes


@pytest.mark.slow
def test_episodes_broken_off_by_a_checkpoint_do_not_count(cartpole):
    episodes = [line for line in metrics(cartpole) if line["event"] == "episode"]
    assert episodes[-1]["episodes"] == len(episodes)
    assert all(line["reward"] == line["episode_steps"] for line in episodes)  # CartPole's reward is 1 a step
    for line in episodes:
        end = line["steps"] // CARTPOLE.env.num_envs
        for checkpoint in (1_000 // CARTPOLE.env.num_envs, 2_000 // CARTPOLE.env.num_envs):
            assert end <= checkpoint or end - line["episode_steps"] >= checkpoint, line


def test_episodes_after_a_checkpoint_are_others():
    assert episode_seed(7, 0) == 7
    seeds = {episode_seed(seed, steps) for seed in range(20) for steps in range(50_000, 1_050_000, 50_000)}
    assert len(seeds) == 20 * 20 and max(seeds) < 2**31 - 10_000


def test_without_a_replay_memory_it_is_filled_before_learning_goes_on(cartpole, tmp_path):
    stopped = stopped_copy(cartpole, tmp_path / "stopped", 2_000)
    shutil.rmtree(stopped / "checkpoints" / "000000002000" / "replay")
    _, summary, text = go(resume, stopped, {"steps": 3_400})
    assert "no replay memory: a new one is filled for 1,000 steps" in text
    assert summary["updates"] == (2_000 - 1_000) // 4 + (3_400 - 3_000) // 4
    assert summary["replay_steps"] == 1_400
    assert [line["loss"] is None for line in metrics(stopped) if line["event"] == "report"][-3:] == [True, True, False]


def test_save_replay_off_leaves_it_out(tmp_path):
    recipe = CARTPOLE.override(steps=1_200, save_replay=False)
    folder, _, _ = go(run, "cartpole", recipe, tmp_path / "run")
    assert [(checkpoint / "replay").exists() for checkpoint in checkpoints(folder)] == [False, False]


@pytest.mark.parametrize(
    "name",
    [
        "optimizer.safetensors",
        pytest.param("replay/1/regions/*", marks=pytest.mark.slow),
        pytest.param("state.json", marks=pytest.mark.nightly),
        pytest.param("replay/store.json", marks=pytest.mark.nightly),
        pytest.param("replay/1/state.npz", marks=pytest.mark.nightly),
    ],
)
def test_where_the_newest_is_damaged_the_one_before_it_is_used(cartpole, tmp_path, name):
    damaged = tmp_path / "damaged"
    shutil.copytree(cartpole, damaged)
    (file,) = (damaged / "checkpoints" / "000000003000").glob(name)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)
    _, summary, text = go(resume, damaged, {"steps": 3_200})
    assert "Checkpoint 000000003000 cannot be used: " in text and "from checkpoint 000000002000" in text
    assert summary["steps"] == 3_200
    assert [path.name for path in checkpoints(damaged)] == ["000000003000", "000000003200"]  # 3,000 was made again
    assert metrics(damaged)[: len(metrics(cartpole))] == metrics(cartpole)


def test_where_none_is_whole_that_is_said(cartpole, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(cartpole, damaged)
    for checkpoint in checkpoints(damaged):
        (checkpoint / "weights.safetensors").write_bytes(b"")
    before = sorted(path for path in damaged.rglob("*"))
    with pytest.raises(ValueError, match=r"none of its checkpoints \(000000003000, 000000002000\) can be used"):
        go(resume, damaged, {})
    assert sorted(path for path in damaged.rglob("*")) == before


@pytest.mark.slow
def test_a_run_that_has_ended_says_so_and_goes_on_with_more_steps(cartpole, tmp_path):
    ended = tmp_path / "ended"
    shutil.copytree(cartpole, ended)
    before = metrics(ended)
    summary = read_summary(ended)
    _, again, text = go(resume, ended, {})
    assert "has ended already, by the limit of 3,000 steps" in text and again == summary and metrics(ended) == before
    (ended / "summary.json").unlink()  # died between the last checkpoint and the summary
    assert go(resume, ended, {})[1] == summary
    curve = (ended / "curve.png").read_bytes()
    (ended / "curve.png").unlink()  # a run of before wrote its curve last
    assert go(resume, ended, {})[1] == summary and (ended / "curve.png").read_bytes() == curve
    _, more, _ = go(resume, ended, {"steps": 3_200})
    assert more["steps"] == 3_200 and metrics(ended)[: len(before)] == before
    assert json.loads((ended / "config.json").read_text())["settings"]["training"]["steps"] == 3_200


def test_a_resume_removes_what_a_killed_process_had_begun_and_nothing_else(cartpole, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(cartpole, again)
    for name in ("videos", "saliency"):
        (again / name).mkdir(exist_ok=True)
    left = [".config.json.0123abcd.partial", ".best.safetensors.00000000.partial", ".curve.png.99999999.partial"]
    left += ["videos/.partial-000000001000.mp4", "saliency/.partial-000000002000.mp4"]
    strangers = [".notes.md.0123abcd.partial", ".config.json.partial", ".config.json.0123abcg.partial", "x.partial"]
    strangers += ["videos/.partial-mine.mp4", "videos/.partial-000000001000.gif", "videos/000000001000.mp4"]
    for name in left + strangers:
        (again / name).write_bytes(b"half")
    (again / ".last.safetensors.0123abcd.partial").symlink_to(again / "x.partial")
    (again / ".summary.json.0123abcd.partial").mkdir()
    go(resume, again, {})
    assert not [name for name in left if (again / name).exists()]
    assert all((again / name).read_bytes() == b"half" for name in strangers)
    assert (again / ".last.safetensors.0123abcd.partial").is_symlink()
    assert (again / ".summary.json.0123abcd.partial").is_dir()


@pytest.mark.nightly
def test_a_run_killed_amid_a_write_leaves_nothing_once_it_is_resumed(tmp_path):
    """Killed while it replaces its summary: the file under a hidden name, and the curve, which is drawn before."""
    code = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from sharpwave.training import atomic_files, run\n"
        "from sharpwave.training.recipes import load_recipe\n"
        "replace = os.replace\n"
        "def dying(old, new, **places):\n"
        "    if Path(new).name == 'summary.json':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    replace(old, new, **places)\n"
        "os.replace = dying\n"
        "recipe = load_recipe('cartpole').override(steps=600, warmup_steps=400, hidden_units=8)\n"
        f"run.run('cartpole', recipe, Path({str(tmp_path / 'run')!r}))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=600).returncode == -signal.SIGKILL
    folder = tmp_path / "run"
    assert len(list(folder.glob(".summary.json.*.partial"))) == 1 and (folder / "curve.png").is_file()
    _, summary, text = go(resume, folder, {})
    assert "has ended already" in text and read_summary(folder) == summary
    assert not list(folder.rglob("*.partial"))


def test_a_folder_in_use_is_refused(cartpole):
    with locked(cartpole), pytest.raises(ValueError, match="is in use by process"):
        go(resume, cartpole, {"steps": 4_000})
