"""Messages of an actor to its pool: frames of the store's wire on a pair of sockets, with a thread for each reader."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from queue import Queue
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.codecs.shared import IS_SHARED
from sharpwave.segment_writer import SealedSegment
from sharpwave.serve import wire
from sharpwave.serve.remote_writer import put_request
from sharpwave.serve.value_parts import values_of
from sharpwave.serve.wire import Frame
from sharpwave.training.scores import EpisodeScore

ARRIVAL, EPISODE, FAILURE = 1, 2, 3
"""Kinds of frames."""
PREFIX = "dictionary:"
"""Of the names of parts that are dictionaries, by key."""
MAX_DICTIONARIES = 64
"""Limit of dictionaries that both ends remember. Beyond it, both forget all of them before the next segment."""


@dataclass(frozen=True)
class Arrival:
    """Steps of an actor: in a shard already, or in a segment for the learner's store.

    Attributes:
        version: version of the weights that chose the first step.
        segment: None: a shard has the steps.
        td_error: float32 [steps]; None: the agent computes no initial priorities, or a shard has them.
    """

    steps: int
    version: int
    segment: SealedSegment | None = None
    td_error: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Failure:
    """Traceback of an actor that failed.

    Attributes:
        by_callback: an actor callback raised.
    """

    text: str
    by_callback: bool = False


Message = Arrival | EpisodeScore | Failure


class Outbox:
    """The actor's end. Sending blocks while the learner does not read."""

    def __init__(self, to: socket.socket) -> None:
        self._to = to
        self._sent: set[int] = set()  # keys of dictionaries

    def send(self, message: Message) -> None:
        """Send a message, with the dictionaries that the learner lacks.

        Raises:
            OSError: the learner has ended.  ValueError: the segment exceeds the limit of a frame.
        """
        head: dict[str, Any]
        parts: dict[str, Any] = {}
        if isinstance(message, Failure):
            kind, head = FAILURE, {"by_callback": message.by_callback}
            parts = {"text": message.text.encode(errors="replace")}  # of any length
        elif isinstance(message, EpisodeScore):
            kind = EPISODE
            head = {"steps": message.steps, "lane": message.lane, "names": list(message.figures)}
            parts = {"figures": np.array([message.reward, *message.figures.values()])}  # JSON has no NaN
        else:
            kind, head, segment = ARRIVAL, {"steps": message.steps, "version": message.version}, message.segment
            if segment is not None:
                if len(self._sent) >= MAX_DICTIONARIES:
                    self._sent.clear()
                put, parts = put_request(segment, message.td_error, self._sent)
                head |= put | {"lane": segment.lane, "first_step": segment.first_step}
                self._sent.update(key for key in segment.dictionaries if not key & IS_SHARED)
        wire.send(self._to, kind, 0, head, parts)


class Inbox:
    """The learner's end: a thread that puts the actor's messages into a queue.

    An actor that is stopped in the middle of a message holds up its thread only.

    Args:
        queue: shared by several; its items are the owner and a message, or None once no more will arrive.

    Attributes:
        ended: for the reader of the queue to note that None arrived.
    """

    def __init__(self, of: socket.socket, queue: Queue[tuple[Any, Message | None]], owner: Any) -> None:
        self._of, self._queue, self._owner = of, queue, owner
        self.ended = False
        self._dictionaries: dict[int, bytes] = {}
        threading.Thread(target=self._read, name="sharpwave-inbox", daemon=True).start()

    def finish(self) -> None:
        """Let the thread end after the bytes that the actor has sent, also where a process of its own lives on and
        holds the other end open."""
        with contextlib.suppress(OSError):
            self._of.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close the socket; the queue's reader has noted the end."""
        self._of.close()

    def _read(self) -> None:
        try:
            while (frame := wire.receive(self._of)) is not None:
                self._queue.put((self._owner, self._message(frame)))
        except (OSError, LookupError):  # it was killed in mid-write, or does not follow the protocol: its last message
            pass
        finally:
            self._queue.put((self._owner, None))

    def _message(self, frame: Frame) -> Message:
        head, parts = frame.head, frame.parts
        if frame.kind == FAILURE:
            return Failure(bytes(parts["text"]).decode(), head["by_callback"])
        if frame.kind == EPISODE:
            reward, *figures = parts["figures"].tolist()
            return EpisodeScore(reward, head["steps"], head["lane"], dict(zip(head["names"], figures, strict=True)))
        if "segment:0" not in parts:
            return Arrival(head["steps"], head["version"])
        if len(self._dictionaries) >= MAX_DICTIONARIES:
            self._dictionaries.clear()
        for name, part in parts.items():
            if name.startswith(PREFIX):
                self._dictionaries[int(name[len(PREFIX) :], 16)] = bytes(part)
        shared = {int(key, 16): self._dictionaries[int(key, 16)] for key in head["keys"][0]} | values_of(parts)
        packed, noticed = bytes(parts["segment:0"]), tuple(head["noticed"][0])
        segment = SealedSegment(head["lane"], head["first_step"], head["steps"], packed, shared, noticed)
        return Arrival(segment.steps, head["version"], segment, parts.get("td_error:0"))
