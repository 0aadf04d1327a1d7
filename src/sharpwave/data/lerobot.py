"""LeRobot data sets of layout v2.0, v2.1 and v3.0, read through pyarrow, and their videos through PyAV.

Source of the layouts: huggingface.co/docs/lerobot/lerobot-dataset-v3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.data import images, videos
from sharpwave.data.episode import Episode, check_bytes, existing, field_of, usable_name
from sharpwave.data.packages import needed
from sharpwave.spec import Field, Spec

COUNTERS = ("frame_index", "episode_index", "index")
"""Columns that say what the place of a row says."""
DONE, TRUNCATED, REWARD, TIME = "next.done", "next.truncated", "next.reward", "timestamp"
VIDEO_COLUMNS = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
MAX_META_BYTES = 1 << 28


class _Video(NamedTuple):
    """Part of a video that shows an episode, in seconds; the end is unknown where no other episode follows."""

    path: Path
    begin_s: float = 0.0
    end_s: float = np.inf


class _Place(NamedTuple):
    """Rows of an episode in a file; ``steps`` of which are steps. ``videos``: by feature."""

    path: Path
    begin: int
    rows: int
    steps: int
    tasks: list[str]
    videos: dict[str, _Video]


class LeRobotSource:
    """Episodes of a LeRobot data set: a folder with ``meta/info.json``.

    Features ``observation.*`` are the observation, nested at their dots; ``action`` the action; ``next.reward`` the
    reward (else 0); ``next.done`` at the last frame says that the episode terminated, unless ``next.truncated`` does.
    Others become further fields, tasks annotations. Videos are decoded, one frame a row; texts and sound are left out.

    A data set has no observation after the last frame. So where an episode did not terminate, that frame's observation
    is the final one, and its action is left out.

    Raises:
        ValueError: it is damaged, or of another layout.
    """

    def __init__(self, path: str) -> None:
        folder = existing(path, "lerobot")
        self.name, self.left_out, self._folder = f"lerobot:{folder}", list[str](), folder.resolve()
        self._arrow: Any = needed("pyarrow", "data")
        self._parquet: Any = needed("pyarrow.parquet", "data")
        self._open: tuple[Path, Any] | None = None
        self._group: tuple[Path, int, Any] | None = None
        self._ends: tuple[Path, int, Any] | None = None
        try:
            info = json.loads((folder / "meta" / "info.json").read_text())
            self._version = str(info["codebase_version"])
            if not re.fullmatch(r"v?(2\.[01]|3\.0)", self._version):
                raise ValueError(f"codebase_version {self._version!r}, expected v2.0, v2.1 or v3.0")
            self._data_path, self._video_path = str(info["data_path"]), str(info.get("video_path"))
            self._chunk = int(info.get("chunks_size", 1000))
            self._fields = self._read_features(info["features"])
            self._places = self._read_episodes()
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.name}: is not complete, or no LeRobot data set ({error})") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, self._arrow.ArrowException) as error:
            raise ValueError(f"{self.name}: is damaged, or no LeRobot data set ({error!r})") from error
        self.steps = sum(place.steps for place in self._places)
        names = [name for name in self._fields if name.split(".")[0] not in ("observation", "action")]
        self._further = {usable_name(name): name for name in names if name not in (REWARD, DONE, TRUNCATED)}
        if not self._under("observation") or not self._under("action"):
            raise ValueError(f"{self.name}: features {list(self._fields)[:12]}, expected observation.* and action")
        further: dict[str, Any] = {name: self._fields[one] for name, one in self._further.items()}
        self.spec = Spec(
            obs=self._nested("observation", self._fields), action=self._nested("action", self._fields), **further
        )

    def _under(self, root: str) -> list[str]:
        return [name for name in self._fields if name.split(".")[0] == root]

    def _nested(self, root: str, values: dict[str, Any]) -> Any:
        if root in self._fields:
            return values[root]
        nested: dict[str, Any] = {}
        for name in self._under(root):
            *parents, last = name.split(".")[1:]
            place = nested
            for parent in parents:
                place = place.setdefault(parent, {})
                if not isinstance(place, dict):
                    raise ValueError(f"{self.name}: {name} lies within another feature")
            place[last] = values[name]
        return nested

    def _read_features(self, features: dict[str, Any]) -> dict[str, Field]:
        fields: dict[str, Field] = {}
        for name, said in features.items():
            if name in COUNTERS:
                continue
            dtype, shape = str(said["dtype"]), tuple(int(n) for n in said["shape"])
            if dtype == "string" or dtype.startswith("audio"):
                self.left_out.append(f"{name}: {dtype}")
                continue
            if dtype in ("image", "video"):
                if len(shape) != 3:
                    raise ValueError(f"{name}: {dtype} of shape {shape}, expected height, width and channels")
                channels_first = next(iter(said.get("names") or ["height"])) in ("channel", "channels")
                shape = (*shape[1:], shape[0]) if channels_first else shape
                if dtype == "video" and shape[2] != 3:
                    self.left_out.append(f"{name}: video of {shape[2]} channels, only 3 are read")
                    continue
                fields[name] = field_of(name, shape, np.dtype("uint8"))
                continue
            fields[name] = field_of(name, shape, np.dtype(dtype))
        self._images = [name for name in fields if features[name]["dtype"] == "image"]
        self._videos = [name for name in fields if features[name]["dtype"] == "video"]
        if self._videos and TIME not in fields:
            raise ValueError(f"{self._videos[0]} is a video, but there is no {TIME!r} to find its frames by")
        if REWARD not in fields:
            self.left_out.append("rewards: there are none; they are 0")
        return fields

    def _read_episodes(self) -> list[_Place]:
        """Return where episodes lie that have steps."""
        if self._videos:
            needed("av", "lerobot")
        places: list[_Place] = []
        files: dict[Path, int] = {}  # index of the first row of each
        for said in self._episode_lines():
            number, rows = int(said["episode_index"]), int(said["length"])
            if self._version.endswith("3.0"):
                values = {"chunk_index": int(said["data/chunk_index"]), "file_index": int(said["data/file_index"])}
                path, first = self._path(self._data_path, values), int(said["dataset_from_index"])
                begin = first - files.setdefault(path, first)
            else:
                values = {"episode_chunk": number // self._chunk, "episode_index": number}
                path, begin = self._path(self._data_path, values), 0
            steps = rows if self._terminated(path, begin + rows - 1) else rows - 1
            if rows < 1 or begin < 0:
                raise ValueError(f"episode {number} of {rows} rows")
            if steps:
                shown = {name: self._video(name, said, values) for name in self._videos}
                places.append(_Place(path, begin, rows, steps, [str(one) for one in said.get("tasks", [])], shown))
        return places

    def _episode_lines(self) -> list[dict[str, Any]]:
        meta = self._folder / "meta"
        if not self._version.endswith("3.0"):
            path = meta / "episodes.jsonl"
            if path.stat().st_size > MAX_META_BYTES:
                raise ValueError(f"{path} is larger than {MAX_META_BYTES:,} bytes")
            return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        wanted = ["episode_index", "tasks", "length", "data/chunk_index", "data/file_index", "dataset_from_index"]
        wanted += [f"videos/{name}/{column}" for name in self._videos for column in VIDEO_COLUMNS]
        lines: list[dict[str, Any]] = []
        for path in sorted((meta / "episodes").glob("*/*.parquet")):
            lines += self._parquet.read_table(path, columns=wanted).to_pylist()
        return sorted(lines, key=lambda one: int(one["episode_index"]))

    def _video(self, name: str, said: dict[str, Any], values: dict[str, int]) -> _Video:
        """Return where an episode's video lies.  Raises: FileNotFoundError, ValueError."""
        if self._version.endswith("3.0"):
            chunk, file, begin, end = (said[f"videos/{name}/{column}"] for column in VIDEO_COLUMNS)
            values = {"chunk_index": int(chunk), "file_index": int(file)}
            video = _Video(self._path(self._video_path, {**values, "video_key": name}), float(begin), float(end))
        else:
            video = _Video(self._path(self._video_path, {**values, "video_key": name}))
        if not video.path.is_file():
            raise FileNotFoundError(f"the video {str(video.path)!r} of episode {said['episode_index']} is missing")
        return video

    def _path(self, template: str, values: Mapping[str, int | str]) -> Path:
        """Return a file's path.  Raises: ValueError: it leaves the data set's folder."""

        def value(found: re.Match[str]) -> str:
            one = values[found[1]]
            return one if isinstance(one, str) else f"{one:0{int(found[2] or 0)}d}"

        path = self._folder / re.sub(r"\{(\w+)(?::0?(\d{1,2})d)?\}", value, template)
        if not path.resolve().is_relative_to(self._folder):
            raise ValueError(f"path {template!r} leaves the folder")
        return path

    def _terminated(self, path: Path, row: int) -> bool:
        if DONE not in self._fields:
            return False
        ends = [name for name in (DONE, TRUNCATED) if name in self._fields]
        table = self._rows(path, row, 1, ends)
        said = [bool(np.asarray(_values(table.column(name), ())).reshape(-1)[0]) for name in ends]
        return said[0] and not (len(said) == 2 and said[1])

    def _rows(self, path: Path, begin: int, count: int, columns: list[str] | None = None) -> Any:
        """Return rows of a file as a table.  Raises: ValueError."""
        if self._open is None or self._open[0] != path:
            self.close()
            self._open = path, self._parquet.ParquetFile(path)
        file = self._open[1]
        parts, at = [], 0
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            first, last = max(begin, at), min(begin + count, at + rows)
            if first < last:
                parts.append(self._row_group(path, file, number, columns).slice(first - at, last - first))
            at += rows
        table = self._arrow.concat_tables(parts) if parts else None
        if table is None or table.num_rows != count:
            raise ValueError(f"{path} has {at:,} rows, expected rows {begin:,} to {begin + count - 1:,}")
        return table

    def _row_group(self, path: Path, file: Any, number: int, columns: list[str] | None) -> Any:
        """Return a row group, or columns of it, always the same ones; the last one read stays in memory."""
        kept = self._group if columns is None else self._ends
        if kept is None or kept[:2] != (path, number):
            self._group, self._ends = (None, self._ends) if columns is None else (self._group, None)
            kept = path, number, file.read_row_group(number, columns=columns)
            if columns is None:
                self._group = kept
            else:
                self._ends = kept
        return kept[2]

    def __len__(self) -> int:
        return len(self._places)

    def read(self, number: int) -> Episode:
        """Read an episode.  Raises: ValueError: it is damaged."""
        place = self._places[number]
        what = f"{self.name}: episode {number}"
        for name, field in self._fields.items():
            check_bytes(f"{what}: {name}", place.rows, field)
        try:
            table = self._rows(place.path, place.begin, place.rows)
            arrays = {
                name: self._frames(table, place.videos[name], field)
                if name in place.videos
                else self._array(table, name, field)
                for name, field in self._fields.items()
            }
        except (ValueError, KeyError, TypeError, OSError, self._arrow.ArrowException) as error:
            raise ValueError(f"{what} cannot be read ({error})") from error
        terminated, steps = place.steps == place.rows, place.steps
        observed = {
            name: np.concatenate([arrays[name], arrays[name][-1:]]) if terminated else arrays[name]
            for name in self._under("observation")
        }
        taken = {name: arrays[name][:steps] for name in self._under("action")}
        reward = arrays[REWARD].reshape(-1)[:steps] if REWARD in arrays else np.zeros(steps, np.float32)
        fields = {name: arrays[one][:steps] for name, one in self._further.items()}
        info: dict[str, Any] = {"tasks": place.tasks} if place.tasks else {}
        return Episode(
            self._nested("observation", observed), self._nested("action", taken), reward, terminated, not terminated,
            fields, info,
        )  # fmt: skip

    def _array(self, table: Any, name: str, field: Field) -> npt.NDArray[Any]:
        column = table.column(name).combine_chunks()
        if name in self._images:
            contents = [one.get("bytes") for one in column.to_pylist()]
            if not all(isinstance(one, bytes) for one in contents):
                raise ValueError(f"{name}: an image is not in the file")
            return np.stack([images.decode(one, field.shape, name) for one in contents])
        values = _values(column, field.shape)
        if values.dtype != field.np_dtype:
            raise ValueError(f"{name}: {values.dtype}, expected {field.dtype}")
        return values.reshape(len(column), *field.shape)

    def _frames(self, table: Any, video: _Video, field: Field) -> npt.NDArray[Any]:
        """Return what a camera showed in an episode.  Raises: FileNotFoundError, ValueError."""
        times = video.begin_s + _values(table.column(TIME), ()).reshape(-1).astype(np.float64)
        if not times[-1] < video.end_s + videos.TOLERANCE_S:
            raise ValueError(
                f"{video.path}: the last row is shown at {times[-1]:.4f} s, the episode's part ends at "
                f"{video.end_s:.4f} s"
            )
        found = np.empty((len(times), *field.shape), np.uint8)
        videos.decode(video.path, times, found)
        return found

    def close(self) -> None:
        """Close the file that is open."""
        if self._open is not None:
            self._open[1].close()
        self._open = self._group = self._ends = None


def _values(column: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the numbers in a column, of lists in lists.  Raises: ValueError: values are missing."""
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    while hasattr(column.type, "value_type") and hasattr(column, "flatten"):
        if column.null_count:
            raise ValueError("a null where a list is expected")
        column = column.flatten()
    if column.null_count:
        raise ValueError("a null where a value is expected")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def open_lerobot(path: str) -> LeRobotSource:
    """Open a data set's folder.  Raises: FileNotFoundError, ValueError, ModuleNotFoundError."""
    return LeRobotSource(path)
