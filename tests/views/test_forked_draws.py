"""Views in forked processes: each draws as a learner of its own, the same in every run; the parent's draws stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import sharpwave as sw
from tests.views.blends import append, blend_of, made, prioritized, right, transitions, windows

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")

LOADED = """
import json
import torch
import sharpwave as sw
from torch.utils.data import DataLoader, IterableDataset
from tests.views.blends import blend_of, made, prioritized, right, transitions, windows

class Batches(IterableDataset):
    def __init__(self, draw):
        self.draw = draw

    def __iter__(self):
        for _ in range(3):
            batch = self.draw()
            if batch.source is not None:
                right(batch)
            yield batch.action.tolist()

stores = made(400)
kinds = {
    "uniform": lambda: stores[0].transitions(seed=3),
    "prioritized": lambda: stores[0].transitions(sampler=sw.Prioritized(), seed=3),
    "sequences": lambda: stores[0].sequences(5, seed=3),
    "blend": lambda: blend_of([store.transitions(seed=3) for store in stores]),
}
torch.manual_seed(7)
answer = {}
for name, make in kinds.items():
    for way in ("sample", "stream"):
        view, twin = make(), make()  # the twin is in no worker
        if way == "sample":
            draw, other = (lambda view=view: view.sample(16)), (lambda: twin.sample(16))
        else:
            draw, other = view.stream(16).__next__, twin.stream(16).__next__
        own, expected = [draw().action.tolist()], [other().action.tolist()]
        epochs = []
        for _ in range(2):
            loader = DataLoader(Batches(draw), batch_size=None, num_workers=2, multiprocessing_context="fork")
            epochs += list(loader)
            own.append(draw().action.tolist())
            expected.append(other().action.tolist())
        assert own == expected, (name, way)
        answer[f"{name} {way}"] = epochs + own
print(json.dumps(answer))
"""


@pytest.mark.slow
def test_workers_of_a_data_loader_draw_different_batches_in_each_epoch_the_same_in_every_run() -> None:
    command = [sys.executable, "-W", "ignore", "-c", LOADED]
    runs = [subprocess.run(command, capture_output=True, text=True, timeout=120, check=False) for _ in range(2)]
    assert all(run.returncode == 0 for run in runs), runs[0].stderr[-2000:]
    first, again = (json.loads(run.stdout) for run in runs)
    assert first == again
    assert len(first) == 8
    for name, drawn in first.items():
        assert len(drawn) == 2 * 2 * 3 + 3
        assert len({json.dumps(batch) for batch in drawn}) == len(drawn), name


def in_child(work: Callable[[], Any]) -> Any:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        answer = json.load(file)
    os.waitpid(child, 0)
    return answer


def drawn(view: Any) -> list[list[int]]:
    return [view.sample(16).action.tolist() for _ in range(2)]


@pytest.mark.parametrize("kind", [transitions, prioritized, windows, lambda stores: [blend_of(transitions(stores))]])
def test_forks_and_their_forks_draw_other_batches_than_the_parent(kind: Any) -> None:
    stores = made(400)
    view, twin = kind(stores)[0], kind(made(400))[0]
    found = [in_child(lambda: drawn(view)) for _ in range(2)]
    found += in_child(lambda: [in_child(lambda: drawn(view)), drawn(view)])
    found.append(drawn(view))
    assert found[-1] == drawn(twin)
    assert len({json.dumps(one) for one in found}) == len(found)


def test_a_view_made_in_a_fork_draws_by_its_seed() -> None:
    stores = made(400)
    expected = drawn(stores[0].transitions(seed=5))
    assert in_child(lambda: drawn(stores[0].transitions(seed=5))) == expected


def test_what_a_stream_has_drawn_ahead_is_the_parents_and_counts_as_sampled_there_only() -> None:
    store = made(60)[0]
    view = store.transitions(max_times_sampled=1)
    stream = view.stream(8, lookahead=3)
    next(stream)
    left = len(view)

    def go_on() -> list[int]:
        batches = [next(stream).action.tolist() for _ in range(3)]
        assert len({*batches[0], *batches[1], *batches[2]}) == 24
        stream.close()
        return [*batches[0], len(view)]

    *of_child, left_there = in_child(go_on)
    assert left_there == left + 3 * 8 - 3 * 8  # what was drawn ahead is free there; three batches were taken
    assert len(view) == left
    ahead = stream.drawn[0].parts[0].ids.tolist()
    assert of_child != view.fetch(ahead).action.tolist()
    assert next(stream).ids.tolist() == ahead


def test_a_blends_stream_goes_on_in_a_fork_with_draws_of_its_own() -> None:
    stores = made(400)
    blend = blend_of(transitions(stores))
    stream = blend.stream(16, lookahead=2)
    next(stream)

    def go_on() -> list[int]:
        for _ in range(4):
            right(batch := next(stream))
        append(stores[0], 400, 5)
        return batch.action.tolist()

    assert in_child(go_on) not in [next(stream).action.tolist() for _ in range(5)]


def test_ids_that_a_fork_drew_are_good_in_the_parent() -> None:
    store = made(400)[0]
    view = store.transitions(sampler=sw.Prioritized())
    ids, actions = in_child(lambda: [(batch := view.sample(8)).ids.tolist(), batch.action.tolist()])
    assert view.fetch(ids).action.tolist() == actions
    assert view.update_priorities(ids, [9.0] * 8) == 0
