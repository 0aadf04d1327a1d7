"""Cluster: one experience store of several shards, in processes of this machine or of others."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy.typing as npt

from sharpwave.arguments import is_integer
from sharpwave.errors import not_to_be_copied
from sharpwave.log.boundaries import NOTICED
from sharpwave.log.late_columns import described
from sharpwave.persistence.settings import MAX_SEGMENT_STEPS
from sharpwave.sampling.limiters import Limiter, check_timeout
from sharpwave.sampling.sampler_protocol import Sampler
from sharpwave.sampling.uniform import Uniform
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.cluster_folder import Manifest, cut, opening
from sharpwave.serve.fleet import Fleet, ShardPlan
from sharpwave.serve.late_values import Columns, checked_values, columns_in, send_values, take_over
from sharpwave.serve.link import READY_S, RETRY_S, Link, ShardLostError
from sharpwave.serve.local_shards import LocalShards
from sharpwave.serve.members import Members, ask_directory, members_of, turned
from sharpwave.serve.ray_cluster import RayShards, is_ray
from sharpwave.serve.remote_episodes import ClusterColumns, RemoteEpisodes, deleted, found
from sharpwave.serve.remote_replay import RemoteReplay
from sharpwave.serve.remote_steps import fetched_steps
from sharpwave.serve.remote_writer import Delivery, RemoteWriter
from sharpwave.serve.shard_views import SAMPLERS
from sharpwave.serve.wire import SEQUENCES, TRANSITIONS, Request
from sharpwave.showing import byte_text, table, titled
from sharpwave.spec import Field, Spec
from sharpwave.store import Store
from sharpwave.validation import MAX_LANES, checked_folder
from sharpwave.views.batch import Batch, SequenceBatch
from sharpwave.views.episodes import Order, checked_order
from sharpwave.views.ids import Tag
from sharpwave.views.starting import check_by
from sharpwave.views.view_protocol import STEPS

LOCAL_CAPACITY = 64
OF_STORES = {
    "annotations", "branch", "delete_version", "drop_steps", "export", "ids",
    "read_column", "snapshot", "table", "versions",
}  # fmt: skip
"""Verbs that only stores have."""
CHECKPOINT_S = 3600.0
"""Time in which a service must write a checkpoint."""


class Cluster:
    """Experience store that several processes write to and sample from.

    Args:
        spec: schema of a step.
        shards: number of shards, each a process with a store.
        capacity, ram, disk_limit: limits of all shards together; each gets an equal part.
        disk: folder in which each shard has a folder of its own.
        replicas: 1: the next shard keeps a copy of each shard's steps, so that they survive the loss of its folder or
            memory. ``ram`` and ``disk_limit`` include them. It needs 2 shards or more.
        address: "local": shards are processes of this machine, which end with this one; "auto" or "ray://HOST:PORT":
            shards are actors of that Ray cluster; "ray": of the Ray cluster that this process started; else the address
            of ``sharpwave serve``: "unix:PATH" or "HOST:PORT".
        secret: shared secret; default: the environment variable SHARPWAVE_SECRET.
        tls_authority: PEM file by which the certificates of shards elsewhere are checked: connections are encrypted.
        seed: seed of the draws.
        options: further arguments of each shard's ``Store``: ``codec``, ``on_full``, ``segment_steps``.

    Attributes:
        security: the secret, which other clients need.

    Raises:
        ValueError, TypeError: an invalid argument.
        ConnectionError: nothing answers at the address.
        ShardFailedError: a shard's process does not start.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        shards: int = 1,
        capacity: int | None = None,
        ram: int | str | None = None,
        disk: str | os.PathLike[str] | None = None,
        disk_limit: int | str | None = None,
        replicas: int = 0,
        address: str = "local",
        secret: str | bytes | None = None,
        tls_authority: str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        security = Security.of(secret, authority=tls_authority)
        if is_ray(address) and not security.secret:  # Ray hands it to the shards
            security = replace(security, secret=secrets.token_hex(32).encode())
        self._begin(spec, security, seed)
        try:
            if address == "local" or is_ray(address):
                on_ray = is_ray(address)
                sockets = Path() if on_ray else self._sockets()  # on Ray each node has its own, and its own disk
                folder = None if disk is None else Path(disk).absolute() if on_ray else checked_folder("disk", disk)
                plan = ShardPlan(
                    shards, sockets, capacity, ram, disk_limit, folder, {"seed": self._seed, **options},
                    security=self.security, replicas=replicas,
                )  # fmt: skip
                if on_ray:
                    self._run(plan, RayShards(address, plan.settings(spec)))
                else:
                    with plan.begun(spec):
                        self._run(plan, LocalShards(plan.settings(spec)))
            else:
                self._join(
                    address,
                    {"capacity": capacity, "ram": ram, "disk": disk, "disk_limit": disk_limit}
                    | {"replicas": replicas or None, "shards": None if shards == 1 else shards}
                    | options,
                )
        except BaseException:
            self.close()
            raise

    def _begin(self, spec: Spec, security: Security, seed: int) -> None:
        self.spec, self.security, self._seed = spec, security, int(seed)
        self._members = Members(security)
        self._undo = ExitStack()
        self._fleet: Fleet | None = None
        self._local = Store(spec, capacity=LOCAL_CAPACITY)  # empty: its views define the layout of batches
        self._columns: Columns = {}  # added by this object
        self._made = 0
        self._writers = 0

    def _run(self, plan: ShardPlan, started: LocalShards | RayShards) -> None:
        self._fleet = Fleet(self.spec, plan, started)
        if isinstance(started, LocalShards):  # views and writers of a cluster that was freed go on
            weakref.finalize(started, _delete, str(plan.sockets), os.getpid())
        self._undo.callback(self._fleet.close)
        self._members = Members(self.security, fleet=self._fleet)

    @property
    def links(self) -> list[Link]:
        """Links to the shards that there are now, by number."""
        return self._members.now()

    @property
    def directory(self) -> str:
        """Address of the ``sharpwave serve`` that runs these shards; "": the cluster belongs to no service."""
        return self._members.directory

    @property
    def _processes(self) -> LocalShards | RayShards | None:
        return None if self._fleet is None else self._fleet.processes

    def _join(self, address: str, given: Mapping[str, Any]) -> None:
        """Connect to the shards of ``sharpwave serve``, which makes them if there are none."""
        named = sorted(name for name, value in given.items() if value is not None)
        if named:
            raise ValueError(f"Cluster: {named[0]}= is for address='local'; {address} has shards and limits already")
        directory = Address.parse(address)
        said = ask_directory(directory, self.security, self.spec)
        self._members = members_of(directory, self.security, said)

    @classmethod
    def of(
        cls,
        spec: Spec,
        addresses: Sequence[Address | str],
        *,
        secret: str | bytes | None = None,
        tls_authority: str | None = None,
        seed: int = 0,
    ) -> Self:
        """Return the cluster of shards that listen at ``addresses``."""
        made = cls.__new__(cls)
        made._begin(spec, Security.of(secret, authority=tls_authority), seed)
        made._members = Members(made.security, addresses=[Address.parse(str(one)) for one in addresses])
        return made

    def _sockets(self) -> Path:
        """Return a folder for unix sockets, which only this user can enter, deleted at the end by this process."""
        folder = tempfile.mkdtemp(prefix="sharpwave-")
        self._undo.callback(_delete, folder, os.getpid())
        return Path(folder)

    # views

    def transitions(
        self,
        *,
        name: str = TRANSITIONS,
        n_step: int = 1,
        gamma: float = 0.99,
        where: str | None = None,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
    ) -> RemoteReplay[Batch]:
        """Make a view of n-step transitions of all shards: as ``Store.transitions``.

        Args:
            name: a view of this name that another process made is shared with it; it must have the same settings.
            where: a condition in SQL, by which each shard judges its own episodes; it needs the extra ``sql`` there.
            sampler: ``Uniform()`` or ``Prioritized(...)``, drawn from as if all shards were one store; ``Fifo()`` and
                ``Lifo()``, in each shard's own order. A shard without the column of ``Prioritized(by=)`` gets it.

        Raises:
            ValueError, TypeError: an invalid argument, or a view of that name with other settings.
        """
        settings = {"n_step": n_step, "gamma": gamma}
        return self._view(TRANSITIONS, name, where, sampler, max_times_sampled, limiter, seed, **settings)

    def sequences(
        self,
        length: int,
        *,
        name: str = SEQUENCES,
        where: str | None = None,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> RemoteReplay[SequenceBatch]:
        """Make a view of windows of steps of all shards: as ``Store.sequences``, with the same settings.

        Raises: as ``transitions``.
        """
        settings["length"] = length
        return self._view(SEQUENCES, name, where, sampler, max_times_sampled, limiter, seed, **settings)

    @contextmanager
    def _starting(self, sampler: Any) -> Iterator[None]:
        """Check the column that a sampler's priorities start from; make the sampler one that starts from none
        meanwhile: the store here has no steps, nor columns added later.

        Raises: ValueError, TypeError.  ShardLostError.
        """
        by = getattr(sampler, "by", None)
        if by is None:
            yield
            return
        if isinstance(by, str) and by in self._columns:
            self._take_over_columns()
        try:
            check_by(by, self.spec, self._columns)
        except ValueError:  # another client may have added it
            self._columns |= {name: kind for name, kind in self.columns.items() if name == by}
            check_by(by, self.spec, self._columns)
        sampler.by = None
        try:
            yield
        finally:
            sampler.by = by

    def _view(
        self,
        kind: str,
        name: str,
        where: str | None,
        sampler: Sampler | None,
        max_times_sampled: int | None,
        limiter: Limiter | None,
        seed: int | None,
        /,
        **settings: Any,
    ) -> RemoteReplay[Any]:
        self._members.check_open()
        sampler, given = _checked_sampler(sampler), _checked_where(where)
        make: Any = self._local.transitions if kind == TRANSITIONS else self._local.sequences
        with self._starting(sampler):
            shape = make(name=f"{name}-{self._made}", sampler=sampler, where=where, **settings)
        if limiter is not None:
            limiter.check(None, max_times_sampled)
        seed = self._seed + self._made if seed is None else int(seed)
        self._made += 1
        asked = {"name": name, "kind": kind, "settings": {**shape.view.settings(), **given}, "seed": seed}
        asked["max_times_sampled"] = max_times_sampled
        by = getattr(shape.sampler, "by", None)
        if by in self._columns:
            asked["column"] = {"name": by, "field": described(self._columns[by])}
        return RemoteReplay(self._members, shape, asked, limiter, seed, self._columns)

    # writers

    def writer(
        self,
        lanes: int = 1,
        *,
        name: str | None = None,
        shard: int | None = None,
        durability: str = "memory",
        segment_steps: int | None = None,
        codec: str | Mapping[str, str] = "auto",
        strict: bool = False,
        timeout: float | None = None,
    ) -> RemoteWriter:
        """Make a writer of ``lanes`` lanes in one shard: for a ``Recorder``, or to call ``extend``.

        Args:
            name: name of the writer. A writer that replaces another of the same name resumes its lanes, in its shard.
            shard: number of the shard; default: the shard that has the name; for a new name, a shard computed from the
                name and the number of shards. Writers without a name get the reachable shards in turn.
            durability: "memory": a segment is acknowledged once it is in the shard's store; "flush": once it is on the
                shard's disk, which the cluster must have.
            segment_steps: steps in a segment; default, and at most: the shard's (32 by default). Shorter segments make
                the shard hold fewer steps than its capacity.
            strict: as for ``Store``: impossible steps are an error of ``extend``, otherwise a warning here. The
                cluster's ``stats()`` count them once the segments that follow have arrived.
            timeout: seconds that the writer waits for its shard; default 60. This call waits for ``shard``, and for
                unreachable shards that may have the ``name``; with neither it needs a shard that can be reached.

        Raises:
            ValueError: an invalid argument.  ShardLostError: the shard cannot be reached.
        """
        if durability not in ("memory", "flush"):
            raise ValueError(f"writer: durability={durability!r}, expected 'memory' or 'flush'")
        lanes = _checked_count("lanes", lanes, MAX_LANES)
        if segment_steps is not None:
            segment_steps = _checked_count("segment_steps", segment_steps, MAX_SEGMENT_STEPS)
        deadline = time.monotonic() + check_timeout("writer", timeout)
        while True:
            try:
                delivery = self._delivery(lanes, name, shard, durability == "flush", timeout, deadline)
                try:
                    return RemoteWriter(self.spec, delivery, codec=codec, segment_steps=segment_steps, strict=strict)
                except BaseException:
                    delivery.close()
                    raise
            except ShardLostError:  # the one that has the name may have been lost just after it said so
                if (name is None and shard is None) or time.monotonic() >= deadline:
                    raise
            time.sleep(RETRY_S)

    def _delivery(
        self, lanes: int, name: str | None, shard: int | None, durable: bool, timeout: float | None, deadline: float
    ) -> Delivery:
        """Return lanes of the first reachable shard among the shards that may have them.

        Raises: ShardLostError, ValueError.
        """
        if shard is not None:
            tried = [shard]
        elif name is not None:
            tried = self._members.of_name(str(name), max(0.0, deadline - time.monotonic()))
        else:  # one after the other, skipping unreachable shards
            tried = turned(len(self._members.now()), self._writers + os.getpid())
            self._writers += 1
        links = list(self._members.now())
        for number in tried:
            if number not in range(len(links)):
                raise ValueError(f"writer: shard={number!r}, expected one of {[*range(len(links))]}")
            try:
                link = links[number].another()
                if durable and not link.call(Request.DESCRIBE).head["on_disk"]:
                    raise ValueError(
                        "writer: durability='flush', but this cluster has no disk to sync to; give it disk=, or write "
                        "with durability='memory'"
                    )
                return Delivery(
                    link,
                    uuid.uuid4().hex if name is None else str(name),
                    lanes,
                    durable=durable,
                    timeout=timeout,
                    number=number,
                    others=self._members.now,
                    check_open=self._members.check_open,
                )
            except ShardLostError:
                if number == tried[-1]:
                    raise
        raise ShardLostError("writer: the cluster has no shard at present; try again")

    # the whole

    def where(self) -> dict[str, Any]:
        """Return the addresses of each of ``shards``, and the ``machine`` that they are on."""
        return self._members.where()

    @property
    def recovery(self) -> None:
        """``None``: shards log damage when they are opened."""
        return None

    def __len__(self) -> int:
        """Return the number of steps that the shards hold, of all that can be reached.

        Raises: ShardLostError: none can be.
        """
        return sum(int(one["steps"]) for one in self._members.call(Request.DESCRIBE, of_all=False))

    def stats(self) -> dict[str, Any]:
        """Return every shard's ``Store.stats()`` under ``shards``, and sums of the additive numbers,
        including the writers' counts (``broken_episodes``, ``unchained_steps``, ``rounded_breaks``,
        ``repeated_finals``, ``dropped_resets``). With ``replicas=1`` each has ``replica``, the statistics of the one
        that it keeps, and ``replica_trouble``: why its own could not be reached last; "": it was.

        Shards that are restarting are left out.  Raises: ShardLostError: no shard can be reached.
        """
        each = [one["stats"] for one in self._members.call(Request.STATS, of_all=False)]
        names = ("steps", "total_steps", "evicted_steps", "segments", "lanes", "total_bytes", "fixed_bytes")
        sums = {name: sum(one[name] for one in each) for name in (*names, *NOTICED)}
        steps = max(1, sums["steps"])
        encoded = sum(one["encoded_bytes_per_step"] * one["steps"] for one in each) / steps
        means = {"bytes_per_step": sums["total_bytes"] / steps, "encoded_bytes_per_step": encoded}
        return sums | means | {"shards": each}

    def __repr__(self) -> str:
        return f"<Cluster of {len(self.where()['shards'])} shards, fields {list(self.spec.fields)}>"

    def _repr_html_(self) -> str:
        each = self.stats()["shards"]
        rows = [
            (number, f"{one['steps']:,}", one["lanes"], byte_text(one["total_bytes"]))
            for number, one in enumerate(each)
        ]
        return titled(repr(self), table(("shard that answers", "steps", "lanes", "memory"), rows))

    def annotate(self, lane: None, values: Mapping[str, Any]) -> None:
        """Annotate the stores of all shards: as ``Store.annotate`` with ``lane=None``."""
        self._members.call(Request.ANNOTATE, {"values": dict(values)})

    # columns added later, and deletion

    @property
    def columns(self) -> Columns:
        """Columns added later that any shard has, by name.  Raises: ShardLostError."""
        return columns_in(self._members.call(Request.DESCRIBE, {"columns": True}))

    def add_column(self, name: str, field: Field) -> None:
        """Add a column to the stores of all shards, for values that come after their steps: as ``Store.add_column``.

        Batches of all clients have it from now on, and batches of this object's views also those of shards that lack
        it: ``batch[name]``, zeros where no value was written, and ``batch.mask_of(name)``. Shards that have it keep it,
        so each learner may call this. With a disk, or replicas, the column is there after a kill of its shard.

        Raises:
            ValueError, TypeError: an invalid argument, a shard has another column of that name, or names and metadata
                of all its columns take too much.
            MemoryError, OSError: a shard has no room for it; some may have it.  ShardLostError: a shard cannot be
                reached.
        """
        self._local._log.late.check_new("add_column", name, field)
        self._members.call(Request.ADD_COLUMN, {"name": name, "field": described(field)})
        self._columns[name] = field

    def drop_column(self, name: str) -> None:
        """Drop a column added later from the stores of all shards, with its values: as ``Store.drop_column``.

        With a disk, it is dropped there, too. A client that still writes values of it adds it again; batches of its
        views, if it called ``add_column``, have it without values.

        Raises:
            ValueError: no shard has such a column.
            ShardLostError, OSError: some shards may have dropped it: call it again.
        """
        if name not in self._columns and name not in (there := self.columns):
            raise self._no_column("drop_column", name, there)
        self._members.call(Request.DROP_COLUMN, {"name": name})
        self._columns.pop(name, None)

    @staticmethod
    def _no_column(what: str, name: Any, there: Columns) -> ValueError:
        names = ", ".join(map(repr, there)) or "none"
        return ValueError(f"{what}: no column {name!r} was added; there are {names}; add_column() makes one")

    def write_column(
        self,
        name: str,
        ids: Batch | SequenceBatch | npt.ArrayLike,
        values: npt.ArrayLike,
        shards: npt.ArrayLike | None = None,
    ) -> int:
        """Write values of steps into a column added later, over earlier ones: as ``Store.write_column``.

        Args:
            ids: a batch of transitions, whose first steps are meant; a batch of sequences, whose real steps are meant
                (where ``batch.mask``); or ids of transitions, with ``shards``.
            values: [B, *shape]; of sequences [B, T, *shape], or of trained steps alone [B, length, *shape]. Of repeated
                steps the last one's counts.
            shards: ``batch.shards``, where ids are given.

        Returns:
            number of ids, or steps of windows, whose steps are held: not evicted or deleted, nor of a shard that began
            anew since or does not answer. A shard that lacks the column gets it.
        Raises:
            ValueError, TypeError: no such column, ids without shards, or values that do not fit; nothing was changed.
                A shard has another column of that name: others may have their values.
            MemoryError: a shard that lacks the column has no room for it; others may have their values.
            RuntimeError: with replicas, a shard's neighbor was away for 30 s; some shards may have their values, which
                count once the call, repeated, returns.
        """
        field = self._columns.get(name)
        if field is None and (field := (there := self.columns).get(name)) is None:
            raise self._no_column("write_column", name, there)
        try:
            return self._written(name, field, ids, values, shards)
        except (ValueError, TypeError):  # another client may have dropped the column, and added this one
            if name not in self._columns or not self._take_over_columns():
                raise
            return self._written(name, self._columns[name], ids, values, shards)

    def _written(self, name: str, field: Field, ids: Any, values: Any, shards: Any) -> int:
        links = list(self._members.now())
        checked = checked_values(name, field, ids, values, shards, Tag(self._local._log.tag, STEPS), links)
        head = {"name": name, "field": described(field)}
        return sum(send_values(link, head, checked) for link in links)

    def _take_over_columns(self) -> bool:
        """Take over the kinds of this object's columns that shards have now; return whether others than before."""
        try:
            return take_over(self._columns, self._members.call(Request.DESCRIBE, {"columns": True}))
        except ShardLostError:
            return False

    def fetch(
        self,
        ids: Batch | npt.ArrayLike,
        shards: npt.ArrayLike | None = None,
        *,
        fields: Sequence[str] | None = None,
    ) -> Batch:
        """Return steps by their ids, from all shards: as ``Store.fetch``.

        Args:
            ids: a batch of transitions; or ids, with ``shards``: ``batch.ids``, ``episode.ids``.
            shards: ``batch.shards``, ``episode.shards``, where ids are given.
            fields: names of the fields that the batch has, which alone are read and sent, as for ``sample``.

        Raises:
            KeyError: a step that was evicted or deleted, or whose shard began anew since.
            ValueError: ids of another cluster, or of windows; ids without shards.
            ShardLostError: the shard of a step cannot be reached.  DamagedError, MemoryError.
        """
        return fetched_steps(self._members, self._local, self._columns, ids, shards, fields)

    def episodes(self, *, order: Order = "oldest", where: str | None = None) -> RemoteEpisodes:
        """Find the episodes of all shards: as ``Store.episodes``.

        Their arrays are read from the shards on access. ``write_column`` takes an episode's ``ids`` and ``shards``.

        Args:
            order: over all shards; "oldest" and "newest" count the steps of an episode's own lane since.
            where: a condition in SQL, by which each shard judges its own episodes; it needs the extra ``sql`` there.

        Raises:
            ValueError, TypeError: an invalid argument.  ShardLostError: a shard cannot be reached.
        """
        checked, given = checked_order(order), _checked_where(where).get("where")
        return self._found(given, self.columns, checked)

    def _found(self, where: str | None, columns: Columns, order: Order | None = None) -> RemoteEpisodes:
        return found(self._members.now(), self.spec, columns, Tag(self._local._log.tag, STEPS), where, order)

    def derive(
        self,
        name: str,
        function: Callable[..., npt.ArrayLike],
        needs: Sequence[str] | None = None,
        *,
        field: Field | None = None,
        by: str = "episode",
        again: bool = False,
        unfinished: bool = False,
        where: str | None = None,
        progress: bool | Callable[[int, int], None] | None = None,
    ) -> int:
        """Compute a column from others, episode by episode, in this process: as ``Store.derive``, also its arguments.

        Shards send the arrays that ``function`` needs of many episodes at a time, and get their values so. Episodes
        that have all their values already are skipped, and only asked for these marks.

        Args:
            where: a condition in SQL, by which each shard judges its own episodes.

        Returns:
            number of steps whose values were computed, and are still held.
        Raises:
            ValueError, TypeError: as ``Store.derive``.  ShardLostError: a shard cannot be reached, or was started
                again: call it again, and it goes on where it was.
        """
        from sharpwave.data.derived import derive  # which few programs use

        given = _checked_where(where).get("where")
        target = ClusterColumns(
            self.columns, self._found, self.add_column, lambda: self._members.call(Request.FLUSH, {"views": False})
        )
        return derive(target, name, function, needs, field, by, again, unfinished, given, progress)

    def delete(self, *, where: str | None = None, episodes: Any = None) -> int:
        """Delete ended episodes of all shards: as ``Store.delete``.

        Batches that this object's views had requested ahead are requested anew, unless ``max_times_sampled`` limits
        their items' uses; other clients still receive theirs. A shard that dies meanwhile deleted all of its episodes
        or none: call it again.

        Args:
            where: a condition, by which each shard judges its own episodes; it needs the extra ``sql`` there. Or:
            episodes: one of ``episodes()``, or several. Those evicted or deleted meanwhile are passed over.

        Returns:
            number of steps deleted.
        Raises:
            ValueError, TypeError: an invalid argument.  ShardLostError, OSError: some shards, or with replicas some
            replicas, may have deleted theirs: call it again. With ``episodes=`` also: a shard was started again since
            they were found.
        """
        if (where is None) == (episodes is None):
            raise TypeError("delete: expected either where= or episodes=")
        if where is not None and not isinstance(where, str):
            raise TypeError(f'delete: where={where!r}, expected a condition in SQL, as "length < 10"')
        try:
            if where is None:
                return deleted(self._members.now(), episodes)
            return sum(int(one["deleted"]) for one in self._members.call(Request.DELETE, {"where": where}))
        finally:
            self._members.deletions += 1

    if not TYPE_CHECKING:  # it would know every name

        def __getattr__(self, name: str) -> Any:
            why = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in OF_STORES:
                why += '; call it on Store.open("DISK/shard-0/store") of each shard, while the cluster is closed'
            raise AttributeError(why)

    def flush(self) -> None:
        """Write all that the shards hold to their disks.  Raises: OSError, ShardLostError."""
        self._members.call(Request.FLUSH)

    def clear(self) -> None:
        """Evict every step of every shard."""
        self._members.call(Request.CLEAR)

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint of all shards at one moment, to a folder that all of them reach.

        Shards take no steps while it is written; writers keep theirs meanwhile. It contains every acknowledged step,
        with priorities and random states.

        Raises:
            OSError: a shard cannot write; an earlier checkpoint there is unchanged.
            FileExistsError: the folder holds something other than checkpoints of clusters.
        """
        self._members.check_open()
        if self._fleet is not None:
            self._fleet.checkpoint(path)
        elif self._members.directory:  # the service writes it
            asked = {"path": str(checked_folder("checkpoint", path).absolute())}
            self._members.ask_service(Request.CHECKPOINT, asked, CHECKPOINT_S)
        else:
            cut(self._members, path, self.spec, None)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        shards: int | None = None,
        disk: str | os.PathLike[str] | None = None,
        capacity: int | None = None,
        ram: int | str | None = None,
        disk_limit: int | str | None = None,
        secret: str | bytes | None = None,
        seed: int = 0,
    ) -> Self:
        """Open a checkpoint of a cluster, or the folder of one on disk, on this machine.

        Writers of the opened cluster resume their lanes if they are made with the same ``name``.

        Args:
            shards: number of shards; default: as before. A checkpoint opens in fewer: each shard merges several, with
                all their steps, and with the priorities, uses and counts of views. A single shard has no replicas.
            disk: a new or empty folder for the shards of a checkpoint of a cluster on disk; or a folder in which that
                copy was interrupted, which starts over.
            capacity, ram, disk_limit: of all shards together; default: as before. If shards are merged, each gets the
                limits of the largest merge.

        Raises:
            FileNotFoundError: the folder holds no cluster.  DamagedError: ``cluster.json`` is damaged.
            StoreInUseError: another process opens a checkpoint into ``disk``.
            ValueError, FileExistsError, ShardFailedError.
        """
        with opening(path, disk) as (found, folder, begins_from):
            count = _checked_shards(shards, found, path, begins_from)
            replicas = found.replicas if count > 1 else 0  # a single shard has no neighbor
            limits: dict[str, Any] = {"capacity": capacity, "ram": ram, "disk_limit": disk_limit}
            parts = found.parts if capacity is ram is disk_limit is None else 0
            if count < found.shards:
                given = {name: limit for name, limit in limits.items() if limit is not None}
                limits, parts = found.merged_limits(count, replicas) | given, 0
                _check_limited(limits, count, found, path)
            made = cls.__new__(cls)
            made._begin(found.spec, Security.of(secret), seed)
            try:
                plan = ShardPlan(
                    count, made._sockets(), **limits, disk=folder, security=made.security, found=found,
                    begins_from=begins_from, replicas=replicas, parts=parts,
                )  # fmt: skip
                made._run(plan, LocalShards(plan.settings(found.spec)))
                assert made._fleet is not None
                made._fleet.opened(found)
            except BaseException:
                made.close()
                raise
        return made

    def resize(self, *, shards: int) -> None:
        """Start further shards; draws stay exact.

        A new shard starts empty, with the limits of the others. Works for shards that this object started, or that
        belong to ``sharpwave serve``. For fewer shards, write a checkpoint, and open it with ``shards=``.

        Raises:
            ValueError: invalid number, fewer shards than there are, replicas, or nothing that could start shards.
            ShardFailedError: a shard does not start; shards started before it stay.
            OSError: the folder cannot be written to.
        """
        self._members.check_open()
        if self._fleet is not None:
            self._fleet.resize(shards)
        elif self._members.directory:
            self._members.ask_service(Request.RESIZE, {"shards": shards}, READY_S)
        else:
            raise ValueError("resize: these shards were started elsewhere; resize them there")
        self._members.renew(0.0)

    def close(self) -> None:
        """Disconnect; shards that this object started write pending data to their disks, and end.

        Writers and views of this object raise ValueError from then on. Close writers first; writers to shards that were
        started elsewhere can still be closed later, and send their pending segments.
        """
        self._members.close()
        self._undo.close()
        self._local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        there = f"sharpwave.connect({self.directory!r})"
        if not self.directory:
            there = 'sharpwave.Cluster.of(spec, [one[0] for one in cluster.where()["shards"]])'
        raise not_to_be_copied(self, f"connect to its shards with {there}")


def _checked_count(name: str, value: Any, most: int) -> int:
    """Return an argument as an integer.  Raises: ValueError."""
    if not is_integer(value) or not 1 <= value <= most:
        raise ValueError(f"writer: {name}={value!r}, expected an integer from 1 to {most}")
    return int(value)


def _checked_shards(shards: int | None, found: Manifest, path: Any, begins_from: Path | None) -> int:
    """Return in how many shards a folder is opened.  Raises: ValueError."""
    if shards is None or shards == found.shards:
        return found.shards
    if not is_integer(shards) or not 1 <= shards < found.shards:
        raise ValueError(
            f"open: shards={shards!r}, expected an integer from 1 to {found.shards}, as many as {os.fspath(path)!r} "
            "has; resize() adds shards to a cluster that runs"
        )
    if begins_from is None:
        raise ValueError(
            f"open: shards={shards}, but {os.fspath(path)!r} is the folder of a cluster of {found.shards} shards, "
            "expected a checkpoint: open the folder, write one with checkpoint(), and open that"
        )
    return int(shards)


def _check_limited(limits: Mapping[str, Any], shards: int, found: Manifest, path: Any) -> None:
    """Refuse a merge without limits, of a checkpoint that says none of its shards'.  Raises: ValueError."""
    bytes_limit = "disk_limit" if found.on_disk else "ram"
    if limits["capacity"] is limits[bytes_limit] is None:
        raise ValueError(
            f"open: shards={shards} of the {found.shards} of {os.fspath(path)!r}, which says no limit of its shards; "
            f"give capacity= or {bytes_limit}=, of all shards together"
        )


def _checked_where(where: Any) -> dict[str, str]:
    """Return the condition as a setting of a view, if there is one.  Raises: TypeError: shards take texts only."""
    if where is not None and not isinstance(where, str):
        raise TypeError(f"where={where!r}: a cluster takes a condition in SQL, as \"length > 10 and task = 'push'\"")
    return {} if where is None else {"where": where}


def _checked_sampler(sampler: Sampler | None) -> Sampler:
    sampler = Uniform() if sampler is None else sampler
    if type(sampler) not in SAMPLERS.values():
        raise ValueError(
            f"sampler={sampler!r}: shards have {', '.join(SAMPLERS)}; others need to know all items of all shards"
        )
    return sampler


def _delete(folder: str, process: int) -> None:
    if os.getpid() == process:  # no fork deletes it
        shutil.rmtree(folder, ignore_errors=True)


def connect(
    address: str, *, secret: str | bytes | None = None, tls_authority: str | None = None, seed: int = 0
) -> Cluster:
    """Return the cluster that ``sharpwave serve``, or a ``StoreServer``, serves at an address: "unix:PATH" or
    "HOST:PORT".

    Args:
        secret: shared secret; default: the environment variable SHARPWAVE_SECRET.
        tls_authority: PEM file by which its certificate is checked: connections are encrypted.
        seed: seed of the draws.

    Raises:
        ConnectionError: nothing answers there, or the secrets differ.
        ValueError: it has no shards yet: the first client defines the step, ``sw.Cluster(spec, address=...)``.
    """
    directory, security = Address.parse(address), Security.of(secret, authority=tls_authority)
    said = ask_directory(directory, security, None)
    if said["spec"] is None:
        raise ValueError(
            f"{address}: nothing is stored there yet; say what a step is: sharpwave.Cluster(spec, address={address!r})"
        )
    made = Cluster.__new__(Cluster)
    made._begin(Spec.from_json(said["spec"]), security, seed)
    made._members = members_of(directory, security, said)
    return made
