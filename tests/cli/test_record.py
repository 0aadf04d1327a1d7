"""``sharpwave record``: episodes of a script, a trained run or a person, in a store that agents learn from."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.envs import make_env
from sharpwave.offline.recorded import RecordedEpisodes
from sharpwave.training import offline_data
from sharpwave.training.recipes.recipe import Atari
from tests.cli.conftest import COMMAND, ENVIRONMENT

pytestmark = pytest.mark.timeout(240)

EXPERT = """
def expert(rng):
    digits = None
    def policy(obs):
        nonlocal digits
        if obs[:-8].any():
            digits = obs[:-8].reshape(-1, 4).argmax(axis=1)
        door = int(obs[-8:].argmax())
        return int(digits[door % len(digits)] + door) % 4
    return policy

def drunk(rng):
    return lambda obs: rng.integers(4)

def lost(rng):
    return lambda obs: 4

def forgetful(rng):
    return 3

number = 5
"""
INTERRUPTED = """
import os, signal
steps = 0
def player(rng):
    def policy(obs):
        global steps
        steps += 1
        if steps == 100:
            os.kill(os.getpid(), signal.SIGINT)
        return steps // 2 % 2
    return policy
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "players.py"
    path.write_text(EXPERT)
    return path


def scores(text: str) -> list[float]:
    return [float(line.split()[3]) for line in text.splitlines() if line.startswith("episode")]


def test_a_script_s_demonstrations_are_learned_from(here, script, tmp_path):
    demos = tmp_path / "demos"
    result = here("record", "lock", "--out", demos, "--script", f"{script}:expert", "--episodes", 5, "--seed", 3)
    assert result.code == 0, result.text
    assert scores(result.text) == [1.0] * 5 and "5 episodes, 40 steps, mean score 1.00" in result.text
    assert f"sharpwave train lock --demonstrations {demos}" in result.text
    found = RecordedEpisodes(demos)
    assert found.steps == 40
    for one in found:
        assert len(set(one.fields["action"].tolist())) > 1 and one.reward.tolist() == [0.0] * 7 + [1.0]
        np.testing.assert_array_equal(one.obs["obs"][:, -8:], np.eye(9, 8))
    trained = here(
        "train", "lock", "--demonstrations", demos, "--out", tmp_path / "run", "--steps", 640, "--warmup-steps", 320,
    )  # fmt: skip
    assert trained.code == 0, trained.text
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["updates"] == 80


def test_the_same_seed_records_the_same(here, script, tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        result = here(
            "record", "sharpwave/Lock-v0", "--out", folder, "--script", f"{script}:drunk", "--episodes", 20,
            "--epsilon", 0.5,
        )  # fmt: skip
        assert result.code == 0, result.text
    one, two = (
        np.concatenate([episode.fields["action"] for episode in RecordedEpisodes(folder)]) for folder in folders
    )
    np.testing.assert_array_equal(one, two)
    assert "sharpwave train r2d3 --env sharpwave/Lock-v0" in result.text


def test_continuous_actions_are_learned_by_rlpd(here, tmp_path):
    (tmp_path / "player.py").write_text("def still(rng):\n    return lambda obs: [0.0]\n")
    demos = tmp_path / "demos"
    result = here("record", "Pendulum-v1", "--script", f"{tmp_path}/player.py:still", "--episodes", 1, "--out", demos)
    assert result.code == 0, result.text
    named = result.text.splitlines()[-1].removeprefix("learn from them: sharpwave ").split()
    assert named == ["train", "rlpd", "--env", "Pendulum-v1", "--demonstrations", str(demos)]


def test_a_trained_run_plays(here, tmp_path):
    run = tmp_path / "run"
    trained = here("train", "cartpole", "--out", run, "--steps", 400, "--warmup-steps", 200)
    assert trained.code == 0, trained.text
    result = here("record", "cartpole", "--policy", run, "--out", tmp_path / "demos", "--episodes", 3, "--seed", 7)
    assert result.code == 0, result.text
    episodes = list(RecordedEpisodes(tmp_path / "demos"))
    assert [len(one.reward) for one in episodes] == scores(result.text)
    with sw.Store.open(tmp_path / "demos") as store:
        assert store.annotations(0) == {"env": "CartPole-v1", "seed": 7}
    env = make_env("CartPole-v1", 1)
    np.testing.assert_array_equal(episodes[0].obs["obs"][0], env.reset(seed=7)[0][0])
    for t, action in enumerate(episodes[0].fields["action"][:-1]):
        np.testing.assert_array_equal(episodes[0].obs["obs"][t + 1], env.step(np.array([action]))[0][0])
    env.close()


@pytest.mark.slow
def test_a_recurrent_run_remembers(here, tmp_path):
    """It scores as in an evaluation of the same seed."""
    run = tmp_path / "run"
    trained = here("train", "tmaze", "--out", run, "--steps", 800, "--warmup-steps", 400)
    assert trained.code == 0, trained.text
    for seed in (1, 2):
        demos = tmp_path / f"demos{seed}"
        recorded = here("record", "tmaze", "--policy", run, "--out", demos, "--episodes", 1, "--seed", seed)
        assert recorded.code == 0, recorded.text
        played = here("eval", run, "--episodes", 1, "--seed", seed, "--epsilon", 0)
        assert scores(recorded.text) == scores(played.text)


@pytest.mark.slow
def test_an_atari_game(here, pong_run, tmp_path):
    folder, _ = pong_run
    result = here("record", "pong", "--policy", folder, "--out", tmp_path / "demos", "--episodes", 1, "--epsilon", 0.2)
    assert result.code == 0, result.text
    found = RecordedEpisodes(tmp_path / "demos")
    field = found.spec.fields["obs"]
    assert field.shape == (42, 42) and field.stack is not None
    (one,) = found
    assert one.reward.sum() == scores(result.text)[0] and one.episode.steps == found.steps > 700
    options = "--frame 42x42 --crop 34:194 --actions NOOP,RIGHT,LEFT --clip-rewards"
    assert f"learn from them: sharpwave train r2d3-atari {options} --demonstrations" in result.text


@pytest.mark.slow
def test_r2d3_learns_an_atari_game_from_demonstrations_of_its_own_kind(here, tmp_path):
    (tmp_path / "player.py").write_text("def up(rng):\n    return lambda obs: 2\n")
    options = ("--env", "pong", "--frame", "36x36", "--max-episode-frames", 600)
    recorded = here(
        "record", "r2d3-atari", *options, "--script", f"{tmp_path}/player.py:up", "--episodes", 2,
        "--out", tmp_path / "demos",
    )  # fmt: skip
    assert recorded.code == 0, recorded.text
    assert "sharpwave train r2d3-atari --frame 36x36 --max-episode-frames 600 --demo" in recorded.text
    learn = (
        "train", "r2d3-atari", *options, "--demonstrations", tmp_path / "demos", "--steps", 400, "--warmup-steps", 240,
        "--update-every", 80, "--batch-size", 2, "--length", 10, "--burn-in", 5, "--stride", 5, "--hidden-units", 8,
        "--core-units", 8, "--network", "small", "--num-envs", 4, "--capacity", 1_000, "--evaluate-every", 0,
        "--demonstration-share", 0.5, "--out", tmp_path / "run",
    )  # fmt: skip
    for other, message in (
        (["--clip-rewards"], "was recorded with --no-clip-rewards, but the run has --clip-rewards"),
        (["--actions", "NOOP,LEFT,RIGHT,FIRE,LEFTFIRE,RIGHTFIRE"], "was recorded with --actions '', but the run has"),
        (
            ["--env", "boxing", "--frame-skip", 2],
            "--env pong --frame-skip 4, but the run has --env boxing --frame-",
        ),
    ):
        refused = here(*learn, *other)
        assert refused.code == 2 and message in refused.text, refused.text
    trained = here(*learn)
    assert trained.code == 0, trained.text
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["updates"] == 2


PONG = "NOOP,FIRE,RIGHT,LEFT,RIGHTFIRE,LEFTFIRE"
"""The actions that have an effect in Pong, as ale-py orders them."""


def test_settings_that_are_spelled_otherwise_are_the_same(tmp_path):
    about = offline_data.about(Atari("pong", actions="NOOP,RIGHT,LEFT", crop="34:194"))
    with sw.Store(
        sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64")), capacity=10, disk=tmp_path / "demos"
    ) as made:
        made.annotate(None, about)
        made.append(obs=np.zeros(2), action=0, reward=0.0, terminated=True, truncated=False)
    offline_data.check_recorded(tmp_path / "demos", Atari("pong", actions="noop, right,left", crop="034:194"))
    with pytest.raises(ValueError, match="with --actions NOOP,RIGHT,LEFT, but the run has --actions NOOP,LEFT,RIGHT"):
        offline_data.check_recorded(tmp_path / "demos", Atari("pong", actions="NOOP,LEFT,RIGHT", crop="34:194"))


@pytest.mark.parametrize(
    ("recorded", "run", "same"),
    [
        ({"actions": PONG}, {}, True),
        ({}, {"actions": PONG.lower()}, True),
        ({"actions": PONG, "full_actions": True}, {}, True),
        ({}, {"full_actions": True}, False),
        ({"actions": "NOOP,RIGHT,FIRE,LEFT,RIGHTFIRE,LEFTFIRE"}, {}, False),
        ({"actions": PONG, "frame_skip": 2}, {}, False),
    ],
)
def test_all_of_a_game_s_actions_by_name_are_those_of_no_names(tmp_path, recorded, run, same):
    with sw.Store(
        sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64")), capacity=10, disk=tmp_path / "demos"
    ) as made:
        made.annotate(None, offline_data.about(Atari("pong", **recorded)))
        made.append(obs=np.zeros(2), action=0, reward=0.0, terminated=True, truncated=False)
    if same:
        offline_data.check_recorded(tmp_path / "demos", Atari("pong", **run))
    else:
        with pytest.raises(ValueError, match="was recorded with --") as refused:
            offline_data.check_recorded(tmp_path / "demos", Atari("pong", **run))
        assert ("--frame-skip" in str(refused.value)) == ("frame_skip" in recorded)
        assert ("--actions" in str(refused.value)) == ("RIGHT,FIRE" in recorded.get("actions", ""))


@pytest.mark.slow
def test_ctrl_c_keeps_whole_episodes(tmp_path):
    (tmp_path / "player.py").write_text(INTERRUPTED)
    command = [*COMMAND, "record", "CartPole-v1", "--script", f"{tmp_path}/player.py:player", "--episodes", "1000"]
    ran = subprocess.run(
        [*command, "--out", str(tmp_path / "demos")], env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 130, ran.stdout + ran.stderr
    lengths = [int(score) for score in scores(ran.stdout)]
    found = list(RecordedEpisodes(tmp_path / "demos"))
    assert [len(one.reward) for one in found] == lengths and 0 < sum(lengths) <= 100
    assert all(one.episode.end == "terminated" for one in found)


def test_an_error_of_the_script_keeps_whole_episodes(here, tmp_path):
    (tmp_path / "other.py").write_text(
        "n = 0\ndef player(rng):\n    global n\n    n += 1\n    return lambda obs: 0 if n < 3 else 'left'\n"
    )
    result = here("record", "CartPole-v1", "--script", f"{tmp_path}/other.py:player", "--out", tmp_path / "demos")
    assert result.code == 2 and "chose 'left', expected an action of Discrete(2)" in result.text
    assert len(list(RecordedEpisodes(tmp_path / "demos"))) == 2


def test_no_episode_nothing_written(here, tmp_path):
    (tmp_path / "player.py").write_text(INTERRUPTED.replace("== 100", "== 3"))
    result = here("record", "CartPole-v1", "--script", f"{tmp_path}/player.py:player", "--out", tmp_path / "demos")
    assert result.code == 130 and "no episode ended; nothing was written" in result.text
    assert not (tmp_path / "demos").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lock"], "got no player, expected one of --policy RUN, --script FILE.py:FUNCTION and --keyboard"),
        (["lock", "--keyboard", "--script", "x.py:f"], "got --script and --keyboard, expected one of"),
        (["lock", "--script", "SCRIPT"], "expected FILE.py:FUNCTION"),
        (["lock", "--script", "nowhere.py:f"], "'nowhere.py' is no Python file"),
        (["lock", "--script", "SCRIPT:nobody"], "has no function 'nobody'"),
        (["lock", "--script", "SCRIPT:number"], "has no function 'number'"),
        (["lock", "--script", "SCRIPT:lost"], "chose 4, expected an action of Discrete(4)"),
        (["lock", "--script", "SCRIPT:forgetful"], "returned 3, expected an episode's policy"),
        (["lock", "--policy", "nowhere"], "does not exist"),
        (["nothing", "--script", "SCRIPT:expert"], "'nothing' cannot be made"),
        (["lock", "--script", "SCRIPT:expert", "--episodes", "0"], "--episodes"),
        (["lock", "--script", "SCRIPT:expert", "--no-clip-rewards"], "--clip-rewards is an option of Atari games"),
        (["MountainCarContinuous-v0", "--keyboard"], "expected at most 10 discrete ones; use --script"),
    ],
)
def test_errors_teach(here, script, tmp_path, arguments, message):
    out = tmp_path / "demos"
    result = here("record", *(word.replace("SCRIPT", str(script)) for word in arguments), "--out", out)
    assert result.code == 2 and message in result.text and "Traceback" not in result.text
    assert not out.exists()


def test_others_files_are_left_alone(here, script, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("3 years")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("mine", "file", "link"):
        result = here("record", "lock", "--script", f"{script}:expert", "--out", tmp_path / name)
        assert result.code == 2 and "exists and is not empty" in result.text
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]
    result = here("record", "lock", "--script", f"{script}:expert", "--out", tmp_path / "no" / "demos")
    assert result.code == 2 and "make it first" in result.text


def test_a_run_of_another_environment_is_refused(here, pong_run, tmp_path):
    result = here("record", "lock", "--policy", pong_run[0], "--out", tmp_path / "demos")
    assert result.code == 2 and "plays pong, not lock; expected sharpwave record pong" in result.text


def test_without_a_display_nobody_plays(here, tmp_path, monkeypatch):
    pytest.importorskip("pygame")
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    result = here("record", "lock", "--keyboard", "--out", tmp_path / "demos")
    assert result.code == 2 and "there is no display here" in result.text
    assert "use --script or --policy" in result.text
