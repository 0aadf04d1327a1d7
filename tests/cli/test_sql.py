"""``sharpwave sql``: its tables beside those of the store that wrote the folder."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.cli.conftest import COMMAND, ENVIRONMENT, SETTINGS

pytest.importorskip("duckdb")
SPEC = sw.Spec(
    obs={"eye": sw.Field((4, 3), "uint8", stack=2), "joint": sw.Field((2,), "float32")},
    action=sw.Field((), "int64"),
    goal=sw.Field((), "float32", every=4),
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: Any) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]:
    """A folder, and its tables as the open store has them."""
    folder = tmp_path_factory.mktemp("stores") / "replay"
    store, rng = sw.Store(SPEC, capacity=300, disk=folder, segment_steps=8), np.random.default_rng(0)
    for k in range(30):
        lane, steps = k % 2, int(rng.integers(1, 40))
        store.annotate(lane, {"task": ("push", "pull")[k % 2], "version": k, "\x1b[31m": "[b]x"}, episode=True)
        obs = {"eye": rng.integers(0, 255, (steps + 1, 4, 3)), "joint": rng.random((steps + 1, 2)).astype(np.float32)}
        some: dict[str, Any] = {"action": np.arange(steps), "reward": rng.random(steps), "goal": np.zeros(steps)}
        store.add_episode(lane=lane, obs=obs, **some, terminated=k % 3 > 0)
    store.add_column("advantage", sw.Field((), "float32"))
    store.add_column("step", sw.Field((2,), "int16"))  # a fact has this name
    for one in store.episodes()[::2]:
        store.write_column("advantage", one.ids[1:], rng.random(one.length - 1))
        store.write_column("step", one.ids, rng.integers(0, 99, (one.length, 2)).astype(np.int16))
    assert store.delete(episodes=store.episodes()[2:4]) > 0
    episodes = store.table("episodes").read_all().drop(["first_id"]).to_pylist()
    steps_held = store.table("steps").read_all().drop(["id", "goal"]).to_pylist()
    store.close()
    return folder, episodes, steps_held


def told(here: Any, folder: Path, query: str) -> list[dict[str, Any]]:
    result = here("sql", folder, query, "--json")
    assert result.code == 0, result.text
    return [json.loads(line) for line in result.text.splitlines()]


def test_the_tables_are_those_of_the_store(here: Any, written: Any) -> None:
    """Every row and column, but ids and sparse fields."""
    folder, episodes, steps = written
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert told(here, folder, "select * from episodes order by lane, first_step") == episodes
    found = told(here, folder, "select * from steps order by lane, step")
    assert [json.loads(json.dumps(one, default=str)) for one in steps] == found
    named = told(here, folder, 'select step, ACTION, "obs.joint"[1] as x from steps where lane = 1 order by step')
    assert named == [
        {"step": one["step"], "action": one["action"], "x": one["obs.joint"][0]} for one in steps if one["lane"] == 1
    ]
    joined = told(
        here,
        folder,
        "with pushes as (select * from episodes where task = 'push') "
        "select lane, first_step, sum(reward) from steps join pushes using (lane, first_step) group by all order by 2",
    )
    assert [one["first_step"] for one in joined] == [one["first_step"] for one in episodes if one["task"] == "push"]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_columns_added_later_of_a_checkpoint_and_a_damaged_folder(here: Any, tmp_path: Path) -> None:
    """A checkpoint has them as they were then; where their files cannot be read, the others are still told."""
    spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=100, disk=tmp_path / "replay") as store:
        store.add_episode(obs=np.zeros(4), action=np.arange(3), reward=np.ones(3), terminated=True)
        store.add_column("mark", sw.Field((), "int64"))
        store.write_column("mark", store.ids(0, [0, 2]), [5, 7])
        store.checkpoint(tmp_path / "saved")
        store.write_column("mark", store.ids(0, [1]), [6])
    for folder, marks in ((tmp_path / "saved", [5, None, 7]), (tmp_path / "replay", [5, 6, 7])):
        found = told(here, folder, "select action, mark from steps order by step")
        assert found == [{"action": k, "mark": mark} for k, mark in enumerate(marks)]
    for path in (tmp_path / "replay" / "columns").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    result = here("sql", tmp_path / "replay", "select count(*) as steps from steps", "--csv")
    assert result.code == 0 and "steps\n3\n" in result.text and "left out: columns added later: " in result.text


@pytest.mark.parametrize("columns", [80, 200])
def test_a_wide_result_is_printed_row_by_row(here: Any, written: Any, monkeypatch: Any, columns: int) -> None:
    """Each column is printed whole, at any width of the terminal."""
    query = "select *, repeat('x', 30) || step as mark from steps order by lane, step limit 2"
    monkeypatch.setattr("tests.cli.conftest.SETTINGS", {**SETTINGS, "COLUMNS": str(columns)})
    lines = here("sql", written[0], query).text.splitlines()
    heads = [k for k, line in enumerate(lines) if line.startswith("row ")]
    assert [lines[k] for k in heads] == ["row 1", "row 2"]
    for k, step in zip(heads, told(here, written[0], query), strict=True):
        values = dict(line.split(maxsplit=1) for line in lines[k + 1 : k + 1 + len(step)] if len(line.split()) > 1)
        assert values["mark"] == step["mark"] and values["obs.eye"] == str(step["obs.eye"])
        assert [line.split()[0] for line in lines[k + 1 : k + 1 + len(step)]] == [*step]
    assert (
        "first_step" in here("sql", written[0], "select first_step, length from episodes limit 1").text.splitlines()[1]
    )


def test_an_interrupt_ends_a_query(written: Any) -> None:
    """Also one that finds no row for hours."""
    query = "select 1 from range(2000000) a, range(2000000) b where a.range * b.range = -1"
    with subprocess.Popen(
        [*COMMAND, "sql", str(written[0]), query],
        env=ENVIRONMENT | {"SHARPWAVE_TRACEBACK": "1"},
        stderr=subprocess.PIPE,
    ) as process:
        threads = Path(f"/proc/{process.pid}/task")
        while len(list(threads.iterdir())) < 3:  # those of DuckDB, and of the query
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130, process.stderr


def test_it_prints_a_table_and_comma_separated_values(here: Any, written: Any) -> None:
    """Control characters of annotations are escaped in the table."""
    folder, episodes, _ = written
    result = here("sql", folder, 'select task, count(*) as episodes, min("\x1b[31m") as mark from episodes group by 1')
    assert result.code == 0 and "push" in result.text and "[b]x" in result.text and "\x1b" not in result.text
    result = here("sql", folder, "select lane, task from episodes order by lane, first_step", "--csv")
    rows = list(csv.reader(io.StringIO(result.text)))
    assert rows == [["lane", "task"], *([str(one["lane"]), one["task"]] for one in episodes)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("delete from episodes", "SELECT"),
        ("select 1; select 2", "2 statements"),
        ("select nothing from episodes", "nothing"),
        ("select * from read_csv('/etc/passwd')", "access|disabled|secret|Permission"),
        ("select length >", "syntax"),
    ],
)
def test_other_statements_are_refused(here: Any, written: Any, query: str, message: str) -> None:
    result = here("sql", written[0], query)
    assert result.code != 0
    assert any(part in result.text for part in message.split("|")), result.text


def test_it_needs_a_store(here: Any, tmp_path: Path) -> None:
    result = here("sql", tmp_path, "select 1")
    assert result.code != 0 and str(tmp_path) in result.text


def test_json_is_json(sharpwave: Any, here: Any, tmp_path: Path) -> None:
    store = sw.Store(
        sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64")), disk=tmp_path / "d", capacity=99
    )
    store.add_episode(obs=np.array([[np.nan, np.inf]] * 4), action=np.arange(3), reward=np.ones(3), terminated=True)
    store.close()

    def rows(query: str, by: Any = here) -> list[dict[str, Any]]:
        result = by("sql", tmp_path / "d", query, "--json")
        assert result.code == 0, result.text
        return [json.loads(line, parse_constant=lambda text: pytest.fail(text)) for line in result.text.splitlines()]

    assert rows("select sum(length) as l, sum(length) / 2 as h from episodes", sharpwave) == [{"l": 3, "h": 1.5}]
    assert rows("select obs, action from steps where action = 1") == [{"obs": [None, None], "action": 1}]
    assert rows("select 1 as a, 2 as a, 3.5::decimal(4, 1) as b") == [{"a": 1, "a:1": 2, "b": 3.5}]
