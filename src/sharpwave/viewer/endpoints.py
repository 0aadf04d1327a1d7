"""Endpoints of the viewer: the page's files, and its data as JSON and PNG."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from importlib import resources
from importlib.util import find_spec
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sharpwave.errors import DamagedError
from sharpwave.escaping import escaped
from sharpwave.extras import install
from sharpwave.offline.surveys import EpisodeSpan, TooLargeError
from sharpwave.viewer import frame_pictures, step_curves
from sharpwave.viewer.action_values import NoValuesError, curves_of
from sharpwave.viewer.overview import episode_row, field_rows, overview
from sharpwave.viewer.priorities import distributions
from sharpwave.viewer.snapshots import MAX_DECODED_BYTES, MAX_READ_STEPS, SORTS, Snapshot
from sharpwave.viewer.version_sources import VersionSources, differences
from sharpwave.viewer.watching import Watched

TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8",
}  # fmt: skip
MAX_ROWS = 500
"""Limit of the episodes in one response."""
MAX_CACHE_BYTES = 64 << 20
AT_A_TIME = 2
"""Number of requests that decode at the same time."""
FIRST_WAIT_S = 2.0
"""Time that the first request for a source waits for its reading."""
FILTERS_NEED = ("duckdb", "pyarrow")
MAX_NAMES, MAX_ERROR_CHARACTERS = 100, 2000


class Endpoints:
    """Data of sources, by their numbers.

    Args:
        decode: of tokens; ``None``: they are shown as numbers.
    """

    def __init__(self, watched: list[Watched], decode: step_curves.Decode | None = None) -> None:
        self._watched, self._decode = watched, decode
        self._versions = VersionSources()
        self._turns = threading.BoundedSemaphore(AT_A_TIME)
        self._pictures: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._picture_bytes = 0
        self._lock = threading.Lock()

    def sources(self, request: Request) -> Response:
        """List the sources, each followed by the versions of its store."""
        told = []
        for number, one in enumerate(self._watched):
            told.append(self._told(number, one))
            for version in self._versions.listed(one):
                told.append(self._told(f"{number}@{version.name}", self._versions.source(number, one, version)))
        return _json(told)

    def versions(self, request: Request) -> Response:
        """List the versions of a source's store."""
        number, one = self._ready(request)
        return _json([] if isinstance(number, str) else self._versions.rows(number, one))

    def differences(self, request: Request) -> Response:
        """Return what differs between a source and another one (``with``)."""
        _, _, snapshot = self._snapshot(request)
        _, _, other = self._snapshot(request, request.query_params.get("with", ""))
        return _json(self._decoded(lambda: differences(snapshot, other)))

    def status(self, request: Request) -> Response:
        """Return whether a source has new data, and begin to read it."""
        number, one = self._source(request)
        one.ask()
        return _json(self._told(number, one))

    def _told(self, number: int | str, one: Watched) -> dict[str, Any]:
        snapshot, (done, total) = one.snapshot, one.progress
        return {
            "id": number,
            "name": escaped(one.source.name),
            "path": escaped(one.source.path),
            "kind": one.source.kind,
            "live": one.live(),
            "version": one.version,
            "updating": one.updating,
            "read": done if one.updating else None,
            "to_read": total if one.updating else None,
            "has_memory": snapshot is not None,
            "has_log": one.log is not None,
            "age_s": None if snapshot is None else time.time() - snapshot.taken,
            "trouble": one.trouble,
        }

    def overview(self, request: Request) -> Response:
        """Return all data of a source except its episodes' steps."""
        number, one = self._ready(request)
        return _json({"source": self._told(number, one), **overview(one)})

    def curve(self, request: Request) -> Response:
        """Return a run's log."""
        _, one = self._ready(request)
        if one.log is None:
            raise HTTPException(404, "this is no run: it has no log")
        return _json(one.log.shown())

    def episodes(self, request: Request) -> Response:
        """List episodes, sorted by a column."""
        _, _, snapshot = self._snapshot(request)
        lane = _number(request, "lane", 1 << 62, -1)
        offset, limit = _number(request, "offset", 1 << 40), _number(request, "limit", MAX_ROWS, 100)
        order = self._order(request, snapshot, None if lane < 0 else lane)
        rows = [episode_row(snapshot, number) for number in order[offset : offset + limit].tolist()]
        return _json({"total": len(order), "of": len(snapshot.episodes), "offset": offset, "rows": rows})

    def filters(self, request: Request) -> Response:
        """Return the columns that filters may name, and what has to be installed for filters."""
        _, _, snapshot = self._snapshot(request)
        if any(find_spec(name) is None for name in FILTERS_NEED):
            return _json({"columns": [], "needs": f"Filters need DuckDB and pyarrow: {install('sql')}"})
        return _json({"columns": [escaped(one)[:100] for one in snapshot.table.column_names[:MAX_NAMES]], "needs": ""})

    def episode(self, request: Request) -> Response:
        """Return one episode's data, the layout of its pictures, and its neighbors in an order."""
        _, _, snapshot = self._snapshot(request)
        number, episode = self._episode(request, snapshot)
        order = self._order(request, snapshot)
        previous, following = _neighbours(order.tolist(), number)
        return _json(
            {
                **episode_row(snapshot, number),
                "previous": None if previous is None else episode_row(snapshot, previous),
                "next": None if following is None else episode_row(snapshot, following),
                "frames": episode.steps + (episode.end != "unfinished"),
                "annotations": dict(episode.annotations),
                "pictures": [row for row in field_rows(snapshot) if row["picture"]],
            }
        )

    def steps(self, request: Request) -> Response:
        """Return curves of an episode."""
        _, _, snapshot = self._snapshot(request)
        _, episode = self._episode(request, snapshot)
        begin = min(_number(request, "begin", 1 << 40), episode.steps - 1)
        end = min(_number(request, "end", 1 << 40, begin + MAX_READ_STEPS), episode.steps)
        return _json(self._decoded(lambda: step_curves.curves(snapshot, episode, begin, max(end, begin + 1))))

    def values(self, request: Request) -> Response:
        """Return the Q-values of an episode's steps once they are computed, or the reason why it has none."""
        _, one, snapshot = self._snapshot(request)
        _, episode = self._episode(request, snapshot)
        begin = min(_number(request, "begin", 1 << 40), episode.steps - 1)
        end = max(begin + 1, min(_number(request, "end", 1 << 40, begin + MAX_READ_STEPS), episode.steps))
        try:
            found = one.values.ask(snapshot, episode)
        except NoValuesError as error:
            return _json({"state": "none", "why": escaped(error)})
        if found is None:
            return _json({"state": "computing"})
        return _json({"state": "ready", **curves_of(found, begin, end)})

    def step(self, request: Request) -> Response:
        """Return all values of one step."""
        _, _, snapshot = self._snapshot(request)
        _, episode = self._episode(request, snapshot)
        step = min(_number(request, "step", 1 << 40), episode.steps - 1)
        return _json(self._decoded(lambda: step_curves.values_at(snapshot, episode, step, self._decode)))

    def frames(self, request: Request) -> Response:
        """Draw ``count`` evenly spaced frames from step ``begin`` to step ``end``, both included."""
        number, _, snapshot = self._snapshot(request)
        _, episode = self._episode(request, snapshot)
        fields = list(snapshot.survey.described.spec.fields.items())
        name, field = fields[_number(request, "field", len(fields) - 1)]
        if name not in snapshot.survey.described.spec.obs_names or not frame_pictures.is_picture(field):
            raise HTTPException(400, "this field is no picture")
        last = episode.steps - (episode.end == "unfinished")
        begin = min(_number(request, "begin", 1 << 40), last)
        end = min(_number(request, "end", 1 << 40, last), last)
        side = _number(request, "side", frame_pictures.SHOWN_SIDE, frame_pictures.SHOWN_SIDE)
        count = _number(request, "count", frame_pictures.frames_in_one(field, side), 1)
        if end < begin or not count or side < 8:
            raise HTTPException(400, "expected begin <= end, a count of at least 1, a side of at least 8")
        wanted = np.unique(np.linspace(begin, end, min(count, end - begin + 1)).round().astype(np.int64))
        identity = snapshot.survey.described.identity.store
        key = (number, identity, episode.lane, episode.first_step, episode.steps, name, begin, end, count, side)
        picture = self._cached(key)
        if picture is None:
            picture = self._decoded(lambda: self._sheet(snapshot, episode, name, wanted, side))
            self._cache(key, picture)
        return Response(picture, media_type="image/png", headers={"cache-control": "private, max-age=300"})

    def _sheet(self, snapshot: Snapshot, episode: EpisodeSpan, name: str, wanted: Any, side: int) -> bytes:
        field = snapshot.survey.described.spec.fields[name]
        places = {step: place for place, step in enumerate(wanted.tolist())}
        found = snapshot.survey.frames(episode, name, wanted, limit=MAX_DECODED_BYTES)
        drawn = [(step, frame_pictures.pixels_of(value, field)) for step, value in found]
        return frame_pictures.sheet(drawn, places, field, side)

    def priorities(self, request: Request) -> Response:
        """Return distributions of a view's priorities, TD errors and uses."""
        _, _, snapshot = self._snapshot(request)
        if not snapshot.views:
            raise HTTPException(404, snapshot.trouble or "no checkpoint with a view was written yet")
        view = snapshot.views[_number(request, "view", len(snapshot.views) - 1)]
        return _json(distributions(view, snapshot.survey))

    # shared by requests

    def _source(self, request: Request, named: str | None = None) -> tuple[int | str, Watched]:
        """Return the source of a request, or the one ``named``, and its id: ``N``, or ``N@NAME`` for a version."""
        text, _, version = (str(request.path_params["source"]) if named is None else named).partition("@")
        if not (text.isascii() and text.isdecimal()) or len(text) > 4 or int(text) >= len(self._watched):
            raise HTTPException(404, "no such source")
        number, one = int(text), self._watched[int(text)]
        if not version:
            return number, one
        try:
            return f"{number}@{version}", self._versions.watched(number, one, version)
        except KeyError as error:
            raise HTTPException(404, escaped(error.args[0])) from error

    def _ready(self, request: Request, named: str | None = None) -> tuple[int | str, Watched]:
        number, one = self._source(request, named)
        if one.snapshot is None and not one.version:
            one.ask()
            one.wait(FIRST_WAIT_S)
        return number, one

    def _snapshot(self, request: Request, named: str | None = None) -> tuple[int | str, Watched, Snapshot]:
        number, one = self._ready(request, named)
        if (snapshot := one.snapshot) is None:
            reading = "the store is being read for the first time ..." if one.updating else "no steps are on disk yet"
            raise HTTPException(404, one.trouble or reading)
        return number, one, snapshot

    def _episode(self, request: Request, snapshot: Snapshot) -> tuple[int, EpisodeSpan]:
        try:
            number = snapshot.number_of(_number(request, "lane", 1 << 62), _number(request, "first", 1 << 62))
        except KeyError as error:
            raise HTTPException(410, str(error.args[0])) from error
        return number, snapshot.episodes[number]

    def _order(self, request: Request, snapshot: Snapshot, lane: int | None = None) -> Any:
        """Return the numbers of the episodes that a request asks for, in its order."""
        sort, where = request.query_params.get("sort", "written"), request.query_params.get("where", "")
        if sort not in SORTS:
            raise HTTPException(400, f"sort: expected one of {', '.join(SORTS)}")
        down, whole = (bool(_number(request, name, 1)) for name in ("desc", "whole"))
        with self._turns if where else contextlib.nullcontext():
            try:
                return snapshot.order(sort, down, whole, lane, where)
            except (ValueError, ModuleNotFoundError, MemoryError) as error:
                raise HTTPException(400, escaped(error)[:MAX_ERROR_CHARACTERS] or "out of memory") from error

    def _decoded(self, work: Callable[[], Any]) -> Any:
        """Run ``work`` in turn; turn errors of decoding into responses."""
        with self._turns:
            try:
                return work()
            except TooLargeError as error:
                raise HTTPException(413, escaped(error)) from error
            except DamagedError as error:
                raise HTTPException(410, f"cannot be read, or was evicted meanwhile: {escaped(error)}") from error

    def _cached(self, key: tuple[Any, ...]) -> bytes | None:
        with self._lock:
            if (found := self._pictures.get(key)) is not None:
                self._pictures.move_to_end(key)
            return found

    def _cache(self, key: tuple[Any, ...], picture: bytes) -> None:
        with self._lock:
            if key not in self._pictures:
                self._pictures[key] = picture
                self._picture_bytes += len(picture)
            while self._picture_bytes > MAX_CACHE_BYTES:
                self._picture_bytes -= len(self._pictures.popitem(last=False)[1])


def make_app(watched: list[Watched], decode: step_curves.Decode | None = None) -> Starlette:
    """Make the application that serves these sources, wrapped in ``Guard``; ``decode``: as for ``Endpoints``."""
    at = Endpoints(watched, decode)
    routes = [
        Route("/api/sources", at.sources),
        Route("/api/{source}/status", at.status),
        Route("/api/{source}/overview", at.overview),
        Route("/api/{source}/versions", at.versions),
        Route("/api/{source}/differences", at.differences),
        Route("/api/{source}/curve", at.curve),
        Route("/api/{source}/episodes", at.episodes),
        Route("/api/{source}/filters", at.filters),
        Route("/api/{source}/episode", at.episode),
        Route("/api/{source}/steps", at.steps),
        Route("/api/{source}/step", at.step),
        Route("/api/{source}/values", at.values),
        Route("/api/{source}/frames.png", at.frames),
        Route("/api/{source}/priorities", at.priorities),
        *(Route("/" if name == "index.html" else f"/{name}", one) for name, one in _files().items()),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _refused})


def _files() -> dict[str, Callable[[Request], Response]]:
    """Return the page's files, read once: no path of a request ever names a file."""
    found = {}
    for one in resources.files("sharpwave.viewer").joinpath("static").iterdir():
        kind = TYPES.get(f".{one.name.rpartition('.')[2]}")
        if kind is not None:
            found[one.name] = _file(one.read_bytes(), kind)
    return found


def _file(content: bytes, kind: str) -> Callable[[Request], Response]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'

    def answer(request: Request) -> Response:
        headers = {"etag": tag, "cache-control": "no-cache", "content-type": kind}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return answer


def _neighbours(order: list[int], number: int) -> tuple[int | None, int | None]:
    """Return the numbers before and after a number in an order; ``None`` at its ends."""
    if number not in order:
        return None, None
    place = order.index(number)
    return order[place - 1] if place else None, order[place + 1] if place + 1 < len(order) else None


def _json(value: Any) -> Response:
    body = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: names may hold lone surrogates
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = json.dumps({"error": error.detail})
    return Response(body, error.status_code, media_type="application/json", headers={"cache-control": "no-store"})


def _number(request: Request, name: str, most: int, default: int = 0) -> int:
    """Return a number in the query, from 0 to ``most``.  Raises: HTTPException."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= most):
        raise HTTPException(400, f"{name}: expected a number from 0 to {most}")
    return int(text)
