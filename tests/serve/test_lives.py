"""Lives of clusters in processes: ended politely and not, opened again, grown, cut; writers and learners go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.segment_writer import SegmentWriter
from sharpwave.serve import local_shards
from sharpwave.serve.fleet import SEGMENT_STEPS
from sharpwave.serve.link import ShardLostError
from tests.serve.fleets import wait_for
from tests.serve.serving import SPEC, play, served

STEPS = 120


def counting(writer: SegmentWriter, begin: int, steps: int, lanes: int = 2) -> None:
    """Write steps whose action is their number, in episodes of 25."""
    for step in range(begin, begin + steps):
        writer.extend(
            obs=np.full((lanes, 6, 5), step % 256, np.uint8),
            action=np.full(lanes, step),
            reward=np.full(lanes, step),
            terminated=np.full(lanes, step % 25 == 24),
            truncated=np.zeros(lanes, bool),
            noise=np.zeros((lanes, 2)),
        )


def actions(cluster: sw.Cluster, name: str, lanes: int = 2) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Return the action and the next frame of every step that can be sampled, by shard, lane and step."""
    replay = cluster.transitions(name=name, sampler=sw.Uniform(), max_times_sampled=1)
    seen: dict[tuple[int, int, int], tuple[int, int]] = {}
    while count := len(replay):
        batch = replay.sample(min(64, count))
        for at in range(len(batch)):
            key = int(batch.shards[at]), int(batch.lane[at]), int(batch.step[at])
            assert key not in seen, "drawn twice"
            seen[key] = int(batch.action[at]), int(batch.next_obs[at, -1, 0, 0])
    return seen


@pytest.mark.slow
def test_a_shard_that_is_killed_comes_back_with_every_acknowledged_step(tmp_path: Path) -> None:
    with sw.Cluster(SPEC, shards=2, capacity=100_000, disk=tmp_path / "disk") as cluster:
        writers = [cluster.writer(2, shard=number, durability="flush", segment_steps=8) for number in (0, 1)]
        replay = cluster.transitions()
        assert cluster._processes is not None
        for life in range(3):
            for writer in writers:
                counting(writer, STEPS * life, STEPS // 2)
            os.kill(cluster._processes.processes[life % 2], signal.SIGKILL)
            for writer in writers:
                counting(writer, STEPS * life + STEPS // 2, STEPS // 2)  # goes on while the shard is away
                writer.flush()
            assert len(replay.sample(32)) == 32
        assert sum(writer.delivery.acknowledged for writer in writers) >= 2 * 2 * (3 * STEPS - 8)
        seen = actions(cluster, "all")
        # Every sealed step but the last of each lane, whose successor is not known; no break at a restart.
        for shard in {key[0] for key in seen}:
            for lane in (0, 1):
                steps = sorted(key[2] for key in seen if key[:2] == (shard, lane))
                assert steps == list(range(len(steps))) and len(steps) >= 3 * STEPS - 9
        for (_, _, step), (action, after) in seen.items():
            assert action == step
            assert after == (step if step % 25 == 24 else step + 1) % 256


def test_a_shard_that_is_killed_comes_back_with_its_priorities(tmp_path: Path) -> None:
    with sw.Cluster(SPEC, shards=2, capacity=100_000, disk=tmp_path / "disk") as cluster:
        for number in (0, 1):
            writer = cluster.writer(2, shard=number, durability="flush", segment_steps=8)
            counting(writer, 0, STEPS)
            writer.flush()
        replay = cluster.transitions(sampler=sw.Prioritized(alpha=1.0))
        for error in (20.0, 500.0):
            batch = replay.sample(50)
            replay.update_priorities(batch, np.full(50, error))
        cluster.flush()
        replay.sample(1)  # its reply has every shard's mass
        mass = sum(one.state.mass for one in replay._of.known.values())
        assert mass > 10_000
        assert cluster._processes is not None
        for process in cluster._processes.processes[:2]:
            os.kill(process, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while True:
            assert time.monotonic() < deadline
            try:
                drawn = replay.sample(64)
            except (ShardLostError, sw.EmptyError):  # both are away
                time.sleep(0.1)
                continue
            lives = set(drawn.shards.tolist())
            if len(lives) == 2 and not lives & set(batch.shards.tolist()):
                break
        assert sum(one.state.mass for one in replay._of.known.values()) == pytest.approx(mass)


@pytest.mark.slow
def test_a_cluster_lives_on_in_its_folder_and_writers_with_their_names(tmp_path: Path) -> None:
    for life in range(3):
        with (
            sw.Cluster(SPEC, shards=2, capacity=10_000, disk=tmp_path / "d")
            if life == 0
            else sw.Cluster.open(tmp_path / "d") as cluster
        ):
            writer = cluster.writer(2, name="player", shard=1, segment_steps=8)
            assert (writer.delivery.first_lane, len(cluster)) == (0, 2 * 100 * life)
            counting(writer, 0, 100)
            writer.close()
            assert cluster.writer(1, name="other", shard=1).delivery.first_lane == 2
        with pytest.raises(FileExistsError, match=r"Cluster\.open"):
            sw.Cluster(SPEC, shards=2, capacity=10_000, disk=tmp_path / "d")


@pytest.mark.slow
def test_a_checkpoint_is_one_cut_and_a_cluster_opens_from_it(tmp_path: Path) -> None:
    with sw.Cluster(SPEC, shards=2, capacity=10_000) as cluster:
        writers = [cluster.writer(1, shard=number, segment_steps=8) for number in (0, 1)]
        for writer in writers:
            counting(writer, 0, 100, lanes=1)
            writer.flush()
        replay = cluster.transitions(sampler=sw.Prioritized(alpha=1.0))
        batch = replay.sample(50)
        replay.update_priorities(batch, np.full(50, 5.0))
        mass = sum(one.state.mass for one in replay._of.known.values())
        for _ in range(2):
            cluster.checkpoint(tmp_path / "ckpt")
        held = len(cluster)
        counting(writers[0], 100, 50, lanes=1)
    assert sorted(one.name for one in (tmp_path / "ckpt").iterdir()) == ["cluster.json", "cut-2"]
    with sw.Cluster.open(tmp_path / "ckpt") as cluster:
        assert len(cluster) == held
        replay = cluster.transitions(sampler=sw.Prioritized(alpha=1.0))
        assert sum(one.state.mass for one in replay._of.known.values()) == pytest.approx(mass)
        assert len(replay.sample(16)) == 16
    (tmp_path / "ckpt" / "notes.txt").write_text("mine")
    with sw.Cluster(SPEC, capacity=1000) as cluster, pytest.raises(FileExistsError, match=r"notes\.txt"):
        cluster.checkpoint(tmp_path / "ckpt")
    assert (tmp_path / "ckpt" / "notes.txt").read_text() == "mine"


def test_shards_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = """
import sys, sharpwave as sw
from tests.serve.serving import SPEC
if __name__ == "__main__":
    cluster = sw.Cluster(SPEC, shards=1, capacity=1000, disk=sys.argv[1])
    print(cluster._processes.processes[0], flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", program, str(tmp_path / "d")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        shard = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30
    while _runs(shard):
        assert time.monotonic() < deadline, "the shard outlived the process that started it"
        time.sleep(0.05)
    with sw.Cluster.open(tmp_path / "d") as cluster:
        assert len(cluster) == 0


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"shards": 0, "capacity": 100}, ValueError, "shards=0"),
        ({"shards": 2}, ValueError, "capacity="),
        ({"capacity": 100, "speed": 3}, TypeError, "speed"),
        ({"capacity": 100, "address": "nowhere"}, ValueError, "nowhere"),
        ({"address": "127.0.0.1:9"}, ConnectionError, "127.0.0.1:9: nothing answers"),
        ({"address": f"unix:{tmp_path}/none"}, ConnectionError, "sharpwave serve"),
    ]
    for arguments, error, text in wrong:
        with pytest.raises(error, match=text):
            sw.Cluster(SPEC, **arguments)


def test_a_shard_that_cannot_be_started_again_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with sw.Cluster(SPEC, shards=1, capacity=1000) as cluster:
        assert cluster._processes is not None
        before, refused = cluster._processes.processes, list[int]()

        def none_left(*_: Any, **__: Any) -> None:
            refused.append(0)
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(local_shards, "Program", none_left)
            os.kill(before[0], signal.SIGKILL)
            wait_for(lambda: len(refused) >= 2)
        wait_for(lambda: cluster._processes is not None and cluster._processes.processes != before)
        writer = cluster.writer(name="w", timeout=60.0)  # waits for it
        counting(writer, 0, 10, 1)
        writer.close()
        assert len(cluster) == 9


def test_a_lost_shard_that_nobody_starts_again(tmp_path: Path) -> None:
    """Without it, there is nothing to sample; or nobody to ask."""
    cluster = sw.Cluster.of(SPEC, [f"unix:{tmp_path}/gone"])
    with pytest.raises(ShardLostError, match=r"no shard can be reached: unix:.*/gone"):
        cluster.transitions().sample(1)
    with served(1, tmp_path) as there:
        both = sw.Cluster.of(SPEC, [f"unix:{tmp_path}/gone", str(there.servers[0].address)])
        with pytest.raises(sw.EmptyError, match=r"0 items can be sampled .*; unix:.*/gone cannot be reached"):
            both.transitions().sample(1)
        both.close()
    with pytest.raises(ShardLostError, match="gone"):
        cluster.writer(1)
    cluster.close()


def test_a_writer_gets_a_shard_that_answers(tmp_path: Path) -> None:
    with served(1, tmp_path) as there:
        cluster = sw.Cluster.of(SPEC, [f"unix:{tmp_path}/gone", str(there.servers[0].address)])
        for _ in range(2):  # whichever's turn it is
            writer = cluster.writer(1, segment_steps=8)
            counting(writer, 0, 20, lanes=1)
            writer.close()
        assert there.stores[0].lanes == 2
        cluster.close()


def test_a_shard_holds_as_many_steps_as_its_capacity_says(tmp_path: Path) -> None:
    with served(1, tmp_path, capacity=2_000, segment_steps=SEGMENT_STEPS) as there:
        writer = there.cluster.writer(2)
        counting(writer, 0, 2_500)
        writer.flush()
        assert len(there.cluster) > 1_900


def test_a_refusal_is_heard_without_a_flush(tmp_path: Path) -> None:
    """Whoever waits for others, and so puts and flushes nothing, hears that a segment was not taken."""
    with served(1, tmp_path) as cluster:
        writer = cluster.cluster.writer(lanes=1, name="one")
        segments: list[sw.SealedSegment] = []
        other = sw.SegmentWriter(SPEC, 1, segments.append, segment_steps=8)
        play(other, 1, 20, seed=0)
        damaged = replace(segments[0], packed=segments[0].packed[:-4] + b"\0\1\2\3")
        writer.delivery.put(damaged)
        until = time.monotonic() + 30.0
        with pytest.raises(sw.DamagedError):
            while time.monotonic() < until:
                writer.delivery.hear()
                time.sleep(0.01)
