"""Segments encoded behind the caller: the same as when they are encoded at once, whenever one looks."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.codecs import zstd
from sharpwave.log import behind, column_encoder
from sharpwave.log.column_encoder import ColumnEncoder
from tests.support.examples import examples

SPEC = sw.Spec(obs=sw.Field((48, 48), "uint8", codec="zstd", stack=2), action=sw.Field((), "int64"))
SEGMENT_STEPS = 32


def store(behind_caller: bool = True, **settings: Any) -> sw.Store:
    """Return a store, whose segments are encoded behind the caller or, as with a disk, at once."""
    made = sw.Store(SPEC, **{"capacity": 400, "segment_steps": SEGMENT_STEPS, "seed": 3} | settings)
    if not behind_caller:
        made._log.sealing.behind = None
        made._log.inventory.listeners = made._log.inventory.listeners[1:]
    return made


def pending(made: sw.Store) -> int:
    assert made._log.sealing.behind is not None
    return len(made._log.sealing.behind.pending)


def frames(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.integers(0, 3, (count, 48, 48)), axis=0).astype(np.uint8)


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold the thread up, as on a machine that has no time for it, until the event is set."""
    event = threading.Event()
    advance = behind.Works.advance

    def late(works: behind.Works) -> None:
        if threading.current_thread().name == "sharpwave-encoding":
            event.wait(30)
        advance(works)

    monkeypatch.setattr(behind.Works, "advance", late)
    yield event
    event.set()


def fill(made: sw.Store, count: int, lanes: int = 1, seed: int = 0) -> None:
    for step, frame in enumerate(frames(count, seed)):
        obs = np.stack([frame + np.uint8(lane) for lane in range(lanes)])
        no, numbers = np.zeros(lanes, np.bool_), np.full(lanes, step)
        end, reward, final = no | (step % 21 == 20), numbers.astype(np.float32), obs + np.uint8(9)
        made.extend(obs=obs, action=numbers, reward=reward, terminated=end, truncated=no, final_obs=final)


def test_the_caller_goes_on_and_batches_hold_what_is_being_encoded(held_up: threading.Event) -> None:
    made, other = store(), store(False)
    one, two = made.transitions(seed=1), other.transitions(seed=1)
    fill(made, SEGMENT_STEPS + 5)
    fill(other, SEGMENT_STEPS + 5)
    assert pending(made) == 1
    for _ in range(5):
        assert_same(one.sample(16), two.sample(16))
    assert pending(made) == 1, "a batch waits for nothing"
    held_up.set()
    assert made.stats()["segments"] == other.stats()["segments"] and pending(made) == 0
    assert_same(one.sample(16), two.sample(16))


def assert_same(one: Any, two: Any) -> None:
    for name in ("obs", "next_obs", "action", "reward", "discount", "ids", "weights"):
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def segments(made: sw.Store) -> dict[int, bytes]:
    log = made._log
    log.sealing.settle()
    slots = np.flatnonzero(log.index.sealed[: log.index.highest] & (log.index.rows[: log.index.highest] > 0))
    return {log.sealed.packed(slot)[0]: log.sealed.packed(slot)[1] for slot in slots.tolist()}


@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 12))])
def test_any_calls_give_the_same_as_without(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lanes = int(rng.integers(1, 5))
    capacity, codec = int(rng.choice([2 * lanes + 2, 150, 400])), str(rng.choice(["zstd", "auto"]))
    spec = sw.Spec(obs=sw.Field((48, 48), "uint8", stack=2), action=sw.Field((), "int64"))
    both = []
    for behind_caller in (True, False):
        made = sw.Store(spec, capacity=capacity, codec=codec, segment_steps=32, seed=3)
        if not behind_caller:
            made._log.sealing.behind = None
            made._log.inventory.listeners = made._log.inventory.listeners[1:]
        view = made.transitions(sampler=sw.Prioritized(), n_step=2, seed=5)
        both.append((made, view))
    films = frames(60, seed)
    for turn in range(examples(250, most=250)):
        what = rng.integers(0, 12)
        steps, at, arguments = int(rng.integers(1, 5)), int(rng.integers(0, 50)), rng.integers(0, 99, 8)
        lane = int(arguments[0]) % lanes
        results: list[Any] = []
        for k, (made, view) in enumerate(both):
            if what < 7:
                for t in range(at, at + steps):
                    obs = np.stack([films[t] + np.uint8(n) for n in range(lanes)])
                    ended = np.full(lanes, arguments[1] == t)
                    numbers, following = np.full(lanes, t), obs if arguments[2] < 20 else None
                    step: dict[str, Any] = {"obs": obs, "action": numbers, "reward": numbers.astype(np.float32)}
                    results.append(made.extend(**step, next_obs=following, terminated=ended, truncated=ended & False))
            elif what == 7 and len(view):
                batch = view.sample(8)
                view.update_priorities(batch, arguments)
                results += [batch.obs, batch.next_obs, batch.ids, batch.weights]
            elif what == 8 and made.lanes:
                made.break_episode(lane)
                results += [np.array(len(made)), np.array(len(view))]
            elif what == 9:
                stats = made.stats()
                results += [np.array([stats["steps"], stats["segments"], stats["evicted_segments"]])]
            elif what == 10 and arguments[3] < 10:
                made.checkpoint(tmp_path / f"{turn}-{k}")
                again = sw.Store.open(tmp_path / f"{turn}-{k}")
                results += [np.array(len(again)), np.array(sorted(segments(again)))]
            elif what == 11 and arguments[3] < 20:
                made.resize(capacity=capacity + int(arguments[4]))
        half = len(results) // 2
        for mine, theirs in zip(results[:half], results[half:], strict=True):
            np.testing.assert_array_equal(mine, theirs)
    (made, _), (other, _) = both
    assert segments(made) == segments(other)


@pytest.mark.parametrize("codec", ["auto", pytest.param("zstd", marks=pytest.mark.nightly)])
def test_lanes_that_are_full_together_are_encoded_alike_whether_the_thread_is_fast_or_not(
    monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    trials, choose = 0, ColumnEncoder._trial

    def counted(*args: Any) -> Any:
        nonlocal trials
        trials += 1
        return choose(*args)

    def made(behind_caller: bool) -> tuple[dict[int, bytes], list[int]]:
        spec = sw.Spec(obs=sw.Field((48, 48), "uint8"), action=sw.Field((), "int64"))
        one = sw.Store(spec, capacity=10_000, codec=codec, segment_steps=32, seed=3)
        if not behind_caller:
            one._log.sealing.behind = None
        one._log.opened.staggered = False
        rng, found = np.random.default_rng(0), []
        no, zeros = np.zeros(24, np.bool_), np.zeros(24, np.float32)
        for step, frame in enumerate(frames(200)):
            obs = np.stack([frame] * 24)
            obs[::2] = rng.integers(0, 256, (12, 48, 48)) if step > 64 else obs[::2]
            before = trials
            one.extend(obs=obs, action=no.astype(np.int64), reward=zeros, terminated=no, truncated=no)
            found.append(trials - before)
        return segments(one), found

    monkeypatch.setattr(ColumnEncoder, "_trial", counted)
    at_once, spent = made(False)
    assert max(spent) == 2 or codec == "zstd"  # whose small columns are tried, too
    assert made(True)[0] == at_once

    for seed in range(3):
        advance, rng = behind.Works.advance, np.random.default_rng(seed)

        def late(works: behind.Works, advance: Any = advance, rng: Any = rng) -> None:
            if threading.current_thread().name == "sharpwave-encoding":
                time.sleep(rng.exponential(0.003))
            advance(works)

        with monkeypatch.context() as slow:
            slow.setattr(behind.Works, "advance", late)
            assert made(True)[0] == at_once


def test_a_segment_writers_trials_are_for_later_segments_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run, made = column_encoder.Trial.run, list[column_encoder.Trial]()

    def noted(trial: column_encoder.Trial) -> None:
        made.append(trial)
        run(trial)

    monkeypatch.setattr(column_encoder.Trial, "run", noted)
    spec = sw.Spec(obs=sw.Field((40, 50), "float32"), action=sw.Field((), "int64"))
    writer, rng, no = sw.SegmentWriter(spec, 1, lambda one: None, segment_steps=16), np.random.default_rng(0), [False]
    for _ in range(200):
        noise = rng.standard_normal((1, 40, 50)).astype(np.float32)
        writer.extend(obs=noise, action=[0], reward=[0.0], terminated=no, truncated=no)
    assert made and all(trial.found for trial in made)


@pytest.mark.parametrize("lanes", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_trials_for_later_segments_decide_the_same_however_fast_the_thread_is(
    held_up: threading.Event, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    """Noise, and later what compresses: the caller makes the trials that the thread has not made when they count."""
    spec = sw.Spec(obs=sw.Field((40, 50), "float32"), action=sw.Field((3,), "float32"))
    run, makers = column_encoder.Trial.run, list[str]()

    def made(trial: column_encoder.Trial) -> None:
        makers.append(threading.current_thread().name)
        run(trial)

    def filled(limited: bool) -> tuple[dict[int, bytes], list[str]]:
        makers.clear()
        one, rng = sw.Store(spec, capacity=100_000, segment_steps=16, seed=3), np.random.default_rng(0)
        no, zeros = np.zeros(lanes, np.bool_), np.zeros((lanes, 3), np.float32)
        for step in range(1300):
            obs = rng.standard_normal((lanes, 40, 50)).astype(np.float32) * np.float32(step < 500)
            one.extend(obs=obs, action=zeros, reward=zeros[:, 0], terminated=no, truncated=no)
            if limited and step == 400:
                one.resize(ram=1 << 30)
        return segments(one), list(makers)

    monkeypatch.setattr(column_encoder.Trial, "run", made)
    late, by = filled(False)
    assert by and set(by) == {"MainThread"} and len(late[0]) > 16 * 8000 / 2
    assert min(map(len, late.values())) < 16 * 8000 / 4
    makers_late = by
    held_up.set()
    time.sleep(0.1)
    for _ in range(20):  # on a busy machine the caller may be first each time
        early, by = filled(False)
        assert early == late and len(by) == len(makers_late)
        if behind.NAME in by:
            break
    assert behind.NAME in by
    one, _ = filled(True)
    assert one.keys() == late.keys()


def test_without_a_thread_segments_are_encoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(behind.THREAD, "_started", False)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    made, other = store(), store(False)
    fill(made, 100)
    fill(other, 100)
    assert not pending(made) and segments(made) == segments(other)


def test_an_error_is_the_next_calls_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    made, failures = store(), 2
    encode = zstd._ZstdEncoder.encode

    def failing(self: Any, rows: Any, dictionary: bytes) -> bytes | None:
        nonlocal failures
        if failures:
            failures -= 1
            raise MemoryError("no room")
        return encode(self, rows, dictionary)

    monkeypatch.setattr(zstd._ZstdEncoder, "encode", failing)
    fill(made, SEGMENT_STEPS + 1)
    for _ in range(2):  # the thread's, and that of the call that tries again
        with pytest.raises(MemoryError, match="no room"):
            made.stats()
    assert len(made) == SEGMENT_STEPS + 1 and len(segments(made)) == 1
    monkeypatch.undo()
    other = store(False)
    fill(other, SEGMENT_STEPS + 1)
    assert segments(made).keys() == segments(other).keys()
    assert_same(made.transitions(seed=1).sample(32), other.transitions(seed=1).sample(32))


def test_memory_for_further_segments_is_let_go_where_bytes_are_limited() -> None:
    made, other = store(capacity=4000), store(False, capacity=4000)
    for one in (made, other):
        one._log.opened.staggered = False
        fill(one, 4 * SEGMENT_STEPS, lanes=4)
        one.resize(ram=6 << 20)
    assert made._log.space.staged == other._log.space.staged == 4
    assert len(made) == len(other)
    made.resize(ram=None)
    fill(made, 4 * SEGMENT_STEPS, lanes=4)
    assert made._log.space.staged > 4


@pytest.mark.parametrize("call", ["add", "put"])
def test_without_memory_to_hand_a_segment_over_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    made, other = store(), store(False)
    for one in (made, other):
        fill(one, SEGMENT_STEPS)

    def refuse(*args: Any) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as full:
        if call == "add":
            full.setattr(behind.Works, "add", refuse)
            with pytest.raises(MemoryError, match="no room"):
                fill(made, 1)
        else:
            full.setattr(behind.THREAD, "_waiting", type("Full", (), {"put": refuse}))
            full.setattr(behind.THREAD, "_started", True)
            fill(made, 1)
    fill(made, SEGMENT_STEPS + (call == "add"), seed=1)
    fill(other, 1 - (call == "add"))
    fill(other, SEGMENT_STEPS + (call == "add"), seed=1)
    assert list(segments(made).values()) == list(segments(other).values()) and len(made) == len(other)
    mine, others = (each.transitions(seed=1).sample(32) for each in (made, other))
    np.testing.assert_array_equal(mine.obs, others.obs)
    np.testing.assert_array_equal(mine.action, others.action)


def test_a_segment_is_not_encoded_anew_beside_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, busy, together, failures = zstd._ZstdEncoder.encode, 0, list[int](), 0

    def slowly(self: Any, rows: Any, dictionary: bytes) -> bytes | None:
        nonlocal busy, failures
        if failures:
            failures -= 1
            raise MemoryError("no room")
        busy += 1
        together.append(busy)
        time.sleep(0.02)
        busy -= 1
        return encode(self, rows, dictionary)

    monkeypatch.setattr(zstd._ZstdEncoder, "encode", slowly)
    made = store()
    made._log.opened.staggered = False
    fill(made, SEGMENT_STEPS + 1, lanes=3)
    made.stats()
    failures = 1
    fill(made, SEGMENT_STEPS, lanes=3, seed=1)
    with pytest.raises(MemoryError, match="no room"):
        made.stats()
    assert len(segments(made)) == 6 and set(together) == {1}


def test_a_store_is_closed_though_a_segment_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(zstd._ZstdEncoder, "encode", refuse)
    with store() as made:
        fill(made, SEGMENT_STEPS + 1)
        assert pending(made)
    with pytest.raises(ValueError, match="closed"):
        fill(made, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_parent_and_child_go_on_with_what_was_being_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, began = zstd._ZstdEncoder.encode, threading.Event()

    def slowly(self: Any, rows: Any, dictionary: bytes) -> bytes | None:
        began.set()
        time.sleep(0.05)
        return encode(self, rows, dictionary)

    monkeypatch.setattr(zstd._ZstdEncoder, "encode", slowly)
    made = store()
    fill(made, SEGMENT_STEPS + 1)
    assert began.wait(30) and pending(made)
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            fill(made, 3 * SEGMENT_STEPS, seed=1)
            os._exit(len(segments(made)))
        finally:
            os._exit(99)
    fill(made, 3 * SEGMENT_STEPS, seed=1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(segments(made)) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_has_a_collector_though_the_thread_had_stopped_it(held_up: threading.Event) -> None:
    made = store()
    fill(made, SEGMENT_STEPS + 1)
    while gc.get_threshold()[0]:
        time.sleep(0.001)
    made.stats()
    child = os.fork()
    if not child:
        os._exit(not gc.get_threshold()[0])
    held_up.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    while not gc.get_threshold()[0]:
        time.sleep(0.001)


def test_a_finalizer_that_wants_the_store_stops_nobody() -> None:
    """The collector runs it in any thread that allocates; the store's lock is held by whoever waits for that one."""
    program = """
import gc, threading, time, numpy as np, sharpwave as sw
from sharpwave.codecs import zstd
gc.set_threshold(30_000)
gc.disable()
store = sw.Store(sw.Spec(obs=sw.Field((48, 48), 'uint8', codec='zstd'), action=sw.Field((), 'int64')), capacity=1000,
                 segment_steps=32)
class Left:
    def __init__(self): self.myself = self
    def __del__(self): print(store.stats()['steps'])
encode, began = zstd._ZstdEncoder.encode, []
def busy(self, rows, dictionary):
    if threading.current_thread().name == 'sharpwave-encoding':
        began.append(True)
        time.sleep(0.2)
        kept = [[] for _ in range(50_000)]
    return encode(self, rows, dictionary)
zstd._ZstdEncoder.encode = busy
gc.collect()
Left()
frame = np.zeros((48, 48), np.uint8)
for step in range(33):
    store.append(obs=frame, action=1, reward=0.0, terminated=False, truncated=False)
assert store._log.sealing.behind.pending
while not began: time.sleep(0.01)
gc.enable()
store.stats()
while not gc.get_threshold()[0]: time.sleep(0.001)
assert gc.get_threshold()[0] == 30_000
gc.collect()
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0 and ran.stdout == "33\n" and not ran.stderr, ran.stderr


def test_a_process_ends_though_a_segment_is_being_encoded() -> None:
    program = (
        "import numpy as np, sharpwave as sw\n"
        "store = sw.Store(sw.Spec(obs=sw.Field((64, 64, 3), 'uint8', codec='predict'), action=sw.Field((), 'int64')),"
        " capacity=1000)\n"
        "frames = np.random.default_rng(0).integers(0, 9, (70, 64, 64, 3)).astype(np.uint8)\n"
        "for frame in frames: store.append(obs=frame, action=1, reward=0.0, terminated=False, truncated=False)\n"
        "assert store._log.sealing.behind.pending\n"
    )
    for _ in range(3):
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0 and not ran.stderr, ran.stderr


def test_threads_append_sample_and_look_at_once() -> None:
    made, stop = store(capacity=2000), threading.Event()
    view, films = made.transitions(seed=0), np.stack([frames(64, lane) for lane in range(3)])
    errors: list[BaseException] = []

    def appends(lane: int) -> None:
        for step in range(400):
            frame = films[lane, step % 64]
            made.append(lane=lane, obs=frame, action=step, reward=float(lane), terminated=False, truncated=False)

    def samples() -> None:
        while not stop.is_set():
            if len(view) > 64:
                batch = view.sample(32)
                lanes, steps = batch.reward.astype(int), batch.action
                np.testing.assert_array_equal(batch.obs[:, -1], films[lanes, steps % 64])
                np.testing.assert_array_equal(batch.next_obs[:, -1], films[lanes, (steps + 1) % 64])

    def looks() -> None:
        while not stop.is_set():
            made.stats()
            time.sleep(0.001)

    def caught(work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=caught, args=(appends, lane)) for lane in range(3)]
    readers = [threading.Thread(target=caught, args=(work,)) for work in (samples, samples, looks)]
    for thread in (*writers, *readers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert not errors and len(made) == 1200
