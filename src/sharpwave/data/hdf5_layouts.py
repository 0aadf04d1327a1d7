"""HDF5 files by their layouts: D4RL, robomimic, ManiSkill, ALOHA and d3rlpy; the layout is detected by content."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data import images
from sharpwave.data.columns import ColumnSource, ends_within
from sharpwave.data.episode import Array, Arrays, Source, below, existing, len_of
from sharpwave.data.hdf5 import Hdf5File
from sharpwave.data.opened_files import REMEDY, Folder, ReadBudget, explained, open_path
from sharpwave.data.recordings import EpisodeRecording, RecordingLayout, RecordingSource

DEMO, TRAJECTORY = re.compile(r"demo_(\d{1,18})"), re.compile(r"traj_(\d{1,18})")
EPISODE_FILE = re.compile(r"episode_(\d{1,18})\.(hdf5|h5)")
COLUMN = re.compile(r"(.+?)_(\d{1,18})(?:_(\d{1,4}))?")
"""d3rlpy's name of an episode's column, or of a part of a tuple in it."""
METADATA = "metadata"
"""Group that describes a D4RL data set."""
MAX_TEXT_CHARACTERS = 1 << 14
"""Limit of a text that is kept as an annotation."""


def open_hdf5(place: str, budget: ReadBudget) -> Source:
    """Open an HDF5 file of any known layout, or ALOHA's folder of files.

    Raises: FileNotFoundError, ValueError, ModuleNotFoundError.
    """
    path = existing(place, "hdf5")
    name = f"hdf5:{path}"
    if path.is_dir():
        return RecordingSource(name, _folder(name, path, budget), budget)
    file = Hdf5File(open_path(path, budget), budget)
    budget.closing.callback(file.close)
    layout = _layout(file, name, path, budget)
    if layout is None:
        return ColumnSource(name, arrays_of(file, file.root, "", METADATA), budget)
    return RecordingSource(name, layout, budget)


def _folder(name: str, path: Path, budget: ReadBudget) -> RecordingLayout:
    """Find ALOHA's files in a folder.  Raises: ValueError: it has none."""
    folder = Folder(path, budget)
    with explained(name, name):
        names = folder.names()
        files = _numbered(EPISODE_FILE, names)
        if not files:
            raise ValueError(
                f"has {names[:8]}, expected ALOHA's episode_0.hdf5, episode_1.hdf5 ...; give a single file of any "
                "other layout"
            )
    others = [one for one in names if one not in files]
    others = [f"{len(others):,} files: no episode ({_few(others)})"] if others else []
    return Aloha(files, lambda one: Hdf5File(folder.open(one), budget), budget, others)


def _layout(file: Hdf5File, name: str, path: Path, budget: ReadBudget) -> RecordingLayout | None:
    """Detect a file's layout; None: D4RL's, or an unknown one.  Raises: ValueError."""
    with explained(f"{name} is damaged", name):
        names = [one for one in file.root if isinstance(one, str)]
        if "data" in names and _numbered(DEMO, file.names(file.root, "data")):
            return Robomimic(file, name)
        if trajectories := _numbered(TRAJECTORY, names):
            return ManiSkill(file, trajectories, _beside(path, budget), names)
        if {"num_episodes", "observations_0"} <= set(names) or {"num_episodes", "observations_0_0"} <= set(names):
            return D3rlpy(file, names)
        only = {"observations", "action"} <= set(names) and "actions" not in names
        if only and file.names(file.root, "observations") and not _is_marked(file, budget):
            return Aloha([path.name], lambda one: file, budget)
    return None


def _is_marked(file: Hdf5File, budget: ReadBudget) -> bool:
    """Return whether arrays mark ends of episodes, or several episodes, as in D4RL's layout."""
    arrays = arrays_of(file, file.root, "")
    rows = max(map(len_of, below(arrays, "action").values()), default=-1)
    for path, one in without(arrays, "observations", "action").items():
        if len_of(one) == rows > 1 and one.shape[1:] in ((), (1,)) and one.dtype.kind in "buif":
            budget.check_bytes(path, rows * one.dtype.itemsize)
            if ends_within(path, one.rows(0, rows).reshape(-1)):
                return True
    return False


def _numbered(pattern: re.Pattern[str], names: Iterable[Any]) -> list[str]:
    """Return the names that match a pattern, in the order of their numbers."""
    found = [(one, match) for one in names if isinstance(one, str) and (match := pattern.fullmatch(one))]
    return [one for one, match in sorted(found, key=lambda pair: (int(pair[1][1]), pair[0]))]


class Hdf5Array:
    """Array of an HDF5 file."""

    def __init__(self, file: Hdf5File, array: Any, name: str) -> None:
        self._file, self._array, self._name = file, array, name
        self.shape: tuple[int, ...] = tuple(array.shape or ())
        dtype = array.dtype
        self.dtype: np.dtype[Any] = dtype if dtype.kind == "O" else dtype.newbyteorder("=")

    def rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        if self.dtype.kind == "O" and self.shape:
            return self._file.rows_of_any_length(self._array, self._name, begin, min(end, self.shape[0]))
        return self._file.read(self._array, self._name, slice(begin, end) if self.shape else ())


def arrays_of(file: Hdf5File, group: Any, prefix: str, leave: str = "") -> dict[str, Array]:
    """Return the arrays of a group by their paths in it, but for the group ``leave``; ``prefix`` is the group's path.

    Raises: ValueError.
    """
    found = file.arrays(group, prefix, leave)
    return {name[len(prefix) :]: Hdf5Array(file, array, name) for name, array in found.items()}


def without(arrays: Arrays, *names: str) -> dict[str, Array]:
    """Return the arrays without those of these names, or in groups of these names."""
    return {name: array for name, array in arrays.items() if name.split("/")[0] not in names}


class Robomimic(RecordingLayout):
    """Layout of robomimic and MimicGen: a group for each demonstration, ``data/demo_0``, ``data/demo_1`` ...

    Each has ``obs/*`` [T, ...] and ``actions`` [T, ...], and optionally ``next_obs/*``, ``rewards`` [T] and ``dones``
    [T], whose last value says whether it terminated, as for robomimic's own algorithms; others are further fields.
    """

    def __init__(self, file: Hdf5File, name: str) -> None:
        self._file, self._name = file, name
        self._group = file.group(file.root, "data")
        self._demos = _numbered(DEMO, self._group)
        super().__init__(
            [f"data/{one}" for one in self._demos],
            "read as robomimic writes it",
            "dones, if any: a demonstration's last one says whether it terminated",
        )
        self.left_out = [f"data/{one}: no demonstration" for one in set(self._group) - set(self._demos)]
        for one in file.names(file.root, "mask"):
            self._compare_mask(one)
        said = file.attribute(self._group, "env_args")
        if said is not None:
            self.about = short({"env_args": said}, self.left_out)

    def _compare_mask(self, mask: str) -> None:
        """Note demonstrations of a filter key that the data lack, such as deleted ones."""
        try:
            missing = sorted(set(self._keys(mask)) - set(self._demos))
        except ValueError as error:
            if REMEDY in str(error):
                raise
            self.left_out.append(f"mask/{mask}: cannot be read")
            return
        if missing:
            self.left_out.append(f"mask/{mask}: lists {_few(missing)}, which data lacks")

    def _keys(self, mask: str) -> list[str]:
        found = self._file.find(self._file.find(self._file.root, "mask"), mask)
        return self._file.texts(found, f"mask/{mask}") if hasattr(found, "dtype") else []

    def surveyed(self, rows: int) -> list[str]:
        said = self._file.attribute(self._group, "total")
        return [] if said is None or said == rows else [f"steps: total says {said}, sound demonstrations have {rows:,}"]

    def recording(self, number: int) -> EpisodeRecording:
        name = self._demos[number]
        group = self._file.group(self._group, name)
        arrays = arrays_of(self._file, group, f"data/{name}/")
        said, meta = (self._file.attribute(group, one) for one in ("num_samples", "ep_meta"))
        actions = below(arrays, "actions")
        if said is not None and any(len_of(array) != said for array in actions.values()):
            raise ValueError(f"num_samples is {said}, expected the rows of actions; write the data set anew")
        if not below(arrays, "obs"):
            raise ValueError(
                "has no obs, expected observations; robomimic's scripts/dataset_states_to_obs.py adds them to states"
            )
        return EpisodeRecording(
            obs=below(arrays, "obs"),
            next_obs=below(arrays, "next_obs"),
            action=actions,
            reward=arrays.get("rewards"),
            terminated=arrays.get("dones"),
            further=without(arrays, "obs", "next_obs", "actions", "rewards", "dones"),
            info={"demo": name} | ({} if meta is None else short({"ep_meta": meta}, [])),
        )

    def named(self, name: str) -> list[int]:
        """Return the numbers of the demonstrations of a filter key.  Raises: ValueError."""
        names = self._file.names(self._file.root, "mask")
        if name not in names:
            raise ValueError(f"{self._name}: has no mask/{name}, only {names[:12]}; give one of these, or numbers")
        keys = self._keys(name)
        if missing := sorted(set(keys) - set(self._demos)):
            raise ValueError(f"{self._name}: mask/{name} has {missing[0]!r}, which is not in data")
        return [number for number, one in enumerate(self._demos) if one in keys]


class ManiSkill(RecordingLayout):
    """Layout of ManiSkill: groups ``traj_0``, ``traj_1`` ... and a JSON file of the same name that describes them.

    Each has ``obs`` [T + 1, ...] or ``obs/*``, and ``actions``, ``rewards``, ``terminated`` and ``truncated`` [T];
    ``success``, ``fail`` [T], ``env_states/*`` [T + 1, ...] and others are further fields.
    """

    final = True

    def __init__(self, file: Hdf5File, names: list[str], said: Any, others: list[str]) -> None:
        super().__init__(names, "read as ManiSkill writes it")
        self._file = file
        self.left_out = [f"{one}: no trajectory" for one in others if one not in names]
        self._said: dict[str, dict[str, Any]] = {}
        self._differing: set[str] = set()
        if said is None:
            self.notes.append("no JSON file of the same name, to describe the trajectories, lies beside it")
            return
        if not isinstance(said, dict) or not isinstance(said.get("episodes"), list):
            self.notes.append("the JSON file of the same name lists no episodes, so nothing describes them")
            return
        self._describe(said["episodes"])
        self.about = short({"env_info": json.dumps(said.get("env_info"))}, self.left_out)

    def _describe(self, episodes: list[Any]) -> None:
        """Read the description of each trajectory; note trajectories that a file lacks, or lists twice."""
        described = [one for one in episodes if isinstance(one, dict) and "episode_id" in one]
        if nameless := len(episodes) - len(described):
            self.left_out.append(f"episodes: {nameless:,} of the JSON file have no episode_id")
        listed = [f"traj_{one['episode_id']}" for one in described]
        twice = {name for name, count in Counter(listed).items() if count > 1}
        self._said = {name: one for name, one in zip(listed, described, strict=True) if name not in twice}
        if twice:
            self.left_out.append(f"episodes: the JSON file lists {_few(twice)} twice; neither description is taken")
        if missing := set(listed) - set(self.places):
            self.left_out.append(f"episodes: the JSON file lists {_few(missing)}, which this file lacks")
        if missing := set(self.places) - set(listed):
            self.left_out.append(f"descriptions: the JSON file does not list {_few(missing)}")

    def surveyed(self, rows: int) -> list[str]:
        return [f"success: the JSON file differs for {_few(self._differing)}"] if self._differing else []

    def recording(self, number: int) -> EpisodeRecording:
        name = self.places[number]
        arrays = arrays_of(self._file, self._file.group(self._file.root, name), f"{name}/")
        said, rows = self._said.get(name, {}), max(map(len_of, below(arrays, "actions").values()), default=-1)
        if rows >= 0 and "elapsed_steps" in said and said["elapsed_steps"] != rows:
            raise ValueError(
                f"has {rows:,} actions, expected {str(said['elapsed_steps'])[:32]} as elapsed_steps of the JSON file "
                "says; fetch both anew"
            )
        success = arrays.get("success")
        if success is not None and len_of(success) == rows > 0:
            ended = bool(success.rows(rows - 1, rows).any())
            if said.get("success", ended) not in (ended, None):
                self._differing.add(name)
        if not below(arrays, "obs"):
            raise ValueError("has no obs, expected observations; ManiSkill's replay_trajectory adds them (--obs-mode)")
        return EpisodeRecording(
            obs=below(arrays, "obs"),
            action=below(arrays, "actions"),
            reward=arrays.get("rewards"),
            terminated=arrays.get("terminated"),
            truncated=arrays.get("truncated"),
            further=without(arrays, "obs", "actions", "rewards", "terminated", "truncated"),
            info={"trajectory": name} | said,
        )


def _beside(path: Path, budget: ReadBudget) -> Any:
    """Return the content of the JSON file beside ManiSkill's; None: it is missing.  Raises: ValueError."""
    try:
        return Folder(path.parent, budget).json(path.with_suffix(".json").name)
    except FileNotFoundError:
        return None


class D3rlpy(RecordingLayout):
    """Layout of d3rlpy 2: arrays ``observations_0``, ``actions_0``, ``rewards_0``, ``terminated_0``, and so on.

    Each has T rows; ``terminated_0`` is one flag. Tuples of observations are ``observations_0_0`` and so on.
    As in d3rlpy, the last step of an episode that did not terminate has no successor.
    """

    def __init__(self, file: Hdf5File, names: list[str]) -> None:
        self._file = file
        self._columns: dict[int, dict[str, str]] = {}
        others: list[str] = []
        for name in names:
            if found := COLUMN.fullmatch(name):
                path = found[1] if found[3] is None else f"{found[1]}/_index_{int(found[3])}"
                self._columns.setdefault(int(found[2]), {})[path] = name
            elif name not in ("columns", "num_episodes", "version"):
                others.append(f"{name}: no column of an episode")
        self._numbers = sorted(self._columns)
        super().__init__([f"episode {one}" for one in self._numbers], "read as d3rlpy 2 writes it")
        self.left_out = others
        said = file.read(file.find(file.root, "num_episodes"), "num_episodes")
        if said.shape or int(said) != len(self._numbers):
            self.left_out.append(f"episodes: num_episodes says {said}, the file has {len(self._numbers):,}")

    def recording(self, number: int) -> EpisodeRecording:
        arrays: dict[str, Array] = {}
        for path, name in self._columns[self._numbers[number]].items():
            found = self._file.find(self._file.root, name)
            if not hasattr(found, "dtype"):
                raise ValueError(f"{name} is no array, expected an array; write the data set anew")
            arrays[path] = Hdf5Array(self._file, found, name)
        ended = arrays.get("terminated")
        if ended is None or ended.shape:
            raise ValueError(f"terminated has shape {ended and ended.shape}, expected one flag of the episode")
        if (flag := ended.rows(0, 0)) not in (0, 1):
            raise ValueError(f"terminated is {flag}, expected 0 or 1")
        return EpisodeRecording(
            obs=below(arrays, "observations"),
            action=below(arrays, "actions"),
            reward=arrays.get("rewards"),
            terminated=bool(flag),
            further=without(arrays, "observations", "actions", "rewards", "terminated"),
        )


class Aloha(RecordingLayout):
    """Layout of ALOHA and ACT: a file for each episode, ``episode_0.hdf5``, ``episode_1.hdf5`` ...

    Each has ``observations/*`` [T, ...], as ``qpos``, ``qvel`` and ``images/*``, and ``action`` [T, ...]; ``reward``
    [T] is optional; others, as ``base_action``, are further fields. Images of a file with the attribute ``compress``
    are JPEGs, padded to one length. Texts are annotations of the episode.
    """

    def __init__(
        self,
        names: list[str],
        opened: Callable[[str], Hdf5File],
        budget: ReadBudget,
        left_out: Iterable[str] = (),
    ) -> None:
        super().__init__(names, "read as ALOHA writes it", "JPEGs: channels in the order of compression")
        self._opened, self._budget = opened, budget
        budget.closing.callback(self._close_file)
        self.left_out = list(left_out)
        numbers = [int(found[1]) for one in names if (found := EPISODE_FILE.fullmatch(one))]
        if len(names) > 1 and (lacking := max(numbers) + 1 - len(set(numbers))):
            self.left_out.append(f"episodes: {lacking:,} numbers below {max(numbers):,} have no file")
        self._file: tuple[str, Hdf5File] | None = None

    def recording(self, number: int) -> EpisodeRecording:
        name = self.places[number]
        if self._file is None or self._file[0] != name:
            self._close_file()
            self._file = name, self._opened(name)
        file = self._file[1]
        arrays, info = dict[str, Array](), dict[str, Any]()
        for path, array in file.arrays(file.root).items():
            if array.dtype.kind == "O" and array.size == 1:
                info[path] = file.texts(array, path)[0]
            else:
                arrays[path] = Hdf5Array(file, array, path)
        for key in ("sim", "compress"):
            if (said := file.attribute(file.root, key)) is not None:
                info[key] = said
        for path, one in arrays.items():
            if path.startswith("observations/images/") and _is_compressed(one, bool(info.get("compress"))):
                arrays[path] = Pictures(one, path, self._budget)
        rewards = "reward" if "reward" in arrays else "rewards"
        return EpisodeRecording(
            obs=below(arrays, "observations"),
            action=below(arrays, "action"),
            reward=arrays.get(rewards),
            further=without(arrays, "observations", "action", rewards, "compress_len"),
            info=short(info, []),
        )

    def named(self, name: str) -> list[int]:
        """Return the episode's number of a file.  Raises: ValueError."""
        if name not in self.places:
            raise ValueError(f"episodes: got {name!r}, expected numbers, or the name of a file, as {self.places[0]}")
        return [self.places.index(name)]

    def _close_file(self) -> None:
        if self._file is not None:
            self._file[1].close()
        self._file = None


def _is_compressed(array: Array, compress: bool) -> bool:
    return array.dtype.kind == "S" or (compress and array.dtype == np.uint8 and len(array.shape) == 2)


class Pictures:
    """Images [T, height, width, 3], stored as a JPEG in each row, padded with zeros; all as large as the first.

    Raises: ValueError: the array holds no such images.
    """

    def __init__(self, array: Array, name: str, budget: ReadBudget) -> None:
        self._array, self._name, self._budget = array, name, budget
        self.shape: tuple[int, ...] = (0,)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)
        if len_of(array) > 0:
            self.shape = (len_of(array), *images.size(array.rows(0, 1)[0].tobytes(), name), 3)

    def rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        shape = (end - begin, *self.shape[1:])
        self._budget.check_bytes(f"{self._name}: {shape}", int(np.prod(shape, dtype=np.float64)))
        found = np.empty(shape, np.uint8)
        for at, row in enumerate(self._array.rows(begin, end)):  # one by one: rows may share the same bytes of the file
            self._budget.check_time()
            decoded = images.decode(row.tobytes(), self.shape[1:], self._name)
            found[at] = decoded[..., ::-1]  # OpenCV wrote it, with blue as the first channel
        return found


def _few(names: Iterable[str]) -> str:
    """Describe names in words; of many, the first ones."""
    found = sorted(names)
    return ", ".join(found[:8]) + (f" and {len(found) - 8:,} more" if len(found) > 8 else "")


def short(said: dict[str, Any], left_out: list[str]) -> dict[str, Any]:
    """Return a description without texts too long for annotations; note these in ``left_out``."""
    for name, text in said.items():
        if isinstance(text, str) and len(text) > MAX_TEXT_CHARACTERS:
            left_out.append(f"{name}: a text of {len(text):,} characters, expected at most {MAX_TEXT_CHARACTERS:,}")
    return {name: text for name, text in said.items() if not isinstance(text, str) or len(text) <= MAX_TEXT_CHARACTERS}
