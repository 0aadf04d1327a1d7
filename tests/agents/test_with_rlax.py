"""Losses, rescaling, whole updates of Rainbow and the example of NGU against rlax, in a process of their own: jax has
threads, and warns whenever a process that imported it forks, as other tests do."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("rlax") is None, reason="needs rlax: pip install '.[test]'")
def test_all_of_them_agree():
    names = ("losses", "policy_gradients", "rainbow_updates", "rescaling")
    files = [*(f"tests/agents/with_rlax/{name}.py" for name in names), "tests/examples/agent57_with_rlax.py"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
