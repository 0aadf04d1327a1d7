"""Views of a shard: made and found by name, counted while connections use them, dropped where others need the place."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sharpwave.sampling.ordered import Fifo, Lifo
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.sampler_protocol import Sampler
from sharpwave.sampling.uniform import Uniform
from sharpwave.serve.intake import Intake
from sharpwave.serve.server import Client
from sharpwave.serve.wire import SEQUENCES, TRANSITIONS, Frame, ViewState
from sharpwave.store import Store
from sharpwave.views.batch_source import BatchSource
from sharpwave.views.layout import LARGE
from sharpwave.views.view_protocol import View
from sharpwave.views.view_replay import Replay

SAMPLERS: dict[str, type[Any]] = {one.__name__: one for one in (Uniform, Prioritized, Fifo, Lifo)}
"""Samplers of shards, by name. Ranks among all items cannot be known to one shard."""
UNUSED_S = 300.0
"""Time for which a view that no connection uses keeps its place, and its limiter holds writers up."""
MAX_VIEWS = 16
"""Views of a shard; each takes 8 to 20 bytes for every step that the store has room for."""


@dataclass(eq=False)
class ShardView:
    """View of a shard's store.

    Attributes:
        number: of the view. ``asked``: its settings. ``item_bytes``: bytes of memory that a draw takes for an item:
            working memory, and columns that are sent as they are.
        rows: steps of an item.
        steps_before: steps of the store before the view. ``users``: connections. ``limiting``: connections whose
            limiter bounds it. ``unused_since``: time at which its last user left; inf: it has some.
        credit: total of the store's steps up to which writers may append; ``None``: without limit.
            ``unlimited_since``: time at which its last limiting connection left; inf: it has some.
    """

    replay: Replay[Any]
    number: int
    asked: dict[str, Any]
    item_bytes: tuple[int, int] = field(init=False)
    rows: int = field(init=False)
    steps_before: int = field(init=False)
    users: set[int] = field(default_factory=set)
    limiting: set[int] = field(default_factory=set)
    unused_since: float = math.inf
    credit: int | None = None
    unlimited_since: float = math.inf

    def __post_init__(self) -> None:
        view: Any = self.replay.view
        self.item_bytes = item_bytes(view)
        self.rows = view.burn_in + view.length if self.asked["kind"] == SEQUENCES else 1
        self.steps_before = self.replay.source.pace.steps_before

    def source(self, names: frozenset[str] | None) -> BatchSource:
        """Return the source of batches with fields of these names only; ``None``: of all."""
        if names is None:
            return self.replay.source
        with self.replay.lock:
            return self.replay.source.only(names)

    def state(self, store: Store) -> ViewState:
        """Return the state that every reply has."""
        items, sampler = self.replay.source.items, self.replay.sampler
        with self.replay.lock:
            items.follow()
            mass = items.count if items.uses is not None else getattr(sampler, "mass", items.count)
            return ViewState(
                float(mass),
                items.count,
                -1 if items.uses is None else int(items.uses_left),
                store.total_steps - self.steps_before,
                items.samples,
                float(getattr(sampler, "max_priority", 1.0)),
            )

    def leave(self, client: int, now: float) -> bool:
        """Note that a connection no longer uses it; return whether it was the last whose limiter bounds it."""
        self.users.discard(client)
        if not self.users:
            self.unused_since = now
        was_last = self.limiting == {client}
        self.limiting.discard(client)
        return was_last


class ShardViews:
    """Views of a shard's store, by number. May be called from several threads.

    A view is in use while a connection that has asked for it is open and has not said that it forgets it. One that
    nobody has used for ``UNUSED_S``, or that its last user forgot, no longer holds writers up, and makes room for
    another where there are ``MAX_VIEWS``.
    """

    def __init__(self, store: Store, intake: Intake) -> None:
        self._store, self._intake = store, intake
        intake.held_up = self._hold_up
        self._views: dict[int, ShardView] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    @property
    def replays(self) -> dict[int, Replay[Any]]:
        """Views of the store, by number."""
        return {number: view.replay for number, view in self._views.items()}

    def ask(self, client: Client, head: Mapping[str, Any]) -> ShardView:
        """Make a view, or find the one of that name, which must have the same settings.  Raises: ValueError."""
        asked = {name: head.get(name) for name in ("name", "kind", "settings", "sampler", "max_times_sampled")}
        with self._lock:
            view = self._named(asked["name"])
            if view is None:
                unused = self._least_used(asked["name"]) if len(self._views) >= MAX_VIEWS else None
                view = ShardView(self._made(asked, head.get("seed")), next(self._numbers), asked)
                if unused is not None:
                    del self._views[unused.number]
                    self._intake.look_again()
                self._views[view.number] = view
            elif view.asked != asked:
                wrong = next(key for key in asked if asked[key] != view.asked[key])
                raise ValueError(
                    f"view {asked['name']!r} is there with other settings: {wrong} is {view.asked[wrong]!r}, "
                    f"asked for was {asked[wrong]!r}; give yours another name="
                )
            view.users.add(id(client))
            view.unused_since = math.inf
        return view

    def _named(self, name: Any) -> ShardView | None:
        return next((view for view in self._views.values() if view.asked["name"] == name), None)

    def _least_used(self, name: Any) -> ShardView:
        """Return the view that was unused for longest, which view ``name`` may replace.  Raises: ValueError."""
        view = min(self._views.values(), key=lambda one: one.unused_since)
        if time.monotonic() - view.unused_since < UNUSED_S:
            names = ", ".join(repr(one.asked["name"]) for one in self._views.values())
            raise ValueError(
                f"view {name!r}: there are {len(self._views)} views, of at most {MAX_VIEWS}, each used by an "
                f"object that lives, or was used within {UNUSED_S:g} s: {names}; use one of them, or free an object "
                "that uses one (del)"
            )
        return view

    def _made(self, asked: Mapping[str, Any], seed: Any) -> Replay[Any]:
        settings, kind = asked["settings"], asked["kind"]
        given: dict[str, Any] = {
            "name": asked["name"],
            "sampler": _sampler(asked["sampler"]),
            "max_times_sampled": asked["max_times_sampled"],
            "seed": seed,
        }
        if not isinstance(asked["name"], str):
            raise ValueError(f"view {asked['name']!r}, expected a name")
        if not isinstance(settings, dict) or kind not in (TRANSITIONS, SEQUENCES):
            raise ValueError(f"view of kind {kind!r}, expected {TRANSITIONS!r} or {SEQUENCES!r}")
        make: Any = self._store.transitions if kind == TRANSITIONS else self._store.sequences
        try:
            made: Replay[Any] = make(**settings, **given)
        except (TypeError, ModuleNotFoundError) as error:  # names and values are a stranger's
            raise ValueError(f"view {asked['name']!r} with settings {settings!r:.200}: {error}") from error
        with made.lock:  # columns added later are read apart, so that every batch fits the memory it was requested with
            view: Any = made.view
            view.late = False
            made.source.take_columns()
        return made

    def of(self, frame: Frame) -> ShardView:
        """Return the view that a request names.  Raises: KeyError."""
        number = frame.head.get("view")
        view = self._views.get(number) if type(number) is int else None
        if view is None:
            raise KeyError(f"view {number!r}: there is none of that number; ask for it by name first")
        return view

    def set_credit(self, client: Client, view: ShardView, inserts: int | None) -> None:
        """Let writers append until the view has counted ``inserts`` steps; ``None``: without limit."""
        with self._lock:
            if inserts is not None and id(client) in view.users:
                view.limiting.add(id(client))
                view.unlimited_since = math.inf
            view.credit = None if inserts is None else inserts + view.steps_before
        self._intake.look_again()

    def _hold_up(self) -> bool:
        """Return whether a view whose limiter is in use, or was used recently, has no credit left."""
        total, lapsed = self._store.total_steps, time.monotonic() - UNUSED_S
        limited = [(one.credit, one.unlimited_since) for one in list(self._views.values())]
        return any(credit is not None and total >= credit and since > lapsed for credit, since in limited)

    def left(self, client: Client) -> None:
        """Note that a connection has ended."""
        with self._lock:
            for view in self._views.values():
                if id(client) in view.users and view.leave(id(client), now := time.monotonic()):
                    view.unlimited_since = now

    def forget(self, client: Client, name: Any) -> None:
        """Note that a client no longer uses a view; if it was the last client, none will return to it."""
        with self._lock:
            view = self._named(name)
            if view is not None and id(client) in view.users:
                client.forget(view.number)
                if view.leave(id(client), time.monotonic() - UNUSED_S):
                    view.credit = None
                    self._intake.look_again()


def item_bytes(view: View[Any]) -> tuple[int, int]:
    """Return the bytes that a draw takes for an item: working memory, and columns that are sent as they are."""
    sizes = [column.item.itemsize for column in view.columns().values()]
    return 8 * (view.scratch_rows + 3), sum(size for size in sizes if size < LARGE)


def _sampler(described: Any) -> Sampler:
    """Return a new sampler.  Raises: ValueError."""
    kind = described.get("kind") if isinstance(described, dict) else None
    if not isinstance(kind, str) or kind not in SAMPLERS:
        raise ValueError(f"sampler {described!r}, expected one of {', '.join(SAMPLERS)}")
    try:
        made: Sampler = SAMPLERS[kind](**{name: value for name, value in described.items() if name != "kind"})
    except TypeError as error:
        raise ValueError(f"sampler {described!r:.200}: {error}") from error
    return made
