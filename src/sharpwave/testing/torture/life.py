"""Life of a process with a store: it executes operations from a pipe, and reports on the store."""

from __future__ import annotations

import os
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import sharpwave as sw
from sharpwave import writing
from sharpwave.disk import disk_budget, region_files
from sharpwave.persistence import settings as store_settings
from sharpwave.testing.torture.faults import Faults, faults
from sharpwave.testing.torture.program import GAMMA, VIEWS, StoreProgram

SAMPLERS: dict[str, Any] = {"Uniform": sw.Uniform, "Prioritized": sw.Prioritized, "Fifo": sw.Fifo}
RETENTIONS: dict[str, Any] = {"Fifo": sw.Fifo, "Reservoir": sw.Reservoir, "LowestPriority": sw.LowestPriority}
MARK = "mark"
"""Column added later."""
FINAL, NEXT = 1 << 40, 1 << 41
"""Offsets of codes from a step's serial number: the final observation after it, if it ended its episode; its given
``next_obs``, if no step begins with it."""


def observations(codes: Any, width: int) -> npt.NDArray[np.uint8]:
    """Return observations [*codes.shape, width]: a background, and six bytes with the code."""
    codes = np.asarray(codes, np.int64)
    found = np.broadcast_to(np.arange(width, dtype=np.uint8), (*codes.shape, width)).copy()
    x: Any = codes.astype(np.uint64)[..., None] * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    found[..., :6] = (x ^ (x >> np.uint64(29))).view(np.uint8)[..., :6]
    return found


def rewards(serials: Any) -> npt.NDArray[np.float32]:
    """Return whole rewards that differ between neighbors."""
    return (np.asarray(serials, np.int64) * 7919 % 251).astype(np.float32)


def words(serials: Any) -> list[npt.NDArray[np.int32]]:
    """Return the row of 0 to 6 words that each step has; none for a serial number of 0, as padding has."""
    return [np.arange(one % 7, dtype=np.int32) + one for one in np.asarray(serials).reshape(-1).tolist()]


def right_words(rows: Any, serials: Any) -> npt.NDArray[np.bool_]:
    """Return whether the rows of a batch or of an episode are those of its steps, in the shape of ``serials``."""
    right = [np.array_equal(rows.row(k), row) for k, row in enumerate(words(serials))]
    return np.reshape(right, np.shape(serials))


def told(pictures: Any) -> npt.NDArray[np.uint8]:
    """Return the six bytes of observations' codes, and a seventh byte, whether the background is right."""
    right = (pictures[..., 6:] == np.arange(pictures.shape[-1], dtype=np.uint8)[6:]).all(-1, keepdims=True)
    return np.concatenate([pictures[..., :6], right.astype(np.uint8)], axis=-1)


def where(batch: Any) -> list[tuple[int, int]]:
    """Return the lane of each item in a batch, and its first (trained) step's number there."""
    return list(zip(batch.lane.tolist(), batch.step.tolist(), strict=True))


def small(region_bytes: int) -> None:
    """Give stores of this process small regions and short retries of a failing disk."""
    disk_budget.REGION_BYTES = disk_budget.MIN_REGION_BYTES = region_bytes
    disk_budget.SPARE_BYTES = region_bytes // 2
    store_settings.MIN_DISK_BYTES = region_bytes
    region_files.FIRST_EXTENT, region_files.MAX_EXTENT = region_bytes // 4, region_bytes // 2
    disk_budget.MIN_COPY_BYTES = region_bytes // 4
    writing.MAX_BLOCK_S, writing.RETRY_S = 0.1, 0.005


class StoreProcess:
    """Use of a store by one process.

    Args:
        folder: the store's folder.  checkpoint: folder for checkpoints.
    """

    def __init__(self, program: StoreProgram, folder: Path, checkpoint: Path, control: Faults) -> None:
        self.program, self.folder, self.checkpoint, self.control = program, folder, checkpoint, control
        self.store: Any = None
        self.views: dict[str, Any] = {}
        small(program.settings["region_bytes"])

    @property
    def items_at_a_time(self) -> int:
        """Number of items in a batch that fits a store with little memory."""
        return max(1, min(1000, (1 << 18) // (8 * self.program.width * max(1, self.program.stack))))

    # operations, by name

    def open(self, source: str | None = None, limits: dict[str, Any] | None = None) -> dict[str, Any]:
        """Open the store, or make it; with ``source``, continue from that checkpoint."""
        limits = limits or {}
        if source is not None:
            self.store = sw.Store.open(source, disk=self.folder, **limits)
        elif (self.folder / "store.json").exists():
            self.store = sw.Store.open(self.folder, **limits)
        else:
            program = self.program
            settings = {name: value for name, value in program.settings.items() if name != "region_bytes"}
            retention = RETENTIONS[settings.pop("retention")]()
            obs = sw.Field((program.width,), "uint8", stack=program.stack or None)
            more = {"words": sw.Field((None,), "int32", max_length=6)} if program.words else {}
            spec = sw.Spec(obs=obs, action=sw.Field((), "int64"), serial=sw.Field((), "int64"), **more)
            self.store = sw.Store(spec, disk=self.folder, retention=retention, **settings | limits)
        self.views = {name: self._view(name) for name in self.program.views}
        damages = self.store.recovery.damages if self.store.recovery is not None else []
        return {"damages": [str(one) for one in damages]}

    def _view(self, name: str) -> Any:
        settings = dict(VIEWS[name])
        kind, sampler = settings.pop("kind"), SAMPLERS[settings.pop("sampler", "Uniform")]()
        return getattr(self.store, kind)(name=name, gamma=GAMMA, sampler=sampler, **settings)

    def steps(self, how: str, lanes: list[int], rows: dict[str, Any], whole: bool = False) -> dict[str, Any]:
        """Append rows by name, [T, lanes]: serial, obs, next (codes; -1: not given), terminated, truncated."""
        store, width = self.store, self.program.width
        serial = rows["serial"]
        given: dict[str, Any] = {
            "obs": observations(rows["obs"], width),
            "action": serial * 3,
            "reward": rewards(serial),
            "terminated": rows["terminated"],
            "truncated": rows["truncated"],
            "serial": serial,
            "final_obs": observations(serial + FINAL, width),
        }
        if (rows["next"] >= 0).all():
            given["next_obs"] = observations(rows["next"], width)
        if self.program.words:
            given["words"] = np.empty(serial.shape, object)
            given["words"].reshape(-1)[:] = words(serial)
        ids, done = np.full(serial.shape, -1, np.int64), 0
        try:
            if how == "episode":
                last = int(serial[-1, 0])
                obs = np.concatenate([given["obs"][:, 0], observations([last + FINAL], width)])
                ends = bool(rows["terminated"][-1, 0]), bool(rows["truncated"][-1, 0])
                more = {one: given[one][:, 0] for one in ("action", "reward", "serial", "words") if one in given}
                ids[:, 0] = store.add_episode(
                    lane=lanes[0], obs=obs, terminated=ends[0], truncated=ends[1], whole=whole, **more
                )
            elif how == "block":
                ids[:] = store.extend(lanes=lanes, **given)
            else:
                for row in range(len(serial)):
                    if how == "append":
                        one = {name: values[row, 0] for name, values in given.items()}
                        one |= {name: bool(one[name]) for name in ("terminated", "truncated")}
                        ids[row, 0] = store.append(lane=lanes[0], **one)
                    else:
                        ids[row] = store.extend(lanes=lanes, **{name: values[row] for name, values in given.items()})
                    done += 1
        except OSError as error:
            return {"ids": ids, "done": done, "error": repr(error)}
        return {"ids": ids, "done": len(serial)}

    def end_episode(self, lane: int, code: int) -> None:
        self.store.end_episode(lane, observations(code, self.program.width))

    def break_episode(self, lane: int) -> dict[str, Any]:
        return {"broke": self.store.break_episode(lane)}

    def sample(self, view: str, count: int, seed: int) -> dict[str, Any]:
        """Sample a batch, and set its priorities if the view has any."""
        replay, rng = self.views[view], np.random.default_rng(seed)
        try:
            batch = replay.sample(count)
        except sw.EmptyError:
            return {"empty": True}
        said: dict[str, Any] = {"ids": np.array(batch.ids), "where": where(batch)}
        if VIEWS[view].get("sampler") == "Prioritized":
            errors = np.round(rng.exponential(2.0, len(batch)), 3)
            said |= {"errors": errors, "stale": self._update(view, said["ids"], errors)}
        return said

    def _update(self, view: str, ids: Any, errors: Any) -> int:
        if VIEWS[view]["kind"] == "sequences":
            errors = np.repeat(errors[:, None], VIEWS[view]["length"], 1)
        stale: int = self.views[view].update_priorities(ids, errors)
        return stale

    def mark(self, count: int, seed: int) -> dict[str, Any]:
        """Write numbers of held steps, some of them or all, into a column that is added first; return their places."""
        store, rng = self.store, np.random.default_rng(seed)
        if MARK not in store.columns:
            store.add_column(MARK, sw.Field((), "int32"))
        places = [(lane, int(number)) for lane, ids in enumerate(self._ids()) for number in np.flatnonzero(ids >= 0)]
        chosen = rng.permutation(len(places))[:count]
        values = rng.integers(1, 1 << 30, len(chosen))
        lanes, numbers = np.array([places[k] for k in chosen], np.int64).reshape(-1, 2).T
        written = store.write_column(MARK, store.ids(lanes, numbers), values)
        return {
            "marked": [(places[k], value) for k, value in zip(chosen, values.tolist(), strict=True)],
            "count": written,
        }

    def prioritize(self, view: str, error: float) -> dict[str, Any]:
        """Give all items of a view the same priority."""
        ids = np.array(self.views[view].sampleable_ids())
        if not len(ids):
            return {"where": []}
        few = self.items_at_a_time
        there = [one for k in range(0, len(ids), few) for one in where(self.views[view].fetch(ids[k : k + few]))]
        return {"where": there, "stale": self._update(view, ids, np.full(len(ids), error))}

    def save(self) -> None:
        self.store.checkpoint(self.checkpoint)

    def close(self) -> None:
        store, self.store, self.views = self.store, None, {}
        store.close()

    def fault(self, **armed: Any) -> None:
        self.control.arm(**armed)

    def full(self, free_bytes: int) -> None:
        self.control.limit(free_bytes)

    # reports

    def held(self) -> dict[str, Any]:
        """Return the id of each step of each lane, -1 for a missing step; and the counts."""
        store = self.store
        if store is None:
            return {}
        stats = store.stats()
        names = ("steps", "total_steps", "evicted_steps", "evicted_segments")
        return {
            "lanes": self._ids(),
            "length": len(store),
            "stats": {name: stats[name] for name in names} | {"dropped_steps": stats["disk"]["dropped_steps"]},
            "bytes": stats["disk"]["bytes"],
        }

    def _ids(self) -> list[Any]:
        store = self.store
        counts = store.lane_steps.tolist()
        lanes = np.repeat(np.arange(len(counts)), counts)
        numbers = np.concatenate([np.arange(count) for count in counts] or [np.zeros(0, np.int64)])
        ids = np.array(store.ids(lanes, numbers, missing="mask"))
        return np.split(ids, np.cumsum(counts)[:-1]) if counts else []

    def _marks(self) -> list[Any]:
        """Return the numbers that ``mark`` wrote of each lane's steps, 0 where there is none."""
        store = self.store
        if MARK not in store.columns:
            return []
        return [store.read_column(MARK, ids)[0] for ids in self._ids()]

    def look(self, exact: list[str]) -> dict[str, Any]:
        """Return all items of all views, all episodes, and the probabilities in the views named ``exact``."""
        store = self.store
        views: dict[str, Any] = {}
        for name, replay in self.views.items():
            ids = replay.sampleable_ids()
            found: dict[str, Any] = {"ids": np.array(ids), "count": len(replay)}
            if len(ids):
                names = ["obs", "action", "reward", "discount", "terminated", "truncated", "n", "serial"]
                names += ["next_obs"] if VIEWS[name]["kind"] == "transitions" else ["mask", "step_reward", "first"]
                parts = []
                for begin in range(0, len(ids), self.items_at_a_time):
                    batch = replay.fetch(ids[begin : begin + self.items_at_a_time])
                    part = {one: np.array(batch[one]) for one in names}
                    part |= {one: told(part[one]) for one in ("obs", "next_obs") if one in part}
                    if self.program.words:
                        part["words"] = right_words(batch["words"], part["serial"])
                    parts.append(part | {"where": np.array(where(batch))})
                found |= {one: np.concatenate([part[one] for part in parts]) for one in parts[0]}
                found["where"] = list(map(tuple, found["where"].tolist()))
                if name in exact:
                    drawn = replay.draw(4 * len(ids))
                    found |= {"drawn": np.array(drawn.ids), "probabilities": np.array(drawn.probabilities)}
            views[name] = found
        episodes = [
            (e.lane, e.first_step, e.length, e.total_reward, e.begun, e.ended, e["serial"], told(e.obs), e.reward)
            for e in store.episodes()
        ]
        right = not self.program.words or all(right_words(e["words"], e["serial"]).all() for e in store.episodes())
        return {"views": views, "episodes": episodes, "words": right, "marks": self._marks()}


def live(program: StoreProgram, folder: Path, checkpoint: Path, pipe: Connection) -> None:
    """Execute operations until the pipe is closed; answer each with its result and the steps then held."""
    warnings.simplefilter("ignore")
    control = faults()
    control.watch(folder.parent)
    life = StoreProcess(program, folder, checkpoint, control)
    while True:
        try:
            operation: dict[str, Any] = pipe.recv()
        except EOFError:
            os._exit(0)
        do = operation.pop("do")
        answer: dict[str, Any] = {}
        try:
            act = getattr(life, do, None) or getattr(life.store, do)  # flush, resize and clear are the store's
            answer = act(**operation) or {}
        except OSError as error:
            answer = {"error": repr(error)}
        except BaseException as error:
            import traceback

            pipe.send({"broken": f"{do}: {error!r}\n{traceback.format_exc()}"})
            os._exit(1)
        if do != "fault":
            control.arm(None)
        pipe.send(answer | {"held": life.held()})
