"""Run of a program: a process for each life, killed and opened again, and comparisons with the log."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from sharpwave.testing.torture.faults import KILLS
from sharpwave.testing.torture.life import FINAL, NEXT, live
from sharpwave.testing.torture.model import Log, Violation, check
from sharpwave.testing.torture.program import VIEWS, Operation, StoreProgram

ANSWER_S = 60.0
"""Time after which an operation counts as hanging."""
MAX_OPENINGS = 3


class Died(Exception):
    """Error: the process was killed during an operation."""


class Run:
    """Run of one program in a folder of its own.

    Attributes:
        counts: operations and comparisons, by kind.
    """

    def __init__(self, program: StoreProgram, base: Path) -> None:
        self.program, self.base = program, base
        self.counts: Counter[str] = Counter()
        self.log = Log(program, counts=self.counts)
        self._pipe: Connection | None = None
        self._child = 0
        self._folders = 0
        self._snapshots: list[Log] = []  # logs of checkpoints: the last acknowledged one and possible successors
        self._checkpointed = False
        self._fault: Operation | None = None
        self._quota = -1
        self._deadline = 0.0
        self._limits: dict[str, int] = {}
        self._exact = True  # the store was closed, or flushed last
        self._under_way: list[Log] = []  # possible logs after an operation during which the process died
        self._torn = False  # a record may be torn: every later opening names it
        self._lax = False
        self._unsure_limits = False
        self.at = -1

    def run(self) -> None:
        """Execute the program.  Raises: Violation."""
        try:
            for at, operation in enumerate(self.program.operations):
                self.at = at
                arguments = dict(operation)
                try:
                    getattr(self, "_do_" + arguments.pop("do").replace(" ", "_"))(**arguments)
                except Died:
                    self.counts["kills amid an operation"] += 1
            self._ready()
        finally:
            self._end()

    # operations of programs

    def _do_steps(
        self,
        how: str,
        lanes: list[int],
        ends: str,
        serial: int,
        next_obs: bool = False,
        joins: bool = False,
        whole: bool = False,
    ) -> None:
        self._ready()
        if how == "episode" and self.log.unfinished(lanes[0]):
            how = "append"
        times = len(ends) // len(lanes)
        flags = np.array(list(ends)).reshape(times, len(lanes))
        rows: dict[str, Any] = {"serial": serial + np.arange(flags.size).reshape(flags.shape)}
        rows["terminated"], rows["truncated"] = (flags == "t") | (flags == "b"), (flags == "u") | (flags == "b")
        rows["obs"] = rows["serial"].copy()
        if joins:
            for column, lane in enumerate(lanes):
                last = self.log.last(lane)
                if last is not None and not last.ended and last.next is not None:
                    rows["obs"][0, column] = last.next
        rows["next"] = np.full(flags.shape, -1)
        if next_obs and how != "episode":
            rows["next"][:-1], rows["next"][-1] = rows["obs"][1:], rows["serial"][-1] + NEXT
        many = how in ("block", "episode")
        answer = self._call(
            {"do": "steps", "how": how, "lanes": lanes, "rows": rows, "whole": whole}, rows=(lanes, rows, many)
        )
        done = answer["done"]
        if "error" in answer and many:
            counts = [len(ids) for ids in answer["held"]["lanes"]] + [0] * len(lanes)
            parts = []
            for lane in lanes:
                before = len(self.log.lanes[lane]) if lane < len(self.log.lanes) else 0
                parts.append(counts[lane] - before if lane < len(answer["held"]["lanes"]) else 0)
            # If an all-or-nothing append failed, its appended part keeps its numbers in the lane, and is not held.
            fresh = self._append(lanes, rows, parts)
            for column, lane in enumerate(lanes):
                if 0 < parts[column] < times and self.log.unfinished(lane):
                    self.log.truncate(lane, int(rows["obs"][parts[column], column]))
                if whole and parts[column]:
                    self.log.take_back(lane, parts[column], answer["held"]["lanes"][lane].tolist())
        else:
            fresh = self._append(lanes, rows, [done] * len(lanes))
        self.counts["steps"] += len(fresh)
        self._observe(answer, fresh)
        if "error" in answer:
            self._settle(lanes, rows["obs"][min(done, times - 1)].tolist(), many or len(lanes) > 1)
        if "error" not in answer:
            for (row, column), id_ in np.ndenumerate(answer["ids"]):
                key = lanes[column], len(self.log.lanes[lanes[column]]) - times + row
                held = self.log.held.get(key)
                check(held is None or held == id_, "ids", f"step {key} got id {id_}, is held as {held}")

    def _settle(self, lanes: list[int], codes: list[int], sealed: bool) -> None:
        """Break off the episodes that refused steps would have broken off.

        Args:
            codes: codes of the steps' observations.  sealed: some lanes' segments may have been sealed with them.
        """
        for lane, code in zip(lanes, codes, strict=True):
            last = self.log.last(lane)
            if last is not None and not last.ended:
                last.perhaps = code if sealed else None
                if sealed or last.next not in (None, code):
                    self._break(lane)

    def _append(self, lanes: list[int], rows: dict[str, Any], counts: list[int]) -> set[tuple[int, int]]:
        fresh = set()
        for column, lane in enumerate(lanes):
            for row in range(counts[column]):
                serial, obs, following = (int(rows[name][row, column]) for name in ("serial", "obs", "next"))
                flags = bool(rows["terminated"][row, column]), bool(rows["truncated"][row, column])
                self.log.append(lane, serial, obs, flags, serial + FINAL, following)
                fresh.add((lane, len(self.log.lanes[lane]) - 1))
        return fresh

    def _do_end_episode(self, lane: int) -> None:
        self._ready()
        if not self.log.unfinished(lane):
            return
        last = self.log.last(lane)
        assert last is not None
        code = last.serial + FINAL

        def apply() -> None:
            self.log.truncate(lane, code)

        answer = self._call({"do": "end_episode", "lane": lane, "code": code}, apply)
        if "error" not in answer:
            apply()
        self._observe(answer)

    def _do_break_episode(self, lane: int) -> None:
        self._ready()
        there = self.log.unfinished(lane)
        answer = self._break(lane)
        if "error" not in answer:
            check(answer["broke"] == there, "break_episode", f"returned {answer['broke']}, expected {there}")

    def _break(self, lane: int) -> dict[str, Any]:
        """Break off a lane's episode, if it has an unfinished one."""
        answer = self._call({"do": "break_episode", "lane": lane}, lambda: self.log.break_off(lane, False))
        last = self.log.last(lane)
        if "error" not in answer and last is not None:
            ids = answer["held"]["lanes"][lane]
            kept = len(ids) == len(self.log.lanes[lane])
            if kept and ids[-1] >= 0 and last.next is None:
                last.next = last.perhaps
            self.log.break_off(lane, kept)
        self._observe(answer)
        return answer

    def _do_sample(self, view: str, count: int, seed: int) -> None:
        if view not in self.program.views:
            return
        self._ready()
        answer = self._call({"do": "sample", "view": view, "count": count, "seed": seed})
        if not answer.get("empty"):
            self.log.used(view, answer["where"])
            if "errors" in answer:
                check(
                    answer["stale"] == 0, "stale", f"view {view}: {answer['stale']} of {count} that were just sampled"
                )
                self.log.updated(view, answer["where"], answer["errors"].tolist())
        self._observe(answer)

    def _do_mark(self, count: int, seed: int) -> None:
        self._ready()
        answer = self._call({"do": "mark", "count": count, "seed": seed})
        marked = answer["marked"]
        check(answer["count"] == len(marked), "mark", f"{answer['count']} of {len(marked)} held steps were written")
        self.log.mark(marked)
        self._observe(answer)

    def _do_flush(self, views: bool = True) -> None:
        self._ready()
        faulty = self._faulty
        answer = self._call({"do": "flush", "views": views})
        self._observe(answer)
        if "error" not in answer:
            self.log.flush(views and not faulty)
            self._exact = True

    def _do_checkpoint(self) -> None:
        self._ready()
        before = self.log.copy()
        try:
            answer = self._call({"do": "save"})
        except Died:
            self._snapshots.append(before)
            raise
        self._observe(answer)
        if "error" not in answer:
            self._snapshots, self._checkpointed = [self.log.copy()], True

    def _do_rewind(self) -> None:
        if not self._checkpointed:
            return
        self._end()
        self._folders += 1
        wrong: Violation | None = None
        answer: dict[str, Any] | None = None
        with contextlib.suppress(Died):
            answer = self._begin({"source": str(self.base / "checkpoint")})
        if answer is None or "error" in answer:  # a fault: retry once
            self._end()
            shutil.rmtree(self.base / f"store{self._folders}", ignore_errors=True)
            self._quota = -1
            answer = self._begin({"source": str(self.base / "checkpoint")})
        for snapshot in self._snapshots:
            self.log = snapshot.copy()
            try:
                self.log.restore(answer["held"])
                break
            except Violation as error:
                wrong = error
        else:
            assert wrong is not None
            raise wrong
        self.counts["checkpoints opened"] += 1
        self._exact, self._under_way, self._lax = True, [], False
        self._do_look()

    def _do_resize(self, **limits: int) -> None:
        self._ready()
        answer = self._call({"do": "resize", **limits}, lax=True)
        if "error" in answer:  # the next opening may have the old limits: the higher ones bound both
            limits = {name: max(value, self.log.limits[name]) for name, value in limits.items()}
            self._unsure_limits = True
        self.log.limits.update(limits)
        self._observe(answer, lax=True)

    def _do_clear(self) -> None:
        self._ready()
        answer = self._call({"do": "clear"}, lambda: self.log.cleared())
        if "error" in answer:
            self._lax = True  # its steps may return
            self.log.cleared()
            self.log.gone.clear()
        else:
            self.log.cleared()
        self._observe(answer, lax=True)

    def _do_look(self) -> None:
        self._ready()
        exact = [
            name for name, one in self.log.views.items() if one.known and VIEWS[name].get("sampler") == "Prioritized"
        ]
        answer = self._call({"do": "look", "exact": exact})
        if "error" not in answer:
            self.log.compare(answer)

    def _do_close(self) -> None:
        self._ready()
        faulty = self._faulty
        settings = self.program.settings
        if not faulty and settings.get("disk_limit"):
            self._do_flush()  # closing writes the rows of open segments, and evicts for them
        self._lax |= faulty and ("disk_limit" in settings or settings["on_full"] == "drop_oldest")
        answer = self._call({"do": "close"})
        self._exact = "error" not in answer
        if self._exact:
            self.log.flush(not faulty)
            if faulty:
                self.log.dirty.update(self.program.views)
        self.counts["failed closes" if "error" in answer else "closes"] += 1
        self._end()

    def _do_kill(self) -> None:
        if self._child:
            self._end()
            self.counts["kills"] += 1

    def _do_kill_later(self, ms: float) -> None:
        self._ready()
        self._deadline = time.monotonic() + ms / 1000

    def _do_full(self, free_bytes: int) -> None:
        self._ready()
        self._quota = free_bytes
        self._send({"do": "full", "free_bytes": free_bytes})
        self.counts["full disks"] += free_bytes >= 0

    def _do_fault(self, **fault: Any) -> None:
        self._fault = fault
        self.counts[f"faults: {fault['kind']}"] += 1

    def _do_limits(self, **limits: int) -> None:
        self._limits = limits

    # processes

    @property
    def _faulty(self) -> bool:
        return self._fault is not None or self._quota >= 0

    def _ready(self) -> None:
        """Open the store, if it is closed, and compare it."""
        for _ in range(MAX_OPENINGS):
            if self._child:
                return
            try:
                self._open()
            except Died:
                self.counts["kills amid an operation"] += 1
        check(bool(self._child), "opening", f"failed {MAX_OPENINGS} times")

    def _open(self) -> None:
        limits, faulty = self._limits, self._faulty
        answer = self._begin({"limits": limits})
        if "error" in answer:
            self.counts["failed openings"] += 1
            check(faulty, "opening", answer["error"])
            self._end()
            self._quota = -1
            return
        self._limits = {}
        self.counts["openings"] += 1
        lower = any(value < self.log.limits.get(name, 1 << 62) for name, value in limits.items())
        self.log.limits.update(limits)
        lax = self._lax or lower or self._unsure_limits
        wrong: Violation | None = None
        for log, exact, loose in [(self.log, self._exact, lax), *((one, False, True) for one in self._under_way)]:
            candidate = log.copy()
            candidate.limits = dict(self.log.limits)
            candidate.lose_views()
            try:
                candidate.reopen(answer["held"], exact and not self._under_way, loose or bool(self._under_way))
                break
            except Violation as error:
                wrong = error
        else:
            assert wrong is not None
            raise wrong
        check(self._torn or not answer["damages"], "damages", str(answer["damages"]))
        self.log, self._under_way, self._lax, self._exact = candidate, [], False, not lower
        self.log.dirty = set(self.program.views) if faulty else {n for n, v in self.log.views.items() if not v.known}
        self.log.saved = {name: one.copy() for name, one in self.log.views.items() if name not in self.log.dirty}
        self._do_look()
        if faulty and self._child:
            self._end_episodes()
        for name, one in self.log.views.items():
            if not one.known and VIEWS[name].get("sampler") == "Prioritized" and self._child:
                highest = one.largest + 1
                answer = self._call({"do": "prioritize", "view": name, "error": highest})
                one.priority.clear()
                items = self.log.items(name)[0].keys()
                there = [key for key in answer["where"] if key in items]
                self.log.updated(name, there, [highest] * len(there))
                one.known = bool(there)  # else the priority of new items is unknown

    def _end_episodes(self) -> None:
        """Let the store write ends of broken-off episodes that a fault prevented during opening."""
        quota, self._quota = self._quota, -1
        if quota >= 0:
            self._send({"do": "full", "free_bytes": -1})
        self._do_flush(views=False)
        self._quota = quota
        if quota >= 0:
            self._send({"do": "full", "free_bytes": quota})

    def _begin(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._pipe, other = multiprocessing.Pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                self._pipe.close()
                live(self.program, self.base / f"store{self._folders}", self.base / "checkpoint", other)
            finally:
                os._exit(1)
        other.close()
        if self._quota >= 0:
            self._send({"do": "full", "free_bytes": self._quota})
        return self._call({"do": "open", **arguments}, opening=True)

    def _send(self, operation: Operation) -> dict[str, Any]:
        """Send an operation to the process; return its answer.  Raises: Died, Violation."""
        assert self._pipe is not None
        try:
            self._pipe.send(operation)
            if self._deadline and not self._pipe.poll(max(0.0, self._deadline - time.monotonic())):
                os.kill(self._child, signal.SIGKILL)
            if not self._pipe.poll(ANSWER_S):
                self._end()
                raise Violation("hangs", f"{operation['do']} took more than {ANSWER_S:g} s")
            answer: dict[str, Any] = self._pipe.recv()
        except (EOFError, OSError):
            status = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
            self._child = 0
            self._end()
            check(status == -signal.SIGKILL, "crash", f"{operation['do']}: the process ended with {status}")
            raise Died from None
        if "broken" in answer:
            raise Violation("error", answer["broken"])
        return answer

    def _call(
        self, operation: Operation, apply: Any = None, rows: Any = None, lax: bool = False, opening: bool = False
    ) -> dict[str, Any]:
        """Send an operation as ``_send`` does, under the armed fault.

        Args:
            apply: applies the operation to the log; ``rows``: or appends these.
            lax: the operation evicts unknown steps.
        """
        fault, self._fault = self._fault, None
        do = operation["do"]
        if not opening and do not in ("look", "prioritize"):
            self._exact = False
        if fault is not None:
            self._torn |= fault["kind"] in ("short write", "kill in a write")
            self._send({"do": "fault", **fault})
        try:
            answer = self._send(operation)
        except Died:
            self._torn |= self._deadline > 0 or (fault is not None and fault["kind"] in KILLS)
            self._deadline = 0.0
            if do in ("sample", "prioritize"):
                name = operation["view"]
                self.log.dirty.add(name)
                for key in self.log.items(name)[0]:
                    self.log.views[name].uses[key] = self.log.views[name].uses.get(key, (0, 0))[0], 1 << 30
            if not opening:
                self._lax |= lax or rows is not None or do in ("clear", "resize")
                self._maybe(apply, rows)
            raise
        if fault is not None and self.program.settings["on_full"].startswith("drop"):
            answer["lax"] = True
        if "error" in answer:
            self.counts["errors"] += 1
            check(fault is not None or self._quota >= 0, "error", f"{do}: {answer['error']}")
        return answer

    def _maybe(self, apply: Any, rows: Any) -> None:
        """Note the possible effects of an operation during which the process died."""
        before = self.log.copy()
        if apply is not None:
            apply()
        elif rows is not None:
            self._append(rows[0], rows[1], [len(rows[1]["serial"])] * len(rows[0]))
        self._under_way, self.log = [self.log], before

    def _observe(self, answer: dict[str, Any], fresh: Any = (), lax: bool = False) -> None:
        self.log.observe(
            answer["held"],
            set(fresh),
            lax or self._unsure_limits or "error" in answer or "lax" in answer or self._quota >= 0,
        )

    def _end(self) -> None:
        """End the process, if any, by SIGKILL."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            self._child = 0
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        self._deadline = 0.0


def outcome(program: StoreProgram) -> tuple[Violation | None, Counter[str], int]:
    """Run a program; return its failure, counts, and the operation that showed the failure."""
    base = Path(tempfile.mkdtemp(prefix="sharpwave-torture-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    run = Run(program, base.resolve())
    failure: Violation | None = None
    try:
        run.run()
    except Violation as error:
        failure = error
    finally:
        shutil.rmtree(base, ignore_errors=True)
    run.counts["programs"] += 1
    return failure, run.counts, run.at
