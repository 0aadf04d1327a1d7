"""Diffusion policy's ``ReplayBuffer``, written as zarr's format 2 says, which its ``save_to_path`` has from zarr 2."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import sharpwave as sw
from tests.data_sets.data import same
from tests.data_sets.test_columns import noted

LENGTHS = [4, 1, 6]
COMPRESSORS: dict[str, Any] = {
    "none": (None, bytes),
    "zlib": ({"id": "zlib", "level": 1}, zlib.compress),
    "zstd": ({"id": "zstd", "level": 0}, zstandard.ZstdCompressor().compress),
}


def blosc(content: bytes) -> bytes:
    numcodecs = pytest.importorskip("numcodecs")
    packed: bytes = numcodecs.Blosc("zstd", 5, numcodecs.Blosc.BITSHUFFLE).encode(content)
    return packed


def write_array(folder: Path, values: Any, chunks: tuple[int, ...], kind: str = "none", **changed: Any) -> None:
    """Write an array in chunks, those at its edges padded, as zarr does."""
    said, pack = COMPRESSORS.get(kind) or ({"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2}, blosc)
    folder.mkdir(parents=True)
    described = {"zarr_format": 2, "shape": values.shape, "chunks": chunks, "dtype": values.dtype.str}
    described |= {"compressor": said, "fill_value": 0, "filters": None, "order": "C"} | changed
    (folder / ".zarray").write_text(json.dumps(described))
    if not values.shape:
        (folder / "0").write_bytes(pack(values.tobytes()))
        return
    for place in itertools.product(*(range(-(-n // size)) for n, size in zip(values.shape, chunks, strict=True))):
        chunk = np.zeros(chunks, values.dtype)
        part = values[tuple(slice(n * size, (n + 1) * size) for n, size in zip(place, chunks, strict=True))]
        chunk[tuple(map(slice, part.shape))] = part
        content = chunk.tobytes(order=described["order"])
        (folder / described.get("dimension_separator", ".").join(map(str, place))).write_bytes(pack(content))


def buffer(seed: int = 0, lengths: list[int] = LENGTHS) -> dict[str, Any]:
    rng, rows = np.random.default_rng(seed), sum(lengths)
    return {
        "action": rng.normal(size=(rows, 2)).astype(np.float32),
        "img": rng.integers(256, size=(rows, 6, 5, 3)).astype(np.float32),
        "state": rng.normal(size=(rows, 5)).astype(np.float32),
    }


def write(folder: Path, data: dict[str, Any], kind: str = "none", lengths: list[int] = LENGTHS, **changed: Any) -> str:
    for group in ("", "data", "meta"):
        (folder / group).mkdir(parents=True, exist_ok=True)
        (folder / group / ".zgroup").write_text('{"zarr_format": 2}')
    for name, values in data.items():
        chunks = (3, 4, 5, 2) if values.ndim == 4 else (4, *values.shape[1:])
        write_array(folder / "data" / name, values, chunks, kind, **changed)
    write_array(folder / "meta" / "episode_ends", np.cumsum(lengths), (len(lengths),))
    return f"zarr:{folder}"


def check(store: sw.Store, data: dict[str, Any]) -> None:
    """Of each episode the last step has no successor, so that of one step has none."""
    for one, rows in zip(store.episodes(), (slice(0, 4), slice(5, 11)), strict=True):
        assert same(one.obs["img"], data["img"][rows]) and same(one.obs["state"], data["state"][rows])
        assert same(one.action, data["action"][rows][:-1]) and one.ended == "truncated" and not one.reward.any()


@pytest.mark.parametrize("kind", [*COMPRESSORS, "blosc"])
def test_a_folder_and_an_archive(tmp_path: Path, kind: str) -> None:
    data = buffer()
    place = write(tmp_path / "x.zarr", data, kind)
    store = sw.load(place)
    check(store, data)
    note = noted(store)
    assert note["audit"]["left_out"]["steps"] == 3 and note["audit"]["left_out"]["episodes"] == 1
    assert note["audit"]["source"]["steps"] == 11 and note["notes"][0] == "read as diffusion policy's ReplayBuffer"
    with zipfile.ZipFile(tmp_path / "x.zarr.zip", "w") as archive:
        for path in sorted((tmp_path / "x.zarr").rglob("*")):
            archive.write(path, path.relative_to(tmp_path / "x.zarr"))
    check(sw.load(str(tmp_path / "x.zarr.zip")), data)


@pytest.mark.parametrize("changed", [{"order": "F"}, {"dimension_separator": "_"}, {"order": "F", "fill_value": None}])
def test_orders_and_separators(tmp_path: Path, changed: dict[str, Any]) -> None:
    place = write(tmp_path / "x.zarr", buffer(), **changed)
    if "dimension_separator" in changed:
        with pytest.raises(ValueError, match="separator '_', expected"):
            sw.load(place)
        return
    check(sw.load(place), buffer())


def test_rewards_and_rows_behind_the_last_episode(tmp_path: Path) -> None:
    data = buffer() | {"reward": np.arange(11, dtype=np.float32)}
    data = {name: np.concatenate([values, values[:3]]) for name, values in data.items()}
    store = sw.load(write(tmp_path / "x.zarr", data))
    assert [one.total_reward for one in store.episodes()] == [0 + 1 + 2, 5 + 6 + 7 + 8 + 9]
    note = noted(store)
    assert "data/img: 3 rows after the last of meta/episode_ends" in note["left_out"]
    assert note["audit"]["left_out"]["reward"] == 3 + 4 + 10


def test_a_chunk_that_is_missing_or_damaged(tmp_path: Path) -> None:
    """Rows 6 to 8, of the last episode only; zarr means the fill value by a missing chunk."""
    place = write(tmp_path / "x.zarr", buffer(), "zlib")
    chunk = tmp_path / "x.zarr" / "data" / "img" / "2.0.0.0"
    good = chunk.read_bytes()
    for bad in (good[:20], good + b"x" * 30, zlib.compress(bytes(1 << 20)), b""):
        chunk.write_bytes(bad)
        if bad[: len(good)] == good:  # what follows is not looked at
            check(sw.load(place), buffer())
            continue
        with pytest.raises(ValueError, match=r"x\.zarr.*img/2\.0\.0\.0"):
            sw.load(place)
        assert [one.length for one in sw.load(place, skip_damaged=True).episodes()] == [3]
    chunk.unlink()
    with pytest.raises(ValueError, match=r"img/2\.0\.0\.0 is missing, expected each chunk; .*trust=True"):
        sw.load(place)
    assert [one.length for one in sw.load(place, skip_damaged=True).episodes()] == [3]
    data = buffer()
    data["img"][6:9, :4, :, :2] = 0
    check(sw.load(place, trust=True), data)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"zarr_format": 3}, "format 3"),
        ({"filters": [{"id": "delta"}]}, "filters"),
        ({"compressor": {"id": "imagecodecs_jpegxl"}}, "compressor 'imagecodecs_jpegxl', expected none or one of"),
        ({"dtype": "|O"}, "dtype '|O', expected booleans"),
        ({"dtype": [["a", "<f4"]]}, "dtype"),
        ({"chunks": [1 << 40, 6, 5, 3]}, "chunks of"),
        ({"chunks": [0, 6, 5, 3]}, "sizes above 0"),
        ({"chunks": [3, 6]}, "as many sizes"),
        ({"shape": [1 << 40, 6, 5, 3]}, "bytes"),
        ({"shape": [-1, 6, 5, 3]}, "a size of -1"),
        ({"shape": [11.0, 6, 5, 3]}, "a size of 11.0"),
    ],
)
def test_descriptions_that_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    place = write(tmp_path / "x.zarr", buffer())
    path = tmp_path / "x.zarr" / "data" / "img" / ".zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ValueError, match=message) as found:
        sw.load(place)
    assert "img" in str(found.value) and str(tmp_path) in str(found.value)


def test_other_stores(tmp_path: Path) -> None:
    place = write(tmp_path / "x.zarr", buffer())
    (tmp_path / "x.zarr" / "data" / "state" / "0.0").unlink()
    os.symlink("/etc/passwd", tmp_path / "x.zarr" / "data" / "state" / "0.0")
    with pytest.raises(ValueError, match=r"state/0\.0.*symbolic link"):
        sw.load(place)
    write_array(tmp_path / "y.zarr" / "data" / "x", np.zeros(3), (3,))
    with pytest.raises(ValueError, match=r"has the arrays \['data/x'\], expected data/\* and meta/episode_ends"):
        sw.load(f"zarr:{tmp_path / 'y.zarr'}")
    (tmp_path / "y.zarr" / "zarr.json").write_text("{}")
    with pytest.raises(ValueError, match="zarr's format 3, expected 2"):
        sw.load(f"zarr:{tmp_path / 'y.zarr'}")
    write(tmp_path / "z.zarr", buffer(), lengths=[4, 6, 20])
    for skip in (False, True):  # which of the ends is wrong nobody knows
        with pytest.raises(ValueError, match="meta/episode_ends has 30, but no array has more than 11 rows"):
            sw.load(f"zarr:{tmp_path / 'z.zarr'}", skip_damaged=skip)
    write(tmp_path / "w.zarr", buffer(), lengths=[4, -2, 9])
    with pytest.raises(ValueError, match="meta/episode_ends falls"):
        sw.load(f"zarr:{tmp_path / 'w.zarr'}")


@pytest.mark.parametrize("separator", [".", "/"])
def test_an_array_without_its_description(tmp_path: Path, separator: str) -> None:
    """Its chunks are still there: rewards would be 0."""
    folder = tmp_path / "x.zarr"
    data = buffer() | {"reward": np.arange(11, dtype=np.float32)}
    for kept in ((), (".zgroup",), ("zarr.json",), (".zmetadata",)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for group in ("", "data", "meta"):
            (folder / group).mkdir(exist_ok=True)
            (folder / group / ".zgroup").write_text('{"zarr_format": 2}')
        for name, values in data.items():
            chunks = (3, *values.shape[1:])
            made = folder / "data" / name
            write_array(made, values, chunks)
        write_array(folder / "meta" / "episode_ends", np.cumsum(LENGTHS), (3,))
        if separator == "/":
            shutil.rmtree(folder / "data" / "reward")
            for n in range(4):
                (folder / "data" / "reward" / str(n)).mkdir(parents=True)
                (folder / "data" / "reward" / str(n) / "0").write_bytes(bytes(12))
        else:
            (folder / "data" / "reward" / ".zarray").unlink()
        for name in kept:
            (folder / "data" / "reward" / name).write_text("{}")
        if kept == (".zmetadata",):
            shutil.rmtree(folder / "data" / "reward")
            (folder / ".zmetadata").write_text(json.dumps({"metadata": {"data/reward/.zarray": {}, ".zgroup": {}}}))
        with pytest.raises(ValueError, match=r"x\.zarr: data/reward has no \.zarray, expected one"):
            sw.load(f"zarr:{folder}")


def test_other_names_in_a_folder_of_arrays(tmp_path: Path) -> None:
    """A group without arrays, and what a file manager leaves behind, are none."""
    place = write(tmp_path / "x.zarr", buffer())
    (tmp_path / "x.zarr" / "data" / ".DS_Store").write_text("x")
    (tmp_path / "x.zarr" / "data" / "group").mkdir()
    (tmp_path / "x.zarr" / "data" / "group" / ".zgroup").write_text('{"zarr_format": 2}')
    check(sw.load(place), buffer())


def test_texts_times_and_scalars_are_left_out(tmp_path: Path) -> None:
    place, rows = write(tmp_path / "z", data := buffer()), sum(LENGTHS)
    write_array(tmp_path / "z/data/fps", np.array(10.0), ())
    write_array(tmp_path / "z/data/word", np.full(rows, "go"), (rows,))
    write_array(tmp_path / "z/data/time", np.arange(rows).astype("M8[ns]"), (rows,))
    text: Any = {"dtype": "|O", "filters": [{"id": "vlen-utf8"}]}
    write_array(tmp_path / "z/data/instruction", np.zeros(rows), (rows,), **text)
    store = sw.load(place)
    check(store, data)
    assert noted(store)["left_out"][:4] == [
        "data/fps (()): not one value a step",
        "data/instruction (|O): no numbers",
        "data/time (<M8[ns]): no numbers",
        "data/word (<U2): no numbers",
    ]
    shutil.rmtree(tmp_path / "z/data/action")
    write_array(tmp_path / "z/data/action", np.full(rows, "go"), (rows,))
    with pytest.raises(ValueError, match=r"data/action/\.zarray: dtype '<U2', expected booleans"):
        sw.load(place)
