"""Helper threads that decode large batches: whatever they do or miss, the batch is the same."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.views import gather as gather_module
from tests.support.examples import examples


@pytest.fixture(autouse=True)
def _help_with_everything(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gather_module, "THREADS", 4)
    monkeypatch.setattr(gather_module, "THREAD_BYTES", 1)
    monkeypatch.setattr(gather_module, "CHUNK_BYTES", 1)
    yield


def filled(sign: int, codec: str = "delta") -> sw.Store:
    """Every byte of a step's frame tells which step it is of."""
    spec = sw.Spec(obs=sw.Field((20, 20), "uint8"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=1000, segment_steps=16, codec={"obs": codec}, seed=0)
    for k in range(250):
        frame = np.zeros((20, 20), np.uint8)
        frame[k % 20, :7] = sign * k % 256
        frame[7, k % 20] = 255
        store.append(lane=0, obs=frame, action=sign * k, reward=0.0, terminated=False, truncated=False)
    return store


def check(batch: Any, sign: int) -> None:
    for row, action in enumerate(batch.action.tolist()):
        k = sign * action
        expected = np.zeros((20, 20), np.uint8)
        expected[k % 20, :7] = sign * k % 256
        expected[7, k % 20] = 255
        np.testing.assert_array_equal(batch.obs[row], expected)
        expected = np.zeros((20, 20), np.uint8)
        expected[(k + 1) % 20, :7] = sign * (k + 1) % 256
        expected[7, (k + 1) % 20] = 255
        np.testing.assert_array_equal(batch.next_obs[row], expected)


@pytest.mark.parametrize("codec", ["delta", "raw", "zstd"])
def test_many_small_batches_with_helpers_that_come_late_or_never(codec: str) -> None:
    replay = filled(1, codec).transitions(seed=0)
    for size in (1, 2, 3, 64) * examples(100 if codec == "zstd" else 500):
        batch = replay.sample(size)
        check(batch if size < 64 else batch.copy(), 1)


def test_one_caller_has_the_helpers_and_others_work_alone() -> None:
    errors: list[BaseException] = []

    def learn(sign: int) -> None:
        try:
            replay = filled(sign).transitions(seed=0)
            for _ in range(400):
                check(replay.sample(32), sign)
        except BaseException as error:  # told below
            errors.append(error)

    threads = [threading.Thread(target=learn, args=(sign,)) for sign in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors, errors[0]


def test_a_forked_child_has_helpers_of_its_own_and_processes_end_while_helpers_wait() -> None:
    script = """
import os
import numpy as np
import sharpwave as sw
from sharpwave.native import core
from sharpwave.views import gather
gather.THREADS, gather.THREAD_BYTES, gather.CHUNK_BYTES = 3, 1, 1
store = sw.Store(sw.Spec(obs=sw.Field((64,), "uint8"), action=sw.Field((), "int64")), capacity=1000)
for k in range(200):
    store.append(lane=0, obs=np.full(64, k, np.uint8), action=k, reward=0, terminated=False, truncated=False)
replay = store.transitions()
def check():
    for _ in range(50):
        batch = replay.sample(32)
        assert (batch.obs == batch.action[:, None]).all()
check()
here = core.helper_threads()
child = os.fork()
inherited = core.helper_threads()
check()
if child == 0:
    os._exit(10 + core.helper_threads() if not inherited else 1)
print(here, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "12"]
