"""Shared values through appends, evictions, checkpoints, crashes and reopening, against plain lists: batches have
them, and exactly the values of held steps are kept."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis.stateful import invariant, rule

import sharpwave as sw
from sharpwave.codecs.shared import pack, text_of, unpack
from sharpwave.log.shared_values import VALUE_BYTES
from tests.store.test_ragged_machine import RaggedStore, rows_of, same
from tests.support.examples import examples


class SharedStore(RaggedStore):
    """The store of rows of any length, but that equal ones are stored once, with images beside them."""

    def declare(self, dtype: str) -> tuple[dict[str, sw.Field], dict[str, sw.Field]]:
        fields, _ = super().declare(dtype)
        image = sw.Field((3, 4), "uint8", shared=True)
        return {name: dataclasses.replace(field, shared=True) for name, field in fields.items()}, {"image": image}

    def next_rows(self, lengths: list[int]) -> dict[str, Any]:
        """Return rows of which many are equal."""
        self.seed += 1
        rows = rows_of(self.fields, [length % 4 * 150 for length in lengths], self.seed // 4 % 3)
        return rows | {"image": np.full((3, 4), self.seed // 5 % 4, np.uint8)}

    @rule()
    def images_are_theirs(self) -> None:
        if len(self.windows):
            batch = self.windows.sample(5)
            for b, (lane, step) in enumerate(zip(batch.lane.tolist(), batch.step.tolist(), strict=True)):
                for t in range(batch.mask.shape[1]):
                    number = lane, step + t - batch.burn_in
                    expected = self.steps[number]["image"] if batch.mask[b, t] else np.zeros((3, 4), np.uint8)
                    assert same(batch["image"][b, t], expected)
        for episode in self.store.episodes():
            for t, image in enumerate(episode["image"]):
                assert same(image, self.steps[episode.lane, episode.first_step + t]["image"])

    @invariant()
    def exactly_the_values_of_held_steps_are_kept(self) -> None:
        shared, kinds = self.store._log.shared, {}
        for c, kind in shared.kinds.items():
            kinds[self.store._log.layout.names[c]] = c, kind
        held = set()
        for place in self.held():
            for name, row in self.steps[place].items():
                content = row.encode() if isinstance(row, str) else row if isinstance(row, bytes) else row.tobytes()
                c, kind = kinds[name]
                what = f"{kind.text or kind.dtype.name}{list(kind.inner)}".encode()
                held.add((c, hashlib.blake2b(what + content, digest_size=16).hexdigest()))
        assert {(c, text_of(key)) for c, key in shared} == held
        index = shared._index
        references = [index.of(slot) for slot in range(self.store._log.index.highest)]
        assert all(len(set(one)) == len(one) for one in references)
        numbers = [shared._key(number) for one in references for number in one]
        assert Counter(numbers) == {shared._key(number): index.uses(number) for number in index.numbers()}
        packed = [(shared.kinds[key[0]], shared.packed(key)) for key in shared]
        assert all(one is not None and pack(unpack(one, kind), kind) == one for kind, one in packed)
        in_memory = shared._packed.values()
        assert shared.needed_bytes == index.nbytes + VALUE_BYTES * len(in_memory) + sum(map(len, in_memory))
        cached = VALUE_BYTES * len(shared._cache) + sum(map(len, shared._cache.values()))
        assert shared._cache_bytes == cached <= shared.reserved == shared.nbytes - shared.needed_bytes
        assert self.store._log.disk is not None or not cached
        assert shared._packed.keys() | shared._cache.keys() <= set(index.numbers()) and not shared._lost


class ReservoirStore(SharedStore):
    retention = sw.Reservoir


class LowestStore(SharedStore):
    retention = sw.LowestPriority

    def begin_views(self) -> None:
        self.view = self.store.transitions(sampler=sw.Prioritized())
        self.windows = self.store.sequences(4, burn_in=2, stride=2)


SETTINGS = settings(max_examples=examples(15), stateful_step_count=25, deadline=None)
TestFifo, TestReservoir, TestLowest = SharedStore.TestCase, ReservoirStore.TestCase, LowestStore.TestCase
TestFifo.settings = TestReservoir.settings = TestLowest.settings = SETTINGS
