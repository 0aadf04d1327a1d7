"""A blend among threads, forks and interrupts: nothing is held for ever, nothing drawn is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest

import sharpwave as sw
from tests.native.test_interrupts import interrupted
from tests.views.blends import append, blend_of, made, prioritized, right, transitions

ROUNDS = 40


def lost(kind: str, threads: int = 3) -> int:
    """Items that views of few uses gave out but no batch has, of threads that draw while one appends."""
    stores = made(0)
    views = transitions(stores, max_times_sampled=1)
    blend, given, ended = blend_of(views), Counter[int](), threading.Event()
    stream = blend.stream(4, lookahead=1, timeout=0.01)

    def draw() -> None:
        while not ended.is_set():
            try:
                batch = next(stream) if kind == "stream" else blend.sample(4, timeout=0.01)
                right(batch)
                found.append(batch.action.tolist())
            except (sw.EmptyError, TimeoutError):
                pass

    found: list[list[int]] = []
    drawing = [threading.Thread(target=draw) for _ in range(threads)]
    for thread in drawing:
        thread.start()
    for one in range(ROUNDS):
        for k, store in enumerate(stores):
            append(store, k * 100_000 + 10 * one, 10)
        time.sleep(0.002)
    while len(found) <= 20:  # of the 200 that there are: a busy machine may have let them begin late
        time.sleep(0.002)
    ended.set()
    for thread in drawing:
        thread.join()
    for numbers in found:
        given.update(numbers)
    assert max(given.values()) == 1
    ahead = sum(len(part.ids) for one in stream.drawn for part in one.parts.values())
    return sum(view.source.items.samples for view in views) - len(given) - ahead


@pytest.mark.parametrize("kind", ["sample", "stream"])
def test_what_threads_draw_is_in_a_batch(kind: str) -> None:
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        assert lost(kind) == 0
    finally:
        sys.setswitchinterval(switching)


FORKS = """
import os, threading
from sharpwave.persistence import lifetime
from tests.views.blends import append, blend_of, made, right, transitions

lifetime.FORK_WAIT_S = 3600.0                    # no fork gives up on a store
stores = made(400)
blend = blend_of(transitions(stores[::-1]))      # not in the order of making
stream, ended = blend.stream(16, lookahead=2), threading.Event()

def draw():
    while not ended.is_set():
        right(next(stream), first=1)
        right(blend.sample(16), first=1)

threads = [threading.Thread(target=draw) for _ in range(2)]
for thread in threads:
    thread.start()
for round in range(25):
    pid = os.fork()
    if pid == 0:
        try:
            right(blend.sample(16, timeout=5), first=1)
            for _ in range(5):
                right(next(stream), first=1)
            append(stores[0], 400, 5)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, round
ended.set()
for thread in threads:
    thread.join()
print("ok")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_forks_while_threads_draw_wait_for_no_one_and_their_children_go_on() -> None:
    run = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    assert run.stdout == "ok\n", run.stderr[-2000:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_while_a_thread_waits_for_steps_leaves_the_child_a_free_blend() -> None:
    stores = made(40)
    views = [stores[0].transitions(limiter=sw.MinSize(60)), stores[1].transitions()]
    blend = blend_of(views, (1, 1))
    stream = blend.stream(8, timeout=30)
    waiting = threading.Thread(target=lambda: next(stream))
    waiting.start()
    while not _waits(views):
        time.sleep(0.001)
    pid = os.fork()
    if pid == 0:
        try:
            assert not blend._source.waits()
            append(stores[0], 40, 40)
            for _ in range(3):
                right(next(stream))
                right(blend.sample(8, timeout=5))
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    append(stores[0], 40, 40)
    waiting.join(30)
    assert not waiting.is_alive() and status == 0


def _waits(views: list[Any]) -> int:
    return int(views[0].source.gate.waits["sample"])


@pytest.mark.parametrize("kind", ["sample", "stream"])
def test_an_interrupt_at_any_line_leaves_no_lock_taken_and_nothing_half_drawn(kind: str) -> None:
    stores = made(200)
    views = prioritized(stores, max_times_sampled=3)
    blend = blend_of(views)
    stream = blend.stream(4, lookahead=1)
    kept: list[BaseException] = []  # its frames would keep what they hold

    def call() -> None:
        try:
            right(next(stream) if kind == "stream" else blend.sample(4))
        except KeyboardInterrupt as error:
            kept.append(error)
            raise

    line, given = 1, 0
    while interrupted(call, line):
        line += 1
        free: list[bool] = []
        other = threading.Thread(target=lambda free=free: free.append(_free(blend, stream)))
        other.start()
        other.join()
        assert free == [True], f"line {line}"
        ahead = sum(len(one.choice.source) for one in stream.drawn)
        drawn = blend.samples
        assert drawn == sum(view.source.items.samples for view in views)
        assert drawn - ahead >= given
        given = drawn - ahead
        if len(views[0]) < 40 or len(views[1]) < 40:
            first = 100 * line  # of less than the second store's
            for k, store in enumerate(stores):
                append(store, k * 100_000 + first, 200)
    assert line > 50


def _free(blend: Any, stream: Any) -> bool:
    """Whether another thread gets the locks at once."""
    for lock in (stream._turn, blend._source._turn, *blend._source._locks):
        if not lock.acquire(timeout=0):
            return False
        lock.release()
    return True


def test_an_interrupt_ends_the_wait_for_another_thread_s_turn() -> None:
    stores = made(40)
    blend = blend_of([stores[0].transitions(limiter=sw.MinSize(60)), stores[1].transitions()], (1, 1))
    waiting = threading.Thread(target=lambda: blend.sample(8, timeout=20))
    waiting.start()
    while not _waits(blend.views):
        time.sleep(0.001)
    timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        blend.sample(8, timeout=60)
    assert waiting.is_alive()
    append(stores[0], 40, 40)
    waiting.join(30)
    assert not waiting.is_alive()
