"""HDF5 files by their layouts: D4RL, robomimic, ManiSkill, ALOHA and d3rlpy; which one a file has is seen in it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data.episode import Source, existing
from sharpwave.data.files import Budget, explained, open_path
from sharpwave.data.hdf5 import Hdf5File
from sharpwave.data.hdf5 import open_hdf5 as open_d4rl
from sharpwave.data.recordings import Array, Arrays, Recording, RecordingSource, below, len_of

DEMO = re.compile(r"demo_(\d{1,18})")
MAX_TEXT_CHARACTERS = 1 << 14
"""Limit of a text that is kept as an annotation."""


def open_hdf5(place: str, budget: Budget) -> Source:
    """Open an HDF5 file, or a folder of them, whichever layout it has.

    Raises: FileNotFoundError, ValueError, ModuleNotFoundError.
    """
    path = existing(place, "hdf5")
    opened = open_path(path, budget)
    try:
        file = Hdf5File(opened, budget)
    except BaseException:
        opened.close()
        raise
    name = f"hdf5:{path}"
    try:
        with explained(f"{name} is damaged", name):
            if any(map(_is_demo, data := file.find(file.root, "data") or {})) and not hasattr(data, "dtype"):
                return RecordingSource(name, Robomimic(file, name), budget)
    except BaseException:
        file.close()
        raise
    file.close()
    return open_d4rl(place, budget)


class Hdf5Array:
    """Array of an HDF5 file."""

    def __init__(self, file: Hdf5File, array: Any, name: str) -> None:
        self._file, self._array, self._name = file, array, name
        self.shape: tuple[int, ...] = tuple(array.shape or ())
        self.dtype: np.dtype[Any] = array.dtype.newbyteorder("=")

    def rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Read rows.  Raises: ValueError."""
        return self._file.read(self._array, self._name, slice(begin, end))


def arrays_of(file: Hdf5File, group: Any, prefix: str) -> dict[str, Array]:
    """Return the arrays of a group by their paths in it; ``prefix`` is the group's.  Raises: ValueError."""
    found = file.arrays(group, prefix)
    return {name[len(prefix) :]: Hdf5Array(file, array, name) for name, array in found.items()}


def without(arrays: Arrays, *names: str) -> dict[str, Array]:
    """Return the arrays that are neither of these names nor in groups of them."""
    return {name: array for name, array in arrays.items() if name.split("/")[0] not in names}


class Robomimic:
    """Layout of robomimic and MimicGen: a group for each demonstration, ``data/demo_0``, ``data/demo_1`` ...

    In each ``obs/*`` [T, ...] and ``actions`` [T, ...], and where there are, ``next_obs/*``, ``rewards`` [T] and
    ``dones`` [T], of which the last says whether it terminated, as for robomimic's own algorithms; others are further.
    """

    def __init__(self, file: Hdf5File, name: str) -> None:
        self._file, self._name = file, name
        self._group = file.group(file.root, "data")
        keys = list(self._group)
        self._demos = sorted((one for one in keys if _is_demo(one)), key=lambda one: int(one[5:]))
        self.left_out = [f"data/{one}: no demonstration" for one in keys if not _is_demo(one)]
        self.notes = [
            "read as robomimic writes it",
            "dones, where there are: the last of a demonstration says whether it terminated",
        ]
        self.about = said_of(file, self._group, "env_args", self.left_out)

    def __len__(self) -> int:
        return len(self._demos)

    def place(self, number: int) -> str:
        """Return where an episode lies, in words."""
        return f"data/{self._demos[number]}"

    def recording(self, number: int) -> Recording:
        """Find the arrays of an episode.  Raises: ValueError."""
        name = self._demos[number]
        group = self._file.group(self._group, name)
        arrays = arrays_of(self._file, group, f"data/{name}/")
        said = self._file.attribute(group, "num_samples")
        actions = below(arrays, "actions")
        if said is not None and any(len_of(array) != said for array in actions.values()):
            raise ValueError(f"num_samples is {said}, expected the rows of actions; write the data set anew")
        if not below(arrays, "obs"):
            raise ValueError(
                "has no obs, expected observations; robomimic's scripts/dataset_states_to_obs.py adds them to states"
            )
        return Recording(
            place=self.place(number),
            obs=below(arrays, "obs"),
            next_obs=below(arrays, "next_obs"),
            action=actions,
            reward=arrays.get("rewards"),
            terminated=arrays.get("dones"),
            further=without(arrays, "obs", "next_obs", "actions", "rewards", "dones"),
            info={"demo": name},
        )

    def named(self, name: str) -> list[int]:
        """Return the numbers of the demonstrations of a filter key.  Raises: ValueError."""
        mask = self._file.find(self._file.root, "mask")
        names = [] if mask is None else list(mask)
        if name not in names:
            raise ValueError(f"{self._name}: has no mask/{name}, only {names[:12]}; give one of these, or numbers")
        keys = self._file.texts(self._file.find(mask, name), f"mask/{name}")
        if missing := sorted(set(keys) - set(self._demos)):
            raise ValueError(f"{self._name}: mask/{name} has {missing[0]!r}, which is not in data")
        return [number for number, one in enumerate(self._demos) if one in keys]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _is_demo(name: Any) -> bool:
    return isinstance(name, str) and DEMO.fullmatch(name) is not None


def said_of(file: Hdf5File, group: Any, name: str, left_out: list[str]) -> dict[str, Any]:
    """Return a text among a group's attributes by its name, if it is not too long."""
    said = file.attribute(group, name)
    if not isinstance(said, str):
        return {}
    if len(said) > MAX_TEXT_CHARACTERS:
        left_out.append(f"{name}: a text of {len(said):,} characters, expected at most {MAX_TEXT_CHARACTERS:,}")
        return {}
    return {name: said}
