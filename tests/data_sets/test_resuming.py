"""An import that was broken off goes on where it stopped: every episode once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.data_sets.data import check_d4rl, d4rl

LENGTHS = [5, 900, 1, 64, 65, 200, 17, 300, 3, 640, 130, 2] * 4


def saved(path: Path, data: dict[str, Any]) -> str:
    np.savez(path, **data)
    return f"npz:{path}"


def test_killed_imports_go_on(tmp_path: Path) -> None:
    data = d4rl(LENGTHS, shape=(2,))
    source, folder = saved(tmp_path / "data.npz", data), tmp_path / "store"
    code = (
        "import sys, time, sharpwave as sw\n"
        f"sw.load({source!r}, disk={str(folder)!r}, ram='32MiB',\n"
        "    progress=lambda done, total: (time.sleep(.05), print(done, flush=True)))"
    )
    rng, kills = np.random.default_rng(), 0
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(int(rng.integers(1, 12))):
                process.stdout.readline()
            time.sleep(float(rng.random()) * 0.06)
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
    assert kills == 2
    for _ in range(2):  # the second finds nothing to do
        with sw.load(source, disk=folder) as store:
            check_d4rl(store, data, LENGTHS)
            (note,) = store.annotations()["imports"].values()
            assert note["episodes"] == len(LENGTHS)
    with sw.Store.open(folder) as store:
        check_d4rl(store, data, LENGTHS)


@pytest.mark.parametrize("on_disk", [False, True])
def test_interrupted_anywhere_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool) -> None:
    data = d4rl(LENGTHS, 1)
    source = saved(tmp_path / "data.npz", data)
    disk = tmp_path / "store" if on_disk else None
    spec = sw.load(source).spec
    store = sw.Store(spec, capacity=sum(LENGTHS), disk=disk)
    original, left = type(store._writing)._change, 0

    def failing(self: Any, *arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(type(store._writing), "_change", failing)
    rng, broken = np.random.default_rng(0), 0
    while len(store) < sum(LENGTHS):
        left = int(rng.integers(1, 40))
        try:
            sw.load(source, store)
        except KeyboardInterrupt:
            broken += 1
    assert broken > 5
    check_d4rl(store, data, LENGTHS)


def test_two_sources_and_a_changed_one(tmp_path: Path) -> None:
    one, other = d4rl([5, 6, 70]), d4rl([7, 80], 1)
    first, second = saved(tmp_path / "a.npz", one), saved(tmp_path / "b.npz", other)
    store = sw.load(first, capacity=1000)
    for source in (second, first, second):
        assert sw.load(source, store) is store
    assert [(one.lane, one.length) for one in store.episodes(lanes=0)] == [(0, 5), (0, 6), (0, 70)]
    assert [(one.lane, one.length) for one in store.episodes(lanes=1)] == [(1, 7), (1, 80)]
    with pytest.raises(ValueError, match="lane=0, but its import began in lane 1"):
        sw.load(second, store, lane=0)
    saved(tmp_path / "b.npz", d4rl([7, 81], 1))
    with pytest.raises(ValueError, match="has 2 episodes of 88 steps, but 2 of 87 when its import began"):
        sw.load(second, store)
    with pytest.raises(ValueError, match="got both into= and capacity"):
        sw.load(first, store, capacity=5)
    store.annotate(None, {"imports": "Dutch flowers"})
    with pytest.raises(ValueError, match="annotation 'imports' is not what an import notes"):
        sw.load(first, store)
