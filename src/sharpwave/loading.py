"""Import of data sets into a store: episode by episode, each whole or not at all, and going on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sharpwave.data.episode import Episode, LastStep, Source
from sharpwave.data.formats import open_source
from sharpwave.data.progress import shown
from sharpwave.disk.store_folder import read_manifest
from sharpwave.json_values import encode
from sharpwave.offline.scan import is_store
from sharpwave.spec import Spec
from sharpwave.store import Store

FLUSH_S = 10.0
"""Seconds between flushes: what a power failure may cost. A killed process costs the steps in the open segment."""
IMPORTS, IMPORT = "imports", "import"
"""Annotations of the store and of episodes: which data sets were imported, and which of their episodes each is."""
MAX_NOTES = 16
"""Limit of what an import lists in words."""


def load(
    source: str,
    into: Store | None = None,
    *,
    lane: int | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    trust: bool = False,
    last: LastStep = "auto",
    **settings: Any,
) -> Store:
    """Import a data set into a store, and return the store.

    Args:
        source: format and place: ``"minari:NAME"`` (a local Minari data set), ``"hdf5:FILE"`` and ``"npz:FILE"`` (the
            D4RL layout), ``"parquet:FILE"`` (an export), ``"lerobot:FOLDER"``, ``"rlds:FOLDER"``.
        into: store whose spec the data fits: fields of the data that it lacks are left out. ``None``: a new one, with
            the data's spec, room for all its steps, and ``settings``.
        lane: lane that the episodes are appended to; default: that of an earlier import of the same data set, or else a
            new one.
        progress: show it; default: in a terminal, if rich is installed. A function receives steps done and in total.
        trust: lift the bounds on what a data set may make of the bytes of its files (``SECURITY.md``), and follow links
            in its folder: for files whose writer you know.
        last: what the step with ``is_last`` of RLDS is: "step", one with an action and a reward, as templates of
            builders write it; "final", the final observation only, as RLDS defines it; "auto": "step" if any episode
            has a reward or an action other than 0 there. Which was chosen, and why, is in the notes.
        settings: of the new store, as for ``Store``: ``capacity``, ``ram``, ``disk`` and others. If the folder ``disk``
            holds a store, that is opened, and ``settings`` may change its limits.

    An import that was broken off, by Ctrl-C or SIGKILL, goes on where it stopped when it is repeated: no episode is
    imported twice or lost. What was imported is noted in the store's annotations, ``store.annotations()["imports"]``,
    with what was left out, and how the data were understood. Rewards become float32; all other values keep their
    dtypes, unless ``into`` declares others.

    Raises:
        ValueError: an unknown format; data that is damaged, makes more of its files' bytes than the bounds allow, leads
            out of its folder, does not fit the store, or has changed since an earlier import.
        FileNotFoundError, ModuleNotFoundError: naming what is missing.
        MemoryError, OSError, LimiterTimeoutError: as ``Store.add_episode``; whole episodes remain.

    Cost: an episode is in memory at a time.
    """
    return load_noting(source, into, lane=lane, progress=progress, trust=trust, last=last, **settings)[0]


def load_noting(
    source: str,
    into: Store | None = None,
    *,
    lane: int | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    trust: bool = False,
    last: LastStep = "auto",
    **settings: Any,
) -> tuple[Store, dict[str, Any]]:
    """Import as ``load``; return the store, and what it notes about the import, with the source's name."""
    opened = open_source(source, trust=trust, progress=False if callable(progress) else progress, last=last)
    made: Store | None = None
    try:
        if into is not None and settings:
            raise ValueError(f"load: got both into= and {', '.join(settings)}, which are settings of a new store")
        store = into if into is not None else (made := _store_for(opened, settings))
        try:
            note = _import(opened, store, lane, progress)
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


def _import(
    source: Source, store: Store, lane: int | None, progress: bool | Callable[[int, int], None] | None
) -> dict[str, Any]:
    fit = Fit(source.spec, store.spec, source.name)
    note = _note(source, store, lane, fit.left_out)
    lane = int(note["lane"])
    done = _imported(store, lane, note)
    saved, steps = time.monotonic(), 0
    with shown(progress, source.name, source.steps) as report:
        if before := note["episodes"] + len(done):
            report(source.steps * before // len(source))  # about as many
        for number in range(len(source)):
            if number < note["episodes"] or number in done:
                continue
            episode = source.read(number)
            steps += len(episode.reward)
            if steps > source.steps:  # a new store has room for so many, and would evict the first ones
                raise ValueError(
                    f"{source.name}: its episodes to number {number} have {steps:,} steps, expected the "
                    f"{source.steps:,} that it says of all; is its metadata of another version? Fetch or write it anew"
                )
            _add(store, lane, fit, episode, [note["number"], number, len(episode.reward)])
            report(len(episode.reward))
            if time.monotonic() - saved > FLUSH_S:
                _save(store, source, note, number + 1)
                saved = time.monotonic()
        _save(store, source, note, len(source))
    return note


class Fit:
    """How the episodes of a data set become those of a store's spec.

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
        self.left_out = [f"{one}: the store has no such field" for one in data.fields if one not in store.fields]

    def arrays(self, episode: Episode) -> dict[str, Any]:
        """Return the arguments of ``add_episode``.  Raises: ValueError: arrays do not fit the data's own spec."""
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


def _note(source: Source, store: Store, lane: int | None, left_out: list[str]) -> dict[str, Any]:
    """Return what the store notes about the import of this source, after noting that it began.

    Raises: ValueError: the source has changed, or the lane is another.
    """
    imports = _notes(store)
    note = imports.get(source.name)
    if note is None:
        number = 1 + max((one["number"] for one in imports.values()), default=-1)
        note = {"number": number, "lane": store.lanes if lane is None else lane, "episodes": 0}
        note |= {"of": len(source), "steps": source.steps, "left_out": [*source.left_out, *left_out][:MAX_NOTES]}
        note |= {"notes": source.notes[:MAX_NOTES]}
        store.annotate(None, {IMPORTS: imports | {source.name: note}})
        store.flush()
    if (note["of"], note["steps"]) != (len(source), source.steps):
        raise ValueError(
            f"{source.name}: has {len(source):,} episodes of {source.steps:,} steps, but {note['of']:,} of "
            f"{note['steps']:,} when its import began; import it under another name"
        )
    if lane is not None and lane != note["lane"]:
        raise ValueError(f"{source.name}: lane={lane}, but its import began in lane {note['lane']}; leave it out")
    return dict(note)


def _notes(store: Store) -> dict[str, Any]:
    """Return what a store notes about imports, by source.  Raises: ValueError: it is something else."""
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


def _add(store: Store, lane: int, fit: Fit, episode: Episode, mark: list[int]) -> None:
    arrays = fit.arrays(episode)
    said = {key: value for key, value in _plain(episode.info).items() if key != IMPORT}
    before = store.annotations(lane, episode=True)  # of an episode that could not be added
    store.annotate(lane, dict.fromkeys(before), episode=True)
    try:
        store.annotate(lane, said | {IMPORT: mark}, episode=True)
    except ValueError:  # too much of it
        store.annotate(lane, {IMPORT: mark}, episode=True)
    store.add_episode(lane=lane, whole=True, **arrays)


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a data set's description can be an annotation."""
    found: dict[str, Any] = {}
    for key, value in info.items():
        value = value.tolist() if isinstance(value, np.ndarray) else value
        try:
            found |= encode({key: value}, "info")
        except (ValueError, TypeError):
            continue
    return found


def _save(store: Store, source: Source, note: dict[str, Any], episodes: int) -> None:
    """Make what was imported durable, and only then note it."""
    store.flush()
    note["episodes"] = episodes
    store.annotate(None, {IMPORTS: _notes(store) | {source.name: note}})
    store.flush()
