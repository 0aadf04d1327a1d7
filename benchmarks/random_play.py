"""Scores of true random play: whole games, every action of the game with equal probability.

python benchmarks/random_play.py breakout qbert seaquest pong
"""

from __future__ import annotations

import numpy as np
import runner

from sharpwave.envs import AtariFrames, AtariSettings
from sharpwave.training.scores import EpisodeSums, game_result

LANES = 10


def scores(game: str, episodes: int, seed: int = 0) -> list[float]:
    """Play ``episodes`` games, the same number in every environment, so that short ones are not over-represented."""
    env = AtariFrames(game, LANES, AtariSettings(height=8, width=8, stack=1))  # nobody looks
    rng, sums = np.random.default_rng(seed), EpisodeSums(LANES)
    share = -(-episodes // LANES)
    found: list[list[float]] = [[] for _ in range(LANES)]
    env.reset(seed=seed)
    while min(map(len, found)) < share:
        actions = rng.integers(0, len(env.action_names), LANES, np.int64)
        _, reward, terminated, truncated, infos = env.step(actions)
        for episode in sums.add(*game_result(reward, terminated | truncated, infos)):
            found[episode.lane].append(episode.reward)
    return [score for lane in found for score in lane[:share]]


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("games", nargs="+", help="breakout, qbert, ...")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for game in arguments.games:
        played = np.array(scores(game, arguments.episodes, arguments.seed))
        error = played.std(ddof=1) / len(played) ** 0.5
        print(f"{game}: mean {played.mean():.2f}, standard error {error:.2f}, of {len(played)} games", flush=True)


if __name__ == "__main__":
    main()
