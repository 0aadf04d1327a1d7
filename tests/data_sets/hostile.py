"""Data sets that nobody should trust: small files that would take gigabytes, hours, or what lies outside their folder.

    PYTHONPATH=src:. python -m tests.data_sets.hostile [NAME...]

writes each, loads it in a process of its own, and prints what that took and said. ``test_bounds.py`` runs it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import struct
import sys
import tempfile
import time
import traceback
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from PIL import Image

import sharpwave as sw
from sharpwave.data.tfrecord import masked_crc
from tests.data_sets.data import d4rl

DATA = Path(__file__).parent.parent / "data"
MAX_S = 60
CASES: dict[str, Callable[[Path], str]] = {}
"""Makers of data sets by name: each writes one into an empty folder, and returns what to load."""


def case(maker: Callable[[Path], str]) -> Callable[[Path], str]:
    CASES[maker.__name__] = maker
    return maker


def deflated(nbytes: int) -> bytes:
    """Return whole MiB of zeros as ``zlib`` compresses them; each is the same bytes, so that one is compressed."""
    packer = zlib.compressobj(9, wbits=-15)
    part = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    last, checksum = b"\x03\x00", (nbytes % 65521) << 16 | 1  # a block of nothing; Adler-32 of zeros
    return b"\x78\xda" + part * (nbytes >> 20) + last + checksum.to_bytes(4, "big")


def zeros_npz(path: Path, rows: int, ends: bool = False, **more: int) -> str:
    """An archive of zeros, written in parts."""
    arrays = {"observations": rows, "actions": rows, "rewards": rows, "terminals": rows} | more
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, count in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                said = {"descr": "|u1", "fortran_order": False, "shape": (count,)}
                np.lib.format.write_array_header_1_0(file, said)
                part = np.full(1 << 20, ends and name == "terminals", np.uint8)
                for begin in range(0, count, 1 << 20):
                    file.write(part[: count - begin].tobytes())
    return f"npz:{path}"


def npz_with(path: Path, **changed: Any) -> str:
    np.savez(path, **(d4rl([4, 6]) | changed))
    return f"npz:{path}"


@case
def npz_fifo(folder: Path) -> str:
    os.mkfifo(folder / "x.npz")
    return f"npz:{folder / 'x.npz'}"


@case
def npz_link_to_zeros(folder: Path) -> str:
    (folder / "x.npz").symlink_to("/dev/zero")
    return f"npz:{folder / 'x.npz'}"


@case
def npz_folder(folder: Path) -> str:
    (folder / "x.npz").mkdir()
    return f"npz:{folder / 'x.npz'}"


@case
def npz_one_step_episodes(folder: Path) -> str:
    return zeros_npz(folder / "x.npz", 3_000_000, ends=True)


@case
def npz_rows(folder: Path) -> str:
    return zeros_npz(folder / "x.npz", 10_000_000)


@case
def npz_lzma(folder: Path) -> str:
    with zipfile.ZipFile(folder / "x.npz", "w", zipfile.ZIP_LZMA) as archive:
        for name, values in d4rl([4, 6]).items():
            content = io.BytesIO()
            np.save(content, values)
            archive.writestr(f"{name}.npy", content.getvalue())
    changed = bytearray((folder / "x.npz").read_bytes())
    at = changed.index(b"\x09\x04\x05\x00") + 5
    changed[at : at + 4] = b"\xff\xff\xff\xff"
    (folder / "x.npz").write_bytes(changed)  # a dictionary of 4 GiB
    return f"npz:{folder / 'x.npz'}"


@case
def npz_version_of_archive(folder: Path) -> str:
    npz_with(folder / "x.npz")
    content = (folder / "x.npz").read_bytes()
    at = content.index(b"PK\x01\x02") + 6
    (folder / "x.npz").write_bytes(content[:at] + b"\xff\x00" + content[at + 2 :])
    return f"npz:{folder / 'x.npz'}"


@case
def npz_trees(folder: Path) -> str:
    data = d4rl([4, 6], with_next=False)
    data["observations/a"], data["observations/a/b"] = data["observations"], data.pop("observations")
    np.savez(folder / "x.npz", **data)
    return f"npz:{folder / 'x.npz'}"


@case
def npz_tree_in_an_array(folder: Path) -> str:
    return npz_with(folder / "x.npz", **{"observations/a": np.zeros((10, 3))})


def hdf5(folder: Path, change: Callable[[Any], None], without: tuple[str, ...] = ("observations",)) -> str:
    with h5py.File(folder / "x.h5", "w") as file:
        for name, values in d4rl([40, 60], with_next=False).items():
            if name not in without:
                file[name] = values
        change(file)
    return f"hdf5:{folder / 'x.h5'}"


@case
def hdf5_fifo(folder: Path) -> str:
    os.mkfifo(folder / "x.h5")
    return f"hdf5:{folder / 'x.h5'}"


@case
def hdf5_twice_compressed(folder: Path) -> str:
    def change(file: Any) -> None:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((10, 1 << 21))
        plist.set_deflate(9)
        plist.set_deflate(9)
        space = h5py.h5s.create_simple((100, 1 << 21))
        made = h5py.h5d.create(file.id, b"observations", h5py.h5t.NATIVE_UINT8, space, plist)
        one = zlib.compress(zlib.compress(bytes(10 << 21), 9), 9)
        for row in range(0, 100, 10):
            made.write_direct_chunk((row, 0), one)

    return hdf5(folder, change)


@case
def hdf5_chunk_of_more_than_its_shape(folder: Path) -> str:
    def change(file: Any) -> None:
        made = file.create_dataset("observations", (100, 4), "f4", chunks=(100, 4), compression=9)
        made.id.write_direct_chunk((0, 0), deflated(1000 << 20))

    return hdf5(folder, change)


@case
def hdf5_parameters_of_a_filter(folder: Path) -> str:
    def change(file: Any) -> None:
        file.create_dataset("observations", (100, 4), "i4", chunks=(100, 4), scaleoffset=0)

    return hdf5(folder, change)


@case
def hdf5_compressor_of_any_ratio(folder: Path) -> str:
    def change(file: Any) -> None:
        file.create_dataset("observations", (100, 4), "f4", chunks=(100, 4), compression="lzf")

    return hdf5(folder, change)


@case
def hdf5_name_of_kilobytes(folder: Path) -> str:
    def change(file: Any) -> None:
        group = file.create_group("g" * 60_000)
        group["0"] = np.zeros(100)
        for number in range(1, 40):
            group[str(number)] = group["0"]

    return hdf5(folder, change)


@case
def hdf5_one_episode(folder: Path) -> str:
    def change(file: Any) -> None:
        made = file.create_dataset("observations", (100, 1 << 25), "u1", chunks=(1, 1 << 25), compression=9)
        one = zlib.compress(bytes(1 << 25), 9)
        for row in range(100):
            made.id.write_direct_chunk((row, 0), one)

    return hdf5(folder, change)


@case
def hdf5_chunk_of_gigabytes(folder: Path) -> str:
    def change(file: Any) -> None:
        file.create_dataset("observations", (100, 3), "u1", chunks=(1 << 29, 3), maxshape=(None, 3), compression=9)

    return hdf5(folder, change)


@case
def hdf5_hard_links(folder: Path) -> str:
    def change(file: Any) -> None:
        file["observations"] = np.zeros((100, 3))
        group = file.create_group("l0")
        for _ in range(7):
            inner = group.create_group("g0")
            for number in range(1, 11):
                group[f"g{number}"] = inner
            group = inner

    return hdf5(folder, change)


@case
def hdf5_unknown_filter(folder: Path) -> str:
    def change(file: Any) -> None:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((100, 3))
        plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((100, 3))
        h5py.h5d.create(file.id, b"observations", h5py.h5t.NATIVE_UINT8, space, plist)

    return hdf5(folder, change)


@case
def hdf5_virtual_of_itself(folder: Path) -> str:
    def change(file: Any) -> None:
        layout = h5py.VirtualLayout((100, 3), "f8")
        layout[:] = h5py.VirtualSource(".", "actions", (100, 3))
        file.create_virtual_dataset("observations", layout)

    return hdf5(folder, change)


@case
def hdf5_soft_link(folder: Path) -> str:
    return hdf5(folder, lambda file: file.__setitem__("observations", h5py.SoftLink("/actions")))


def exported(folder: Path, steps: int = 20) -> Path:
    path = folder / "x.parquet"
    spec = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "uint8"))
    with sw.Store(spec, capacity=max(100, steps)) as store:
        zeros = np.zeros(steps + 1, np.uint8)
        store.add_episode(obs=np.zeros((steps + 1, 3), np.float32), action=zeros[1:], reward=zeros[1:], terminated=True)
        store.export(f"parquet:{path}")
    return path


@case
def parquet_fifo(folder: Path) -> str:
    os.mkfifo(folder / "x.parquet")
    return f"parquet:{folder / 'x.parquet'}"


@case
def parquet_info(folder: Path) -> str:
    table = parquet.read_table(exported(folder, 100))
    info = pa.array(["x" * (1 << 20)] * len(table), pa.string())
    table = table.set_column(table.column_names.index("info"), "info", info)
    parquet.write_table(table, folder / "x.parquet", compression="zstd", row_group_size=len(table))
    return f"parquet:{folder / 'x.parquet'}"


@case
def parquet_prefixes(folder: Path) -> str:
    """Texts of which each is the one before."""
    table = parquet.read_table(exported(folder, 100))
    info = pa.array(["x" * (1 << 20)] * len(table), pa.string())
    table = table.set_column(table.column_names.index("info"), "info", info)
    parquet.write_table(
        table, folder / "x.parquet", compression="zstd", row_group_size=len(table), use_dictionary=False,
        column_encoding={"info": "DELTA_BYTE_ARRAY"},
    )  # fmt: skip
    return f"parquet:{folder / 'x.parquet'}"


@case
def parquet_rows(folder: Path) -> str:
    schema = parquet.read_schema(exported(folder))
    count = 3_000_000

    def column(field: Any) -> Any:
        if pa.types.is_fixed_size_list(field.type):
            return pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(count * 3, np.float32)), type=field.type)
        return (
            pa.nulls(count, field.type)
            if pa.types.is_string(field.type)
            else pa.array(np.zeros(count, np.bool_)).cast(field.type)
        )

    arrays = [column(field) for field in schema]
    parquet.write_table(pa.table(arrays, schema=schema), folder / "x.parquet", compression="zstd", row_group_size=count)
    return f"parquet:{folder / 'x.parquet'}"


def lerobot(folder: Path, layout: str = "v2.1", **info: Any) -> Path:
    """A copy of a sound data set, with other values in ``info.json``."""
    made = folder / "set"
    shutil.copytree(DATA / "lerobot" if layout == "images" else DATA / "lerobot_video" / layout, made)
    path = made / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | info))
    return made


def change_column(path: Path, name: str, values: Callable[[int], Any], **settings: Any) -> None:
    table = parquet.read_table(path)
    made = values(len(table))
    at = table.column_names.index(name) if name in table.column_names else None
    table = table.append_column(name, made) if at is None else table.set_column(at, name, made)
    parquet.write_table(table, path, **settings)


def texts(rows: int) -> Any:
    """A thousand texts in each row, of a megabyte each, which are the same one."""
    one = pa.array(["x" * (1 << 20)])
    many = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000 * rows, np.int32)), one)
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * 1000), many)


@case
def lerobot_fifo_of_info(folder: Path) -> str:
    path = lerobot(folder) / "meta" / "info.json"
    path.unlink()
    os.mkfifo(path)
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_fifo_of_data(folder: Path) -> str:
    path = lerobot(folder) / "data" / "chunk-000" / "episode_000000.parquet"
    path.unlink()
    os.mkfifo(path)
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_fifo_of_video(folder: Path) -> str:
    path = next(lerobot(folder).rglob("*.mp4"))
    path.unlink()
    os.mkfifo(path)
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_link_out(folder: Path) -> str:
    path = next(lerobot(folder).rglob("*_000000.parquet"))
    path.rename(folder / "elsewhere.parquet")
    path.symlink_to(folder / "elsewhere.parquet")
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_link_of_a_folder_out(folder: Path) -> str:
    path = lerobot(folder) / "data"
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_unlisted_column(folder: Path) -> str:
    path = next(lerobot(folder).rglob("*_000000.parquet"))
    change_column(path, "more", texts, compression="zstd", store_schema=False)
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_long_lists(folder: Path) -> str:
    """A column of the right name, whose lists are of 33 million."""
    path = next(lerobot(folder).rglob("*_000000.parquet"))

    def values(rows: int) -> Any:
        flat, offsets = pa.array(np.zeros(rows << 25, np.int8)), np.arange(rows + 1, dtype=np.int64) << 25
        return pa.LargeListArray.from_arrays(pa.array(offsets), flat)

    change_column(path, "observation.state", values, compression="zstd")
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_fixed_lists_of_nulls(folder: Path) -> str:
    path = next(lerobot(folder).rglob("*_000000.parquet"))
    kind = pa.list_(pa.float32(), 1 << 22)
    change_column(path, "observation.state", lambda n: pa.array([None] * n, kind), compression="zstd")
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_tasks(folder: Path) -> str:
    path = next(lerobot(folder, "images").rglob("meta/episodes/*/*.parquet"))
    change_column(path, "tasks", texts, compression="zstd", store_schema=False)
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_one_step_episodes(folder: Path) -> str:
    path = next(lerobot(folder, "images").rglob("meta/episodes/*/*.parquet"))
    table, count = parquet.read_table(path), 300_000
    columns = {"episode_index", "length", "data/chunk_index", "data/file_index", "dataset_from_index"}
    ones = {name: pa.array(np.ones(count, np.int64)) for name in table.column_names if name in columns}
    ones["tasks"] = pa.nulls(count, pa.list_(pa.string()))
    parquet.write_table(pa.table(ones), path, compression="zstd", row_group_size=count)
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_tasks_of_structs(folder: Path) -> str:
    """Values of a byte in the file, which are dicts in Python."""
    path = next(lerobot(folder, "images").rglob("meta/episodes/*/*.parquet"))

    def values(rows: int) -> Any:
        each = 5_000_000
        inner = pa.StructArray.from_arrays([pa.nulls(rows * each, pa.int8())], names=["a"])
        return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * each), inner)

    change_column(path, "tasks", values, compression="zstd")
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_short_tasks(folder: Path) -> str:
    """Texts of two bytes in the file, which take 51 in Python."""
    path = next(lerobot(folder, "images").rglob("meta/episodes/*/*.parquet"))

    def values(rows: int) -> Any:
        each = 5_000_000
        many = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows * each, np.int32)), pa.array(["xy"]))
        return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * each), many)

    change_column(path, "tasks", values, compression="zstd", store_schema=False)
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_row_group_a_row(folder: Path) -> str:
    """An episode of many row groups, each of which is within the bounds."""
    path = next(lerobot(folder, "images").rglob("meta/episodes/*/*.parquet"))
    parquet.write_table(parquet.read_table(path).slice(0, 1), path)
    change_column(path, "length", lambda rows: pa.array([56]))
    path = next((folder / "set").rglob("data/*/*.parquet"))
    each = 2_000_000

    def values(rows: int) -> Any:
        flat = pa.array(np.zeros(rows * each))
        return pa.LargeListArray.from_arrays(pa.array(np.arange(rows + 1) * each), flat)

    change_column(path, "observation.state", values, compression="zstd", row_group_size=1, use_dictionary=False)
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_texts_of_an_extension_type(folder: Path) -> str:
    path = next(lerobot(folder, "images").rglob("data/*/*.parquet"))

    def values(rows: int) -> Any:
        return pa.ExtensionArray.from_storage(pa.json_(), pa.repeat("x" * (14 << 20), rows))

    change_column(path, "observation.images.top", values, compression="zstd")
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_jpeg_of_many_scans(folder: Path) -> str:
    """Scans of 12 bytes each, of which each goes over all pixels; the same image in every row."""
    made = lerobot(folder, "images")
    said = json.loads((made / "meta" / "info.json").read_text())
    said["features"]["observation.images.top"]["shape"] = [1024, 1024, 1]
    (made / "meta" / "info.json").write_text(json.dumps(said))
    file = io.BytesIO()
    Image.new("L", (1024, 1024), 128).save(file, "JPEG", progressive=True, optimize=True)
    content = file.getvalue()
    at = content.rindex(b"\xff\xda")
    one = {"bytes": content[:at] + content[at:-2] * 20_000 + content[-2:], "path": None}
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    path = next(made.rglob("data/*/*.parquet"))
    change_column(path, "observation.images.top", lambda n: pa.array([one] * n, kind), compression="zstd")
    return f"lerobot:{made}"


@case
def parquet_info_of_structs(folder: Path) -> str:
    path = exported(folder)

    def values(rows: int) -> Any:
        inner = pa.StructArray.from_arrays([pa.nulls(7_000_000, pa.int8())], names=["a"])
        return pa.ListArray.from_arrays(pa.array([0] + [7_000_000] * rows, pa.int32()), inner)

    change_column(path, "info", values, compression="zstd")
    return f"parquet:{path}"


@case
def lerobot_chunks_of_nothing(folder: Path) -> str:
    return f"lerobot:{lerobot(folder, chunks_size=0)}"


@case
def lerobot_endless_numbers(folder: Path) -> str:
    path = lerobot(folder) / "meta" / "info.json"
    path.write_text(path.read_text().replace("1000", "1e999"))
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_null_images(folder: Path) -> str:
    path = next(lerobot(folder, "images").rglob("data/*/*.parquet"))
    change_column(
        path, "observation.images.top", lambda n: pa.nulls(n, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    )
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_empty_done(folder: Path) -> str:
    path = next(lerobot(folder).rglob("*_000000.parquet"))
    change_column(path, "next.done", lambda n: pa.array([[]] * n, pa.list_(pa.bool_())))
    return f"lerobot:{folder / 'set'}"


@case
def lerobot_huge_features(folder: Path) -> str:
    said = json.loads((DATA / "lerobot_video" / "v2.1" / "meta" / "info.json").read_text())["features"]
    said["observation.images.top"]["shape"] = [60000, 60000, 3]
    return f"lerobot:{lerobot(folder, features=said)}"


@case
def lerobot_video_path(folder: Path) -> str:
    made = lerobot(folder, video_path="../{video_key}.mp4")
    for one in made.rglob("*.mp4"):
        shutil.copy(one, folder / f"{one.parent.name}.mp4")
    return f"lerobot:{made}"


@case
def lerobot_line_without_end(folder: Path) -> str:
    (lerobot(folder) / "meta" / "episodes.jsonl").write_bytes(b'{"episode_index":' + b"1" * (1 << 26))
    return f"lerobot:{folder / 'set'}"


def change_video(folder: Path, change: Callable[[bytearray], None]) -> str:
    path = next(one for one in sorted(lerobot(folder).rglob("*_000000.mp4")))
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    return f"lerobot:{folder / 'set'}"


def put(content: bytearray, box: bytes, offset: int, *values: int) -> None:
    at = content.index(box) + offset
    content[at : at + 4 * len(values)] = struct.pack(f">{len(values)}I", *values)


@case
def video_frames(folder: Path) -> str:
    def change(content: bytearray) -> None:
        put(content, b"stsz", 8, 1, 1 << 27)
        put(content, b"stts", 12, 1 << 27, 512)
        put(content, b"stsc", 12, 1, 1 << 27, 1)

    return change_video(folder, change)


@case
def video_pixels(folder: Path) -> str:
    """A track whose header says that its pictures have 65,535 x 65,535 pixels."""
    return change_video(
        folder, lambda content: put(content, b"av01" if b"av01" in content else b"avc1", 28, 0xFFFFFFFF)
    )


@case
def video_items(folder: Path) -> str:
    """A table of 268 million pictures, as HEIF has them, in 48 bytes."""
    table = struct.pack(">3I", 0x0FFFFFFF, 0x0FFFFFFF, 1) + bytes(28)
    return change_video(folder, lambda content: content.extend(struct.pack(">I4s", 8 + len(table), b"iinf") + table))


@case
def video_parts(folder: Path) -> str:
    """Parts of a track: FFmpeg lists all frames again for each."""

    def change(content: bytearray) -> None:
        frames, parts = 1 << 15, 1 << 13
        put(content, b"stsz", 8, 1, frames)
        put(content, b"stts", 12, frames, 512)
        put(content, b"stsc", 12, 1, frames, 1)
        table = struct.pack(">II", 0, parts) + struct.pack(">IIHH", 1000, 0, 1, 0) * parts
        inner = struct.pack(">I4s", 8 + len(table), b"elst") + table
        box = struct.pack(">I4s", 8 + len(inner), b"edts") + inner
        at = content.index(b"mdia") - 4
        content[at:at] = box
        for name in (b"trak", b"moov"):
            place = content.index(name) - 4
            put(content, name, -4, int.from_bytes(content[place : place + 4]) + len(box))
        content += struct.pack(">I4s", 8 + (1 << 16), b"free") + bytes(1 << 16)

    return change_video(folder, change)


def tfrecord(path: Path, *examples: bytes) -> None:
    with path.open("wb") as file:
        for data in examples:
            head = struct.pack("<Q", len(data))
            file.write(head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data)))


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(features: dict[str, tuple[int, Any]]) -> bytes:
    entries = b""
    for name, (kind, values) in features.items():
        inner = b"".join(message(1, one) for one in values) if kind == 1 else message(1, values)
        entries += message(1, message(1, name.encode()) + message(2, message(kind, inner)))
    return message(1, entries)


def rlds(folder: Path, steps: dict[str, Any], *examples: bytes) -> str:
    def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
        return {
            "pythonClassName": "x.Tensor",
            "tensor": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype, "encoding": encoding},
        }

    flags = {name: tensor("bool") for name in ("is_first", "is_last", "is_terminal")}
    every = {"observation": tensor("float32"), "action": tensor("int64"), "reward": tensor("float32"), **flags, **steps}
    said = {"featuresDict": {"features": {"steps": {"sequence": {"feature": {"featuresDict": {"features": every}}}}}}}
    (folder / "features.json").write_text(json.dumps(said))
    tfrecord(folder / "x-train.tfrecord-00000-of-00001", *examples)
    return f"rlds:{folder}"


def sound(rows: int) -> dict[str, tuple[int, Any]]:
    last = bytes(rows - 1) + b"\1"
    found: dict[str, tuple[int, Any]] = {
        "steps/observation": (2, bytes(4 * rows)),
        "steps/reward": (2, bytes(4 * rows)),
    }
    return found | {f"steps/{name}": (3, last) for name in ("action", "is_first", "is_last", "is_terminal")}


@case
def rlds_fifo(folder: Path) -> str:
    os.mkfifo(folder / "features.json")
    return f"rlds:{folder}"


@case
def rlds_fifo_of_records(folder: Path) -> str:
    name = rlds(folder, {}, example(sound(10)))
    os.mkfifo(folder / "y.tfrecord")
    return name


@case
def rlds_link_out(folder: Path) -> str:
    (folder / "set").mkdir()
    name = rlds(folder / "set", {}, example(sound(10)))
    path = next((folder / "set").glob("*.tfrecord*"))
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    return name


@case
def rlds_compressed(folder: Path) -> str:
    tensor = {"shape": {"dimensions": [str(1 << 26)]}, "dtype": "uint8", "encoding": "zlib"}
    packed = zlib.compress(bytes(1 << 26), 9)
    features = sound(9) | {"steps/more": (1, [packed] * 9)}
    return rlds(folder, {"more": {"tensor": tensor}}, example(features))


@case
def rlds_integers(folder: Path) -> str:
    """4 million integers of a byte each, in a feature that nobody reads and in one that is read."""
    features = sound(10) | {"steps/other": (3, bytes(4_000_000)), "steps/action": (3, bytes(4_000_000))}
    return rlds(folder, {}, example(features))


@case
def rlds_empty_values(folder: Path) -> str:
    return rlds(folder, {}, example(sound(10) | {"steps/observation": (1, [b""] * 300_000)}))


@case
def rlds_nested(folder: Path) -> str:
    plain = {"tensor": {"shape": {}, "dtype": "float32", "encoding": "none"}}
    inner = {"featuresDict": {"features": {"a": plain, "a/b": plain}}}
    features = sound(10) | {"steps/observation/a": (2, bytes(40)), "steps/observation/a/b": (2, bytes(40))}
    return rlds(folder, {"observation": inner}, example(features))


@case
def rlds_features_of_other_kinds(folder: Path) -> str:
    return rlds(folder, {"observation": {"tensor": [1]}, "action": 7}, example(sound(10)))


@case
def rlds_texts_in_place_of_flags(folder: Path) -> str:
    return rlds(folder, {}, example(sound(10) | {"steps/is_last": (1, [b"yes"] * 10)}))


def minari(folder: Path, change: Callable[[Path], None]) -> str:
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    spec = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((2,), "float32"))
    with sw.Store(spec, capacity=100) as store:
        for _ in range(3):
            zeros = np.zeros((11, 3), np.float32)
            store.add_episode(obs=zeros, action=zeros[1:, :2], reward=zeros[1:, 0], terminated=True)
        store.export("minari:me/toy-v0")
    change(folder / "me" / "toy-v0" / "data")
    return "minari:me/toy-v0"


def holes(path: Path, begin: int, nbytes: int) -> None:
    """Put a hole into a file."""
    content = path.read_bytes()
    with path.open("wb") as file:
        file.write(content[:begin])
        file.seek(begin + nbytes)
        file.write(content[begin:])
        file.truncate(len(content) + nbytes)


@case
def npz_directory_in_a_hole(folder: Path) -> str:
    """An archive whose directory is said to be of a terabyte."""
    npz_with(folder / "x.npz")
    content = (folder / "x.npz").read_bytes()
    at = content.rindex(b"PK\5\6")
    hole = 1 << 40
    with (folder / "x.npz").open("wb") as file:
        file.write(content[:at])
        file.seek(at + hole)
        file.write(struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 10, 10, at + hole, 0))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, at + hole, 1))
        file.write(content[at : at + 8] + b"\xff" * 12 + content[at + 20 :])
    return f"npz:{folder / 'x.npz'}"


@case
def parquet_footer_in_a_hole(folder: Path) -> str:
    path = exported(folder)
    holes(path, path.stat().st_size - 8, 1 << 32)
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(struct.pack("<I", (1 << 32) - 64))
    return f"parquet:{path}"


@case
def rlds_record_in_a_hole(folder: Path) -> str:
    name = rlds(folder, {}, example(sound(10)))
    path = next(folder.glob("*.tfrecord*"))
    head = struct.pack("<Q", 3 << 30)
    path.write_bytes(head + struct.pack("<I", masked_crc(head)))
    os.truncate(path, (3 << 30) + 64)
    return name


@case
def video_tables_in_a_hole(folder: Path) -> str:
    name = change_video(folder, lambda content: content.extend(struct.pack(">I4sQ", 1, b"free", 1 << 36)))
    path = next(one for one in sorted((folder / "set").rglob("*_000000.mp4")))
    os.truncate(path, 1 << 36)
    return name


@case
def minari_link_out(folder: Path) -> str:
    def change(data: Path) -> None:
        (data / "main_data.hdf5").rename(folder / "elsewhere")
        (data / "main_data.hdf5").symlink_to(folder / "elsewhere")

    return minari(folder, change)


@case
def minari_fifo(folder: Path) -> str:
    def change(data: Path) -> None:
        (data / "metadata.json").unlink()
        os.mkfifo(data / "metadata.json")

    return minari(folder, change)


def change_hdf5(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def changed(data: Path) -> None:
        with h5py.File(data / "main_data.hdf5", "a") as file:
            change(file)

    return changed


@case
def minari_external_link(folder: Path) -> str:
    def change(file: Any) -> None:
        del file["episode_0/observations"]
        file["episode_0/observations"] = h5py.ExternalLink("/etc/passwd", "/x")

    return minari(folder, change_hdf5(change))


@case
def minari_external_episode(folder: Path) -> str:
    with h5py.File(folder / "other.hdf5", "w") as file:
        for name, width in (("observations", 3), ("actions", 2)):
            file[f"x/{name}"] = np.zeros((11 if width == 3 else 10, width), np.float32)
        for name in ("rewards", "terminations", "truncations"):
            file[f"x/{name}"] = np.zeros(10, np.bool_ if name != "rewards" else np.float32)

    def change(file: Any) -> None:
        del file["episode_0"]
        file["episode_0"] = h5py.ExternalLink(str(folder / "other.hdf5"), "/x")

    return minari(folder, change_hdf5(change))


@case
def minari_zeros(folder: Path) -> str:
    def change(file: Any) -> None:
        del file["episode_0/observations"]
        file.create_dataset("episode_0/observations", (11, 1 << 28), "f4", chunks=(1, 1 << 20), compression=9)

    return minari(folder, change_hdf5(change))


@case
def minari_space(folder: Path) -> str:
    def change(data: Path) -> None:
        said = json.loads((data / "metadata.json").read_text())
        space = {"type": "Box", "dtype": "float32", "shape": [1 << 30], "low": 0.0, "high": 1.0}
        said["observation_space"] = json.dumps(space)
        (data / "metadata.json").write_text(json.dumps(said))

    return minari(folder, change)


@case
def minari_number_of_episodes(folder: Path) -> str:
    def change(data: Path) -> None:
        said = json.loads((data / "metadata.json").read_text())
        (data / "metadata.json").write_text(json.dumps(said | {"total_episodes": 10**9, "total_steps": 10**12}))

    return minari(folder, change)


def robomimic(folder: Path, change: Callable[[Any], None]) -> str:
    with h5py.File(folder / "x.h5", "w") as file:
        group = file.create_group("data/demo_0")
        group["obs/state"], group["actions"] = np.zeros((100, 3), np.float32), np.zeros((100, 2))
        group["dones"] = np.arange(100) == 99
        change(file)
    return f"hdf5:{folder / 'x.h5'}"


@case
def robomimic_zeros(folder: Path) -> str:
    def change(file: Any) -> None:
        shape, chunks = (100, 1 << 28), (1, 1 << 20)
        file.create_dataset("data/demo_0/obs/image", shape, "u1", chunks=chunks, compression=9)

    return robomimic(folder, change)


@case
def robomimic_one_group_by_many_names(folder: Path) -> str:
    def change(file: Any) -> None:
        frames = file.create_dataset("data/demo_0/obs/image", (100, 1 << 20), "u1", chunks=(1, 1 << 20), compression=9)
        chunk = deflated(1 << 20)
        for row in range(100):
            frames.id.write_direct_chunk((row, 0), chunk)
        for number in range(1, 4_000):
            file[f"data/demo_{number}"] = file["data/demo_0"]

    return robomimic(folder, change)


@case
def robomimic_soft_link_of_a_demonstration(folder: Path) -> str:
    return robomimic(folder, lambda file: file.__setitem__("data/demo_1", h5py.SoftLink("/data/demo_0")))


@case
def robomimic_external_data(folder: Path) -> str:
    with h5py.File(folder / "x.h5", "w") as file:
        file["data"] = h5py.ExternalLink("/etc/passwd", "/data")
    return f"hdf5:{folder / 'x.h5'}"


@case
def maniskill_description_of_brackets(folder: Path) -> str:
    with h5py.File(folder / "x.h5", "w") as file:
        file["traj_0/obs"], file["traj_0/actions"] = np.zeros((4, 3)), np.zeros((3, 1))
    (folder / "x.json").write_text("[" * 1_000_000)
    return f"hdf5:{folder / 'x.h5'}"


@case
def maniskill_description_that_is_a_fifo(folder: Path) -> str:
    with h5py.File(folder / "x.h5", "w") as file:
        file["traj_0/obs"], file["traj_0/actions"] = np.zeros((4, 3)), np.zeros((3, 1))
    os.mkfifo(folder / "x.json")
    return f"hdf5:{folder / 'x.h5'}"


def aloha_pictures(folder: Path, content: bytes, rows: int) -> str:
    """Rows of pictures that are the same bytes of the file, as a chunk that gzip makes small."""
    with h5py.File(folder / "episode_0.hdf5", "w") as file:
        file.attrs["compress"] = True
        file["action"] = np.zeros((rows, 1), np.float32)
        file["observations/qpos"] = np.zeros((rows, 1), np.float32)
        packed = np.frombuffer(content, np.uint8)
        file.create_dataset("observations/images/top", data=np.tile(packed, (rows, 1)), compression=9)
    return f"hdf5:{folder}"


@case
def aloha_pictures_of_gigabytes(folder: Path) -> str:
    content = io.BytesIO()
    Image.new("RGB", (8_000, 8_000)).save(content, "JPEG", quality=1)
    return aloha_pictures(folder, content.getvalue(), 40)


@case
def aloha_picture_of_a_bomb(folder: Path) -> str:
    """A picture of 20,480 x 17,475 pixels; a row begins with the number of its filter, which is 0."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head, rows = struct.pack(">IIBBBBB", 20_480, 17_475, 8, 2, 0, 0, 0), deflated(1 << 30)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return aloha_pictures(folder, content, 1)


@case
def aloha_fifo(folder: Path) -> str:
    os.mkfifo(folder / "episode_0.hdf5")
    return f"hdf5:{folder}"


@case
def aloha_link(folder: Path) -> str:
    (folder / "episode_0.hdf5").symlink_to("/dev/zero")
    return f"hdf5:{folder}"


def zarr(folder: Path, name: str = "data/state", chunk: bytes | None = None, key: str = "0.0", **changed: Any) -> str:
    """A replay buffer of zeros, with other values in an array's description, and another chunk."""
    arrays: dict[str, Any] = {"data/state": np.zeros((100, 3)), "data/action": np.zeros((100, 2))}
    for one, values in (arrays | {"meta/episode_ends": np.array([50, 100])}).items():
        (folder / "x.zarr" / one).mkdir(parents=True)
        said = {"zarr_format": 2, "shape": values.shape, "chunks": values.shape, "dtype": values.dtype.str}
        said |= {"compressor": None, "filters": None, "order": "C", "fill_value": 0}
        (folder / "x.zarr" / one / ".zarray").write_text(json.dumps(said | (changed if one == name else {})))
        (folder / "x.zarr" / one / (key if values.ndim == 2 else "0")).write_bytes(values.tobytes())
    if chunk is not None:
        (folder / "x.zarr" / name / (key if name != "meta/episode_ends" else "0")).write_bytes(chunk)
    return f"zarr:{folder / 'x.zarr'}"


@case
def zarr_chunk_of_more_than_its_shape(folder: Path) -> str:
    return zarr(folder, chunk=deflated(1 << 30), compressor={"id": "zlib"})


@case
def zarr_chunk_of_gigabytes(folder: Path) -> str:
    return zarr(folder, chunk=deflated(1 << 20), compressor={"id": "zlib"}, shape=[100, 1 << 28], chunks=[1, 1 << 28])


@case
def zarr_blosc_of_more_than_its_shape(folder: Path) -> str:
    header = b"\x02\x01\x33\x01" + struct.pack("<III", (1 << 31) - 1, 1 << 30, 32) + bytes(16)
    return zarr(folder, chunk=header, compressor={"id": "blosc"})


@case
def zarr_zstd_of_more_than_its_shape(folder: Path) -> str:
    import zstandard

    packed = zstandard.ZstdCompressor().compress(bytes(1 << 30))
    return zarr(folder, chunk=packed, compressor={"id": "zstd"})


@case
def zarr_episodes(folder: Path) -> str:
    return zarr(
        folder, "meta/episode_ends", deflated(1 << 20), compressor={"id": "zlib"}, shape=[1 << 27], chunks=[1 << 27]
    )


@case
def zarr_shape(folder: Path) -> str:
    return zarr(folder, shape=[1 << 40, 3])


@case
def zarr_chunks_of_single_values(folder: Path) -> str:
    return zarr(folder, shape=[100, 1 << 22], chunks=[1, 1])


@case
def zarr_fifo(folder: Path) -> str:
    place = zarr(folder)
    (folder / "x.zarr" / "data" / "state" / "0.0").unlink()
    os.mkfifo(folder / "x.zarr" / "data" / "state" / "0.0")
    return place


@case
def zarr_link(folder: Path) -> str:
    place = zarr(folder)
    (folder / "x.zarr" / "data" / "state" / "0.0").unlink()
    (folder / "x.zarr" / "data" / "state" / "0.0").symlink_to("/dev/zero")
    return place


@case
def zarr_link_of_an_array(folder: Path) -> str:
    place = zarr(folder)
    (folder / "x.zarr" / "data" / "more").symlink_to("/")
    return place


@case
def zarr_archive_of_zeros(folder: Path) -> str:
    zarr(folder, shape=[1 << 25, 3], chunks=[1 << 25, 3])
    with zipfile.ZipFile(folder / "x.zarr.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted((folder / "x.zarr").rglob("*")):
            if path.is_file() and path.parts[-2:] != ("state", "0.0"):
                archive.write(path, path.relative_to(folder / "x.zarr"))
        with archive.open("data/state/0.0", "w", force_zip64=True) as file:
            for _ in range(3 << 8):
                file.write(bytes(1 << 20))
    return f"zarr:{folder / 'x.zarr.zip'}"


def outcomes(names: list[str]) -> Iterator[dict[str, Any]]:
    """Load each data set in a process of its own; yield what that took and said."""
    idle = _forked(lambda: "")[1]
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            made = _forked(partial(CASES[name], Path(folder)))[0]
            if made["error"]:
                yield {"name": name, **made}
                continue
            os.environ["MINARI_DATASETS_PATH"] = folder
            place = made["said"]
            nbytes = sum(one.lstat().st_size for one in Path(folder).rglob("*") if not one.is_dir())
            found, peak = _forked(partial(sw.load, place, progress=False))
            yield {"name": name, "place": place, "nbytes": nbytes, "growth": peak - idle, **found}


def _forked(run: Callable[[], Any]) -> tuple[dict[str, Any], int]:
    """Run a function in a child; return what it said, and the peak of its memory."""
    read, write = os.pipe()
    begun = time.monotonic()
    if (child := os.fork()) == 0:
        said: dict[str, Any] = {"error": "", "documented": True}
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (MAX_S, MAX_S))
            with contextlib.redirect_stdout(sys.stderr):
                said["said"] = str(run())
        except BaseException as error:
            documented = isinstance(error, ValueError | FileNotFoundError)
            said |= {"error": type(error).__name__, "said": str(error), "documented": documented}
            if not documented:
                said["trace"] = traceback.format_exc()
        os.write(write, json.dumps(said).encode()[: 1 << 16])
        os._exit(0)
    os.close(write)
    peak = _wait(child)
    with os.fdopen(read, "rb") as file:
        content = file.read()
    found = json.loads(content) if content else {"error": "died or hung", "said": "", "documented": False}
    return found | {"seconds": round(time.monotonic() - begun, 2)}, peak


def _wait(child: int) -> int:
    """Wait for a child, and kill it if it hangs; return its peak of memory."""
    deadline = time.monotonic() + MAX_S
    while True:
        done, _, used = os.wait4(child, os.WNOHANG)
        if done:
            return used.ru_maxrss if sys.platform == "darwin" else used.ru_maxrss << 10
        if time.monotonic() > deadline:
            os.kill(child, 9)
            deadline += 60
        time.sleep(0.01)


def main(names: list[str]) -> None:
    """Load them in children of a process that has imported and compiled what they need, so that it counts for none."""
    for place in (f"lerobot:{DATA / 'lerobot'}", f"lerobot:{DATA / 'lerobot_video' / 'v2.1'}", f"rlds:{DATA / 'rlds'}"):
        sw.load(place, progress=False).close()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        sw.load(minari(Path(folder), lambda data: None), progress=False).close()
    for one in outcomes(names or list(CASES)):
        print(json.dumps(one), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
