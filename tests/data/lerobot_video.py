"""Makes ``tests/data/lerobot_video``, data sets whose cameras are videos, which the tests do not need lerobot for.

``python -P tests/data/lerobot_video.py OUT`` with lerobot 0.3.2 makes ``v2.1``, with 0.4.4 ``v3.0``; then copy
``data``, ``meta`` and ``videos``, but for the statistics.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

LENGTHS = (3, 12, 1, 40)
CAMERAS = {"observation.images.top": (48, 64, 3), "observation.images.wrist": (64, 64, 3)}


def picture(number: int, t: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return a picture that no other frame resembles: a plain colour, and a bright square that moves."""
    made = np.empty(shape, np.uint8)
    made[:] = (20 + 50 * number, 4 * t + 20, 220 - 4 * t)
    side, at = shape[0] // 4, t * 5 % (shape[1] - shape[0] // 4)
    made[side : 2 * side, at : at + side] = 240
    return made


def frames(number: int) -> list[dict[str, Any]]:
    """Return the frames of an episode."""
    count = LENGTHS[number]
    found = []
    for t in range(count):
        frame: dict[str, Any] = {"observation.state": np.array([number, t], np.float32)}
        frame |= {name: picture(number, t, shape) for name, shape in CAMERAS.items()}
        frame["action"] = np.array([t, -t], np.float32)
        frame["next.reward"] = np.array([t == count - 1], np.float32)
        frame["next.done"] = np.array([t == count - 1 and number % 2 == 0])
        found.append(frame)
    return found


def main() -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    def numbers(dtype: str, *shape: int) -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "names": None}

    names = ["height", "width", "channels"]
    cameras = {name: {"dtype": "video", "shape": shape, "names": names} for name, shape in CAMERAS.items()}
    features = {"observation.state": numbers("float32", 2), **cameras, "action": numbers("float32", 2)}
    features |= {"next.reward": numbers("float32", 1), "next.done": numbers("bool", 1)}
    made = LeRobotDataset.create("me/toy", fps=30, root=sys.argv[1], use_videos=True, features=features)
    for number in range(len(LENGTHS)):
        for frame in frames(number):
            task = f"task {number}"
            made.add_frame({**frame, "task": task}) if hasattr(made, "finalize") else made.add_frame(frame, task)
        made.save_episode()
    if hasattr(made, "finalize"):
        made.finalize()


if __name__ == "__main__":
    main()
