"""TorchRL's buffer over its life: priorities, transforms, saving, disks, and what it refuses."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, RewardScaling, SerialEnv, ToTensorImage

from sharpwave import EmptyError
from sharpwave.integrations.torchrl import ReplayBuffer, SharpwaveStorage


def steps(count: int, begin: int = 0, **more: Any) -> TensorDict:
    """A trajectory that goes on."""
    number = torch.arange(begin, begin + count)
    after = {"observation": number[:, None] + 1.0, "reward": torch.ones(count, 1)}
    after["done"] = torch.zeros(count, 1, dtype=torch.bool)
    return TensorDict({"observation": number[:, None] + 0.0, "action": number, "next": after, **more}, [count])


def images(count: int, moves: bool = True, begin: int = 0) -> TensorDict:
    """Stacks of four frames."""
    frames = torch.zeros(count + 4, 16, 16, dtype=torch.uint8)
    frames[3:] = (torch.arange(count + 1) * 7 % 251 + 1).to(torch.uint8)[:, None, None]
    frames[:3] = frames[3]
    stacks = torch.stack([frames[k : k + count + 1] for k in range(4)], 1)
    stacks = stacks if moves else torch.randint(0, 255, stacks.shape, dtype=torch.uint8)
    data = steps(count, begin)
    data["observation"], data["next", "observation"] = stacks[:-1], stacks[1:]
    return data


def test_priorities_decide_what_is_drawn() -> None:
    buffer = ReplayBuffer(1000, batch_size=64, alpha=1.0, beta=1.0)
    index = buffer.extend(steps(100))
    sample = buffer.sample()
    assert torch.equal(sample["priority_weight"], torch.ones(64))
    errors = torch.zeros(100)
    errors[:2] = torch.tensor([3.0, -1.0])
    buffer.update_tensordict_priority(TensorDict({"index": index, "td_error": errors[:, None]}, [100]))
    drawn = torch.cat([buffer.sample()["action"] for _ in range(60)])
    assert set(drawn.tolist()) == {0, 1}
    assert 0.7 < (drawn == 0).float().mean() < 0.8
    sample = buffer.sample()
    expected = torch.where(sample["action"] == 0, 1 / 3, 1.0)
    torch.testing.assert_close(sample["priority_weight"], expected, rtol=1e-4, atol=0)
    more = buffer.extend(steps(10, 100, td_error=torch.zeros(10)).exclude("td_error"))
    buffer.update_priority(more, torch.full((10,), 1000.0))
    assert (buffer.sample()["action"] >= 100).float().mean() > 0.9


def test_priorities_come_with_what_is_added() -> None:
    buffer = ReplayBuffer(1000, batch_size=64, alpha=1.0)
    errors = torch.zeros(100)
    errors[7] = 1.0
    buffer.extend(steps(100, td_error=errors))
    assert set(buffer.sample()["action"].tolist()) == {7}


def test_transforms_prefetching_and_iteration() -> None:
    scaled = ReplayBuffer(
        1000, batch_size=8, prefetch=2, transform=ToTensorImage(in_keys=["pixels", ("next", "pixels")])
    )  # fmt: skip
    scaled.append_transform(RewardScaling(0, 10, in_keys=[("next", "reward")]))
    pixels = torch.randint(0, 255, (21, 20, 16, 3), dtype=torch.uint8)
    data = steps(20)
    data["pixels"], data["next", "pixels"] = pixels[:-1], pixels[1:]
    scaled.extend(data)
    for batch, _ in zip(scaled, range(5), strict=False):
        number = batch["action"]
        assert torch.equal(batch["pixels"], pixels[number].permute(0, 3, 1, 2) / 255)
        assert torch.equal(batch["next", "pixels"], pixels[number + 1].permute(0, 3, 1, 2) / 255)
        assert (batch["next", "reward"] == 10).all() and torch.equal(batch["observation"][:, 0], number + 0.0)
    scaled.close()


@pytest.mark.parametrize("whole", [True, False])
def test_a_collector_that_feeds_it(whole: bool) -> None:
    buffer = ReplayBuffer(1000, batch_size=8)
    env: Any = SerialEnv(2, lambda: GymEnv("CartPole-v1")) if whole else GymEnv("CartPole-v1")
    for _ in Collector(env, frames_per_batch=40, total_frames=200, replay_buffer=buffer, extend_buffer=whole):
        assert buffer.sample().batch_size == (8,)
    assert len(buffer) == buffer.write_count == 200 and buffer.transitions.store.lanes == 1 + whole


@pytest.mark.parametrize("as_dict", [True, False])
def test_saving_keeps_all_and_what_would_be_drawn(as_dict: bool, tmp_path: Path) -> None:
    def restored(old: Any, new: Any) -> Any:
        if as_dict:
            torch.save(old.state_dict(), tmp_path / "state.pt")
            new.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        else:
            old.dumps(tmp_path / "saved")
            new.loads(tmp_path / "saved")
        return new

    first = ReplayBuffer(1000, batch_size=16, alpha=0.6)
    index = first.extend(steps(100))
    first.update_priority(index, torch.rand(100))
    again = restored(first, ReplayBuffer(1000, batch_size=16, alpha=0.6))
    for _ in range(3):
        assert torch.equal(again.sample()["index"], first.sample()["index"])
    again.extend(steps(50, 500))
    assert len(again) == 150 and again.sample().batch_size == (16,)
    placed = TensorDictReplayBuffer(storage=SharpwaveStorage(80))
    placed.extend(steps(100))
    new = restored(placed, TensorDictReplayBuffer(storage=SharpwaveStorage(80)))
    assert new[:]["action"].tolist() == [*range(80, 100), *range(20, 80)]
    new.extend(steps(10, 100))
    assert new[:]["action"].tolist() == [*range(80, 110), *range(30, 80)]


def test_it_goes_on_on_disk(tmp_path: Path) -> None:
    first = ReplayBuffer(1000, batch_size=8, disk=tmp_path / "replay")
    first.extend(images(60))
    first.close()
    again = ReplayBuffer(1000, batch_size=8, disk=tmp_path / "replay")
    assert len(again) == 60
    assert again.sample()["observation"].shape == (8, 4, 16, 16)
    index = again.extend(images(30))
    assert len(again) == 90 and torch.equal(again[index]["observation"], images(30)["observation"])
    again.empty()
    assert len(again) == 0
    again.extend(images(30))
    assert len(again) == 30
    again.close()
    with pytest.raises(ValueError, match="n_step=2"):
        ReplayBuffer(1000, n_step=2, disk=tmp_path / "sums").extend(steps(3).exclude(("next", "reward")))


def test_the_oldest_are_evicted_and_places_hold_the_newest() -> None:
    buffer = ReplayBuffer(1000)
    placed, theirs = SharpwaveStorage(1000), LazyTensorStorage(1000)
    for begin in range(0, 6000, 700):
        buffer.extend(steps(700, begin))
        cursor = torch.arange(begin, begin + 700) % 1000
        for storage in (placed, theirs):
            storage.set(cursor, steps(700, begin))
    assert len(buffer) <= 1000 and buffer.sample(500)["action"].min() >= 5300
    assert torch.equal(placed[:]["action"], theirs[:]["action"]) and len(placed) == 1000
    assert len(placed.transitions.store) <= 1000 + 4 * 128
    buffer.empty()
    assert len(buffer) == 0 and buffer.write_count == 0
    with pytest.raises(EmptyError):
        buffer.sample(4)
    buffer.extend(steps(20))
    assert len(buffer) == 20


def test_padded_trajectories_are_taken_without_padding() -> None:
    data: Any = torch.stack([steps(5), steps(5, 100)])
    data["collector"] = TensorDict({"mask": torch.ones(2, 5, dtype=torch.bool)}, [2, 5])
    data["collector", "mask"][1, 3:] = False
    buffer = ReplayBuffer(100)
    index = buffer.extend(data)
    assert len(buffer) == 8 and index[1, 3:].tolist() == [-1, -1]
    assert buffer[index[1, :3]]["action"].tolist() == [100, 101, 102]


def test_stacks_that_are_seen_from_their_middle_are_passed_over() -> None:
    buffer, whole = ReplayBuffer(1000), images(60)
    buffer.extend(whole[:20])
    with pytest.warns(RuntimeWarning, match="10 transitions are of trajectories"):
        index = buffer.extend(whole[30:40])
    assert index.tolist() == [-1] * 10 and len(buffer) == 20
    index = buffer.extend(images(30))
    assert torch.equal(buffer[index]["next", "observation"], images(30)["next", "observation"])
    placed = SharpwaveStorage(1000)
    placed.set(torch.arange(20), whole[:20])
    with pytest.raises(ValueError, match="frame_stack=None"):
        placed.set(torch.arange(20, 30), whole[30:40])
    assert len(placed) == 20


def test_what_is_refused_changes_nothing() -> None:
    buffer = ReplayBuffer(1000, frame_stack=4)
    with pytest.raises(ValueError, match="frame_stack=None"):
        buffer.extend(images(20, moves=False))
    assert len(buffer) == 0
    buffer.extend(images(20))
    for wrong, match in (
        (images(20, moves=False), "frame_stack=None"),
        (steps(5), "expected uint8"),
        (images(5).exclude("action"), "no \\('action'"),
        (images(5).set("more", torch.zeros(5)), "more"),
    ):
        with pytest.raises(ValueError, match=match):
            buffer.extend(wrong)
    assert len(buffer) == 20 and buffer.sample(4)["observation"].shape == (4, 4, 16, 16)
    for nothing in (TensorDict({"a": torch.zeros(3)}, [3]), steps(3).exclude("next"), steps(3).exclude("action")):
        with pytest.raises(ValueError, match="expected transitions"):
            ReplayBuffer(1000).extend(nothing)
    with pytest.raises(TypeError, match="BFloat16"):
        ReplayBuffer(1000).extend(steps(3).set("x", torch.zeros(3, dtype=torch.bfloat16)))
    for settings in (
        {"alpha": 2.0},
        {"n_step": 0},
        {"slice_len": 4, "n_step": 2},
        {"frame_stack": "maybe"},
        {"ram": 5},
    ):
        with pytest.raises(ValueError):
            ReplayBuffer(1000, **settings)
    assert not len(ReplayBuffer(1000).extend(steps(3)[:0]))
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(buffer)
    with pytest.raises(ValueError, match="max_size"):
        SharpwaveStorage(100, ram="1GiB")
    with pytest.raises(ValueError, match="flatten"):
        SharpwaveStorage(100).set(range(2), torch.stack([steps(5), steps(5)]))
    with pytest.raises(IndexError):
        SharpwaveStorage(100).get(3)
    with pytest.raises(ValueError, match=r"ndim=2, expected 1: .*reshape\(-1\)"):
        SharpwaveStorage(100, ndim=2)
    assert SharpwaveStorage(100, ndim=1, device=torch.device("cpu")).max_size == 100
    with pytest.raises(TypeError, match=r"got Tensor, expected a TensorDict of transitions.* LazyTensorStorage does"):
        SharpwaveStorage(100).set(range(100), torch.arange(100))
    with pytest.raises(ValueError, match=r"got keys \['a'\], expected transitions.* LazyTensorStorage does"):
        SharpwaveStorage(100).set(range(100), TensorDict({"a": torch.arange(100)}, [100]))
    with pytest.raises(TypeError, match="ids"):
        buffer[:]


@pytest.mark.parametrize(
    "change",
    [
        lambda buffer: buffer.set_("action", torch.zeros(20, dtype=torch.int64)),
        lambda buffer: buffer.set_at_("action", torch.tensor([7]), torch.tensor([3])),
        lambda buffer: buffer.update_({"action": torch.zeros(20, dtype=torch.int64)}),
    ],
)
def test_changes_in_place_are_refused_and_whole_transitions_are_written(change: Any) -> None:
    buffer = TensorDictReplayBuffer(storage=SharpwaveStorage(100), batch_size=8)
    buffer.extend(steps(20))
    with pytest.raises(TypeError, match="stored transitions do not change; write whole transitions"):
        change(buffer)
    assert buffer[:]["action"].tolist() == list(range(20))
    buffer[3] = steps(1, 40)[0]
    assert buffer[:]["action"].tolist() == [0, 1, 2, 40, *range(4, 20)]


def test_a_place_that_was_evicted_is_named() -> None:
    """As another place was written over more often than the store keeps transitions beside the newest."""
    buffer = TensorDictReplayBuffer(storage=SharpwaveStorage(10), batch_size=8)
    buffer.extend(steps(10))
    for number in range(1000):
        buffer[3] = steps(1, 40 + 2 * number)[0]
    assert buffer[3]["action"] == 2038
    with pytest.raises(KeyError, match=r"place 0 is empty by now: .* write places in their order"):
        buffer[:]


def test_what_is_derived_from_a_storage_is_invalid_after_each_change() -> None:
    """TorchRL's samplers keep the trajectories that they found until this number grows."""
    storage, other = SharpwaveStorage(100), SharpwaveStorage(100)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=8)
    buffer.extend(steps(20))
    other.load_state_dict(storage.state_dict())
    buffer.empty()
    assert (storage._mutation_revision, other._mutation_revision) == (2, 1)


def test_a_collate_fn_that_was_given_is_kept() -> None:
    for given, kept in ((None, True), (lambda data: data.exclude("action"), False)):
        buffer = TensorDictReplayBuffer(storage=SharpwaveStorage(100), batch_size=8, collate_fn=given)
        buffer.extend(steps(20))
        assert (buffer.sample().get("action", None) is not None) == kept


def test_samples_are_over_the_batch_memory_and_stay_as_they_are() -> None:
    buffer = ReplayBuffer(1000, batch_size=32, ram="64MiB")
    buffer.extend(images(300))
    kept = [buffer.sample() for _ in range(20)]
    copies = [one.clone() for one in kept]
    held = buffer.transitions.store.stats()["held_batch_bytes"]
    assert held >= 20 * 32 * 5 * 256
    for _ in range(50):
        buffer.sample()
    for one, copy in zip(kept, copies, strict=True):
        assert torch.equal(one["observation"], copy["observation"]) and torch.equal(one["action"], copy["action"])
    del kept, one
    buffer.sample()
    assert buffer.transitions.store.stats()["held_batch_bytes"] < held / 10
    assert np.isfinite(copies[0]["next", "reward"].numpy()).all()
