"""Signals between any two lines of a call: what the store holds afterwards is what happened."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.native import interrupts
from sharpwave.native.interrupts import DEFERRED, HANDLERS, InterruptLock
from tests.support.examples import stride

SOURCE = str(Path(sw.__file__).parent)
SPEC = sw.Spec(obs=sw.Field((2,), "int32", stack=2), action=sw.Field((), "int64"))
LANES = 2


def interrupted(call: Callable[[], Any], line: int, number: int = signal.SIGINT) -> bool:
    """Call, with a signal at the so-manieth line of the package's. Whether there were as many."""
    lines, before = 0, sys.gettrace()

    def at_line(frame: Any, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines == line:
            sys.settrace(before)
            signal.raise_signal(number)
        return at_line if lines < line else None

    def at_call(frame: Any, event: str, arg: Any) -> Any:
        return at_line if frame.f_code.co_filename.startswith(SOURCE) and lines < line else None

    gc.disable()  # no finalizer of an earlier store's in between
    try:
        sys.settrace(at_call)
        call()
    except (KeyboardInterrupt, TimeoutError):
        pass
    finally:
        sys.settrace(before)
        gc.enable()
    return lines == line


class Player:
    """Writes steps whose numbers say what belongs together: [episode, time], action and reward of both."""

    def __init__(self, store: sw.Store) -> None:
        self.store, self.time, self.episode = store, 0, np.arange(LANES) * 1000

    def begin(self) -> None:
        for lane in range(LANES):
            self.store.break_episode(lane)
        self.time, self.episode = 0, self.episode + 1

    def step(self, ends: bool = False) -> None:
        now = self.episode * 100 + self.time
        obs = np.stack([self.episode, np.full(LANES, self.time)], 1).astype(np.int32)
        self.time += 1
        self.store.extend(
            obs=obs, action=now, reward=now.astype(np.float32), next_obs=obs + np.array([0, 1], np.int32),
            terminated=np.array([ends, False]), truncated=np.zeros(LANES, bool),
        )  # fmt: skip
        if ends:
            self.begin()


def check(view: sw.Transitions) -> set[int]:
    """Compare all that can be sampled with what its numbers say. Returns the actions."""
    batch = view.fetch(view.sampleable_ids())
    for obs, action, reward, after in zip(batch.obs, batch.action, batch.reward, batch.next_obs, strict=True):
        (before, was), (episode, time) = obs.tolist()
        (_, last_but_one), (other, last) = after.tolist()
        assert before == episode == other and was in (time - 1, time) and last_but_one in (last - 1, last)
        assert 1 <= last - time <= view.n_step and action == episode * 100 + time
        assert reward == sum(episode * 100 + t for t in range(time, last))
    return set(batch.action.tolist())


STATES = pytest.mark.parametrize(
    ("steps", "ends", "capacity"),
    [(5, False, 1000), (5, True, 1000), (8, False, 1000), (21, False, 16)],
    ids=["a step", "the end of an episode", "a full segment", "a full store"],
)


@contextlib.contextmanager
def handler(number: int, handle: Callable[[int, Any], None]) -> Iterator[None]:
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)


def extend_and_check(steps: int, ends: bool, capacity: int, line: int, number: int) -> bool:
    """Send a signal at the so-manieth line of an extend, and check what the store holds. Whether there were as many."""
    store = sw.Store(SPEC, capacity=capacity, segment_steps=4)
    view, player = store.transitions(n_step=2, gamma=1.0), Player(store)
    for _ in range(steps):
        player.step()
    there = interrupted(lambda: player.step(ends), line, number)
    player.begin()
    after = player.episode[0]
    for _ in range(6):
        player.step()
    player.begin()
    for one in (view, store.transitions(n_step=2, gamma=1.0, name="another")):
        found = check(one)
        assert capacity < 1000 or {after * 100 + t for t in range(6)} <= found, line
        assert len(one) == len(found) == len(store), line
    return there


@STATES
def test_an_interrupted_extend_leaves_no_half_step(steps: int, ends: bool, capacity: int) -> None:
    line = 1
    while extend_and_check(steps, ends, capacity, line, signal.SIGINT):
        line += 1


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="timers by signal")
@STATES
def test_a_timer_that_raises_leaves_no_half_step(steps: int, ends: bool, capacity: int) -> None:
    def too_late(number: int, frame: Any) -> None:
        raise TimeoutError

    line = 1
    with handler(signal.SIGALRM, too_late):
        while extend_and_check(steps, ends, capacity, line, signal.SIGALRM):
            line += 1


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="timers by signal")
@pytest.mark.parametrize("name", ["SIGALRM", "SIGUSR1"])
@STATES
def test_a_handler_that_appends_leaves_no_half_step(steps: int, ends: bool, capacity: int, name: str) -> None:
    """Steps of a lane of its own, enough of them to seal a segment amid the call's."""
    line, there = 0, True
    while there:
        line += 1
        store = sw.Store(SPEC, capacity=capacity, segment_steps=4)
        view, player, appended = store.transitions(n_step=2, gamma=1.0), Player(store), list[int]()

        def append(number: int, frame: Any, store: sw.Store = store, appended: list[int] = appended) -> None:
            for at in range(5):
                now = 900_000 + at
                obs = np.array([9000, at], np.int32)
                store.append(
                    lane=LANES, obs=obs, action=now, reward=now, terminated=False, truncated=at == 4,
                    next_obs=obs + np.array([0, 1], np.int32),
                )  # fmt: skip
                appended.append(now)

        for _ in range(steps):
            player.step()
        with handler(getattr(signal, name), append):
            there = interrupted(lambda player=player: player.step(ends), line, getattr(signal, name))  # type: ignore[misc]
        player.begin()
        for one in (view, store.transitions(n_step=2, gamma=1.0, name="another")):
            found = check(one)
            assert there == bool(appended) and (capacity < 1000 or set(appended) <= found), line
            assert len(one) == len(found) == len(store), line
            assert capacity < 1000 or len(found) == LANES * (steps + 1) + len(appended), line


HANGS = """
import signal, time
from sharpwave.native import interrupts

assert interrupts.DEFERRED[signal.SIGALRM] > 5
interrupts.DEFERRED[signal.SIGALRM] = 0.5

def show(number, frame):
    print("late" if time.monotonic() - began > 0.55 else "at once", frame.f_code.co_name)
    raise TimeoutError

def hang():
    while True:
        time.sleep(60)

signal.signal(signal.SIGALRM, show)
try:
    with interrupts.InterruptLock():
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.1)  # not before it is held: a busy machine may let no line run for long
        hang()
except TimeoutError:
    pass
assert signal.getsignal(signal.SIGALRM) is show and signal.getitimer(signal.ITIMER_REAL) == (0, 0)
began = time.monotonic()
try:
    with interrupts.InterruptLock():
        signal.raise_signal(signal.SIGALRM)
        assert signal.getitimer(signal.ITIMER_REAL)[0]
        print("whole")
except TimeoutError:
    pass
assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
with interrupts.InterruptLock():
    time.sleep(0.8)  # where the second signal would arrive
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers by signal")
def test_a_timer_shows_where_a_change_hangs_and_comes_once_otherwise() -> None:
    """In a process of its own: pytest's time limit is a timer of this one's."""
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["late hang", "whole", "at once _pass_on"]


def test_an_interrupted_sample_leaves_every_step_to_be_sampled() -> None:
    line, there = 0, True
    while there:
        line += stride(1)
        store = sw.Store(SPEC, capacity=1000, segment_steps=4)
        view = store.transitions(sampler=sw.Prioritized(), max_times_sampled=50)
        player = Player(store)
        for _ in range(6):
            player.step()
        there = interrupted(lambda view=view: view.sample(4), line)  # type: ignore[misc]
        player.begin()
        assert check(view) == {e * 100 + t for e in (0, 1000) for t in range(6)}
        drawn = {int(a) for _ in range(30) for a in view.sample(16).action}
        assert len(drawn) == len(view) == 12, line


class Counting:
    """[episode, time]; knows which action was taken when."""

    def __init__(self) -> None:
        self.episode = self.time = 0
        self.taken: dict[int, int] = {}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.episode, self.time = self.episode + 1, 0
        return np.array([self.episode, 0], np.int32), {}

    def step(self, action: int) -> Any:
        now = self.episode * 100 + self.time
        self.time += 1
        return np.array([self.episode, self.time], np.int32), float(now), False, False, {}


def test_an_interrupted_recorder_joins_nothing() -> None:
    line, there = 0, True
    while there:
        line += 1
        env, store = Counting(), sw.Store(SPEC, capacity=1000, segment_steps=4)
        recorder = sw.Recorder(env, store)
        recorder.reset()
        for _ in range(3):
            recorder.step(env.episode * 100 + env.time)
        there = interrupted(lambda: recorder.step(env.episode * 100 + env.time), line)  # noqa: B023
        for _ in range(4):  # the cell is run again
            try:
                recorder.step(env.episode * 100 + env.time)
            except ValueError as error:
                assert "call reset() first" in str(error)
                recorder.reset()
        recorder.reset()
        assert len(check(store.transitions(n_step=2, gamma=1.0))) >= 6, line


def test_who_waits_for_a_limiter_can_be_interrupted() -> None:
    store = sw.Store(SPEC, capacity=1000)
    queue = store.transitions(sampler=sw.Fifo(), max_times_sampled=1, limiter=sw.Queue(4))
    player = Player(store)
    for _ in range(3):
        player.step()
    assert len(queue) == 4
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        player.step()
    timer.join()
    other = threading.Thread(target=lambda: queue.sample(2))  # and the lock is free
    other.start()
    other.join(30)
    assert not other.is_alive()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, came = InterruptLock(), []
    with pytest.raises(KeyboardInterrupt):
        with lock:
            with lock:
                signal.raise_signal(signal.SIGINT)
            came.append("inner")
        came.append("never")
    assert came == ["inner"]
    with pytest.raises(KeyboardInterrupt), lock:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # pressed twice
        came.append("whole")
    assert came == ["inner", "whole"]
    monkeypatch.setitem(DEFERRED, signal.SIGINT, 0.2)
    with lock:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.2)
        with pytest.raises(KeyboardInterrupt):  # at once
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_that_arrive_together_leave_none_for_a_later_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(number: int, frame: Any) -> None:
        came.append("SIGTERM")
        raise SystemExit(1)

    lock, came = InterruptLock(), list[str]()
    previous = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(SystemExit) as caught, lock:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        assert came == ["SIGTERM"]
        assert isinstance(caught.value.__context__, KeyboardInterrupt)
        with lock:
            pass
        monkeypatch.setitem(DEFERRED, signal.SIGINT, 0.2)
        time.sleep(0.2)
        with pytest.raises(KeyboardInterrupt), lock:
            signal.raise_signal(signal.SIGINT)  # the first one: not at once
            came.append("whole")
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert came == ["SIGTERM", "whole"]


def test_an_interrupt_at_any_line_of_the_end_of_a_change_leaves_no_signal_for_a_later_one() -> None:
    """Handlers are set one after the other: the first that is may raise before the others are."""
    terminated: list[int] = []
    lost, reached = 0, 0
    previous = signal.signal(signal.SIGTERM, lambda number, frame: terminated.append(number))
    try:
        for line in range(1, 80):
            before, lines = len(terminated), 0

            def interrupt(frame: Any, event: str, argument: Any, line: int = line) -> Any:
                nonlocal lines, reached
                if frame.f_code.co_filename != interrupts.__file__:
                    return None
                if event == "line" and not HANDLERS._depth:
                    lines += 1
                    if lines == line:
                        reached += 1
                        signal.raise_signal(signal.SIGINT)
                return interrupt

            try:
                with InterruptLock():
                    signal.raise_signal(signal.SIGTERM)
                    sys.settrace(interrupt)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            with InterruptLock():  # a later change
                pass
            assert not HANDLERS._came and not HANDLERS._depth, line
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, line
            assert len(terminated) - before <= 1, line
            lost += len(terminated) == before
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert reached > 15
    assert lost <= 1, "at the entry of the other's handler, as in Python itself"


def test_a_handler_that_uses_a_store_at_any_line_of_the_end_of_a_change_runs_each_handler_once() -> None:
    """Its own change ends by running the handlers that wait, while the outer one is about to."""
    came: list[int] = []
    reached = 0

    def use(number: int, frame: Any) -> None:
        came.append(number)
        with InterruptLock():
            pass

    with handler(signal.SIGUSR1, use), handler(signal.SIGUSR2, use):
        for line in range(1, 80):
            came.clear()
            lines = 0

            def interrupt(frame: Any, event: str, argument: Any, line: int = line) -> Any:
                nonlocal lines, reached
                if frame.f_code.co_filename != interrupts.__file__:
                    return None
                if event == "line" and not HANDLERS._depth:
                    lines += 1
                    if lines == line:
                        reached += 1
                        sys.settrace(None)
                        signal.raise_signal(signal.SIGUSR2)
                return interrupt

            try:
                with InterruptLock():
                    signal.raise_signal(signal.SIGUSR1)
                    sys.settrace(interrupt)
            finally:
                sys.settrace(None)
            arrived = [signal.SIGUSR1, signal.SIGUSR2] if lines >= line else [signal.SIGUSR1]
            assert sorted(came) == arrived, line
            assert not HANDLERS._came and not HANDLERS._depth, line
    assert reached > 15
