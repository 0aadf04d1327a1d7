"""LeRobot data sets of layout v2.0, v2.1 and v3.0, read through pyarrow, and their videos through PyAV.

Source of the layouts: huggingface.co/docs/lerobot/lerobot-dataset-v3.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.data import images, videos
from sharpwave.data.episode import SourceEpisode, Totals, existing, field_of, finite_sum, further_names, needed, nested
from sharpwave.data.opened_files import REMEDY, VIDEO_WEIGHT, Folder, ReadBudget, explained
from sharpwave.data.parquet_files import ParquetFile
from sharpwave.data.varying import cut_rows, objects, text_rows, whole_texts
from sharpwave.spec import Field, Spec

EPISODE = "episode_index"
FRAME = "frame_index"
COUNTERS = (FRAME, EPISODE, "index")
"""Columns whose values follow from a row's position."""
DONE, TRUNCATED, REWARD, TIME = "next.done", "next.truncated", "next.reward", "timestamp"
TASK_NUMBER, TASK = "task_index", "task"
"""Column of the numbers of tasks, and the field of their texts."""
VIDEO_COLUMNS = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
TEXTS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "null")
"""pyarrow's types of texts; of a column without any, null."""
MAX_TASKS_BYTES, TIMES_IN_PYTHON = 1 << 28, 16
"""Limit of the description of episodes in a file of ``meta/episodes``; ratio of its texts' size as objects."""


MAX_PATH_CHARACTERS = 4096
"""Limit of a file's path, on most systems."""


class _Video(NamedTuple):
    """Part of a video that shows an episode, in seconds; the end is unknown if no other episode follows."""

    name: str
    begin_s: float = 0.0
    end_s: float = np.inf


class _EpisodeRows(NamedTuple):
    """Rows of an episode in a file of the folder; the first ``steps`` rows are steps. ``videos``: by feature.

    ``damage``: why the episode cannot be read, where damaged episodes are skipped.
    """

    number: int
    name: str
    begin: int
    rows: int
    steps: int
    tasks: list[str]
    videos: dict[str, _Video]
    damage: str = ""


class LeRobotSource:
    """Episodes of a LeRobot data set: a folder with ``meta/info.json``.

    Features ``observation.*`` are the observation, nested at their dots; ``action`` the action; ``next.reward`` the
    reward (else 0); ``next.done`` at the last frame says that the episode terminated, unless ``next.truncated`` is
    true. Others become further fields; texts, and lists whose size is said as -1 or null, rows of any length.
    ``task`` is the text of ``task_index``. A text of a whole episode, and its tasks, are annotations as well. Videos
    are decoded, one frame a row, without sound.

    An episode's rows are those with its number in ``episode_index``, even where the metadata name other rows.

    A data set has no observation after the last frame. So if an episode did not terminate, that frame's observation
    is the final one, and its action is left out.

    Raises:
        ValueError: it is damaged, or of another layout.
    """

    def __init__(self, path: str, budget: ReadBudget) -> None:
        folder = existing(path, "lerobot")
        self.name, self.left_out, self.notes, self._budget = f"lerobot:{folder}", list[str](), list[str](), budget
        self._arrow: Any = needed("pyarrow", "data")
        self._open: tuple[str, ParquetFile] | None = None
        self._groups: dict[bool, tuple[str, int, Any]] = {}
        self._runs: dict[str, dict[int, tuple[int, int]] | None] = {}
        self._unlisted = 0
        self.left = Totals()
        self._folder = Folder(folder, budget)
        budget.closing.callback(self._close_file)
        try:
            with explained(f"{self.name}: meta/info.json is damaged, or no LeRobot data set's", self.name):
                self._read_info()
            with explained(f"{self.name}: is damaged, or no LeRobot data set", self.name):
                self._places = self._read_episodes()
                self._describe()
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.name}: is not complete, or no LeRobot data set ({error})") from error
        self.steps = sum(place.steps for place in self._places)

    def _read_info(self) -> None:
        """Read the data set's description.  Raises: FileNotFoundError; any error that its values cause."""
        info = self._folder.json("meta/info.json")
        self._version = str(info["codebase_version"])
        if not re.fullmatch(r"v?(2\.[01]|3\.0)", self._version):
            raise ValueError(f"codebase_version {self._version!r}, expected v2.0, v2.1 or v3.0")
        self._said_episodes = info.get("total_episodes")
        self._data_path, self._video_path = str(info["data_path"]), str(info.get("video_path"))
        self._chunk = int(info.get("chunks_size", 1000))
        if self._chunk < 1:
            raise ValueError(f"{self.name}: meta/info.json: chunks_size {self._chunk}, expected at least 1")
        self._fields = self._read_features(info["features"])
        self._columns = [name for name in self._fields if name not in self._videos]

    def _describe(self) -> None:
        """Make the spec, once the columns of the data are known."""
        for one in [name for name, field in self._fields.items() if field.text is not None]:
            roots = self._under(one.split(".")[0]) if one.split(".")[0] in ("observation", "action") else []
            around = [name for name in roots if f"{one}.".startswith(f"{name}.") or name.startswith(f"{one}.")]
            if len(around) > 1:
                other = next(name for name in around if name != one)
                self.left_out.append(f"{one}: its name lies within, or around, that of {other}")
                self._leave(one)
        if not self._under("observation") or not self._under("action"):
            raise ValueError(f"{self.name}: features {list(self._fields)[:12]}, expected observation.* and action")
        names = [name for name in self._fields if name.split(".")[0] not in ("observation", "action")]
        texts = {one: self._fields[one].text is not None for one in names if one not in (REWARD, DONE, TRUNCATED)}
        self._further = further_names(texts, self.left_out, ".")
        for one in texts.keys() - self._further.values():
            self._leave(one)
        self._strings = [name for name, field in self._fields.items() if field.text is not None]
        further: dict[str, Any] = {name: self._fields[one] for name, one in self._further.items()}
        self._tasks: dict[int, str] = {}
        if TASK_NUMBER in further and TASK not in further:
            if (field := self._fields[TASK_NUMBER]).ragged or math.prod(field.shape) != 1:
                self.left_out.append(f"{TASK}: {TASK_NUMBER} is not one number a row")
            else:
                self._tasks = self._read_tasks()
        if self._tasks:
            further[TASK] = field_of(TASK, (), str, beside=True)
        self.spec = Spec(
            obs=self._nested("observation", self._fields), action=self._nested("action", self._fields), **further
        )

    def _leave(self, name: str) -> None:
        """Leave out a feature whose omission is noted."""
        del self._fields[name]
        self._columns = [one for one in self._columns if one != name]

    def _under(self, root: str) -> list[str]:
        return [name for name in self._fields if name.split(".")[0] == root]

    def _nested(self, root: str, values: dict[str, Any]) -> Any:
        paths = {name[len(root) + 1 :]: values[name] for name in self._under(root)}
        return nested(f"{self.name}: {root}", paths, ".")

    def _read_features(self, features: dict[str, Any]) -> dict[str, Field]:
        fields: dict[str, Field] = {}
        for name, said in features.items():
            if name in COUNTERS:
                continue
            dtype = str(said["dtype"])
            if dtype.startswith("audio") or dtype == "language":
                self.left_out.append(f"{name}: {dtype}")
                continue
            sizes_said = said["shape"] if dtype != "string" else said.get("shape") or ()
            shape = tuple(-1 if n is None else int(n) for n in sizes_said)
            if dtype == "string":
                if math.prod(shape) != 1:
                    self.left_out.append(f"{name}: lists of texts")
                    continue
                beside = name.split(".")[0] not in ("observation", "action")
                fields[name] = field_of(name, (), str, beside=beside)
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
            sizes: tuple[int | None, ...] = (None, *shape[1:]) if shape[:1] == (-1,) else shape
            fields[name] = field_of(name, sizes, np.dtype(dtype))
        self._images = [name for name in fields if features[name]["dtype"] == "image"]
        self._videos = [name for name in fields if features[name]["dtype"] == "video"]
        if self._videos and TIME not in fields:
            raise ValueError(f"{self._videos[0]} is a video, but there is no {TIME!r} to find its frames by")
        if REWARD not in fields:
            self.left_out.append("rewards: none in the data; they are 0")
        return fields

    def _read_tasks(self) -> dict[int, str]:
        """Return the tasks' texts by number; without their file, none, which is noted.  Raises: ValueError."""
        name = "meta/tasks.parquet" if self._version.endswith("3.0") else "meta/tasks.jsonl"
        try:
            with explained(f"{self._folder.path / name}", self.name):
                if name.endswith("jsonl"):
                    lines = list(self._folder.json_lines(name))
                    numbers, texts = [int(one[TASK_NUMBER]) for one in lines], [one[TASK] for one in lines]
                else:
                    numbers, texts = self._read_task_table(ParquetFile(self._folder.open(name), self._budget))
                tasks = dict(zip(numbers, text_rows(TASK, texts, str).tolist(), strict=True))
                _ = [one.encode() for one in tasks.values()]  # JSON may have surrogates
                if not tasks:
                    raise ValueError(f"{self._folder.path / name} has no tasks")
                if again := [one for one, count in collections.Counter(numbers).items() if count > 1]:
                    self.notes.append(f"{name}: has {TASK_NUMBER} {again[0]} twice or more; the last text is taken")
                return tasks
        except (FileNotFoundError, ValueError) as error:
            if REMEDY in str(error):
                raise
            self.left_out.append(f"{TASK}: {TASK_NUMBER} has the numbers only ({error})")
            return {}

    def _read_task_table(self, file: ParquetFile) -> tuple[list[int], list[Any]]:
        """Read the columns of numbers and of texts, which may be pandas' index.  Raises: ValueError."""
        types = self._arrow.types
        kinds = {one.name: one.type for one in file.schema}
        strings = [one for one, kind in kinds.items() if types.is_string(kind) or types.is_large_string(kind)]
        if len(strings) != 1 or not types.is_integer(kinds.get(TASK_NUMBER, self._arrow.null())):
            raise ValueError(f"{file.path}: columns {kinds}, expected {TASK_NUMBER} and one of texts")
        numbers, texts = list[int](), list[Any]()
        self._budget.closing.callback(file.close)
        for group in range(len(file.rows)):
            table = file.read(group, [TASK_NUMBER, *strings], MAX_TASKS_BYTES / TIMES_IN_PYTHON)
            numbers += _values(table.column(TASK_NUMBER)).tolist()
            texts += _texts(table.column(strings[0])).tolist()
        return numbers, texts

    def _read_episodes(self) -> list[_EpisodeRows]:
        """Return the places of the episodes with steps."""
        if self._videos:
            needed("av", "lerobot")
        places: list[_EpisodeRows] = []
        numbers: set[int] = set()
        listed: set[str] = set()
        files: dict[str, int] = {}  # index of the first row of each
        for said in self._episode_lines():
            number, rows = int(said["episode_index"]), int(said["length"])
            self._budget.check_count(self.name, len(places), "episodes")
            if number in numbers:
                raise ValueError(f"{self.name}: meta/episodes lists episode {number} twice; fetch it anew")
            numbers.add(number)
            if self._version.endswith("3.0"):
                values = {"chunk_index": int(said["data/chunk_index"]), "file_index": int(said["data/file_index"])}
                name, first = self._path(self._data_path, values), int(said.get("dataset_from_index") or 0)
            else:
                values = {"episode_chunk": number // self._chunk, "episode_index": number}
                name, first = self._path(self._data_path, values), 0
            listed.add(name)
            try:
                place = self._found(_EpisodeRows(number, name, first, rows, 0, [], {}), said, values, files)
            except (ValueError, FileNotFoundError) as error:
                if not self._budget.skip_damaged or REMEDY in str(error):
                    raise
                place = _EpisodeRows(number, name, first, rows, 0, [], {}, str(error))
            if place.steps or place.damage:
                places.append(place)
            else:
                self.left.episodes += 1
                self.left.truncated += 1
        if sound := [place for place in places if not place.damage]:
            if DONE in self._fields and (ends := {place.steps == place.rows for place in sound}) != {True, False}:
                how = "every one terminated, also at time limits" if ends == {True} else "none terminated"
                self.notes.append(f"{DONE}: is {str(ends == {True}).lower()} at the last frame of all episodes; {how}")
            for one in [name for name, field in self._fields.items() if field.text is not None]:
                if why := self._no_texts(sound[0].name, one, whole=True):
                    self.left_out.append(f"{one}: {why}")
                    self._leave(one)
        if self._unlisted:
            self.left_out.append(f"{self._unlisted:,} rows of episodes that meta/episodes does not list")
        which = "that did not terminate" if DONE in self._fields else f"(without {DONE} none is known to terminate)"
        self.left_out += self.left.said(which)
        if self._said_episodes not in (None, len(numbers)):
            self.left_out.append(
                f"episodes: info.json says {str(self._said_episodes)[:32]}, meta/episodes lists {len(numbers):,}"
            )
        if others := self._other_files(listed):
            few = ", ".join(others[:4]) + (" and others" if len(others) > 4 else "")
            self.left_out.append(f"episodes: {len(others):,} files without an episode in the metadata, {few}")
        return places

    def _other_files(self, listed: set[str]) -> list[str]:
        found: list[str] = []
        for top in sorted({name.split("/")[0] for name in listed if "/" in name}):
            places = [top] if self._folder.is_folder(top) else []
            for place in places:
                names = [f"{place}/{one}" for one in self._folder.names(place)]
                self._budget.check_time()
                found += [one for one in names if one.endswith(".parquet") and one not in listed]
                places += [one for one in names if place == top and "." not in one and self._folder.is_folder(one)]
        return found

    def _found(
        self, place: _EpisodeRows, said: Mapping[str, Any], values: dict[str, int], files: dict[str, int]
    ) -> _EpisodeRows:
        """Complete an episode's ``place``, which has the index of the first row only; count the rows that are steps.

        Raises: FileNotFoundError, ValueError.
        """
        name, number, rows = place.name, place.number, place.rows
        if name not in files:
            self._folder.count(name)
        begin = place.begin - files.setdefault(name, place.begin)
        if self._version.endswith("3.0"):
            begin = self._begin(name, number, rows, begin)
        if rows < 1 or begin < 0:
            raise ValueError(f"{self.name}: episode {number} of {rows} rows from row {begin} on, expected one at least")
        terminated, reward = self._last_row(name, begin + rows - 1)
        steps = rows if terminated else rows - 1
        shown = {one: self._video(one, said, values, files) for one in self._videos} if steps else {}
        if not terminated:
            self.left.steps += 1
            self.left.reward += reward
        tasks = [str(one) for one in said.get("tasks") or []]
        return place._replace(begin=begin, steps=steps, tasks=tasks, videos=shown)

    def _episode_lines(self) -> Iterator[Mapping[str, Any]]:
        if not self._version.endswith("3.0"):
            yield from self._folder.json_lines("meta/episodes.jsonl")
            return
        wanted = ["episode_index", "tasks", "length", "data/chunk_index", "data/file_index", "dataset_from_index"]
        wanted += [f"videos/{name}/{column}" for name in self._videos for column in VIDEO_COLUMNS]
        lines: list[dict[str, Any]] = []
        nbytes = 0
        folder, found = self._folder, "meta/episodes"
        chunks = [one for one in folder.names(found) if folder.is_folder(f"{found}/{one}")]
        for name in (f"{found}/{one}/{file}" for one in chunks for file in folder.names(f"{found}/{one}")):
            if not name.endswith(".parquet"):
                continue
            file = ParquetFile(folder.open(name), self._budget)
            try:
                self._budget.check_count(str(file.path), len(lines) + sum(file.rows), "episodes")
                self._check_lines(file, wanted)
                for group in range(len(file.rows)):
                    table = file.read(group, wanted, MAX_TASKS_BYTES)
                    nbytes += TIMES_IN_PYTHON * (table.nbytes + file.text_bytes(table))
                    self._budget.check_bytes(f"{file.path}: descriptions of episodes", nbytes)
                    lines += table.to_pylist()
            finally:
                file.close()
        yield from sorted(lines, key=lambda one: int(one["episode_index"]))

    def _check_lines(self, file: ParquetFile, wanted: list[str]) -> None:
        """Check types in episodes' descriptions: tasks are lists of texts, all else numbers.  Raises: ValueError."""
        types = self._arrow.types
        for name in set(wanted) & set(file.schema.names):
            kind = file.schema.field(name).type
            one = kind.value_type if name == "tasks" and types.is_list(kind) else kind
            if types.is_nested(one) or isinstance(one, self._arrow.BaseExtensionType):
                expected = "list<string>" if name == "tasks" else "a number"
                raise ValueError(f"{file.path}: {name} is {kind}, expected {expected}")

    def _video(self, feature: str, said: Mapping[str, Any], values: dict[str, int], files: dict[str, int]) -> _Video:
        if self._version.endswith("3.0"):
            chunk, file, begin, end = (said[f"videos/{feature}/{column}"] for column in VIDEO_COLUMNS)
            values = {"chunk_index": int(chunk), "file_index": int(file)}
            video = _Video(self._path(self._video_path, {**values, "video_key": feature}), float(begin), float(end))
        else:
            video = _Video(self._path(self._video_path, {**values, "video_key": feature}))
        if video.name not in files:
            try:
                self._folder.count(video.name, VIDEO_WEIGHT)
            except FileNotFoundError as error:
                path = str(self._folder.path / video.name)
                raise FileNotFoundError(f"the video {path!r} of episode {said['episode_index']} is missing") from error
            files[video.name] = 0
        return video

    def _path(self, template: str, values: Mapping[str, int | str]) -> str:
        """Return a file's name, which the folder checks.  Raises: ValueError: it is too long."""
        longest = max(len(str(one)) for one in values.values())
        if len(template) + template.count("{") * longest > MAX_PATH_CHARACTERS:
            raise ValueError(
                f"{self.name}: the path {template[:64]!r}... gets more than {MAX_PATH_CHARACTERS:,} characters, "
                "too many for a file's name; write info.json anew"
            )

        def value(found: re.Match[str]) -> str:
            one = values[found[1]]
            return one if isinstance(one, str) else f"{one:0{int(found[2] or 0)}d}"

        return re.sub(r"\{(\w+)(?::0?(\d{1,2})d)?\}", value, template)

    def _begin(self, name: str, number: int, rows: int, said: int) -> int:
        """Return an episode's first row in a file, by the column of episode numbers; without that column, ``said``.

        Raises: ValueError: the column has another number of its rows.
        """
        if name not in self._runs:
            self._runs[name] = self._read_runs(name)
        if (runs := self._runs[name]) is None:
            return said
        begin, found = runs.get(number, (0, 0))
        self._unlisted -= found
        if found != rows:
            raise ValueError(
                f"{self._folder.path / name} has {found:,} rows of {EPISODE} {number}, but meta/episodes says {rows:,}"
                "; fetch both anew"
            )
        return begin

    def _read_runs(self, name: str) -> dict[int, tuple[int, int]] | None:
        """Return the first row and the number of rows of each episode in a file; None: the file has no such numbers."""
        file = self._file(name)
        if EPISODE not in file.schema.names:
            return None
        if not self._arrow.types.is_integer(kind := file.schema.field(EPISODE).type):
            raise ValueError(f"{file.path}: {EPISODE} is {kind}, expected integers")
        self._budget.check_bytes(f"{file.path}: {EPISODE}", 8 * sum(file.rows))
        parts = [_values(file.read(group, [EPISODE]).column(EPISODE)) for group in range(len(file.rows))]
        found = np.unique(np.concatenate(parts), return_index=True, return_counts=True)
        self._unlisted += sum(map(len, parts))
        return {one: (begin, rows) for one, begin, rows in zip(*(x.tolist() for x in found), strict=True)}

    def _last_row(self, name: str, row: int) -> tuple[bool, float]:
        """Return whether an episode terminated with its last row, and the reward there.  Raises: ValueError."""
        columns = [one for one in (DONE, TRUNCATED, REWARD) if one in self._fields]
        if not {DONE, REWARD} & set(columns):
            return False, 0.0
        table = self._rows(name, row, 1, columns)
        said = {one: self._array(table, one, self._fields[one]).reshape(-1) for one in columns}
        if any(len(one) != 1 for one in said.values()):
            raise ValueError(
                f"{self.name}: {name}: row {row} has {[len(one) for one in said.values()]} values of {columns}, "
                "expected one"
            )
        truncated = TRUNCATED in said and bool(said[TRUNCATED][0])
        reward = finite_sum(said[REWARD]) if REWARD in said else 0.0
        return DONE in said and bool(said[DONE][0]) and not truncated, reward

    def _file(self, name: str) -> ParquetFile:
        """Return an open file, which stays open until another one is needed.  Raises: ValueError."""
        if self._open is None or self._open[0] != name:
            self._close_file()
            self._open = name, ParquetFile(self._folder.open(name), self._budget)
        return self._open[1]

    def _rows(self, name: str, begin: int, count: int, columns: list[str] | None = None) -> Any:
        file = self._file(name)
        parts, at, nbytes = [], 0, 0
        for number, rows in enumerate(file.rows):
            first, last = max(begin, at), min(begin + count, at + rows)
            if first < last:
                group = self._row_group(name, file, number, columns)
                nbytes += group.nbytes
                self._budget.check_bytes(f"{file.path}: row groups of rows {begin:,} to {begin + count - 1:,}", nbytes)
                parts.append(group.slice(first - at, last - first))
            at += rows
        table = self._arrow.concat_tables(parts) if parts else None
        if table is None or table.num_rows != count:
            raise ValueError(f"{file.path} has {at:,} rows, expected rows {begin:,} to {begin + count - 1:,}")
        return table

    def _row_group(self, name: str, file: ParquetFile, number: int, columns: list[str] | None) -> Any:
        """Return a row group, or always the same columns of it; the last one of each stays in memory."""
        whole = columns is None
        if self._groups.get(whole, ())[:2] != (name, number):
            self._groups.pop(whole, None)  # two would need twice the memory
            texts = [one for one in self._columns if self._fields[one].text is not None]
            lacking = [one for one in texts if self._no_texts(name, one)]
            wanted = [one for one in columns or self._columns if one not in lacking]
            for one in wanted:
                self._check_type(file, one)
            read = file.read(number, wanted if columns else [*wanted, EPISODE, FRAME])
            self._groups[whole] = name, number, read
        return self._groups[whole][2]

    def _check_type(self, file: ParquetFile, name: str) -> None:
        """Check a column's type: lists of a fixed size take space even where they are null.  Raises: ValueError."""
        if name not in file.schema.names:
            raise ValueError(
                f"{file.path}: has no column {name!r}, which info.json lists; its columns are {file.schema.names[:12]}"
            )
        kind, size = file.schema.field(name).type, 1
        while self._arrow.types.is_fixed_size_list(kind):
            kind, size = kind.value_type, size * kind.list_size
        if size > 1 and size > math.prod(self._fields[name].inner):
            raise ValueError(f"{file.path}: {name} has lists of {size:,}, expected {self._fields[name].shape}")

    def _no_texts(self, name: str, column: str, whole: bool = False) -> str:
        """Return why a file's column has not one text in each row, in words; "": it has.

        Args:
            whole: read lists as well, whose lengths tell it.
        """
        file = self._file(name)
        if column not in file.schema.names:
            return "the data do not have it"
        kind, listed = file.schema.field(column).type, False
        while hasattr(kind, "value_type") and not isinstance(kind, self._arrow.BaseExtensionType):
            listed |= not self._arrow.types.is_dictionary(kind)
            if getattr(kind, "list_size", 1) != 1:
                return "lists of texts"
            kind = kind.value_type
        if str(kind) not in TEXTS:
            return f"{kind}, expected texts"
        if whole and listed:
            groups = (file.read(group, [column]).column(column) for group in range(len(file.rows)))
            if any(_one_text_each(one)[1] for one in groups):
                return "lists of texts"
        return ""

    def __len__(self) -> int:
        return len(self._places)

    def read(self, number: int) -> SourceEpisode:
        place = self._places[number]
        what = self.place(number)
        if place.damage:
            raise ValueError(f"{what}: {place.damage}")
        self._budget.check_episode(what, place.rows + 1, self._fields)
        with explained(f"{what} cannot be read", self.name):
            table = self._rows(place.name, place.begin, place.rows)
            self._check_rows(place, table)
            arrays = {
                name: self._frames(table, place.videos[name], field)
                if name in place.videos
                else self._array(table, name, field)
                for name, field in self._fields.items()
            }
        terminated, steps = place.steps == place.rows, place.steps
        observed = {
            name: np.concatenate([arrays[name], arrays[name][-1:]]) if terminated else arrays[name]
            for name in self._under("observation")
        }
        taken = {name: arrays[name][:steps] for name in self._under("action")}
        reward = arrays[REWARD].reshape(-1)[:steps] if REWARD in arrays else np.zeros(steps, np.float32)
        fields = {name: arrays[one][:steps] for name, one in self._further.items()}
        doubts = [f"{DONE} is true before the last frame"] if DONE in arrays and arrays[DONE][:-1].any() else []
        doubts += [f"{name}: {why}; stored as empty texts" for name in self._strings for why in _lacking(table, name)]
        if self._tasks:
            numbers = fields[TASK_NUMBER].reshape(-1).tolist()
            fields[TASK] = objects([self._tasks.get(one, "") for one in numbers])
            unknown = sorted({*numbers} - self._tasks.keys())
            doubts += [f"{TASK_NUMBER}: {one} is not in meta/tasks; its task is stored as ''" for one in unknown[:8]]
        info: dict[str, Any] = {"tasks": place.tasks} if place.tasks else {}
        obs, action = self._nested("observation", observed), self._nested("action", taken)
        texts = whole_texts(self.spec, obs, action, fields)
        return SourceEpisode(obs, action, reward, terminated, not terminated, fields, info, texts, doubts)

    def _check_rows(self, place: _EpisodeRows, table: Any) -> None:
        """Check that the rows are the episode's, and that a file of its own has no others.  Raises: ValueError."""
        assert self._open is not None
        path, rows = self._folder.path / place.name, sum(self._open[1].rows)
        if not self._version.endswith("3.0") and rows != place.rows:
            raise ValueError(f"{path} has {rows:,} rows, but meta/episodes.jsonl says {place.rows:,}; fetch both anew")
        frames = _values(table.column(FRAME)) if FRAME in table.column_names else np.arange(place.rows)
        if frames.shape != (place.rows,) or (differ := frames != np.arange(place.rows)).any():
            at = int(np.argmax(differ)) if frames.shape == (place.rows,) else 0
            raise ValueError(
                f"{path}: row {place.begin + at:,} has {FRAME} {frames[at]}, expected {at} as the rows of an episode "
                "follow one another; write the data set anew"
            )
        numbers = _values(table.column(EPISODE)) if EPISODE in table.column_names else np.array([])
        if (numbers != place.number).any():
            raise ValueError(
                f"{path}: row {place.begin:,} on has {EPISODE} {numbers[numbers != place.number][0]}, expected "
                f"{place.number} as meta/episodes says; fetch both anew"
            )

    def _array(self, table: Any, name: str, field: Field) -> npt.NDArray[Any]:
        if field.text is not None and name not in table.column_names:
            return objects([""] * len(table))
        column = table.column(name).combine_chunks()
        if name in self._images:
            frames = np.empty((len(column), *field.shape), field.np_dtype)
            for row, scalar in enumerate(column):  # one by one: all may share the same bytes of the file
                self._budget.check_time()
                one = scalar.as_py()
                content = one.get("bytes") if isinstance(one, dict) else None
                if not isinstance(content, bytes):
                    raise ValueError(f"{name}: the image of row {row} is not in the file, expected a PNG or JPEG")
                frames[row] = images.decode(content, field.shape, name)
            return frames
        if field.text is not None:
            return text_rows(name, _texts(column), str)
        if field.ragged:
            return _rows(name, column, field)
        values = _values(column)
        if values.dtype != field.np_dtype:
            raise ValueError(f"{name}: {values.dtype}, expected {field.dtype}")
        if values.size != len(column) * math.prod(field.shape):
            raise ValueError(f"{name}: {values.size:,} values in {len(column):,} rows, expected {field.shape} in each")
        return values.reshape(len(column), *field.shape)

    def _frames(self, table: Any, video: _Video, field: Field) -> npt.NDArray[Any]:
        times = video.begin_s + self._array(table, TIME, self._fields[TIME]).reshape(-1).astype(np.float64)
        if len(times) != table.num_rows:
            raise ValueError(f"{TIME}: {len(times):,} values in {table.num_rows:,} rows, expected one in each")
        if not times[-1] < video.end_s + videos.TOLERANCE_S:
            raise ValueError(
                f"{self._folder.path / video.name}: the last row is shown at {times[-1]:.4f} s, the episode's part "
                f"ends at {video.end_s:.4f} s"
            )
        found = np.empty((len(times), *field.shape), np.uint8)
        with self._folder.open(video.name, VIDEO_WEIGHT) as file:
            videos.decode(file, times, found)
        return found

    def length(self, number: int) -> int:
        return self._places[number].steps

    def place(self, number: int) -> str:
        place = self._places[number]
        return f"{self.name}: {place.name}: episode {place.number}"

    def _close_file(self) -> None:
        if self._open is not None:
            self._open[1].close()
        self._open = None
        self._groups.clear()


def _values(column: Any) -> npt.NDArray[Any]:
    """Return the numbers in a column, of lists in lists.  Raises: ValueError: values are missing."""
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    while hasattr(column.type, "value_type") and hasattr(column, "flatten"):
        if column.null_count:
            raise ValueError("a null where a list is expected")
        if not hasattr(column.type, "list_size") and len(sizes := column.value_lengths().unique()) > 1:
            raise ValueError(f"lists of {sizes[0]} and of {sizes[1]} values, expected one size")
        column = column.flatten()
    if column.null_count:
        raise ValueError("a null where a value is expected")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _lacking(table: Any, name: str) -> list[str]:
    """Return why some rows of a column have no text of their own, in words."""
    if name not in table.column_names:
        return ["no texts in some files"]
    texts, lists = _one_text_each(table.column(name))
    if lists:
        return ["lists of other than one text in some rows"]
    return ["null in some rows"] if texts.null_count else []


def _one_text_each(column: Any) -> tuple[Any, bool]:
    """Return the text of each row of a column, null where it has not one, and whether lists have other numbers."""
    found, lists = column.combine_chunks() if hasattr(column, "combine_chunks") else column, False
    while hasattr(found.type, "value_type") and not hasattr(found, "dictionary"):
        present = found.is_valid().to_numpy(zero_copy_only=False)
        if (size := getattr(found.type, "list_size", None)) is None:
            lengths = found.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        else:
            lengths = np.where(present, size, 0)
        lists |= bool((present & (lengths != 1)).any())
        at = np.where(lengths == 1, np.cumsum(lengths) - lengths, 0)
        values = found.flatten()  # without those of nulls
        found = values.take(needed("pyarrow", "data").array(at, mask=lengths != 1))
    return found, lists


def _texts(column: Any) -> npt.NDArray[np.object_]:
    """Return the bytes of a column's texts; none where a row has not one."""
    found = _one_text_each(column)[0]
    if str(found.type) == "null":
        return objects([b""] * len(found))
    if not hasattr(found, "dictionary"):
        found = found.dictionary_encode()
    said = [*found.dictionary.cast("large_binary").to_pylist(), b""]
    rows: npt.NDArray[np.object_] = objects(said)[found.indices.fill_null(len(said) - 1).to_numpy()]
    return rows


def _rows(name: str, column: Any, field: Field) -> npt.NDArray[np.object_]:
    """Return the rows of any length in a column of lists.  Raises: ValueError."""
    if column.null_count or hasattr(column.type, "list_size") or not hasattr(column, "value_lengths"):
        raise ValueError(f"{name}: {column.type} with {column.null_count:,} nulls, expected a list in each row")
    lengths, values = column.value_lengths().to_numpy(zero_copy_only=False), column.flatten()
    flat = np.zeros(0, field.np_dtype) if str(values.type) == "null" and not len(values) else _values(values)
    if flat.dtype != field.np_dtype:
        raise ValueError(f"{name}: {flat.dtype}, expected {field.dtype}")
    size = math.prod(field.inner)
    if flat.size != len(values) * size:
        raise ValueError(f"{name}: {flat.size:,} values in {len(values):,} items, expected {field.inner} in each")
    return cut_rows(name, flat.reshape(len(values), *field.inner), lengths.astype(np.int64), len(column))
