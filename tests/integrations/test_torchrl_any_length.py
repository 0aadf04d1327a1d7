"""Texts and rows of any length in TensorDicts, beside TorchRL's storage that holds any data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ListStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers import SamplerWithoutReplacement
from torchrl.envs import GymWrapper

from sharpwave.integrations.torchrl import ReplayBuffer, SharpwaveStorage

lazy_stack = LazyStackedTensorDict.lazy_stack
ROWS = ["tokens", ("next", "tokens"), ("deep", "patches")]
TEXTS = ["task", ("next", "task"), "answer"]
RAGGED: list[str | tuple[str, ...]] = ["tokens", ("deep", "patches")]


def lives(count: int, seed: int = 0) -> list[TensorDict]:
    """Return steps of one environment, whose episodes end in either way."""
    rng, steps = np.random.default_rng(seed), []

    def observed() -> dict[str, Any]:
        tokens = torch.from_numpy(rng.integers(0, 99, rng.integers(0, 5)))
        return {"vector": torch.randn(3), "tokens": tokens, "task": "\u00e9\0" * int(rng.integers(0, 4))}

    before = observed()
    for _ in range(count):
        after, ended, cut = observed(), rng.random() < 0.1, rng.random() < 0.1
        flags = dict(done=ended or cut, terminated=ended, truncated=cut and not ended)
        then = {**after, "reward": torch.randn(1), **{name: torch.tensor([one]) for name, one in flags.items()}}
        deep = TensorDict(patches=torch.randn(int(rng.integers(0, 3)), 2))
        step = TensorDict(**before, deep=deep, action=torch.randn(2), answer=b"\0a" * int(rng.integers(1, 4)))
        steps.append(step.set("next", TensorDict(**then)))
        before = observed() if ended or cut else after
    return steps


def dense(steps: list[TensorDict], made: Any) -> TensorDict:
    """Return steps as a TensorDict that is no lazy stack, its rows of any length as ``made`` makes them."""
    left: Any = torch.stack([step.exclude(*ROWS) for step in steps])
    for key in ROWS:
        left.set(key, made([step[key] for step in steps]))
    return left


def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


WAYS: dict[str, Any] = {
    "lazy stacks": lazy_stack,
    "jagged tensors": lambda steps: dense(steps, jagged),
    "strided nested tensors": lambda steps: dense(steps, torch.nested.nested_tensor),
    "arrays": lambda steps: dense(steps, lambda rows: NonTensorStack(*[NonTensorData(row.numpy()) for row in rows])),
}


def assert_row(found: Any, expected: Any) -> None:
    """Compare a row of a sample with a step."""
    keys = set(expected.keys(True, True)) - {"index"}
    assert set(found.keys(True, True)) - {"index"} == keys
    for key in keys:
        one, other = found[key], expected[key]
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other), key
        else:
            assert type(one) is type(other) and one == other, key


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("way", [*WAYS, "one by one"])
def test_texts_and_rows_come_back_as_they_were(way: str) -> None:
    steps, buffer = lives(60), ReplayBuffer(1000, batch_size=16, ragged=RAGGED if way == "one by one" else ())
    theirs = TensorDictReplayBuffer(storage=ListStorage(1000), batch_size=16)
    if way == "one by one":
        index = torch.cat([buffer.add(step.clone()).reshape(1) for step in steps])
    else:
        index = torch.cat([buffer.extend(WAYS[way](steps[k : k + 20])) for k in (0, 20, 40)])
    theirs.extend(lazy_stack(steps))
    spec = buffer.transitions.store.spec
    assert set(spec.ragged_obs) == {"obs.tokens", "obs.task"}
    assert buffer.transitions.store.stats()["broken_episodes"] == 0
    for found, step in zip(buffer[index], theirs[:], strict=True):
        assert_row(found, step)
    sample = buffer.sample()
    assert isinstance(sample["tokens"], torch.Tensor) and sample["tokens"].layout == torch.jagged
    assert type(sample.get("task")) is type(theirs.sample().get("task")) is NonTensorStack
    places = [index.tolist().index(one) for one in sample["index"].tolist()]
    assert sample["answer"] == [steps[place]["answer"] for place in places]
    assert_row(buffer[int(index[7])], steps[7])


def test_text_in_torchrls_own_buffer_as_in_its_own_storage() -> None:
    steps = torch.stack([step.exclude(*ROWS) for step in lives(60)])
    ours, theirs = (
        TensorDictReplayBuffer(
            storage=storage, sampler=SamplerWithoutReplacement(), batch_size=16, collate_fn=torch.nn.Identity(),
            generator=torch.Generator().manual_seed(1),
        )
        for storage in (SharpwaveStorage(60), LazyTensorStorage(60))
    )  # fmt: skip
    for buffer in (ours, theirs):
        buffer.extend(steps[:50].clone())
        for step in steps[50:].unbind(0):
            buffer.add(step.clone())
    for _ in range(4):
        mine, other = ours.sample(), theirs.sample()
        assert mine.batch_size == other.batch_size and type(mine) is type(other)
        for key in TEXTS:
            assert mine[key] == other[key] and type(mine.get(key)) is type(other.get(key))
        assert torch.equal(mine["vector"], other["vector"]) and torch.equal(mine["index"], other["index"])
        for one, two in zip(mine, other, strict=True):
            assert_row(one, two)


def test_rows_in_torchrls_own_buffer() -> None:
    steps, buffer = lives(60), TensorDictReplayBuffer(storage=SharpwaveStorage(60, ragged=RAGGED), batch_size=16)
    buffer.extend(lazy_stack(steps[:40]))
    for step in steps[40:]:
        buffer.add(step.clone())
    for found, step in zip(buffer[:], steps, strict=True):
        assert_row(found, step)
    sample = buffer.sample()
    for row, place in zip(sample, sample["index"].tolist(), strict=True):
        assert_row(row, steps[place])


def test_several_environments_and_windows_of_their_steps() -> None:
    lanes = [lives(40, seed) for seed in range(3)]
    buffer = ReplayBuffer(1000, batch_size=8, slice_len=5)
    for begin in (0, 20):
        buffer.extend(lazy_stack([lazy_stack(steps[begin : begin + 20]) for steps in lanes]))
    assert buffer.transitions.store.stats()["lanes"] == 3
    vectors = {tuple(step["vector"].tolist()): step for steps in lanes for step in steps}
    sample = buffer.sample()
    assert sample.batch_size == (8, 5)
    for window in sample.unbind(0):
        mask = window["collector", "mask"]
        assert window["tokens"].layout == torch.jagged
        for place, row in enumerate(window.exclude("collector")):
            if mask[place]:
                assert_row(row, vectors[tuple(row["vector"].tolist())])


class Told(gym.Env[Any, Any]):
    """Environment that says in words what to do."""

    observation_space = gym.spaces.Dict(place=gym.spaces.Box(-9, 9, (2,)), task=gym.spaces.Text(20))
    action_space = gym.spaces.Discrete(2)

    def reset(self, **more: Any) -> Any:
        super().reset(**more)
        self.count = 0
        return self.observed(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.observed(), 1.0, self.count == 7, False, {}

    def observed(self) -> Any:
        return {"place": self.np_random.normal(size=2).astype(np.float32), "task": "go " * (self.count % 4)}


def test_what_a_collector_gets_from_a_text_space_comes_back() -> None:
    buffer, theirs = ReplayBuffer(100), TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    index = []
    more = {"auto_register_policy_transforms": False}
    for data in Collector(GymWrapper(Told()), frames_per_batch=10, total_frames=40, **more):
        index.append(buffer.extend(data))
        theirs.extend(data.clone())
    for found, expected in zip(buffer[torch.cat(index)], theirs[:], strict=True):
        assert_row(found, expected)
    assert [one.length for one in buffer.transitions.store.episodes()] == [7] * 5 + [5]


def test_returns_of_several_steps_and_a_life_on_disk(tmp_path: Path) -> None:
    steps = lives(60)
    more: dict[str, Any] = dict(ram="64MiB", batch_size=16, n_step=3, disk=tmp_path / "store")
    buffer = ReplayBuffer(1000, **more)
    index = buffer.extend(lazy_stack(steps))
    buffer.close()
    buffer = ReplayBuffer(1000, **more)
    for place in range(40):
        row, count = buffer[int(index[place])], 1
        while count < 3 and not steps[place + count - 1]["next", "done"]:
            count += 1
        last = steps[place + count - 1]
        assert row["task"] == steps[place]["task"] and row["next", "task"] == last["next", "task"]
        assert torch.equal(row["next", "tokens"], last["next", "tokens"])
    buffer.close()


def test_a_checkpoint_has_texts_and_rows(tmp_path: Path) -> None:
    steps, buffer = lives(30), ReplayBuffer(1000, batch_size=16)
    index = buffer.extend(lazy_stack(steps))
    buffer.dumps(tmp_path / "saved")
    again = ReplayBuffer(1000, batch_size=16)
    again.loads(tmp_path / "saved")
    for found, step in zip(again[index], steps, strict=True):
        assert_row(found, step)
    again.extend(lazy_stack(steps[:3]))  # of the same structure


def test_texts_beside_observations_are_stored_once() -> None:
    prompt, buffer = "p" * 10_000, ReplayBuffer(1000, batch_size=16)
    steps = [step.set("prompt", NonTensorData(prompt)) for step in lives(300)]
    index = buffer.extend(lazy_stack(steps))
    assert buffer.transitions.store.spec.shared_names == ("td/answer", "td/prompt")
    held = buffer.transitions.store.stats()["shared"]
    assert held["td/prompt"]["values"] == 1 and held["td/answer"]["values"] == 3
    for found, step in zip(buffer[index], steps, strict=True):
        assert_row(found, step)


def test_what_cannot_be_stored_is_refused_by_its_key() -> None:
    buffer, steps = ReplayBuffer(1000), lives(4)
    for value, message in [({"a": 1}, "expected a text, or an array of numbers"), (7, "expected a text")]:
        wrong = lazy_stack([step.clone().set("answer", NonTensorData(value)) for step in steps])
        with pytest.raises(TypeError, match=rf"\('answer',\) cannot be stored .*{message}"):
            buffer.extend(wrong)
    fixed = lazy_stack([step.clone().set("tokens", torch.zeros(2)).exclude("next") for step in steps])
    for step, one in zip(fixed.unbind(0), steps, strict=True):
        step.set("next", one["next"].clone().set("tokens", torch.zeros(2)))
    buffer.extend(fixed)
    with pytest.raises(
        ValueError, match=r"\('tokens',\) is int64 \(None,\), expected float32 \(2,\); name it in ragged="
    ):
        buffer.extend(lazy_stack(steps))
    with pytest.raises(ValueError, match=r"single number, expected rows with a length"):
        ReplayBuffer(100, ragged=["count"]).extend(lazy_stack([s.clone().set("count", torch.tensor(1)) for s in steps]))
    assert len(buffer) == 4


def grown(before: Any, after: Any, **more: Any) -> TensorDict:
    """Return a step whose tokens grow."""
    then = TensorDict(tokens=after, reward=torch.ones(1), done=torch.zeros(1, dtype=torch.bool))
    return TensorDict(tokens=before, action=torch.zeros(2), next=then, **more)


@pytest.mark.parametrize("ragged", [None, (), "tokens", ["tokens"], [("next", "tokens")]])
def test_first_rows_may_all_be_equally_long(ragged: Any) -> None:
    A = torch.arange
    steps = [grown(A(2), A(3)), grown(A(2), A(3)), grown(A(3), A(0)), grown(A(0), A(1))]
    for more in ([], [grown(A(1), A(1)), grown(A(0), A(0))] if ragged else []):
        buffer, theirs = ReplayBuffer(99, ragged=ragged), TensorDictReplayBuffer(storage=ListStorage(99))
        index = torch.cat([buffer.extend(lazy_stack(part)) for part in ([*more, *steps[:2]], steps[2:])])
        theirs.extend(lazy_stack([*more, *steps]))
        assert buffer.transitions.store.spec.ragged_obs == ("obs.tokens",)
        for found, step in zip(buffer[index], theirs[:], strict=True):
            assert_row(found, step)


def test_empty_first_rows_need_a_name() -> None:
    empty = lazy_stack([grown(torch.arange(0), torch.arange(0))])
    with pytest.raises(ValueError, match=r"tokens.* has rows of shape \(0,\), .*ragged="):
        ReplayBuffer(99).extend(empty)
    buffer = ReplayBuffer(99, ragged="tokens")
    buffer.extend(empty)
    buffer.extend(lazy_stack([grown(torch.arange(0), torch.arange(4))]))
    assert buffer[torch.tensor([0, 1])]["next", "tokens"].dtype == torch.int64


def test_rows_of_several_dtypes_are_refused() -> None:
    buffer, A = ReplayBuffer(99), torch.arange
    steps = [grown(A(2), A(3)), grown(A(3.0), A(1))]
    with pytest.raises(
        TypeError, match=r"\('tokens',\) cannot be stored \(rows: rows of float32 and int64, expected one"
    ):
        buffer.extend(lazy_stack(steps))
    buffer.extend(lazy_stack(steps[:1]))
    with pytest.raises(ValueError, match=r"\('tokens',\) is float32 .*expected int64"):
        buffer.extend(lazy_stack(steps[1:]))
    assert len(buffer) == 1


def test_returns_of_several_steps_refuse_what_differs_in_next() -> None:
    steps = [step.set("seen", torch.zeros(2)) for step in lives(4)]
    for step in steps:
        step["next", "seen"] = torch.zeros(2, 2)
    ReplayBuffer(99).extend(lazy_stack(steps))
    with pytest.raises(ValueError, match=r"n_step=3, but \('next', 'seen'\) differs"):
        ReplayBuffer(99, n_step=3).extend(lazy_stack(steps))


@pytest.mark.parametrize("disk", [False, True])
def test_refused_first_transitions_decide_nothing(disk: bool, tmp_path: Path) -> None:
    more: dict[str, Any] = {"disk": tmp_path / "store", "ram": "64MiB"} if disk else {}
    buffer, steps = ReplayBuffer(99, **more), lives(3)
    with pytest.raises(ValueError, match="no UTF-8"):
        buffer.extend(lazy_stack([step.clone().set("answer", "\ud800") for step in steps]))
    buffer.extend(lazy_stack(steps))
    assert buffer[torch.arange(3)]["answer"] == [step["answer"] for step in steps]
    buffer.close()


@pytest.mark.parametrize("filled", [0, 3])
def test_refused_transitions_leave_no_holes_in_torchrls_buffer(filled: int) -> None:
    steps = lives(12)
    ours, theirs = (
        TensorDictReplayBuffer(storage=storage, batch_size=4)
        for storage in (SharpwaveStorage(8, ragged=RAGGED), ListStorage(8))
    )
    for begin in range(0, 12, 4):
        if begin or filled:
            bad = steps[begin].clone().set("task", "\ud800")
            with pytest.raises(ValueError, match="no UTF-8"):
                ours.extend(lazy_stack([step.clone() for step in steps[:2]] + [bad]))
            with pytest.raises(ValueError, match="no UTF-8"):
                ours.add(bad.clone())
        for buffer in (ours, theirs):
            buffer.extend(lazy_stack([step.clone() for step in steps[begin : begin + 4]]))
        assert ours.write_count == theirs.write_count and len(ours) == len(theirs)
        for found, step in zip(ours[:], theirs[:], strict=True):
            assert_row(found, step)
        ours.sample()


def test_places_that_were_never_written_are_named() -> None:
    buffer, steps = TensorDictReplayBuffer(storage=SharpwaveStorage(8, ragged=RAGGED), batch_size=4), lives(4)
    buffer.storage.set([0, 2], lazy_stack(steps[:2]))
    with pytest.raises(KeyError, match=r"place 1 was never written.*buffer\[1\] = "):
        buffer[:]
    buffer[1] = steps[2]
    assert_row(buffer[1], steps[2])


@pytest.mark.parametrize("own", [False, True], ids=["ours", "TorchRL's"])
def test_a_greater_limit_of_rows(own: bool, tmp_path: Path) -> None:
    long, text = torch.arange(131_073), b"x" * (1 << 20) + b"\0"
    steps = [step.set("prompt", text) for step in (grown(torch.arange(3), long), grown(long, torch.arange(1)))]

    def made(**more: Any) -> Any:
        if own:
            return TensorDictReplayBuffer(storage=SharpwaveStorage(99, **more), batch_size=1)
        return ReplayBuffer(99, **more)

    with pytest.raises(ValueError, match="131,073 items, expected at most 131,072; give the field, or the buffer"):
        made().extend(lazy_stack([step.clone() for step in steps]))
    for most in (1 << 21, 1 << 26):  # of wider items, as many as there may be
        buffer = made(max_length=most)
        index = buffer.extend(lazy_stack([step.clone() for step in steps]))
        for found, step in zip(buffer[index], steps, strict=True):
            assert_row(found, step)
        buffer.dumps(tmp_path / f"saved {most}")
        again = made()
        again.loads(tmp_path / f"saved {most}")
        again.extend(lazy_stack([step.clone() for step in steps]))
    with pytest.raises(ValueError, match="max_length"):
        made(max_length=0)
