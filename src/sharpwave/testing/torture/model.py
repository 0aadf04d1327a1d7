"""Plain log of the calls of a store and of its acknowledgments, in lists; and the expected content of the store.

No code of the store is used: returns, successors, windows and episodes are computed step by step. Only the set of
held steps is read from the store, after each operation; the tests check that steps stay held, or stay away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sharpwave.testing.torture.life import observations, rewards, told
from sharpwave.testing.torture.program import GAMMA, VIEWS, StoreProgram

Key = tuple[int, int]
"""Lane of a step, and its number there."""
EPS, ALPHA = 1e-6, 0.6
SHOWN = 6
COUNTED = ("evicted_segments", "dropped_steps")
"""Counts that survive an end of the process."""


class Violation(AssertionError):
    """Broken property of the store.

    Attributes:
        what: keyword of the fault, the same in all programs.
    """

    def __init__(self, what: str, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.what = what


def check(right: bool, what: str, message: str) -> None:
    """Raise a ``Violation`` unless ``right``."""
    if not right:
        raise Violation(what, message)


def some(keys: Any) -> str:
    """Describe the number of keys, and the first ones."""
    ordered = sorted(keys)
    return f"{len(ordered)} ({', '.join(map(str, ordered[:SHOWN]))}{', ...' if len(ordered) > SHOWN else ''})"


@dataclass
class LoggedStep:
    """Step as it was appended.

    Attributes:
        obs, final, next: codes of the observation, of the final one after it if the step ended its episode, and of the
            given successor; ``None``: none.
        number: number in its episode.
        perhaps: code of the next step's observation, if that step failed: the segment may have been sealed with it.
    """

    serial: int
    obs: int
    terminated: bool
    truncated: bool
    final: int | None
    next: int | None
    number: int
    perhaps: int | None = None

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class LoggedItems:
    """Expected state of a view: priorities and uses of items, by the key of their (first trained) step.

    Attributes:
        known: whether priorities are known; not after a crash that lost some.
        uses: lower and upper bounds of the number of uses.
    """

    priority: dict[Key, float] = field(default_factory=dict)
    largest: float = 1.0
    uses: dict[Key, tuple[int, int]] = field(default_factory=dict)
    known: bool = True

    def copy(self) -> LoggedItems:
        return LoggedItems(dict(self.priority), self.largest, dict(self.uses), self.known)


@dataclass
class Log:
    """Steps of all lanes, the held ones, and those that must stay away.

    Attributes:
        lanes: steps by number; ``None``: a step that was taken back, but whose number is not used again.
        held: ids of held steps. ``ids``: serial numbers of all ids ever seen.
        flushed: by lane, the number of steps acknowledged by a flush.
        gone: steps that were evicted at an acknowledged flush, or at a clean end.
        marks: numbers in a column added later, of held steps; ``saved_marks``: the same when last flushed.
        marked: numbers written since the last flush. ``unsure_marks``: possible numbers after a kill, 0 for none.
        views: items by view. ``saved``: the same when last written.
        stats: the store's last stats.
        counts: numbers of comparisons.
    """

    program: StoreProgram
    lanes: list[list[LoggedStep | None]] = field(default_factory=list)
    held: dict[Key, int] = field(default_factory=dict)
    ids: dict[int, int] = field(default_factory=dict)
    flushed: list[int] = field(default_factory=list)
    gone: set[Key] = field(default_factory=set)
    views: dict[str, LoggedItems] = field(default_factory=dict)
    saved: dict[str, LoggedItems] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)
    marks: dict[Key, int] = field(default_factory=dict)
    saved_marks: dict[Key, int] = field(default_factory=dict)
    marked: dict[Key, set[int]] = field(default_factory=dict)
    unsure_marks: dict[Key, set[int]] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if not self.views:
            self.views = {name: LoggedItems() for name in self.program.views}
            self.limits = {k: v for k, v in self.program.settings.items() if k in ("capacity", "disk_limit")}

    def copy(self) -> Log:
        lanes = [[None if s is None else LoggedStep(**vars(s)) for s in steps] for steps in self.lanes]
        return Log(
            self.program, lanes, dict(self.held), dict(self.ids), list(self.flushed), set(self.gone),
            {name: one.copy() for name, one in self.views.items()},
            {name: one.copy() for name, one in self.saved.items()},
            set(self.dirty), dict(self.marks), dict(self.saved_marks),
            {key: set(values) for key, values in self.marked.items()},
            {key: set(values) for key, values in self.unsure_marks.items()},
            dict(self.stats), dict(self.limits), self.counts,
        )  # fmt: skip

    @property
    def stride(self) -> int:
        steps: int = self.program.settings["segment_steps"]
        return steps

    def last(self, lane: int) -> LoggedStep | None:
        return self.lanes[lane][-1] if lane < len(self.lanes) and self.lanes[lane] else None

    def unfinished(self, lane: int) -> bool:
        last = self.last(lane)
        return last is not None and not last.ended

    def keys(self) -> Iterator[tuple[Key, LoggedStep]]:
        for lane, steps in enumerate(self.lanes):
            for number, step in enumerate(steps):
                if step is not None:
                    yield (lane, number), step

    # operations on the store

    def append(self, lane: int, serial: int, obs: int, flags: tuple[bool, bool], final: int, following: int) -> None:
        """Append a step; ``following``: the code of its ``next_obs``, -1: none."""
        while lane >= len(self.lanes):
            self.lanes.append([])
            self.flushed.append(0)
        last = self.last(lane)
        if last is not None and not last.ended and last.next is not None and last.next != obs:
            last.truncated, last.final = True, last.next
        number = 0 if last is None or last.ended else last.number + 1
        ended = flags[0] or flags[1]
        step = LoggedStep(
            serial, obs, *flags, final if ended else None, None if ended or following < 0 else following, number
        )
        self.lanes[lane].append(step)

    def truncate(self, lane: int, final: int) -> None:
        """End a lane's episode with a final observation."""
        last = self.last(lane)
        assert last is not None
        last.truncated, last.final = True, final

    def break_off(self, lane: int, keep_number: bool) -> None:
        """Break off a lane's episode, as ``break_episode`` and opening do."""
        last = self.last(lane)
        if last is None or last.ended:
            return
        if last.next is not None:
            self.truncate(lane, last.next)
            return
        steps = self.lanes[lane]
        self.ids.pop(self.held.pop((lane, len(steps) - 1), -1), None)
        if keep_number:
            steps[-1] = None
        else:
            steps.pop()
            self._forget_from(lane, len(steps))
        before = steps[-1 - keep_number] if len(steps) > keep_number else None
        if before is not None and not before.ended:
            before.truncated, before.final = True, last.obs

    def take_back(self, lane: int, count: int, ids: list[int]) -> None:
        """Note that a lane's last ``count`` steps, of a whole episode that failed, are no longer held.

        Args:
            ids: ids of the lane's steps, -1 for missing ones.
        """
        steps = self.lanes[lane]
        for number in range(len(steps) - count, len(steps)):
            if ids[number] < 0:
                steps[number] = None

    def _forget_from(self, lane: int, number: int) -> None:
        """Forget the views' state of a lane's steps from ``number`` on: their numbers are used again."""
        of_views = [known for one in (*self.views.values(), *self.saved.values()) for known in (one.priority, one.uses)]
        known: dict[Key, Any]
        for known in (*of_views, self.marks, self.saved_marks, self.marked, self.unsure_marks):
            for key in [key for key in known if key[0] == lane and key[1] >= number]:
                del known[key]

    def cleared(self) -> None:
        for lane, steps in enumerate(self.lanes):
            if self.unfinished(lane):
                last = steps[-1]
                assert last is not None
                last.truncated = True
        self.gone |= {key for key, _ in self.keys()}
        self.held.clear()

    def flush(self, views: bool) -> None:
        """Note that all steps are on disk; ``views``: the views' state, too."""
        self.flushed = [len(steps) for steps in self.lanes]
        self.gone |= {key for key, _ in self.keys() if key not in self.held}
        self.saved_marks = dict(self.marks)
        self.marked.clear()
        if views:
            self.saved = {name: one.copy() for name, one in self.views.items()}
            self.dirty.clear()

    def mark(self, marked: list[tuple[Key, int]]) -> None:
        """Note numbers that were written into a column added later."""
        for key, number in marked:
            self.marks[key] = number
            self.marked.setdefault(key, set()).add(number)

    # reports of the store

    def observe(self, report: dict[str, Any], fresh: set[Key], lax: bool) -> None:
        """Compare the held steps with the earlier ones; ``fresh`` steps are new.  ``lax``: evictions need no reason."""
        now = self._held_in(report)
        back = now.keys() - self.held.keys() - fresh
        check(not back, "came back", f"steps {some(back)} were evicted and are held again, in one life")
        evicted = len(self.held.keys() | fresh) - len(now)
        capacity = self.limits.get("capacity")
        lax |= self.program.settings["retention"] == "Reservoir"  # it rejects steps even if not full
        if not lax and self.limits.keys() == {"capacity"} and capacity is not None:
            due = max(0, len(self.held) + len(fresh) - capacity) + self.stride
            check(
                evicted <= due, "early eviction", f"{evicted} steps evicted, at most {due} had to be: {len(now)} left"
            )
        if capacity is not None:
            check(len(now) <= capacity, "capacity", f"{len(now)} steps held, capacity {capacity}")
        self._note(now, report)
        self.marks = {key: number for key, number in self.marks.items() if key in now}

    def _held_in(self, report: dict[str, Any]) -> dict[Key, int]:
        lengths = [len(steps) for steps in self.lanes]
        found = [len(ids) for ids in report["lanes"]]
        same = found[: len(lengths)] == lengths and not any(found[len(lengths) :])  # a failed step may open its lane
        check(same, "lane_steps", f"{found}, expected {lengths}")
        return {
            (lane, number): id_
            for lane, ids in enumerate(report["lanes"])
            for number, id_ in enumerate(ids.tolist())
            if id_ >= 0
        }

    def _note(self, now: dict[Key, int], report: dict[str, Any]) -> None:
        for key, id_ in now.items():
            step = self.lanes[key[0]][key[1]]
            check(step is not None, "taken back", f"step {key} was dropped and is held")
            assert step is not None
            check(self.held.get(key, id_) == id_, "id changed", f"step {key} had id {self.held.get(key)}, has {id_}")
            before = self.ids.setdefault(id_, step.serial)
            check(before == step.serial, "id used twice", f"id {id_} was step {before}, is {step.serial}")
        self.held = now
        stats = report["stats"]
        check(
            stats["steps"] == report["length"] == len(now),
            "counts",
            f"{stats}, len {report['length']}, {len(now)} held",
        )
        check(
            stats["evicted_steps"] == stats["total_steps"] - stats["steps"],
            "counts",
            f"evicted and total do not agree: {stats}",
        )
        if self.program.settings["retention"] == "Fifo":
            for lane, steps in enumerate(self.lanes):
                there = [number for number in range(len(steps)) if (lane, number) in now]
                gaps = (
                    [n for n in range(there[0], len(steps)) if (lane, n) not in now and steps[n] is not None]
                    if there
                    else []
                )
                dropping = self.program.settings["on_full"] == "drop_newest"
                check(dropping or not gaps, "fifo", f"lane {lane}: steps {gaps[:SHOWN]} are missing among newer ones")
        self.stats = stats

    def reopen(self, report: dict[str, Any], exact: bool, lax: bool) -> None:
        """Compare the steps held after opening with those before the life's end, and record them.

        Args:
            exact: the store was closed, or flushed last; else steps since the last flush may be lost.
            lax: an unfinished operation may have evicted steps; or limits have changed.
        """
        found = [len(ids) for ids in report["lanes"]]
        check(len(found) <= len(self.lanes), "lane_steps", f"{len(found)} lanes, {len(self.lanes)} were written to")
        lanes = len(found)
        found += [0] * (len(self.lanes) - lanes)
        now = {(k, n): i for k, ids in enumerate(report["lanes"]) for n, i in enumerate(ids.tolist()) if i >= 0}
        before = dict(self.held)
        for lane, end in enumerate(found):
            self._cut(lane, end, now, exact, lax)
        wanted = {key for key in before if key[1] < found[key[0]] and self.lanes[key[0]][key[1]] is not None}
        lost = wanted - now.keys()
        check(
            not lost or (lax and len(lost) <= self._may_leave()),
            "lost", f"steps {some(lost)} of {len(wanted)} were held and are gone; newest written {found}",
        )  # fmt: skip
        back = now.keys() - before.keys()
        check(
            not exact or not back, "came back", f"steps {some(back)} were evicted and are back; {len(before)} were held"
        )
        back &= self.gone
        check(not back, "came back", f"steps {some(back)} were evicted before the last flush and are back")
        self.held = {key: id_ for key, id_ in before.items() if key in now}
        self._lose_marks(now.keys(), before.keys(), exact)
        stats, was = report["stats"], self.stats
        if exact and not lax:
            for name in COUNTED:
                check(
                    stats[name] == was.get(name, 0),
                    "counts",
                    f"{name} {stats[name]}, was {was.get(name, 0)} before the end",
                )
        check(
            sum(found) <= stats["total_steps"] <= max(sum(found), was.get("total_steps", 0)) or lax or not exact,
            "counts", f"total_steps {stats['total_steps']}, was {was.get('total_steps')}; lanes have {sum(found)}",
        )  # fmt: skip
        self.lanes, self.flushed = self.lanes[:lanes], found[:lanes]
        if not sum(found):
            self.ids.clear()  # no file was ever written, so given ids are unknown
        self._note(now, report)
        if exact:
            self.gone |= {key for key, _ in self.keys() if key not in now}

    def _lose_marks(self, now: Set[Key], before: Set[Key], exact: bool) -> None:
        """Note the numbers that held steps may have after opening."""
        if exact:
            self.marks = {key: number for key, number in self.marks.items() if key in now}
            return
        for key in now:
            gone = set() if key in before else {0}  # evicted in memory, and perhaps in files
            known = {self.saved_marks.get(key, 0)} | self.marked.get(key, set()) | gone
            self.unsure_marks[key] = self.unsure_marks.get(key, set()) | known

    def _may_leave(self) -> int:
        """Return the number of steps that an unfinished operation may have evicted."""
        if self.limits.keys() == {"capacity"}:
            return (
                max(0, len(self.held) - self.limits["capacity"])
                + self.stride * (2 + self.program.lanes)
                + 60 * self.program.lanes
            )
        return max(len(self.held) * 3 // 4, 200) + max(0, len(self.held) - self.limits.get("capacity", 1 << 62))

    def _cut(self, lane: int, end: int, now: dict[Key, int], exact: bool, lax: bool) -> None:
        steps, count = self.lanes[lane], len(self.lanes[lane])
        check(end <= count, "lane_steps", f"lane {lane}: {end} steps, {count} were appended")
        last = steps[-1] if steps else None
        drops = last is not None and not last.ended and last.next is None
        if exact:
            right = {count - 1} if drops else {count}
            right |= {count} if (lane, count - 1) not in now else set()
            check(end in right, "lane_steps", f"lane {lane}: {end} steps, expected {sorted(right)} of {count}")
        else:
            check(end >= self.flushed[lane] - 1, "lost", f"lane {lane}: {end} steps, {self.flushed[lane]} were flushed")
            open_ones = sum((lane, number) in self.held for number in range(end, count))
            message = f"lane {lane}: {open_ones} steps at a kill, a segment has {self.stride}"
            check(lax or open_ones <= self.stride + 1, "lost", message)
        cut = steps[end:]
        for number, step in enumerate(cut, end):
            if step is not None and (id_ := self.held.get((lane, number))) is not None and number == end:
                self.ids.pop(id_, None)  # the last step has no successor: the next step gets its number
        del steps[end:]
        self._forget_from(lane, end)
        for key in [key for key in self.gone if key[0] == lane and key[1] >= end]:
            self.gone.discard(key)
        if not steps or (last := steps[-1]) is None:
            return
        if last.ended:
            if not exact and last.next is not None:  # it may have ended after the last flush, with another frame
                last.final = None
            return
        following = cut[0] if cut and cut[0] is not None and cut[0].number else None
        if last.next is None and following is None:
            check(
                (lane, end - 1) not in now or last.perhaps is not None,
                "invented",
                f"lane {lane}: its last step is held, though nothing followed it",
            )
        last.truncated = True
        last.final = last.next if last.next is not None else last.perhaps if following is None else following.obs

    def restore(self, report: dict[str, Any]) -> None:
        """Compare a store opened from a checkpoint with this log, a copy from the time of the checkpoint."""
        now, before = self._held_in(report), self.held
        lost, back = before.keys() - now.keys(), now.keys() - before.keys()
        check(not lost and not back, "checkpoint", f"{some(lost)} steps are missing, {some(back)} are there again")
        for name in (*COUNTED, "total_steps"):
            check(
                report["stats"][name] == self.stats[name],
                "counts",
                f"{name} {report['stats'][name]}, was {self.stats[name]}",
            )
        self._note(now, report)
        self.flush(True)

    # views

    def items(self, name: str) -> tuple[dict[Key, Any], set[Key]]:
        """Return the content of each item of a view, by the key of its first trained step; and items that may or may
        not be there."""
        settings = VIEWS[name]
        if settings["kind"] == "sequences":
            return self._windows(**{k: settings[k] for k in ("length", "burn_in", "stride", "n_step")})
        return {key: run for key in self.held if (run := self._run(key, settings["n_step"])) is not None}, set()

    def _run(self, key: Key, n_step: int) -> tuple[list[LoggedStep], int | None] | None:
        """Return the steps whose rewards a return sums, and the code of the observation after them."""
        lane, number = key
        steps, found = self.lanes[lane], list[LoggedStep]()
        for k in range(number, number + n_step):
            step = steps[k] if k < len(steps) else None
            if step is None or (lane, k) not in self.held:
                return None
            found.append(step)
            if step.ended:
                return found, step.final
        after = steps[number + n_step] if number + n_step < len(steps) else None
        if after is not None:
            return found, after.obs
        return None

    def _windows(self, length: int, burn_in: int, stride: int, n_step: int) -> tuple[dict[Key, Any], set[Key]]:
        found: dict[Key, Any] = {}
        unsure: set[Key] = set()
        for lane, steps in enumerate(self.lanes):
            begin = 0
            for number, step in enumerate(steps):
                if step is None:
                    begin = number + 1
                    continue
                if not (step.ended or number == len(steps) - 1):
                    continue
                episode = [one for one in steps[begin : number + 1] if one is not None]
                for at in range(0, len(episode), stride):
                    first, after = at - min(burn_in, at), at + length - 1 + n_step
                    there = all((lane, begin + k) in self.held for k in range(first, min(after, len(episode))))
                    if there and (after < len(episode) or step.ended):
                        found[lane, begin + at] = (episode, at)
                    elif there and after == len(episode) and step.next is not None:
                        unsure.add((lane, begin + at))
                begin = number + 1
        return found, unsure

    def used(self, name: str, sampled: list[Key]) -> None:
        """Count items that a view gave out."""
        items, unsure = self.items(name)
        uses, most = self.views[name].uses, VIEWS[name].get("max_times_sampled")
        for key in sampled:
            check(key in items or key in unsure, "sampled", f"view {name}: step {key} cannot be sampled")
            low, high = uses.get(key, (0, 0))
            check(most is None or low < most, "given again", f"view {name}: step {key} sampled more than {most} times")
            uses[key] = low + 1, high + 1
        self.dirty.add(name)

    def follow(self, name: str) -> set[Key]:
        """Give new items of a view the largest priority; return all items."""
        items, one = set(self.items(name)[0]), self.views[name]
        one.priority = {key: one.priority.get(key, one.largest) for key in items}
        return items

    def updated(self, name: str, updated: list[Key], errors: list[float]) -> None:
        self.follow(name)
        one = self.views[name]
        for key, error in zip(updated, errors, strict=True):
            one.priority[key] = abs(error) + EPS
            one.largest = max(one.largest, abs(error) + EPS)
        self.dirty.add(name)

    def lose_views(self) -> None:
        """Reset views to their last written state, as far as it is known."""
        for name, one in self.views.items():
            saved = self.saved.get(name, LoggedItems(known=False))
            if name in self.dirty or name not in self.saved:
                one.known = False
                uses = saved.uses
                one.uses = {key: (uses.get(key, (0, 0))[0], high) for key, (_, high) in one.uses.items()}
            else:  # evicted steps that come back have the priorities they had when written
                one.priority = saved.priority | one.priority

    # comparing

    def compare(self, look: dict[str, Any]) -> None:
        for name, found in look["views"].items():
            self._compare_view(name, found)
        self._compare_episodes(look["episodes"])
        check(look["words"], "words", "episodes: steps have other words")
        self._compare_marks(look["marks"])

    def _compare_marks(self, found: list[Any]) -> None:
        """Compare the numbers of held steps in a column added later, 0 for none, by lane."""
        for key in self.held:
            lane, number = key
            there = int(found[lane][number]) if found else 0
            known = self.unsure_marks.get(key) or {self.marks.get(key, 0)}
            check(there in known, "mark", f"step {key} has the number {there}, expected one of {sorted(known)}")
            self.marks[key] = there
        self.marks = {key: number for key, number in self.marks.items() if number and key in self.held}
        if self.unsure_marks:  # found as the files have them
            self.unsure_marks.clear()
            self.saved_marks = dict(self.marks)
            self.marked.clear()
        self.counts["marks"] += len(self.marks)

    def _compare_view(self, name: str, found: dict[str, Any]) -> None:
        items, unsure = self.items(name)
        view, settings = self.views[name], VIEWS[name]
        most = settings.get("max_times_sampled")
        ids = found["ids"].tolist()
        there: list[Key] = found.get("where", [])
        check(
            len(set(ids)) == len(ids) == found["count"],
            "twice",
            f"view {name}: {len(ids)} ids, {len(set(ids))} different",
        )
        strange = set(there) - items.keys() - unsure
        check(not strange, "invented", f"view {name}: steps {some(strange)} cannot be sampled")
        if settings["kind"] == "transitions":
            wrong = [(key, id_) for key, id_ in zip(there, ids, strict=True) if self.held[key] != id_]
            check(not wrong, "ids", f"view {name}: {wrong[:SHOWN]} have other ids in the store")
        given = view.uses if most is not None else {}
        must = {key for key in items if given.get(key, (0, 0))[1] < (most or 1)}
        never = {key for key in items if given.get(key, (0, 0))[0] >= (most or 1)}
        missing, again = must - set(there), never & set(there)
        check(
            not missing, "missing", f"view {name}: steps {some(missing)} can be sampled, and are not among {len(ids)}"
        )
        check(not again, "given again", f"view {name}: steps {some(again)} were sampled {most} times")
        for key in given if most is not None else ():
            low, high = given[key]
            given[key] = (
                (low, min(high, (most or 1) - 1)) if key in set(there) else (max(low, most or 1), max(high, most or 1))
            )
        if not ids:
            return
        if self.program.words:
            wrong_words = [key for key, right in zip(there, found["words"], strict=True) if not np.all(right)]
            check(not wrong_words, "words", f"view {name}: steps {some(set(wrong_words))} have other words")
        if settings["kind"] == "transitions":
            self._compare_transitions(name, found, [items[key] for key in there])
        else:
            rows = [row for row, key in enumerate(there) if key in items]
            self._compare_windows(name, found, rows, [items[there[row]] for row in rows])
        self.counts["items"] += len(ids)
        if "drawn" in found:
            self._compare_priorities(name, found, dict(zip(ids, there, strict=True)))

    def _same(self, name: str, what: str, got: Any, expected: Any, serials: Any) -> None:
        expected = np.asarray(expected)
        wrong = np.asarray(got) != expected
        rows = np.flatnonzero(wrong.any(axis=tuple(range(1, wrong.ndim))))
        if len(rows):
            row = rows[0]
            message = f"view {name}: {what} of {len(rows)} items of {len(wrong)}; of step {serials[row]} "
            raise Violation(what, message + f"{np.asarray(got)[row].tolist()}, expected {expected[row].tolist()}")

    def _compare_transitions(
        self, name: str, found: dict[str, Any], items: list[tuple[list[LoggedStep], int | None]]
    ) -> None:
        serials = [steps[0].serial for steps, _ in items]
        returns = np.zeros(len(items))
        for row, (steps, _) in enumerate(items):
            returns[row] = sum(GAMMA**k * float(rewards(step.serial)) for k, step in enumerate(steps))
        lasts = [steps[-1] for steps, _ in items]
        used = np.array([len(steps) for steps, _ in items])
        terminated = np.array([last.terminated for last in lasts])
        plain = {
            "serial": serials,
            "action": np.array(serials) * 3,
            "n": used,
            "terminated": terminated,
            "truncated": [last.truncated for last in lasts],
            "reward": returns.astype(np.float32),
            "discount": np.where(terminated, 0, GAMMA**used).astype(np.float32),
        }
        for what, values in plain.items():
            self._same(name, what, found[what], values, serials)
        codes = [self._stack(lane, number) for lane, number in found["where"]]
        self._same(name, "obs", found["obs"], self._pictures(codes), serials)
        after, known = [], []
        for (lane, number), (steps, code) in zip(found["where"], items, strict=True):
            last = number + len(steps) - 1
            known.append(code is not None)
            after.append(self._stack(lane, last, 0 if code is None else code))
        rows = np.flatnonzero(known)
        pictures = self._pictures(after)
        self._same(name, "next_obs", found["next_obs"][rows], pictures[rows], np.array(serials)[rows])

    def _stack(self, lane: int, number: int, after: int | None = None) -> list[int]:
        """Return the codes of a step's stack, oldest first; ``after``: code of the observation after it."""
        depth = max(1, self.program.stack)
        codes: list[int] = [] if after is None else [after]
        while len(codes) < depth:
            step = self.lanes[lane][number]
            assert step is not None
            codes.insert(0, step.obs)
            if not step.number:
                break
            number -= 1
        return [codes[0]] * (depth - len(codes)) + codes

    def _pictures(self, codes: Any) -> Any:
        pictures = told(observations(np.array(codes, np.int64), self.program.width))
        return pictures if self.program.stack else pictures[..., 0, :]

    def _compare_windows(self, name: str, found: dict[str, Any], rows: list[int], items: list[Any]) -> None:
        settings = VIEWS[name]
        burn_in, length, n_step = settings["burn_in"], settings["length"], settings["n_step"]
        shape = len(rows), burn_in + length
        names = ("mask", "serial", "n", "first", "step_reward", "reward", "terminated", "truncated", "discount")
        expected = {one: np.zeros(shape, np.float64) for one in names}
        codes = np.zeros(shape, np.int64)
        for row, (episode, at) in enumerate(items):
            first = at - min(burn_in, at)
            for k in range(first, min(at + length, len(episode))):
                column, step, summed = k - at + burn_in, episode[k], episode[k : k + n_step]
                codes[row, column] = step.obs
                values = (
                    1, step.serial, len(summed), k == 0, rewards(step.serial),
                    sum(GAMMA**i * float(rewards(one.serial)) for i, one in enumerate(summed)),
                    step.terminated, step.truncated, 0 if summed[-1].terminated else GAMMA ** len(summed),
                )  # fmt: skip
                for one, value in zip(names, values, strict=True):
                    expected[one][row, column] = value
        serials = [episode[at].serial for episode, at in items]
        for one in names:
            self._same(name, one, found[one][rows], expected[one], serials)
        real = expected["mask"] > 0
        pictures = found["obs"][rows, : shape[1]]
        pictures = pictures[:, :, -1] if self.program.stack else pictures
        self._same(name, "obs", pictures[real], told(observations(codes[real], self.program.width)), codes[real])

    def _compare_priorities(self, name: str, found: dict[str, Any], by_id: dict[int, Key]) -> None:
        view = self.views[name]
        if not view.known or self.items(name)[1]:
            return
        self.follow(name)
        masses = {key: priority**ALPHA for key, priority in view.priority.items()}
        total = sum(masses.values())
        expected = np.array([masses[by_id[id_]] / total for id_ in found["drawn"].tolist()])
        wrong = np.flatnonzero(~np.isclose(found["probabilities"], expected, rtol=1e-6))
        if len(wrong):
            key = by_id[int(found["drawn"][wrong[0]])]
            raise Violation(
                "priority",
                f"view {name}: {len(wrong)} of {len(expected)} draws; step {key} has probability "
                f"{found['probabilities'][wrong[0]]:.6g}, expected {expected[wrong[0]]:.6g}, of {len(masses)} items",
            )
        self.counts["priorities"] += len(set(found["drawn"].tolist()))

    def _compare_episodes(self, found: list[Any]) -> None:
        expected = []
        for lane, steps in enumerate(self.lanes):
            run: list[tuple[int, LoggedStep]] = []
            for number, step in enumerate(steps):
                there = step is not None and (lane, number) in self.held
                if run and (not there or (step is not None and step.number == 0)):
                    expected.append((lane, run))
                    run = []
                if there and step is not None:
                    run.append((number, step))
                    if step.ended:
                        expected.append((lane, run))
                        run = []
            if run:
                expected.append((lane, run))
        found = sorted(found, key=lambda one: one[:2])
        plain = []
        for lane, run in expected:
            last = run[-1][1]
            ended = "terminated" if last.terminated else "truncated" if last.truncated else None
            total = float(sum(float(rewards(step.serial)) for _, step in run))
            plain.append((lane, run[0][0], len(run), total, run[0][1].number == 0, ended))
        got = [tuple(one[:6]) for one in found]
        if got != plain:
            more, fewer = [one for one in got if one not in plain], [one for one in plain if one not in got]
            raise Violation(
                "episodes",
                f"{len(got)} episodes, expected {len(plain)}; (lane, first step, length, return, begun, ended) "
                f"{more[:SHOWN]} instead of {fewer[:SHOWN]}",
            )
        for one, (_, run) in zip(found, expected, strict=True):
            serials = [step.serial for _, step in run]
            check(
                one[6].tolist() == serials,
                "content",
                f"episode of step {serials[0]}: serials {one[6].tolist()[:SHOWN]}",
            )
            codes = [step.obs for _, step in run]
            last = run[-1][1]
            if last.ended and last.final is not None:
                codes.append(last.final)
            pictures = told(observations(codes, self.program.width))
            check(np.array_equal(one[7][: len(codes)], pictures), "obs", f"episode of step {serials[0]}: observations")
            check(np.array_equal(one[8], rewards(serials)), "reward", f"episode of step {serials[0]}: rewards")
        self.counts["episodes"] += len(found)
