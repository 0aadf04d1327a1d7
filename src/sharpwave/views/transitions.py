"""Transitions: frame stacks, n-step returns and next observations, put together from the log when they are sampled."""

from __future__ import annotations

import math
import warnings
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from sharpwave.errors import DamagedError, EmptyError, not_to_be_copied
from sharpwave.sampling.limiters import Cursor, Gate, Limiter
from sharpwave.sampling.samplers import MAX_TD_ERROR, Draw, Sampler
from sharpwave.validation import all_within
from sharpwave.views.batch import Batch
from sharpwave.views.buffers import Buffers, Form
from sharpwave.views.filling import fill
from sharpwave.views.gather import Readers
from sharpwave.views.ids import tag_of, tagged
from sharpwave.views.prefetch import Ahead, Stream, let_go
from sharpwave.views.sampleable import Sampleable
from sharpwave.views.uses import Uses

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog

Ints = npt.NDArray[np.int64]

MAX_N_STEP = 1_000_000
"""More than any episode has; a segment that is evicted is looked back from by so many steps."""
MAX_BATCH_SIZE = 1 << 24
MAX_LOOKAHEAD = 1024
FORMS = 4
"""Batch sizes of which a view keeps the geometry, and what drawing works in."""


class Transitions:
    """A view of a store as n-step transitions. Made by :meth:`sharpwave.Store.transitions`.

    Args:
        log: the store's log; ``lock`` guards it; at ``gate`` batches wait for steps.
        n_step: steps that ``reward`` sums, at most.
        gamma: discount factor, 0 to 1.
        max_times_sampled: times that a step is given out, at most; ``None``: no limit.
        limiter: what holds batches and steps back; ``None``: nothing.
    """

    def __init__(
        self,
        log: StepLog,
        lock: Any,
        gate: Gate,
        *,
        n_step: int,
        gamma: float,
        sampler: Sampler,
        seed: Any,
        max_times_sampled: int | None,
        limiter: Limiter | None,
    ) -> None:
        if not isinstance(n_step, (int, np.integer)) or not 1 <= n_step <= MAX_N_STEP:
            raise ValueError(f"transitions: n_step={n_step!r}, expected an integer from 1 to {MAX_N_STEP:,}")
        if not isinstance(gamma, (int, float, np.floating)) or not 0 <= gamma <= 1:
            raise ValueError(f"transitions: gamma={gamma!r}, expected a number from 0 to 1")
        if isinstance(sampler, type) or not hasattr(sampler, "draw"):
            raise TypeError(
                f"transitions: sampler={sampler!r}, expected a sampler such as sharpwave.Uniform() or Prioritized(...)"
            )
        uses = None if max_times_sampled is None else Uses(max_times_sampled, log.index.leaves)
        self.name: str | None = None  # what it was asked for by, if by any
        self.max_times_sampled = None if uses is None else uses.most
        self.n_step, self.gamma = int(n_step), float(gamma)
        self._log, self._lock, self._gate = log, lock, gate
        self.life: object = None  # of the store, which lasts as long as this view
        self.set_limiter(limiter)
        self._steps_before = log.total_steps - log.held_steps
        self._rng = np.random.default_rng(seed)
        self._steps = Sampleable(log, sampler, uses, self.n_step)
        self._readers = Readers(log)
        self._forms: dict[int, Form] = {}  # by batch size, those used last
        self._streams: list[tuple[weakref.ref[Stream], deque[Ahead]]] = []
        self._dropped: deque[Any] = deque()  # streams that are gone, from whatever thread dropped them
        self._ahead: list[list[dict[str, Any]]] = []  # what the streams before a checkpoint had drawn ahead

    def set_limiter(self, limiter: Limiter | None) -> None:
        """Raises: ValueError, TypeError: the store can never satisfy it, or it is none."""
        if limiter is not None:
            if isinstance(limiter, type) or not hasattr(limiter, "sample_waits"):
                raise TypeError(f"transitions: limiter={limiter!r}, expected a limiter such as sharpwave.MinSize(1000)")
            limiter.check(self._log.capacity, self.max_times_sampled)
        self.limiter = limiter

    @property
    def sampler(self) -> Sampler:
        """What chooses the steps."""
        return self._steps.sampler

    def __reduce__(self) -> NoReturn:
        raise not_to_be_copied(self)

    def __len__(self) -> int:
        """Steps that can be sampled now; not those that were ``max_times_sampled`` times."""
        with self._lock:
            self._steps.follow()
            return self._steps.count

    def sample(self, batch_size: int, *, beta: float | None = None, timeout: float | None = None) -> Batch:
        """Draw ``batch_size`` transitions.

        Args:
            beta: overrides the sampler's.
            timeout: seconds to wait at most until the limiter allows it; default 60. Without a limiter nothing waits.

        Returns a batch whose memory is the caller's for as long as anything made of it is there (see :class:`Batch`).
        The order of its items says nothing: each part of it is like a smaller batch, but for ``Fifo()`` and ``Lifo()``,
        which are orders. Cost: drawing is O(log8 steps) an item; decoding a window of five 84x84 frames takes 3 us.

        With a disk, segments that are not in memory are read now. One that is damaged, or that cannot be decoded, is
        named in a RuntimeWarning and in ``stats()["damaged"]``, and sampled no more.

        Raises:
            EmptyError: no step can be sampled yet, or ``max_times_sampled`` leaves too few for the whole batch; then
                nothing was given out.
            LimiterTimeoutError: the limiter did not allow it in time, or there were too few steps for so long.
            ValueError: ``batch_size``, ``beta`` or ``timeout`` out of range, or the limiter can never allow it.
            DamagedError: nothing readable is left.
            MemoryError: ``ram`` leaves no room for the batch beside those that are held, or for a segment; no step
                leaves for a batch.
        """
        _check_batch_size(batch_size)
        _check_beta(beta)
        with self._lock:
            self._gate.wait("sample", lambda: self._sample_waits(batch_size), timeout)
            self._check_enough(batch_size)
            changes = self._log.changes
            buffers = self._buffers(batch_size)
            if self._log.changes != changes:  # steps gave way for what index and samplers have grown by
                self._steps.follow()
                self._check_enough(batch_size)
            return self._drawn(buffers, beta)

    def stream(
        self, batch_size: int, *, lookahead: int = 4, beta: float | None = None, timeout: float | None = None
    ) -> Stream:
        """Batches without end, each drawn ``lookahead`` batches before it is handed out.

        With a disk, what they need is read meanwhile, and stays in memory until it is used. Priorities that change
        after the draw count from the next draw on, so they are up to ``lookahead`` batches late; weights and
        probabilities are those of the draw. Items evicted since the draw are resampled, and the batch weighed anew. A
        batch counts as sampled when it is drawn; a limiter is waited for only where nothing is drawn yet.

        Raises:
            ValueError: an argument out of range.  ``next()`` raises what :meth:`sample` does.
        """
        _check_batch_size(batch_size)
        _check_beta(beta)
        if not isinstance(lookahead, (int, np.integer)) or not 0 <= lookahead <= MAX_LOOKAHEAD:
            raise ValueError(f"stream: lookahead={lookahead!r}, expected an integer from 0 to {MAX_LOOKAHEAD}")
        stream = Stream(self, int(batch_size), int(lookahead), beta, timeout)
        with self._lock:
            if self._ahead:
                stream.resume(self._ahead.pop(0))
            if self._dropped:
                self._forget_dropped()
            self._streams.append((weakref.ref(stream, self._dropped.append), stream.drawn))
        return stream

    def _forget_dropped(self) -> None:
        """Let go what streams had drawn that nobody can ask any more."""
        self._dropped.clear()
        for ref, drawn in self._streams:
            if ref() is None:
                let_go(self._log, drawn)
        self._streams = [one for one in self._streams if one[0]() is not None]

    def streams(self) -> list[Stream]:
        """Those in use, in the order of their making."""
        return [stream for ref, _ in self._streams if (stream := ref()) is not None]

    def _drawn(self, buffers: Buffers, beta: float | None) -> Batch:
        """A batch drawn now; an interrupt by the user among what may go wrong: then nothing was given out."""
        while True:
            undo = self._steps.draw(buffers.draw, beta, self._rng)
            try:
                batch = fill(self._log, self._readers, buffers, self.n_step, self.gamma)
            except DamagedError:
                undo()
                if not self._set_aside_damaged():
                    raise
            except BaseException:
                undo()
                raise
            else:
                self._gate.notify()
                return batch

    def _from_draw(self, drawn: Ahead, beta: float | None) -> Batch:
        """The batch of an earlier draw, with new draws for what has left since."""
        buffers = self._buffers(len(drawn.ids))
        self._steps.follow()
        target = buffers.draw
        target.leaves[:], there = self._steps.resolve(drawn.ids)
        target.probabilities[:], target.weights[:] = drawn.probabilities, drawn.weights
        gone = np.flatnonzero(~there)
        if gone.size:
            self._check_enough(gone.size)
            other = Draw.of(gone.size)
            self._steps.draw(other, beta, self._rng)
            target.leaves[gone], target.probabilities[gone] = other.leaves, other.probabilities
            self._steps.weigh(target, beta)  # those of other are over its own largest, not over the batch's
        try:
            return fill(self._log, self._readers, buffers, self.n_step, self.gamma)
        except DamagedError:
            if not self._set_aside_damaged():
                raise
            return self._drawn(buffers, beta)

    def _set_aside_damaged(self) -> bool:
        """Draw no step any more whose segment cannot be read or decoded, nor one whose return reaches into it.

        False if nothing changed, or nothing is left.
        """
        before = self._steps.count
        for slot, problem in self._log.sealed.damaged.items():
            count, known = self._steps.count, int(self._steps.known[slot])
            self._steps.forget(slot)
            if self._steps.count < count:
                warnings.warn(f"{problem}; its {known} steps are sampled no more", RuntimeWarning, stacklevel=3)
        return 0 < self._steps.count < before

    def _sample_waits(self, batch_size: int) -> str | None:
        """What a batch must wait for."""
        self._log.check_open()
        if self._dropped:
            self._forget_dropped()
        self._steps.follow()
        if self.limiter is None:
            return None
        cursor = self._where()
        reason = self.limiter.sample_waits(batch_size, cursor)
        if reason is None and cursor.uses < batch_size:
            uses = "no step" if not cursor.size else f"{cursor.uses:g} uses of steps"
            reason = f"{batch_size} samples find {uses} left: the writer has to append"
        return None if reason is None else f"{reason} ({self.limiter}; {cursor})"

    def append_waits(self, steps: int) -> str | None:
        """What so many steps must wait for."""
        if self.limiter is None:
            return None
        self._steps.follow()
        cursor = self._where()
        reason = self.limiter.append_waits(steps, cursor)
        return None if reason is None else f"{reason} ({self.limiter}; {cursor})"

    def _where(self) -> Cursor:
        inserts, steps = self._log.total_steps - self._steps_before, self._steps
        return Cursor(inserts, steps.samples, steps.count, steps.uses_left)

    def _check_enough(self, batch_size: int) -> None:
        count, left, most = self._steps.count, self._steps.uses_left, self.max_times_sampled
        if count == 0 and left == 0:
            used = "" if most is None else f" (or all were, max_times_sampled={most} times)"
            raise EmptyError(
                f"sample: no step can be sampled yet{used}: the store holds {self._log.held_steps}, and a step can be "
                f"sampled once its episode has ended or {self.n_step} more steps were appended to its lane"
            )
        if left < batch_size:
            raise EmptyError(
                f"sample: batch_size={batch_size}, but the {count} steps that are left can be sampled "
                f"{left} times in all (max_times_sampled={most}); nothing was taken"
            )

    def fetch(self, ids: npt.ArrayLike | Batch) -> Batch:
        """The transitions with the given ids; ``weights`` and ``probabilities`` are 1 and NaN.

        Raises:
            KeyError: an id that has left, or cannot be sampled yet.  ValueError: ids of another store.
            MemoryError: as :meth:`sample`.
        """
        ids = _checked_ids("fetch", ids, self._log.tag)
        with self._lock:
            self._log.check_open()
            self._steps.follow()
            leaves, there = self._steps.resolve(ids)
            if not there.all():
                raise KeyError(f"fetch: id {ids[~there][0]} has left the store, or its successor is not known yet")
            form = Form(self._log.spec, self.n_step, len(ids))  # not kept: there are as many sizes as callers like
            buffers = form.over(self._log.space.lend(form.sizes, form.roots, form.work_bytes), self._log.tag)
            leaves, there = self._steps.resolve(ids)  # steps may have left where index and samplers had grown
            if not there.all():
                raise KeyError(f"fetch: id {ids[~there][0]} has left the store")
            buffers.draw.leaves[:] = leaves
            buffers.draw.probabilities.fill(math.nan)
            buffers.draw.weights.fill(1)
            return fill(self._log, self._readers, buffers, self.n_step, self.gamma)

    def sampleable_ids(self) -> Ints:
        """Ids of all steps that can be sampled now, in no particular order."""
        with self._lock:
            self._steps.follow()
            return tagged(self._steps.ids(), self._log.tag)

    def update_priorities(self, ids: npt.ArrayLike | Batch, td_error: npt.ArrayLike) -> int:
        """New priorities ``|td_error| + eps`` for ``ids``, or for those of a batch; returns how many were stale.

        A step that has left, or whose place another has taken, or that cannot be sampled yet or not again, is counted
        and skipped.
        Of repeated ids the last wins; for the largest priority so far, which new steps get, all that were not skipped
        count.

        Raises:
            ValueError: shapes differ, a value is NaN or larger than a float32 can be, or ``batch.ids`` (or slices,
                copies, selections of them) are those of another store; then nothing changed.
        """
        ids = _checked_ids("update_priorities", ids, self._log.tag)
        try:
            errors = np.asarray(td_error, np.float64, order="C")  # kernels would be compiled anew for any other order
        except (TypeError, ValueError) as error:
            raise ValueError(f"update_priorities: td_error cannot be read as numbers ({error})") from error
        if errors.shape != ids.shape:
            raise ValueError(
                f"update_priorities: td_error has shape {errors.shape}, expected {ids.shape}, one for each id"
            )
        if not all_within(errors, MAX_TD_ERROR):
            worst = int(np.flatnonzero(~(np.abs(errors) <= MAX_TD_ERROR))[0])
            raise ValueError(
                f"update_priorities: td_error[{worst}] is {errors[worst]}, expected finite numbers of at most "
                f"{MAX_TD_ERROR:.2g}, float32's largest; look for a diverging loss"
            )
        with self._lock:
            self._log.check_open()
            self._steps.follow()  # steps appended before this call get the largest priority of before this call
            return len(ids) - self._steps.update(ids, errors)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the view takes, beside its batches: sampler and bookkeeping."""
        return self._steps.nbytes

    @property
    def work_bytes(self) -> int:
        """Bytes of memory that making batches takes, with what streams have drawn ahead."""
        drawn = sum(len(batches) * batches[0].draw_bytes for _, batches in self._streams if batches)
        return drawn + sum(form.work_bytes for form in self._forms.values())

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch that was drawn lately."""
        return max((sum(form.sizes) for form in self._forms.values()), default=0)

    def _buffers(self, batch_size: int) -> Buffers:
        """Memory for a batch.  Raises: MemoryError: there is no room for it."""
        space, form = self._log.space, self._forms.get(batch_size)
        if form is not None:
            return form.over(space.lend(form.sizes, form.roots), self._log.tag)
        form = Form(self._log.spec, self.n_step, batch_size)
        blocks = space.lend(form.sizes, form.roots, form.work_bytes)
        if len(self._forms) == FORMS:
            del self._forms[next(iter(self._forms))]
        self._forms[batch_size] = form
        return form.over(blocks, self._log.tag)


def _check_batch_size(batch_size: int) -> None:
    if not isinstance(batch_size, (int, np.integer)) or not 1 <= batch_size <= MAX_BATCH_SIZE:
        raise ValueError(f"sample: batch_size={batch_size!r}, expected an integer from 1 to {MAX_BATCH_SIZE:,}")


def _check_beta(beta: float | None) -> None:
    if beta is not None and not (isinstance(beta, (int, float, np.floating)) and 0 <= beta <= 1):
        raise ValueError(f"sample: beta={beta!r}, expected a number from 0 to 1")


def _checked_ids(what: str, ids: npt.ArrayLike | Batch, tag: object) -> Ints:
    """Ids as a plain array.  Raises: ValueError: none, or ids of another store."""
    if isinstance(ids, Batch):
        ids = ids.ids.cpu() if hasattr(ids.ids, "cpu") else ids.ids
    if (other := tag_of(ids)) is not None and other is not tag:
        raise ValueError(
            f"{what}: these ids are of another store (or of one that was opened anew), where they name other steps; "
            "pass them to a view of the store that they were sampled from. np.asarray(ids) is not checked"
        )
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"ids: got shape {array.shape} {array.dtype}, expected int64 [n], as in batch.ids")
    return array.astype(np.int64, copy=False)
