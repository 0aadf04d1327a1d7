"""``sharpwave bench``: short real measurements, what is said of absent peers and bad input, and an interrupt."""

import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest

from sharpwave.bench.contenders import SETUPS
from sharpwave.bench.report import MEASURES, ratios, summary
from sharpwave.cli.bench import written
from sharpwave.extras import install
from tests.cli.conftest import ENVIRONMENT
from tests.cli.stores import make_store
from tests.cli.test_core_install import EXTRA, command_without, without
from tests.training.test_saving import full_above

pytestmark = pytest.mark.timeout(600)

PEERS = {setup.module: setup.package for setup in SETUPS.values() if setup.package != "sharpwave"}


def frames(folder):
    path = folder / "frames.npy"
    noise = np.random.default_rng(0).integers(0, 256, (300, 20, 30), np.uint8)
    np.save(path, noise)
    return path


@pytest.mark.slow
def test_without_peers_and_training_packages_the_store_is_measured(tmp_path):
    missing = [name for name in EXTRA if name not in ("typer", "click", "shellingham", "rich")] + list(PEERS)
    out = tmp_path / "bench.json"
    code, text = command_without(missing, "bench", "--seconds", 1, "--out", out)
    assert code == 0, text
    told = json.loads(out.read_text())
    assert list(told["contenders"]) == ["Sharpwave", "Sharpwave raw"] and told["failed"] == {}
    for package in PEERS.values():
        assert f"{package}: not installed: pip install {package}" in text
    assert f"trainer: not measured, torch is not installed: {install('train')}" in text
    assert "drawn pictures, 4x84x84 uint8" in text and "the figure needs matplotlib" in text
    for name, one in told["summary"]["contenders"].items():
        assert one["bytes_per_step"] > 0 and set(one) == {"bytes_per_step", *MEASURES}
        for what in MEASURES:
            rounds = told["contenders"][name]["rounds"][what]
            assert one[what]["low"] <= one[what]["median"] <= one[what]["high"] and len(rounds) >= 1
    # Of so few steps most memory is what compiling left, and buffers: their encoded bytes show that both were measured.
    fills = {name: one["fill"] for name, one in told["contenders"].items()}
    encoded = {name: fill["stats"]["encoded_bytes_per_step"] for name, fill in fills.items()}
    assert encoded["Sharpwave"] < 0.1 * encoded["Sharpwave raw"]
    sizes = {name: fill["filled_bytes"] / fill["steps"] for name, fill in fills.items()}
    ratio = told["summary"]["ratios"]["Sharpwave raw"]["bytes_per_step"]
    assert ratio == pytest.approx(sizes["Sharpwave"] / sizes["Sharpwave raw"])
    assert told["limit"] and told["environment"]["versions"]["sharpwave"] != "absent"


@pytest.mark.parametrize(
    "peers",
    [
        pytest.param(["stable_baselines3"], marks=pytest.mark.nightly, id="one"),
        pytest.param(list(PEERS), marks=pytest.mark.nightly, id="all"),
    ],
)
def test_an_environment_and_its_trainer(tmp_path, peers):
    out = tmp_path / "bench.json"
    missing = [name for name in PEERS if name not in peers]
    code, text = command_without(missing, "bench", "--seconds", 1, "--env", "CartPole-v1", "--out", out, timeout=550)
    assert code == 0, text
    told = json.loads(out.read_text())
    assert told["data"]["frame"] == [4] and told["data"]["stack"] is None and told["data"]["episodes"] > 8
    assert told["failed"] == {} and "Sharpwave" in told["contenders"]
    assert all(one["fill"]["wrong"]["obs"] == 0 for one in told["contenders"].values())
    trainer = told["trainer"]
    assert trainer["recipe"] == "cartpole" and trainer["slices"]
    for one in trainer["slices"]:
        assert one["steps"] > 0 < one["updates"] and sum(one["parts"].values()) == pytest.approx(one["seconds"])
        assert all(one["parts"][part] > 0 for part in ("environment", "inference", "sampling", "learning"))
    assert "Trainer, recipe cartpole on CartPole-v1" in text and "Sharpwave to each" in text
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["store", pytest.param("array", marks=pytest.mark.nightly)])
def test_own_frames(tmp_path, kind):
    path = frames(tmp_path)
    if kind == "store":
        path = make_store(tmp_path / "replay", lengths=(100, 90, 80))
    before = {one: one.stat().st_mtime_ns for one in sorted(path.rglob("*"))}
    out = tmp_path / "bench.json"
    code, text = command_without(list(PEERS), "bench", "--seconds", 1, "--data", path, "--recipe", "none", "--out", out)
    assert code == 0, text
    told = json.loads(out.read_text())
    assert told["data"]["frame"] == [20, 30] and told["data"]["stack"] == (None if kind == "store" else 4)
    assert "trainer" not in told and all(one["fill"]["wrong"]["obs"] == 0 for one in told["contenders"].values())
    assert {one: one.stat().st_mtime_ns for one in sorted(path.rglob("*"))} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "'nowhere' does not exist; expected a store's folder or a .npy file"),
        (["--data", "."], "no store"),
        (["--data", "FLAT"], "expected numbers [frames, ...]"),
        (["--data", "SHORT"], "has 200 frames, expected more than 256"),
        (["--data", "TEXT"], "cannot be read as a .npy file"),
        (["--env", "no-such-game"], "cannot be made"),
        (["--env", "pong", "--data", "SHORT"], "expected one of them"),
        (["--recipe", "no-such"], "--recipe: got 'no-such', expected none or one of cartpole, cartpole-ppo,"),
        (["--out", "bench.txt"], "expected a name that ends in .json"),
        (["--out", "nowhere/bench.json"], "make it first"),
        (["--seconds", "0"], "--seconds"),
    ],
)
def test_errors_teach(here, tmp_path, arguments, message):
    np.save(tmp_path / "flat.npy", np.zeros(1000))
    np.save(tmp_path / "short.npy", np.zeros((200, 4)))
    (tmp_path / "text.npy").write_text("text")
    named = {word: tmp_path / f"{word.lower()}.npy" for word in ("FLAT", "SHORT", "TEXT")}
    result = here("bench", *(named.get(word, word) for word in arguments))
    assert result.code == 2 and message in result.text and "Traceback" not in result.text


@pytest.mark.slow
def test_an_interrupt_shows_what_was_measured(tmp_path):
    out = tmp_path / "bench.json"
    process = subprocess.Popen(
        [*without(list(PEERS)), "bench", "--data", str(frames(tmp_path)), "--seconds", "120", "--out", str(out)],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line == "round 2\n":
            break
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the group
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in text, text
    assert "Interrupted" in text and "Sharpwave to each" in text
    told = json.loads(out.read_text())
    assert told["interrupted"] and told["failed"] == {}


def test_figures_that_cannot_be_written_leave_the_earlier_files(tmp_path):
    out, spread = tmp_path / "bench.json", {"median": 2.0, "low": 1.0, "high": 3.0}
    results = {
        "summary": {"contenders": {"Sharpwave": {"bytes_per_step": 5.0, **dict.fromkeys(MEASURES, spread)}}},
        "data": {"text": "noise"},
        "environment": {"machine": "a machine"},
    }
    assert written(results, out) == f"{out}, {out.with_suffix('.png')}"
    earlier = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for more, limit in (({"more": "." * 9_000}, 8_000), ({}, 4_000)):  # fails in the JSON file; in the picture
        with full_above(limit), pytest.raises(OSError, match="File too large"):
            written(results | more, out)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == earlier


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    def rounds(*calls):
        return {"fill": {"filled_bytes": 800, "steps": 8}, "rounds": {"add": [{"calls": c, "rows": 8} for c in calls]}}

    results = {"contenders": {"Sharpwave": rounds(2, 9, 4), "other": rounds(1, 3)}, "limit": [], "trainer": {}}
    assert ratios(results, "Sharpwave", "other", "add") == [2.0, 3.0]  # the third round was interrupted
    told = summary(results)
    assert told["ratios"]["other"]["add"] == {"median": 2.5, "low": 2.0, "high": 3.0}
    assert told["contenders"]["Sharpwave"]["add"] == {"median": 32.0, "low": 16.0, "high": 72.0}
    assert told["contenders"]["other"]["bytes_per_step"] == 100.0 and told["ratios"]["other"]["bytes_per_step"] == 1.0
    assert told["ratios"]["other"]["uniform 32"] is None and told["limit"] is None
