"""Windows of steps beside peers: what contenders hand out is what was played, and what follows from measurements."""

import io
import mmap

import numpy as np
import pytest
import runner
import sequences
from rich.console import Console
from sequence_contenders import Ring, Sharpwave, play, recurrent_states

from sharpwave.bench import measured
from sharpwave.bench import played as recordings
from sharpwave.bench.measured import private_bytes

TIMES = 700


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Episodes of 260, 350 and 90 steps in every lane, a block that moves; the last one goes on."""
    folder = tmp_path_factory.mktemp("played")
    lanes = recordings.LANES
    obs = np.zeros((TIMES + 1, lanes, 84, 84), np.uint8)
    for t in range(TIMES + 1):
        for lane in range(lanes):
            obs[t, lane, t % 80 : t % 80 + 4, (lane + t // 80) % 80] = 1 + t % 251
    np.save(folder / "obs.npy", obs)
    terminated = np.zeros((TIMES, lanes), np.bool_)
    terminated[[259, 609]] = True
    final = np.full((2 * lanes, 84, 84), 255, np.uint8)
    recordings.write(folder, np.ones((TIMES, lanes)), terminated, np.zeros_like(terminated), final)
    return recordings.read(folder, None)


@pytest.mark.parametrize("make", [lambda: Sharpwave("auto"), Ring], ids=["Sharpwave", "Ring"])
@pytest.mark.parametrize("steps", [8 * TIMES, pytest.param(8 * 300, marks=pytest.mark.nightly)])
def test_contenders_hand_out_windows_of_what_was_played(recording, make, steps, monkeypatch):
    monkeypatch.setattr(measured, "MAX_WARM_TIMES", 300)
    bench = sequences.Bench(make, recording)
    filled = bench.fill(steps)
    assert filled["wrong"] == {"windows": 0, "frames": 0, "states": 0}
    whats = [("add", 0), ("uniform", 16)] + [("prioritized", 16)] * filled["prioritized"]
    for what, batch in whats:
        answer = bench.measure(what, batch, 0.01)
        assert answer["calls"] > 0 and answer["rows"] == (batch or recordings.LANES)
    bench.contender.close()


def test_memory_that_is_filled_counts_as_growth():
    """Of a fresh mapping: a process that ran other tests has room for a contender, and need not grow for it."""
    before = private_bytes()
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(b"x" * len(memory))
        assert private_bytes() - before > 48 << 20


def test_a_window_that_crosses_an_end_or_has_another_state_is_counted(recording, monkeypatch):
    bench = sequences.Bench(Ring, recording)
    bench.contender = ring = Ring()
    ring.build(recording, 8 * TIMES)
    bench._add_all(8 * TIMES)
    monkeypatch.setattr(ring, "_begins", lambda batch: ([0] * batch, [255] * batch))
    ring.state += 1
    assert bench._wrong() == {"windows": 1, "frames": 0, "states": 1}


def test_steps_tell_their_numbers_states_and_final_observations(recording):
    steps = list(play(recording, 259, 261))
    assert [step.number.tolist() for step in steps] == [list(range(2072, 2080)), list(range(2080, 2088))]
    assert np.array_equal(steps[0].state, recurrent_states()[2072:2080]) and np.all(steps[0].final_obs == 255)
    assert steps[0].terminated.all() and steps[1].final_obs is None


def rounds_of(calls, cpu_us=1000.0, rows=64):
    return [{"calls": calls, "rows": rows, "cpu_us": cpu_us}] * 3


def filled(nbytes, wrong=0.0):
    return {"steps": 100, "bytes": nbytes, "wrong": {"windows": wrong, "frames": 0, "states": 0}}


@pytest.fixture
def results():
    def contender(nbytes, calls, prioritized=None, wrong=0.0):
        rounds = {
            "add": rounds_of(9, rows=8),
            "uniform 64": rounds_of(calls),
            "uniform 16": rounds_of(4 * calls, rows=16),
        }
        if prioritized:
            rounds |= {"prioritized 64": rounds_of(prioritized), "prioritized 16": rounds_of(prioritized, rows=16)}
        return {"fill": filled(nbytes, wrong), "rounds": rounds}

    return {
        "environment": {"machine": "m", "date": "d", "load": [0.5, 2.0], "versions": {"numpy": "2"}},
        "settings": {"steps": 100, "rounds": 3, "seconds": 1.0, "burn_in": 40, "length": 80},
        "r2d2": {"steps": 1_000_000, "bytes": 220_000_000},
        "contenders": {
            "sharpwave auto": contender(22_000, 30, prioritized=15),
            "Flashbax": contender(1_200_000, 10, wrong=0.25),
            "Reverb": contender(190_000, 1),
        },
        "limit": {"64": [5000.0], "16": [6000.0]},
    }


def test_the_report_compares_with_the_fastest_peer_that_has_states(results, monkeypatch, tmp_path):
    assert sequences.fastest_peer(results, "uniform 64") == "Flashbax"
    assert sequences.ratio(results, "sharpwave auto", "Flashbax", "uniform 64", "uniform 64") == 3.0
    assert sequences.ratio(results, "sharpwave auto", "Flashbax", "prioritized 64", "uniform 64") == 1.5
    printed = io.StringIO()
    monkeypatch.setattr(runner, "console", lambda: Console(file=printed, width=150))
    sequences.show(results)
    sequences.figure(results, tmp_path / "drawn.png")
    text = printed.getvalue()
    assert "Flashbax: sampled what was not played so: 25.0% of windows" in text
    assert "1M steps: 220 MB, 220 a step: 1/55 of Flashbax, 1/9 of Reverb" in " ".join(text.split())
    assert (tmp_path / "drawn.png").stat().st_size > 1000
