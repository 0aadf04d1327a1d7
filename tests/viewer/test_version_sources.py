"""Versions of a store beside it, against what was appended when they were made."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the viewer needs the extra view: pip install 'sharpwave[view]'")

import sharpwave as sw
from sharpwave.disk.region_scan import SegmentReader
from sharpwave.viewer import version_sources
from tests.offline.written import SPEC, Writer, contents, fill
from tests.viewer.served import Server, serving

Told = tuple[int, int, int, float, str]


def listed(server: Server, source: str) -> list[Told]:
    rows = server.get(f"{source}/episodes", limit=500)["rows"]
    return sorted(told(rows))


def told(rows: list[dict[str, Any]]) -> list[Told]:
    return [(one["lane"], one["first"], one["length"], one["return"], one["end"]) for one in rows]


def until(what: Callable[[], Any], timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def counted(server: Server) -> list[dict[str, Any]]:
    """The versions of the store, once all are read: one at a time, as a page asks for them."""

    def rows() -> Any:
        found = server.get("0/versions")
        return found if all(one["episodes"] is not None for one in found) else None

    found: list[dict[str, Any]] = until(rows)
    return found


@pytest.fixture
def made(tmp_path: Path) -> tuple[sw.Store, Writer, dict[str, list[Told]]]:
    """A store with a version, of before steps and a deletion, and another one."""
    store = sw.Store(SPEC, capacity=100_000, disk=tmp_path / "store", segment_steps=16)
    writer, at = Writer(store), {}
    fill(writer, 300, 3, seed=1)
    store.snapshot("first", note={"who": "Ada <b>", "left out": ["nothing"]})
    at["first"] = writer.episodes()
    deleted = [one for one in store.episodes(order="oldest") if one.length > 12][:4]
    store.delete(episodes=deleted)
    gone = {(one.lane, one.first_step) for one in deleted}
    at["second"] = [one for one in writer.episodes() if one[:2] not in gone]
    store.snapshot("second")
    fill(writer, 200, 3, seed=2)
    store.flush()
    at["now"] = [one for one in writer.episodes() if one[:2] not in gone]
    return store, writer, at


def test_versions_are_listed_and_are_sources(made: Any, tmp_path: Path) -> None:
    store, _, at = made
    with serving(tmp_path / "store") as server:
        before = contents(tmp_path / "store")
        ids = [(one["id"], one["kind"], one["name"]) for one in server.get("sources")]
        assert ids == [(0, "store", "store"), ("0@second", "version", "store @ second"),
                       ("0@first", "version", "store @ first")]  # fmt: skip
        rows = counted(server)
        second, first = rows
        assert (first["name"], second["name"], second["parent"], first["parent"]) == ("first", "second", "first", None)
        assert first["note"] == {"who": "Ada <b>", "left out": "['nothing']"} and second["note"] == {}
        assert first["created"] == store.versions()[0].created
        for row in rows:
            expected = at[row["name"]]
            assert row["steps"] == sum(one[2] for one in expected) and row["episodes"] == len(expected)
            whole = [one[3] for one in expected if one[4] != "unfinished"]
            assert row["mean_return"] == pytest.approx(np.mean(whole))
            folder = tmp_path / "store" / "versions" / row["name"]
            (part,) = (path for path in folder.iterdir() if path.is_dir())
            sizes = [path.stat() for path in part.rglob("*") if path.is_file()]
            assert row["bytes"] == sum(one.st_size for one in sizes)
            assert 0 < row["own_bytes"] == sum(one.st_size for one in sizes if one.st_nlink == 1) < row["bytes"]
            assert listed(server, row["id"]) == expected
            memory = server.get(f"{row['id']}/overview")["memory"]
            assert memory["steps"] == row["steps"] and memory["episodes"] == row["episodes"]
        assert listed(server, "0") == at["now"]
        lane, begin, *_ = at["first"][0]
        one, other = (server.get(f"{id}/steps", lane=lane, first=begin) for id in ("0@first", "0@second"))
        assert one["curves"] == other["curves"]
        assert server.get("0@first/versions") == []
        assert contents(tmp_path / "store") == before, "looking changed something"
    store.close()


@pytest.mark.parametrize(
    ("one", "other"), [("first", "now"), ("now", "first"), ("first", "second"), ("first", "first")]
)
def test_two_versions_are_compared(one: str, other: str, made: Any, tmp_path: Path) -> None:
    store, _, at = made
    ids = [{"now": "0"}.get(name, f"0@{name}") for name in (one, other)]
    with serving(tmp_path / "store") as server:
        found = server.get(f"{ids[0]}/differences", **{"with": ids[1]})
    store.close()
    mine, others = set(at[one]), set(at[other])
    assert found["same_store"] and found["both"] == len(mine & others)
    for side, expected in zip(found["only"], (mine - others, others - mine), strict=True):
        assert (side["total"], side["steps"]) == (len(expected), sum(row[2] for row in expected))
        rows = told(side["rows"])
        assert set(rows) <= expected and len(rows) == min(len(expected), version_sources.MAX_ROWS)
    edges, counts = found["histogram"]["edges"], found["histogram"]["counts"]
    for name, bins in zip((one, other), counts, strict=True):
        whole = [row[3] for row in at[name] if row[4] != "unfinished"]
        assert sum(bins) == len(whole) and edges[0] <= min(whole) and max(whole) <= edges[-1]
        for k, (low, high) in enumerate(itertools.pairwise(edges)):
            last = k == len(bins) - 1
            assert bins[k] == sum(low <= value < high or (last and value == high) for value in whole)


def test_a_branch_is_compared_with_its_origin_and_another_store_by_returns_only(made: Any, tmp_path: Path) -> None:
    store, _, at = made
    branch = store.branch(tmp_path / "branch", "first")
    writer = Writer(branch)
    fill(writer, 50, 1)
    branch.flush()
    other = sw.Store(SPEC, capacity=1000, disk=tmp_path / "unrelated", segment_steps=16)
    fill(Writer(other), 100, 2)
    other.flush()
    with serving(tmp_path / "store", tmp_path / "branch", tmp_path / "unrelated") as server:
        found = server.get("0@first/differences", **{"with": "1"})
        now, then = set(listed(server, "1")), set(at["first"])
        assert found["same_store"] and found["both"] == len(now & then)
        assert [side["total"] for side in found["only"]] == [len(then - now), len(now - then)]
        found = server.get("0/differences", **{"with": "2"})
        assert not found["same_store"] and "only" not in found
        assert sum(found["histogram"]["counts"][1]) == sum(one[4] != "unfinished" for one in listed(server, "2"))
    for one in (store, branch, other):
        one.close()


def test_a_version_that_is_deleted_meanwhile_is_named(made: Any, tmp_path: Path) -> None:
    store, _, at = made
    with serving(tmp_path / "store") as server:
        assert listed(server, "0@first") == at["first"]
        store.delete_version("first")
        for path in ("status", "overview", "episodes", "versions", "differences"):
            answer = server.ask(f"/api/0@first/{path}?with=0")
            assert answer.status == 404 and "'first'" in answer.json["error"] and "deleted" in answer.json["error"]
        assert server.ask("/api/0/differences?with=0@first").status == 404
        assert [one["name"] for one in server.get("0/versions")] == ["second"]
        assert [one["id"] for one in server.get("sources")] == [0, "0@second"]
        fill_more = Writer(store)
        fill(fill_more, 30, 1)
        store.snapshot("first")  # another one of this name
        assert len(listed(server, "0@first")) > len(at["now"])
        shutil.rmtree(tmp_path / "store" / "versions")
        assert server.get("0/versions") == [] and listed(server, "0") == at["now"]
    store.close()


def test_files_that_a_version_shares_are_read_once(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _, at = made
    store.close()
    read, unpack = list[int](), SegmentReader.unpack

    def counted(self: SegmentReader, record: Any, *rest: Any) -> Any:
        read.append(record.id)
        return unpack(self, record, *rest)

    monkeypatch.setattr(SegmentReader, "unpack", counted)
    with serving(tmp_path / "store") as server:
        whole = len(read)
        for name in ("first", "second"):
            read.clear()
            assert listed(server, f"0@{name}") == at[name]
            assert len(read) < whole / 2, "only open segments, which a version has copies of"


@pytest.mark.parametrize(
    "source",
    [
        "0@", "0@nothing", "0@../first", "0@..", "0@first/..", "0@.reading.1.0123456789abcdef", "1@first", "@first",
        "0@first@first", "0@" + "a" * 200, "0@first%00", "x@first", "-1@first",
    ],
)  # fmt: skip
def test_ids_that_are_none(made: Any, source: str, tmp_path: Path) -> None:
    store, *_ = made
    store.close()
    with serving(tmp_path / "store") as server:
        answer = server.ask(f"/api/{source}/overview")
        assert answer.status == (200 if source == "0@" else 404) and b"Traceback" not in answer.body


def test_links_lead_nowhere(made: Any, tmp_path: Path) -> None:
    store, _, at = made
    store.close()
    with sw.Store(SPEC, capacity=100, disk=tmp_path / "other") as other:
        fill(Writer(other), 20, 1)
        other.snapshot("elsewhere")
    folder = tmp_path / "store" / "versions"
    (folder / "elsewhere").symlink_to(tmp_path / "other" / "versions" / "elsewhere")
    (part,) = (path for path in (folder / "first").iterdir() if path.is_dir())
    shutil.rmtree(part)
    part.symlink_to("/")
    shutil.rmtree(next((folder / "second").glob("*/regions")))
    next(path for path in (folder / "second").iterdir() if path.is_dir()).joinpath("regions").symlink_to("/etc")
    with serving(tmp_path / "store") as server:
        second, first = server.get("0/versions")
        assert (second["name"], first["name"], first["bytes"]) == ("second", "first", 0)
        assert second["bytes"] < 1 << 20
        assert server.ask("/api/0@elsewhere/overview").status == 404
        for name in ("first", "second"):
            told = server.get(f"0@{name}/overview")
            assert not told["memory"] or told["memory"]["steps"] == 0
        assert listed(server, "0") == at["now"]


def test_versions_are_read_within_limits_and_damaged_ones_are_left_out(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, at = made
    for k in range(5):
        store.snapshot(f"more-{k}")
    store.close()
    monkeypatch.setattr(version_sources, "MAX_READ", 2)
    (tmp_path / "store" / "versions" / "more-0" / "store.json").write_text("{")
    (state,) = (tmp_path / "store" / "versions" / "more-1").rglob("*.npz")
    state.write_bytes(b"")
    (tmp_path / "store" / "versions" / "link").symlink_to(tmp_path)
    with serving(tmp_path / "store") as server:
        rows = counted(server)
        assert [one["name"] for one in rows] == ["more-4", "more-3", "more-2", "more-1", "second", "first"]
        assert {one["name"]: one["episodes"] for one in rows}["first"] == len(at["first"])
        assert {one["name"]: one["episodes"] for one in rows}["more-4"] == len(at["now"])
        assert server.get("0@more-1/overview")["memory"]["damage_count"] >= 1
        (one,), kept = server.watched, version_sources.VersionSources()
        found = [kept.watched(0, one, name) for name in ("first", "second", "more-4")]
        assert kept.watched(0, one, "more-4") is found[2] and kept.watched(0, one, "second") is found[1]
        assert kept.watched(0, one, "first") is not found[0]
