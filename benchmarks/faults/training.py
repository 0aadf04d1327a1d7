"""A training of CartPole whose memory is a cluster, while its actors and its learner die: in ``cluster_faults.py``.

The actors write by themselves, so there is no account of each step; but CartPole says what follows from an observation
and an action, so that every transition can be computed again.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import runner

import sharpwave as sw
from faults.group import STOPPED_S
from faults.homes import BACK_S, Served, end
from sharpwave.training.folder import checkpoints

SHARDS, ENVS, STEPS_ON = 2, 4, 300
LIMIT = 1e-4
"""Difference of an observation from the computed one: float32 against float64."""


class TrainingGroup:
    """A service, and a run of ``sharpwave train`` with two actors that are connected to it.

    Attributes:
        shards: their number. ``errors``: that are none of the promised ones. ``deaths``: of actors.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        import random

        self.random, self.shards, self.errors, self.deaths = random.Random(seed), SHARDS, list[str](), 0
        self._run, self._log = folder / "run", folder / "run.log"
        self.home = Served(folder, SHARDS, spec=None)
        settings = {
            "connect": self.home.listen, "out": self._run, "actors": 2, "num-envs": ENVS, "steps": 100_000_000,
            "set": "evaluation.stop_reward=null", "evaluate-every": 0, "checkpoint-every": 2_000,
            "actor-restarts": 1_000, "report-every": 500, "seed": seed,
        }  # fmt: skip
        self._start(["cartpole", *(word for name, value in settings.items() for word in (f"--{name}", str(value)))])
        self.home.join()
        self.cluster = self.home.cluster
        self.oracle = self.cluster.transitions(name="oracle", sampler=sw.Prioritized(alpha=1.0))
        self._env: Any = gymnasium.make("CartPole-v1").unwrapped
        self._goes_on()

    def _start(self, arguments: list[str]) -> None:
        with self._log.open("a") as log:
            command = [sys.executable, "-m", "sharpwave.cli", "train", *arguments]
            self.learner = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def _total(self) -> int:
        return int(self.cluster.stats()["total_steps"])

    def _goes_on(self, more: int = STEPS_ON) -> float:
        """Wait until the actors have delivered further steps; return the seconds, or infinity."""
        begun, before = time.monotonic(), 0
        while time.monotonic() < begun + BACK_S:
            with contextlib.suppress(ConnectionError):
                before = before or self._total()
                if self._total() >= before + more:
                    return time.monotonic() - begun
            if self.learner.poll() is not None:
                self.errors.append(f"the run ended: {self._log.read_text()[-300:]!r}")
                return float("inf")
            time.sleep(0.05)
        return float("inf")

    def actors(self) -> list[psutil.Process]:
        """Return the actors' processes, the oldest first."""
        found = []
        with contextlib.suppress(psutil.Error):
            for one in psutil.Process(self.learner.pid).children():
                with contextlib.suppress(psutil.Error):
                    if "spawn_main" in " ".join(one.cmdline()):
                        found.append(one)
        return sorted(found, key=lambda one: one.pid)

    def kill_actor(self, shard: int) -> float:
        """Kill an actor; return the seconds until another is there in its place and steps have come."""
        before, begun = {one.pid for one in self.actors()}, time.monotonic()
        self.deaths += 1
        end(self.random.choice(sorted(before)))
        while time.monotonic() < begun + BACK_S:
            now = {one.pid for one in self.actors()}
            if now - before and len(now) >= len(before):
                self._goes_on()
                return time.monotonic() - begun
            time.sleep(0.05)
        return float("inf")

    def stop_actor(self, shard: int) -> float:
        """Stop an actor for a while."""
        process = self.random.choice(self.actors())
        process.suspend()
        time.sleep(STOPPED_S)
        process.resume()
        return self._goes_on()

    def kill_shard(self, shard: int) -> float:
        """Kill a shard of the training."""
        took = self.home.kill(shard)
        return took + self._goes_on()

    def _saved(self) -> bool:
        try:
            return bool(checkpoints(self._run))
        except ValueError:
            return False

    def kill_learner(self, shard: int) -> float:
        """Kill the run once it has a checkpoint, and resume it: its actors end, its memory stays."""
        begun = time.monotonic()
        while not self._saved() and time.monotonic() < begun + BACK_S:
            time.sleep(0.1)
        actors = self.actors()
        self.deaths += len(actors)
        end(self.learner.pid)
        self.learner.wait()
        begun = time.monotonic()
        psutil.wait_procs(actors, timeout=BACK_S)
        self.errors += [f"actor {one.pid} outlived its learner" for one in actors if one.is_running()]
        self._start(["--resume", str(self._run)])
        self._goes_on()
        return time.monotonic() - begun

    # checks

    @contextlib.contextmanager
    def _resting(self) -> Iterator[None]:
        """Stop learner and actors meanwhile."""
        processes = [psutil.Process(self.learner.pid), *self.actors()]
        for one in processes:
            one.suspend()
        try:
            before = -1
            while before != (now := self._total()):
                before = now
                time.sleep(0.2)
            yield
        finally:
            for one in processes:
                with contextlib.suppress(psutil.Error):
                    one.resume()

    def wrong(self, batch: sw.Batch) -> int:
        """Return how many transitions of a batch CartPole does not make."""
        found = 0
        rows = zip(batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs, strict=True)
        for obs, action, reward, discount, after in rows:
            self._env.state, self._env.steps_beyond_terminated = np.asarray(obs, np.float64), None
            expected, _, ended, _, _ = self._env.step(int(action))
            edge = min(abs(abs(expected[0]) - 2.4), abs(abs(expected[2]) - np.pi / 15)) < LIMIT
            same = bool(np.abs(expected - np.asarray(after)).max() < LIMIT)
            found += not (float(reward) == 1.0 and (edge or ended == (discount == 0)) and (ended or same))
        return found

    def check(self) -> tuple[list[str], dict[str, float]]:
        """Return what is wrong with batches and probabilities while all rest; and memory in bytes."""
        found, self.errors = self.errors, []
        try:
            with self._resting():
                count = len(self.oracle)
                batch = self.oracle.sample(256)
                if bad := self.wrong(batch):
                    found.append(f"{bad} transitions that CartPole does not make")
                self.oracle.refresh()
                mass = sum(one.state.mass for one in self.oracle._of.known.values())
                if not np.allclose(batch.probabilities * mass, 1.0, rtol=1e-6) or round(mass) != count:
                    found.append(f"probabilities are not 1/{mass}, of {count} items")
                stats = self.cluster.stats()["shards"]
                processes = zip(self.home.processes(), stats, strict=True)
                beyond = [runner.memory(one) - held["total_bytes"] for one, held in processes]
            memory = {
                "learner of a training": float(runner.memory(self.learner.pid)),
                "shard": float(np.mean(beyond)),
            }
            memory["actor of a training"] = float(np.mean([runner.memory(one.pid) for one in self.actors()]))
        except Exception as error:
            return [*found, f"checks: {type(error).__name__}: {error}"], {}
        return found, memory

    def end(self) -> tuple[int, list[str]]:
        """End the run; return the steps that it counted, and what is wrong with those that the shards have."""
        self.learner.send_signal(signal.SIGINT)
        found = []
        try:
            self.learner.wait(BACK_S)
        except subprocess.TimeoutExpired:
            found.append(f"the run did not end: {self._log.read_text()[-300:]!r}")
            end(self.learner.pid)
            self.learner.wait()
        lines = (self._run / "metrics.jsonl").read_text().splitlines()
        counted = int(max(json.loads(line).get("steps", 0) for line in lines))
        if (total := self._total()) < counted:
            found.append(f"the learner counted {counted} steps, the shards have {total}")
        found += self._audit()
        self.home.close()
        return counted, found

    def _audit(self) -> list[str]:
        replay = self.cluster.transitions(name="audit", max_times_sampled=1)
        seen, bad = Counter[tuple[int, int, int]](), 0
        while count := len(replay):
            batch = replay.sample(min(256, count))
            bad += self.wrong(batch)
            seen.update(zip(batch.shards.tolist(), batch.lane.tolist(), batch.step.tolist(), strict=True))
        twice = sum(count > 1 for count in seen.values())
        found = [f"{bad} transitions that CartPole does not make"] if bad else []
        found += [f"{twice} transitions twice"] if twice else []
        lanes = Counter((shard, lane) for shard, lane, _ in seen)
        last = {key: max(step for *of, step in seen if tuple(of) == key) for key in lanes}
        missing = sum(last[key] + 1 - count for key, count in lanes.items())
        # An actor that ends leaves an episode without its last transition and skips a step, in each of its lanes.
        if missing > 2 * ENVS * (self.deaths + 1):
            found.append(f"{missing} transitions are missing between others, after {self.deaths} deaths of actors")
        return found
