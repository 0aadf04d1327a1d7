"""The core's index of shared values, against plain dicts and lists."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sharpwave.native import core


class Plain:
    """Shared values as plain dicts: references by slot, and copies by region."""

    def __init__(self) -> None:
        self.segments: dict[int, list[Any]] = {}
        self.copies: dict[Any, dict[int, tuple[int, int]]] = {}

    def uses(self, key: Any) -> int:
        return sum(key in one for one in self.segments.values())

    def release(self, slot: int, keys: list[Any]) -> set[Any]:
        self.segments[slot] = [one for one in self.segments[slot] if one not in keys]
        if not self.segments[slot]:
            del self.segments[slot]
        gone = {key for key in keys if not self.uses(key)}
        for key in gone:
            self.copies.pop(key, None)
        return gone

    def keys(self) -> set[Any]:
        return {key for one in self.segments.values() for key in one} | {key for key, one in self.copies.items() if one}

    def bytes_in(self, region: int) -> int:
        there = [one[region][1] for one in self.copies.values() if region in one]
        return sum((40 + nbytes + 7) // 8 * 8 for nbytes in there)


def key_bytes(rng: random.Random) -> bytes:
    """Return one of few keys, of which some differ only in their last or first bytes."""
    return bytes([rng.randrange(8)]) + bytes(14) + bytes([rng.randrange(8)])


@pytest.mark.parametrize("seed", range(4))
def test_it_counts_as_plain_dicts_do(seed: int) -> None:
    rng, index, plain = random.Random(seed), core.SharedIndex(), Plain()
    for _ in range(6000):
        slot, region, key = rng.randrange(6) * 977, rng.randrange(4), (rng.randrange(3), key_bytes(rng))
        act = rng.random()
        if act < 0.45:
            before = key in plain.segments.get(slot, [])
            expected = 0 if before else 1 if plain.uses(key) else 2
            number, held = index.hold(slot, *key)
            assert held == expected and index.find(*key) == number
            if not before:
                plain.segments.setdefault(slot, []).append(key)
            elif rng.random() < 0.1:
                index.settle(slot)
        elif act < 0.55 and plain.segments:
            slot = rng.choice(list(plain.segments))
            keys = list(plain.segments[slot])
            chosen = keys if rng.random() < 0.3 else rng.sample(keys, rng.randrange(1, len(keys) + 1))
            numbers = {index.find(*one): one for one in chosen}
            freed = index.release_all(slot) if chosen is keys else index.release(slot, list(numbers))
            assert {numbers[number] for number in freed} == plain.release(slot, chosen)
        elif act < 0.9:
            if rng.random() < 0.7 and plain.segments:  # copies are mostly of values in use
                key = rng.choice(rng.choice(list(plain.segments.values())))
            offset, nbytes = 8 * rng.randrange(1 << 40), rng.randrange(1 << 30)
            index.place(*key, region, offset, nbytes)
            plain.copies.setdefault(key, {})[region] = offset, nbytes
        elif act < 0.95:
            lost = {key for key, one in plain.copies.items() if set(one) == {region} and plain.uses(key)}
            assert {(index.column(n), index.key(n)) for n in index.only_in(region)} == lost
            index.drop_region(region)
            for one in plain.copies.values():
                one.pop(region, None)
        elif act < 0.96:
            index.drop_unused()
            for key in list(plain.copies):
                if not plain.uses(key):
                    del plain.copies[key]
        there = {(index.column(n), index.key(n)): n for n in index.numbers()}
        assert there.keys() == plain.keys() and len(index) == len(there)
    for key, number in there.items():
        assert index.uses(number) == plain.uses(key) and index.find(*key) == number
        copies = {region: (offset, nbytes) for region, offset, nbytes in index.copies(number)}
        assert copies == plain.copies.get(key, {})
        assert [index.has_copy(number, region) for region in range(5)] == [region in copies for region in range(5)]
    assert [index.bytes_in(region) for region in range(5)] == [plain.bytes_in(region) for region in range(5)]
    for slot, keys in plain.segments.items():
        assert {(index.column(n), index.key(n)) for n in index.of(slot)} == set(keys)
    for column in range(3):
        assert index.counts(column)[0] == sum(plain.uses(key) > 0 for key in there if key[0] == column)


def test_it_takes_little_memory_and_gives_it_back() -> None:
    index, count, steps = core.SharedIndex(), 100_000, 500
    empty = index.nbytes
    for k in range(count):
        index.place(2, k.to_bytes(16, "little"), 0, 8 * k, 100)
        index.hold(k // steps, 2, k.to_bytes(16, "little"))
        if k % steps == steps - 1:
            index.settle(k // steps)
    assert index.nbytes < 54 * count
    for slot in range(count // steps):
        assert len(index.release_all(slot)) == steps
    assert len(index) == 0 and index.nbytes == empty and index.bytes_in(0) == 0


def test_keys_of_other_lengths_are_refused() -> None:
    for key in (b"", bytes(15), bytes(17)):
        with pytest.raises(ValueError, match="16 bytes"):
            core.SharedIndex().find(2, key)
