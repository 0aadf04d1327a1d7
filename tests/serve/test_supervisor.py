"""A supervised process is restarted after pauses, up to a limit, and ends politely or by force."""

from __future__ import annotations

import signal
import time

import pytest

from sharpwave.serve import supervisor
from sharpwave.serve.supervisor import ProcessDiedError, Program, Supervised, end

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"


def buried(child: Supervised) -> str:
    """Wait for the end of a process, and return the cause of its death."""
    child.bury(grace_s=60.0)
    return child.failure


def test_a_process_that_dies_is_restarted_after_growing_pauses_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PAUSES_S", (0.0, 1000.0))
    said: list[str] = []
    child = Supervised(
        "worker 1", lambda: Program("raise SystemExit(7)"), 2, ", as many as --limit allows", said.append
    )
    child.start()
    assert child.process is not None and not child.due
    assert buried(child) == "exit status 7" and child.due and not child.alive
    child.restart(also=" at once")
    assert buried(child) == "exit status 7" and not child.due  # it died soon, for the second time
    child.restart()
    child.process.kill()
    child.failure = "Traceback\n  File its.py\nError: its own\n  words\n"
    buried(child)
    with pytest.raises(ProcessDiedError) as died:
        child.restart()
    assert str(died.value) == (
        "worker 1 died of: Error: its own words; restarts so far: 2, as many as --limit allows\n"
        "Traceback\n  File its.py\nError: its own\n  words"
    )
    assert said == [
        "Worker 1 died of: exit status 7; it is restarted at once; restarts left: 1",
        "Worker 1 died of: exit status 7; it is restarted; restarts left: 0",
    ]


def test_a_process_that_lived_long_is_restarted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PAUSES_S", (0.0, 1000.0))
    monkeypatch.setattr(supervisor, "LIVED_S", 0.0)
    child = Supervised("worker", lambda: Program(""))
    child.start()
    for _ in range(3):
        buried(child)
        assert child.due
        child.restart()
    end([child], 60.0)


def test_a_start_that_fails_is_tried_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PAUSES_S", (1000.0,))

    def begin() -> Program:
        raise OSError("no process is left")

    child = Supervised("worker", begin)
    with pytest.raises(OSError, match="no process is left"):
        child.start()
    assert child.process is None and not child.due


def test_processes_that_do_not_end_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "TERMINATED_S", 0.2)
    children = [Supervised("worker 0", lambda: Program("")), Supervised("worker 1", lambda: Program(STUBBORN))]
    for child in children:
        child.start()
    children[1].process.stdout.readline()
    stuck: list[str] = []
    waited: list[float] = []
    stubborn = children[1].process
    end(children, 0.5, meanwhile=lambda: waited.append(time.monotonic()), stuck=lambda child: stuck.append(child.name))
    assert stubborn.exitcode == -signal.SIGKILL and stuck[-1] == "worker 1" and len(waited) > 10
    assert [child.process for child in children] == [None, None]
