"""The example's buffer beside TorchRL's in the layout of TD-MPC2's own: the same slices, drawn alike, and equal losses.

That layout has T + 1 rows for an episode of T steps. Row t holds observation t, and the action, the reward and the
termination by which it was reached; row 0 has none. A slice is H + 1 rows, whose first action is left out.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from tdmpc2_replay import BATCH_SIZE, GAMMA, HORIZON, RECENT, RHO, Buffer, Learner, Model, Slices, losses, play

import sharpwave as sw

SPEC = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((1,), "float32"))
UNEQUAL = [(9, True), (2, True), (3, False), (14, False), (5, True)]
"""Steps of episodes, and whether they terminated. One is too short for a slice, one is a single slice."""


def recorded(lengths):
    """Episodes of numbers drawn at random."""
    rng = np.random.default_rng(0)
    return [
        {
            "obs": rng.normal(size=(steps + 1, 3)).astype(np.float32),
            "action": rng.uniform(-1, 1, (steps, 1)).astype(np.float32),
            "reward": (3 * rng.normal(size=steps)).astype(np.float32), "terminated": terminated,
        }
        for steps, terminated in lengths
    ]  # fmt: skip


def ours(episodes, **options):
    buffer = Buffer(SPEC, 10_000, **options)
    for episode in episodes:
        buffer.add(**episode)
    return buffer


class Reference:
    """TorchRL's buffer of the reference's rows."""

    def __init__(self, episodes, size):
        torchrl = pytest.importorskip("torchrl.data")
        from tensordict import TensorDict

        sampler = torchrl.SliceSampler(
            num_slices=size, end_key=None, traj_key="episode", truncated_key=None, strict_length=True
        )
        self.buffer = torchrl.ReplayBuffer(
            storage=torchrl.LazyTensorStorage(10_000), sampler=sampler, batch_size=size * (HORIZON + 1)
        )
        for number, one in enumerate(episodes):
            rows = len(one["obs"])
            none = np.full((1, 1), np.nan, np.float32)
            terminated = np.arange(rows) == (rows - 1 if one["terminated"] else -1)
            columns = {
                "obs": one["obs"], "action": np.concatenate([none, one["action"]]),
                "reward": np.concatenate([none[0], one["reward"]]), "terminated": terminated.astype(np.float32),
                "episode": np.full(rows, number),
            }  # fmt: skip
            self.buffer.extend(TensorDict({name: torch.from_numpy(x) for name, x in columns.items()}, [rows]))

    def sample(self):
        rows = self.buffer.sample().view(-1, HORIZON + 1)
        return Slices(rows["obs"], rows["action"][:, 1:], rows["reward"][:, 1:], rows["terminated"][:, 1:])


def by_start(slices: Slices) -> dict[tuple[float, ...], tuple[torch.Tensor, ...]]:
    """Slices by their first observation."""
    return {tuple(slices.obs[row, 0].tolist()): tuple(part[row] for part in slices) for row in range(len(slices.obs))}


def places(episodes):
    """Number of each whole slice, by its first observation."""
    starts = [tuple(one["obs"][t].tolist()) for one in episodes for t in range(len(one["reward"]) - HORIZON + 1)]
    return {start: number for number, start in enumerate(starts)}


def test_the_slices_are_the_reference_s():
    torch.manual_seed(0)
    episodes = recorded(UNEQUAL)
    buffer, reference = ours(episodes), Reference(episodes, 200)
    found, expected = by_start(buffer.sample(2_000)), by_start(reference.sample())
    for _ in range(4):
        expected |= by_start(reference.sample())
    assert found.keys() == expected.keys() == places(episodes).keys()
    for start, parts in expected.items():
        for name, got, wanted in zip(Slices._fields, found[start], parts, strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0, msg=name)
    ends = [parts[3][-1].item() for parts in found.values()]
    assert sum(ends) == 2 and not any(parts[3][:-1].any() for parts in found.values())


def test_slices_of_equal_episodes_are_drawn_uniformly_by_both():
    """TorchRL chooses the episode first, so that slices of short ones are likelier; the tasks' episodes are equal."""
    torch.manual_seed(0)
    episodes = recorded([(12, False)] * 6)
    number = places(episodes)
    buffer, reference, draws = ours(episodes), Reference(episodes, 500), 20
    for sample in (lambda: buffer.sample(500), reference.sample):
        counts = np.zeros(len(number))
        for _ in range(draws):
            np.add.at(counts, [number[tuple(row)] for row in sample().obs[:, 0].tolist()], 1)
        expected = draws * 500 / len(number)
        assert np.square(counts - expected).sum() / expected < 98.3  # 99.9 % of chi-square with 59 degrees of freedom


def test_losses_of_the_same_slices_are_the_same_and_those_of_the_paper(monkeypatch):
    torch.manual_seed(0)
    episodes = recorded(UNEQUAL)
    model, reference = Model(3, 1), Reference(episodes, BATCH_SIZE)
    with torch.no_grad():
        for head in (model.reward[-1], *(critic[-1] for critic in (*model.critics, *model.targets))):
            head.weight.normal_(std=0.3)  # it begins with zeros, by which all values are 0
    theirs, found = reference.sample(), by_start(ours(episodes).sample(2_000))
    rows = [found[tuple(start)] for start in theirs.obs[:, 0].tolist()]
    same = Slices(*map(torch.stack, zip(*rows, strict=True)))
    values = []
    for slices in (theirs, same):
        torch.manual_seed(1)
        values.append(losses(model, slices)[0])
    for name, loss in values[0].items():
        torch.testing.assert_close(loss, values[1][name], rtol=1e-6, atol=0, msg=name)

    model.double()  # by hand, in float64, with a policy and a pair of critics that are not drawn
    monkeypatch.setattr(model, "act", lambda z: (torch.tanh(z[..., :1]), None))
    monkeypatch.setattr(torch, "randperm", lambda n: torch.arange(n))
    obs, action, reward, terminated = (part.double() for part in same)
    got, _ = losses(model, Slices(obs, action, reward, terminated))
    bins = torch.linspace(-10, 10, 101, dtype=torch.float64)

    def number(logits):
        x = (logits.softmax(-1) * bins).sum(-1)
        return x.sign() * (x.abs().exp() - 1)

    def soft_cross_entropy(logits, x):
        """Of one number: -log p of the two bins around symlog(x), by how near each is."""
        y = float(np.sign(x) * np.log1p(abs(x)))
        low = int((y + 10) // 0.2)
        high_share = (y + 10) / 0.2 - low
        log_p = logits.log_softmax(-1)
        return -float((1 - high_share) * log_p[low] + high_share * log_p[low + 1])

    totals = dict.fromkeys(got, 0.0)
    with torch.no_grad():
        for i in range(len(obs)):
            z = model.encoder(obs[i, 0])
            for t in range(HORIZON):
                made, weight = torch.cat([z, action[i, t]]), RHO**t / HORIZON / len(obs)
                after = model.encoder(obs[i, t + 1])
                acted = torch.cat([after, torch.tanh(after[:1])])
                least = min(float(number(model.targets[k](acted))) for k in (0, 1))
                goal = float(reward[i, t]) + GAMMA * (1 - float(terminated[i, t])) * least
                totals["reward"] += weight * soft_cross_entropy(model.reward(made), float(reward[i, t]))
                for critic in model.critics:
                    totals["value"] += weight * soft_cross_entropy(critic(made), goal) / len(model.critics)
                z = model.dynamics(made)
                totals["consistency"] += weight * float((z - after).square().mean())
    for name, total in totals.items():
        assert got[name].item() == pytest.approx(total, rel=2e-5), name


def test_recent_episodes_are_drawn_more_often():
    episodes = recorded([(HORIZON + 4, False)] * (RECENT + 5))
    buffer, number = ours(episodes, recent=4.0), places(episodes)
    counts = np.zeros(len(number))
    for _ in range(20):
        np.add.at(counts, [number[tuple(row)] for row in buffer.sample(500).obs[:, 0].tolist()], 1)
    of_episode = counts.reshape(len(episodes), -1).sum(axis=1) / counts.sum()
    np.testing.assert_allclose(of_episode, [1 / 45] * 5 + [4 / 45] * RECENT, rtol=0.25)


def test_losses_fall_over_updates():
    torch.manual_seed(0)
    buffer, learner, env = Buffer(SPEC, 10_000), Learner(Model(3, 1)), gymnasium.make("Pendulum-v1")
    for seed in range(3):
        buffer.add(**play(env, None, seed))
    found = [learner.update(buffer.sample(BATCH_SIZE)) for _ in range(80)]
    first, last = found[0], {name: np.mean([one[name] for one in found[-10:]]) for name in found[0]}
    assert last["consistency"] < 0.3 * first["consistency"]
    assert last["reward"] < 0.8 * first["reward"] and last["value"] < 0.8 * first["value"]
