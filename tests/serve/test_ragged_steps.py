"""Observations and actions with rows of any length through shards: batches have the rows that were written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.serve.serving import Kind, served
from tests.store.test_ragged_steps_machine import PARTS, check, joined, part_of
from tests.support.examples import by_day

ACTIONS = sw.Spec(obs=sw.Field((40,), "uint8"), action=PARTS)
OBSERVATIONS = sw.Spec(obs=PARTS, action=PARTS)
Numbers = dict[tuple[int, int], int]


def obs_of(spec: sw.Spec, numbers: list[int]) -> Any:
    if spec.array_obs:
        return np.array(numbers, np.int64)[:, None] % 251 * np.ones(40, np.uint8)
    return joined([part_of(one) for one in numbers])


def write(writer: Any, spec: sw.Spec, lanes: int, steps: int, seed: int) -> Numbers:
    """Write steps, each lane's with numbers of its own; return the observations' numbers by lane and step."""
    rng, written = np.random.default_rng(seed), dict[tuple[int, int], int]()
    for step in range(steps):
        numbers = [1 + 10_000 * lane + 3 * step for lane in range(lanes)]
        ended = (rng.random(lanes) < 0.15) | (step == steps - 1)
        writer.extend(
            obs=obs_of(spec, numbers), action=joined([part_of(one + 5) for one in numbers]), reward=np.ones(lanes),
            terminated=ended & (step % 2 == 0), truncated=ended & (step % 2 == 1),
            final_obs=obs_of(spec, [one + 1 for one in numbers]),
        )  # fmt: skip
        written |= {(lane, step): one for lane, one in enumerate(numbers)}
    return written


def check_transitions(batch: Any, spec: sw.Spec, written: Numbers) -> None:
    check(batch.action)
    expected = [written[at] for at in zip(batch.lane.tolist(), batch.step.tolist(), strict=True)]
    assert (batch.action["number"] - 5).tolist() == expected
    if spec.array_obs:
        return
    check(batch.obs)
    check(batch.next_obs)
    assert batch.obs["number"].tolist() == expected
    ended = batch.terminated | batch.truncated
    last = [one + 3 * (n - 1) for one, n in zip(expected, batch.n.tolist(), strict=True)]
    assert (batch.next_obs["number"] == np.array(last) + np.where(ended, 1, 3)).all()


@pytest.mark.parametrize("kind", by_day("tcp", "unix"))
@pytest.mark.parametrize("spec", [ACTIONS, OBSERVATIONS], ids=["actions", "observations"])
def test_clusters_draw_the_rows_of_their_stores(spec: sw.Spec, kind: Kind, tmp_path: Path) -> None:
    with served(2, tmp_path, kind, spec=spec) as there:
        local = sw.Store(spec, capacity=1000)
        for shard in range(2):
            writer = there.cluster.writer(lanes=2, shard=shard)
            written = write(writer, spec, 2, 60, 0)
            writer.close()
        write(local, spec, 2, 60, 0)
        one: Any = there.cluster.transitions()
        far = there.cluster.transitions(n_step=3, name="far")
        own: Any = local.transitions(name="own")
        drawn = [one.sample(40), far.sample(7), next(iter(one.stream(16))), one.sample(40, lookahead=2)]
        drawn += [sw.Blend([(0.5, one), (0.5, own)]).sample(32)]
        for batch in drawn:
            check_transitions(batch, spec, written)
        settings: dict[str, Any] = {"length": 5, "burn_in": 3, "stride": 2, "n_step": 2}
        windows: Any = there.cluster.sequences(**settings)
        here: Any = local.sequences(**settings)
        both: list[Any] = [windows.sample(20), sw.Blend([(1, windows), (1, here)]).sample(16)]
        for batch in both:
            check(batch.action)
            for b, t in np.argwhere(batch.mask).tolist():
                at = int(batch.lane[b]), int(batch.step[b]) + t - batch.burn_in
                assert batch.action["number"][b, t] == written[at] + 5
                assert spec.array_obs or batch.obs["number"][b, t] == written[at]
            if not spec.array_obs:
                check(batch.obs)


@pytest.mark.parametrize("spec", [ACTIONS, OBSERVATIONS], ids=["actions", "observations"])
def test_a_shard_lost_in_the_middle_costs_no_row(spec: sw.Spec, tmp_path: Path) -> None:
    with served(2, tmp_path, "unix", spec=spec) as there:
        for shard in range(2):
            writer = there.cluster.writer(lanes=1, shard=shard)
            written = write(writer, spec, 1, 50, 1)
            writer.close()
        replay = there.cluster.transitions(max_times_sampled=5, sampler=sw.Uniform())
        check_transitions(replay.sample(32, lookahead=1), spec, written)
        there.servers[1].close()
        batch = replay.sample(32)
        assert len(batch) == 32
        check_transitions(batch, spec, written)
