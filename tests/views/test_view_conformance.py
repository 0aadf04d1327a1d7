"""Transitions pass the suite for views; so does a kind of view that was never heard of, in one file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.testing.view import FINAL, AppendedStep, ViewSuite
from sharpwave.views.step_views import NStep
from sharpwave.views.view_protocol import View
from tests.views.toy_view import Pieces


class TestTransitions(ViewSuite):
    """Of one step."""

    n_step = 1

    def make_view(self) -> View[Any]:
        return NStep(self.n_step, 0.5)

    def expected(self, lane: list[AppendedStep]) -> set[Any]:
        found = set()
        for at in range(len(lane)):
            summed = lane[at : at + self.n_step]
            ends = [k for k, step in enumerate(summed) if step.ended]
            summed = summed[: ends[0] + 1] if ends else summed
            if (ends or at + self.n_step < len(lane)) and all(step.held for step in summed):
                after = summed[-1].serial + FINAL if ends else lane[at + self.n_step].serial
                before = lane[at - 1].serial if at and not lane[at - 1].ended else lane[at].serial
                reward = sum(0.5**k * step.reward for k, step in enumerate(summed))
                discount = 0.0 if summed[-1].terminated else 0.5 ** len(summed)
                stack, next_stack = (before, lane[at].serial), (summed[-1].serial, after)
                found.add((lane[at].serial, reward, discount, stack, next_stack))
        return found

    def item(self, batch: Any, i: int) -> Any:
        stacks = (tuple(stack[i, :, 0].tolist()) for stack in (batch.obs, batch.next_obs))
        return (int(batch.action[i]), float(batch.reward[i]), float(batch.discount[i]), *stacks)


class TestThreeSteps(TestTransitions):
    """Of three, which cross segments."""

    n_step = 3


class TestManySteps(TestTransitions):
    """Of more than a segment has."""

    n_step = 9


class TestToy(ViewSuite):
    """Pieces of three steps."""

    def make_view(self) -> View[Any]:
        return Pieces(3)

    def expected(self, lane: list[AppendedStep]) -> set[Any]:
        pieces = (lane[k : k + 3] for k in range(len(lane) - 2))
        return {
            (*(step.serial for step in piece), sum(step.reward for step in piece))
            for piece in pieces
            if all(step.held for step in piece) and not any(step.ended for step in piece[:-1])
        }

    def item(self, batch: Any, i: int) -> Any:
        return (*batch.action[i].tolist(), float(batch.total[i]))


def test_a_store_has_views_of_several_kinds_and_their_batches_are_memory_that_it_counts() -> None:
    spec = sw.Spec(obs=sw.Field((), "int32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=200, segment_steps=8) as store:
        replay, pieces = store.transitions(), store.view(Pieces(2), limiter=sw.MinSize(5))
        for k in range(100):
            store.append(obs=k, action=k, reward=k, terminated=k % 10 == 9, truncated=False)
        assert (replay.name, pieces.name, len(replay), len(pieces)) == ("transitions", "pieces", 100, 90)
        before = store.stats()["held_batch_bytes"]
        batch = pieces.sample(64)
        assert store.stats()["held_batch_bytes"] > before
        np.testing.assert_array_equal(batch.action[:, 0] + 1, batch.action[:, 1])
        np.testing.assert_array_equal(batch.total, batch.action.sum(axis=1))
        with pytest.raises(ValueError, match="of another store"):
            sw.Store(spec, capacity=200).view(Pieces(2)).fetch(batch)
