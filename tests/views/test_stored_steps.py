"""``Store.fetch``: steps by their ids beside a plain list of the appended steps, on disk and in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw

SPEC = sw.Spec(
    obs={"camera": sw.Field((12, 9), "uint8", stack=3), "arm": sw.Field((3,), "float32")},
    action=sw.Field((2,), "float32"),
    words=sw.Field((None,), "int32"),
    task=sw.Field(str, shared=True),
    state=sw.Field((4,), "float32", every=4),
)


def filled(steps: int = 100, **more: Any) -> tuple[sw.Store, list[dict[str, Any]]]:
    """Return a store, and the steps appended to it: two lanes in turn, episodes of 7 steps."""
    store, rng, log = sw.Store(SPEC, segment_steps=8, **({"capacity": 1000} | more)), np.random.default_rng(0), []
    for step in range(steps):
        one: dict[str, Any] = {
            "camera": rng.integers(0, 4, (2, 12, 9), np.uint8),
            "arm": rng.random((2, 3)).astype(np.float32),
            "action": rng.random((2, 2)).astype(np.float32),
            "words": [np.arange(step % 4, dtype=np.int32) + lane for lane in range(2)],
            "task": [f"task {step // 10}", "other"],
            "state": np.full((2, 4), step, np.float32),
            "reward": rng.random(2).astype(np.float32),
            "first": step % 7 == 0,
        }
        ended = np.full(2, step % 7 == 6)
        extra: dict[str, Any] = {name: one[name] for name in ("words", "task", "state")}
        final = {"camera": one["camera"], "arm": one["arm"]} if ended[0] else None
        store.extend(obs={"camera": one["camera"], "arm": one["arm"]}, action=one["action"], reward=one["reward"],
                     terminated=ended, truncated=np.zeros(2, bool), final_obs=final, **extra)  # fmt: skip
        log.append(one)
    return store, log


def check(batch: Any, log: list[dict[str, Any]], lanes: Any, steps: Any) -> None:
    """Compare a batch with the steps of the log."""
    assert batch.lane.tolist() == list(lanes) and batch.step.tolist() == list(steps)
    assert batch.next_obs is None and np.isnan(batch.probabilities).all() and (batch.weights == 1).all()
    for i, (lane, step) in enumerate(zip(lanes, steps, strict=True)):
        one, begin = log[step], step - step % 7
        stack = [log[max(begin, step - back)]["camera"][lane] for back in (2, 1, 0)]
        assert np.array_equal(batch.obs["camera"][i], stack), (lane, step)
        assert np.array_equal(batch.obs["arm"][i], one["arm"][lane])
        assert np.array_equal(batch.action[i], one["action"][lane])
        assert batch.reward[i] == one["reward"][lane]
        assert batch.terminated[i] == (step % 7 == 6) and not batch.truncated[i]
        assert batch.discount[i] == (step % 7 != 6) and batch.n[i] == 1
        assert np.array_equal(batch["words"][i], one["words"][lane])
        assert batch["task"][i] == one["task"][lane]
        assert batch["state"][i, 0] == begin + step % 7 // 4 * 4


@pytest.mark.parametrize("more", [{}, {"disk": True}, {"disk": True, "ram": "9MiB"}])
def test_steps_are_fetched_as_they_were_appended(more: dict[str, Any], tmp_path: Path) -> None:
    """In any order, repeated ones and each lane's newest included, whose next observation is not known."""
    store, log = filled(**({**more, "disk": tmp_path / "s"} if more else {}))
    rng = np.random.default_rng(1)
    for count in (1, 5, 64, 64, 64):
        lanes, steps = rng.integers(0, 2, count), rng.integers(0, len(log), count)
        lanes[0], steps[0] = 1, len(log) - 1
        check(store.fetch(store.ids(lanes, steps)), log, lanes, steps)
    if more:
        store.close()
        store = sw.Store.open(tmp_path / "s")
        lanes, steps = rng.integers(0, 2, 64), rng.integers(0, 98, 64)  # of whole episodes: the last one is broken off
        check(store.fetch(store.ids(lanes, steps)), log, lanes, steps)
    assert len(store.fetch(store.ids([], [])).reward) == 0
    drawn = store.transitions().sample(9)
    found = store.fetch(drawn)
    assert np.array_equal(found.lane, drawn.lane) and np.array_equal(found.step, drawn.step)
    store.close()


def test_only_fields_that_are_asked_for_are_decoded(tmp_path: Path) -> None:
    """Other fields are None, or absent; late columns come with their marks from the call that adds them on."""
    store, log = filled(disk=tmp_path / "s")
    ids = store.ids(np.zeros(20, int), np.arange(20))
    batch = store.fetch(ids, fields=("obs.arm", "words"))
    assert batch.obs["camera"] is None and batch.action is None and set(batch.fields) == {"words"}
    assert np.array_equal(batch.obs["arm"], [one["arm"][0] for one in log[:20]])
    assert [rows.tolist() for rows in batch["words"]] == [one["words"][0].tolist() for one in log[:20]]
    with pytest.raises(ValueError, match="no field 'next_obs', expected some of obs, action"):
        store.fetch(ids, fields=["next_obs"])
    with pytest.raises(TypeError, match="fields=5, expected a list"):
        store.fetch(ids, fields=5)  # type: ignore[arg-type]
    store.add_column("value", sw.Field((), "float32"))
    store.write_column("value", ids[3:5], np.array([7, 8]))
    batch = store.fetch(ids, fields=("value",))
    assert batch.mask_of("value").tolist() == [k in (3, 4) for k in range(20)]
    assert batch["value"][3:5].tolist() == [7, 8]
    assert store.fetch(ids)["value"][3:5].tolist() == [7, 8]
    store.drop_column("value")
    assert "value" not in store.fetch(ids).fields
    with pytest.raises(ValueError, match="no field 'value'"):
        store.fetch(ids, fields=("value",))
    store.close()


def test_steps_that_are_not_held_are_refused() -> None:
    """Evicted ones, deleted ones, those of another store, and windows."""
    store, _ = filled(capacity=120)
    other, _ = filled(20)
    ids = store.ids([0, 1], [99, 99])
    seqs = store.sequences(4)
    early = other.ids(0, [2])
    with pytest.raises(ValueError, match="fetch"):
        store.fetch(early)
    with pytest.raises(ValueError, match="fetch"):
        store.fetch(seqs.sample(2).ids)
    gone = np.asarray(ids[:1]) - (1 << 32)
    with pytest.raises(KeyError, match="evicted or deleted"):
        store.fetch(gone)
    with pytest.raises(KeyError, match="evicted or deleted"):
        store.fetch(np.array([1 << 40]))
    episode = next(iter(store.episodes()))
    its = episode.ids
    store.delete(episodes=[episode])
    with pytest.raises(KeyError, match="evicted or deleted"):
        store.fetch(its)
