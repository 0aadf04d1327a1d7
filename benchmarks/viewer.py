"""Slowdown of a training by a page of ``sharpwave view`` on its live run.

    python benchmarks/viewer.py                  # Pong; --recipe cartpole
    python benchmarks/viewer.py --rounds 10

A run trains with its replay memory on disk. By turns the viewer is stopped (SIGSTOP), open on the page of the run, and
used: somebody steps through an episode. Each turn's environment steps a second come from the run's own log. The table
has the median of each, its ratio to that of the turns with no viewer, with quartiles over the rounds, and the
processor time that the viewer took.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import runner

POLL_S = 2.0
"""How often an open page asks whether there is anything new, as ``app.js`` has it."""
KEYS_A_SECOND = 15
"""Steps that somebody who plays an episode looks at."""
STATES = ("no viewer", "page open", "episode played")
UNJUDGED = ("--evaluate-every", "0", "--set", "evaluation.stop_reward=null", "--set", "evaluation.stop_worst=null")
RECIPES = {
    "pong": ["--prioritized", *UNJUDGED, "--capacity", "100000", "--warmup-steps", "2000"],
    "cartpole": [*UNJUDGED, "--capacity", "100000"],
}


class Page:
    """What a page asks of the server, from a thread, in one of the ``STATES``."""

    def __init__(self, port: int) -> None:
        self.port, self.state, self.requests = port, STATES[0], 0
        self.ended = False
        threading.Thread(target=self._poll, daemon=True).start()
        threading.Thread(target=self._play, daemon=True).start()

    def get(self, path: str) -> Any:
        """Return a parsed answer, or bytes."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            self.requests += 1
            return json.loads(body) if answer.getheader("content-type") == "application/json" else body

    def _poll(self) -> None:
        version = -1
        while not self.ended:
            time.sleep(POLL_S)
            if self.state == STATES[0]:
                continue
            with contextlib.suppress(OSError, ValueError):
                status = self.get("/api/0/status")
                if status["version"] != version:
                    version = status["version"]
                    self.get("/api/0/overview")
                    self.get("/api/0/curve")

    def _play(self) -> None:
        for step in itertools.count():
            time.sleep(1 / KEYS_A_SECOND)
            if self.ended:
                return
            if self.state != STATES[2]:
                continue
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
                row = self.get("/api/0/episodes?sort=length&desc=1&limit=1")["rows"][0]
                where = f"lane={row['lane']}&first={row['first']}"
                at = step % row["length"]
                self.get(f"/api/0/step?{where}&step={at}")
                if step % 64 == 0:
                    self.get(f"/api/0/frames.png?{where}&begin={at}&end={at + 63}&count=64")
                    self.get(f"/api/0/steps?{where}")


def reports(metrics: Path) -> list[dict[str, Any]]:
    """Return the reports in a run's log, which another process writes to."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in metrics.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event["event"] == "report":
                    found.append(event)
    return found


def steps_between(metrics: Path, begin: float, end: float, started: float) -> float:
    """Return environment steps a second between two times, from the reports' clock."""
    points = [(started + one["minutes"] * 60, one["steps"]) for one in reports(metrics)]
    inside = [point for point in points if begin <= point[0] <= end]
    if len(inside) < 2:
        return float("nan")
    (first, low), (last, high) = inside[0], inside[-1]
    return float((high - low) / (last - first))


def started_at(metrics: Path, process: subprocess.Popen[bytes], timeout_s: float = 300) -> float:
    """Return when the run's clock began, once its memory has grown; the time of a line is that of its writing."""
    deadline, before = time.monotonic() + timeout_s, 0
    while time.monotonic() < deadline and process.poll() is None:
        found = reports(metrics)
        if found and found[-1]["updates"] > 100 and 0 < before < len(found):
            return float(time.time() - found[-1]["minutes"] * 60)
        before = len(found) if found and found[-1]["updates"] > 100 else 0
        time.sleep(0.01 if before else 0.2)
    said = metrics.parents[1].joinpath("errors").read_text()
    raise SystemExit(f"the run wrote no report with updates within {timeout_s:g} s, or ended: {said}")


def main() -> None:
    """Measure, and print a table."""
    parser = runner.parser(__doc__)
    parser.add_argument("--recipe", choices=RECIPES, default="pong")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each state")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a turn")
    parser.add_argument("--json", type=Path, help="write the figures")
    given = parser.parse_args()
    command = [sys.executable, "-m", "sharpwave.cli"]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        limits = ["--steps", "100000000", "--disk-limit", "1GiB", "--report-every", "50", "--checkpoint-every", "20000"]
        training = subprocess.Popen(
            [*command, "train", given.recipe, "--out", str(run), *limits, *RECIPES[given.recipe]],
            stdout=subprocess.DEVNULL, stderr=(Path(folder) / "errors").open("w"),
        )  # fmt: skip
        viewer = None
        try:
            begun = started_at(run / "metrics.jsonl", training)
            viewer = subprocess.Popen([*command, "view", str(run), "--port", "0"], stderr=subprocess.PIPE, text=True)
            assert viewer.stderr is not None
            page = Page(int(viewer.stderr.readline().rpartition(":")[2].rstrip("/\n")))
            page.get("/api/0/overview")  # the first survey is no steady state
            rates: dict[str, list[float]] = {state: [] for state in STATES}
            taken: dict[str, float] = dict.fromkeys(STATES, 0.0)
            for round_ in range(given.rounds):
                turns = list(STATES)[round_ % 3 :] + list(STATES)[: round_ % 3]
                for state in turns:
                    page.state = state
                    viewer.send_signal(signal.SIGSTOP if state == STATES[0] else signal.SIGCONT)
                    begin, used = time.time(), runner.processor_s(viewer.pid)
                    time.sleep(given.seconds)
                    end = time.time()
                    taken[state] += runner.processor_s(viewer.pid) - used
                    rates[state].append(steps_between(run / "metrics.jsonl", begin, end, begun))
            viewer.send_signal(signal.SIGCONT)
            page.ended = True
        finally:
            for process in (viewer, training):
                if process is not None:
                    process.kill()
                    process.wait()
    show(given, rates, taken, page.requests)


def show(given: argparse.Namespace, rates: dict[str, list[float]], taken: dict[str, float], requests: int) -> None:
    """Print the table."""
    print(f"{given.recipe}, {given.rounds} turns of {given.seconds:g} s each, {os.cpu_count()} processors")
    print(f"{'':16} {'steps/s':>9} {'ratio':>7} {'quartiles':>15} {'viewer CPU':>11}")
    figures = {}
    for state in STATES:
        ratios = [one / none for one, none in zip(rates[state], rates[STATES[0]], strict=True)]
        low, middle, high = runner.quartiles(ratios)
        share = taken[state] / (given.rounds * given.seconds)
        figures[state] = {"steps_per_s": rates[state], "ratio": middle, "quartiles": [low, high], "viewer_cpu": share}
        rate = statistics.median(rates[state])
        print(f"{state:16} {rate:9,.0f} {middle:7.3f} {low:7.3f} - {high:5.3f} {share:10.1%}")
    print(f"{requests:,} requests")
    if given.json is not None:
        runner.write(given.json, {"recipe": given.recipe, "states": figures})


if __name__ == "__main__":
    main()
