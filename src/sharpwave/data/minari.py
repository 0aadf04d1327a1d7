"""Local Minari data sets, through the minari package; nothing is downloaded."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data.episode import PARTIAL, Episode, field_of, usable_name
from sharpwave.data.hdf5 import Hdf5Output
from sharpwave.data.packages import needed
from sharpwave.native.interrupts import Lock
from sharpwave.spec import Spec

MAX_BOUNDS = 256
"""Bounds of a space that a field's metadata keeps one by one."""
OF_NAMESPACE = "namespace_metadata.json"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*(/[A-Za-z0-9_][A-Za-z0-9_.\-]*)*")


def folder_of(name: str) -> Path:
    """Return the folder of a data set of that name, whether it exists or not, as ``MINARI_DATASETS_PATH`` says.

    Raises: ValueError: no such name.  ModuleNotFoundError.
    """
    if not NAME.fullmatch(name) or ".." in name:
        raise ValueError(f"minari: got {name!r}, expected a name such as D4RL/door/human-v2")
    needed("minari", "minari")
    from minari.storage import get_dataset_path

    root = Path(get_dataset_path("")).absolute()
    folder = Path(get_dataset_path(name)).absolute()
    if not folder.is_relative_to(root):
        raise ValueError(f"minari: {name!r} leaves the folder of data sets, {root}")
    return folder


class MinariSource:
    """Episodes of a Minari data set.

    Observations and actions keep their dicts and tuples. Infos that are one number or array a step become further
    fields: the infos of each step; those of the reset are left out. Seeds and options become annotations.
    """

    def __init__(self, name: str) -> None:
        folder = folder_of(name)
        if not (folder / "data" / "metadata.json").is_file():
            raise FileNotFoundError(
                f"minari: no data set {name!r} in {folder.parent}; `minari download {name}` fetches a public one, "
                "and MINARI_DATASETS_PATH says where they are"
            )
        self.name = f"minari:{folder}"
        try:
            said = json.loads((folder / "data" / "metadata.json").read_text())
            if not {"observation_space", "action_space"} <= said.keys():  # minari would import the environment's code
                raise ValueError("its metadata.json has no spaces")
            from minari import MinariDataset

            self._data: Any = MinariDataset(folder / "data")
            self._numbers = [int(one) for one in self._data.episode_indices]
            self.steps = int(self._data.total_steps)
        except (ValueError, KeyError, TypeError, AttributeError, OSError, AssertionError) as error:
            raise ValueError(f"{self.name}: is damaged, or not a Minari data set ({error!r})") from error
        self.left_out = ["infos of resets"]
        spaces = self._data.observation_space, self._data.action_space
        first = self._raw(0) if self._numbers else None
        infos = {} if first is None else _flat(first.infos or {}, len(first.rewards) + 1)
        self._infos = {usable_name(f"infos.{key.replace('/', '.')}"): key for key in infos}
        if not self._infos:
            self.left_out = [] if first is None or not first.infos else ["infos: none is one value a step"]
        further: dict[str, Any] = {
            field: field_of(f"{self.name}: infos {key}", infos[key].shape[1:], infos[key].dtype)
            for field, key in self._infos.items()
        }
        obs, action = (
            (None, None)
            if first is None
            else (_arrays(first.observations, spaces[0]), _arrays(first.actions, spaces[1]))
        )
        self.spec = Spec(
            obs=_fields(f"{self.name}: observations", obs, spaces[0]),
            action=_fields(f"{self.name}: actions", action, spaces[1]),
            **further,
        )

    def __len__(self) -> int:
        return len(self._numbers)

    def _raw(self, number: int) -> Any:
        return next(iter(self._data.iterate_episodes([self._numbers[number]])))

    def read(self, number: int) -> Episode:
        """Read an episode.  Raises: ValueError: it is damaged."""
        try:
            found = self._raw(number)
            said = next(iter(self._data.storage.get_episode_metadata([self._numbers[number]])))
            steps = len(found.rewards)
            infos = _flat(found.infos or {}, steps + 1)
            obs = _arrays(found.observations, self._data.observation_space)
            action = _arrays(found.actions, self._data.action_space)
            rewards = np.asarray(found.rewards)
            ends = np.asarray(found.terminations, np.bool_), np.asarray(found.truncations, np.bool_)
            fields = {field: infos[key][1:] for field, key in self._infos.items()}
        except (ValueError, KeyError, TypeError, OSError, RuntimeError, AssertionError, StopIteration) as error:
            raise ValueError(f"{self.name}: episode {number} cannot be read ({error!r})") from error
        if not steps or len(ends[0]) != steps or len(ends[1]) != steps or (ends[0] | ends[1])[:-1].any():
            raise ValueError(
                f"{self.name}: episode {number} has {steps} rewards, and terminations and truncations "
                f"{np.flatnonzero(ends[0])[:4].tolist()} and {np.flatnonzero(ends[1])[:4].tolist()}; expected one "
                "at its end only"
            )
        info = {key: said[key] for key in ("seed", "options") if said.get(key) is not None}
        return Episode(obs, action, rewards, bool(ends[0][-1]), bool(ends[1][-1]), fields, info)

    def close(self) -> None:
        """Do nothing: minari opens the files for each episode."""


def open_minari(name: str) -> MinariSource:
    """Open a local data set.  Raises: FileNotFoundError, ValueError, ModuleNotFoundError."""
    return MinariSource(name)


def _arrays(value: Any, space: Any) -> Any:
    """Return observations or actions, nested as their space, as arrays of its dtypes."""
    inner = getattr(space, "spaces", None)
    if isinstance(inner, dict):
        return {key: _arrays(value[key], one) for key, one in inner.items()}
    if inner is not None:
        return tuple(_arrays(value[number], one) for number, one in enumerate(inner))
    return np.asarray(value)


def _fields(what: str, value: Any, space: Any) -> Any:
    """Return the fields of arrays, with what their spaces say in the metadata, from which ``_space`` makes them."""
    if isinstance(value, dict):
        return {key: _fields(f"{what} {key}", one, space.spaces[key]) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_fields(f"{what} {n}", one, space.spaces[n]) for n, one in enumerate(value))
    if value is None:
        raise ValueError(f"{what}: there are no episodes")
    return field_of(what, value.shape[1:], value.dtype, _description(space))


def _description(space: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"space": type(space).__name__}
    if said["space"] == "Discrete":
        return said | {"n": int(space.n), "start": int(space.start)}
    if said["space"] == "MultiDiscrete":
        return said | {"nvec": space.nvec.tolist()}
    if said["space"] == "Box":
        for key in ("low", "high"):
            bound = getattr(space, key)
            if bound.size and (bound == bound.flat[0]).all():
                said[key] = str(bound.flat[0])  # as text, for it may be infinite
            elif bound.size <= MAX_BOUNDS:
                said[key] = [str(one) for one in bound.flat]
    return said


def _flat(infos: Any, rows: int, prefix: str = "") -> dict[str, npt.NDArray[Any]]:
    """Return the infos that are one number or array for each of ``rows`` observations, by their path."""
    found: dict[str, npt.NDArray[Any]] = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            found |= _flat(value, rows, f"{prefix}{key}/")
            continue
        array = np.asarray(value)
        if array.shape[:1] == (rows,) and array.dtype.kind in "buif" and 0 not in array.shape:
            found[prefix + key] = array
    return found


class MinariTarget:
    """Writer of a new Minari data set, in a hidden folder beside its place until it is complete.

    Args:
        nbytes: of the arrays to come, which minari does not compress.

    Raises:
        FileExistsError: there is one of that name.
        OSError: the disk is too full.
    """

    def __init__(self, name: str, spec: Spec, nbytes: int = 0) -> None:
        import gymnasium as gym

        self.folder = folder_of(name)
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.namespace import validate_namespace

        parse_dataset_id(name)
        if namespace := name.rpartition("/")[0]:
            validate_namespace(namespace)
        if self.folder.exists():
            raise FileExistsError(f"export: the Minari data set {name!r} exists ({self.folder}); choose another name")
        free = shutil.disk_usage(next(one for one in self.folder.parents if one.exists())).free
        if nbytes > free:
            raise OSError(
                errno.ENOSPC,
                f"export: {name!r} takes some {nbytes:,} bytes, and {self.folder.parent} has {free:,} left",
            )
        # Of this process: another's export of the same name must not be taken for a remainder of this one.
        self._partial = self.folder.with_name(f".{self.folder.name}.{os.getpid()}{PARTIAL}")
        shutil.rmtree(self._partial, ignore_errors=True)
        self._made = [one for one in self._partial.parents if not one.exists()]
        self._name = name
        self._output: Hdf5Output | None = None
        try:
            self._storage = self._begin(gym.spaces, spec)
            # minari opens what it has here for each episode, and h5py takes a file object as well as a path.
            self._output = self._storage._file_path = Hdf5Output(self._storage._file_path)
        except BaseException:
            self.discard()
            raise
        self._uninterrupted = Lock()  # as in Hdf5Writer

    def _begin(self, spaces: Any, spec: Spec) -> Any:
        from minari.dataset.minari_storage import MinariStorage

        (self._partial / "data").mkdir(parents=True)
        storage = MinariStorage.new(
            self._partial / "data",
            observation_space=_space(spaces, spec.join_obs(spec.fields)),
            action_space=_space(spaces, spec.join_action(spec.fields)),
            jpeg_encoding=False,
        )
        version = needed("minari", "minari").__version__
        storage.update_metadata({"dataset_id": self._name, "minari_version": version})
        return storage

    def add(self, episode: Episode) -> None:
        """Write an episode."""
        from minari.data_collector import EpisodeBuffer

        steps = len(episode.reward)
        flags = np.zeros((2, steps), np.bool_)
        flags[:, -1] = episode.terminated, episode.truncated
        said: dict[str, Any] = {}
        if isinstance(seed := episode.info.get("seed"), int):
            said["seed"] = seed
        if isinstance(options := episode.info.get("options"), dict) and options:
            said["options"] = options
        buffer = EpisodeBuffer(
            observations=episode.obs, actions=episode.action, rewards=episode.reward,
            terminations=flags[0], truncations=flags[1], infos=None, **said,
        )  # fmt: skip
        with self._uninterrupted:
            self._storage.update_episodes([buffer])
        assert self._output is not None
        self._output.check()

    def close(self) -> None:
        """Give the data set its name.  Raises: FileExistsError, OSError."""
        from minari.namespace import create_namespace, list_local_namespaces

        assert self._output is not None
        self._output.sync()
        self._output.close()
        namespace = self._name.rpartition("/")[0]
        if namespace and namespace not in list_local_namespaces():
            create_namespace(namespace)
        try:
            self._partial.rename(self.folder)
        except OSError as error:
            if not self.folder.exists():
                raise
            raise FileExistsError(
                f"export: the Minari data set {self._name!r} exists by now ({self.folder}); choose another name"
            ) from error

    def discard(self) -> None:
        """Remove what was written."""
        if self._output is not None:
            self._output.close()
        shutil.rmtree(self._partial, ignore_errors=True)
        for folder in self._made:
            with contextlib.suppress(OSError):  # another export uses the namespace by now
                if [one.name for one in folder.iterdir()] == [OF_NAMESPACE]:
                    (folder / OF_NAMESPACE).unlink()
                folder.rmdir()


def _space(spaces: Any, value: Any) -> Any:
    """Return the space of a field, or of dicts and tuples of them."""
    if isinstance(value, dict):
        return spaces.Dict({key: _space(spaces, one) for key, one in value.items()})
    if isinstance(value, tuple):
        return spaces.Tuple([_space(spaces, one) for one in value])
    dtype, shape, said = value.np_dtype, value.shape, value.metadata
    try:
        if said.get("space") == "Discrete" and not shape:
            return spaces.Discrete(said["n"], start=said["start"], dtype=dtype.type)
        if said.get("space") == "MultiDiscrete":
            return spaces.MultiDiscrete(np.array(said["nvec"]), dtype=dtype.type)
        if said.get("space") == "MultiBinary":
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        if said.get("space") == "Box":
            low, high = (np.array(said[key], dtype) if isinstance(said[key], str) else
                         np.array(said[key], dtype).reshape(shape) for key in ("low", "high"))  # fmt: skip
            return spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), shape, dtype.type)
    except (KeyError, ValueError, TypeError, AssertionError):
        pass  # of another origin: the widest space of that dtype
    if dtype.kind == "b":
        return spaces.MultiBinary(shape or 1)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype.type)
