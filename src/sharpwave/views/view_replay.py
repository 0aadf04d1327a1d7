"""Replay of a view: sampling, independent of the kind of items."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import as_array, is_integer, is_number
from sharpwave.arrays import Floats, Ints
from sharpwave.errors import not_to_be_copied
from sharpwave.log.late_columns import WRITTEN
from sharpwave.native import core
from sharpwave.native.interrupts import InterruptLock
from sharpwave.sampling.limiters import Limiter, check_timeout
from sharpwave.sampling.sampler_protocol import MAX_TD_ERROR, Sampler
from sharpwave.showing import table, titled
from sharpwave.spec import Spec
from sharpwave.validation import Missing, check_missing
from sharpwave.views.batch import Draws
from sharpwave.views.batch_source import BatchSource
from sharpwave.views.ids import Tag, check_tag, tagged
from sharpwave.views.streams import Stream
from sharpwave.views.view_parts import Parts

B = TypeVar("B")

ALWAYS = ("reward", "terminated", "truncated", "discount", "weights", "probabilities", "ids", "n", "lane", "step")
"""Parts of a batch that are there whatever ``fields`` says."""
MAX_BATCH_SIZE = 1 << 24
MAX_LOOKAHEAD = 1024


class Replay(Generic[B]):
    """Replay of a store's items, which a ``.view_protocol.View`` defines. Made by ``sharpwave.Store.view``.

    Args:
        life: of the store, which lives as long as this view.

    Attributes:
        name: its name in a checkpoint.
        view: the definition of its items.
        source: its batches; the store's ``lock`` is held.
        remote: whether shards draw its items.
    """

    remote: ClassVar[bool] = False

    def __init__(self, name: str, source: BatchSource, lock: InterruptLock, life: object) -> None:
        self.name, self.view, self.source = name, source.view, source
        self._log, self.lock, self._items, self._life = source.log, lock, source.items, life
        self._changing = lock.interruptible if source.complete is None else lock.unsettled

    @property
    def sampler(self) -> Sampler:
        """Sampler of the items."""
        return self._items.sampler

    @property
    def limiter(self) -> Limiter | None:
        """Rate limiter of samples and inserts."""
        return self.source.pace.limiter

    @property
    def max_times_sampled(self) -> int | None:
        """Limit of the times that an item is sampled."""
        return self.source.pace.max_times_sampled

    @property
    def where(self) -> str | None:
        """Condition on the items, as text; ``None``: there is none."""
        judge = self._items.judge
        return None if judge is None or judge.condition is None else judge.condition.text

    def __reduce__(self) -> NoReturn:
        raise not_to_be_copied(self)

    def __repr__(self) -> str:
        kind = type(self.sampler).__name__
        return f"<{type(self).__name__} {self.name!r}: {self._items.count:,} items when last sampled, {kind}>"

    def _repr_html_(self) -> str:
        rules = {
            "where": self.where,
            "sampler": self.sampler,
            "limiter": self.limiter,
            "max_times_sampled": self.max_times_sampled,
        }
        rows = [(name, value) for name, value in (self.view.settings() | rules).items() if value is not None]
        return titled(repr(self), table(("", ""), rows))

    def __len__(self) -> int:
        """Return the number of items that can be sampled now, without items sampled ``max_times_sampled`` times."""
        with self.lock:
            self.source.unused.forget_dropped()
            self._items.follow()
            return self._items.count

    def _only(self, fields: Sequence[str]) -> Self:
        """Return a replay of the same items whose batches have some fields only.  Raises: ValueError, TypeError."""
        spec = self._log.late.spec
        names = flat_names(fields, spec, spec.fields)
        some = object.__new__(type(self))
        vars(some).update(vars(self))
        with self.lock:
            some.source = self.source.only(names)
        some.view = some.source.view
        some._changing = self.lock.unsettled
        return some

    def sample(
        self,
        batch_size: int,
        *,
        beta: float | None = None,
        timeout: float | None = None,
        fields: Sequence[str] | None = None,
    ) -> B:
        """Draw a batch.

        Args:
            beta: overrides the sampler's.
            fields: names of the fields that the batch has, which alone are decoded: "obs" (with ``next_obs``),
                "action", or any field of the spec by its flat name; other parts are ``None``. Rewards, ends and the
                like are always there. The same items are drawn as without.
            timeout: seconds to wait at most until the limiter admits it; default 60. Without a limiter nothing waits.

        Returns a batch whose memory is the caller's while any array derived from it lives (see ``Batch``). Its items
        are shuffled: each part of it is distributed like a smaller batch; ``Fifo()`` and ``Lifo()`` keep their order
            instead.

        Cost: drawing is O(log8 items) an item; decoding a window of five 84x84 frames takes 3 us.

        With a disk, segments that are not in memory are read now. A damaged or undecodable segment is named in a
        RuntimeWarning and in ``stats()["damaged"]``, and no longer sampled.

        Raises:
            EmptyError: no step can be sampled yet, or ``max_times_sampled`` leaves too few for the whole batch; then
                nothing was drawn.
            LimiterTimeoutError: the limiter did not admit it in time, or steps were too few all that time.
            ValueError: ``batch_size``, ``beta`` or ``timeout`` out of range, or the limiter can never admit it.
            DamagedError: no readable segment is left.
            MemoryError: ``ram`` has no room for the batch beside the batches in use, or for a segment; no step is
                evicted for a batch.
        """
        if type(batch_size) is not int or not 1 <= batch_size <= MAX_BATCH_SIZE:
            check_batch_size(batch_size)
        if beta is not None:
            check_beta(beta)
        if timeout is not None:
            check_timeout("sample", timeout)
        if fields is not None:
            return self._only(fields).sample(batch_size, beta=beta, timeout=timeout)
        with self._changing:
            batch: B | None = self.source.at_once(batch_size, beta)
        if batch is not None:
            return batch
        with self.lock.unsettled:
            self.source.pace.wait(batch_size, timeout)
            made: B = self.source.sample(batch_size, beta)
            return made

    def wait(self, batch_size: int, *, beta: float | None = None, timeout: float | None = None) -> None:
        """Wait until ``sample`` of the same arguments need not wait, and draw nothing.

        Raises:
            EmptyError, LimiterTimeoutError, ValueError: as ``sample``.
        """
        check_batch_size(batch_size)
        check_beta(beta)
        with self.lock:
            self.source.pace.wait(batch_size, timeout)

    def stream(
        self,
        batch_size: int,
        *,
        lookahead: int = 4,
        beta: float | None = None,
        timeout: float | None = None,
        fields: Sequence[str] | None = None,
    ) -> Stream[B]:
        """Return an endless iterator over batches, each drawn ``lookahead`` batches ahead. ``fields``: as ``sample``.

        With a disk, their segments are read meanwhile, and stay in memory until they are used. Priorities that change
        after the draw count from the next draw on, so they are up to ``lookahead`` batches late; weights and
        probabilities are as at the draw. Items evicted since the draw are resampled, and the batch's weights
        recomputed. A batch counts as sampled when it is drawn; the limiter delays only a batch that is not drawn yet.
        When the stream is closed or dropped, batches that it has drawn ahead no longer count as sampled if
        ``max_times_sampled`` limits their uses: they can be drawn again, with ``Fifo`` in their old order. Under a
        ``Queue`` none of their items is evicted until then, so an unused stream blocks the writer.

        Raises:
            ValueError: an argument out of range.  ``next()`` raises the errors of ``sample``.
        """
        check_stream(batch_size, lookahead, beta, timeout)
        replay = self if fields is None else self._only(fields)
        return Stream(Parts[B]([replay], [1.0], 0, alone=True), int(batch_size), int(lookahead), beta, timeout)

    def check_admitted(self, batch_size: int) -> None:
        """Refuse a batch that the limiter can never admit.  Raises: ValueError."""
        if self.limiter is not None:
            with self.lock:
                self.source.pace.check_admitted(batch_size)

    def draw(self, count: int, *, beta: float | None = None, timeout: float | None = None) -> Draws:
        """Draw items as ``sample`` does, without their batch: only ids, probabilities and weights.

        They count as sampled. The same seed draws the same items either way. Nothing is read from disk, or decoded.

        Raises:
            EmptyError, LimiterTimeoutError, ValueError: as ``sample``.
        """
        check_batch_size(count)
        check_beta(beta)
        with self.lock.unsettled:
            self.source.pace.wait(count, timeout)
            drawn, _ = self.source.draw_ids(count, beta)
        return Draws(tagged(drawn.ids, self.source.tag), drawn.probabilities, drawn.weights, drawn.uniforms)

    def fetch(
        self, ids: npt.ArrayLike | B | Draws, *, missing: Missing = "raise", fields: Sequence[str] | None = None
    ) -> B:
        """Return the items with the given ids; ``weights`` and ``probabilities`` are 1 and NaN.

        Of a view with ``relabel=`` they are as stored; with the result of ``draw``, as ``sample`` had relabelled them.

        Args:
            missing: policy for items that were evicted, or cannot be sampled yet: "raise"; or "mask": their part of the
                batch is all zeros, weights included, and their ``ids`` are -1.
            fields: as for ``sample``.

        Raises:
            KeyError: a missing id.  ValueError: ids of another store, or of a view of other items.
            MemoryError: as ``sample``.
        """
        check_missing("fetch", missing)
        if fields is not None:
            return self._only(fields).fetch(ids, missing=missing)
        checked = checked_ids("fetch", ids, self.source.tag)
        with self.lock:
            self._log.check_open()
            batch: B = self.source.fetch(checked, ids.uniforms if isinstance(ids, Draws) else None, missing)
            return batch

    def sampleable_ids(self) -> Ints:
        """Return the ids of all items that can be sampled now, in no particular order."""
        with self.lock:
            self.source.unused.forget_dropped()
            self._items.follow()
            return tagged(self._items.ids(), self.source.tag)

    def update_priorities(self, ids: npt.ArrayLike | B | Draws, td_error: npt.ArrayLike) -> int:
        """Set priorities to ``|td_error| + eps`` for ``ids``, or for a batch's; return the number of stale ids.

        An item that was evicted, or that cannot be sampled yet or not again, is stale: it is counted and skipped. Of
        repeated ids the last wins. All values of items that are not skipped count towards the largest priority, which
        new items get.

        Raises:
            TypeError: ``td_error`` is masked.
            ValueError: shapes differ, a value is no real number, NaN or beyond float32, or ``batch.ids`` (or slices,
                copies, selections of them) belong to another store, or to a view of other items; then nothing changed.
        """
        checked = checked_ids("update_priorities", ids, self.source.tag)
        errors = checked_errors(td_error, checked.shape + self.view.error_shape)
        with self.lock.interruptible:
            found = self.source.update_at_once(checked, errors)
        if found is None:
            with self.lock.unsettled:
                found = self.source.update(checked, errors)
        return len(checked) - found

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the view, beside its batches: sampler and bookkeeping."""
        return self._items.nbytes

    @property
    def work_bytes(self) -> int:
        """Bytes of working memory for batches, with the draws of streams."""
        return self.source.work_bytes + self.source.unused.nbytes


def flat_names(fields: Sequence[str], spec: Spec, there: Collection[str], after: bool = True) -> frozenset[str]:
    """Return the flat names of the fields that an argument ``fields`` names, without parts that are always there.

    Args:
        there: flat names of all fields of batches, with columns added later and their marks.
        after: whether batches have the next observation.

    Raises: ValueError, TypeError.
    """
    if isinstance(fields, str) or not isinstance(fields, Iterable) or not all(isinstance(name, str) for name in fields):
        raise TypeError(f"fields={fields!r}, expected a list of names of fields")
    groups = {"obs": spec.obs_names, "next_obs": spec.obs_names, "action": spec.action_names}
    if not after:
        del groups["next_obs"]
    names = set[str]()
    for name in fields:
        if name in groups:
            names.update(groups[name])
        elif name in there:
            names.update(one for one in (name, name + WRITTEN) if one in there)
        elif name not in ALWAYS:
            every = ", ".join(dict.fromkeys([*groups, *there, *ALWAYS]))
            raise ValueError(f"fields: no field {name!r}, expected some of {every}")
    return frozenset(names)


def check_batch_size(batch_size: int) -> None:
    """Check an argument.  Raises: ValueError."""
    if not is_integer(batch_size) or not 1 <= batch_size <= MAX_BATCH_SIZE:
        raise ValueError(f"sample: batch_size={batch_size!r}, expected an integer from 1 to {MAX_BATCH_SIZE:,}")


def check_stream(batch_size: int, lookahead: int, beta: float | None, timeout: float | None) -> None:
    """Check the arguments of ``stream``.  Raises: ValueError: naming the one out of range."""
    check_batch_size(batch_size)
    check_beta(beta)
    if not is_integer(lookahead) or not 0 <= lookahead <= MAX_LOOKAHEAD:
        raise ValueError(f"stream: lookahead={lookahead!r}, expected an integer from 0 to {MAX_LOOKAHEAD}")
    check_timeout("stream", timeout)


def check_beta(beta: float | None) -> None:
    """Check an argument.  Raises: ValueError."""
    if beta is not None and not (is_number(beta) and 0 <= beta <= 1):
        raise ValueError(f"sample: beta={beta!r}, expected a number from 0 to 1")


def checked_errors(td_error: Any, expected: tuple[int, ...], call: str = "update_priorities") -> Floats:
    """Return TD errors as float64 of the shape ``expected``; a tensor's gradient and device do not matter.

    Raises:
        ValueError: another shape, or values that are no real numbers, or not finite.  TypeError: a masked array.
    """
    try:
        array = as_array(f"{call}: td_error", without_gradient(td_error) if hasattr(td_error, "detach") else td_error)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{call}: td_error cannot be read as numbers ({error})") from error
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{call}: td_error cannot be read as numbers (got {array.dtype}, expected floats)")
    errors = np.asarray(array, np.float64, order="C")  # any other order would compile kernels again
    if errors.shape != expected:
        raise ValueError(f"{call}: td_error has shape {errors.shape}, expected {expected}, one for each id")
    if not core.all_within(errors.reshape(-1), MAX_TD_ERROR):
        worst = np.argwhere(~(np.abs(errors) <= MAX_TD_ERROR))[0].tolist()
        raise ValueError(
            f"{call}: td_error{worst} is {errors[*worst]}, expected finite numbers of at most "
            f"{MAX_TD_ERROR:.2g}, float32's largest; look for a diverging loss"
        )
    return errors


def checked_ids(what: str, ids: Any, tag: Tag | None) -> Ints:
    """Return ids, or a batch's ids, as a plain array; without ``tag``, of any store.

    Raises: ValueError: no ids, or foreign ones.
    """
    if getattr(ids, "source", None) is not None:
        raise ValueError(
            f"{what}: this batch is of a blend, whose items are of several views; pass it to the blend, or the ids of "
            "one view's items, batch.ids[batch.source == k]"
        )
    ids = getattr(ids, "ids", ids)
    if tag is not None:
        check_tag(what, ids, tag)
    array = on_host(ids) if hasattr(ids, "cpu") else as_array("ids", ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"ids: got shape {array.shape} {array.dtype}, expected int64 [n], as in batch.ids")
    return np.ascontiguousarray(array, np.int64)


def without_gradient(value: Any) -> Any:
    """Return a tensor's values where numpy can read them."""
    values = value.detach().cpu()
    short = values.is_floating_point() and values.element_size() < 4  # numpy has no bfloat16
    return (values.float() if short else values).numpy()


def on_host(array: Any) -> npt.NDArray[Any]:
    """Return an array, or a tensor on any device, as a numpy array."""
    return as_array("ids", array.cpu() if hasattr(array, "cpu") else array)
