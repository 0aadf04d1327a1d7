"""zarr's format 2 in folders and archives, with the layout of diffusion policy's ``ReplayBuffer``."""

from __future__ import annotations

import itertools
import math
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from sharpwave.data.episode import Array, existing, len_of, needed
from sharpwave.data.npz import NUMPYS
from sharpwave.data.opened_files import Folder, ReadBudget, check_whole, explained, open_path, parse_json
from sharpwave.data.recordings import EpisodeRecording, RecordingLayout, RecordingSource

DESCRIPTION, GROUP, FORMAT_3, ALL = ".zarray", ".zgroup", "zarr.json", ".zmetadata"
MAX_DEPTH = 8
"""Limit of groups in groups."""
DTYPE = re.compile(r"[<>|][buif]\d{1,2}")
NO_NUMBERS = re.compile(r"[<>|][SUMm].*")
"""Dtypes of texts and times; texts of any length are objects with the filter ``TEXTS``."""
TEXTS = "vlen-utf8"
BLOSC_HEADER_BYTES = 16
REWARDS = ("reward", "rewards")
ACTIONS = ("action", "actions")


class FolderFiles:
    """Files of a zarr store in a folder, by names with slashes. The budget counts all when they are listed."""

    def __init__(self, path: Path, budget: ReadBudget) -> None:
        self.what = f"zarr:{path}"
        self._folder, self._budget = Folder(path, budget), budget

    def names(self) -> list[str]:
        """Return the names of all files.  Raises: ValueError: a link, or folders nested too deep."""
        found: list[str] = []
        places = [("", 0)]
        while places:
            place, depth = places.pop()
            for one in self._folder.names(place):
                name = f"{place}/{one}".lstrip("/")
                self._budget.check_time()
                if not self._folder.is_folder(name):
                    self._folder.count(name)
                    found.append(name)
                    self._budget.check_count(f"{self.what}: files", len(found), "files")
                elif depth >= MAX_DEPTH:
                    raise ValueError(f"{self.what}: {name} is nested deeper than {MAX_DEPTH} folders")
                else:
                    places.append((name, depth + 1))
        return found

    def read(self, name: str) -> bytes:
        """Read a file.  Raises: ValueError, FileNotFoundError."""
        with self._folder.open(name) as file:
            return file.read()


class ArchiveFiles:
    """Files of a zarr store in a ZIP archive."""

    def __init__(self, path: Path, budget: ReadBudget) -> None:
        self.what, self._budget = f"zarr:{path}", budget
        file = open_path(path, budget)
        with explained(self.what):
            self._archive = zipfile.ZipFile(file)
        budget.closing.callback(self._archive.close)

    def names(self) -> list[str]:
        """Return the names of all files.  Raises: ValueError."""
        found = [one for one in self._archive.namelist() if not one.endswith("/")]
        self._budget.check_count(f"{self.what}: files", len(found), "files")
        return found

    def read(self, name: str) -> bytes:
        """Read a file.  Raises: ValueError: it is compressed by another method, or too large."""
        info = self._archive.getinfo(name)
        if info.compress_type not in NUMPYS:
            raise ValueError(f"{name} is compressed by method {info.compress_type}, expected {list(NUMPYS.values())}")
        self._budget.check_bytes(f"{self.what}: {name}", info.file_size)
        return self._archive.read(info)


ZarrFiles = FolderFiles | ArchiveFiles


class ZarrArray:
    """Array of a zarr store, read by rows: the rows' chunks are decoded, and the last one is kept.

    Raises:
        ValueError: not an array of plain numbers, or its chunks are too large, or compressed by a method other than
            blosc, zstd, zlib and gzip.
    """

    def __init__(self, files: ZarrFiles, name: str, budget: ReadBudget) -> None:
        self._files, self._name, self._budget = files, name, budget
        self._last: tuple[str, npt.NDArray[Any]] | None = None
        with explained(f"{files.what}: {name}/{DESCRIPTION}", files.what):
            said = parse_json(files.read(f"{name}/{DESCRIPTION}"))
            if said["zarr_format"] != 2 or said.get("filters"):
                raise ValueError(f"format {said['zarr_format']}, filters {said.get('filters')}, expected 2 and none")
            if not isinstance(said["dtype"], str) or not DTYPE.fullmatch(said["dtype"]):
                raise ValueError(f"dtype {said['dtype']!r}, expected booleans, integers or floats")
            self._stored = np.dtype(said["dtype"])
            self.dtype: np.dtype[Any] = self._stored.newbyteorder("=")
            self.shape = tuple(map(_size, said["shape"]))
            self._chunks = tuple(map(_size, said["chunks"]))
            if len(self._chunks) != len(self.shape) or len(self.shape) > 16 or 0 in self._chunks:
                raise ValueError(f"shape {self.shape} in chunks of {self._chunks}, expected as many sizes above 0")
            self._order, self._fill = said.get("order", "C"), said.get("fill_value")
            self._separator = said.get("dimension_separator", ".")
            if self._order not in ("C", "F") or self._separator not in (".", "/"):
                raise ValueError(f"order {self._order!r}, separator {self._separator!r}, expected C or F, and . or /")
            self._decode = _decoder(said.get("compressor"))
        self._nbytes = math.prod(self._chunks) * self._stored.itemsize
        what = f"{files.what}: {name}: chunks of {self._chunks}"
        check_whole(what, self._nbytes)
        budget.check_bytes(what, self._nbytes)
        budget.check_total_bytes(f"{files.what}: {name}", math.prod(self.shape) * self._stored.itemsize)

    def rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        found = np.empty((end - begin, *self.shape[1:]), self.dtype)
        spans = [(begin, end), *((0, size) for size in self.shape[1:])]
        places = [range(low // size, -(-high // size)) for (low, high), size in zip(spans, self._chunks, strict=True)]
        for place in itertools.product(*places):
            self._budget.check_time()
            into, out_of = [], []
            for number, size, (low, high) in zip(place, self._chunks, spans, strict=True):
                first, last = max(low, number * size), min(high, (number + 1) * size)
                into.append(slice(first - low, last - low))
                out_of.append(slice(first - number * size, last - number * size))
            found[tuple(into)] = self._chunk(self._separator.join(map(str, place)))[tuple(out_of)]
        return found

    def _chunk(self, key: str) -> npt.NDArray[Any]:
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        name = f"{self._name}/{key}"
        with explained(f"{self._files.what}: {name} cannot be read", self._files.what):
            try:
                content = self._decode(self._files.read(name), self._nbytes)
            except (FileNotFoundError, KeyError) as error:
                if not self._budget.trust:
                    raise ValueError(
                        f"{self._files.what}: {name} is missing, expected each chunk; fetch the data set anew. If it "
                        f"was never written, as chunks of the fill value {self._fill!r} may be, give trust=True"
                    ) from error
                chunk = np.full(self._chunks, self._fill or 0, self._stored)
            else:
                if len(content) != self._nbytes:
                    raise ValueError(f"{len(content):,} bytes of values, expected {self._nbytes:,}")
                chunk = np.frombuffer(content, self._stored).reshape(self._chunks, order=self._order)
        self._last = key, chunk
        return chunk


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"a size of {value!r}, expected an integer of at least 0")
    return value


def _decoder(said: Any) -> Callable[[bytes, int], bytes]:
    """Return the function that decodes a chunk to a number of bytes.  Raises: ValueError: an unknown compressor."""
    decoders = {"blosc": _blosc, "zstd": _zstd, "zlib": _inflated, "gzip": _inflated}
    if said is None:
        return lambda content, nbytes: content
    if (name := said["id"]) not in decoders:
        raise ValueError(f"compressor {name!r}, expected none or one of {list(decoders)}; copy it with one of those")
    return decoders[name]


def _blosc(content: bytes, nbytes: int) -> bytes:
    """Decompress content that declares exactly ``nbytes``.  Raises: ValueError, RuntimeError."""
    sizes = [int.from_bytes(content[at : at + 4], "little") for at in (4, 8, 12)]
    if len(content) < BLOSC_HEADER_BYTES or sizes[0] != nbytes or sizes[1] > nbytes or sizes[2] != len(content):
        raise ValueError(f"declares {sizes[0]:,} bytes of {sizes[2]:,}, expected {nbytes:,} of {len(content):,}")
    decoded: bytes = needed("numcodecs.blosc", "data").decompress(content)
    return decoded


def _zstd(content: bytes, nbytes: int) -> bytes:
    """Decompress content that declares exactly ``nbytes``.  Raises: ValueError, ZstdError."""
    if (said := zstandard.get_frame_parameters(content).content_size) != nbytes:
        raise ValueError(f"declares {said:,} bytes, expected {nbytes:,}")
    return zstandard.ZstdDecompressor().decompress(content)


def _inflated(content: bytes, nbytes: int) -> bytes:
    """Decompress at most one byte more than expected.  Raises: zlib.error."""
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(content, nbytes + 1)


class ZarrPart:
    """Range of an array's rows as an array, cut at the array's end."""

    def __init__(self, array: Array, begin: int, end: int) -> None:
        self._array, self._begin = array, begin
        self.shape = (max(0, min(end, len_of(array)) - begin), *array.shape[1:])
        self.dtype = array.dtype

    def rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        return self._array.rows(self._begin + begin, self._begin + end)


class ZarrReplayBuffer(RecordingLayout):
    """Layout of diffusion policy: ``data/*`` [N, ...] of all episodes, and their ends, ``meta/episode_ends``.

    ``data/action`` is the action, ``data/reward`` the optional reward; others are observations.
    """

    def __init__(self, files: ZarrFiles, budget: ReadBudget) -> None:
        self._files, self._arrays = files, dict[str, ZarrArray]()
        names = files.names()
        if FORMAT_3 in names:
            raise ValueError(f"{files.what}: is zarr's format 3, expected 2; write it with zarr_format=2")
        found = [name.removesuffix(f"/{DESCRIPTION}") for name in names if name.endswith(f"/{DESCRIPTION}")]
        if lost := self._lost(names, set(found)):
            raise ValueError(
                f"{files.what}: {lost} has no {DESCRIPTION}, expected one as of any array of format 2; fetch the data "
                "set anew, or remove the folder"
            )
        if "meta/episode_ends" not in found or not any(name.startswith("data/") for name in found):
            raise ValueError(
                f"{files.what}: has the arrays {sorted(found)[:12]}, expected data/* and meta/episode_ends, as "
                "diffusion policy's ReplayBuffer writes them"
            )
        ends = ZarrArray(files, "meta/episode_ends", budget)
        if len(ends.shape) != 1 or ends.dtype.kind not in "ui":
            raise ValueError(f"{files.what}: meta/episode_ends is {ends.shape} {ends.dtype}, expected integers [N]")
        budget.check_count(files.what, ends.shape[0], "episodes")
        stops = ends.rows(0, ends.shape[0])
        if (np.diff(stops.astype(np.int64), prepend=0) < 0).any():
            raise ValueError(f"{files.what}: meta/episode_ends falls, expected it to rise; write it anew")
        self._bounds: list[int] = [0, *stops.tolist()]
        super().__init__(
            [f"episode {n} (rows {a:,} to {b - 1:,})" for n, (a, b) in enumerate(itertools.pairwise(self._bounds))],
            "read as diffusion policy's ReplayBuffer",
        )
        for name in sorted(found):
            one = name.removeprefix("data/")
            if name.startswith("data/") and one not in (*ACTIONS, *REWARDS) and (why := self._no_field(name)):
                self.left_out.append(f"{name} ({why}")
            elif name.startswith("data/"):
                self._arrays[one] = array = ZarrArray(files, name, budget)
                if (more := len_of(array) - self._bounds[-1]) > 0:
                    self.left_out.append(f"{name}: {more:,} rows after the last of meta/episode_ends")
            elif name != "meta/episode_ends":
                self.left_out.append(f"{name}: not of steps")
        if (longest := max(map(len_of, self._arrays.values()), default=0)) < self._bounds[-1]:
            raise ValueError(
                f"{files.what}: meta/episode_ends has {self._bounds[-1]:,}, but no array has more than {longest:,} "
                "rows; are rows or other ends missing? Write it anew"
            )

    def _no_field(self, name: str) -> str:
        """Describe an array without a field, and why it has none; "" if a field is made of it."""
        with explained(f"{self._files.what}: {name}/{DESCRIPTION}", self._files.what):
            said = parse_json(self._files.read(f"{name}/{DESCRIPTION}"))
            texts = said["dtype"] == "|O" and any(one["id"] == TEXTS for one in said.get("filters") or [])
            if texts or (isinstance(said["dtype"], str) and NO_NUMBERS.fullmatch(said["dtype"])):
                return f"{said['dtype'][:32]}): no numbers"
            return "" if said["shape"] else "()): not one value a step"

    def _lost(self, names: list[str], found: set[str]) -> str:
        """Return the first folder in ``data`` that was once an array; "" if all still are."""
        groups = {name.rpartition("/")[0] for name in names if name.endswith(f"/{GROUP}")}
        lost: set[str] = set()
        for name in names:
            place, _, last = name.rpartition("/")
            parts = place.split("/")
            if parts[0] != "data" or any("/".join(parts[: depth + 1]) in found for depth in range(len(parts))):
                continue
            plain = not last.startswith(".") and (len(parts) > 1 or last == FORMAT_3)
            if plain or (len(parts) > 1 and place not in groups):
                lost.add("/".join(parts[:2]))
        if ALL in names:
            with explained(f"{self._files.what}: {ALL}", self._files.what):
                said = [name.rpartition("/") for name in parse_json(self._files.read(ALL)).get("metadata", {})]
            lost |= {place for place, _, one in said if one == DESCRIPTION and place not in found}
        return min(lost, default="")

    def recording(self, number: int) -> EpisodeRecording:
        begin, end = self._bounds[number : number + 2]
        parts: dict[str, Array] = {name: ZarrPart(array, begin, end) for name, array in self._arrays.items()}
        action = next((parts.pop(name) for name in ACTIONS if name in parts), None)
        reward = next((parts.pop(name) for name in REWARDS if name in parts), None)
        if short := [name for name, part in parts.items() if len_of(part) < end - begin]:
            raise ValueError(f"data/{short[0]} has {len_of(parts[short[0]]):,} of its {end - begin:,} rows")
        return EpisodeRecording(parts, {} if action is None else {"": action}, reward=reward)


def open_zarr(place: str, budget: ReadBudget) -> RecordingSource:
    """Open a folder, or a ZIP archive, in the layout of diffusion policy.

    Raises: FileNotFoundError, ValueError; ModuleNotFoundError: numcodecs is missing.
    """
    path = existing(place, "zarr")
    files: ZarrFiles = FolderFiles(path, budget) if path.is_dir() else ArchiveFiles(path, budget)
    with explained(f"zarr:{path}"):
        return RecordingSource(f"zarr:{path}", ZarrReplayBuffer(files, budget), budget)
