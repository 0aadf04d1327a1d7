"""Streams of a blend in checkpoints: what is drawn ahead is kept, and a restored blend repeats the unbroken one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.views.blends import blend_of, errors_of, falling, made, prioritized, right, same, transitions, windows


def saved(blend: sw.Blend[Any], stores: list[sw.Store], folder: Path) -> str:
    for k, store in enumerate(stores):
        store.checkpoint(folder / str(k))
    return json.dumps(blend.state())


@pytest.mark.parametrize("kind", [prioritized, windows])
def test_a_restored_blend_s_streams_repeat_the_unbroken_ones(kind: Callable[..., list[Any]], tmp_path: Path) -> None:
    stores = made()
    blend = blend_of(kind(stores), (falling, 0.5))
    streams, rng = [blend.stream(12, lookahead=3), blend.stream(7, lookahead=1)], np.random.default_rng(0)
    for stream in streams * 3:
        batch = next(stream)
        blend.update_priorities(batch, errors_of(batch, blend, rng))
    state = saved(blend, stores, tmp_path)
    opened = [sw.Store.open(tmp_path / str(k)) for k in range(2)]
    again = blend_of(kind(opened), (falling, 0.5))
    again.restore(json.loads(state))
    assert json.dumps(again.state()) == state, "also before the streams are made"
    resumed = [again.stream(12, lookahead=3), again.stream(7, lookahead=1)]
    assert [len(stream.drawn) for stream in resumed] == [3, 1]
    for one, two in [*zip(streams, resumed, strict=True)] * 6:
        batch, other = next(one), next(two)
        assert same(batch, other)
        errors = errors_of(batch, blend, rng)
        blend.update_priorities(batch, errors)
        again.update_priorities(other, errors)
    for store in (*stores, *opened):
        store.close()


def test_a_state_of_another_moment_than_the_views_drops_what_was_drawn(tmp_path: Path) -> None:
    stores = made()
    blend = blend_of(transitions(stores))
    stream, before = blend.stream(8), json.dumps(blend.state())
    next(stream)
    saved(blend, stores, tmp_path)
    opened = [sw.Store.open(tmp_path / str(k)) for k in range(2)]
    again = blend_of(transitions(opened))
    again.restore(json.loads(before))
    with pytest.warns(RuntimeWarning, match="drawn ahead before the checkpoint are dropped"):
        other = again.stream(8)
    assert not other.drawn and not any(view.source.unused.nbytes for view in again.views)
    right(next(other))


@pytest.mark.parametrize(
    "change",
    [
        {"ahead": [[{"source": [0, 2], "shares": [0.5, 0.5]}]]},
        {"ahead": [[{"source": [0, 0.5], "shares": [0.5, 0.5]}]]},
        {"ahead": [[{"source": [], "shares": [0.5, 0.5]}]]},
        {"ahead": [[{"source": [0, 1], "shares": [0.5]}]]},
        {"ahead": [[{"source": [0, 1], "shares": [0.5, float("nan")]}]]},
        {"ahead": [[{"source": [0, 1]}]]},
        {"ahead": 3},
        {"samples": None},
        {"samples": -5},
        {"samples": "7"},
        {"samples": 2**63},
        {"ahead": [[{"source": [0, 1], "shares": ["0.5", "0.5"]}]]},
        {"ahead": [[{"source": [0, 1], "shares": [True, False]}]]},
        {"ahead": [[{"source": [0, 1], "shares": [0, 0]}]]},
        {"rng": 5},
        {"rng": {"bit_generator": "PCG64"}},
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(change: Any) -> None:
    blend = blend_of(transitions(made(50)))
    blend.sample(4)
    before = blend.state()
    with pytest.raises(ValueError, match=rf"Blend: .*\b({next(iter(change))}\b|source of a batch|shares of a batch)"):
        blend.restore(before | change)
    assert blend.state() == before
    blend.restore({"rng": before["rng"], "samples": 7})  # of a release whose streams drew nothing ahead
    assert blend.state() == before | {"samples": 7}


@pytest.mark.parametrize("name", ["state", "inc", "has_uint32", "uinteger"])
@pytest.mark.parametrize("number", [0.5, True, "7", 2**130])
def test_numbers_of_a_generator_that_are_no_integers_are_refused(name: str, number: Any) -> None:
    blend = blend_of(transitions(made(50)))
    before, damaged = blend.state(), blend.state()
    inner = damaged["rng"] = dict(damaged["rng"])
    if name in ("state", "inc"):
        inner = damaged["rng"]["state"] = dict(damaged["rng"]["state"])
    inner[name] = float(inner[name]) if number is True and inner[name] > 1 else number
    with pytest.raises(ValueError, match="Blend: rng of a saved state"):
        blend.restore(damaged)
    assert blend.state() == before


@pytest.mark.parametrize("missing", ["samples", "rng"])
def test_a_state_that_lacks_a_part_is_refused_by_its_name(missing: str) -> None:
    blend = blend_of(transitions(made(50)))
    before = blend.state()
    with pytest.raises(ValueError, match=f"Blend: {missing}.* of a saved state"):
        blend.restore({name: part for name, part in before.items() if name != missing})
    assert blend.state() == before
