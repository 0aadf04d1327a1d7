"""Texts and rows of any length in HDF5 and .npz files, as h5py and numpy write them, beside what these read."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import sharpwave as sw
from tests.data_sets.data import check_d4rl, d4rl
from tests.data_sets.test_columns import noted

LENGTHS = [4, 7, 3]
STEPS = sum(LENGTHS)
WORDS = [f"{row // 3} \u00e4" * (row % 4) for row in range(STEPS)]
TOKENS = [np.arange(row % 5, dtype=np.int32) + row for row in range(STEPS)]


def vlen(rows: list[Any], dtype: Any = np.int32) -> np.ndarray[Any, Any]:
    """Return rows as an array of objects, which h5py writes with the dtype in its metadata."""
    found = np.empty(len(rows), h5py.vlen_dtype(dtype))
    for row, one in enumerate(rows):
        found[row] = one
    return found


def hdf5(folder: Path, **more: Any) -> str:
    """Write the layout of D4RL, and texts as strings of any length."""
    path = folder / "data.hdf5"
    with h5py.File(path, "w") as file:
        for name, values in (d4rl(LENGTHS) | {name.replace("__", "/"): one for name, one in more.items()}).items():
            if isinstance(values, list):
                file.create_dataset(name, data=values, dtype=h5py.string_dtype())
            else:
                file.create_dataset(name, data=values, dtype=values.dtype)
    return f"hdf5:{path}"


def rows(store: sw.Store, name: str) -> list[Any]:
    return [row for one in store.episodes() for row in one[name]]


def test_texts_and_arrays_of_any_length_in_hdf5(tmp_path: Path) -> None:
    fixed = np.array([word.encode() for word in WORDS])
    raw = [bytes([255, row]) for row in range(STEPS)]
    place = hdf5(
        tmp_path, said=WORDS, infos__fixed=fixed, raw=np.array(raw, "V2").view("S2"), tokens=vlen(TOKENS),
        wide=np.array([[b"a"]] * STEPS),
    )  # fmt: skip
    store = sw.load(place)
    check_d4rl(store, d4rl(LENGTHS), LENGTHS)
    fields = store.spec.fields
    assert fields["said"] == fields["infos.fixed"] == sw.Field(str, shared=True)
    assert fields["raw"] == sw.Field(bytes, shared=True) and fields["tokens"] == sw.Field((None,), "int32")
    with h5py.File(place[5:]) as file:
        assert rows(store, "said") == file["said"].asstr()[()].tolist() == WORDS
        assert rows(store, "infos.fixed") == file["infos/fixed"].asstr("utf-8")[()].tolist()
        assert rows(store, "raw") == file["raw"][()].tolist()
        assert all(map(np.array_equal, rows(store, "tokens"), file["tokens"][()]))
    assert noted(store)["left_out"] == [f"wide (({STEPS}, 1) |S1): not one value a step"]


def test_texts_in_observations_and_actions_of_hdf5(tmp_path: Path) -> None:
    """A next observation that differs ends an episode, as of numbers."""
    after = [*WORDS[1:], "the end"]
    after[LENGTHS[0] - 1] = "over"
    flags = dict.fromkeys(("terminals", "timeouts"), np.zeros(STEPS, np.bool_))
    place = hdf5(tmp_path, observations=WORDS, next_observations=after, actions=vlen(TOKENS), **flags)
    store = sw.load(place)
    one, other = store.episodes()
    assert one.obs.strings() == [*WORDS[:4], "over"] and other.obs.strings() == [*WORDS[4:], "the end"]
    assert [row.tolist() for row in (*one.action, *other.action)] == [row.tolist() for row in TOKENS]


def test_texts_of_whole_episodes(tmp_path: Path) -> None:
    task = ["push"] * 4 + ["pull"] * 7 + ["lift", "lift", "drop"]
    store = sw.load(hdf5(tmp_path, task=task))
    assert [one.info.get("task") for one in store.episodes()] == ["push", "pull", None]
    assert rows(store, "task") == task


def test_texts_in_npz(tmp_path: Path) -> None:
    data = d4rl(LENGTHS) | {"said": np.array(WORDS), "raw": np.array([b"\xff", b"a"] * (STEPS // 2))}
    np.savez(tmp_path / "data.npz", **data)
    store = sw.load(f"npz:{tmp_path / 'data.npz'}")
    check_d4rl(store, data, LENGTHS)
    assert rows(store, "said") == WORDS and rows(store, "raw") == data["raw"].tolist()


def robomimic(path: Path, **more: Any) -> str:
    """Write three demonstrations, with texts and lists of any length."""
    with h5py.File(path, "w") as file:
        for number, length in enumerate(LENGTHS):
            group = file.create_group(f"data/demo_{number}")
            group["obs/state"] = np.arange(length * 2.0).reshape(length, 2)
            group["actions"] = np.zeros((length, 2))
            group["dones"] = np.arange(length) == length - 1
            group.create_dataset("obs/said", data=WORDS[:length], dtype=h5py.string_dtype())
            group.create_dataset("tokens", data=vlen(TOKENS[:length]), dtype=h5py.vlen_dtype(np.int32))
            group.create_dataset("lang", data=np.array([f"do {number}".encode()] * length))
    return f"hdf5:{path}"


def test_texts_of_robomimic(tmp_path: Path) -> None:
    store = sw.load(robomimic(tmp_path / "demos.hdf5"))
    assert store.spec.fields["obs.said"] == sw.Field(str) and store.spec.fields["lang"] == sw.Field(str, shared=True)
    for number, (one, length) in enumerate(zip(store.episodes(), LENGTHS, strict=True)):
        assert one.obs["said"].strings() == [*WORDS[:length], WORDS[length - 1]]
        assert all(map(np.array_equal, one["tokens"], TOKENS[:length])) and one.info["lang"] == f"do {number}"
        assert one["lang"].strings() == [f"do {number}"] * length


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("tokens", np.zeros((3, 2), np.int32), r"tokens has rows of \(2,\) int32, expected \(None,\) int32"),
        ("tokens", vlen(TOKENS[:3], np.int64), r"tokens has rows of \(\) object, expected \(None,\) int32"),
        ("lang", np.array([b"a", b"\xff", b"c"]), None),
        ("obs/said", np.array([b"a"] * 2), "obs said has 2 rows, expected 3"),
        ("obs/said", np.array([b"a" * 2_000_000] * 3), "row 0 has 2,000,000 bytes, expected at most 1,048,576"),
    ],
)
def test_damaged_texts_of_robomimic(tmp_path: Path, name: str, values: Any, message: str | None) -> None:
    place = robomimic(tmp_path / "demos.hdf5")
    with h5py.File(place[5:], "r+") as file:
        del file[f"data/demo_2/{name}"]
        file.create_dataset(f"data/demo_2/{name}", data=values, dtype=values.dtype)
    if message is None:  # among the first, so all are bytes
        assert rows(sw.load(place), "lang")[-2] == b"\xff"
        return
    with pytest.raises(ValueError, match=f"demo_2.*{message}"):
        sw.load(place)
    assert len(sw.load(place, skip_damaged=True).episodes()) == 2


@pytest.mark.parametrize("values", [None, np.zeros(3)], ids=["missing", "numbers"])
def test_texts_that_most_demonstrations_have(tmp_path: Path, values: Any) -> None:
    place = robomimic(tmp_path / "demos.hdf5")
    with h5py.File(place[5:], "r+") as file:
        for name in ("lang", "obs/said"):
            del file[f"data/demo_2/{name}"]
            if values is not None:
                file[f"data/demo_2/{name}"] = values
    store = sw.load(place)
    assert rows(store, "lang")[-4:] == ["do 1", "", "", ""]
    assert [set(one.obs["said"].strings()) for one in store.episodes()][2] == {""}
    assert "lang: a text that is missing; stored as empty texts: 1 episodes" in "".join(noted(store)["notes"])


def test_texts_that_most_files_of_aloha_have(tmp_path: Path) -> None:
    for number in range(3):
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["observations/qpos"], file["action"] = np.zeros((3, 2)), np.zeros((3, 1))
            if number != 1:
                file["language"] = np.array([b"go", b"on", b"up"])
    found = [one["language"].strings() for one in sw.load(f"hdf5:{tmp_path}").episodes()]
    assert found == [["go", "on"], ["", ""], ["go", "on"]]


@pytest.mark.parametrize("field", [sw.Field((None,), "float32"), sw.Field((1,), "float32")], ids=["any", "fixed"])
def test_next_observations_with_nan(tmp_path: Path, field: sw.Field) -> None:
    """NaN equals itself, so no episode ends there."""
    obs = [[1.0], [np.nan], [3.0], [4.0]]
    store = sw.Store(sw.Spec(obs=field, action=sw.Field((), "int64")), capacity=9)
    given: Any = [np.array(row, np.float32) for row in obs] if field.ragged else np.array(obs, np.float32)
    store.add_episode(obs=given, action=np.arange(3), reward=np.ones(3), terminated=True)
    store.export(f"hdf5:{tmp_path / 'data'}")
    (one,) = sw.load(f"hdf5:{tmp_path / 'data'}").episodes()
    assert (one.length, one.ended) == (3, "terminated")
    np.testing.assert_array_equal([list(row) for row in one.obs], obs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fixed", [True, False])
def test_next_observations_that_are_rounded(tmp_path: Path, fixed: bool, dtype: Any) -> None:
    """Rows of any length are compared as fixed ones: beside the values of their place, and in the coarser dtype."""
    after = np.array([[1e-9, 2.0], [100.0, 3.0], [7.0, 7.0], [50.0, 5.1], [9.0, 9.0]]).astype(dtype)
    obs = np.array([[80.0, 1.0], [0.0, 2.0000002], [100.0, 3.0], [40.0, 4.0], [50.0, 5.0]])
    kinds = (np.float32, dtype)
    arrays = [
        x.astype(kind) if fixed else vlen(list(x.astype(kind)), kind)
        for x, kind in zip((obs, after), kinds, strict=True)
    ]
    flags = {"terminals": np.arange(5) == 2, "timeouts": np.zeros(5, np.bool_), "rewards": np.zeros(5)}
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        for name, values in {
            "observations": arrays[0],
            "next_observations": arrays[1],
            "actions": np.zeros(5),
            **flags,
        }.items():
            file.create_dataset(name, data=values, dtype=values.dtype)
    store = sw.load(f"hdf5:{path}")
    assert [one.length for one in store.episodes()] == [3, 1, 1]
    assert any("differ from the following observation by rounding" in one for one in noted(store)["notes"])


def test_numbers_of_any_length_in_the_other_byte_order(tmp_path: Path) -> None:
    """h5py reads 1 as 16,777,216; HDF5 itself converts native numbers as it writes them."""
    native, path = vlen(TOKENS), tmp_path / "data.hdf5"
    with h5py.File(hdf5(tmp_path)[5:], "r+") as file:
        made = file.create_dataset("tokens", (STEPS,), h5py.vlen_dtype(np.dtype(">i4")))
        made.id.write(h5py.h5s.ALL, h5py.h5s.ALL, native, h5py.h5t.py_create(native.dtype))
    store = sw.load(f"hdf5:{path}")
    check_d4rl(store, d4rl(LENGTHS), LENGTHS)
    (said,) = noted(store)["left_out"]
    assert "tokens" not in store.spec.fields and said.startswith(
        f"tokens (({STEPS},) object): numbers >i4 of any length"
    )
    with h5py.File(path, "r+") as file:
        del file["actions"]
        file.move("tokens", "actions")
    with pytest.raises(ValueError, match=r"actions: shape .* >i4 of any length cannot be stored"):
        sw.load(f"hdf5:{path}")


@pytest.mark.parametrize("number", [0xD800, 0xDFFF, 0x110000, 0xFFFFFFFF])
def test_texts_of_numbers_that_are_no_characters(tmp_path: Path, number: int) -> None:
    words = np.array(WORDS)
    words.view(np.uint32).reshape(STEPS, -1)[-1, 0] = number
    data = d4rl(LENGTHS)
    np.savez(tmp_path / "data.npz", **data, said=words, more=np.array(WORDS))
    store = sw.load(f"npz:{tmp_path / 'data.npz'}")
    check_d4rl(store, data, LENGTHS)
    assert "said" not in store.spec.fields and rows(store, "more") == WORDS
    (said,) = noted(store)["left_out"]
    assert said.startswith("said (") and "texts with surrogates" in said
    np.savez(tmp_path / "data.npz", **data | {"actions": words})
    with pytest.raises(ValueError, match=r"actions: texts with surrogates.*expected characters"):
        sw.load(f"npz:{tmp_path / 'data.npz'}")


def test_texts_of_no_characters(tmp_path: Path) -> None:
    data = d4rl(LENGTHS)
    np.savez(tmp_path / "data.npz", **data)
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<U0", "fortran_order": False, "shape": (STEPS,)})
    with zipfile.ZipFile(tmp_path / "data.npz", "a") as archive:
        archive.writestr("said.npy", content.getvalue())
    store = sw.load(f"npz:{tmp_path / 'data.npz'}")
    check_d4rl(store, data, LENGTHS)
    assert noted(store)["left_out"] == [f"said (({STEPS},) <U0): texts of 0 characters"]


def test_texts_and_numbers_of_one_name(tmp_path: Path) -> None:
    """Numbers keep it."""
    numbers = np.arange(STEPS)
    store = sw.load(hdf5(tmp_path, **{"a.b": WORDS, "a__b": numbers, "info__weights": WORDS, "weights": numbers}))
    assert rows(store, "a.b") == rows(store, "info.weights") == numbers.tolist()
    left = ["a.b: would have the name of a/b", "info/weights: would have the name of weights"]
    assert sorted(noted(store)["left_out"]) == left


def test_many_rows_that_share_the_bytes_of_a_file(tmp_path: Path) -> None:
    """References of 16 bytes to one text of megabytes, which would be as many texts in memory."""
    path = tmp_path / "data.hdf5"
    data = d4rl([20_000])
    with h5py.File(path, "w") as file:
        for name, values in data.items():
            file[name] = values
        file.create_dataset("said", data=["x" * (1 << 19)], dtype=h5py.string_dtype(), chunks=(1,), maxshape=(None,))
        offset, size = file["said"].id.get_chunk_info(0)[2:4]
    reference = path.read_bytes()[offset : offset + size]
    with h5py.File(path, "r+") as file:
        del file["timeouts"]
        file["timeouts"] = data["timeouts"]
        kept = file.create_dataset("more", shape=(20_000,), dtype=h5py.string_dtype(), fillvalue="")
        kept[:] = [""] * 20_000
        begin = kept.id.get_offset()
    content = bytearray(path.read_bytes())
    content[begin : begin + 16 * 20_000] = reference * 20_000
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"more: rows 0 to .* makes .* bytes at a time, expected at most"):
        sw.load(f"hdf5:{path}")


SAID: dict[str, Any] = {"obs": {"at": sw.Field((2,), "float32"), "said": sw.Field(str)}, "action": sw.Field(str)}


def recorded(**more: Any) -> sw.Store:
    """Return a store of three episodes, with texts and further fields of any length."""
    store = sw.Store(sw.Spec(**SAID, **more), capacity=100)
    for number, length in enumerate(LENGTHS):
        values: dict[str, Any] = {"note": WORDS[:length], "tokens": TOKENS[:length], "raw": [b"\xff"] * length}
        store.add_episode(
            obs={"at": np.full((length + 1, 2), number, np.float32), "said": [*WORDS[:length], "last"]},
            action=[f"{number}!" * row for row in range(length)],
            reward=np.arange(length, dtype=np.float32),
            terminated=number == 1,
            **{name: values[name] for name in more},
        )
    return store


def episodes_of(store: sw.Store) -> list[Any]:
    """Return all values of a store, as plain lists."""
    return [
        (one.obs["at"].tolist(), one.obs["said"].strings(), one.action.strings(), one.reward.tolist(),
         one.terminated.tolist(), one.truncated.tolist(),
         {name: [x.tolist() if hasattr(x, "tolist") else x for x in one[name]] for name in store.spec.extra_names})
        for one in store.episodes()
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["hdf5", "npz", "parquet"])
def test_exports_of_texts(tmp_path: Path, kind: str) -> None:
    numbers = {} if kind == "npz" else {"tokens": sw.Field((None,), "int32")}
    store = recorded(note=sw.Field(str, shared=True), **numbers)
    place = f"{kind}:{tmp_path / 'data'}"
    assert store.export(place) == 3
    again = sw.load(place)
    assert again.spec.fields == store.spec.fields or kind != "parquet"
    assert episodes_of(again) == episodes_of(store)
    if kind == "hdf5":
        with h5py.File(tmp_path / "data") as file:
            assert file["note"].asstr()[()].tolist() == rows(store, "note")
            assert all(map(np.array_equal, file["tokens"][()], rows(store, "tokens")))
    elif kind == "npz":
        with np.load(tmp_path / "data") as data:
            assert data["note"].tolist() == rows(store, "note") and data["actions"].dtype.kind == "U"


def test_lists_of_one_length_in_hdf5(tmp_path: Path) -> None:
    """h5py's assignment would take them for one array."""
    store = sw.Store(sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((None,), "int16")), capacity=10)
    for length in (0, 1, 3):
        store.add_episode(
            obs=np.zeros(3), action=[np.arange(length, dtype=np.int16)] * 2, reward=np.ones(2), terminated=True
        )
    store.export(f"hdf5:{tmp_path / 'data.hdf5'}")
    again = sw.load(f"hdf5:{tmp_path / 'data.hdf5'}")
    assert [[row.tolist() for row in one.action] for one in again.episodes()] == [[[]] * 2, [[0]] * 2, [[0, 1, 2]] * 2]


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("npz", sw.Field((None,), "int32")),
        ("npz", sw.Field(bytes)),
        ("hdf5", sw.Field((None, 2), "int32")),
        ("hdf5", sw.Field(bytes)),
    ],
)
def test_exports_that_a_format_cannot_hold(tmp_path: Path, kind: str, field: sw.Field) -> None:
    store = sw.Store(sw.Spec(obs=sw.Field((), "float32"), action=field), capacity=10)
    row: Any = b"" if field.text else np.zeros((0, *field.inner), np.int32)
    store.add_episode(obs=np.zeros(2), action=[row], reward=[1.0], terminated=True)
    with pytest.raises(
        ValueError, match=f"export to {kind}: field 'action' has rows of any .*; export to parquet:FILE"
    ):
        store.export(f"{kind}:{tmp_path / 'data'}")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("kind", ["hdf5", "npz"])
def test_texts_with_nul_are_refused(tmp_path: Path, kind: str) -> None:
    store = sw.Store(sw.Spec(obs=sw.Field((), "float32"), action=sw.Field(str)), capacity=10)
    store.add_episode(obs=np.zeros(2), action=["a\0"], reward=[1.0], terminated=True)
    with pytest.raises(ValueError, match="export: actions has a text with the character NUL"):
        store.export(f"{kind}:{tmp_path / 'data'}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["hdf5", "npz"])
@pytest.mark.parametrize("name", ["terminal", "truncation"])
def test_fields_that_an_import_would_take_for_ends_are_refused(tmp_path: Path, kind: str, name: str) -> None:
    spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"), **{name: sw.Field(str)})
    store = sw.Store(spec, capacity=10)
    says: dict[str, Any] = {name: ["a"]}
    store.add_episode(obs=np.zeros(2), action=[0], reward=[1.0], terminated=True, **says)
    with pytest.raises(ValueError, match=f"export: the field '{name}' would be read as .*; use parquet:"):
        store.export(f"{kind}:{tmp_path / 'data'}")
    store.export(f"parquet:{tmp_path / 'data'}")


def test_texts_with_nul_in_minari_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    store = sw.Store(sw.Spec(obs={"said": sw.Field(str)}, action=sw.Field((), "int64")), capacity=10)
    store.add_episode(obs={"said": ["a\0", "b"]}, action=[0], reward=[1.0], terminated=True)
    with pytest.raises(ValueError, match=r"export: obs\.said has a text with the character NUL, .* in minari files"):
        store.export("minari:me/said-v0")
    assert list(tmp_path.iterdir()) == []


def test_texts_that_npz_files_would_pad_by_gigabytes(tmp_path: Path) -> None:
    """One long text among 2,000 would make all as long, with four bytes a character."""
    spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"), say=sw.Field(str, shared=True))
    store = sw.Store(spec, capacity=2000)
    says = ["long" * 75_000, *[""] * 1999]
    store.add_episode(obs=np.zeros(2001), action=np.zeros(2000, int), reward=np.zeros(2000), terminated=True, say=says)
    with pytest.raises(ValueError, match=r"say has a text of 300,000 .* takes 2,400,000,000 bytes .* parquet:FILE"):
        store.export(f"npz:{tmp_path / 'data.npz'}")
    assert list(tmp_path.iterdir()) == []
    store.export(f"parquet:{tmp_path / 'data.parquet'}")


def test_exports_of_texts_to_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    store = recorded(note=sw.Field(str, shared=True), raw=sw.Field(bytes))  # further fields are not written
    store.export("minari:me/said-v0")
    data = minari.load_dataset("me/said-v0")
    for one, other in zip(store.episodes(), data.iterate_episodes(), strict=True):
        assert other.observations["said"] == one.obs["said"].strings() and other.actions == one.action.strings()
        assert all(data.spec.observation_space["said"].contains(text) for text in other.observations["said"])
        assert all(data.spec.action_space.contains(text) for text in other.actions)
        np.testing.assert_array_equal(other.rewards, one.reward)
        np.testing.assert_array_equal(other.observations["at"], one.obs["at"])
    again = sw.load("minari:me/said-v0")
    assert [one[:-1] for one in episodes_of(again)] == [one[:-1] for one in episodes_of(store)]
