"""RLDS data sets: folders of TensorFlow Datasets with ``features.json`` and TFRecord files, read without TensorFlow."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from sharpwave.data import images, tfrecord
from sharpwave.data.episode import (
    LastStep,
    SourceEpisode,
    Totals,
    existing,
    field_of,
    finite_sum,
    further_names,
    nested,
)
from sharpwave.data.opened_files import REMEDY, File, Folder, ReadBudget, check_whole, explained
from sharpwave.data.progress_bar import shown
from sharpwave.data.varying import cut_rows, empty_texts, objects, text_rows, text_type, whole_texts
from sharpwave.spec import Field, Spec

FLAGS = ("is_first", "is_last", "is_terminal")
LAST, TERMINAL = "steps/is_last", "steps/is_terminal"
"""Features of an Example: the first gives the number of steps."""
FLAT, LENGTHS = "ragged_flat_values", "ragged_row_lengths_0"
"""Ends of the names of a list's two features: the values of all steps, and how many each step has."""

SHARD, MAX_SHARDS = re.compile(r"(.*\.tfrecord-)(\d{1,6})-of-(\d{1,6})"), 1 << 16
"""Name of one of several files; limit of their number, since each is looked for."""
MAX_NAME_CHARACTERS = 1024
"""Limit of a feature's path."""
MAX_LISTED = 1024
"""Limit of values in a list that describes an episode."""


class _Feature(NamedTuple):
    """Feature of a step: its encoding, and the field that it becomes."""

    encoding: str  # "none", "bytes", "zlib", "image", "text" or "list"
    field: Field

    def names(self, key: str) -> list[str]:
        """Return the names of its features of an Example."""
        return [f"steps/{key}/{FLAT}", f"steps/{key}/{LENGTHS}"] if self.encoding == "list" else [f"steps/{key}"]


class _End(NamedTuple):
    """Content of an episode's last row: its place, its number, its reward, and whether it has an action."""

    place: tfrecord.Place
    rows: int
    terminal: bool
    reward: float
    acted: bool


class RldsSource:
    """Episodes of an RLDS data set of one version: a folder such as ``NAME/1.0.0``, every split of it.

    The step with ``is_last`` has the final observation only, as RLDS defines it: its action and reward are not data
    (``last="final"``). Templates of builders give it a real action and reward instead: then it is an ordinary step,
    and the observation after it is unknown (``"step"``). If that step did not terminate, it cannot be learned from, and
    its observation becomes the final one of the step before. ``"auto"`` decides for all episodes: it is a step if
    any episode has a reward or an action other than 0 there. An episode without steps is left out.

    Further features of the steps become further fields, and features of the episode annotations. Texts and lists of
    numbers (``Sequence``) are rows of any length; a text of a whole episode is an annotation as well. Tensors of
    strings are strings if all of them are UTF-8, else bytes. TensorFlow Datasets keeps float64 as float32.

    Raises:
        ValueError: it is damaged, or not an RLDS data set; or an unknown ``last``.
    """

    def __init__(self, path: str, budget: ReadBudget, last: LastStep = "auto") -> None:
        if last not in get_args(LastStep):
            raise ValueError(f"rlds: last={last!r}, expected one of {', '.join(get_args(LastStep))}")
        folder = existing(path, "rlds")
        self.name, self.left_out, self.notes, self._budget = f"rlds:{folder}", list[str](), list[str](), budget
        self.left = Totals()
        self._folder = Folder(folder, budget)
        self._read_features()
        self._read_places(last)
        further: dict[str, Any] = {name: self._features[key].field for name, key in self._further.items()}
        fields = {key: one.field for key, one in self._features.items()}
        self.spec = Spec(obs=self._nested("observation", fields), action=self._nested("action", fields), **further)

    def _read_features(self) -> None:
        """Read the features of a step.  Raises: FileNotFoundError, ValueError."""
        try:
            with explained(f"{self.name}: features.json is not that of an RLDS data set", self.name):
                said = self._folder.json("features.json")
                features = said["featuresDict"]["features"]
                steps = features["steps"]["sequence"]["feature"]["featuresDict"]["features"]
                self._about: dict[str, tuple[int, ...]] = {}  # shapes of descriptions; -1: of any length
                for key, feature in _leaves(features.get("episode_metadata", {})).items():
                    try:
                        self._add_description(f"episode_metadata/{key}", feature)
                    except (AttributeError, TypeError, ValueError):
                        self.left_out.append(f"episode_metadata/{key}: features.json has an odd length or shape of it")
                self._of_any_bytes: set[str] = set()  # strings, unless one is no UTF-8
                self._features: dict[str, _Feature] = {}
                for key, feature in _leaves({"featuresDict": {"features": steps}}).items():
                    self._add(key, feature)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.name}: has no features.json; expected the folder of one version, as NAME/1.0.0"
            ) from error
        rows = [key for key, one in self._features.items() if not one.field.ragged]
        missing = [key for key in ("reward", *FLAGS) if key not in rows]
        if missing or not self._under("observation") or not self._under("action"):
            raise ValueError(
                f"{self.name}: steps have {sorted(self._features)[:12]}, expected observation, action, reward, "
                "is_first, is_last and is_terminal"
            )
        roots = ("observation", "action", "reward", *FLAGS)
        paths = {key: one.encoding == "text" for key, one in self._features.items() if key.split("/")[0] not in roots}
        nameless: list[str] = []
        self._further = further_names(paths, nameless)
        self.left_out += [f"steps/{one}" for one in nameless]
        for key in paths.keys() - self._further.values():
            del self._features[key]
            self._of_any_bytes.discard(key)
        texts = [key for key, one in self._features.items() if one.encoding == "text"]
        self._optional = [key for key in texts if key.split("/")[0] != "action"]
        self._row_fields = {key: one.field for key, one in self._features.items()}
        of_ends = {"is_last", "is_terminal", "reward", *self._under("action"), *self._of_any_bytes}
        self._of_ends = {name for key in of_ends for name in self._features[key].names(key)}
        self._wanted = {name for key, one in self._features.items() for name in one.names(key)} | set(self._about)

    def _read_places(self, last: LastStep) -> None:
        """Find the episodes with steps.  Raises: ValueError."""
        self._splits = self._read_splits()
        files = [one for one in self._folder.names() if ".tfrecord" in one and not self._folder.is_folder(one)]
        if not files:
            raise ValueError(
                f"{self.name}: has no TFRecord files, expected NAME-SPLIT.tfrecord-...; others are not read"
            )
        self._check_shards(files)
        ends: list[_End] = []
        counts: dict[str, int] = {}
        damaged: list[tfrecord.Place] = []  # ``read`` skips them
        self._cut: dict[tfrecord.Place, str] = {}
        for name in files:
            self._folder.count(name)
        self._budget.check_episode(self.name, 2, self._row_fields)
        with shown(self._budget.progress, f"{self.name}: files", len(files)) as report:
            for name in files:
                with self._folder.open(name) as file, explained(str(file.path), self.name):
                    for place in self._records(file, name):
                        counts[name] = counts.get(name, 0) + 1
                        if place in self._cut:
                            damaged.append(place)
                            continue
                        check_whole(f"{self.name}: {name}: a record", place.nbytes)
                        try:
                            ends.append(self._end(tfrecord.example(tfrecord.read(file, place), self._of_ends), place))
                        except ValueError as error:
                            if not self._budget.skip_damaged or REMEDY in str(error):
                                raise
                            damaged.append(place)
                report(1)
        for key in self._of_any_bytes & self._features.keys():
            self._features[key] = _Feature("text", field_of("", (), str, beside=self._is_beside(key)))
        self._compare_counts({name: counts.get(name, 0) for name in files})
        self._last_is_step = self._decide(last, ends)
        kept = [(one, steps) for one in ends if (steps := self._steps(one))]
        order = {name: number for number, name in enumerate(files)}
        self._places = sorted([one.place for one, _ in kept] + damaged, key=lambda one: (order[one.name], one.offset))
        self._steps_of = {one.place: steps for one, steps in kept}
        self.steps = sum(self._steps_of.values())
        self._leave(ends)

    def _records(self, file: File, name: str) -> Iterator[tfrecord.Place]:
        """Yield the places of a file's records. If the file is damaged and damaged episodes are skipped, the last place
        is in ``_cut``, with the reason.

        Raises: ValueError.
        """
        at = 0
        try:
            for place in tfrecord.records(file, name):
                yield place
                at = place.offset + place.nbytes + tfrecord.TRAILER_BYTES
        except ValueError as error:
            if not self._budget.skip_damaged:
                raise
            cut = tfrecord.Place(name, at, file.size - at)
            self._cut[cut] = f"{error}; the rest of the file, {cut.nbytes:,} bytes, is not read"
            yield cut

    def _check_shards(self, files: list[str]) -> None:
        """Check that no file is missing, by the numbers in the names.  Raises: ValueError."""
        for name in files:
            if (found := SHARD.fullmatch(name)) and int(found[3]) <= MAX_SHARDS:
                for number in range(int(found[3])):
                    other = f"{found[1]}{number:0{len(found[2])}d}-of-{found[3]}"
                    if other not in files and self._episodes_of(other) != 0:
                        if not self._budget.skip_damaged:
                            raise ValueError(f"{self.name}: {other} is missing; {name} is another part of it")
                        if (said := f"{other}: is missing") not in self.left_out:
                            self.left_out.append(said)

    def _compare_counts(self, counts: dict[str, int]) -> None:
        """Note files whose number of episodes differs from dataset_info.json."""
        for name, count in counts.items():
            if (said := self._episodes_of(name)) not in (None, count):
                self.left_out.append(f"{name}: dataset_info.json says {said:,} episodes, the file has {count:,}")

    def _episodes_of(self, name: str) -> int | None:
        """Return a file's number of episodes in dataset_info.json; None: it has none."""
        if (found := SHARD.fullmatch(name)) is None:
            return None
        for split in self._splits:
            lengths = split.get("shardLengths") or []
            if found[1].endswith(f"-{split.get('name')}.tfrecord-") and int(found[2]) < len(lengths) == int(found[3]):
                return int(lengths[int(found[2])])
        return None

    def _read_splits(self) -> list[dict[str, Any]]:
        try:
            with explained(f"{self.name}: dataset_info.json is damaged", self.name):
                said = self._folder.json("dataset_info.json")
                splits = said.get("splits", [])
                return [one for one in splits if isinstance(one, dict)]
        except FileNotFoundError:
            return []

    def _leave(self, ends: list[_End]) -> None:
        left = self.left
        for one in ends:
            taken = one.terminal if self._last_is_step else not one.reward and not one.acted
            left.steps += not taken
            left.reward += 0.0 if taken else one.reward
            if not self._steps(one):
                left.episodes += 1
                left.terminated += one.terminal
                left.truncated += not one.terminal
        if left.episodes:
            self.left_out.append(f"{left.episodes:,} episodes of one observation, so without steps")
        if left.steps:
            which, why = (
                "at the ends of episodes that did not terminate",
                "the observation after them is not in the data",
            )
            if not self._last_is_step:
                which, why = "with is_last", "they are taken for final observations"
            self.left_out.append(f"{left.steps:,} steps {which}, with rewards of {left.reward:g}: {why}")

    def _end(self, found: dict[str, tfrecord.Value], place: tfrecord.Place) -> _End:
        rows, what = self._rows(found, place), f"{self.name}: {place.name}, byte {place.offset:,}"
        names = ["is_last", "is_terminal", "reward", *self._under("action")]
        self._budget.check_episode(what, rows, {key: self._row_fields[key] for key in names})
        every = {key: _array(found, key, self._features[key], rows, what) for key in names}
        _check_ends(what, every["is_last"], every["is_terminal"])
        for key in sorted(self._of_any_bytes):
            if text_type(found.get(f"steps/{key}", ())) is bytes:
                self._of_any_bytes.discard(key)
                self.notes.append(f"steps/{key}: read as bytes, since some are no UTF-8, as in {place.name}")
        arrays = {key: values[-1] for key, values in every.items()}
        acted = any(_is_action(arrays[key]) for key in self._under("action"))
        reward = finite_sum(arrays["reward"])
        return _End(place, rows, bool(arrays["is_terminal"]), reward, acted)

    def _decide(self, last: LastStep, ends: list[_End]) -> bool:
        """Return whether rows with is_last are steps, and note why."""
        rewarded, acted = sum(one.reward != 0 for one in ends), sum(one.acted for one in ends)
        said = f"of {len(ends):,} episodes, {rewarded:,} have a reward there and {acted:,} an action other than 0"
        chosen = last if last != "auto" else "step" if rewarded or acted else "final"
        meaning = "its action and reward are taken" if chosen == "step" else "only its observation is taken"
        why = f"as last={last!r} says ({said})" if last != "auto" else f"as {said}"
        self.notes.append(f"the step with is_last is read as last={chosen!r}, {meaning}, {why}")
        return chosen == "step"

    def _steps(self, end: _End) -> int:
        return end.rows if self._last_is_step and end.terminal else end.rows - 1

    def _add(self, key: str, feature: dict[str, Any]) -> None:
        """Add a feature of a step, or note why it is none."""
        listed = feature.get("sequence")
        one: dict[str, Any] = feature if listed is None else listed.get("feature", {})
        tensor = one.get("tensor") or one.get("image") or one.get("scalar") or {}
        shape = tuple(int(n) for n in tensor.get("shape", {}).get("dimensions", []))
        dtype, kind = tensor.get("dtype"), one.get("pythonClassName", "?").rpartition(".")[2]
        encoding = "image" if "image" in one else tensor.get("encoding", "none")
        said = ""
        if "text" in one or (dtype == "string" and not shape):
            if listed is None:
                if "text" not in one:
                    self._of_any_bytes.add(key)
                field = field_of(key, (), str if "text" in one else bytes, beside=self._is_beside(key))
                self._features[key] = _Feature("text", field)
                return
            said = "lists of texts"
        elif not tensor:
            said = f"{kind} is not read" if listed is None else f"lists of {kind} are not read"
        elif dtype in ("string", "object"):
            said = f"{dtype} {shape} has no fixed size"
        elif "image" in one and tensor.get("encodingFormat", "") not in ("png", "jpeg", ""):
            said = f"images in {tensor['encodingFormat']}"
        elif encoding not in ("none", "bytes", "zlib", "image") or (listed is not None and encoding != "none"):
            said = f"encoding {encoding}" + ("" if listed is None else " in lists")
        elif -1 in shape and (
            listed is not None or encoding != "bytes" or -1 in shape[1:]
        ):  # nothing tells its lengths
            said = f"{dtype} {shape} has no fixed size"
        if said:
            self.left_out.append(f"steps/{key}: {said}")
            return
        sizes: tuple[int | None, ...] = tuple(None if n == -1 else n for n in shape)
        if listed is not None:
            length, encoding = int(listed.get("length") or -1), "list"
            sizes = (None if length < 0 else length, *sizes)
        if 0 in sizes:
            self.left_out.append(f"steps/{key}: {sizes} has no values")
            return
        made = field_of(f"{self.name}: steps/{key}", sizes, np.dtype(dtype or "uint8"))
        self._features[key] = _Feature(encoding, made)

    def _add_description(self, key: str, feature: dict[str, Any]) -> None:
        """Add a feature that describes an episode, or note why it is none."""
        listed = feature.get("sequence")
        one: dict[str, Any] = feature if listed is None else listed.get("feature", {})
        tensor = one.get("tensor") or one.get("scalar") or {}
        kind = one.get("pythonClassName", "?").rpartition(".")[2]
        is_read = "text" in one or tensor or kind == "ClassLabel"
        if not is_read or tensor.get("encoding", "none") != "none":
            self.left_out.append(f"{key}: {'' if listed is None else 'lists of '}{kind} is not read")
            return
        shape = tuple(int(n) for n in tensor.get("shape", {}).get("dimensions", []))
        self._about[key] = shape if listed is None else (int(listed.get("length") or -1), *shape)

    def _is_beside(self, key: str) -> bool:
        return key.split("/")[0] not in ("observation", "action")

    def _under(self, root: str) -> list[str]:
        return [key for key in self._features if key.split("/")[0] == root]

    def _nested(self, root: str, values: dict[str, Any]) -> Any:
        paths = {key[len(root) + 1 :]: values[key] for key in self._under(root)}
        return nested(f"{self.name}: {root}", paths, "/")

    def _rows(self, found: dict[str, tfrecord.Value], place: tfrecord.Place) -> int:
        """Return the number of an episode's rows.  Raises: ValueError: the number is missing."""
        rows = len(found.get(LAST, []))
        if not rows:
            raise ValueError(f"{self.name}: {place.name}, byte {place.offset:,}: an episode without {LAST}")
        return rows

    def __len__(self) -> int:
        return len(self._places)

    def read(self, number: int) -> SourceEpisode:
        place = self._places[number]
        what = self.place(number)
        if (said := self._cut.get(place)) is not None:
            raise ValueError(f"{what}: {said}")
        with self._folder.open(place.name) as file, explained(what, self.name, str(file.path)):
            found = tfrecord.example(tfrecord.read(file, place), self._wanted)
        rows = self._rows(found, place)
        self._budget.check_episode(what, rows, self._row_fields)
        with explained(what, self.name):
            lacking = [key for key in self._optional if not len(found.get(f"steps/{key}", ()))]
            arrays = {
                key: empty_texts(one.field, rows) if key in lacking else _array(found, key, one, rows, what)
                for key, one in self._features.items()
            }
        _check_ends(what, arrays["is_last"], arrays["is_terminal"])
        begins = bool(arrays["is_first"][0]) and not arrays["is_first"][1:].any()
        terminated = bool(arrays["is_terminal"][-1])
        steps = rows if self._last_is_step and terminated else rows - 1
        info, unread = self._info(found)
        observed = {key: arrays[key] for key in self._under("observation")}
        if steps == rows:
            observed = {key: np.concatenate([one, one[-1:]]) for key, one in observed.items()}
        obs = self._nested("observation", observed)
        action = self._nested("action", {key: arrays[key][:steps] for key in self._under("action")})
        further = {name: arrays[key][:steps] for name, key in self._further.items()}
        return SourceEpisode(
            obs,
            action,
            arrays["reward"][:steps],
            terminated,
            not terminated,
            further,
            info,
            whole_texts(self.spec, obs, action, further),
            unread
            + [f"steps/{key}: a text that is missing; stored as empty texts" for key in lacking]
            + ([] if begins else ["is_first is not in the first row only; are rows missing?"]),
        )

    def _info(self, found: dict[str, tfrecord.Value]) -> tuple[dict[str, Any], list[str]]:
        """Return an episode's description, and the parts that are not read, in words."""
        info: dict[str, Any] = {}
        unread: list[str] = []
        for key, shape in self._about.items():
            if (value := found.get(key)) is None or (shape == () and isinstance(value, list) and value == [b""]):
                continue
            if len(value) > MAX_LISTED:
                unread.append(f"{key}: more than {MAX_LISTED:,} values; left out")
                continue
            if isinstance(value, np.ndarray) and not np.isfinite(value).all():
                unread.append(f"{key}: values that are not finite; left out")
                continue
            array = objects([one.decode("utf-8", "replace") for one in value]) if isinstance(value, list) else value
            try:
                info[key.partition("/")[2]] = array.reshape(shape).tolist()
            except (ValueError, OverflowError):
                unread.append(f"{key}: values that do not have its shape {shape}; left out")
        return info, unread

    def length(self, number: int) -> int:
        return self._steps_of.get(self._places[number], 0)

    def place(self, number: int) -> str:
        place = self._places[number]
        return f"{self.name}: {place.name}, byte {place.offset:,}: episode {number}"


def _check_ends(what: str, last: npt.NDArray[Any], terminal: npt.NDArray[Any]) -> None:
    """Check flags of an episode's rows.  Raises: ValueError: an end precedes the last row."""
    if last[:-1].any() or not last[-1] or terminal[:-1].any():
        raise ValueError(
            f"{what}: {len(last)} steps, is_last in {np.flatnonzero(last)[:4].tolist()}; expected is_last and "
            "is_terminal in the last one only"
        )


def _is_action(value: Any) -> bool:
    """Return whether an action is another than 0, or than an empty text."""
    return len(value) > 0 if isinstance(value, (str, bytes)) else bool(np.any((value != 0) & (value == value)))


def _leaves(feature: dict[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    inner = feature.get("featuresDict")
    listed: Any = feature.get("sequence")
    if isinstance(listed, dict) and isinstance(of_list := listed.get("feature"), dict) and "featuresDict" in of_list:
        return {key: {"sequence": listed | {"feature": one}} for key, one in _leaves(of_list, prefix).items()}
    if inner is None:
        return {prefix[:-1]: feature} if prefix else {}
    found: dict[str, dict[str, Any]] = {}
    for key, one in inner.get("features", {}).items():
        if len(prefix) + len(key) > MAX_NAME_CHARACTERS:
            raise ValueError(
                f"features.json: the name {prefix}{key[:64]}... has more than {MAX_NAME_CHARACTERS:,} characters; "
                "rename the feature"
            )
        found |= _leaves(one, f"{prefix}{key}/")
    return found


def _array(found: dict[str, tfrecord.Value], key: str, feature: _Feature, rows: int, what: str) -> npt.NDArray[Any]:
    """Return a feature's values [rows, *shape]; of any length, as objects.  Raises: ValueError."""
    field, name = feature.field, f"{what}: steps/{key}"
    parts = [found.get(one) for one in feature.names(key)]
    if parts[0] is None or parts[-1] is None:
        raise ValueError(f"{what}: has no steps/{key}")
    values = parts[0]
    if feature.encoding == "list":
        none = isinstance(values, list) and not values  # no type of numbers is said
        flat = _numbers(np.zeros(0) if none else values, field.shape[1:], field, name)
        lengths = parts[1].astype(np.int64) if isinstance(parts[1], np.ndarray) else np.zeros(0, np.int64)
        if field.ragged:
            return cut_rows(name, flat, lengths, rows)
        if len(lengths) != rows or (lengths != field.shape[0]).any():
            raise ValueError(
                f"{name}: {len(lengths):,} lists of {lengths[:4].tolist()}, expected {rows:,} of {field.shape[0]}"
            )
        return flat.reshape(rows, *field.shape)
    if isinstance(values, np.ndarray):
        if feature.encoding != "none" or values.size != math.prod(shape := (rows, *field.shape)):
            raise ValueError(
                f"{what}: {values.size:,} numbers of steps/{key}, expected {rows} x {field.shape} in encoding "
                f"{feature.encoding}"
            )
        return _numbers(values, field.shape, field, name).reshape(shape)
    if len(values) != rows:
        raise ValueError(f"{what}: {len(values):,} values of steps/{key}, expected {rows:,}")
    if feature.encoding == "text":
        return text_rows(name, values, str if field.text == "str" else bytes)
    if field.ragged:
        if wrong := [row for row, one in enumerate(values) if len(one) % field.item_bytes]:
            raise ValueError(
                f"{name}: {len(values[wrong[0]]):,} bytes in step {wrong[0]}, expected a multiple of {field.item_bytes}"
            )
        return objects([np.frombuffer(one, field.np_dtype).reshape(-1, *field.inner) for one in values])
    made: npt.NDArray[Any] = np.empty((rows, *field.shape), field.np_dtype)
    for row, one in enumerate(values):
        if feature.encoding == "image":
            made[row] = images.decode(one, field.shape, name, field.np_dtype)
            continue
        content = one
        if feature.encoding == "zlib":  # one byte more than expected at most
            content = zlib.decompressobj().decompress(one, field.row_bytes + 1)
        if len(content) != field.row_bytes:
            raise ValueError(f"{name}: {len(content):,} bytes in step {row}, expected {field.row_bytes:,}")
        made[row] = np.frombuffer(content, field.np_dtype).reshape(field.shape)
    return made


def _numbers(values: Any, inner: tuple[Any, ...], field: Field, name: str) -> npt.NDArray[Any]:
    """Return numbers [n, *inner] in a field's dtype.  Raises: ValueError: they do not fit."""
    if not isinstance(values, np.ndarray) or values.size % math.prod(inner):
        raise ValueError(f"{name}: {len(values):,} values, expected numbers, in rows of {inner}")
    with np.errstate(invalid="ignore"):
        converted: npt.NDArray[Any] = values.astype(field.np_dtype)
    if field.np_dtype.kind != "f" and (converted != values).any():
        raise ValueError(f"{name}: a value does not fit {field.dtype}")
    return converted.reshape(-1, *inner)
