"""Views of all shards' steps, as transitions or as sequences."""

from __future__ import annotations

from typing import Any

from sharpwave.sampling.limiters import Limiter
from sharpwave.sampling.protocol import Sampler
from sharpwave.sampling.uniform import Uniform
from sharpwave.serve.members import Members
from sharpwave.serve.remote_replay import RemoteReplay
from sharpwave.serve.shard_views import SAMPLERS
from sharpwave.serve.wire import SEQUENCES, TRANSITIONS
from sharpwave.store import Store
from sharpwave.views.batch import Batch, SequenceBatch


class ClusterViews:
    """The part of a cluster that makes views."""

    _members: Members
    _local: Store  # an empty store of the same spec, whose views define the layout of batches
    _made: int
    _seed: int

    def transitions(
        self,
        *,
        name: str = TRANSITIONS,
        n_step: int = 1,
        gamma: float = 0.99,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
    ) -> RemoteReplay[Batch]:
        """Make a view of n-step transitions of all shards: as ``Store.transitions``.

        Args:
            name: a view of this name that another process made is shared with it; it must have the same settings.
            sampler: ``Uniform()`` or ``Prioritized(...)``, drawn from as if all shards were one store; ``Fifo()`` and
                ``Lifo()``, in each shard's own order.

        Raises:
            ValueError, TypeError: an invalid argument, or a view of that name with other settings.
        """
        self._members.check_open()
        sampler = _checked(sampler)
        shape = self._local.transitions(name=f"{name}-{self._made}", n_step=n_step, gamma=gamma, sampler=sampler)
        settings = {"n_step": shape.n_step, "gamma": shape.gamma}
        return self._replay(shape, TRANSITIONS, name, settings, max_times_sampled, limiter, seed)

    def sequences(
        self,
        length: int,
        *,
        name: str = SEQUENCES,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> RemoteReplay[SequenceBatch]:
        """Make a view of windows of steps of all shards: as ``Store.sequences``, with the same settings.

        Raises: as ``transitions``.
        """
        self._members.check_open()
        sampler = _checked(sampler)
        shape = self._local.sequences(length, name=f"{name}-{self._made}", sampler=sampler, **settings)
        return self._replay(shape, SEQUENCES, name, shape.view.settings(), max_times_sampled, limiter, seed)

    def _replay(
        self,
        shape: Any,
        kind: str,
        name: str,
        settings: dict[str, Any],
        max_times_sampled: int | None,
        limiter: Limiter | None,
        seed: int | None,
    ) -> RemoteReplay[Any]:
        if limiter is not None:
            limiter.check(None, max_times_sampled)
        seed = self._seed + self._made if seed is None else int(seed)
        self._made += 1
        asked = {
            "name": name,
            "kind": kind,
            "settings": settings,
            "max_times_sampled": max_times_sampled,
            "seed": seed,
        }
        return RemoteReplay(self._members, self._local, shape, asked, limiter, seed)


def _checked(sampler: Sampler | None) -> Sampler:
    sampler = Uniform() if sampler is None else sampler
    if type(sampler) not in SAMPLERS.values():
        raise ValueError(
            f"sampler={sampler!r}: shards have {', '.join(SAMPLERS)}; others need to know all items of all shards"
        )
    return sampler
