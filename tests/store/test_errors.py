"""Bad input is named: what came, what was expected, what to do. And nothing has changed afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.support.oracle import FRAME_SHAPE, frame, play_all

BAD = (ValueError, TypeError, KeyError)


def spec() -> sw.Spec:
    return sw.Spec(
        obs=sw.Field(FRAME_SHAPE, "uint8", stack=3),
        action=sw.Field((), "int64"),
        serial=sw.Field((), "int64"),
    )


def dict_spec() -> sw.Spec:
    return sw.Spec(
        obs={"image": sw.Field(FRAME_SHAPE, "uint8", stack=2), "speed": sw.Field((2,), "float32")},
        action=sw.Field((2,), "float32"),
    )


@pytest.fixture
def store() -> Any:
    with sw.Store(spec(), capacity=60, segment_steps=4, seed=1) as one:
        play_all(one, "abc|F de.G fg", lane=0)
        play_all(one, "uvw", lane=1)
        yield one


def rows(**changes: Any) -> dict[str, Any]:
    good: dict[str, Any] = {
        "obs": np.stack([frame("h"), frame("x")]),
        "action": np.array([1, 2]),
        "reward": np.array([0.5, 0.25], np.float32),
        "terminated": np.zeros(2, bool),
        "truncated": np.zeros(2, bool),
        "serial": np.array([10, 11]),
    }
    return {name: value for name, value in (good | changes).items() if value is not ...}


def content(store: sw.Store) -> dict[str, Any]:
    """All that can be seen of a store, byte for byte."""
    seen: dict[str, Any] = {"len": len(store), "total": store.total_steps, "lanes": store.lanes}
    for n_step in (1, 3):
        replay = store.transitions(n_step=n_step, gamma=0.5)
        ids = replay.sampleable_ids()
        seen[f"ids {n_step}"] = ids.tolist()
        if len(ids):
            batch = replay.fetch(ids)
            for name in ("action", "reward", "discount"):
                seen[f"{name} {n_step}"] = getattr(batch, name).tobytes()
            for name in ("obs", "next_obs"):
                value = getattr(batch, name)
                arrays = value if isinstance(value, dict) else {"": value}
                seen |= {f"{name}.{key} {n_step}": array.tobytes() for key, array in arrays.items()}
    return seen


def refused(store: sw.Store, work: Callable[[], object], *says: str) -> None:
    """``work`` is refused, with every one of ``says`` (patterns) in the message, and the store is as it was."""
    before = content(store)
    with pytest.raises(BAD) as caught:
        work()
    for what in says:
        assert re.search(what, str(caught.value)), f"no {what!r} in: {caught.value}"
    assert content(store) == before


EXTEND: dict[str, tuple[dict[str, Any], list[str]]] = {
    "obs of another shape": ({"obs": np.zeros((2, 3, 3), np.uint8)}, ["obs", r"\(2, 3, 3\)", r"\(2, 2, 3\)"]),
    "obs with the stack": ({"obs": np.zeros((2, 3, 2, 3), np.uint8)}, ["obs", r"\(2, 3, 2, 3\)", "newest|stack"]),
    "obs of floats": ({"obs": np.zeros((2, 2, 3))}, ["obs", "float64", "uint8"]),
    "obs out of range": ({"obs": np.full((2, 2, 3), 300)}, ["obs", "300", "uint8"]),
    "obs below the range": ({"obs": np.full((2, 2, 3), -1)}, ["obs", "-1", "uint8"]),
    "obs missing": ({"obs": None}, ["obs"]),
    "a dict for obs": ({"obs": {"image": np.zeros((2, 2, 3), np.uint8)}}, ["obs"]),
    "fewer actions than rows": ({"action": np.array([1])}, ["action", r"\(1,\)", r"\(2,?\)|2 rows"]),
    "action of another shape": ({"action": np.zeros((2, 1), np.int64)}, ["action", r"\(2, 1\)"]),
    "action of floats": ({"action": np.array([0.5, 1.0])}, ["action", "float64", "int64"]),
    "reward nan": ({"reward": np.array([0.0, np.nan], np.float32)}, ["reward", "(?i)nan"]),
    "reward inf": ({"reward": np.array([np.inf, 0.0], np.float32)}, ["reward", "(?i)inf"]),
    "reward past float32": ({"reward": np.array([1e39, 0.0])}, ["reward"]),
    "reward of another shape": ({"reward": np.zeros(3, np.float32)}, ["reward", r"\(3,\)"]),
    "reward of text": ({"reward": np.array(["a", "b"])}, ["reward"]),
    "terminated of another shape": ({"terminated": np.zeros((2, 2), bool)}, ["terminated", r"\(2, 2\)"]),
    "terminated of halves": ({"terminated": np.array([0.5, 0.0])}, ["terminated"]),
    "truncated of another length": ({"truncated": np.zeros(1, bool)}, ["truncated", r"\(1,\)"]),
    "truncated without final": ({"truncated": np.array([False, True])}, ["final_obs", "truncated"]),
    "final of another shape": (
        {"truncated": np.array([False, True]), "final_obs": np.zeros((2, 2, 4), np.uint8)},
        ["final_obs", r"\(2, 2, 4\)"],
    ),
    "final of another dtype": (
        {"truncated": np.array([False, True]), "final_obs": np.zeros((2, 2, 3), np.float32)},
        ["final_obs", "float32", "uint8"],
    ),
    "one final for two rows": (
        {"truncated": np.array([False, True]), "final_obs": np.zeros((1, 2, 3), np.uint8)},
        ["final_obs", r"\(1, 2, 3\)"],
    ),
    "an unknown field": ({"colour": np.zeros(2)}, ["colour", "serial"]),
    "a field that is missing": ({"serial": ...}, ["serial"]),
    "field of another shape": ({"serial": np.zeros((2, 2), np.int64)}, ["serial", r"\(2, 2\)"]),
    "a negative lane": ({"lanes": np.array([0, -1])}, ["lane", "-1"]),
    "a lane twice": ({"lanes": np.array([1, 1])}, ["lane", "1"]),
    "lanes of floats": ({"lanes": np.array([0.0, 1.0])}, ["lane", "float"]),
    "more lanes than rows": ({"lanes": np.array([0, 1, 2])}, ["lane", "3", "2"]),
    "lanes of two axes": ({"lanes": np.array([[0, 1]])}, ["lane", r"\(1, 2\)"]),
    "more lanes than the capacity bears": ({"lanes": np.array([0, 59])}, ["lane", "60"]),
}


@pytest.mark.parametrize("case", EXTEND)
def test_extend(store: sw.Store, case: str) -> None:
    changes, says = EXTEND[case]
    refused(store, lambda: store.extend(**rows(**changes)), *says)
    store.extend(**rows())  # and it goes on as if nothing had happened
    assert store.total_steps == 12


@pytest.mark.parametrize("codec", ["raw", "zstd", "delta", "auto"])
def test_after_many_refusals_the_store_still_answers_right(codec: str) -> None:
    with sw.Store(spec(), capacity=20, segment_steps=2, codec=codec) as one:
        replay = one.transitions(gamma=0.5)
        for k in range(60):
            for changes, _ in EXTEND.values():
                with pytest.raises(BAD):
                    one.extend(**rows(**changes))
                if k:
                    break
            one.extend(**rows(serial=np.array([2 * k, 2 * k + 1]), action=np.array([2 * k, 2 * k + 1])))
        batch = replay.fetch(replay.sampleable_ids())
        assert one.total_steps == 120
        np.testing.assert_array_equal(batch.action, batch["serial"])
        assert set(batch["serial"].tolist()) == set(range(120 - len(one), 118))


APPEND: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a negative lane": ({"lane": -1}, ["lane", "-1"]),
    "half a lane": ({"lane": 0.5}, ["lane", "0.5|float"]),
    "a name for a lane": ({"lane": "left"}, ["lane", "left|U4"]),
    "a row axis": ({"obs": frame("a")[None]}, ["obs", r"\(2, 3\)"]),
    "reward nan": ({"reward": float("nan")}, ["reward", "(?i)nan"]),
    "two rewards": ({"reward": np.zeros(2, np.float32)}, ["reward"]),
    "truncated without final": ({"truncated": True}, ["final_obs", "truncated"]),
    "an unknown field": ({"colour": 1}, ["colour"]),
    "a field that is missing": ({"serial": ...}, ["serial"]),
}


@pytest.mark.parametrize("case", APPEND)
def test_append(store: sw.Store, case: str) -> None:
    changes, says = APPEND[case]
    good: dict[str, Any] = {
        "obs": frame("a"),
        "action": 1,
        "reward": 0.5,
        "terminated": False,
        "truncated": False,
        "serial": 9,
    }
    row = {name: value for name, value in (good | changes).items() if value is not ...}
    refused(store, lambda: store.append(**row), *says)


def test_rows_of_a_dict_observation() -> None:
    good: dict[str, Any] = {
        "action": np.zeros((2, 2), np.float32),
        "reward": np.zeros(2, np.float32),
        "terminated": np.zeros(2, bool),
        "truncated": np.zeros(2, bool),
    }
    image, speed = np.zeros((2, *FRAME_SHAPE), np.uint8), np.zeros((2, 2), np.float32)
    with sw.Store(dict_spec(), capacity=60) as store:
        store.extend(obs={"image": image, "speed": speed}, **good)
        refused(store, lambda: store.extend(obs={"image": image}, **good), "obs", "speed")
        refused(store, lambda: store.extend(obs=image, **good), "obs", "image", "speed")
        refused(
            store, lambda: store.extend(obs={"image": image, "speed": speed, "sound": speed}, **good), "obs", "sound"
        )
        refused(store, lambda: store.extend(obs={"image": image, "speed": speed[:, :1]}, **good), r"speed", r"\(2, 1\)")
        over = good | {"truncated": np.ones(2, bool)}
        final = {"image": image, "speed": speed[:1]}
        refused(
            store,
            lambda: store.extend(obs={"image": image, "speed": speed}, final_obs=final, **over),
            "final_obs",
            "speed",
        )


def test_a_nan_in_an_observation_is_refused_by_name_or_kept_as_it_is() -> None:
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
    odd = np.array([np.nan, -np.inf], np.float32)
    with sw.Store(spec, capacity=10) as store:
        try:
            for _ in range(2):
                store.append(obs=odd, action=0, reward=0.0, terminated=False, truncated=False)
        except ValueError as error:
            assert "obs" in str(error)
            assert len(store) == 0
        else:
            assert store.transitions().sample(1).obs.tobytes() == odd.tobytes()


@pytest.mark.parametrize(
    ("lane", "final", "says"),
    [
        (7, frame("F"), ["lane", "7"]),
        (-1, frame("F"), ["lane", "-1"]),
        (1, np.zeros((5, 5), np.uint8), ["final_obs", r"\(5, 5\)"]),
        (1, np.zeros(FRAME_SHAPE), ["final_obs", "float64"]),
        (1, None, ["final_obs"]),
    ],
)
def test_end_episode(store: sw.Store, lane: int, final: Any, says: list[str]) -> None:
    refused(store, lambda: store.end_episode(lane, final), *says)


def test_end_episode_twice_changes_nothing(store: sw.Store) -> None:
    store.end_episode(1, frame("F"))
    before = content(store)
    try:
        store.end_episode(1, frame("G"))
    except ValueError as error:
        assert "lane 1" in str(error)
    assert content(store) == before


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
        (lambda: sw.Spec(obs=(84, 84), action=NUMBER), ["obs", "84", "Field"]),  # type: ignore[arg-type]
        (lambda: sw.Spec(obs={"image": "uint8"}, action=NUMBER), ["obs.image", "Field"]),  # type: ignore[dict-item]
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
        with refused_by_ram:
            store.append(lane=5000, **row)
        assert content(store) == before
        store.append(**row)


def test_a_closed_store_says_so(store: sw.Store) -> None:
    store.close()
    store.close()  # again is nothing
    for work in (lambda: store.extend(**rows()), lambda: store.end_episode(1, frame("F")), store.transitions):
        with pytest.raises((ValueError, RuntimeError), match="closed"):
            work()
    assert len(store) == 10
