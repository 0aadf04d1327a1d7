"""Wire: frames of a header, a head of JSON, and arrays or bytes behind it. Nothing is pickled. Kinds of requests.

A frame is a header of 32 bytes (little-endian: magic, version, kind, number of the request, bytes of head and body, and
a checksum of both), then the head, a JSON object, then the body: its parts one after another, each at a multiple of 8.
The head's ``parts`` describes them: ``[name, dtype, shape]``, with the dtype ``"bytes"`` for plain bytes.
"""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bytes

HEADER = struct.Struct("<4sHHQIQI")
MAGIC = b"SWFR"
VERSION = 1
MAX_HEAD_BYTES = 1 << 20
MAX_BODY_BYTES = 1 << 30
"""Limits of a frame, and so of the memory that a peer makes a process allocate."""
MAX_STRANGER_BYTES = 1 << 12
"""Limit of head and body before the peer has proved that it knows the secret."""
MAX_PARTS = 1 << 16
MAX_FDS = 64
PARTS = "parts"
DTYPES = {np.dtype(kind).str for kind in "?bhiqBHIQefd"}
"""Dtypes of arrays that a frame may hold."""

Part = npt.NDArray[Any] | bytes | bytearray | memoryview


class WireError(ConnectionError):
    """Error of a peer that sent something other than a frame; the connection is closed."""


@dataclass
class Frame:
    """Message: its kind, its head, and its parts by name.

    Attributes:
        kind: number of the request's or the reply's kind. ``number``: of the request, which the reply repeats.
        head: JSON values. ``parts``: arrays and bytes, views of the received memory.
        fds: received file descriptors; the receiver closes them. ``nbytes``: size of the received frame.
        dictionaries: of encoded rows among the parts, if a link received it.
        refused: error if there was no memory for it; then it has neither head nor parts.
    """

    kind: int
    number: int
    head: dict[str, Any]
    parts: dict[str, Any] = field(default_factory=dict)
    fds: list[int] = field(default_factory=list)
    nbytes: int = 0
    dictionaries: Any = None
    refused: MemoryError | None = None


def send(
    to: socket.socket,
    kind: int,
    number: int,
    head: Mapping[str, Any],
    parts: Mapping[str, Part] | None = None,
    fds: Sequence[int] = (),
) -> int:
    """Send a frame; return its bytes.

    Args:
        fds: file descriptors to pass, over a unix socket.

    Raises:
        OSError: the connection is closed, or times out.

    Cost: some 20 us, and the copy of the parts into the system's buffers.
    """
    described, buffers, at = [], [], 0
    for name, part in (parts or {}).items():
        if isinstance(part, np.ndarray):
            data = np.ascontiguousarray(part)
            described.append([name, data.dtype.str, list(data.shape)])
            buffer = data.reshape(-1).view(np.uint8).data if data.size else memoryview(b"")
        else:
            buffer = memoryview(part)
            described.append([name, "bytes", [buffer.nbytes]])
        padding = -at % 8
        if padding:
            buffers.append(memoryview(bytes(padding)))
        buffers.append(buffer)
        at += padding + buffer.nbytes
    text = json.dumps({**head, PARTS: described} if described else dict(head), separators=(",", ":")).encode()
    if len(text) > MAX_HEAD_BYTES or at > MAX_BODY_BYTES:
        raise ValueError(
            f"a message of {len(text):,} and {at:,} bytes, expected at most {MAX_HEAD_BYTES:,} and {MAX_BODY_BYTES:,}"
        )
    checksum = _checksum([memoryview(text), *buffers])
    header = HEADER.pack(MAGIC, VERSION, kind, number, len(text), at, checksum)
    nbytes = len(header) + len(text) + at
    if fds:
        socket.send_fds(to, [header], list(fds))
        _send_all(to, [memoryview(text), *buffers])
    elif at < 1 << 16:
        to.sendall(b"".join([header, text, *buffers]))
    else:
        _send_all(to, [memoryview(header), memoryview(text), *buffers])
    return nbytes


def _send_all(to: socket.socket, buffers: list[memoryview]) -> None:
    for begin in range(0, len(buffers), 64):
        rest = [one for one in buffers[begin : begin + 64] if one.nbytes]
        while rest:
            sent = to.sendmsg(rest) if hasattr(to, "sendmsg") and not _is_tls(to) else to.send(rest[0])
            while rest and sent >= rest[0].nbytes:
                sent -= rest.pop(0).nbytes
            if sent:
                rest[0] = rest[0][sent:]


def _is_tls(one: socket.socket) -> bool:
    return hasattr(one, "cipher")


def _checksum(buffers: Sequence[memoryview]) -> int:
    value = 0
    for one in buffers:
        if one.nbytes:
            value = zlib.crc32(one, value)
    return value


def receive(
    of: socket.socket,
    max_body: int = MAX_BODY_BYTES,
    max_head: int = MAX_HEAD_BYTES,
    fds: bool = False,
    admit: Callable[[int, int, int], None] | None = None,
) -> Frame | None:
    """Receive a frame; ``None``: the peer has closed the connection between two frames.

    Args:
        max_body, max_head: limits in bytes. ``fds``: whether file descriptors may accompany it.
        admit: called with its kind and its bytes of head and body, before memory is taken for them: waits, or raises
            MemoryError.

    Raises:
        WireError: it is malformed, larger, or of another version.  OSError: the connection broke, or timed out.
    """
    given: list[int] = []
    header = bytearray(HEADER.size)
    got = 0
    try:
        if fds:
            first, given, _, _ = socket.recv_fds(of, HEADER.size, MAX_FDS)
            header[: len(first)] = first
            got = len(first)
            if not got:
                return None
        if not _receive_into(of, memoryview(header)[got:], may_end=not got):
            return None
        magic, version, kind, number, head_bytes, body_bytes, checksum = HEADER.unpack(header)
        if magic != MAGIC:
            raise WireError(f"a frame begins with {bytes(magic)!r}, expected {MAGIC!r}: no sharpwave peer")
        if version != VERSION:
            raise WireError(f"a frame of version {version}, expected {VERSION}: both ends need the same release")
        if head_bytes > max_head or body_bytes > max_body:
            raise WireError(
                f"a frame of {head_bytes:,} and {body_bytes:,} bytes, expected at most {max_head:,} and {max_body:,}"
            )
        # Pages take memory as they fill. The body is at a multiple of 8, as its parts are in it.
        try:
            if admit is not None:
                admit(kind, head_bytes, body_bytes)
            memory = np.empty(-head_bytes % 8 + head_bytes + body_bytes, np.uint8)[-head_bytes % 8 :]
        except MemoryError as error:
            _skip(of, head_bytes + body_bytes)
            close_all(given)
            return Frame(kind, number, {}, refused=error.with_traceback(None))
        _receive_into(of, memory.data)
        if _checksum([memory[:head_bytes].data, memory[head_bytes:].data]) != checksum:
            raise WireError("a frame whose checksum does not match its bytes")
        return Frame(kind, number, *_parsed(memory, head_bytes), given, HEADER.size + head_bytes + body_bytes)
    except BaseException:
        close_all(given)
        raise


def _receive_into(of: socket.socket, memory: memoryview, may_end: bool = False) -> bool:
    got = 0
    while got < memory.nbytes:
        count = of.recv_into(memory[got : got + (1 << 24)])
        if not count:
            if may_end and not got:
                return False
            raise WireError(f"the connection ended after {got:,} of {memory.nbytes:,} bytes")
        got += count
    return True


def _skip(of: socket.socket, nbytes: int) -> None:
    """Receive bytes for which there is no memory."""
    some = memoryview(bytearray(min(nbytes, 1 << 16)))
    while nbytes:
        _receive_into(of, some[:nbytes])
        nbytes -= min(nbytes, len(some))


def _parsed(memory: Bytes, head_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a frame's head and its parts.  Raises: WireError."""
    try:
        head = json.loads(memory[:head_bytes].tobytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a frame's head is no JSON ({error})") from error
    if not isinstance(head, dict):
        raise WireError(f"a frame's head is {type(head).__name__}, expected an object")
    described, body = head.pop(PARTS, []), memory[head_bytes:]
    if not isinstance(described, list) or len(described) > MAX_PARTS:
        raise WireError(f"a frame's {PARTS}: expected a list of at most {MAX_PARTS}")
    parts: dict[str, Any] = {}
    at = 0
    for one in described:
        name, dtype, shape = _described(one)
        at += -at % 8
        itemsize = 1 if dtype == "bytes" else np.dtype(dtype).itemsize
        nbytes = itemsize * math.prod(shape)
        if at + nbytes > body.size:
            raise WireError(f"part {name!r} of {shape} {dtype} ends beyond the frame's {body.size} bytes")
        data = body[at : at + nbytes]
        if dtype == "bytes":
            parts[name] = data.data
        else:
            try:
                parts[name] = data.view(dtype).reshape(shape)
            except ValueError as error:  # of no elements, but with sizes that are too large
                raise WireError(f"part {name!r} of {shape} {dtype}: {error}") from error
        at += nbytes
    if at != body.size:
        raise WireError(f"a frame's parts are {at} bytes, its body {body.size}")
    return head, parts


def _described(one: Any) -> tuple[str, str, list[int]]:
    if (
        isinstance(one, list)
        and len(one) == 3
        and isinstance(one[0], str)
        and (one[1] == "bytes" or one[1] in DTYPES)
        and isinstance(one[2], list)
        and len(one[2]) <= 32
        and all(type(size) is int and 0 <= size < 1 << 40 for size in one[2])
    ):
        return one[0], one[1], one[2]
    raise WireError(f"part {one!r}, expected [name, dtype, shape]")


def _no_constant(text: str) -> float:
    if text == "NaN":
        raise ValueError("NaN")
    return math.inf if text == "Infinity" else -math.inf


def array_in(parts: Mapping[str, Any], name: str, dtype: npt.DTypeLike, *shape: int) -> npt.NDArray[Any]:
    """Return a part that must be an array of this dtype and shape, in which -1 is any size.  Raises: WireError."""
    part = parts.get(name)
    if isinstance(part, np.ndarray) and part.dtype == dtype and len(part.shape) == len(shape):
        sizes = tuple(-1 if wanted < 0 else size for wanted, size in zip(shape, part.shape, strict=True))
        if sizes == shape:
            return part
    there = f"{part.dtype} {list(part.shape)}" if isinstance(part, np.ndarray) else type(part).__name__
    expected = ", ".join("n" if size < 0 else str(size) for size in shape)
    raise WireError(f"part {name!r}: {there}, expected {np.dtype(dtype)} [{expected}]")


def close_all(fds: Sequence[int]) -> None:
    """Close file descriptors."""
    for fd in fds:
        os.close(fd)


class Request(IntEnum):
    """Kind of a request; the reply has the same kind, or ``FAILED``."""

    DESCRIBE = 16
    VIEW = 17
    STATE = 18
    DRAW = 19
    UPDATE = 20
    FETCH = 21
    LEASE = 22
    PUT = 23
    CREDIT = 24
    STATS = 25
    FLUSH = 26
    PAUSE = 27
    RESUME = 28
    CHECKPOINT = 29
    ANNOTATE = 31
    CLEAR = 32
    ADD_COLUMN = 33
    WRITE_COLUMN = 34
    DELETE = 35
    FORGET = 36
    FIND = 37
    REPLICATE = 40
    RESTORE = 41
    DROP_COLUMN = 42
    EPISODES = 43
    READ_EPISODES = 44
    EPISODE_INFO = 45
    KEEP_COLUMNS = 46
    GIVE_COLUMNS = 47
    DIRECTORY = 64
    RESIZE = 65
    JOIN = 80
    POLL = 81
    LEAVE = 82


FAILED = 255
"""Kind of the reply to a request that raised; its head has the error's ``kind`` and ``text``."""

TRANSITIONS, SEQUENCES = "transitions", "sequences"


MAX_SAID = 1e60
"""Limit of the numbers in a view's state: sums over shards remain finite."""


@dataclass(frozen=True)
class ViewState:
    """State of a view in one shard, part of every reply.

    Attributes:
        mass: sum of its items' masses. ``count``: items that can be sampled. ``uses``: total of remaining uses; -1:
            without limit.
        inserts: steps held when the view was made, and appended since. ``samples``: items that it drew.
        max_priority: largest priority so far.
    """

    mass: float = 0.0
    count: int = 0
    uses: int = -1
    inserts: int = 0
    samples: int = 0
    max_priority: float = 1.0

    @classmethod
    def read(cls, described: Any) -> Self:
        """Return the state in ``described``.  Raises: WireError."""
        try:
            values: dict[str, Any] = {
                one.name: (float if one.type == "float" else int)(described[one.name]) for one in fields(cls)
            }
            if not all(0 <= value <= MAX_SAID for name, value in values.items() if name != "uses"):
                raise ValueError(f"expected numbers from 0 to {MAX_SAID:g}")
            return cls(**values)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WireError(f"a view's state {described!r} lacks or has wrong values ({error})") from error
