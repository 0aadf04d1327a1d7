"""TorchRL's collectors, losses, samplers and transforms with the store's buffers, beside TorchRL's own storage."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, MultiStep, SliceSampler, TensorDictReplayBuffer
from torchrl.data.replay_buffers import RandomSampler, SamplerWithoutReplacement
from torchrl.envs import (
    CatFrames,
    Compose,
    GymEnv,
    GymWrapper,
    InitTracker,
    RewardSum,
    SerialEnv,
    StepCounter,
    ToTensorImage,
    TransformedEnv,
    UnsqueezeTransform,
)
from torchrl.modules import NormalParamExtractor, ProbabilisticActor, QValueActor, TanhNormal
from torchrl.objectives import DQNLoss, SACLoss, SoftUpdate

from sharpwave.integrations.torchrl import ReplayBuffer, SharpwaveStorage
from tests.support.examples import examples

gym.register_envs(ale_py)
DONE = ("next", "done")
KEPT = {"auto_register_policy_transforms": False}


def cartpole(limit: int = 20) -> Any:
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(limit), RewardSum(), InitTracker()))


def breakout(padding: str, floats: bool) -> Any:
    env = gym.wrappers.AtariPreprocessing(gym.make("ALE/Breakout-v5", frameskip=1), screen_size=42)
    first = [UnsqueezeTransform(-1 if floats else -3, in_keys=["observation"])]
    if floats:
        first.append(ToTensorImage(in_keys=["observation"]))
    frames = CatFrames(N=4, dim=-3, in_keys=["observation"], padding=padding)
    return TransformedEnv(GymWrapper(env), Compose(*first, frames, StepCounter(40)))


def collected(make: Any, batches: int, environments: int = 3, steps: int = 20, **more: Any) -> list[Any]:
    """What a collector returns: [environments, steps] each."""
    torch.manual_seed(0)
    env = SerialEnv(environments, make)
    env.set_seed(0)
    total = environments * steps
    return [data.clone() for data in Collector(env, frames_per_batch=total, total_frames=batches * total, **more)]


def assert_same(found: Any, expected: Any) -> None:
    keys = set(expected.keys(True, True)) - {"index"}
    assert set(found.keys(True, True)) - {"index"} == keys and found.batch_size == expected.batch_size
    for key in keys:
        one, other = found[key], expected[key]
        assert one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other), key


@pytest.mark.parametrize(
    ("env", "layout"),
    [
        *(("CartPole", layout) for layout in ("environments", "flat", "time first", "no numbers")),
        ("repeated", "flat"),
        ("zeros", "environments"),
        ("floats", "no numbers"),
    ],
)
def test_what_collectors_return_comes_back(env: str, layout: str) -> None:
    make = (
        cartpole if env == "CartPole" else lambda: breakout("constant" if env == "zeros" else "same", env == "floats")
    )
    buffer, rows, index = ReplayBuffer(10_000, batch_size=4), [], []
    for data in collected(make, 4):
        data = data.exclude("collector") if layout == "no numbers" else data
        data = data.transpose(0, 1).contiguous() if layout == "time first" else data
        flat = data.reshape(-1)
        rows.append(flat.clone())
        index.append(buffer.extend(data if layout == "environments" else flat).reshape(-1))
    assert_same(buffer[torch.cat(index)], torch.cat(rows))
    stats, spec = buffer.transitions.store.stats(), buffer.transitions.store.spec
    assert stats["lanes"] == 3 and not stats["broken_episodes"] and len(buffer) == 240
    assert spec.fields["obs.observation"].stack == (None if env == "CartPole" else 4)
    sample = buffer.sample()
    assert_same(sample, buffer[sample["index"]])


@pytest.mark.parametrize(
    "sampler", [RandomSampler, SamplerWithoutReplacement, lambda: SliceSampler(slice_len=4, end_key=DONE)]
)
def test_torchrls_samplers_draw_the_same_from_ours_and_theirs(sampler: Any) -> None:
    ours, theirs = (
        TensorDictReplayBuffer(
            storage=storage, sampler=sampler(), batch_size=32, collate_fn=torch.nn.Identity(),
            generator=torch.Generator().manual_seed(1),
        )
        for storage in (SharpwaveStorage(100), LazyTensorStorage(100))
    )  # fmt: skip
    for data in collected(cartpole, 5):
        flat = data.reshape(-1)
        ours.extend(flat.clone())
        theirs.extend(flat)
        assert len(ours) == len(theirs)
        for _ in range(3):
            one, other = ours.sample(), theirs.sample()
            assert torch.equal(one["index"], other["index"])
            assert_same(one, other)
    assert_same(ours[:], theirs[:])
    assert_same(ours[5], theirs[5])


def dqn(env: Any) -> tuple[Any, torch.nn.Module]:
    net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
    return actor, DQNLoss(actor, action_space=env.action_spec)


def sac(env: Any) -> tuple[Any, torch.nn.Module]:
    net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2), NormalParamExtractor())
    module = TensorDictModule(net, ["observation"], ["loc", "scale"])
    actor = ProbabilisticActor(module, in_keys=["loc", "scale"], distribution_class=TanhNormal)
    join = TensorDictModule(lambda obs, action: torch.cat([obs, action], -1), ["observation", "action"], ["both"])
    value = TensorDictModule(torch.nn.Linear(4, 1), ["both"], ["state_action_value"])
    return actor, SACLoss(actor, TensorDictSequential(join, value), target_entropy=-1.0)


@pytest.mark.parametrize(("env", "algorithm"), [("CartPole-v1", dqn), ("Pendulum-v1", sac)])
def test_losses_and_weights_are_those_with_torchrls_storage(env: str, algorithm: Any) -> None:
    """Where both draw the same."""
    losses: list[list[dict[str, torch.Tensor]]] = []
    for storage in (SharpwaveStorage(200), LazyTensorStorage(200)):
        torch.manual_seed(0)
        made = GymEnv(env)
        made.set_seed(0)
        actor, loss = algorithm(made)
        loss.make_value_estimator(gamma=0.9)
        target = SoftUpdate(loss, tau=0.1)
        optimizer = torch.optim.Adam(loss.parameters(), 1e-2)
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=16, collate_fn=torch.nn.Identity())
        losses.append([])
        for data in Collector(made, actor, frames_per_batch=40, total_frames=400, **KEPT):
            buffer.extend(data)
            for _ in range(3):
                found = loss(buffer.sample())
                sum(value for key, value in found.items() if key.startswith("loss")).backward()
                optimizer.step()
                optimizer.zero_grad()
                target.step()
                losses[-1].append({key: value.detach().clone() for key, value in found.items() if "loss" in key})
    assert len(losses[0]) == 30 and losses[0] == losses[1]


def test_n_step_returns_are_those_of_multistep() -> None:
    data, expected = (collected(cartpole, 1, steps=60, postproc=post)[0] for post in (None, MultiStep(0.9, 3)))
    buffer = ReplayBuffer(1000, batch_size=8, n_step=3, gamma=0.9)
    index = buffer.extend(data)
    known = torch.from_numpy(np.isin(index, buffer.view.sampleable_ids()))
    assert known.sum() >= 3 * 57
    found, multi = buffer[index[known]], expected[known]
    for key in ("observation", "action", ("next", "observation"), ("next", "reward")):
        torch.testing.assert_close(found[key], multi[key], rtol=1e-6, atol=0)
    assert torch.equal(found["steps_to_next_obs"][:, 0], multi["steps_to_next_obs"].reshape(-1))
    last = torch.arange(60).expand(3, 60) + expected["steps_to_next_obs"].reshape(3, 60) - 1
    ends = data["next", "terminated"][..., 0].gather(1, last)[known]  # MultiStep leaves the first step's
    assert torch.equal(found["next", "terminated"][:, 0], ends) and ends.any()
    with pytest.raises(ValueError, match="MultiStep"):
        ReplayBuffer(1000, n_step=3).extend(expected)
    stored = ReplayBuffer(1000)
    assert_same(stored[stored.extend(expected.clone()).reshape(-1)], expected.reshape(-1))


@settings(max_examples=examples(25), deadline=None)
@given(st.data(), st.booleans(), st.integers(1, 4))
def test_trajectories_go_on_however_they_are_interleaved(data: st.DataObject, numbered: bool, many: int) -> None:
    """Against a plain list of each trajectory: returns of two steps, of all that have them."""
    buffer, made = ReplayBuffer(500, n_step=2, gamma=0.5), 0
    live: dict[int, tuple[int, int]] = {}
    rows: list[tuple[tuple[int, int, bool], int]] = []
    for _ in range(data.draw(st.integers(1, 4))):
        batch = []
        for _ in range(data.draw(st.integers(1, 12))):
            number = data.draw(st.integers(0, many - 1))
            if number not in live:
                live[number], made = (made, 0), made + 1
            name, step = live.pop(number)
            ended, dropped = data.draw(st.integers(0, 4)) == 0, data.draw(st.integers(0, 9)) == 0
            if not ended:
                live[number] = name, step + 1
            if not dropped:  # which breaks the trajectory off
                batch.append((name, step, ended))
        if batch:
            names, numbers, ends = (torch.tensor([row[k] for row in batch]) for k in range(3))
            td = TensorDict(
                {
                    "observation": torch.stack([names, numbers], 1).float(), "action": numbers,
                    "next": {
                        "observation": torch.stack([names, numbers + 1], 1).float(),
                        "reward": (100 * names + numbers)[:, None].float(), "done": ends[:, None].bool(),
                    },
                } | ({"collector": {"traj_ids": names}} if numbered else {}),
                [len(batch)],
            )  # fmt: skip
            rows += list(zip(batch, buffer.extend(td).tolist(), strict=True))
    by_step = {row[:2]: row for row, _ in rows}
    sampleable = set(buffer.view.sampleable_ids().tolist()) if rows else set()
    for (name, step, ended), id_ in rows:
        follows = not ended and (name, step + 1) in by_step
        if ended or follows:
            assert id_ in sampleable
        if id_ in sampleable:
            found: Any = buffer[id_]
            n = 1 + follows
            assert found["steps_to_next_obs"] == n
            assert found["next", "reward"] == 100 * name + step + (0.5 * (100 * name + step + 1) if follows else 0)
            assert found["next", "observation"].tolist() == [name, step + n]


def test_windows_are_steps_in_a_row() -> None:
    data = collected(lambda: cartpole(11), 3)
    buffer = ReplayBuffer(1000, batch_size=16, slice_len=4, burn_in=2, alpha=1.0)
    for one in data:
        buffer.extend(one)
    sample = buffer.sample()
    mask = sample["collector", "mask"]
    assert sample.batch_size == (16, 6) and mask[:, 2].all() and not mask.all()
    flat: Any = torch.cat([one.reshape(-1) for one in data])
    numbers = flat["collector", "traj_ids"] * 1000 + flat["step_count"][:, 0]
    found = sample["collector", "traj_ids"] * 1000 + sample["step_count"][..., 0]
    at = torch.searchsorted(numbers.sort().values, found)
    expected = flat[numbers.argsort()[at[mask]]]
    assert_same(sample.exclude("priority_weight", ("collector", "mask"))[mask], expected)
    assert (found.diff(dim=1) == 1)[mask[:, 1:] & mask[:, :-1]].all()
    sample["td_error"] = torch.zeros(16, 6, 1)
    buffer.update_tensordict_priority(sample)
