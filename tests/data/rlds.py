"""Makes ``tests/data/rlds`` with TensorFlow Datasets 4.9.10 (tensorflow-cpu 2.21), which the tests do not need.

``python tests/data/rlds.py OUT``, then copy ``OUT/toy/1.0.0``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = (1, 2, 5, 9, 70, 30, 4)
SPLITS = {"train": (7, 0), "val": (2, 50)}


def steps_of(number: int, seed_offset: int) -> list[dict[str, Any]]:
    """Return the steps of an episode: one more than its length."""
    rng, count = np.random.default_rng(100 + number + seed_offset), LENGTHS[number]
    steps = []
    for t in range(count + 1):
        observation = {
            "state": rng.normal(size=3),
            "image": rng.integers(0, 255, (8, 6, 3)).astype(np.uint8),
            "small": rng.integers(0, 255, (2, 2)).astype(np.uint8),
            "packed": rng.normal(size=2).astype(np.float32),
        }
        steps.append(
            {
                "observation": observation,
                "action": rng.normal(size=2).astype(np.float32),
                "reward": np.float32(rng.normal()),
                "discount": np.float32(1),
                "is_first": t == 0,
                "is_last": t == count,
                "is_terminal": t == count and number % 2 == 0,
                "language_instruction": "do it",
            }
        )
    return steps


def main() -> None:
    import tensorflow_datasets as tfds

    class Toy(tfds.core.GeneratorBasedBuilder):
        pkg_dir_path = Path(__file__).parent
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            of = tfds.features
            observation = of.FeaturesDict(
                {
                    "state": of.Tensor(shape=(3,), dtype=np.float64),
                    "image": of.Image(shape=(8, 6, 3), encoding_format="png"),
                    "small": of.Tensor(shape=(2, 2), dtype=np.uint8),
                    "packed": of.Tensor(shape=(2,), dtype=np.float32, encoding="zlib"),
                }
            )
            steps = {"observation": observation, "action": of.Tensor(shape=(2,), dtype=np.float32)}
            steps |= {"reward": np.float32, "discount": np.float32, "language_instruction": of.Text()}
            steps |= dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_)
            about = of.FeaturesDict({"file_path": of.Text(), "seed": np.int64})
            features = of.FeaturesDict({"steps": of.Dataset(steps), "episode_metadata": about})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager: Any) -> Any:
            return {name: self._generate_examples(*about) for name, about in SPLITS.items()}

        def _generate_examples(self, count: int, offset: int) -> Any:
            for e in range(count):
                about = {"file_path": f"/x/{e}", "seed": e}
                yield e + offset, {"steps": steps_of(e, offset), "episode_metadata": about}

    Toy(data_dir=sys.argv[1]).download_and_prepare()


if __name__ == "__main__":
    main()
