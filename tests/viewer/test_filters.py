"""Filters of the episode list: the conditions of ``Store.episodes(where=)``, by people who are not trusted."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the viewer needs the extra view: pip install 'sharpwave[view]'")
pytest.importorskip("duckdb", reason="filters need the extra sql: pip install 'sharpwave[sql]'")
pytest.importorskip("pyarrow", reason="filters need the extra sql: pip install 'sharpwave[sql]'")

import sharpwave as sw
from sharpwave.viewer import snapshots
from tests.viewer.served import Server, serving

SPEC = sw.Spec(obs=sw.Field((1,), "float32"), action=sw.Field((), "int64"))
TASKS = ("push", "pull", "it's")
Row = dict[str, Any]
Made = tuple[Path, list[Row], dict[str, list[tuple[int, int]]]]


def fill(store: sw.Store, count: int, seed: int = 0) -> list[Row]:
    """Add episodes, the last of each lane unfinished; return what each is."""
    rng, steps, rows = random.Random(seed), dict.fromkeys(range(2), 0), []
    for _ in range(count):
        lane, length, task = rng.randrange(2), rng.randint(1, 9), rng.choice(TASKS)
        version = rng.randrange(5) if rng.random() < 0.8 else None
        store.annotate(lane, {"task": task} | ({} if version is None else {"policy version": version}), episode=True)
        rewards = [float(rng.randint(-2, 2)) for _ in range(length)]
        truncated = rng.random() < 0.3
        store.add_episode(
            lane=lane, obs=np.zeros((length + 1, 1)), action=np.zeros(length, int), reward=np.array(rewards),
            terminated=not truncated,
        )  # fmt: skip
        rows.append({"lane": lane, "first": steps[lane], "length": length, "return": sum(rewards), "task": task,
                     "version": version, "ended": "truncated" if truncated else "terminated"})  # fmt: skip
        steps[lane] += length
    store.flush()
    return rows


CONDITIONS: list[tuple[str, Any]] = [
    ("length > 4", lambda one: one["length"] > 4),
    ("task = 'push'", lambda one: one["task"] == "push"),
    ("task = 'it''s' and \"return\" > 0", lambda one: one["task"] == "it's" and one["return"] > 0),
    ('"policy version" < 2', lambda one: one["version"] is not None and one["version"] < 2),
    ('"policy version" is null or lane = 1', lambda one: one["version"] is None or one["lane"] == 1),
    ("ended = 'truncated' and begun", lambda one: one["ended"] == "truncated"),
    ("length = (select max(length) from episodes)", lambda one: one["length"] == 9),
    ("false", lambda one: False),
    ("  lane=0 -- a comment", lambda one: one["lane"] == 0),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("store")
    with sw.Store(SPEC, capacity=10_000, disk=folder, segment_steps=16) as store:
        rows = fill(store, 120)
        chosen = {
            where: sorted((one.lane, one.first_step) for one in store.episodes(where=where)) for where, _ in CONDITIONS
        }
    return folder, rows, chosen


@pytest.fixture(scope="module")
def server(made: Made) -> Iterator[Server]:
    with serving(made[0]) as found:
        yield found


def keys(rows: list[Row]) -> list[tuple[int, int]]:
    return sorted((one["lane"], one["first"]) for one in rows)


@pytest.mark.parametrize(("where", "holds"), CONDITIONS)
def test_the_list_has_the_episodes_for_which_it_holds(server: Server, made: Made, where: str, holds: Any) -> None:
    expected = [one for one in made[1] if holds(one)]
    told = server.get("0/episodes", where=where, limit=500, sort="return", desc=1)
    assert (told["total"], told["of"]) == (len(expected), len(made[1]))
    assert keys(told["rows"]) == keys(expected)
    assert [one["return"] for one in told["rows"]] == sorted((one["return"] for one in expected), reverse=True)
    assert made[2][where] == keys(expected)  # as the store itself chooses
    if len(told["rows"]) > 2:
        before, here, after = told["rows"][:3]
        found = server.get("0/episode", lane=here["lane"], first=here["first"], where=where, sort="return", desc=1)
        assert (found["previous"], found["next"]) == (before, after)
    page = server.get("0/episodes", where=where, limit=3, offset=3, sort="return", desc=1)["rows"]
    assert page == told["rows"][3:6]


def test_the_columns_are_named(server: Server) -> None:
    told = server.get("0/filters")
    assert told["needs"] == ""
    assert sorted(told["columns"]) == sorted(
        ["lane", "first_step", "last_step", "length", "return", "begun", "ended", "task", "policy version"]
    )


@pytest.mark.parametrize(
    "where",
    [
        "tsk = 'push'", "length >", "length > 'x'", ")", "1 = 1) or (1 = 1", "length > 1; select 1", "lane = (", "\0",
        "\ud800".encode("utf-8", "surrogatepass"), "\u202e", "x" * 1500, "length / 0 > unknown(1)", "'",
        "cast(task as int) = 1",
    ],
)  # fmt: skip
def test_a_filter_that_cannot_be_evaluated_is_explained(server: Server, where: Any) -> None:
    answer = server.ask("/api/0/episodes", where=where)
    assert answer.status == 400 and answer.body.isascii()
    said = answer.json["error"]
    assert said.startswith("where=") and "Traceback" not in said and said.isprintable()
    assert server.get("0/episodes")["total"] == 120


@pytest.mark.parametrize(
    "where",
    [
        "exists (select * from read_csv('{0}'))",
        "exists (select * from read_text('{0}'))",
        "exists (select * from read_blob('{0}'))",
        "exists (select * from read_json('{0}'))",
        "exists (select * from '{0}')",
        "exists (select * from glob('{1}/*'))",
        "(copy episodes to '{1}/written.csv')",
        "true; copy episodes to '{1}/written.csv'",
        "true; attach '{1}/written.db'",
        "true; install httpfs",
        "true; set enable_external_access = true",
        "exists (select * from query('copy episodes to ''{1}/written.csv'''))",
        "exists (select * from sniff_csv('{0}'))",
        "exists (select * from parquet_metadata('{0}'))",
        "exists (select * from read_csv('http://127.0.0.1:9/x'))",
        "exists (select * from server)",
        "exists (select * from FILTER_SETTINGS)",
        "getenv('HOME') != ''",
    ],
)
def test_a_filter_reaches_nothing_but_the_episodes(server: Server, where: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("password\nhunter2\n")
    answer = server.ask("/api/0/episodes", where=where.format(secret, tmp_path))
    assert answer.status == 400 and "hunter2" not in answer.json["error"]
    assert [one.name for one in tmp_path.iterdir()] == ["secret.csv"]


@pytest.mark.parametrize(
    "where",
    [
        "(select count(*) from range(1000000000000)) > 1",
        "(select count(*) from episodes a, episodes b, episodes c, episodes d, episodes e, episodes f) > 1",
        "(with recursive r(n) as (select 1 union all select n + 1 from r) select max(n) from r) > 1",
    ],
)
def test_a_filter_that_costs_much_is_ended(server: Server, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "FILTER_S", 0.3)
    answer = server.ask("/api/0/episodes", where=where)
    assert answer.status == 400
    assert answer.json["error"].endswith("took longer than 0.3 s")
    assert server.get("0/episodes", where="lane < 5")["total"] == 120


def test_without_the_extra_the_page_says_what_to_install(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    find, load = importlib.util.find_spec, importlib.import_module
    monkeypatch.setattr("sharpwave.viewer.endpoints.find_spec", lambda name: None if name == "duckdb" else find(name))

    def without(name: str, *more: Any) -> Any:
        if name == "duckdb":
            raise ModuleNotFoundError("no duckdb", name="duckdb")
        return load(name, *more)

    monkeypatch.setattr("importlib.import_module", without)
    assert "pip install" in server.get("0/filters")["needs"]
    answer = server.ask("/api/0/episodes", where="length > 3 and true")
    assert answer.status == 400 and "pip install" in answer.json["error"]
    assert server.get("0/episodes")["total"] == 120


def test_a_live_store_is_filtered_as_it_changes(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=10_000, disk=tmp_path, segment_steps=16) as store:
        rows = fill(store, 40)
        with serving(tmp_path) as server:
            (one,) = server.watched

            def found() -> list[tuple[int, int]]:
                return keys(server.get("0/episodes", where="task = 'push'", limit=500)["rows"])

            expected = keys([row for row in rows if row["task"] == "push"])
            assert found() == expected
            store.annotate(0, {"task": "push", "new key": 1}, episode=True)
            first = sum(row["length"] for row in rows if row["lane"] == 0)
            store.add_episode(lane=0, obs=np.zeros((3, 1)), action=[0, 0], reward=[1.0, 1.0], terminated=True)
            store.flush()
            assert found() == expected  # the page's data are those of the last look
            one.update()
            assert found() == sorted([*expected, (0, first)])
            assert keys(server.get("0/episodes", where='"new key" = 1')["rows"]) == [(0, first)]
            assert store.delete(where="task = 'push' and length > 3") > 0
            one.update()
            left = [row for row in rows if row["task"] == "push" and row["length"] <= 3]
            assert found() == sorted([*keys(left), (0, first)])
            gone = next(row for row in rows if row["task"] == "push" and row["length"] > 3)
            assert server.ask("/api/0/episode", lane=gone["lane"], first=gone["first"]).status == 410
            assert keys(server.get("0/episodes", limit=500)["rows"]) == sorted(
                [*keys([row for row in rows if row["task"] != "push" or row["length"] <= 3]), (0, first)]
            )
