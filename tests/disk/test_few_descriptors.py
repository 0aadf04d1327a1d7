"""A process that runs out of descriptors for a moment reads again, and gives its folder back, once it has some."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("resource")

PROGRAM = """
import os, resource, sys
import numpy as np
import sharpwave as sw

spec = sw.Spec(obs=sw.Field((64,), "float32"), action=sw.Field((), "int64"))
store = sw.Store(spec, capacity=100_000, ram="16MiB", disk=sys.argv[1])
view = store.transitions(sampler=sw.Prioritized())
rng, no = np.random.default_rng(0), np.zeros((500, 4), np.bool_)
for _ in range(40):
    obs = rng.random((500, 4, 64), np.float32)
    store.extend(obs=obs, action=no.astype(int), reward=obs[..., 0], terminated=no, truncated=no)
store.flush()

def few(free):
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) - 1 + free, 4096))

few(int(sys.argv[2]))
for _ in range(2):
    try:
        view.sample(2000)
    except OSError as error:
        print(error)
few(3000)
for _ in range(3):
    view.sample(2000)
few(0)
try:
    store.close()
except OSError as error:
    print(error)
few(3000)
with sw.Store.open(sys.argv[1]) as again:
    print("held", len(again), "damages", again.recovery.damages)
"""


@pytest.mark.parametrize("free", [0, *(pytest.param(free, marks=pytest.mark.nightly) for free in (1, 2, 3))])
def test_a_moment_without_descriptors_ends_neither_sampling_nor_the_use_of_the_folder(
    free: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), str(free)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "held 79996 damages []" in done.stdout
