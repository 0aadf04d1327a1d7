"""What peers can make a shard log: few lines, and none that it waits for."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from sharpwave.serve import log_lines
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.fleet import ShardPlan
from sharpwave.serve.link import Link
from sharpwave.serve.local_shards import COMMAND
from sharpwave.serve.wire import Request
from tests.serve.serving import SPEC, served


@contextmanager
def shard(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Link]]:
    """A shard's process, whose standard error is a pipe that nobody reads, and a connection to it."""
    settings = asdict(ShardPlan(1, folder, capacity=1000).settings(SPEC)[0])
    slow = "from sharpwave.serve import log_lines; log_lines.EVERY_S = 1e9; "  # no more lines on a slow machine
    slow += "from sharpwave.serve.shard_views import ShardViews; ShardViews.set_credit = 3; "  # a bug
    process = subprocess.Popen(
        [sys.executable, "-c", slow + COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        process.stdin.write(json.dumps(settings).encode() + b"\n")
        process.stdin.flush()
        address = json.loads(process.stdout.readline())["addresses"][0]
        yield process, Link(Address.parse(address), Security(), patience_s=20.0)
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
        process.kill()
        process.wait()


def fails(link: Link, view: int) -> None:
    """Send a request that the shard fails at."""
    with pytest.raises((RuntimeError, TypeError)):
        link.call(Request.CREDIT, {"view": view, "inserts": 1})


def test_failed_requests_are_a_line_each_and_few(tmp_path: Path) -> None:
    with shard(tmp_path) as (process, link):
        asked = {"name": "v", "kind": "transitions", "settings": {}, "sampler": {"kind": "Uniform"}}
        view = link.call(Request.VIEW, asked).head["view"]
        for _ in range(500):
            fails(link, view)
        assert link.call(Request.DESCRIBE).head["steps"] == 0
        assert process.stdin is not None and process.stderr is not None
        process.stdin.close()  # it ends
        lines = process.stderr.read().decode().splitlines()
        assert process.wait(20) == 0
    failed = [one for one in lines if f"request {Request.CREDIT} failed: TypeError: " in one and "shard.py:" in one]
    assert len(failed) == log_lines.BURST
    assert f"{500 - log_lines.BURST} more lines were suppressed" in lines[-1]
    assert len(lines) == len(failed) + 1 and not any("Traceback" in one for one in lines)


def test_a_shard_whose_log_nobody_reads_goes_on() -> None:
    """Its pipe holds 64 KiB; what it says beyond that waits in memory, or is dropped and counted."""
    script = """
import logging, sys, threading, warnings
from sharpwave.serve.log_lines import unhurried
with unhurried():
    warnings.simplefilter("always")
    for number in range(20_000):
        logging.getLogger("other").warning("line %d of a hundred characters: %s", number, "x" * 60)
    warnings.warn("a warning")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    print("went on", flush=True)
    sys.stdin.readline()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "went on\n"
    _, said = process.communicate("\n", 30)
    assert process.returncode == 0 and "line 0 of" in said and "more lines were not read in time, and dropped" in said
    assert len(said) < 2 * log_lines.MAX_UNREAD_CHARACTERS and "Traceback" not in said


def test_lines_are_bounded_by_kind_and_say_how_many_were_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    few, now = log_lines.FewOfAKind(), [0.0]
    monkeypatch.setattr("sharpwave.serve.log_lines.time.monotonic", lambda: now[0])

    def written(text: str, *args: object) -> str | None:
        record = logging.LogRecord("sharpwave.serve", logging.ERROR, "", 0, text, args, None)
        return record.getMessage() if few.filter(record) else None

    assert [written("%s failed", "a") for _ in range(log_lines.BURST)] == ["a failed"] * log_lines.BURST
    assert not any(written("%s failed", "b") for _ in range(100))
    assert written("another kind") == "another kind"
    now[0] += log_lines.EVERY_S
    assert written("%s failed", "a") == "a failed (100 more such lines were suppressed)"
    assert not any(written("%s failed", "b") for _ in range(3))
    now[0] += log_lines.EVERY_S
    assert written("%s failed", "a") == "a failed (3 more such lines were suppressed)"


def test_a_reply_that_is_too_long_is_an_error_of_the_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with served(1, tmp_path) as there:
        link = there.cluster.links[0]
        there.shards[0]._answers[Request.FLUSH] = lambda client, frame: ({"long": "x" * (1 << 20)}, {})
        with pytest.raises(ValueError, match="the reply is a message of"):
            link.call(Request.FLUSH)
        assert link.call(Request.DESCRIBE).head["steps"] == 0 and link.connections == 1
    assert "Traceback" not in capfd.readouterr().err


def test_what_an_error_says_is_one_printable_line() -> None:
    try:
        raise ValueError("\x1b[31mred\n" + "x" * 10_000)
    except ValueError as error:
        said = log_lines.failure(error)
    assert said.startswith("ValueError: \\x1b[31mred\\nxxx") and said.endswith(")") and len(said) < 400
    assert "test_log_lines.py:" in said and said.isprintable()
