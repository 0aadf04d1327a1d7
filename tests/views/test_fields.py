"""Batches of some fields: the same items as whole batches, and of these only what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw

OBS = {"camera": sw.Field((8, 8), "uint8", stack=2), "arm": (sw.Field((3,), "float32"), sw.Field((), "int16"))}
SPEC = sw.Spec(obs=OBS, action={"move": sw.Field((2,), "float32"), "grip": sw.Field((), "bool")},
               note=sw.Field((5,), "int64"), state=sw.Field((4,), "float32", every=4))  # fmt: skip
EVEN = sw.Spec(obs=OBS, action={"move": sw.Field((2,), "float32"), "grip": sw.Field((), "bool")},
               note=sw.Field((5,), "int64"))  # fmt: skip
CHOICES = [
    (), ("reward",), ("obs",), ("action",), ("note",), ("obs.camera",), ("obs.arm.1", "action.move"),
    ("obs.arm.0", "note"), ("next_obs", "action", "note"), ("later",), ("later", "obs.camera"),
]  # fmt: skip


def filled(spec: sw.Spec = EVEN, steps: int = 120, **more: Any) -> sw.Store:
    store, rng = sw.Store(spec, segment_steps=16, **({"capacity": 400} | more)), np.random.default_rng(0)
    for step in range(steps):
        extra: dict[str, Any] = {"note": np.full(5, step)}
        if "state" in spec.fields:
            extra["state"] = np.full(4, step)
        arm = rng.random(3).astype(np.float32), np.int16(step)
        store.append(
            obs={"camera": rng.integers(0, 256, (8, 8), np.uint8), "arm": arm},
            action={"move": rng.random(2), "grip": bool(step % 2)},
            reward=step, terminated=step % 11 == 10, truncated=False, **extra,
        )  # fmt: skip
    store.derive("later", lambda reward: reward, ("reward",))
    return store


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {name: one for key, part in value.items() for name, one in leaves(part, f"{path}.{key}").items()}
    if isinstance(value, tuple):
        return {name: one for key, part in enumerate(value) for name, one in leaves(part, f"{path}.{key}").items()}
    return {} if value is None else {path: value}


def parts(batch: Any) -> dict[str, Any]:
    """All arrays of a batch, by name."""
    found = {name: value for name, value in vars(batch).items() if name not in ("obs", "next_obs", "action", "fields")}
    for name in ("obs", "next_obs", "action"):
        found |= leaves(getattr(batch, name, None), name)
    return {name: value for name, value in (found | batch.fields).items() if value is not None}


def wanted(name: str, fields: tuple[str, ...]) -> bool:
    """Whether a part of a whole batch is in one of ``fields``."""
    root = name.split(".")[0]
    if root in ("obs", "next_obs"):
        return "obs" in fields or "next_obs" in fields or name.replace("next_obs", "obs") in fields
    if root == "action":
        return "action" in fields or name in fields
    if root in ("note", "later", "state"):
        return root in fields
    return True


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("kind", ["one", "three", "windows", "stacked windows"])
def test_the_same_items_of_fewer_fields(tmp_path: Path, kind: str, disk: bool) -> None:
    def view(folder: str) -> Any:
        more: dict[str, Any] = {"disk": tmp_path / folder} if disk else {}
        store = filled(**more)
        sampler = sw.Prioritized()
        if "windows" in kind:
            return store.sequences(5, burn_in=2, stride=2, n_step=2, sampler=sampler, seed=3)
        return store.transitions(n_step=1 if kind == "one" else 3, sampler=sampler, seed=3)

    whole, some = view("a"), view("b")
    for turn in range(3):
        for fields in CHOICES:
            expected, found = parts(whole.sample(9)), parts(some.sample(9, fields=fields))
            assert found.keys() == {name for name in expected if wanted(name, fields)}, fields
            for name, value in found.items():
                assert np.array_equal(value, expected[name]), (fields, name)
            ids = np.asarray(found["ids"])
            for one in (whole, some):
                one.update_priorities(ids, np.full((9, *one.view.error_shape), 1.0 + turn))
            again = parts(some.fetch(ids, fields=fields))
            assert all(
                np.array_equal(again[name], found[name]) for name in found if name not in ("weights", "probabilities")
            )
        assert parts(some.sample(9)).keys() == parts(whole.sample(9)).keys()


def test_streams_and_limited_uses() -> None:
    views = [filled().transitions(sampler=sw.Fifo(), max_times_sampled=1, seed=1) for _ in range(2)]
    whole, some = views[0].stream(7, lookahead=2), views[1].stream(7, lookahead=2, fields=("note",))
    for _ in range(10):
        expected, found = next(whole), next(some)
        assert np.array_equal(expected["note"], found["note"])
        assert np.array_equal(expected.ids, found.ids)
        assert found.obs is None
    some.close()
    whole.close()
    assert len(views[0]) == len(views[1])


def test_columns_that_come_and_go() -> None:
    view = filled().transitions()
    assert set(view.sample(4, fields=("later",)).fields) == {"later", "later.written"}
    view._log.late.drop("later")
    view.source.take_columns()
    with pytest.raises(ValueError, match="no field 'later'"):
        view.sample(4, fields=("later",))
    assert not view.sample(4, fields=("action",)).fields


def test_sparse_fields_and_other_frameworks() -> None:
    torch = pytest.importorskip("torch")
    store = filled(SPEC)
    batch = store.sequences(4).sample(6, fields=("state", "obs.arm.1")).torch()
    assert isinstance(batch["state"], torch.Tensor)
    assert batch.obs["camera"] is None
    assert batch.obs["arm"][0] is None
    assert batch.obs["arm"][1].shape == (6, 5)
    assert "camera" not in repr(store.transitions().sample(3, fields=("obs.arm.1",)))
    assert "obs.arm.1" in store.transitions(name="b").sample(3, fields=("obs.arm.1",))._repr_html_()


def test_goals_need_their_parts() -> None:
    keys = ("observation", "achieved_goal", "desired_goal")
    store = sw.Store(
        sw.Spec(obs={k: sw.Field((1,), "float32") for k in keys}, action=sw.Field((), "int64")), capacity=99
    )
    for step in range(60):
        obs = {k: np.full(1, step + (k == "desired_goal"), np.float32) for k in keys}
        store.append(obs=obs, action=step, reward=0.0, terminated=step % 10 == 9, truncated=False)
    goals = sw.Future(k=4, reward_fn=lambda achieved, desired, info: (achieved == desired)[:, 0])
    views = [store.transitions(name=f"{k}", relabel=goals, seed=2) for k in range(2)]
    for _ in range(4):
        whole = views[0].sample(16)
        some = views[1].sample(16, fields=("obs.achieved_goal", "obs.desired_goal"))
        assert np.array_equal(whole.reward, some.reward)
        assert np.array_equal(whole.obs["desired_goal"], some.obs["desired_goal"])
        assert some.action is None
    with pytest.raises(ValueError, match=r"need 'obs.achieved_goal'"):
        views[0].sample(4, fields=("action",))


@pytest.mark.parametrize("fields", ["obs", ("nothing",), (3,), ("obs.nothing",)])
def test_wrong_names(fields: Any) -> None:
    view = filled().transitions()
    for call in (lambda: view.sample(4, fields=fields), lambda: view.stream(4, fields=fields)):
        with pytest.raises((ValueError, TypeError), match="fields"):
            call()


def test_what_is_in_memory_is_not_read_from_disk(tmp_path: Path) -> None:
    """Rewards, ends and late columns of a store that holds no segment in memory any more."""
    store = filled(disk=tmp_path / "d")
    store.close()
    with sw.Store.open(tmp_path / "d") as again:
        view = again.transitions()
        read = again.stats()["disk"]["misses"]
        batch = view.sample(64, fields=("reward", "later"))
        there = batch.mask_of("later")
        assert np.array_equal(batch["later"][there], batch.reward[there])
        assert there.sum() > 40
        next(view.stream(64, fields=("later",)))
        assert again.stats()["disk"]["misses"] == read
        view.sample(64, fields=("note",))
        assert again.stats()["disk"]["misses"] > read


def test_rows_of_any_length() -> None:
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int8"), words=sw.Field((None,), "int32"))
    store = sw.Store(spec, capacity=200)
    for step in range(60):
        store.append(obs=np.zeros(2), action=0, reward=step, terminated=step % 10 == 9, truncated=False,
                     words=np.arange(step % 7))  # fmt: skip
    views = [store.transitions(name=f"{k}", seed=1) for k in range(2)] + [
        store.sequences(4, name=f"w{k}", seed=1) for k in range(2)
    ]
    for whole, some in (views[:2], views[2:]):
        for _ in range(3):
            expected, found = whole.sample(8), some.sample(8, fields=("words",))
            assert np.array_equal(expected["words"].values, found["words"].values)
            assert np.array_equal(expected["words"].offsets, found["words"].offsets)
            assert found.obs is None
            expected, found = whole.sample(8), some.sample(8, fields=("obs",))
            assert not found.fields
            assert np.array_equal(expected.obs, found.obs)


def test_streams_follow_columns_by_name() -> None:
    """Also those whose column is dropped, made anew in another shape, or moved by another's drop."""
    store = filled()
    view = store.transitions()
    ids = np.asarray(store.transitions(name="all").sampleable_ids())
    for number, name in enumerate("abc"):
        store.add_column(name, sw.Field((), "float32"))
        store.write_column(name, ids, np.full(len(ids), number + 1))
    streams = {name: view.stream(64, fields=(name,)) for name in "abc"}
    for stream in streams.values():
        next(stream)
    store.drop_column("a")
    store.add_column("d", sw.Field((512,), "float64"))
    store.write_column("d", ids, np.full((len(ids), 512), 99.0))
    for _ in range(12):
        for name, stream in streams.items():
            batch = next(stream)
            assert set(batch.fields) == ({name, f"{name}.written"} if name in store.columns else set())
            assert name == "a" or (batch[name] == "abc".index(name) + 1).all()
    store.add_column("a", sw.Field((2,), "int64"))
    assert [next(streams["a"])["a"].shape for _ in range(8)][-1] == (64, 2)


@pytest.mark.parametrize("kind", ["goals", "windows"])
def test_growth_is_followed(kind: str) -> None:
    """Arrays that a view replaces as the store grows; ragged fields are filled step by step."""
    keys = ("observation", "achieved_goal", "desired_goal")
    spec = sw.Spec(obs={k: sw.Field((1,), "float32") for k in keys}, action=sw.Field((), "int64"), text=sw.Field(str))
    store = sw.Store(spec, capacity=300, segment_steps=8)
    goals = sw.Future(k=4, reward_fn=lambda achieved, desired, _: (achieved == desired)[:, 0])
    view: Any = store.transitions(relabel=goals) if kind == "goals" else store.sequences(6, burn_in=2, stride=3)
    for phase in range(3):
        if phase:
            store.resize(capacity=300 * 10**phase)
        for step in range(500):
            obs = {k: np.full(1, -1 if k == "desired_goal" else step, np.float32) for k in keys}
            store.append(obs=obs, action=step, reward=0.0, terminated=step % 10 == 9, truncated=False, text=f"{step}")
        for _ in range(4):
            drawn = view.draw(100)
            whole, some = view.fetch(drawn), view.fetch(drawn, fields=("obs", "text"))
            assert np.array_equal(whole.reward, some.reward)
            assert all(np.array_equal(whole.obs[key], some.obs[key]) for key in keys)
            assert np.array_equal(whole["text"].values, some["text"].values)


def test_columns_that_only_a_target_has_are_read_with_its_own() -> None:
    """For learners elsewhere, whose batches have the spec's fields; padding is cleared, whatever the memory held."""
    with sw.Store(sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64")), capacity=200) as store:
        serial = 1
        for steps in (1, 3, 7, 20):
            numbers = np.arange(serial, serial + steps + 1)
            store.add_episode(
                lane=0, obs=numbers, action=np.zeros(steps, int), reward=np.zeros(steps), terminated=True
            )  # fmt: skip
            serial += steps + 1
        store.add_column("tens", sw.Field((2,), "float32"))
        for episode in store.episodes():
            ids, numbers = episode.ids[::2], episode["obs"][: len(episode.ids) : 2]
            store.write_column("tens", ids, np.stack([10 * numbers, -numbers], 1))
        every: Any = store.transitions(), store.sequences(length=4, burn_in=2, stride=2)
        for replay, rows in zip(every, (1, 6), strict=True):
            with replay.lock:
                replay.view.late = False
                replay.source.take_columns()
                late = {"tens": np.full((64, rows, 8), 255, np.uint8), "tens.written": np.ones((64, rows, 1), np.uint8)}
                target = replay.source.lend(64).with_late(late)
                replay.source.draw_into(target, 0.0)
            real = getattr(target.batch, "mask", np.ones((64, 1), bool))
            numbers = np.where(real, target.batch.obs.reshape(64, -1)[:, :rows], 0)
            first = np.array([1, 3, 7, 15])
            odd = (numbers - first[np.searchsorted(first, np.maximum(numbers, 1), side="right") - 1]) % 2 == 1
            there = real & ~odd
            expected = np.where(there[..., None], np.stack([10 * numbers, -numbers], -1), 0)
            assert (late["tens"].view(np.float32) == expected).all() and there.any() and not there.all()
            assert (late["tens.written"][..., 0] == there).all() and "tens" not in target.batch.fields
