"""Bad settings and arguments are named: what came, what was expected, what to do. Nothing has changed afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.store.refusals import BAD, content, refused, rows, spec
from tests.support.oracle import frame, play_all

# sampling


def test_sampling_an_empty_store() -> None:
    assert issubclass(sw.EmptyError, LookupError)
    for sampler in (sw.Uniform(), sw.Prioritized()):
        with sw.Store(spec(), capacity=60) as store:
            replay = store.transitions(n_step=3, sampler=sampler)
            with pytest.raises(sw.EmptyError, match=r"\b0\b|no |empty"):
                replay.sample(4)
            play_all(store, "abc")
            with pytest.raises(sw.EmptyError):  # three steps, but none of their successors is known
                replay.sample(4)
            assert len(replay) == 0 and len(replay.sampleable_ids()) == 0
            play_all(store, "d")
            assert replay.sample(4)["serial"].tolist() == [0] * 4


@pytest.mark.parametrize("size", [0, -1, 1.5, "8", None])
def test_batch_size(store: sw.Store, size: Any) -> None:
    replay = store.transitions()
    with pytest.raises((ValueError, TypeError), match=re.escape(str(size))):
        replay.sample(size)
    assert len(replay.sample(3).ids) == 3


@pytest.mark.parametrize("beta", [-0.5, float("nan"), float("inf"), "high"])
def test_beta_of_a_sample(store: sw.Store, beta: Any) -> None:
    replay = store.transitions(sampler=sw.Prioritized())
    with pytest.raises((ValueError, TypeError), match="beta"):
        replay.sample(4, beta=beta)
    assert replay.sample(4, beta=0.5).weights.max() == 1


@pytest.mark.parametrize(
    ("ids", "errors", "says"),
    [
        (slice(0, 3), [1.0, 2.0], ["3", "2"]),
        (slice(0, 2), [1.0, float("nan")], ["(?i)nan"]),
        (slice(0, 2), [float("inf"), 1.0], ["(?i)inf"]),
        (slice(0, 2), [float("-inf"), 1.0], ["(?i)inf"]),
        (slice(0, 2), ["a", "b"], ["(?i)td_error|priorit|number|float"]),
        (None, [1.0, 2.0], ["ids", "float"]),
    ],
)
def test_update_priorities(store: sw.Store, ids: slice | None, errors: list[Any], says: list[str]) -> None:
    replay = store.transitions(gamma=0.5, sampler=sw.Prioritized(alpha=1.0, beta=1.0))
    known = replay.sampleable_ids()
    chosen = np.array([0.5, 1.5]) if ids is None else known[ids]
    refused(store, lambda: replay.update_priorities(chosen, np.array(errors)), *says)
    np.testing.assert_allclose(replay.sample(50).probabilities, 1 / len(known), rtol=1e-6)


def test_ids_from_nowhere_are_stale() -> None:
    with sw.Store(spec(), capacity=60) as store:
        play_all(store, "abc")
        replay = store.transitions(sampler=sw.Prioritized())
        nonsense = np.array([-1, 2**62, 2**40 + 3, np.iinfo(np.int64).max, np.iinfo(np.int64).min])
        assert replay.update_priorities(nonsense, np.ones(5)) == 5
        for one in nonsense.tolist():
            with pytest.raises(KeyError, match=str(one)):
                replay.fetch(np.array([one]))


def test_a_field_that_a_batch_has_not(store: sw.Store) -> None:
    batch = store.transitions().sample(2)
    with pytest.raises(KeyError, match=r"colour.*serial"):
        batch["colour"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n_step": 0}, ["n_step", "0"]),
        ({"n_step": -3}, ["n_step", "-3"]),
        ({"n_step": 1.5}, ["n_step", "1.5"]),
        ({"gamma": -0.1}, ["gamma", "-0.1"]),
        ({"gamma": 1.01}, ["gamma", "1.01"]),
        ({"gamma": float("nan")}, ["gamma", "nan"]),
        ({"n_step": 10**10}, ["n_step", "10000000000"]),
        ({"sampler": "uniform"}, ["sampler", "uniform"]),
        ({"sampler": sw.Uniform}, ["sampler"]),
    ],
)
def test_views(store: sw.Store, arguments: dict[str, Any], says: list[str]) -> None:
    refused(store, lambda: store.transitions(**arguments), *says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"alpha": -0.1}, ["alpha", "-0.1"]),
        ({"alpha": float("nan")}, ["alpha", "nan"]),
        ({"beta": -1.0}, ["beta", "-1"]),
        ({"beta": float("inf")}, ["beta", "inf"]),
        ({"eps": -1e-6}, ["eps", "-1e-06"]),
        ({"eps": float("nan")}, ["eps", "nan"]),
    ],
)
def test_prioritized(arguments: dict[str, Any], says: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        sw.Prioritized(**arguments)
    for what in says:
        assert re.search(what, str(caught.value))


# what a step is, what a store may take

PIXELS, NUMBER = sw.Field((4, 4), "uint8", stack=2), sw.Field((), "int64")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sw.Field((0, 4), "uint8"), ["shape", r"\(0, 4\)"]),
        (lambda: sw.Field((-1,), "uint8"), ["shape", "-1"]),
        (lambda: sw.Field((1.5,), "uint8"), ["shape", "1.5"]),  # type: ignore[arg-type]
        (lambda: sw.Field("84", "uint8"), ["shape", "84"]),  # type: ignore[arg-type]
        (lambda: sw.Field(None, "uint8"), ["shape", "None"]),  # type: ignore[arg-type]
        (lambda: sw.Field((4,), "pixels"), ["dtype", "pixels"]),
        (lambda: sw.Field((4,), "object"), ["dtype", "object"]),
        (lambda: sw.Field((4,), "U3"), ["dtype", "U3"]),
        (lambda: sw.Field((4,), "complex64"), ["dtype", "complex64"]),
        (lambda: sw.Field((4,), "uint8", stack=0), ["stack", "0"]),
        (lambda: sw.Field((4,), "uint8", stack=-2), ["stack", "-2"]),
        (lambda: sw.Field((4,), "uint8", stack=2.5), ["stack", "2.5"]),  # type: ignore[arg-type]
        (lambda: sw.Field((4,), "uint8", stack=2, pad="edge"), ["pad", "edge", "repeat", "zeros"]),  # type: ignore[arg-type]
        (lambda: sw.Spec(obs={}, action=NUMBER), ["obs"]),
        (lambda: sw.Spec(obs=(84, 84), action=NUMBER), ["obs", "84", "Field"]),
        (lambda: sw.Spec(obs={"image": "uint8"}, action=NUMBER), ["obs.image", "Field"]),
        (lambda: sw.Spec(obs=PIXELS, action=4), ["action", "4", "Field"]),  # type: ignore[arg-type]
        (lambda: sw.Spec(obs=PIXELS, action=NUMBER, reward=NUMBER), ["reward"]),
        (lambda: sw.Spec(obs=PIXELS, action=NUMBER, terminated=NUMBER), ["terminated"]),
        (lambda: sw.Spec(obs=PIXELS, action=NUMBER, final_obs=PIXELS), ["final_obs"]),
        (lambda: sw.Spec(obs=PIXELS, action=NUMBER, lanes=NUMBER), ["lanes"]),
        (lambda: sw.Spec(obs=PIXELS, action=NUMBER, other=PIXELS), ["other", "stack"]),
    ],
)
def test_field_and_spec(make: Callable[[], object], says: list[str]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    for what in says:
        assert re.search(what, str(caught.value)), f"no {what!r} in: {caught.value}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"capacity": 0}, ["capacity", "0"]),
        ({"capacity": -5}, ["capacity", "-5"]),
        ({"capacity": 1.5}, ["capacity", "1.5"]),
        ({"capacity": "many"}, ["capacity", "many"]),
        ({"capacity": None}, ["capacity", "ram"]),
        ({"ram": "2 bananas"}, ["ram", "2 bananas", "GiB|MiB"]),
        ({"ram": ""}, ["ram"]),
        ({"ram": 0}, ["ram", "0"]),
        ({"ram": -1}, ["ram", "-1"]),
        ({"ram": "-3MiB"}, ["ram", "-3MiB"]),
        ({"codec": "lz4"}, ["codec", "lz4", "zstd"]),
        ({"codec": None}, ["codec", "None"]),
        ({"codec": {"image": "zstd"}}, ["codec", "image", "obs"]),
        ({"codec": {"obs": "lz4"}}, ["codec", "lz4", "zstd"]),
        ({"segment_steps": 0}, ["segment_steps", "0"]),
        ({"segment_steps": -1}, ["segment_steps", "-1"]),
        ({"segment_steps": 2.5}, ["segment_steps", "2.5"]),
        ({"retention": "fifo"}, ["retention", "fifo"]),
    ],
)
def test_store(arguments: dict[str, Any], says: list[str]) -> None:
    with pytest.raises(BAD) as caught:
        sw.Store(spec(), **({"capacity": 60} | arguments))
    for what in says:
        assert re.search(what, str(caught.value)), f"no {what!r} in: {caught.value}"


def test_a_field_with_a_codec_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"codec.*gzip"):
        sw.Store(sw.Spec(obs=sw.Field((4,), "uint8", codec="gzip"), action=NUMBER), capacity=60)


def test_a_store_of_no_spec() -> None:
    with pytest.raises(TypeError, match=r"(?i)spec"):
        sw.Store({"obs": PIXELS}, capacity=60)  # type: ignore[arg-type]


def test_a_ram_limit_too_small_to_hold_a_step_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"ram=1000.*MiB"):
        sw.Store(sw.Spec(obs=sw.Field((84, 84), "uint8"), action=NUMBER), ram=1000)


def test_lanes_that_the_ram_does_not_bear_are_refused_and_nothing_is_lost() -> None:
    spec = sw.Spec(obs=sw.Field((84, 84), "uint8"), action=NUMBER)
    image = np.random.default_rng(0).integers(0, 256, (84, 84), np.uint8)  # does not pack
    with sw.Store(spec, ram="6MiB", segment_steps=8, codec="raw") as store:
        row: dict[str, Any] = {"obs": image, "action": 0, "reward": 0.0, "terminated": True, "truncated": False}
        for _ in range(100):
            store.append(**row)
        refused_by_ram = pytest.raises((ValueError, MemoryError), match=r"ram|lane")
        before = content(store)
        many: dict[str, Any] = {name: np.stack([np.asarray(value)] * 1000) for name, value in row.items()}
        with refused_by_ram:  # each of these lanes would need memory for the segment that it fills
            store.extend(lanes=np.arange(1, 1001), **many)
        assert content(store) == before
        store.append(**row)


def test_a_closed_store_says_so(store: sw.Store) -> None:
    store.close()
    store.close()  # again is nothing
    for work in (lambda: store.extend(**rows()), lambda: store.end_episode(1, frame("F")), store.transitions):
        with pytest.raises((ValueError, RuntimeError), match="closed"):
            work()
    assert len(store) == 10
