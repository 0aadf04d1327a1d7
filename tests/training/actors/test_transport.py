"""Frames through a pipe: what goes in comes out, whole, whatever pieces the pipe makes of it."""

import os
import threading
import time

import numpy as np
import pytest

from sharpwave.segment_writer import SealedSegment
from sharpwave.serve.supervisor import CONTEXT
from sharpwave.training.actors.transport import (
    FRAME,
    MAX_DICTIONARIES,
    MAX_FRAME_BYTES,
    MAX_READ_BYTES,
    Arrival,
    Delivered,
    Failure,
    Inbox,
    Message,
    Outbox,
)  # fmt: skip
from sharpwave.training.scores import Episode


def random_arrival(rng, known):
    """A segment with some dictionaries, old or new, with or without errors."""
    keys = rng.choice(list(known), rng.integers(0, 3), replace=False).tolist()
    steps = int(rng.integers(1, 40))
    sealed = SealedSegment(
        int(rng.integers(0, 1_000)), int(rng.integers(0, 2**40)), steps, rng.bytes(rng.integers(1, 20_000)),
        {key: known[key] for key in keys}, tuple(rng.integers(0, 9, 5).tolist()),
    )  # fmt: skip
    errors = rng.random(steps).astype(np.float32) if rng.random() < 0.5 else None
    return Arrival(sealed, int(rng.integers(0, 2**40)), errors)


def assert_same(got, sent):
    assert type(got) is type(sent)
    if not isinstance(sent, Arrival):
        assert got == sent
        return
    assert got.segment == sent.segment and got.version == sent.version
    assert (got.td_error is None) == (sent.td_error is None)
    if sent.td_error is not None:
        np.testing.assert_array_equal(got.td_error, sent.td_error)


def test_what_is_sent_is_received_in_order():
    rng = np.random.default_rng(0)
    known = {key: rng.bytes(50) for key in range(1, 3 * MAX_DICTIONARIES)}  # more than either end remembers
    sent: list[Message] = []
    for at in range(1_500):
        if at % 10 == 0:
            sent.append(Episode(rng.normal(), int(rng.integers(0, 10_000)), int(rng.integers(0, 99))))
        elif at % 10 == 1:
            sent.append(Delivered(int(rng.integers(1, 64)), int(rng.integers(0, 2**40))))
        else:
            sent.append(random_arrival(rng, known))
    sent.append(Failure("Traceback: Grüße"))
    ours, theirs = CONTEXT.Pipe(duplex=False)

    def send():
        outbox = Outbox(theirs)
        for message in sent:
            if isinstance(message, Arrival):
                outbox.send_segment(message)
            elif isinstance(message, Episode):
                outbox.send_episode(message)
            elif isinstance(message, Delivered):
                outbox.send_delivered(message)
            else:
                outbox.send_failure(message.text)
        theirs.close()

    sender = threading.Thread(target=send)
    sender.start()
    inbox = Inbox(ours)
    got: list[Message] = []
    while not inbox.ended:
        got += inbox.receive()
    sender.join()
    assert len(got) == len(sent)
    for one, other in zip(got, sent, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("nbytes", [MAX_READ_BYTES - 100, MAX_READ_BYTES, MAX_READ_BYTES + 1, 3_000_000])
def test_a_segment_of_any_size_arrives(nbytes):
    """Also one that does not fit into what the learner reads at a time, with other frames before and after it."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    packed = np.random.default_rng(nbytes).bytes(nbytes)
    before, arrival, after = (
        Episode(1.0, 2, 3),
        Arrival(SealedSegment(0, 0, 1, packed, {}), 1, None),
        Episode(4.0, 5, 6),
    )

    def send():
        outbox = Outbox(theirs)
        outbox.send_episode(before)
        outbox.send_segment(arrival)
        outbox.send_episode(after)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    inbox = Inbox(ours)
    got: list[Message] = []
    limit = time.monotonic() + 30
    while len(got) < 3 and time.monotonic() < limit:
        got += inbox.receive()
    assert len(got) == 3
    sender.join()
    for one, other in zip(got, (before, arrival, after), strict=True):
        assert_same(one, other)


def test_a_frame_that_no_learner_takes_is_not_sent():
    ours, theirs = CONTEXT.Pipe(duplex=False)
    segment = SealedSegment(0, 0, 1, bytes(MAX_FRAME_BYTES), {})  # zeros that nobody writes to take no memory
    with pytest.raises(ValueError, match=r"a segment takes 1,073,741,\d{3} bytes, .* give fewer --segment-steps"):
        Outbox(theirs).send_segment(Arrival(segment, 1, None))
    assert Inbox(ours).receive() == []


def test_a_dictionary_crosses_once():
    ours, theirs = CONTEXT.Pipe(duplex=False)
    outbox, inbox = Outbox(theirs), Inbox(ours)
    arrival = Arrival(SealedSegment(0, 0, 1, b"segment", {5: bytes(9_000)}), 1, None)
    sizes = []
    for _ in range(2):
        outbox.send_segment(arrival)
        sizes.append(os.fstat(ours.fileno()).st_size)
        content = os.read(ours.fileno(), 1 << 20)
        sizes[-1] = len(content)
        os.write(theirs.fileno(), content)
        assert_same(inbox.receive()[0], arrival)
    assert sizes[0] - sizes[1] == 9_000


def test_part_of_a_frame_waits_and_nothing_blocks():
    ours, theirs = CONTEXT.Pipe(duplex=False)
    inbox = Inbox(ours)
    assert inbox.receive() == [] and not inbox.ended
    content = FRAME.pack(3, 4) + b"gone"
    for byte in content[:-1]:
        os.write(theirs.fileno(), bytes([byte]))
        assert inbox.receive() == []
    os.write(theirs.fileno(), content[-1:] + content[:5])
    assert inbox.receive() == [Failure("gone")]
    theirs.close()
    assert inbox.receive() == [] and inbox.ended  # the frame that was cut short is no message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (FRAME.pack(9, 0), "frame of kind 9"),
        (FRAME.pack(1, 1 << 31), "a frame of 2,147,483,648 bytes"),
        (FRAME.pack(1, 3) + b"abc", "frame of kind 1 from an actor is too short"),
        (FRAME.pack(2, 3) + b"abc", "frame of kind 2 from an actor is too short"),
    ],
)
def test_what_no_actor_sends_is_refused(content, message):
    ours, theirs = CONTEXT.Pipe(duplex=False)
    os.write(theirs.fileno(), content)
    with pytest.raises(ValueError, match=message):
        Inbox(ours).receive()


def test_a_learner_that_has_gone_is_noticed():
    ours, theirs = CONTEXT.Pipe(duplex=False)
    ours.close()
    with pytest.raises(BrokenPipeError):
        Outbox(theirs).send_failure("anyone?")
