"""Training with actors, for real: processes that play, die, are replaced, and never outlive the learner."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

import sharpwave as sw
from sharpwave.agents.pqn import PQN
from sharpwave.agents.rollouts import RolloutSettings
from sharpwave.serve.supervisor import ProcessDiedError
from sharpwave.serve.wire import MAX_BODY_BYTES
from sharpwave.training import setup
from sharpwave.training.actors.channels import Counters, shared_weights
from sharpwave.training.actors.pool import ActorPool
from sharpwave.training.actors.worker import ratio_limiter
from sharpwave.training.callbacks import Callback
from sharpwave.training.folder import checkpoints
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EpisodeScore

from ..trainer import Trained, options

CARTPOLE = load_recipe("cartpole").override(
    actors=2, num_envs=4, steps=3_000, prioritized=True, report_every=500, segment_steps=16,
    weights_every=200, checkpoint_every=1_000, batch_size=32, device="cpu",
)  # fmt: skip


def actors_of(process=None):
    """The actor processes below a process, by age."""
    found = []
    for child in (process or psutil.Process()).children(recursive=True):
        try:
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            pass
    return sorted(found, key=lambda child: child.create_time())


def assert_gone(processes, seconds=30):
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE], alive


@pytest.mark.slow
def test_it_learns_at_the_ratio_replaces_who_dies_and_ends_when_that_is_too_often():
    recipe = CARTPOLE.override(steps=1_000_000, actor_restarts=1)
    seen: list[Any] = []
    killed: list[int] = []

    class Meddler(Callback):
        """Kills the second actor after some learning, and the one in its place as soon as it is there.

        Not before it played: on a busy machine one actor may bring 2,000 steps while the other one still starts.
        """

        def on_step(self, training):
            both_play = training.state.progress.steps >= 2_000 and training.store.lanes == recipe.env.num_envs
            if (both_play or killed) and len(killed) < 2:
                meddle()

        def wants_checkpoint(self, training):
            return training.reason is not None

    def meddle():
        found = actors_of()
        if not killed:
            seen.extend(found)
            victim = found[1]
        else:
            victim = next((process for process in found if process not in seen), None)
        if victim is not None:
            victim.kill()
            killed.append(victim)

    trained = Trained(recipe, Meddler())
    last, kept, store, agent = trained.last, trained.kept, trained.store, trained.agent
    assert isinstance(store, sw.Store)
    assert len(killed) == 2 and not actors_of()
    assert trained.training.error is not None and last["actor_restarts"] == 1
    reason = "actor 1 died of: signal SIGKILL; restarts so far: 1, as many as --actor-restarts allows"
    assert reason in last["reason"]
    (saved,) = kept.checkpoints
    assert saved["steps"] == last["steps"] == store.total_steps  # with a checkpoint, of all that had arrived
    # the learner is never ahead, and in the end at most what the actors may be ahead behind
    for report in kept.reports:
        arrived = max(0, report["steps"] - recipe.training.warmup_steps)
        assert report["updates"] <= arrived // recipe.training.update_every
    limiter = ratio_limiter(recipe, agent.replay())
    batch_size = recipe.agent.replay.batch_size
    behind = (last["steps"] - recipe.training.warmup_steps) * limiter.ratio - last["updates"] * batch_size
    assert 0 <= behind <= limiter.error_buffer + batch_size
    assert any((trained.weights[name] != tensor).any() for name, tensor in trained.before.items())
    # played by the policy's own newer weights
    learning = [report for report in kept.reports if report["steps"] > 1_500]
    assert all(0 <= report["stale_versions"] < 20 and report["stale_steps"] >= 0 for report in learning)
    ratios = [report["replay_ratio"] for report in learning]
    assert limiter.ratio / 2 < np.mean(ratios) < limiter.ratio * 2
    # episodes are whole: every step that was counted was one of CartPole's, which gives 1
    assert len(kept.episodes) == last["episodes"] > 30
    assert all(episode["reward"] == episode["episode_steps"] for episode in kept.episodes)
    assert store.lanes == recipe.env.num_envs
    # first priorities came from the actors, and differ
    probabilities = trained.view.sample(256).probabilities
    assert len(np.unique(probabilities)) > 100
    trained.close()


class Standing:
    """A pool with nobody who learns: the test says what the learner did."""

    def __init__(self, base=CARTPOLE, **changes):
        self.recipe = base.override(**{"actors": 1, "warmup_steps": 100, **changes})
        agent = setup.agent(self.recipe, base.env.make(1))
        self.replay = agent.replay()
        self.counters, self.weights = Counters(self.recipe.actors.count), shared_weights(agent)
        self.weights.publish([*agent.policy_tensors(explore=True).values()])

    def pool(self, **kwargs):
        return ActorPool(self.recipe, self.counters, self.weights, lambda lane, lanes: [0] * lanes, 0, 0, **kwargs)


@pytest.mark.slow
def test_actors_wait_for_the_learner_and_one_that_hangs_is_replaced(monkeypatch):
    standing = Standing()
    counters, limiter, lanes = (
        standing.counters,
        ratio_limiter(standing.recipe, standing.replay),
        standing.recipe.env.num_envs,
    )
    limit = time.monotonic() + 240

    def listen(pool, until):
        """Take everything in, so that it is not the pipe that holds them back."""
        while not until():
            assert time.monotonic() < limit
            yield from pool.receive(0.05)

    def stands_still():
        """Whether it waits: it has a heartbeat before each step, so two without a step between them are of no player's,
        however seldom the machine lets it run."""
        made, beats = counters.made, counters.beats(0)
        time.sleep(0.3)
        return made > 0 and counters.beats(0) > beats + 2 and counters.made == made

    told: list[str] = []
    with standing.pool(hung_s=1.0e9, say=told.append) as pool:
        arrived = list(listen(pool, stands_still))
        most = limiter.min_size + limiter.error_buffer / limiter.ratio
        assert most - lanes <= counters.made <= most
        counters.steps, counters.samples = 100, 64 * 100  # the learner has learned: 100 batches
        arrived += listen(pool, lambda: counters.made > most)
        arrived += listen(pool, stands_still)
        most += 64 * 100 / limiter.ratio
        assert most - lanes <= counters.made <= most
        steps = sum(message.segment.steps for message in arrived if not isinstance(message, EpisodeScore))
        under_way = lanes * (standing.recipe.actors.segment_steps + standing.replay.horizon + 1)
        assert 0 < counters.made - steps <= under_way
        # It stops in the middle of whatever it does, and is neither waited for nor lost.
        (halted,) = actors_of()
        halted.suspend()
        monkeypatch.setattr("sharpwave.training.actors.pool.SILENT_S", 0.5)
        list(listen(pool, lambda: told))  # or a learner that is held up may find it hung before it finds it silent
        pool._hung_s = 1.0
        list(listen(pool, lambda: pool.restarts == 1))
        pool._hung_s = 1.0e9
        assert_gone([halted])
        assert [f"Actor 0 (process {halted.pid}) has been silent for 0.5 s: is it stopped?"] == [
            text.partition(" After")[0] for text in told[:-1]
        ]
        assert told[-1] == "Actor 0 died of: it was silent for 1 s; it is restarted; restarts left: 2"
        assert counters.made == steps
        list(listen(pool, lambda: counters.made > steps))  # the next one plays what was lost
    assert not actors_of()


@pytest.mark.slow
def test_segments_larger_than_the_sockets_buffer_arrive():
    """64 screens of 84x84, not packed, are 450 kB."""
    changes = {"network": "small", "codec": "raw", "segment_steps": 64, "num_envs": 1, "warmup_steps": 1_000}
    standing = Standing(load_recipe("atari").override(env="pong", frame="84x84"), **changes)
    limit = time.monotonic() + 240
    arrived: list[Any] = []
    with standing.pool() as pool:
        while len(arrived) < 2 and time.monotonic() < limit:
            arrived += [message.segment for message in pool.receive(0.05) if not isinstance(message, EpisodeScore)]
    assert [(segment.first_step, segment.steps) for segment in arrived[:2]] == [(0, 64), (64, 64)]
    assert len(arrived[0].packed) > 64 * 84 * 84


def test_segments_that_could_never_be_sent_are_refused():
    changes = {"frame": "84x84", "actors": 1, "num_envs": 1, "segment_steps": MAX_BODY_BYTES // 7_056}
    recipe = load_recipe("atari").override(env="pong", **changes)
    env = recipe.env.make(1)
    with pytest.raises(ValueError, match=r"--segment-steps: got 152,174; with steps of 7,069 bytes expected at most"):
        setup.memory(recipe, env, setup.agent(recipe, env))
    env.close()


@pytest.mark.slow
def test_what_an_actor_dies_of_is_told():
    standing = Standing(env="NoSuchGame-v1", actor_restarts=0)
    with standing.pool() as pool, pytest.raises(ProcessDiedError, match="NoSuchGame-v1' cannot be made"):
        limit = time.monotonic() + 240
        while time.monotonic() < limit:
            list(pool.receive(0.1))
    assert not actors_of()


class Breaks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that raises in its step 300."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 300:
            raise ZeroDivisionError("the pole broke")
        return super().step(action)


class Lasts(Breaks):
    """The same, repaired."""

    def step(self, action: Any) -> Any:
        return self.env.step(action)


@pytest.mark.slow
def test_an_environment_that_raises_in_an_actor_is_named_and_leaves_a_run_to_resume(tmp_path):
    """By environment, step, seed and traceback, as without actors; the run goes on with one that is repaired."""
    settings: dict[str, Any] = {
        "steps": 900, "num_envs": 2, "warmup_steps": 50, "evaluate_every": 0, "actors": 2, "actor_restarts": 0,
        "segment_steps": 8, "progress": False,
    }  # fmt: skip
    with pytest.raises(ProcessDiedError) as raised:
        sw.train(Breaks, "dqn", **settings, out=tmp_path / "run")
    first, *trace = str(raised.value).splitlines()
    assert re.fullmatch(
        r"actor (\d) died of: RuntimeError: ZeroDivisionError: the pole broke; raised by CartPole-v1, environment \1 "
        r"of the run, in step 300 after a reset with seed \d+; restarts so far: 0, as many as --actor-restarts allows",
        first,
    )
    assert any("in step" in line and "test_pool.py" in line for line in trace)
    assert "sharpwave train --resume" in trace[-1]
    run = sw.TrainingRun.open(tmp_path / "run")
    assert run.summary["reason"] == first and 50 < run.summary["steps"] == len(run.store)
    assert run.resume(env=Lasts, trust=True, progress=False).summary["steps"] >= 900
    assert not actors_of()


COMMAND = [sys.executable, "-m", "sharpwave.cli", "train"]
SAME = ("num_envs", "report_every", "segment_steps", "checkpoint_every", "batch_size", "device")
OPTIONS = [*options(CARTPOLE, *SAME), "--actors=1"]


class Started:
    """``sharpwave train`` in a process of its own, and all those below it."""

    def __init__(self, folder, *arguments):
        self.folder = folder
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.limit = time.monotonic() + 240

    def wait(self, until):
        while not until():
            assert time.monotonic() < self.limit and self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def wait_for_checkpoint(self, above=0):
        names = self.folder / "checkpoints"
        self.wait(lambda: any(int(path.name) > above for path in names.glob("[0-9]*")))

    def actors(self):
        return actors_of(psutil.Process(self.process.pid))

    def end(self, number, group=False):
        """Send a signal; returns what was printed. None of the processes is left."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        (os.killpg if group else os.kill)(self.process.pid, number)
        out, errors = self.process.communicate(timeout=120)
        assert_gone(family)
        return out, errors


def left_in_shared_memory(before=frozenset(), patience_s=60.0):
    """Return files of shared memory that no process has mapped; learners that tests beside this one have killed leave
    theirs too, until the last of their processes has ended."""
    folder, limit = Path("/dev/shm"), time.monotonic() + patience_s
    while True:
        files = dict[str, str]()  # inode by name: a semaphore's maker has mapped it under another name
        for path in folder.glob("*"):
            with contextlib.suppress(OSError):
                if path.name.startswith(("pym-", "psm_", "sem.mp-")):
                    files[path.name] = str(path.stat().st_ino)
        mapped = set[str]()
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with contextlib.suppress(OSError):
                mapped |= {line.split()[4] for line in maps.read_text().splitlines() if "/dev/shm/" in line}
        names = {name for name, inode in files.items() if inode not in mapped}
        left = names - before
        if not left or time.monotonic() > limit:
            return left
        time.sleep(0.2)


@pytest.mark.nightly
def test_however_the_learner_ends_nothing_is_left_and_it_can_go_on(tmp_path):
    folder, others = tmp_path / "run", left_in_shared_memory(patience_s=0.0)
    changes = ("--steps=1000000", "--prioritized", "--inference=central")
    first = Started(folder, "cartpole", "--out", str(folder), *OPTIONS, *changes)
    first.wait_for_checkpoint()
    server, actor = first.actors()
    for process in (server, actor):
        process.suspend()  # runs nothing any more that could look after its learner
    first.end(signal.SIGKILL)
    assert not left_in_shared_memory(others)
    steps = int(checkpoints(folder)[-1].name)
    assert steps >= 1_000

    second = Started(folder, "--resume", str(folder))
    second.wait_for_checkpoint(above=steps)
    out, errors = second.end(signal.SIGINT, group=True)  # as a terminal does it: to all
    assert second.process.returncode == 130 and "interrupted by SIGINT" in out and not errors, out + errors
    assert f"from checkpoint {steps:012d}" in out.replace("\n", "") and "does not repeat exactly" in out
    last = json.loads((folder / "summary.json").read_text())
    assert int(checkpoints(folder)[-1].name) == last["steps"] > steps and last["actor_restarts"] == 0
    assert last["updates"] <= (last["steps"] - CARTPOLE.training.warmup_steps) // CARTPOLE.training.update_every
    with sw.Store.open(checkpoints(folder)[-1] / "replay") as store:
        assert store.lanes == CARTPOLE.env.num_envs and len(store) == last["steps"]

    third = Started(folder, "--resume", str(folder))
    third.wait(lambda: len(third.actors()) == 2)
    out, errors = third.end(signal.SIGTERM)  # before its actors have begun
    assert third.process.returncode == 143 and "interrupted by SIGTERM" in out and not errors, out + errors
    assert int(checkpoints(folder)[-1].name) == json.loads((folder / "summary.json").read_text())["steps"]
    assert not left_in_shared_memory(others)


def test_ape_x_is_what_the_paper_says():
    recipe = load_recipe("apex")
    replay, exploration = recipe.agent.replay, recipe.agent.exploration
    assert replay.prioritized and recipe.actors.count == 2 and replay.n_step == 3
    assert (exploration.start, exploration.end, exploration.ladder) == (0.4, 0.4, 7.0)
    assert (replay.priority_alpha, replay.beta_start, replay.beta_end) == (0.6, 0.4, 0.4)
    # Those that explore with .4, .16 and .064 lose to the end: with them no mean comes to stop_reward.
    assert exploration.scored(recipe.env.num_envs).tolist() == [False] * 3 + [True] * 5


def test_more_actors_than_environments_are_refused():
    with pytest.raises(ValueError, match="--actors: got 5, expected at most the 4 of --num-envs"):
        Recipe().override(actors=5, num_envs=4)


@pytest.mark.nightly
def test_an_agent_that_uses_windows_up_learns_with_actors_to_its_end():
    """It makes fewer updates than the steps call for: its actors may not wait for those."""
    recipe = load_recipe("cartpole").override(
        actors=1, num_envs=4, steps=4_000, warmup_steps=0, update_every=1, segment_steps=16, stop_reward=None,
        evaluate_every=0, device="cpu",
    )  # fmt: skip
    agent = PQN.Settings(network="mlp", hidden_units=8, replay=RolloutSettings(length=16, batch_size=4, epochs=2))
    trained = Trained(replace(recipe, agent=agent))
    assert trained.last["steps"] >= 4_000
    windows = sum(-(-episode["episode_steps"] // 16) for episode in trained.kept.episodes)
    assert 4_000 * 2 / 16 / 4 / 2 < trained.last["updates"] <= (windows + 4 * 16) * 2 / 4
    trained.close()
