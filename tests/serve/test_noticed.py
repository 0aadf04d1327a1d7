"""What writers of a cluster notice: an error there, or counted in the cluster's stats()."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import sharpwave as sw
from sharpwave.log.boundaries import NOTICED
from tests.serve.serving import served

SPEC = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))


def play(writer: Any, steps: int) -> None:
    """Write the rows of a vector that resets with the next step, as a loop of Gymnasium 0.29 does."""
    envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    envs.action_space.seed(0)
    before, _ = envs.reset(seed=0)
    for _ in range(steps):
        action = envs.action_space.sample()
        after, reward, terminated, truncated, _ = envs.step(action)
        rows = dict(obs=before, next_obs=after, action=action, reward=reward)
        writer.extend(**rows, terminated=terminated, truncated=truncated)
        before = after


def wander(writer: Any, steps: int) -> None:
    """Write steps none of which leads to the next one's observation."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        obs, after = rng.normal(size=(2, 1, 4)).astype(np.float32)
        ends = np.zeros(1, bool)
        writer.extend(obs=obs, next_obs=after, action=[0], reward=[0.0], terminated=ends, truncated=ends)


def test_writers_warn_and_the_cluster_counts_what_they_noticed(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=10_000) as store, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        play(store, 300)
        expected = store.stats()["repeated_finals"]
    with served(2, tmp_path, spec=SPEC) as there:
        cluster = there.cluster
        writers = [cluster.writer(2, shard=number) for number in (0, 1)]
        with pytest.warns(RuntimeWarning, match="they are resets and no steps"):
            for writer in writers:
                play(writer, 300)
        for writer in writers:
            writer.close()
        stats = cluster.stats()
        assert stats["repeated_finals"] == 2 * expected > 20
        assert [one["repeated_finals"] for one in stats["shards"]] == [expected, expected]

        writer = cluster.writer(1)
        with pytest.warns(RuntimeWarning, match="every step is an episode of its own"):
            wander(writer, 50)
        writer.close()
        stats = cluster.stats()
        assert stats["broken_episodes"] == 49 == sum(one["broken_episodes"] for one in stats["shards"])
        assert stats["unchained_steps"] == 49

        writer = cluster.writer(2)
        recorder = sw.Recorder(gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"), writer)
        recorder.action_space.seed(0)
        recorder.reset(seed=0)
        for _ in range(300):
            recorder.step(recorder.action_space.sample())
        writer.close()
        assert cluster.stats()["dropped_resets"] == 600 - (len(cluster) - 1250) > 20

        strict = cluster.writer(2, strict=True)
        with pytest.raises(ValueError, match=r"lane [01]: \d+ steps observe .* steps \d+.*resets and no steps"):
            play(strict, 300)
        strict.close()
        with pytest.raises(TypeError, match="strict='no', expected True or False"):
            cluster.writer(2, strict="no")  # type: ignore[arg-type]


def test_a_segment_carries_what_was_counted_since_the_one_before() -> None:
    sent: list[Any] = []
    writer = sw.SegmentWriter(SPEC, 2, sent.append, segment_steps=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        play(writer, 200)
    for lane in (0, 1):
        writer.break_episode(lane)
    writer.seal()
    assert np.sum([one.noticed for one in sent], axis=0).tolist() == list(writer._log.boundaries.counts)
    assert len({one.noticed for one in sent}) > 1
    with sw.Store(SPEC, capacity=10_000) as store:
        for one in sent:
            store.add_segment(one.packed, one.dictionaries, noticed=one.noticed)
        assert {name: store.stats()[name] for name in NOTICED} == writer._log.boundaries.counted
        with pytest.raises(ValueError, match=r"a writer's counts \[1, -1\], expected one for each of broken_episodes"):
            store.add_segment(sent[0].packed, sent[0].dictionaries, noticed=[1, -1])
