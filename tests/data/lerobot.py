"""Makes ``tests/data/lerobot`` with lerobot 0.4.4, which the tests do not need.

``python -P tests/data/lerobot.py OUT``, then copy ``data`` and ``meta``, but for ``stats.json``.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

LENGTHS = (3, 12, 1, 40)


def frames(number: int) -> list[dict[str, Any]]:
    """Return the frames of an episode."""
    rng, count = np.random.default_rng(number), LENGTHS[number]
    found = []
    for t in range(count):
        frame: dict[str, Any] = {"observation.state": rng.normal(size=4).astype(np.float32)}
        frame["observation.environment_state"] = rng.normal(size=2)
        frame["observation.images.top"] = rng.integers(0, 255, (8, 6, 3)).astype(np.uint8)
        frame["action"] = rng.normal(size=2).astype(np.float32)
        frame["next.reward"] = np.array([rng.normal()], np.float32)
        frame["next.done"] = np.array([t == count - 1 and number % 2 == 0])
        found.append(frame)
    return found


def main() -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    def numbers(dtype: str, *shape: int) -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "names": None}

    features = {
        "observation.state": numbers("float32", 4),
        "observation.environment_state": numbers("float64", 2),
        "observation.images.top": {"dtype": "image", "shape": (8, 6, 3), "names": ["height", "width", "channels"]},
        "action": numbers("float32", 2),
        "next.reward": numbers("float32", 1),
        "next.done": numbers("bool", 1),
    }
    made = LeRobotDataset.create("me/toy", fps=10, root=sys.argv[1], use_videos=False, features=features)
    for number in range(len(LENGTHS)):
        for frame in frames(number):
            made.add_frame({**frame, "task": f"task {number}"})
        made.save_episode()
    made.finalize()


if __name__ == "__main__":
    main()
