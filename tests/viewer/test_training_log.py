"""A run's log, followed as it grows."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharpwave.training import progress
from sharpwave.viewer import training_log
from sharpwave.viewer.training_log import TrainingLog


def line(event: str, steps: Any, **more: Any) -> str:
    return json.dumps({"event": event, "steps": steps, "minutes": 0.5, **more}) + "\n"


def test_figures_of_the_disk_are_those_of_a_run() -> None:
    assert set(training_log.DISK) == set(progress.DISK)


def test_it_grows(tmp_path: Path) -> None:
    log, path = TrainingLog(tmp_path), tmp_path / "metrics.jsonl"
    assert not log.update()
    path.write_text(line("episode", 10, reward=1.5) + line("report", 20, loss=None, disk={"hits": 4}))
    assert log.update() and not log.update()
    half = line("episode", 30, reward=-2)
    with path.open("a") as file:
        file.write(half[:9])
    log.update()
    assert log.shown()["episodes"]["reward"] == [1.5]
    with path.open("a") as file:
        file.write(half[9:] + line("evaluation", 30, mean=3, min=1))
    log.update()
    shown = log.shown()
    assert shown["episodes"]["reward"] == [1.5, -2.0] and shown["evaluations"]["mean"] == [3.0]
    assert shown["reports"]["loss"] == [None] and shown["reports"]["hits"] == [4.0]


def test_a_resumed_run_replaces_what_came_after(tmp_path: Path) -> None:
    events = [line("report", steps, loss=steps) for steps in (10, 20, 30, 20, 25)]
    (tmp_path / "metrics.jsonl").write_text("".join(events))
    log = TrainingLog(tmp_path)
    log.update()
    assert log.shown()["reports"]["steps"] == [10, 20, 20, 25]


def test_another_file_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line("report", 10) * 3)
    log = TrainingLog(tmp_path)
    log.update()
    path.write_text(line("report", 7))
    log.update()
    assert log.shown()["reports"]["steps"] == [7]


@pytest.mark.parametrize(
    "text",
    [
        "[]\nnull\n{}\n\xff\n\0\n", "[" * 5000 + "\n",
        line("report", "x") + line("report", None) + line("report", True),
        '{"event": "report", "steps": 1e999}\n', "{" + '"a":' * 3 + "\n", "x" * (1 << 21) + "\n",
        '{"event": "report", "steps": 1' + "0" * 400 + "}\n", line("report", 5, learner={str(k): k for k in range(99)}),
        line("report", 5, learner=[1], disk="x", loss="NaN"),
    ],
)  # fmt: skip
def test_strange_lines_do_no_harm(text: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(text.encode("latin-1") + line("report", 50).encode())
    log = TrainingLog(tmp_path)
    log.update()
    shown = log.shown()
    assert shown["reports"]["steps"][-1] == 50 and len(shown["learner"]) <= training_log.MAX_LEARNER
    json.dumps(shown, allow_nan=False)


def test_long_logs_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_log, "MAX_EVENTS", 1000)
    (tmp_path / "metrics.jsonl").write_text("".join(line("episode", k, reward=k) for k in range(5000)))
    log = TrainingLog(tmp_path)
    log.update()
    shown = log.shown()["episodes"]
    assert len(log.episodes) <= 1000 and shown["steps"] == shown["reward"]
    assert shown["steps"] == sorted(shown["steps"]) and shown["steps"][-1] == 4999


def test_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    os.mkfifo(tmp_path / "config.json")
    log = TrainingLog(tmp_path)
    assert not log.update() and log.settings() == {}


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(line("episode", 1, reward=2))
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "elsewhere")
    log = TrainingLog(tmp_path)
    assert not log.update() and not len(log.episodes)


def test_what_is_known_is_shown_while_more_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading thread has a low priority beside a training: whoever asks must not wait for it to end."""
    reading, asked = threading.Event(), threading.Event()

    def loads(text: bytes) -> Any:
        reading.set()
        assert asked.wait(20), "nobody could ask meanwhile"
        return json.loads(text)

    log = TrainingLog(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(line("episode", 1, reward=2))
    log.update()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(line("episode", 2, reward=3))
    monkeypatch.setattr(training_log, "json", SimpleNamespace(loads=loads))
    with ThreadPoolExecutor(2) as threads:
        update = threads.submit(log.update)
        assert reading.wait(20)
        try:
            assert threads.submit(log.shown).result(10)["episodes"]["reward"] == [2]
        finally:
            asked.set()
        assert update.result(20)
    assert log.shown()["episodes"]["reward"] == [2, 3]
