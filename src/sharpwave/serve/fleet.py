"""Fleet: the shards of a cluster as the process has them that started them. It adds shards, and drains them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sharpwave.errors import StoreInUseError
from sharpwave.serve.addresses import HERE, Security, nearest
from sharpwave.serve.cuts import delete_when_free
from sharpwave.serve.draining import Count, Drain
from sharpwave.serve.forks import follow
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.local_shards import MAX_SHARDS, LocalShards, Plan
from sharpwave.serve.log_lines import LOG, failure
from sharpwave.serve.manifest import Manifest
from sharpwave.serve.ray_cluster import RayShards
from sharpwave.serve.requests import Request
from sharpwave.spec import Spec

LOOK_S = 0.2
"""Pause between looks at shards that are drained."""


class Fleet:
    """Shards that this process has started, until ``close``.

    Args:
        draining: the drain that was under way when they were opened, as of the manifest.

    Attributes:
        plan: by which they were made. ``processes``: of the shards. ``link``: returns a new link to one, by number.
        spec: of their steps.
        lock: held while shards come or go.
    """

    def __init__(
        self,
        spec: Spec,
        plan: Plan,
        processes: LocalShards | RayShards,
        link: Callable[[int], Link],
        draining: dict[str, Any] | None = None,
    ) -> None:
        self.plan, self.processes, self.link, self.spec = plan, processes, link, spec
        self._drain = Drain.of(draining) if draining else None
        self._links: dict[int, Link] = {}
        self.lock = threading.RLock()
        self._closing = threading.Event()
        self._process = os.getpid()
        follow(self)
        self._thread: threading.Thread | None = None
        if self._drain is not None:
            self._try_look()  # before anybody asks a shard for lanes that does not know yet that it is drained
            self._watch()

    def forked(self) -> None:
        """Leave the shards to the parent, which drains and stops them."""
        self.lock, self._thread, self._closing = threading.RLock(), None, threading.Event()
        self.processes.leave()

    def check_process(self, what: str) -> None:
        """Refuse what only the process can do that has started the shards.  Raises: StoreInUseError."""
        if self._process != os.getpid():
            raise StoreInUseError(
                f"{what}: process {self._process} has started these shards; this is process {os.getpid()}, forked from "
                "it: do that there"
            )

    def __len__(self) -> int:
        return self.processes.count

    def manifest(self) -> Manifest:
        """Return what the folder of the shards says."""
        with self.lock:
            draining = {} if self._drain is None else self._drain.state()
            return replace(self.plan.manifest(self.spec), shards=len(self), draining=draining)

    def write(self, **about_to_change: Any) -> None:
        """Write the manifest to the folder of the shards, if they have one.  Raises: OSError.

        Args:
            about_to_change: what it says other than is so yet: fields of ``Manifest``.
        """
        if self.plan.disk is not None and isinstance(self.processes, LocalShards):
            replace(self.manifest(), **about_to_change).write(self.plan.disk)

    def opened(self, found: Manifest) -> None:
        """Make the folder that these shards were opened from say what is so now.

        What is left of a shard that was being removed when its parent was killed is deleted: one that is added begins
        empty, and steps that this one had evicted would come back with it. New limits are those of the next life, too.

        Nobody else has the folder: these shards have begun there.

        Args:
            found: what the folder said.

        Raises: as ``delete_when_free``, ``write``.
        """
        with self.lock:
            if found.leaving and self.plan.disk is not None:
                delete_when_free(self.plan.disk / f"shard-{found.shards}")
            if replace(self.manifest(), draining=found.draining) != found:
                self.write()

    def resize(self, shards: int, drain: bool = True) -> None:
        """Start shards, or begin to drain the last ones.  Raises: as ``Cluster.resize``."""
        self.check_process("resize")
        if self.plan.replicas:
            raise ValueError("resize: with replicas the number of shards stays; open a new cluster with more")
        if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
            raise ValueError(f"resize: shards={shards!r}, expected an integer from 1 to {MAX_SHARDS}")
        with self.lock:
            new = [self.plan.one_more(self.spec, number) for number in range(len(self), shards)]
            before, self._drain = self._drain, None
            try:
                if shards < len(self):
                    began = Drain(shards, at_once=not drain)
                    counts = [self._count(number) for number in range(len(self))]
                    for number in range(shards, len(self)):
                        began.begin(number, counts[number], counts[:shards])
                    self._drain = began
                if before is not None:
                    staying = [self._count(number) for number in range(before.keeps)]
                    for number in range(before.keeps, min(shards, len(self))):
                        self._ask(number, Request.DRAIN, {"evict": self._evicted(before, number, staying)})
            except BaseException:
                self._drain = before
                raise
            count = len(self)
            try:
                for one in new:  # clients write to one as soon as it is there: by then the folder has to name it
                    self.write(shards=one.number + 1)
                    self.processes.add(one)
                if not new:
                    self.write()
            except BaseException:  # those that have begun stay, where one does not
                if len(self) == count:
                    self._drain = before
                with contextlib.suppress(OSError):
                    self.write()
                raise
            if self._drain is not None:
                with contextlib.suppress(ShardLostError):  # it has begun; the thread goes on
                    self._look()
                self._watch()

    def _watch(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look_on, name="sharpwave-drain", daemon=True)
            self._thread.start()

    def _look_on(self) -> None:
        while not self._closing.wait(LOOK_S):
            with self.lock:
                if self._drain is None:
                    self._thread = None
                    return
                self._try_look()

    def _try_look(self) -> None:
        try:
            self._look()
        except ShardLostError:
            pass  # it is started again
        except Exception as error:
            LOG.error("a drain does not get on: %s", failure(error))

    def _look(self) -> None:
        """Evict what is due of the shards that are drained, and remove the last if it is empty and nobody writes to it.

        Raises: ShardLostError.
        """
        drain = self._drain
        if drain is None:
            return
        staying = [self._count(number) for number in range(drain.keeps)]
        where = self.processes.where()
        staying_where = {name: one[: drain.keeps] if isinstance(one, list) else one for name, one in where.items()}
        news = False
        for number in range(len(self) - 1, drain.keeps - 1, -1):
            elsewhere = staying_where | {"at_once": drain.over(number, staying)}
            said = self._ask(number, Request.DRAIN, {"elsewhere": elsewhere, "evict": drain.due(number, staying)})
            news |= drain.appended(number, Count(said["steps"], said["total_steps"]), staying)
            if number == len(self) - 1 and not said["steps"] and not said["writers"] and self._removed(drain):
                news = False
                if (drain := self._drain) is None:
                    break
        if news:
            self.write()

    def _evicted(self, drain: Drain, number: int, staying: list[Count]) -> int:
        """Return how many of the first steps of a drained shard are evicted: one on disk that was killed may have them
        again, and nobody would evict them once its drain has ended."""
        return 0 if self.plan.disk is None else min(drain.due(number, staying), drain.marks[number][-1][1])

    def _removed(self, drain: Drain) -> bool:
        """Remove the last shard, once another has what limiters counted there, and the folder no longer names it.

        Returns whether it was removed: not if a writer has sent it something meanwhile.

        Raises: ShardLostError, OSError.
        """
        last = len(self) - 1
        ceded = self._ask(last, Request.CEDE)
        if "counts" not in ceded:
            return False
        left = drain.without(last)
        try:
            self._ask(0, Request.INHERIT, ceded)
            ceded = {}  # it has them
            self.write(shards=last, draining=left.state() if left.marks else {}, leaving=True)
        except BaseException:
            self._ask(last, Request.INHERIT, ceded)
            raise
        self._drain = left if left.marks else None
        self._links.pop(last).close()
        self.processes.remove()
        with contextlib.suppress(OSError):  # then it still names a store that is gone
            self.write()
        return True

    def _ask(self, number: int, kind: Request, head: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask a shard, twice if its connection broke.  Raises: ShardLostError."""
        if number not in self._links:
            self._links[number] = self.link(number)
        link = self._links[number]
        try:
            return link.call(kind, head or {}).head
        except ShardLostError:
            return link.call(kind, head or {}).head

    def _count(self, number: int) -> Count:
        said = self._ask(number, Request.DESCRIBE)
        return Count(int(said["steps"]), int(said["total_steps"]))

    def close(self) -> None:
        """Stop the shards, which write what is left to their disks; in a forked process, disconnect."""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        for link in self._links.values():
            link.close()
        if self._process == os.getpid():
            self.processes.close()


def started_link(processes: LocalShards | RayShards, security: Security) -> Callable[[int], Link]:
    """Return a function that makes a link to the shard of a number, of those that this process has started."""

    def link(number: int) -> Link:
        return Link(nearest(processes.where(), HERE)[number], security, moved=processes.moved(number))

    return link
