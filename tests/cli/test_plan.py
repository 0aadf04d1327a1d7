"""``sharpwave plan``: the arithmetic of layouts, the measured one, and errors that teach."""

import os
import subprocess
import sys

import pytest

from sharpwave.cli.plan import layouts, parse_count
from sharpwave.extras import install
from tests.training.test_saving import full_above


def test_layouts_by_hand():
    # 84 * 84 = 7056; scalars: 8 + 4 + 2 = 14.
    costs = [layout.bytes_per_step for layout in layouts((84, 84), 1, 4, "uint8")]
    assert costs == [2 * 4 * 7056 * 8 + 14, 2 * 4 * 7056 + 14, 4 * 7056 + 14, 7056 + 14]


@pytest.mark.parametrize("text", ["1e6", "1_000_000", "1,000,000", "1M", "1000k"])
def test_counts(text):
    assert parse_count(text) == 1_000_000


@pytest.mark.parametrize("text", ["lots", "", "-5", "0", "1e99", "nan"])
def test_what_is_no_count(text):
    with pytest.raises(ValueError, match="--capacity: got"):
        parse_count(text)


@pytest.mark.slow
def test_plan_measures_by_playing(here, tmp_path):
    picture = tmp_path / "plan.png"
    result = here("plan", "--env", "pong", "--steps", "3000", "--capacity", "1e6", "--png", picture)
    assert result.code == 0, result.text
    assert "420.6 GiB" in result.text  # (2 * 4 * 7056 * 8 + 14) * 1e6 / 2^30
    assert "52.6 GiB" in result.text and "encoded (pong, measured)" in result.text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_leaves_the_earlier_one(here, tmp_path):
    picture = tmp_path / "plan.png"
    assert here("plan", "--png", picture).code == 0
    earlier = picture.read_bytes()
    with full_above(4_000):
        result = here("plan", "--capacity", "1e5", "--png", picture)
    assert result.code == 1 and "File too large" in result.text
    assert picture.read_bytes() == earlier and os.listdir(tmp_path) == ["plan.png"]


def test_plan_without_an_environment_says_how_to_measure(here):
    result = here("plan", "--obs", "17", "--stack", "1", "--dtype", "float32")
    assert result.code == 0 and "--env pong measures it" in result.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--obs", "84by84"], "--obs: got '84by84', expected positive integers joined by x"),
        (["--dtype", "uint9"], "--dtype: got 'uint9'"),
        (["--capacity", "lots"], "--capacity: got 'lots'"),
        (["--env", "CartPole-v1"], "use --obs 4"),
        (["--env", "pong", "--obs", "17"], "--obs: pong gives frames"),
        (["--png", "nowhere/plan.png"], "make it first"),
    ],
)
def test_errors_teach(here, arguments, message):
    result = here("plan", *arguments)
    assert result.code == 2 and message in result.text and "Traceback" not in result.text


@pytest.mark.slow
def test_torch_is_not_needed_for_help_settings_or_plan(tmp_path):
    (tmp_path / "wrong.toml").write_text('recipe = "pong"\n[agent]\nlr = -1.0\n')
    code = f"""
import sys
sys.modules["torch"] = None
from sharpwave.cli import main
for arguments, code in (
    (["--help"], 0),
    (["train", "pong", "--help"], 0),
    (["plan", "--env", "pong", "--steps", "200"], 0),
    (["train", "--config", {str(tmp_path / "wrong.toml")!r}], 2),
):
    try:
        main(arguments)
    except SystemExit as ended:
        assert (ended.code or 0) == code, ended.code
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "--learning-rate: got -1.0, expected above 0" in done.stderr


def test_a_missing_package_is_named_with_what_to_install():
    code = """
import sys
sys.modules["torch"] = None
from sharpwave.cli import main
main(["train", "cartpole"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and install("train") in done.stderr


def test_importing_sharpwave_imports_neither_torch_nor_gymnasium():
    code = "import sharpwave, sys; sys.exit(bool({'torch', 'gymnasium', 'ale_py', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
