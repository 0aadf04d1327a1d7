"""Local Minari data sets, read through h5py and written through the minari package; nothing is downloaded."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.data import images
from sharpwave.data.episode import PARTIAL, SourceEpisode, Totals, field_of, further_names, needed, nested
from sharpwave.data.hdf5 import Hdf5File, Hdf5Output
from sharpwave.data.opened_files import REMEDY, Folder, ReadBudget, explained, parse_json
from sharpwave.data.varying import Kind, empty_texts, row_kind, text_rows, text_type, whole_texts
from sharpwave.native.interrupts import InterruptLock
from sharpwave.ragged import Ragged
from sharpwave.spaces import VARIABLE
from sharpwave.spec import Field, Spec

MAX_TRIED = 16
"""Limit of episodes that are read to find the fields."""
GROUP = re.compile(r"episode_(0|[1-9]\d{0,17})")
"""Name of an episode's group."""
MAX_MISFITS = 64
"""Limit of the names that are listed of infos that are left out."""
MAX_BOUNDS = 256
"""Largest number of bounds of a space that a field's metadata keeps one by one."""
NO_TEXTS: Mapping[str, tuple[frozenset[str], int, int]] = MappingProxyType({})
OF_NAMESPACE = "namespace_metadata.json"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*(/[A-Za-z0-9_][A-Za-z0-9_.\-]*)*")


def folder_of(name: str) -> Path:
    """Return the folder for a data set's name, existing or not, below ``MINARI_DATASETS_PATH``.

    Raises: ValueError: an invalid name.  ModuleNotFoundError.
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

    Observations and actions keep their dicts and tuples, and texts in them. Infos that are one number, array or text a
    step become further fields: the infos of each step, without the reset's. Seeds and options become annotations, and
    so do texts that are the same in all rows.

    minari makes the spaces of ``metadata.json``. Arrays in HDF5 are read here, where they can be checked first; arrays
    in other formats are read by minari, and only if trusted.
    """

    def __init__(self, name: str, budget: ReadBudget) -> None:
        folder = folder_of(name)
        if not (folder / "data" / "metadata.json").exists():
            raise FileNotFoundError(
                f"minari: no data set {name!r} in {folder.parent}; `minari download {name}` fetches a public one, "
                "and MINARI_DATASETS_PATH is their folder"
            )
        self.name, self.notes, self._budget = f"minari:{folder}", list[str](), budget
        self.left, self._misfits = Totals(), set[str]()
        with explained(f"{self.name}: is damaged, or not a Minari data set", self.name):
            self._open(Folder(folder, budget), folder)
            self._describe()

    def _open(self, files: Folder, folder: Path) -> None:
        said = files.json("data/metadata.json")
        if not {"observation_space", "action_space"} <= said.keys():  # else minari imports environment code
            raise ValueError(
                f"{self.name}: its metadata.json has no spaces, expected observation_space and action_space"
            )
        self._spaces = [_parsed_space(said[key], self._budget) for key in ("observation_space", "action_space")]
        self._jpeg = bool(said.get("jpeg_encoding", True))
        self._count, self.steps = int(said["total_episodes"]), int(said["total_steps"])
        if self._count < 0 or self.steps < 0:
            raise ValueError(f"{self.name}: {self._count} episodes of {self.steps} steps, expected none below 0")
        self._file: Hdf5File | None = None
        if (kind := said.get("data_format")) == "hdf5":
            self._file = Hdf5File(files.open("data/main_data.hdf5"), self._budget)
            self._budget.closing.callback(self._file.close)
        elif self._budget.trust:
            from minari import MinariDataset

            self._data: Any = MinariDataset(folder / "data")
        else:
            raise ValueError(
                f"{self.name}: data_format {kind!r}, expected hdf5: others are read by minari, without bounds; {REMEDY}"
            )

    def _describe(self) -> None:
        """Find the fields in one episode."""
        self.left_out = ["infos of resets"]
        if not self._count:
            raise ValueError(f"{self.name}: no episodes with steps to import")
        first = self._sound()
        paths = further_names({f"infos/{key}": one.kind[1] is str for key, one in first.infos.items()}, self.left_out)
        self._infos = {name: path.removeprefix("infos/") for name, path in paths.items()}
        if not self._infos:
            self.left_out = [] if not first.has_infos else ["infos: none is one value a step"]
        if self._file is not None:
            names = {str(one) for one in self._file.root}
            if others := sorted(one for one in names if not self._is_episode(one)):
                few = ", ".join(others[:4]) + (" and others" if len(others) > 4 else "")
                self.left_out.append(f"episodes: {few}: not among the {self._count:,} that metadata.json counts")
            if len(names) != self._count:
                self.left_out.append(f"episodes: metadata.json says {self._count:,}, main_data.hdf5 has {len(names):,}")
        further: dict[str, Field] = {}
        for field, key in self._infos.items():
            shape, dtype = first.infos[key].kind
            kind = text_type(first.infos[key].rows) if dtype is str else dtype
            further[field] = field_of(f"{self.name}: infos {key}", shape, kind, beside=True)
        self.spec = Spec(
            obs=_fields(f"{self.name}: observations", first.obs, self._spaces[0]),
            action=_fields(f"{self.name}: actions", first.action, self._spaces[1]),
            **further,
        )

    def _sound(self) -> _ReadEpisode:
        """Return the first episode whose arrays have the spaces' shapes, or else the first readable one.

        Raises: ValueError: none can be read.
        """
        readable: list[_ReadEpisode] = []
        damage: ValueError | None = None
        for number in range(min(self._count, MAX_TRIED)):
            try:
                with explained(self.place(number), self.name):
                    raw = self._raw(number)
            except ValueError as error:  # ``read`` refuses or skips it
                damage = damage or error
                continue
            if all(map(_fits, (raw.obs, raw.action), self._spaces)):
                return raw
            readable.append(raw)
        if not readable:
            assert damage is not None
            raise damage
        return readable[0]

    def __len__(self) -> int:
        return self._count

    def _raw(self, number: int) -> _ReadEpisode:
        if self._file is not None:
            return self._read_group(self._file, number)
        found = next(iter(self._data.iterate_episodes([self._data.episode_indices[number]])))
        said = next(iter(self._data.storage.get_episode_metadata([found.id])))
        return _ReadEpisode(
            _arrays(found.observations, self._spaces[0]),
            _arrays(found.actions, self._spaces[1]),
            np.asarray(found.rewards),
            np.asarray(found.terminations, np.bool_),
            np.asarray(found.truncations, np.bool_),
            {key: _Info(kind, one) for key, kind, one in _flat(found.infos or {}, len(found.rewards) + 1)},
            bool(found.infos),
            said,
        )

    def _read_group(self, file: Hdf5File, number: int) -> _ReadEpisode:
        group = file.group(file.root, f"episode_{number}")
        arrays = file.arrays(group, f"episode_{number}/")
        tree = nested(f"{self.name}: episode_{number}", arrays, "/")[f"episode_{number}"]
        # Texts are counted as they are read.
        plain = [one for one in arrays.values() if one.dtype.kind in "buif"]
        self._budget.check_bytes(f"{self.name}: episode {number}", sum(one.size * one.dtype.itemsize for one in plain))

        def read(array: Any, of_any_length: bool = False) -> npt.NDArray[Any]:
            if of_any_length and row_kind(array) is not None and array.dtype.kind in "OS":
                return file.rows_of_any_length(array, array.name, 0, len(array))
            if array.dtype.kind not in "buif":
                field_of(f"{self.place(number)}: {array.name}", (), array.dtype)
            return file.read(array, array.name)

        rewards = read(tree["rewards"])
        infos = tree.get("infos", {})
        return _ReadEpisode(
            self._values(tree["observations"], self._spaces[0], read),
            self._values(tree["actions"], self._spaces[1], read),
            rewards,
            read(tree["terminations"]).astype(np.bool_),
            read(tree["truncations"]).astype(np.bool_),
            {key: _Info(kind, read(one, of_any_length=True)) for key, kind, one in _flat(infos, len(rewards) + 1)},
            bool(infos),
            _attributes(group),
            tuple(_misfits(infos, len(rewards) + 1)),
        )

    def _values(self, tree: Any, space: Any, read: Callable[..., npt.NDArray[Any]]) -> Any:
        """Return observations or actions, nested as their space."""
        from minari.dataset.minari_storage import is_image_space

        inner = getattr(space, "spaces", None)
        if isinstance(inner, dict):
            return {key: self._values(tree[key], one, read) for key, one in inner.items()}
        if inner is not None:
            return tuple(self._values(tree[f"_index_{n}"], one, read) for n, one in enumerate(inner))
        if _is_text(space):
            return text_rows(tree.name, read(tree, of_any_length=True), str)
        if not (self._jpeg and is_image_space(space)):
            return read(tree)
        shape = (*space.shape, 1)[:3]
        found = np.empty((len(tree), *shape), np.uint8)
        self._budget.check_bytes(f"{self.name}: {tree.name}", found.nbytes)
        for row in range(len(tree)):  # one by one: many rows may share the same bytes of the file
            self._budget.check_time()
            found[row] = images.decode(np.asarray(tree[row], np.uint8).tobytes(), shape, f"{self.name}: {tree.name}")
        return found.reshape(len(tree), *space.shape)

    def read(self, number: int) -> SourceEpisode:
        what = self.place(number)
        with explained(f"{what} cannot be read", self.name):
            raw = self._raw(number)
            fields = {field: self._info(raw, key, self.spec.fields[field])[1:] for field, key in self._infos.items()}
        steps, ends = len(raw.rewards), (raw.terminations, raw.truncations)
        if not steps or len(ends[0]) != steps or len(ends[1]) != steps or (ends[0] | ends[1])[:-1].any():
            raise ValueError(
                f"{what} has {steps} rewards, and terminations and truncations "
                f"{np.flatnonzero(ends[0])[:4].tolist()} and {np.flatnonzero(ends[1])[:4].tolist()}; expected one "
                "at its end only"
            )
        info = {key: raw.said[key] for key in ("seed", "options") if raw.said.get(key) is not None}
        terminated, truncated = (bool(one[-1]) for one in ends)
        doubts = [] if terminated or truncated else ["neither terminated nor truncated at its end; counts as truncated"]
        missing = [key for field, key in self._infos.items() if self._lacks(raw, key, self.spec.fields[field])]
        doubts += [f"infos {one}: a text that is missing; stored as empty texts" for one in missing]
        others = {key: one for key, one in raw.infos.items() if key not in self._infos.values()}
        for key, one in list(others.items()):
            if one.kind[1] is str and len(set(one.rows)) == 1 and text_type(one.rows) is str:
                info[f"infos.{key.replace('/', '.')}"] = text_rows(key, one.rows[:1], str)[0]
                del others[key]
        for key, why in [(one, "not one value for each observation") for one in raw.others] + [
            (one, "not in the episode that defines the fields") for one in others
        ]:
            if len(self._misfits) < MAX_MISFITS or key in self._misfits:
                self._misfits.add(key)
                doubts.append(f"infos {key}: {why}; left out")
        texts = whole_texts(self.spec, raw.obs, raw.action, fields)
        return SourceEpisode(raw.obs, raw.action, raw.rewards, terminated, truncated, fields, info, texts, doubts)

    @staticmethod
    def _lacks(raw: _ReadEpisode, key: str, field: Field) -> bool:
        """Return whether an episode has no texts where others have."""
        return field.text is not None and (key not in raw.infos or raw.infos[key].kind[1] is not str)

    def _info(self, raw: _ReadEpisode, key: str, field: Field) -> npt.NDArray[Any]:
        """Return the values of an info, one more than steps.  Raises: ValueError."""
        if self._lacks(raw, key, field):
            return empty_texts(field, len(raw.rewards) + 1)
        said = raw.infos.get(key)
        if said is None or (said.kind[1] is str) != (field.text is not None):
            raise ValueError(f"infos {key}: missing, or not a number for each observation, as in others")
        if field.text is not None:
            return text_rows(f"infos {key}", said.rows, str if field.text == "str" else bytes)
        return said.rows

    def _is_episode(self, name: str) -> bool:
        """Return whether a group is one of the episodes that metadata.json counts."""
        found = GROUP.fullmatch(name)
        return found is not None and int(found[1]) < self._count

    def length(self, number: int) -> int:
        """Return an episode's number of steps: its attribute, or else its number of rewards."""
        try:
            if self._file is None:
                (metadata,) = self._data.storage.get_episode_metadata([self._data.episode_indices[number]])
                said = metadata["total_steps"]
            else:
                group = self._file.find(self._file.root, f"episode_{number}")
                said = self._file.attribute(group, "total_steps")
                said = len(self._file.find(group, "rewards")) if said is None else said
            return max(0, int(said))
        except (ValueError, TypeError, AttributeError, LookupError):  # the attribute is missing, or damaged
            return 0

    def place(self, number: int) -> str:
        file = "data/main_data.hdf5" if self._file is not None else "data"
        return f"{self.name}: {file}: episode {number}"


class _Info(NamedTuple):
    """Info of each observation: the kind of its rows, and these."""

    kind: Kind
    rows: npt.NDArray[Any]


class _ReadEpisode(NamedTuple):
    """Episode as read from the file; ``said``: its metadata; ``others``: infos with another number of rows."""

    obs: Any
    action: Any
    rewards: npt.NDArray[Any]
    terminations: npt.NDArray[np.bool_]
    truncations: npt.NDArray[np.bool_]
    infos: dict[str, _Info]
    has_infos: bool
    said: Mapping[str, Any]
    others: tuple[str, ...] = ()


def _parsed_space(text: Any, budget: ReadBudget) -> Any:
    """Return the space that a JSON text describes.  Raises: ValueError, any error of gymnasium."""
    said = parse_json(text) if isinstance(text, str) else text
    _check_space(said, budget, 0)
    from minari.serialization import deserialize_space

    return deserialize_space(said)


def _check_space(said: Any, budget: ReadBudget, depth: int) -> None:
    if depth > 16:
        raise ValueError("metadata.json: spaces nested deeper than 16")
    inner = said.get("subspaces", [])
    for one in inner.values() if isinstance(inner, dict) else inner:
        _check_space(one, budget, depth + 1)
    if said.get("type") in VARIABLE and said["type"] != "Text":
        raise ValueError(f"metadata.json: a space of type {said['type']}, which minari's files cannot hold")
    if "dtype" in said and np.dtype(said["dtype"]).kind not in "buif":
        raise ValueError(f"metadata.json: a space of dtype {said['dtype']!r}, expected booleans, integers or floats")
    shape = said.get("shape") or said.get("n") or ()
    sizes = [int(one) for one in shape] if isinstance(shape, list) else []
    budget.check_bytes(f"metadata.json: a space of shape {tuple(sizes)}", 64 * math.prod(sizes))


def _attributes(group: Any) -> dict[str, Any]:
    """Return the seed and the options in an episode's attributes, but for arrays of texts."""
    found: dict[str, Any] = {}
    for name in group.attrs:
        *parents, last = name.split("/")
        if name != "seed" and (parents or [last])[0] != "options":
            continue
        if (described := group.attrs.get_id(name)).dtype.kind not in "buif" and described.shape:
            continue
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = int(group.attrs[name]) if name == "seed" else group.attrs[name]
    return found


def _fits(value: Any, space: Any) -> bool:
    if isinstance(value, dict):
        return all(_fits(one, space.spaces[key]) for key, one in value.items())
    if isinstance(value, tuple):
        return all(map(_fits, value, space.spaces))
    if _is_text(space):
        return True
    return bool(value.shape[1:] == space.shape)


def _arrays(value: Any, space: Any) -> Any:
    """Return observations or actions, nested as their space, as arrays of its dtypes."""
    inner = getattr(space, "spaces", None)
    if isinstance(inner, dict):
        return {key: _arrays(value[key], one) for key, one in inner.items()}
    if inner is not None:
        return tuple(_arrays(value[number], one) for number, one in enumerate(inner))
    return text_rows("texts", list(value), str) if _is_text(space) else np.asarray(value)


def _fields(what: str, value: Any, space: Any) -> Any:
    """Return the arrays' fields, with their spaces in the metadata, from which ``_space`` restores them."""
    if isinstance(value, dict):
        return {key: _fields(f"{what} {key}", one, space.spaces[key]) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_fields(f"{what} {n}", one, space.spaces[n]) for n, one in enumerate(value))
    if value is None:
        raise ValueError(f"{what}: the data set has no episodes")
    if _is_text(space):
        return field_of(what, (), str, _description(space))
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
                said[key] = str(bound.flat[0])  # as text, since it may be infinite
            elif bound.size <= MAX_BOUNDS:
                said[key] = [str(one) for one in bound.flat]
    return said


def _flat(infos: Any, rows: int, prefix: str = "") -> Iterator[tuple[str, Kind, Any]]:
    """Yield the infos that are one value for each of ``rows`` observations: path, kind and array of each."""
    for key, value in infos.items():
        if isinstance(value, dict):
            yield from _flat(value, rows, f"{prefix}{key}/")
            continue
        array = value if hasattr(value, "dtype") else np.asarray(value)  # else an unread array in a file
        if array.shape and array.shape[0] == rows and 0 not in array.shape and (kind := row_kind(array)) is not None:
            yield prefix + key, kind, array


def _misfits(infos: Any, rows: int, prefix: str = "") -> Iterator[str]:
    """Yield the paths of infos that are numbers or texts, but not one for each of ``rows`` observations."""
    for key, value in infos.items():
        if isinstance(value, dict):
            yield from _misfits(value, rows, f"{prefix}{key}/")
        elif value.dtype.kind in "buifOS" and (not value.shape or value.shape[0] != rows or 0 in value.shape):
            yield prefix + key


def _is_text(space: Any) -> bool:
    return type(space).__name__ == "Text"


class MinariTarget:
    """Writer of a new Minari data set; until complete, it lies in a hidden folder beside its place.

    Args:
        nbytes: bytes of the future arrays, which minari does not compress.
        texts: by the name of a field, the characters of its texts, and the least and greatest length of one.

    Raises:
        FileExistsError: the name is taken.
        OSError: the disk is too full.
    """

    def __init__(
        self, name: str, spec: Spec, nbytes: int = 0, texts: Mapping[str, tuple[frozenset[str], int, int]] = NO_TEXTS
    ) -> None:
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
        # The name has the process id: another process's export must not be taken for a remainder of this one.
        self._partial = self.folder.with_name(f".{self.folder.name}.{os.getpid()}{PARTIAL}")
        shutil.rmtree(self._partial, ignore_errors=True)
        self._made = [one for one in self._partial.parents if not one.exists()]
        self._name = name
        self._output: Hdf5Output | None = None
        try:
            self._storage = self._begin(gym.spaces, spec, texts)
            # minari opens this attribute for each episode, and h5py takes a file object as well as a path.
            self._output = self._storage._file_path = Hdf5Output(self._storage._file_path)
        except BaseException:
            self.discard()
            raise
        self._uninterrupted = InterruptLock()  # as in Hdf5Writer

    def _begin(self, spaces: Any, spec: Spec, texts: Mapping[str, tuple[frozenset[str], int, int]]) -> Any:
        from minari.dataset.minari_storage import MinariStorage

        (self._partial / "data").mkdir(parents=True)
        fields: dict[str, Any] = {**spec.fields, **{name: _text_space(spaces, *one) for name, one in texts.items()}}
        storage = MinariStorage.new(
            self._partial / "data",
            observation_space=_space(spaces, spec.join_obs(fields)),
            action_space=_space(spaces, spec.join_action(fields)),
            jpeg_encoding=False,
        )
        version = needed("minari", "minari").__version__
        storage.update_metadata({"dataset_id": self._name, "minari_version": version})
        return storage

    def add(self, episode: SourceEpisode) -> None:
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
            observations=_plain(episode.obs), actions=_plain(episode.action), rewards=episode.reward,
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
        """Remove the incomplete data set."""
        if self._output is not None:
            self._output.close()
        shutil.rmtree(self._partial, ignore_errors=True)
        for folder in self._made:
            with contextlib.suppress(OSError):  # another export has begun to use the namespace
                if [one.name for one in folder.iterdir()] == [OF_NAMESPACE]:
                    (folder / OF_NAMESPACE).unlink()
                folder.rmdir()


def _plain(values: Any) -> Any:
    """Return arrays in dicts and tuples, of which texts are lists."""
    if isinstance(values, dict):
        return {key: _plain(one) for key, one in values.items()}
    if isinstance(values, tuple):
        return tuple(map(_plain, values))
    return values.strings() if isinstance(values, Ragged) else values


def _text_space(spaces: Any, characters: frozenset[str], least: int, most: int) -> Any:
    return spaces.Text(max(1, most), min_length=least, charset=characters or frozenset("a"))


def _space(spaces: Any, value: Any) -> Any:
    """Return the space of a field, or of dicts and tuples of them and of spaces."""
    if isinstance(value, spaces.Space):
        return value
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
        pass  # metadata of other origin: the widest space of that dtype
    if dtype.kind == "b":
        return spaces.MultiBinary(shape or 1)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype.type)
