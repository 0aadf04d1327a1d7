"""Deep Q-learning in a hundred lines: a training loop of your own on a recorded environment.

Double Q-learning with n-step returns and a slowly moving target learns CartPole in some 15 seconds on one core.

    python examples/dqn.py
    python examples/dqn.py --steps 2000 --seed 3
"""

import argparse
import copy

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import sharpwave as sw

LANES, BATCH_SIZE, N_STEP, GAMMA = 4, 128, 5, 0.99
WARMUP_STEPS, EPSILON_STEPS, EPSILON_END, TARGET_TAU = 1_000, 8_000, 0.02, 0.01


def make_network(inputs: int, actions: int) -> nn.Module:
    """Make a network that maps a vector to the Q-values of all actions."""
    hidden = 128
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, actions)
    )


def td_errors(online: nn.Module, target: nn.Module, batch: sw.Batch) -> Tensor:
    """Compute the errors of double Q-learning, [B]. ``discount`` is 0 where the episode terminated: no done mask."""
    with torch.no_grad():
        best = online(batch.next_obs).argmax(1, keepdim=True)
        goal = batch.reward + batch.discount * target(batch.next_obs).gather(1, best)[:, 0]
    value = online(batch.obs).gather(1, batch.action[:, None])[:, 0]
    error: Tensor = goal - value
    return error


def evaluate(network: nn.Module, episodes: int, seed: int) -> float:
    """Return the mean score of greedy episodes, played in parallel."""
    env = gym.make_vec("CartPole-v1", num_envs=episodes)
    obs, _ = env.reset(seed=seed)
    score, playing = np.zeros(episodes), np.ones(episodes, bool)
    while playing.any():
        with torch.no_grad():
            action = network(torch.from_numpy(obs)).argmax(1).numpy()
        obs, reward, terminated, truncated, _ = env.step(action)
        score += reward * playing
        playing &= ~(terminated | truncated)
    return float(score.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps at most")
    parser.add_argument("--solved", type=float, default=475.0, help="stop at this greedy score")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(arguments.seed)

    spec = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=50_000, seed=arguments.seed)
    env = sw.Recorder(gym.make_vec("CartPole-v1", num_envs=LANES), store)
    replay = store.transitions(n_step=N_STEP, gamma=GAMMA)

    online = make_network(4, 2)
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), 2e-3)

    obs, _ = env.reset(seed=arguments.seed)
    for step in range(0, arguments.steps, LANES):
        epsilon = max(EPSILON_END, 1 - step / EPSILON_STEPS)
        with torch.no_grad():
            greedy = online(torch.from_numpy(obs)).argmax(1).numpy()
        action = np.where(rng.random(LANES) < epsilon, rng.integers(0, 2, LANES), greedy)
        obs, *_ = env.step(action)  # recorded with true final observations, and without the rows of resets

        if step >= WARMUP_STEPS:
            batch = replay.sample(BATCH_SIZE).torch()
            loss = nn.functional.huber_loss(error := td_errors(online, target, batch), torch.zeros_like(error))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(online.parameters(), 10.0)
            optimizer.step()
            with torch.no_grad():
                for slow, quick in zip(target.parameters(), online.parameters(), strict=True):
                    slow.lerp_(quick, TARGET_TAU)

        if (step + LANES) % 2_000 == 0:
            score = evaluate(target, 10, seed=10_000)
            print(f"{step + LANES:6,} steps: {score:5.1f} in 10 greedy episodes, epsilon {epsilon:.2f}", flush=True)
            if score >= arguments.solved:
                break
    print(f"{len(store):,} steps held, {store.stats()['bytes_per_step']:.0f} bytes each, everything included")


if __name__ == "__main__":
    main()
