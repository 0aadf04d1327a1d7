"""World of ``soak.py``: steps that are a function of their numbers, so that what comes back can be compared."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt

import sharpwave as sw

WRITERS, LANES, STACK, SIDE = 2, 4, 4, 84
GAMMA, N_STEP = 0.99, 3
SHOWN_BYTES = 24
"""Bytes of a frame's first row that encode lane, step and episode as int64."""
PIXELS = 4
"""Items of a batch whose pixels are all compared."""

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


class World:
    """Deterministic environment: each step is a function of its numbers, so that sampled steps can be compared."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.backgrounds = rng.integers(0, 256, (WRITERS * LANES, SIDE, SIDE), dtype=np.uint8)
        self.sprites = rng.integers(0, 256, (997, 12, 12), dtype=np.uint8)

    @staticmethod
    def length(lane: Ints) -> Ints:
        """Return the number of steps of a lane's episodes."""
        return 60 + 37 * lane

    def frame(self, lane: int, step: int, episode: int) -> Array:
        """Draw a frame, [84, 84]: the lane's background, a moving sprite, and the numbers."""
        picture: Array = self.backgrounds[lane].copy()
        top, left = 1 + step * 7 % (SIDE - 13), step * 3 % (SIDE - 12)
        picture[top : top + 12, left : left + 12] = self.sprites[(step * 31 + lane) % 997]
        picture[0, :SHOWN_BYTES] = np.array([lane, step, episode], np.int64).view(np.uint8)
        return picture

    @staticmethod
    def reward(lane: Ints, step: Ints) -> npt.NDArray[np.float64]:
        """Return rewards: small integers, exact in float32."""
        return ((step * 5 + lane) % 11).astype(np.float64)

    @staticmethod
    def terminated(episode: Ints) -> npt.NDArray[np.bool_]:
        """Return whether an episode terminates; else it is truncated."""
        return np.not_equal(episode % 3, 0)

    def wrong(self, batch: sw.Batch, n_step: int, rng: random.Random) -> str:
        """Describe the first difference of a batch from the appended steps; "": there is none."""
        obs, successor = _numbers(batch.obs), _numbers(batch.next_obs)  # [B, stack, 3]
        lane, step, episode = obs[:, -1].T
        length = self.length(lane)
        first = episode * length
        back = np.arange(1 - STACK, 1)
        used = np.minimum(n_step, first + length - step)
        ended = step + used == first + length
        ks = np.arange(n_step)
        rewards = self.reward(lane[:, None], step[:, None] + ks) * GAMMA**ks * (ks < used[:, None])
        discount = np.where(ended & self.terminated(episode), 0.0, GAMMA**used)
        stacks = {
            "obs": (obs, np.maximum(step[:, None] + back, first[:, None])),
            "next_obs": (successor, np.maximum((step + used)[:, None] + back, first[:, None])),
        }
        for name, (found, expected) in stacks.items():
            shown = np.stack([np.broadcast_to(lane[:, None], expected.shape), expected, expected * 0], axis=2)
            shown[:, :, 2] = episode[:, None]
            if not np.array_equal(found, shown):
                item = int(np.flatnonzero((found != shown).any(axis=(1, 2)))[0])
                return f"{name} of item {item}: {found[item].tolist()}, expected {shown[item].tolist()}"
        if not (step - first >= 0).all() or not (step < first + length).all():
            return f"a step outside its episode: {obs[:, -1].tolist()}"
        for name, values, others in (
            ("reward", batch.reward, rewards.sum(axis=1)),
            ("discount", batch.discount, discount),
            ("action", batch.action, lane * 1_000_000_000 + step),
        ):
            if not np.allclose(values, others, rtol=1e-6):
                item = int(np.argmax(~np.isclose(values, others, rtol=1e-6)))
                return f"{name} of step {step[item]} of lane {lane[item]}: {values[item]}, expected {others[item]}"
        for item in (rng.randrange(len(lane)) for _ in range(PIXELS)):
            for name, (found, _) in stacks.items():
                shown = np.stack([self.frame(*numbers) for numbers in found[item].tolist()])
                if not np.array_equal(batch[name][item], shown):
                    return f"pixels of {name} of step {step[item]} of lane {lane[item]} differ from the appended ones"
        return ""


def _numbers(frames: Array) -> Ints:
    return np.ascontiguousarray(frames[..., 0, :SHOWN_BYTES]).view(np.int64)
