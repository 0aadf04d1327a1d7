"""What the endpoints tell about a store, against what was appended."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the viewer needs the extra view: pip install 'sharpwave[view]'")

from PIL import Image

import sharpwave as sw
from tests.offline.written import Writer, contents, observation, written
from tests.viewer.served import Server, serving

STEPS = 600


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Writer]:
    folder = tmp_path_factory.mktemp("store")
    return folder, written(folder, steps=STEPS, lanes=3, segment_steps=8)


@pytest.fixture(scope="module")
def server(made: tuple[Path, Writer]) -> Iterator[Server]:
    before = contents(made[0])
    with serving(made[0]) as found:
        yield found
    assert contents(made[0]) == before, "looking changed something"


def pixels(body: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(body)))


def of(episode: dict[str, Any]) -> dict[str, Any]:
    return {"lane": episode["lane"], "first": episode["first"]}


def all_episodes(server: Server) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = server.get("0/episodes", limit=500)["rows"]
    return rows


def test_the_overview_is_that_of_the_store(server: Server, made: tuple[Path, Writer]) -> None:
    told = server.get("0/overview")
    memory, source = told["memory"], told["source"]
    assert source["kind"] == "store" and told["run"] is None
    assert (memory["steps"], memory["lane_count"]) == (STEPS, 3)
    assert memory["episodes"] == len(made[1].episodes())
    assert memory["bytes"]["segments"] == sum(one["bytes"] for one in memory["packed"]) + memory["bytes"]["overhead"]
    assert [one["name"] for one in memory["fields"]] == ["obs.picture", "obs.position", "action"]
    assert memory["fields"][0]["picture"]["width"] == 24 and memory["fields"][1]["picture"] is None
    whole = [one for one in made[1].episodes() if one[4] != "unfinished"]
    assert memory["returns"]["max"] == max(one[3] for one in whole)
    assert [one["return"] for one in memory["best"]] == sorted((one[3] for one in whole), reverse=True)[:3]
    assert [one["return"] for one in memory["worst"]] == sorted(one[3] for one in whole)[:3]


def test_episodes_are_those_that_were_appended(server: Server, made: tuple[Path, Writer]) -> None:
    found = [(one["lane"], one["first"], one["length"], one["return"], one["end"]) for one in all_episodes(server)]
    assert sorted(found) == made[1].episodes()


@pytest.mark.parametrize("down", [0, 1])
@pytest.mark.parametrize("sort", ["return", "length", "age", "lane"])
def test_episodes_are_sorted_and_paged(server: Server, sort: str, down: int) -> None:
    pages = [server.get("0/episodes", sort=sort, desc=down, offset=at, limit=7) for at in range(0, 200, 7)]
    rows = list(itertools.chain.from_iterable(page["rows"] for page in pages))
    values = [row[sort] for row in rows]
    assert len(rows) == pages[0]["total"] == len(all_episodes(server))
    assert values == sorted(values, reverse=bool(down))
    whole = server.get("0/episodes", sort=sort, desc=down, whole=1, limit=500)["rows"]
    assert whole == [row for row in rows if row["begun"] and row["end"] != "unfinished"]
    here = server.get("0/episode", **of(rows[3]), sort=sort, desc=down)
    assert (here["previous"], here["next"]) == (rows[2], rows[4])


def test_curves_and_values_are_those_that_were_appended(server: Server, made: tuple[Path, Writer]) -> None:
    for episode in all_episodes(server)[::5]:
        told = server.get("0/steps", **of(episode))
        mine = made[1].history[episode["lane"]][episode["first"] :][: episode["length"]]
        curves = {one["label"]: one["values"] for one in told["curves"]}
        assert told["exact"] and told["step"] == list(range(episode["length"]))
        assert curves["reward"] == [reward for _, reward, _ in mine]
        assert curves["action"] == [serial % 5 for serial, _, _ in mine]
        assert curves["obs.position[1]"] == [-serial for serial, _, _ in mine]
        step = episode["length"] // 2
        values = {one["name"]: one["text"] for one in server.get("0/step", **of(episode), step=step)["values"]}
        serial, reward, _ = mine[step]
        assert values == {"reward": f"{reward:g}", "action": str(serial % 5), "obs.position": f"{serial} {-serial}"}
        part = server.get("0/steps", **of(episode), begin=step, end=step + 3)
        assert part["step"] == list(range(step, min(step + 3, episode["length"])))
        assert part["curves"][0]["values"] == [reward for _, reward, _ in mine[step : step + 3]]


def test_frames_are_those_that_were_appended(server: Server, made: tuple[Path, Writer]) -> None:
    for episode in all_episodes(server)[::6]:
        mine = made[1].history[episode["lane"]][episode["first"] :][: episode["length"]]
        expected = [observation(serial)["picture"] for serial, _, _ in mine]
        if episode["end"] != "unfinished":
            expected.append(observation(mine[-1][0] + 30_000)["picture"])
        assert server.get("0/episode", **of(episode))["frames"] == len(expected)
        count = min(64, len(expected))
        answer = server.ask("/api/0/frames.png", **of(episode), field=0, begin=0, end=count - 1, count=64)
        sheet = pixels(answer.body)
        for place in range(count):
            row, column = divmod(place, 8)
            cell = sheet[row * 24 : row * 24 + 24, column * 24 : column * 24 + 24]
            np.testing.assert_array_equal(cell, expected[place])
        spread = pixels(server.ask("/api/0/frames.png", **of(episode), field=0, count=3).body)
        if len(expected) >= 3:
            np.testing.assert_array_equal(spread[:, 48:], expected[-1])
            middle = round((len(expected) - 1) / 2)  # to even, as numpy rounds
            np.testing.assert_array_equal(spread[:, 24:48], expected[middle])


def test_a_step_within_an_episode_finds_it(server: Server) -> None:
    episode = max(all_episodes(server), key=lambda one: one["length"])
    assert server.get("0/episode", lane=episode["lane"], first=episode["first"] + 5)["number"] == episode["number"]


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("0/episode", {"lane": 0, "first": 10**6}, 410),
        ("0/episode", {"lane": 77, "first": 0}, 410),
        ("0/episode", {"lane": -1, "first": 0}, 400),
        ("0/episodes", {"sort": "__class__"}, 400),
        ("0/episodes", {"limit": 501}, 400),
        ("0/episodes", {"offset": "1e9"}, 400),
        ("0/episodes", {"offset": "٣"}, 400),
        ("0/frames.png", {"lane": 0, "first": 0, "field": 1}, 400),
        ("0/frames.png", {"lane": 0, "first": 0, "field": 3}, 400),
        ("0/frames.png", {"lane": 0, "first": 0, "count": 65}, 400),
        ("0/frames.png", {"lane": 0, "first": 0, "begin": 5, "end": 2}, 400),
        ("0/priorities", {}, 404),
        ("0/curve", {}, 404),
        ("1/overview", {}, 404),
        ("x/overview", {}, 404),
        ("0/nothing", {}, 404),
    ],
)
def test_what_is_not_there_is_said(server: Server, path: str, query: dict[str, Any], status: int) -> None:
    answer = server.ask(f"/api/{path}", **query)
    assert answer.status == status
    assert "Traceback" not in answer.body.decode()


def test_offsets_beyond_the_end_are_empty(server: Server) -> None:
    assert server.get("0/episodes", offset=10**9)["rows"] == []


def test_a_sparse_field_has_its_values_where_it_keeps_them(tmp_path: Path) -> None:
    """Steps 0, 3, 6 ... of each episode, with several episodes in a segment and segments that begin within one."""
    ends = {1, 2, 6, 7, 17, 30, 31, 39}
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), core=sw.Field((2,), "float32", every=3))
    with sw.Store(spec, capacity=1000, disk=tmp_path, segment_steps=8) as store:
        for step in range(40):
            store.extend(
                obs=np.zeros((1, 2)), action=[0], reward=[0.0], terminated=[step in ends], truncated=[False],
                core=np.full((1, 2), step + 1),
            )  # fmt: skip
    with serving(tmp_path) as server:
        episodes = all_episodes(server)
        assert len(episodes) == len(ends)
        for episode in episodes:
            first, length = episode["first"], episode["length"]
            for begin, end in {(0, length), (length // 2, length), (0, max(1, length - 2))}:
                told = server.get("0/steps", **of(episode), begin=begin, end=end)
                values = next(one["values"] for one in told["curves"] if one["label"] == "core[1]")
                assert values == [None if step % 3 else first + step + 1 for step in range(begin, end)]
