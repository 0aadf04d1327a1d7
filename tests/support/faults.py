"""Lives of a small store on files that fail at any chosen operation; and what must be left then.

:class:`~tests.support.faulty.Faulty` stands in for the store's files. :func:`live` takes a store through a small life
on them and keeps an account of what was acknowledged; :func:`verify` opens what is left and compares.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import sharpwave as sw
from sharpwave import store as store_module
from sharpwave.disk import disk_budget as disk_module
from sharpwave.disk import region_files as regions_module
from sharpwave.disk.store_folder import MANIFEST
from sharpwave.native.file_operations import Files
from sharpwave.persistence import settings as settings_module
from tests.support.faulty import CUTS, Died, Faulty

SPEC = sw.Spec(obs=sw.Field((8, 12), "uint8", stack=2), action=sw.Field((), "int64"), serial=sw.Field((), "int64"))
EVERY = 3
LIFE_SPEC = sw.Spec(**SPEC.fields, core=sw.Field((2,), "float32", every=EVERY), prompt=sw.Field(str, shared=True))
"""Of the stores whose lives these are: a segment of 4 steps may hold the kept value of a step before it, and other
segments, in other files, have the same prompts."""
LANES, CAPACITY, SEGMENT_STEPS, REGION_BYTES = 2, 40, 4, 4096


def prompt(serial: int) -> str:
    """Return the prompt that 16 steps have, of 9, each of which comes back."""
    return f"prompt {serial // 16 % 9} " * 9


FINAL = 40_000
"""Added to a step's serial number: that of the picture after it, where it ended an episode."""


def frame(serial: int) -> Any:
    """A picture that tells its step, on a background that a dictionary is worth."""
    picture = np.arange(96, dtype=np.uint8).reshape(8, 12)
    picture[serial % 7, serial % 12] ^= 255
    picture[7, :8] = np.frombuffer(np.int64(serial).tobytes(), np.uint8)
    return picture


@dataclass
class Step:
    """A step that was appended: ``ends`` an episode, and what followed it, as far as that is known.

    Attributes:
        number: in its episode, counted from 0.
    """

    serial: int
    id: int
    ends: bool
    number: int

    @property
    def core(self) -> float:
        """The value of the sparse field at this step: the serial number of the last step that has one."""
        return float(self.serial - LANES * (self.number % EVERY))

    @property
    def annotations(self) -> dict[str, Any]:
        """Of the step's episode, which was annotated before its first step."""
        return {"begins": self.serial - LANES * self.number}


FIFO: dict[str, Any] = {"capacity": CAPACITY}
RESERVOIR: dict[str, Any] = {"disk_limit": 8 * REGION_BYTES, "retention": sw.Reservoir(3)}
LOWEST: dict[str, Any] = {"disk_limit": 8 * REGION_BYTES, "retention": sw.LowestPriority()}
"""Settings of a store whose regions are deleted as they are, and of two where what is held of them is copied first."""


@dataclass
class Account:
    """What the store was given, and what it acknowledged, lane by lane.

    Attributes:
        steps: by lane, in order.
        flushed: by lane, how many of them a flush has acknowledged.
        sealed, held: by lane, how many lie in sealed segments or have left, and the numbers of those that have not.
    """

    steps: dict[int, list[Step]] = field(default_factory=lambda: {lane: [] for lane in range(LANES)})
    flushed: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(LANES), 0))
    sealed: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(LANES), 0))
    held: dict[int, set[int]] = field(default_factory=lambda: {lane: set() for lane in range(LANES)})
    errors: int = 0
    store: sw.Store | None = None
    view: sw.Transitions | None = None

    def prioritize(self, store: sw.Store, lane: int) -> None:
        """Give the lane's last step but one, whose successor is known now, a priority of its own."""
        if not isinstance(store._log.retention, sw.LowestPriority):
            return
        if self.view is None:
            self.view = store.transitions(sampler=sw.Prioritized())
        for step in self.steps[lane][-2:-1]:
            self.view.update_priorities([step.id], [step.serial // SEGMENT_STEPS * 7 % 11])

    def look(self, store: sw.Store) -> None:
        """Note what is sealed and what has left."""
        log, index = store._log, store._log.index
        for lane in range(log.lanes):
            slot = int(log.opened.slots[lane])
            self.sealed[lane] = int(index.first_step[slot])
            here = np.flatnonzero((index.rows > 0) & (index.lane == lane))
            here = here[here != log.admission._interrupted]  # its eviction was noted as the process was killed
            begins, rows = index.first_step[here].tolist(), index.rows[here].tolist()
            self.held[lane] = {step for b, n in zip(begins, rows, strict=True) for step in range(b, b + n)}


@contextlib.contextmanager
def on(files: Files) -> Iterator[None]:
    """Stores in this block are made on ``files``, with small regions."""
    with (
        mock.patch.object(store_module, "Files", lambda: files),
        mock.patch.object(disk_module, "REGION_BYTES", REGION_BYTES),
        mock.patch.object(disk_module, "MIN_REGION_BYTES", REGION_BYTES),
        mock.patch.object(settings_module, "MIN_DISK_BYTES", REGION_BYTES),
        mock.patch.object(regions_module, "FIRST_EXTENT", REGION_BYTES // 4),
        mock.patch.object(regions_module, "MAX_EXTENT", REGION_BYTES // 2),
    ):
        yield


def opened(folder: Path, codec: str, settings: dict[str, Any] = FIFO) -> sw.Store:
    """The store in a folder, made where there is none."""
    if (folder / MANIFEST).exists():
        return sw.Store.open(folder)
    return sw.Store(LIFE_SPEC, disk=folder, segment_steps=SEGMENT_STEPS, codec=codec, **settings)


def serials_of(store: sw.Store) -> list[int]:
    """The serial numbers of all steps that can be sampled, in their order."""
    replay = store.transitions()
    return sorted(replay.fetch(replay.sampleable_ids())["serial"].tolist())


def live(
    folder: Path, codec: str, files: Faulty, account: Account, appends: int = 100, settings: dict[str, Any] = FIFO
) -> None:
    """A store's life: made, appended to, flushed, opened again, full by and by. What fails is tried once more.

    Raises: Died, where ``files`` say so.
    """

    def done(action: Callable[[], Any]) -> Any:
        try:
            return action()
        except OSError:
            account.errors += 1
            return action()

    def flush(store: sw.Store) -> None:
        done(store.flush)
        account.look(store)
        account.flushed = {lane: len(steps) for lane, steps in account.steps.items()}

    with on(files):
        store = account.store = done(lambda: opened(folder, codec, settings))
        numbers = [0] * LANES
        for serial in range(appends):
            lane = serial % LANES
            terminated, truncated = serial % 13 > 10, serial % 17 > 14
            step = {"obs": frame(serial), "action": serial, "reward": serial % 8, "serial": serial}
            step |= {"terminated": terminated, "truncated": truncated, "final_obs": frame(serial + FINAL)}
            step |= {"core": [serial, serial], "prompt": prompt(serial)}
            if not numbers[lane]:
                store.annotate(lane, {"begins": serial}, episode=True)
            done(functools.partial(store.append, lane=lane, **step))
            slot = int(store._log.opened.slots[lane])
            leaf = slot * SEGMENT_STEPS + int(store._log.index.rows[slot]) - 1
            id_ = int(store._log.index.generation[slot]) << 32 | leaf
            account.steps[lane].append(Step(serial, id_, terminated or truncated, numbers[lane]))
            numbers[lane] = 0 if terminated or truncated else numbers[lane] + 1
            account.prioritize(store, lane)
            account.look(store)
            if serial % 9 == 8:
                flush(store)
            if serial == appends // 2:
                flush(store)
                store.close()
                store = account.store = done(lambda: opened(folder, codec, settings))
                account.view, numbers = None, [0] * LANES
                for one in range(store.lanes):
                    kept = int(store._log.opened.steps[one])
                    given_up = [step for step in account.held[one] if kept <= step < account.flushed[one]]
                    assert len(given_up) <= 1, "more than the last step of an episode was given up"
                    del account.steps[one][kept:]
                    account.flushed[one] = kept
                account.look(store)
        flush(store)
        store.close()


def killed(store: sw.Store) -> None:
    """Leave a store's folder as SIGKILL does: nothing more is written."""
    store._log.closed = True
    assert store._log.disk is not None
    store._log.disk.close()


def bury(account: Account) -> None:
    """Let go what a process that has died held."""
    if account.store is None or account.store._log.closed:
        return
    account.look(account.store)
    disk = account.store._log.disk
    assert disk is not None
    try:
        killed(account.store)
    except Died:
        os.close(next(reversed(disk.regions.regions.values())).descriptor)


def verify(folder: Path, codec: str, account: Account, kind: str) -> sw.Store:
    """Open what is left and compare it with what was acknowledged; the store goes on afterwards."""
    store = opened(folder, codec)
    damages = store.recovery.damages if store.recovery else []
    assert all(str(folder) in damage for damage in damages)
    if kind not in (*CUTS, "killed in a write"):
        assert not damages, "nothing was half written, so nothing is damaged"
    compare(store, account, power=kind in CUTS)
    return store


def compare(store: sw.Store, account: Account, *, power: bool) -> None:
    """Everything acknowledged is there, with its id and its bytes, once; and nothing else is."""
    replay = store.transitions()
    ids = replay.sampleable_ids()
    batch = replay.fetch(ids) if len(ids) else None
    serials = batch["serial"].tolist() if batch is not None else []
    assert len(set(serials)) == len(serials), "a step is there twice"
    annotations = store.annotations_of(ids)
    known = {step.serial: step for steps in account.steps.values() for step in steps}
    assert set(serials) <= known.keys(), "a step is there that was never appended"
    for row, serial in enumerate(serials):
        step = known[serial]
        assert batch is not None and batch.ids[row] == step.id
        assert batch.action[row] == serial and batch.reward[row] == serial % 8
        assert batch["core"][row].tolist() == [step.core] * 2 and annotations[row] == step.annotations
        assert batch["prompt"][row] == prompt(serial)
        assert np.array_equal(batch.obs[row, -1], frame(serial))
        assert np.array_equal(batch.next_obs[row, -1], frame(serial + (FINAL if step.ends else LANES)))
    for lane, steps in account.steps.items():
        upto = account.flushed[lane] if power else max(account.flushed[lane], account.sealed[lane])
        if upto and not steps[upto - 1].ends and (power or upto > account.sealed[lane]):
            upto -= 1  # what came after it is not known
        retention = store._log.retention
        if isinstance(retention, sw.Reservoir) and upto > account.sealed[lane]:
            opened_with = steps[account.sealed[lane]].id  # opening seals what was open, and it may not be kept
            upto = upto if retention.key(opened_with) < retention.threshold else account.sealed[lane]
        lost = [step.serial for k, step in enumerate(steps[:upto]) if k in account.held[lane]]
        lost = [serial for serial in lost if serial not in serials]
        if isinstance(retention, sw.LowestPriority) and is_full(store):
            # What had left and stands in a file comes back, priorities do not: the oldest gave way to it.
            oldest = min((step.serial for step in steps if step.serial in serials), default=0)
            lost = [serial for serial in lost if serial > oldest]
        assert not lost, f"lane {lane}: steps {lost} were acknowledged and are lost"


def is_full(store: sw.Store) -> bool:
    """Whether files take all but two regions of what they may."""
    return store.disk_limit is not None and store.stats()["disk"]["bytes"] > store.disk_limit - 3 * REGION_BYTES


def go_on(store: sw.Store) -> None:
    """The store takes more steps, and gives them out."""
    for serial in range(1000, 1012):
        store.append(
            lane=serial % LANES, obs=frame(serial), action=serial, reward=0.0, serial=serial,
            terminated=False, truncated=False, core=[serial, serial], prompt=prompt(serial),
        )  # fmt: skip
    store.flush()
    replay = store.transitions()
    batch = replay.fetch(replay.sampleable_ids())
    newest = 1000 if store._log.retention.in_order else 1008  # else what is sealed may leave at once
    assert set(range(newest, 1010)) <= set(batch["serial"].tolist())
    assert len(np.unique(batch.ids)) == len(batch.ids)
    for row, serial in enumerate(batch["serial"].tolist()):
        assert np.array_equal(batch.obs[row, -1], frame(serial)) and batch["prompt"][row] == prompt(serial)
        if serial >= 1000:
            step = Step(serial, int(batch.ids[row]), False, (serial - 1000) // LANES)
            assert batch["core"][row].tolist() == [step.core] * 2 and store.annotations_of([step.id]) == [{}]


def round_of(
    folder: Path,
    codec: str,
    at: int,
    kind: str,
    seed: int = 0,
    appends: int = 100,
    settings: dict[str, Any] = FIFO,
    files: Faulty | None = None,
) -> Faulty:
    """One life, in which operation ``at`` comes out as ``kind`` says (0: none does), and what is left of it."""
    files, account = files or Faulty(at, kind, seed), Account()
    try:
        live(folder, codec, files, account, appends, settings)
    except Died:
        bury(account)
    if kind in CUTS and at:
        files.cut_power(folder)
    with on(Faulty()):
        store = verify(folder, codec, account, kind)
        go_on(store)
        store.close()
        with sw.Store.open(folder) as store:  # and nothing of that is lost either
            assert len(store) >= 10
    return files
