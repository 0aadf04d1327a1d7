"""Views of a shard: made and found by name, counted while connections use them, dropped where others need the place."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from typing import Any

from sharpwave.sampling.ordered import Fifo, Lifo
from sharpwave.sampling.prioritized import Prioritized
from sharpwave.sampling.protocol import Sampler
from sharpwave.sampling.uniform import Uniform
from sharpwave.serve.intake import UNUSED_S, Intake
from sharpwave.serve.server import Client
from sharpwave.serve.wire import SEQUENCES, TRANSITIONS, Frame, ViewState
from sharpwave.store import Store
from sharpwave.views.layout import LARGE
from sharpwave.views.replay import Replay

SAMPLERS: dict[str, type[Any]] = {one.__name__: one for one in (Uniform, Prioritized, Fifo, Lifo)}
"""Samplers of shards, by name. Ranks among all items cannot be known to one shard."""
MAX_VIEWS = 16
"""Views of a shard; each takes 8 to 20 bytes for every step that the store has room for."""


class ShardViews:
    """Views of a shard's store, by number. May be called from several threads.

    A view is in use while a connection that has asked for it is open and has not said that it forgets it. One that
    nobody has used for ``UNUSED_S``, or that its last user forgot, no longer holds writers up, and makes room for
    another where there are ``MAX_VIEWS``.

    Attributes:
        replays: by number.
    """

    def __init__(self, store: Store, intake: Intake) -> None:
        self._store, self._intake = store, intake
        self.replays: dict[int, Replay[Any]] = {}
        self._settings: dict[int, dict[str, Any]] = {}
        self._inserts_before: dict[int, int] = {}
        self._item_bytes: dict[int, tuple[int, int, int]] = {}  # working memory, small columns, all columns
        self._users: dict[int, set[int]] = {}  # connections
        self._limiting: dict[int, set[int]] = {}  # connections whose limiter bounds the view
        self._unused_since: dict[int, float] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def ask(self, client: Client, head: Mapping[str, Any]) -> int:
        """Make a view, or find the one of that name, which must have the same settings; return its number.

        Raises: ValueError, TypeError.
        """
        asked = {name: head.get(name) for name in ("name", "kind", "settings", "sampler", "max_times_sampled")}
        name = asked["name"]
        with self._lock:
            number = next((one for one, settings in self._settings.items() if settings["name"] == name), None)
            if number is None:
                unused = self._least_used(name) if len(self.replays) >= MAX_VIEWS else None
                made = self._made(asked, head.get("seed"))
                if unused is not None:
                    self._drop(unused)
                number = next(self._numbers)
                self.replays[number], self._settings[number], self._users[number] = made, asked, set()
                self._limiting[number] = set()
                self._inserts_before[number] = made.source.pace.steps_before
                sizes = [column.item.itemsize for column in made.view.columns().values()]
                small = sum(size for size in sizes if size < LARGE)
                self._item_bytes[number] = 8 * (made.view.scratch_rows + 3), small, sum(sizes)
            elif (settings := self._settings[number]) != asked:
                wrong = [key for key in asked if asked[key] != settings[key]]
                raise ValueError(
                    f"view {name!r} is there with other settings: {wrong[0]} is {settings[wrong[0]]!r}, "
                    f"asked for was {asked[wrong[0]]!r}; give yours another name="
                )
            self._users[number].add(id(client))
            self._unused_since.pop(number, None)
        return number

    def _least_used(self, name: Any) -> int:
        """Return the view that was unused for longest, which view ``name`` may replace.  Raises: ValueError."""
        number = min(self._unused_since, key=self._unused_since.__getitem__, default=None)
        if number is None or time.monotonic() - self._unused_since[number] < UNUSED_S:
            names = ", ".join(repr(settings["name"]) for settings in self._settings.values())
            raise ValueError(
                f"view {name!r}: there are {len(self.replays)} views, of at most {MAX_VIEWS}, each used by an "
                f"object that lives, or was used within {UNUSED_S:g} s: {names}; use one of them, or free an object "
                "that uses one (del)"
            )
        return number

    def _drop(self, number: int) -> None:
        tables: list[dict[int, Any]] = [self.replays, self._settings, self._inserts_before, self._item_bytes]
        for table in (*tables, self._users, self._limiting, self._unused_since):
            table.pop(number, None)
        self._intake.set_credit(number, None)
        self._intake.used(number)

    def _made(self, asked: Mapping[str, Any], seed: Any) -> Replay[Any]:
        settings = asked["settings"]
        given: dict[str, Any] = {
            "name": asked["name"],
            "sampler": _sampler(asked["sampler"]),
            "max_times_sampled": asked["max_times_sampled"],
            "seed": seed,
        }
        if not isinstance(asked["name"], str):
            raise ValueError(f"view {asked['name']!r}, expected a name")
        if not isinstance(settings, dict) or asked["kind"] not in (TRANSITIONS, SEQUENCES):
            raise ValueError(f"view of kind {asked['kind']!r}, expected {TRANSITIONS!r} or {SEQUENCES!r}")
        make: Any = self._store.transitions if asked["kind"] == TRANSITIONS else self._store.sequences
        try:
            made: Replay[Any] = make(**settings, **given)
        except TypeError as error:  # names and values are a stranger's
            raise ValueError(f"view {asked['name']!r} with settings {settings!r:.200}: {error}") from error
        return made

    def item_bytes(self, number: int, shared: bool, cut: bool) -> int:
        """Return the bytes of memory that a draw takes for an item, without memory kept for the next draw.

        Args:
            shared: the draw goes to memory of the client. ``cut``: large rows are not decoded.
        """
        work, small, whole = self._item_bytes[number]
        return work + (0 if shared else small if cut else 2 * whole)

    def of(self, frame: Frame) -> tuple[int, Replay[Any]]:
        """Return the view that a request names.  Raises: KeyError."""
        number = frame.head.get("view")
        replay = self.replays.get(number) if type(number) is int else None
        if replay is None:
            raise KeyError(f"view {number!r}: there is none of that number; ask for it by name first")
        assert type(number) is int
        return number, replay

    def state(self, number: int) -> ViewState:
        """Return the state of a view that every reply has."""
        replay = self.replays[number]
        items, sampler = replay.source.items, replay.sampler
        with replay.lock:
            items.follow()
            left = items.uses_left
            mass = float(items.count) if items.uses is not None else float(getattr(sampler, "mass", items.count))
            return ViewState(
                mass,
                items.count,
                -1 if items.uses is None else int(left),
                self._store.total_steps - self._inserts_before[number],
                items.samples,
                float(getattr(sampler, "max_priority", 1.0)),
            )

    def set_credit(self, client: Client, number: int, inserts: int | None) -> None:
        """Let writers append until the view has counted ``inserts`` steps; ``None``: without limit."""
        if inserts is None:
            self._intake.set_credit(number, None)
            return
        with self._lock:
            if id(client) in self._users[number]:
                self._limiting[number].add(id(client))
                self._intake.used(number)
        self._intake.set_credit(number, inserts + self._inserts_before[number])

    def left(self, client: Client) -> None:
        """Note that a connection has ended."""
        with self._lock:
            for number, users in self._users.items():
                if id(client) in users:
                    users.discard(id(client))
                    if not users:
                        self._unused_since[number] = time.monotonic()
                    if self._limits_no_more(client, number):
                        self._intake.unused(number)

    def forget(self, client: Client, name: Any) -> None:
        """Note that a client no longer uses a view; if it was the last client, none will return to it."""
        with self._lock:
            number = next((one for one, settings in self._settings.items() if settings["name"] == name), None)
            if number is not None and id(client) in (users := self._users[number]):
                users.discard(id(client))
                client.forget(number)
                if not users:
                    self._unused_since[number] = time.monotonic() - UNUSED_S
                if self._limits_no_more(client, number):
                    self._intake.set_credit(number, None)

    def _limits_no_more(self, client: Client, number: int) -> bool:
        """Note that a client no longer uses a view; return whether it was the last whose limiter bounds it."""
        limiting = self._limiting[number]
        before = len(limiting)
        limiting.discard(id(client))
        return before == 1 and not limiting


def _sampler(described: Any) -> Sampler:
    """Return a new sampler.  Raises: ValueError."""
    kind = described.get("kind") if isinstance(described, dict) else None
    if kind not in SAMPLERS:
        raise ValueError(f"sampler {described!r}, expected one of {', '.join(SAMPLERS)}")
    try:
        made: Sampler = SAMPLERS[kind](**{name: value for name, value in described.items() if name != "kind"})
    except TypeError as error:
        raise ValueError(f"sampler {described!r:.200}: {error}") from error
    return made
