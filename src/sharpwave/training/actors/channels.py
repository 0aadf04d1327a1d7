"""Channels between a learner and its actors: messages on sockets, and counters and weights in shared memory.

Messages are frames of the store's wire, with a thread for each reader. Shared memory has no name: its backing file is
unlinked at once, so the system frees it with the last process that maps it, even after a crash.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Queue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sharpwave.agents.protocol import Agent
from sharpwave.codecs.shared import IS_SHARED
from sharpwave.segment_writer import SealedSegment
from sharpwave.serve import wire
from sharpwave.serve.remote_writer import put_request
from sharpwave.serve.segment_parts import dictionaries_in, segments_in
from sharpwave.serve.supervisor import CONTEXT
from sharpwave.serve.wire import Frame
from sharpwave.training.scores import EpisodeScore

# Messages

ARRIVAL, EPISODE, FAILURE = 1, 2, 3
"""Kinds of frames."""
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
        self._dictionaries |= dictionaries_in(parts)
        (copy,) = segments_in(head, parts, self._dictionaries)
        noticed = tuple(head["noticed"][0])
        segment = SealedSegment(head["lane"], head["first_step"], head["steps"], *copy, noticed)
        return Arrival(segment.steps, head["version"], segment, parts.get("td_error:0"))


# Counters

UNLIMITED = (1 << 63) - 1
LINE = 8
"""Words (int64) of a cache line. Each process writes to a line of its own, so that none invalidates another's."""


def shared_memory(nbytes: int) -> Any:
    """Allocate zeroed shared memory that can be passed to a child process as an argument."""
    return CONTEXT.RawArray("b", nbytes)


class _Word:
    """Attribute that is a word of the learner's line."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, counters: Counters, _: object) -> int:
        return int(counters.words[0, self._place])

    def __set__(self, counters: Counters, value: int) -> None:
        counters.words[0, self._place] = value


class Counters:
    """Counters of a run: one cache line for the learner and one for each actor, readable by all processes.

    Each word has one writer, except that the learner corrects the steps of an actor that has died.

    Args:
        actors: number of actors; with central inference one more, the process that infers.
        memory: shared memory of an existing instance, passed on by pickling to a child process; None: allocate it.
    Attributes:
        stop: 1: actors are to stop.
        steps: steps of the run that are in the store; schedules follow them.
        samples: transitions sampled since the replay ratio is counted.
        limit: steps that these actors may make in all; actors of a node are granted some at a time.
    """

    stop, steps, samples, limit = (_Word(place) for place in range(4))

    def __init__(self, actors: int, memory: Any = None) -> None:
        self.actors = actors
        self._memory = shared_memory((1 + actors) * LINE * 8) if memory is None else memory
        self.words = np.frombuffer(self._memory, np.int64).reshape(1 + actors, LINE)
        if memory is None:
            self.limit = UNLIMITED

    def __reduce__(self) -> tuple[Any, ...]:
        return Counters, (self.actors, self._memory)

    # written by actors

    @property
    def made(self) -> int:
        """Number of steps of all actors since this learner process began, including unsent ones."""
        return int(self.words[1:, 0].sum())

    def add_made(self, actor: int, steps: int) -> None:
        self.words[1 + actor, 0] += steps

    def set_made(self, actor: int, steps: int) -> None:
        """Correct the steps of a dead actor to the number received from it. Called by the learner."""
        self.words[1 + actor, 0] = steps

    def beats(self, actor: int) -> int:
        """Return an actor's heartbeat count, which grows while it works or waits for the learner."""
        return int(self.words[1 + actor, 1])

    def beat(self, actor: int) -> None:
        self.words[1 + actor, 1] += 1


# Weights

LATEST, SLOTS, WORDS = 0, 8, 8
"""Header in words (int64): the newest version in word 0, then from word 8 a cache line for each of the two slots."""
VERSION, CHECKSUM = 0, 1
"""Words of a slot's cache line."""
ATTEMPTS = 8
"""Attempts of a read. One fails only if the learner publishes twice during the copy; the actor reads again later."""


class SharedWeights:
    """Lock-free double buffer of weights: a new version is written to one slot while readers copy the other.

    A reader accepts its copy if the slot's version was the same before and after, and if a checksum over the weights
    and the version matches, which also catches writes that another core sees out of order. No process waits for
    another: if the writer dies in the middle, readers keep the previous version.

    Args:
        count: float32 numbers in a version.
        memory: shared memory of an existing instance, passed on by pickling to a child process; None: allocate it.
    """

    def __init__(self, count: int, memory: Any = None) -> None:
        self.count = count
        self._memory = shared_memory((SLOTS + 2 * WORDS) * 8 + 2 * count * 4) if memory is None else memory
        header = (SLOTS + 2 * WORDS) * 8
        self._words = np.frombuffer(self._memory, np.int64, header // 8)
        self._headers = self._words[SLOTS:].reshape(2, WORDS)
        self._slots = np.frombuffer(self._memory, np.float32, 2 * count, header).reshape(2, count)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedWeights, (self.count, self._memory)

    @property
    def latest(self) -> int:
        """Newest published version; 0 before the first."""
        return int(self._words[LATEST])

    def publish(self, parts: Sequence[torch.Tensor], version: int = 0) -> int:
        """Publish tensors, concatenated, and return the number of their version.

        Args:
            version: larger than all earlier versions; 0: the next one.
        Raises:
            ValueError: their size differs from ``count`` numbers.
        """
        version = version or self.latest + 1
        number = int(self._headers[0, VERSION] == self.latest)  # the slot that nobody reads
        slot, header = self._slots[number], self._headers[number]
        header[VERSION] = 0
        begin = 0
        for part in parts:
            end = begin + part.numel()
            torch.from_numpy(slot[begin:end]).copy_(part.detach().reshape(-1))
            begin = end
        if begin != self.count:
            raise ValueError(f"weights: got {begin:,} numbers, expected {self.count:,}")
        header[CHECKSUM] = _checksum(slot, version)
        header[VERSION] = version
        self._words[LATEST] = version
        return version

    def read(self, into: npt.NDArray[np.float32]) -> int | None:
        """Copy the newest version into ``into``, float32 [count], and return its number.

        Returns:
            None: nothing was published yet, or every attempt was overtaken by the writer; ``into`` is then undefined.
        """
        for _ in range(ATTEMPTS):
            version = self.latest
            if version == 0:
                return None
            for slot, header in zip(self._slots, self._headers, strict=True):
                if header[VERSION] != version:
                    continue
                _copy(into, slot)
                checksum = header[CHECKSUM]
                if header[VERSION] == version and checksum == _checksum(into, version):
                    return version
        return None


_copy = np.copyto


def _checksum(numbers: npt.NDArray[np.float32], version: int) -> int:
    return zlib.crc32(numbers.data, version & 0xFFFFFFFF)


def shared_weights(agent: Agent) -> SharedWeights:
    return SharedWeights(sum(part.numel() for part in agent.policy_tensors(explore=True).values()))


def load(agent: Agent, numbers: npt.NDArray[np.float32]) -> None:
    """Load weights that ``SharedWeights.read`` copied into an agent's policy."""
    tensors, begin = agent.policy_tensors(explore=True), 0
    for part in tensors.values():
        end = begin + part.numel()
        part.copy_(torch.from_numpy(numbers[begin:end]).view(part.shape))
        begin = end
    agent.load_policy(tensors)
