"""Bad rows are named: what came, what was expected, what to do. Nothing has changed afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.store.refusals import BAD, content, dict_spec, refused, rows, spec
from tests.support.oracle import FRAME_SHAPE, frame

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
