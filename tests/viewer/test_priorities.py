"""Priorities, TD errors and uses of a checkpoint's views, against those that were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the viewer needs the extra view: pip install 'sharpwave[view]'")

import sharpwave as sw
from sharpwave.viewer.priorities import episode_numbers
from tests.offline.written import SPEC, Writer, fill
from tests.viewer.served import serving

Given = dict[tuple[int, int], float]


def learn(view: Any, mine: Given, rng: np.random.Generator) -> None:
    """Sample and update; note in ``mine`` what the view was told, by lane and step."""
    batch = view.sample(16)
    windows = batch.reward.ndim == 2
    errors = rng.exponential(1.0, (16, view.view.length) if windows else 16).astype(np.float32)
    view.update_priorities(batch.ids, errors)
    for k, key in enumerate(zip(batch.lane.tolist(), batch.step.tolist(), strict=True)):
        if windows:
            real = errors[k][batch.mask[k, batch.burn_in :]]
            mine[key] = float(0.9 * real.max() + 0.1 * real.mean(dtype=np.float64))
        else:
            mine[key] = float(errors[k])


def told(server: Any, number: int) -> Given:
    """TD errors that a view's items have by the server, as of the curves of all episodes."""
    found: Given = {}
    name = server.get("0/overview")["memory"]["views"][number]["name"]
    for episode in server.get("0/episodes", limit=500)["rows"]:
        curves = server.get("0/steps", lane=episode["lane"], first=episode["first"])
        curve = [one["values"] for one in curves["curves"] if one["label"] == f"TD error ({name})"]
        values: list[float | None] = curve[0] if curve else []
        found |= {(episode["lane"], episode["first"] + k): v for k, v in enumerate(values) if v is not None}
    return found


@pytest.mark.parametrize("kind", ["checkpoint", "disk and checkpoint"])
def test_errors_are_those_that_were_given(kind: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"capacity": 600, "segment_steps": 16}
    if kind != "checkpoint":
        settings["disk"] = tmp_path / "run" / "replay"
        (tmp_path / "run").mkdir()
    with sw.Store(SPEC, **settings) as store:
        views: list[Any] = [
            store.transitions(n_step=3, sampler=sw.Prioritized(alpha=0.7, eps=1e-3), name="steps"),
            store.transitions(sampler=sw.RankPrioritized(), name="ranks"),
            store.sequences(length=6, burn_in=2, stride=3, sampler=sw.Prioritized(alpha=0.9), eta=0.9, name="windows"),
        ]
        given: list[Given] = [{} for _ in views]
        maxima: list[set[float]] = [{1.0} for _ in views]  # what new items got
        writer, rng = Writer(store), np.random.default_rng(3)
        fill(writer, 300, 3)
        for round_ in range(12):
            fill(writer, 40, 3, seed=round_)
            for view, mine, largest in zip(views, given, maxima, strict=True):
                learn(view, mine, rng)
                largest.add(max(*largest, *mine.values()))
        in_run = tmp_path / "run" / "checkpoints" / f"{1:012d}" / "replay"
        saved = tmp_path / "saved" if kind == "checkpoint" else in_run
        saved.parent.mkdir(parents=True, exist_ok=True)
        store.checkpoint(saved)
        if kind != "checkpoint":
            (tmp_path / "run" / "config.json").write_text("{}")
            store.flush()  # rows of open segments
        with serving(saved if kind == "checkpoint" else tmp_path / "run") as server:
            names = [one["name"] for one in server.get("0/overview")["memory"]["views"]]
            assert sorted(names) == ["ranks", "steps", "windows"]
            for name, view, mine, largest in zip(("steps", "ranks", "windows"), views, given, maxima, strict=True):
                found = told(server, names.index(name))
                there = {key: value for key, value in mine.items() if key in found}
                assert len(there) > 30
                for key, value in there.items():
                    assert found[key] == pytest.approx(value, rel=2e-5, abs=2e-5), (name, key)
                rest = [value for key, value in found.items() if key not in mine]
                if name != "windows":  # whose steps share their window's
                    assert rest and all(np.isclose(value, list(largest), rtol=1e-3, atol=2e-3).any() for value in rest)
                items = server.get("0/priorities", view=names.index(name))
                assert items["items"] == len(view)


def test_times_sampled_are_counted(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=1000, segment_steps=16)
    fill(Writer(store), 400, 2)
    view = store.transitions(max_times_sampled=3)
    counts: dict[tuple[int, int], int] = {}
    for _ in range(20):
        batch = view.sample(24)
        for key in zip(batch.lane.tolist(), batch.step.tolist(), strict=True):
            counts[key] = counts.get(key, 0) + 1
    store.checkpoint(tmp_path / "saved")
    with serving(tmp_path / "saved") as server:
        found = server.get("0/priorities")
        expected = np.bincount(list(counts.values()), minlength=4)[1:]
        assert found["times_sampled"]["counts"][1:] == expected.tolist() and found["max_times_sampled"] == 3
        assert found["samples"] == 480 and "priority" not in found
        for episode in server.get("0/episodes", limit=500)["rows"]:
            curves = server.get("0/steps", lane=episode["lane"], first=episode["first"])["curves"]
            (uses,) = [one["values"] for one in curves if one["label"] == "times sampled"]
            assert uses == [counts.get((episode["lane"], episode["first"] + k), 0) for k in range(episode["length"])]


def test_mean_priorities_of_episodes(tmp_path: Path) -> None:
    store = sw.Store(SPEC, capacity=1000, segment_steps=16)
    view = store.transitions(sampler=sw.Prioritized(alpha=0.5, eps=1e-6))
    fill(Writer(store), 300, 3)
    given: Given = {}
    while len(given) < len(view):
        learn(view, given, np.random.default_rng(len(given)))
    store.checkpoint(tmp_path / "saved")
    with serving(tmp_path / "saved") as server:
        rows = server.get("0/episodes", sort="priority", desc=1, limit=500)["rows"]
        means = [row["priority"] for row in rows if row["priority"] is not None]
        assert means == sorted(means, reverse=True) and len(means) > 10
        assert server.get("0/priorities")["items"] == len(given)
        assert [row["priority"] is None for row in rows] == sorted(row["priority"] is None for row in rows)
        for row in [row for row in rows if row["priority"] is not None]:
            steps = [(row["lane"], row["first"] + k) for k in range(row["length"])]
            mine = [given[key] for key in steps if key in given]
            assert row["priority"] == pytest.approx(np.mean(mine), rel=1e-4)


def test_numbers_in_an_episode() -> None:
    flags = np.array([0, 1, 4, 0, 2, 4, 4], np.uint8)
    assert episode_numbers(flags, 7).tolist() == [7, 8, 0, 1, 2, 0, 0]
    assert episode_numbers(flags, -1).tolist() == [-1, -1, 0, 1, 2, 0, 0]
    assert episode_numbers(flags[:0], 3).tolist() == []
