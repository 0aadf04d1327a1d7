"""A team in numbers: spaces, batches with masks and absent agents, and what its networks see, in numpy."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, MultiBinary, MultiDiscrete

from sharpwave.agents.protocol import Spaces

AGENTS, ACTIONS, SIZE, BATCH = 2, 3, 2, 6

SPACES = Spaces(
    Dict(agents=Box(-9, 9, (AGENTS, SIZE), np.float32), action_mask=MultiBinary((AGENTS, ACTIONS))),
    MultiDiscrete([ACTIONS] * AGENTS),
)


def masks(rng):
    """Random ones; agent 1 of item 0 is absent, agent 0 of item 1 has one action."""
    mask = (rng.random((BATCH, AGENTS, ACTIONS)) < 0.7).astype(np.int8)
    mask[..., 1] = 1
    mask[0, 1] = 0
    mask[1, 0] = [0, 0, 1]
    return mask


def legal(mask):
    return np.array([[row if row.any() else np.eye(ACTIONS, dtype=bool)[0] for row in item] for item in mask != 0])


def batches(count, seed):
    """Discounts of one to three steps, zero where the episode terminated, uneven weights, legal actions."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        obs, next_obs = [
            {"agents": rng.normal(size=(BATCH, AGENTS, SIZE)).astype(np.float32), "action_mask": masks(rng)}
            for _ in range(2)
        ]
        yield {
            "obs": obs,
            "next_obs": next_obs,
            "action": (legal(obs["action_mask"]) * rng.random((BATCH, AGENTS, ACTIONS))).argmax(axis=2),
            "reward": (3 * rng.normal(size=BATCH)).astype(np.float32),
            "discount": (0.9 ** rng.integers(1, 4, BATCH) * (rng.random(BATCH) < 0.8)).astype(np.float32),
            "weights": rng.uniform(0.1, 1.0, BATCH).astype(np.float32),
            "fields": {"rewards": rng.normal(size=(BATCH, AGENTS)).astype(np.float32)},
        }


def tensors(batch):
    def of(value):
        return {name: of(one) for name, one in value.items()} if isinstance(value, dict) else torch.from_numpy(value)

    return SimpleNamespace(**{name: of(value) for name, value in batch.items()})


def seen(obs):
    """Inputs of the agents' networks, [B, N, F], and the state, [B, S], of a batch's observations."""
    agents, present = obs["agents"].astype(np.float64), obs["action_mask"].any(axis=2).astype(np.float64)
    each = np.zeros((len(agents), AGENTS, SIZE + 1 + AGENTS))
    for n in range(AGENTS):
        each[:, n, :SIZE], each[:, n, SIZE], each[:, n, SIZE + 1 + n] = agents[:, n], present[:, n], 1
    return each, np.concatenate([agents.reshape(len(agents), -1), present], axis=1)


def layered(weights, name, x):
    """Two hidden layers and the output."""
    for layer in (0, 2):
        x = np.maximum(x @ weights[f"{name}{layer}.weight"].T + weights[f"{name}{layer}.bias"], 0)
    return x @ weights[f"{name}4.weight"].T + weights[f"{name}4.bias"]


def gradients(weights, loss):
    """Central differences of ``loss`` by every weight."""
    grads = {}
    for name, value in weights.items():
        grads[name] = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            ends = []
            for sign in (1, -1):
                moved = value.copy()
                moved[index] += sign * 1e-6
                ends.append(loss({**weights, name: moved}))
            grads[name][index] = (ends[0] - ends[1]) / 2e-6
    return grads


def float64(weights):
    return {name: np.array(value, np.float64) for name, value in weights.items()}


LENGTHS = (4, 2, 1, 3)
"""Real steps of the windows of a batch; the rest of their columns is padding."""
COLUMNS = max(LENGTHS)


@dataclass
class Windows:
    """Batch of windows, whose further fields are its items."""

    obs: Any
    action: Any
    step_reward: Any
    discount: Any
    mask: Any
    weights: Any
    fields: Any

    def __getitem__(self, name):
        return self.fields[name]


def windows(count, seed, units):
    """Batches of windows with uneven weights, masks and absent agents; the last two begin within an episode, where
    agents remember something and have acted. All of the padding is zeros."""
    rng = np.random.default_rng(seed)
    real = np.arange(COLUMNS) < np.array(LENGTHS)[:, None]
    seen = np.concatenate([np.ones((len(LENGTHS), 1), bool), real], axis=1)
    for _ in range(count):
        mask = (rng.random((len(LENGTHS), COLUMNS + 1, AGENTS, ACTIONS)) < 0.7).astype(np.int8)
        mask[..., 1] = 1
        mask[0, 2:, 1] = 0  # an agent that has left
        mask *= seen[:, :, None, None]
        agents = rng.normal(size=(len(LENGTHS), COLUMNS + 1, AGENTS, SIZE)) * seen[:, :, None, None]
        allowed = np.stack([legal(one) for one in mask[:, :-1]])
        last = np.eye(ACTIONS)[rng.integers(0, ACTIONS, (len(LENGTHS), AGENTS))]
        core = np.concatenate([rng.normal(size=(len(LENGTHS), AGENTS, units)), last], axis=2)
        core[:2] = 0
        ends = (np.arange(COLUMNS) == np.array(LENGTHS)[:, None] - 1) & (rng.random((len(LENGTHS), 1)) < 0.6)
        yield {
            "obs": {"agents": agents.astype(np.float32), "action_mask": mask},
            "action": (allowed * rng.random(allowed.shape)).argmax(axis=3) * real[:, :, None],
            "step_reward": (rng.normal(size=real.shape) * real).astype(np.float32),
            "discount": (0.9 * real * ~ends).astype(np.float32),
            "mask": real,
            "weights": rng.uniform(0.1, 1.0, len(LENGTHS)).astype(np.float32),
            "fields": {
                "core": core.astype(np.float32),
                "rewards": (rng.normal(size=(*real.shape, AGENTS)) * real[:, :, None]).astype(np.float32),
            },
        }


def n_step_return(rewards, discounts, values, n_step):
    """Targets of a window's real steps; ``values`` are those of the observations after each of them."""
    found = []
    for begin in range(len(rewards)):
        total, factor, end = 0.0, 1.0, min(begin + n_step, len(rewards))
        for step in range(begin, end):
            total, factor = total + factor * rewards[step], factor * discounts[step]
        found.append(total + factor * values[end - 1])
    return np.array(found)
