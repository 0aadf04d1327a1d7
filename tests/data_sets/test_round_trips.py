"""Data sets go into a store and out of it without a bit being changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import sharpwave as sw
from tests.data_sets.data import check_d4rl, check_same, d4rl, same

minari = pytest.importorskip("minari")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

LENGTHS = [1, 70, 3, 200, 129]


def write(path: Path, data: dict[str, Any]) -> str:
    if path.suffix == ".npz":
        np.savez(path, **data)
    else:
        with h5py.File(path, "w") as file:
            for name, values in data.items():
                file[name] = values
            file["metadata/algorithm"] = "none"
    return f"{path.suffix[1:]}:{path}"


@pytest.mark.parametrize("ending", ["npz", "hdf5"])
def test_d4rl_layout_is_imported_exactly(tmp_path: Path, ending: str) -> None:
    data = d4rl(LENGTHS)
    store = sw.load(write(tmp_path / f"data.{ending}", data))
    assert store.spec.fields["obs"].dtype == "float64" and len(store) == sum(LENGTHS)
    check_d4rl(store, data, LENGTHS)


@pytest.mark.parametrize("ending", ["npz", "hdf5"])
def test_chunks_do_not_show(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharpwave.data.columns.CHUNK_BYTES", 24 * 7)
    data = d4rl(LENGTHS)
    check_d4rl(sw.load(write(tmp_path / f"data.{ending}", data)), data, LENGTHS)


def test_a_next_observation_that_is_another_ends_an_episode(tmp_path: Path) -> None:
    data = d4rl([20])
    data["terminals"][:] = data["timeouts"][:] = False
    data["next_observations"][6] += 1
    store = sw.load(write(tmp_path / "data.npz", data))
    assert [one.length for one in store.episodes()] == [7, 13]
    first, second = store.episodes()
    assert same(first.obs[-1], data["next_observations"][6]) and first.ended == "truncated"
    assert same(second.obs[-1], data["next_observations"][19]) and second.ended == "truncated"


def test_without_next_observations_no_successor_is_invented(tmp_path: Path) -> None:
    lengths = [4, 5, 6, 1, 2, 3]  # terminated, timed out, ...
    data = d4rl(lengths, with_next=False)
    store = sw.load(write(tmp_path / "data.hdf5", data))
    assert [(one.length, one.ended) for one in store.episodes()] == [
        (4, "terminated"), (4, "truncated"), (6, "terminated"), (2, "terminated"), (2, "truncated"),
    ]  # fmt: skip
    timed_out = store.episodes()[1]
    assert same(timed_out.obs, data["observations"][4:9]) and same(timed_out.action, data["actions"][4:8])
    (note,) = store.annotations()["imports"].values()
    assert "3 steps" in note["left_out"][0]


def make_minari(name: str, env: gym.Env[Any, Any], episodes: int, infos: bool = False) -> Any:
    collector = minari.DataCollector(env, record_infos=infos)
    collector.action_space.seed(0)
    for seed in range(episodes):
        collector.reset(seed=seed)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = collector.step(collector.action_space.sample())
            ended = terminated or truncated
    return collector.create_dataset(dataset_id=name)


class Nested(gym.Env[Any, Any]):
    """Environment of dicts and tuples that ends both ways at once in every second episode."""

    observation_space = gym.spaces.Dict(
        {
            "image": gym.spaces.Box(0, 255, (8, 6, 3), np.uint8),
            "arm": gym.spaces.Dict({"joints": gym.spaces.Box(-1, 1, (3,), np.float64)}),
            "pair": gym.spaces.Tuple([gym.spaces.Discrete(5), gym.spaces.MultiBinary(4)]),
        }
    )
    action_space = gym.spaces.Dict({"move": gym.spaces.Discrete(3), "force": gym.spaces.Box(-1, 1, (2,), np.float32)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.step_number, self.both = 0, bool((seed or 0) % 2)
        return self.observation_space.sample(), {"power": 0.5}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        end = self.step_number == 9
        info = {"power": float(self.step_number)}
        return self.observation_space.sample(), 0.25 * self.step_number, end and self.both, end, info


@pytest.mark.parametrize("kind", ["CartPole-v1", "Pendulum-v1", "nested"])
def test_minari_in_and_out_of_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    nested = kind == "nested"
    env = Nested() if nested else gym.make(kind, max_episode_steps=70)
    made = minari_made = make_minari("test/toy/random-v0", env, 4, infos=nested)
    store = sw.load("minari:test/toy/random-v0")
    for one, other in zip(store.episodes(), made.iterate_episodes(), strict=True):
        assert same(one.obs, other.observations) and same(one.action, other.actions)
        assert same(one.reward, other.rewards.astype(np.float32))
        assert same(one.terminated, other.terminations) and same(one.truncated, other.truncations)
        assert one.info["seed"] == other.id  # as reset above
        if nested:
            assert same(one["infos.power"], other.infos["power"][1:])
    targets = [f"npz:{tmp_path}/out.npz", f"hdf5:{tmp_path}/out.hdf5", f"parquet:{tmp_path}/out.parquet"]
    for target in targets:
        assert store.export(target) == 4
        back = sw.load(target)
        for a, b in zip(store.episodes(), back.episodes(), strict=True):
            assert same(a.obs, b.obs) and same(a.action, b.action) and same(a.reward, b.reward)
            assert same(a.terminated, b.terminated) and same(a.truncated, b.truncated)
            assert all(same(a[name], b[name]) for name in store.spec.extra_names)
    check_same(store, sw.load(targets[2]))  # which keeps annotations, too
    store.export("minari:test/copy-v1")
    copy = minari.load_dataset("test/copy-v1")
    assert copy.observation_space == minari_made.observation_space and copy.action_space == minari_made.action_space
    for mine, other in zip(copy.iterate_episodes(), made.iterate_episodes(), strict=True):
        assert same(mine.observations, other.observations) and same(mine.actions, other.actions)
        assert same(mine.rewards, other.rewards.astype(np.float32))
        assert same(mine.terminations, other.terminations) and same(mine.truncations, other.truncations)
    assert [one["seed"] for one in copy.storage.get_episode_metadata(range(4))] == [0, 1, 2, 3]
    path = tmp_path / "minari" / "test" / "copy-v1" / "data" / "metadata.json"
    said = json.loads(path.read_text())
    said["env_spec"] = '{"entry_point": "os:abort"}'  # which minari would call, if there were no space
    path.write_text(json.dumps({key: value for key, value in said.items() if key != "action_space"}))
    with pytest.raises(ValueError, match="has no spaces"):
        sw.load("minari:test/copy-v1")


def test_parquet_rows_are_readable_by_others(tmp_path: Path) -> None:
    data = d4rl([3, 2])
    store = sw.load(write(tmp_path / "data.npz", data))
    store.export(f"parquet:{tmp_path}/out.parquet")
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column("episode").to_pylist() == [0, 0, 0, 0, 1, 1, 1]
    assert table.column("is_last").to_pylist() == [False] * 3 + [True] + [False] * 2 + [True]
    assert table.column("obs").to_pylist()[3] == data["next_observations"][2].tolist()
    assert table.column("action").to_pylist()[3] is None and table.column("reward").to_pylist()[6] is None
    assert table.column("terminated").to_pylist() == [False, False, True, None, False, False, None]


def test_nothing_is_overwritten_and_nothing_half_written_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    store = sw.load(write(tmp_path / "data.npz", d4rl([30, 40])))
    calls, written = 0, set[str]()

    def breaking(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        raise KeyboardInterrupt

    for target in ("npz:{}/a.npz", "hdf5:{}/a.hdf5", "parquet:{}/a.parquet", "minari:aa/b-v0"):
        target = target.format(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            store.export(target, progress=breaking)
        left = {one.name for one in tmp_path.rglob("*")} - {"minari", "data.npz"}
        assert left <= written, left
        written |= {"aa", "b-v0", *MINARI_FILES} if target.startswith("minari") else {Path(target.split(":")[1]).name}
        assert store.export(target) == 2
        before = [(one, one.stat().st_mtime_ns) for one in sorted(tmp_path.rglob("*")) if one.is_file()]
        with pytest.raises(FileExistsError, match="exists"):
            store.export(target)
        assert before == [(one, one.stat().st_mtime_ns) for one in sorted(tmp_path.rglob("*")) if one.is_file()]
    assert calls == 4


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    """In a process of its own, which the HDF5 library used to end."""
    code = """
import resource, sys, numpy as np, sharpwave as sw
store = sw.Store(sw.Spec(obs=sw.Field((64, 64), "uint8"), action=sw.Field((), "int64")), capacity=1000)
noise = np.random.default_rng(0).integers(0, 256, (301, 64, 64), dtype=np.uint8)
store.add_episode(obs=noise, action=np.zeros(300, int), reward=np.zeros(300), terminated=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
for target in sys.argv[1:]:
    try:
        store.export(target)
    except OSError as error:
        print(error)
"""
    targets = [f"{ending}:{tmp_path / 'new'}.{ending}" for ending in ("hdf5", "npz", "parquet")]
    ran = subprocess.run([sys.executable, "-c", code, *targets], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("could not be written") == 3 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit", [0, 100, 1000, 10_000, 300_000, 1_233_000])
def test_a_full_disk_ends_a_minari_export_by_an_error_that_leaves_nothing(tmp_path: Path, limit: int) -> None:
    """In a process of its own, which the HDF5 library used to end, or to crash when it ended."""
    code = """
import resource, sys, numpy as np, sharpwave as sw
store = sw.Store(sw.Spec(obs=sw.Field((64, 64), "uint8"), action=sw.Field((), "int64")), capacity=1000)
noise = np.random.default_rng(0).integers(0, 256, (101, 64, 64), dtype=np.uint8)
for _ in range(3):
    store.add_episode(obs=noise, action=np.zeros(100, int), reward=np.zeros(100), terminated=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
for _ in range(2):
    try:
        store.export("minari:aa/bb/full-v0")
    except OSError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(store.export("minari:aa/other-v0"))
"""
    environment = os.environ | {"MINARI_DATASETS_PATH": str(tmp_path / "new" / "minari")}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(limit)], capture_output=True, text=True, timeout=120, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    *refused, exported = ran.stdout.splitlines()
    assert len(refused) == 2 and exported == "3", ran.stdout
    assert all("'aa/bb/full-v0' could not be written (File too large); nothing is left" in one for one in refused)
    assert {one.name for one in tmp_path.rglob("*")} == {"new", "minari", "aa", "other-v0", *MINARI_FILES}


def test_two_exports_of_one_minari_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    store = sw.load(write(tmp_path / "data.npz", d4rl([30, 40, 5])))
    rewards = [one.reward.tolist() for one in store.episodes()]
    code = "import sys, sharpwave as sw; sw.load('npz:' + sys.argv[1]).export('minari:aa/same-v0', order='newest')"

    def meanwhile(done: int, total: int) -> None:
        if done == 30:
            subprocess.run([sys.executable, "-c", code, str(tmp_path / "data.npz")], check=True, timeout=120)

    with pytest.raises(FileExistsError, match="by now"):
        store.export("minari:aa/same-v0", progress=meanwhile)
    other = sw.load("minari:aa/same-v0")
    assert [one.reward.tolist() for one in other.episodes()] == rewards[::-1]
    assert {one.name for one in (tmp_path / "minari" / "aa").iterdir()} == {"same-v0", "namespace_metadata.json"}
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match=r"'aa/other-v0' takes some 3,600 bytes, and .* has 1,000 left"):
        store.export("minari:aa/other-v0")


MINARI_FILES = {"main_data.hdf5", "metadata.json", "namespace_metadata.json", "data"}


def test_into_a_store_of_other_dtypes_and_fewer_fields(tmp_path: Path) -> None:
    data = d4rl([5, 6])
    source = write(tmp_path / "data.npz", data)
    spec = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((2,), "float32"))
    store = sw.load(source, sw.Store(spec, capacity=100))
    assert same(store.episodes()[0].obs[:-1], data["observations"][:5].astype(np.float32))
    (note,) = store.annotations()["imports"].values()
    assert note["left_out"] == ["infos.qpos: the store has no such field"]
    for wrong in (
        sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((2,), "float32")),
        sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((2,), "float32"), mass=sw.Field((), "float32")),
    ):
        other = sw.Store(wrong, capacity=100)
        with pytest.raises(ValueError, match=r"expected|has no"):
            sw.load(source, other)
        assert len(other) == 0 and not other.annotations()


ANY_LENGTH = sw.Spec(
    obs=sw.Field((2,), "float32"),
    action=sw.Field((), "int64"),
    token=sw.Field((None,), "int32"),
    vector=sw.Field((None, 3), "float32"),
    text=sw.Field(str),
    blob=sw.Field(bytes),
)


def rows_of_any_length(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(3)
    return [
        {
            "token": random.integers(0, 9, random.integers(0, 5)).astype("int32"),
            "vector": random.normal(size=(random.integers(0, 3), 3)).astype("float32"),
            "text": "\u00e9\U0001f600" * int(random.integers(0, 3)),
            "blob": random.bytes(int(random.integers(0, 4))),
        }
        for _ in range(count)
    ]


def test_rows_of_any_length_go_through_parquet(tmp_path: Path) -> None:
    store, rows = sw.Store(ANY_LENGTH, capacity=100), rows_of_any_length(40)
    rows[:5] = [{"token": [], "vector": np.zeros((0, 3)), "text": "", "blob": b""}] * 5  # an episode without a value
    for k, row in enumerate(rows):
        store.append(obs=[k, 0], action=k, reward=k, terminated=k % 5 == 4, truncated=False, **row)
    target = f"parquet:{tmp_path / 'out.parquet'}"
    assert store.export(target) == 8
    loaded = sw.load(target)
    assert loaded.spec == ANY_LENGTH and len(loaded) == 40
    found = (step for one in loaded.episodes() for step in zip(*(one[name] for name in rows[0]), strict=True))
    for row, (token, vector, text, blob) in zip(rows, found, strict=True):
        np.testing.assert_array_equal(token, row["token"])
        np.testing.assert_array_equal(vector, row["vector"])
        assert (text, blob) == (row["text"], row["blob"])
    numbers = parquet.read_table(tmp_path / "out.parquet").column("token").to_pylist()  # as others read it
    assert [one for one in numbers if one is not None] == [list(row["token"]) for row in rows]


@pytest.mark.parametrize(("name", "value"), [("token", [1, None]), ("token", None), ("text", None), ("vector", [None])])
def test_a_null_in_a_row_of_any_length_is_named(tmp_path: Path, name: str, value: Any) -> None:
    store = sw.Store(ANY_LENGTH, capacity=100)
    for k, row in enumerate(rows_of_any_length(5)):
        store.append(obs=[k, 0], action=k, reward=k, terminated=k == 4, truncated=False, **row)
    path = tmp_path / "out.parquet"
    store.export(f"parquet:{path}")
    table = parquet.read_table(path)
    values = table.column(name).to_pylist()
    values[2] = value
    place = table.schema.get_field_index(name)
    parquet.write_table(
        table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type)), path
    )
    with pytest.raises(ValueError, match=r"episode 0 is damaged: a null where a value is expected"):
        sw.load(f"parquet:{path}")
