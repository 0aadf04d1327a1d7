"""``sharpwave train``: what it prints, what it leaves, and how it ends."""

import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from sharpwave.configuration import leaves
from sharpwave.training.callbacks import caught_signals
from sharpwave.training.folder import new_folder
from sharpwave.training.recipes import load_recipe, recipe_names
from sharpwave.training.recipes.recipe import Recipe
from tests.cli.conftest import COMMAND, ENVIRONMENT, SETTINGS

pytestmark = pytest.mark.timeout(180)


def test_a_run_leaves_everything(pong_run):
    folder, text = pong_run
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "metrics.jsonl", "tensorboard", "checkpoints", "last.safetensors", "summary.json", "curve.png",
        "lock",
    }  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    recipe = Recipe.from_table(config["settings"])
    assert config["recipe"] == "pong"
    assert recipe == load_recipe("pong").override(
        steps=600, warmup_steps=400, num_envs=4, report_every=200, frame="42x42", crop="34:194",
        actions="NOOP,RIGHT,LEFT", network="small", prioritized=True, threads=1,
    )  # fmt: skip
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 600 and summary["updates"] == 200 // recipe.training.update_every
    assert summary["reason"] == "the limit of 600 steps"
    assert summary["bytes_per_step"] > 0 and summary["replay_steps"] == 600
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [event["steps"] for event in events if event["event"] == "report"] == [200, 400, 600]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["000000000600"]
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert any(path.name.startswith("events.out") for path in (folder / "tensorboard").iterdir())
    # The settings at the start, the summary at the end, and no control characters between: this is no terminal.
    assert "network=small" in text and "the limit of 600 steps" in text and f"sharpwave eval {folder}" in text
    assert "\x1b" not in text


def test_help_has_every_setting_with_its_default(here):
    result = here("train", "pong", "--help")
    assert result.code == 0
    for leaf in leaves(load_recipe("pong")):
        assert leaf.flag in result.text, leaf.key
    assert "rewards summed before the bootstrap" in result.text and "[default: 18.0]" in result.text


@pytest.mark.parametrize("recipe", ["atari", "minatar-rainbow", "lock"])
def test_help_has_names_in_full_on_a_narrow_terminal(here, monkeypatch, recipe):
    monkeypatch.setitem(SETTINGS, "COLUMNS", "80")
    lines = [line for line in here("train", recipe, "--help").text.splitlines() if line.lstrip("│ ").startswith("--")]
    assert len(lines) > 50 and not [line for line in lines if "…" in line]


def test_help_of_a_recipe_has_no_settings_of_other_environments(here):
    text = here("train", "cartpole", "--help").text
    assert "--num-envs" in text and "--n-step" in text
    assert not [option for option in ("--frame", "--crop", "--sticky", "--rgb", "--clip-rewards") if option in text]


def test_options_come_before_values_and_values_before_the_file(here, tmp_path):
    """A run's config.json says all that it was made with, and makes the same run again."""
    (tmp_path / "quick.toml").write_text(
        "[training]\nsteps = 300\nseed = 4\nwarmup_steps = 200\n[agent]\nlr = 1e-3\nhidden_units = 8\n"
    )
    first = here(
        "train", "cartpole", "--out", tmp_path / "one", "--config", tmp_path / "quick.toml", "--seed", 5,
        "--set", "agent.lr=1e-4", "--set", "agent.replay.n_step=2", "--set", "training.seed=6",
    )  # fmt: skip
    assert first.code == 0, first.text
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    recipe = load_recipe("cartpole").override(
        steps=300, seed=5, warmup_steps=200, learning_rate=1e-4, hidden_units=8, n_step=2
    )
    assert Recipe.from_table(config["settings"]) == recipe
    again = here("train", "--config", tmp_path / "one" / "config.json", "--out", tmp_path / "two")
    assert again.code == 0, again.text
    same = [(tmp_path / run / "last.safetensors").read_bytes() for run in ("one", "two")]
    assert same[0] == same[1] and json.loads((tmp_path / "two" / "config.json").read_text())["recipe"] == "cartpole"


def test_options_beside_a_file_apply(here, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('recipe = "cartpole"\n[training]\nsteps = 300\nseed = 4\nwarmup_steps = 290\n')
    done = here("train", "--seed", 3, f"--config={file}", "--hidden-units", 8, "--out", tmp_path / "run")
    assert done.code == 0, done.text
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    expected = load_recipe("cartpole").override(steps=300, seed=3, warmup_steps=290, hidden_units=8)
    assert config["recipe"] == "cartpole" and Recipe.from_table(config["settings"]) == expected
    help = here("train", "--config", file, "--help")
    assert help.code == 0 and "--n-step" in help.text and "--frame" not in help.text
    assert "[default: 300]" in help.text
    wrong = here("train", "--config", file, "--frame", "84x84")
    assert wrong.code == 2 and "--frame is an option of Atari games by name" in wrong.text
    late = here("train", "--config", file, "pong")
    assert late.code == 2 and "sharpwave train pong --config FILE" in late.text


@pytest.mark.slow
def test_an_environment_may_lie_in_the_current_folder(here, tmp_path, monkeypatch):
    """The installed script, unlike ``python -m``, does not look for modules there."""
    (tmp_path / "own_envs.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Own-v0', CartPoleEnv, max_episode_steps=20)\n"
    )
    script = [sys.executable, "-P", "-c", "from sharpwave.cli import main; main()", "train", "gymnasium"]
    rest = ["--out", "run", "--steps", "20", "--warmup-steps", "10"]
    done = subprocess.run(
        [*script, "--env", "own_envs:Own-v0", *rest],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0 and "Ended by the limit of 20 steps" in done.stdout, done.stdout + done.stderr
    monkeypatch.chdir(tmp_path)
    missing = here("train", "gymnasium", "--env", "no_envs:Own-v0", "--out", "other", *rest[2:])
    assert missing.code == 2 and "there is no module 'no_envs' in the current folder" in missing.text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_signals_end_a_run_with_a_checkpoint_that_plays(here, tmp_path, number):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [*COMMAND, "train", "cartpole", "--out", str(folder), "--report-every", "100", "--steps", "10000000"],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    metrics = folder / "metrics.jsonl"
    limit = time.monotonic() + 200
    while not (metrics.is_file() and '"event": "report"' in metrics.read_text()):
        assert time.monotonic() < limit and process.poll() is None, "no report came within 200 s"
        time.sleep(0.05)
    process.send_signal(number)
    text, _ = process.communicate(timeout=200)
    assert process.returncode == 128 + number, text  # as of a command that the signal ended
    assert f"interrupted by {number.name}" in text and "Traceback" not in text
    assert json.loads((folder / "summary.json").read_text())["reason"] == f"interrupted by {number.name}"
    played = here("eval", folder, "--episodes", 2)
    assert played.code == 0 and "of 2 episodes" in played.text
    assert f"sharpwave train --resume {folder}" in text
    if number == signal.SIGTERM:  # once is enough
        return
    steps = json.loads((folder / "summary.json").read_text())["steps"]
    resumed = here("train", "--resume", folder, "--steps", steps + 200)
    assert resumed.code == 0 and f"from checkpoint {steps:012d}" in resumed.text, resumed.text
    assert f"Ended by the limit of {steps + 200:,} steps" in resumed.text
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["steps"] for line in lines] == sorted(line["steps"] for line in lines)
    assert lines[-1]["steps"] == steps + 200


@pytest.mark.parametrize("limit", [64 << 10, 100])  # less than a replay memory; less than config.json
def test_a_full_disk_ends_a_run_with_1_and_a_sentence(here, tmp_path, limit):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))  # no file grows larger: as on a disk that is full
    try:
        result = here("train", "cartpole", "--out", tmp_path / "run", "--steps", 3_000, "--warmup-steps", 2_900)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert result.code == 1 and "File too large" in result.text and "Traceback" not in result.text, result.text


@pytest.mark.slow
def test_a_terminal_that_is_closed_ends_a_run_with_a_checkpoint(tmp_path):
    folder = tmp_path / "run"
    ours, theirs = os.openpty()

    def own_terminal():
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the tests ignore it, and their children
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [*COMMAND, "train", "cartpole", "--out", str(folder), "--report-every", "100", "--steps", "10000000"],
        env={**ENVIRONMENT, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=own_terminal,
    )  # fmt: skip
    os.close(theirs)
    metrics, limit = folder / "metrics.jsonl", time.monotonic() + 200
    while not (metrics.is_file() and '"event": "report"' in metrics.read_text()):
        assert time.monotonic() < limit and process.poll() is None, "no report came within 200 s"
        if select.select([ours], [], [], 0.05)[0]:
            os.read(ours, 1 << 16)
    os.close(ours)  # the kernel sends SIGHUP, and writing to the terminal fails from now on
    assert process.wait(timeout=200) == 128 + signal.SIGHUP
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["reason"] == "interrupted by SIGHUP"
    assert [int(path.name) for path in (folder / "checkpoints").iterdir()] == [summary["steps"]]


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_no_run(tmp_path):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [*COMMAND, "train", "cartpole", "--out", str(folder), "--steps", "1500", "--report-every", "50"],
        env=ENVIRONMENT, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=240) == 0
    assert json.loads((folder / "summary.json").read_text())["steps"] == 1_500


def test_a_signal_that_is_ignored_stays_ignored():
    """As nohup starts it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with caught_signals() as came:
            os.kill(os.getpid(), signal.SIGHUP)
            assert came() is None
        signal.signal(signal.SIGHUP, signal.default_int_handler)
        with caught_signals() as came:
            os.kill(os.getpid(), signal.SIGHUP)
            assert came() == "interrupted by SIGHUP"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "20260101-000000")
    with new_folder(None, "cartpole", 0) as one, new_folder(None, "cartpole", 0) as two:
        assert [one, two] == [tmp_path / "runs" / f"cartpole-20260101-000000-0{end}" for end in ("", "-2")]
        with pytest.raises(ValueError, match="is in use by process"), new_folder(two, "cartpole", 0):
            pass
    assert (one / "lock").is_file()


@pytest.mark.parametrize("made", [False, True])
def test_a_run_that_does_not_begin_removes_what_it_made(tmp_path, made):
    if made:
        (tmp_path / "run").mkdir()
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "run", "cartpole", 0):
        raise ZeroDivisionError
    assert (tmp_path / "run").exists() == made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["cartpol"],
            "unknown recipe 'cartpol': did you mean cartpole? Expected one of cartpole, cartpole-ppo,",
        ),
        (["pong", "--n-stepp", "3"], "No such option: --n-stepp"),
        (["pong", "--batch-size", "many"], "'--batch-size'"),
        (["pong", "--loss", "l1"], "'l1' is not one of 'huber', 'mse'"),
        (["pong", "--gamma", "2"], "--gamma: got 2.0, expected from 0 to 1"),
        (["atari", "--env", "breakot"], "did you mean the Atari game breakout?"),
        (["pong", "--actions", "UP"], "--actions: pong has no 'UP', expected some of NOOP,FIRE,RIGHT"),
        (["cartpole", "--network", "nature"], "use --network mlp or --network auto"),
        (["cartpole", "--disk-limit", "1MiB"], "disk_limit='1MiB', expected at least 16 MiB"),
        (["--seed", "3"], "No such option: --seed"),
        (["--steps", "3"], "--steps comes after the recipe's name, or with --resume RUN or --config FILE"),
        (["--set", "agent.lr=1"], "--set comes after the recipe's name, or with --resume RUN or --config FILE"),
        (["--config", "none.toml"], "--config: 'none.toml': No such file"),
        (["--config", "/"], "--config: '/': it is a folder, expected a file of settings"),
        (
            ["cartpole", "--config", "mine.txt"],
            "got a name ending in '.txt', expected .toml, .yaml or .json",
        ),
        (["cartpole", "--seed", 10**20], f"--seed: got {10**20}, expected at most {2**63 - 1} for gymnasium"),
        (["pong", "--seed", 2**31], f"--seed: got {2**31}, expected at most {2**31 - 2**16} for atari"),
        (["cartpole", "--set", "agent.learning_rate=1"], "'agent.learning_rate'; did you mean agent.lr?"),
        (["cartpole", "--set", "agent.batchsize=1"], "did you mean agent.replay.batch_size?"),
        (["cartpole", "--set", "agent.lr"], "--set: got 'agent.lr', expected key=value, as agent.lr=1e-4"),
        (["cartpole", "--frame", "84x84"], "--frame is an option of Atari games by name"),
        (["gymnasium", "--env", "pong"], "'pong' is an Atari game; use sharpwave train atari --env pong"),
        (
            ["atari", "--env", "CartPole-v1"],
            "is a Gymnasium id, expected an Atari game such as pong; use sharpwave train",
        ),
        (
            ["atari", "--env", "ALE/Pong-v5", "--noop-max", "5"],
            "ALE/Pong-v5, which has no options of Atari games",
        ),
        (["gymnasium", "--env", "ALE/Pong-v5", "--noop-max", "5"], "--noop-max is an option of Atari games by name"),
        (["r2d2", "--env", "ALE/Pong-v5", "--no-fire-reset"], "--no-fire-reset is an option of Atari games by name"),
        (
            ["gymnasium", "--env", "Pendulum-v1"],
            "dqn needs discrete actions; Pendulum-v1 has Box(1,)",
        ),
        (["--resume", "nowhere"], "run folder 'nowhere' does not exist"),
        (["pong", "--resume", "nowhere"], "--resume takes the recipe from the run"),
        (
            ["--resume", "nowhere", "--seed=3"],
            "--seed cannot be changed in a run that is resumed; expected only --steps",
        ),
        (["--resume", "pong", "--no-double"], "--no-double cannot be changed in a run that is resumed"),
        (["cartpole", "--device", "gpu"], "device: got 'gpu', expected 'auto'"),
    ],
)
def test_errors_teach_and_make_no_folder(here, tmp_path, arguments, message):
    where = ("--out", tmp_path / "run") if arguments[0] in (*recipe_names(), "cartpol") else ()
    result = here("train", *arguments, *where)
    assert result.code == 2
    assert message in " ".join(result.text.split()), result.text
    assert "Traceback" not in result.text
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_there_is_not(sharpwave):
    result = sharpwave("train", "cartpol")
    assert result.code == 2 and "unknown recipe 'cartpol'" in result.text and "Traceback" not in result.text


def test_a_folder_in_use_is_left_alone(here, tmp_path):
    (tmp_path / "precious").write_text("keep")
    result = here("train", "cartpole", "--out", tmp_path)
    assert result.code == 2 and "exists and is not empty" in result.text
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
