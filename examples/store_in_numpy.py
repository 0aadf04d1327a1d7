"""The store alone, in numpy: record an environment of your own, sample it, learn from it.

A walk on 0 ... 8: left or right, a reward of 1 at the right end. A table of Q-values learns it from the store's
batches; no framework, no Gymnasium.

    python examples/store_in_numpy.py
"""

import argparse

import numpy as np

import sharpwave as sw

END, GAMMA, MAX_STEPS = 8, 0.9, 50


def play(store: sw.Store, q: np.ndarray, episodes: int, epsilon: float, rng: np.random.Generator) -> float:
    """Play whole episodes on lane 0, append every step, and return the mean reward of an episode."""
    total = 0.0
    for _ in range(episodes):
        place = int(rng.integers(0, END))
        for step in range(1, MAX_STEPS + 1):
            greedy = int(np.argmax(q[place] + rng.normal(0, 1e-6, 2)))
            action = int(rng.integers(2)) if rng.random() < epsilon else greedy
            after = max(0, place + (1 if action else -1))
            terminated = after == END
            store.append(
                obs=np.float32(place),
                action=action,
                reward=float(terminated),
                terminated=terminated,
                truncated=not terminated and step == MAX_STEPS,
                next_obs=np.float32(after),
            )
            total += terminated
            if terminated:
                break
            place = after
    return total / episodes


def learn(replay: sw.Transitions, q: np.ndarray, updates: int) -> None:
    """Update a Q-table: the target is ``reward + discount * max_a Q(next_obs, a)``, without a done mask."""
    for _ in range(updates):
        batch = replay.sample(64)
        place, after = batch.obs.astype(int), batch.next_obs.astype(int)
        td_error = batch.reward + batch.discount * q[after].max(axis=1) - q[place, batch.action]
        np.add.at(q, (place, batch.action), 0.1 * batch.weights * td_error)
        replay.update_priorities(batch.ids, td_error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of playing and learning")
    arguments = parser.parse_args()

    spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=10_000, seed=0)
    replay = store.transitions(n_step=3, gamma=GAMMA, sampler=sw.Prioritized(alpha=0.6, beta=0.4))
    q, rng = np.zeros((END + 1, 2)), np.random.default_rng(0)

    for number in range(arguments.rounds):
        mean = play(store, q, 10, epsilon=max(0.05, 1 - number / 10), rng=rng)
        learn(replay, q, 50)
        print(f"round {number + 1:2}: {mean:.2f} an episode, {len(store):,} steps stored")

    print("Q of going right:", q[:END, 1].round(2), "expected:", (GAMMA ** np.arange(END - 1, -1, -1)).round(2))
    assert (q[:END, 1] > q[:END, 0]).all(), "the walk to the right was not learned; try more --rounds"


if __name__ == "__main__":
    main()
