"""Transport from an actor to the learner: segments and episodes as frames of raw bytes in a pipe. No pickling."""

from __future__ import annotations

import json
import os
import struct
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from sharpwave.log.boundaries import NOTICED
from sharpwave.segment_writer import SealedSegment
from sharpwave.training.scores import Episode

FRAME = struct.Struct("<II")  # kind, bytes that follow
SEGMENT, EPISODE, FAILURE, CALLBACK_FAILURE, DELIVERED = 1, 2, 3, 4, 5
ABOUT_SEGMENT = struct.Struct(f"<QQQIII{len(NOTICED)}I")
"""Lane, first step, weights' version; steps, TD errors, dictionaries; what was noticed."""
ABOUT_DICTIONARY = struct.Struct("<QI")  # key; bytes that follow, 0: the learner has the dictionary already
ABOUT_DELIVERED = struct.Struct("<IQ")  # steps, weights' version
ABOUT_EPISODE = struct.Struct("<dQI")  # reward, steps, lane; then its figures as JSON, if it has any
MAX_FRAME_BYTES = 1 << 30
"""Size limit of a frame, and so of what the learner buffers of an incomplete one."""
MAX_READ_BYTES = 1 << 18
"""Bytes that the learner reads from one actor before it turns to the others."""
MAX_DICTIONARIES = 64
"""Dictionaries that both ends of a pipe cache."""


@dataclass(frozen=True)
class Arrival:
    """Segment as the learner receives it.

    Attributes:
        version: version of the weights that chose its first step.
        td_error: float32 [steps]; None: the agent computes no initial priorities.
    """

    segment: SealedSegment
    version: int
    td_error: npt.NDArray[np.float32] | None


@dataclass(frozen=True)
class Delivered:
    """Steps of a segment that went to a shard instead; ``version`` as of an ``Arrival``."""

    steps: int
    version: int


@dataclass(frozen=True)
class Failure:
    """Traceback of an actor that failed.

    Attributes:
        by_callback: an actor callback raised.
    """

    text: str
    by_callback: bool = False


Message = Arrival | Delivered | Episode | Failure


class _Remembered:
    """Cache of the dictionaries used last. Both ends see the same uses in the same order, so their caches agree."""

    def __init__(self) -> None:
        self._data: OrderedDict[int, bytes] = OrderedDict()

    def get(self, key: int) -> bytes | None:
        return self._data.get(key)

    def use(self, key: int, data: bytes) -> None:
        self._data[key] = data
        self._data.move_to_end(key)
        if len(self._data) > MAX_DICTIONARIES:
            self._data.popitem(last=False)


class Outbox:
    """The actor's end of a pipe. Sending blocks while the pipe is full; BrokenPipeError means the learner has ended."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._remembered = _Remembered()

    def send_segment(self, arrival: Arrival) -> None:
        """Send a segment together with those of its dictionaries that the learner does not have.

        Raises:
            ValueError: the segment is larger than ``MAX_FRAME_BYTES``.
        """
        sealed, errors = arrival.segment, arrival.td_error
        count = 0 if errors is None else len(errors)
        parts = [
            ABOUT_SEGMENT.pack(
                sealed.lane,
                sealed.first_step,
                arrival.version,
                sealed.steps,
                count,
                len(sealed.dictionaries),
                *sealed.noticed,
            )
        ]
        for key, data in sealed.dictionaries.items():
            known = self._remembered.get(key) is not None
            parts += [ABOUT_DICTIONARY.pack(key, 0 if known else len(data)), b"" if known else data]
            self._remembered.use(key, data)
        if errors is not None:
            parts.append(errors.astype("<f4").tobytes())
        parts.append(sealed.packed)
        nbytes = sum(map(len, parts))
        if nbytes > MAX_FRAME_BYTES:
            raise ValueError(
                f"a segment takes {nbytes:,} bytes, expected at most {MAX_FRAME_BYTES:,}; give fewer --segment-steps"
            )
        self._send(SEGMENT, b"".join(parts))

    def send_delivered(self, delivered: Delivered) -> None:
        """Tell the learner of steps that a shard got."""
        self._send(DELIVERED, ABOUT_DELIVERED.pack(delivered.steps, delivered.version))

    def send_episode(self, episode: Episode) -> None:
        """Send the score, the length and the figures of an episode that has ended."""
        figures = json.dumps(dict(episode.figures)).encode() if episode.figures else b""
        self._send(EPISODE, ABOUT_EPISODE.pack(episode.reward, episode.steps, episode.lane) + figures)

    def send_failure(self, text: str, by_callback: bool = False) -> None:
        """Send the traceback of the error that ends the actor."""
        self._send(CALLBACK_FAILURE if by_callback else FAILURE, text.encode(errors="replace"))

    def _send(self, kind: int, content: bytes) -> None:
        rest = memoryview(FRAME.pack(kind, len(content)) + content)
        while rest:
            rest = rest[os.write(self._pipe.fileno(), rest) :]


class Inbox:
    """The learner's end of a pipe. Reading never blocks: incomplete frames are buffered until the rest arrives.

    Attributes:
        ended: the actor has closed its end or died; nothing more will arrive.
    """

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.ended = False
        os.set_blocking(pipe.fileno(), False)
        self._bytes = bytearray()
        self._remembered = _Remembered()

    def receive(self) -> list[Message]:
        """Return the messages that are complete. Reads at most about ``MAX_READ_BYTES``, so a large frame takes calls.

        Raises:
            ValueError: the bytes are not those of an ``Outbox``.
        """
        taken = 0  # without the buffered part of an incomplete frame, which may exceed MAX_READ_BYTES
        while not self.ended and taken < MAX_READ_BYTES:
            try:
                content = os.read(self.pipe.fileno(), MAX_READ_BYTES)
            except BlockingIOError:
                break
            self._bytes += content
            taken += len(content)
            self.ended = not content
        return list(self._messages())

    def _messages(self) -> Iterator[Message]:
        begin = 0
        try:
            while len(self._bytes) - begin >= FRAME.size:
                kind, nbytes = FRAME.unpack_from(self._bytes, begin)
                if nbytes > MAX_FRAME_BYTES:
                    raise ValueError(f"a frame of {nbytes:,} bytes from an actor, expected at most {MAX_FRAME_BYTES:,}")
                end = begin + FRAME.size + nbytes
                if end > len(self._bytes):
                    break
                content = bytes(memoryview(self._bytes)[begin + FRAME.size : end])
                begin = end
                try:
                    yield self._message(kind, content)
                except struct.error as error:
                    raise ValueError(f"a frame of kind {kind} from an actor is too short: {error}") from error
        finally:
            del self._bytes[:begin]

    def _message(self, kind: int, content: bytes) -> Message:
        if kind == EPISODE:
            reward, steps, lane = ABOUT_EPISODE.unpack_from(content)
            said = json.loads(content[ABOUT_EPISODE.size :] or b"{}")
            return Episode(reward, steps, lane, {str(name): float(value) for name, value in said.items()})
        if kind == DELIVERED:
            return Delivered(*ABOUT_DELIVERED.unpack_from(content))
        if kind in (FAILURE, CALLBACK_FAILURE):
            return Failure(content.decode(errors="replace"), kind == CALLBACK_FAILURE)
        if kind != SEGMENT:
            raise ValueError(f"a frame of kind {kind} from an actor, expected {SEGMENT} to {DELIVERED}")
        lane, first_step, version, steps, errors, count, *noticed = ABOUT_SEGMENT.unpack_from(content)
        at = ABOUT_SEGMENT.size
        dictionaries = {}
        for _ in range(count):
            key, nbytes = ABOUT_DICTIONARY.unpack_from(content, at)
            at += ABOUT_DICTIONARY.size
            data = content[at : at + nbytes] if nbytes else self._remembered.get(key)
            if data is None:
                raise ValueError(f"an actor refers to dictionary {key:016x}, which it has not sent")
            at += nbytes
            self._remembered.use(key, data)
            dictionaries[key] = data
        if at + 4 * errors > len(content):
            raise ValueError(f"a segment of {len(content)} bytes from an actor is too short")
        td_error = np.frombuffer(content, "<f4", errors, at).astype(np.float32) if errors else None
        sealed = SealedSegment(lane, first_step, steps, content[at + 4 * errors :], dictionaries, tuple(noticed))
        return Arrival(sealed, version, td_error)
