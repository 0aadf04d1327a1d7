"""What is shown and kept of a run, from plain dicts."""

import io
import json
import re
from typing import Any

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sharpwave.showing import byte_text, duration_text, number_text
from sharpwave.training.logs import Display, JsonLines, TensorBoard

EPISODE = {
    "steps": 40,
    "minutes": 0.1, "reward": 7.0, "episode_steps": 33, "avg_reward": 5.0, "mean_reward": 6.0, "episodes": 2,
}  # fmt: skip
REPORT: dict[str, Any] = {
    "steps": 1_000, "minutes": 0.5, "episodes": 2, "updates": 10, "mean_reward": 6.0, "avg_reward": 5.0, "loss": 0.25,
    "avg_loss": 0.5, "epsilon": 0.75, "avg_fps": 1234.0, "seconds_left": 3_725.0, "replay_steps": 900,
    "replay_bytes": 90_000, "bytes_per_step": 100.0, "fixed_bytes": 45_000,
    "encoded_bytes_per_step": 50.0, "process_bytes": 2**30, "held_out": {"mean": 18.5},
}  # fmt: skip

EVALUATION = {
    "steps": 1_000,
    "minutes": 0.5,
    "scores": [18.0, 19.0],
    "mean": 18.5,
    "min": 18.0,
    "lost": 0,
    "best": True,
}


def test_tensorboard_has_the_names_that_people_look_for(tmp_path):
    callback = TensorBoard(tmp_path)
    callback.on_episode(EPISODE)
    callback.on_report(REPORT)
    callback.on_evaluation(EVALUATION)
    callback.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Scalars("held_out/mean")[0].value == 18.5 and events.Scalars("held_out/min")[0].step == 1_000
    names = set(events.Tags()["scalars"])
    assert {"reward", "avg_reward", "steps", "loss", "avg_loss", "epsilon", "avg_fps"} <= names
    assert events.Scalars("steps")[0].value == 33  # the episode's length
    assert events.Scalars("avg_fps")[0].step == 1_000
    assert events.Scalars("memory/bytes_per_step")[0].value == 100


def test_runs_with_actors_show_more(tmp_path):
    actors = {"stale_versions": 0.5, "stale_steps": 321.0, "replay_ratio": 16.0, "actor_restarts": 2}
    out, callback = io.StringIO(), TensorBoard(tmp_path)
    for report in (REPORT, {**REPORT, **actors}):
        display = Display(Console(file=out, width=400), "title", 5_000, None)
        display.on_report(report)
        callback.on_report({**report, "steps": report["steps"] + len(report)})
    callback.close()
    without, line = out.getvalue().splitlines()
    assert line.startswith(without)
    assert line.endswith("weights behind 0.5 versions, 321 steps  samples a step 16.00  actor restarts 2")
    events = EventAccumulator(str(tmp_path)).Reload()
    for name, value in actors.items():
        name = {"actor_restarts": "restarts"}.get(name, name)
        assert [event.value for event in events.Scalars(f"actors/{name}")] == [value]


def test_json_lines(tmp_path):
    callback = JsonLines(tmp_path / "metrics.jsonl")
    callback.on_episode(EPISODE)
    callback.on_report(REPORT)
    callback.on_evaluation(EVALUATION)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]  # before close
    callback.close()
    assert lines == [
        {"event": "episode", **EPISODE}, {"event": "report", **REPORT}, {"event": "evaluation", **EVALUATION}
    ]  # fmt: skip


def test_tensorboard_of_a_resumed_run_forgets_what_came_after_the_checkpoint(tmp_path):
    for after, loss in ((None, 1.0), (1_000, 2.0)):
        callback = TensorBoard(tmp_path, after)
        for steps in (1_000, 2_000) if after is None else (2_000, 3_000):
            callback.on_report({**REPORT, "steps": steps, "loss": loss})
        callback.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1_000, 1.0), (2_000, 2.0), (3_000, 2.0)]


@pytest.mark.parametrize("terminal", [False, True])
def test_display_says_what_matters(terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=110, _environ={})
    display = Display(console, "pong", 5_000, 18.0)
    display.on_report(REPORT)
    display.close()
    text = out.getvalue()
    for figure in (
        "1,000 / 5,000",
        "1,234",
        "18.50 / 18",
        "6.00",
        "0.750",
        "0.5000",
        "900 steps, 87.9 KiB",
        "50.0 bytes a step",
        "1.0 GiB",
    ):
        assert figure in text, figure
    assert "1 h 02 min" in text
    assert ("\x1b" in text) is terminal


def test_plain_lines_are_few():
    out = io.StringIO()
    display = Display(
        Console(file=out, force_terminal=False, width=80, _environ={}), "pong", 5_000, None, line_seconds=60
    )
    for _ in range(50):
        display.on_report(REPORT)
    assert out.getvalue().count("\n") == 1


def test_numbers_for_people():
    assert (byte_text(0), byte_text(1536), byte_text(3 * 2**40)) == ("0 B", "1.5 KiB", "3.0 TiB")
    assert (duration_text(7.9), duration_text(65), duration_text(3_725)) == ("7 s", "1 min 05 s", "1 h 02 min")
    assert (number_text(None), number_text(1234.5, 1)) == ("-", "1,234.5")


@pytest.mark.parametrize("width", [80, 120])
def test_a_live_table_fits_its_terminal_and_cuts_nothing_off(width):
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=True, width=width, _environ={}), "pong", 50_000_000, 18.0)
    large = {"steps": 12_345_678, "replay_steps": 1_000_000, "replay_bytes": 2**37, "fixed_bytes": 2**24}
    behind = {"stale_versions": 12.5, "stale_steps": 32_100.0, "replay_ratio": 16.0, "actor_restarts": 2}
    display.on_report({**REPORT, **large, "encoded_bytes_per_step": 55.25, **behind})
    display.close()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert max(map(len, text.replace("\r", "\n").splitlines())) <= width
    for figure in ("12,345,678 / 50,000,000", "1,000,000 steps, 128.0 GiB", "55.2 bytes a step + 16.0 MiB of buffers",
                   "12.5 versions, 32,100 steps", "at most 1 h 02 min"):  # fmt: skip
        assert figure in text, figure
