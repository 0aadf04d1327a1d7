"""The ladder: measurements, what follows from them, and going on after an interrupt."""

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ladder
import numpy as np
import pytest
import training_runs as trainings
from rich.console import Console
from textbook import RUNGS, LazyFrames, ListBuffer, Rung, Transition, VectorLanes, chosen, make_lanes, tensors
from training_runs import begin

from sharpwave.bench.trainer import PARTS, Clock
from sharpwave.envs import AtariFrames, AtariSettings
from sharpwave.training.recipes import load_recipe
from tests.cli.conftest import ENVIRONMENT

pytestmark = pytest.mark.timeout(180)
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def split(clock):
    return {part: seconds for part, seconds in clock.split().items() if seconds}


def test_nested_parts_are_charged_once_and_all_add_up():
    times = iter([0.0, 1.0, 3.0, 7.0, 8.0, 10.0])
    clock = Clock(now=lambda: next(times))  # 0
    with clock.part("learning"), clock.part("sampling"):  # 1, and 3 to 7
        pass
    # learning until 8, and until 10 nothing with a name
    assert split(clock) == {"other": 1.0 + 2.0, "learning": 2.0 + 1.0, "sampling": 4.0}


def test_a_part_that_fails_is_charged_and_a_restart_forgets():
    times = iter([0.0, 1.0, 3.0, 4.0, 6.0, 7.0])
    kept = [0.0] * len(PARTS)
    clock = Clock(kept, now=lambda: next(times))
    with pytest.raises(ZeroDivisionError):
        clock.timed("environment", lambda: 1 / 0)()
    assert split(clock) == {"other": 1.0 + 1.0, "environment": 2.0}
    assert kept[PARTS.index("environment")] == 2.0  # what another process sees
    assert {part: calls for part, calls in clock.calls.items() if calls} == {"environment": 1}
    clock.restart()
    assert split(clock) == {"other": 1.0} and not any(clock.calls.values())


def episode(steps, number, avg, mean):
    event = {"steps": steps, "minutes": steps / 100, "episodes": number, "avg_reward": avg, "mean_reward": mean}
    return event


def test_the_bound_is_passed_when_it_is_reached_first():
    played = [
        episode(1000, 98, 16.9, 17.5),  # a mean of 98 episodes only
        episode(2000, 99, 17.0, 17.5),
        episode(3000, 100, 16.0, 16.99),
        episode(4000, 101, 18.0, 17.0),
    ]
    assert trainings.crossings(played) == {
        "alpha": {"frames": 2000, "minutes": 20.0},
        "mean100": {"frames": 4000, "minutes": 40.0},
    }


def test_a_run_that_never_got_there_counts_as_never():
    assert trainings.spread([3.0, None, 1.0]) == {"median": 3.0, "low": 1.0, "high": None}
    assert trainings.spread([3.0, None]) is None
    assert trainings.spread([]) is None


def one_slice(steps, seconds, learning, each):
    parts = dict.fromkeys(PARTS, 0.0) | {"learning": learning}
    return {
        "seed": 0, "round": 0, "steps": steps, "seconds": seconds, "updates": steps, "processes": {"learner": parts},
        "cpu_seconds": seconds, "memory_bytes": 7, "bytes_per_transition": each,
    }  # fmt: skip


def test_minutes_follow_from_published_frames_and_measured_speed():
    # The textbook's baseline: 159 steps/s for 105 minutes are 159 * 105 * 60 = 1,001,700 frames.
    slices = [one_slice(100, 10.0, 5.0, 100), one_slice(100, 5.0, 1.0, 100), one_slice(100, 2.0, 1.0, 100)]
    (row,) = ladder.rows_of({"slices": {"baseline": slices}, "finished": []})
    assert row["steps_per_second"] == {"median": 20.0, "low": 10.0, "high": 50.0}
    assert row["milliseconds"]["learner"]["learning"] == pytest.approx(10.0)
    assert row["frames"]["alpha"]["median"] == 1_001_700
    assert row["minutes"]["alpha"]["median"] == pytest.approx(834.75)  # 1,001,700 / 20 / 60
    assert row["frames"]["mean100"] is None and row["minutes"]["mean100"] is None and row["frames_from"] == "published"


def test_full_has_the_minutes_of_its_own_runs():
    common: dict[str, Any] = {"alpha": None, "curve": [], "changes": {}}
    finished = [
        {"seed": seed, "bytes_per_step": 100.0 + seed, "mean100": {"frames": frames, "minutes": minutes}, **common}
        for seed, frames, minutes in ((0, 400_000, 20.0), (1, 600_000, 25.0), (2, 500_000, 30.0))
    ]
    other = [{**finished[0], "changes": changes} for changes in ({"precision": "float32"}, {"n_step": 1})]
    slices = {name: [one_slice(1000, 1.0, 0.5, 999)] for name in ("full", "full-float32")}
    results = {"slices": slices, "finished": [*finished, *other]}
    row, wide = ladder.rows_of(results)
    assert wide["frames"]["mean100"] == {"median": 400_000, "low": 400_000, "high": 400_000}
    assert row["frames"]["mean100"] == {"median": 500_000, "low": 400_000, "high": 600_000}
    assert row["minutes"]["mean100"] == {"median": 25.0, "low": 20.0, "high": 30.0}
    assert row["minutes"]["alpha"] is None and row["frames_from"] == "runs"
    assert row["bytes_per_transition"] == 101.0  # of a memory that was filled
    row, _ = ladder.rows_of({"slices": results["slices"]})
    assert row["minutes"]["mean100"] is None and row["frames_from"] is None  # nothing is invented


def test_summaries_tell_the_last_episode_only(tmp_path):
    path = tmp_path / "pong.json"
    summary = {"recipe": "pong", "seed": 4, "steps": 5, "minutes": 6.0, "bytes_per_step": 7.0, "avg_reward": 17.5}
    reached, limit = "the mean of 100 episodes reached 17", "the limit of 5 steps"
    runs = {"4": {**summary, "reason": reached}, "5": {**summary, "reason": limit}}
    path.write_text(json.dumps({**runs, "6": {**summary, "reason": reached, "recipe": "cartpole"}}))
    first, second = trainings.finished_runs(path)
    assert first == {
        "seed": 4, "changes": {}, "bytes_per_step": 7.0, "alpha": None, "mean100": {"frames": 5, "minutes": 6.0},
        "curve": [],
    }  # fmt: skip
    assert second["mean100"] is None
    told = {**first, "alpha": {"frames": 4, "minutes": 5.0}, "curve": [[3, -20.0], [5, 17.0]]}
    path.write_text(json.dumps({"4": {**summary, "reason": reached, "finished": told}}))
    assert trainings.finished_runs(path) == [told]
    with pytest.raises(ValueError, match="holds no finished run of recipe pong-dqn"):
        trainings.finished_runs(tmp_path)
    path.write_text("{}}")
    with pytest.raises(ValueError, match="neither a folder of runs nor summaries"):
        trainings.finished_runs(path)


def test_the_plain_buffer_keeps_the_newest_and_counts_shared_frames_once():
    frames = [np.full((84, 84), i, np.uint8) for i in range(12)]
    buffer = ListBuffer(capacity=3)
    for i in range(7):
        state, next_state = LazyFrames(frames[i : i + 4]), LazyFrames(frames[i + 1 : i + 5])
        buffer.append(Transition(state, i, float(i), i == 5, next_state))
    drawn = tensors(buffer.sample(200, np.random.default_rng(0)))
    assert set(drawn.actions.tolist()) == {4, 5, 6} and len(buffer) == 3
    for at, number in enumerate(drawn.actions.tolist()):
        assert drawn.states[at, :, 0, 0].tolist() == [number, number + 1, number + 2, number + 3]
        assert drawn.next_states[at, :, 0, 0].tolist() == [number + 1, number + 2, number + 3, number + 4]
        assert drawn.rewards[at] == number and drawn.dones[at] == (number == 5)
    # frames 4 to 10 are there, each once; what is around them takes far less than one more
    assert 7 * 84 * 84 < buffer.nbytes() < 8 * 84 * 84


@pytest.mark.slow
def test_vector_lanes_give_what_the_emulator_stacks():
    lanes, env = VectorLanes(2), AtariFrames("pong", 2, AtariSettings())
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=3)
    assert np.array_equal([np.asarray(state) for state in lanes.reset(3)], obs)
    ends = 0
    while not ends:
        actions = rng.integers(0, lanes.num_actions, 2)
        obs, reward, terminated, truncated, infos = env.step(actions)
        for lane, outcome in enumerate(lanes.step(actions.tolist())):
            ended = terminated[lane] or truncated[lane]
            assert (outcome.done, outcome.reward) == (ended, reward[lane])
            assert np.array_equal(outcome.state, obs[lane])
            assert np.array_equal(outcome.next_state, infos["final_obs"][lane] if ended else obs[lane])
            ends += ended


@pytest.mark.parametrize(("kind", "stack"), [("gymnasium", 4), ("cheap", 2)])
def test_python_lanes_push_one_frame_a_step(kind, stack):
    lanes = make_lanes(kind, 2)
    before = [np.asarray(state) for state in lanes.reset(0)]
    assert all(state.shape == (stack, 84, 84) and (state == state[0]).all() for state in before)
    for _ in range(30):
        for lane, outcome in enumerate(lanes.step([2, 3])):
            assert outcome.next_state is outcome.state and not outcome.done
            assert np.array_equal(np.asarray(outcome.state)[:-1], before[lane][1:])
            before[lane] = np.asarray(outcome.state)
    assert not np.array_equal(before[0], before[1])  # other actions, another picture


def test_names_of_rungs():
    assert chosen("full, n-envs,full") == ["full", *(f"n-envs-{count}" for count in range(2, 7))]
    assert chosen("") == list(RUNGS)
    with pytest.raises(ValueError, match="--rungs: got 'baselin', expected some of baseline,slow-grads"):
        chosen("baselin")
    missing = Rung("", needs=("json", "no_such_module")).missing()
    assert missing == "no_such_module not installed: pip install '.[bench]'"


def test_a_rung_without_its_libraries_says_what_to_install(tmp_path):
    results = begin(tmp_path / "ladder.json", {"steps": 5, "warmup": 5, "threads": 1}, fresh=False)
    results["absent"] = {"sb3": "stable_baselines3 not installed: pip install 'sharpwave[bench]'"}
    console = Console(width=250, record=True, file=io.StringIO())
    ladder.tables(results, [], console)
    assert "pip install 'sharpwave[bench]'" in console.export_text()


def test_results_of_other_settings_are_not_gone_on_with(tmp_path):
    path = tmp_path / "ladder.json"
    path.write_text(json.dumps(begin(path, {"steps": 5}, fresh=False) | {"slices": {"full": []}}))
    assert begin(path, {"steps": 5}, fresh=False)["slices"] == {"full": []}
    with pytest.raises(ValueError, match=r"--steps: got 6, but .* was measured with 5; .* --fresh to start over"):
        begin(path, {"steps": 6}, fresh=False)
    assert "slices" not in begin(path, {"steps": 6}, fresh=True)
    path.write_text("[")
    with pytest.raises(ValueError, match="holds no results"):
        begin(path, {"steps": 5}, fresh=False)


@pytest.mark.nightly
def test_an_interrupted_ladder_goes_on(tmp_path, monkeypatch, capfd):
    arguments = ["--rungs", "full,parallel", "--rounds", "1", "--steps", "8", "--warmup", "64", "--threads", "1"]
    arguments += ["--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, str(BENCHMARKS / "ladder.py"), *arguments],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    path = tmp_path / "ladder.json"
    limit = time.monotonic() + 90
    while not path.exists():
        assert time.monotonic() < limit and process.poll() is None, "no slice came within 90 s"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode != 0 and "Traceback" not in text
    first = json.loads(path.read_text())["slices"]
    assert list(first) == ["full"] and not (tmp_path / "ladder.png").exists()

    monkeypatch.setattr("sys.argv", ["ladder.py", *arguments])
    ladder.main()
    text = capfd.readouterr().out
    results = json.loads(path.read_text())
    assert results["slices"]["full"] == first["full"]  # not measured again
    assert all(first["full"][0]["processes"]["learner"][part] > 0 for part in PARTS if part != "waiting")
    (one,) = results["slices"]["parallel"]
    assert one["steps"] == 8 and one["updates"] == 2 and one["stored"] >= 64
    for process_split in one["processes"].values():
        assert set(process_split) == set(PARTS)
    assert one["processes"]["learner"]["learning"] > 0 < one["processes"]["player"]["waiting"]
    assert sum(one["processes"]["learner"].values()) == pytest.approx(one["seconds"])
    (full,) = results["slices"]["full"]
    assert full["steps"] == 64 and full["updates"] == 64 // load_recipe("pong-dqn").training.update_every
    assert "parallel" in text and "~" in text and "extrapolated" in text
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_run_that_ended_is_left(tmp_path):
    folder, arguments = tmp_path / "run", ["cartpole", "--steps", "300"]
    assert trainings.train(folder, arguments) > 0
    assert trainings.ended(folder) and trainings.train(folder, arguments) == 0
    with pytest.raises(RuntimeError, match=r"no-such-recipe.*see .*other\.log"):
        trainings.train(tmp_path / "other", ["no-such-recipe"])
