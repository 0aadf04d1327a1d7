"""Each example runs as its first lines say, with fewer steps."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT = {
    "store_in_numpy.py": ["--rounds", "12"],
    "dqn.py": ["--steps", "2000"],
    "jax_dqn.py": ["--steps", "2000"],
    "disk_and_resume.py": ["--steps", "300"],
    "processes.py": ["--steps", "600"],
    "optuna_study.py": ["--trials", "2", "--steps", "1500", "--out", "../optuna"],
    "her.py": ["--bits", "4", "--steps", "300"],
    "sb3_atari.py": ["--steps", "600"],
    "tianshou_dqn.py": ["--steps", "500"],
    "torchrl_dqn.py": ["--frames", "1280"],
    "tdmpc2_replay.py": ["--steps", "400", "--random-steps", "200", "--episodes", "1"],
}
BESIDE_PEERS = ("sb3_atari.py", "tianshou_dqn.py")
MAX_LINES = {"tdmpc2_replay.py": 260}
"""Lines of examples that have more than 120."""


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path.name, marks=pytest.mark.nightly if path.name in BESIDE_PEERS else pytest.mark.slow)
        for path in sorted((ROOT / "examples").glob("*.py"))
    ],
)
def test_example_runs(example: str, tmp_path: Path) -> None:
    if "jax" in example and not find_spec("jax"):
        pytest.skip("the example needs JAX: pip install jax")
    if "optuna" in example and not find_spec("optuna"):
        pytest.skip("the example needs Optuna: pip install 'sharpwave[optuna]'")
    path = ROOT / "examples" / example
    assert len(path.read_text("utf-8").splitlines()) <= MAX_LINES.get(example, 120), (
        "an example is read from top to bottom"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
    torchrls = "ignore:Creating:DeprecationWarning"  # a warning of its own, when it is imported
    command = [sys.executable, "-W", "error", "-W", torchrls, str(path), *SHORT[example]]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout and not list(tmp_path.iterdir()), "an example says something, and leaves nothing behind"
