"""Registry of a store's views: made, restored from a checkpoint by name, notified of changes."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import is_integer
from sharpwave.arrays import Floats, Ints
from sharpwave.disk.state_files import StateFiles
from sharpwave.errors import NO_STATE
from sharpwave.log.inventory import LogListener
from sharpwave.log.step_log import StepLog
from sharpwave.memory.segment_index import LEAF_MASK
from sharpwave.native import core
from sharpwave.sampling.limiters import Gate, Limiter
from sharpwave.sampling.sampler_protocol import Sampler, described
from sharpwave.sampling.uniform import Uniform
from sharpwave.views.batch_source import BatchSource
from sharpwave.views.conditions import Condition, Judge
from sharpwave.views.ids import Tag, check_tag, tag_of
from sharpwave.views.keeping import Keeping
from sharpwave.views.saved_view import SavedView, recovered
from sharpwave.views.view_protocol import STEPS, View
from sharpwave.views.view_replay import Replay

R = TypeVar("R", bound=Replay[Any])

MAX_NAME_CHARACTERS = 100
DAMAGED = "is damaged"
MAX_GONE = 4
"""Limit of views kept in a store's folder without any held steps."""


class Views(LogListener):
    """Views in use, in the order of making; the store keeps none alive. Its lock is held throughout.

    A checkpoint identifies views by name. A view that was not requested since the store was opened stays plain data,
    and is saved again unchanged.

    Args:
        log: the store's log; ``lock`` guards it; ``gate``: where batches wait for steps.
        seed: the store's. ``life``: of the store, which lives as long as any of its views.

    Attributes:
        passive: whether no view must be notified of appended steps, nor makes an append wait.
        unclaimed: names of the views of a checkpoint, or of the store's folder, that were not requested yet.
        keeping: of views' states in the store's folder; ``None`` without one.
    """

    def __init__(self, log: StepLog, lock: Any, gate: Gate, seed: int, life: object) -> None:
        self._log, self._lock, self._gate, self._seed = log, lock, gate, seed
        self._life = weakref.ref(life)  # the log keeps these views, and a store ends with its life
        self._made = 0
        self.passive = True
        self.unclaimed: list[str] = []
        self._saved: dict[str, tuple[int, SavedView]] = {}  # by name, with the view's future number, which is < 0
        self._claimed: set[str] = set()  # names of restored views in use
        self._views: dict[int, weakref.KeyedRef[int, Replay[Any]]] = {}  # by number, ascending
        self._dropped: deque[Any] = deque()  # references to deleted views, appended by any thread
        self._of_files: set[str] = set()  # names of saved views that are in the store's folder, not of a checkpoint
        self._damages: list[str] = []
        self.keeping: Keeping | None = None
        log.inventory.tell(self)
        log.ledger.enter("samplers", lambda: self.nbytes)
        log.ledger.enter_for_batches(lambda: self.work_bytes)

    def __iter__(self) -> Iterator[Replay[Any]]:
        dropped = bool(self._dropped)
        while self._dropped:
            gone = self._dropped.popleft()
            number = gone.key
            if self._views.get(number) is gone:
                del self._views[number]
                if self.keeping is not None:
                    self.keeping.drop(number)
        found = [view for ref in self._views.values() if (view := ref()) is not None]
        if dropped:
            self.passive = all(view.limiter is None and not view.sampler.in_order for view in found)
        return iter(found)

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Keep a view's ``state`` until it is requested by its name.

        Raises:
            KeyError, TypeError, ValueError, IndexError, OverflowError: not from ``states``.
        """
        name = checked_name(state["name"])
        if name is None or name in self._saved:
            raise ValueError(f"view {number}: name {name!r}, expected one that no other view has")
        self._saved[name] = number - (1 << 32), SavedView.from_state(state, self._log)
        self.unclaimed.append(name)

    def keep_in(self, files: StateFiles, damages: list[str], of_checkpoint: bool) -> None:
        """Keep views' states in the store's folder from now on, and states already there until they are requested.

        Args:
            damages: useless files are added, also later.
            of_checkpoint: the store was opened from a checkpoint, whose views are valid, and are written to the folder.
        """
        self._damages = damages
        self.keeping = keeping = Keeping(self._log, files)
        self._log.keeping = self
        if of_checkpoint:
            keeping.write((name, saved.state_in_folder(self._log)) for name, (_, saved) in self._saved.items())
            return
        found = list[dict[str, Any]]()
        for state in files.read(damages):
            try:
                found.append(recovered(state, self._log))
            except NO_STATE as error:
                damages.append(_begins_anew(state, files, error))
        gone = [state for state in found if (state["generation"] < 0).all()]  # their largest priorities count on
        gone.sort(key=lambda state: int(state["total_steps"]))
        for number, state in enumerate(found):
            if any(state is one for one in gone[:-MAX_GONE]):  # or views of old names would pile up
                files.delete(state["name"])
                continue
            try:
                self.restore(number, state)
                self._of_files.add(state["name"])
            except NO_STATE as error:
                damages.append(_begins_anew(state, files, error))

    def write(self) -> None:
        """Write the states of views to the store's folder, if it has one."""
        if self.keeping is not None:
            for _ in self:  # also dropped views
                pass
            self.keeping.write()

    @property
    def kept_bytes(self) -> int:
        """Bytes of copies of views' states that are being written."""
        return 0 if self.keeping is None else self.keeping.nbytes

    def end(self) -> None:
        """Wait until no states are being written."""
        if self.keeping is not None:
            self.keeping.end()

    def make(
        self,
        kind: type[R],
        view: View[Any],
        name: str | None,
        sampler: Sampler | None,
        max_times_sampled: int | None,
        limiter: Limiter | None,
        seed: Any,
        condition: Condition | None = None,
    ) -> R:
        """Make a replay; one of the same name and settings as a view in the checkpoint is restored from it.

        Args:
            name: ``None``: the view's kind. ``sampler``: ``None``: ``Uniform()``.
            seed: ``None``: derived from the store's and the number of views made before.
            condition: only items that match are drawn; ``None``: all are.

        Raises:
            ValueError, TypeError: naming the argument; then a saved view is kept.
        """
        self._log.check_open()
        sampler = Uniform() if sampler is None else sampler
        if seed is not None and (not is_integer(seed) or seed < 0):
            raise ValueError(f"{view.kind}: seed={seed!r}, expected an integer of at least 0, or None")
        if any(one.view is view for one in self):
            raise ValueError(f"{view.kind}: this view serves a replay already; make a new one for each")
        judge = None
        if condition is not None:
            if getattr(view, "only_ended", None) is None:
                raise ValueError(
                    f"{view.kind}: where={condition.text!r}, but {type(view).__name__} cannot find items of ended "
                    "episodes only; derive it from NStep, Hindsight or Windows, or let its bind obey only_ended "
                    "(sharpwave.views.view_protocol.View)"
                )
            view.only_ended = True
            judge = Judge(self._log, self._lock, view, condition)
        elif self._log.late.deleted is not None:
            judge = Judge(self._log, self._lock, view)
        name = checked_name(view.kind if name is None else name)
        assert name is not None
        seed = [self._seed, self._made] if seed is None else seed
        source = BatchSource(self._log, self._gate, view, sampler, seed, max_times_sampled, limiter, judge)
        replay = kind(name, source, self._lock, self._life())
        number, saved = self._saved.get(name, (self._made, None))
        problem = None
        if saved is not None:
            problem = self._restored(replay, saved)
        elif name in self._claimed:
            problem = (
                "was asked for before; this one begins anew and takes its place, with new priorities and a new random "
                "state. Keep the first, or give this one another name="
            )
        of_files = name in self._of_files
        self._of_files.discard(name)
        if problem is not None:
            number = self._made
        if problem is not None and of_files and problem.startswith(DAMAGED):
            self._damages.append(f"view {name!r} of the store's folder {problem}")
        elif problem is not None and not of_files:
            warnings.warn(f"view {name!r} of the checkpoint {problem}", RuntimeWarning, stacklevel=3)
        self._claimed.discard(name)
        if saved is not None:
            del self._saved[name]
            self.unclaimed.remove(name)
            if problem is None and not of_files and (max_times_sampled is not None or sampler.state()):
                self._claimed.add(name)
        self._views[number] = weakref.KeyedRef(replay, self._dropped.append, number)
        self._views = dict(sorted(self._views.items()))
        self._log.inventory.changes += 1  # it follows from here on
        self._made += 1
        self.passive &= limiter is None and not sampler.in_order
        if self.keeping is not None:
            self.keeping.add(number, replay)
        replay.source.items.follow()  # its memory beside batches is known from here on
        self._log.admission.fit_memory()
        return replay

    def _restored(self, replay: Replay[Any], saved: SavedView) -> str | None:
        """Restore a new view from a saved one; return the reason if it starts over."""
        wrong = saved.differences(replay.source.settings, described(replay.sampler), replay.max_times_sampled)
        if wrong:
            return (
                f"is another: {'; '.join(wrong)}. This one begins anew and takes its place: priorities and random "
                "state of the checkpoint's are lost. Give it another name= to keep both"
            )
        try:
            saved.restore(replay.source)
        except NO_STATE as error:
            return f"{DAMAGED} ({error!r}); this one begins anew"
        return None

    def states(self) -> dict[str, Any]:
        """Return the state for ``restore``, by number; warn of a view that cannot be saved."""
        kept: dict[str, tuple[int, SavedView]] = dict(self._saved)
        last = {view.name: view for view in self}
        for view in self:
            if last[view.name] is not view:
                warnings.warn(
                    f"checkpoint: two views in use are named {view.name!r}; the one made last is kept. Give each its "
                    "own name= to keep both",
                    RuntimeWarning,
                    stacklevel=4,
                )
        for number, ref in self._views.items():
            one = ref()
            if one is not None and last.get(one.name) is one:
                one.source.items.follow()
                kept[one.name] = number, SavedView.of(one.source, self._log)
        ordered = sorted(kept.items(), key=lambda item: item[1][0])
        return {str(k): saved.state(self._log) | {"name": name} for k, (name, (_, saved)) in enumerate(ordered)}

    def append_waits(self, steps: int) -> str | None:
        """Return the reason why an append of ``steps`` steps must wait; ``None`` if it need not."""
        for view in self:
            reason = view.source.pace.append_waits(steps)
            if reason is not None:
                return reason
        return None

    @property
    def limited(self) -> bool:
        return any(view.limiter is not None for view in self)

    def check_capacity(self, capacity: int | None) -> None:
        """Refuse a capacity with which a limiter could never be satisfied.  Raises: ValueError."""
        for view in self:
            if view.limiter is not None:
                view.limiter.check(capacity, view.max_times_sampled)

    def written(self) -> None:
        """Notify views, and threads that wait, that steps were appended or evicted, or can be sampled now."""
        for view in self:
            view.source.items.written()
        self._gate.notify()

    def step_ids(self, what: str, ids: npt.ArrayLike) -> Ints:
        """Return ids of the first step of each item, for ids of the items of any view, int64 [n].

        Raises:
            KeyError: an item whose first step was evicted.
            ValueError: ids of another store, or of a view that was freed.
        """
        tag, found = Tag(self._log.tag, STEPS), np.asarray(getattr(ids, "ids", ids))
        other = tag_of(getattr(ids, "ids", ids))
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            raise ValueError(
                f"{what}: got ids of shape {found.shape} {found.dtype}, expected int64 [n], as in batch.ids"
            )
        found = found.astype(np.int64)
        view = None if other in (None, tag) else next((one for one in self if one.source.tag == other), None)
        if view is None:
            check_tag(what, ids, tag)
            return found
        index, items = self._log.index, found & LEAF_MASK
        slots = items // index.stride
        gone = (slots >= index.slots) | (found < 0)
        gone[~gone] = index.ids(items[~gone]) != found[~gone]
        first = items.copy()
        first[~gone] = view.view.first_steps(items[~gone])
        gone[~gone] = first[~gone] >= slots[~gone] * index.stride + index.rows[slots[~gone]]  # no such item
        if gone.any():
            raise KeyError(f"{what}: id {found[gone][0]} was evicted from the store, or is of no item")
        return (found & ~LEAF_MASK) | first

    def follow(self) -> None:
        """Have all views follow the log after a deletion; a view without memory for it does so before it draws."""
        for view in self:
            with suppress(MemoryError):
                view.source.items.follow()

    def take_columns(self) -> None:
        """Have all views fill batches with the columns that the log has now."""
        for view in self:
            view.source.take_columns()
        self._log.inventory.changes += 1

    def growing(self, slots: int) -> None:
        """Enlarge views for ``slots`` slots of the log.  Raises: MemoryError."""
        for view in self:
            view.source.items.grow(slots)

    def expect(self, slot: int, td_error: npt.NDArray[np.float32]) -> None:
        """Set first priorities of steps of the segment in ``slot`` by ``td_error`` [rows], once they can be sampled."""
        for view in self:
            view.view.expect(slot, td_error)

    def priorities(self, slots: Ints) -> Floats | None:
        """Return mean priorities of the items in ``slots`` by the first view that has any, requested yet or not."""
        made = {number: view for number, ref in self._views.items() if (view := ref()) is not None}
        saved = dict(self._saved.values())
        for number in sorted({*made, *saved}):
            if number in made:
                found = made[number].source.items.priorities(slots)
            else:
                found = saved[number].priorities(slots, self._log)
            if found is not None:
                return found
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the views, without their batches, and of views saved in a checkpoint."""
        return sum(view.nbytes for view in self) + sum(saved.nbytes for _, saved in self._saved.values())

    @property
    def work_bytes(self) -> int:
        """Bytes of working memory for batches."""
        return sum(view.work_bytes for view in self)

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest recent batch of any view."""
        return max((view.source.batch_bytes for view in self), default=0)

    @property
    def followers(self) -> list[core.Items] | None:
        """Return the items of all views, if the core can drop items of each."""
        found: list[core.Items] = []
        for view in self:
            if not view.source.items.binds():
                return None
            found.append(view.source.items)
        return found

    def evicting(self, slot: int) -> None:
        """Drop items of the segment in ``slot``, which is about to be evicted."""
        for view in self:
            view.source.items.forget(slot)


def checked_name(name: Any) -> str | None:
    """Return a view's name, ``None`` for none.  Raises: ValueError: too long, or not printable."""
    if name is None or (isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()):
        return name
    raise ValueError(f"name={name!r}, expected 1 to {MAX_NAME_CHARACTERS} printable characters")


def _begins_anew(state: dict[str, Any], files: StateFiles, error: Exception) -> str:
    return f"view {state.get('name')!r:.100} in {files.disk.folder}: {error!r}; it begins anew"
