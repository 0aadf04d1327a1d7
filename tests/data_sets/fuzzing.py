"""Sound data sets with bytes, numbers and lengths changed: each is loaded, or refused by a documented error.

    SHARPWAVE_FUZZ=1000000 PYTHONPATH=src:. python -m tests.data_sets.fuzzing [FORMAT...]

tries so many of each format, and prints what came of them; a failure is printed with the number that repeats it
(``--only NUMBER``). ``test_fuzzing.py`` tries a few.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import sharpwave as sw
from sharpwave.data.formats import open_source
from tests.data_sets.data import d4rl
from tests.data_sets.hostile import DATA, example, lerobot, minari, rlds, sound, tfrecord
from tests.data_sets.test_hdf5_layouts import aloha, d3rlpy, maniskill, write_aloha, write_d3rlpy, write_maniskill
from tests.data_sets.test_robomimic import demo
from tests.data_sets.test_robomimic import write as write_robomimic
from tests.data_sets.test_texts import TEXT, WORDS, integers, listed, ragged, tensor, with_column
from tests.data_sets.test_varying_rows import robomimic
from tests.data_sets.test_zarr import buffer
from tests.data_sets.test_zarr import write as write_zarr

MUTATIONS = int(os.environ.get("SHARPWAVE_FUZZ", "1000"))
DOCUMENTED = (ValueError, FileNotFoundError)
MAX_GROWTH = 700 << 20
"""What a mutation may take, as in ``test_bounds.py``."""
MAX_S = 20
NUMBERS = [0, 1, 2, 7, 127, 128, 255, 256, 65535, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
TEXTS = [
    "0",
    "-1",
    "1e999",
    "9" * 30,
    "null",
    "[]",
    "{}",
    '""',
    '"\\u0000"',
    '"../x"',
    "true",
    "1.5",
    '"float99"',
    "[" * 3000,
]


def exported(kind: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        np.savez(folder / "data.npz", **d4rl([4, 6, 5]))
        with sw.load(f"npz:{folder / 'data.npz'}", progress=False) as store:
            store.annotate(0, {"note": "sound"}, episode=False)
            store.export(f"{kind}:{folder / 'x'}.{kind}")
        (folder / "data.npz").unlink()
        return f"{kind}:{folder / 'x'}.{kind}"

    return make


def copied(kind: str, name: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        shutil.copytree(DATA / name, folder / "set")
        return f"{kind}:{folder / 'set'}"

    return make


def toy_rlds(folder: Path) -> str:
    tensor = {"shape": {"dimensions": ["3"]}, "dtype": "uint8", "encoding": "zlib"}
    inner = {"pythonClassName": "x.Tensor", "tensor": tensor}
    rows = sound(5) | {"steps/more": (1, [zlib.compress(bytes(3))] * 5)}
    return rlds(folder, {"more": inner}, example(rows), example(rows))


def lists_of_rlds(folder: Path) -> str:
    rows = (
        sound(3) | ragged("tokens", integers([5, 6, 7, 8]), [3, 0, 1]) | {"steps/said": (1, [b"go", b"", b"\xc3\xa4"])}
    )
    return rlds(folder, {"tokens": listed(tensor("int32")), "said": TEXT}, example(rows), example(rows))


def texts_of_lerobot(folder: Path) -> str:
    made = lerobot(folder, "images")
    with_column(
        made, "tokens", pa.array([[row] * (row % 4) for row in range(56)], pa.list_(pa.int32())), "int32", [None]
    )
    return with_column(made, "said", pa.array(WORDS))


FORMATS: dict[str, Callable[[Path], str]] = {
    "npz": exported("npz"),
    "hdf5": exported("hdf5"),
    "parquet": exported("parquet"),
    "lerobot": copied("lerobot", "lerobot"),
    "lerobot_video": copied("lerobot", "lerobot_video/v2.1"),
    "rlds": copied("rlds", "rlds"),
    "rlds_toy": toy_rlds,
    "rlds_lists": lists_of_rlds,
    "lerobot_texts": texts_of_lerobot,
    "hdf5_texts": lambda folder: robomimic(folder / "x.hdf5"),
    "minari": lambda folder: minari(folder, lambda data: None),
    "hdf5_robomimic": lambda folder: write_robomimic(folder / "x.hdf5", [demo(4, n) for n in range(3)]),
    "hdf5_maniskill": lambda folder: write_maniskill(folder, [maniskill(4, n) for n in range(3)]),
    "hdf5_aloha": lambda folder: write_aloha(folder, [aloha(4, n) for n in range(2)], compress=True),
    "hdf5_d3rlpy": lambda folder: write_d3rlpy(folder, [d3rlpy(4, n) for n in range(3)]),
    "zarr": lambda folder: write_zarr(folder / "x.zarr", buffer(), "blosc" if find_spec("numcodecs") else "zlib"),
}


def mutated(content: bytes, rng: random.Random, name: str) -> bytes:
    """Return other bytes of a file, most of them changed in one place."""
    if not content:
        return bytes(rng.randrange(256) for _ in range(8))
    data, how = bytearray(content), rng.random()
    if name.endswith(("json", "jsonl", "zarray")) and how < 0.7:
        return _mutated_json(content, rng)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        at = rng.randrange(len(data))
        if rng.random() < 0.5:  # ends, and what describes, are where structure is
            at = min(len(data) - 1, rng.choice([0, len(data) - 512 if len(data) > 512 else 0]) + rng.randrange(512))
        if how < 0.35:
            data[at] = rng.randrange(256)
        elif how < 0.5:
            data[at] ^= 1 << rng.randrange(8)
        elif how < 0.75:
            width, value = rng.choice([2, 4, 8]), rng.choice(NUMBERS)
            packed = value.to_bytes(8, rng.choice(["little", "big"]))
            data[at : at + width] = packed[:width] if packed[0] else packed[-width:]
        elif how < 0.85:
            del data[at : at + rng.choice([1, 2, 4, 100])]
        else:
            data[at:at] = data[rng.randrange(len(data)) :][: rng.choice([1, 4, 64, 1000])]
        if not data:
            break
    if rng.random() < 0.08:
        data = data[: rng.randrange(len(data) + 1)]
    if "tfrecord" in name and rng.random() < 0.8:
        return _with_checksums(bytes(data))
    return bytes(data)


def _mutated_json(content: bytes, rng: random.Random) -> bytes:
    """Return JSON with another value in place of one, or without it."""
    text = content.decode()
    places = [at for at, one in enumerate(text) if one in ":,["]
    begin = rng.choice(places) + 1 if places else 0
    end = begin
    while end < len(text) and text[end] not in ",]}\n":
        end += 1
    return (text[:begin] + rng.choice([*TEXTS, ""]) + text[end:]).encode()


def _with_checksums(data: bytes) -> bytes:
    """Return TFRecords with the checksums of what is in them, so that more than these is tried."""
    found, at = [], 0
    while at + 12 <= len(data):
        nbytes = struct.unpack_from("<Q", data, at)[0]
        found.append(data[at + 12 : at + 12 + nbytes])
        at += 16 + nbytes
    with tempfile.NamedTemporaryFile() as file:
        tfrecord(Path(file.name), *found)
        return Path(file.name).read_bytes()


def run(kind: str, count: int, seed: int, only: int | None) -> dict[str, Any]:
    """Try mutations of a format's data set; return how many had which outcome.  Raises: AssertionError."""
    outcomes: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        place = FORMATS[kind](Path(folder))
        paths = sorted(one for one in Path(folder).rglob("*") if one.is_file() and one.stat().st_size)
        sizes = [one.stat().st_size ** 0.5 for one in paths]
        _load(place)
        base = _peak()
        for number in [only] if only is not None else range(count):
            rng = random.Random(f"{seed} {kind} {number}")
            path = rng.choices(paths, sizes)[0]
            good = path.read_bytes()
            path.write_bytes(mutated(good, rng, path.name))
            said, begun = f"{kind} {number} of seed {seed}, {path.relative_to(folder)}", time.process_time()
            print(said, file=sys.stderr, flush=True)  # the last line is what ended the process
            try:
                outcomes["loaded" if _load(place) else "refused"] += 1
            except AssertionError as error:
                raise AssertionError(f"{said}: {error}") from error
            finally:
                path.write_bytes(good)
            assert _peak() - base < MAX_GROWTH, f"{said}: took {(_peak() - base) >> 20:,} MiB"
            assert time.process_time() - begun < MAX_S, f"{said}: took {time.process_time() - begun:.0f} s"
    return {"format": kind, **outcomes, "growth_MiB": (_peak() - base) >> 20}


def _load(place: str) -> bool:
    """Read every episode of a data set; return whether it was not refused.  Raises: AssertionError."""
    try:
        source = open_source(place)
        try:
            for number in range(len(source)):
                source.read(number)
        finally:
            source.close()
    except DOCUMENTED as error:
        kind, _, name = place.partition(":")
        assert str(error).startswith(f"{kind}:") and name in str(error), f"names no file: {error!r}"
        return False
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}") from error
    return True


def _peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("formats", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    for kind in given.formats or FORMATS:
        begun = time.monotonic()
        found = run(kind, MUTATIONS, given.seed, given.only)
        print(json.dumps(found | {"seconds": round(time.monotonic() - begun, 1)}), flush=True)


if __name__ == "__main__":
    main()
