"""How ram= is divided, in numbers worked out by hand."""

from __future__ import annotations

from sharpwave.memory.ledger import MemoryLedger


def test_the_arena_gets_what_no_other_part_takes() -> None:
    ledger, views = MemoryLedger(25_600), [1000]
    ledger.enter("index", lambda: 300)
    ledger.enter("samplers", lambda: views[0])
    ledger.enter_for_batches(lambda: 4000)
    ledger.enter_for_batches(lambda: 50)
    assert ledger.parts() == {"index": 300, "samplers": 1000}
    assert ledger.batch_bytes == 4050
    assert ledger.beside_bytes(25_600) == 300 + 1000 + 100  # and 1/256 for what views grow by
    assert ledger.arena_bytes(25_600) == 25_600 - 1400 - 4050
    ledger.kept_for_batches = 5000
    assert ledger.arena_bytes(25_600) == 25_600 - 1400 - 5000
    views[0] += 600
    assert ledger.arena_bytes(25_600) == 25_600 - 2000 - 5000


def test_batches_take_half_of_ram_at_most_and_nothing_that_segments_have() -> None:
    ledger = MemoryLedger(25_600)
    ledger.enter("index", lambda: 300)
    ledger.enter_for_batches(lambda: 4000)
    assert ledger.batch_room_bytes(25_600, segment_bytes=0) == 12_800 - 4000
    assert ledger.batch_room_bytes(25_600, segment_bytes=20_000) == 25_600 - 20_000 - 400 - 4000
    assert ledger.batch_room_bytes(25_600, segment_bytes=25_000) < 0
