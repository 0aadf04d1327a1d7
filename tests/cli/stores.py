"""Folders for the commands that look at stores."""

from pathlib import Path

import numpy as np

import sharpwave as sw

LENGTHS = (30, 45, 12)
"""Of the episodes of lane 0; lane 1 plays one that goes on. Rewards: 1 a step in the second, 0 else."""


def picture(serial: int, shape: tuple[int, ...]) -> np.ndarray:
    """Black, with one bright line that goes down."""
    frame = np.zeros(shape, np.uint8)
    frame[serial % shape[0]] = 255
    return frame


def make_store(
    folder: Path, shape: tuple[int, ...] = (20, 30), lengths: tuple[int, ...] = LENGTHS, **extra: sw.Field
) -> Path:
    """Episodes of lane 0 by their lengths, 50 steps of lane 1; ``extra``: more fields of the observation, all zeros."""
    spec = sw.Spec(obs={"eye": sw.Field(shape, "uint8"), **extra}, action=sw.Field((), "int64"))
    others = {name: np.zeros(field.shape, field.dtype) for name, field in extra.items()}
    with sw.Store(spec, capacity=1000, disk=folder, segment_steps=16) as store:
        at = 0
        for number, length in enumerate(lengths):
            for step in range(length):
                store.append(
                    lane=0, obs={"eye": picture(at, shape), **others}, action=0, reward=float(number == 1),
                    terminated=False, truncated=step == length - 1,
                    final_obs={"eye": picture(at + 1, shape), **others},
                )  # fmt: skip
                at += 1
        for at in range(50):
            store.append(
                lane=1, obs={"eye": picture(at, shape), **others}, action=0, reward=0.0, terminated=False,
                truncated=False,
            )  # fmt: skip
        store.flush()
    return folder
