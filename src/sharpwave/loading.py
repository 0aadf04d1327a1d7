"""Import of data sets into a store: episode by episode, each whole or not at all, and going on where it stopped."""

from __future__ import annotations

import re
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from sharpwave.data.episode import LastStep, Source, SourceEpisode, Totals
from sharpwave.data.formats import Episodes, Selection, open_source, select
from sharpwave.data.opened_files import REMEDY, explained
from sharpwave.data.progress_bar import shown
from sharpwave.data.varying import annotation_of
from sharpwave.disk.store_folder import read_manifest
from sharpwave.escaping import escaped
from sharpwave.json_values import encode
from sharpwave.offline.scan import is_store
from sharpwave.spec import Spec
from sharpwave.store import Store
from sharpwave.validation import checked_episode
from sharpwave.views.episodes import StoredEpisode

FLUSH_S = 10.0
"""Seconds between flushes: the most that a power failure costs. A killed process loses its open segment's steps."""
IMPORTS, IMPORT = "imports", "import"
"""Annotations of the store and of episodes: which data sets were imported, and which of their episodes each is."""
OF_STEPS = re.compile(r"[\d,]+ (of [\d,]+ )?(steps|episodes|rows)\b|(steps|episodes|rewards):")
"""Beginning of messages about steps, episodes and rewards that are left out."""
MAX_NOTES = 16
"""Limit of an import's lists in messages."""


def load(
    source: str,
    into: Store | None = None,
    *,
    lane: int | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    trust: bool = False,
    last: LastStep = "auto",
    skip_damaged: bool = False,
    episodes: Episodes | None = None,
    **settings: Any,
) -> Store:
    """Import a data set into a store, and return the store.

    Args:
        source: format and place: ``"minari:NAME"`` (a local Minari data set), ``"hdf5:FILE"`` (the layout of D4RL,
            robomimic, ManiSkill or d3rlpy, detected by content), ``"hdf5:FOLDER"`` (ALOHA), ``"npz:FILE"`` (D4RL's),
            ``"parquet:FILE"`` (an export), ``"lerobot:FOLDER"``, ``"rlds:FOLDER"``, ``"zarr:FOLDER"`` or
            ``"zarr:ARCHIVE"`` (diffusion policy's ``ReplayBuffer``).
        into: store whose spec the data fits: fields of the data that it lacks are left out. ``None``: a new one, with
            the data's spec, room for all its steps, and ``settings``.
        lane: lane for the episodes; default: the lane of an earlier import of the same data set, or else a new one.
        progress: show progress; default: in a terminal, if rich is installed. A function receives steps done and in
            total.
        trust: lift the bounds on the expansion of a data set's files (``SECURITY.md``), and follow links
            in its folder: for files whose writer you know.
        last: meaning of RLDS's step with ``is_last``: "step", one with an action and a reward, as templates of builders
            write it; "final", the final observation only, as RLDS defines it; "auto": "step" if any episode has a
            reward or an action other than 0 there. The notes name the choice and its reason.
        skip_damaged: leave out episodes that are damaged, and list them in the notes; default: refuse the data set.
        episodes: episodes to import, by their numbers from 0 in the data set: ``range(10)``, ``[0, 3]``,
            ``slice(-5, None)`` or ``"0:10,15"``; or the data set's name for some of them: a filter key of robomimic, a
            file of ALOHA. Default: all. Each is imported once, in the order of the data set.
        settings: settings of the new store, as for ``Store``: ``capacity``, ``ram``, ``disk`` and others. If the folder
            ``disk`` holds a store, that store is opened, and ``settings`` may change its limits.

    An interrupted import, by Ctrl-C or SIGKILL, resumes when it is repeated: no episode is imported twice or lost. The
    import is noted in the store's annotations, ``store.annotations()["imports"]``, with the omissions, the
    interpretation of the data, and an audit: episodes, steps, the sum of rewards and the number of episodes by kind of
    end, in the source and in the store, which are compared episode by episode. Rewards become float32;
    all other values keep their dtypes, unless ``into`` declares others.

    Raises:
        ValueError: an unknown format; data that is damaged, expands beyond the bounds, leads out of its folder, does
            not fit the store, or has changed since an earlier import.
        FileNotFoundError, ModuleNotFoundError: naming the missing file or module.
        MemoryError, OSError, LimiterTimeoutError: as ``Store.add_episode``; whole episodes remain.

    Cost: an episode is in memory at a time.
    """
    return load_noting(
        source, into, lane=lane, progress=progress, trust=trust, last=last, skip_damaged=skip_damaged,
        episodes=episodes, **settings,
    )[0]  # fmt: skip


def load_noting(
    source: str,
    into: Store | None = None,
    *,
    lane: int | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    trust: bool = False,
    last: LastStep = "auto",
    skip_damaged: bool = False,
    episodes: Episodes | None = None,
    **settings: Any,
) -> tuple[Store, dict[str, Any]]:
    """Import as ``load``; return the store, and the import's notes, with the source's name."""
    shown_opening = False if callable(progress) else progress
    opened = open_source(source, trust=trust, progress=shown_opening, last=last, skip_damaged=skip_damaged)
    made: Store | None = None
    try:
        if into is not None and settings:
            raise ValueError(f"load: got both into= and {', '.join(settings)}, which are settings of a new store")
        selection = select(opened, episodes)
        store = into if into is not None else (made := _store_for(opened, settings))
        try:
            note = _import(opened, store, lane, progress, skip_damaged, selection)
        except BaseException:
            if made is not None:
                made.close()
            raise
        return store, note | {"name": opened.name}
    finally:
        opened.close()


def _store_for(source: Source, settings: dict[str, Any]) -> Store:
    disk = settings.get("disk")
    if disk is not None and is_store(Path(disk)):
        if read_manifest(Path(disk)).get("checkpoint"):
            raise ValueError(f"load: disk={str(disk)!r} is a checkpoint; open it (Store.open), and give it as into=")
        limits = {name: value for name, value in settings.items() if name != "disk"}
        return Store.open(disk, **limits)
    if ("capacity" not in settings and (disk is None or "disk_limit" not in settings) and "ram" not in settings) or (
        disk is not None and not {"capacity", "disk_limit"} & settings.keys()
    ):
        settings = settings | {"capacity": max(2, source.steps)}
    try:
        return Store(source.spec, **settings)
    except MemoryError as error:
        raise MemoryError(f"{source.name}: a store of its steps: {error}") from error


def check(
    source: str,
    *,
    progress: bool | None = None,
    trust: bool = False,
    last: LastStep = "auto",
    skip_damaged: bool = False,
    episodes: Episodes | None = None,
) -> dict[str, Any]:
    """Read a data set like ``load``, and return the notes of such an import, without writing anything."""
    opened = open_source(source, trust=trust, progress=progress, last=last, skip_damaged=skip_damaged)
    try:
        fit = Fit(opened.spec, opened.spec, opened.name)
        selection = select(opened, episodes)
        note = _first_note(opened, 0, 0, [], selection)
        audit = _Audit(opened, note, selection)
        with shown(progress, opened.name, _expected_steps(opened, selection)) as report:
            for _, episode in _read_all(opened, fit, selection.numbers, audit, note, skip_damaged):
                report(len(episode.reward))
        return note | {"name": opened.name, "episodes": audit.read.episodes, "audit": audit.described()}
    finally:
        opened.close()


def _import(
    source: Source,
    store: Store,
    lane: int | None,
    progress: bool | Callable[[int, int], None] | None,
    skip_damaged: bool,
    selection: Selection,
) -> dict[str, Any]:
    fit = Fit(source.spec, store.spec, source.name)
    note = _note(source, store, lane, fit.left_out, selection)
    lane = int(note["lane"])
    done = _imported(store, lane, note)
    audit = _Audit(source, note, selection)
    saved = time.monotonic()
    left = [one for one in selection.numbers if one >= note["episodes"]]
    with shown(progress, source.name, steps := _expected_steps(source, selection)) as report:
        if before := len(selection.numbers) - len(left) + len(done):
            report(steps * before // len(selection.numbers))  # about as many
        for number, episode in _read_all(source, fit, left, audit, note, skip_damaged):
            if number in done:
                continue
            try:
                unsaid = _add(store, lane, fit, episode, [note["number"], number, len(episode.reward)])
            except MemoryError as error:
                raise MemoryError(
                    f"{source.place(number)}: could not be stored ({str(error) or 'no memory is left'}); the episodes "
                    "before it are: repeat the import with a larger ram=, which goes on here if the store is on disk"
                ) from error
            note["unsaid"] += not all(unsaid.values())
            doubts = [f"annotation {escaped(one)}: no room{' but in its field' * held}" for one, held in unsaid.items()]
            _doubt(note, doubts[: max(0, MAX_NOTES - len(note["doubts"]))], source.place(number))
            report(len(episode.reward))
            if time.monotonic() - saved > FLUSH_S:
                _save(store, source, note, number + 1, audit)
                saved = time.monotonic()
        _save(store, source, note, len(source), audit)
    return note


def _expected_steps(source: Source, selection: Selection) -> int:
    """Return about how many steps the selected episodes have; exactly, if all are selected."""
    return source.steps * len(selection.numbers) // len(source)


def _read_all(
    source: Source, fit: Fit, numbers: Iterable[int], audit: _Audit, note: dict[str, Any], skip_damaged: bool
) -> Iterator[tuple[int, SourceEpisode]]:
    """Yield the episodes that fit the store, by number; count them, and note the parts not imported at the end.

    Raises: ValueError.
    """
    for number in numbers:
        if (episode := _read(source, fit, number, note, skip_damaged)) is not None:
            audit.add(number, episode, note)
            yield number, episode
    audit.check_steps(note)
    _name_left_out(source, note)


def _read(source: Source, fit: Fit, number: int, note: dict[str, Any], skip_damaged: bool) -> SourceEpisode | None:
    """Read an episode that fits the store; None: it is damaged, and noted as skipped.  Raises: ValueError."""
    try:
        with explained(source.place(number), source.name):
            episode = source.read(number)
            fit.check(episode)
        said = [*map(escaped, episode.doubts), *fit.clashes(episode)]
        _doubt(note, said, source.place(number))
        return episode
    except (ValueError, FileNotFoundError) as error:
        if not skip_damaged or REMEDY in str(error):  # data beyond the bounds may be sound
            raise
        note["skipped_episodes"] += 1
        note["skipped_steps"] += source.length(number)
        note["skipped"] = [*note["skipped"], str(error)][:MAX_NOTES]
        return None


def _doubt(note: dict[str, Any], said: list[str], place: str) -> None:
    for one in said:
        count, first = note["doubts"].get(one, (0, place))
        note["doubts"] = note["doubts"] | {one: [count + 1, first]}


def _name_left_out(source: Source, note: dict[str, Any]) -> None:
    """Note doubts and omissions of episodes once all are read; warn of omissions once."""
    doubts = [f"{one}: {count:,} episodes, the first is {first}" for one, (count, first) in note["doubts"].items()]
    note["notes"] = _listed([*note["notes"], *(one for one in doubts if one not in note["notes"])])
    said = f"annotations: those of {note['unsaid']:,} episodes are too large"
    if note["unsaid"] and said not in note["left_out"]:
        note["left_out"] = [*note["left_out"], said]
        warnings.warn(f"{source.name}: {said}; not imported", UserWarning, stacklevel=5)


class _Audit:
    """Comparison of the source's episodes with the store's.

    Attributes:
        read, stored, evicted: sums over the episodes that were read; over the ones among them seen in the store; and
            over the ones that its limits had evicted by then.
    """

    def __init__(self, source: Source, note: dict[str, Any], selection: Selection) -> None:
        before = note.get("audit", {})
        chosen = set(selection.numbers)
        unselected = [number for number in range(len(source)) if number not in chosen]
        self._unselected = Totals(len(unselected), sum(map(source.length, unselected)))
        self._source, self._pending, self._seen = source, dict[int, SourceEpisode](), set[tuple[int, int, int]]()
        self._whole = "audit" in note or not note["episodes"]  # an import that began earlier may have noted none
        self.read, self.stored, self.evicted = (Totals(**before.get(one, {})) for one in ("read", "store", "evicted"))

    def add(self, number: int, episode: SourceEpisode, note: dict[str, Any]) -> None:
        """Count an episode that was read.  Raises: ValueError: there are more steps than the data set declares."""
        if (content := _sums(episode)) in self._seen:
            _doubt(note, ["has the values of an earlier one in all steps"], self._source.place(number))
        self._seen.add(content)
        self.read.add(episode.reward, episode.terminated, episode.truncated)
        if self.read.steps > self._source.steps:  # a new store has room for its number, and would evict the first ones
            raise ValueError(
                f"{self._source.place(number)}: its episodes to number {number} have {self.read.steps:,} steps, "
                f"expected the {self._source.steps:,} that it says of all; is its metadata of another version? Fetch "
                "or write it anew"
            )
        self._pending[number] = replace(episode, obs=None, action=None, fields={})

    def check_steps(self, note: dict[str, Any]) -> None:
        """Check that the number of steps is the data set's, once all were read.  Raises: ValueError."""
        if self._unselected.episodes or note["skipped_episodes"]:
            return
        if self._whole and self.read.steps != self._source.steps:
            raise ValueError(
                f"{self._source.name}: its {self.read.episodes:,} episodes have {self.read.steps:,} steps, expected "
                f"the {self._source.steps:,} that it says of all; is its metadata of another version? Fetch or write "
                "it anew"
            )

    def compare(self, store: Store, note: dict[str, Any]) -> None:
        """Compare episodes read since the last time with the store's.  Raises: ValueError: they differ."""
        lane = note["lane"]
        for one in store.episodes(order="newest", lanes=lane) if lane < store.lanes else []:
            import_number, number, _ = _mark(one.info)
            if import_number != note["number"]:
                continue
            if number < note["episodes"]:
                break
            if one.begun:
                self._check(number, self._pending.pop(number, None), one)
                self.stored.add(one.reward, bool(one.terminated[-1]), bool(one.truncated[-1]))
        if self._pending and not store.stats()["evicted_steps"]:
            raise ValueError(f"{self._source.place(min(self._pending))}: was read, but the store does not have it")
        for lost in self._pending.values():
            self.evicted.add(lost.reward, lost.terminated, lost.truncated)
        self._pending.clear()

    def _check(self, number: int, read: SourceEpisode | None, stored: StoredEpisode) -> None:
        place = self._source.place(number)
        if read is None:
            raise ValueError(f"{place}: is in the store, at step {stored.first_step:,}, but was not read, or twice")
        rewards = np.asarray(read.reward).astype(np.float32)
        if stored.length != len(rewards):
            raise ValueError(f"{place}: has {len(rewards):,} steps, but {stored.length:,} in the store")
        if (differ := stored.reward != rewards).any():
            row = int(np.argmax(differ))
            raise ValueError(f"{place}: row {row}: the reward is {rewards[row]}, but {stored.reward[row]} in the store")
        ended = read.terminated, read.truncated or not read.terminated
        if ended != (found := (bool(stored.terminated[-1]), bool(stored.truncated[-1]))):
            raise ValueError(f"{place}: terminated and truncated are {ended} at its end, but {found} in the store")

    def described(self) -> dict[str, dict[str, Any]]:
        """Return the notes."""
        left = self._source.left
        found = {"source": self.read.plus(left).plus(self._unselected), "read": self.read, "left_out": left}
        found |= {"unselected": self._unselected} if self._unselected.episodes else {}
        found |= {"store": self.stored, "evicted": self.evicted}
        return {name: asdict(one) for name, one in found.items()}


def _sums(episode: SourceEpisode) -> tuple[int, int, int]:
    """Return checksums of an episode's observations, actions and rewards, and its length. Cost: 1 ns a byte."""

    def add(value: Any, found: int) -> int:
        if isinstance(value, (Mapping, tuple)):
            for one in value.values() if isinstance(value, Mapping) else value:
                found = add(one, found)
            return found
        if isinstance(value, list) or value.dtype.kind == "O":  # rows of any length
            for one in value:
                content = one.encode() if isinstance(one, str) else one
                content = content if isinstance(content, bytes) else np.ascontiguousarray(content).tobytes()
                found = zlib.crc32(len(content).to_bytes(8, "little") + content, found)
            return found
        return zlib.crc32(np.ascontiguousarray(value).tobytes(), found)

    return add(episode.obs, 0), add((episode.action, episode.reward), 0), len(episode.reward)


class Fit:
    """Conversion of a data set's episodes to a store's spec.

    Attributes:
        left_out: fields of the data that the store lacks, in words.

    Raises: ValueError: the store has fields that the data lacks, or of another shape.
    """

    def __init__(self, data: Spec, store: Spec, name: str) -> None:
        self._store, self._data = store, data
        lacking = [one for one in store.fields if one not in data.fields]
        if lacking:
            raise ValueError(
                f"{name}: has no {lacking[0]!r}, which the store's spec has; the data's fields are {list(data.fields)}"
            )
        for one, field in store.fields.items():
            if data.fields[one].shape != field.shape:
                raise ValueError(
                    f"{name}: {one} has shape {data.fields[one].shape}, expected {field.shape}, as the store's spec"
                )
            if data.fields[one].text != field.text:
                raise ValueError(
                    f"{name}: {one} has {data.fields[one].dtype} rows, expected {field.dtype}, as the store's spec"
                )
        self.left_out = [f"{one}: the store has no such field" for one in data.fields if one not in store.fields]

    def texts(self, episode: SourceEpisode) -> tuple[dict[str, str], dict[str, str]]:
        """Return the texts of whole episodes by annotation: of the store's fields, and of others."""
        held: tuple[dict[str, str], dict[str, str]] = {}, {}
        for name, text in episode.texts.items():
            held[name not in self._store.fields][escaped(annotation_of(self._data, name))] = text
        return held

    def clashes(self, episode: SourceEpisode) -> list[str]:
        """Name the texts that are no annotations, since the episode's description has others of their names."""
        said = _plain(episode.info)
        texts = {name: text for part in self.texts(episode) for name, text in part.items()}
        return [
            f"annotation {name}: as the episode's description has it; the text of its steps differs"
            for name, text in texts.items()
            if said.get(name, text) != text
        ]

    def check(self, episode: SourceEpisode) -> None:
        """Check an episode as ``add_episode`` does.  Raises: ValueError: it does not fit."""
        steps = len(episode.reward)
        obs, action = self._data.split_obs(episode.obs), self._data.split_action(episode.action)
        for rows, what, arrays in (
            (steps + 1, "one more than rewards, as the final observation is the last", obs),
            (steps, "as many as rewards", action | dict(episode.fields)),
        ):
            for name, array in arrays.items():
                field = self._data.fields[name]
                found = (len(array), None) if field.ragged else array.shape  # whose rows are checked below
                expected = (rows, None) if field.ragged else (rows, *field.shape)
                if found != expected:
                    raise ValueError(f"{name} has shape {found}, expected {expected}: {what}")
        given = self.arrays(episode)
        further = {name: given.pop(name) for name in self._store.extra_names}
        checked_episode(self._store, **given, extra=further)

    def arrays(self, episode: SourceEpisode) -> dict[str, Any]:
        """Return the arguments of ``add_episode``."""
        data, store = self._data, self._store
        obs, action = data.split_obs(episode.obs), data.split_action(episode.action)
        further = {one: episode.fields[one] for one in store.extra_names}
        return {
            "obs": store.join_obs({one: obs[one] for one in store.obs_names}),
            "action": store.join_action({one: action[one] for one in store.action_names}),
            "reward": episode.reward,
            "terminated": episode.terminated,
            "truncated": episode.truncated or not episode.terminated,
        } | further


def _note(source: Source, store: Store, lane: int | None, left_out: list[str], selection: Selection) -> dict[str, Any]:
    """Return the store's notes about the import of this source, after noting that it began.

    Raises: ValueError: the source has changed, or the lane is another.
    """
    imports = _notes(store)
    note = imports.get(source.name)
    if note is None:
        number = 1 + max((one["number"] for one in imports.values()), default=-1)
        note = _first_note(source, number, store.lanes if lane is None else lane, left_out, selection)
        store.annotate(None, {IMPORTS: imports | {source.name: note}})
        store.flush()
    if (note["of"], note["steps"]) != (len(source), source.steps):
        raise ValueError(
            f"{source.name}: has {len(source):,} episodes of {source.steps:,} steps, but {note['of']:,} of "
            f"{note['steps']:,} when its import began; import it under another name"
        )
    if (before := note.get("selection", "")) != selection.text:
        raise ValueError(
            f"{source.name}: episodes {selection.text or 'all'}, but its import began with {before or 'all'}; give the "
            "same, or import into another store"
        )
    if lane is not None and lane != note["lane"]:
        raise ValueError(f"{source.name}: lane={lane}, but its import began in lane {note['lane']}; leave it out")
    return note


def _first_note(source: Source, number: int, lane: int, left_out: list[str], selection: Selection) -> dict[str, Any]:
    left = len(source) - len(selection.numbers)
    unselected = [f"{left:,} of {len(source):,} episodes: not selected; selected are {selection.text}"] if left else []
    return {
        "number": number,
        "lane": lane,
        "episodes": 0,
        "of": len(source),
        "steps": source.steps,
        "left_out": _listed([*unselected, *source.left_out, *left_out]),
        "notes": _listed(source.notes),
        "doubts": {},
        "unsaid": 0,
        "skipped_episodes": 0,
        "skipped_steps": 0,
        "skipped": [],
        **({"about": about} if (about := getattr(source, "about", {})) else {}),
        **({"selection": selection.text} if selection.text else {}),
    }


def _listed(said: list[str]) -> list[str]:
    """Return the messages; if too many, first the ones about steps, rewards and episodes."""
    if len(said) > MAX_NOTES:
        said = sorted(said, key=lambda one: not OF_STEPS.match(one))
    return said if len(said) <= MAX_NOTES else [*said[: MAX_NOTES - 1], f"{len(said) - MAX_NOTES + 1:,} more"]


def _notes(store: Store) -> dict[str, Any]:
    """Return a store's notes about imports, by source.  Raises: ValueError: other content."""
    said = store.annotations().get(IMPORTS, {})
    numbers = ("number", "lane", "episodes", "of", "steps")
    if not isinstance(said, dict) or not all(
        isinstance(note, dict) and all(type(note.get(one)) is int and note[one] >= 0 for one in numbers)
        for note in said.values()
    ):
        raise ValueError(
            f"load: the store's annotation {IMPORTS!r} is not what an import notes there; rename it "
            f"(store.annotate(None, {{{IMPORTS!r}: None}}) removes it)"
        )
    return said


def _imported(store: Store, lane: int, note: Mapping[str, Any]) -> set[int]:
    """Return the numbers of the episodes that were imported since the last note; drop one that is not whole."""
    done: set[int] = set()
    if lane >= store.lanes:
        return done
    for episode in store.episodes(order="newest", lanes=lane):
        number, which, steps = _mark(episode.info)
        if number != note["number"]:
            continue
        if which < note["episodes"]:
            break
        if episode.begun and episode.length == steps:
            done.add(which)
        elif episode.begun:
            store.drop_steps(lane, episode.first_step, episode.first_step + episode.length)
    return done


def _mark(info: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the numbers of an episode's import, of the episode there, and of its steps; -1: it was not imported."""
    mark = info.get(IMPORT)
    if isinstance(mark, list) and len(mark) == 3 and all(type(one) is int for one in mark):
        return mark[0], mark[1], mark[2]
    return -1, -1, -1


def _add(store: Store, lane: int, fit: Fit, episode: SourceEpisode, mark: list[int]) -> dict[str, bool]:
    """Append an episode; return the names of the annotations without room, and whether a field has the text."""
    arrays = fit.arrays(episode)
    stored, others = fit.texts(episode)
    described = _plain(episode.info)
    said, stored = others | described, {name: text for name, text in stored.items() if name not in described}
    before = store.annotations(lane, episode=True)  # of an episode that could not be added
    store.annotate(lane, dict.fromkeys(before), episode=True)
    unsaid: dict[str, bool] = {}
    try:
        store.annotate(lane, said | stored | {IMPORT: mark}, episode=True)
    except ValueError:  # too large together: the smallest ones first, and before those that fields have
        store.annotate(lane, {IMPORT: mark}, episode=True)
        for held, values in ((False, said), (True, stored)):
            for name in sorted(values, key=lambda one: len(str(values[one]))):
                try:
                    store.annotate(lane, {name: values[name]}, episode=True)
                except ValueError:
                    unsaid[name] = held
    store.add_episode(lane=lane, whole=True, **arrays)
    return unsaid


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a data set's description that can be an annotation."""
    found: dict[str, Any] = {}
    for key, value in info.items():
        value = value.tolist() if isinstance(value, np.ndarray) else value
        try:
            found |= encode({key: value}, "info")
        except (ValueError, TypeError):
            continue
    return found


def _save(store: Store, source: Source, note: dict[str, Any], episodes: int, audit: _Audit) -> None:
    """Make imported episodes durable, compare them, and only then note them."""
    store.flush()
    audit.compare(store, note)
    note["episodes"], note["audit"] = episodes, audit.described()
    store.annotate(None, {IMPORTS: _notes(store) | {source.name: note}})
    store.flush()
