"""Segments of 32, 64 and 128 steps: bytes a step of games' frames, index included, and processor time to append one.

python benchmarks/segments.py [--steps 6000]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv

import sharpwave as sw

GAMES = ("pong", "breakout", "seaquest", "qbert")
KINDS: dict[tuple[int, ...], dict[str, Any]] = {
    (84, 84): {},
    (210, 160, 3): {"grayscale": False, "img_height": 210, "img_width": 160},
}
LANES = 2


def main() -> None:
    """Print a line for each game and kind of frame."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6000)
    steps = parser.parse_args().steps
    for game in GAMES:
        for shape, settings in KINDS.items():
            env: Any = AtariVectorEnv(game, num_envs=LANES, stack_num=1, **settings)
            obs, _ = env.reset(seed=1)
            rng = np.random.default_rng(0)
            spec = sw.Spec(obs=sw.Field(shape, "uint8"), action=sw.Field((), "int64"))
            stores = {length: sw.Store(spec, capacity=100_000, segment_steps=length) for length in (32, 64, 128)}
            spent = dict.fromkeys(stores, 0.0)
            for _ in range(steps // LANES):
                action = rng.integers(0, int(env.single_action_space.n), LANES)
                after, reward, terminated, truncated, _ = env.step(action)
                for length, store in stores.items():
                    begin = time.process_time()
                    store.extend(
                        obs=obs[:, 0], action=action, reward=reward, terminated=terminated, truncated=truncated,
                        next_obs=after[:, 0],
                    )  # fmt: skip
                    spent[length] += time.process_time() - begin
                obs = after.copy()
            found = []
            for length, store in stores.items():
                stats = store.stats()
                encoded = stats["encoded_bytes_per_step"] + stats["bytes"]["index"] / len(store)
                found.append(f"{length}: {encoded:.1f} B, {1e6 * spent[length] / steps:.1f} us")
            print(f"{game} {shape}: " + "; ".join(found), flush=True)


if __name__ == "__main__":
    main()
