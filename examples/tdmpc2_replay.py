"""A small TD-MPC2 whose replay buffer is the store: slices of whole episodes, recent ones drawn more often if wanted.

TD-MPC2 (Hansen et al. 2024) learns a latent model of a task from slices of an episode, H + 1 observations long, and
plans with it. ``store.sequences(H, stride=1)`` has a window at every step, and none that crosses an episode's end.
It prints the return of each episode in Pendulum and, in the end, the mean of ten further ones.

    python examples/tdmpc2_replay.py               # some minutes of one core
    python examples/tdmpc2_replay.py --recent 4    # windows of the last ten episodes weigh four times as much
"""

import argparse
import copy
import math
from collections import deque
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import sharpwave as sw

HORIZON, BATCH_SIZE, RHO, GAMMA = 3, 64, 0.5, 0.975  # the paper: batches of 256, gamma 1 - 5 / episode length
LATENT, HIDDEN, CRITICS, BINS, LARGEST, SIMPLEX = 64, 96, 5, 101, 10.0, 8
CONSISTENCY, REWARD, VALUE, ENTROPY, TAU, LR = 20.0, 0.1, 0.1, 1e-4, 0.01, 3e-4
SAMPLES, ELITES, ITERATIONS, TEMPERATURE, STD = 64, 8, 4, 0.5, (0.05, 2.0)  # of the planner
RECENT = 10


class Slices(NamedTuple):
    """Slices of episodes: obs [B, H + 1, n], action [B, H, m], and [B, H] rewards and terminations of these actions."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor


class Buffer:
    """Slices of episodes, by weights: 0 where the episode ends before H steps, ``recent`` in the last episodes."""

    def __init__(self, spec: sw.Spec, capacity: int, recent: float = 1.0, seed: int = 0) -> None:
        by_weight = sw.Prioritized(alpha=1.0, beta=0.0, eps=1e-12)  # a priority is the weight, and weighs no loss
        store = sw.Store(spec, capacity=capacity, seed=seed)
        self.store, self.windows = store, store.sequences(HORIZON, stride=1, gamma=1.0, sampler=by_weight)
        self.weight, self.recent = recent, deque[Any]()

    def add(self, **episode: Any) -> None:
        """Store an episode of T steps and its T + 1 observations."""
        ids = np.asarray(self.store.add_episode(**episode))  # a window of stride 1 has the id of its first step
        whole = max(len(ids) - HORIZON + 1, 0)
        self.weigh(ids[whole:], 0.0)
        self.weigh(ids[:whole], self.weight)
        self.recent.append(ids[:whole])
        if len(self.recent) > RECENT:
            self.weigh(self.recent.popleft(), 1.0)

    def weigh(self, ids: Any, weight: float) -> None:
        """Set the weight of windows; those that were evicted are skipped."""
        self.windows.update_priorities(ids, np.full((len(ids), HORIZON), weight))

    def sample(self, size: int) -> Slices:
        """Draw slices."""
        batch = self.windows.sample(size).torch()
        return Slices(batch.obs, batch.action, batch.step_reward, (batch.discount == 0).float())


def two_hot(x: Tensor) -> Tensor:
    """Spread symlog(x) [...] over the two nearest bins, [..., BINS]."""
    place = (x.sign() * x.abs().log1p()).clamp(-LARGEST, LARGEST) + LARGEST
    return (1 - (torch.arange(BINS) - place.unsqueeze(-1) * (BINS - 1) / (2 * LARGEST)).abs()).clamp(min=0)


def expected(logits: Tensor) -> Tensor:
    """Return the numbers that logits [..., BINS] stand for."""
    mean: Tensor = logits.softmax(-1) @ torch.linspace(-LARGEST, LARGEST, BINS, dtype=logits.dtype)
    return mean.sign() * mean.abs().expm1()


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * logits.log_softmax(-1)).sum(-1)


class Simplices(nn.Module):
    """Groups of features that sum to 1 each, so that a latent state neither grows nor vanishes."""

    def forward(self, x: Tensor) -> Tensor:
        groups: Tensor = x.unflatten(-1, (-1, SIMPLEX)).softmax(-1)
        return groups.flatten(-2)


def mlp(inputs: int, outputs: int, *last: nn.Module) -> nn.Sequential:
    sizes = ((inputs, HIDDEN), (HIDDEN, HIDDEN))
    hidden = [layer for a, b in sizes for layer in (nn.Linear(a, b), nn.LayerNorm(b), nn.Mish())]
    return nn.Sequential(*hidden, nn.Linear(HIDDEN, outputs), *last)


class Model(nn.Module):
    """Encoder, latent dynamics, reward, an ensemble of critics with its slow copy, and a policy."""

    def __init__(self, obs: int, actions: int) -> None:
        super().__init__()
        self.encoder = mlp(obs, LATENT, nn.LayerNorm(LATENT), Simplices())
        self.dynamics = mlp(LATENT + actions, LATENT, nn.LayerNorm(LATENT), Simplices())
        self.reward = mlp(LATENT + actions, BINS)
        critics = [mlp(LATENT + actions, BINS) for _ in range(CRITICS)]
        for network in (self.reward, *critics):
            nn.init.zeros_(network[-1].get_parameter("weight"))
        self.critics = nn.ModuleList(critics)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.policy = mlp(LATENT, 2 * actions)

    def act(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions in -1 ... 1 of the policy, and their log-probabilities."""
        mean, log_std = self.policy(z).chunk(2, -1)
        log_std = -10 + 6 * (log_std.tanh() + 1)
        noise = torch.randn_like(mean)
        action = (mean + noise * log_std.exp()).tanh()
        log_p = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_std - (1 - action.square() + 1e-6).log()
        return action, log_p.sum(-1)

    def values(self, critics: Any, z: Tensor, action: Tensor) -> Tensor:
        """Return values by two critics drawn at random, [2, ...]."""
        two = torch.randperm(CRITICS)[:2].tolist()
        return torch.stack([expected(critics[k](torch.cat([z, action], -1))) for k in two])


def losses(model: Model, slices: Slices) -> tuple[dict[str, Tensor], Tensor]:
    """Compute the losses, in which step t weighs RHO ** t, and the latent states of the rollout [B, H + 1, LATENT]."""
    with torch.no_grad():
        later = model.encoder(slices.obs[:, 1:])
        value = model.values(model.targets, later, model.act(later)[0]).amin(0)
        goal = two_hot(slices.reward + GAMMA * (1 - slices.terminated) * value)
    latents = [model.encoder(slices.obs[:, 0])]
    for t in range(HORIZON):
        latents.append(model.dynamics(torch.cat([latents[-1], slices.action[:, t]], -1)))
    states = torch.stack(latents, 1)
    made = torch.cat([states[:, :-1], slices.action], -1)
    of_steps = {
        "consistency": (states[:, 1:] - later).square().mean(-1),
        "reward": cross_entropy(model.reward(made), two_hot(slices.reward)),
        "value": torch.stack([cross_entropy(critic(made), goal) for critic in model.critics]).mean(0),
    }
    weights = RHO ** torch.arange(HORIZON)
    return {name: (one.mean(0) * weights).mean() for name, one in of_steps.items()}, states.detach()


class Learner:
    """A model with its optimizers."""

    def __init__(self, model: Model) -> None:
        self.model, self.scale = model, 1.0
        parts = [model.dynamics, model.reward, model.critics]
        groups = [{"params": [*model.encoder.parameters()], "lr": 0.3 * LR}]
        groups += [{"params": [*part.parameters()], "lr": LR} for part in parts]
        self.optimizer = torch.optim.Adam(groups)
        self.policy_optimizer = torch.optim.Adam(model.policy.parameters(), lr=LR, eps=1e-5)

    def update(self, slices: Slices) -> dict[str, float]:
        """Learn from slices; return the losses."""
        model = self.model
        found, states = losses(model, slices)
        total = CONSISTENCY * found["consistency"] + REWARD * found["reward"] + VALUE * found["value"]
        self.step(self.optimizer, total)
        action, log_p = model.act(states)
        value = model.values(model.critics, states, action).mean(0)
        low, high = np.quantile(value[:, 0].detach(), (0.05, 0.95))
        self.scale += 0.01 * (max(1.0, high - low) - self.scale)
        weights = RHO ** torch.arange(HORIZON + 1)
        self.step(self.policy_optimizer, ((ENTROPY * log_p - value / self.scale).mean(0) * weights).mean())
        with torch.no_grad():
            for slow, quick in zip(model.targets.parameters(), model.critics.parameters(), strict=True):
                slow.lerp_(quick, TAU)
        return {name: float(one.detach()) for name, one in found.items()}

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        self.model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], 20.0)
        optimizer.step()


@torch.no_grad()
def plan(model: Model, obs: Tensor, mean: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Return an action for obs [n], and the means of planned ones [H, m], which the next plan begins with (MPPI)."""
    z, mean = model.encoder(obs).expand(SAMPLES, -1), torch.cat([mean[1:], 0 * mean[:1]])
    std = torch.full_like(mean, STD[1])
    for _ in range(ITERATIONS):
        actions = (mean[:, None] + std[:, None] * torch.randn(HORIZON, SAMPLES, mean.shape[1])).clamp(-1, 1)
        score, ahead = torch.zeros(SAMPLES), z
        for t in range(HORIZON):
            made = torch.cat([ahead, actions[t]], -1)
            score, ahead = score + GAMMA**t * expected(model.reward(made)), model.dynamics(made)
        best = (score + GAMMA**HORIZON * model.values(model.critics, ahead, model.act(ahead)[0]).mean(0)).topk(ELITES)
        share, elites = ((best.values - best.values[0]) * TEMPERATURE).softmax(0), actions[:, best.indices]
        mean = torch.einsum("e,hem->hm", share, elites)
        std = torch.einsum("e,hem->hm", share, (elites - mean[:, None]).square()).sqrt().clamp(*STD)
    action = elites[0, int(torch.multinomial(share, 1))] + noise * std[0] * torch.randn(mean.shape[1])
    return action.clamp(-1, 1), mean


def play(env: Any, model: Model | None, seed: int, noise: float = 1.0) -> dict[str, Any]:
    """Return an episode, its actions planned, or random without a model."""
    obs, _ = env.reset(seed=seed)
    seen, rows, ends, mean = [obs], [], (False, False), torch.zeros(HORIZON, *env.action_space.shape)
    while not any(ends):
        action = torch.rand(mean.shape[1]) * 2 - 1
        if model is not None:
            action, mean = plan(model, torch.from_numpy(obs), mean, noise)
        obs, reward, *ends, _ = env.step(action.numpy() * env.action_space.high)
        seen.append(obs)
        rows.append((action.numpy(), reward))
    actions, rewards = zip(*rows, strict=True)
    return {
        "obs": np.array(seen), "action": np.array(actions), "reward": np.array(rewards),
        "terminated": ends[0], "truncated": ends[1],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--random-steps", type=int, default=1_000, help="steps of random actions before")
    parser.add_argument("--episodes", type=int, default=10, help="episodes of the measurement")
    parser.add_argument("--recent", type=float, default=1.0, metavar="W", help=f"weight of the last {RECENT} episodes")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    env, seed = gym.make("Pendulum-v1"), 1_000 * arguments.seed
    spec = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((1,), "float32"))
    buffer, learner = Buffer(spec, 100_000, arguments.recent, arguments.seed), Learner(model := Model(3, 1))
    steps = updates = 0
    while steps < arguments.steps:
        seed += 1
        episode = play(env, model if steps >= arguments.random_steps else None, seed)
        buffer.add(**episode)
        steps += len(episode["reward"])
        while arguments.random_steps <= steps > updates:
            found, updates = learner.update(buffer.sample(BATCH_SIZE)), updates + 1
        shown = ", ".join(f"{name} {one:.4f}" for name, one in found.items()) if updates else "random actions"
        print(f"{steps:6,} steps: {episode['reward'].sum():7.1f}, {shown}", flush=True)
    scores = [play(env, model, 10**6 + k, noise=0.0)["reward"].sum() for k in range(arguments.episodes)]
    weights = sum(one.numel() for one in model.parameters())
    print(f"{np.mean(scores):.0f} in {len(scores)} further episodes without noise, by {weights:,} weights")


if __name__ == "__main__":
    main()
