"""Stores and runs that somebody made to do harm, or that are only strange."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the viewer needs the extra view: pip install 'sharpwave[view]'")

import sharpwave as sw
from sharpwave.viewer import frame_pictures as pictures
from sharpwave.viewer.sources import find_sources, opened_sources
from tests.cli.stores import make_store
from tests.viewer.served import Server, serving

SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
ODD = ["\u202egnp.exe", "\ud800", "\x1b[31m", SCRIPT, "__proto__", "a" * 3000, "../../etc/passwd"]


def everything(server: Server) -> None:
    """Ask every endpoint; whatever it answers, it answers, as JSON or PNG."""
    paths = ["sources", *(f"0/{name}" for name in ("status", "overview", "curve", "episodes", "priorities"))]
    rows: list[dict[str, Any]] = []
    for path in paths:
        answer = server.ask(f"/api/{path}")
        assert answer.status in (200, 404), (path, answer.body[:300])
        assert len(answer.body) < 8 << 20 and json.loads(answer.body) is not None
        rows = answer.json["rows"] if path == "0/episodes" and answer.status == 200 else rows
    for row in rows[:3]:
        queries: dict[str, dict[str, Any]] = {
            "episode": {},
            "steps": {},
            "step": {"step": 2},
            "frames.png": {"count": 9},
        }
        for path, query in queries.items():
            for field in range(3) if path == "frames.png" else [0]:
                answer = server.ask(f"/api/0/{path}", lane=row["lane"], first=row["first"], field=field, **query)
                assert answer.status in (200, 400, 410, 413), (path, answer.body[:300])
                assert len(answer.body) < 8 << 20


def test_names_and_annotations_stay_text(tmp_path: Path) -> None:
    spec = sw.Spec(
        obs={name.replace(".", "_"): sw.Field((9, 9), "uint8", metadata={name: name, "x": [name]}) for name in ODD},
        action=sw.Field((), "int64"),
        **{name: sw.Field((), "float32") for name in ODD if not name.startswith("obs")},
    )
    frames = {name.replace(".", "_"): np.zeros((9, 9), np.uint8) for name in ODD}
    with sw.Store(spec, capacity=100, disk=tmp_path / "store") as store:
        store.annotate(None, {name: name for name in ODD})
        for step in range(12):
            store.annotate(0, {SCRIPT: SCRIPT}, episode=True)
            store.append(lane=0, obs=frames, action=0, reward=1.0, terminated=step == 9, truncated=False,
                         final_obs=frames if step == 9 else None, **dict.fromkeys(ODD, 0.5))  # fmt: skip
        store.flush()
    with serving(tmp_path / "store") as server:
        everything(server)
        body = server.ask("/api/0/overview").body
        assert body.isascii(), "a lone surrogate would end the answer"
        names = [one["name"] for one in json.loads(body)["memory"]["fields"]]
        assert all(name.isprintable() for name in names) and f"obs.{SCRIPT}".replace("/s", "/s") in names
        assert server.ask("/api/0/overview").headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 1 << 18), "uint8"), ((2000, 2000), "uint8"), ((5000, 4), "uint8"), ((4, 4) + (1,) * 14, "uint8"),
        ((10, 10, 7), "bool"), ((3, 20, 20), "uint8"), ((20, 20, 4), "uint8"), ((12, 12), "float32"),
        ((4, 16, 16), "uint8"), ((2, 2), "uint8"), ((9, 9, 65), "uint8"), ((12, 12), "float64"),
        ((8, 8), "int64"), ((700, 900, 3), "uint8"),
    ],
)  # fmt: skip
def test_observations_of_any_shape(shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    spec = sw.Spec(obs=sw.Field(shape, dtype), action=sw.Field((), "int64"))
    value = np.zeros(shape, dtype)
    with sw.Store(spec, capacity=40, disk=tmp_path, segment_steps=4, codec="zstd", ram="400MiB") as store:
        for step in range(8):
            if dtype.startswith("float"):
                value.reshape(-1)[:4] = [np.nan, np.inf, -np.finfo(dtype).max, np.finfo(dtype).max]
            store.append(lane=0, obs=value, action=0, reward=0.0, terminated=step == 5, truncated=False,
                         final_obs=value if step == 5 else None)  # fmt: skip
        store.flush()
    with serving(tmp_path) as server:
        everything(server)


def test_values_are_drawn_as_they_are() -> None:
    field = sw.Field((6, 5, 3), "uint8")
    frame = np.random.default_rng(0).integers(0, 256, field.shape, dtype=np.uint8)
    np.testing.assert_array_equal(pictures.pixels_of(frame, field), frame)
    first = sw.Field((3, 9, 8), "uint8")
    frame = np.random.default_rng(0).integers(0, 256, first.shape, dtype=np.uint8)
    np.testing.assert_array_equal(pictures.pixels_of(frame, first), frame.transpose(1, 2, 0))
    channels = sw.Field((10, 10, 6), "bool")
    found = pictures.pixels_of(np.eye(10, dtype=bool)[:, :, None] & (np.arange(6) == 2), channels)
    assert (found[np.eye(10, dtype=bool)] == pictures.PALETTE[2]).all() and not found[~np.eye(10, dtype=bool)].any()
    stretched = pictures.pixels_of(np.linspace(-2, 2, 64).reshape(8, 8), sw.Field((8, 8), "float64"))
    assert (stretched.min(), stretched.max()) == (0, 255)
    assert (np.diff(stretched[..., 0].reshape(-1).astype(int)) >= 0).all()
    large = sw.Field((1200, 900), "uint8")
    assert pictures.pixels_of(np.zeros(large.shape, np.uint8), large).shape == (400, 300, 3)


def test_a_run_of_strange_files(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_store(run / "replay")
    (run / "config.json").write_text(json.dumps({"recipe": SCRIPT, "settings": {SCRIPT: [SCRIPT] * 3, "n": 10**300}}))
    (run / "metrics.jsonl").write_text('{"event": "episode", "steps": 1, "reward": "x"}\n' * 3)
    (run / "summary.json").write_text("[" * 100_000)
    (run / "checkpoints" / f"{5:012d}" / "replay" / "1").mkdir(parents=True)
    manifest = json.loads((run / "replay" / "store.json").read_text())
    (run / "checkpoints" / f"{5:012d}" / "replay" / "store.json").write_text(json.dumps(manifest))
    (run / "checkpoints" / "999999999999").symlink_to(tmp_path)
    with serving(run) as server:
        everything(server)
        assert server.get("0/overview")["memory"]["steps"] == 137


def test_damage_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    make_store(tmp_path)
    (path,) = (tmp_path / "regions").glob("*.region")
    content = bytearray(path.read_bytes())
    content[600] ^= 255
    path.write_bytes(content)
    with serving(tmp_path) as server:
        memory = server.get("0/overview")["memory"]
        assert memory["damage_count"] >= 1 and 0 < memory["steps"] < 137
        everything(server)


def test_what_goes_meanwhile(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    with serving(tmp_path / "store") as server:
        row = server.get("0/episodes")["rows"][0]
        shutil.rmtree(tmp_path / "store")
        answer = server.ask("/api/0/step", lane=row["lane"], first=row["first"], step=1)
        assert answer.status == 410 and "evicted meanwhile" in answer.json["error"]
        everything(server)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("x")])
def test_nothing_to_look_at(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "there")
    with pytest.raises(ValueError, match="is no run, store or checkpoint"):
        find_sources([tmp_path / "there"])


def test_a_checkpoint_in_a_single_file(tmp_path: Path) -> None:
    store = sw.Store(sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64")), capacity=10)
    store.append(obs=np.zeros(2, np.float32), action=0, reward=1.0, terminated=False, truncated=False)
    store.checkpoint(tmp_path / "saved.sharpwave")
    with opened_sources([tmp_path / "saved.sharpwave"]) as (source,):
        assert source.name == "saved.sharpwave"
        with serving(source.path) as server:
            assert server.get("0/overview")["memory"]["steps"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["saved.sharpwave"]


def test_a_folder_of_runs_and_stores(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_store(tmp_path / name / "replay")
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "metrics.jsonl").touch()
    make_store(tmp_path / "three")
    found = find_sources([tmp_path, tmp_path / "two" / "replay"])
    assert [(one.name, one.kind) for one in found] == [
        ("one", "run"), ("three", "store"), ("two", "run"), ("replay", "store")
    ]  # fmt: skip
    assert find_sources([tmp_path / "one"])[0].store_folder() == tmp_path / "one" / "replay"


def test_shards_of_a_cluster_are_sources(tmp_path: Path) -> None:
    for number in range(2):
        make_store(tmp_path / "cluster" / f"shard-{number}" / "store")
    (tmp_path / "cluster" / "cluster.json").write_text("{}")
    found = find_sources([tmp_path / "cluster"])
    assert [(one.name, one.kind) for one in found] == [("cluster/shard-0", "store"), ("cluster/shard-1", "store")]
    assert find_sources([tmp_path / "cluster" / "shard-1"]) == found[1:]
    assert found[1].store_folder() == tmp_path / "cluster" / "shard-1" / "store"


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="makes links")
def test_links_out_of_folders_are_not_followed(tmp_path: Path) -> None:
    make_store(tmp_path / "other" / "store")
    for folder, name, target in (
        ("cluster/shard-1", "store", "other/store"),
        ("cluster/shard-2", "store", "cluster/shard-2/store"),
        ("cluster", "shard-3", "other"),
        ("run", "replay", "other/store"),
        ("run/checkpoints/000000100", "replay", "other/store"),
        ("later", "checkpoints", "run/checkpoints"),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).symlink_to(tmp_path / target)
    make_store(tmp_path / "cluster" / "shard-0" / "store")
    for name in ("run", "later"):
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "metrics.jsonl").touch()
    assert [one.name for one in find_sources([tmp_path / "cluster"])] == ["cluster/shard-0"]
    for run in find_sources([tmp_path / "run", tmp_path / "later"]):
        assert run.kind == "run" and run.store_folder() is None and run.state_folder() is None
    for name in ("cluster/shard-1", "run/checkpoints/000000100"):
        with pytest.raises(ValueError, match="is no run, store or checkpoint"):
            find_sources([tmp_path / name])
    (tmp_path / "typed").symlink_to(tmp_path / "other" / "store")
    (typed,) = find_sources([tmp_path / "typed"])  # as the user says
    assert typed.store_folder() == tmp_path / "typed"


def test_clusters_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("a/x", "a/y", "b/x"):
        make_store(tmp_path / name / "cluster" / "shard-0" / "store")
    found = find_sources([tmp_path / name / "cluster" for name in ("a/x", "a/y", "b/x")])
    assert [one.name for one in found] == [f"{name}/cluster/shard-0/store" for name in ("a/x", "a/y", "b/x")]
    (source,) = find_sources([tmp_path / "a" / "x" / "cluster"])
    assert [one.name for one in find_sources([source.path, source.path])] == ["store", "store"]
