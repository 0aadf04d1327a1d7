"""RLDS data sets: folders of TensorFlow Datasets with ``features.json`` and TFRecord files, read without TensorFlow."""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpwave.data import images, tfrecord
from sharpwave.data.episode import MAX_EPISODE_BYTES, Episode, existing, field_of, usable_name
from sharpwave.spec import Field, Spec

FLAGS = ("is_first", "is_last", "is_terminal")


class _Feature(NamedTuple):
    """Feature of a step: how it is encoded, and the field that it becomes."""

    encoding: str  # "none", "bytes", "zlib" or "image"
    field: Field


class RldsSource:
    """Episodes of an RLDS data set of one version: a folder such as ``NAME/1.0.0``, every split of it.

    The step with ``is_last`` has the final observation only, as RLDS defines it: its action and reward are no data.
    Further features of the steps become further fields, those of the episode and texts annotations. TensorFlow Datasets
    keeps float64 as float32.

    Raises:
        ValueError: it is damaged, or not an RLDS data set.
    """

    def __init__(self, path: str) -> None:
        folder = existing(path, "rlds")
        self.name, self.left_out, self._folder = f"rlds:{folder}", list[str](), folder
        try:
            said = json.loads((folder / "features.json").read_text())
            features = said["featuresDict"]["features"]
            steps = features["steps"]["sequence"]["feature"]["featuresDict"]["features"]
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.name}: has no features.json; expected the folder of one version, as NAME/1.0.0"
            ) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.name}: features.json is not that of an RLDS data set ({error!r})") from error
        self._about = [f"episode_metadata/{key}" for key in _leaves(features.get("episode_metadata", {}))]
        self._texts: list[str] = []
        self._features: dict[str, _Feature] = {}
        try:
            for key, feature in _leaves({"featuresDict": {"features": steps}}).items():
                self._add(key, feature)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.name}: features.json: {error!r}") from error
        missing = [key for key in ("reward", *FLAGS) if key not in self._features]
        if missing or not self._under("observation") or not self._under("action"):
            raise ValueError(
                f"{self.name}: steps have {sorted(self._features)[:12]}, expected observation, action, reward, "
                "is_first, is_last and is_terminal"
            )
        self._further = {
            usable_name(key.replace("/", ".")): key
            for key in self._features
            if key.split("/")[0] not in ("observation", "action", "reward", *FLAGS)
        }
        further: dict[str, Any] = {name: self._features[key].field for name, key in self._further.items()}
        fields = {key: one.field for key, one in self._features.items()}
        self.spec = Spec(obs=self._nested("observation", fields), action=self._nested("action", fields), **further)
        files = sorted(one for one in folder.glob("*.tfrecord*") if one.is_file())
        if not files:
            raise ValueError(f"{self.name}: has no TFRecord files; others are not read")
        self._places = [place for file in files for place in tfrecord.records(file)]
        self.steps = sum(self._count(place) - 1 for place in self._places)

    def _add(self, key: str, feature: dict[str, Any]) -> None:
        tensor = feature.get("tensor") or feature.get("image") or feature.get("scalar")
        if "text" in feature:
            self._texts.append(key)
            return
        if tensor is None:
            self.left_out.append(f"steps/{key}: {feature.get('pythonClassName', '?').rpartition('.')[2]} is not read")
            return
        shape = tuple(int(one) for one in tensor.get("shape", {}).get("dimensions", []))
        if -1 in shape or tensor.get("dtype") in ("string", "object"):
            self.left_out.append(f"steps/{key}: {tensor.get('dtype')} {shape} has no fixed size")
            return
        if "image" in feature and tensor.get("encodingFormat", "") not in ("png", "jpeg", ""):
            self.left_out.append(f"steps/{key}: images in {tensor['encodingFormat']}")
            return
        encoding = "image" if "image" in feature else tensor.get("encoding", "none")
        if encoding not in ("none", "bytes", "zlib", "image"):
            self.left_out.append(f"steps/{key}: encoding {encoding}")
            return
        dtype = np.dtype(tensor.get("dtype") or "uint8")
        self._features[key] = _Feature(encoding, field_of(f"{self.name}: steps/{key}", shape, dtype))

    def _under(self, root: str) -> list[str]:
        return [key for key in self._features if key.split("/")[0] == root]

    def _nested(self, root: str, values: dict[str, Any]) -> Any:
        if root in self._features:
            return values[root]
        nested: dict[str, Any] = {}
        for key in self._under(root):
            *parents, last = key.split("/")[1:]
            place = nested
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = values[key]
        return nested

    def _count(self, place: tfrecord.Place) -> int:
        return len(self._example(place)["steps/is_last"])

    def _example(self, place: tfrecord.Place) -> dict[str, tfrecord.Value]:
        if place.nbytes > MAX_EPISODE_BYTES:
            raise ValueError(
                f"{self.name}: an episode of {place.nbytes:,} bytes, expected {MAX_EPISODE_BYTES:,} at most"
            )
        try:
            found = tfrecord.example(tfrecord.read(place))
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error
        if not len(found.get("steps/is_last", [])):
            raise ValueError(f"{self.name}: {place.path.name}, byte {place.offset:,}: an episode without steps/is_last")
        return found

    def __len__(self) -> int:
        return len(self._places)

    def read(self, number: int) -> Episode:
        """Read an episode.  Raises: ValueError: it is damaged."""
        found = self._example(self._places[number])
        rows = len(found["steps/is_last"])
        what = f"{self.name}: episode {number}"
        arrays = {key: _array(found, key, one, rows, what) for key, one in self._features.items()}
        last = arrays["is_last"].astype(np.bool_)
        if rows < 2 or last[:-1].any() or not last[-1] or arrays["is_terminal"][:-1].any():
            raise ValueError(
                f"{what}: {rows} steps, is_last in {np.flatnonzero(last)[:4].tolist()}; expected two at least, and "
                "is_last and is_terminal in the last one only"
            )
        actions = {key: arrays[key][:-1] for key in self._under("action")}
        terminated = bool(arrays["is_terminal"][-1])
        return Episode(
            self._nested("observation", arrays),
            self._nested("action", actions),
            arrays["reward"][:-1],
            terminated,
            not terminated,
            {name: arrays[key][:-1] for name, key in self._further.items()},
            self._info(found),
        )

    def _info(self, found: dict[str, tfrecord.Value]) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for key in self._about:
            value = found.get(key)
            if isinstance(value, list) and len(value) == 1:
                info[key.partition("/")[2]] = value[0].decode("utf-8", "replace")
            elif isinstance(value, np.ndarray) and value.size == 1:
                info[key.partition("/")[2]] = value.item()
        for key in self._texts:
            value = found.get(f"steps/{key}")
            if isinstance(value, list) and len(set(value)) == 1:
                info[key] = value[0].decode("utf-8", "replace")
        return info

    def close(self) -> None:
        """Do nothing: files are opened for each episode."""


def open_rlds(path: str) -> RldsSource:
    """Open a data set's folder.  Raises: FileNotFoundError, ValueError."""
    return RldsSource(path)


def _leaves(feature: dict[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return the features that are no dicts of features, by their path."""
    inner = feature.get("featuresDict")
    if inner is None:
        return {prefix[:-1]: feature} if prefix else {}
    found: dict[str, dict[str, Any]] = {}
    for key, one in inner.get("features", {}).items():
        found |= _leaves(one, f"{prefix}{key}/")
    return found


def _array(found: dict[str, tfrecord.Value], key: str, feature: _Feature, rows: int, what: str) -> npt.NDArray[Any]:
    """Return a feature's values [rows, *shape].  Raises: ValueError."""
    field, values = feature.field, found.get(f"steps/{key}")
    if values is None:
        raise ValueError(f"{what}: has no steps/{key}")
    shape = (rows, *field.shape)
    if isinstance(values, np.ndarray):
        if feature.encoding != "none" or values.size != np.prod(shape):
            raise ValueError(f"{what}: {values.size:,} values of steps/{key}, expected {rows} x {field.shape}")
        array = values.reshape(shape)
        converted: npt.NDArray[Any] = array.astype(field.np_dtype)
        if array.dtype.kind == "i" and (converted != array).any():
            raise ValueError(f"{what}: a value of steps/{key} does not fit {field.dtype}")
        return converted
    if len(values) != rows:
        raise ValueError(f"{what}: {len(values):,} values of steps/{key}, expected {rows:,}")
    if feature.encoding == "image":
        return np.stack([images.decode(one, field.shape, f"{what}: steps/{key}") for one in values]).astype(field.dtype)
    if feature.encoding == "zlib":
        values = [_decompressed(one, field.row_bytes, f"{what}: steps/{key}") for one in values]
    if any(len(one) != field.row_bytes for one in values):
        raise ValueError(f"{what}: steps/{key}: values of another size than {field.row_bytes:,} bytes")
    return np.frombuffer(b"".join(values), field.np_dtype).reshape(shape)


def _decompressed(content: bytes, nbytes: int, what: str) -> bytes:
    """Decompress ``nbytes``, not more.  Raises: ValueError."""
    try:
        return zlib.decompressobj().decompress(content, nbytes + 1)
    except zlib.error as error:
        raise ValueError(f"{what}: cannot be decompressed ({error})") from error
