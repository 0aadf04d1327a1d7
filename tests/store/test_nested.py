"""Nested observations and actions, beside a plain list of what was put in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.errors import DamagedError
from sharpwave.nesting import Structure, map_leaves, name_path
from sharpwave.offline.recorded import RecordedEpisodes
from tests.support.examples import examples

KEYS = st.sampled_from(
    ["a", "b", "a.b", "a\\", "a\\.b", ".", "\\", "..", "0", "1", "obs", "reward", "flags", ".after", "ä"]
)
LEAF = sw.Field((), "uint8")
LEAVES = st.builds(
    lambda shape, dtype: sw.Field(shape, dtype),
    st.sampled_from([(), (2,), (2, 1)]),
    st.sampled_from(["uint8", "float32", "int64", "bool"]),
)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Fields, and dicts and tuples of those, at most three levels deep."""
    return st.recursive(
        leaves,
        lambda inner: (
            st.dictionaries(KEYS, inner, min_size=1, max_size=3) | st.lists(inner, min_size=1, max_size=3).map(tuple)
        ),
        max_leaves=6,
    )


def values(tree: Any, rng: np.random.Generator) -> Any:
    """A value of each field."""
    return map_leaves(lambda field: rng.integers(0, 2, field.shape).astype(field.dtype), tree)


def stacked(trees: list[Any]) -> Any:
    """One tree of arrays of the values of several."""
    if isinstance(trees[0], dict):
        return {key: stacked([one[key] for one in trees]) for key in trees[0]}
    if isinstance(trees[0], tuple):
        return tuple(stacked([one[k] for one in trees]) for k in range(len(trees[0])))
    return np.stack(trees)


def same(one: Any, other: Any) -> bool:
    """Whether two trees are equal: dicts, tuples, dtypes and values."""
    if isinstance(one, dict):
        return type(other) is dict and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return type(other) is tuple and len(one) == len(other) and all(map(same, one, other))
    return one.dtype == other.dtype and np.array_equal(one, other)


@given(tree=nested(st.integers()), root=st.sampled_from(["obs", "action"]))
@settings(max_examples=examples(200))
def test_names_are_paths_and_no_two_are_alike(tree: Any, root: str) -> None:
    structure = Structure(root, tree)

    def paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], int]]:
        if isinstance(node, int):
            return [(path, node)]
        items = node.items() if isinstance(node, dict) else enumerate(node)
        return [found for key, inner in items for found in paths(inner, (*path, key))]

    expected = paths(tree)
    assert list(structure.ends.values()) == [end for _, end in expected] and len(structure.names) == len(expected)
    assert [name_path(root, name) for name in structure.names] == [tuple(map(str, path)) for path, _ in expected]
    assert structure.join(structure.split(tree, "it")) == tree


@given(obs=nested(LEAVES), action=nested(LEAVES), seed=st.integers(0, 99))
@example(obs={".after": LEAF, "\\": LEAF}, action=LEAF, seed=0)  # one's name was the other's with a suffix
@example(obs={".": LEAF, "..": LEAF, "\\": LEAF, "\\.": LEAF, "\\..": LEAF}, action=LEAF, seed=0)
@settings(max_examples=examples(10, most=200), deadline=None)
def test_what_was_put_in_comes_out(obs: Any, action: Any, seed: int, tmp_path_factory: Any) -> None:
    """By append, extend and add_episode; from transitions, sequences, streams, a store on disk opened again, a
    checkpoint, and the tools that read its folder."""
    spec, rng = sw.Spec(obs=obs, action=action, more=sw.Field((), "int64")), np.random.default_rng(seed)
    assert sw.Spec.from_json(json.loads(json.dumps(spec.description()))) == spec
    assert sw.Spec.from_json(json.loads(spec.to_json())).schema_hash == spec.schema_hash
    folder = tmp_path_factory.mktemp("nested")
    played = [[(values(obs, rng), values(action, rng)) for _ in range(5)] for _ in range(3)]  # by lane
    finals = [values(obs, rng) for _ in range(3)]
    with sw.Store(spec, capacity=64, disk=folder / "store", segment_steps=4) as store:
        for t, (seen, done) in enumerate(played[0]):
            following = played[0][t + 1][0] if t < 4 else finals[0]
            store.append(
                obs=seen, action=done, reward=t, terminated=t == 4, truncated=False, next_obs=following, more=t
            )
        for t in range(3):
            store.extend(
                obs=stacked([played[1][t][0]]), action=stacked([played[1][t][1]]), reward=[t], terminated=[False],
                truncated=[t == 4], final_obs=stacked([finals[1]]), lanes=[1], more=[t],
            )  # fmt: skip
        store.extend(  # with an axis of time
            obs=stacked([stacked([played[1][t][0]]) for t in (3, 4)]), reward=[[3], [4]], terminated=[[False]] * 2,
            action=stacked([stacked([played[1][t][1]]) for t in (3, 4)]), truncated=[[False], [True]], lanes=[1],
            final_obs=stacked([stacked([finals[1]])] * 2), more=[[3], [4]],
        )  # fmt: skip
        store.add_episode(
            lane=2, obs=stacked([one for one, _ in played[2]] + [finals[2]]), reward=np.arange(5.0), terminated=False,
            action=stacked([one for _, one in played[2]]), more=np.arange(5),
        )  # fmt: skip
        store.transitions(n_step=1, name="view")
        store.checkpoint(folder / "checkpoint")
        check(store, played, finals)
    for reopened in ("store", "checkpoint"):
        with sw.Store.open(folder / reopened) as store:
            assert store.spec == spec
            check(store, played, finals)
    for one in RecordedEpisodes(folder / "store"):
        lane = one.episode.lane
        assert same(spec.join_obs(one.obs), stacked([seen for seen, _ in played[lane]] + [finals[lane]]))
        assert same(spec.join_action(one.fields), stacked([done for _, done in played[lane]]))


def check(store: sw.Store, played: list[Any], finals: list[Any]) -> None:
    steps = np.arange(5)
    for lane, rows in enumerate(played):
        ids, seen = store.ids(lane, steps), [one for one, _ in rows]
        batch = store.transitions(n_step=1, name="view").fetch(ids)
        assert same(stacked(seen), batch.obs) and same(stacked([*seen[1:], finals[lane]]), batch.next_obs)
        assert same(stacked([done for _, done in rows]), batch.action) and batch["more"].tolist() == [0, 1, 2, 3, 4]
        assert same(batch.copy().obs, batch.obs) and same(batch["action"], batch.action)
    streamed = next(iter(store.transitions(n_step=2).stream(4)))
    for row, (lane, step) in enumerate(zip(streamed.lane, streamed.step, strict=True)):
        at = cut(streamed.obs, row), cut(streamed.action, row)
        assert same(at, played[lane][step])
    windows = store.sequences(length=3, n_step=1).sample(4)
    for row, (lane, step) in enumerate(zip(windows.lane, windows.step, strict=True)):
        count = int(windows.mask[row].sum())
        seen = [*(one for one, _ in played[lane]), finals[lane]][step : step + count + 1]
        assert same(cut(windows.obs, (row, slice(count + 1))), stacked(seen))
        done = [one for _, one in played[lane]][step : step + count]
        assert same(cut(windows.action, (row, slice(count))), stacked(done))


def cut(tree: Any, where: Any) -> Any:
    return map_leaves(lambda array: array[where], tree)


TWO = sw.Field((2,), "float32")
SPEC = sw.Spec(obs={"images": {"top": TWO}, "at": (TWO, {"x": TWO})}, action={"move": TWO, "fire": (TWO,)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"obs": {"images": {}, "at": (0, 0)}}, "obs.images: got keys [], expected a dict with the keys ['top']"),
        ({"obs": {"images": {"top": [0, 0]}, "at": [0]}}, "obs.at: got 1 parts, expected a tuple of 2 parts"),
        ({"obs": {"images": {"top": [0, 0]}, "at": ([0, 0], 5)}}, "obs.at.1: got int, expected a dict"),
        ({"obs": {"images": {"top": [0, 0]}, "at": ([0, 0], {"x": [0]})}}, "obs.at.1.x: got shape (1,)"),
        ({"obs": [0, 0]}, "obs: got list, expected a dict with the keys ['at', 'images']"),
        ({"next_obs": {"images": 3, "at": ([0, 0], {"x": [0, 0]})}}, "next_obs.images: got int"),
        ({"action": {"move": [0, 0]}}, "action: got keys ['move'], expected a dict with the keys ['fire', 'move']"),
        ({"action": {"move": [0, 0], "fire": ([0, 0, 0],)}}, "action.fire.0: got shape (3,)"),
        ({"action": {"move": [0, 0], "fire": [0, 0]}}, "action.fire: got 2 parts"),
    ],
)
def test_errors_name_the_path_and_nothing_is_stored(change: dict[str, Any], says: str) -> None:
    store = sw.Store(SPEC, capacity=8)
    whole: dict[str, Any] = {
        "obs": {"images": {"top": [0, 0]}, "at": ([0, 0], {"x": [0, 0]})},
        "action": {"move": [0, 0], "fire": ([0, 0],)},
    }
    with pytest.raises(ValueError, match="^" + says.replace("[", r"\[").replace("(", r"\(").replace(")", r"\)")):
        store.append(**whole | change, reward=0, terminated=False, truncated=False)
    assert not len(store)
    store.append(**whole, reward=0, terminated=True, truncated=False)
    assert len(store) == 1


@pytest.mark.parametrize(
    ("obs", "says"),
    [
        ({"a": {}}, "obs.a is an empty dict"),
        ((), "obs is an empty tuple"),
        ({"": TWO}, "observation key '' in obs must be a non-empty string"),
        ({"a": {0: TWO}}, "observation key 0 in obs.a must be a non-empty string"),
        ({"a": 5}, "obs.a is 5, expected a sharpwave.Field"),
    ],
)
def test_structures_that_cannot_be(obs: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        sw.Spec(obs=obs, action=TWO)
    with pytest.raises((ValueError, TypeError), match=says.replace("obs", "action").replace("ervation", "")):
        sw.Spec(obs=TWO, action=obs)


def test_a_structure_that_contains_itself_ends() -> None:
    tree: dict[str, Any] = {}
    tree["a"] = tree
    with pytest.raises(ValueError, match="nested deeper than 16 levels"):
        sw.Spec(obs=tree, action=TWO)


def test_names_of_flat_specs_are_what_they_were() -> None:
    """Stores on disk have them: a key without a dot stands as it is, and further fields may begin with "action."."""
    odd = ["a\\b", "0", "[0]", "action", "a b", "\\"]
    spec = sw.Spec(obs=dict.fromkeys(odd, TWO), action=TWO, **{"action.x": TWO})
    assert list(spec.fields) == [*(f"obs.{key}" for key in odd), "action", "action.x"] and not spec.nested
    assert "tuples" not in spec.to_json() and sw.Spec.from_json(spec.description()) == spec
    with pytest.raises(ValueError, match=r"field 'action.x' would be taken for an action"):
        sw.Spec(obs=TWO, action={"y": TWO}, **{"action.x": TWO})


def fields(*names: str) -> dict[str, Any]:
    return {name: {"shape": [2], "dtype": "float32", "stack": None, "pad": "repeat"} for name in names}


@pytest.mark.parametrize(
    ("names", "tuples"),
    [
        (["obs.a", "obs.a.b", "action"], []),
        (["obs.a.b", "obs.a", "action"], []),
        (["obs", "obs.a", "action"], []),
        (["obs.a..b", "action"], []),
        (["obs.", "action"], []),
        (["obs.a\\x.b", "action"], []),
        (["obs.a.b\\", "action"], []),
        (["obs" + ".a" * 17, "action"], []),
        (["obs.0", "obs.2", "action"], ["obs"]),
        (["obs.1", "obs.0", "action"], ["obs"]),
        (["obs.a", "action"], ["obs"]),
        (["obs.a", "action"], ["obs.a"]),
        (["obs.0", "action"], ["obs", "obs.b"]),
        (["obs.0", "action"], "obs"),
        (["obs.0", "action"], [5]),
        (["obs.0"], ["obs"]),
        (["action.0"], ["action"]),
    ],
)
def test_schemas_that_no_store_writes_are_refused(names: list[str], tuples: Any) -> None:
    with pytest.raises(ValueError):
        sw.Spec.from_json({"fields": fields(*names), "tuples": tuples})


def test_a_release_that_knows_no_nesting_refuses_the_store_by_name(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=8, disk=tmp_path / "store"):
        pass
    manifest = json.loads((tmp_path / "store" / "store.json").read_text())
    assert manifest["requires"] == ["nested observations", "packed steps"]
    manifest["spec"]["tuples"] = []
    (tmp_path / "store" / "store.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedError):
        sw.Store.open(tmp_path / "store")


def test_views_of_other_structures_do_not_blend() -> None:
    stores = [sw.Store(sw.Spec(obs=obs, action=TWO), capacity=8) for obs in ((TWO,), {"0": TWO})]
    with pytest.raises(ValueError, match="differ in tuples"):
        sw.Blend([(0.5, store.transitions()) for store in stores])
