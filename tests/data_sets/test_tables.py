"""Arrow tables of a store beside a plain log of its episodes, and episodes chosen by conditions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw

pa = pytest.importorskip("pyarrow")
duckdb = pytest.importorskip("duckdb")
pc = pytest.importorskip("pyarrow.compute")

SPEC = sw.Spec(obs=sw.Field((2, 3), "float32"), action=sw.Field((), "int64"), mode=sw.Field((), "uint8"))


def written(
    disk: Path | None = None, capacity: int = 10_000, episodes: int = 40
) -> tuple[sw.Store, list[dict[str, Any]]]:
    """A store of three lanes, and what was written, episode by episode."""
    store = sw.Store(SPEC, capacity=capacity, segment_steps=16, disk=disk)
    rng, log, steps = np.random.default_rng(0), [], [0, 0, 0]
    for k in range(episodes):
        length, lane = int(rng.integers(1, 60)), k % 3
        info: dict[str, Any] = {"task": ("push", "pull")[k % 2], "version": k, "success": bool(k % 3)}
        info |= {"notes": ["a", k]} if k % 4 == 0 else {}
        info |= {"gain": 1 if k % 2 else 0.5}
        info |= {"length": "long"} if k == 5 else {}
        store.annotate(lane, info, episode=True)
        arrays: dict[str, Any] = {
            "obs": rng.random((length + 1, 2, 3)).astype(np.float32),
            "action": rng.integers(0, 9, length),
            "mode": rng.integers(0, 255, length).astype(np.uint8),
            "reward": rng.random(length).astype(np.float32),
        }
        store.add_episode(lane=lane, **arrays, terminated=k % 2 == 0, truncated=k % 2 == 1)
        log.append({"lane": lane, "first_step": steps[lane], "length": length, "info": info, **arrays})
        steps[lane] += length
    return store, sorted(log, key=lambda one: (one["lane"], one["first_step"]))


@pytest.mark.parametrize("disk", [False, True])
def test_a_table_of_episodes_has_their_facts_and_annotations(disk: bool, tmp_path: Path) -> None:
    """A row an episode. Annotations keep their types; lists are JSON, and a fact's name stays the fact's."""
    store, log = written(tmp_path / "s" if disk else None)
    found = store.table("episodes").read_all().to_pylist()
    assert len(found) == len(log)
    for row, one in zip(found, log, strict=True):
        for name in ("lane", "first_step", "length"):
            assert row[name] == one[name], name
        assert row["last_step"] == one["first_step"] + one["length"] - 1
        assert row["return"] == pytest.approx(one["reward"].astype(np.float64).sum())
        assert row["ended"] == ("terminated" if one["info"]["version"] % 2 == 0 else "truncated") and row["begun"]
        for name in ("task", "version", "success", "gain"):
            assert row[name] == one["info"][name], name
        assert row["notes"] == (json.dumps(one["info"]["notes"]) if "notes" in one["info"] else None)
        assert row["info.length"] == one["info"].get("length")
    assert store.table("episodes", fields=["return", "lane"], lanes=1).schema.names == ["return", "lane"]
    store.close()


@pytest.mark.parametrize("disk", [False, True])
def test_a_table_of_steps_has_every_step_and_field(disk: bool, tmp_path: Path) -> None:
    """A row a step, in the order of lanes and steps; arrays are flat lists with their shape in the metadata."""
    store, log = written(tmp_path / "s" if disk else None)
    reader = store.table("steps")
    assert json.loads(reader.schema.field("obs").metadata[b"shape"]) == [2, 3]
    found = reader.read_all()
    expected = {
        name: np.concatenate([one[name][: one["length"]] for one in log])
        for name in ("obs", "action", "mode", "reward")
    }
    np.testing.assert_array_equal(found["obs"].combine_chunks().flatten().to_numpy().reshape(-1, 2, 3), expected["obs"])
    for name in ("action", "mode", "reward"):
        np.testing.assert_array_equal(found[name].to_numpy(), expected[name])
    begins = np.concatenate([[0], np.cumsum([one["length"] for one in log])])
    np.testing.assert_array_equal(np.flatnonzero(found["first"].to_numpy()), begins[:-1])
    ended = found["terminated"].to_numpy() | found["truncated"].to_numpy()
    np.testing.assert_array_equal(np.flatnonzero(ended), begins[1:] - 1)
    for one, begin in zip(log, begins, strict=False):
        assert set(found["first_step"][begin : begin + one["length"]].to_pylist()) == {one["first_step"]}
    ids = store.ids(found["lane"].to_numpy(), found["step"].to_numpy())
    np.testing.assert_array_equal(found["id"].to_numpy(), np.asarray(ids))
    names = store.table("steps", fields=("mode",)).schema.names
    assert names[-1] == "mode" and "obs" not in names
    store.close()


def test_conditions_choose_the_episodes_that_a_loop_chooses() -> None:
    """SQL and expressions of pyarrow over facts and annotations, in any order of episodes; nulls match nothing."""
    store, log = written()
    cases: list[tuple[Any, Any]] = [
        (
            "length > 20 and task = 'push' and version > 3",
            lambda e: e["length"] > 20 and e["info"]["task"] == "push" and e["info"]["version"] > 3,
        ),
        ((pc.field("length") > 20) & pc.field("success"), lambda e: e["length"] > 20 and e["info"]["success"]),
        ('"return" >= 10 or lane = 2', lambda e: e["reward"].astype(np.float64).sum() >= 10 or e["lane"] == 2),
        ("\"info.length\" = 'long'", lambda e: e["info"].get("length") == "long"),
        ("notes is null", lambda e: "notes" not in e["info"]),
        ("false", lambda e: False),
    ]
    for where, holds in cases:
        expected = {(e["lane"], e["first_step"]) for e in log if holds(e)}
        for order in ("oldest", "newest", "return", "length"):
            found = store.episodes(order=order, where=where)
            assert {(e.lane, e.first_step) for e in found} == expected, where
            every = [(e.lane, e.first_step) for e in store.episodes(order=order)]
            assert [(e.lane, e.first_step) for e in found] == [one for one in every if one in expected]


@pytest.mark.parametrize(
    ("where", "error", "text"),
    [
        ("lenght > 3", ValueError, "lenght.*an episode has the columns lane, first_step"),
        ("length >", ValueError, "syntax error"),
        ("1=1); select 1; --", ValueError, "where="),
        ("length > (select count(*) from read_csv('/etc/passwd'))", ValueError, "where="),
        (pc.field("nothing") > 1, ValueError, "nothing"),
        (5, TypeError, "expected a condition in SQL"),
    ],
)
def test_conditions_that_are_none_are_refused(where: Any, error: type[Exception], text: str) -> None:
    """The error names the condition and the columns; no file is read."""
    store, _ = written(episodes=4)
    with pytest.raises(error, match=text):
        store.episodes(where=where)


def test_arguments_of_tables_are_checked() -> None:
    """Kinds, fields and lanes that do not exist are named."""
    store, _ = written(episodes=4)
    for arguments, text in (
        ({"kind": "rows"}, "expected 'episodes' or 'steps'"),
        ({"kind": "steps", "fields": ["pixels"]}, "no field 'pixels', expected some of obs, action, mode"),
        ({"kind": "episodes", "fields": ["pixels"]}, "no column 'pixels'"),
        ({"kind": "episodes", "lanes": 9}, "lane 9"),
    ):
        with pytest.raises(ValueError, match=text):
            store.table(**arguments)
    with pytest.raises(TypeError, match="a list of names"):
        store.table("steps", fields="obs")


def test_steps_evicted_while_a_table_is_read_are_left_out() -> None:
    """A reader of a live store gives the steps that are held when their batch is read."""
    store, _ = written(capacity=2_000, episodes=80)
    before = set(store.table("steps", fields=()).read_all()["id"].to_pylist())
    reader = store.table("steps")
    for k in range(30):
        arrays: dict[str, Any] = {
            "obs": np.zeros((41, 2, 3), np.float32),
            "action": np.zeros(40, np.int64),
            "mode": np.zeros(40, np.uint8),
        }
        store.add_episode(lane=k % 3, **arrays, reward=np.zeros(40, np.float32), terminated=True)
    found = set(reader.read_all()["id"].to_pylist())
    now = set(store.table("steps", fields=()).read_all()["id"].to_pylist())
    assert found < before and found <= now and found


def test_an_empty_store_has_empty_tables() -> None:
    """Tables of a store without steps have their columns and no rows."""
    store = sw.Store(SPEC, capacity=100)
    assert store.table("episodes").read_all().num_rows == 0
    steps = store.table("steps").read_all()
    assert steps.num_rows == 0 and steps.schema.names[:2] == ["lane", "first_step"]
    assert len(store.episodes(where="length > 1")) == 0


def test_an_episode_whose_beginning_is_evicted_keeps_its_other_steps_in_the_table() -> None:
    """The reader was made before: it gives the steps that are held when it is read."""
    store = sw.Store(SPEC, capacity=1_000, segment_steps=16)
    arrays: dict[str, Any] = {
        "obs": np.zeros((901, 2, 3), np.float32),
        "action": np.arange(900),
        "mode": np.zeros(900, np.uint8),
    }
    store.add_episode(lane=0, **arrays, reward=np.zeros(900, np.float32), terminated=True)
    reader = store.table("steps")
    for k in range(5):
        some: dict[str, Any] = {
            "obs": np.zeros((61, 2, 3), np.float32),
            "action": np.arange(60),
            "mode": np.zeros(60, np.uint8),
        }
        store.add_episode(lane=1 + k % 2, **some, reward=np.zeros(60, np.float32), terminated=True)
    held = store.table("steps", fields=["action"], lanes=0).read_all()
    assert 0 < held.num_rows < 900
    found = reader.read_all()
    assert found["id"].to_pylist() == held["id"].to_pylist()
    assert found["action"].to_pylist() == held["action"].to_pylist() == list(range(900 - held.num_rows, 900))
    assert set(found["first_step"].to_pylist()) == {0}


def test_names_that_differ_by_case_or_are_taken_have_columns_of_their_own() -> None:
    """Annotations and fields never hide a fact, or each other."""
    spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"), step=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=100)
    info = {"Task": "a", "task": "b", "its place": 7, "info.return": 1, "return": 2, "Length": 3, "n": (1 << 53) + 1}
    store.annotate(0, info, episode=True)
    store.add_episode(
        lane=0, obs=np.zeros(6), action=np.arange(5), step=np.arange(5) + 50, reward=np.ones(5), terminated=True
    )
    store.annotate(0, {"n": 0.5}, episode=True)
    store.add_episode(
        lane=0, obs=np.zeros(4), action=np.arange(3), step=np.arange(3), reward=np.ones(3), terminated=True
    )
    found = store.table("episodes").read_all()
    assert len({name.lower() for name in found.column_names}) == len(found.column_names)
    row = found.to_pylist()[0]
    assert (row["Task"], row["info.task"], row["info.return"], row["info.info.return"]) == ("a", "b", 1, 2)
    assert row["info.Length"] == 3 and row["length"] == 5 and json.loads(row["n"]) == (1 << 53) + 1
    for where, count in (("task = 'a'", 1), ("\"info.task\" = 'b'", 1), ('"its place" = 7', 1), ("length >= 4", 1)):
        assert len(store.episodes(where=where)) == count, where
    steps = store.table("steps").read_all()
    assert steps["step"].to_pylist() == list(range(8)) and steps["field.step"].to_pylist()[:5] == [50, 51, 52, 53, 54]
    with pytest.raises(TypeError, match="a list of names"):
        store.table("steps", fields=5)  # type: ignore[arg-type]


def test_names_that_conditions_share_with_nothing() -> None:
    """Capitals beyond ASCII are other letters to SQL; a name that no episode has is refused, whatever it is."""
    store = sw.Store(sw.Spec(obs=sw.Field((), "uint8"), action=sw.Field((), "int64")), capacity=100)
    for k in range(4):
        store.annotate(0, {"Übung": k, "Task": "push"}, episode=True)
        store.add_episode(obs=np.zeros(4, int), action=np.zeros(3, int), reward=np.zeros(3), terminated=True)
    for where in ('"Übung" = 1', pc.field("Übung") == 1, "TASK = 'push' and \"Übung\" = 1"):
        assert [one.info["Übung"] for one in store.episodes(where=where)] == [1]
        assert len(store.transitions(name=str(where), where=where)) == 3
    for name in ("place", "its place"):
        with pytest.raises(ValueError, match="an episode has the columns"):
            store.episodes(where=f'"{name}" > 0')


@pytest.mark.parametrize("disk", [False, True])
def test_annotations_of_all_times_are_in_the_table(disk: bool, tmp_path: Path) -> None:
    """Episodes of one step up to many segments, annotated before, while and after their steps are written; a later
    value replaces an earlier one, and None removes it, in any order of episodes; so a folder's tables have them."""
    store = sw.Store(SPEC, capacity=4000, segment_steps=16, disk=tmp_path / "s" if disk else None)
    rng, told = np.random.default_rng(1), dict[tuple[int, int], dict[str, Any]]()
    zeros = np.zeros((3, 2, 3), np.float32)
    firsts, open_ = [0, 0, 0], [dict[str, Any]() for _ in range(3)]
    for t in range(600):
        for lane in range(3):
            if rng.random() < 0.3:
                said = {"grade": int(rng.integers(9)), f"by {rng.integers(3)}": f"step {t}"}
                store.annotate(lane, said, episode=True)
                open_[lane] |= said
            if rng.random() < 0.05:
                store.annotate(lane, {"grade": None}, episode=True)
                open_[lane].pop("grade", None)
        ends = rng.random(3) < (0.5, 0.05, 0.01)
        store.extend(
            obs=zeros, action=np.zeros(3, int), mode=np.zeros(3, np.uint8), reward=rng.random(3), terminated=ends,
            truncated=np.zeros(3, bool), final_obs=zeros,
        )  # fmt: skip
        for lane in range(3):
            told[lane, firsts[lane]] = dict(open_[lane])
            if ends[lane]:
                firsts[lane], open_[lane] = t + 1, {}
    for order in ("oldest", "return"):
        for one in store.episodes(order=order):
            assert one.info == told[one.lane, one.first_step]
    rows = store.table("episodes").read_all().to_pylist()
    assert len(rows) == len(told)
    for row in rows:
        said = told[row["lane"], row["first_step"]]
        assert {key: value for key, value in row.items() if key in {"grade", "by 0", "by 1", "by 2"}} == {
            key: said.get(key) for key in ("grade", "by 0", "by 1", "by 2")
        }
    best = store.episodes(order="return", where="grade >= 7")
    assert {(one.lane, one.first_step) for one in best} == {
        at for at, said in told.items() if said.get("grade", 0) >= 7
    }
    store.close()


def test_conditions_read_little_of_a_disk(tmp_path: Path) -> None:
    """A condition on facts reads no segment, one on annotations what precedes their columns, damaged ones included."""
    spec = sw.Spec(obs=sw.Field((4096,), "uint8", codec="raw"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=10_000, segment_steps=32, disk=tmp_path / "s") as store:
        for k in range(20):
            store.annotate(0, {"task": ("push", "pull")[k % 2]}, episode=True)
            obs = np.random.default_rng(k).integers(0, 256, (49, 4096), np.uint8)
            store.add_episode(obs=obs, action=np.zeros(48, np.int64), reward=np.full(48, k), terminated=True)
    (file,) = (one for one in (tmp_path / "s" / "regions").iterdir() if one.stat().st_size > 1 << 16)
    content = bytearray(file.read_bytes())
    at = content.find(np.random.default_rng(3).integers(0, 256, (49, 4096), np.uint8)[7].tobytes())
    assert at > 0
    content[at] ^= 1  # a pixel
    file.write_bytes(content)
    with sw.Store.open(tmp_path / "s") as store:
        before = store.stats()["disk"]["bytes_read"]
        assert len(store.episodes(where='"return" >= 480')) == 10
        assert len(store.episodes(where=(pc.field("length") > 3) & (pc.field("return") < 480))) == 10
        assert store.stats()["disk"]["bytes_read"] == before
        assert [one.info["task"] for one in store.episodes(where="task = 'pull'")] == ["pull"] * 10
        assert len(store.table("episodes").read_all()) == 20
        assert store.stats()["disk"]["bytes_read"] - before < 20 * 48 * 4096 / 8  # the last segment thrice


@pytest.mark.parametrize("shape", [(), (3,), (None,), (None, 3)])
def test_values_of_two_bytes_are_read_by_duckdb(shape: tuple[int | None, ...], tmp_path: Path) -> None:
    """DuckDB has no float16: tables have float32, in which each value is exact."""
    spec = sw.Spec(obs=sw.Field((), "uint8"), action=sw.Field((), "int64"), half=sw.Field(shape, "float16"))
    rng = np.random.default_rng(0)
    values = [rng.standard_normal([k % 4 if axis is None else axis for axis in shape]) for k in range(24)]
    halves = [np.asarray(one, np.float16) for one in values]
    where = "half > 0.5" if shape == () else "len(half) > 1 and action % 2 = 0"
    holds = [bool(one > 0.5) if shape == () else one.size > 1 and k % 2 == 0 for k, one in enumerate(halves)]
    if shape == (None, 3):
        holds = [len(one) > 1 and k % 2 == 0 for k, one in enumerate(halves)]
    with sw.Store(spec, capacity=100, disk=tmp_path / "s") as store:
        for k, half in enumerate(halves):
            store.append(obs=0, action=k, reward=0.0, terminated=k % 8 == 7, truncated=False, half=half)
        steps = duckdb.from_arrow(store.table("steps").read_all())
        for k, half in steps.project("action, half").fetchall():
            assert np.array_equal(np.asarray(half, np.float32).reshape(-1), halves[k].astype(np.float32).reshape(-1)), k
        view = store.transitions(where=where)
        assert sorted(view.fetch(view.sampleable_ids()).action.tolist()) == np.flatnonzero(holds).tolist()
